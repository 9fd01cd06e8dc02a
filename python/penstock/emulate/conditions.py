"""Conditions that an event waits for: a disk's counter, a line of a log, the mark of a phase (EM-26)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.emulate.spec import Event
from penstock.errors import BadInput, PenstockError

if TYPE_CHECKING:
    from penstock.emulate.held import HeldCluster

#: how often conditions are looked at [s]
EVERY_S = 0.01
#: counters of a disk that an event may wait for; a throttled disk has the first five alone
METRICS = (
    *("reads", "writes", "read_bytes", "written_bytes", "write_bytes"),
    *("flushes", "read_service_ns", "write_service_ns", "flush_service_ns"),
    *("read_time_ns", "write_time_ns", "flush_time_ns", "busy_ns", "in_flight", "queue_time_ns"),
    *("late_count", "lateness_ns_total", "lateness_ns_max"),
    *("asked_time_ns", "delivered_time_ns", "errors"),
)
#: the same counter, as the other kind of disk calls it
_ALSO = {"written_bytes": "write_bytes", "write_bytes": "written_bytes"}
_KEYS = ("metric", "disk", "above", "below", "log", "regex", "phase")


def check_condition(condition: dict[str, Any], where: str) -> Iterator[str]:
    """Mistakes of a condition."""
    kinds = [key for key in ("metric", "log", "phase") if condition.get(key) is not None]
    unknown = sorted(set(condition) - set(_KEYS))
    if unknown or len(kinds) != 1:
        found = unknown[0] if unknown else " and ".join(kinds) or "none of them"
        yield f"{where}: found {found}; expected one of metric, log and phase"
    elif kinds == ["metric"]:
        bounds = [k for k in ("above", "below") if isinstance(condition.get(k), int | float)]
        if len(bounds) != 1 or "." not in str(condition.get("disk")):
            yield f"{where}: a metric needs disk: NODE.DISK and a number, above or below"
        if condition["metric"] not in METRICS:
            found = f"{where}: metric found {condition['metric']!r}"
            yield f"{found}; expected one of {', '.join(METRICS)}"
    elif kinds == ["log"]:
        if not str(condition["log"]).startswith("/"):
            found = f"{where}: log found {condition['log']!r}"
            yield f"{found}; expected an absolute path of the host"
        try:
            re.compile(str(condition.get("regex") or "("))
        except re.error as error:
            yield f"{where}: regex found {condition.get('regex')!r}: {error}"


def in_words(event: Event) -> str:
    """What an event waits for, and what it then changes."""
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
    """One event that waits for its condition."""

    def __init__(self, event: Event, held: HeldCluster) -> None:
        assert event.when.condition is not None
        self.event = event
        self._held = held
        self._asked = event.when.condition
        self._pattern = re.compile(str(self._asked.get("regex") or ""))
        self._rest = b""
        #: the log as it was looked at last: its inode, and how far it was read
        self._inode, self._read_to = 0, 0
        if self._asked.get("log") is not None:
            with contextlib.suppress(OSError):  # only lines that are written from now on count
                there = os.stat(str(self._asked["log"]))
                self._inode, self._read_to = there.st_ino, there.st_size
        if self._asked.get("metric") is not None:
            self._refuse_unknown()

    @property
    def phase(self) -> str | None:
        """The phase whose mark it waits for, if it does."""
        phase = self._asked.get("phase")
        return None if phase is None else str(phase)

    def holds(self) -> bool:
        """Whether the condition holds now. What cannot be told does not hold."""
        with contextlib.suppress(OSError, PenstockError):
            if self._asked.get("metric") is not None:
                return self._metric()
            if self._asked.get("log") is not None:
                return self._log()
        return False

    def _refuse_unknown(self) -> None:
        """Raises BadInput for a counter that this disk, which is up, does not have."""
        node, disk = self._disk()
        found, stats = self._held.disks.of(node).get(disk), None
        with contextlib.suppress(PenstockError, OSError):
            stats = None if found is None else found.up.stats()
        if stats is not None and _value(stats, str(self._asked["metric"])) is None:
            raise BadInput(
                f"metric found {self._asked['metric']!r}; the disk {self._asked['disk']} has "
                + ", ".join(m for m in METRICS if m in stats)
            )

    def _disk(self) -> tuple[str, str]:
        node, _, disk = str(self._asked["disk"]).rpartition(".")
        return node, disk

    def _metric(self) -> bool:
        node, disk = self._disk()
        found = self._held.disks.of(node).get(disk)
        value = None if found is None else _value(found.up.stats(), str(self._asked["metric"]))
        if value is None:
            return False
        if self._asked.get("above") is not None:
            return bool(value > self._asked["above"])
        return bool(value < self._asked["below"])

    def _log(self) -> bool:
        with open(str(self._asked["log"]), "rb") as log:
            there = os.fstat(log.fileno())
            if there.st_ino != self._inode or there.st_size < self._read_to:  # begun anew
                self._inode, self._read_to, self._rest = there.st_ino, 0, b""
            log.seek(self._read_to)
            more = log.read(1 << 20)
        self._read_to += len(more)
        *lines, self._rest = (self._rest + more).split(b"\n")
        return any(self._pattern.search(line.decode(errors="replace")) for line in lines)


def _value(stats: Mapping[str, Any], metric: str) -> float | None:
    value = stats.get(metric, stats.get(_ALSO.get(metric, "")))
    return value if isinstance(value, int | float) else None
