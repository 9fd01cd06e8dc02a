"""Conditions of an event: a disk's counter, a line of a log, the mark of a phase."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from penstock.emulate.backends.base import Cause
from penstock.errors import BadInput, PenstockError
from penstock.spec.check_cluster import METRICS, repeats
from penstock.spec.cluster import Event

if TYPE_CHECKING:
    from penstock.emulate.cluster.running import LiveCluster

#: interval of checks of conditions [s]
EVERY_S = 0.01
#: alias of a counter
_ALSO = {"write_bytes": "written_bytes"}


def describe(event: Event) -> str:
    """Description of the condition that an event waits for, and of its change."""
    condition, phase = event.when.condition or {}, event.when.phase
    if phase is None and condition.get("phase") is not None:
        phase = str(condition["phase"])
    if phase is not None:
        waits = f"the phase {phase}"
    elif condition.get("log") is not None:
        waits = f"a line of {condition['log']} that fits {condition['regex']!r}"
    else:
        bound = "above" if condition.get("above") is not None else "below"
        waits = f"{condition['metric']} of {condition['disk']} {bound} {condition[bound]}"
    what = event.resource if event.name is None else f"{event.resource} {event.name}"
    return f"{waits}: {what} of {', '.join(event.nodes)}"


class Watch:
    """One event with its condition: a counter, a line of a log, or the mark of a phase."""

    def __init__(self, event: Event, cluster: LiveCluster) -> None:
        assert event.when.condition is not None
        self.event = event
        self.again = repeats(event.when.condition)
        self.fired = False
        self._cluster = cluster
        self._condition = event.when.condition
        log = self._condition.get("log")
        self._log = None if log is None else _Log(str(log), str(self._condition.get("regex") or ""))
        #: the condition of the counter was false at the last check
        self._armed = True
        if self._condition.get("metric") is not None:
            self._refuse_unknown()

    @property
    def phase(self) -> str | None:
        """Phase whose mark it waits for, if any."""
        phase = self._condition.get("phase")
        return None if phase is None else str(phase)

    def seen(self) -> list[Cause]:
        """Causes since the last call: each fires the event once.

        A counter fires again if its condition was false in between; each line of a log fires once. A
        condition on an unknown value is false.
        """
        causes: list[Cause] = []
        with contextlib.suppress(OSError, PenstockError):
            if self._condition.get("metric") is not None:
                causes = self._metric()
            elif self._log is not None:
                causes = [Cause("log", line) for line in self._log.lines()]
        return causes if self.again else causes[:1]

    def _refuse_unknown(self) -> None:
        """Raises BadInput for a counter that this running disk does not have."""
        node, disk = self._disk()
        up_disk, stats = self._cluster.disks.of(node).get(disk), None
        with contextlib.suppress(PenstockError, OSError):
            stats = None if up_disk is None else up_disk.up.stats()
        if stats is not None and _value(stats, str(self._condition["metric"])) is None:
            raise BadInput(
                f"metric found {self._condition['metric']!r}; the disk {self._condition['disk']} has "
                + ", ".join(m for m in METRICS if m in stats)
            )

    def _disk(self) -> tuple[str, str]:
        node, _, disk = str(self._condition["disk"]).rpartition(".")
        return node, disk

    def _metric(self) -> list[Cause]:
        node, disk = self._disk()
        metric = str(self._condition["metric"])
        up_disk = self._cluster.disks.of(node).get(disk)
        value = None if up_disk is None else _value(up_disk.up.stats(), metric)
        if value is None:
            return []
        bound = "above" if self._condition.get("above") is not None else "below"
        limit = self._condition[bound]
        holds = value > limit if bound == "above" else value < limit
        fires, self._armed = holds and self._armed, not holds
        text = f"{metric} of {self._condition['disk']} {value:.15g}, {bound} {limit:g}"
        return [Cause("metric", text)] if fires else []


class _Log:
    """Complete lines of a log that match a pattern, each once; the log may be rotated meanwhile."""

    def __init__(self, path: str, pattern: str) -> None:
        self._path = path
        self._pattern = re.compile(pattern)
        #: state at the last read: inode, offset, start of an incomplete line
        self._inode, self._read_to, self._rest = 0, 0, b""
        with contextlib.suppress(OSError), open(path, "rb") as log:
            there = os.fstat(log.fileno())
            self._inode, self._read_to = there.st_ino, there.st_size
            self._rest = _last_line(log, there.st_size)

    def lines(self) -> list[str]:
        """Lines completed since the last call; earlier ones only if they were incomplete then."""
        with open(self._path, "rb") as log:
            there = os.fstat(log.fileno())
            if there.st_ino != self._inode or there.st_size < self._read_to:  # rotated or truncated
                self._inode, self._read_to, self._rest = there.st_ino, 0, b""
            log.seek(self._read_to)
            more = log.read(1 << 20)
        self._read_to += len(more)
        *ended, self._rest = (self._rest + more).split(b"\n")
        texts = (line.decode(errors="replace").rstrip("\r") for line in ended)
        return [text for text in texts if self._pattern.search(text)]


def _last_line(log: BinaryIO, size_bytes: int) -> bytes:
    """Text after the last newline."""
    at, rest = size_bytes, b""
    while at > 0 and b"\n" not in rest:
        step = min(at, 1 << 16)
        at -= step
        log.seek(at)
        rest = log.read(step) + rest
    return rest.rpartition(b"\n")[2]


def _value(stats: Mapping[str, Any], metric: str) -> float | None:
    value = stats.get(metric, stats.get(_ALSO.get(metric, "")))
    return value if isinstance(value, int | float) else None
