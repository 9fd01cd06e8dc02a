"""A sampler's spool while it grows: values since the last call, as `utilisation` and gauges.

The formulas are those of `utilisation.py`, over all entities and all new samples at once, so that a call
takes time proportional to the new data. Values that were not sampled are NaN.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError
from penstock.observe.sampler.formulas import (
    STATES,
    Array,
    cpu_percent,
    disk_percent,
    disk_percent_of_time,
    network_percent,
    percent_of,
)
from penstock.observe.sampler.latency import SOURCE, latencies_of
from penstock.observe.sampler.samples import SAMPLE_DTYPE
from penstock.spec.alert import METRICS

Ints = npt.NDArray[np.int64]
#: bytes per read; a call reads until the end
_PIECE_BYTES = 2 << 20
#: limit of times × series of one piece, far above that of a valid spool
_MOST_CELLS = 20_000_000
_RATES = (
    ("read_bytes", "read_rate"),
    ("written_bytes", "write_rate"),
    ("reads", "read_operations"),
    ("writes", "write_operations"),
)
#: sources without derived values; some of their records belong to samples that were read already
_IGNORED = ("process",)
_PER_SECOND = {"ns": 1e9, "us": 1e6, "s": 1.0}


@dataclass(frozen=True)
class Values:
    """One metric (a row of `penstock.spec.alert.METRICS`) of one entity, by time [ns, CLOCK_MONOTONIC]."""

    metric: str
    entity: str
    t_ns: Ints
    values: Array


@dataclass(frozen=True)
class Named:
    """A series of a spool."""

    source: str
    entity: str
    metric: str
    unit: str
    cumulative: bool


class Growing:
    """Records that a sampler appends to `spool`, piece by piece; the spool need not exist yet.

    Raises PenstockError for a damaged spool.
    """

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        #: series read so far, by number
        self.series: list[Named] = []
        self._read = 0
        self._names_read = 0

    def piece(self) -> npt.NDArray[Any]:
        """Next records, in complete samples; empty if there are none."""
        try:
            with open(self.spool, "rb") as file:
                file.seek(self._read)
                piece = file.read(_PIECE_BYTES)
        except FileNotFoundError:
            return np.zeros(0, SAMPLE_DTYPE)
        records = np.frombuffer(
            piece[: len(piece) // SAMPLE_DTYPE.itemsize * SAMPLE_DTYPE.itemsize], SAMPLE_DTYPE
        )
        if len(piece) == _PIECE_BYTES:  # the last sample continues in the next piece
            first = int(np.argmax(records["t_ns"]))
            records = records[: first or len(records)]
        self._read += records.nbytes
        if len(records):
            self._names()
            if int(records["series"].max()) >= len(self.series):
                raise PenstockError(f"{self.spool}.series does not name all series")
        return records

    def _names(self) -> None:
        """Read the names of new series, which are written before their first values."""
        with open(f"{self.spool}.series", "rb") as file:
            file.seek(self._names_read)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._names_read += len(line)
            try:
                record = json.loads(line)
                number = int(record["series"])
                if number != len(self.series):
                    raise ValueError(f"series {number} where {len(self.series)} was expected")
                source, entity, metric, unit = (
                    str(record[k]) for k in ("source", "entity", "metric", "unit")
                )
                self.series.append(Named(source, entity, metric, unit, bool(record["cumulative"])))
            except (ValueError, KeyError, TypeError) as error:
                raise PenstockError(f"{self.spool}.series: a line names no series") from error


class Follower:
    """Compute values from a growing `spool`, which need not exist yet."""

    def __init__(self, spool: Path, link_bps: Mapping[str, float] | None = None) -> None:
        self.growing = Growing(spool)
        self._link_bps = dict(link_bps or {})
        self._hz = float(os.sysconf("SC_CLK_TCK"))
        #: columns of series, by source, then metric, then entity
        self._number: dict[str, dict[str, dict[str, int]]] = {}
        self._unit: dict[int, str] = {}
        #: series that are no counters but metrics themselves: metric, entity, number
        self._plain: list[tuple[str, str, int]] = []
        #: column of each series; -1 if nothing is derived from it
        self._column: list[int] = []
        self._columns = 0
        self._last_t = np.zeros(0, np.int64)
        self._last = np.zeros((0, 0))

    def look(self) -> list[Values]:
        """New values, by metric and entity; empty if there are none.

        Raises PenstockError for a damaged spool.
        """
        fresh: list[Values] = []
        while len(records := self.growing.piece()):
            times, wide, seen = self._wide(records)
            fresh += self._gauges(times[seen:], wide[seen:])
            fresh += self._computed(times, wide, seen)
        return fresh

    def utilisation(self, records: npt.NDArray[Any]) -> list[Values]:
        """Utilisation from a part of the records of `growing`, in order, without gauges."""
        return self._computed(*self._wide(records))

    def _name(self) -> None:
        """Assign columns to new series."""
        for one in self.growing.series[len(self._column) :]:
            if one.source in _IGNORED:
                self._column.append(-1)
                continue
            column = self._columns
            of_source = self._number.setdefault(one.source, {})
            of_source.setdefault(one.metric, {})[one.entity] = column
            if not one.cumulative and f"{one.source}_{one.metric}" in METRICS:
                self._plain.append((f"{one.source}_{one.metric}", one.entity, column))
            self._unit[column] = one.unit
            self._column.append(column)
            self._columns += 1

    def _wide(self, records: npt.NDArray[Any]) -> tuple[Ints, Array, int]:
        """Times and values (times × series), preceded by the previous sample, and its number of rows (0 or
        1)."""
        self._name()
        columns = np.array(self._column, np.int64)[records["series"].astype(np.int64)]
        records, columns = records[columns >= 0], columns[columns >= 0]
        times, at = np.unique(records["t_ns"], return_inverse=True)
        if len(times) * self._columns > _MOST_CELLS:
            raise PenstockError(
                f"{self.growing.spool}: samples of {self._columns} series lie too far apart"
            )
        wide = np.full((len(times), self._columns), np.nan)
        wide[at, columns] = records["value"]
        before = np.full((len(self._last), self._columns), np.nan)
        before[:, : self._last.shape[1]] = self._last
        times = np.concatenate([self._last_t, times])
        wide = np.concatenate([before, wide])
        self._last_t, self._last = times[-1:], wide[-1:]
        return times, wide, len(before)

    def _computed(self, times: Ints, wide: Array, seen: int) -> list[Values]:
        with np.errstate(all="ignore"):  # undefined values become NaN
            return self._of_intervals(times, wide, seen)

    def _of_intervals(self, times: Ints, wide: Array, seen: int) -> list[Values]:
        results: list[Values] = []
        if len(times) < 2 or len(times) == seen:
            return results
        now, dt_s = times[1:], np.diff(times)[:, None] / 1e9

        def put(metric: str, entities: list[str], values: Array) -> None:
            for column, entity in enumerate(entities):
                one = values[:, column] if values.shape[1] > 1 else values[:, 0]
                results.append(Values(metric, entity, now, np.asarray(one, dtype=float)))

        ticks = self._processors(wide, put)
        self._host(wide, dt_s, put)
        self._disks(wide, dt_s, ticks, put)
        of_latency = latencies_of(self._number.get(SOURCE, {}), times, wide)
        results += [Values(f"{SOURCE}_{m.metric}", m.device, m.t_ns, m.values) for m in of_latency]
        self._network(wide, dt_s, put)
        self._groups(wide, dt_s, put)
        return results

    def _gauges(self, times: Ints, wide: Array) -> list[Values]:
        if not len(times):
            return []
        return [Values(metric, entity, times, wide[:, n]) for metric, entity, n in self._plain]

    def _counters(
        self, source: str, counters: tuple[str, ...], wide: Array
    ) -> tuple[list[str], dict[str, Array]]:
        """Entities with the first of the counters, and differences of each (times × entities).

        A difference is NaN where its counter went backwards.
        """
        metrics = self._number.get(source, {})
        entities = list(metrics.get(counters[0], {}))
        nothing = np.full((len(wide), 1), np.nan)
        padded = np.concatenate([wide, nothing], axis=1)
        delta = {}
        for counter in counters:
            columns = [metrics.get(counter, {}).get(e, -1) for e in entities]
            delta[counter] = np.diff(padded[:, columns], axis=0)
        return entities, {counter: np.where(d < 0, np.nan, d) for counter, d in delta.items()}

    def _processors(self, wide: Array, put: Any) -> Array | None:
        """Return the ticks of all processors together, by time."""
        numbers = sorted(
            {n for s in STATES for n in self._number.get("cpu", {}).get(s, {}).values()}
        )
        in_ticks = wide.copy()
        in_ticks[:, numbers] = np.round(wide[:, numbers] * self._hz)
        entities, delta = self._counters("cpu", STATES, in_ticks)
        if not entities:
            return None
        put("cpu_busy", entities, cpu_percent(delta))
        total = np.sum([delta[s] for s in STATES], axis=0)
        put("cpu_stolen", entities, percent_of(delta["steal"], total))
        return total[:, entities.index("all")] if "all" in entities else None

    def _host(self, wide: Array, dt_s: Array, put: Any) -> None:
        entities, delta = self._counters("psi", ("cpu_some",), wide)
        if "host" in entities:
            waited = percent_of(delta["cpu_some"] / 1e6, dt_s)
            put("cpu_waited_for", ["all"], waited[:, [entities.index("host")]])

    def _disks(self, wide: Array, dt_s: Array, ticks: Array | None, put: Any) -> None:
        tail = ("queue_time", "read_bytes", "written_bytes", "reads", "writes")
        for source, busy, per_s in (("disk", "io_time", 1e3), ("emulated_disk", "busy", 1e9)):
            entities, delta = self._counters(source, (busy, *tail), wide)
            if not entities:
                continue
            if source == "disk":
                if ticks is not None:
                    cpus = max(1, len(self._number["cpu"]["user"]) - 1)
                    share = disk_percent(delta[busy], ticks[:, None], self._hz, cpus)
                    put("disk_busy", entities, share)
                by_clock = disk_percent_of_time(
                    delta[busy], np.broadcast_to(dt_s, delta[busy].shape)
                )
                put("disk_busy_of_time", entities, by_clock)
            else:
                put("emulated_disk_busy", entities, percent_of(delta[busy], per_s * dt_s))
            put(f"{source}_queue_depth", entities, delta["queue_time"] / (per_s * dt_s))
            for counter, metric in _RATES:
                put(f"{source}_{metric}", entities, delta[counter] / dt_s)

    def _network(self, wide: Array, dt_s: Array, put: Any) -> None:
        entities, delta = self._counters("network", ("sent_bytes", "received_bytes"), wide)
        if not entities:
            return
        sent, received = delta["sent_bytes"], delta["received_bytes"]
        put("network_send_rate", entities, sent / dt_s)
        put("network_receive_rate", entities, received / dt_s)
        for at, entity in enumerate(entities):
            if self._link_bps.get(entity, 0) > 0:
                shares = network_percent(
                    sent[:, [at]], received[:, [at]], self._link_bps[entity], dt_s
                )
                for metric, share in zip(("used", "used_out", "used_in"), shares, strict=True):
                    put(f"network_{metric}", [entity], share)

    def _groups(self, wide: Array, dt_s: Array, put: Any) -> None:
        entities, delta = self._counters("cgroup", ("cpu_time",), wide)
        cpus = max(1, len(self._number.get("cpu", {}).get("user", {})) - 1)
        numbers = self._number.get("cgroup", {}).get("cpu_time", {})
        for at, entity in enumerate(entities):
            per_second = _PER_SECOND.get(self._unit[numbers[entity]], np.nan)
            seconds = delta["cpu_time"][:, [at]] / per_second
            put("cgroup_cpu_busy", [entity], percent_of(seconds, cpus * dt_s))
            put("cgroup_cpu_cores", [entity], seconds / dt_s)
