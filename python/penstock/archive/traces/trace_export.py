"""A trace bundle in the formats of other programs: Perfetto, Paraver, JSON, JSONL, fio."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.archive.bundle import plain_words
from penstock.archive.traces.fio_job import JobCounts, write_jobs
from penstock.archive.traces.trace_tables import EVENT_COLUMNS, Numbers, TraceTables
from penstock.errors import BadInput, PenstockError
from penstock.plugins import TRACE_EXPORTERS
from penstock.writing import whole_folder

_native: Any = importlib.import_module("penstock._native")

#: Perfetto's own limit is a little above
PART_BYTES = 1_000_000_000 - (8 << 20)

_REQUEST_COLUMNS = "t_ns done_ns op offset size disk tid".split()


def export(
    bundle: Path, form: str, target: Path, *, part_bytes: int = PART_BYTES
) -> dict[str, Any]:
    """Writes the bundle's events as `form` to `target`; gives files and counts.

    Memory does not grow with the number of events. Raises BadInput for a bundle without events, a format that
    is none, or a target that cannot be.
    """
    write = TRACE_EXPORTERS.load(form)
    rows = TraceTables(bundle)
    rows.need_events()
    return {"format": form, **write(rows, target, part_bytes)}


def _file(form: str, rows: TraceTables, target: Path, part_bytes: int) -> dict[str, Any]:
    """Writes the file `target`, and what the format has beside it."""
    if form == "paraver" and target.suffix != ".prv":
        target = target.with_name(target.name + ".prv")
    if target.is_dir():
        raise BadInput(f"-o: {target} is a directory; expected a file")
    with whole_folder(target.absolute().parent) as draft:
        written = _write(rows, form, draft / target.name, part_bytes)
        names = sorted(p.name for p in draft.iterdir())
    return {"files": [str(target.parent / name) for name in names], **written}


#: a file for ui.perfetto.dev
perfetto = partial(_file, "perfetto")
#: the .prv file; .pcf and .row lie beside it
paraver = partial(_file, "paraver")
json_file = partial(_file, "json")
#: one event per line
jsonl = partial(_file, "jsonl")


def fio(rows: TraceTables, target: Path, part_bytes: int) -> dict[str, Any]:
    """Writes a directory: jobs and I/O logs."""
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise BadInput(
            f"-o: {target} exists already; expected a directory to be made, or an empty one"
        )
    counts = JobCounts(rows)
    with whole_folder(target) as draft:
        written = _write(rows, "fio", draft, 0, counts)
        write_jobs(draft, rows, counts, written)
        names = sorted(str(p.relative_to(draft)) for p in draft.rglob("*") if p.is_file())
    return {"files": [str(target / name) for name in names], **written}


def _write(
    rows: TraceTables, form: str, path: Path, part_bytes: int, counts: JobCounts | None = None
) -> dict[str, Any]:
    disks, requests = rows.request_batches() if form == "perfetto" else ([], iter(()))
    context = _context(rows, disks, part_bytes)
    try:
        writer = _native.TraceExport(form, path, json.dumps(context))
        ready = _Lookahead(requests)
        for batch in rows.event_batches():
            if len(batch["t_ns"]):
                for part in ready.until(int(batch["t_ns"][-1])):
                    writer.requests([part[name] for name in _REQUEST_COLUMNS])
            writer.events([batch[name] for name in EVENT_COLUMNS])
            if counts is not None:
                counts.add(batch)
        for part in ready.until(None):
            writer.requests([part[name] for name in _REQUEST_COLUMNS])
        written: dict[str, Any] = json.loads(writer.finish())
    except OSError as error:
        raise PenstockError(f"{path.name} cannot be written: {error}") from error
    return written


class _Lookahead:
    """Batches of requests cut at a time."""

    def __init__(self, batches: Iterator[dict[str, Numbers]]):
        self._batches = batches
        self._rest: dict[str, Numbers] | None = None

    def until(self, t_ns: int | None) -> Iterator[dict[str, Numbers]]:
        """Those that arrived no later than `t_ns`, all with None."""
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


def _context(rows: TraceTables, disks: list[str], part_bytes: int) -> dict[str, Any]:
    outline = rows.outline
    names = rows.thread_names()
    manifest = rows.manifest
    words = manifest.get("command") or []
    words = plain_words(words) if isinstance(words, list) else str(words)
    # what a name of a foreign operation may be is known once the events have been looked at
    operations = [[number, name, way] for name, (number, way) in rows.operations.items()]
    clock = rows.clock()
    since = clock["realtime_ns"] / 1e9 if clock else 0.0
    return {
        "command": " ".join(words) if isinstance(words, list) else words,
        "start_ns": outline.start_ns,
        "end_ns": outline.end_ns,
        "clocks": clock,
        "threads": [
            {"pid": pid, "tid": tid, "name": names.get((pid, tid), "")}
            for pid, tid in outline.threads
        ],
        "files": [{"file_id": number, "path": path} for number, path in rows.named.items()],
        "disks": disks,
        "operations": operations,
        "lost": rows.lost,
        "cpus": int((manifest.get("host") or {}).get("processors") or os.cpu_count() or 1),
        "part_bytes": part_bytes,
        "date": time.strftime("%d/%m/%y at %H:%M", time.gmtime(since)),
        "head": {
            "schema": "penstock/trace-events/1",
            "command": words,
            "start_ns": outline.start_ns,
            "end_ns": outline.end_ns,
            "events_lost": rows.lost,
            "receipts": manifest.get("receipts") or {},
            "closing": manifest.get("closing", ""),
            "clocks": clock,
            "files": [{"file_id": n, "path": path} for n, path in rows.named.items()],
        },
    }
