"""Replay of a trace: its calls by fio on scratch files, traced again, and the similarity of both traces."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.analyse.traces.likeness import Distance, Requests, distance
from penstock.archive.traces.fio_job import replay_job, scratch_name
from penstock.archive.traces.trace_export import export
from penstock.archive.traces.trace_tables import TraceTables
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal, new_token
from penstock.observe.trace.capture.session import Session, Traced, trace_command

SPEEDS = ("original", "max")

#: maximum number of threads that fio runs as jobs of one call
_MOST_THREADS = 512
#: share of the free space that scratch files may use
_SPACE = 0.8
_PIECE = 8 << 20
_RING_BYTES = 64 << 20


@dataclass(frozen=True)
class Replayed:
    """Result: operations replayed and omitted (by reason), similarity, times of both [s]."""

    operations: int
    omitted: dict[str, int]
    requests: int
    requests_again: int
    likeness: Distance
    original_s: float
    replay_s: float
    lost: int
    notes: list[str]
    bundle: Path | None

    def document(self) -> dict[str, Any]:
        return {
            "replayed": self.operations,
            "left_out": self.omitted,
            "requests": self.requests,
            "requests_of_replay": self.requests_again,
            "likeness": self.likeness.document(),
            "original_s": self.original_s,
            "replay_s": self.replay_s,
            "lost_events": self.lost,
            "notes": self.notes,
            "bundle": str(self.bundle) if self.bundle else None,
        }


def replay(bundle: Path, on: Path, speed: str = "original", output: Path | None = None) -> Replayed:
    """Replay a trace bundle in a scratch directory under `on` and compare; `output` stores the new bundle.

    Raises BadInput for a bundle without calls to replay or a directory without space, PenstockError if fio is
    missing or fails.
    """
    if speed not in SPEEDS:
        raise BadInput(f"--speed: found {speed!r}; expected {' or '.join(SPEEDS)}")
    if shutil.which("fio") is None:
        raise PenstockError("replay runs fio, which is not installed (Debian package fio)")
    if not on.is_dir():
        raise BadInput(f"--on: found no directory {on}")
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    rows = TraceTables(bundle)
    with _scratch(on) as folder:
        written = export(bundle, "fio", folder / "job")
        if not written["threads"]:
            raise BadInput(f"{bundle}: has no call that fio can replay")
        if len(written["threads"]) > _MOST_THREADS:
            count = len(written["threads"])
            raise BadInput(f"{bundle}: found {count} threads; fio replays {_MOST_THREADS} at most")
        job = folder / "job"
        ends = {int(number): int(end) for number, end in written["ends"].items()}
        notes = _lay_out(rows, job, ends, set(written["read"]))
        (job / "replay.fio").write_text(replay_job(written["threads"], at_once=speed == "max"))
        argv = ["env", "-C", str(job), "fio", "replay.fio", f"--output={job / 'fio.txt'}"]
        again = output or folder / "again"
        traced = trace_command(argv, Session("trace", _RING_BYTES, 0, again, quiet=True))
        if traced.exit_status != 0:
            raise PenstockError(f"fio could not replay the calls: {_why(job / 'fio.txt', traced)}")
        second = TraceTables(again)
        scratch = {str(job.resolve() / scratch_name(number)): number for number in ends}
        numbers = {n: scratch[path] for n, path in second.named.items() if path in scratch}
        a = requests_of(rows, dict.fromkeys(ends), replayable=True)
        b = requests_of(second, numbers, replayable=True)
        outline = rows.outline
        lost = second.lost
    if rows.lost or lost:
        notes.append(f"events were lost: {rows.lost} of the trace, {lost} of the replay")
    return Replayed(
        written["events"],
        written["skipped"],
        a.requests,
        b.requests,
        distance(a, b),
        (outline.end_ns - outline.start_ns) / 1e9,
        traced.wall_s,
        lost,
        notes,
        output,
    )


def requests_of(
    rows: TraceTables, files: Mapping[int, int | None] | None = None, *, replayable: bool = False
) -> Requests:
    """Reads and writes of a bundle for the distance; `files` maps the selected ones to new numbers.

    Page faults are excluded if `replayable`, since fio has none. Ranges that the kernel mapped around a fault
    are no requests.
    """
    omitted = "fault_" if replayable else "fault_around"
    ways = np.full(256, 2, np.int64)
    for op, (number, way) in rows.operations.items():
        if way in ("read", "write") and not op.startswith(omitted):
            ways[number] = int(way == "write")
    requests = Requests()
    numbers = np.array(sorted(files), np.int64) if files is not None else None
    names = ["t_ns", "op", "file_id", "offset_bytes", "done_bytes", "tid"]
    for batch in rows.event_batches(names):
        writes = ways[np.minimum(batch["op"], 255)]
        good = (writes < 2) & (batch["done_bytes"] > 0)
        if numbers is not None:
            good &= np.isin(batch["file_id"], numbers)
        picked = [batch[name][good] for name in ("file_id", "tid", "offset_bytes", "done_bytes")]
        requests.add(picked[0], writes[good], *picked[1:])
    requests.add_verdicts(
        row
        for row in rows.verdicts
        if row.tid is not None
        and row.phase_id is None
        and (files is None or row.file_id in files)
        and not (replayable and row.basis == "faults")
    )
    return requests


def _why(report: Path, traced: Traced) -> str:
    """Error message of fio."""
    lines = report.read_text(errors="replace").splitlines() if report.exists() else []
    errors = [line.strip() for line in lines if "error" in line]
    return errors[0] if errors else f"it ended with status {traced.exit_status}"


@contextlib.contextmanager
def _scratch(on: Path) -> Iterator[Path]:
    """A directory of ours under `on`, journalled, removed at the end."""
    journal = Journal()
    path = on.resolve() / f"penstock-replay-{new_token()}"
    entry = make_directory(path, journal)
    try:
        yield path
    finally:
        remove_directory(entry, journal)


def _lay_out(rows: TraceTables, folder: Path, ends: dict[int, int], read: set[int]) -> list[str]:
    """Create the scratch files of random bytes, outside the page cache; returns notes."""
    table = rows.table("files", ["file_id", "size_bytes"]).to_pylist()
    first_sizes = {row["file_id"]: max(row["size_bytes"] or 0, 0) for row in table}
    sizes = {number: max(end, first_sizes.get(number, end)) for number, end in ends.items()}
    room = os.statvfs(folder)
    free = int(_SPACE * room.f_bavail * room.f_frsize)
    need = sum(sizes.values())
    if need > free:
        raise BadInput(
            f"--on: the files of the trace need {need >> 20} MiB; "
            f"found {free >> 20} MiB at {folder.parent.parent}"
        )
    grown = 0
    for number, size in sizes.items():
        path = folder / scratch_name(number)
        # a file that was empty at first and is only written was created by the program: it grows again. Data
        # that are read must exist, since another thread of the replay may not have written them yet
        empty = first_sizes.get(number) == 0 and number not in read
        grown += empty and size > 0
        with path.open("wb") as file:
            remaining = 0 if empty else size
            while remaining > 0:
                remaining -= file.write(os.urandom(min(_PIECE, remaining)))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    notes = ["the replay began with an empty page cache for its files"]
    if grown:
        notes.append(f"{grown} files began empty, as in the trace")
    return notes


def distance_of(a: TraceTables, b: TraceTables) -> Distance:
    """Distance of two bundles, all files and page faults included."""
    return distance(requests_of(a), requests_of(b))
