"""Journal of a run: its settings and its completed tasks, so that an interrupted run can be resumed.

A file of JSON lines, only appended to. The first line has the settings. The process that runs a program
appends the program's entry itself, on its node, before the runner receives it (`agent.py`): a completed task
is in the journal even if the runner is killed at that moment. All of them have the file open; a lock on it
is therefore free only when the last process of an interrupted run has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.workflow import Workload

SCHEMA = "penstock/workflow-journal/1"
NAME = "journal.jsonl"
#: longest wait for the processes of an interrupted run [s]
_FREE_WITHIN_S = 60.0
_MOST_BYTES = 1 << 30
#: first keys of entries
_FIRST_KEYS = (b"task", b"failed", b"input", b"head", b"resumed")

Row = dict[str, Any]


@dataclass
class RunJournal:
    """An open journal. `tasks`: the last entry of each completed task; `inputs`: sizes and modification times
    of the files that were copied into the store."""

    path: Path
    fd: int
    head: Row
    tasks: dict[str, Row] = field(default_factory=dict)
    inputs: dict[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def create(cls, out: Path, head: Row) -> RunJournal:
        """Create it in the directory `out`. BadInput if that already has one."""
        path = out / NAME
        out.mkdir(parents=True, exist_ok=True)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(path, flags, 0o600)
        except FileExistsError:
            journal = cls._unbegun(path)
            if journal is not None:
                journal.head = {"schema": SCHEMA, **head}
                journal.append(journal.head)
                return journal
            expected = (
                f"another directory; `penstock workflow run --resume {out}` continues that run"
            )
            raise BadInput(f"{out}: found an earlier run; expected {expected}") from None
        journal = cls(path, fd, {"schema": SCHEMA, **head})
        journal._lock(0.0)
        journal.append(journal.head)
        return journal

    @classmethod
    def reopen(cls, out: Path) -> RunJournal:
        """Open that of an earlier run, once all its processes have ended. BadInput if there is none."""
        path = out / NAME
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            expected = "the directory of a run that can be resumed"
            raise BadInput(
                f"{out}: found no {NAME} ({error.strerror}); expected {expected}"
            ) from None
        journal = cls(path, fd, {})
        try:
            if os.fstat(fd).st_uid != os.geteuid():
                raise BadInput(f"{path}: found the journal of another user; expected your own")
            journal._lock(_FREE_WITHIN_S)
            rows = list(journal._rows())
            if not rows or rows[0].get("schema") != SCHEMA:
                raise BadInput(f"{path}: found no head; expected a journal ({SCHEMA})")
        except BaseException:
            os.close(fd)
            raise
        for row in rows:
            journal.head |= row if "schema" in row else row.get("head", {})
            if "task" in row and not row.get("error"):
                journal.tasks[row["task"]] = row
            if "input" in row:
                journal.inputs[row["input"]] = (row["size_bytes"], row["changed"])
        return journal

    @classmethod
    def _unbegun(cls, path: Path) -> RunJournal | None:
        """The journal of a run that ended before it had a directory in the store, emptied; else None."""
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        journal, facts = cls(path, fd, {}), os.fstat(fd)
        with contextlib.suppress(PenstockError):
            journal._lock(0.0)
            rows = list(journal._rows())
            ours = rows[0].get("schema") == SCHEMA if rows else not facts.st_size
            begun = any("directory" in row.get("head", {}) for row in rows)
            if ours and not begun and facts.st_uid == os.geteuid():
                os.ftruncate(fd, 0)
                return journal
        os.close(fd)
        return None

    def _lock(self, within_s: float) -> None:
        until = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise PenstockError(
                        f"{self.path}: the run, or a task of it, still runs"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def _rows(self) -> Iterator[Row]:
        """Complete lines with an object; processes may have written messages between them."""
        if os.fstat(self.fd).st_size > _MOST_BYTES:
            raise BadInput(
                f"{self.path}: found more than {_MOST_BYTES >> 30} GiB; expected a journal"
            )
        with open(self.fd, "rb", closefd=False) as file:
            file.seek(0)
            for line in file:
                # an entry may follow a partial one, of a write without space
                begin = max(line.rfind(b'{"%s":' % key) for key in _FIRST_KEYS)
                for text in (line, line[begin:] if begin > 0 else b""):
                    with contextlib.suppress(ValueError):
                        row = json.loads(text)
                        if isinstance(row, dict):
                            yield row
                        break

    def append(self, *rows: Row) -> None:
        """Append entries durably."""
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if os.write(self.fd, text) != len(text):
            raise PenstockError(f"{self.path}: could not be written")
        os.fdatasync(self.fd)

    def note(self, **head: Any) -> None:
        """Add to the head."""
        self.head |= head
        self.append({"head": head})

    def close(self) -> None:
        """Close it; the lock is free once all agents have ended."""
        os.close(self.fd)


def digest_of(workload: Workload) -> str:
    """Digest that differs for workloads with other files, tasks or commands."""
    return hashlib.sha256(workload.to_json().encode()).hexdigest()
