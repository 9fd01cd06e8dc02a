"""Conclusions from a regular fraction of a full design's runs, and their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.scale import LINEAR, LOG
from penstock.analyse.statistics.significance import is_sure
from penstock.analyse.statistics.terms import numbers
from penstock.design.generators import (
    NoFraction,
    choose_generators,
    defining_relation,
    members,
    parse_generator,
)
from penstock.design.matrix import column
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import PenstockError

#: relative difference from the effect up to which a size is correct
MATERIAL = 0.10
#: the largest logarithm of a ratio of effects that is reported as a number
_MOST = 300.0

COLUMNS = (
    "response",
    "term",
    "full",
    "full_ci_low",
    "full_ci_high",
    "fraction",
    "fraction_ci_low",
    "fraction_ci_high",
    "coset_sum",
    "aliased_with",
    "full_significant",
    "fraction_significant",
    "agrees",
    "fault",
    "statement",
)


def fraction_of(
    runs: pd.DataFrame,
    plan: Plan,
    response: str,
    added: int = 1,
    generators: Sequence[str] = (),
    scale: str = LINEAR,
) -> pd.DataFrame:
    """Coefficients from the full design and from its fraction 2^(K−`added`) on a scale, one row per contrast.

    The fraction is the one `plan` would have chosen (maximum resolution, minimum aberration), or that of
    `generators`; its intervals come from its own runs. `coset_sum` is the signed sum of the full design's
    coefficients over the contrast's aliases: with every run valid and balanced it equals `fraction`.
    `agrees`: same verdict, same sign, and a size covered by the fraction's own interval or `MATERIAL`;
    `fault` describes the difference. PenstockError unless the plan is a full two-level design.
    """
    names = [f.name for f in plan.factors]
    relation = relation_of(plan, added, generators)
    in_half = rows_in(runs, plan, relation)
    generators_used = len(relation).bit_length() - 1
    part = replace(
        plan,
        rows=[r for r in plan.rows if _member(r.coded, names, relation)],
        fraction=generators_used,
        treatments=plan.treatments >> generators_used,
    )
    of_full = effects(runs, plan, response, scale=scale)
    full = {str(r["term"]): r for r in _records(_judged(of_full))}
    small = _judged(effects(runs[in_half], part, response, scale=scale))
    rows = [
        _row(row, full, relation, names, scale)
        for row in _records(small)
        if set(str(row["term"]).split(":")) <= set(names)
    ]
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def relation_of(plan: Plan, added: int = 1, generators: Sequence[str] = ()) -> dict[int, int]:
    """The defining relation of a fraction of a full design, for `fraction_of`.

    PenstockError as there; BadInput for an invalid generator.
    """
    names = [f.name for f in plan.factors]
    if not plan.two_level or plan.fraction or plan.model is not None:
        raise PenstockError("only a full design of two-level factors has fractions to compare with")
    try:
        chosen = (
            [parse_generator(text, names) for text in generators]
            if generators
            else choose_generators(len(names), added)
        )
    except NoFraction as error:
        raise PenstockError(f"no such fraction: expected {error}") from None
    relation = defining_relation(g.relation for g in chosen)
    if len(relation) < 1 << len(chosen):
        raise PenstockError("found generators that follow from, or contradict, each other")
    return relation


def _judged(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(sure=is_sure(table))


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {str(name): table[name].tolist() for name in table}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _member(coded: dict[str, int], names: list[str], relation: dict[int, int]) -> bool:
    values = np.array([[coded[n] for n in names]], dtype=np.int8)
    return all(int(column(values, w)[0]) == s for w, s in relation.items())


def rows_in(runs: pd.DataFrame, plan: Plan, relation: dict[int, int]) -> Any:
    """Mask of the runs of the fraction with this relation."""
    matrix = (2 * numbers(runs, plan) - 1).astype(np.int8)
    keep = np.ones(len(runs), dtype=bool)
    for word, sign in relation.items():
        keep &= column(matrix, word) == sign
    return keep


def _term_word(term: str, names: list[str]) -> int:
    return sum(1 << names.index(name) for name in term.split(":"))


def _row(
    small: Mapping[str, Any],
    full: dict[str, dict[str, Any]],
    relation: dict[int, int],
    names: list[str],
    scale: str,
) -> dict[str, Any]:
    word = _term_word(small["term"], names)
    coset = {word ^ w: s for w, s in relation.items()}
    terms = {":".join(names[i] for i in members(w)): s for w, s in coset.items() if w}
    others = [f"{'+' if s > 0 else '-'}{t}" for t, s in terms.items() if t != small["term"]]
    others.sort(key=lambda t: (t.count(":"), t))
    present = [t for t in terms if t in full]
    true = full[small["term"]]
    half = float(small["coefficient"])
    sure_full, sure_half = bool(true["sure"]), bool(small["sure"])
    margin = (float(small["ci_high"]) - float(small["ci_low"])) / 2
    fault = _fault(half, float(true["coefficient"]), margin, sure_half, sure_full, scale)
    return {
        "response": small["response"],
        "term": small["term"],
        "full": float(true["coefficient"]),
        "full_ci_low": float(true["ci_low"]),
        "full_ci_high": float(true["ci_high"]),
        "fraction": half,
        "fraction_ci_low": float(small["ci_low"]),
        "fraction_ci_high": float(small["ci_high"]),
        "coset_sum": sum(terms[t] * float(full[t]["coefficient"]) for t in present),
        "aliased_with": ", ".join(others),
        "full_significant": sure_full,
        "fraction_significant": sure_half,
        "agrees": not fault,
        "fault": fault,
        "statement": _statement(small["term"], ", ".join(others), fault, sure_full),
    }


def _fault(
    half: float, full: float, margin: float, sure_half: bool, sure_full: bool, scale: str
) -> str:
    """Difference of the fraction's conclusion on a term from the full design's; empty if there is none."""
    if sure_half and not sure_full:
        return "would have been called significant and is not"
    if sure_full and not sure_half:
        return "would have been missed"
    if not sure_full:
        return ""
    if half * full < 0:
        return "would have had the wrong sign"
    if abs(half - full) > max(margin, MATERIAL * abs(full)):
        size = "large" if half / full > 1 else "small"
        off = half / full - 1
        if scale == LOG:  # an effect is twice the coefficient
            off = math.expm1(min(2 * (abs(half) - abs(full)), _MOST))
        return f"would have come out {100 * abs(off):.0f} % too {size}"
    return ""


def _statement(term: str, aliased_with: str, fault: str, sure_full: bool) -> str:
    name = _readable(term)
    if fault:
        rivals = _readable(aliased_with)
        return f"{name} {fault}{f' ({rivals} is mixed into it)' if rivals else ''}."
    return f"Both designs find {name}." if sure_full else f"Neither design finds {name}."


def _readable(terms: str) -> str:
    """Terms for display: `+disk:block_size` as `disk × block size`."""
    plain = ", ".join(t.lstrip("+-") for t in terms.split(", "))
    return plain.replace(":", " × ").replace("_", " ")


def half_against_full(outcome: Outcome, response: str) -> dict[str, Any] | None:
    """The half fraction and the full design by term, on the scale of the effects; None unless the full design
    is completely measured.

    `relation`, `scale`, `runs`, `of` and `rows`: effects (2q) of both with 95 % intervals, `rivals`, `wrong`,
    `why`.
    """
    key = f"half {response}"
    if key not in outcome.memory:
        outcome.memory[key] = _compared(outcome, response)
    comparison: dict[str, Any] | None = outcome.memory[key]
    return comparison


def _compared(outcome: Outcome, response: str) -> dict[str, Any] | None:
    unit = next((r for r in outcome.responses if r.name == response), None)
    if outcome.runs is None or len(outcome.factors) < 3 or unit is None:
        return None
    usable = outcome.measured[outcome.measured[response].notna()]
    planned = {r["treatment_id"] for r in outcome.plan.get("rows") or []}
    if not planned <= set(usable["treatment_id"]):
        return None
    scale = scale_of_effects(outcome, unit)
    try:
        plan = plan_from_json(outcome.plan)
        table = fraction_of(outcome.runs, plan, response, scale=scale)
    except PenstockError:
        return None
    names = [f.name for f in plan.factors]
    word = next(
        w for w in defining_relation(g.relation for g in choose_generators(len(names), 1)) if w
    )
    return {
        "relation": f"I = {' × '.join(names[i].replace('_', ' ') for i in members(word))}",
        "scale": scale,
        "runs": len(plan.rows) // 2,
        "of": len(plan.rows),
        "rows": [_as_effects(row) for row in _records(table)],
    }


def _as_effects(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `fraction_of` for the report: effects in place of coefficients, terms in words."""
    rivals = _readable(row["aliased_with"])
    return {
        "term": row["term"],
        "rivals": rivals,
        "half": 2 * float(row["fraction"]),
        "half_low": 2 * float(row["fraction_ci_low"]),
        "half_high": 2 * float(row["fraction_ci_high"]),
        "full": 2 * float(row["full"]),
        "full_low": 2 * float(row["full_ci_low"]),
        "full_high": 2 * float(row["full_ci_high"]),
        "wrong": not row["agrees"],
        "why": f"{row['fault']} ({rivals} is mixed into it)" if row["fault"] else "",
    }
