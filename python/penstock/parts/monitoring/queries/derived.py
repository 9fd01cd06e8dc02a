"""Derived series of an experiment or a monitored run: stored in its bundle, read as points of a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.selection import Selection
from penstock.archive.series import derived
from penstock.archive.series.read_series import of_selection
from penstock.parts.monitoring.experiments.points import Batch, points

SOURCE = "derived"


def derive(
    runs: Sequence[Path],
    name: str,
    expression: str,
    unit: str | None = None,
    table: str | None = None,
) -> dict[str, int]:
    """Compute a series in each run and store it there; returns its number of stored points by run."""
    counts = {}
    for run in runs:
        # a derived series is as complete as its sources
        series = of_selection(Selection(str(run), "run", run, [run]), table, partial=True)
        stored = derived.keep(Bundle.open(run), series, name, expression, unit)
        counts[str(run)] = sum(int(np.isfinite(one.y).sum()) for one in stored.series)
    return counts


def batch_of(bundle: Bundle, metric: str | None) -> Batch | None:
    """The derived series as a batch of points; None if there is none (of that name)."""
    table = derived.read(bundle)
    if table is not None and metric is not None:
        table = table.filter(pc.equal(table["metric"], metric))
    if table is None or not table.num_rows:
        return None
    columns = points(
        metric=table["metric"],
        labels=table["labels"],
        utc_ns=table["utc_ns"],
        float=table["value"],
        unit=table["unit"],
    )
    return Batch(SOURCE, 0, columns)
