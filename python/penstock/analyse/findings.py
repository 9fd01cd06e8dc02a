"""Findings: what the tables of a study say, in plain words, each with a stable code.

A finding is a statement, the rows that carry it and what to do about it. Codes never change their
meaning; `CODES` lists them. Everything is computed from the published tables of an OUT directory.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.analyse.costs import (
    NO_COST,
    FactorCost,
    factor_cost,
    focal_factor,
    mean_ratio,
)
from penstock.analyse.means import ranking
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.question import direction, kind
from penstock.analyse.recommend import conflicts, recommendation
from penstock.analyse.straggler import Held, held_up, in_words
from penstock.analyse.why import not_known, why
from penstock.analyse.words import listed, percent, quantity, term_words, times
from penstock.archive.receipts import unplaced_faults

_SIGNIFICANT = 0.05

SEVERITIES = ("info", "warning", "error")

#: code → what it states
CODES = {
    "recommendation": "the treatment to choose by the study's first response, or what is undecided",
    "responses-conflict": "what the recommended treatment costs in another response",
    "responses-agree": "other responses for which the recommended treatment is as good as any",
    "effect-dominant": "the factor that most of a response's variation comes from",
    "effect-interaction": "two factors whose effects depend on each other",
    "effect-none": "no effect on a response is significant",
    "effect-bound": "what a not significant effect may still be",
    "why": "what the time of the compared treatments goes to",
    "not-known": "what the runs cannot tell",
    "cost": "what the level in question costs, where most and where least",
    "remedy": "what removes or eases that cost",
    "no-pure-error": "no replicates, hence no interval from the runs themselves",
    "straggler": "the node of several that is at work longest, and why as far as the tables say",
    "straggler-none": "no node of several stands out",
    "run-invalid": "runs left out because what was asked of the host was not delivered",
    "run-failed": "runs whose workload failed or timed out",
    "run-missing": "planned runs that were not made",
    "fidelity-honoured": "emulated disks delivered what their profile asks",
    "fidelity-not-honoured": "emulated disks did not deliver what their profile asks",
    "fidelity-host-saturated": "the host could not keep up with an emulated disk",
    "fidelity-undecided": "too few requests to judge an emulated disk",
    "observer-lost": "observers lost events or samples",
    "observer-cost": "processor time that the observers took",
    "prediction-agrees": "at least 85 % of predictions within 15 % of the measurement",
    "prediction-departs": "fewer than 85 % of predictions within 15 % of the measurement",
    "fraction-misleads": "where the half fraction of the same runs would have been wrong",
    "fraction-agrees": "the half fraction of the same runs would have said the same",
    "design-caution": "what the design cannot tell",
}
AGREEMENT_LIMIT = 0.15
AGREEMENT_BAR = 0.85


@dataclass(frozen=True)
class Finding:
    """A statement with a stable code, its evidence (rows of a table) and what to do about it.

    `severity` is `info`, `warning` or `error`; `evidence` names the table and the rows in it; `detail` is
    the statistics behind the statement, in words.
    """

    code: str
    severity: str
    statement: str
    evidence: dict[str, Any] = field(default_factory=dict)
    what_to_do: str = ""
    detail: str = ""


def findings(outcome: Outcome | Path | str) -> list[Finding]:
    """All findings of an OUT directory, the ones that answer the question first.

    Raises `BadInput` where the directory is not one of results.
    """
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    parts: tuple[Callable[[Outcome], Iterator[Finding]], ...] = (
        _recommendation,
        _costs,
        _effects,
        _why,
        _stragglers,
        _runs,
        _fidelity,
        _observers,
        _predictions,
        _fraction,
        _cautions,
    )
    return [finding for part in parts for finding in part(outcome)]


def findings_table(found: list[Finding]) -> pa.Table:
    """The findings as a table: code, severity, statement, evidence (JSON), what_to_do, detail."""
    names = ("code", "severity", "statement", "evidence", "what_to_do", "detail")
    rows = [{**asdict(f), "evidence": json.dumps(f.evidence, default=_plain)} for f in found]
    return pa.table({n: pa.array([str(r[n]) for r in rows], pa.string()) for n in names})


def write_findings(outcome: Outcome | Path | str) -> list[Finding]:
    """Computes the findings of OUT and leaves them in `OUT/findings.parquet`."""
    outcome = outcome if isinstance(outcome, Outcome) else Outcome.read(outcome)
    found = findings(outcome)
    pq.write_table(findings_table(found), outcome.path / "findings.parquet")
    return found


#: codes of the findings that answer the question, in the order in which they are said
_ANSWER = ("recommendation", "responses-conflict", "responses-agree")


def answer(outcome: Outcome, found: list[Finding] | None = None) -> list[str]:
    """The study's question answered, a sentence each: the statements of `answering`."""
    found = findings(outcome) if found is None else found
    return [f.statement for f in answering(outcome, found)]


def answering(outcome: Outcome, found: list[Finding]) -> list[Finding]:
    """The findings that answer the study's question, in the order in which they are told.

    What the question asks comes first: whether and how much before which is best. Then what else the best
    means, what matters, why, and what is not known. Empty where no response was measured.
    """

    def said(*codes: str, most: int = 99) -> list[Finding]:
        return [f for code in codes for f in found if f.code == code][:most]

    asked = [] if kind(outcome.question) == "which" else said("cost", "remedy", most=2)
    matters = said("effect-dominant", most=1) if len(outcome.factors) > 1 else []
    return [*asked, *said(*_ANSWER), *matters, *said("why", "not-known")]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _runs_named(names: list[str]) -> str:
    shown = listed(names[:6]) if len(names) <= 6 else f"{', '.join(names[:6])}, …"
    return f"{len(names)} run{'s' if len(names) != 1 else ''} ({shown})"


# --- which ---------------------------------------------------------------------------------------


def _recommendation(outcome: Outcome) -> Iterator[Finding]:
    said = recommendation(outcome)
    if said is None:
        return
    advice = "" if said.sure else "More replicates tell more apart; `--resume` makes missing runs."
    severity = "info" if said.sure else "warning"
    yield Finding("recommendation", severity, said.text, said.evidence, advice, said.detail)
    for other in conflicts(outcome):
        code = (
            "responses-agree" if other.evidence.get("conflict") is False else "responses-conflict"
        )
        yield Finding(code, "info", other.text, other.evidence, "", other.detail)


# --- effects ---------------------------------------------------------------------------------------


def _costs(outcome: Outcome) -> Iterator[Finding]:
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


def _effects(outcome: Outcome) -> Iterator[Finding]:
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


def _why(outcome: Outcome) -> Iterator[Finding]:
    said = why(outcome)
    if said is not None:
        yield Finding("why", "info", said.text, said.evidence, "", said.detail)
    open_ = not_known(outcome)
    if open_ is not None:
        yield Finding("not-known", "info", open_.text, open_.evidence)


def _stragglers(outcome: Outcome) -> Iterator[Finding]:
    """One finding per treatment with a straggler, one for all treatments without."""
    by_treatment: dict[str, list[Held]] = {}
    for row in held_up(outcome):
        by_treatment.setdefault(row.treatment_id, []).append(row)
    without: list[str] = []
    for treatment, rows in by_treatment.items():
        node, runs = Counter(row.node for row in rows).most_common(1)[0]
        if node is None or 2 * runs <= len(rows):
            without.append(treatment)
            continue
        mine = [row for row in rows if row.node == node]
        where = outcome.phrase(outcome.levels(treatment))
        yield Finding(
            "straggler",
            "info",
            f"{node} is the straggler{f' with {where}' if where else ''} ({runs} of {len(rows)} "
            f"run{'s' * (len(rows) > 1)}): {in_words(outcome, mine)}.",
            {"table": "disk_stats", "node": node, "run_id": [row.run_id for row in mine]},
        )
    if without:
        rows = [row for treatment in without for row in by_treatment[treatment]]
        named = [outcome.phrase(outcome.levels(t)) for t in without[:4]]
        where = f" ({'; '.join(named)}{', …' * (len(without) > 4)})" if any(named) else ""
        first = sorted(rows, key=lambda row: row.ratio)[len(rows) // 2]
        top, second = first.loads[:2]
        what = top.name if top.resource == "disk" else f"the processors of {top.node}"
        yield Finding(
            "straggler-none",
            "info",
            f"In {len(without)} of {len(by_treatment)} treatments{where} no node stands out: of a usual run "
            f"what is most at work, {what}, is so for {percent(top.busy_ns / first.wall_ns)} of the time and "
            f"{times(first.ratio)} as long as anything of the next node ({second.node}).",
            {"table": "disk_stats", "run_id": [row.run_id for row in rows]},
        )


# --- runs, disks, observers ------------------------------------------------------------------------


def _runs(outcome: Outcome) -> Iterator[Finding]:
    runs = outcome.runs
    planned = [str(r["run_id"]) for r in outcome.plan.get("rows") or [] if "run_id" in r]
    made = set(runs["run_id"].astype(str)) if runs is not None else set()
    missing = [r for r in planned if r not in made]
    if missing:
        yield Finding(
            "run-missing",
            "warning",
            f"{len(missing)} of {len(planned)} planned runs were not made ({missing[0]} is the first).",
            {"table": "runs", "run_id": missing},
            "`penstock run STUDY --resume` makes them; finished runs are not repeated.",
        )
    if runs is None or "valid" not in runs:
        return
    bad = runs[~runs["valid"].fillna(False).astype(bool)]
    failed = _failed(outcome, bad)
    for code, rows, severity, told, advice in (
        (
            "run-failed",
            bad[failed],
            "error",
            "failed",
            "Read stderr.txt in the run's directory; failed runs are kept, and left out of the "
            "analysis.",
        ),
        (
            "run-invalid",
            bad[~failed],
            "warning",
            "not valid, hence left out of the analysis",
            "Quieten the host or slow the profile (time_scale), then `--resume` repeats them.",
        ),
    ):
        if rows.empty:
            continue
        reasons = Counter(w for r in rows["reason"].fillna("") for w in _causes(str(r)))
        why = "; ".join(f"{n}× {w}" if n > 1 else w for w, n in reasons.most_common(4))
        names = list(rows["run_id"].astype(str))
        verb = "was" if len(names) == 1 and told.startswith("not") else "were"
        told = f"{verb} {told}" if told.startswith("not") else told
        yield Finding(
            code,
            severity,
            f"{_runs_named(names)} {told}: {why or 'no reason given'}.",
            {"table": "runs", "run_id": names},
            advice,
        )


def _causes(reason: str) -> list[str]:
    """A reason without its numbers, cause by cause, so that like reasons can be counted."""
    found = []
    for cause in re.sub(r"\([^)]*\)", "", reason).split(";"):
        cause = re.sub(r"^\s*[\w.-]+:\s", "", cause)
        cause = re.sub(r"(?<!\w)[+−-]?\d[\d.,]*\s*(%|us|µs|ms|ns)?\s*", "", cause)
        cause = " ".join(cause.split()).removeprefix("of ")
        if cause:
            found.append(cause)
    return found


def _failed(outcome: Outcome, rows: pd.DataFrame) -> pd.Series:
    def failed(row: dict[Any, Any]) -> bool:
        state = row.get("state") or outcome.manifest(str(row["run_id"])).get("state")
        return state not in (None, "finished")

    return pd.Series([failed(r) for r in rows.to_dict("records")], index=rows.index, dtype=bool)


def _fidelity(outcome: Outcome) -> Iterator[Finding]:
    table = outcome.fidelity
    if table is None or table.empty or "verdict" not in table:
        return
    key = ["run_id", "disk_id"]
    disks: dict[tuple[str, str], set[str]] = {}
    for run, disk, verdict in zip(*(table[c].astype(str) for c in (*key, "verdict")), strict=True):
        disks.setdefault((run, disk), set()).add(verdict)
    good = [
        k for k, v in disks.items() if v <= {"honoured", "demand-bound", "too-short", "", "None"}
    ]
    for code, bad, severity, told, advice in (
        (
            "fidelity-host-saturated",
            "host-saturated",
            "warning",
            "the host could not keep up with the emulated disk",
            "Leave the processors to penstock and the workload, or raise time_scale.",
        ),
        (
            "fidelity-not-honoured",
            "not-honoured",
            "error",
            "the emulated disk did not deliver what its profile asks",
            "Do not use these runs; `penstock doctor` gives this host's honest floors.",
        ),
    ):
        hit = [k for k, v in disks.items() if bad in v]
        if hit:
            rows = table[table["verdict"] == bad]
            yield Finding(
                code,
                severity,
                f"In {len(hit)} of {len(disks)} disk certificates {told} ({_reason(rows)}).",
                {"table": "fidelity", "run_id": sorted({str(k[0]) for k in hit})},
                advice,
            )
    if good and len(good) == len(disks):
        rates = table[table["metric"].astype(str).str.contains("rate")]["ratio"].dropna()
        spread = ""
        if len(rates):
            off = float((rates - 1).abs().max() * 100)
            spread = f"; the delivered rate was within {off:.1f} % of what was asked everywhere"
        yield Finding(
            "fidelity-honoured",
            "info",
            f"All {len(disks)} disk certificates hold{spread}.",
            {"table": "fidelity"},
        )
    short = [k for k, v in disks.items() if "too-short" in v]
    if short:
        yield Finding(
            "fidelity-undecided",
            "info",
            f"{len(short)} of {len(disks)} disk certificates rest on too few requests for some "
            "quantiles; those are not judged.",
            {"table": "fidelity", "run_id": sorted({str(k[0]) for k in short})},
            "Longer runs let every quantile be judged.",
        )


def _reason(rows: pd.DataFrame) -> str:
    judged = rows[np.isfinite(rows["ratio"].astype(float))]
    if judged.empty:
        return f"first in {rows.iloc[0]['run_id']}"
    row = judged.assign(_off=(judged["ratio"] - 1).abs()).sort_values("_off").iloc[-1]
    told = f"{float(row['ratio']):.2f} of what was asked"
    return f"farthest off: {row['metric']} of {row['run_id']}, {told}"


def _observers(outcome: Outcome) -> Iterator[Finding]:
    lost: dict[str, dict[str, int]] = {}
    unplaced: dict[str, int] = {}
    cpu: dict[str, float] = {}
    for run_id in outcome.run_ids:
        for observer, receipt in observer_receipts(outcome.manifest(run_id)).items():
            missing = int(receipt.get("lost") or 0) + int(receipt.get("missed") or 0)
            if (faults := unplaced_faults(receipt)) > 0:
                unplaced[run_id] = faults
                missing -= faults
            if missing:
                lost.setdefault(observer, {})[run_id] = missing
            if receipt.get("cpu_ns") is not None:
                cpu[observer] = cpu.get(observer, 0.0) + float(receipt["cpu_ns"])
    for observer, by_run in lost.items():
        unit = "samples were missed" if observer == "monitor" else "events were lost"
        yield Finding(
            "observer-lost",
            "warning",
            f"{observer}: {sum(by_run.values()):,} {unit} in {_runs_named(list(by_run))}; figures and "
            "verdicts of those runs rest on what was kept.",
            {"table": "manifest", "observer": observer, "run_id": list(by_run)},
            "Use mode `pattern`, or a larger ring."
            if observer == "trace"
            else "Lengthen interval.",
        )
    if unplaced:
        yield Finding(
            "observer-lost",
            "info",
            f"trace: {sum(unplaced.values()):,} page faults in {_runs_named(list(unplaced))} could not be "
            "placed in a file, because another thread was changing the mappings.",
            {"table": "manifest", "observer": "trace", "run_id": list(unplaced)},
        )
    if cpu:
        n = max(1, len(outcome.run_ids))
        words = listed([f"{o} {v / n / 1e6:.1f} ms" for o, v in sorted(cpu.items())])
        yield Finding(
            "observer-cost",
            "info",
            f"The observers took, per run on average, {words} of processor time.",
            {"table": "manifest"},
        )


def observer_receipts(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each observer's own account of a run: what it saw, lost, and its cost; by observer."""
    raw = manifest.get("receipts") or manifest.get("observers") or {}
    return {str(k): v for k, v in raw.items() if isinstance(v, dict)}


# --- predictions, fractions, cautions --------------------------------------------------------------


def agreement(predictions: pd.DataFrame) -> tuple[int, int, float]:
    """(predictions within 15 %, predictions judged, worst ratio), the basis treatment left out."""
    rows = predictions[np.isfinite(predictions["ratio"].astype(float))]
    if "is_basis" in rows:
        rows = rows[~rows["is_basis"].astype(bool)]
    elif "basis_treatment" in rows:
        rows = rows[rows["treatment_id"] != rows["basis_treatment"]]
    if rows.empty:
        return 0, 0, math.nan
    ratios = rows["ratio"].astype(float)
    within = int(((ratios - 1).abs() <= AGREEMENT_LIMIT).sum())
    worst = float(ratios.iloc[int(np.argmax(np.abs(np.log(ratios))))])
    return within, len(rows), worst


def _predictions(outcome: Outcome) -> Iterator[Finding]:
    table = outcome.predictions
    if table is None or table.empty or "ratio" not in table:
        return
    for response, rows in table.groupby("response"):
        within, judged, worst = agreement(rows)
        if not judged:
            continue
        basis = str(rows["basis_treatment"].iloc[0]) if "basis_treatment" in rows else "?"
        good = within >= AGREEMENT_BAR * judged
        levels = outcome.phrase(outcome.levels(basis))
        known = f" ({levels})" if levels else ""
        yield Finding(
            "prediction-agrees" if good else "prediction-departs",
            "info" if good else "warning",
            f"{response}: {within} of {judged} treatments ({100 * within / judged:.0f} %) were "
            f"predicted within 15 %; the worst prediction is {worst:.2f} of the measurement.",
            {"table": "predictions", "response": str(response), "basis_treatment": basis},
            "" if good else "Do not rely on the model where it departs; see the table.",
            f"From the traces of {basis}{known} and the disk profiles alone.{_model(rows)}",
        )


def _model(rows: pd.DataFrame) -> str:
    """What the model is and leaves out, in its own words."""
    notes = [str(n) for n in rows["note"].dropna().unique()] if "note" in rows else []
    said = dict.fromkeys(p.strip() for note in notes for p in note.split(";") if p.strip())
    return f" The model: {'; '.join(said)}." if said else ""


def fraction_comparison(outcome: Outcome, response: str) -> dict[str, Any] | None:
    """What the half fraction of the same runs would have said; `None` where it cannot be formed."""
    from penstock.analyse.fraction import half_against_full

    return half_against_full(outcome, response)


def _fraction(outcome: Outcome) -> Iterator[Finding]:
    for response in outcome.responses:
        compared = fraction_comparison(outcome, response.name)
        if compared is None:
            continue
        wrong = [r for r in compared["rows"] if r["wrong"]]
        relation = compared["relation"]
        if not wrong:
            yield Finding(
                "fraction-agrees",
                "info",
                f"{response.name}: the half fraction ({relation}) of the same runs would have led to "
                "the same conclusions here. That is no proof that it would elsewhere.",
                {"table": "effects", "response": response.name},
            )
            continue
        words = "; ".join(f"{term_words(r['term'])} {r['why']}" for r in wrong)
        yield Finding(
            "fraction-misleads",
            "info",
            f"{response.name}: with half the runs {len(wrong)} of {len(compared['rows'])} conclusions would "
            "have been wrong.",
            {"table": "effects", "response": response.name, "terms": [r["term"] for r in wrong]},
            "Where interactions are to be told apart, keep the full design.",
            f"The half fraction {relation}: {words}.",
        )


def _cautions(outcome: Outcome) -> Iterator[Finding]:
    for sentence in outcome.plan.get("cautions") or []:
        yield Finding("design-caution", "info", str(sentence), {"table": "plan"})
