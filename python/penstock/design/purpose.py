"""Choice of a design for a purpose: candidates, their costs and limits, and the selection.

Purposes: *screen* (which factors matter, few runs), *estimate* (main effects and two-factor interactions),
*optimise* (the best setting, with curvature for quantitative factors), *compare* (all treatments with each
other). If the full design is the cheapest suitable one, it is chosen and the plan has the reason.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.design import model as models
from penstock.design.candidates import Candidate, candidates
from penstock.errors import BadInput
from penstock.spec.study import Study
from penstock.text import tenths

#: power for `detect`
GOAL = 0.8
#: default number of replicates: the fewest with pure error
REPLICATES = 2

#: purposes to try if the study has none; the first with a suitable design is used
UNSAID = ("estimate", "screen")

SERVES = {
    "screen": "the factors that matter, in few runs",
    "estimate": "main effects and two-factor interactions, clear of each other",
    "optimise": "the best setting: main effects, two-factor products, curvature of quantitative factors",
    "compare": "every treatment compared with every other",
}


def chosen(study: Study, *, kind: bool, replicates: int | None) -> Study:
    """The study with its design decided. `kind`: the study names its kind; `replicates`: its own number.

    BadInput if no suitable design is within the budget.
    """
    design = study.design
    if design.detect is not None and design.noise <= 0:
        raise BadInput(
            "found no variation between runs (design.noise or design.pilot) with design.detect; expected "
            "more than 0 %"
        )
    if kind:
        return _with_replicates(study) if replicates is None and design.detect else study
    for purpose in (design.purpose,) if design.purpose else UNSAID:
        available = list(candidates(study, purpose))
        rows = [_costed(study, one, replicates) for one in available]
        fitting = [i for i, row in enumerate(rows) if not row["refused"]]
        if fitting:
            break
    else:
        if not rows:
            raise BadInput(
                "found factors that no kind of design covers completely; expected fewer factors or "
                "levels, fewer design.forbidden, or design.kind"
            )
        at = min(range(len(rows)), key=lambda i: (bool(available[i].unfit), rows[i]["runs"]))
        if available[at].unfit:
            raise BadInput(_unserved(study, purpose, replicates))
        least = rows[at]
        raise BadInput(
            f"found no design for {purpose} within design.budget and design.detect; expected a budget for "
            f"at least {least['design']}: {least['runs']} runs, {least['estimated_s'] / 3600:.2g} h "
            f"(refused: {least['refused']})"
        )
    taken = min(fitting, key=lambda i: (rows[i]["runs"], i))
    rows[taken]["chosen"] = True
    spec = available[taken].spec(design, rows[taken]["replicates"])
    choice = {
        "purpose": purpose if design.purpose else f"{purpose} (the default)",
        "why": _why(study, purpose, rows, taken, fixed=replicates is not None),
        "alternatives": rows,
    }
    return study.model_copy(update={"design": spec.model_copy(update={"choice": choice})})


def _unserved(study: Study, purpose: str, replicates: int | None) -> str:
    """Message if no design of these factors suits a purpose: suggests fewer levels if that helps."""
    count = math.prod(len(f.levels) for f in study.factors)
    ends = [
        f.model_copy(update={"levels": (f.levels[0], f.levels[-1])}) if len(f.levels) > 2 else f
        for f in study.factors
    ]
    fewer = study.model_copy(update={"factors": tuple(ends)})
    text = f"found {count} combinations of levels, of which no design serves {purpose}; expected "
    rows = [_costed(fewer, one, replicates) for one in candidates(fewer, purpose) if not one.unfit]
    if not rows:
        return text + "fewer factors or levels"
    best = min(rows, key=lambda row: (bool(row["refused"]), row["runs"]))
    over = f", {best['refused']}" if best["refused"] else ""
    return (
        f"{text}fewer levels: with two of each factor {best['design']} serves it, {best['treatments']} "
        f"treatments x {best['replicates']} = {best['runs']} runs, {best['estimated_s'] / 3600:.2g} h{over}"
    )


def _with_replicates(study: Study) -> Study:
    """The study's kind with the number of replicates that `detect` requires."""
    from penstock.design.plan import make_plan
    from penstock.design.power import replicates_for

    design = study.design
    # the budget is compared with the required runs
    free = design.model_copy(update={"budget_runs": None, "budget_s": None})
    plan = make_plan(study.model_copy(update={"design": free}))
    one = Candidate(
        plan.kind, plan.kind, "", plan.treatments, {}, plan.fraction,
        plan.power.get("effective_runs"),
        models.coefficients(study.factors, plan.model) if plan.model else None,
    )  # fmt: skip
    needed = replicates_for(
        (design.detect or 0) / design.noise, plan.treatments, GOAL, one.effective,
        freedom=one.freedom(design),
    )  # fmt: skip
    if needed is None:
        raise BadInput(
            f"found design.detect: {tenths(design.detect or 0)}; expected a difference that 1000 replicates "
            "find, or less noise"
        )
    return study.model_copy(update={"design": design.model_copy(update={"replicates": needed})})


def _costed(study: Study, one: Candidate, replicates: int | None) -> dict[str, Any]:
    from penstock.design.estimate import over_budget
    from penstock.design.power import detectable, replicates_for

    design = study.design
    refused, count = one.unfit, replicates
    if count is None:
        count = REPLICATES
        if design.detect is not None:
            needed = replicates_for(
                design.detect / design.noise, one.treatments, GOAL, one.effective,
                freedom=one.freedom(design),
            )  # fmt: skip
            count = needed or 1000
            if needed is None:
                refused = refused or "more than 1000 replicates"
    runs = count * one.treatments
    seconds = _seconds(study, one, count)
    refused = refused or over_budget(design, runs, seconds)
    df = one.freedom(design)(count)
    small = (
        detectable(GOAL, one.treatments, count, effective=one.effective, df=df) if df > 0 else None
    )
    return {
        "design": one.name,
        "kind": one.kind,
        "options": dict(one.options),
        "fraction": one.fraction,
        "treatments": one.treatments,
        "replicates": count,
        "runs": runs,
        "estimated_s": seconds,
        "detectable_share_80": small * design.noise if small is not None else None,
        "cannot": one.cannot,
        "refused": refused,
        "chosen": False,
    }


def _seconds(study: Study, one: Candidate, replicates: int) -> float:
    """Duration as in the plan of this design [s]; changes of factors as in a random order."""
    from penstock.design.estimate import drawn_changes_s, run_seconds

    return one.treatments * replicates * (run_seconds(study) + drawn_changes_s(study))


def _why(study: Study, purpose: str, rows: list[dict[str, Any]], taken: int, *, fixed: bool) -> str:
    row = rows[taken]
    design = study.design
    why = f"{purpose.capitalize()}: {SERVES[purpose]}. The choice is {row['design']}, "
    why += f"{row['treatments']} treatments x {row['replicates']} = {row['runs']} runs: "
    why += "the design with the fewest runs for it"
    if design.budget_runs is not None or design.budget_s is not None:
        why += " within the budget"
    why += "."
    if fixed:
        why += f" {row['replicates']} replicates, as in the study."
    elif design.detect is not None:
        why += (
            f" {row['replicates']} replicates detect a difference of {tenths(design.detect)} of the mean "
            f"with 80 % power in a single test."
        )
    else:
        why += f" {row['replicates']} replicates are the fewest with pure error."
    cheaper = [r for r in rows if r["runs"] < row["runs"]]
    if cheaper:
        one = max(cheaper, key=lambda r: r["runs"])
        why += f" Cheaper: {one['design']}, {one['runs']} runs; but {one['cannot']}."
    if not design.purpose:
        why += (
            " Set design.purpose (screen, estimate, optimise, compare), design.budget and design.detect for "
            "another choice, or design.kind for a design of yours."
        )
    return why
