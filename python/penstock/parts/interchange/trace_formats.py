"""Export of traces to files of Perfetto and Paraver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from penstock.archive.traces.trace_export import Counts, native_writer, write_events, write_file
from penstock.archive.traces.trace_tables import EVENT_COLUMNS, Numbers, TraceTables

_REQUEST_COLUMNS = "t_ns done_ns op offset size disk tid".split()


def perfetto(rows: TraceTables, target: Path, part_bytes: int) -> Counts:
    """Write a file for ui.perfetto.dev, with the requests of disks."""
    return write_file(target, partial(_write_perfetto, rows, part_bytes))


def paraver(rows: TraceTables, target: Path, part_bytes: int) -> Counts:
    """Write a .prv file with its .pcf and .row files."""
    if target.suffix != ".prv":
        target = target.with_name(target.name + ".prv")
    return write_file(target, partial(write_events, "paraver", rows, part_bytes))


def _write_perfetto(rows: TraceTables, part_bytes: int, path: Path) -> Counts:
    disks, batches = rows.request_batches()
    requests = _Lookahead(batches)
    with native_writer("perfetto", rows, path, part_bytes, disks) as writer:
        for batch in rows.event_batches():
            if len(batch["t_ns"]):
                for part in requests.until(int(batch["t_ns"][-1])):
                    writer.requests([part[name] for name in _REQUEST_COLUMNS])
            writer.events([batch[name] for name in EVENT_COLUMNS])
        for part in requests.until(None):
            writer.requests([part[name] for name in _REQUEST_COLUMNS])
        written: Counts = json.loads(writer.finish())
    return written


class _Lookahead:
    """Batches of requests, split at given times."""

    def __init__(self, batches: Iterator[dict[str, Numbers]]):
        self._batches = batches
        self._rest: dict[str, Numbers] | None = None

    def until(self, t_ns: int | None) -> Iterator[dict[str, Numbers]]:
        """Yield the remaining requests that arrived no later than `t_ns`; all remaining ones for None."""
        while True:
            part = self._rest if self._rest is not None else next(self._batches, None)
            self._rest = None
            if part is None:
                return
            n = len(part["t_ns"])
            cut = n if t_ns is None else int(np.searchsorted(part["t_ns"], t_ns, side="right"))
            if cut:
                yield {name: np.ascontiguousarray(column[:cut]) for name, column in part.items()}
            if cut < n:
                self._rest = {name: column[cut:] for name, column in part.items()}
                return
