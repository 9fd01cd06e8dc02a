"""The undo journal: what is about to be done to the host is written down, and synced, before it is done.

One JSON object per line, append only. A change is planned (`plan`, synced to disk), made, and confirmed
(`done`); when it is taken back it is closed (`undone`). An entry names boot and owner (pid and start time)
and a token that the object itself carries, so that `penstock.host.undo` never takes what is not ours. A
torn last line, left by a crash in the middle of a write, is ignored. When nothing is left open the file is
emptied.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from penstock.host.processes import Identity
from penstock.host.state import state_dir

Kind = Literal[
    "mount",
    "cgroup",
    "process",
    "directory",
    "file",
    "setting",
    "tracefs",
    "loop",
    "netns",
    "recording",
]
KINDS: tuple[str, ...] = get_args(Kind)

#: a journal with nothing open is emptied once it is larger [bytes]
_PRUNE_BYTES = 64 * 1024


def new_token() -> str:
    """A fresh token: 12 hexadecimal digits that no other object on the host carries."""
    return secrets.token_hex(6)


@dataclass(frozen=True)
class Entry:
    """One change to the host: planned, perhaps done."""

    id: str
    kind: str
    target: str
    token: str
    owner: Identity
    run: str | None = None
    old: Any = None
    new: Any = None
    made: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The journal at `path` (default: `journal.jsonl` of the state directory), safe to share.

    `owner` is the process that answers for the changes, by default this one: while it lives, `undo` by
    others leaves its changes alone. A command that leaves a daemon behind names the daemon.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, owner_pid: int | None = None):
        self.path = Path(path) if path is not None else state_dir() / "journal.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._owner_pid = owner_pid
        #: entries that were planned here and not taken back: while there are any it is not empty
        self._open = 0

    @property
    def owner(self) -> Identity:
        """The process that answers for what is planned here (asked anew: we may have forked)."""
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
        """Writes down and syncs a change that is about to be made; `old` and `new` as JSON values."""
        if kind not in KINDS:
            raise ValueError(f"no such kind of change: {kind}")
        entry = Entry(
            id=secrets.token_hex(8),
            kind=kind,
            # mountinfo names mount points without symbolic links
            target=os.path.realpath(target)
            if kind in ("mount", "tracefs", "netns")
            else os.fspath(target),
            token=token or new_token(),
            owner=self.owner,
            run=run,
            old=old,
            new=new,
        )
        self._append(
            {
                "event": "plan",
                "id": entry.id,
                "boot_id": entry.owner.boot_id,
                "owner_pid": entry.owner.pid,
                "owner_start": entry.owner.start,
                "run": run,
                "kind": kind,
                "target": entry.target,
                "token": entry.token,
                "old": old,
                "new": new,
                "realtime_ns": time.time_ns(),
            },
            synced=True,
        )
        self._open += 1
        return entry

    def done(self, entry: Entry, **facts: Any) -> None:
        """Says that the change was made; `facts` are what is known only now (a pid, an inode)."""
        self._append({"event": "done", "id": entry.id, "facts": facts})

    def hand_over(self, entry: Entry, pid: int) -> None:
        """Makes the running process `pid` the owner of the change (a daemon that outlives us)."""
        owner = Identity.of(pid)
        if owner is None:
            raise ProcessLookupError(f"process {pid} is not running")
        self._append(
            {
                "event": "owner",
                "id": entry.id,
                "boot_id": owner.boot_id,
                "owner_pid": owner.pid,
                "owner_start": owner.start,
            }
        )

    def undone(self, entry: Entry) -> None:
        """Closes an entry: the change was taken back, or is no longer ours."""
        self._open -= 1
        with self._locked() as fd:
            self._write(fd, {"event": "undone", "id": entry.id})
            if self._open > 0 or os.fstat(fd).st_size <= _PRUNE_BYTES:
                return
            if not _open_entries(self._read(fd)):
                os.ftruncate(fd, 0)

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
        """`with` around the change: planned before, done after; if it fails, left to `undo`."""
        entry = self.plan(kind, target, run=run, token=token, old=old, new=new)
        yield entry
        self.done(entry)

    def open_entries(self) -> list[Entry]:
        """The changes that were planned and not taken back, oldest first."""
        if not self.path.exists():
            return []
        with self._locked() as fd:
            return _open_entries(self._read(fd))

    def prune(self) -> None:
        """Empties the journal if nothing in it is open."""
        if not self.path.exists():
            return
        with self._locked() as fd:
            if not _open_entries(self._read(fd)):
                os.ftruncate(fd, 0)

    @contextlib.contextmanager
    def undoing(self) -> Iterator[None]:
        """Held by one `undo` at a time."""
        lock = os.open(self.path.with_suffix(".undo"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def _append(self, record: dict[str, Any], synced: bool = False) -> None:
        with self._locked() as fd:
            self._write(fd, record)
            if synced:
                os.fsync(fd)

    @staticmethod
    def _write(fd: int, record: dict[str, Any]) -> None:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        line = ("\n" if torn else "") + json.dumps(record, separators=(",", ":")) + "\n"
        left = memoryview(line.encode())
        while left:
            left = left[os.write(fd, left) :]

    @staticmethod
    def _read(fd: int) -> bytes:
        return os.pread(fd, os.fstat(fd).st_size, 0)


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
                entries[key] = _with(entries[key], made=True, facts=record.get("facts") or {})
            elif event == "owner":
                entries[key] = _with(entries[key], owner=_owner(record))
            elif event == "undone":
                del entries[key]
        except (ValueError, KeyError, TypeError):
            continue  # a torn line: the change it would have announced was not made
    return list(entries.values())


def _owner(record: dict[str, Any]) -> Identity:
    return Identity(record["boot_id"], int(record["owner_pid"]), int(record["owner_start"]))


def _with(entry: Entry, **changes: Any) -> Entry:
    return Entry(**{**vars(entry), **changes})
