"""Sets of files with the same access pattern, whose cost only shows in the sum.

A program that reads 20,000 small files once spends less than a thousandth of its time on each. Verdicts
are grouped by direction, basis and class, and a set is described if no file dominates its time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.text import duration, size

#: mean bytes per file below which files are small: opening them costs as much as reading them
SMALL_FILE_BYTES = 1 << 20
#: minimum number of files of a set; fewer are described individually
MANY = 10
#: a set is described if its largest file has less than this share of its time
_MOST = 0.5

T = TypeVar("T")


@dataclass
class FileSet:
    """Files with the same access pattern: their number, calls, bytes and time [ns], and the paths."""

    direction: str
    kind: str
    files: int = 0
    calls: int = 0
    nbytes: float = 0.0
    time_ns: int = 0
    paths: list[str] = field(default_factory=list)

    def add(
        self, path: str | None, calls: int, nbytes: float, time_ns: int, files: int = 1
    ) -> None:
        """Add the calls on a path, which may have named several files."""
        self.files += files
        self.calls += calls
        self.nbytes += nbytes
        self.time_ns += time_ns
        if path:
            self.paths.append(path)

    @property
    def small(self) -> bool:
        """True if the files are small by bytes transferred per file."""
        return self.nbytes < SMALL_FILE_BYTES * self.files

    @property
    def name(self) -> str:
        """`20,000 small files below /data/set`."""
        what = "small files" if self.small and self.nbytes else "files"
        return f"{self.files:,} {what}{self._below}"

    @property
    def _below(self) -> str:
        if len(self.paths) < self.files / 2 or not all(path.startswith("/") for path in self.paths):
            return ""
        # in a sorted list the first and the last have the least in common
        above = os.path.commonpath([min(self.paths), max(self.paths)])
        return "" if above in ("", "/") else f" below {above}"

    def each(self) -> str:
        """Calls, bytes and time of one file."""
        n = max(self.files, 1)
        calls = self.calls / n
        many = f" in {calls:.3g} calls" if calls >= 1.5 else ""
        moved = f"{size(self.nbytes / n)}{many} and " if self.nbytes else ""
        return f"{moved}{duration(self.time_ns / n)} each"


def largest_set(
    rows: Iterable[T], key: Callable[[T], Hashable], time_ns: Callable[[T], int]
) -> list[T]:
    """The rows of the set with most time, or a single row that has more, or most of the time of its set.

    MANY rows of one `key` are a set. Returns [] without rows.
    """
    sets: dict[Hashable, list[T]] = {}
    for row in rows:
        sets.setdefault(key(row), []).append(row)
    if not sets:
        return []
    first = max((row for one in sets.values() for row in one), key=time_ns)
    chosen = max(sets.values(), key=lambda one: sum(map(time_ns, one)) * (len(one) >= MANY))
    total_ns = sum(map(time_ns, chosen))
    return chosen if len(chosen) >= MANY and time_ns(first) < _MOST * total_ns else [first]
