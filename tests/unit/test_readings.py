"""What several readings say together: the judgement that tests of fidelity rest on."""

from __future__ import annotations

import pytest

from tests.integration.readings import SPARE, Readings, verdict


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
    assert readings.in_turns(lambda: next(coming), n=2) == [[1.0, 2.0]]
    assert told == ["busy", "busy"]
    with pytest.raises(pytest.fail.Exception, match=f"host-saturated: {SPARE} readings"):
        readings.valid(lambda: (1.0, "busy"))
    assert len(told) == SPARE + 1
