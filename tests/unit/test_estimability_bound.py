"""The cheap bound by which balanced designs are seen to determine all of their terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import _least_bound
from penstock.analyse.statistics.terms import numbers
from penstock.design.plan import make_plan
from penstock.errors import PenstockError
from penstock.study.load import read_study
from tests.unit.played_studies import table_of
from tests.unit.recorded_study import study_text


def test_no_eigenvalue_is_below_the_bound() -> None:
    """Breaks where a circle or the coupling is forgotten: then the bound lies above some eigenvalue."""
    drawn = np.random.default_rng(31)
    told = 0
    for _ in range(300):
        n, first = int(drawn.integers(3, 12)), int(drawn.integers(1, 3))
        x = np.eye(40)[:, :n] + drawn.choice([0.005, 0.05, 0.3]) * drawn.normal(size=(40, n))
        x /= np.linalg.norm(x, axis=0)
        bound = _least_bound(x.T @ x, first)
        assert bound <= np.linalg.eigvalsh(x.T @ x)[0] + 1e-12
        told += bound > 0
    assert 50 < told < 300  # it says something, and not always


def test_of_orthogonal_columns_it_is_exact_and_of_dependent_ones_it_says_nothing() -> None:
    assert _least_bound(np.eye(7), 4) == pytest.approx(1.0)
    twice = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert _least_bound(twice, 2) <= 0
    assert _least_bound(twice[::-1, ::-1], 1) <= 0
    assert _least_bound(twice, 3) <= 0


def test_terms_that_the_runs_mix_are_still_seen() -> None:
    """Lost runs that mix two terms: the bound must not let them pass for told apart."""
    factors = {"a": "{levels: [1, 2]}", "b": "{levels: [1, 2]}"}
    plan = make_plan(
        read_study(
            study_text(factors, "{kind: full, replicates: 3}").encode(), Path("x.study.yaml")
        )
    )
    drawn = np.random.default_rng(2)
    runs = table_of(plan, {r.run_id: 10 + drawn.normal() for r in plan.rows})
    assert effects(runs, plan, "took").set_index("term")["coefficient"].drop(
        ["block", "residual"]
    ).notna().all()  # fmt: skip
    same = runs[runs["a"] == runs["b"]]
    found = effects(same, plan, "took").set_index("term")
    assert found.loc[["a", "b"], "coefficient"].isna().any()


def test_a_level_that_is_none_is_named() -> None:
    factors = {"a": "{levels: [1, 2]}", "b": "{levels: [x, y]}"}
    plan = make_plan(
        read_study(
            study_text(factors, "{kind: full, replicates: 1}").encode(), Path("x.study.yaml")
        )
    )
    runs = pd.DataFrame([dict(r.levels) for r in plan.rows])
    by_hand = [
        [["1", "2"].index(r.levels["a"]), ["x", "y"].index(r.levels["b"])] for r in plan.rows
    ]
    assert numbers(runs, plan).tolist() == by_hand
    for strange in ("z", None):
        broken = runs.assign(b=[*runs["b"][:-1], strange])
        with pytest.raises(PenstockError, match="is no level of b"):
            numbers(broken, plan)
