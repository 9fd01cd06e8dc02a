"""Storage profiles as text: times, limits, origin, and range of validity."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from penstock.profile.honour import (
    LARGE_BYTES,
    SMALL_BYTES,
    HostLimits,
    nearest_honest_time_scale,
)
from penstock.profile.model import StorageProfile, ruled_out
from penstock.text import duration, quantity, size

_KINDS = [(op, sequential) for op in ("read", "write") for sequential in (True, False)]


def row(profile: StorageProfile, floor: HostLimits | None) -> dict[str, Any]:
    """A line of the list: mean times of small random requests [s], ceilings, sustainable time scale here."""
    read, write = (profile.moments(op, False, SMALL_BYTES) for op in ("read", "write"))
    stream = profile.moments("read", True, LARGE_BYTES)
    return {
        "name": profile.name,
        "random_read_s": read.mean,
        "random_write_s": write.mean,
        "flush_s": profile.moments("flush", True, 0).mean,
        "random_reads_per_s": _finite(read.capacity_iops),
        "stream_bps": _finite(stream.capacity_iops * LARGE_BYTES),
        "honest_time_scale": nearest_honest_time_scale(profile, floor) if floor else None,
        "description": profile.to_dict().get("description", ""),
    }


def details(profile: StorageProfile, floor: HostLimits | None) -> dict[str, Any]:
    """All data: `row`, and `times` by kind and size [s, requests per second], `source`, `not_to_be_used`."""
    values = profile.to_dict()
    times = []
    for op, sequential in _KINDS:
        for nbytes in (SMALL_BYTES, LARGE_BYTES):
            m = profile.moments(op, sequential, nbytes)
            times.append(
                {
                    "operation": op,
                    "pattern": "sequential" if sequential else "random",
                    "size_bytes": nbytes,
                    "mean_s": m.mean,
                    "p50_s": m.p50,
                    "p99_s": m.p99,
                    "most_per_s": _finite(m.capacity_iops),
                }
            )
    return {
        **row(profile, floor),
        "time_scale": profile.time_scale,
        "servers": profile.servers,
        "times": times,
        "source": values.get("source", []),
        "not_to_be_used": ruled_out(values),
    }


def list_lines(rows: list[dict[str, Any]]) -> list[str]:
    """List as text."""
    width = max(len(r["name"]) for r in rows)
    lines = [
        f"{'':<{width}}  {'read':>8} {'write':>8} {'flush':>8} {'reads/s':>9} {'stream':>12}  here",
    ]
    for r in rows:
        lines.append(
            f"{r['name']:<{width}}  {_time(r['random_read_s']):>8} {_time(r['random_write_s']):>8} "
            f"{_time(r['flush_s']):>8} {_count(r['random_reads_per_s']):>9} "
            f"{_rate(r['stream_bps']):>12}  {_scale(r['honest_time_scale'])}"
        )
    return lines


def detail_lines(profile: Mapping[str, Any], width: int = 100) -> list[str]:
    """One profile as text of at most `width` columns."""
    lines = textwrap.wrap(
        f"{profile['name']}: {profile['description']}", width, subsequent_indent="  "
    )
    alike = "one request" if profile["servers"] == 1 else f"{profile['servers']} requests"
    slower = "" if profile["time_scale"] == 1 else f"; {profile['time_scale']:g} times slowed down"
    lines += [f"  serves {alike} at a time{slower}", ""]
    lines.append(f"  {'':<25}{'mean':>9} {'median':>9} {'99 %':>9} {'most/s':>9} {'':>12}")
    for t in profile["times"]:
        kind = f"{t['pattern']} {t['operation']}s, {size(t['size_bytes'])}"
        most = t["most_per_s"]
        rate = None if most is None else most * t["size_bytes"]
        lines.append(
            f"  {kind:<25}{_time(t['mean_s']):>9} {_time(t['p50_s']):>9} {_time(t['p99_s']):>9} "
            f"{_count(most):>9} {_rate(rate):>12}"
        )
    lines += [f"  {'flush':<25}{_time(profile['flush_s']):>9}", "", "Sources of the numbers"]
    for s in profile["source"]:
        if s["what"] not in profile["not_to_be_used"]:
            lines += textwrap.wrap(
                f"{s['what']}: {s['where']}", width, initial_indent="  - ", subsequent_indent="    "
            )
    if profile["not_to_be_used"]:
        lines += ["", "Not to be used for"]
        for what in profile["not_to_be_used"]:
            lines += textwrap.wrap(what, width, initial_indent="  - ", subsequent_indent="    ")
    if profile["honest_time_scale"] is not None:
        lines += ["", f"On this host: {_scale(profile['honest_time_scale'])}."]
    return lines


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(seconds: float) -> str:
    return duration(1e9 * seconds) if seconds else "0"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return "–" if value is None else quantity(value / (1 << 20), "MiB/s")


def _scale(value: float | None) -> str:
    if value is None:
        return "?"
    return "at full speed" if value == 1 else f"{value:g} times slower (time_scale)"
