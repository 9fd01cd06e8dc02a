"""The graph of a workload: dependencies, levels, cycles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.task import Task


def dependencies(
    tasks: Sequence[Task], preloaded: Collection[str] = ()
) -> tuple[tuple[int, ...], ...]:
    """For each task the indices of its predecessors: `after`, and the writers of the files it reads.

    A task that writes the file itself, or reads a pre-existing one, waits only for writers before it in the
    list (the simulator's rule); of those that also read the file only for the last, which waits for the
    others. Unknown names in `after` are ignored; `check` reports them.
    """
    waits = _after(tasks)
    writers = _writers(tasks)
    existing = set(preloaded)
    reads = [_reads(task, writers) for task in tasks]
    wrote: list[list[str]] = [[] for _ in tasks]
    for name, writers_of_file in writers.items():
        for i in writers_of_file:
            wrote[i].append(name)
    ahead: dict[
        str, list[int]
    ] = {}  # of each file, the preceding writers that no later one waits for
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
    """Files that a task changes in place (reads and writes) without a preceding writer.

    Such a file must exist before the run.
    """
    behind = _Behind([tuple(w) for w in _after(tasks)])
    writers = _writers(tasks)
    return {
        name
        for i, name in _in_place(tasks, writers)
        if all(w == i or behind.is_behind(w, i) for w in writers[name])
    }


def changed_in_place(tasks: Sequence[Task]) -> bool:
    """True if a task reads and writes the same file: the order of the tasks in the list then matters."""
    return any(True for _ in _in_place(tasks, _writers(tasks)))


def _in_place(tasks: Sequence[Task], writers: Mapping[str, set[int]]) -> Iterator[tuple[int, str]]:
    return (
        (i, name)
        for i, task in enumerate(tasks)
        for name in _reads(task, writers)
        if i in writers[name]
    )


def in_order(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Tasks in topological order of `after`; unchanged if that is cyclic."""
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
    """Test if a task transitively depends on another."""

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
    """Level of each task: 0, or one more than its deepest predecessor. BadInput for a cycle."""
    level, unplaced = _kahn(waits)
    if unplaced:
        raise BadInput("the tasks wait for each other in a circle")
    return tuple(level)


def circle(waits: Sequence[Sequence[int]]) -> list[int]:
    """Tasks of a cycle, each waiting for the next and the last for the first; empty if there is none."""
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
    """Levels of the tasks, and tasks in or behind a cycle."""
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
    """Comma-separated names, the first few of them."""
    all_names = list(names)
    shown = ", ".join(all_names[:most])
    return shown if len(all_names) <= most else f"{shown} and {len(all_names) - most} more"
