"""A response from the trace of a run: a measure of the accesses to some of its files.

pyarrow is imported in functions: study files are read without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, printable
from penstock.spec.study import ResponseSource
from penstock.spec.units import convert
from penstock.text import matches_pattern

if TYPE_CHECKING:
    from penstock.archive.bundle import Bundle

Row = dict[str, Any]
_CALLS, _FAULTS, _DEVICE = "calls", "faults", "device"
#: `basis` of calls that were counted, because their file was not chosen (`observers.trace.hot`)
_COUNTERS = "counters"


@dataclass(frozen=True)
class Measure:
    """Unit of a measure, bases for which it exists, and its value from rows of `patterns`.

    Without `value` it is computed from single calls (`events`), or from the sums of flushes.
    """

    unit: str
    bases: tuple[str, ...]
    value: Callable[[Sequence[Row]], float | None] | None = None
    events: bool = False

    @property
    def of_flushes(self) -> bool:
        """True if it has no direction."""
        return self.value is None and not self.events


def _sum(column: str) -> Callable[[Sequence[Row]], float | None]:
    return lambda rows: float(sum(row[column] or 0 for row in rows))


def _share(column: str) -> Callable[[Sequence[Row]], float | None]:
    """Mean of a share over files [%], weighted by their requests; None without a request."""

    def mean(rows: Sequence[Row]) -> float | None:
        shares = [(row[column], row["requests"]) for row in rows if row[column] is not None]
        weight = sum(requests for _, requests in shares)
        return 100 * sum(s * n for s, n in shares) / weight if weight else None

    return mean


def _time_s(rows: Sequence[Row]) -> float:
    return 1e-9 * sum(row["time_ns"] or 0 for row in rows)


def _mean_latency(rows: Sequence[Row]) -> float | None:
    calls = sum(row["calls"] or 0 for row in rows)
    return _time_s(rows) / calls if calls else None


_ALL = (_CALLS, _FAULTS, _DEVICE)
#: measures of `from: {trace: MEASURE}`
MEASURES: dict[str, Measure] = {
    "requests": Measure("1", _ALL, _sum("requests")),
    "bytes": Measure("B", _ALL, _sum("bytes")),
    **{
        name: Measure("%", _ALL, _share(name))
        for name in ("consecutive_share", "sequential_share", "forward_share", "reverse_share")
    },
    "time": Measure("s", (_CALLS, _FAULTS), _time_s),
    "mean_latency": Measure("s", (_CALLS, _FAULTS), _mean_latency),
    **{
        f"p{percent}_latency": Measure("s", (_CALLS, _FAULTS), events=True)
        for percent in (50, 95, 99)
    },
    "flushes": Measure("1", (_CALLS,)),
    "flush_share": Measure("%", (_CALLS,)),
}


def traced_value(bundle: Bundle, source: ResponseSource, unit: str, wall_s: float) -> float:
    """Value of a measure in `unit`; `wall_s`: length of the run.

    PenstockError without a trace, without a matching file, or without a request that the measure needs.
    """
    name = source.key or ""
    measure = MEASURES[name]
    if "patterns" not in bundle.tables:
        raise PenstockError("found no trace of the run; expected observers.trace")
    files = _matching(bundle, source.file)
    if measure.of_flushes:
        calls, time_ns = _flushes(bundle, files)
        share = 1e-7 * time_ns / max(wall_s, 1e-9)
        return convert(share if name == "flush_share" else calls, measure.unit, unit)
    rows = _rows(bundle, source, files)
    value = measure.value(rows) if measure.value else _percentile(bundle, source, rows)
    if value is None:
        what = f"{source.direction} " if source.direction else ""
        raise PenstockError(
            f"found no {what}request ({source.basis}) of {printable(source.file)}; "
            f"expected at least one for {name}"
        )
    return convert(value, measure.unit, unit)


def _matching(bundle: Bundle, pattern: str) -> set[int]:
    """Files whose path or name matches; PenstockError if there are none, unless all were requested."""
    rows = bundle.table("files", ["file_id", "path"]).to_pylist()
    if pattern == "*":
        return {row["file_id"] for row in rows}
    named = [(row["file_id"], row["path"] or "") for row in rows]
    matching = {
        number
        for number, path in named
        if any(matches_pattern(text, pattern) for text in (path, path.rpartition("/")[2]))
    }
    if not matching:
        raise PenstockError(
            f"found no traced file that matches {printable(pattern)}; "
            "expected a path or a name, with * and ?"
        )
    return matching


def _rows(bundle: Bundle, source: ResponseSource, files: set[int]) -> list[Row]:
    """Verdicts on all threads and the complete run."""
    bases = (_CALLS, _COUNTERS) if source.basis == _CALLS else (source.basis,)
    return [
        row
        for row in bundle.table("patterns").to_pylist()
        if row["tid"] is None
        and row["phase_id"] is None
        and row["basis"] in bases
        and row["file_id"] in files
        and source.direction in (None, row["direction"])
    ]


def _flushes(bundle: Bundle, files: set[int]) -> tuple[int, int]:
    """Flushes to the device, and their time [ns]."""
    native: Any = importlib.import_module("penstock._native")
    ops = {name for _, name, way in native.trace_operations() if way == "sync"}
    rows = [
        row
        for row in bundle.table("operations").to_pylist()
        if row["op"] in ops and row["file_id"] in files
    ]
    return sum(row["calls"] for row in rows), sum(row["time_ns"] for row in rows)


def _percentile(bundle: Bundle, source: ResponseSource, rows: Sequence[Row]) -> float | None:
    """Percentile of the latency of single calls or faults [s]."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if "io_events" not in bundle.tables:
        raise PenstockError("found no record of single calls; expected observers.trace.mode: trace")
    if any(row["basis"] == _COUNTERS for row in rows):
        raise PenstockError("found calls without a record of their own; expected a trace of all")
    numbers = sorted({row["file_id"] for row in rows})
    events = bundle.accesses(["file_id", "direction", "op", "latency_ns"])
    chosen = pc.is_in(events["file_id"], pa.array(numbers, events["file_id"].type))
    faults = pc.starts_with(events["op"].cast("string"), "fault_")
    chosen = pc.and_(chosen, faults if source.basis == _FAULTS else pc.invert(faults))
    if source.direction is not None:
        chosen = pc.and_(chosen, pc.equal(events["direction"].cast("string"), source.direction))
    latency_ns = events["latency_ns"].filter(chosen).to_numpy()
    if not len(latency_ns):
        return None
    percent = int((source.key or "").removeprefix("p").removesuffix("_latency"))
    return 1e-9 * float(np.percentile(latency_ns, percent))
