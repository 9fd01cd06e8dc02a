"""Findings over effects: what a factor does to a response, what removes that, and what matters most."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from penstock.analyse.costs import (
    NO_COST,
    FactorCost,
    factor_cost,
    focal_factor,
    mean_ratio,
)
from penstock.analyse.estimability import not_estimable
from penstock.analyse.finding import Finding
from penstock.analyse.means import ranking
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.question import direction, kind
from penstock.analyse.recommend import SINGLE_RUNS
from penstock.analyse.scale import LINEAR, LOG
from penstock.analyse.significance import LEVEL, Terms, largest_first, margins, terms_of
from penstock.text import (
    cannot_exclude,
    difference,
    factor,
    listed,
    percent,
    percents,
    quantities,
    quantity,
    square_of,
    term_text,
    times,
)

#: ratios from here on are told as factors, below in per cent
_FACTOR = 1.095
#: terms with this share of the variation [%] are named beside the largest
_ALSO_MUCH = 10.0
#: a partial alias: its share comes first
_PART = re.compile(r"[\d.]+(e-?\d+)? ")
#: aliases that are named beside the largest term, at most
_MOST_ALIASES = 3


def costs(outcome: Outcome) -> Iterator[Finding]:
    """What the factor in question does to the study's first response, and what removes it."""
    for response in outcome.responses[:1]:
        focal = focal_factor(outcome, response.name)
        cost = factor_cost(outcome, response, focal) if focal else None
        if cost is None:
            continue
        yield _cost(outcome, response, cost)
        yield from _remedy(outcome, response, cost)


def _instead(outcome: Outcome, cost: FactorCost) -> str:
    """What is compared: `wal instead of delete`."""
    phrase = outcome.factor(cost.factor).phrase
    return f"{phrase(cost.level)} instead of {phrase(cost.other)}"


def _levels(outcome: Outcome, cost: FactorCost) -> tuple[str, str]:
    """The two levels by themselves, with the factor where they alone may be another's."""
    factor = outcome.factor(cost.factor)
    return factor.shown(cost.level), factor.shown(cost.other)


def _cost(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> Finding:
    evidence = {
        "table": "runs",
        "factor": cost.factor,
        "levels": [cost.level, cost.other],
        "response": response.name,
        "cells": [vars(c) for c in cost.cells],
    }
    detail = _cost_detail(outcome, cost)
    if cost.missing:
        statement = _with_gaps(outcome, cost)
        advice = "`penstock run STUDY --resume` repeats runs that are not valid."
        return Finding("cost", "warning", statement, evidence, advice, detail)
    # where there are more treatments, the recommendation says it
    two = [len(f.levels) for f in outcome.factors] == [2]
    single = SINGLE_RUNS if two and not _repeated(cost) else ""
    statement = f"{_lead(outcome, cost)}{_in_words(outcome, response, cost)}{single}."
    return Finding("cost", "info", statement, evidence, "", detail)


def _with_gaps(outcome: Outcome, cost: FactorCost) -> str:
    """What is said where combinations have no valid run."""
    most = cost.worst if cost.overall >= 1 else cost.least
    phrase = outcome.factor(cost.factor).phrase
    return (
        f"Not decided yet: only {len(cost.cells)} of {len(cost.cells) + cost.missing} combinations have a "
        f"valid run with {phrase(cost.other)} and with {phrase(cost.level)}. Among these "
        f"{_instead(outcome, cost)} {_changes(cost, most.ratio)} with {outcome.phrase(most.where)}, which is "
        "the most."
    )


def _in_words(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> str:
    """What the level does to the response, and how sure that is."""
    if cost.farthest <= NO_COST or not cost.sure:
        return _no_change(outcome, response, cost)
    alike = cost.worst.ratio < NO_COST * cost.least.ratio
    if cost.sure == [cost.average] and len(cost.cells) > 1:
        return _on_average(cost, f"{_instead(outcome, cost)} {_changes(cost, cost.overall)}", alike)
    if len(cost.cells) > 1 and not alike:
        return _by_combination(outcome, cost)
    changes = f"{_instead(outcome, cost)} {_changes(cost, cost.overall)}"
    sure = _interval(cost)
    if len(cost.cells) == 1:
        sure = f" (95 % interval: {sure})" if sure else ""
        return f"{changes}{sure}: {_both(outcome, response, cost)}"
    sure = f"; 95 % intervals from {sure}" if sure else ""
    ends = _range(cost, cost.least.ratio, cost.worst.ratio)
    return f"{changes}, much the same in every combination tried ({ends}{sure})"


def _on_average(cost: FactorCost, changes: str, alike: bool) -> str:
    """Where the level changes the mean over all combinations, and none by itself is told."""
    mean = cost.average
    sure = f"95 % interval: {_range(cost, mean.low, mean.high, quantity)}"
    ends = _range(cost, cost.least.ratio, cost.worst.ratio)
    together = "both" if len(cost.cells) == 2 else f"all {len(cost.cells)}"
    which = "; in which of them more, these runs do not tell" * (not alike)
    return f"{changes} on average over {together} combinations ({sure}; in each {ends}){which}"


def _no_change(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> str:
    """Where the level changes nothing, or nothing that is told from chance."""
    phrase = outcome.factor(cost.factor).phrase
    level, other = phrase(cost.level), phrase(cost.other)
    several = len(cost.cells) > 1
    if cost.farthest <= NO_COST:
        within = percent(max(cost.farthest - 1, 0.01))
        told = f"{response.name} is the same with {level} as with {other}, within {within}"
        how = "in every combination tried" if several else f"({_both(outcome, response, cost)})"
        return f"{told} {how}"
    bound = cannot_exclude(cost.farthest)
    if several:
        return (
            f"in no combination tried does {response.name} with {level} differ from that with {other} by "
            f"more than chance may make it{bound}"
        )
    means = {m.levels[cost.factor]: m.mean for m in ranking(outcome, response).treatments}
    told, beside = (quantity(means[v], response.unit) for v in (cost.level, cost.other))
    return f"{response.name} is {told} with {level} and {beside} with {other}, which may be chance{bound}"


def _both(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> str:
    """The means at the two levels of the one factor."""
    means = {m.levels[cost.factor]: m.mean for m in ranking(outcome, response).treatments}
    at_level, at_other = (quantity(means[v], response.unit) for v in (cost.level, cost.other))
    return f"{at_level} against {at_other}"


def _interval(cost: FactorCost) -> str:
    """What the intervals of all combinations leave possible; empty without replicates."""
    low, high = min(c.low for c in cost.cells), max(c.high for c in cost.cells)
    return _range(cost, low, high, quantity) if math.isfinite(low) else ""


def _range(
    cost: FactorCost, low: float, high: float, number: Callable[[float], str] = factor
) -> str:
    """A range of ratios in the units in which `_changes` tells the mean: `9.6 to 10.2`, `3 to 13 %`."""
    if cost.overall < 1:
        low, high = 1 / high, 1 / low
    if max(cost.overall, 1 / cost.overall) >= _FACTOR:
        return " to ".join(dict.fromkeys(number(end) for end in (low, high)))
    ends = (low - 1, high - 1) if _raises(cost, cost.overall) else (1 - 1 / low, 1 - 1 / high)
    return percents(*ends)


def _by_combination(outcome: Outcome, cost: FactorCost) -> str:
    """What a level does where it does most and where it does least."""
    most, other = (cost.worst, cost.least) if cost.overall >= 1 else (cost.least, cost.worst)
    rest = "makes no difference that shows"
    if other.sure and max(other.ratio, 1 / other.ratio) > 1.02:
        rest = _changes_it(cost, other.ratio, most.ratio)
    chance = "" if most.sure else " (which may be chance)"
    changes, together = _changes(cost, most.ratio), "both"
    if len(cost.cells) > 2:
        changes = changes.replace(" by ", " by up to ")
        together = f"all {len(cost.cells)} combinations"
    mean = f" (geometric mean of {together}: {_amount(cost, cost.overall)})"
    if other.sure and (other.ratio > 1) != (most.ratio > 1):
        mean = ""  # of a gain and a loss it says nothing
    return (
        f"{_instead(outcome, cost)} {changes} with {outcome.phrase(most.where)}{chance}, and {rest} with "
        f"{outcome.phrase(other.where)}{mean}"
    )


def _lead(outcome: Outcome, cost: FactorCost) -> str:
    """`Yes: `, `No: ` or what lies between, as the question and the intervals have it."""
    asked = direction(outcome.question) if kind(outcome.question) == "whether" else ""
    if not asked:
        return ""
    sure = cost.sure
    so = [c for c in sure if asked == "matters" or (c.ratio > 1) == (asked == "costs")]
    yes = any(max(c.ratio, 1 / c.ratio) > NO_COST for c in so)
    against = any(max(c.ratio, 1 / c.ratio) > NO_COST for c in sure if c not in so)
    if not _repeated(cost):
        return f"{'Yes' if yes else 'No'}, as far as single runs tell: "
    if yes:
        return "It depends: " if against else "Yes: "
    if cost.farthest <= NO_COST or len(so) < len(sure):
        return "No: "
    return "A little: " if sure else "These runs do not tell: "


def _repeated(cost: FactorCost) -> bool:
    """Whether replicates give every ratio an interval."""
    return all(math.isfinite(c.low) for c in cost.cells)


def _amount(cost: FactorCost, ratio: float) -> str:
    """By how much a ratio changes the response: `8.2`, or `4 %`."""
    large = max(ratio, 1 / ratio)
    if large >= _FACTOR:
        return factor(large)
    return difference(large if _raises(cost, ratio) else 1 / large)


def _raises(cost: FactorCost, ratio: float) -> bool:
    return (ratio > 1) == (cost.better == "lower")


def _changes(cost: FactorCost, ratio: float) -> str:
    """What a level does to the response: `divides bandwidth by 8.2`, `raises p99 by 4 %`."""
    up = _raises(cost, ratio)
    if max(ratio, 1 / ratio) >= _FACTOR:
        verb = "multiplies" if up else "divides"
    else:
        verb = "raises" if up else "lowers"
    return f"{verb} {cost.response} by {_amount(cost, ratio)}"


def _changes_it(cost: FactorCost, ratio: float, before: float) -> str:
    """What follows on `_changes` of another ratio: `lowers it by 3 %`, `by 1.5` after the same verb."""
    verb, _, amount = _changes(cost, ratio).partition(f" {cost.response} ")
    same = _changes(cost, before).startswith(f"{verb} ")
    return amount if same else f"{verb} it {amount}"


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
    level, other = _levels(outcome, cost)
    return (
        f"{other} over {level}, more than 1 where {level} is worse, of geometric means with "
        f"95 % intervals{' (all of them together)' if len(cost.cells) > 1 else ''}: {listed(said)}{mean}."
    )


def _remedy(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> Iterator[Finding]:
    """What takes a cost away; nothing where there is none, or nothing else was varied."""
    if not cost.cells[0].where or cost.overall < 1 or not cost.sure:
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
    smaller = [r for r in cost.easing() if r[2] < r[3] * 0.95 and cost.eases({r[0]: r[1]})]
    easing = [row for row in smaller if cost.helps({row[0]: row[1]})]
    doubtful = [] if remedies else cost.remedies(doubtful=True)
    evidence = {
        "table": "runs",
        "conditions": remedies,
        "easing": [
            dict(zip(("factor", "level", "with", "without"), r, strict=True)) for r in easing
        ],
    }
    single = [c for c in remedies if len(c) == 1]
    below = f"(to a factor of {factor(NO_COST)} or less)"
    if remedies and (single or max(map(len, remedies)) < len(cost.cells[0].where)):
        words = [outcome.phrase(c, " + ") + _hollow(outcome, cost, c) for c in remedies]
        statement = f"What removes it {below}: {listed(words, 'or')}"
    elif remedies:
        words = [outcome.phrase(c, " + ") for c in remedies]
        statement = f"No single change removes it {below}, but {listed(words, 'or')} does"
    elif doubtful:
        words = [outcome.phrase(c, " + ") for c in doubtful]
        statement = f"Whether {listed(words, 'or')} removes it {below}, these runs do not tell"
    else:
        statement = "Nothing tried removes it"
        spoiling = [row for row in smaller if cost.spoils({row[0]: row[1]})]
        if spoiling and not easing:
            statement += _only_worse(outcome, cost, spoiling[0])
        elif not easing:
            least = outcome.phrase(cost.least.where)
            left = factor(cost.least.ratio)
            statement += f": where it is least, with {least}, the factor is still {left}"
    statement += _eased(outcome, cost, [row for row in easing if {row[0]: row[1]} not in single])
    yield Finding("remedy", "info", f"{statement}.", evidence)


def _only_worse(outcome: Outcome, cost: FactorCost, row: tuple[str, str, float, float]) -> str:
    """Under which level a cost is smaller although that is no remedy."""
    name, level, inside, _ = row
    average = " on average" if len(cost.cells) > 2 else ""
    return (
        f"; with {outcome.factor(name).phrase(level)} the factor is smaller ({factor(inside)}{average}) only "
        f"because {outcome.factor(cost.factor).phrase(cost.other)} is worse there"
    )


def _eased(outcome: Outcome, cost: FactorCost, easing: list[tuple[str, str, float, float]]) -> str:
    """What takes a part of a cost away, the level that takes most first."""
    average = " on average" if len(cost.cells) > 2 else ""
    phrases = [outcome.factor(name).phrase(level) for name, level, _, _ in easing]
    said = [
        f"(from {factor(without)} to {factor(inside)}{average})" for _, _, inside, without in easing
    ]
    if not said:
        return ""
    most = " most" if len(said) > 1 else ""
    then = listed([f"{p} {s}" for p, s in zip(phrases[1:], said[1:], strict=True)])
    return f"; {phrases[0]} reduces it{most} {said[0]}{f', then {then}' if then else ''}"


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
    mine, other = _levels(outcome, cost)
    return f" ({where}only because {other} becomes as bad: {mine} itself gets no better there)"


def effects(outcome: Outcome) -> Iterator[Finding]:
    """What matters most for each response, what depends on each other, and what does not show."""
    if outcome.effects is None:
        return
    yield from not_estimable(outcome)
    for response in outcome.responses:
        tested = terms_of(outcome, response.name)
        if tested is None or "variation_share" not in tested.table:
            continue
        terms = _rows(tested)
        if not terms:
            continue
        pure = any(not math.isnan(row[key]) for row in terms for key in ("ci_low", "p_value"))
        if not pure:
            yield Finding(
                "no-pure-error",
                "warning",
                f"{response.name}: the runs give no interval, because there are no replicates.",
                {"table": "effects", "response": response.name},
                "Set design.replicates to 2 or more.",
            )
        sure = [row for row in terms if row["p"] < LEVEL] if pure else terms
        unsure = [row for row in terms if not row["p"] < LEVEL] if pure else []
        if not sure:
            yield _no_effect(outcome, response, terms)
            continue
        if math.isfinite(sure[0]["variation_share"]):
            yield _dominant(outcome, response, sure)
        yield from _interactions(outcome, response, sure)
        if unsure:
            yield _bounded(response, unsure)


#: a term of a response: of the effects table the columns that findings tell, its p-value `p` among all terms
Row = dict[str, Any]
_NUMBERS = ("effect", "ci_low", "effect_ci_low", "effect_ci_high", "variation_share", "p_value")


def _rows(terms: Terms) -> list[Row]:
    """The terms with an estimate, those that explain most first, without shares the surest."""
    columns = {name: terms.column(name) for name in _NUMBERS}
    columns |= {"term": terms.names, "p": terms.p, "margin": margins(terms.table).tolist()}
    columns |= {"scale": terms.column("scale", LINEAR), "aliases": terms.column("aliases", "")}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    rows = [r for r in rows if not (math.isnan(r["variation_share"]) and math.isnan(r["p_value"]))]
    rows.sort(key=lambda row: (math.isnan(row["p_value"]), row["p_value"]))
    return sorted(rows, key=lambda row: largest_first(row["variation_share"]))


def _no_effect(outcome: Outcome, response: ResponseUnit, terms: Sequence[Row]) -> Finding:
    names = [row["term"] for row in terms]
    named = [f.name for f in outcome.factors if f.name in names]
    what = listed([term_text(n) for n in named or names], "or")
    beside = ""
    if ranking(outcome, response).of("worse"):  # of treatments that the terms do not tell
        beside = ", though treatments differ"
    return Finding(
        "effect-none",
        "info",
        f"No effect of {what} on {response.name} shows{beside}{_up_to(response, terms)}.",
        {"table": "effects", "response": response.name},
        "Not significant is not “no effect”: add replicates if a smaller difference would matter.",
        _tests(terms),
    )


def _bounded(response: ResponseUnit, terms: Sequence[Row]) -> Finding:
    names = [term_text(row["term"]) for row in terms]
    more = [f"{len(names) - 3} more"] if len(names) > 3 else []
    return Finding(
        "effect-bound",
        "info",
        f"No effect of {listed([*names[:3], *more], 'or')} on {response.name} "
        f"shows{_up_to(response, terms)}.",
        {"table": "effects", "terms": [row["term"] for row in terms]},
        "Not significant is not “no effect”: more replicates narrow the bound.",
        _tests(terms),
    )


def _up_to(response: ResponseUnit, terms: Sequence[Row]) -> str:
    """The largest size that one of these effects may have, all terms of the response together."""
    ends = [abs(row["effect"]) + row["margin"] for row in terms]
    most = max((end for end in ends if not math.isnan(end)), default=math.inf)
    if not math.isfinite(most):
        return ""
    scale = terms[0]["scale"]
    if scale == LOG:
        return f"; it may still be up to a factor of {quantity(_ratio(most))}"
    unit = response.unit if scale == LINEAR else f"on the scale {scale}"
    return f"; it may still be up to {quantity(most, unit)}"


def _ratio(logarithm: float) -> float:
    """The ratio of a difference of logarithms, as large as a number may be."""
    return math.exp(min(logarithm, 700.0))


def _tests(terms: Sequence[Row]) -> str:
    """The tests of the first terms in words."""
    said = []
    for row in terms[:4]:
        name, p = term_text(row["term"]), row["p"]
        of_all = f"p = {p:.2g} of all terms together" if math.isfinite(p) else ""
        if math.isfinite(row["ci_low"]):
            effect, low, high = (row[k] for k in ("effect", "effect_ci_low", "effect_ci_high"))
            what = "effect"
            if row["scale"] == LOG:
                what, (effect, low, high) = "ratio", map(_ratio, (effect, low, high))
            ends = quantities([low, high])
            said.append(
                f"{name}: {what} {quantity(effect)}, 95 % interval by itself {ends}"
                f"{f', {of_all}' if of_all else ''}"
            )
        elif of_all:
            said.append(f"{name}: F test, {of_all}")
    return f"{'; '.join(said)}." if said else ""


def _dominant(outcome: Outcome, response: ResponseUnit, sure: Sequence[Row]) -> Finding:
    """The largest of the significant terms, and which others are large."""
    top, *rest = sure
    term, share = top["term"], top["variation_share"]
    detail = f"{_share(share, 1)} of the variation. {_tests([top])}".strip()
    detail = detail[:1].upper() + detail[1:]
    evidence = {"table": "effects", "response": response.name, "term": term}
    others = {
        row["term"]: row["variation_share"] for row in rest if row["variation_share"] >= _ALSO_MUCH
    }
    also = listed([f"{term_text(t)} with {_share(s)}" for t, s in others.items()])
    of_ratios = " in ratios" if top["scale"] == LOG else ""
    explains = f"which explains {_share(share)} of the variation{of_ratios}"
    explains += f" (then {also})" if also else ""
    if square := square_of(term):
        words = f"What matters most for {response.name} is how {term_text(square)} bends it, {explains}."
        return Finding("effect-dominant", "info", words, evidence, "", detail)
    if ":" in term and not inseparable(top):
        together = listed(term_text(term).split(" × "))
        words = f"What matters most for {response.name} is how {together} go together, {explains}."
        return Finding("effect-dominant", "info", words, evidence, "", detail)
    if rivals := inseparable(top):
        words = (
            f"What matters most for {response.name} is {listed([term_text(term), *rivals], 'or')}, which "
            f"these runs cannot separate and {explains.removeprefix('which ')}."
        )
        return Finding("effect-dominant", "info", words, evidence, "", detail)
    # where it depends on another factor, the mean over its levels is that of no run
    depends = any(term in t.split(":") and not square_of(t) for t in others)
    by_level = "" if depends else _by_level(outcome, response, term)
    words = f"What matters most for {response.name} is {term_text(term)}, {explains}{by_level}."
    return Finding("effect-dominant", "info", words, evidence, "", detail)


def inseparable(row: pd.Series[Any] | Mapping[Any, Any]) -> list[str]:
    """The exact aliases of a term of the effects table that have at most two factors, in words."""
    found = []
    for alias in str(row.get("aliases") or "").split(", "):
        name = alias.lstrip("+-")
        other = (
            not name or _PART.match(name) or name.startswith(("not estimable", "the difference"))
        )
        if not other and name.count(":") <= 1:
            found.append(term_text(name))
    more = [f"{len(found) - _MOST_ALIASES} more"] if len(found) > _MOST_ALIASES else []
    return [*found[:_MOST_ALIASES], *more]


def _by_level(outcome: Outcome, response: ResponseUnit, factor_name: str) -> str:
    """The response at the factor's best and worst level."""
    means = ranking(outcome, response).level_means(factor_name)
    if not means:
        return ""
    means.sort(key=lambda m: m.mean, reverse=response.better == "higher")
    first, last = (
        f"{quantity(m.mean, response.unit)} with {outcome.phrase(m.levels)}"
        for m in (means[0], means[-1])
    )
    average = "on average " if len(outcome.factors) > 1 else ""
    return f": {average}{first}, {last}"


def _share(share: float, digits: int = 0) -> str:
    """A share of the variation; never all of it, because runs vary by themselves."""
    return f"{share:.{digits}f} %" if share < 99.5 else "more than 99 %"


def _interactions(
    outcome: Outcome, response: ResponseUnit, terms: Sequence[Row]
) -> Iterator[Finding]:
    """The largest two-factor interactions, told as what one factor is worth at the other's levels."""
    pairs = [r for r in terms if r["term"].count(":") == 1 and not square_of(r["term"])]
    for row in [r for r in pairs if r["variation_share"] >= 1.0][:3]:
        names = row["term"].split(":")
        ways = [_worth(outcome, response, *pair) for pair in (names, names[::-1])]
        told = [way for way in ways if way is not None]
        if not told:
            continue
        # the factor that is worth least somewhere shows best that it depends on the other
        small, large, sentence = min(told)
        # what multiplies by the same under each level differs in units, not in proportion
        if large / small < NO_COST:
            continue
        rivals = inseparable(row)
        beside = (
            f" These runs cannot separate {term_text(row['term'])} from {listed(rivals, 'or')}."
            if rivals
            else ""
        )
        yield Finding(
            "effect-interaction",
            "info",
            f"The effects of {listed(term_text(row['term']).split(' × '))} depend on each other: "
            f"{sentence}.{beside}",
            {"table": "effects", "response": response.name, "term": row["term"]},
            "",
            f"{row['variation_share']:.1f} % of the variation of {response.name}; ratios of geometric means.",
        )


def _worth(
    outcome: Outcome, response: ResponseUnit, name: str, other: str
) -> tuple[float, float, str] | None:
    """What a factor is worth at the levels of another: its smallest and largest ratio, and both in words."""
    cost = factor_cost(outcome, response, name)
    if cost is None:
        return None
    by_level = [(mean_ratio(cost.under({other: v})), v) for v in outcome.factor(other).levels]
    worth = sorted(w for w in by_level if math.isfinite(w[0]))
    if len(worth) < 2:
        return None
    (small, small_at), (large, large_at) = worth[0], worth[-1]
    told = "changes nothing" if abs(small - 1) <= 0.02 else _changes_it(cost, small, large)
    phrase = outcome.factor(other).phrase
    sentence = (
        f"{_instead(outcome, cost)} {_changes(cost, large)} with {phrase(large_at)}, and "
        f"{told} with {phrase(small_at)}"
    )
    return small, large, sentence
