"""Series of a run as a directory of tables, one per metric, as `GET /exp/NAME` of MonEx gives them.

Beside them lies what the tables have no place for: how complete each of their columns is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import worst
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.recorded import labels_of, recorded_in, span_of
from penstock.parts.monitoring.queries.export import Axis, Format, as_bytes, joined

MOST_METRICS = 10_000
LOSSES = "losses.json"
#: of a row of `series`, what is counted of it, and what is known of how often a point was due
_COUNTS = (
    "produced received stored outside without_value expected late duplicate refused lost gaps"
    " longest_gap_ns"
).split()
_KNOWN = "interval_ns interval_from resets restarts verdict".split()

#: format → how a file's name ends
FORMS: dict[Format, str] = {"csv": "csv", "openmetrics": "om"}


def write(runs: Sequence[Path], folder: Path, form: Format, axis: Axis | None) -> list[str]:
    """Writes METRIC.csv or METRIC.om and losses.json, of several runs each into a directory of its own.

    Gives their names.

    BadInput for a run without series.
    """
    if len(runs) == 1:
        return _written(runs[0], folder, form, axis)
    names = []
    for run in runs:
        own = folder / run.name
        own.mkdir()
        names += [f"{run.name}/{n}" for n in _written(run, own, form, axis)]
    return names


def _written(run: Path, folder: Path, form: Format, axis: Axis | None) -> list[str]:
    bundle = Bundle.open(run)
    made = recorded_in(bundle)
    start, end = span_of(bundle)
    metrics = list(dict.fromkeys(made.series["metric"].to_pylist()))
    if not 0 < len(metrics) <= MOST_METRICS:
        raise BadInput(f"{run}: found {len(metrics)} metrics; expected 1 to {MOST_METRICS}")
    names: list[str] = []
    columns: list[dict[str, Any]] = []
    for metric in metrics:
        table = joined(made, metric, start, end, axis=axis)
        if table is None:
            continue
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", metric).lstrip(".")[:100] or "metric"
        name = f"{stem}.{FORMS[form]}"
        number = 2
        while name in names:
            name, number = f"{stem}-{number}.{FORMS[form]}", number + 1
        with (folder / name).open("wb") as file:
            file.writelines(as_bytes(table, form))
        names.append(name)
        columns += [{"file": name, "column": c, **_told(row)} for c, row in table.about.items()]
    totals = {key: sum(each[key] or 0 for each in columns) for key in _COUNTS[:-1]}
    said = {"verdict": worst(each["verdict"] for each in columns), "totals": totals}
    text = json.dumps({**said, "series": columns}, indent=1, ensure_ascii=False)
    (folder / LOSSES).write_text(text + "\n", encoding="utf-8")
    return [*names, LOSSES]


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """Which series it is, and how complete."""
    said = {key: row[key] for key in ("metric", "source", "unit", "kind")}
    counts = {key: row[key] for key in (*_COUNTS, *_KNOWN)}
    return {**said, "labels": labels_of(row["labels"]), **counts}
