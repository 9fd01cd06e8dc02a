"""Validity of a run, and bounds on the effect of the host and the request path on its responses.

A run is *valid*, *degraded* or *invalid*. It is degraded if its only faults are delays with a measured cause:
late replies that the host explains, processors that other programs used, a request path that took longer than
assumed, or a program that measured longer times than the disk's log. It is invalid if the program failed,
records were lost, or a disk missed its specification without a measured cause.

Delays only lengthen a run. The recorded delays add up to `late_s`: the undisturbed run took at least `wall_s
- late_s`, so the undisturbed response lies between the measured value and the value corrected by it
(`docs/adr/0082-degraded-runs.md`). Only a request path that was shorter than assumed has the opposite effect
(`early_s`).

- replies: time in which a reply was overdue by the disk's log, and the disk server's wait for a processor;
- path: number of requests times the excess of the path's upper bound over the subtracted time, over the mean
  number in flight; if program and log disagree, at least the difference;
- processors: time in which a task of the run's group waited for one (PSI; else PSI of the host), and stolen
  time; at most the processor time of other programs;
- shared cores: two thirds of the run's processor time that may have overlapped with other programs;
- upper limit: run time beyond the service times of its requests, over the maximum number in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.analyse.fidelity.fidelity_log import Log, busy_s, columns
from penstock.analyse.fidelity.second_source import FEWEST, doubts
from penstock.archive.bundle import Bundle
from penstock.spec.units import parse_unit

if TYPE_CHECKING:
    from penstock.spec.study import Response

VALID, DEGRADED, INVALID = "valid", "degraded", "invalid"

#: share of its processor time that a run may lose to programs on the same core: two threads of a core get
#: half of it each, and caches are cold after each switch (ADR 82)
SHARED_CORE = 2 / 3
#: pressure in windows that the disk server does not record, as a share of the time
_UNRECORDED = 0.002
#: suffixes of parsers' keys that are not means: a few delayed requests determine them
TAILS = (
    "p95_latency",
    "p99_latency",
    "p999_latency",
    "p9999_latency",
    "max_latency",
    "latency_max",
)
#: statistics of a series that are not means
_TAKEN_OF_FEW = ("p95", "p99", "max", "min")

#: tables that compare a second source with the disks' logs: its column
_SOURCES = {"confirmation": "traced", "second_source": "fio"}
#: comparisons in which a longer time is a delay of the path
_TIMES = ("time", "synced")


@dataclass(frozen=True)
class Delay:
    """Bounds on the delay of a run [s]: it may have ended `late_s` too late, or `early_s` too early.

    `span_s`: from its first request to the last reply, `active_s`: with a request at a disk; both are
    `wall_s` without a log. `served_s`: minimum service time of the requests. Other programs used
    `others_cpus` of the host's `cpus`, NaN if not recorded.
    """

    wall_s: float
    span_s: float
    active_s: float
    late_s: float
    early_s: float
    others_cpus: float = math.nan
    cpus: float = math.nan
    served_s: float = 0.0

    @property
    def share(self) -> float:
        """Upper bound of the delay as a share of the run's time."""
        return self.late_s / self.wall_s if self.wall_s > 0 else math.inf

    def of(self, value: float, unit: str, *, wall: bool = False) -> tuple[float, float] | None:
        """Bounds of the undisturbed response; None if there are none.

        Rates are corrected by the share of the span, times by that of the time with requests; durations
        (longer than that time, or the `wall` time itself) by the delay. Other units may deviate either
        way. No correction exceeds the time beyond the service times of the requests.
        """
        parsed = parse_unit(unit) if unit else None
        dimension = parsed.dimension if parsed else "count"
        if parsed and dimension == "time":
            scale = parsed.factor
            if wall or value * scale > self.active_s:
                low = value - self._late(value * scale) / scale
                return (low, value + self.early_s / scale) if low > 0 else None
            low = 1 - self._late(self.active_s) / self.active_s
            return (value * low, value * (1 + self.early_s / self.active_s)) if low > 0 else None
        undelayed = 1 - self._late(self.span_s) / self.span_s
        if undelayed <= 0:
            return None
        if dimension.endswith("/time"):
            return value / (1 + self.early_s / self.span_s), value / undelayed
        ends = (value * undelayed, value / undelayed)
        return min(ends), max(ends)

    def _late(self, seconds: float) -> float:
        """Largest delay in a duration that includes all requests [s]."""
        return min(self.late_s, max(seconds - self.served_s, 0.0))


def graded(
    bundle: Bundle, responses: Iterable[Response], fidelity: pa.Table | None = None
) -> Bundle:
    """The bundle with `validity` in its manifest; for a degraded run also `delay`, and `low` and `high` of
    each response that has a bound; for a valid one without emulated disks the processors used by other
    programs. `valid` means that the run is used: valid or degraded.

    `fidelity`: its certificates, if they are not those of the bundle.
    """
    manifest = bundle.manifest
    if fidelity is None and "fidelity" in bundle.tables:
        fidelity = bundle.table("fidelity")
    if manifest["valid"] and manifest.get("validity") != DEGRADED:
        return _with(bundle, VALID, **({} if fidelity is not None else _occupied(bundle)))
    if fidelity is None or not _delays_alone(bundle, fidelity):
        return _with(bundle, INVALID)
    delay = delay_of(bundle)
    measured = {name: dict(m) for name, m in manifest.get("responses", {}).items()}
    bounded = 0
    for response in responses:
        response_row = measured.get(response.name, {})
        value = response_row.get("value")
        response_row |= {"low": None, "high": None}
        if delay is None or value is None or _of_few(response):
            continue
        wall = response.source.kind == "key" and response.source.key == "wall_s"
        if (ends := delay.of(float(value), response.unit, wall=wall)) is not None:
            response_row |= dict(zip(("low", "high"), ends, strict=True))
            bounded += 1
    if delay is None or not bounded:
        return _with(bundle, INVALID)
    return _with(bundle, DEGRADED, responses=measured, delay=asdict(delay))


def _occupied(bundle: Bundle) -> dict[str, Any]:
    """`delay` of a run without a disk's log to bound it: processors used by other programs, if recorded."""
    wall_s = float(bundle.manifest.get("times", {}).get("wall_s") or 0.0)
    own_s = float(bundle.manifest.get("cpu_ns") or 0.0) * 1e-9
    if wall_s <= 0:
        return {}
    _, others_cpus, cpus = _others(bundle, {}, own_s, wall_s)
    return {"delay": {"others_cpus": others_cpus, "cpus": cpus}} if others_cpus >= 0 else {}


def _with(bundle: Bundle, validity: str, **more: Any) -> Bundle:
    verdict = {"valid": validity != INVALID, "validity": validity, **more}
    return Bundle(bundle.path, {**bundle.manifest, **verdict})


def _of_few(response: Response) -> bool:
    """True if a few requests determine the response: a share of the run's time does not bound a tail."""
    source = response.source
    return (source.key or "").endswith(TAILS) or (
        source.kind == "series" and source.take in _TAKEN_OF_FEW
    )


def _delays_alone(bundle: Bundle, fidelity: pa.Table) -> bool:
    """True if all faults of a finished run are delays with a measured cause."""
    manifest = bundle.manifest
    if manifest["state"] != "finished" or not manifest.get("responses"):
        return False
    rest = str(manifest["reason"])
    for disk, certificate in _by_disk(fidelity).items():
        first = certificate.slice(0, 1).to_pylist()[0]
        if first["valid"]:
            continue
        if first["verdict"] != "host-saturated" or _lost(bundle, disk):
            return False
        if not any(disk in _disks_of(bundle, t) for t in ("device_requests", "throttle_counters")):
            return False  # the lateness of its replies is unknown
        rest = rest.replace(f"{disk}: {first['reason'] or first['verdict']}", "", 1)
    for table, witness in _SOURCES.items():
        if table not in bundle.tables:
            continue
        rows = bundle.table(table).to_pylist()
        if any(not _is_delay(row) for row in _apart(rows)):
            return False
        for doubt in doubts(rows, witness):
            rest = rest.replace(doubt, "", 1)
    return not rest.strip("; ")


def _lost(bundle: Bundle, disk: str) -> bool:
    """True if requests of the disk are missing from its log, or a change of it failed."""
    if float(_stats(bundle).get(disk, {}).get("lost_records", 0.0)) > 0:
        return True
    if "events" not in bundle.tables:
        return False
    events = bundle.table("events")
    return "error" in events.column_names and any(filter(None, events["error"].to_pylist()))


def _apart(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The comparisons of a second source that invalidate a run (`second_source.doubts`)."""
    void = (*_TIMES, "bytes", "ops")
    return [r for r in rows if not r["agrees"] and r["n"] >= FEWEST and r["metric"] in void]


def _is_delay(row: Mapping[str, Any]) -> bool:
    """True if the program measured a longer time than the disk's log."""
    ratio = row["ratio"]
    return row["metric"] in _TIMES and ratio is not None and 0 < ratio < 1


def delay_of(bundle: Bundle) -> Delay | None:
    """Bounds on the delay of a run from its records; None if these are incomplete."""
    manifest = bundle.manifest
    wall_s = float(manifest.get("times", {}).get("wall_s") or 0.0)
    if wall_s <= 0:
        return None
    stats = _stats(bundle)
    logs = _logs(bundle, stats)
    began, done, due = (
        np.concatenate([getattr(log, name) for log in logs.values()] or [np.empty(0, np.int64)])
        for name in ("began", "done", "due")
    )
    active_s = busy_s(began, done) if len(began) else wall_s
    span_s = float(done.max() - began.min()) * 1e-9 if len(began) else wall_s
    late = done > due
    overdue_s = busy_s(due[late], done[late]) if late.any() else 0.0
    server_s = sum(_by_host(bundle, stats, "server_wait_ns").values()) * 1e-9
    too_long_s, too_short_s = (
        np.array([_path(log, stats.get(disk, {})) for disk, log in logs.items()] or [(0.0, 0.0)])
        .sum(axis=0)
        .tolist()
    )
    own_s = float(manifest.get("cpu_ns") or 0.0) * 1e-9
    others_s, others_cpus, cpus = _others(bundle, stats, own_s, wall_s)
    cpu_s = _processors_s(bundle, others_s, cpus, wall_s)
    if cpu_s is None:
        return None
    shared_s = SHARED_CORE * min(own_s, others_s)
    late_s = overdue_s + server_s + max(too_long_s, _unlogged_s(bundle, logs)) + cpu_s + shared_s
    served_s = _served_s(bundle, logs)
    late_s = min(late_s, wall_s - served_s)
    return Delay(
        wall_s,
        min(span_s, wall_s),
        min(active_s, wall_s),
        max(late_s, 0.0),
        too_short_s,
        others_cpus,
        cpus,
        served_s,
    )


def _by_disk(table: pa.Table) -> dict[str, pa.Table]:
    """The rows of each disk."""
    disks = table["disk_id"].cast(pa.string())
    return {str(d): table.filter(pc.equal(disks, d)) for d in pc.unique(disks).to_pylist()}


def _disks_of(bundle: Bundle, name: str) -> list[str]:
    """The disks with rows in a table of the bundle."""
    if name not in bundle.tables:
        return []
    return [str(disk) for disk in pc.unique(bundle.table(name, ["disk_id"])["disk_id"]).to_pylist()]


def _stats(bundle: Bundle) -> dict[str, dict[str, float]]:
    """The counters of each disk."""
    if "disk_stats" not in bundle.tables:
        return {}
    parts = _by_disk(bundle.table("disk_stats"))
    return {
        disk: dict(zip(part["metric"].to_pylist(), part["value"].to_pylist(), strict=True))
        for disk, part in parts.items()
    }


def _logs(bundle: Bundle, stats: Mapping[str, Mapping[str, float]]) -> dict[str, Log]:
    """The request log of each disk that has one."""
    if "device_requests" not in bundle.tables:
        return {}
    return {
        disk: columns(part, stats.get(disk, {}).get("compensation.lateness_ns", 0.0))
        for disk, part in _by_disk(bundle.table("device_requests")).items()
        if part.num_rows
    }


def _by_host(
    bundle: Bundle, stats: Mapping[str, Mapping[str, float]], metric: str
) -> dict[str, float]:
    """A counter shared by the disks of a host, by host."""
    hosts: dict[str, str] = {}
    if stats and "host_id" in (table := bundle.table("disk_stats")).column_names:
        disks, names = (table[c].cast(pa.string()).to_pylist() for c in ("disk_id", "host_id"))
        hosts = dict(zip(disks, names, strict=True))
    largest: dict[str, float] = {}
    for disk, counters in stats.items():
        if metric in counters:
            host = hosts.get(disk, "")
            largest[host] = max(largest.get(host, 0.0), counters[metric])
    return largest


def _path(log: Log, counters: Mapping[str, float]) -> tuple[float, float]:
    """Maximum excess and shortfall of the path relative to its assumed duration, over all requests [s].

    Requests in flight together wait together: the sum is divided by the mean number in flight.
    """
    long_ns = short_ns = 0.0
    for direction, matches in (("read", log.op == 0), ("write", log.op != 0)):
        before = counters.get(f"compensation.{direction}.base_ns")
        if before is None or not matches.any():
            continue
        ends = [before]
        for when in ("compensation", "path_after"):
            names = ("base_ns", "low_ns", "high_ns")
            values = (counters.get(f"{when}.{direction}.{name}") for name in names)
            ends += [value for value in values if value is not None]
        long_ns += int(matches.sum()) * (max(ends) - before)
        short_ns += int(matches.sum()) * (before - min(ends))
    flying = _in_flight(log)
    return long_ns * 1e-9 / flying, short_ns * 1e-9 / flying


def _in_flight(log: Log) -> float:
    """Mean number of requests at the disk during its busy time."""
    active_s = busy_s(log.began, log.done)
    return max(float((log.done - log.began).sum()) * 1e-9 / active_s, 1.0) if active_s > 0 else 1.0


def _unlogged_s(bundle: Bundle, logs: Mapping[str, Log]) -> float:
    """Time of the program's requests beyond the logs, from the source with the maximum [s]."""
    if not logs:
        return 0.0
    flying = min(_in_flight(log) for log in logs.values())
    excess_s = [0.0]
    for name, witness in _SOURCES.items():
        if name in bundle.tables:
            rows = [row for row in _apart(bundle.table(name).to_pylist()) if _is_delay(row)]
            excess_s.append(sum((row[witness] - row["disk"]) * row["n"] for row in rows) * 1e-9)
    return max(excess_s) / flying


def _served_s(bundle: Bundle, logs: Mapping[str, Log]) -> float:
    """Minimum service time of a disk's requests, for the disk with the maximum [s]."""
    changed = "events" in bundle.tables
    shortest_s = [0.0]
    for disk, log in logs.items():
        at = np.concatenate((log.began, log.done))
        step = np.repeat([1, -1], len(log.began))
        together = int(np.cumsum(step[np.lexsort((step, at))]).max(initial=1))
        servers = _servers(bundle, disk)
        side_by_side = together if changed or servers is None else min(together, servers)
        shortest_s.append(float(log.service.sum()) * 1e-9 / max(side_by_side, 1))
    return max(shortest_s)


def _servers(bundle: Bundle, disk: str) -> int | None:
    """Number of requests that the emulated disk serves concurrently; None if not in the manifest."""
    manifest = bundle.manifest
    of_nodes = manifest.get("place", {}).get("disks", {})
    about = of_nodes.get(disk) or manifest.get("disks", {}).get(disk, {})
    emulated = about.get("emulated")
    return int(emulated.get("servers", 1)) if isinstance(emulated, Mapping) else None


def _others(
    bundle: Bundle, stats: Mapping[str, Mapping[str, float]], own_s: float, wall_s: float
) -> tuple[float, float, float]:
    """Processor time of programs other than the run and its disk servers, including stolen time [s]; the
    equivalent number of processors, and their total. Infinite and NaN if not recorded."""
    cpus = float(bundle.manifest.get("host", {}).get("cpus") or math.nan)
    busy_s, counted_s, server_s = (
        sum(_by_host(bundle, stats, name).values()) * 1e-9
        for name in ("host_busy_ns", "host_cpu_ns", "server_cpu_ns")
    )
    if not counted_s > 0:
        share, server_s = _monitored(bundle, "busy"), 0.0
        if share is None or not math.isfinite(cpus):
            return math.inf, math.nan, cpus
        counted_s = cpus * wall_s
        busy_s = share * counted_s
    others_s = max(busy_s - server_s - own_s, 0.0)
    return others_s, others_s / counted_s * cpus, cpus


def _processors_s(bundle: Bundle, others_s: float, cpus: float, wall_s: float) -> float | None:
    """Maximum time for which other programs may have delayed the run at the processors [s]; None if
    neither its waiting nor the time of others was recorded."""
    waits = bundle.table("host_waits") if "host_waits" in bundle.tables else None
    by_server = list(_by_disk(waits).values()) if waits is not None and waits.num_rows else []

    def recorded_s(name: str) -> float:
        return (
            max((float(pc.sum(part[name]).as_py() or 0) for part in by_server), default=0.0) / 1e9
        )

    waiting = []
    if (group_ns := bundle.manifest.get("cpu_waited_ns")) is not None:
        waiting.append(float(group_ns) * 1e-9)
    if (pressure_s := recorded_s("pressure_ns")) > 0:
        waiting.append(pressure_s + _UNRECORDED * wall_s)
    if (share := _monitored(bundle, "waited_for")) is not None:
        waiting.append(share * wall_s)
    if not waiting and not math.isfinite(others_s):
        return None
    stolen_s = recorded_s("stolen_ns")
    if (share := _monitored(bundle, "stolen")) is not None and math.isfinite(cpus):
        stolen_s = max(stolen_s, share * cpus * wall_s)
    return min(others_s, min([wall_s, *waiting]) + stolen_s)


def _monitored(bundle: Bundle, metric: str) -> float | None:
    """Mean share of the host's processors by the monitor, 0 to 1; None if not recorded."""
    if "utilisation" not in bundle.tables:
        return None
    table = bundle.table("utilisation")
    if "metric" not in table.column_names:
        return None
    for column, value in (("kind", "cpu"), ("entity", "all"), ("metric", metric)):
        table = table.filter(pc.equal(table[column].cast(pa.string()), value))
    mean = pc.mean(table["value"]).as_py()
    return None if mean is None else float(mean) / 100
