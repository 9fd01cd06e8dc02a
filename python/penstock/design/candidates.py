"""Candidate designs for a purpose: treatments of each, its limits, and its suitability."""

from __future__ import annotations

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
from penstock.errors import PenstockError
from penstock.plugins import DESIGNS
from penstock.spec.study import DesignSpec, Study

#: maximum number of levels of a factor for a design that is optimal for a surface
MOST_SURFACE = 6


@dataclass(frozen=True)
class Candidate:
    """A candidate design for a purpose: its specification in a study, and its limits."""

    name: str
    kind: str
    cannot: str
    treatments: int
    options: Mapping[str, Any]
    fraction: int = 0
    effective: float | None = None
    #: coefficients of its model, including the mean; None: as many as treatments
    coefficients: int | None = None
    #: reason why it does not suit the purpose; empty if it does
    unfit: str = ""

    def freedom(self, design: DesignSpec) -> Callable[[int], int]:
        """Degrees of freedom of the error by the number of replicates, without split plots."""
        from penstock.design.orders import PASSES
        from penstock.design.power import error_df

        passes = design.order == AUTO or design.order in PASSES
        return lambda replicates: error_df(
            self.treatments, replicates, passes=passes, coefficients=self.coefficients
        )

    def spec(self, design: DesignSpec, replicates: int) -> DesignSpec:
        """The design as a study would specify it."""
        return design.model_copy(
            update={
                "kind": self.kind,
                "options": dict(self.options),
                "fraction": self.fraction,
                "replicates": replicates,
            }
        )


def candidates(study: Study, purpose: str) -> Iterator[Candidate]:
    """Available designs, cheap and coarse first; unsuitable ones have the reason."""
    request = Asked(study.factors, {}, study.design.seed, study.design.forbidden)
    if all(n == 2 for n in request.levels) and not request.forbidden:
        yield from _two_level(request, purpose)
    else:
        yield from _mixed(request, purpose)


def _two_level(request: Asked, purpose: str) -> Iterator[Candidate]:
    count = len(request.factors)
    grades: dict[int, int] = {}
    for added in range(1, largest_fraction(count) + 1):
        try:
            chosen_ = choose_generators(count, added)
        except NoFraction:
            break
        grade = resolution(defining_relation(g.relation for g in chosen_)) or 0
        grades[grade] = added
    quadratic = any(numeric(f) is not None for f in request.factors)
    last = ""
    if 5 <= count <= 20:
        yield from _of_kind(
            request,
            "plackett-burman",
            {},
            "each main effect is partly aliased with many two-factor interactions",
            "" if purpose == "screen" and max(grades, default=9) < 4 else _unfit(purpose, 3),
        )
    for grade, added in sorted(grades.items()):
        cannot = {
            3: "main effects are aliased with two-factor interactions",
            4: "two-factor interactions are aliased with each other; main effects are clear of them",
        }.get(
            grade,
            "two-factor interactions are clear; longer ones are aliased with each other and with them",
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
        last = "; two levels show no curvature: add a third level to quantitative factors"
    if (1 << count) <= full.MOST:
        yield Candidate(
            f"full 2^{count}",
            "full",
            "nothing is aliased; no conclusion about values between or outside the levels" + last,
            1 << count,
            {},
        )


_ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII"}


def _unfit(purpose: str, grade: int) -> str:
    if purpose == "compare":
        return "omits treatments"
    if purpose == "screen":
        return "main effects not clear" if grade < 4 else ""
    return "two-factor interactions not clear" if grade < 5 else ""


def _mixed(request: Asked, purpose: str) -> Iterator[Candidate]:
    leaves = "omits treatments" if purpose == "compare" else ""
    main_only = leaves or ("no interactions" if purpose != "screen" else "")
    if not request.forbidden:
        cannot = "interactions are not estimated, and main effects are aliased with them"
        yield from _of_kind(request, "orthogonal-array", {}, cannot, main_only)
        curved = main_only if purpose != "optimise" else "two-factor interactions partly aliased"
        cannot = "only a few interactions and curvatures can be estimated, partly aliased with each other"
        yield from _of_kind(request, "definitive-screening", {}, cannot, curved)
    cannot = "interactions are not estimated, and main effects are aliased with them"
    yield from _optimal(request, "d-optimal", "main", cannot, main_only)
    cannot = "interactions of three or more are assumed to be 0"
    no_curve = "no curvature" if purpose == "optimise" and _curved(request) else ""
    serving = list(_optimal(request, "d-optimal", "pairs", cannot, leaves or no_curve))
    if purpose == "optimise" and _curved(request):
        cannot = "cubes and interactions of three or more are assumed to be 0"
        if not request.forbidden:
            serving += _of_kind(request, "central-composite", {}, cannot, "")
        # an I-optimal design for numbers of many levels never runs most of them
        if max(request.levels) <= MOST_SURFACE:
            serving += _optimal(request, "i-optimal", "quadratic", cannot, "")
    yield from serving
    enumerable = request.combinations <= full.MOST
    if not enumerable and purpose != "compare" and all(one.unfit for one in serving):
        yield from _filling(request, purpose)
    if enumerable:
        rows = full.treatments(request)
        if len(rows):
            model = full.claim(request).model if request.forbidden else None
            yield Candidate(
                "full" + (" but for forbidden ones" if request.forbidden else ""),
                "full",
                "nothing is aliased; no conclusion about values outside the levels"
                if not request.forbidden
                else "effects are correlated, because combinations are forbidden",
                len(rows),
                {},
                effective=_effective(request, model or "main", rows),
                coefficients=models.coefficients(request.factors, model) if model else None,
            )


def _filling(request: Asked, purpose: str) -> Iterator[Candidate]:
    """Space-filling points for numbers, enough for a second-order surface."""
    if any(numeric(f) is None and len(f.levels) > 2 for f in request.factors):
        return
    least, most = models.coefficients(request.factors, "quadratic"), max(request.levels)
    runs = -(-3 * least // (2 * most)) * most
    for _ in range(3):
        cannot = (
            "levels are not estimated one by one; numbers have linear, quadratic and product terms"
        )
        available = list(_of_kind(request, "latin-hypercube", {"runs": runs}, cannot, ""))
        if any(one.coefficients == least for one in available):
            yield from available
            return
        runs *= 2


def _curved(request: Asked) -> bool:
    return any(len(f.levels) > 2 and numeric(f) is not None for f in request.factors)


def _optimal(
    request: Asked, kind: str, model: Model, cannot: str, unfit: str
) -> Iterator[Candidate]:
    least = models.coefficients(request.factors, model)
    runs = min(request.combinations, least + max(3, round(0.2 * least)))
    estimated = {"main": "main effects", "pairs": "products of two", "quadratic": "curvature"}[
        model
    ]
    if runs < request.combinations:
        options = {"model": model, "runs": runs}
        yield from _of_kind(request, kind, options, cannot, unfit, f"{kind} for {estimated}")


def _of_kind(
    request: Asked,
    kind: str,
    options: dict[str, Any],
    cannot: str,
    unfit: str,
    name: str = "",
) -> Iterator[Candidate]:
    """A candidate of this kind, if it exists for these factors."""
    of_kind = Asked(request.factors, options, request.seed, request.forbidden)
    row = DESIGNS.load(kind)
    if row.fault(of_kind):
        return
    try:
        claim = row.claim(of_kind)
        rows = check(of_kind, row.treatments(of_kind), claim)
        effective = _effective(of_kind, claim.model or "main", rows)
    except (PenstockError, ValueError):
        return
    least = models.coefficients(request.factors, claim.model) if claim.model else None
    yield Candidate(name or kind, kind, cannot, len(rows), options, 0, effective, least, unfit)


def _effective(request: Asked, model: Model, rows: Numbers) -> float:
    from penstock.design.power import effective_runs

    return effective_runs(request.factors, model, rows)
