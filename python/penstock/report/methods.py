"""Methods section: tests of effects, with the study's own numbers, for use in a paper."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics.effect_table import REML
from penstock.analyse.statistics.scale import LINEAR, LOG, SCALE_TEXTS
from penstock.analyse.statistics.significance import LENTH, LEVEL, is_sure
from penstock.analyse.treatments.means import ranking
from penstock.design.power import beyond
from penstock.text import first_of, listed, quantity, span, term_text

CAPTIONS = {
    "half-normal": "Half-normal quantiles over the sizes of the effects: those that are chance lie on a line "
    "through 0, below the limit.",
    "main-effects": "Mean at each level with its 95 % interval, averaged over the other factors.",
    "cube": "Means over all other factors at the corners of the three two-level factors that explain most.",
    "contour": "The surface fitted to the runs, over the two factors of numbers that explain most; the "
    "others are where the surface is best. Dots: settings that were run; star: the best of the surface.",
    "design": "Left: the level of each factor in each treatment (of two, open is the first; of more: ● ■ ▲ ◆ "
    "in their order); right: when it was run, by block.",
    "ledger": "Result of each run of the study, by its purpose, and the best so far.",
    "residuals": "Studentised residuals against fitted values and in running order: a funnel means that the "
    "spread depends on the value, a slope or wave that the host changed. Circled runs are far from the "
    "others; they are part of the analysis.",
}
#: maximum number of untested terms named
_MOST_UNTESTED = 5
_ORDERS = {
    "interleaved": "in complete passes, each in a fresh random order, with the pass as block of the model",
    "blocks": "in complete passes, each cut into blocks that are run in random order, runs within each in "
    "random order, with the block as that of the model",
    "random": "completely randomised",
    "standard": "in standard order, which is not randomised",
    "split-plot": "as a split-plot design in blocks, settings of {hard} being whole plots",
    "split-plot-random": "as a split-plot design without blocks, settings of {hard} being whole plots",
    "strip-plot": "as a strip-plot design in blocks, settings of {hard} crossing those of {strips}",
}


def methods(outcome: Outcome) -> list[str]:
    """Paragraphs on design, order and model, and on each response; none without effects."""
    if outcome.effects is None or outcome.runs is None or "method" not in outcome.effects:
        return []
    return [_design(outcome), *(_response(outcome, r.name) for r in outcome.responses)]


def _design(outcome: Outcome) -> str:
    runs = outcome.runs
    assert runs is not None
    plan = outcome.plan
    treatments = len({r["treatment_id"] for r in plan.get("rows") or []})
    valid, excluded = len(outcome.measured), len(runs) - len(outcome.measured)
    factors = [f"{term_text(f.name)} ({len(f.levels)} levels)" for f in outcome.factors]
    order = _ORDERS.get(str(plan.get("order")), "in the order of the plan").format(
        hard=listed([term_text(n) for n in plan.get("whole_plot_factors") or []]),
        strips=listed([term_text(n) for n in plan.get("strip_factors") or []]),
    )
    without = f"; {excluded} were left out as not valid" if excluded else ""
    counts = Counter(r["treatment_id"] for r in plan.get("rows") or []).values()
    replicates = span(str(min(counts)), str(max(counts))) if counts else "0"
    of = "replicate" if replicates == "1" else "replicates"
    return (
        f"{listed(factors)} were varied over {treatments} treatments of {replicates} {of}, "
        f"run {order} (seed {plan.get('seed')}). {valid} runs were analysed{without}."
    )


def _response(outcome: Outcome, name: str) -> str:
    assert outcome.effects is not None
    table = outcome.effects[outcome.effects["response"] == name]
    response = next(r for r in outcome.responses if r.name == name)
    if table.empty:
        return f"{name}: no effects could be worked out."
    scale = scale_of_effects(outcome, response)
    methods_used = set(table["method"].astype(str))
    terms = table[outcome.is_effect(table["term"])]
    tested = int(terms["p_value"].notna().sum())
    sure = int(is_sure(terms).sum())
    raw = int((terms["p_value"] < LEVEL).sum())
    bh = int((terms["p_bh"] < LEVEL).sum()) if "p_bh" in terms else 0
    by = "Holm"
    if REML in methods_used:
        how = (
            "by generalised least squares with random settings (restricted maximum likelihood, degrees of "
            "freedom after Satterthwaite, at most those of the settings)"
        )
    elif "lenth" in methods_used:
        how = (
            "by least squares, effects tested against each other (Lenth), there being no pure error"
        )
        if set(terms["method"][terms["p_value"].notna()]) == {LENTH}:
            by = "Lenth's simultaneous margin"
    else:
        how = "by least squares (sum-to-zero contrasts, type III), with Student's t and F"
    level = float(table["level"].min()) if "level" in table else LEVEL
    at = "5 %"
    if level < LEVEL:
        at = f"{100 * level:.2g} %, what the looks of this sequential study leave of its alpha"
    return (
        f"{name} was analysed on the scale {SCALE_TEXTS[scale]} {how}; {_errors(outcome, table, scale)}. "
        f"Of {tested} terms {sure} are significant at {at}, all tested together ({by}); individually {raw} "
        f"would be, by the false discovery rate {bh}. Treatments were compared by all pairs"
        f"{_pairs(outcome, response)}.{_untested(terms)}{detected(outcome, table, scale)}"
    )


def _untested(terms: pd.DataFrame) -> str:
    """The terms that have columns but no error term."""
    bare = terms[terms["p_value"].isna() & terms["df"].gt(0)]
    if bare.empty:
        return ""
    shown = listed(first_of([term_text(str(t)) for t in bare["term"]], _MOST_UNTESTED))
    return f" Not tested, because there is no error estimate: {shown}."


def _pairs(outcome: Outcome, response: ResponseUnit) -> str:
    """The method of comparison of treatments, or a note that no effect is significant."""
    ranked = ranking(outcome, response)
    if ranked.df < 1:
        return ", which single runs do not allow to judge"
    by = "Games-Howell, spreads being unequal" if ranked.differences.unequal else "Tukey-Kramer"
    return f" ({by})" if ranked.differences.show else f" ({by}) only where an effect shows"


def detected(outcome: Outcome, table: pd.DataFrame, scale: str) -> str:
    """Effects that these runs would have detected with 80 % probability, from their standard errors:
    smallest and largest of the terms, tested individually and as one of all tests.
    """
    terms = table[outcome.is_effect(table["term"]) & table["standard_error"].notna()]
    terms = terms[(terms["df_error"] > 0) & terms["method"].isin(["student", REML])]
    terms = terms[terms["standard_error"] > 0]
    if terms.empty or scale not in (LINEAR, LOG):
        return ""
    tested = int(table["p_value"][outcome.is_effect(table["term"])].notna().sum())
    unit = next(r.unit for r in outcome.responses if r.name == table["response"].iloc[0])

    def from_on(level: float) -> str:
        sizes = [
            2 * error * beyond(df, level=level)
            for error, df in zip(terms["standard_error"], terms["df_error"], strict=True)
        ]
        both = (min(sizes), max(sizes))
        if scale == LOG:
            ends = dict.fromkeys(f"{math.exp(min(v, 700.0)):.3g}" for v in both)
            return f"{'factors' if len(ends) > 1 else 'a factor'} of {' to '.join(ends)}"
        return " to ".join(dict.fromkeys(quantity(v, unit) for v in both))

    if tested < 2:
        return f" Effects of {from_on(LEVEL)} and more would have been found with 80 % probability."
    return (
        f" Among all {tested} terms an effect of {from_on(LEVEL / tested)} and more would have been found "
        f"with 80 % probability, tested individually one of {from_on(LEVEL)} and more."
    )


def _errors(outcome: Outcome, table: pd.DataFrame, scale: str) -> str:
    """The standard deviations of the strata with their degrees of freedom."""
    texts = []
    unit = next(r.unit for r in outcome.responses if r.name == table["response"].iloc[0])
    strata = {"residual": "of runs", "whole_plot": "between whole plots", "strip": "between strips"}
    for row in table.to_dict("records"):
        term, square = str(row["term"]), float(row.get("mean_square", math.nan))
        if term in strata and math.isfinite(square):
            value = quantity(math.sqrt(square), unit if scale == "linear" else "")
            texts.append(f"{value} {strata[term]} ({float(row['df']):.0f} degrees of freedom)")
    return (
        f"the root mean square error is {listed(texts)}" if texts else "no error could be estimated"
    )
