"""Append-only file of batches until an experiment has ended; appended batches survive a kill.

A spool is a directory with one file per source, `<first 16 digits of the source's SHA-256>.batches`, of
frames:

    "PSB1" | crc32 of what follows (4) | number (8) | length (8) | an Arrow IPC stream      (little-endian)

The stream's one table has the columns of `points.POINTS` and, in its schema's metadata, source, accounts and
events. A frame counts once its file was synced after it; a torn one at the end is cut off by the next writer.
Several processes may append: each holds the file's lock meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput, PenstockError, printable
from penstock.parts.monitoring.experiments.points import (
    POINTS,
    Accepted,
    Account,
    Batch,
    Closed,
    Event,
    Held,
    checked,
)
from penstock.state import closed
from penstock.writing import sync

_HEAD = struct.Struct("<4sIQQ")
_MAGIC = b"PSB1"
#: limit of a frame's stream [bytes]; a batch of MOST_POINTS points is well below
_LONGEST = 1 << 30
_SUFFIX = ".batches"
#: a file that is locked while a collector owns the source; a kill releases it
_OWNER = ".held"
#: a file with the time when a collector was switched off, or the request to continue
_SWITCH = ".switch"
_LOCK = "lock"
_Read = TypeVar("_Read")


@dataclass
class _Progress:
    """Part of a source's file that was read, and the batch numbers in it."""

    inode: int = -1
    size_bytes: int = 0
    numbers: set[int] = field(default_factory=set)


class Spool:
    """The spool in a directory, created by `create`; a sink of one experiment.

    `closing` ends it for all processes: later writers get Closed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._progress: dict[str, _Progress] = {}
        self._mutex = threading.Lock()

    @classmethod
    def create(cls, directory: Path) -> Spool:
        """An empty spool; PenstockError if there is one already."""
        try:
            directory.mkdir(mode=0o700)
            os.close(os.open(directory / _LOCK, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            sync(directory)
            sync(directory.parent)
        except OSError as error:
            raise PenstockError(f"{directory}: {error.strerror}") from error
        return cls(directory)

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`. Raises Held for a source that a collector owns."""
        return self._write(batch, None)

    def hold(self, source: str) -> Holding:
        """The sink of a collector that owns this source until `release`. Raises Held if another owns it."""
        with self._locked(fcntl.LOCK_SH), self._appending(source):
            handle = closed(str(self.directory / _file_of(source, _OWNER)), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise Held(source) from None
        return Holding(self, source, handle)

    def switch(self, source: str, on: bool) -> bool:
        """Switch the collector of this source off or on; returns True if that changed its state.

        The collector's process polls the switch. BadInput for a source without a running collector.
        """
        with self._locked(fcntl.LOCK_SH):
            is_off = self.switched(source)[0] == "off"
            if not is_off and not self._is_owned(source):
                raise BadInput(
                    f"found no collector {printable(source[:80])!r} that collects for it; expected one "
                    "of the server's --config"
                )
            if is_off != on:
                return False
            draft = self.directory / _file_of(source, f"{_SWITCH}.new")
            with open(draft, "wb", opener=closed) as file:
                file.write(b"on 0" if on else b"off %d" % time.time_ns())
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.directory / _file_of(source, _SWITCH))
            sync(self.directory)
            return True

    def switched(self, source: str) -> tuple[Literal["", "off", "on"], int]:
        """State of its collector's switch and when it was switched off [ns since 1970 UTC]; empty: never."""
        try:
            word, at = (self.directory / _file_of(source, _SWITCH)).read_text().split()
        except FileNotFoundError:
            return "", 0
        return ("off" if word == "off" else "on"), int(at)

    def forget_switch(self, source: str) -> None:
        """Remove the switch once a collector that was switched on is running."""
        (self.directory / _file_of(source, _SWITCH)).unlink(missing_ok=True)

    def _write(self, batch: Batch, holder: str | None) -> Accepted:
        right = checked(batch)
        frame = _frame(right)
        with self._locked(fcntl.LOCK_SH), self._appending(right.source) as (handle, progress):
            if right.source != holder and self._is_owned(right.source):
                raise Held(right.source)
            if right.number in progress.numbers:
                return Accepted(right.points.num_rows, duplicate=True)
            try:
                _write_all(handle, frame, progress.size_bytes)
                os.fdatasync(handle)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, progress.size_bytes)
                raise PenstockError(
                    f"{self.directory}: {error.strerror}; nothing of this batch was stored"
                ) from error
            progress.size_bytes += len(frame)
            progress.numbers.add(right.number)
        return Accepted(right.points.num_rows)

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        if not (self.directory / _file_of(source)).exists():
            return 0
        with self._locked(fcntl.LOCK_SH), self._appending(source) as (_, progress):
            return max(progress.numbers, default=-1) + 1

    def batches(self, metric: str | None = None) -> Iterator[Batch]:
        """Batches appended so far, source by source, in order of arrival; a torn end is skipped.

        With `metric`, batches contain only points, accounts and events of that metric, or of none.
        """
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            for _, batch in _frames(path, 0, partial(_batch, metric)):
                yield batch

    def newer(self, seen: dict[Path, int], most_bytes: int) -> Iterator[Batch]:
        """Batches appended since the last call with `seen`; of each source the last `most_bytes` at most."""
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            start = _near_the_end(path, seen.get(path, 0), most_bytes)
            for end, batch in _frames(path, start, partial(_batch, None)):
                seen[path] = end
                yield batch

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Exclude writers, during the block and for ever after it."""
        with self._locked(fcntl.LOCK_EX):
            yield
            (self.directory / _LOCK).unlink(missing_ok=True)

    def _is_owned(self, source: str) -> bool:
        try:
            handle = os.open(self.directory / _file_of(source, _OWNER), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        path = self.directory / _LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Closed("the experiment has ended") from None
        try:
            fcntl.flock(handle, how)
            if os.fstat(handle).st_nlink == 0:
                raise Closed("the experiment has ended")
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _appending(self, source: str) -> Iterator[tuple[int, _Progress]]:
        """A source's file, locked and without its torn end, and the part of it that was read."""
        path = self.directory / _file_of(source)
        with self._mutex:
            progress = self._progress.setdefault(source, _Progress())
        fresh = not path.exists()
        try:
            handle = closed(str(path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise PenstockError(
                f"{self.directory}: {error.strerror}; nothing was stored"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if fresh:
                sync(self.directory)
            self._catch_up(path, handle, progress)
            yield handle, progress
        finally:
            os.close(handle)

    def _catch_up(self, path: Path, handle: int, progress: _Progress) -> None:
        status = os.fstat(handle)
        if status.st_ino != progress.inode or status.st_size < progress.size_bytes:
            progress.inode, progress.size_bytes, progress.numbers = status.st_ino, 0, set()
        if status.st_size == progress.size_bytes:
            return
        for end, number in _frames(path, progress.size_bytes, lambda number, _: number):
            progress.numbers.add(number)
            progress.size_bytes = end
        if status.st_size > progress.size_bytes:
            os.ftruncate(handle, progress.size_bytes)


class Holding:
    """The spool for the owner of one of its sources; a sink, too."""

    def __init__(self, spool: Spool, source: str, handle: int) -> None:
        self._spool, self._source, self._handle = spool, source, handle

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`."""
        return self._spool._write(batch, self._source)

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        return self._spool.next_number(source)

    def release(self) -> None:
        """Release the source for other writers."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _file_of(source: str, suffix: str = _SUFFIX) -> str:
    return f"{hashlib.sha256(source.encode()).hexdigest()[:16]}{suffix}"


def _frame(batch: Batch) -> bytes:
    about = {
        "source": batch.source,
        "accounts": [asdict(a) for a in batch.accounts],
        "events": [asdict(e) for e in batch.events],
    }
    metadata = {b"penstock.batch": json.dumps(about).encode()}
    sink = pa.BufferOutputStream()
    table = batch.points.replace_schema_metadata(metadata).combine_chunks()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    stream = sink.getvalue()
    numbered = struct.pack("<QQ", batch.number, len(stream))
    crc = zlib.crc32(stream, zlib.crc32(numbered))
    return b"".join((_MAGIC, struct.pack("<I", crc), numbered, stream))


def _frames(
    path: Path, start: int, read: Callable[[int, bytes], _Read]
) -> Iterator[tuple[int, _Read]]:
    """Complete frames from an offset on: each with its end and the result of `read` for it."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        at = start
        file.seek(at)
        while at + _HEAD.size <= size:
            magic, crc, number, length = _HEAD.unpack(file.read(_HEAD.size))
            end = at + _HEAD.size + length
            if magic != _MAGIC or length > _LONGEST or end > size:
                return
            stream = file.read(length)
            if zlib.crc32(stream, zlib.crc32(struct.pack("<QQ", number, length))) != crc:
                return
            yield end, read(number, stream)
            at = end


def _near_the_end(path: Path, start: int, most_bytes: int) -> int:
    """Offset of the first frame from `start` on that is at most `most_bytes` before the end of the file."""
    with path.open("rb") as file:
        size, at = os.fstat(file.fileno()).st_size, start
        while size - at > most_bytes:
            file.seek(at)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or not head.startswith(_MAGIC):
                break
            length = _HEAD.unpack(head)[3]
            if at + _HEAD.size + length >= size:  # the last one, whatever its size
                break
            at += _HEAD.size + length
    return at


def _batch(metric: str | None, number: int, stream: bytes) -> Batch:
    table = pa.ipc.open_stream(stream).read_all()
    about = json.loads(table.schema.metadata[b"penstock.batch"])
    accounts, events = about["accounts"], about["events"]
    if metric is not None:
        table = _of_metric(table, metric)
        accounts = [a for a in accounts if a["metric"] == metric]
        events = [e for e in events if e["metric"] in (None, metric)]
    return Batch(
        about["source"],
        number,
        table.cast(POINTS),
        tuple(Account(**a) for a in accounts),
        tuple(Event(**e) for e in events),
    )


def _of_metric(table: pa.Table, metric: str) -> pa.Table:
    """Points of a metric, by its code in the batch's dictionary, without comparing texts."""
    encoded = table["metric"].combine_chunks()
    code = encoded.dictionary.index(metric).as_py()
    return table.filter(pc.equal(encoded.indices, code)) if code >= 0 else table.slice(0, 0)


def _write_all(handle: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while view:
        done = os.pwrite(handle, view, at)
        view, at = view[done:], at + done
