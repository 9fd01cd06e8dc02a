"""Findings over effects: what a factor does to a response, what removes that, and what matters most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.costs import (
    NO_COST,
    FactorCost,
    factor_cost,
    focal_factor,
    mean_ratio,
)
from penstock.analyse.finding import Finding
from penstock.analyse.means import ranking
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.question import direction, kind
from penstock.analyse.words import listed, percent, quantity, term_words, times

_SIGNIFICANT = 0.05


def costs(outcome: Outcome) -> Iterator[Finding]:
    """What the factor in question does to the study's first response, and what removes it."""
    for response in outcome.responses[:1]:
        focal = focal_factor(outcome, response.name)
        cost = factor_cost(outcome, response, focal) if focal else None
        if cost is None:
            continue
        yield _cost(outcome, response, cost)
        yield from _remedy(outcome, response, cost)


def _subject(outcome: Outcome, cost: FactorCost) -> str:
    phrase = outcome.factor(cost.factor).phrase(cost.level)
    return phrase if phrase != cost.level else f"{cost.level} {term_words(cost.factor)}"


def _cost(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> Finding:
    worst, least = cost.worst, cost.least
    evidence = {
        "table": "runs",
        "factor": cost.factor,
        "response": response.name,
        "cells": [vars(c) for c in cost.cells],
    }
    subject, reference = _subject(outcome, cost), outcome.factor(cost.factor).phrase(cost.other)
    detail = _cost_detail(outcome, cost)
    combinations = len(cost.cells) + cost.missing
    most = worst if cost.overall >= 1 else least
    if cost.missing:
        statement = (
            f"Not decided yet: only {len(cost.cells)} of {combinations} combinations have a valid run with "
            f"{reference} and with {cost.level}. Among these {subject} {_changes(cost, most.ratio)} most "
            f"with {outcome.phrase(most.where)}."
        )
        advice = "`penstock run STUDY --resume` repeats runs that are not valid."
        return Finding("cost", "warning", statement, evidence, advice, detail)
    lead = _lead(outcome, cost)
    if max(worst.ratio, 1 / least.ratio) <= NO_COST:
        far = max(abs(c.ratio - 1) for c in cost.cells)
        where = " under every combination tried" if len(cost.cells) > 1 else ""
        statement = (
            f"{lead}{response.name} with {subject} is {_nearly(far)} with {reference}{where}."
        )
        return Finding("cost", "info", statement, evidence, "", detail)
    if len(cost.cells) == 1:
        unit = response.unit
        statement = (
            f"{lead}{subject} {_changes(cost, most.ratio)} beside {reference}: "
            f"{quantity(most.at_level, unit)} against {quantity(most.at_other, unit)}."
        )
        return Finding("cost", "info", statement, evidence, "", detail)
    other_end = least if cost.overall >= 1 else worst
    if max(worst.ratio, least.ratio) < NO_COST * min(worst.ratio, least.ratio):
        ends = [_factor(least.ratio), _factor(worst.ratio)]
        between = f"{ends[0]} to {ends[1]}" if ends[0] != ends[1] else ends[0]
        statement = (
            f"{lead}{subject} {_changes(cost, cost.overall)} beside {reference}, much the same under "
            f"every combination tried ({between})."
        )
        return Finding("cost", "info", statement, evidence, "", detail)
    rest = "it makes no difference that shows"
    if abs(math.log(other_end.ratio)) > math.log(1.02) and not other_end.low <= 1 <= other_end.high:
        rest = f"{'' if (other_end.ratio > 1) == (most.ratio > 1) else 'the other way round '}"
        rest = f"it {rest}{_changes(cost, other_end.ratio).replace(f'{response.name} ', 'it ')}"
    statement = (
        f"{lead}{subject} {_changes(cost, cost.overall)} on average beside {reference}: "
        f"by {_factor(most.ratio)} with {outcome.phrase(most.where)}; with "
        f"{outcome.phrase(other_end.where)} {rest}."
    )
    return Finding("cost", "info", statement, evidence, "", detail)


def _nearly(far: float) -> str:
    return "the same within 1 % as" if far < 0.01 else f"within {percent(far)} of that"


def _lead(outcome: Outcome, cost: FactorCost) -> str:
    """`Yes: `, `No: ` or nothing, as the question and the ratios have it."""
    if kind(outcome.question) != "whether":
        return ""
    costs, helps = cost.worst.ratio > NO_COST, cost.least.ratio < 1 / NO_COST
    yes = {"costs": costs, "helps": helps, "matters": costs or helps}.get(
        direction(outcome.question)
    )
    if yes is None:
        return ""
    widest = max(max(c.high, 1 / c.low) for c in cost.cells)
    if yes or (math.isfinite(widest) and widest <= NO_COST) or costs or helps:
        return "Yes: " if yes else "No: "
    return "No, as far as these runs tell: "


def _factor(ratio: float) -> str:
    """The size of a ratio: `8.2`, or `4 %`."""
    large = max(ratio, 1 / ratio)
    return times(large)[:-1] if large >= 1.095 else percent(large - 1)


def _changes(cost: FactorCost, ratio: float) -> str:
    """What a level does to the response: `divides bandwidth by 8.2`, `raises p99 by 4 %`."""
    up = (ratio > 1) == (cost.better == "lower")
    if max(ratio, 1 / ratio) >= 1.095:
        return f"{'multiplies' if up else 'divides'} {cost.response} by {_factor(ratio)}"
    return f"{'raises' if up else 'lowers'} {cost.response} by {_factor(ratio)}"


def _cost_detail(outcome: Outcome, cost: FactorCost) -> str:
    """The ratios with their intervals."""
    said = [
        f"{times(c.ratio)}"
        + (f" ({times(c.low)} to {times(c.high)})" if math.isfinite(c.low) else "")
        + (f" with {outcome.phrase(c.where)}" if c.where else "")
        for c in sorted(cost.cells, key=lambda c: -c.ratio)[:4]
    ]
    mean = (
        f"; geometric mean of {len(cost.cells)} {times(cost.overall)}"
        if len(cost.cells) > 1
        else ""
    )
    return (
        f"{cost.other} over {cost.level}, more than 1 where {cost.level} is worse, of geometric means with "
        f"95 % intervals: {listed(said)}{mean}."
    )


def _remedy(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> Iterator[Finding]:
    """What takes a cost away; nothing where there is none, or nothing else was varied."""
    if not cost.cells[0].where or cost.overall < 1:
        return
    if cost.missing:
        statement = (
            "What removes the cost cannot be said before the missing combinations are measured."
        )
        yield Finding("remedy", "warning", statement, {"missing": cost.missing})
        return
    if cost.worst.ratio <= NO_COST:
        return
    remedies = cost.remedies()
    easing = [row for row in cost.easing() if row[2] < row[3] * 0.95]
    evidence = {
        "table": "runs",
        "conditions": remedies,
        "easing": [
            dict(zip(("factor", "level", "with", "without"), r, strict=True)) for r in easing
        ],
    }
    single = [c for c in remedies if len(c) == 1]
    below = f"(to {times(NO_COST)[:-1]} or less)"
    if remedies and (single or max(map(len, remedies)) < len(cost.cells[0].where)):
        words = [outcome.phrase(c, " with ") + _hollow(outcome, cost, c) for c in remedies]
        statement = f"What removes it {below}: {listed(words, 'or')}"
    elif remedies:
        words = [outcome.phrase(c, " + ") for c in remedies]
        statement = f"No single change removes it {below}; together {listed(words, 'or')} do"
    else:
        left = cost.least
        statement = "Nothing tried removes it"
        if not easing:
            statement += (
                f": a factor of {_factor(left.ratio)} is left with {outcome.phrase(left.where)}"
            )
    said = [
        (outcome.factor(f).phrase(v), f"(from {_factor(without)} to {_factor(inner)} on average)")
        for f, v, inner, without in easing
        if {f: v} not in single
    ]
    if said:
        statement += f"; {said[0][0]} eases it most {said[0][1]}"
        statement += f", then {listed([' '.join(s) for s in said[1:]])}" if said[1:] else ""
    yield Finding("remedy", "info", f"{statement}.", evidence)


def _hollow(outcome: Outcome, cost: FactorCost, condition: dict[str, str]) -> str:
    """Says where a remedy works only because the other level loses its advantage."""
    if len(condition) != 1:
        return ""
    ((factor, level),) = condition.items()
    hollow, genuine = cost.hollow(factor, level)
    if not hollow:
        return ""
    common = {
        k: v
        for k, v in hollow[0].where.items()
        if k != factor
        and all(c.where[k] == v for c in hollow)
        and not any(c.where[k] == v for c in genuine)
    }
    where = f"with {outcome.phrase(common)} " if common and genuine else ""
    return f" ({where}only because {cost.other} becomes as bad: {cost.level} itself gets no better there)"


def effects(outcome: Outcome) -> Iterator[Finding]:
    """What matters most for each response, what depends on each other, and what does not show."""
    if outcome.effects is None:
        return
    for response in outcome.responses:
        table = outcome.effects[outcome.effects["response"] == response.name]
        terms = table[outcome.is_effect(table["term"])]
        if "variation_share" not in terms:
            continue
        terms = terms[terms["variation_share"].notna()]
        if terms.empty:
            continue
        terms = terms.sort_values("variation_share", ascending=False)
        pure = bool(terms[["ci_low", "p_value"]].notna().any(axis=None))
        if not pure:
            yield Finding(
                "no-pure-error",
                "warning",
                f"{response.name}: the runs give no interval, because there are no replicates.",
                {"table": "effects", "response": response.name},
                "Set design.replicates to 2 or more.",
            )
        sure = terms[is_sure(terms)] if pure else terms
        if sure.empty:
            yield _no_effect(outcome, response, terms)
            continue
        yield _dominant(outcome, response, sure.iloc[0])
        yield from _interactions(outcome, response, sure)
        unsure = terms[~terms.index.isin(sure.index)]
        if pure and len(unsure):
            yield _bounded(response, unsure)


def is_sure(terms: pd.DataFrame) -> pd.Series[bool]:
    """Which terms of an effects table are significant: the interval excludes 0, or the F test says so."""
    by_interval = (terms["ci_low"] > 0) | (terms["ci_high"] < 0)
    return by_interval | (terms["ci_low"].isna() & (terms["p_value"] < _SIGNIFICANT))


def _no_effect(outcome: Outcome, response: ResponseUnit, terms: pd.DataFrame) -> Finding:
    what = listed([term_words(f.name) for f in outcome.factors], "or")
    return Finding(
        "effect-none",
        "info",
        f"No effect of {what} on {response.name} shows{_up_to(response, terms)}.",
        {"table": "effects", "response": response.name},
        "Not significant is not “no effect”: add replicates if a smaller difference would matter.",
        _tests(terms),
    )


def _bounded(response: ResponseUnit, terms: pd.DataFrame) -> Finding:
    names = [term_words(str(t)) for t in terms["term"]]
    more = [f"{len(names) - 3} more"] if len(names) > 3 else []
    return Finding(
        "effect-bound",
        "info",
        f"No effect of {listed([*names[:3], *more], 'or')} on {response.name} "
        f"shows{_up_to(response, terms)}.",
        {"table": "effects", "terms": list(terms["term"])},
        "Not significant is not “no effect”: more replicates narrow the bound.",
        _tests(terms),
    )


def _up_to(response: ResponseUnit, terms: pd.DataFrame) -> str:
    """What an effect that was not found may still be."""
    ends = terms[["effect_ci_low", "effect_ci_high"]].abs().to_numpy(float)
    if not np.isfinite(ends).any():
        return ""
    return f"; it may still be up to {quantity(float(np.nanmax(ends)), response.unit)}"


def _tests(terms: pd.DataFrame) -> str:
    """The tests of the first terms in words."""
    said = []
    for row in terms.head(4).to_dict("records"):
        name, p = term_words(str(row["term"])), float(row["p_value"])
        if math.isfinite(float(row["ci_low"])):
            ends = f"{quantity(row['effect_ci_low'])} to {quantity(row['effect_ci_high'])}"
            said.append(f"{name}: effect {quantity(row['effect'])}, 95 % interval {ends}")
        elif math.isfinite(p):
            said.append(f"{name}: F test, p = {p:.2g}")
    return f"{'; '.join(said)}." if said else ""


def _dominant(outcome: Outcome, response: ResponseUnit, top: pd.Series[Any]) -> Finding:
    term, share = str(top["term"]), float(top["variation_share"])
    detail = f"{share:.1f} % of the variation. {_tests(top.to_frame().T)}".strip()
    evidence = {"table": "effects", "response": response.name, "term": term}
    if ":" in term:
        words = (
            f"What matters most for {response.name} is how {listed(term_words(term).split(' × '))} "
            f"go together ({share:.0f} % of the variation)."
        )
        return Finding("effect-dominant", "info", words, evidence, "", detail)
    means = ranking(outcome, response).level_means(term)
    by_level = ""
    if means:
        means.sort(key=lambda m: m.mean, reverse=response.better == "higher")
        first, last = (
            f"{quantity(m.mean, response.unit)} with {outcome.phrase(m.levels)}"
            for m in (means[0], means[-1])
        )
        rest = ", averaged over the rest" if len(outcome.factors) > 1 else ""
        by_level = f": {first}, {last}{rest}"
    name = term_words(term)
    words = f"What matters most for {response.name} is {name} ({share:.0f} % of the variation){by_level}."
    return Finding("effect-dominant", "info", words, evidence, "", detail)


def _interactions(
    outcome: Outcome, response: ResponseUnit, terms: pd.DataFrame
) -> Iterator[Finding]:
    """The largest two-factor interactions, told as what one factor is worth at the other's levels."""
    pairs = terms[terms["term"].astype(str).str.count(":") == 1]
    for row in pairs[pairs["variation_share"] >= 1.0].head(3).to_dict("records"):
        names = str(row["term"]).split(":")
        costs = [factor_cost(outcome, response, name) for name in names]
        best: tuple[float, str] | None = None
        for cost, other in zip(costs, reversed(names), strict=True):
            if cost is None:
                continue
            levels = outcome.factor(other).levels
            worth = [(mean_ratio(cost.under({other: v})), v) for v in levels]
            worth = sorted(w for w in worth if math.isfinite(w[0]))
            if len(worth) < 2:
                continue
            (small, small_at), (large, large_at) = worth[0], worth[-1]
            told = "changes nothing" if abs(small - 1) <= 0.02 else _changes(cost, small)
            phrase = outcome.factor(other).phrase
            beside = outcome.factor(cost.factor).phrase(cost.other)
            sentence = (
                f"{_subject(outcome, cost)} {_changes(cost, large)} beside {beside} "
                f"with {phrase(large_at)} and {told.replace(response.name, 'it')} with {phrase(small_at)}"
            )
            if best is None or large / small > best[0]:
                best = (large / small, sentence)
        # what multiplies by the same under each level differs in units, not in proportion
        if best is None or best[0] < NO_COST:
            continue
        yield Finding(
            "effect-interaction",
            "info",
            f"{listed(term_words(str(row['term'])).split(' × '))} depend on each other: {best[1]}.",
            {"table": "effects", "response": response.name, "term": row["term"]},
            "",
            f"{row['variation_share']:.1f} % of the variation of {response.name}; ratios of geometric means.",
        )
