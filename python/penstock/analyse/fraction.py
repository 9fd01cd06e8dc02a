"""What a regular fraction of a full design's runs would have said, and where it would have been wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from penstock.analyse.effects import effects, numbers
from penstock.design.generators import (
    choose_generators,
    defining_relation,
    members,
    parse_generator,
)
from penstock.design.matrix import column
from penstock.design.plan import Plan
from penstock.errors import PenstockError

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
    "statement",
)


def fraction_of(
    runs: pd.DataFrame,
    plan: Plan,
    response: str,
    added: int = 1,
    generators: Sequence[str] = (),
) -> pd.DataFrame:
    """Coefficients by the full design and by its fraction 2^(K−`added`), one row per contrast.

    The fraction is the one `plan` would have chosen (maximum resolution, minimum aberration), or that of
    `generators`; its intervals come from its own runs. `coset_sum` is the signed sum of the full design's
    coefficients over the contrast's aliases: with every run valid and balanced it equals `fraction` (DN-20).
    `agrees`: same verdict, same sign. PenstockError unless the plan is a full two-level design.
    """
    names = [f.name for f in plan.factors]
    if not plan.two_level or plan.fraction:
        raise PenstockError("only a full design of two-level factors has fractions to compare with")
    chosen = (
        [parse_generator(text, names) for text in generators]
        if generators
        else choose_generators(len(names), added)
    )
    relation = defining_relation(g.relation for g in chosen)
    in_half = _selected(runs, plan, relation)
    part = replace(
        plan,
        rows=[r for r in plan.rows if _member(r.coded, names, relation)],
        fraction=len(chosen),
        treatments=plan.treatments >> len(chosen),
    )
    full = {str(r["term"]): r for r in _records(effects(runs, plan, response))}
    small = effects(runs[in_half], part, response)
    rows = [
        _row(row, full, relation, names, response)
        for row in _records(small)
        if row["term"] not in ("block", "residual")
    ]
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def _member(coded: dict[str, int], names: list[str], relation: dict[int, int]) -> bool:
    values = np.array([[coded[n] for n in names]], dtype=np.int8)
    return all(int(column(values, w)[0]) == s for w, s in relation.items())


def _selected(runs: pd.DataFrame, plan: Plan, relation: dict[int, int]) -> Any:
    matrix = (2 * numbers(runs, plan) - 1).astype(np.int8)
    keep = np.ones(len(runs), dtype=bool)
    for word, sign in relation.items():
        keep &= column(matrix, word) == sign
    return keep


def _term_word(term: str, names: list[str]) -> int:
    return sum(1 << names.index(name) for name in term.split(":"))


def _row(
    small: dict[str, Any],
    full: dict[str, dict[str, Any]],
    relation: dict[int, int],
    names: list[str],
    response: str,
) -> dict[str, Any]:
    word = _term_word(small["term"], names)
    coset = {word ^ w: s for w, s in relation.items()}
    terms = {":".join(names[i] for i in members(w)): s for w, s in coset.items() if w}
    others = [f"{'+' if s > 0 else '-'}{t}" for t, s in terms.items() if t != small["term"]]
    others.sort(key=lambda t: (t.count(":"), t))
    known = [t for t in terms if t in full]
    true = full[small["term"]]
    half = float(small["coefficient"])
    sure_full = _significant(true["ci_low"], true["ci_high"])
    sure_half = _significant(small["ci_low"], small["ci_high"])
    same_sign = half * float(true["coefficient"]) > 0
    agrees = sure_full == sure_half and (same_sign or not sure_full)
    return {
        "response": response,
        "term": small["term"],
        "full": float(true["coefficient"]),
        "full_ci_low": float(true["ci_low"]),
        "full_ci_high": float(true["ci_high"]),
        "fraction": half,
        "fraction_ci_low": float(small["ci_low"]),
        "fraction_ci_high": float(small["ci_high"]),
        "coset_sum": sum(terms[t] * float(full[t]["coefficient"]) for t in known),
        "aliased_with": ", ".join(others),
        "full_significant": sure_full,
        "fraction_significant": sure_half,
        "agrees": agrees,
        "statement": _statement(
            small["term"], others, half, float(true["coefficient"]), sure_full, sure_half
        ),
    }


def _significant(low: Any, high: Any) -> bool:
    return bool(float(low) > 0 or float(high) < 0)


def _statement(
    term: str, others: list[str], half: float, full: float, sure_full: bool, sure_half: bool
) -> str:
    name = term.replace(":", " x ")
    rivals = ", ".join(t[1:].replace(":", " x ") for t in others) or "nothing"
    if sure_half and not sure_full:
        return (
            f"The fraction would have called {name} an effect and it is none ({rivals} is in it)."
        )
    if sure_full and not sure_half:
        return f"The fraction would have missed {name}, an effect in the full design ({rivals} is in it)."
    if sure_full and half * full < 0:
        return f"The fraction would have given {name} the wrong sign ({rivals} is in it)."
    if not sure_full:
        return f"Neither design finds an effect of {name}."
    change = 100 * (half / full - 1)
    return (
        f"Both find {name}; the fraction's estimate is {change:+.0f} % off (with {rivals} in it)."
    )
