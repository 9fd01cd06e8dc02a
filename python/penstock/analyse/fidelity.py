"""Fidelity certificate of an emulated disk: what its profile asked against what it delivered.

The question is answered from the request log alone: the requests, in the order of their compensated
arrivals, are served once more by the station in virtual time, with the same profile and seed. That
schedule is what was asked. The disk's own idea of when a reply was due is not believed, so a disk that
follows a wrong clock is found out.

- `rate`: bytes (or requests, where none has bytes) over the time in which the disk had something to do.
  That time is the measure of the union of the intervals from compensated arrival to reply. A station that
  never idles while it has work needs the same time for the same requests whatever their interleaving, so
  idle gaps do not count and queues of any depth do.
- `time`: mean time in the disk, queueing included, against queueing and service as drawn.
- `p50`, `p99` per direction: time in the disk against queueing and service as drawn, which at depth 1 is the
  profile's own service time (p50 from 100 requests on, p99 from 1000: a quantile needs ten requests
  beyond it).
- `lateness`: share of replies that were later than a twentieth of their time in the disk as drawn, and 50 µs,
  beyond
  the lateness that the calibration has measured and taken off the arrivals.

Two more witnesses can make a certificate invalid: the server's own wait for a processor, and a host whose
processors were taken by others than the run, so that the program suffered what no disk does.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

#: largest departure of the delivered rate and of the mean time, as a share
RATE_LIMIT = 0.02
TIME_LIMIT = 0.03
#: the same of a quantile (DESIGN, section 8)
QUANTILE_LIMIT = 0.15
#: largest share of late replies
LATE_LIMIT = 0.05
#: longest wait of the server for a processor, per request, as a share of the time asked for
WAIT_LIMIT = 0.05
#: a disk idle for longer than this share of the run was bound by demand (EM-40)
IDLE_LIMIT = 0.10
#: shortest activity that can be judged [s], and fewest requests (EM-40)
SHORTEST_S = 0.5
FEWEST = 20
#: a host busier than this has no room for the disk server [%] (EM-40)
CPU_LIMIT_PERCENT = 90.0
#: share of the host's processor time that others than the run and the disk may take when it is all taken
FOREIGN_LIMIT = 0.10
#: above this disagreement of two witnesses both are doubted (EM-08)
CONFIRM_LIMIT = 0.05

_QUANTILES = (("p50", 0.5, 100), ("p99", 0.99, 1000))

FIDELITY_SCHEMA = pa.schema(
    [
        ("disk_id", pa.string()),
        ("metric", pa.string()),
        ("asked", pa.float64()),
        ("delivered", pa.float64()),
        ("ratio", pa.float64()),
        ("unit", pa.string()),
        ("n", pa.int64()),
        ("verdict", pa.string()),
        ("valid", pa.bool_()),
        ("reason", pa.string()),
        ("limit", pa.float64()),
    ]
)


@dataclass(frozen=True)
class _Log:
    """The columns of `device_requests` as arrays, in the order of arrival; times in ns."""

    began: np.ndarray[Any, np.dtype[np.int64]]
    due: np.ndarray[Any, np.dtype[np.int64]]
    done: np.ndarray[Any, np.dtype[np.int64]]
    service: np.ndarray[Any, np.dtype[np.int64]]
    wait: np.ndarray[Any, np.dtype[np.int64]]
    op: np.ndarray[Any, np.dtype[np.uint8]]
    offset: np.ndarray[Any, np.dtype[np.uint64]]
    size: np.ndarray[Any, np.dtype[np.int64]]


def fidelity(
    device_requests: pa.Table,
    stats: Mapping[str, Any] | None,
    profile: Any,
    *,
    disk_id: str | None = None,
    seed: int | None = None,
    utilisation: pa.Table | pd.DataFrame | None = None,
    run_cpu_ns: int | None = None,
) -> pa.Table:
    """The certificate of one disk in one run: rows of `fidelity` (asked, delivered, verdict, reason).

    `device_requests`: the disk's log of the run; `stats`: its counters (of `compensation` and `seed` use is
    made); `profile`: as it was served, scaled; `utilisation`: of the host, to explain a failure;
    `run_cpu_ns`: processor time of the run's control group, which is not counted as foreign (None: not
    known, then all but the disk server's is).
    """
    stats = stats or {}
    name = disk_id or str(stats.get("disk_id") or _first(device_requests, "disk_id") or "")
    own_lateness = float((stats.get("compensation") or {}).get("lateness_ns", 0.0))
    log = _columns(device_requests, own_lateness)
    if len(log.began) == 0:
        return _table(
            [_row(name, "rate", None, None, "B/s", 0, "demand-bound", True, "no requests")]
        )
    used_seed = int(stats.get("seed", 0)) if seed is None else seed
    asked_done, asked_service, asked_wait = _schedule(log, profile, used_seed)

    judged = [_rate(log, asked_done), _time(log, asked_wait, asked_service)]
    judged += _quantiles(log, asked_wait, asked_service)
    judged.append(_lateness(log))

    busy_s, span_s = _busy(log.began, log.done), _span(log)
    short = (busy_s < SHORTEST_S or len(log.began) < FEWEST) if busy_s > 0 else True
    broken = [j for j in judged if not j.holds]
    late = next(j for j in judged if j.metric == "lateness")
    saturated = _saturation(utilisation, log)
    witnesses = [w for w in (_starved(stats, log), _crowded(stats, run_cpu_ns)) if w is not None]
    broken += witnesses
    host_suspect = not late.holds or saturated is not None or bool(witnesses)
    explained = host_suspect and _punctual(log, asked_done)
    lost = int(stats.get("lost_records", 0) or 0)
    reason = "; ".join(j.reason for j in broken)
    if broken and saturated:
        reason += f"; {saturated}"
    if lost:
        reason = "; ".join(filter(None, [reason, f"{lost} requests are missing from the log"]))
    valid = not broken and lost == 0
    if valid:
        general = "too-short" if short else "honoured"
        if not short and span_s > 0 and busy_s / span_s < 1 - IDLE_LIMIT:
            general = "demand-bound"
    elif short and not explained and not lost:
        # A few requests can be off by chance of the host's scheduling: flagged, and not used.
        general = "too-short"
    else:
        general = "host-saturated" if explained else "not-honoured"
    rows = []
    for j in judged:
        verdict = general
        if valid and not j.decided:
            verdict = "too-short"
        rows.append(
            _row(name, j.metric, j.asked, j.delivered, j.unit, j.n, verdict, valid, reason, j.limit)
        )
    return _table(rows)


def is_valid(certificate: pa.Table) -> tuple[bool, str]:
    """Whether a run with these certificates may be used, and why not."""
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


def confirm(
    io_events: pa.Table | pd.DataFrame,
    device_requests: pa.Table | pd.DataFrame,
    *,
    direct: bool,
) -> pa.Table:
    """Second witness: the tracer's bytes and times against the disk's own, per file and direction.

    Rows: file, direction, metric ('bytes', 'time'), traced, disk, ratio, unit, n, agrees. Times (means of
    one call) are compared for direct I/O only, where one call is one request. `io_events` needs `path`
    relative to the mount (or `file`), `direction`, `done_bytes`, `latency_ns`.
    """
    events = _frame(io_events).rename(columns={"path": "file"})
    requests = _frame(device_requests)
    requests = requests[requests["op"].astype(str) != "flush"].assign(
        direction=lambda t: t["op"].astype(str),
        took_ns=lambda t: t["done_ns"] - t["t_ns"] + t.get("compensation_ns", 0),
    )
    keys = ["file", "direction"]
    for frame in (events, requests):
        for key in keys:
            frame[key] = frame[key].astype(str)
    traced = events.groupby(keys).agg(
        bytes=("done_bytes", "sum"), time=("latency_ns", "mean"), n=("done_bytes", "size")
    )
    served = requests.groupby(keys).agg(
        bytes=("size_bytes", "sum"), time=("took_ns", "mean"), n=("size_bytes", "size")
    )
    both = traced.add_suffix("_traced").join(served.add_suffix("_disk"), how="outer").fillna(0.0)
    rows = []
    for metric, unit in (("bytes", "B"), ("time", "ns")):
        if metric == "time" and not direct:
            continue
        part = both.reset_index()
        ratio = np.where(
            part[f"{metric}_traced"] > 0,
            part[f"{metric}_disk"] / part[f"{metric}_traced"].replace(0, np.nan),
            np.nan,
        )
        rows.append(
            pd.DataFrame(
                {
                    "file": part["file"],
                    "direction": part["direction"],
                    "metric": metric,
                    "traced": part[f"{metric}_traced"].astype(float),
                    "disk": part[f"{metric}_disk"].astype(float),
                    "ratio": ratio,
                    "unit": unit,
                    "n": part["n_traced"].astype("int64"),
                    "agrees": np.abs(ratio - 1.0) <= CONFIRM_LIMIT,
                }
            )
        )
    return pa.Table.from_pandas(pd.concat(rows, ignore_index=True), preserve_index=False)


@dataclass(frozen=True)
class _Judged:
    metric: str
    asked: float | None
    delivered: float | None
    unit: str
    n: int
    limit: float
    decided: bool
    holds: bool
    reason: str


def _judge(metric: str, asked: float, delivered: float, unit: str, n: int, limit: float) -> _Judged:
    ratio = delivered / asked if asked else np.nan
    holds = not np.isfinite(ratio) or abs(ratio - 1) <= limit
    words = f"{metric} is {100 * (ratio - 1):+.1f} % off (limit {100 * limit:.0f} %)"
    return _Judged(metric, asked, delivered, unit, n, limit, True, holds, words)


def _rate(log: _Log, asked_done: np.ndarray[Any, np.dtype[np.int64]]) -> _Judged:
    amount, unit = float(log.size.sum()), "B/s"
    if amount == 0:
        amount, unit = float(len(log.began)), "1/s"
    asked_s, delivered_s = _busy(log.began, asked_done), _busy(log.began, log.done)
    if asked_s <= 0:  # a device without service time has no rate
        return _Judged("rate", None, amount / delivered_s if delivered_s else None, unit,
                       len(log.began), RATE_LIMIT, False, True, "")  # fmt: skip
    return _judge("rate", amount / asked_s, amount / delivered_s, unit, len(log.began), RATE_LIMIT)


def _time(
    log: _Log,
    wait: np.ndarray[Any, np.dtype[np.int64]],
    service: np.ndarray[Any, np.dtype[np.int64]],
) -> _Judged:
    asked = float((wait + service).mean())
    delivered = float((log.done - log.began).mean())
    if asked == 0:
        return _Judged("time", None, delivered, "ns", len(log.began), TIME_LIMIT, False, True, "")
    return _judge("time", asked, delivered, "ns", len(log.began), TIME_LIMIT)


def _quantiles(
    log: _Log,
    wait: np.ndarray[Any, np.dtype[np.int64]],
    service: np.ndarray[Any, np.dtype[np.int64]],
) -> list[_Judged]:
    out = []
    due, took = wait + service, log.done - log.began
    for code, direction in enumerate(("read", "write")):
        mine = (log.op == code) & (due > 0)
        n = int(mine.sum())
        for name, p, fewest in _QUANTILES:
            if n == 0:
                continue
            asked = float(np.quantile(due[mine], p))
            delivered = float(np.quantile(took[mine], p))
            judged = _judge(f"{name}_{direction}", asked, delivered, "ns", n, QUANTILE_LIMIT)
            if n < fewest:
                judged = _Judged(**{**vars(judged), "decided": False, "holds": True, "reason": ""})
            out.append(judged)
    return out


def _lateness(log: _Log) -> _Judged:
    lateness = np.maximum(log.done - log.due, 0)
    late = lateness > np.maximum((log.wait + log.service) // 20, 50_000)
    share = float(late.mean())
    holds = share <= LATE_LIMIT
    words = (
        f"{100 * share:.0f} % of the replies were late (limit {100 * LATE_LIMIT:.0f} %; "
        f"mean lateness {lateness.mean() / 1e3:.0f} us, largest {lateness.max() / 1e6:.1f} ms)"
    )
    return _Judged("lateness", 0.0, share, "1", len(late), LATE_LIMIT, True, holds, words)


def _starved(stats: Mapping[str, Any], log: _Log) -> _Judged | None:
    """The server's own wait for a processor, per request, where it weighs against the time asked for.

    What it waits, the program waits as well, and on the way in as much as on the way out.
    """
    waited = stats.get("server_wait_ns")
    if waited is None:
        return None
    n = len(log.began)
    each, most = (
        float(waited) / n,
        max(WAIT_LIMIT * float((log.wait + log.service).mean()), 50_000.0),
    )
    if each <= most:
        return None
    words = f"the disk server waited {each / 1e3:.0f} us for a processor per request"
    return _Judged("wait", most, each, "ns", n, WAIT_LIMIT, True, False, words)


def _crowded(stats: Mapping[str, Any], run_cpu_ns: int | None) -> _Judged | None:
    """Whether the host was all taken, and a good part of it by others than the run (EM-40)."""
    whole = float(stats.get("host_cpu_ns") or 0)
    if whole <= 0:
        return None
    busy = float(stats["host_busy_ns"])
    foreign = busy - float(run_cpu_ns or 0) - float(stats.get("server_cpu_ns") or 0)
    share = foreign / whole
    if 100 * busy / whole <= CPU_LIMIT_PERCENT or share <= FOREIGN_LIMIT:
        return None
    words = (
        f"the host's processors were {100 * busy / whole:.0f} % busy, "
        f"{100 * share:.0f} % with what is not the run's"
    )
    return _Judged("host", FOREIGN_LIMIT, share, "1", 1, FOREIGN_LIMIT, True, False, words)


def _schedule(
    log: _Log, profile: Any, seed: int
) -> tuple[
    np.ndarray[Any, np.dtype[np.int64]],
    np.ndarray[Any, np.dtype[np.int64]],
    np.ndarray[Any, np.dtype[np.int64]],
]:
    """When a station of that profile would have answered, and its draws; waits are the server's."""
    text = profile if isinstance(profile, str) else getattr(profile, "json", None)
    text = json.dumps(profile) if text is None else text
    native: Any = importlib.import_module("penstock._native")
    answer = native.station_serve(
        text,
        seed,
        log.began.astype(np.uint64),
        log.op,
        log.offset,
        log.size.astype(np.uint64),
    )
    due = np.frombuffer(answer["due_ns"], np.uint64).astype(np.int64)
    service = np.frombuffer(answer["service_ns"], np.uint64).astype(np.int64)
    if abs(int(service.sum()) - int(log.service.sum())) > 0.005 * max(1, int(service.sum())):
        # The station was not fresh when the log began: its own draws stand, its queue is redone by
        # the shift of its due times.
        service = log.service
        due = log.began + log.wait + service
    return due, service, log.wait


def _columns(table: pa.Table, own_lateness_ns: float) -> _Log:
    table = table.sort_by("t_ns")

    def column(name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        if name not in table.column_names:
            return np.zeros(table.num_rows, np.int64)
        return np.asarray(table[name].to_numpy(zero_copy_only=False), np.int64)

    op = table["op"]
    if pa.types.is_dictionary(op.type):
        op = op.cast(pa.string())
    codes = pd.Categorical(op.to_pandas(), categories=["read", "write", "flush"]).codes
    due, done = column("due_ns"), column("done_ns")
    # A reply late by what the calibration saw is on time: the arrival was moved forward by as much.
    done = np.maximum(done - int(own_lateness_ns), np.minimum(due, done))
    return _Log(
        began=column("t_ns") - column("compensation_ns"),
        due=due,
        done=done,
        service=column("service_ns"),
        wait=column("wait_ns"),
        op=codes.astype(np.uint8),
        offset=column("device_offset_bytes").astype(np.uint64),
        size=column("size_bytes"),
    )


def _busy(
    began: np.ndarray[Any, np.dtype[np.int64]], ended: np.ndarray[Any, np.dtype[np.int64]]
) -> float:
    """Measure of the union of the intervals, in seconds; `began` is sorted up to compensation."""
    order = np.argsort(began, kind="stable")
    starts, ends = began[order], np.maximum(ended[order], began[order])
    reach = np.maximum.accumulate(ends)
    before = np.concatenate(([starts[0]], reach[:-1]))
    return float(np.maximum(reach - np.maximum(starts, before), 0).sum()) * 1e-9


def _punctual(log: _Log, asked_done: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    """Whether the rate would have been right had every reply gone out when the disk thought it due."""
    return _rate(replace(log, done=np.minimum(log.done, log.due)), asked_done).holds


def _span(log: _Log) -> float:
    return float(log.done.max() - log.began.min()) * 1e-9


def _saturation(utilisation: pa.Table | pd.DataFrame | None, log: _Log) -> str | None:
    """The host's saturation in words, where the monitor saw it while the disk was at work."""
    if utilisation is None:
        return None
    table = _frame(utilisation)
    cpu = table[
        (table["kind"].astype(str) == "cpu")
        & table["t_ns"].between(log.began.min(), log.done.max())
    ]
    whole = cpu[cpu["unit"].astype(str) == "%"]
    if (whole["entity"].astype(str) == "all").any():
        whole = whole[whole["entity"].astype(str) == "all"]
    if whole.empty:
        return None
    peak = float(whole.groupby("t_ns")["value"].max().quantile(0.5))
    if peak <= CPU_LIMIT_PERCENT:
        return None
    return f"the host's processors were {peak:.0f} % busy"


def _frame(table: pa.Table | pd.DataFrame) -> pd.DataFrame:
    return table.to_pandas() if isinstance(table, pa.Table) else table.copy()


def _first(table: pa.Table, column: str) -> Any:
    if column in table.column_names and table.num_rows:
        return table[column][0].as_py()
    return None


def _row(
    disk_id: str,
    metric: str,
    asked: float | None,
    delivered: float | None,
    unit: str,
    n: int,
    verdict: str,
    valid: bool,
    reason: str,
    limit: float | None = None,
) -> dict[str, Any]:
    ratio = delivered / asked if asked and delivered is not None else None
    return {
        "disk_id": disk_id,
        "metric": metric,
        "asked": asked,
        "delivered": delivered,
        "ratio": ratio,
        "unit": unit,
        "n": n,
        "verdict": verdict,
        "valid": valid,
        "reason": reason,
        "limit": limit,
    }


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=FIDELITY_SCHEMA)
