"""Which design a purpose asks for: what there is, what each costs and cannot tell, and which is taken.

Purposes: *screen* (which factors matter, few runs), *estimate* (main effects and interactions of two),
*optimise* (the best setting, with curvature where factors are quantitative), *compare* (all treatments
beside each other). The full design is taken where it is the cheapest that serves, never unsaid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.design import model as models
from penstock.design.claims import check
from penstock.design.generators import (
    NoFraction,
    choose_generators,
    defining_relation,
    largest_fraction,
    resolution,
)
from penstock.design.kinds import full
from penstock.design.kinds.base import Asked, Model, Numbers, numeric
from penstock.design.order import AUTO
from penstock.errors import BadInput, PenstockError
from penstock.plugins import DESIGNS
from penstock.spec.study import DesignSpec, Study
from penstock.text import tenths

#: power that `detect` asks for
GOAL = 0.8
#: replicates where nothing says how many: the fewest that have pure error
REPLICATES = 2

#: levels of a factor at most for a design that is optimal for a surface
MOST_SURFACE = 6

#: purposes where the study says none, the first that a design serves
UNSAID = ("estimate", "screen")

SERVES = {
    "screen": "which factors matter, in few runs",
    "estimate": "main effects and interactions of two, clear of each other",
    "optimise": "the best setting: main effects, products of two, curvature of quantitative factors",
    "compare": "every treatment beside every other",
}


@dataclass(frozen=True)
class Candidate:
    """A design that a purpose could take: how the study would say it, and what it cannot tell."""

    name: str
    kind: str
    cannot: str
    treatments: int
    options: Mapping[str, Any]
    fraction: int = 0
    effective: float | None = None
    #: coefficients of its model, the mean included; None: as many as treatments
    coefficients: int | None = None
    #: why it does not serve the purpose; empty where it does
    unfit: str = ""

    def freedom(self, design: DesignSpec) -> Callable[[int], int]:
        """Degrees of freedom of the error by the number of replicates, where no setting is kept."""
        from penstock.design.orders import PASSES
        from penstock.design.power import error_df

        passes = design.order == AUTO or design.order in PASSES
        return lambda replicates: error_df(
            self.treatments, replicates, passes=passes, coefficients=self.coefficients
        )

    def spec(self, design: DesignSpec, replicates: int) -> DesignSpec:
        """The design as if the study had said it."""
        return design.model_copy(
            update={
                "kind": self.kind,
                "options": dict(self.options),
                "fraction": self.fraction,
                "replicates": replicates,
            }
        )


def chosen(study: Study, *, kind: bool, replicates: int | None) -> Study:
    """The study with its design decided. `kind`: it says its kind; `replicates`: as it says them.

    BadInput where no design that serves the purpose is within the budget.
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
        found = list(candidates(study, purpose))
        rows = [_costed(study, one, replicates) for one in found]
        fitting = [i for i, row in enumerate(rows) if not row["refused"]]
        if fitting:
            break
    else:
        if not rows:
            raise BadInput(
                "found factors that no kind of design takes whole; expected fewer factors or levels, fewer "
                "design.forbidden, or design.kind"
            )
        at = min(range(len(rows)), key=lambda i: (bool(found[i].unfit), rows[i]["runs"]))
        if found[at].unfit:
            raise BadInput(_unserved(study, purpose, replicates))
        least = rows[at]
        raise BadInput(
            f"found no design for {purpose} that keeps to what the study says of budget and detect; expected "
            f"room for at least {least['design']}: {least['runs']} runs, {least['estimated_s'] / 3600:.2g} h "
            f"(it is refused: {least['refused']})"
        )
    taken = min(fitting, key=lambda i: (rows[i]["runs"], i))
    rows[taken]["chosen"] = True
    spec = found[taken].spec(design, rows[taken]["replicates"])
    choice = {
        "purpose": purpose if design.purpose else f"{purpose} (the study says none)",
        "why": _why(study, purpose, rows, taken, said=replicates is not None),
        "alternatives": rows,
    }
    return study.model_copy(update={"design": spec.model_copy(update={"choice": choice})})


def _unserved(study: Study, purpose: str, replicates: int | None) -> str:
    """What is expected where no design of these factors serves a purpose: one of fewer levels that does."""
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


def candidates(study: Study, purpose: str) -> Iterator[Candidate]:
    """What there is, cheap and coarse first; those that do not serve `purpose` say why."""
    asked = Asked(study.factors, {}, study.design.seed, study.design.forbidden)
    if all(n == 2 for n in asked.levels) and not asked.forbidden:
        yield from _two_level(asked, purpose)
    else:
        yield from _mixed(asked, purpose)


def _two_level(asked: Asked, purpose: str) -> Iterator[Candidate]:
    count = len(asked.factors)
    grades: dict[int, int] = {}
    for added in range(1, largest_fraction(count) + 1):
        try:
            chosen_ = choose_generators(count, added)
        except NoFraction:
            break
        grade = resolution(defining_relation(g.relation for g in chosen_)) or 0
        grades[grade] = added
    quadratic = any(numeric(f) is not None for f in asked.factors)
    last = ""
    if 5 <= count <= 20:
        yield from _of_kind(
            asked,
            "plackett-burman",
            {},
            "each main effect is mixed in part with many interactions of two",
            "" if purpose == "screen" and max(grades, default=9) < 4 else _unfit(purpose, 3),
        )
    for grade, added in sorted(grades.items()):
        cannot = {
            3: "main effects are mixed with interactions of two",
            4: "interactions of two are mixed with each other; main effects are clear of them",
        }.get(
            grade,
            "interactions of two are clear; longer ones are mixed with each other and with them",
        )
        yield Candidate(
            f"2^({count}-{added}) resolution {_ROMAN.get(grade, str(grade))}",
            "full",
            cannot,
            1 << (count - added),
            {},
            added,
            unfit=_unfit(purpose, grade),
        )
    if purpose == "optimise" and quadratic:
        last = "; two levels show no curvature: give quantitative factors a third"
    if (1 << count) <= full.MOST:
        yield Candidate(
            f"full 2^{count}",
            "full",
            "nothing is mixed; nothing between or outside of the levels is said" + last,
            1 << count,
            {},
        )


_ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII"}


def _unfit(purpose: str, grade: int) -> str:
    if purpose == "compare":
        return "leaves treatments out"
    if purpose == "screen":
        return "main effects not clear" if grade < 4 else ""
    return "interactions of two not clear" if grade < 5 else ""


def _mixed(asked: Asked, purpose: str) -> Iterator[Candidate]:
    leaves = "leaves treatments out" if purpose == "compare" else ""
    main_only = leaves or ("no interactions" if purpose != "screen" else "")
    if not asked.forbidden:
        told = "interactions are not estimated, and main effects not free of them"
        yield from _of_kind(asked, "orthogonal-array", {}, told, main_only)
        curved = main_only if purpose != "optimise" else "interactions of two mixed in part"
        told = "only a few interactions and curvatures can be told, mixed in part with each other"
        yield from _of_kind(asked, "definitive-screening", {}, told, curved)
    told = "interactions are not estimated, and main effects not free of them"
    yield from _optimal(asked, "d-optimal", "main", told, main_only)
    told = "interactions of three or more are taken as 0"
    no_curve = "no curvature" if purpose == "optimise" and _curved(asked) else ""
    serving = list(_optimal(asked, "d-optimal", "pairs", told, leaves or no_curve))
    if purpose == "optimise" and _curved(asked):
        told = "cubes and interactions of three or more are taken as 0"
        if not asked.forbidden:
            serving += _of_kind(asked, "central-composite", {}, told, "")
        # the best surface of numbers of many levels never runs most of them
        if max(asked.levels) <= MOST_SURFACE:
            serving += _optimal(asked, "i-optimal", "quadratic", told, "")
    yield from serving
    whole = asked.combinations <= full.MOST
    if not whole and purpose != "compare" and all(one.unfit for one in serving):
        yield from _filling(asked, purpose)
    if whole:
        rows = full.treatments(asked)
        if len(rows):
            model = full.claim(asked).model if asked.forbidden else None
            yield Candidate(
                "full" + (" but for forbidden ones" if asked.forbidden else ""),
                "full",
                "nothing is mixed; nothing outside of the levels is said"
                if not asked.forbidden
                else "effects are correlated by what is left out",
                len(rows),
                {},
                effective=_effective(asked, model or "main", rows),
                coefficients=models.coefficients(asked.factors, model) if model else None,
            )


def _filling(asked: Asked, purpose: str) -> Iterator[Candidate]:
    """Points that fill the space of numbers, enough for a surface of second order."""
    if any(numeric(f) is None and len(f.levels) > 2 for f in asked.factors):
        return
    least, most = models.coefficients(asked.factors, "quadratic"), max(asked.levels)
    runs = -(-3 * least // (2 * most)) * most
    for _ in range(3):
        told = "levels are not told apart one by one: numbers have a line, a curvature and products"
        found = list(_of_kind(asked, "latin-hypercube", {"runs": runs}, told, ""))
        if any(one.coefficients == least for one in found):
            yield from found
            return
        runs *= 2


def _curved(asked: Asked) -> bool:
    return any(len(f.levels) > 2 and numeric(f) is not None for f in asked.factors)


def _optimal(asked: Asked, kind: str, model: Model, cannot: str, unfit: str) -> Iterator[Candidate]:
    least = models.coefficients(asked.factors, model)
    runs = min(asked.combinations, least + max(3, round(0.2 * least)))
    words = {"main": "main effects", "pairs": "products of two", "quadratic": "curvature"}[model]
    if runs < asked.combinations:
        options = {"model": model, "runs": runs}
        yield from _of_kind(asked, kind, options, cannot, unfit, f"{kind} for {words}")


def _of_kind(
    asked: Asked,
    kind: str,
    options: dict[str, Any],
    cannot: str,
    unfit: str,
    name: str = "",
) -> Iterator[Candidate]:
    """The kind, if it can be made for these factors."""
    wanted = Asked(asked.factors, options, asked.seed, asked.forbidden)
    row = DESIGNS.load(kind)
    if row.fault(wanted):
        return
    try:
        claim = row.claim(wanted)
        rows = check(wanted, row.treatments(wanted), claim)
        effective = _effective(wanted, claim.model or "main", rows)
    except (PenstockError, ValueError):
        return
    least = models.coefficients(asked.factors, claim.model) if claim.model else None
    yield Candidate(name or kind, kind, cannot, len(rows), options, 0, effective, least, unfit)


def _effective(asked: Asked, model: Model, rows: Numbers) -> float:
    from penstock.design.power import effective_runs

    return effective_runs(asked.factors, model, rows)


def _with_replicates(study: Study) -> Study:
    """As many replicates as `detect` needs for the kind that the study says."""
    from penstock.design.plan import make_plan
    from penstock.design.power import replicates_for

    design = study.design
    plan = make_plan(study)
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
    if design.budget_runs is not None and runs > design.budget_runs:
        refused = refused or f"over {design.budget_runs} runs"
    if design.budget_s is not None and seconds > design.budget_s:
        refused = refused or f"over {design.budget_s / 3600:g} h"
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
    """As the plan of this design would estimate it; changes of factors by their expected share if many."""
    from penstock.design.estimate import run_seconds

    each = run_seconds(study)
    changing = sum(f.change_cost_s * (1 - 1 / len(f.levels)) for f in study.factors)
    return one.treatments * replicates * (each + changing)


def _why(study: Study, purpose: str, rows: list[dict[str, Any]], taken: int, *, said: bool) -> str:
    row = rows[taken]
    design = study.design
    why = f"{purpose.capitalize()}: {SERVES[purpose]}. Taken is {row['design']}, "
    why += f"{row['treatments']} treatments x {row['replicates']} = {row['runs']} runs: "
    why += "the fewest runs of those that serve it"
    if design.budget_runs is not None or design.budget_s is not None:
        why += " within the budget"
    why += "."
    if said:
        why += f" {row['replicates']} replicates are as the study says."
    elif design.detect is not None:
        why += (
            f" {row['replicates']} replicates find a difference of {tenths(design.detect)} of the mean with "
            f"80 % probability."
        )
    else:
        why += f" {row['replicates']} replicates are the fewest with pure error."
    cheaper = [r for r in rows if r["runs"] < row["runs"]]
    if cheaper:
        one = max(cheaper, key=lambda r: r["runs"])
        why += f" Cheaper: {one['design']}, {one['runs']} runs; but {one['cannot']}."
    if not design.purpose:
        why += (
            " Say design.purpose (screen, estimate, optimise, compare), design.budget and design.detect to "
            "have it chosen for yours, or design.kind to choose."
        )
    return why
