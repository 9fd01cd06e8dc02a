"""The half fraction beside the full design, in the words of the report (numbers: `analyse.fraction`)."""

from __future__ import annotations

from typing import Any

from penstock.analyse.fraction import fraction_of
from penstock.analyse.outcome import Outcome
from penstock.design.generators import choose_generators, defining_relation, members
from penstock.design.plan import plan_from_json
from penstock.errors import PenstockError

#: a size that differs by less than this share of the effect is not called wrong
MATERIAL = 0.10


def half_against_full(outcome: Outcome, response: str) -> dict[str, Any] | None:
    """Compares conclusions term by term; `None` unless a full two-level design is measured whole.

    A conclusion is wrong where the half calls a term significant that is not in the full design (or the
    reverse), gives it the other sign, or a size that its own interval and `MATERIAL` do not cover.
    `relation`, `runs`, `of` and `rows`: effects (2q) of both with 95 % intervals, `rivals`, `wrong`, `why`.
    """
    key = f"half {response}"
    if key not in outcome.memory:
        outcome.memory[key] = _compared(outcome, response)
    found: dict[str, Any] | None = outcome.memory[key]
    return found


def _compared(outcome: Outcome, response: str) -> dict[str, Any] | None:
    if outcome.runs is None or len(outcome.factors) < 3 or response not in outcome.measured:
        return None
    usable = outcome.measured[outcome.measured[response].notna()]
    planned = {r["treatment_id"] for r in outcome.plan.get("rows") or []}
    if not planned <= set(usable["treatment_id"]):
        return None
    try:
        plan = plan_from_json(outcome.plan)
        table = fraction_of(outcome.runs, plan, response)
    except PenstockError:
        return None
    names = [f.name for f in plan.factors]
    word = next(
        w for w in defining_relation(g.relation for g in choose_generators(len(names), 1)) if w
    )
    rows = [_judged({str(k): v for k, v in r.items()}) for r in table.to_dict("records")]
    return {
        "relation": f"I = {' × '.join(names[i].replace('_', ' ') for i in members(word))}",
        "runs": len(plan.rows) // 2,
        "of": len(plan.rows),
        "rows": rows,
    }


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    full, half = float(row["full"]), float(row["fraction"])
    rivals = ", ".join(
        t.lstrip("+-").replace(":", " × ").replace("_", " ")
        for t in row["aliased_with"].split(", ")
    )
    margin = (float(row["fraction_ci_high"]) - float(row["fraction_ci_low"])) / 2
    why = ""
    if not row["agrees"]:
        if row["fraction_significant"] and not row["full_significant"]:
            why = "would have been called significant and is not"
        elif row["full_significant"] and not row["fraction_significant"]:
            why = "would have been missed"
        else:
            why = "would have had the wrong sign"
    elif row["full_significant"] and abs(half - full) > max(margin, MATERIAL * abs(full)):
        size = "large" if half / full > 1 else "small"
        why = f"would have come out {100 * abs(half / full - 1):.0f} % too {size}"
    return {
        "term": row["term"],
        "rivals": rivals,
        "half": 2 * half,
        "half_low": 2 * float(row["fraction_ci_low"]),
        "half_high": 2 * float(row["fraction_ci_high"]),
        "full": 2 * full,
        "full_low": 2 * float(row["full_ci_low"]),
        "full_high": 2 * float(row["full_ci_high"]),
        "wrong": bool(why),
        "why": f"{why} ({rivals} is mixed into it)" if why else "",
    }
