"""The studentised range, compared with scipy's adaptive integrals and with the t distribution."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from penstock.analyse.statistics.multiple_tests import quantile, tail


@pytest.mark.parametrize("means", [3, 8, 64])
@pytest.mark.parametrize("df", [1, 1.5, 3.7, 12, 120])
@pytest.mark.parametrize("level", [0.05, 0.001])
def test_the_quantile_has_its_tail_probability(means: int, df: float, level: float) -> None:
    q = quantile(level, means, df)
    assert float(stats.studentized_range.sf(q, means, df)) == pytest.approx(level, rel=2e-6)


@pytest.mark.parametrize("df", [2, 30, 1e8])
def test_two_means_equal_a_t_test(df: float) -> None:
    q = 3.1
    pair = 2 * float(stats.t.sf(q / math.sqrt(2), df))
    assert tail(q, 2, df) == pytest.approx(pair, rel=1e-6)


def test_many_means_with_one_degree_of_freedom_have_a_quantile() -> None:
    assert tail(quantile(1e-5, 300, 1), 300, 1) == pytest.approx(1e-5, rel=1e-6)
