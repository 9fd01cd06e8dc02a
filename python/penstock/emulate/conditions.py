"""Conditions that an event waits for: a disk's counter, a line of a log, the mark of a phase (EM-26)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.emulate.spec import Event
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.emulate.held import HeldCluster

#: how often conditions are looked at [s]
EVERY_S = 0.01
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
    elif kinds == ["log"]:
        try:
            re.compile(str(condition.get("regex") or "("))
        except re.error as error:
            yield f"{where}: regex found {condition.get('regex')!r}: {error}"


class Watch:
    """One event that waits for its condition."""

    def __init__(self, event: Event, held: HeldCluster) -> None:
        assert event.when.condition is not None
        self.event = event
        self._held = held
        self._asked = event.when.condition
        self._pattern = re.compile(str(self._asked.get("regex") or ""))
        self._read_to = 0
        self._rest = b""

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

    def _metric(self) -> bool:
        node, _, disk = str(self._asked["disk"]).rpartition(".")
        found = self._held.disks.of(node).get(disk)
        value = None if found is None else found.up.stats().get(str(self._asked["metric"]))
        if not isinstance(value, int | float):
            return False
        if self._asked.get("above") is not None:
            return bool(value > self._asked["above"])
        return bool(value < self._asked["below"])

    def _log(self) -> bool:
        with open(str(self._asked["log"]), "rb") as log:
            log.seek(self._read_to)
            more = log.read(1 << 20)
        self._read_to += len(more)
        *lines, self._rest = (self._rest + more).split(b"\n")
        return any(self._pattern.search(line.decode(errors="replace")) for line in lines)
