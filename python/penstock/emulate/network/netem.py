"""Options of netem (tc-netem(8)), packed and parsed: include/uapi/linux/pkt_sched.h."""

from __future__ import annotations

import importlib
import struct
from functools import cache
from typing import Any

from penstock.emulate.network.traffic_shape import TrafficShape
from penstock.host.network.netlink import attribute, attributes
from penstock.spec.cluster import Delay

_native: Any = importlib.import_module("penstock._native")

_ALL = 0xFFFFFFFF
#: longest queue [packets]; it includes packets in their delay
_LIMIT = 1_000_000
#: entries of a table of quantiles are in 1/8192 of the standard deviation
_SCALE = 8192
_QOPT = struct.Struct("=6I")
_DIST, _REORDER, _CORRUPT, _LATENCY64, _JITTER64 = 2, 3, 4, 10, 11


def options(shape: TrafficShape) -> bytes:
    """All options of netem, so that no old one remains."""
    gap = 1 if shape.reorder else 0
    parts = [
        _QOPT.pack(0, _LIMIT, _share(shape.loss), gap, _share(shape.duplicate), 0),
        attribute(_LATENCY64, struct.pack("=q", round(shape.delay.mean_s * 1e9))),
        attribute(_JITTER64, struct.pack("=q", round(shape.delay.jitter_s * 1e9))),
        attribute(_REORDER, struct.pack("=2I", _share(shape.reorder), 0)),
        attribute(_CORRUPT, struct.pack("=2I", _share(shape.corrupt), 0)),
    ]
    if shape.delay.jitter_s and shape.delay.distribution in ("normal", "pareto"):
        parts.append(attribute(_DIST, _table(shape.delay.distribution)))
    return b"".join(parts)


def read(raw: bytes, distribution: str) -> TrafficShape:
    """Parse options that netem reports; it does not report its distribution."""
    _, _, loss, gap, duplicate, _ = _QOPT.unpack_from(raw)
    parts = attributes(raw[_QOPT.size :])
    mean_ns, jitter_ns = (struct.unpack("=q", parts[k])[0] for k in (_LATENCY64, _JITTER64))
    delay = Delay(mean_ns / 1e9, jitter_ns / 1e9, distribution)  # type: ignore[arg-type]

    def share(kind: int) -> float:
        return float(struct.unpack_from("=I", parts[kind])[0]) / _ALL if kind in parts else 0.0

    reorder = share(_REORDER) if gap else 0.0
    return TrafficShape(None, delay, loss / _ALL, duplicate / _ALL, share(_CORRUPT), reorder)


def same(requested: TrafficShape, actual: TrafficShape) -> bool:
    """True if netem has the requested options: shares have 32 bits, times are integer nanoseconds."""
    numbers = [
        (getattr(requested, k), getattr(actual, k), 1e-9)
        for k in ("loss", "duplicate", "corrupt", "reorder")
    ]
    numbers += [
        (getattr(requested.delay, k), getattr(actual.delay, k), 1e-9)
        for k in ("mean_s", "jitter_s")
    ]
    return all(abs(a - b) <= 1.001 * width for a, b, width in numbers)


def _share(share: float) -> int:
    return min(_ALL, round(share * _ALL))


@cache
def _table(distribution: str) -> bytes:
    entries = [
        max(-32768, min(32767, round(x * _SCALE))) for x in _native.jitter_quantiles(distribution)
    ]
    return struct.pack(f"={len(entries)}h", *entries)
