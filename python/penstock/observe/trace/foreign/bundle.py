"""Traces that the tracer did not make: another tool's, or a disk's request log, as an ordinary bundle.

Whatever the source, it comes as a spool of the tracer's records; from there it is judged and stored as a
traced command is. What the source cannot know stands in the manifest under `source`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, PenstockError
from penstock.observe.trace.capture.events import (
    DIRECTIONS,
    ENCODINGS,
    EVENT,
    FIRST_WRITE,
    SpoolReader,
    write_events,
)
from penstock.observe.trace.capture.events import SCHEMA as EVENTS_SCHEMA
from penstock.observe.trace.show.closing import closing_sentence
from penstock.observe.trace.verdicts.patterns import patterns_table, verdicts
from penstock.text import size as size_in_words

_native: Any = importlib.import_module("penstock._native")

Row = dict[str, Any]

#: format → what it is
SOURCES = {
    "blktrace": "blktrace's binary files (one per processor), or `blkparse -d`",
    "dxt": "the text of darshan-dxt-parser",
    "iolog": "fio's I/O log, version 2 or 3",
}

_NOT_KNOWN = {
    "blktrace": [
        "which file a request belongs to: offsets are the device's",
        "the program's own calls: this is what the page cache and the scheduler let through",
        "CLOCK_MONOTONIC: times are from the start of the trace",
    ],
    "dxt": [
        "times closer than 0.1 ms: such requests keep the order of the text",
        "calls that failed, and open, close and sync",
        "threads: a rank counts as one",
    ],
    "iolog": [
        "latencies: they are 0",
        "threads and processes: a log counts as one thread",
        "errors: every request counts as done",
    ],
}

_CHUNK = 1 << 20
_REQUEST = np.dtype(
    [(name, "<i8") for name in "queued issued done offset size op tid device".split()]
)
_DEVICE_OPS = {31: "read", 63: "write", 95: "flush"}


@dataclass
class Foreign:
    """A recording as a spool with its names, `basis` being `calls` or `device`.

    `files` and `threads` are rows of those tables; `counts` has seen, kept, filtered, lost.
    """

    spool: Path
    files: list[Row]
    threads: list[Row]
    counts: dict[str, int]
    basis: str
    source: dict[str, Any]
    tables: dict[str, pa.Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """What the bundle holds, for the terminal."""

    bundle: Path | None
    events: int
    files: list[Row]
    verdicts: list[Row]
    closing: str
    source: dict[str, Any]
    counts: dict[str, int]
    flushes: list[Row]


def import_trace(paths: Sequence[Path], output: Path, form: str | None = None) -> Judged:
    """Makes a bundle of another tool's trace at `output`.

    Raises BadInput where a file cannot be read or is not what it should be; nothing is left then.
    """
    if form is not None and form not in SOURCES:
        raise BadInput(f"--format: found {form!r}; expected {', '.join(SOURCES)}")
    given = [found for path in paths for found in _files_of(path)]
    kinds = {form or _kind(path) for path in given}
    if len(kinds) != 1:
        raise BadInput(f"found files of several kinds ({', '.join(sorted(kinds))}); expected one")
    kind = kinds.pop()
    with tempfile.TemporaryDirectory(prefix="penstock-import-") as folder:
        spool, requests = Path(folder) / "spool", Path(folder) / "requests"
        try:
            text = _native.read_foreign_trace(kind, given, spool, requests)
        except ValueError as error:
            raise BadInput(str(error)) from error
        except OSError as error:
            raise BadInput(f"cannot be read: {error}") from error
        found: dict[str, Any] = json.loads(text)
        if found["kept"] == 0:
            raise BadInput(f"{given[0]}: holds no reads or writes")
        about = {"format": kind, "files": [str(p) for p in given], "about": found["about"]}
        recording = Foreign(
            spool,
            found["files"],
            found["threads"],
            {name: found[name] for name in ("seen", "kept", "filtered", "lost")},
            "device" if kind == "blktrace" else "calls",
            about | {"not_known": _NOT_KNOWN[kind]},
        )
        if kind == "blktrace":
            recording.tables["device_requests"] = _requests_table(requests)
        with _bundle(output, {"command": [], "run_id": "r001"}) as bundle:
            judged = write_foreign(bundle, recording)
    return Judged(output, *judged)


def write_foreign(
    bundle: Bundle | None, recording: Foreign, wall_ns: int = 0
) -> tuple[int, list[Row], list[Row], str, dict[str, Any], dict[str, int], list[Row]]:
    """Judges a recording and fills the bundle, if there is one; gives what `Judged` holds after it."""
    judge = _native.Judge([])
    reader = SpoolReader(recording.spool, {}, judge)
    events = reader.events
    if bundle is None:
        reader.judge_only()
    else:
        with bundle.table_writer("io_events", EVENTS_SCHEMA, ENCODINGS) as writer:
            write_events(reader, writer)
    rows = verdicts(judge)
    for row in rows:
        row["basis"] = recording.basis
    paths = {row["file_id"]: row["path"] for row in recording.files}
    start, end = _span(recording.spool)
    flushes = _flushes(recording.spool, recording.basis)
    closing = _closing(rows + flushes, paths, wall_ns or end - start, recording)
    if bundle is not None:
        tables = {
            "files": _files_table(recording.files),
            "threads": _threads_table(recording.threads),
            "patterns": patterns_table(rows, paths),
            **recording.tables,
        }
        for name, table in tables.items():
            bundle.write_table(name, table)
        if not (bundle.path / "phases.parquet").exists():
            phase = {"phase_id": "workload", "start_ns": start, "end_ns": end}
            bundle.write_table("phases", pa.Table.from_pylist([phase]))
        bundle.manifest.update(
            {
                "source": recording.source | {"basis": recording.basis},
                "losses": {"trace": recording.counts["lost"]},
                "receipts": {"trace": recording.counts | {"hook": recording.source["format"]}},
                "closing": closing,
            }
        )
        bundle.manifest.setdefault("times", {"start_ns": start, "end_ns": end})
    return events, recording.files, rows, closing, recording.source, recording.counts, flushes


def _span(spool: Path) -> tuple[int, int]:
    """First start and last end in a spool [ns]."""
    whole = spool.stat().st_size // EVENT.itemsize
    if whole == 0:
        return 0, 0
    records = np.memmap(spool, EVENT, "r", shape=(whole,))
    start, end = np.iinfo(np.int64).max, 0
    for at in range(0, whole, _CHUNK):
        part = records[at : at + _CHUNK]
        start = min(start, int(part["t_ns"].min()))
        end = max(end, int((part["t_ns"] + part["latency_ns"]).max()))
    return start, end


def _flushes(spool: Path, basis: str) -> list[Row]:
    """Rows of direction `sync`: calls and time [ns] of flushes per file."""
    whole = spool.stat().st_size // EVENT.itemsize
    records = np.memmap(spool, EVENT, "r", shape=(whole,)) if whole else np.empty(0, EVENT)
    calls: Counter[int] = Counter()
    time_ns: Counter[int] = Counter()
    for at in range(0, whole, _CHUNK):
        part = records[at : at + _CHUNK]
        part = part[part["op"] // FIRST_WRITE == DIRECTIONS.index("sync")]
        for number in np.unique(part["file_id"]).tolist():
            mine = part["latency_ns"][part["file_id"] == number]
            calls[number] += len(mine)
            time_ns[number] += int(mine.sum())
    return [
        {
            "file_id": n,
            "direction": "sync",
            "basis": basis,
            "calls": calls[n],
            "time_ns": time_ns[n],
        }
        for n in calls
    ]


def _closing(rows: list[Row], paths: dict[int, str], wall_ns: int, recording: Foreign) -> str:
    lost = recording.counts["lost"]
    if not rows and recording.basis == "device":
        return "No read or write reached the device." + (f" {lost} records were lost." * (lost > 0))
    if sum(row["time_ns"] for row in rows) > 0 or not rows:
        said = closing_sentence(rows, paths, wall_ns, lost)
    else:
        rows = [row for row in rows if row["direction"] != "sync"]
        if not rows:
            return "It neither read nor wrote; the source says nothing of the time of its flushes."
        top = max(rows, key=lambda row: row["done_bytes"])
        verdict, direction = top["together"], top["direction"]
        whole = sum(row["done_bytes"] for row in rows if row["direction"] == direction)
        said = (
            f"{100 * top['done_bytes'] / max(whole, 1):.0f} % of the bytes {_PAST[direction]}: "
            f"{size_in_words(verdict['median_size_bytes'])} {verdict['class']} {direction}s "
            f"on {paths.get(top['file_id'])}; the source says nothing of their time."
        )
    if recording.source.get("exact"):
        said += " Past the page cache: every call on the disk's files reached it."
    elif recording.basis == "device":
        said += " In device order: what the page cache let through."
    return said


_PAST = {"read": "read", "write": "written"}


def _files_of(path: Path) -> list[Path]:
    """The file itself, or the parts of blktrace of that name in order of their processor."""
    if path.is_file():
        return [path]
    parts = path.parent.glob(f"{path.name}.blktrace.*") if path.parent.is_dir() else iter(())
    found = sorted((p for p in parts if p.suffix[1:].isdigit()), key=lambda p: int(p.suffix[1:]))
    if not found:
        raise BadInput(f"{path}: found no such file, and no {path.name}.blktrace.0")
    return found


def _kind(path: Path) -> str:
    """The format of a file by how it begins."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error
    if head[1:4] == b"\x74\x61\x65" or head[:3] == b"\x65\x61\x74":
        return "blktrace"
    if head.startswith(b"fio version"):
        return "iolog"
    if b"# DXT" in head or head.startswith(b"# darshan log version"):
        return "dxt"
    shown = "an empty file" if not head else repr(head[:24].decode("latin-1"))
    wanted = "; or ".join(SOURCES.values())
    raise BadInput(f"{path}: found {shown} at its beginning; expected {wanted}")


@contextlib.contextmanager
def _bundle(output: Path, manifest: dict[str, Any]) -> Iterator[Bundle]:
    if output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    try:
        with Bundle.create(output, manifest) as bundle:
            yield bundle
    except OSError as error:
        raise PenstockError(f"{output} cannot be written: {error.strerror or error}") from error


def _files_table(rows: list[Row]) -> pa.Table:
    kinds = [
        ("file_id", pa.int64()),
        ("dev_major", pa.int64()),
        ("dev_minor", pa.int64()),
        ("inode", pa.uint64()),
        ("generation", pa.uint64()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("disk_id", pa.string()),
        ("unlinked", pa.bool_()),
    ]
    made = [{name: row.get(name) for name, _ in kinds} for row in rows]
    return pa.Table.from_pylist(made, schema=pa.schema(kinds))


def _threads_table(rows: list[Row]) -> pa.Table:
    kinds = [
        ("tid", pa.int64()),
        ("pid", pa.int64()),
        ("program", pa.string()),
        ("first_ns", pa.int64()),
    ]
    made = [
        {"tid": r["tid"], "pid": r["pid"], "program": r["name"], "first_ns": r["first_ns"]}
        for r in rows
    ]
    return pa.Table.from_pylist(made, schema=pa.schema(kinds))


def _requests_table(path: Path) -> pa.Table:
    """Table `device_requests` of what the reader of blktrace left."""
    raw = np.fromfile(path, _REQUEST)
    raw = raw[np.argsort(raw["queued"], kind="stable")]
    open_ended = raw["done"] == 0
    service = np.maximum(raw["done"] - raw["issued"], 0)
    ops = np.array([_DEVICE_OPS.get(int(op), "read") for op in range(256)])
    device = [f"{d >> 20}:{d & 0xFFFFF}" for d in raw["device"].tolist()]
    return pa.table(
        {
            "t_ns": raw["queued"],
            "done_ns": pa.array(raw["done"], mask=open_ended),
            "service_ns": pa.array(service, mask=open_ended),
            "wait_ns": raw["issued"] - raw["queued"],
            "op": pa.array(ops[raw["op"]]).dictionary_encode(),
            "device_offset_bytes": raw["offset"],
            "size_bytes": raw["size"],
            "tid": raw["tid"],
            "disk_id": pa.array(device).dictionary_encode(),
        }
    )
