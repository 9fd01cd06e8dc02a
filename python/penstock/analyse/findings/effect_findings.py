"""Findings on effects: a factor's effect on a response, remedies, and the largest effects."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from penstock.analyse.findings.estimability import not_estimable
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.lost_runs import repeat
from penstock.analyse.findings.question import compares, direction, kind, named_levels
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics.scale import LINEAR, LOG
from penstock.analyse.statistics.significance import LEVEL, Terms, largest_first, margins, terms_of
from penstock.analyse.treatments.costs import (
    NO_COST,
    Cost,
    FactorCost,
    factor_cost,
    focal_factor,
    mean_ratio,
)
from penstock.analyse.treatments.means import ranking
from penstock.analyse.treatments.recommend import REPEAT, more_runs
from penstock.text import (
    concise,
    difference,
    factor,
    first_of,
    listed,
    number,
    percent,
    percents,
    quantities,
    quantity,
    span,
    square_of,
    term_text,
    times,
    up_to,
)

#: ratios from this value on are written as factors, smaller ones in percent
_FACTOR = 1.095
#: share of the variation [%] from which terms are named with the largest
_ALSO_MUCH = 10.0
#: a partial alias: begins with its share
_PART = re.compile(r"[\d.]+(e-?\d+)? ")
#: maximum number of aliases named with the largest term
_MOST_ALIASES = 3


def costs(outcome: Outcome) -> Iterator[Finding]:
    """Effect of the factor in question on the study's first response, and its remedies.

    Nothing for a question which of several is best: it is not about the worst one.
    """
    if outcome.question and kind(outcome.question) == "which" and not direction(outcome.question):
        return
    for response in outcome.responses[:1]:
        focal = focal_factor(outcome, response.name)
        cost = factor_cost(outcome, response, focal) if focal else None
        if cost is None:
            if focal:
                yield from _not_measured(outcome, response, focal)
            continue
        yield _cost(outcome, response, cost)
        yield from _remedy(outcome, response, cost)


def _not_measured(outcome: Outcome, response: ResponseUnit, name: str) -> Iterator[Finding]:
    """The levels in question without a valid run, if others can be compared."""
    factor, treatments = outcome.factor(name), ranking(outcome, response).treatments
    in_question = named_levels(factor.levels, outcome.question) or factor.levels
    absent = [v for v in factor.levels if not any(t.levels[name] == v for t in treatments)]
    lacking = [v for v in absent if v in in_question] or absent
    if len(treatments) < 2 or not lacking:
        return
    have = "has" if len(lacking) == 1 else "have"
    levels = listed(first_of([factor.phrase(v) for v in lacking], _MOST_ALIASES))
    yield Finding(
        "cost",
        "warning",
        f"Open: {levels} {have} no valid run, so that the effect on {response.name} is not known.",
        {
            "table": "runs",
            "factor": name,
            "levels": lacking,
            "response": response.name,
            "cells": [],
        },
        repeat(outcome),
        "",
        "open",
    )


def _instead(outcome: Outcome, cost: FactorCost) -> str:
    """The comparison: `wal instead of delete`."""
    phrase = outcome.factor(cost.factor).phrase
    return f"{phrase(cost.level)} instead of {phrase(cost.other)}"


def _levels(outcome: Outcome, cost: FactorCost) -> tuple[str, str]:
    """The two levels; with the factor if the level names alone are ambiguous."""
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
        gaps = _with_gaps(outcome, cost)
        return Finding("cost", "warning", gaps, evidence, repeat(outcome), detail, "open")
    lead, confidence = _lead(outcome, cost)
    ranked = ranking(outcome, response)
    if confidence == "clear" and (ranked.degraded or _has_rivals(outcome, cost)):
        confidence = "likely"
    single = "" if _repeated(cost) else "; single runs give no interval"
    texts = _effect_texts(outcome, response, cost)
    statement = concise(*(f"{lead}{text}{single}." for text in texts))
    advice = ""
    if confidence == "open":
        advice = more_runs(ranked) if _repeated(cost) else REPEAT
    return Finding("cost", "info", statement, evidence, advice, detail, confidence)


def _has_rivals(outcome: Outcome, cost: FactorCost) -> bool:
    """True if the mean effect of the factor may be that of an interaction of two others."""
    terms = terms_of(outcome, cost.response)
    rows = zip(terms.names, terms.column("aliases", ""), strict=True) if terms is not None else ()
    return any(inseparable({"aliases": aliases}) for term, aliases in rows if term == cost.factor)


def _with_gaps(outcome: Outcome, cost: FactorCost) -> str:
    """The largest measured effect, if combinations have no valid run."""
    most = cost.worst if cost.overall >= 1 else cost.least
    some = (
        f"Open: {cost.missing} of {len(cost.cells) + cost.missing} combinations have no valid run"
    )
    change = f"{_instead(outcome, cost)} {_changes(cost, most.ratio)}"
    return concise(
        f"{some}; among the others {change} with {outcome.phrase(most.where)}, the most.",
        f"{some}; among the others {change} at most.",
        f"{some}.",
    )


def _effect_texts(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> list[str]:
    """The effect of the level on the response with its interval, the fullest text first."""
    if cost.farthest <= NO_COST or not cost.sure:
        return _no_change(outcome, response, cost)
    alike = cost.worst.ratio < NO_COST * cost.least.ratio
    changes = _difference(outcome, response, cost, cost.overall, cost.cells)
    if cost.sure == [cost.average] and len(cost.cells) > 1:
        mean = _difference(outcome, response, cost, cost.overall, [cost.average])
        return _on_average(cost, mean, alike)
    if len(cost.cells) > 1 and not alike:
        return _by_combination(outcome, response, cost)
    if len(cost.cells) == 1:
        name = f"{response.name} " * compares(outcome.question)
        return [f"{changes}: {name}{_both(outcome, response, cost)}", changes]
    together = "both" if len(cost.cells) == 2 else f"all {len(cost.cells)}"
    return [f"{changes}, much the same in {together} combinations{_that_ran(cost)}"]


def _that_ran(cost: FactorCost) -> str:
    return " that were run" * (not cost.complete)


def _difference(
    outcome: Outcome, response: ResponseUnit, cost: FactorCost, ratio: float, cells: list[Cost]
) -> str:
    """The effect of a level with its interval: `wal instead of delete multiplies load by 3.6 (3.5–3.7)`.

    In a comparison the better level first: `btree is 1.3× (1.24–1.35) as fast as lsm`.
    """
    if not compares(outcome.question):
        return f"{_instead(outcome, cost)} {_changes(cost, ratio)}{_interval(cost, cells)}"
    phrase = outcome.factor(cost.factor).phrase
    better, worse = (cost.other, cost.level) if ratio > 1 else (cost.level, cost.other)
    amount = _times_better(cost, ratio, cells)
    if max(ratio, 1 / ratio) >= _FACTOR:
        as_well = "as fast as" if response.is_of_time else "as good as"
    else:
        as_well = f"{_comparative(response, 0.0)} than"
    return f"{phrase(better)} is {amount} {as_well} {phrase(worse)}"


def _times_better(cost: FactorCost, ratio: float, cells: list[Cost]) -> str:
    """A ratio above 1, or its inverse, with its interval: `1.3× (1.24–1.35)`, `4 % (1–7 %)`."""
    large = max(ratio, 1 / ratio)
    if large >= _FACTOR:
        return f"{times(large)}{_interval(cost, cells) if cells else ''}"
    if not cells:
        return difference(large)
    low, high = min(c.low for c in cells), max(c.high for c in cells)
    if ratio < 1:
        low, high = 1 / high, 1 / low
    ends = f" ({percents(low - 1, high - 1)})" if math.isfinite(low + high) else ""
    return f"{difference(large)}{ends}"


def _comparative(response: ResponseUnit, ratio: float) -> str:
    """`faster` or `slower` (ratio above 1); `better` or `worse` if the response is not of time."""
    return (("better", "worse"), ("faster", "slower"))[response.is_of_time][ratio > 1]


def _on_average(cost: FactorCost, changes: str, alike: bool) -> list[str]:
    """An effect on the mean over all combinations, if no single one has a clear effect."""
    together = "both" if len(cost.cells) == 2 else f"all {len(cost.cells)}"
    mean = f"{changes} on average over {together} combinations{_that_ran(cost)}"
    return [mean if alike else f"{mean}; in which of them more is open", mean]


def _no_change(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> list[str]:
    """No effect, or none that is significant."""
    phrase = outcome.factor(cost.factor).phrase
    level, other = phrase(cost.level), phrase(cost.other)
    several = len(cost.cells) > 1
    if cost.farthest <= NO_COST:
        within = percent(max(cost.farthest - 1, 0.01))
        same = f"{response.name} is the same with {level} as with {other}, within {within}"
        if several:
            return [f"{same} in every combination", same]
        return [f"{same} ({_both(outcome, response, cost)})", same]
    bound = f" (differences of {up_to(cost.farthest)} are possible)" * math.isfinite(cost.farthest)
    if several:
        where = "in any combination"
        same = f"{response.name} with {level} and with {other} cannot be distinguished {where}"
        return [f"{same}{bound}", same]
    a, b = (quantity(mean, response.unit) for mean in _level_means(outcome, response, cost))
    same = f"{response.name} with {level} ({a}) and with {other} ({b}) cannot be distinguished"
    return [f"{same}{bound}", same]


def _both(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> str:
    """The means at the two levels of the one factor; in a comparison the better one first."""
    means = _level_means(outcome, response, cost)
    if compares(outcome.question) and cost.overall > 1:
        means.reverse()
    first, second = (quantity(mean, response.unit) for mean in means)
    average = f" on average over {len(ranking(outcome, response).treatments)} treatments"
    return f"{first} against {second}{average * (len(outcome.factors) > 1)}"


def _level_means(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> list[float]:
    """The means at the level and at the other one; of several factors the geometric ones."""
    if len(outcome.factors) > 1:
        return [cost.average.at_level, cost.average.at_other]
    means = {m.levels[cost.factor]: m.mean for m in ranking(outcome, response).treatments}
    return [means[cost.level], means[cost.other]]


def _interval(cost: FactorCost, cells: list[Cost]) -> str:
    """The union of the cells' intervals, as `_changes` gives ratios: ` (9.6–10.4)`; empty without any."""
    low, high = min(c.low for c in cells), max(c.high for c in cells)
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    ratio = cells[0].ratio if len(cells) == 1 else cost.overall
    if ratio < 1:
        low, high = 1 / high, 1 / low
    if max(ratio, 1 / ratio) >= _FACTOR:
        digits = 3 if high < 1.5 * low else 2
        return f" ({span(number(low, digits), number(high, digits))})"
    ends = (low - 1, high - 1) if _raises(cost, ratio) else (1 - 1 / low, 1 - 1 / high)
    return f" ({percents(*ends)})"


def _by_combination(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> list[str]:
    """The effect of a level where it is largest and where it is smallest."""
    most, other = (cost.worst, cost.least) if cost.overall >= 1 else (cost.least, cost.worst)
    opposite = most.sure and other.sure and (most.ratio > 1) != (other.ratio > 1)
    if opposite or compares(outcome.question):
        return _better_by_combination(outcome, response, cost, most, other)
    rest, ends = "has no clear effect", ""
    if other.sure and max(other.ratio, 1 / other.ratio) > 1.02:
        rest, ends = _changes_it(cost, other.ratio, most.ratio), _interval(cost, [other])
    chance = "" if most.sure else " (which may be chance)"
    changes = _changes(cost, most.ratio)
    if len(cost.cells) > 2:
        changes = changes.replace(" by ", " by up to ")
    lead = f"{_instead(outcome, cost)} {changes}"
    sure, where = _interval(cost, [most]), outcome.phrase(most.where)
    elsewhere = outcome.phrase(other.where)
    return [
        f"{lead}{sure} with {where}{chance}, and {rest}{ends} with {elsewhere}",
        f"{lead} with {where}{chance}, and {rest} with {elsewhere}",
        f"{lead}{sure} with {where}{chance}",
        f"{lead}{sure}{chance}, depending on the other factors",
    ]


def _better_by_combination(
    outcome: Outcome, response: ResponseUnit, cost: FactorCost, most: Cost, other: Cost
) -> list[str]:
    """The level as better or worse than the other one: `with hdd-7200 log is 1.5× faster than tree, …`."""
    phrase = outcome.factor(cost.factor).phrase
    average = _difference(outcome, response, cost, cost.overall, [cost.average])
    on_average = f"{average} on average, depending on the other factors"
    better_first = compares(outcome.question)  # otherwise the larger effect
    first, second = sorted(
        [most, other],
        key=lambda c: (not c.sure, c.ratio if better_first else -max(c.ratio, 1 / c.ratio)),
    )
    if not first.sure:
        return [on_average]

    def text(interval: bool) -> str:
        parts = [
            f"{_times_better(cost, cell.ratio, [cell] * interval)} {_comparative(response, cell.ratio)}"
            for cell in (first, second)
        ]
        rest = parts[1] if second.sure else "no difference shows"
        return (
            f"with {outcome.phrase(first.where)} {phrase(cost.level)} is {parts[0]} than "
            f"{phrase(cost.other)}, and with {outcome.phrase(second.where)} {rest}"
        )

    return [text(True), text(False), on_average]


def _lead(outcome: Outcome, cost: FactorCost) -> tuple[str, str]:
    """`Yes: `, `No: ` or an intermediate, and the confidence, from the question and the intervals."""
    expected = direction(outcome.question) if kind(outcome.question) == "whether" else ""
    sure = cost.sure
    if not _repeated(cost) or (cost.farthest > NO_COST and not sure):
        return "Open: ", "open"
    # a better level answers only if the question is about one of them
    if not expected or not (cost.named or expected == "matters" or _is_of_the_worse(outcome)):
        return "", "clear"
    so = [c for c in sure if expected == "matters" or (c.ratio > 1) == (expected == "costs")]
    yes = any(max(c.ratio, 1 / c.ratio) > NO_COST for c in so)
    against = any(max(c.ratio, 1 / c.ratio) > NO_COST for c in sure if c not in so)
    if yes:
        return "It depends: " if against else "Yes: ", "clear"
    no = cost.farthest <= NO_COST or len(so) < len(sure)
    return "No: " if no else "A little: ", "clear"


def _is_of_the_worse(outcome: Outcome) -> bool:
    """True for a question whether a factor costs anything, which is about its worse level."""
    return direction(outcome.question) == "costs" and not compares(outcome.question)


def _repeated(cost: FactorCost) -> bool:
    """True if replicates give every ratio an interval."""
    return all(math.isfinite(c.low) for c in cost.cells)


def _amount(cost: FactorCost, ratio: float) -> str:
    """Change of the response by a ratio: `8.2`, or `4 %`."""
    large = max(ratio, 1 / ratio)
    if large >= _FACTOR:
        return factor(large)
    return difference(large if _raises(cost, ratio) else 1 / large)


def _raises(cost: FactorCost, ratio: float) -> bool:
    return (ratio > 1) == (cost.better == "lower")


def _changes(cost: FactorCost, ratio: float) -> str:
    """A level's effect on the response: `divides bandwidth by 8.2`, `raises p99 by 4 %`."""
    up = _raises(cost, ratio)
    if max(ratio, 1 / ratio) >= _FACTOR:
        verb = "multiplies" if up else "divides"
    else:
        verb = "raises" if up else "lowers"
    return f"{verb} {cost.response} by {_amount(cost, ratio)}"


def _changes_it(cost: FactorCost, ratio: float, before: float) -> str:
    """Another ratio after `_changes`: `lowers it by 3 %`, or `by 1.5` if the verb is the same."""
    verb, _, amount = _changes(cost, ratio).partition(f" {cost.response} ")
    same = _changes(cost, before).startswith(f"{verb} ")
    return amount if same else f"{verb} it {amount}"


def _cost_detail(outcome: Outcome, cost: FactorCost) -> str:
    """The ratios with their intervals."""
    ratios = [
        f"{times(c.ratio)}"
        + (f" ({times(c.low)} to {times(c.high)})" if math.isfinite(c.low) else "")
        + (f" with {outcome.phrase(c.where)}" if c.where else "")
        for c in sorted(cost.cells, key=lambda c: -c.ratio)[:4]
    ]
    mean = f"; their geometric mean is {times(cost.overall)}" if len(cost.cells) > 1 else ""
    level, other = _levels(outcome, cost)
    return (
        f"{other} over {level}, more than 1 where {level} is worse, of geometric means with "
        f"95 % intervals{' (all of them together)' if len(cost.cells) > 1 else ''}: {listed(ratios)}{mean}."
    )


def _remedy(outcome: Outcome, response: ResponseUnit, cost: FactorCost) -> Iterator[Finding]:
    """Levels that remove a cost; nothing if there is no cost or no other factor."""
    if not cost.cells[0].where or cost.overall < 1 or not cost.sure:
        return
    if cost.missing:
        statement = "open until the missing combinations are measured."
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
    below = f"to {times(NO_COST)} or less"
    if remedies and (single or max(map(len, remedies)) < len(cost.cells[0].where)):
        names = [outcome.phrase(c, " + ") + _hollow(outcome, cost, c) for c in remedies]
        statement = f"{listed(names, 'or')} reduces it {below}"
    elif remedies:
        names = [outcome.phrase(c, " + ") for c in remedies]
        statement = f"{listed(names, 'or')} reduces it {below}; no single change does"
    elif doubtful:
        names = [outcome.phrase(c, " + ") for c in doubtful]
        statement = f"open: {listed(names, 'or')} may reduce it {below}"
    else:
        statement = "no tested setting removes it"
        spoiling = [row for row in smaller if cost.spoils({row[0]: row[1]})]
        if spoiling and not easing:
            statement += _only_worse(outcome, cost, spoiling[0])
        elif not easing:
            statement = _smallest(outcome, cost)
    statement += _eased(outcome, cost, [row for row in easing if {row[0]: row[1]} not in single])
    yield Finding("remedy", "info", f"{statement}.", evidence)


def _smallest(outcome: Outcome, cost: FactorCost) -> str:
    """The combination with the smallest cost, which no setting removes without harm."""
    least, ratio = outcome.phrase(cost.least.where), times(cost.least.ratio)
    if cost.least.ratio <= NO_COST and cost.trades(cost.least.where):
        other = outcome.factor(cost.factor).phrase(cost.other)
        return f"with {least} it is {ratio}, but {other} is worse there"
    return f"no tested setting removes it; it is smallest with {least}, {ratio}"


def _only_worse(outcome: Outcome, cost: FactorCost, row: tuple[str, str, float, float]) -> str:
    """The level under which a cost is smaller without being a remedy."""
    name, level, inside, _ = row
    average = " on average" if len(cost.cells) > 2 else ""
    return (
        f"; it is smaller with {outcome.factor(name).phrase(level)} ({times(inside)}{average}) only because "
        f"{outcome.factor(cost.factor).phrase(cost.other)} is worse there"
    )


def _eased(outcome: Outcome, cost: FactorCost, easing: list[tuple[str, str, float, float]]) -> str:
    """The levels that reduce a cost, the most effective first."""
    average = " on average" if len(cost.cells) > 2 else ""
    phrases = [outcome.factor(name).phrase(level) for name, level, _, _ in easing]
    ratios = [
        f"from {times(without)} to {times(inside)}{average}" for _, _, inside, without in easing
    ]
    if not ratios:
        return ""
    most = " most," if len(ratios) > 1 else ""
    then = listed([f"{p} {s}" for p, s in zip(phrases[1:], ratios[1:], strict=True)])
    return f"; {phrases[0]} reduces it{most} {ratios[0]}{f', then {then}' if then else ''}"


def _hollow(outcome: Outcome, cost: FactorCost, condition: dict[str, str]) -> str:
    """Sentence if a remedy works only because the other level loses its advantage."""
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
    level_name, other = _levels(outcome, cost)
    return (
        f" ({where}only because {other} becomes as bad: {level_name} itself gets no better there)"
    )


def effects(outcome: Outcome) -> Iterator[Finding]:
    """For each response: the largest effects, interactions, and effects that are not significant."""
    if outcome.effects is None:
        return
    yield from not_estimable(outcome)
    for response in outcome.responses:
        tested = terms_of(outcome, response.name)
        if tested is None or "variation_share" not in tested.table:
            continue
        terms = term_rows(tested)
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
            yield _bounded(outcome, response, unsure)


#: a term of a response: columns of the effects table for findings, and its adjusted p-value `p`
Row = dict[str, Any]
_NUMBERS = ("effect", "ci_low", "effect_ci_low", "effect_ci_high", "variation_share", "p_value")


def term_rows(terms: Terms) -> list[Row]:
    """The terms with an estimate, in descending order of explained variation, else of significance."""
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
    if ranking(outcome, response).of("worse"):  # of treatments outside the model's terms
        beside = ", though treatments differ"
    return Finding(
        "effect-none",
        "info",
        f"No effect of {what} on {response.name} shows{beside}{_up_to(outcome, response, terms)}.",
        {"table": "effects", "response": response.name},
        "Not significant is not “no effect”: add replicates if a smaller difference would matter.",
        _tests(terms),
    )


def _bounded(outcome: Outcome, response: ResponseUnit, terms: Sequence[Row]) -> Finding:
    names = [term_text(row["term"]) for row in terms]
    return Finding(
        "effect-bound",
        "info",
        f"No effect of {listed(first_of(names, 3), 'or')} on {response.name} "
        f"shows{_up_to(outcome, response, terms)}.",
        {"table": "effects", "terms": [row["term"] for row in terms]},
        "Not significant is not “no effect”: more replicates narrow the bound.",
        _tests(terms),
    )


def _up_to(outcome: Outcome, response: ResponseUnit, terms: Sequence[Row]) -> str:
    """The upper bound of the size of these effects, all terms of the response together."""
    most = max((end for end in map(bound, terms) if math.isfinite(end)), default=math.inf)
    if not 0 < most < math.inf:  # equal runs show no variation, so there is no bound
        return ""
    return f"; it may still be up to {bound_text(outcome, response, most, terms[0]['scale'])}"


def bound(row: Row) -> float:
    """The upper bound of the size of an effect, all terms of the response together; infinite without one."""
    end = abs(float(row["effect"])) + float(row["margin"])
    return end if math.isfinite(end) else math.inf


def bound_text(outcome: Outcome, response: ResponseUnit, size: float, scale: str) -> str:
    """A bound with its share of the mean: `0.71 ms (6 % of the mean, 12.5 ms)`; of logarithms `12 %`."""
    if scale == LOG:
        return up_to(_ratio(size)).removeprefix("up to ")
    if scale != LINEAR:
        return quantity(size, f"on the scale {scale}")
    mean = measured_mean(outcome, response)
    text = quantity(size, response.unit)
    if not mean > 0:
        return text
    return f"{text} ({difference(1 + size / mean)} of the mean, {quantity(mean, response.unit)})"


def measured_mean(outcome: Outcome, response: ResponseUnit) -> float:
    """The mean of all valid runs."""
    return float(pd.to_numeric(outcome.measured[response.name], errors="coerce").mean())


def _ratio(logarithm: float) -> float:
    """The ratio of a difference of logarithms, limited to the largest float."""
    return math.exp(min(logarithm, 700.0))


def _tests(terms: Sequence[Row]) -> str:
    """The tests of the first terms in words."""
    tests = []
    for row in terms[:4]:
        name, p = term_text(row["term"]), row["p"]
        of_all = f"p = {p:.2g} of all terms together" if math.isfinite(p) else ""
        if math.isfinite(row["ci_low"]):
            effect, low, high = (row[k] for k in ("effect", "effect_ci_low", "effect_ci_high"))
            what = "effect"
            if row["scale"] == LOG:
                what, (effect, low, high) = "ratio", map(_ratio, (effect, low, high))
            ends = quantities([low, high])
            tests.append(
                f"{name}: {what} {quantity(effect)}, individual 95 % interval {ends}"
                f"{f', {of_all}' if of_all else ''}"
            )
        elif of_all:
            tests.append(f"{name}: F test, {of_all}")
    return f"{'; '.join(tests)}." if tests else ""


def _dominant(outcome: Outcome, response: ResponseUnit, sure: Sequence[Row]) -> Finding:
    """The largest significant term, and other large ones."""
    top, *rest = sure
    term, share = top["term"], top["variation_share"]
    of_ratios = " in ratios" if top["scale"] == LOG else ""
    detail = f"{_share(share, 1)} of the variation{of_ratios}. {_tests([top])}".strip()
    detail = detail[:1].upper() + detail[1:]
    evidence = {"table": "effects", "response": response.name, "term": term}
    others = {
        row["term"]: row["variation_share"] for row in rest if row["variation_share"] >= _ALSO_MUCH
    }
    also = listed([f"{term_text(t)} {_share(s)}" for t, s in others.items()])
    explains = f"{_share(share)} of the variation in {response.name}"
    then = f"; then {also}" if also else ""
    rivals = inseparable(top)
    if square := square_of(term):
        what, by_level = f"the curvature in {term_text(square)}", ""
    elif rivals:
        what, by_level = f"{term_text(term)} or {listed(rivals, 'or')} (not separable)", ""
    elif ":" in term:
        what, by_level = f"{term_text(term)} together", ""
    else:
        # if it depends on another factor, the mean over that factor's levels describes no run
        depends = any(term in t.split(":") and not square_of(t) for t in others)
        by_level = "" if depends else _by_level(outcome, response, term)
        what = term_text(term)
    statement = f"{what}: {explains}{by_level}{then}."
    return Finding("effect-dominant", "info", statement, evidence, "", detail)


def inseparable(row: pd.Series[Any] | Mapping[Any, Any]) -> list[str]:
    """The exact aliases of a term of the effects table that have at most two factors, in words."""
    aliases = []
    for alias in str(row.get("aliases") or "").split(", "):
        name = alias.lstrip("+-")
        other = (
            not name or _PART.match(name) or name.startswith(("not estimable", "the difference"))
        )
        if not other and name.count(":") <= 1:
            aliases.append(term_text(name))
    return first_of(aliases, _MOST_ALIASES)


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
    average = " on average" if len(outcome.factors) > 1 else ""
    return f" ({first}, {last}{average})"


def _share(share: float, digits: int = 0) -> str:
    """A share of the variation; never 100 %, because runs vary."""
    return f"{share:.{digits}f} %" if share < 99.5 else "more than 99 %"


def _interactions(
    outcome: Outcome, response: ResponseUnit, terms: Sequence[Row]
) -> Iterator[Finding]:
    """The largest two-factor interactions, as the effect of one factor at the other's levels."""
    pairs = [r for r in terms if r["term"].count(":") == 1 and not square_of(r["term"])]
    for row in [r for r in pairs if r["variation_share"] >= 1.0][:3]:
        names = row["term"].split(":")
        ways = [_worth(outcome, response, *pair) for pair in (names, names[::-1])]
        described = [way for way in ways if way is not None]
        if not described:
            continue
        # the factor with the smallest conditional effect shows the dependence best
        small, large, sentence = min(described)
        # equal ratios under each level: different in units, not in proportion
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
            f"{term_text(str(row['term']))}: {sentence}.{beside}",
            {"table": "effects", "response": response.name, "term": row["term"]},
            "",
            f"{row['variation_share']:.1f} % of the variation of {response.name}; ratios of geometric means.",
        )


def _worth(
    outcome: Outcome, response: ResponseUnit, name: str, other: str
) -> tuple[float, float, str] | None:
    """A factor's effect at the levels of another: smallest and largest ratio, and a sentence on both."""
    cost = factor_cost(outcome, response, name)
    if cost is None or not cost.cells[0].where:
        return None
    by_level = [(mean_ratio(cost.under({other: v})), v) for v in outcome.factor(other).levels]
    worth = sorted(w for w in by_level if math.isfinite(w[0]))
    if len(worth) < 2:
        return None
    (small, small_at), (large, large_at) = worth[0], worth[-1]
    smallest_change = (
        "changes nothing" if abs(small - 1) <= 0.02 else _changes_it(cost, small, large)
    )
    phrase = outcome.factor(other).phrase
    sentence = (
        f"{_instead(outcome, cost)} {_changes(cost, large)} with {phrase(large_at)}, and "
        f"{smallest_change} with {phrase(small_at)}"
    )
    return small, large, sentence
