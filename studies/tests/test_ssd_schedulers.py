"""Claims on I/O schedulers: equal rates meet them, lower or few ones do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies import ssd_schedulers
from studies.claims import Result, status
from studies.ssd_schedulers import PATTERNS, SCHEDULERS, Rate, claims_of, difference


def runs(noise: float = 0.005, replicates: int = 5) -> list[Rate]:
    draws = np.random.default_rng(2)
    return [
        Rate(scheduler, pattern, 5.6 * float(np.exp(draws.normal(0, noise))))
        for scheduler in SCHEDULERS
        for pattern in PATTERNS
        for _ in range(replicates)
    ]


def test_equal_rates_meet_every_claim_and_lower_ones_are_reported() -> None:
    claims = claims_of(runs())
    assert len(claims) == 12
    assert {claim.result for claim in claims} == {Result.MET}
    assert status(claims) == 0
    assert ssd_schedulers.planted(runs()) is True
    slow = [replace(r, bandwidth=4.5) if r.scheduler == "bfq" else r for r in runs()]
    results = {(claim.of, claim.wording.split(":")[0]): claim.result for claim in claims_of(slow)}
    assert {results[p, "bfq"] for p in PATTERNS} == {Result.NOT_MET}
    assert {results[p, "kyber"] for p in PATTERNS} == {Result.MET}


def test_noise_leaves_a_difference_undecided() -> None:
    results = {claim.result for claim in claims_of(runs(noise=0.2))}
    assert Result.MET not in results
    assert Result.UNDECIDED in results
    assert ssd_schedulers.planted(runs(noise=0.2)) is None


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_removed_treatment_is_not_measured(scheduler: str) -> None:
    rest = [r for r in runs() if (r.scheduler, r.pattern) != (scheduler, "randread")]
    missing = [claim for claim in claims_of(rest) if claim.result is Result.NOT_MEASURED]
    assert len(missing) == (3 if scheduler == "none" else 1)
    assert {claim.missing for claim in missing} == {(f"{scheduler} randread",)}
    assert {claim.result for claim in claims_of([])} == {Result.NOT_MEASURED}
    single = claims_of(runs(replicates=1))
    assert {claim.result for claim in single} == {Result.NOT_MEASURED}


def test_rates_that_do_not_differ_at_all_have_an_interval_of_no_width() -> None:
    assert difference([5.0, 5.0], [5.0, 5.0]) == (0.0, 0.0, 0.0)
    value, low, high = difference([9.0, 9.1, 8.9], [10.0, 10.1, 9.9])
    assert value == pytest.approx(-0.1, abs=0.001)
    assert low < value < high < 0
