"""The verdict of several readings, which tests of fidelity use."""

from __future__ import annotations

import itertools

import pytest

from penstock.observe.trace.capture.overhead import interval
from tests.integration.readings import LOOKS, SPARE, Readings, judged, verdict


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 99, 101, 98, 102, 100, 100, 99, 40], "honoured"),  # one moment of a busy host
        ([90, 89, 91, 90, 90, 90, 89, 91, 100], "departs"),  # one reading near the target
        ([100, 99, 101, 100, 90, 89, 91, 90, 90], "undecided"),
        ([100.0] * 5, "undecided"),  # too few readings
    ],
)
def test_one_reading_decides_nothing(values: list[float], expected: str) -> None:
    assert verdict(values, 100, 0.05) == expected


def test_an_invalid_reading_is_repeated_counted_and_bounded() -> None:
    reasons: list[object] = []
    readings = Readings(lambda _, why: reasons.append(why))
    outcomes = iter([(7.0, "busy"), (7.0, "busy"), (1.0, ""), (2.0, "")])
    assert [readings.valid(lambda: next(outcomes)) for _ in range(2)] == [1.0, 2.0]
    assert reasons == ["busy", "busy"]
    with pytest.raises(pytest.fail.Exception, match=f"host-saturated: {SPARE} readings"):
        readings.valid(lambda: (1.0, "busy"))
    assert len(reasons) == SPARE + 1


@pytest.mark.parametrize(
    ("values", "n", "expected"),
    [
        ([100.0] * 6, 6, "honoured"),
        ([100.0, 40.0, *[100.0] * 8], 10, "honoured"),  # one moment of a busy host
        ([100.0, 40.0, 40.0, *[100.0] * 7], 10, "undecided"),
    ],
)
def test_readings_end_once_all_are_decided(values: list[float], n: int, expected: str) -> None:
    remaining, planted = iter(values), iter([50.0] * 10)
    series = Readings(lambda *_: None).in_turns(
        lambda: (next(remaining), ""),
        lambda: (next(planted), ""),
        decided=judged((100, 0.05), (100, 0.05)),
    )
    assert series == [values[:n], [50.0] * n]
    assert [verdict(readings, 100, 0.05) for readings in series] == [expected, "departs"]


def test_looks_miss_the_median_in_less_than_five_per_cent() -> None:
    """All orders of readings above and below the median; an additional look after nine would exceed 5 %."""

    def miss_rate(looks: tuple[int, ...]) -> float:
        def misses(signs: tuple[float, ...]) -> bool:
            intervals = [interval(signs[:n]) for n in looks]
            return any(low > 0 or high < 0 for _, low, high in intervals)

        orders = list(itertools.product((-1.0, 1.0), repeat=max(looks)))
        return sum(map(misses, orders)) / len(orders)

    assert miss_rate(LOOKS) == 44 / 1024
    assert miss_rate((6, 9, 10)) > 0.05
