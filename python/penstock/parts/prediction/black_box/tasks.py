"""Time of a task from throughput and computing time. Bytes, seconds, bytes per second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from penstock.parts.prediction.black_box.beyond import Beyond


def scan_s(size_bytes: float, read_bps: float) -> float:
    """Time to read `size_bytes` sequentially: a scan, grep."""
    return size_bytes / read_bps


def with_computing(io_s: float, cpu_s: float, overlap: float) -> float:
    """T = T_io + T_cpu − ω min(T_io, T_cpu): ω = 0 for sequential phases, 1 for full overlap."""
    return io_s + cpu_s - overlap * min(io_s, cpu_s)


def fitted_overlap(
    io_s: Sequence[float], cpu_s: Sequence[float], measured_s: Sequence[float]
) -> float:
    """ω in 0…1 with the least squared relative error; 0 without a run that both reads and computes."""
    io, cpu, measured = (np.asarray(v, dtype=float) for v in (io_s, cpu_s, measured_s))
    both = np.minimum(io, cpu) / measured
    if not np.any(both > 0):
        return 0.0
    excess = (io + cpu) / measured - 1
    return float(np.clip(both @ excess / (both @ both), 0.0, 1.0))


def further_run(cpu_s: Sequence[float], level: float) -> tuple[float, float]:
    """Range of the processor time of one further run [s]: Student's prediction interval.

    mean ± t s √(1 + 1/n), at least 0; of one value, the value itself.
    """
    n, mean = len(cpu_s), float(np.mean(cpu_s))
    if n < 2:
        return mean, mean
    deviation = float(np.std(cpu_s, ddof=1))
    half = float(student.ppf((1 + level) / 2, n - 1)) * deviation * math.sqrt(1 + 1 / n)
    return max(0.0, mean - half), mean + half


def accuracy(predicted: float, actual: float) -> float:
    """1 − |predicted − actual| / actual."""
    return 1 - abs(predicted - actual) / actual


@dataclass(frozen=True)
class TaskTime:
    """Predicted time of a task [s] with its interval; `bound` is 'lower' if computing is excluded.

    `cpu_range_s` and `overlap_range` are what the interval allows for; `covers` has its sources as text.
    """

    time_s: float
    low: float
    high: float
    bound: str
    io_s: float
    cpu_s: float | None
    overlap: float | None
    level: float
    beyond: tuple[Beyond, ...] = ()
    cpu_range_s: tuple[float, float] | None = None
    overlap_range: tuple[float, float] | None = None
    covers: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages on dimensions outside of the measured grid."""
        return tuple(b.message for b in self.beyond)

    def to_dict(self) -> dict[str, object]:
        """Plain values; an unbounded interval is null."""
        values = {
            k: (v if not isinstance(v, float) or math.isfinite(v) else None)
            for k, v in vars(self).items()
        }
        return values | {"notes": list(self.notes), "beyond": [b.to_dict() for b in self.beyond]}
