"""Choice of the node that runs the next task, as in the simulator: a queue, or data locality."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.parts.prediction.workloads.task import Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.spec.store import Extent


@dataclass
class Scheduler:
    """Ready tasks and idle slots, in order. `hosts` maps names to slots, `groups` names to group.

    A task is ready when its predecessors have ended, and not before its `not_before_s`; `stagger_s` delays
    all tasks without predecessors. Until then it takes no slot. `by_data`: a task goes to the idle host with
    most of its input bytes, if known (`extents`); else to the idle host with the fewest tasks, or with `pack`
    to the first. Ties go to the first host. Tasks in `complete` have ended before.
    """

    workload: Workload
    hosts: Mapping[str, int]
    groups: Mapping[str, str]
    by_data: bool
    stagger_s: float = 0.0
    pack: bool = False
    extents: dict[str, Sequence[Extent]] = field(default_factory=dict)
    complete: Collection[int] = ()
    #: time at which each task became ready, in seconds of the run
    ready_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = self.workload.tasks
        self._idle = dict(self.hosts)
        #: remaining predecessors of each task, and its successors
        self._missing = [len(d) for d in self.workload.dependencies]
        self._waiters: list[list[int]] = [[] for _ in tasks]
        for number, needed in enumerate(self.workload.dependencies):
            for one in needed:
                self._waiters[one].append(number)
        self._ready: list[int] = []
        #: delayed tasks: time, and number
        self._later: list[tuple[float, int]] = []
        #: tasks that will not run
        self._skipped: set[int] = set()
        self._unfinished = len(tasks) - len(self.complete)
        for number in self.complete:
            for waiter in self._waiters[number]:
                self._missing[waiter] -= 1
        for number, missing in enumerate(self._missing):
            if not missing and number not in self.complete:
                first = 0.0 if self.workload.dependencies[number] else self.stagger_s
                self._release(number, max(first, tasks[number].not_before_s), 0.0)

    @property
    def finished(self) -> bool:
        """True if every task has ended, or will not run."""
        return self._unfinished == 0

    @property
    def wakes_s(self) -> float | None:
        """Time of the next delayed task in seconds of the run; None if there is none."""
        return self._later[0][0] if self._later else None

    def next(self, now_s: float = 0.0) -> list[tuple[int, str]]:
        """Tasks that start `now_s` seconds into the run and the host of each, in queue order."""
        while self._later and self._later[0][0] <= now_s:
            at_s, number = heapq.heappop(self._later)
            if number not in self._skipped:
                self._ready.append(number)
                self.ready_s[number] = at_s
        started = []
        for number in list(self._ready):
            if not any(self._idle.values()):
                break
            host = self._host(self.workload.tasks[number])
            if host is None:
                continue
            self._ready.remove(number)
            self._idle[host] -= 1
            started.append((number, host))
        return started

    def ended(self, number: int, host: str, now_s: float = 0.0) -> None:
        """Mark a task as ended: frees its slot, and may make its successors ready."""
        self.freed(host)
        self._unfinished -= 1
        for waiter in self._waiters[number]:
            self._missing[waiter] -= 1
            gone = waiter in self._skipped or waiter in self.complete
            if not self._missing[waiter] and not gone:
                self._release(waiter, self.workload.tasks[waiter].not_before_s, now_s)

    def freed(self, host: str) -> None:
        """Mark a slot as idle, unless its host is lost."""
        if host in self._idle:
            self._idle[host] += 1

    def again(self, number: int, at_s: float, now_s: float) -> None:
        """Make a task ready once more, at `at_s`; its slot is freed separately."""
        self._release(number, at_s if at_s > now_s else 0.0, now_s)

    def lost(self, host: str) -> None:
        """Remove a host: it runs no further task."""
        self._idle.pop(host, None)

    def skip(self, number: int) -> list[int]:
        """Tasks that will not run as this one does not: itself and its successors, if not skipped before."""
        new, ahead = [], [number]
        while ahead:
            one = ahead.pop()
            if one not in self._skipped and one not in self.complete:
                self._skipped.add(one)
                new.append(one)
                ahead += self._waiters[one]
        self._unfinished -= len(new)
        self._ready = [one for one in self._ready if one not in self._skipped]
        self._later = [one for one in self._later if one[1] not in self._skipped]
        heapq.heapify(self._later)
        return new

    def _release(self, number: int, at_s: float, now_s: float) -> None:
        if at_s > 0:
            heapq.heappush(self._later, (at_s, number))
        else:
            self._ready.append(number)
            self.ready_s[number] = now_s

    def _host(self, task: Task) -> str | None:
        able = [h for h, slots in self._idle.items() if slots > 0 and self._may(task, h)]
        if not able:
            return None
        stored = bytes_by_node(task, self.extents) if self.by_data else {}
        if any(stored.get(h) for h in able):
            return max(able, key=lambda h: stored.get(h, 0))
        return able[0] if self.pack else min(able, key=lambda h: self.hosts[h] - self._idle[h])

    def _may(self, task: Task, host: str) -> bool:
        return task.machine in (None, host, self.groups.get(host))


def bytes_by_node(task: Task, extents: Mapping[str, Iterable[Extent]]) -> dict[str, int]:
    """By node: number of a task's input bytes there."""
    by_node: dict[str, int] = {}
    for operation in task.operations:
        if operation.op != "read" or operation.file is None:
            continue
        begin, end = operation.offset_bytes, operation.offset_bytes + operation.size_bytes
        for extent in extents.get(operation.file, ()):
            inside = min(end, extent.offset_bytes + extent.length_bytes) - max(
                begin, extent.offset_bytes
            )
            for node in extent.nodes if inside > 0 else ():
                by_node[node] = by_node.get(node, 0) + inside
    return by_node
