"""What several readings say together: the judgement that tests of fidelity rest on."""

from __future__ import annotations

import itertools

import pytest

from penstock.observe.trace.capture.overhead import interval
from tests.integration.readings import LOOKS, SPARE, Readings, judged, verdict


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([100, 99, 101, 98, 102, 100, 100, 99, 40], "honoured"),  # one moment of a busy host
        ([90, 89, 91, 90, 90, 90, 89, 91, 100], "departs"),  # one reading near what is wanted
        ([100, 99, 101, 100, 90, 89, 91, 90, 90], "undecided"),
        ([100.0] * 5, "undecided"),  # too few to tell
    ],
)
def test_one_reading_decides_nothing(values: list[float], said: str) -> None:
    assert verdict(values, 100, 0.05) == said


def test_an_invalid_reading_is_taken_again_counted_and_bounded() -> None:
    told: list[object] = []
    readings = Readings(lambda _, why: told.append(why))
    coming = iter([(7.0, "busy"), (7.0, "busy"), (1.0, ""), (2.0, "")])
    assert [readings.valid(lambda: next(coming)) for _ in range(2)] == [1.0, 2.0]
    assert told == ["busy", "busy"]
    with pytest.raises(pytest.fail.Exception, match=f"host-saturated: {SPARE} readings"):
        readings.valid(lambda: (1.0, "busy"))
    assert len(told) == SPARE + 1


@pytest.mark.parametrize(
    ("values", "n", "expected"),
    [
        ([100.0] * 6, 6, "honoured"),
        ([100.0, 40.0, *[100.0] * 8], 10, "honoured"),  # one moment of a busy host
        ([100.0, 40.0, 40.0, *[100.0] * 7], 10, "undecided"),
    ],
)
def test_readings_end_once_all_are_decided(values: list[float], n: int, expected: str) -> None:
    coming, planted = iter(values), iter([50.0] * 10)
    series = Readings(lambda *_: None).in_turns(
        lambda: (next(coming), ""),
        lambda: (next(planted), ""),
        decided=judged((100, 0.05), (100, 0.05)),
    )
    assert series == [values[:n], [50.0] * n]
    assert [verdict(one, 100, 0.05) for one in series] == [expected, "departs"]


def test_looks_miss_the_median_in_less_than_five_per_cent() -> None:
    """Of all orders of readings above and below the median; a further look, after nine, would be too much."""

    def missing(looks: tuple[int, ...]) -> float:
        def misses(signs: tuple[float, ...]) -> bool:
            intervals = [interval(signs[:n]) for n in looks]
            return any(low > 0 or high < 0 for _, low, high in intervals)

        orders = list(itertools.product((-1.0, 1.0), repeat=max(looks)))
        return sum(map(misses, orders)) / len(orders)

    assert missing(LOOKS) == 44 / 1024
    assert missing((6, 9, 10)) > 0.05
