"""Series of a run as a directory of tables, one per metric, as `GET /exp/NAME` of MonEx gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput
from penstock.observe.monitor.export import Axis, Format, as_bytes, joined
from penstock.observe.monitor.recorded import recorded_in, span_of

MOST_METRICS = 10_000


#: format → how a file's name ends
FORMS: dict[Format, str] = {"csv": "csv", "openmetrics": "om"}


def write(runs: Sequence[Path], folder: Path, form: Format, axis: Axis | None) -> list[str]:
    """Writes METRIC.csv or METRIC.om, of several runs each into a directory of its own; gives their names.

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
    names = []
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
    return names
