"""Reads of one and of many chunks over a delayed link: they show how many requests a client has under way.

Without delay, two requests at once are enough to occupy a link, so that windows cannot be distinguished.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.execute import execute

#: chunks of the larger reads, and the most bytes of one
CHUNKS, _LARGEST = 8, 32 * 2**20
_REPEATS = 4
#: first reads, which do not count: TCP begins slowly on a connection that was idle
_WARM = 3
#: one-way delay in transfer times of a chunk, and its limits [s]
_DELAY, _DELAY_S = 2.0, (0.005, 0.25)


@dataclass(frozen=True)
class DelayedReads:
    """Seconds of reads of one chunk, and of `chunks` chunks, with an additional one-way delay."""

    delay_s: float
    chunks: int
    chunk_bytes: int
    one_s: list[float]
    many_s: list[float]


def delayed_reads(store: Store, chunk_bytes: int, rate_bps: float) -> DelayedReads | str:
    """Reads by a client without storage, its link to the storage node delayed; else why there are none."""
    if CHUNKS * chunk_bytes > _LARGEST:
        return f"{CHUNKS} chunks are more than {_LARGEST // 2**20} MiB"
    client = next(n for n in store.roles.clients if n not in store.roles.storage)
    delay_s = min(max(_DELAY_S[0], _DELAY * chunk_bytes / rate_bps), _DELAY_S[1])
    counts = [*[CHUNKS] * _WARM, *(n for _ in range(_REPEATS) for n in (1, CHUNKS))]
    files = [File(f"{i}", n * chunk_bytes, preloaded=True) for i, n in enumerate(counts)]
    reads = [Operation("read", f.name, 0, f.size_bytes or 0) for f in files]
    workload = Workload("window", tuple(files), (Task("read", tuple(reads), machine=client),))
    try:
        with _delayed(store, client, store.roles.storage[0], delay_s):
            done = execute(
                workload,
                store,
                slots=dict.fromkeys(store.roles.clients, 1),
                groups={node: node for node in store.roles.clients},
                located=False,
                watched=False,
            )
    except PenstockError as error:
        return str(error)
    rows = sorted(done.operations.to_pylist(), key=lambda row: row["number"])[_WARM:]
    took_s = [row["end_s"] - row["start_s"] for row in rows]
    return DelayedReads(delay_s, CHUNKS, chunk_bytes, took_s[::2], took_s[1::2])


@contextlib.contextmanager
def _delayed(store: Store, client: str, server: str, delay_s: float) -> Iterator[None]:
    """Delay between two nodes, both ways, for the duration of the block."""
    network = next(iter(store.cluster.nodes[client].addresses))
    store.cluster.set_delays(network, {(client, server): delay_s})
    try:
        yield
    finally:
        store.cluster.set_delays(network, {(client, server): 0.0})
