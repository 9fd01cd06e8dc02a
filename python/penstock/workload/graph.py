"""The graph of a workload: who waits for whom, levels, circles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from penstock.errors import BadInput
from penstock.workload.workflow import Task


def dependencies(
    tasks: Sequence[Task], preloaded: Collection[str] = ()
) -> tuple[tuple[int, ...], ...]:
    """For each task the indices of those it waits for: `after`, and the writers of the files it reads.

    Of several writers of one file, or of a file that is `preloaded`, those that `after` puts behind the
    reader are not waited for. Names in `after` that are no task are passed over; `check` tells them.
    """
    waits = _after(tasks)
    behind = _Behind([tuple(w) for w in waits])
    for i, _, found, anyway in _feeds(tasks, preloaded):
        waits[i] |= {w for w in found if anyway or not behind.is_behind(w, i)}
    return tuple(tuple(sorted(w)) for w in waits)


def fed_before(tasks: Sequence[Task]) -> set[str]:
    """Files that some task reads although all their writers are itself or, by `after`, behind it.

    Such a file must have been there before the run.
    """
    behind = _Behind([tuple(w) for w in _after(tasks)])
    found = set()
    for i, name, writers, _ in _feeds(tasks, ()):
        if all(behind.is_behind(w, i) for w in writers):
            found.add(name)
    return found


def _after(tasks: Sequence[Task]) -> list[set[int]]:
    index = {task.name: i for i, task in enumerate(tasks)}
    return [{index[name] for name in task.after if name in index} for task in tasks]


def _feeds(
    tasks: Sequence[Task], preloaded: Collection[str]
) -> Iterator[tuple[int, str, list[int], bool]]:
    """Each task and file it reads that tasks write: the other ones of these; whether all are waited for."""
    writers: dict[str, dict[int, None]] = defaultdict(dict)
    for i, task in enumerate(tasks):
        for operation in task.operations:
            if operation.op == "write" and operation.file is not None:
                writers[operation.file][i] = None
    given = set(preloaded)
    for i, task in enumerate(tasks):
        for name in {o.file for o in task.operations if o.op == "read" and o.file in writers}:
            found = writers[str(name)]
            yield i, str(name), [w for w in found if w != i], len(found) == 1 and name not in given


class _Behind:
    """Whether one task waits, over any number of others, for another."""

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
    level, left = _kahn(waits)
    if left:
        raise BadInput("the tasks wait for each other in a circle")
    return tuple(level)


def circle(waits: Sequence[Sequence[int]]) -> list[int]:
    """Tasks that wait for each other, each for the next and the last for the first; empty if none do."""
    _, left = _kahn(waits)
    if not left:
        return []
    inside = set(left)
    seen: dict[int, int] = {}
    way: list[int] = []
    task = left[0]
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
    left = [i for i, n in enumerate(missing) if n > 0] if done < len(waits) else []
    return level, left


def named(names: Iterable[str], most: int = 5) -> str:
    """Names one after the other, the first few of them."""
    given = list(names)
    shown = ", ".join(given[:most])
    return shown if len(given) <= most else f"{shown} and {len(given) - most} more"
