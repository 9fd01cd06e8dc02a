"""Which node runs which task next, as the simulator decides it: a queue, or where the data are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.spec.store import Extent
from penstock.workload.workflow import Task, Workload


@dataclass
class Scheduler:
    """Ready tasks and idle slots, in order. `hosts` are names to slots, `groups` names to group.

    `by_data`: a task goes to the idle host that holds most of the bytes that it reads, of those that can
    be known (`extents`); else to the first idle host. Ties go to the host that stands first.
    """

    workload: Workload
    hosts: Mapping[str, int]
    groups: Mapping[str, str]
    by_data: bool
    extents: dict[str, Sequence[Extent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tasks = self.workload.tasks
        self._waiting = {i: set(d) for i, d in enumerate(self.workload.dependencies)}
        self._idle = dict(self.hosts)
        self._ready: list[int] = []
        self._left = len(tasks)
        self._release()

    @property
    def finished(self) -> bool:
        """Whether every task has ended."""
        return self._left == 0

    def next(self) -> list[tuple[int, str]]:
        """Tasks that begin now and the host of each, in the order of the queue."""
        started = []
        for number in list(self._ready):
            host = self._host(self.workload.tasks[number])
            if host is None:
                continue
            self._ready.remove(number)
            self._idle[host] -= 1
            started.append((number, host))
        return started

    def ended(self, number: int, host: str) -> None:
        """A task has ended: its slot is free, and who waited for it may be ready."""
        self._idle[host] += 1
        self._left -= 1
        for waits in self._waiting.values():
            waits.discard(number)
        self._release()

    def _release(self) -> None:
        for number in [i for i, waits in self._waiting.items() if not waits]:
            del self._waiting[number]
            self._ready.append(number)

    def _host(self, task: Task) -> str | None:
        able = [h for h, slots in self._idle.items() if slots > 0 and self._may(task, h)]
        if not able or not self.by_data:
            return able[0] if able else None
        held = held_bytes(task, self.extents)
        return max(able, key=lambda h: held.get(h, 0))

    def _may(self, task: Task, host: str) -> bool:
        return task.machine in (None, host, self.groups.get(host))


def held_bytes(task: Task, extents: Mapping[str, Iterable[Extent]]) -> dict[str, int]:
    """By node: how many of the bytes that a task reads lie there."""
    held: dict[str, int] = {}
    for operation in task.operations:
        if operation.op != "read" or operation.file is None:
            continue
        begin, end = operation.offset_bytes, operation.offset_bytes + operation.size_bytes
        for extent in extents.get(operation.file, ()):
            inside = min(end, extent.offset_bytes + extent.length_bytes) - max(
                begin, extent.offset_bytes
            )
            for node in extent.nodes if inside > 0 else ():
                held[node] = held.get(node, 0) + inside
    return held
