"""A point measured on a simulated storage, in virtual time: ground truth for learners and point selection.

The station of the profile serves the requests below a page cache: sequential reads as two read-aheads of 128
KiB in flight, skewed reads as their misses (the cache holds all data read), writes and direct access
unchanged.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.parts.prediction.black_box.space import Point, skew
from penstock.profile.model import StorageProfile, native

READAHEAD_BYTES = 128 << 10
#: page cache hit: time per request, and per byte copied from memory [ns]
HIT_NS, HIT_NS_PER_BYTE = 700.0, 0.2
_MAX_REQUEST_BYTES = 1 << 20


def offsets(point: Point, count: int, seed: int) -> NDArray[np.int64]:
    """Offsets [bytes] of the first `count` requests of a skewed pattern, as in fio's zones."""
    shares = skew(point.pattern)
    assert shares is not None
    draw = np.random.default_rng(seed)
    blocks = point.data_bytes // point.request_bytes
    hot = max(1, round(blocks * shares[1] / 100))
    is_hot = draw.random(count) < shares[0] / 100
    cold = hot + draw.integers(0, max(1, blocks - hot), count) % max(1, blocks - hot)
    block_number = np.where(is_hot | (blocks == hot), draw.integers(0, hot, count), cold)
    return (block_number * point.request_bytes).astype(np.int64)


def simulated_bps(
    profile: StorageProfile, point: Point, seed: int = 1, requests: int = 1000
) -> float:
    """Throughput of one client [bytes/s] in the first `requests` of each client (fewer for little data)."""
    point_seed = zlib.crc32(f"{point.name}/{seed}".encode())
    bulk = point.pattern == "sequential"
    readahead = bulk and point.operation == "read" and point.access == "buffered"
    block = max(READAHEAD_BYTES, point.request_bytes) if readahead else point.request_bytes
    count = min(requests, point.data_bytes // block)
    copying_ns = HIT_NS + HIT_NS_PER_BYTE * block
    clients: list[dict[str, Any]] = []
    for number in range(point.clients + 1):
        client: dict[str, Any] = {
            "think_ns": copying_ns if point.access == "buffered" else 0.0,
            "device_offset_bytes": number * point.data_bytes,
        }
        if bulk:
            client["iodepth"] = 2 if readahead else 1
            client["pattern"] = {
                "kind": "sequential",
                "op": point.operation,
                "block_bytes": block,
                "file_bytes": point.data_bytes,
            }
        else:
            client["pattern"] = _skewed(point, count, point_seed + number, copying_ns)
        clients.append(client)
    spec = {
        "profile": profile.to_dict(),
        "seed": point_seed,
        "clients": clients,
        "operations": count,
        "max_request_bytes": _MAX_REQUEST_BYTES,
    }
    outcome = json.loads(native.simulate_closed(json.dumps(spec)))
    return float(count * block / outcome["elapsed_s"])


def _skewed(point: Point, count: int, seed: int, copying_ns: float) -> dict[str, Any]:
    """Requests that reach the storage; cache hits are think time before the next one."""
    request_offsets = offsets(point, count, seed)
    is_miss = np.ones(count, dtype=bool)
    if point.operation == "read" and point.access == "buffered":
        is_miss[:] = False
        is_miss[np.unique(request_offsets, return_index=True)[1]] = True
    hits_before = np.cumsum(~is_miss)[is_miss]
    hits = np.diff(hits_before, prepend=0)
    miss_offsets = request_offsets[is_miss]
    return {
        "kind": "explicit",
        "op": [int(point.operation == "write")] * len(miss_offsets),
        "offset_bytes": miss_offsets.tolist(),
        "size_bytes": [point.request_bytes] * len(miss_offsets),
        "think_ns": np.round(hits * copying_ns).astype(int).tolist(),
    }
