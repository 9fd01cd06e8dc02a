"""Processes of a run on its dashboard: cores that they used and bytes to and from devices, of the busiest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.parts.monitoring.experiments.recorded import Recorded, labels_of
from penstock.parts.monitoring.usage.dashboards import MOST_LINES

#: counters of a process: metric and unit of their rate here, and from their unit to it
_RATES = {
    "process_cpu_time": ("cores", "1", 1e-9),
    "process_read_bytes": ("read", "B/s", 1.0),
    "process_written_bytes": ("written", "B/s", 1.0),
}


def of_processes(recorded: Recorded) -> Iterator[tuple[str, str, str, str, Any, Any]]:
    """Rows of kind `process` as (kind, entity, metric, unit, times, values); the busiest of each metric.

    A value covers the interval before its time; there is none across a reset of its counter.
    """
    for counter, (metric, unit, factor) in _RATES.items():
        rows = recorded.series.filter(
            pc.equal(recorded.series["metric"].cast(pa.string()), counter)
        )
        if not rows.num_rows:
            continue
        labels = dict(zip(rows["series_id"].to_pylist(), rows["labels"].to_pylist(), strict=True))
        points = recorded.points.filter(pc.is_in(recorded.points["series_id"], rows["series_id"]))
        grown = points.group_by("series_id").aggregate([("float", "max"), ("float", "min")])
        by = pc.subtract(grown["float_max"], grown["float_min"]).to_numpy()
        busiest = np.argsort(-by, kind="stable")[:MOST_LINES]
        for series in grown["series_id"].take(pa.array(busiest)).to_pylist():
            one = points.filter(pc.equal(points["series_id"], series))
            at = one["utc_ns"].to_numpy()
            rate = np.diff(one["float"].to_numpy()) * factor / (np.diff(at) / 1e9)
            right = rate >= 0
            parsed = labels_of(labels[series])
            parts = (parsed.get("node", ""), parsed.get("comm", ""), parsed.get("pid", ""))
            name = " ".join(filter(None, parts))
            yield "process", name, metric, unit, at[1:][right], rate[right]
