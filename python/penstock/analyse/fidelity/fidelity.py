"""Fidelity certificate of an emulated disk: service specified by its profile, and service delivered.

The reference comes from the request log alone: the station serves the requests, in the order of their
compensated arrivals, again in virtual time, with the same profile and seed. That schedule is the
specification. The disk's own due times are not used, so that a disk that follows a wrong clock is detected.

- `rate`: bytes (or requests, if none has bytes) over the busy time of the disk: the measure of the union of
  the intervals from compensated arrival to reply. A station that never idles while it has work needs the same
  time for the same requests whatever their interleaving, so idle gaps do not count and queues of any depth
  do.
- `time`: mean time in the disk, queueing included, against the specified queueing and service.
- `rate_read`, `rate_write`: rate of one direction, if there are both (from 20 requests and 50 ms of activity
  on).
- `p50`, `p95`, `p99` per direction: time in the disk against the specified queueing and service, which at
  depth 1 is the profile's own service time (p50 from 100 requests on, p95 from 200, p99 from 1000: a quantile
  needs ten requests beyond it).
- `lateness`: share of replies that were later than a twentieth of their specified time in the disk, and 50
  µs, beyond the lateness that the calibration measured and subtracted from the arrivals. More than a
  twentieth of the replies make the run invalid, unless all lateness is less than a hundredth of the time in
  the disk.
- `overdue`: share of the busy time in which a reply was overdue by more than a millisecond without an
  explanation by the host. More than a hundredth makes the run invalid: a disk that stalls once a second is
  right on average.

Other reasons for an invalid certificate: more than a tenth of the windows of one second were off
(`fidelity_windows`), the server waited for a processor, or processes outside the run saturated the host's
processors, so that the program was delayed by something other than a disk.

A deviation is the disk's (`not-honoured`). It is the host's (`host-saturated`) only if all checks would pass
with the replies that the host made late (`host_waits`) at their due times.

Changes of the disk during the run (its `events`) enter the schedule at the times at which they took
effect. The emulator's own cost is in the rows `server_cpu` and `path`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity import fidelity_windows
from penstock.analyse.fidelity.fidelity_log import (
    Flags,
    Integers,
    Log,
    Schedule,
    busy_s,
    columns,
    is_late,
    schedule,
)
from penstock.analyse.fidelity.fidelity_path import (
    PATH_LIMIT,
    after_run_ns,
    moved,
    taken_off,
    vague,
)
from penstock.analyse.fidelity.host_waits import explained as explained_by
from penstock.analyse.fidelity.second_source import CONFIRM_LIMIT, confirm
from penstock.archive.schemas import TABLES
from penstock.text import signed_percent

__all__ = [
    "CONFIRM_LIMIT",
    "FIDELITY_SCHEMA",
    "RULES",
    "Certificate",
    "certificate",
    "confirm",
    "is_valid",
]

#: version of these rules, stored in `fidelity`. 2: lateness is the disk's unless the host explains it; 3: an
#: imprecise kernel path invalidates a run
RULES = 3
#: maximum deviation of the delivered rate and of the mean time, as a share
RATE_LIMIT = 0.02
#: the same for the rate of one of two directions, which may have few and short requests
DIRECTION_LIMIT = 0.05
TIME_LIMIT = 0.03
#: the same for a quantile (DESIGN, section 8)
QUANTILE_LIMIT = 0.15
#: maximum share of late replies, unless total lateness is less than LATE_SUM_LIMIT of the time in the disk
LATE_LIMIT = 0.05
LATE_SUM_LIMIT = 0.01
#: maximum share of busy time in which a reply may be overdue by more than OVERDUE_NS
OVERDUE_LIMIT = 0.01
OVERDUE_NS = 1_000_000
#: maximum wait of the server for a processor, per request, as a share of the specified time
WAIT_LIMIT = 0.05
#: a disk idle for more than this share of the run was bound by demand
IDLE_LIMIT = 0.10
#: minimum activity [s] and number of requests for a verdict
SHORTEST_S = 0.5
FEWEST = 20
#: maximum share of a saturated host's processor time for processes other than the run and the disk
FOREIGN_LIMIT = 0.10
#: maximum share for the disk server on a saturated host: more is taken from the program
SERVER_LIMIT = 0.25

#: maximum rank error of a quantile, as a share of all requests
RANKS = 0.01

_QUANTILES = (("p50", 0.5, 100), ("p95", 0.95, 200), ("p99", 0.99, 1000))

FIDELITY_SCHEMA = TABLES["fidelity"].arrow


@dataclass(frozen=True)
class Certificate:
    """Service that a disk delivered: over the run (`fidelity`) and by second (`fidelity_windows`)."""

    overall: pa.Table
    windows: pa.Table


def certificate(
    device_requests: pa.Table,
    stats: Mapping[str, Any] | None,
    profile: Any,
    *,
    disk_id: str | None = None,
    seed: int | None = None,
    utilisation: pa.Table | pd.DataFrame | None = None,
    run_cpu_ns: int | None = None,
    events: Sequence[Mapping[str, Any]] = (),
    host_waits: pa.Table | None = None,
) -> Certificate:
    """The certificate of one disk in one run.

    `device_requests`: the disk's log of the run; `stats`: its counters (including `compensation` and
    `seed`); `profile`: as served at the beginning, scaled; `utilisation`: of the host, for the message of
    a failure; `run_cpu_ns`: processor time of the run's control group, which does not count as foreign
    (None: unknown, then all but the disk server's does); `events`: changes of the disk since it was
    started, each with `applied_ns`, `asked` and `error`. A failed event makes the run invalid.
    `host_waits`: effects of the host on the disk's server during the run; without it all lateness is the
    disk's.
    """
    stats = stats or {}
    name = disk_id or str(stats.get("disk_id") or _first(device_requests, "disk_id") or "")
    own_lateness = float((stats.get("compensation") or {}).get("lateness_ns", 0.0))
    log = columns(device_requests, own_lateness)
    if len(log.began) == 0:
        none = _Judged("rate", None, None, "B/s", 0, None, False, True, "")
        row = _row(name, none, "demand-bound", True, "no requests")
        return Certificate(_table([row]), fidelity_windows.WINDOWS_SCHEMA.empty_table())
    used_seed = int(stats.get("seed", 0)) if seed is None else seed
    specified = schedule(log, profile, used_seed, events)
    excused = explained_by(log, host_waits)
    in_time = replace(log, done=np.where(excused, np.minimum(log.done, log.due), log.done))
    windows = fidelity_windows.windows(
        log,
        specified,
        in_time,
        disk_id=name,
        profile=_values(profile),
        events=events,
        utilisation=utilisation,
    )

    judged = _judgements(log, specified, excused)
    active_s = busy_s(log.began, log.done)
    short = (active_s < SHORTEST_S or len(log.began) < FEWEST) if active_s > 0 else True
    broken = [j for j in judged if not j.holds]
    late = bool(broken) and bool(is_late(log).any())
    broken += _suspects(stats, run_cpu_ns, log, specified)
    uneven = [] if short else fidelity_windows.off(windows)
    explained = (
        bool(broken or uneven)
        and all(j.holds for j in _judgements(in_time, specified, excused))
        and not (uneven and fidelity_windows.off(windows, ("not-honoured",)))
    )
    saturated = _saturation(utilisation, log)
    reasons = [j.reason for j in broken] + uneven
    reasons += [_by_the_host(log, excused, host_waits)] if late else []
    reasons += [saturated] if broken and saturated else []
    incomplete = _incomplete(stats, events)
    reason = "; ".join([*reasons, *incomplete])
    valid = not broken and not uneven and not incomplete
    if valid:
        general = _honoured(windows, short, active_s, _span(log))
    elif short and not explained and not incomplete:
        # host scheduling may delay a few requests by chance: flagged, and not used
        general = "too-short"
    else:
        general = "host-saturated" if explained else "not-honoured"
    rows = [
        _row(name, j, "too-short" if valid and not j.decided else general, valid, reason)
        for j in [*judged, *_own_cost(stats, log)]
    ]
    return Certificate(_table(rows), windows)


def _suspects(
    stats: Mapping[str, Any], run_cpu_ns: int | None, log: Log, specified: Schedule
) -> list[_Judged]:
    """Violated checks of the server's processor time and path."""
    checks = (
        _starved(stats, log),
        _crowded(stats, run_cpu_ns),
        _moved(stats, log, specified),
        _vague(stats, log, specified),
    )
    return [check for check in checks if check is not None]


def _incomplete(stats: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Messages about lost records of the log and failed changes."""
    lost = int(stats.get("lost_records", 0) or 0)
    failed = [str(event["error"]) for event in events if event.get("error")]
    return [
        *([f"{lost} requests are missing from the log"] if lost else []),
        *([f"a change failed: {failed[0]}"] if failed else []),
    ]


def _honoured(windows: pa.Table, short: bool, active_s: float, span_s: float) -> str:
    """Verdict on a run without a violated check."""
    if short:
        return "too-short"
    if span_s > 0 and active_s / span_s < 1 - IDLE_LIMIT:
        return "demand-bound"
    return "device-bound" if "device-bound" in windows["verdict"].to_pylist() else "honoured"


def is_valid(certificate: pa.Table) -> tuple[bool, str]:
    """(True, "") if a run with these certificates is valid; else False and the reasons."""
    bad = {
        f"{disk}: {reason}"
        for disk, valid, reason in zip(
            certificate["disk_id"].to_pylist(),
            certificate["valid"].to_pylist(),
            certificate["reason"].to_pylist(),
            strict=True,
        )
        if not valid
    }
    return not bad, "; ".join(sorted(bad))


@dataclass(frozen=True)
class _Judged:
    metric: str
    specified: float | None
    delivered: float | None
    unit: str
    n: int
    limit: float | None
    decided: bool
    holds: bool
    reason: str


def _judge(
    metric: str, specified: float, delivered: float, unit: str, n: int, limit: float
) -> _Judged:
    ratio = delivered / specified if specified else np.nan
    holds = not np.isfinite(ratio) or abs(ratio - 1) <= limit
    reason = f"{metric} is {signed_percent(ratio - 1)} off (limit {100 * limit:.0f} %)"
    return _Judged(metric, specified, delivered, unit, n, limit, True, holds, reason)


def _judgements(log: Log, specified: Schedule, excused: Flags) -> list[_Judged]:
    """Checks from the log alone."""
    return [
        *_rates(log, specified.done),
        _time(log, specified),
        *_quantiles(log, specified),
        _lateness(log),
        _overdue(log, excused),
    ]


def _rates(log: Log, due_done: Integers) -> list[_Judged]:
    """Rate of all requests, and of each direction if there are both."""
    rates = [_rate("rate", log, due_done)]
    for code, direction in enumerate(("read", "write")):
        matches = log.op == code
        if matches.any() and not matches[log.op != 2].all():
            part = log.take(matches)
            rate = _rate(f"rate_{direction}", part, due_done[matches], DIRECTION_LIMIT)
            few = rate.n < fidelity_windows.FEWEST
            if few or busy_s(part.began, part.done) < fidelity_windows.SHORTEST_BUSY_S:
                rate = replace(rate, decided=False, holds=True, reason="")
            rates.append(rate)
    return rates


def _rate(metric: str, log: Log, due_done: Integers, limit: float = RATE_LIMIT) -> _Judged:
    amount, unit = float(log.size.sum()), "B/s"
    if amount == 0:
        amount, unit = float(len(log.began)), "1/s"
    specified_s, delivered_s = busy_s(log.began, due_done), busy_s(log.began, log.done)
    n = len(log.began)
    if specified_s <= 0:  # a device without service time has no rate
        delivered = amount / delivered_s if delivered_s else None
        return _Judged(metric, None, delivered, unit, n, limit, False, True, "")
    return _judge(metric, amount / specified_s, amount / delivered_s, unit, n, limit)


def _time(log: Log, due: Schedule) -> _Judged:
    specified = float(due.took.mean())
    delivered = float((log.done - log.began).mean())
    if specified == 0:
        return _Judged("time", None, delivered, "ns", len(log.began), TIME_LIMIT, False, True, "")
    return _judge("time", specified, delivered, "ns", len(log.began), TIME_LIMIT)


def _quantiles(log: Log, specified_times: Schedule) -> list[_Judged]:
    out = []
    due, took = specified_times.took, log.done - log.began
    for code, direction in enumerate(("read", "write")):
        matches = (log.op == code) & (due > 0)
        n = int(matches.sum())
        for name, p, fewest in _QUANTILES:
            if n == 0:
                continue
            specified = float(np.quantile(due[matches], p))
            delivered = float(np.quantile(took[matches], p))
            judged = _judge(f"{name}_{direction}", specified, delivered, "ns", n, QUANTILE_LIMIT)
            if not judged.holds and _between(due[matches], p, delivered):
                judged = replace(judged, holds=True)
            if n < fewest:
                judged = replace(judged, decided=False, holds=True, reason="")
            out.append(judged)
    return out


def _between(specified: Integers, p: float, delivered: float) -> bool:
    """True if a quantile lies between nearby quantiles of the specified times.

    If times have a gap, as between requests that wait for a limit and those that do not, one late reply in
    a hundred moves a quantile from one side of it to the other.
    """
    ranks = min(RANKS, (1 - p) / 5)
    low, high = np.quantile(specified, p - ranks), np.quantile(specified, p + ranks)
    return bool(low * (1 - QUANTILE_LIMIT) <= delivered <= high * (1 + QUANTILE_LIMIT))


def _own_cost(stats: Mapping[str, Any], log: Log) -> list[_Judged]:
    """The emulator's own cost: processor time as a number of processors, and the path through the kernel."""
    out = []
    span_s = _span(log)
    if stats.get("server_cpu_ns") is not None and span_s > 0:
        share = float(stats["server_cpu_ns"]) * 1e-9 / span_s
        out.append(_Judged("server_cpu", None, share, "1", len(log.began), 0.0, True, True, ""))
    if path := taken_off(log):
        after = after_run_ns(log, stats)
        delivered = path if after is None else after
        specified = None if after is None else path
        out.append(_Judged("path", specified, delivered, "ns", len(log.began), 0.0, True, True, ""))
    return out


def _values(profile: Any) -> Mapping[str, Any]:
    if hasattr(profile, "to_dict"):
        return dict(profile.to_dict())
    return dict(json.loads(profile)) if isinstance(profile, str | bytes) else dict(profile)


def _lateness(log: Log) -> _Judged:
    lateness = np.maximum(log.done - log.due, 0)
    late = is_late(log)
    share = float(late.mean())
    added = float(lateness.sum()) / max(float((log.wait + log.service).sum()), 1.0)
    holds = share <= LATE_LIMIT or added <= LATE_SUM_LIMIT
    reason = (
        f"{100 * share:.0f} % of the replies were late (limit {100 * LATE_LIMIT:.0f} %; "
        f"mean lateness {lateness.mean() / 1e3:.0f} us, largest {lateness.max() / 1e6:.1f} ms)"
    )
    return _Judged("lateness", 0.0, share, "1", len(late), LATE_LIMIT, True, holds, reason)


def _overdue(log: Log, excused: Flags) -> _Judged:
    """Share of busy time with an overdue reply that the host does not explain."""
    overdue = is_late(log) & ~excused & (log.done - log.due > OVERDUE_NS)
    active_s = busy_s(log.began, log.done)
    share = busy_s(log.due[overdue], log.done[overdue]) / active_s if active_s > 0 else 0.0
    reason = (
        f"for {100 * share:.1f} % of its busy time a reply was overdue by more than "
        f"{OVERDUE_NS / 1e6:.0f} ms, and nothing on the host explains it "
        f"(limit {100 * OVERDUE_LIMIT:.0f} %)"
    )
    decided = active_s >= SHORTEST_S
    holds = share <= OVERDUE_LIMIT or not decided
    return _Judged("overdue", 0.0, share, "1", len(overdue), OVERDUE_LIMIT, decided, holds, reason)


def _starved(stats: Mapping[str, Any], log: Log) -> _Judged | None:
    """The server's own wait for a processor, per request, if significant relative to the specified time.

    The program waits as long as the server, on arrival as well as on reply.
    """
    waited = stats.get("server_wait_ns")
    if waited is None:
        return None
    # the server's threads serve all of its disks
    n = max(int(stats.get("server_requests") or 0), len(log.began))
    each, most = (
        float(waited) / n,
        max(WAIT_LIMIT * float((log.wait + log.service).mean()), 50_000.0),
    )
    if each <= most:
        return None
    reason = f"the disk server waited {each / 1e3:.0f} us for a processor per request"
    return _Judged("wait", most, each, "ns", n, WAIT_LIMIT, True, False, reason)


def _moved(stats: Mapping[str, Any], log: Log, specified: Schedule) -> _Judged | None:
    """A path through the kernel that changed during the run: the correction was wrong for a part of it."""
    reason = moved(log, stats, float(specified.took.mean()))
    if not reason:
        return None
    n = len(log.began)
    return _Judged("path", None, after_run_ns(log, stats), "ns", n, PATH_LIMIT, True, False, reason)


def _vague(stats: Mapping[str, Any], log: Log, specified: Schedule) -> _Judged | None:
    """A kernel path measured too imprecisely for the requests, before or after the run."""
    directions = {"read": log.op == 0, "write": log.op != 0}
    means = {
        d: float(specified.took[matches].mean())
        for d, matches in directions.items()
        if matches.any()
    }
    imprecise = [
        (way.high_ns, way.message)
        for ways in (stats.get("compensation") or {}, stats.get("path_after") or {})
        for way in vague(ways, means)
    ]
    if not imprecise:
        return None
    high_ns, reason = max(imprecise)
    return _Judged("path", None, high_ns, "ns", len(log.began), PATH_LIMIT, True, False, reason)


def _crowded(stats: Mapping[str, Any], run_cpu_ns: int | None) -> _Judged | None:
    """Failed check if the host was saturated, mainly by processes outside the run."""
    total_ns = float(stats.get("host_cpu_ns") or 0)
    if total_ns <= 0:
        return None
    busy, own = float(stats["host_busy_ns"]), float(stats.get("server_cpu_ns") or 0)
    if 100 * busy / total_ns <= fidelity_windows.CPU_LIMIT_PERCENT:
        return None
    foreign = busy - float(run_cpu_ns or 0) - own
    for taken, limit, by in (
        (foreign / total_ns, FOREIGN_LIMIT, "processes outside the run"),
        (own / total_ns, SERVER_LIMIT, "the disk server"),
    ):
        if taken > limit:
            reason = (
                f"the host's processors were {100 * busy / total_ns:.0f} % busy, "
                f"{100 * taken:.0f} % by {by}"
            )
            return _Judged("host", limit, taken, "1", 1, limit, True, False, reason)
    return None


def _by_the_host(log: Log, excused: Flags, host_waits: pa.Table | None) -> str:
    """Message: share of the lateness that the host explains."""
    if host_waits is None:
        return "no record of the host was stored"
    late = is_late(log)
    overdue_s = busy_s(log.due[late], log.done[late])
    by_host_s = busy_s(log.due[excused], log.done[excused])
    return (
        f"replies were overdue for {overdue_s:.3g} s, of which the host explains {by_host_s:.3g} s"
    )


def _span(log: Log) -> float:
    return float(log.done.max() - log.began.min()) * 1e-9


def _saturation(utilisation: pa.Table | pd.DataFrame | None, log: Log) -> str | None:
    """Message on the host's saturation, if the monitor recorded it while the disk was busy."""
    began_ns, ended_ns = int(log.began.min()), int(log.done.max())
    return (
        fidelity_windows.load_text(fidelity_windows.taken(utilisation), began_ns, ended_ns) or None
    )


def _first(table: pa.Table, column: str) -> Any:
    if column in table.column_names and table.num_rows:
        return table[column][0].as_py()
    return None


def _row(
    disk_id: str, judged: _Judged, verdict: str, valid: bool, reason: str
) -> Mapping[str, Any]:
    specified, delivered = judged.specified, judged.delivered
    ratio = delivered / specified if specified and delivered is not None else None
    return {
        "disk_id": disk_id,
        "metric": judged.metric,
        "asked": specified,
        "delivered": delivered,
        "ratio": ratio,
        "unit": judged.unit,
        "n": judged.n,
        "verdict": verdict,
        "valid": valid,
        "reason": reason,
        "limit": judged.limit,
        "rules": RULES,
    }


def _table(rows: list[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=FIDELITY_SCHEMA)
