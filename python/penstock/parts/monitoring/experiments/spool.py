"""Batches on the disk, one after the other, until an experiment has ended: what was appended survives a kill.

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
#: a frame's stream is no longer; a batch of MOST_POINTS points is well below
_LONGEST = 1 << 30
_SUFFIX = ".batches"
#: a file that is locked while a collector has the source to itself; a kill frees it
_HELD = ".held"
#: a file that says when a collector was switched off, or that it is to go on
_SWITCH = ".switch"
_LOCK = "lock"
_Read = TypeVar("_Read")


@dataclass
class _Known:
    """What is known of a source's file: how much of it was read, and the numbers in it."""

    inode: int = -1
    size_bytes: int = 0
    numbers: set[int] = field(default_factory=set)


class Spool:
    """The spool in a directory, made by `create`; a sink of one experiment.

    `close` takes it out of use for all processes: a writer that comes later gets Closed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[str, _Known] = {}
        self._mutex = threading.Lock()

    @classmethod
    def create(cls, directory: Path) -> Spool:
        """A spool without batches; PenstockError where there is one already."""
        try:
            directory.mkdir(mode=0o700)
            os.close(os.open(directory / _LOCK, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            sync(directory)
            sync(directory.parent)
        except OSError as error:
            raise PenstockError(f"{directory}: {error.strerror}") from error
        return cls(directory)

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`. Held for a source that a collector has to itself."""
        return self._write(batch, None)

    def hold(self, source: str) -> Holding:
        """The sink of a collector that has this source to itself until `release`. Held where another has."""
        with self._held(fcntl.LOCK_SH), self._appending(source):
            handle = closed(str(self.directory / _file_of(source, _HELD)), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise Held(source) from None
        return Holding(self, source, handle)

    def switch(self, source: str, on: bool) -> bool:
        """Switches the collector of this source off or on; gives whether that changed anything.

        Who runs the collector looks at it now and then. BadInput for a source that no running collector has.
        """
        with self._held(fcntl.LOCK_SH):
            is_off = self.switched(source)[0] == "off"
            if not is_off and not self._is_held(source):
                raise BadInput(
                    f"found no collector {printable(source[:80])!r} at work for it; expected one of the "
                    "server's --config"
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
        """Whether its collector was switched off, and when [ns since 1970 UTC], or on after that."""
        try:
            word, at = (self.directory / _file_of(source, _SWITCH)).read_text().split()
        except FileNotFoundError:
            return "", 0
        return ("off" if word == "off" else "on"), int(at)

    def forget_switch(self, source: str) -> None:
        """Once a collector that was switched on is at work."""
        (self.directory / _file_of(source, _SWITCH)).unlink(missing_ok=True)

    def _write(self, batch: Batch, holder: str | None) -> Accepted:
        right = checked(batch)
        frame = _frame(right)
        with self._held(fcntl.LOCK_SH), self._appending(right.source) as (handle, known):
            if right.source != holder and self._is_held(right.source):
                raise Held(right.source)
            if right.number in known.numbers:
                return Accepted(right.points.num_rows, duplicate=True)
            try:
                _write_all(handle, frame, known.size_bytes)
                os.fdatasync(handle)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, known.size_bytes)
                raise PenstockError(
                    f"{self.directory}: {error.strerror}; nothing of this batch was kept"
                ) from error
            known.size_bytes += len(frame)
            known.numbers.add(right.number)
        return Accepted(right.points.num_rows)

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        if not (self.directory / _file_of(source)).exists():
            return 0
        with self._held(fcntl.LOCK_SH), self._appending(source) as (_, known):
            return max(known.numbers, default=-1) + 1

    def batches(self, metric: str | None = None) -> Iterator[Batch]:
        """What was appended so far, source by source, in the order of arrival; a torn end is left out.

        With `metric` batches have what is of that metric, or of none, alone.
        """
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            for _, batch in _frames(path, 0, partial(_batch, metric)):
                yield batch

    def newer(self, seen: dict[Path, int], most_bytes: int) -> Iterator[Batch]:
        """What was appended since the last time, of which `seen` is kept; of a source's bytes the newest."""
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            start = _near_the_end(path, seen.get(path, 0), most_bytes)
            for end, batch in _frames(path, start, partial(_batch, None)):
                seen[path] = end
                yield batch

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """While this holds nobody writes, and after it nobody may."""
        with self._held(fcntl.LOCK_EX):
            yield
            (self.directory / _LOCK).unlink(missing_ok=True)

    def _is_held(self, source: str) -> bool:
        try:
            handle = os.open(self.directory / _file_of(source, _HELD), os.O_RDONLY | os.O_CLOEXEC)
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
    def _held(self, how: int) -> Iterator[None]:
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
    def _appending(self, source: str) -> Iterator[tuple[int, _Known]]:
        """A source's file, locked, its torn end cut off, and what is known of it."""
        path = self.directory / _file_of(source)
        with self._mutex:
            known = self._known.setdefault(source, _Known())
        fresh = not path.exists()
        try:
            handle = closed(str(path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise PenstockError(f"{self.directory}: {error.strerror}; nothing was kept") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if fresh:
                sync(self.directory)
            self._catch_up(path, handle, known)
            yield handle, known
        finally:
            os.close(handle)

    def _catch_up(self, path: Path, handle: int, known: _Known) -> None:
        status = os.fstat(handle)
        if status.st_ino != known.inode or status.st_size < known.size_bytes:
            known.inode, known.size_bytes, known.numbers = status.st_ino, 0, set()
        if status.st_size == known.size_bytes:
            return
        for end, number in _frames(path, known.size_bytes, lambda number, _: number):
            known.numbers.add(number)
            known.size_bytes = end
        if status.st_size > known.size_bytes:
            os.ftruncate(handle, known.size_bytes)


class Holding:
    """A spool for who holds one of its sources; a sink, too."""

    def __init__(self, spool: Spool, source: str, handle: int) -> None:
        self._spool, self._source, self._handle = spool, source, handle

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`."""
        return self._spool._write(batch, self._source)

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        return self._spool.next_number(source)

    def release(self) -> None:
        """From now on others may write to the source."""
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
    """The whole frames from an offset on: where each ends, and what is read of its number and stream."""
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
    """Where the first frame from `start` on begins that has no more than so many bytes behind it."""
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
    """By the number that the name has in the batch's dictionary: no name is compared with another."""
    encoded = table["metric"].combine_chunks()
    code = encoded.dictionary.index(metric).as_py()
    return table.filter(pc.equal(encoded.indices, code)) if code >= 0 else table.slice(0, 0)


def _write_all(handle: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while view:
        done = os.pwrite(handle, view, at)
        view, at = view[done:], at + done
