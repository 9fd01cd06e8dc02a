"""Rankings of means: ties, and a family-wise error rate of at most 5 % over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from penstock.analyse.treatments.ranking import Measured, order, welch
from penstock.errors import BadInput

#: mean and standard deviation [s] of five runs of four programs on six storages (IOStack D2.1, table 3.3a)
STORAGES = ("guest", "host", "host-volume", "remote", "remote-volume", "object")
TABLE = {
    "WordCount": (
        (222.33, 2.50), (218.96, 3.57), (231.65, 17.52), (221.08, 3.31), (284.61, 14.13), (803.88, 51.99),
    ),
    "DFSIO": (
        (180.87, 3.21), (199.54, 4.13), (413.04, 50.74), (186.28, 4.07), (393.39, 67.34), (2348.06, 233.48),
    ),
    "TPC-DS": (
        (2376.33, 24.39), (5939.94, 9.79), (3916.68, 135.43), (4999.28, 12.76), (4218.30, 129.09),
        (41181.35, 1773.68),
    ),
    "Clustering": (
        (406.39, 9.74), (419.88, 8.45), (288.40, 12.45), (408.57, 12.63), (433.15, 6.87), (1675.92, 71.62),
    ),
}  # fmt: skip


def measured(program: str) -> list[Measured]:
    return [Measured(n, m, s, 5) for n, (m, s) in zip(STORAGES, TABLE[program], strict=True)]


def test_local_storages_are_a_tie_for_word_count() -> None:
    ranking = order(measured("WordCount"))
    pair = ranking.pair("guest", "host")
    assert abs(pair.difference) == pytest.approx(3.37)
    assert pair.p_value == pytest.approx(0.13, abs=0.005)
    assert not pair.apart
    assert {"guest", "host", "remote"} <= set(ranking.groups[0])
    assert str(ranking).startswith("1-4: host = remote = guest")


@pytest.mark.parametrize("program", TABLE)
def test_the_object_store_is_alone_in_last_place(program: str) -> None:
    ranking = order(measured(program))
    last = ranking.places[-1]
    assert last.measured.name == "object"
    assert (last.rank_low, last.rank_high) == (6, 6)
    assert ranking.groups[-1] == ["object"]
    assert all(p.apart for p in ranking.pairs if "object" in (p.first, p.second))


def test_welch_equals_scipy_and_holm_equals_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(5)
    values = {
        n: rng.normal(m, s, k) for n, m, s, k in (("a", 9, 1, 4), ("b", 10, 3, 7), ("c", 13, 1, 5))
    }
    ranking = order([Measured.of(n, v.tolist()) for n, v in values.items()])
    raw = [
        stats.ttest_ind(values[p.first], values[p.second], equal_var=False) for p in ranking.pairs
    ]
    assert np.allclose([p.p_value for p in ranking.pairs], [r.pvalue for r in raw], rtol=1e-10)
    assert np.allclose([p.df for p in ranking.pairs], [r.df for r in raw], rtol=1e-10)
    adjusted = multipletests([r.pvalue for r in raw], method="holm")[1]
    assert np.allclose([p.p_holm for p in ranking.pairs], adjusted, rtol=1e-10)


def test_equal_means_differ_in_at_most_five_per_cent_of_cases() -> None:
    rng = np.random.default_rng(11)
    false_positives = 0
    for _ in range(400):
        ranking = order(
            [
                Measured.of(n, rng.normal(0, s, 5).tolist())
                for n, s in zip("abcd", (1, 1, 3, 9), strict=True)
            ]
        )
        false_positives += any(p.apart for p in ranking.pairs)
    # exceeded with a probability of 0.1 % if the rate is 5 %
    assert false_positives <= stats.binom.ppf(0.999, 400, 0.05)
    planted = order([Measured("a", 0, 1, 5), Measured("b", 4, 1, 5)])
    assert planted.pairs[0].apart


def test_a_mean_may_be_in_two_groups() -> None:
    ranking = order(
        [Measured("a", 0, 1, 4), Measured("b", 1.6, 1, 4), Measured("c", 3.2, 1, 4)], "higher"
    )
    assert ranking.groups == [["c", "b"], ["b", "a"]]
    assert [(p.rank_low, p.rank_high) for p in ranking.places] == [(1, 2), (1, 3), (2, 3)]


def test_means_that_cannot_be_ranked_are_refused() -> None:
    with pytest.raises(BadInput, match="of 1 runs"):
        order([Measured("a", 1, 0, 1)])
    with pytest.raises(BadInput, match="found a name twice"):
        order([Measured("a", 1, 0, 2)] * 2)
    assert welch(Measured("a", 1, 0, 2), Measured("b", 2, 0, 2))[1] == 0.0
