"""Undo journal: write-ahead log of changes to the host.

One JSON object per line, append only. A change is planned (`plan`, synced to disk), made, and confirmed
(`done`); once reversed it is closed (`undone`). An entry has boot, owner (pid and start time) and a token
that the object itself carries, so that `undo` never removes foreign objects. An incomplete last line, left by
a crash during a write, is ignored. A journal without open entries is emptied.

A change that cannot be recorded is not made: on a full or read-only file system `plan` and `alter` raise
JournalFailure and leave no trace. Both reserve space for the following lines, so that planned changes can be
reversed and closed on a full file system. If closing fails all the same (the file system has become
read-only), the change stays reversed and its entry open, which is harmless; `unclosed` reports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from penstock.errors import PenstockError
from penstock.host.processes.processes import Identity
from penstock.state import state_dir

Kind = Literal[
    "mount",
    "cgroup",
    "process",
    "directory",
    "file",
    "setting",
    "neighbours",
    "tracefs",
    "loop",
    "netns",
    "recording",
    "command",
    "cluster",
]
KINDS: tuple[str, ...] = get_args(Kind)

#: size above which a journal without open entries is emptied [bytes]
_PRUNE_BYTES = 64 * 1024
#: space is reserved in blocks [bytes]
_BLOCK_BYTES = 4096
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)

#: values of an object of ours, by file or other name: before, and requested
Values = Mapping[str, tuple[Any, Any]]


class JournalFailure(PenstockError):  # noqa: N818 - reads as what it is
    """The journal cannot be written or read; the planned change has not been made."""


def new_token() -> str:
    """A new token: 12 hexadecimal digits, unique on the host."""
    return secrets.token_hex(6)


@dataclass(frozen=True)
class Entry:
    """One change to the host: planned, possibly made."""

    id: str
    kind: str
    target: str
    token: str
    owner: Identity
    run: str | None = None
    old: Any = None
    new: Any = None
    completed: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    #: values set on it: before the first change, and requested by the last one
    values: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    #: values in the kernel after a change (any of several, if we change it periodically)
    read_back: dict[str, list[str]] = field(default_factory=dict)


#: first entry of this process that could not be closed
_unclosed: list[JournalFailure] = []


def unclosed() -> PenstockError | None:
    """Error for entries that were undone and could not be closed since the last call."""
    if not _unclosed:
        return None
    first = _unclosed[0]
    _unclosed.clear()
    return PenstockError(
        f"{first}; all was taken back, and `penstock undo` closes what is left open in it once it can"
    )


class Journal:
    """Journal at `path` (default: `journal.jsonl` of the state directory), safe for concurrent use.

    `owner` is the process responsible for the changes, by default this one: while it lives, `undo` of other
    processes leaves its changes alone. A command that starts a persistent daemon makes the daemon the owner.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, owner_pid: int | None = None):
        self.path = Path(path) if path is not None else state_dir() / "journal.jsonl"
        with self._failing():
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner_pid = owner_pid
        #: open entries of this object: the journal is not emptied while there are any
        self._open = 0

    @property
    def owner(self) -> Identity:
        """Process responsible for changes planned here (recomputed: we may have forked)."""
        if self._owner_pid is None:
            return Identity.own()
        return Identity.of(self._owner_pid) or Identity("", self._owner_pid, 0)

    def plan(
        self,
        kind: Kind,
        target: str | os.PathLike[str],
        *,
        run: str | None = None,
        token: str | None = None,
        old: Any = None,
        new: Any = None,
    ) -> Entry:
        """Record and sync an intended change; `old` and `new` as JSON values.

        Raises JournalFailure if that fails: the change must not be made then.
        """
        if kind not in KINDS:
            raise ValueError(f"no such kind of change: {kind}")
        entry = Entry(
            id=secrets.token_hex(8),
            kind=kind,
            # mountinfo has mount points without symbolic links
            target=os.path.realpath(target)
            if kind in ("mount", "tracefs", "netns")
            else os.fspath(target),
            token=token or new_token(),
            owner=self.owner,
            run=run,
            old=old,
            new=new,
        )
        record = {
            "event": "plan",
            "id": entry.id,
            **_owner_fields(entry.owner),
            "run": run,
            "kind": kind,
            "target": entry.target,
            "token": entry.token,
            "old": old,
            "new": new,
            "realtime_ns": time.time_ns(),
        }
        self._append([record], announces=True)
        self._open += 1
        return entry

    def alter(self, altered: Iterable[tuple[Entry, Values]], *, synced: bool = True) -> None:
        """Record values that are about to be set on objects of ours: all of them or none.

        `synced`: to the disk; unnecessary for values that a reboot resets, where the change must not wait.
        Raises JournalFailure if that fails: no value must be set then.
        """
        now = time.time_ns()
        records = [
            {"event": "set", "id": entry.id, "values": values, "realtime_ns": now}
            for entry, values in altered
            if values
        ]
        if records:
            self._append(records, announces=True, synced=synced)

    def read_back(self, seen: Iterable[tuple[Entry, Mapping[str, list[str]]]]) -> None:
        """Record the kernel's values after `alter` (any of several, if we change it periodically): `undo`
        treats other values as foreign changes.
        """
        records = [
            {"event": "found", "id": entry.id, "values": values} for entry, values in seen if values
        ]
        if records:
            self._append(records)

    def done(self, entry: Entry, **facts: Any) -> None:
        """Confirm that the change was made; `facts` are available only now (a pid, an inode)."""
        self._append([{"event": "done", "id": entry.id, "facts": facts}])

    def hand_over(self, entry: Entry, pid: int) -> None:
        """Make the running process `pid` the owner of the change (a daemon that outlives us)."""
        owner = Identity.of(pid)
        if owner is None:
            raise ProcessLookupError(f"process {pid} is not running")
        self._append([{"event": "owner", "id": entry.id, **_owner_fields(owner)}])

    def undone(self, entry: Entry) -> None:
        """Close an entry: the change was reversed, or is no longer ours. See `unclosed`."""
        self._open -= 1
        try:
            with self._locked() as fd:
                self._write(fd, [{"event": "undone", "id": entry.id}])
                if self._open > 0 or os.fstat(fd).st_size <= _PRUNE_BYTES:
                    return
                if not _open_entries(self._read(fd)):
                    os.ftruncate(fd, 0)
        except JournalFailure as failure:
            _unclosed.append(failure)

    @contextlib.contextmanager
    def change(
        self,
        kind: Kind,
        target: str | os.PathLike[str],
        *,
        run: str | None = None,
        token: str | None = None,
        old: Any = None,
        new: Any = None,
    ) -> Iterator[Entry]:
        """Context of a change: planned before, done after; a failed one is left to `undo`."""
        entry = self.plan(kind, target, run=run, token=token, old=old, new=new)
        yield entry
        self.done(entry)

    def open_entries(self) -> list[Entry]:
        """Planned changes that were not reversed, oldest first."""
        if not self.path.exists():
            return []
        with self._locked(writes=False) as fd:
            return _open_entries(self._read(fd))

    def prune(self) -> None:
        """Empty the journal if it has no open entry."""
        if not self.path.exists():
            return
        with contextlib.suppress(JournalFailure), self._locked() as fd:
            if not _open_entries(self._read(fd)):
                os.ftruncate(fd, 0)

    @contextlib.contextmanager
    def undoing(self) -> Iterator[None]:
        """Lock for one `undo` at a time. Writes nothing: it must work on a full disk."""
        with self._failing():
            lock = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _locked(self, *, writes: bool = True) -> Iterator[int]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if writes else os.O_RDONLY
        with self._failing():
            fd = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if writes else fcntl.LOCK_SH)
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalFailure(
                f"the undo journal {self.path} cannot be used: {error.strerror or error}"
            ) from error

    def _append(
        self, records: list[dict[str, Any]], *, announces: bool = False, synced: bool = True
    ) -> None:
        with self._locked() as fd:
            self._write(fd, records, announces=announces, synced=announces and synced)

    def _write(
        self,
        fd: int,
        records: list[dict[str, Any]],
        *,
        announces: bool = False,
        synced: bool = False,
    ) -> None:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
        text = (("\n" if torn else "") + "".join(lines)).encode()
        try:
            with self._failing():
                if announces:
                    self._make_room(fd, size + len(text))
                unwritten = memoryview(text)
                while unwritten:
                    unwritten = unwritten[os.write(fd, unwritten) :]
                if synced:
                    os.fsync(fd)
        except JournalFailure:
            if os.fstat(fd).st_size > size:  # an incomplete record must not count as written
                os.ftruncate(fd, size)
            raise

    def _make_room(self, fd: int, end: int) -> None:
        """Reserve as much space as the journal uses: the closing lines are no longer than the planning ones.

        Also check for free space, so that a full file system is reported now and not some lines later.
        """
        _allocate(fd, 2 * end + _BLOCK_BYTES)
        try:
            trial = os.open(self.path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                return  # the file system does not support such files
            raise
        try:
            _allocate(trial, _BLOCK_BYTES)
        finally:
            os.close(trial)

    @staticmethod
    def _read(fd: int) -> bytes:
        return os.pread(fd, os.fstat(fd).st_size, 0)


def _allocate(fd: int, end: int) -> None:
    """Reserve blocks up to `end` for a file, beyond its size as well, if the file system supports it."""
    if _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(end)) != 0:
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise OSError(code, os.strerror(code))


def _open_entries(raw: bytes) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for line in raw.split(b"\n"):
        try:
            record = json.loads(line)
            event, key = record["event"], record["id"]
            if event == "plan":
                entries[key] = Entry(
                    id=key,
                    kind=record["kind"],
                    target=record["target"],
                    token=record["token"],
                    owner=_owner(record),
                    run=record.get("run"),
                    old=record.get("old"),
                    new=record.get("new"),
                )
            elif key not in entries:
                continue
            elif event == "done":
                entries[key] = _with(entries[key], completed=True, facts=record.get("facts") or {})
            elif event == "set":
                entries[key] = _set(entries[key], record["values"])
            elif event == "found":
                readings = entries[key].read_back | record["values"]
                entries[key] = _with(entries[key], read_back=readings)
            elif event == "owner":
                entries[key] = _with(entries[key], owner=_owner(record))
            elif event == "undone":
                del entries[key]
        except (ValueError, KeyError, TypeError):
            continue  # an incomplete line: its change was not made
    return list(entries.values())


def _owner(record: Mapping[str, Any]) -> Identity:
    return Identity(record["boot_id"], int(record["owner_pid"]), int(record["owner_start"]))


def _owner_fields(owner: Identity) -> dict[str, Any]:
    return {"boot_id": owner.boot_id, "owner_pid": owner.pid, "owner_start": owner.start}


def _set(entry: Entry, values: dict[str, list[Any]]) -> Entry:
    """Entry with newly requested values and the values before the first change; drops earlier readings."""
    merged = dict(entry.values)
    for name, (old, new) in values.items():
        merged[name] = (merged[name][0] if name in merged else old, new)
    readings = {name: text for name, text in entry.read_back.items() if name not in values}
    return _with(entry, values=merged, read_back=readings)


def _with(entry: Entry, **changes: Any) -> Entry:
    return Entry(**{**vars(entry), **changes})
