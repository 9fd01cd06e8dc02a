"""Break-even points from measured writes: interpolation between points, and intervals by resampling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from studies.dedup_study.cells import OFF, CellRun, Write
from studies.dedup_study.ground import send_time_of

RESAMPLES = 2000
SEED = 1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; infinite where the line is not crossed."""

    value: float
    low: float
    high: float

    def text(
        self, factor: float = 1.0, unit: str = "", form: str = ".1f", infinite: str = "never"
    ) -> str:
        """The value, times a factor, with the interval; `infinite` stands for an infinite number."""
        ends = (self.value, self.low, self.high)
        value, low, high = (_number(factor * end, form, infinite) for end in ends)
        return f"{value} ({low} to {high}) {unit}".rstrip()

    def within(self, low: float, high: float) -> bool | None:
        """True if the interval is inside of the range, False if outside, None if it is across a limit."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or self.low > high else None


def _number(value: float, form: str, infinite: str) -> str:
    if math.isinf(value):
        return infinite if value > 0 else "always"
    return format(value, form)


@dataclass(frozen=True)
class Pairs:
    """Writes of a configuration and writes without deduplication, of the same versions."""

    similarity: Floats
    on_s: Floats
    off_s: Floats

    @property
    def ratio(self) -> float:
        """Mean time with deduplication over that without."""
        return float(self.on_s.mean() / self.off_s.mean())

    def resampled(self, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """Means of samples of the same size, with replacement: similarity, times on, times off."""
        chosen = samples(random, len(self.on_s))
        return (
            self.similarity[chosen].mean(axis=1),
            self.on_s[chosen].mean(axis=1),
            self.off_s[chosen].mean(axis=1),
        )


def generator() -> np.random.Generator:
    """The source of all samples, the same each time."""
    return np.random.default_rng(SEED)


def samples(random: np.random.Generator, size: int) -> npt.NDArray[np.int64]:
    """Indices of samples with replacement, a row each."""
    return random.integers(0, size, (RESAMPLES, size))


def pairs(run: CellRun, contender: str, base: str = OFF) -> Pairs | None:
    """Times of a contender and of `base` for the versions that both wrote; None without any."""
    base_s = {write.number: write.time_s for write in run.of(base)}
    common = [write for write in run.of(contender) if write.number in base_s]
    if not common:
        return None
    return Pairs(
        np.array([write.similarity for write in common]),
        np.array([write.time_s for write in common]),
        np.array([base_s[write.number] for write in common]),
    )


def crossing(x: Sequence[float], y: Sequence[float], level: float = 1.0) -> float:
    """The x where y falls to `level`, by interpolation; infinite if it never does, or is below at once."""
    points = sorted(zip(x, y, strict=True))
    if not points:
        return math.nan
    if points[0][1] <= level:
        return -math.inf
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 <= level:
            return x1 if y0 == y1 else x0 + (y0 - level) / (y0 - y1) * (x1 - x0)
    return math.inf


def estimate(value: float, of_samples: Iterable[float]) -> Estimate:
    """A value with the interval of its values of samples, which may be infinite."""
    values = np.sort(np.fromiter(of_samples, np.float64))
    last = len(values) - 1
    return Estimate(value, float(values[round(0.025 * last)]), float(values[round(0.975 * last)]))


def break_even(runs: Sequence[CellRun], contender: str) -> Estimate | None:
    """Similarity from which a configuration takes no longer than none; None without two measured cells."""
    cells = [
        cell_pairs
        for cell_pairs in (pairs(run, contender) for run in runs)
        if cell_pairs is not None
    ]
    if len(cells) < 2:
        return None
    value = crossing(
        [float(cell.similarity.mean()) for cell in cells], [cell.ratio for cell in cells]
    )
    random = generator()
    means = [cell.resampled(random) for cell in cells]
    similarity = np.column_stack([z for z, _, _ in means]).tolist()
    ratio = np.column_stack([on / off for _, on, off in means]).tolist()
    return estimate(value, map(crossing, similarity, ratio))


@dataclass(frozen=True)
class Rates:
    """Medians of times per byte: to hash, and to send in a configuration and without deduplication."""

    hash_s: float
    send_s: float
    off_send_s: float

    @property
    def ratio(self) -> float:
        """Time to hash over time to send without deduplication."""
        return self.hash_s / self.off_send_s

    @property
    def break_even(self) -> float:
        """Similarity at which hashing and sending the rest take as long as sending all.

        Equal to `ratio` if chunks take as long to send as without deduplication.
        """
        return 1 - (self.off_send_s - self.hash_s) / self.send_s


def rates(runs: Iterable[CellRun], contender: str) -> Rates | None:
    """Times per byte of a configuration over all cells; None if one was not measured."""
    cells = list(runs)
    writes = [write for run in cells for write in run.of(contender)]
    hashing = [write.hash_s / write.bytes for write in writes if write.bytes]
    sending = send_time_of(writes)
    off = send_time_of(write for run in cells for write in run.of(OFF))
    if not hashing or sending is None or off is None:
        return None
    return Rates(float(np.median(hashing)), sending, off)


def mean_time(writes: Sequence[Write]) -> float:
    """Mean seconds of writes."""
    return float(np.mean([write.time_s for write in writes]))
