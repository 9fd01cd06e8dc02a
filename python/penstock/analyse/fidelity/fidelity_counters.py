"""Fidelity certificate of a disk with counters only: bytes and operations per second against its limits.

For kernel back ends (a control group's throttle), which have no request log. Counters do not show the
program's demand: below its limit a disk counts as bound by demand, or by the device if its capability is
known. They do not show the shape of latency either; if the workload's own quantiles are known,
`shape_read` and `shape_write` report whether the throttle released requests in bursts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity.fidelity import FIDELITY_SCHEMA, RULES, Certificate
from penstock.analyse.fidelity.fidelity_log import frame
from penstock.analyse.fidelity.fidelity_windows import (
    CAPABILITY_SHARE,
    OFF_SHARE,
    WINDOWS_SCHEMA,
    Taken,
    load_text,
    taken,
)
from penstock.text import signed_percent

#: maximum deviation of the run, as a share, and of a window (a throttle works in slices of 0.1 s)
RATE_LIMIT = 0.05
WINDOW_LIMIT = 0.10
#: rates above this multiple of the limit mean that it was not applied
NOT_APPLIED = 1.3
#: requests that may be counted before they are released: blkio counts on submission, and readahead submits up
#: to three windows ahead
AHEAD = 3
#: minimum activity for a verdict: five slices of a throttle [s]
SHORTEST_S = 0.5
#: causes of I/O before a limit takes effect
BEFORE_A_LIMIT = "readahead, or a throttle's first slice"
#: minimum ratio of a quantile to the pace of the limit for a burst; below the inverse it passed unthrottled
BURSTY = 3.0


def fidelity_of_counters(
    counters: pa.Table | pd.DataFrame,
    *,
    disk_id: str,
    backend: str,
    capability: Mapping[str, float] | None = None,
    unsupported: Mapping[str, str] | None = None,
    latency_ns: Mapping[str, tuple[float, float]] | None = None,
    utilisation: pa.Table | pd.DataFrame | None = None,
) -> Certificate:
    """The certificate of one disk, run and windows.

    `counters`: rows of t_ns (a window's end), window_ns, disk_id, direction, bytes, ops, limit_bps and
    limit_iops (null: none); `capability`: rate of the device without a limit, by direction [B/s];
    `unsupported`: reason why the back end cannot enforce a direction's limit; `latency_ns`: (p50, p99) of
    one request by direction, measured by the program; `utilisation` of the host during the run, from a
    monitor.
    """
    table = frame(counters)
    table = table[table["disk_id"].astype(str) == disk_id].sort_values("t_ns")
    cpu = taken(utilisation)
    rows: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    for direction in ("read", "write"):
        active = _active(table[table["direction"].astype(str) == direction])
        if active.empty:
            continue
        limited = active[["limit_bps", "limit_iops"]].notna().any(axis=1)
        judged = _windows(active, (capability or {}).get(direction), cpu)
        for row in judged:
            row |= {"disk_id": disk_id, "backend": backend, "direction": direction}
        windows += judged
        verdict, valid, reason = _verdict(judged, direction, cpu)
        if limited.any() and (unsupported or {}).get(direction):
            verdict, valid, reason = "unsupported", False, str((unsupported or {})[direction])
        rows.append(
            _overall(judged, disk_id, direction)
            | {"verdict": verdict, "valid": valid, "reason": reason}
        )
        shape = _shape(active, direction, (latency_ns or {}).get(direction))
        if shape is not None:
            rows.append(shape | {"disk_id": disk_id, "verdict": verdict, "valid": valid})
    windows.sort(key=lambda row: (row["t_ns"], row["direction"]))
    window_rows = [{k: v for k, v in row.items() if k in WINDOWS_SCHEMA.names} for row in windows]
    return Certificate(
        pa.Table.from_pylist([{**row, "rules": RULES} for row in rows], schema=FIDELITY_SCHEMA),
        pa.Table.from_pylist(window_rows, schema=WINDOWS_SCHEMA),
    )


def _active(rows: pd.DataFrame) -> pd.DataFrame:
    """The windows from the first to the last with any transfer."""
    at = rows.index[rows["ops"] > 0]
    return rows.loc[at[0] : at[-1]] if len(at) else rows.iloc[:0]


def _windows(
    active: pd.DataFrame, capability_bps: float | None, cpu: Sequence[Taken]
) -> list[dict[str, Any]]:
    out = []
    limited = False  # a window was within the limit: a later one above it is not an initial burst
    before: tuple[Any, Any] | None = None
    for record in active.to_dict("records"):
        window_s = record["window_ns"] * 1e-9
        amount, ops = float(record["bytes"]), int(record["ops"])
        bps, iops = (_number(record[name]) for name in ("limit_bps", "limit_iops"))
        size = amount / ops if ops else 0.0
        limits = [v for v in (bps, iops * size if iops and size else None) if v]
        ratio = amount / window_s / min(limits) if limits and window_s > 0 else None
        row: dict[str, Any] = {
            "t_ns": int(record["t_ns"] - record["window_ns"]),
            "window_ns": int(record["window_ns"]),
            "asked_bps": min(limits) if limits else None,
            "asked_iops": iops,
            "delivered_bps": amount / window_s if window_s > 0 else None,
            "delivered_iops": ops / window_s if window_s > 0 else None,
            "ratio": ratio,
            "ops": ops,
            "bytes": int(amount),
            "active": ", ".join(
                f"limits.{record['direction']}_{name}={value:.6g}"
                for name, value in (("bps", bps), ("iops", iops))
                if value
            ),
            "reason": "",
            "ahead": AHEAD * size / (min(limits) * window_s) if limits and window_s > 0 else 0.0,
        }
        row["host"] = load_text(cpu, row["t_ns"], row["t_ns"] + row["window_ns"])
        if (bps, iops) != before:  # a changed limit may begin with a burst again, in a mixed window
            limited, mixed = False, before is not None
        else:
            mixed = False
        before = (bps, iops)
        row["verdict"] = _of_window(row, mixed, limited, capability_bps)
        limited = limited or row["verdict"] == "honoured"
        out.append(row)
    return out


def _of_window(
    row: dict[str, Any], mixed: bool, limited: bool, capability_bps: float | None
) -> str:
    ratio = row["ratio"]
    if mixed or row["window_ns"] < SHORTEST_S * 1e9:
        row["reason"] = "the limit changed in it" if mixed else ""
        return "too-short"
    if ratio is None:
        return "honoured" if row["asked_bps"] is None and row["ops"] else "demand-bound"
    if ratio > NOT_APPLIED + row["ahead"] and limited:
        row["reason"] = f"{ratio:.2f} times the limit: not applied"
        return "not-honoured"
    if ratio > 1 + WINDOW_LIMIT + row["ahead"]:
        row["reason"] = f"{ratio:.2f} times the limit"
        return "not-honoured" if limited else "burst"
    if ratio >= 1 - WINDOW_LIMIT:
        return "honoured"
    if capability_bps and row["asked_bps"] > CAPABILITY_SHARE * capability_bps:
        row["reason"] = f"the device can do {capability_bps:.4g} B/s"
        return "device-bound"
    if row["host"]:
        row["reason"] = row["host"]
        return "host-saturated"
    row["reason"] = "below the limit; counters do not show if more was requested"
    return "demand-bound"


def _verdict(
    judged: list[dict[str, Any]], direction: str, cpu: Sequence[Taken]
) -> tuple[str, bool, str]:
    """Verdict of the run, True if it may be used, and the reason."""
    verdicts = [row["verdict"] for row in judged]
    judgeable = [v for v in verdicts if v != "too-short"]
    if not judgeable:
        return "too-short", False, f"{direction}s took less than {SHORTEST_S} s"
    if all(r["asked_bps"] for r in judged):
        at_limit_s = sum(r["bytes"] / r["asked_bps"] for r in judged)
        if at_limit_s < SHORTEST_S and not {"burst", "not-honoured"} & set(verdicts):
            return "too-short", False, f"{direction}s of {at_limit_s:.2g} s at the limit"
    bursts, wrong = verdicts.count("burst"), verdicts.count("not-honoured")
    first = next((r for r in judged if r["verdict"] in ("burst", "not-honoured")), None)
    if bursts and "honoured" not in verdicts:  # the rate never dropped to the limit
        reason = (
            f"{direction}s at {first['ratio']:.2f} times the limit and never throttled"
            if first
            else ""
        )
        return "not-honoured", False, reason
    if wrong > OFF_SHARE * len(judgeable):
        return "not-honoured", False, f"{direction}s: {first['reason'] if first else ''}"
    if bursts:
        return (
            "burst",
            False,
            f"{bursts} windows above the limit at the beginning ({BEFORE_A_LIMIT}), then within it",
        )
    steady = [r for r in judged if r["verdict"] == "honoured" and r["asked_bps"]]
    ratio = sum(r["bytes"] for r in steady) / max(
        1e-9, sum(r["asked_bps"] * r["window_ns"] * 1e-9 for r in steady)
    )
    ahead = sum(r["ahead"] for r in steady) / max(1, len(steady)) ** 2
    if steady and abs(ratio - 1) > RATE_LIMIT + ahead:
        host = load_text(cpu, judged[0]["t_ns"], judged[-1]["t_ns"] + judged[-1]["window_ns"])
        verdict = "host-saturated" if host else "not-honoured"
        return verdict, False, f"{direction}s are {signed_percent(ratio - 1)} off"
    for verdict in ("host-saturated", "device-bound", "demand-bound"):
        if verdicts.count(verdict) > len(judgeable) / 2:
            reason = next(r["reason"] for r in judged if r["verdict"] == verdict)
            return verdict, verdict != "host-saturated", reason
    return "honoured", True, ""


def _overall(judged: list[dict[str, Any]], disk_id: str, direction: str) -> dict[str, Any]:
    if len(judged) >= 4:  # the first and the last window are partial
        judged = judged[1:-1]
    limits_and_s = [(r["asked_bps"], r["window_ns"] * 1e-9) for r in judged]
    span_s = sum(s for _, s in limits_and_s)
    delivered = sum(r["bytes"] for r in judged) / span_s
    limited = all(bps for bps, _ in limits_and_s)
    limit_bps = sum(bps * s for bps, s in limits_and_s) / span_s if limited else None
    return {
        "disk_id": disk_id,
        "metric": f"rate_{direction}",
        "asked": limit_bps,
        "delivered": delivered,
        "ratio": delivered / limit_bps if limit_bps else None,
        "unit": "B/s",
        "n": sum(r["ops"] for r in judged),
        "limit": RATE_LIMIT,
    }


def _shape(
    active: pd.DataFrame, direction: str, quantiles: tuple[float, float] | None
) -> dict[str, Any] | None:
    """Row on bursts: p50 and p99 of a direction compared with the pace of its limit; None if unknown."""
    ops = float(active["ops"].sum())
    if quantiles is None or ops == 0:
        return None
    p50, p99 = quantiles
    size = float(active["bytes"].sum()) / ops
    paces = []
    for name, amount in (("limit_bps", size), ("limit_iops", 1.0)):
        limit = active[name].dropna()
        if len(limit) == len(active):
            paces.append(1e9 * amount / float(limit.mean()))
    if not paces:
        return None
    pace = max(paces)
    bursty = p50 < pace / BURSTY and p99 > BURSTY * pace
    return {
        "metric": f"shape_{direction}",
        "asked": pace,
        "delivered": p50,
        "ratio": p50 / pace,
        "unit": "ns",
        "n": int(ops),
        "limit": BURSTY,
        "reason": (
            f"bursty: p50 {p50 / 1e6:.3g} ms and p99 {p99 / 1e6:.3g} ms at a pace of one request in "
            f"{pace / 1e6:.3g} ms"
            if bursty
            else ""
        ),
    }


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)
