"""Utilisations from counters: processors, disks and their latency, network, emulated disks, the run's group.

Source of the formulas: the kernel documentation of the counters. A counter that goes backwards yields an
empty value and a reset mark for results that depend on it, never a negative or clamped one; the entity's
other counters keep their values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.schemas import TABLES
from penstock.observe.sampler.formulas import (
    STATES,
    Array,
    cpu_percent,
    disk_percent,
    disk_percent_of_time,
    network_percent,
    percent_of,
)
from penstock.observe.sampler.latency import SOURCE as BLOCK_LATENCY
from penstock.observe.sampler.latency import latencies

#: sources without utilisation, some of them with many rows
_NO_USE = ["process", "file", "command", "sampler"]
UTILISATION_SCHEMA = TABLES["utilisation"].arrow


def utilisation(
    samples: pa.Table,
    *,
    hz: float | None = None,
    cpus: int | None = None,
    link_bps: Mapping[str, float] | None = None,
) -> pa.Table:
    """The `utilisation` table of a `samples` table: one row per interval, stamped at its end.

    `hz` (default: this host's) converts processor seconds to ticks, `cpus` defaults to the processors in the
    samples, `link_bps` has the interfaces' capacities in bytes per second; without one an interface gets
    rates only. Values are null where a counter went backwards, and `reset` marks it.
    """
    rows: list[pa.Table] = []
    if samples.num_rows:
        ticks_hz = float(hz or os.sysconf("SC_CLK_TCK"))
        ignored = pc.is_in(samples["source"], pa.array(_NO_USE))
        sampled = _Sampled(samples.filter(pc.invert(ignored)).to_pandas())
        count = cpus or max(1, len([p for p in sampled.entities("cpu") if p != "all"]))
        rows += _cpu(sampled, ticks_hz)
        rows += _pressure(sampled)
        rows += _disks(sampled, ticks_hz, count)
        rows += [
            _rows(pd.Index(m.t_ns), BLOCK_LATENCY, m.device, m.metric, m.values, m.reset, "s")
            for m in latencies(sampled.frame)
        ]
        rows += _network(sampled, link_bps or {})
        rows += _emulated(sampled)
        rows += _group(sampled, count)
    if not rows:
        return UTILISATION_SCHEMA.empty_table()
    keys = ("kind", "entity", "metric", "t_ns")
    return pa.concat_tables(rows).sort_by([(key, "ascending") for key in keys])


class _Sampled:
    """Samples by source and entity."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self._of = {(str(s), str(e)): rows for (s, e), rows in frame.groupby(["source", "entity"])}

    def entities(self, source: str) -> list[str]:
        return sorted(e for s, e in self._of if s == source)

    def unit(self, source: str, entity: str, metric: str) -> str | None:
        """Unit of one metric, None if it was not sampled."""
        rows = self._of[source, entity]
        units = rows.loc[rows["metric"] == metric, "unit"]
        return str(units.iloc[0]) if len(units) else None

    def wide(self, source: str, entity: str) -> pd.DataFrame:
        """Metrics of one entity as columns, by time."""
        if (source, entity) not in self._of:
            return pd.DataFrame(index=pd.Index([], name="t_ns"))
        rows = self._of[source, entity].drop_duplicates(["t_ns", "metric"], keep="last")
        return rows.pivot(index="t_ns", columns="metric", values="value").sort_index()


@dataclass(frozen=True)
class _Growth:
    """Differences of consecutive samples, and positions where a counter went backwards, at which its
    difference is empty."""

    delta: pd.DataFrame
    _back: pd.DataFrame

    @property
    def times(self) -> pd.Index:
        """Ends of the intervals."""
        return self.delta.index

    def of(self, *counters: str) -> tuple[Array, ...]:
        """Growth of each of these counters."""
        return tuple(self.delta[c].to_numpy() for c in counters)

    def reset(self, *counters: str) -> npt.NDArray[np.bool_]:
        """True where one of these counters went backwards."""
        backwards: npt.NDArray[np.bool_] = self._back[list(counters)].any(axis=1).to_numpy()
        return backwards


def _growth(wide: pd.DataFrame, counters: Sequence[str]) -> _Growth:
    delta = wide.reindex(columns=list(counters)).diff().iloc[1:]
    back = delta < 0
    return _Growth(delta.mask(back), back)


def _seconds(wide: pd.DataFrame) -> Array:
    return np.asarray(np.diff(wide.index.to_numpy()) / 1e9, dtype=float)


def _rows(
    times: pd.Index,
    kind: str,
    entity: str,
    metric: str,
    value: Array | pd.Series,
    reset: npt.NDArray[np.bool_],
    unit: str = "%",
) -> pa.Table:
    n = len(times)
    return pa.table(
        [
            pa.array(times.to_numpy(), pa.int64()),
            *(pa.repeat(pa.scalar(word), n) for word in (kind, entity, metric, unit)),
            pa.array(np.asarray(value, dtype=float), from_pandas=True),
            pa.array(reset, pa.bool_()),
        ],
        schema=UTILISATION_SCHEMA,
    )


def _in_ticks(seconds: pd.DataFrame, hz: float) -> pd.DataFrame:
    """Integer ticks: differences of seconds have rounding errors that ticks do not have."""
    return (seconds * hz).round()


def _cpu(sampled: _Sampled, hz: float) -> list[pa.Table]:
    rows = []
    for entity in sampled.entities("cpu"):
        wide = sampled.wide("cpu", entity)
        if set(STATES) <= set(wide.columns):
            grown = _growth(_in_ticks(wide[list(STATES)], hz), STATES)
            # all states are present: their sum is the total time
            reset = grown.reset(*STATES)
            busy = cpu_percent(dict(zip(STATES, grown.of(*STATES), strict=True)))
            rows.append(_rows(grown.times, "cpu", entity, "busy", busy, reset))
            total = grown.delta.sum(axis=1, skipna=False).to_numpy()
            (steal,) = grown.of("steal")
            stolen = percent_of(steal, total)
            rows.append(_rows(grown.times, "cpu", entity, "stolen", stolen, reset))
    return rows


def _pressure(sampled: _Sampled) -> list[pa.Table]:
    """Share of time in which some task of the host waited for a processor, if the kernel counts it."""
    wide = sampled.wide("psi", "host")
    if "cpu_some" not in wide.columns:
        return []
    grown = _growth(wide, ["cpu_some"])
    (waited_us,) = grown.of("cpu_some")
    part = percent_of(waited_us / 1e6, _seconds(wide))
    return [_rows(grown.times, "cpu", "all", "waited_for", part, grown.reset("cpu_some"))]


def _disks(sampled: _Sampled, hz: float, cpus: int) -> list[pa.Table]:
    of_cpus = sampled.wide("cpu", "all")
    complete = set(STATES) <= set(of_cpus.columns)
    ticks = _in_ticks(of_cpus[list(STATES)], hz).sum(axis=1, skipna=False) if complete else None
    rows = []
    for entity in sampled.entities("disk"):
        wide = sampled.wide("disk", entity)
        counters = ["io_time", "queue_time", "read_bytes", "written_bytes", "reads", "writes"]
        if "io_time" not in wide.columns:
            continue
        if ticks is not None:
            wide = wide.assign(_ticks=ticks.reindex(wide.index))
            both = _growth(wide, ["io_time", "_ticks"])
            io_time, elapsed = both.of("io_time", "_ticks")
            busy = disk_percent(io_time, elapsed, hz, cpus)
            reset = both.reset("io_time", "_ticks")
            rows.append(_rows(both.times, "disk", entity, "busy", busy, reset))
        grown = _growth(wide, counters)
        dt_s = _seconds(wide)
        busy_ms, queued_ms = grown.of("io_time", "queue_time")
        by_clock = disk_percent_of_time(busy_ms, dt_s)
        reset = grown.reset("io_time")
        rows.append(_rows(grown.times, "disk", entity, "busy_of_time", by_clock, reset))
        depth, reset = queued_ms / (1000.0 * dt_s), grown.reset("queue_time")
        rows.append(_rows(grown.times, "disk", entity, "queue_depth", depth, reset, "1"))
        rows += _rates(grown, dt_s, "disk", entity)
    return rows


def _rates(grown: _Growth, dt_s: Array, kind: str, entity: str) -> list[pa.Table]:
    named = [
        ("read_bytes", "read_rate", "B/s"),
        ("written_bytes", "write_rate", "B/s"),
        ("reads", "read_operations", "1/s"),
        ("writes", "write_operations", "1/s"),
    ]
    return [
        _rows(
            grown.times,
            kind,
            entity,
            metric,
            grown.of(counter)[0] / dt_s,
            grown.reset(counter),
            unit,
        )
        for counter, metric, unit in named
    ]


def _network(sampled: _Sampled, link_bps: Mapping[str, float]) -> list[pa.Table]:
    rows = []
    for entity in sampled.entities("network"):
        wide = sampled.wide("network", entity)
        counters = ("sent_bytes", "received_bytes")
        grown = _growth(wide, counters)
        dt_s = _seconds(wide)
        (sent, received), times = grown.of(*counters), grown.times
        out, into = grown.reset("sent_bytes"), grown.reset("received_bytes")
        rows.append(_rows(times, "network", entity, "send_rate", sent / dt_s, out, "B/s"))
        rows.append(_rows(times, "network", entity, "receive_rate", received / dt_s, into, "B/s"))
        if link_bps.get(entity, 0) > 0:
            shares = network_percent(sent, received, link_bps[entity], dt_s)
            named = (("used", out | into), ("used_out", out), ("used_in", into))
            for (metric, reset), part in zip(named, shares, strict=True):
                rows.append(_rows(times, "network", entity, metric, part, reset))
    return rows


def _emulated(sampled: _Sampled) -> list[pa.Table]:
    """Emulated disks by their own counters: time with a request in flight, in nanoseconds."""
    rows = []
    kind = "emulated_disk"
    for entity in sampled.entities(kind):
        wide = sampled.wide(kind, entity)
        counters = ["busy", "queue_time", "read_bytes", "written_bytes", "reads", "writes"]
        grown = _growth(wide, counters)
        dt_s = _seconds(wide)
        busy_ns, queued_ns = grown.of("busy", "queue_time")
        busy, reset = percent_of(busy_ns, 1e9 * dt_s), grown.reset("busy")
        rows.append(_rows(grown.times, kind, entity, "busy", busy, reset))
        depth, reset = queued_ns / (1e9 * dt_s), grown.reset("queue_time")
        rows.append(_rows(grown.times, kind, entity, "queue_depth", depth, reset, "1"))
        rows += _rates(grown, dt_s, kind, entity)
    return rows


def _group(sampled: _Sampled, cpus: int) -> list[pa.Table]:
    """Processor time of the groups of the run, or of its nodes, relative to all processors."""
    rows = []
    for entity in sampled.entities("cgroup"):
        unit = sampled.unit("cgroup", entity, "cpu_time")
        if unit is None:
            continue
        wide = sampled.wide("cgroup", entity)
        per_second = {"ns": 1e9, "us": 1e6, "s": 1.0}[unit]
        grown = _growth(wide, ["cpu_time"])
        spent_s, reset = grown.of("cpu_time")[0] / per_second, grown.reset("cpu_time")
        part = percent_of(spent_s, cpus * _seconds(wide))
        rows.append(_rows(grown.times, "cgroup_cpu", entity, "busy", part, reset))
        cores = spent_s / _seconds(wide)
        rows.append(_rows(grown.times, "cgroup_cpu", entity, "cores", cores, reset, "1"))
    return rows
