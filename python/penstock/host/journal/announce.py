"""Announcements of this user's processes, for a live page: a private file each in the runtime directory.

    with Announcement("study", "wal-depth", out="/data/out") as announcement:
        announcement.say(phase="workload")

A log of events with one JSON object per line accompanies it, so that a watcher misses no event between two
reads. Both files are removed with their process, or by `forget_dead` after a crash; while there is a watcher,
a log stays a little longer, for the last events. Write errors are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.journal.journal import new_token
from penstock.host.processes.processes import Identity, start_ticks
from penstock.state import closed, runtime_dir

_PATTERN = "live-*.json"
#: limits on reading other processes' files
_MOST_BYTES = 1 << 20
_MOST_FILES = 200
#: size limit of one log [bytes]; later events are dropped
_MOST_LOGGED = 8 << 20
#: age at which a closed log is removed [s]
_LINGERS_S = 60.0
_WATCHERS = "watch-*"


class Announcement:
    """Announce the current activity of this process until it is closed; thread-safe."""

    def __init__(self, kind: str, name: str, **facts: Any) -> None:
        self._lock = threading.Lock()
        identity = vars(Identity.own())
        began = {"began_utc_ns": time.time_ns()}
        self._facts: dict[str, Any] = {**identity, "kind": kind, "name": name, **began, **facts}
        self._path: Path | None = None
        self._log: int | None = None
        with contextlib.suppress(OSError, PenstockError):
            self._path = runtime_dir() / f"live-{os.getpid()}-{new_token()}.json"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._log = os.open(self._path.with_suffix(".log"), flags, 0o600)
        self._logged = 0
        self._note("begun", {**self._facts, "utc_ns": self._facts["began_utc_ns"]})
        self.say()

    def note(self, event: str, **facts: Any) -> None:
        """Log an event, such as the start of a phase."""
        with self._lock:
            self._note(event, {**facts, "utc_ns": time.time_ns()})

    def _note(self, event: str, facts: Mapping[str, Any]) -> None:
        if self._log is None or self._logged > _MOST_LOGGED:
            return
        line = json.dumps({"event": event, **facts}, default=str).encode() + b"\n"
        self._logged += len(line)
        with contextlib.suppress(OSError):
            os.write(self._log, line)

    def say(self, **facts: Any) -> None:
        """Update these facts."""
        with self._lock:
            self._facts.update(facts)
            self._write()

    def add(self, key: str, item: Any, most: int = 100) -> None:
        """Append to a list, of which the last `most` items are retained; logs an event, too."""
        with self._lock:
            self._note(key, {"item": item, "utc_ns": time.time_ns()})
            self._facts[key] = [*self._facts.get(key, []), item][-most:]
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        draft = self._path.with_suffix(".partial")
        with contextlib.suppress(OSError, ValueError):
            with open(draft, "w", opener=closed) as file:
                json.dump(self._facts, file, default=str)
            draft.rename(self._path)

    def close(self) -> None:
        """Withdraw the announcement."""
        with self._lock:
            if self._log is not None:
                self._note("closed", {"utc_ns": time.time_ns()})
                os.close(self._log)
                self._log = None
            if self._path is not None:
                gone = [self._path, self._path.with_suffix(".partial")]
                if not watched():
                    gone.append(self._path.with_suffix(".log"))
                for path in gone:
                    path.unlink(missing_ok=True)
            self._path = None

    def __enter__(self) -> Announcement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Log:
    """Reader of one log: its position, and the first announcement of the process."""

    def __init__(self, path: Path) -> None:
        self.id = path.stem.removeprefix("live-")
        self._file = open(path, "rb")  # noqa: SIM115  # stays readable when its name is gone
        self._begun: dict[str, Any] = {}
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Events since the last call, each with `id`, `kind` and `name` of its announcement."""
        *lines, self._rest = (self._rest + self._file.read(_MOST_BYTES)).split(b"\n")
        events = []
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if not isinstance(event, dict):
                    continue
                if event.get("event") == "begun":
                    self._begun = {"id": self.id, **event}
                of = {key: self._begun.get(key) for key in ("kind", "name", "out")}
                events.append({"id": self.id, **of, **event})
        return events

    def close(self) -> None:
        self._file.close()


class Announced:
    """Announcements of other processes; only changed files are read again."""

    def __init__(self) -> None:
        self._by_path: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._logs: dict[Path, _Log] = {}
        #: logs that are finished, or that a dead process left before the first watcher
        self._read: set[Path] = set()
        self._mark: Path | None = None

    def events(self) -> list[dict[str, Any]]:
        """Events of other processes since the last call, in order of time; at the first call only of those
        that run.

        From the first call to `close`, logs of processes that end stay until they are read.
        """
        place = runtime_dir()
        first = self._mark is None
        if first:
            own = Identity.own()
            self._mark = place / f"watch-{own.pid}-{own.start}-{new_token()}"
            with contextlib.suppress(OSError):
                self._mark.touch(mode=0o600)
        there = set(sorted(place.glob("live-*.log"))[:_MOST_FILES])
        for path in there - self._logs.keys() - self._read:
            if first and not path.with_suffix(".json").exists():
                self._read.add(path)
                continue
            with contextlib.suppress(OSError):
                self._logs[path] = _Log(path)
        logged = []
        for path, log in list(self._logs.items()):
            events = log.read()
            logged += events
            running = path.with_suffix(".json").exists()
            if any(event["event"] == "closed" for event in events) or not (events or running):
                self._logs.pop(path).close()
                self._read.add(path)
        self._read &= there
        for path in self._read:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _LINGERS_S:
                    path.unlink()
        return sorted(logged, key=lambda event: int(event.get("utc_ns") or 0))

    def close(self) -> None:
        """Stop watching."""
        for log in self._logs.values():
            log.close()
        self._logs = {}
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
            self._mark = None
            if not watched():
                for path in self._read:
                    path.unlink(missing_ok=True)
        self._read = set()

    def look(self) -> list[dict[str, Any]]:
        """Announcements of live processes, oldest first; each with an `id`."""
        by_path: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        for path in sorted(runtime_dir().glob(_PATTERN))[:_MOST_FILES]:
            with contextlib.suppress(OSError, ValueError):
                status = path.stat()
                mark = (status.st_mtime_ns, status.st_ino)
                cached = self._by_path.get(path)
                if cached is not None and cached[0] == mark:
                    by_path[path] = cached
                elif status.st_size <= _MOST_BYTES:
                    announced = json.loads(path.read_text())
                    if isinstance(announced, dict) and _owner(announced) is not None:
                        by_path[path] = mark, {"id": path.stem.removeprefix("live-"), **announced}
        self._by_path = by_path
        living = [
            announced for _, announced in by_path.values() if (o := _owner(announced)) and o.alive
        ]
        return sorted(living, key=lambda announced: str(announced.get("began_utc_ns")))


def _owner(announced: Mapping[str, Any]) -> Identity | None:
    try:
        return Identity(str(announced["boot_id"]), int(announced["pid"]), int(announced["start"]))
    except (KeyError, TypeError, ValueError):
        return None


def watched() -> bool:
    """True while a live process reads the logs."""
    for path in runtime_dir().glob(_WATCHERS):
        with contextlib.suppress(ValueError):
            _, pid, start, _ = path.name.split("-", 3)
            if start_ticks(int(pid)) == int(start):
                return True
    return False


def forget_dead() -> None:
    """Remove the files of dead processes."""
    for path in [*runtime_dir().glob("live-*"), *runtime_dir().glob(_WATCHERS)]:
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.split("-")[1])
            running = Identity.of(pid)
            announced = json.loads(path.read_text()) if path.suffix == ".json" else {}
            owner = _owner(announced) if isinstance(announced, dict) else None
            if running is None or (owner is not None and not owner.alive):
                path.unlink(missing_ok=True)
