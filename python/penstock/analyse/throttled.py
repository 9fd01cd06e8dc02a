"""Fidelity of a throttled disk: what the kernel's own counters say was delivered, against the limits set.

A throttle gives its rate in slices of some 100 ms: the mean is right, the latency has no shape to judge. So
rates are judged here and nothing else, per direction and limit, over whole windows between the first and the
last in which something moved. Below its limit a device may have been asked for less, or be able to do no
more: counters cannot tell, unless its capability is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity import FIDELITY_SCHEMA

#: largest departure of the sustained rate from its limit, as a share
RATE_LIMIT = 0.05
#: bytes that are counted before they are let through: requests count when they are handed in, and readahead
#: hands in up to three windows of 128 KiB ahead; operations likewise
AHEAD = {"bytes": 3 * 128 * 1024, "ops": 3}
#: delivered above this multiple, the limit is not applied (EM-41)
NOT_APPLIED = 1.3
#: the first windows above this multiple, the others held: a burst (EM-40)
BURST = 1.1
#: shortest activity that can be judged: five slices of a throttle (EM-40) [s]
SHORTEST_S = 0.5
#: a limit above this share of what the device can do is not what bounds it (EM-35)
DEVICE_BOUND = 0.8
_USABLE = ("honoured", "demand-bound", "device-bound")


def throttle_fidelity(
    windows: pa.Table,
    *,
    capability_bps: Mapping[str, float] | None = None,
    cause_of_burst: str = "readahead or a throttle's first slice",
) -> pa.Table:
    """The certificate of throttled disks: rows of `fidelity`, one per disk, direction and limit.

    `windows`: the table `throttle_counters`; `capability_bps`: by direction, what the device does without a
    limit [B/s], where it was measured.
    """
    rows = []
    frame = windows.to_pandas()
    for (disk, direction), part in frame.groupby(["disk_id", "direction"], sort=True):
        part = part.sort_values("t_ns")
        for amount, column, unit in (("bytes", "limit_bps", "B/s"), ("ops", "limit_iops", "1/s")):
            if part[column].notna().any():
                able = (capability_bps or {}).get(str(direction)) if unit == "B/s" else None
                judged = _judge(part, amount, column, able, cause_of_burst)
                name = f"{'rate' if unit == 'B/s' else 'iops'}_{direction}"
                rows.append({"disk_id": str(disk), "metric": name, "unit": unit, **judged})
    return pa.Table.from_pylist(rows, schema=FIDELITY_SCHEMA)


def _judge(
    part: pd.DataFrame, amount: str, column: str, able: float | None, cause: str
) -> dict[str, Any]:
    limit = part[column].to_numpy(dtype=float)
    moved = part[amount].to_numpy(dtype=float)
    took_s = part["window_ns"].to_numpy(dtype=float) / 1e9
    active = np.flatnonzero((moved > 0) & ~np.isnan(limit))
    if len(active) == 0:
        return _row(None, None, 0, "demand-bound", "nothing moved")
    # the first and the last active window are not full of work
    inner = active[1:-1]
    inner = inner[np.insert(np.diff(inner) == 1, 0, True)] if len(inner) else inner
    used = inner if len(inner) >= 2 else active
    asked = float((limit[used] * took_s[used]).sum() / took_s[used].sum())
    delivered = float(moved[used].sum() / took_s[used].sum())
    ratio, n = delivered / asked, len(used)
    first, rest = active[:2], active[2:-1]
    most = (1 + RATE_LIMIT) * (limit * took_s)[rest].sum() + AHEAD[amount]
    held = len(rest) > 0 and moved[rest].sum() <= most
    begun = float(moved[first].sum() / (limit[first] * took_s[first]).sum())
    whole = float(moved[active].sum() / (limit[active] * took_s[active]).sum())
    reason, verdict = "", "honoured"
    if begun > BURST and held:
        verdict = "burst"
        reason = f"the first windows had {100 * begun:.0f} % of the limit ({cause})"
    elif max(ratio, whole) > NOT_APPLIED:
        verdict = "not-honoured"
        reason = f"{100 * max(ratio, whole):.0f} % of the limit: it is not applied"
    elif len(inner) < 2:
        if whole > BURST:
            verdict = "burst"
            reason = f"{100 * whole:.0f} % of the limit in a short time ({cause})"
        else:
            verdict, reason = "too-short", "too short to tell the rate from the first slices"
    elif ratio > 1 + RATE_LIMIT + AHEAD[amount] / (limit * took_s)[used].sum():
        verdict, reason = "not-honoured", f"{100 * (ratio - 1):+.1f} % off the limit"
    elif ratio < 1 - RATE_LIMIT:
        verdict, reason = _below(asked, delivered, able)
    return _row(asked, delivered, n, verdict, reason)


def _below(asked: float, delivered: float, able: float | None) -> tuple[str, str]:
    if able is not None and asked > DEVICE_BOUND * able:
        return "device-bound", f"the device does {able / 1e6:.1f} MB/s without a limit"
    return "demand-bound", f"{100 * delivered / asked:.0f} % of the limit was asked for"


def _row(
    asked: float | None, delivered: float | None, n: int, verdict: str, reason: str
) -> dict[str, Any]:
    return {
        "asked": asked,
        "delivered": delivered,
        "ratio": None if not asked or delivered is None else delivered / asked,
        "n": n,
        "verdict": verdict,
        "valid": verdict in _USABLE,
        "reason": reason,
        "limit": RATE_LIMIT,
    }
