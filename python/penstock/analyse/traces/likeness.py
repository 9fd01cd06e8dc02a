"""Distance of two traces: sizes, steps, direction and class of their reads and writes.

The distance (docs/trace-formats.md) is the mean of four, each between 0 and 1: the Kolmogorov-Smirnov
distances of the request sizes and of the signed logarithmic steps, the difference of the read shares, and
the total variation of the shares of requests by class.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.archive.traces.verdicts import Verdict

Numbers = npt.NDArray[np.int64]

#: resolution of steps: eighths of a power of two
_PER_OCTAVE = 8


@dataclass
class Requests:
    """Statistics of one trace for the distance, added in batches.

    A step is a request's start minus the end of the previous one of the same file, direction and thread.
    """

    sizes: Counter[int] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    reads: int = 0
    requests: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    _ends: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def add(
        self, file_id: Numbers, writes: Numbers, tid: Numbers, offset: Numbers, done: Numbers
    ) -> None:
        """Add requests in order of time; `writes` is 1 for a write, sizes and offsets in bytes."""
        if len(file_id) == 0:
            return
        self.requests += len(file_id)
        self.reads += int((writes == 0).sum())
        for size, n in zip(*np.unique(done, return_counts=True), strict=True):
            self.sizes[int(size)] += int(n)
        order = np.lexsort((np.arange(len(file_id)), tid, writes, file_id))
        f, w, t = file_id[order], writes[order], tid[order]
        start, end = offset[order], offset[order] + done[order]
        first = np.ones(len(f), bool)
        first[1:] = (f[1:] != f[:-1]) | (w[1:] != w[:-1]) | (t[1:] != t[:-1])
        before = np.empty_like(end)
        before[1:] = end[:-1]
        has_previous = ~first
        for at in np.flatnonzero(first).tolist():
            key = (int(f[at]), int(w[at]), int(t[at]))
            if key in self._ends:
                before[at] = self._ends[key]
                has_previous[at] = True
        last = np.append(np.flatnonzero(first)[1:] - 1, len(f) - 1)
        for at in last.tolist():
            self._ends[int(f[at]), int(w[at]), int(t[at])] = int(end[at])
        step = (start - before)[has_previous].astype(np.float64)
        binned = np.sign(step) * np.round(_PER_OCTAVE * np.log2(1 + np.abs(step)))
        for value, n in zip(*np.unique(binned, return_counts=True), strict=True):
            self.steps[int(value)] += int(n)

    def add_verdicts(self, rows: Iterable[Verdict]) -> None:
        """Add the classes of verdicts on single threads."""
        for row in rows:
            self.classes[row.kind] += row.requests


@dataclass(frozen=True)
class Distance:
    """The four parts and their mean, each from 0 (equal) to 1."""

    sizes: float
    steps: float
    read_share: float
    classes: float

    @property
    def mean(self) -> float:
        """The distance of the two traces."""
        return (self.sizes + self.steps + self.read_share + self.classes) / 4

    def document(self) -> dict[str, float]:
        return {"distance": self.mean, **vars(self)}


def distance(a: Requests, b: Requests) -> Distance:
    """The distance of two traces; 1 in all parts if only one of them has requests."""
    if (a.requests == 0) != (b.requests == 0):
        return Distance(1.0, 1.0, 1.0, 1.0)
    return Distance(
        kolmogorov_smirnov(a.sizes, b.sizes),
        kolmogorov_smirnov(a.steps, b.steps),
        abs(a.reads / max(a.requests, 1) - b.reads / max(b.requests, 1)),
        total_variation(a.classes, b.classes),
    )


def kolmogorov_smirnov(a: Mapping[int, int], b: Mapping[int, int]) -> float:
    """Largest difference of two distributions given as value: count; 0 for two empty ones, 1 for one."""
    na, nb = sum(a.values()), sum(b.values())
    if na == 0 or nb == 0:
        return float(na != nb)
    below_a = below_b = 0
    largest = 0.0
    for value in sorted({*a, *b}):
        below_a += a.get(value, 0)
        below_b += b.get(value, 0)
        largest = max(largest, abs(below_a / na - below_b / nb))
    return largest


def total_variation(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """Half the sum of the differences of shares; 0 for two empty distributions, 1 if one is empty."""
    na, nb = sum(a.values()), sum(b.values())
    if na == 0 or nb == 0:
        return float(na != nb)
    return math.fsum(abs(a.get(k, 0) / na - b.get(k, 0) / nb) for k in {*a, *b}) / 2
