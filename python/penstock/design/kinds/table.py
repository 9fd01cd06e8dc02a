"""Treatments listed in the study, row by row."""

from __future__ import annotations

import numpy as np

from penstock.design import model as models
from penstock.design.kinds.base import Asked, Claim, Numbers
from penstock.spec.study import level_name

WHAT = (
    "Own treatments: a CSV file with a column for every factor, or rows in the study. A row that "
    "appears several times is run as often in each replicate."
)
OPTIONS = {
    "file": "CSV with a header of factor names and level names below, relative to the study",
    "rows": "instead: the treatments themselves, each a mapping of factor to level",
}
CANNOT: tuple[str, ...] = ()
MOST = 1 << 16


def fault(request: Asked) -> str:
    """Fault unless levels exist, no row is forbidden, and main effects are separable; rows may repeat."""
    declared = request.options.get("rows")
    if not isinstance(declared, list) or not declared or len(declared) > MOST:
        return f"rows: 1 to {MOST} treatments, or file: a CSV file with a column for every factor"
    places = [{v.name: i for i, v in enumerate(f.levels)} for f in request.factors]
    for number, row in enumerate(declared, start=1):
        if not isinstance(row, dict) or set(row) != set(request.names):
            return f"row {number}: a level for each of {', '.join(request.names)}"
        names = tuple(level_name(row[name]) for name in request.names)
        for factor, level_names, name in zip(request.names, places, names, strict=True):
            if name not in level_names:
                return f"row {number}: a level of {factor} ({', '.join(level_names)}), not {name!r}"
    rows = treatments(request)
    barred = np.flatnonzero(~request.allowed(rows))
    if len(barred):
        return f"row {barred[0] + 1}: no forbidden combination"
    if models.largest_model(request.factors, rows) is None:
        return "rows that separate the main effects; some level or combination is missing"
    return ""


def treatments(request: Asked) -> Numbers:
    """The rows as listed."""
    return numbers_of(request, request.options["rows"])


def claim(request: Asked) -> Claim:
    """Claim the largest model that the rows estimate."""
    rows = treatments(request)
    return Claim(model=models.largest_model(request.factors, rows) or "main", repeated=True)


def numbers_of(request: Asked, rows: list[dict[str, object]]) -> Numbers:
    """Level numbers of rows of level names."""
    places = [{v.name: i for i, v in enumerate(f.levels)} for f in request.factors]
    numbers: Numbers = np.array(
        [
            [
                place[level_name(row[name])]
                for name, place in zip(request.names, places, strict=True)
            ]
            for row in rows
        ],
        dtype=np.int64,
    )
    return numbers
