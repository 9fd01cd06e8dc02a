"""Own treatments, row by row."""

from __future__ import annotations

import numpy as np

from penstock.design import model as models
from penstock.design.kinds.base import Asked, Claim, Numbers
from penstock.spec.study import level_name

WHAT = (
    "Own treatments: a CSV file with a column for every factor, or rows in the study. A row that stands "
    "several times is run as often in each replicate."
)
OPTIONS = {
    "file": "CSV with a header of factor names and level names below, relative to the study",
    "rows": "instead: the treatments themselves, each a mapping of factor to level",
}
CANNOT: tuple[str, ...] = ()
MOST = 1 << 16


def fault(asked: Asked) -> str:
    """Rows of known levels, none forbidden, which tell main effects apart; rows may be repeated."""
    said = asked.options.get("rows")
    if not isinstance(said, list) or not said or len(said) > MOST:
        return f"rows: 1 to {MOST} treatments, or file: a CSV file with a column for every factor"
    places = [{v.name: i for i, v in enumerate(f.levels)} for f in asked.factors]
    for number, row in enumerate(said, start=1):
        if not isinstance(row, dict) or set(row) != set(asked.names):
            return f"row {number}: a level for each of {', '.join(asked.names)}"
        names = tuple(level_name(row[name]) for name in asked.names)
        for factor, known, name in zip(asked.names, places, names, strict=True):
            if name not in known:
                return f"row {number}: a level of {factor} ({', '.join(known)}), not {name!r}"
    rows = treatments(asked)
    barred = np.flatnonzero(~asked.allowed(rows))
    if len(barred):
        return f"row {barred[0] + 1}: no forbidden combination"
    if models.largest_model(asked.factors, rows) is None:
        return "rows that tell the main effects apart; some level or combination is missing"
    return ""


def treatments(asked: Asked) -> Numbers:
    """The rows as they stand."""
    return numbers_of(asked, asked.options["rows"])


def claim(asked: Asked) -> Claim:
    """The largest model that the rows tell apart."""
    rows = treatments(asked)
    return Claim(model=models.largest_model(asked.factors, rows) or "main", repeated=True)


def numbers_of(asked: Asked, rows: list[dict[str, object]]) -> Numbers:
    """Level numbers of rows of level names."""
    places = [{v.name: i for i, v in enumerate(f.levels)} for f in asked.factors]
    found: Numbers = np.array(
        [
            [known[level_name(row[name])] for name, known in zip(asked.names, places, strict=True)]
            for row in rows
        ],
        dtype=np.int64,
    )
    return found
