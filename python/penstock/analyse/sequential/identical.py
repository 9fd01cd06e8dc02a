"""Simulated studies of identical treatments: rate of differences that a study's plan and analysis report.

Runs are sampled about one value for all treatments, with the variation that the study assumes
(`design.noise`). If several runs share a setting, half of the variance comes from the setting, as in the
planner. Each study is analysed as by `penstock analyse`: effects on the scale of the study, findings,
answer. Any reported difference is false (Abedi & Brecht, ICPE 2017, call such studies A/A).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from scipy import stats

from penstock.analyse.findings.answer import answering
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.findings import findings
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.scale import analysis_scale
from penstock.analyse.statistics.significance import is_sure
from penstock.analyse.treatments.costs import NO_COST, Cost
from penstock.analyse.treatments.means import ranking
from penstock.design.orders import SETTING_SHARE
from penstock.design.planned import Plan
from penstock.errors import BadInput, PenstockError
from penstock.scratch import Scratch
from penstock.spec.study import Study

#: maximum rate of studies with false differences
FALSE = 0.05
#: maximum total number of simulated runs
MOST_RUNS = 2_000_000
#: value of all runs without noise
_VALUE = 100.0
#: rows of the result, in order
ANSWER = "the answer names a difference"
HOLM = "an effect is called significant (Holm, all terms together)"
WORSE = "a treatment is called worse than the best"
SINGLE = "a single term is below 5 % (individually)"


@dataclass(frozen=True)
class Rate:
    """Rate of a report: `said` of `asked` studies, with its 95 % interval (Clopper and Pearson 1934)."""

    name: str
    said: int
    asked: int

    @property
    def rate(self) -> float:
        """The share."""
        return self.said / self.asked if self.asked else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        k, n = self.said, self.asked
        low = float(stats.beta.ppf(0.025, k, n - k + 1)) if k else 0.0
        high = float(stats.beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0
        return low, high

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        low, high = self.interval
        rate = self.rate if self.asked else None
        return {**vars(self), "rate": rate, "ci_low": low, "ci_high": high}


@dataclass(frozen=True)
class Identical:
    """The rates over all simulated studies, and the false differences, most frequent first."""

    studies: int
    noise: float
    rates: list[Rate]
    examples: list[str]

    @property
    def holds(self) -> bool:
        """True if no rate of complete studies is significantly above `FALSE`."""
        return all(r.interval[0] <= FALSE for r in self.rates if r.name != SINGLE)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "studies": self.studies,
            "noise": self.noise,
            "at_most": FALSE,
            "holds": self.holds,
            "rates": [r.to_json() for r in self.rates],
            "examples": self.examples,
        }


def identical(study: Study, plan: Plan, studies: int, seed: int = 1) -> Identical:
    """Simulate `studies` of the plan. BadInput for a plan without variation or with too many runs."""
    if study.design.noise <= 0:
        raise BadInput("found no variation between runs; expected design.noise above 0 %")
    if studies * len(plan.rows) > MOST_RUNS:
        most = MOST_RUNS // len(plan.rows)
        raise BadInput(f"--identical: found {studies} studies; expected at most {most} of these")
    counts = dict.fromkeys((ANSWER, HOLM, WORSE), 0)
    single = [0, 0]
    examples: dict[str, int] = {}
    with Scratch("identical") as place:
        empty = _without_runs(study, plan, place)
        for number in range(studies):
            draws = np.random.default_rng([seed, number])
            outcome = _with_responses(empty, study, plan, draws)
            answer = answering(outcome, findings(outcome))
            false = [f.statement for f in answer if names_difference(outcome, f)]
            counts[ANSWER] += bool(false)
            for statement in false[:1]:
                lead = statement.split(":")[0]
                examples[lead] = examples.get(lead, 0) + 1
            counts[WORSE] += any(_worse(outcome, r.name) for r in study.responses)
            if outcome.effects is not None:
                terms = outcome.effects[outcome.is_effect(outcome.effects["term"])]
                counts[HOLM] += bool(is_sure(terms).any())
                single[0] += int((terms["p_value"] < FALSE).sum())
                single[1] += int(terms["p_value"].notna().sum())
    rates = [Rate(name, count, studies) for name, count in counts.items()]
    often = sorted(examples, key=lambda e: -examples[e])
    return Identical(
        studies, study.design.noise, [*rates, Rate(SINGLE, single[0], single[1])], often[:3]
    )


def names_difference(outcome: Outcome, finding: Finding) -> bool:
    """True if a finding of the answer reports a difference between treatments."""
    if finding.code == "recommendation":
        return any(_worse(outcome, r.name) for r in outcome.responses[:1])
    if finding.code == "cost":
        cells = [Cost(**cell) for cell in finding.evidence["cells"]]
        return any(c.sure for c in cells) and max(c.farthest for c in cells) > NO_COST
    return finding.code in (
        "optimum",
        "effect-dominant",
        "effect-interaction",
        "responses-conflict",
    )


def _worse(outcome: Outcome, response: str) -> bool:
    unit = next(r for r in outcome.responses if r.name == response)
    return any(t.verdict == "worse" for t in ranking(outcome, unit).treatments)


def _without_runs(study: Study, plan: Plan, place: Path) -> Outcome:
    """The tables of a study of identical treatments before any measurement."""
    return Outcome(
        path=place,
        plan=plan.to_json(),
        study=YAML(typ="safe").load(study.source_text),
        runs=_runs(plan),
        effects=None,
        fidelity=None,
        predictions=None,
    )


def _with_responses(
    empty: Outcome, study: Study, plan: Plan, draws: np.random.Generator
) -> Outcome:
    """A study of identical treatments: all responses about one value, log-normal and thus above 0."""
    noise = study.design.noise
    measured = {r.name: _VALUE * np.exp(noise * _standard(plan, draws)) for r in study.responses}
    assert empty.runs is not None
    runs = empty.runs.assign(**measured)
    tables = []
    for response in study.responses:
        try:
            scale = analysis_scale(runs, study, response)
            tables.append(effects(runs, plan, response.name, scale=scale))
        except PenstockError:
            continue  # an analysis reports the reason
    return replace(
        empty, runs=runs, effects=pd.concat(tables, ignore_index=True) if tables else None
    )


def _runs(plan: Plan) -> pd.DataFrame:
    """The runs table without responses."""
    rows = [
        {
            "study_id": plan.study_id,
            "treatment_id": r.treatment_id,
            "run_id": r.run_id,
            "run_order": r.run_order,
            "replicate": r.replicate,
            "block_id": r.block,
            "stage": r.stage,
            "state": "finished",
            "valid": True,
            "reason": "",
            **r.levels,
        }
        for r in plan.rows
    ]
    return pd.DataFrame(rows)


def _standard(plan: Plan, draws: np.random.Generator) -> Any:
    """Noise of each run with variance 1, with a component of shared settings."""
    shared = ([r.whole_plot for r in plan.rows], [r.strip for r in plan.rows])
    parts = [np.array(labels) for labels in shared if any(labels)]
    own = 1 - SETTING_SHARE if parts else 1.0
    noise = math.sqrt(own) * draws.normal(size=len(plan.rows))
    for labels in parts:
        of_setting = draws.normal(size=int(labels.max()) + 1)
        noise = noise + math.sqrt(SETTING_SHARE / len(parts)) * of_setting[labels]
    return noise


def identical_lines(result: Identical) -> Iterator[str]:
    """The rates for a terminal."""
    yield (
        f"{result.studies} studies of identical treatments, by this plan and its analysis, runs varying by "
        f"{100 * result.noise:.1f} %:"
    )
    width = max(len(r.name) for r in result.rates)
    for one in result.rates:
        if not one.asked:  # without an error no term is tested
            continue
        low, high = one.interval
        yield (
            f"  {one.name:<{width}}  {100 * one.rate:5.1f} %  (95 % interval {100 * low:.1f} to "
            f"{100 * high:.1f} %)"
        )
    if result.examples:
        yield "  Most frequent false statements: " + "; ".join(result.examples)
    if result.holds:
        yield f"No rate of complete studies is above {100 * FALSE:.0f} % beyond chance."
    else:
        yield f"More than {100 * FALSE:.0f} % of the studies report a difference that does not exist."
