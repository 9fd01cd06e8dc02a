"""The events of a traced run as columns in batches: memory does not grow with the trace's length."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.archive.traces.trace_tables import TraceTables, by_path

_native: Any = importlib.import_module("penstock._native")

BATCH_ROWS = 1 << 19
_COLUMNS = ["t_ns", "op", "file_id", "offset_bytes", "done_bytes", "latency_ns"]

#: kinds of events for a figure (crates/tracefmt, tiles.rs)
READ, WRITE, AROUND, SYNC, META = range(5)
KIND_MASK = 7
_FAULT = 8

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """One batch: int64 arrays of one length, `kind` uint8 (low three bits the kind, bit 3 a page fault)."""

    t_ns: Ints
    file_id: Ints
    kind: npt.NDArray[np.uint8]
    offset_bytes: Ints
    done_bytes: Ints
    latency_ns: Ints

    @property
    def arrays(self) -> tuple[Any, ...]:
        """Arrays in the order of the native interface."""
        return (
            self.t_ns,
            self.file_id,
            self.kind,
            self.offset_bytes,
            self.done_bytes,
            self.latency_ns,
        )

    def drawn(self, file_id: int) -> npt.NDArray[np.bool_]:
        """Mask of the events of a file that are drawn: those that transferred bytes."""
        here: npt.NDArray[np.bool_] = (self.file_id == file_id) & (self.done_bytes > 0)
        return here & ((self.kind & KIND_MASK) <= AROUND)


def batches(run: TraceTables) -> Iterator[Columns]:
    """The events of a run in order. BadInput for unreadable tables.

    Files of one path share the number of the first of them.
    """
    for batch in run.event_batches(_COLUMNS, rows=BATCH_ROWS):
        yield Columns(
            t_ns=batch["t_ns"],
            file_id=by_path(batch["file_id"], run.first_of),
            kind=_KINDS[np.minimum(batch["op"], len(_KINDS) - 1)],
            offset_bytes=batch["offset_bytes"],
            done_bytes=batch["done_bytes"],
            latency_ns=batch["latency_ns"],
        )


def _kinds() -> npt.NDArray[np.uint8]:
    """Kind of each operation by its number; META for unknown ones."""
    kinds = {"read": READ, "write": WRITE, "sync": SYNC, "meta": META}
    table = np.full(257, META, np.uint8)
    for number, name, direction in _native.trace_operations():
        table[number] = kinds[direction] | (_FAULT if name.startswith("fault_") else 0)
        if name.startswith("fault_around"):
            table[number] = AROUND
    return table


_KINDS = _kinds()
