"""Texts about degenerate data contain no `nan` and no `inf`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.findings.answer import answering
from penstock.analyse.findings.findings import findings
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.scale import usual_scale
from penstock.analyse.treatments.means import ranked_lines
from penstock.design.plan import make_plan
from penstock.design.planned import PlannedRun
from penstock.design.show import plan_text
from penstock.errors import PenstockError
from penstock.report import methods, sections
from tests.unit.test_spread import study_of

DEGENERATE: dict[str, Callable[[PlannedRun, Any], float]] = {
    "all alike": lambda r, d: 5.0,
    "all zero": lambda r, d: 0.0,
    "no noise": lambda r, d: 1.0 + 2 * (r.levels["a"] == "x") + (r.levels["b"] == "lo"),
    "negative": lambda r, d: -5.0 + d.normal(),
    "zero and not": lambda r, d: 0.0 if r.levels["a"] == "x" else 3.0 + d.normal(),
    "one level missing": lambda r, d: np.nan if r.levels["a"] == "x" else 3.0 + d.normal(),
    "infinite": lambda r, d: np.inf if r.levels["a"] == "x" else 3.0 + d.normal(),
    "one run": lambda r, d: 3.0 if r.run_order == 1 else np.nan,
    "two of one treatment": lambda r, d: 3.0 + d.normal() if r.standard_order == 1 else np.nan,
    "tiny": lambda r, d: 1e-300 * (2 + d.normal() ** 2),
    "huge": lambda r, d: 1e300 * (2 + d.normal() ** 2),
    "far apart": lambda r, d: 10.0 ** (r.run_order * 20 - 100),
}
DESIGNS = [
    "{kind: full, replicates: 1}",
    "{kind: full, replicates: 2}",
    "{kind: full, replicates: 3, order: random}",
]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("case", DEGENERATE)
def test_no_text_of_degenerate_data_has_nan(case: str, design: str) -> None:
    study = study_of({"a": "{levels: [w, x]}", "b": "{levels: [lo, hi]}"}, design)
    plan, draws = make_plan(study), np.random.default_rng(1)
    runs = pd.DataFrame(
        {
            "run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate, **r.levels,
            "took": DEGENERATE[case](r, draws), "valid": True,
        }
        for r in plan.rows
    )  # fmt: skip
    try:
        table = effects(runs, plan, "took", scale=usual_scale(runs, "took"))
    except PenstockError:
        table = None
    document = {
        "question": "Does a matter?",
        "responses": {"took": {"unit": "s", "better": "lower"}},
    }
    outcome = Outcome(Path("."), plan.to_json(), document, runs, table, None, None)
    results = findings(outcome)
    texts = [plan_text(plan, study), *plan.cautions, *ranked_lines(outcome)]
    texts += [t for f in results for t in (f.statement, f.detail, f.what_to_do)]
    texts += [f.statement for f in answering(outcome, results)]
    texts += [str(methods.methods(outcome)), str(sections.ranked(outcome))]
    texts += [str(sections.anova(outcome)), str(sections.level_means(outcome))]
    texts += [
        str(sections.all_runs(outcome)),
        str(sections.costs_table(outcome, sections.cost_of_main(outcome))),
    ]
    for text in texts:
        assert not re.search(r"(?<![\w.])[-−+]?(nan|inf|NaN|Infinity)(?!\w)", text), text
