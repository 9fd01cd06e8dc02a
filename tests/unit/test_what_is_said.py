"""Answers to studies with a known truth: no difference between identical treatments, and real ones.

The tables are simulated, without runs; the answer is that of `penstock analyse`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from penstock.analyse.findings.answer import answering
from penstock.analyse.findings.effect_findings import costs
from penstock.analyse.findings.effect_findings import effects as of_effects
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.findings import findings
from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.aliased import active_terms
from penstock.analyse.sequential.identical import identical
from penstock.analyse.statistics import significance
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import Fit, fitted
from penstock.analyse.statistics.significance import is_sure, limits, of_pairs, of_several
from penstock.analyse.treatments.costs import factor_cost
from penstock.analyse.treatments.means import ranking
from penstock.analyse.treatments.recommend import best
from penstock.campaign.analysis import analyse
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, plan_from_json
from penstock.report import figures
from penstock.report.methods import methods
from penstock.report.style import NotDrawn
from penstock.study.load import read_study
from tests.unit.recorded_study import record, refitted, study_text

LEVELS = "{levels: [x, z]}"
Draws = np.random.Generator
#: log of a run's value as a function of its levels
Truth = Callable[[dict[str, str]], float]
NOISE = 0.05
#: first words of sentences that name a difference
LEADS = ("Yes:", "It depends:", "A little:", "Choose ")
#: findings that name a difference by themselves
DIFFERENCES = ("effect-dominant", "effect-interaction")


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of study: its factors, its design and its question."""

    name: str
    factors: dict[str, str]
    design: str
    question: str = "Does a cost anything?"


KINDS = [
    Kind("2^3 r=3", dict.fromkeys("abc", LEVELS), "{kind: full, replicates: 3}"),
    Kind("2^4 r=2", dict.fromkeys("abcd", LEVELS), "{kind: full, replicates: 2}"),
    Kind("2^(6-2) r=2", dict.fromkeys("abcdef", LEVELS), "{kind: {fraction: 2}, replicates: 2}"),
    Kind(
        "3x2 r=3", {"a": "{levels: [p, q, s]}", "b": LEVELS}, "{kind: full, replicates: 3}",
        "Which is fastest?",
    ),
    Kind("two x20", {"a": LEVELS}, "{kind: full, replicates: 20}", "Does a make any difference?"),
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SimulatedStudy:
    """A study with a plan; the values of its runs are simulated."""

    outcome: Outcome
    plan: Plan
    #: fit of the recorded values
    fit: Fit

    def study(self, seed: int, truth: Truth | None = None, noise: float = NOISE) -> Outcome:
        """The study with newly drawn values."""
        rng = np.random.default_rng([20261126, seed])
        runs = self.outcome.runs
        assert runs is not None
        level = [truth(row) for row in runs.to_dict("records")] if truth else 0.0
        values = runs.assign(y=100 * np.exp(np.array(level) + rng.normal(0, noise, len(runs))))
        fit = refitted(self.fit, values["y"].to_numpy(), self.plan)
        table = effects(values, self.plan, "y", fit=fit)
        return dataclasses.replace(self.outcome, runs=values, effects=table)


def simulated(kind: Kind, place: Path) -> SimulatedStudy:
    text = study_text(kind.factors, kind.design).replace(
        "question: Which?", f"question: {kind.question}"
    )
    out = record(place, text, lambda row: {"y": 100.0 + row.run_order})
    from penstock.campaign.analysis import analyse

    analyse(out, report=False)
    outcome = Outcome.read(out)
    plan = plan_from_json(outcome.plan)
    assert outcome.runs is not None
    return SimulatedStudy(outcome, plan, fitted(outcome.runs, plan, "y"))


@pytest.fixture(scope="module", params=KINDS, ids=[k.name for k in KINDS])
def study(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SimulatedStudy:
    return simulated(request.param, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def two_cubed(tmp_path_factory: pytest.TempPathFactory) -> SimulatedStudy:
    return simulated(KINDS[0], tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def two_to_the_fourth(tmp_path_factory: pytest.TempPathFactory) -> SimulatedStudy:
    return simulated(KINDS[1], tmp_path_factory.mktemp("made"))


def answer_of(outcome: Outcome) -> list[Finding]:
    """The answer without findings from other tables, with the order and choice of the report."""
    return answering(outcome, [*costs(outcome), *best(outcome), *of_effects(outcome)])


def statements(outcome: Outcome) -> list[str]:
    """Statements of the answer."""
    return [f.statement for f in answer_of(outcome)]


def differences(answer: list[Finding]) -> list[str]:
    """Statements of the answer that name a difference."""
    return [f.statement for f in answer if f.statement.startswith(LEADS) or f.code in DIFFERENCES]


def leads(outcome: Outcome) -> list[str]:
    """Statements that name a difference, and treatments that are called worse."""
    lines = differences(answer_of(outcome))
    worse = ranking(outcome, outcome.responses[0]).of("worse")
    return [*lines, *(f"worse: {t.treatment_id}" for t in worse)]


def at_most(hits: int, total: int, share: float) -> bool:
    """True if the rate of hits is compatible with `share` (99 %, Clopper and Pearson)."""
    return not hits or float(stats.beta.ppf(0.005, hits, total - hits + 1)) <= share


def test_identical_treatments_show_no_difference(study: SimulatedStudy) -> None:
    studies = 300
    false = sum(bool(leads(study.study(seed))) for seed in range(studies))
    assert at_most(false, studies, significance.LEVEL)
    # planted: without adjustment, studies of several terms name more
    raw = sum(bool((study.study(seed).effects["p_value"] < 0.05).any()) for seed in range(60))
    assert len(study.plan.factors) < 3 or not at_most(raw, 60, significance.LEVEL)


def test_the_complete_answer_has_the_same_differences(two_cubed: SimulatedStudy) -> None:
    outcome = two_cubed.study(1, lambda v: 0.4 * (v["a"] == "z"))
    complete = answering(outcome, findings(outcome))
    assert differences(complete) == differences(answer_of(outcome))


def test_a_planted_effect_is_detected_with_the_predicted_power(
    two_to_the_fourth: SimulatedStudy,
) -> None:
    """One effect of 2^4 with two passes: 15 degrees of freedom, level 0.05 / 15."""
    runs, df, terms = 32, 15, 15
    size = 4.5  # standard errors of the effect
    effect = size * 2 * NOISE / np.sqrt(runs)
    limit = stats.t.ppf(1 - 0.05 / (2 * terms), df)
    power = stats.nct.sf(limit, df, size) + stats.nct.cdf(-limit, df, size)
    assert 0.6 < power < 0.9
    studies = 200
    detected = 0
    for seed in range(studies):
        outcome = two_to_the_fourth.study(seed, lambda v: effect * (v["a"] == "z"))
        answer = statements(outcome)
        # "A little" is below a tenth; the response is a time, so a higher value is worse
        detected += answer[0].startswith(("Yes:", "A little:", "It depends:"))
    error = np.sqrt(power * (1 - power) / studies)
    assert abs(detected / studies - power) < 3.5 * error + 0.02


def test_a_large_effect_is_reported_everywhere(study: SimulatedStudy) -> None:
    """Ten standard deviations of a run, in every kind of study and every sentence."""
    for seed in range(20):
        levels = study.outcome.factor("a").levels
        outcome = study.study(seed, lambda v, last=levels[-1]: 0.5 * (v["a"] == last))  # type: ignore[misc]
        assert leads(outcome)
        assert ranking(outcome, outcome.responses[0]).of("worse")
        assert "a" in significance.sure_terms(outcome, "y")


def near_the_limit(study: SimulatedStudy, studies: int) -> Iterator[Outcome]:
    """Studies whose effect is detected about every second time."""
    for seed in range(studies):
        yield study.study(seed, lambda v: 0.066 * (v["a"] == "z"))


def test_equal_runs_have_no_bound_of_an_effect(tmp_path: Path) -> None:
    """Runs that all took 5 s, by a clock of seconds: an effect "may still be up to 0 s"."""
    text = study_text(dict.fromkeys("AB", "{levels: [x, y]}"), "{kind: full, replicates: 3}")
    analysis = analyse(record(tmp_path, text, lambda _: {"y": 5.0}), report=False)
    (finding,) = (f for f in analysis.findings if f.code == "effect-none")
    assert finding.statement == "No effect of A or B on y shows."
    text = methods(analysis.tables)[1]
    assert "the root mean square error is 0 s of runs (6 degrees of freedom)" in text
    assert "would have been found" not in text


@pytest.mark.filterwarnings("error")
def test_figures_of_equal_runs_are_not_drawn(tmp_path: Path) -> None:
    text = study_text(dict.fromkeys("ABC", "{levels: [x, y]}"), "{kind: full, replicates: 3}")
    outcome = analyse(record(tmp_path, text, lambda _: {"y": 5.0}), report=False).tables
    for kind, reason in (("half-normal", "all effects on y are 0"), ("residuals", "all residuals")):
        with pytest.raises(NotDrawn, match=reason):
            figures.BY_RESPONSE[kind](outcome, outcome.responses[0], 6.0)


def test_no_sentence_contradicts_another(
    two_cubed: SimulatedStudy, two_to_the_fourth: SimulatedStudy
) -> None:
    seen: set[bool] = set()
    for outcome in [*near_the_limit(two_cubed, 40), *near_the_limit(two_to_the_fourth, 40)]:
        significant = significance.shows(outcome, "y")
        seen.add(bool(significant))
        codes = {f.code for f in of_effects(outcome)}
        answer = " ".join(statements(outcome))
        assert ("effect-none" in codes) is not significant
        assert bool(active_terms(outcome, "y")) is significant
        counted = len(significance.sure_terms(outcome, "y"))
        paragraph = methods(outcome)[1]
        assert f"terms {counted} are significant at 5 %, all tested together (Holm)" in paragraph
        if not significant:
            assert not leads(outcome)
            assert "reduces it" not in answer
        else:
            assert (
                "no treatment is shown to be the best" not in answer
                or "has a clear effect" in answer
            )
        cost = factor_cost(outcome, outcome.responses[0], "a")
        assert cost is not None
        assert cost.average.sure is bool(significance.term_is_sure(outcome, "y", "a"))
        if cost.average.sure:
            assert "cannot be distinguished in any" not in answer
    assert seen == {True, False}


def test_pareto_and_half_normal_plot_the_limit_of_the_text(
    two_to_the_fourth: SimulatedStudy,
) -> None:
    with_several = 0
    for seed in range(30):
        outcome = two_to_the_fourth.study(
            seed, lambda v: 0.08 * (v["a"] == "z") + 0.06 * (v["b"] == "z")
        )
        table = outcome.effects
        assert table is not None
        terms = table[outcome.is_effect(table["term"])]
        beyond = terms["effect"].abs() > limits(terms)
        assert (beyond == is_sure(terms)).all()
        with_several += int(is_sure(terms).sum() > 1)
        if seed:
            continue
        for kind in ("pareto", "half-normal"):
            fig: Figure = figures.draw(outcome, kind, 7.2)
            (axes,) = fig.axes
            (line,) = [k for k in axes.lines if str(k.get_label()).startswith("limit")]
            expected = 1.0 if kind == "half-normal" else float(limits(terms).iloc[0])
            assert line.get_xdata()[0] == pytest.approx(expected)
    assert with_several


def test_without_replicates_lenths_simultaneous_margin_is_the_line(tmp_path: Path) -> None:
    single = simulated(
        Kind("2^4 r=1", dict.fromkeys("abcd", LEVELS), "{kind: full, replicates: 1}"), tmp_path
    )
    outcome = single.study(3, lambda v: 0.7 * (v["a"] == "z"))
    table = outcome.effects
    assert table is not None
    terms = table[outcome.is_effect(table["term"])]
    from penstock.analyse.statistics.effect_table import lenth

    sme = lenth(terms["effect"].tolist()).sme
    assert limits(terms).to_numpy() == pytest.approx(sme)
    assert list(is_sure(terms)) == list(terms["effect"].abs() > sme)
    assert "a" in set(terms.loc[is_sure(terms), "term"])


def test_effects_of_two_strata_have_separate_limits(tmp_path: Path) -> None:
    split = simulated(
        Kind(
            "split-plot",
            {"w": "{levels: [x, z], change: redeploy}", "a": LEVELS, "b": LEVELS},
            "{kind: full, replicates: 6, order: split-plot}",
        ),
        tmp_path,
    )
    outcome = split.study(2, lambda v: 0.3 * (v["a"] == "z"))
    table = outcome.effects
    assert table is not None
    terms = table[outcome.is_effect(table["term"])].set_index("term")
    assert (terms["effect"].abs() > limits(terms)).equals(is_sure(terms))
    assert limits(terms)["w"] != pytest.approx(limits(terms)["a"])
    fig = figures.draw(outcome, "pareto", 7.2)
    assert any(k.get_label() == "limit of each" for k in fig.axes[0].collections)


def test_passes_are_not_in_the_error_of_treatments(tmp_path: Path) -> None:
    """A common shift of a pass neither hides a difference of two systems nor creates one."""
    pair = simulated(KINDS[-1], tmp_path)
    drift = {str(i): 0.4 * np.sin(i) for i in range(1, 21)}
    outcome = pair.study(4, lambda v: drift[str(v["replicate"])] + 0.08 * (v["a"] == "z"))
    assert ranking(outcome, outcome.responses[0]).of("worse")
    same = pair.study(4, lambda v: drift[str(v["replicate"])])
    assert not ranking(same, same.responses[0]).of("worse")


def test_treatments_of_unequal_spread_are_compared_with_separate_variances(tmp_path: Path) -> None:
    """A pooled variance would hide the difference of the two narrow treatments."""
    three = simulated(
        Kind("three", {"a": "{levels: [p, q, s]}"}, "{kind: full, replicates: 12}", "Which?"),
        tmp_path,
    )
    runs = three.outcome.runs
    assert runs is not None
    rng = np.random.default_rng(1)
    spread = runs["a"].map({"p": 0.002, "q": 0.002, "s": 0.4}).to_numpy(float)
    shift = runs["a"].map({"p": 0.0, "q": 0.02, "s": 0.9}).to_numpy(float)
    values = runs.assign(y=100 * np.exp(shift + spread * rng.normal(size=len(runs))))
    outcome = dataclasses.replace(
        three.outcome, runs=values, effects=effects(values, three.plan, "y")
    )
    ranked = ranking(outcome, outcome.responses[0])
    assert ranked.differences.unequal
    by_level = {t.levels["a"]: t.verdict for t in ranked.treatments}
    assert by_level == {"p": "best", "q": "worse", "s": "worse"}


def test_quantiles() -> None:
    """Tukey's table (3 means, 10 degrees of freedom: 3.877), and Šidák's bound."""
    assert of_pairs(3, 10) * np.sqrt(2) == pytest.approx(3.877, abs=1e-3)
    assert of_pairs(2, 10) == pytest.approx(stats.t.ppf(0.975, 10))
    assert of_several(1, 10) == pytest.approx(stats.t.ppf(0.975, 10))
    rng = np.random.default_rng(1)
    t = rng.normal(size=(200_000, 8)) / np.sqrt(rng.chisquare(16, 200_000) / 16)[:, None]
    beyond = float((np.abs(t).max(axis=1) > of_several(8, 16)).mean())
    assert 0.044 < beyond < 0.051


def test_terms_without_adjusted_values_are_adjusted() -> None:
    """A table of an earlier version has p-values without adjustment."""
    table = pd.DataFrame({"term": ["a", "b", "c"], "p_value": [0.02, 0.001, np.nan]})
    assert list(is_sure(table)) == [True, True, False]
    assert list(is_sure(table.assign(p_value=[0.03, 0.026, 0.4]))) == [False, False, False]
    adjusted: dict[str, Any] = dict(zip(table["term"], significance.adjusted(table), strict=True))
    assert adjusted["b"] == pytest.approx(0.002)


@pytest.mark.parametrize(
    "names", [["count", "mean"], ["index", "size", "values"], ["n", "method", "scale"], ["mean"]]
)
def test_factors_may_have_the_names_of_table_columns(names: list[str], tmp_path: Path) -> None:
    # planted: a factor named count ended an analysis with a traceback
    text = study_text(dict.fromkeys(names, LEVELS), "{kind: full, replicates: 3}")
    study = read_study(text.encode(), tmp_path / "names.study.yaml")
    assert identical(study, make_plan(study), 3).studies == 3


def test_treatments_of_unequal_spread_are_compared_on_the_log_scale(tmp_path: Path) -> None:
    """`wide` and `narrow` have equal geometric means; arithmetic ones (planted) differ beyond the limit."""
    rng = np.random.default_rng(6)
    wide = rng.normal(0, 1.2, 40)
    wide -= wide.mean()
    remaining = iter(wide)

    def value(row: Any) -> dict[str, float]:
        level = row.levels["a"]
        of_log = next(remaining) if level == "wide" else rng.normal(4.0 * (level == "far"), 0.05)
        return {"y": 10 * math.exp(of_log)}

    text = study_text({"a": "{levels: [wide, narrow, far]}"}, "{kind: full, replicates: 40}")
    out = record(tmp_path, text, value)
    analyse(out, report=False)
    outcome = Outcome.read(out)
    ranked = ranking(outcome, outcome.responses[0])
    by_level = {m.levels["a"]: m for m in ranked.treatments}
    widest, narrow, far = (by_level[n] for n in ("wide", "narrow", "far"))
    assert ranked.differences.unequal
    half = ranked.differences.half(str(widest.treatment_id), str(narrow.treatment_id))
    assert abs(math.log(widest.mean / narrow.mean)) > half
    assert not ranked.apart(widest, narrow)
    assert ranked.apart(narrow, far)
