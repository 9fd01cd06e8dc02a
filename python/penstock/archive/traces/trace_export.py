"""A trace bundle as files of the formats in `penstock.plugins.TRACE_EXPORTERS`; JSON, JSONL and fio here."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.archive.bundle import plain_argv
from penstock.archive.traces.fio_job import JobCounts, write_jobs
from penstock.archive.traces.trace_tables import EVENT_COLUMNS, TraceTables
from penstock.errors import BadInput, PenstockError
from penstock.plugins import TRACE_EXPORTERS
from penstock.writing import atomic_folder

_native: Any = importlib.import_module("penstock._native")

#: `files`, `events` and other counts of an export
Counts = dict[str, Any]

#: maximum size of a file in a format that is split; Perfetto's limit is slightly higher
PART_BYTES = 1_000_000_000 - (8 << 20)


def export(bundle: Path, form: str, target: Path, *, part_bytes: int = PART_BYTES) -> Counts:
    """Write the bundle's events as `form` to `target`; returns files and counts.

    Memory is independent of the number of events. Raises BadInput for a bundle without events, an unknown
    format, or an invalid target.
    """
    write = TRACE_EXPORTERS.load(form)
    rows = TraceTables(bundle)
    rows.need_events()
    return {"format": form, **write(rows, target, part_bytes)}


def write_file(target: Path, write: Callable[[Path], Counts]) -> Counts:
    """Write `target` and the other files of `write`; returns them with its counts."""
    if target.is_dir():
        raise BadInput(f"-o: {target} is a directory; expected a file")
    with atomic_folder(target.absolute().parent) as draft:
        counts = write(draft / target.name)
        names = sorted(p.name for p in draft.iterdir())
    return {"files": [str(target.parent / name) for name in names], **counts}


def write_events(
    form: str, rows: TraceTables, part_bytes: int, path: Path, counts: JobCounts | None = None
) -> Counts:
    """Write the events to `path` with the native module's writer for `form`; also passes them to `counts`."""
    with native_writer(form, rows, path, part_bytes) as writer:
        for batch in rows.event_batches():
            writer.events([batch[name] for name in EVENT_COLUMNS])
            if counts is not None:
                counts.add(batch)
        written: Counts = json.loads(writer.finish())
    return written


@contextlib.contextmanager
def native_writer(
    form: str, rows: TraceTables, path: Path, part_bytes: int, disks: Sequence[str] = ()
) -> Iterator[Any]:
    """A writer of the native module. PenstockError if `path` is not writable."""
    context = json.dumps(_context(rows, disks, part_bytes))
    try:
        yield _native.TraceExport(form, path, context)
    except OSError as error:
        raise PenstockError(f"{path.name} cannot be written: {error}") from error


def json_file(rows: TraceTables, target: Path, part_bytes: int) -> Counts:
    """Write one JSON document."""
    return write_file(target, partial(write_events, "json", rows, part_bytes))


def jsonl(rows: TraceTables, target: Path, part_bytes: int) -> Counts:
    """Write one event per line."""
    return write_file(target, partial(write_events, "jsonl", rows, part_bytes))


def fio(rows: TraceTables, target: Path, part_bytes: int) -> Counts:
    """Write a directory: jobs and I/O logs."""
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise BadInput(
            f"-o: {target} exists already; expected a directory to be made, or an empty one"
        )
    counts = JobCounts(rows)
    with atomic_folder(target) as draft:
        written = write_events("fio", rows, 0, draft, counts)
        write_jobs(draft, rows, counts, written)
        names = sorted(str(p.relative_to(draft)) for p in draft.rglob("*") if p.is_file())
    return {"files": [str(target / name) for name in names], **written}


def _context(rows: TraceTables, disks: Sequence[str], part_bytes: int) -> dict[str, Any]:
    outline = rows.outline
    names = rows.thread_names()
    manifest = rows.manifest
    argv = manifest.get("command") or []
    argv = plain_argv(argv) if isinstance(argv, list) else str(argv)
    # names of unknown operations are available after the first pass over the events
    operations = [[number, name, way] for name, (number, way) in rows.operations.items()]
    clock = rows.clock()
    since = clock["realtime_ns"] / 1e9 if clock else 0.0
    return {
        "command": " ".join(argv) if isinstance(argv, list) else argv,
        "start_ns": outline.start_ns,
        "end_ns": outline.end_ns,
        "clocks": clock,
        "threads": [
            {"pid": pid, "tid": tid, "name": names.get((pid, tid), "")}
            for pid, tid in outline.threads
        ],
        "files": [{"file_id": number, "path": path} for number, path in rows.named.items()],
        "disks": list(disks),
        "operations": operations,
        "lost": rows.lost,
        "cpus": int((manifest.get("host") or {}).get("processors") or os.cpu_count() or 1),
        "part_bytes": part_bytes,
        "date": time.strftime("%d/%m/%y at %H:%M", time.gmtime(since)),
        "head": {
            "schema": "penstock/trace-events/1",
            "command": argv,
            "start_ns": outline.start_ns,
            "end_ns": outline.end_ns,
            "events_lost": rows.lost,
            "receipts": manifest.get("receipts") or {},
            "closing": manifest.get("closing", ""),
            "clocks": clock,
            "files": [{"file_id": n, "path": path} for n, path in rows.named.items()],
        },
    }
