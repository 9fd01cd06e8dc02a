"""What processes of this user are at, for a live page: one private file each in the runtime directory.

    with Announcement("study", "wal-depth", out="/data/out") as said:
        said.say(phase="workload")

A file goes with its process, or with `forget_dead` after a crash. That it cannot be written disturbs nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.journal import new_token
from penstock.host.processes import Identity
from penstock.state import closed, runtime_dir

_PATTERN = "live-*.json"
#: what is read of others
_MOST_BYTES = 1 << 20
_MOST_FILES = 200


class Announcement:
    """Says what this process is at, until it is closed; any thread may say more."""

    def __init__(self, kind: str, name: str, **facts: Any) -> None:
        self._lock = threading.Lock()
        identity = vars(Identity.own())
        began = {"began_utc_ns": time.time_ns()}
        self._facts: dict[str, Any] = {**identity, "kind": kind, "name": name, **began, **facts}
        self._path: Path | None = None
        with contextlib.suppress(OSError, PenstockError):
            self._path = runtime_dir() / f"live-{os.getpid()}-{new_token()}.json"
        self.say()

    def say(self, **facts: Any) -> None:
        """Says these anew."""
        with self._lock:
            self._facts.update(facts)
            self._write()

    def add(self, key: str, item: Any, most: int = 100) -> None:
        """Adds to a list, of which the last so many are kept."""
        with self._lock:
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
        """Takes it back."""
        with self._lock:
            if self._path is not None:
                for path in (self._path, self._path.with_suffix(".partial")):
                    path.unlink(missing_ok=True)
            self._path = None

    def __enter__(self) -> Announcement:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Announced:
    """What the others say: files are read again only where they have changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}

    def look(self) -> list[dict[str, Any]]:
        """What living processes say, the oldest first; each with an `id`."""
        found: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        for path in sorted(runtime_dir().glob(_PATTERN))[:_MOST_FILES]:
            with contextlib.suppress(OSError, ValueError):
                status = path.stat()
                mark = (status.st_mtime_ns, status.st_ino)
                known = self._known.get(path)
                if known is not None and known[0] == mark:
                    found[path] = known
                elif status.st_size <= _MOST_BYTES:
                    said = json.loads(path.read_text())
                    if isinstance(said, dict) and _owner(said) is not None:
                        found[path] = mark, {"id": path.stem.removeprefix("live-"), **said}
        self._known = found
        living = [said for _, said in found.values() if (o := _owner(said)) and o.alive]
        return sorted(living, key=lambda said: str(said.get("began_utc_ns")))


def _owner(said: dict[str, Any]) -> Identity | None:
    try:
        return Identity(str(said["boot_id"]), int(said["pid"]), int(said["start"]))
    except (KeyError, TypeError, ValueError):
        return None


def forget_dead() -> None:
    """Removes what dead processes left."""
    for path in runtime_dir().glob("live-*"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.split("-")[1])
            running = Identity.of(pid)
            said = json.loads(path.read_text()) if path.suffix == ".json" else {}
            owner = _owner(said) if isinstance(said, dict) else None
            if running is None or (owner is not None and not owner.alive):
                path.unlink(missing_ok=True)
