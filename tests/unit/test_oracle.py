"""Verdicts of the performance oracle: published check vectors, precedence, noise and files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import BadInput
from penstock.parts.conformity.comparison import (
    NOISY,
    OK,
    SLOW,
    TOO_FAST,
    UNSTABLE,
    evaluate,
    evaluate_all,
)
from penstock.parts.conformity.expected import Expectation, Expected, read_expected

ROW = Expected("client", "write", "client_time", 10.0, "s", None, 0.1)


def sample(mean: float, sd: float, n: int = 15) -> list[float]:
    """`n` values with exactly this mean and standard deviation."""
    values = np.linspace(-1, 1, n)
    values = (values - values.mean()) / values.std(ddof=1)
    return list(mean + sd * values)


@pytest.mark.parametrize(
    ("mean", "sd", "verdict"),
    [(10.4, 0.3, OK), (12.5, 0.6, SLOW), (8.5, 0.2, TOO_FAST), (10.9, 2.5, NOISY)],
)
def test_check_vectors(mean: float, sd: float, verdict: str) -> None:
    result = evaluate(ROW, sample(mean, sd))
    assert result.verdict == verdict
    assert bool(result.note) == (verdict != OK)


def test_gap_and_half_width_of_the_first_vector() -> None:
    result = evaluate(ROW, sample(10.4, 0.3))
    assert result.gap == pytest.approx(0.04)
    assert result.half == pytest.approx(0.0166, abs=5e-5)


def test_up_to_four_times_the_variance_is_stable() -> None:
    steady = Expected("client", "write", "client_time", 10.0, "s", 0.01)
    assert evaluate(steady, sample(10.0, 0.199)).verdict == OK
    result = evaluate(steady, sample(10.0, 0.201))
    assert result.verdict == UNSTABLE
    assert result.variance_ratio == pytest.approx(4.04, abs=0.01)


def test_expected_variance_of_zero() -> None:
    exact = Expected("client", "write", "client_time", 10.0, "s", 0.0)
    assert evaluate(exact, [10.0] * 15).verdict == OK
    assert evaluate(exact, sample(10.0, 0.01)).verdict == UNSTABLE


def test_precedence_of_verdicts() -> None:
    steady = Expected("client", "write", "client_time", 10.0, "s", 1e-6)
    assert evaluate(steady, sample(14.0, 3.0)).verdict == SLOW  # also noisy, also unstable
    assert evaluate(steady, sample(11.0, 3.0)).verdict == NOISY  # also unstable


def test_higher_is_better() -> None:
    rate = Expected("t01", "run", "bandwidth", 10.0, "MiB/s", higher_is_better=True)
    assert evaluate(rate, sample(8.5, 0.2)).verdict == SLOW
    assert evaluate(rate, sample(12.5, 0.6)).verdict == TOO_FAST


def test_too_few_trials_are_noisy_or_slow() -> None:
    assert evaluate(ROW, sample(10.0, 0.1, 5), at_least=15).verdict == NOISY
    assert evaluate(ROW, sample(13.0, 0.1, 5), at_least=15).verdict == SLOW
    with pytest.raises(BadInput, match=r"found 1 trial; expected 15"):
        evaluate(ROW, [10.0], at_least=15)


def test_note_has_the_number_of_further_trials() -> None:
    noisy = sample(10.9, 2.5)
    assert "about 97 trials would do" in evaluate(ROW, noisy).note
    assert "make 45 more trials, 60 at most" in evaluate(ROW, noisy, at_most=60).note
    assert "after 15 trials" in evaluate(ROW, noisy, at_most=15).note


def test_note_does_not_suggest_thousands_of_trials() -> None:
    note = evaluate(ROW, sample(10.9, 12.0)).note
    assert "trials would do" not in note
    assert re.search(r"; 200 trials would still leave 1\d %: make each trial longer", note)


def test_row_with_its_own_tolerance() -> None:
    assert evaluate(ROW, sample(12.0, 0.1)).verdict == SLOW
    loose = Expected("client", "write", "client_time", 10.0, "s", None, 0.25)
    assert evaluate(loose, sample(12.0, 0.1)).verdict == OK


def test_unmeasured_row() -> None:
    other = Expected("client", "read", "client_time", 1.0)
    measured = {ROW.key: sample(10.0, 0.1)}
    with pytest.raises(
        BadInput, match=r"client_time of client/read.*not measured; found client_time"
    ):
        evaluate_all(Expectation("e", (ROW, other)), measured)
    # a prediction may have more rows than a benchmark, but shares at least one
    assert len(evaluate_all(Expectation("p", (ROW, other), every_row=False), measured)) == 1
    with pytest.raises(BadInput):
        evaluate_all(Expectation("p", (other,), every_row=False), measured)


def test_slowdown_is_detected_in_noisy_runs() -> None:
    """Flags at least 19 of 20 runs at +15 %, none at +5 % and at most 1 at 0 %."""
    random = np.random.default_rng(20)

    def flagged(slower: float, cv: float) -> int:
        runs = [random.gamma(1 / cv**2, 10.0 * slower * cv**2, 15) for _ in range(20)]
        return sum(evaluate(ROW, list(run), at_least=15).verdict != OK for run in runs)

    for cv in (0.01, 0.02, 0.035):
        assert flagged(1.15, cv) >= 19
        assert flagged(1.05, cv) == 0
        assert flagged(1.0, cv) <= 1


FILE = b"""penstock_expected: 1
name: suite
tolerance: 8%
trials: {at_least: 6}
rows:
  - {module: client, operation: write, predicted: 12.5, unit: ms, variance: 0.5}
  - {module: storage, operation: write, metric: rate, predicted: 3, unit: MiB/s, tolerance: 20%}
evidence:
  - {module: manager, operation: open, lock_wait_share: 5%, p99_over_p50: 1.5}
"""


def test_file_is_read() -> None:
    expectation = read_expected(FILE, Path("e.yaml"))
    first, second = expectation.rows
    assert (first.metric, first.unit, first.variance, first.tolerance) == (
        "client_time",
        "ms",
        0.5,
        0.08,
    )
    assert (second.tolerance, second.higher_is_better) == (0.2, True)
    assert (expectation.at_least, expectation.at_most) == (6, None)
    assert expectation.of("manager", "open").lock_wait_share == 0.05
    assert expectation.of("manager", "close").p99_over_p50 is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"expected: 1", b"expected: 2", r"e.yaml:1:20: found 2; expected 1, the only version"),
        (b"12.5", b"0", r"found 0; expected a number of at least 1e-30"),
        (b"12.5", b".inf", r"expected"),
        (b"unit: ms", b"unit: milliseconds", r"found 'milliseconds'; expected a unit"),
        (b"8%", b"0%", r"expected a share above 0 %"),
        (b"8%", b"0.08", r"expected a share in percent"),
        (b"at_least: 6", b"at_least: 6, at_most: 3", r"found 3; expected at least as many"),
        (
            b"operation: write, predicted",
            b"operaton: write, predicted",
            r"did you mean 'operation'",
        ),
        (b"storage, operation: write, metric: rate", b"client, operation: write", r"a second time"),
        (FILE, b"- 1\n", r"found no mapping"),
    ],
)
def test_errors_in_a_file_have_a_position(old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_expected(FILE.replace(old, new), Path("e.yaml"))
