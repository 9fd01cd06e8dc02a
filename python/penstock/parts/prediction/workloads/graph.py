"""The graph of a workload: dependencies, levels, circles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.task import Task


def dependencies(
    tasks: Sequence[Task], preloaded: Collection[str] = ()
) -> tuple[tuple[int, ...], ...]:
    """For each task the indices of those it waits for: `after`, and the writers of the files it reads.

    A task that writes the file itself, or reads one that was there before the run, waits only for writers
    that stand before it in the list (the simulator's rule); of those that read the file too the last one,
    which waits for the others. Names in `after` that are no task are passed over; `check` tells them.
    """
    waits = _after(tasks)
    writers = _writers(tasks)
    existing = set(preloaded)
    reads = [_reads(task, writers) for task in tasks]
    wrote: list[list[str]] = [[] for _ in tasks]
    for name, writers_of_file in writers.items():
        for i in writers_of_file:
            wrote[i].append(name)
    ahead: dict[str, list[int]] = {}  # of each file, the writers so far that no later one waits for
    for i in range(len(tasks)):
        for name in reads[i]:
            writers_of_file = writers[name]
            if name in existing or i in writers_of_file:
                waits[i].update(ahead.get(name, ()))
            else:
                waits[i] |= writers_of_file
        for name in reads[i]:
            if i in writers[name]:
                ahead[name] = [i]
        for name in wrote[i]:
            if name not in reads[i]:
                ahead.setdefault(name, []).append(i)
    return tuple(tuple(sorted(w)) for w in waits)


def fed_before(tasks: Sequence[Task]) -> set[str]:
    """Files that a task changes in place (reads and writes) and that nothing ahead of it writes.

    Such a file must have been there before the run.
    """
    behind = _Behind([tuple(w) for w in _after(tasks)])
    writers = _writers(tasks)
    return {
        name
        for i, name in _in_place(tasks, writers)
        if all(w == i or behind.is_behind(w, i) for w in writers[name])
    }


def changed_in_place(tasks: Sequence[Task]) -> bool:
    """True if a task reads and writes the same file: then the order of the tasks in the list counts."""
    return any(True for _ in _in_place(tasks, _writers(tasks)))


def _in_place(tasks: Sequence[Task], writers: Mapping[str, set[int]]) -> Iterator[tuple[int, str]]:
    return (
        (i, name)
        for i, task in enumerate(tasks)
        for name in _reads(task, writers)
        if i in writers[name]
    )


def in_order(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The tasks, each behind those in its `after`; as they are if those are in a circle."""
    waits = [tuple(w) for w in _after(tasks)]
    level, unplaced = _kahn(waits)
    if unplaced:
        return tuple(tasks)
    return tuple(tasks[i] for i in sorted(range(len(tasks)), key=lambda i: (level[i], i)))


def _after(tasks: Sequence[Task]) -> list[set[int]]:
    index = {task.name: i for i, task in enumerate(tasks)}
    return [{index[name] for name in task.after if name in index} for task in tasks]


def _writers(tasks: Sequence[Task]) -> dict[str, set[int]]:
    writers: dict[str, set[int]] = defaultdict(set)
    for i, task in enumerate(tasks):
        for operation in task.operations:
            if operation.op == "write" and operation.file is not None:
                writers[operation.file].add(i)
    return writers


def _reads(task: Task, written: Collection[str]) -> set[str]:
    """Files that the task reads and that tasks write."""
    return {str(o.file) for o in task.operations if o.op == "read" and o.file in written}


class _Behind:
    """Test if one task waits, over any number of others, for another."""

    def __init__(self, waits: Sequence[tuple[int, ...]]) -> None:
        self._waits = waits
        self._ahead: dict[int, set[int]] = {}

    def is_behind(self, later: int, earlier: int) -> bool:
        if not self._waits[later]:
            return False
        if later not in self._ahead:
            seen: set[int] = set()
            ahead = list(self._waits[later])
            while ahead:
                i = ahead.pop()
                if i not in seen:
                    seen.add(i)
                    ahead += self._waits[i]
            self._ahead[later] = seen
        return earlier in self._ahead[later]


def levels(waits: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Level of each task: 0, or one more than the deepest it waits for. BadInput if they go in a circle."""
    level, unplaced = _kahn(waits)
    if unplaced:
        raise BadInput("the tasks wait for each other in a circle")
    return tuple(level)


def circle(waits: Sequence[Sequence[int]]) -> list[int]:
    """Tasks that wait for each other, each for the next and the last for the first; empty if none do."""
    _, unplaced = _kahn(waits)
    if not unplaced:
        return []
    inside = set(unplaced)
    seen: dict[int, int] = {}
    way: list[int] = []
    task = unplaced[0]
    while task not in seen:
        seen[task] = len(way)
        way.append(task)
        task = next(i for i in waits[task] if i in inside)
    return way[seen[task] :]


def _kahn(waits: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Levels of the tasks, and those that are in a circle or behind one."""
    missing = [len(w) for w in waits]
    behind: list[list[int]] = [[] for _ in waits]
    for task, ahead in enumerate(waits):
        for i in ahead:
            behind[i].append(task)
    level = [0] * len(waits)
    ready = [i for i, n in enumerate(missing) if n == 0]
    done = 0
    while ready:
        following: list[int] = []
        for i in ready:
            done += 1
            for task in behind[i]:
                level[task] = max(level[task], level[i] + 1)
                missing[task] -= 1
                if missing[task] == 0:
                    following.append(task)
        ready = following
    unplaced = [i for i, n in enumerate(missing) if n > 0] if done < len(waits) else []
    return level, unplaced


def named(names: Iterable[str], most: int = 5) -> str:
    """Names one after the other, the first few of them."""
    all_names = list(names)
    shown = ", ".join(all_names[:most])
    return shown if len(all_names) <= most else f"{shown} and {len(all_names) - most} more"
