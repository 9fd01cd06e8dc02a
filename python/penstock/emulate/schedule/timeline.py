"""Schedule of a cluster: its events at their times, in the order of the file, and their results.

Events of disks go to the disk's server, which applies them. All others are applied by a thread of the
supervisor, independently of the client; so are power cuts, after which a node needs the disk's new mount.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from penstock.emulate.backends.base import Cause
from penstock.emulate.cluster.settings import Change
from penstock.emulate.schedule.conditions import EVERY_S, Watch, describe
from penstock.errors import BadInput, PenstockError
from penstock.spec.check_cluster import Targets, check_events
from penstock.spec.cluster import Event

if TYPE_CHECKING:
    from penstock.emulate.cluster.running import LiveCluster

#: makes a change that was due at a time [ns, monotonic]; returns the results by node
Fire = Callable[[Change, int, Cause], list[dict[str, Any]]]

#: spin time before an event, as a sleep may end late [s]
_SPIN_S = 0.0003


class Timeline:
    """Events of one cluster."""

    def __init__(self, cluster: LiveCluster, fire: Fire) -> None:
        self._cluster = cluster
        self._change = fire
        self._targets = Targets({name: node.spec for name, node in cluster.nodes.items()})
        self._order = itertools.count()
        self._due: list[tuple[int, int, Event, Cause]] = []
        self._waiting: list[Event] = []
        self._watched: list[Watch] = []
        self._fired: list[dict[str, Any]] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        self._stopped = False

    def add(self, events: list[Event], start_ns: int | None = None) -> int:
        """Add events whose times count from `start_ns` (default: now); returns that time.

        Raises BadInput, without adding any, for an invalid event or two changes of one value at the same
        time.
        """
        wrong = check_events(events, self._targets)
        if wrong:
            raise BadInput("\n".join(wrong))
        self._check_cuts(events)
        watched = [Watch(e, self._cluster) for e in events if e.when.condition is not None]
        start = time.monotonic_ns() if start_ns is None else start_ns
        self._cluster.announce("schedule", {"events": len(events)})
        with self._wake:
            timed = [e for e in events if e.when.phase is None and e.when.condition is None]
            for _, error in self._plan([(event, Cause("time")) for event in timed], start):
                raise error
            self._waiting += [e for e in events if e.when.phase is not None]
            self._watched += watched
            if self._watched and self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, daemon=True)
                self._watcher.start()
        return start

    def _check_cuts(self, events: list[Event]) -> None:
        for event in events:
            if event.resource == "disk" and "power_cut" in event.patch:
                if len(event.patch) > 1:
                    raise BadInput("power_cut must be the only key of its patch")
                for name, nodes in self._targets.of(event).items():
                    for node in nodes:
                        self._cluster.disks.check_cut(node, name)

    def mark(self, phase: str) -> int:
        """Mark the start of the phase; returns the number of events that it scheduled."""
        now = time.monotonic_ns()
        with self._wake:
            freed = [e for e in self._waiting if e.when.phase == phase]
            self._waiting = [e for e in self._waiting if e.when.phase != phase]
            for watch in [w for w in self._watched if w.phase == phase]:
                freed.append(watch.event)
                self._has_fired(watch)
            self._fire([(event, Cause("phase", phase)) for event in freed], now)
        return len(freed)

    def fired(self) -> list[dict[str, Any]]:
        """Results of the events that have fired, without those of disks."""
        with self._wake:
            return list(self._fired)

    def waiting(self) -> list[str]:
        """Descriptions of the events that wait for a phase or a condition and never fired."""
        with self._wake:
            never = (w.event for w in self._watched if not w.fired)
            return [describe(e) for e in (*self._waiting, *never)]

    def stop(self) -> None:
        """Cancel all events."""
        with self._wake:
            self._stopped = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _plan(
        self, events: list[tuple[Event, Cause]], start_ns: int
    ) -> list[tuple[dict[str, Any], PenstockError | OSError]]:
        """Schedule events; returns those of disks that were refused, with the reason."""
        of_disks: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
        others = []
        for event, cause in events:
            at_ns = start_ns + round(event.when.at_s * 1e9)
            for name, nodes in self._targets.of(event).items():
                if "power_cut" in event.patch and event.resource == "disk":
                    cut = replace(event, nodes=nodes, name=name)
                    others.append((at_ns, next(self._order), cut, cause))
                elif event.resource == "disk":
                    for node in nodes:
                        timed = {"at_ns": at_ns, "patch": event.patch, "cause": asdict(cause)}
                        of_disks.setdefault((node, name), []).append(timed)
                else:
                    others.append((at_ns, next(self._order), replace(event, nodes=nodes), cause))
        refused: list[tuple[dict[str, Any], PenstockError | OSError]] = []
        for (node, name), timed_events in of_disks.items():
            try:
                self._cluster.disks.schedule(node, name, timed_events)
            except (PenstockError, OSError) as error:
                where = {"node": node, "resource": "disk", "name": name}
                refused += [({**where, **timed}, error) for timed in timed_events]
        for other in others:
            heapq.heappush(self._due, other)
        if self._due and self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._wake.notify_all()
        return refused

    def _has_fired(self, watch: Watch) -> None:
        """Mark a watch as fired; keep it only if it may fire again."""
        watch.fired = True
        if not watch.again:
            self._watched.remove(watch)

    def _fire(self, events: list[tuple[Event, Cause]], now_ns: int) -> None:
        """Schedule events whose conditions hold; refused ones are recorded as failed."""
        for refused, error in self._plan(events, now_ns):
            planned_ns, patch = refused.pop("at_ns"), refused.pop("patch")
            times = dict.fromkeys(("applied_ns", "verified_ns"), time.monotonic_ns())
            outcome = {"asked": patch, "found": {}, "error": str(error)}
            self._fired.append({**refused, "planned_ns": planned_ns, **times, **outcome})

    def _watch(self) -> None:
        """Check conditions until none is left."""
        while True:
            with self._wake:
                watched = [w for w in self._watched if w.phase is None]
                if self._stopped or not self._watched:
                    self._watcher = None
                    return
            seen = [(watch, causes) for watch in watched if (causes := watch.seen())]
            if seen:
                with self._wake:
                    for watch, causes in seen:
                        self._has_fired(watch)
                        for cause in causes:
                            self._fire([(watch.event, cause)], time.monotonic_ns())
            time.sleep(EVERY_S)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._stopped and not self._soon():
                    wait_s = (self._due[0][0] - time.monotonic_ns()) / 1e9 if self._due else None
                    self._wake.wait(None if wait_s is None else max(0.0, wait_s - _SPIN_S))
                if self._stopped:
                    return
                at_ns, _, event, cause = heapq.heappop(self._due)
            while time.monotonic_ns() < at_ns:
                pass
            self._apply(event, at_ns, cause)

    def _soon(self) -> bool:
        return bool(self._due) and self._due[0][0] - time.monotonic_ns() < _SPIN_S * 1e9

    def _apply(self, event: Event, at_ns: int, cause: Cause) -> None:
        change = Change(event.nodes, event.resource, event.patch, event.name)
        try:
            answers = self._change(change, at_ns, cause)
        except PenstockError as error:  # of the entire change, such as a full journal
            now = time.monotonic_ns()
            what = {"resource": event.resource, "name": event.name, "cause": asdict(cause)}
            times = {"planned_ns": at_ns, "applied_ns": now, "verified_ns": now}
            outcome = {"asked": event.patch, "found": {}, "error": str(error)}
            answers = [{"node": node, **what, **times, **outcome} for node in event.nodes]
        if (
            event.resource == "disk"
        ):  # the disk's server records its own changes, but not the refused ones
            answers = [one for one in answers if one["error"]]
        with self._wake:
            self._fired += answers
