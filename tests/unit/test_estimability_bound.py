"""A cheap lower bound that proves all terms of balanced designs estimable."""

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
    """Fails if a circle or the coupling is omitted: the bound then exceeds an eigenvalue."""
    random = np.random.default_rng(31)
    positive = 0
    for _ in range(300):
        n, first = int(random.integers(3, 12)), int(random.integers(1, 3))
        x = np.eye(40)[:, :n] + random.choice([0.005, 0.05, 0.3]) * random.normal(size=(40, n))
        x /= np.linalg.norm(x, axis=0)
        bound = _least_bound(x.T @ x, first)
        assert bound <= np.linalg.eigvalsh(x.T @ x)[0] + 1e-12
        positive += bound > 0
    assert 50 < positive < 300  # the bound is positive for some matrices, not for all


def test_the_bound_of_orthogonal_and_of_dependent_columns() -> None:
    assert _least_bound(np.eye(7), 4) == pytest.approx(1.0)
    dependent = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert _least_bound(dependent, 2) <= 0
    assert _least_bound(dependent[::-1, ::-1], 1) <= 0
    assert _least_bound(dependent, 3) <= 0


def test_aliased_terms_are_detected() -> None:
    """Lost runs alias two terms: the bound must not classify them as estimable."""
    factors = {"a": "{levels: [1, 2]}", "b": "{levels: [1, 2]}"}
    plan = make_plan(
        read_study(
            study_text(factors, "{kind: full, replicates: 3}").encode(), Path("x.study.yaml")
        )
    )
    random = np.random.default_rng(2)
    runs = table_of(plan, {r.run_id: 10 + random.normal() for r in plan.rows})
    assert effects(runs, plan, "took").set_index("term")["coefficient"].drop(
        ["block", "residual"]
    ).notna().all()  # fmt: skip
    same = runs[runs["a"] == runs["b"]]
    table = effects(same, plan, "took").set_index("term")
    assert table.loc[["a", "b"], "coefficient"].isna().any()


def test_an_unknown_level_is_named() -> None:
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
    for unknown in ("z", None):
        broken = runs.assign(b=[*runs["b"][:-1], unknown])
        with pytest.raises(PenstockError, match="is no level of b"):
            numbers(broken, plan)
