"""The schedule of a cluster: its events at their times, in the order of the file, and what became of them.

Events of disks go to what serves the disk, which applies them by itself; the others are applied by a thread
of the supervisor, so that they go on without whoever asked for them.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.emulate.check import check_event, matching
from penstock.emulate.conditions import EVERY_S, Watch
from penstock.emulate.settings import Change
from penstock.emulate.spec import Event
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.emulate.held import HeldCluster

#: what the thread leaves to spinning: a sleep may end late by less
_SPIN_S = 0.0003


class Timeline:
    """The events of one cluster."""

    def __init__(self, held: HeldCluster) -> None:
        self._held = held
        self._order = itertools.count()
        self._due: list[tuple[int, int, Event]] = []
        self._waiting: list[Event] = []
        self._watched: list[Watch] = []
        self._made: list[dict[str, Any]] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._stopped = False

    def add(self, events: list[Event], start_ns: int | None = None) -> int:
        """Adds events whose times count from `start_ns` (default: now); gives that time.

        Raises BadInput, and adds none, where one makes no sense or two change the same at one time.
        """
        names = list(self._held.nodes)
        wrong = [w for n, e in enumerate(events) for w in check_event(e, names, f"event {n}")]
        wrong += list(_twice(events, names))
        if wrong:
            raise BadInput("\n".join(wrong))
        start = time.monotonic_ns() if start_ns is None else start_ns
        with self._wake:
            self._waiting += [e for e in events if e.when.phase is not None]
            self._watched += [Watch(e, self._held) for e in events if e.when.condition is not None]
            self._plan([e for e in events if e.when.phase is None and not e.when.condition], start)
            if self._watched and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        return start

    def mark(self, phase: str) -> int:
        """The phase begins now; gives how many events got their time by it."""
        now = time.monotonic_ns()
        with self._wake:
            freed = [e for e in self._waiting if e.when.phase == phase]
            self._waiting = [e for e in self._waiting if e.when.phase != phase]
            freed += [w.event for w in self._watched if w.phase == phase]
            self._watched = [w for w in self._watched if w.phase != phase]
            self._plan(freed, now)
        return len(freed)

    def made(self) -> list[dict[str, Any]]:
        """What became of the events that have fired, disks' excepted."""
        with self._wake:
            return list(self._made)

    def pending(self) -> int:
        """Events that have not fired yet, disks' excepted."""
        with self._wake:
            return len(self._due) + len(self._waiting) + len(self._watched)

    def stop(self) -> None:
        """No event fires any more."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _plan(self, events: list[Event], start_ns: int) -> None:
        of_disks: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
        for event in events:
            at_ns = start_ns + round(event.when.at_s * 1e9)
            if event.resource == "disk":
                for node in matching(event.nodes, self._held.nodes):
                    timed = {"at_ns": at_ns, "patch": event.patch}
                    of_disks.setdefault((node, event.name), []).append(timed)
            else:
                heapq.heappush(self._due, (at_ns, next(self._order), event))
        for (node, name), timed_events in of_disks.items():
            self._held.disks.schedule(node, name, timed_events)
        if self._due and self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._wake.notify_all()

    def _watch(self) -> None:
        """Looks at conditions as long as any is waited for."""
        while True:
            with self._wake:
                watched = [w for w in self._watched if w.phase is None]
                if self._stopped or not self._watched:
                    self._watcher = None
                    return
            held = [w for w in watched if w.holds()]
            if held:
                with self._wake:
                    self._watched = [w for w in self._watched if w not in held]
                    self._plan([w.event for w in held], time.monotonic_ns())
            time.sleep(EVERY_S)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._stopped and not self._soon():
                    left_s = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else None
                    self._wake.wait(None if left_s is None else max(0.0, left_s - _SPIN_S))
                if self._stopped:
                    return
                at_ns, _, event = heapq.heappop(self._due)
            while time.monotonic_ns() < at_ns:
                pass
            self._apply(event, at_ns)

    def _soon(self) -> bool:
        return bool(self._due) and self._due[0][0] - time.monotonic_ns() < _SPIN_S * 1e9

    def _apply(self, event: Event, at_ns: int) -> None:
        change = Change(event.nodes, event.resource, event.patch, event.name)
        made = self._held.fire(change, at_ns)
        with self._wake:
            self._made += made


def _twice(events: list[Event], names: list[str]) -> list[str]:
    """Two patches of the same key at the same time: which should hold cannot be known."""
    seen: dict[tuple[Any, ...], int] = {}
    wrong = []
    for number, event in enumerate(events):
        when = (event.when.at_s, event.when.phase, repr(event.when.condition))
        for node in matching(event.nodes, names):
            for key in event.patch:
                key_of = (when, event.resource, event.name, node, key)
                first = seen.setdefault(key_of, number)
                if first != number:
                    wrong.append(
                        f"events {first} and {number} change {key} of {node} at the same time"
                    )
    return wrong
