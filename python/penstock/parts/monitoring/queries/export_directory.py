"""Series of a run as a directory of tables, one per metric, as `GET /exp/NAME` of MonEx gives them.

The file losses.json has the completeness of each of their columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import worst
from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.recorded import (
    labels_of,
    recorded_in,
    refusals,
    span_of,
)
from penstock.parts.monitoring.queries.export import Axis, Format, as_bytes, joined

MOST_METRICS = 10_000
LOSSES = "losses.json"
#: columns of `series`: counts, and details of the interval and the verdict
_COUNTS = (
    "produced received stored outside without_value expected late duplicate refused lost gaps"
    " longest_gap_ns"
).split()
_DETAILS = "interval_ns interval_from resets restarts verdict".split()

#: format → how a file's name ends
FORMS: dict[Format, str] = {"csv": "csv", "openmetrics": "om"}


def write(
    runs: Sequence[Path], folder: Path, form: Format, axis: Axis | None
) -> tuple[list[str], list[str]]:
    """Write METRIC.csv or METRIC.om and losses.json; with several runs, each into its own directory.

    A table of a sequence has its indices in the first column, whatever `axis`. OpenMetrics has neither
    sequences nor texts: they are omitted.

    Returns their names, and the names of metrics with omitted series.

    BadInput for a run without series, or with none that the format has.
    """
    if len(runs) == 1:
        return _written(runs[0], folder, form, axis)
    names, omitted = [], []
    for run in runs:
        own = folder / run.name
        own.mkdir()
        of_run, not_of_run = _written(run, own, form, axis)
        names += [f"{run.name}/{n}" for n in of_run]
        omitted += [m for m in not_of_run if m not in omitted]
    return names, omitted


def _written(
    run: Path, folder: Path, form: Format, axis: Axis | None
) -> tuple[list[str], list[str]]:
    bundle = Bundle.open(run)
    recorded = recorded_in(bundle)
    start, end = span_of(bundle)
    omitted: list[Mapping[str, Any]] = []
    if form == "openmetrics":
        absent = pc.or_(
            pc.equal(recorded.series["kind"].cast(pa.string()), "sequence"),
            pc.equal(recorded.series["type"].cast(pa.string()), "text"),
        )
        omitted = [_described(row) for row in recorded.series.filter(absent).to_pylist()]
        recorded = replace(recorded, series=recorded.series.filter(pc.invert(absent)))
    metrics = list(dict.fromkeys(recorded.series["metric"].to_pylist()))
    if omitted and not metrics:
        raise BadInput(f"{run}: found only sequences and texts; expected numbers with times")
    if not 0 < len(metrics) <= MOST_METRICS:
        raise BadInput(f"{run}: found {len(metrics)} metrics; expected 1 to {MOST_METRICS}")
    names: list[str] = []
    columns: list[dict[str, Any]] = []
    kinds = {
        (r["metric"], r["kind"]) for r in recorded.series.select(["metric", "kind"]).to_pylist()
    }
    of_both = [m for m in metrics if {(m, "time"), (m, "sequence")} <= kinds]
    chosen: list[tuple[str, Axis | None]] = [
        (metric, axis if (metric, "time") in kinds else "sample") for metric in metrics
    ]
    # a sequence beside series over time has a table of its own
    chosen += [(metric, "timestamp" if axis == "sample" else "sample") for metric in of_both]
    for metric, by in chosen:
        table = joined(recorded, metric, start, end, axis=by)
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
        columns += [
            {"file": name, "column": c, **_described(row)} for c, row in table.about.items()
        ]
    sources = refusals(recorded)
    totals = {key: sum(each[key] or 0 for each in columns) for key in _COUNTS[:-1]}
    # those of a series are all of its source
    totals["refused"] = sum(sum(one.points.values()) for one in sources.values())
    verdicts = [each["verdict"] for each in columns] + [one.verdict for one in sources.values()]
    of_sources = {
        source: {"points": dict(one.points), "messages": dict(one.messages)}
        for source, one in sources.items()
    }
    summary = {
        "verdict": worst(verdicts),
        "totals": totals,
        **({"refused": of_sources} if sources else {}),
        "series": columns,
        **({"omitted": omitted} if omitted else {}),
    }
    text = json.dumps(summary, indent=1, ensure_ascii=False)
    (folder / LOSSES).write_text(text + "\n", encoding="utf-8")
    return [*names, LOSSES], list(dict.fromkeys(row["metric"] for row in omitted))


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    """Identity and completeness of a series."""
    identity = {key: row[key] for key in ("metric", "source", "unit", "kind")}
    counts = {key: row[key] for key in (*_COUNTS, *_DETAILS)}
    return {**identity, "labels": labels_of(row["labels"]), **counts}
