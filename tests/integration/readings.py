"""Repeated readings, which alternate with readings of a planted departure, and their joint verdict.

A reading is repeated only if an independent source calls it invalid before its value is used: the
certificate of the disk (`host-saturated`), or the processors of the host (all busy, or taken by
other machines). The number of repetitions is limited; a test that exceeds it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pytest

from penstock.analyse.fidelity.fidelity import is_valid
from penstock.analyse.fidelity.fidelity_windows import CPU_LIMIT_PERCENT, STEAL_LIMIT_PERCENT
from penstock.observe.trace.capture.overhead import interval

#: numbers of readings of a setting: the 95 % interval of the median of six is their range; if this
#: is undecided, that of ten leaves one out at either end. Both together miss the median in 4.3 % of
#: cases.
LOOKS = (6, 10)
#: property of a test with the reason of each repeated reading
RETAKEN = "reading taken again"
#: maximum number of repeated readings of a test
SPARE = 18

T = TypeVar("T")


def verdict(values: list[float], wanted: float, within: float) -> str:
    """Compare the 95 % interval of the median with `wanted` ± the share `within`.

    `honoured` if it lies inside, `departs` if it lies outside, else `undecided`.
    """
    _, low, high = interval(values)
    least, most = wanted * (1 - within), wanted * (1 + within)
    if least <= low and high <= most:
        return "honoured"
    return "departs" if high < least or low > most else "undecided"


def judged(*criteria: tuple[float, float]) -> Callable[..., bool]:
    """Build the `decided` of `in_turns` for series with a `verdict` each, by their (wanted, within)."""

    def decided(*series: list[float]) -> bool:
        pairs = zip(series, criteria, strict=True)
        return all(verdict(values, *criterion) != "undecided" for values, criterion in pairs)

    return decided


def saturated(certificate: pa.Table) -> str:
    """Reason why the certificate of a disk calls the host saturated; empty if it is valid."""
    valid, reason = is_valid(certificate)
    if valid:
        return ""
    assert set(certificate["verdict"].to_pylist()) == {"host-saturated"}, reason
    return reason


def watched(read: Callable[[], T]) -> tuple[T, str]:
    """A reading, and the reason if the host's processors make it invalid."""
    before = _processors()
    value = read()
    busy, stolen, whole = (b - a for a, b in zip(before, _processors(), strict=True))
    said = [
        f"{100 * share:.0f} % of the processors' time was {words}"
        for share, limit, words in (
            (busy / max(whole, 1), CPU_LIMIT_PERCENT, "taken"),
            (stolen / max(whole, 1), STEAL_LIMIT_PERCENT, "other machines'"),
        )
        if 100 * share > limit
    ]
    return value, ", ".join(said)


def _processors() -> tuple[int, int, int]:
    """Ticks of all processors so far: busy, stolen, total."""
    with open("/proc/stat") as lines:
        ticks = [int(word) for word in lines.readline().split()[1:9]]
    idle, stolen = ticks[3] + ticks[4], ticks[7]
    return sum(ticks) - idle, stolen, sum(ticks)


@dataclass
class Readings:
    """The readings of one test."""

    told: Callable[[str, object], None]
    left: int = SPARE

    def valid(self, take: Callable[[], tuple[T, str]]) -> T:
        """The first valid reading; the test fails after too many invalid ones."""
        while True:
            value, invalid = take()
            if not invalid:
                return value
            self.told(RETAKEN, invalid)
            self.left -= 1
            if self.left < 0:
                pytest.fail(f"host-saturated: {SPARE} readings were invalid, the last: {invalid}")

    def in_turns(
        self, *takes: Callable[[], tuple[float, str]], decided: Callable[..., bool]
    ) -> list[list[float]]:
        """Take valid readings alternately, up to the first number of `LOOKS` that is decided."""
        series: list[list[float]] = [[] for _ in takes]
        for n in LOOKS:
            while len(series[-1]) < n:
                for values, take in zip(series, takes, strict=True):
                    values.append(self.valid(take))
            if decided(*series):
                break
        return series


@pytest.fixture(name="readings")
def of_one_test(record_property: Callable[[str, object], None]) -> Readings:
    return Readings(record_property)
