"""Ranking of treatments by predictions, to choose those to run; predictions never enter an analysis."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.design.planned import Plan, treatments_of
from penstock.errors import BadInput, printable
from penstock.spec.study import Response
from penstock.text import quantities, quantity

_LARGEST_BYTES = 256 << 20
#: texts of a missing number
_MISSING = frozenset(("", "-", "na", "n/a", "nan", "none", "null", "<na>"))


@dataclass(frozen=True)
class Ranked:
    """A treatment of the plan with its prediction, None without one."""

    levels: dict[str, str]
    predicted: float | None
    low: float | None
    high: float | None


def predictions_of(path: Path) -> pd.DataFrame:
    """A table of predictions from a study's directory, or a Parquet or CSV file. BadInput otherwise."""
    file = path / "predictions.parquet" if path.is_dir() else path
    if not file.is_file():
        raise BadInput(
            f"{file}: found no table of predictions; expected OUT/predictions.parquet or a CSV"
        )
    if file.stat().st_size > _LARGEST_BYTES:
        raise BadInput(
            f"{file}: found {file.stat().st_size} bytes; expected at most {_LARGEST_BYTES}"
        )
    try:
        # texts: names of levels such as 007, true or none are no numbers and no missing values
        table = (
            pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8-sig")
            if file.suffix == ".csv"
            else pd.read_parquet(file)
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{file}: {reason}; expected a table of predictions") from error
    if "predicted" not in table:
        raise BadInput(f"{file}: found no column predicted; expected a table of predictions")
    return table


def ranked(plan: Plan, response: Response, table: pd.DataFrame) -> list[Ranked]:
    """The plan's treatments in descending order of prediction, those without one last.

    Rows are matched by the factors' columns. BadInput if one is missing, if nothing matches, or for a text
    that is no number.
    """
    names = [f.name for f in plan.factors]
    missing = [n for n in names if n not in table]
    if missing:
        raise BadInput(
            f"the predictions: found no column {', '.join(missing)}; expected one for each factor"
        )
    if "response" in table:
        table = table[table["response"].astype(str) == response.name]
    by_levels: dict[tuple[str, ...], dict[Hashable, Any]] = {}
    for row in table.to_dict("records"):
        key = tuple(str(row[n]) for n in names)
        first = by_levels.setdefault(key, row)
        # as texts: a missing prediction (NaN) is equal to itself
        if str(first["predicted"]) != str(row["predicted"]):
            raise BadInput(
                f"the predictions: found two of {', '.join(key)}; expected one for each treatment"
            )
    treatments = []
    for levels in treatments_of(plan):
        row = by_levels.get(tuple(levels[n] for n in names), {})
        value = _number(row.get("predicted"))
        treatments.append(
            Ranked(levels, value, _number(row.get("ci_low")), _number(row.get("ci_high")))
        )
    if all(r.predicted is None for r in treatments):
        raise BadInput(
            f"the predictions: found none of {response.name} for a treatment of this plan; expected "
            "columns of factors with the plan's level names"
        )
    sign = -1.0 if response.better == "higher" else 1.0
    return sorted(treatments, key=lambda r: math.inf if r.predicted is None else sign * r.predicted)


def rank_lines(treatments: Sequence[Ranked], response: Response) -> list[str]:
    """The ranking for a terminal."""
    lines = [
        f"Treatments by predicted {response.name}, the best first (predicted, not measured)",
        "",
    ]
    for place, one in enumerate(treatments, start=1):
        levels_text = ", ".join(f"{n} {v}" for n, v in one.levels.items())
        value = "no prediction" if one.predicted is None else quantity(one.predicted, response.unit)
        if one.low is not None and one.high is not None:
            value += f" ({quantities([one.low, one.high], response.unit)})"
        lines.append(f"{place:4} {levels_text}: {value}")
    return lines


def _number(value: Any) -> float | None:
    if value is None or str(value).strip().lower() in _MISSING:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(
            f"the predictions: found {printable(str(value)[:80])!r}; expected a number with a decimal point, "
            "without a unit"
        ) from None
    return number if math.isfinite(number) else None
