"""Imported traces: of another tool, or a disk's request log, as an ordinary bundle.

Any source is converted to a spool of the tracer's records, which is evaluated and stored like a traced
command. Information that the source lacks is listed in the manifest under `source`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput, PenstockError
from penstock.observe.trace.capture.events import (
    DIRECTIONS,
    EVENT,
    FIRST_WRITE,
    SpoolReader,
    keep_events,
)
from penstock.observe.trace.recordings.recording import Recording, Row
from penstock.observe.trace.show.closing_sentence import closing_sentence
from penstock.observe.trace.verdicts.patterns import patterns_table, verdicts
from penstock.text import size as size_text

_native: Any = importlib.import_module("penstock._native")

_CHUNK = 1 << 20


@dataclass(frozen=True)
class ImportedTrace:
    """Content of the bundle, for the terminal."""

    bundle: Path | None
    events: int
    files: list[Row]
    verdicts: list[Row]
    closing: str
    source: dict[str, Any]
    counts: dict[str, int]
    flushes: list[Row]


def write_recording(bundle: Bundle | None, recording: Recording, wall_ns: int = 0) -> ImportedTrace:
    """Evaluate a recording and fill the bundle, if any; the caller that finishes it reports its path."""
    judge = _native.Judge([])
    reader = SpoolReader(recording.spool, {}, judge)
    events = reader.events
    keep_events(reader, bundle)
    rows = verdicts(judge)
    for row in rows:
        row["basis"] = recording.basis
    paths = {row["file_id"]: row["path"] for row in recording.files}
    start, end = _span(recording.spool)
    flushes = _flushes(recording.spool, recording.basis)
    closing = _closing(rows + flushes, paths, wall_ns or end - start, recording)
    if bundle is not None:
        tables = {
            "files": pa.Table.from_pylist(recording.files, TABLES["files"].arrow),
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
    return ImportedTrace(
        None,
        events,
        recording.files,
        rows,
        closing,
        recording.source,
        recording.counts,
        flushes,
    )


def _span(spool: Path) -> tuple[int, int]:
    """First start and last end in a spool [ns]."""
    count = spool.stat().st_size // EVENT.itemsize
    if count == 0:
        return 0, 0
    records = np.memmap(spool, EVENT, "r", shape=(count,))
    start, end = np.iinfo(np.int64).max, 0
    for at in range(0, count, _CHUNK):
        part = records[at : at + _CHUNK]
        start = min(start, int(part["t_ns"].min()))
        end = max(end, int((part["t_ns"] + part["latency_ns"]).max()))
    return start, end


def _flushes(spool: Path, basis: str) -> list[Row]:
    """Rows of direction `sync`: calls and time [ns] of flushes per file."""
    count = spool.stat().st_size // EVENT.itemsize
    records = np.memmap(spool, EVENT, "r", shape=(count,)) if count else np.empty(0, EVENT)
    calls: Counter[int] = Counter()
    time_ns: Counter[int] = Counter()
    for at in range(0, count, _CHUNK):
        part = records[at : at + _CHUNK]
        part = part[part["op"] // FIRST_WRITE == DIRECTIONS.index("sync")]
        for number in np.unique(part["file_id"]).tolist():
            latencies = part["latency_ns"][part["file_id"] == number]
            calls[number] += len(latencies)
            time_ns[number] += int(latencies.sum())
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


def _closing(rows: list[Row], paths: dict[int, str], wall_ns: int, recording: Recording) -> str:
    lost = recording.counts["lost"]
    if not rows and recording.basis == "device":
        return "No read or write reached the device." + (f" {lost} records were lost." * (lost > 0))
    if sum(row["time_ns"] for row in rows) > 0 or not rows:
        sentence = closing_sentence(rows, paths, wall_ns, lost)
    else:
        rows = [row for row in rows if row["direction"] != "sync"]
        if not rows:
            return "It neither read nor wrote; the source has no times of its flushes."
        top = max(rows, key=lambda row: row["done_bytes"])
        verdict, direction = top["together"], top["direction"]
        total = sum(row["done_bytes"] for row in rows if row["direction"] == direction)
        sentence = (
            f"{100 * top['done_bytes'] / max(total, 1):.0f} % of the bytes {_PAST[direction]}: "
            f"{size_text(verdict['median_size_bytes'])} {verdict['class']} {direction}s "
            f"on {paths.get(top['file_id'])}; the source has no times of them."
        )
    if recording.source.get("exact"):
        sentence += " Past the page cache: every call on the disk's files reached it."
    elif recording.basis == "device":
        sentence += " In device order: what the page cache let through."
    return sentence


_PAST = {"read": "read", "write": "written"}


@contextlib.contextmanager
def new_bundle(output: Path, manifest: dict[str, Any]) -> Iterator[Bundle]:
    """A bundle at a new path: BadInput if the path exists, PenstockError if it cannot be created."""
    if output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    try:
        with Bundle.create(output, manifest) as bundle:
            yield bundle
    except OSError as error:
        raise PenstockError(f"{output} cannot be written: {error.strerror or error}") from error


def _threads_table(rows: list[Row]) -> pa.Table:
    named = [row | {"program": row["name"]} for row in rows]
    return pa.Table.from_pylist(named, TABLES["threads"].arrow)
