"""Limits of a design's conclusions, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.design.claims import NEAR, Mixed, correlation, mixed
from penstock.design.kinds.base import Asked, Model, Numbers, numeric
from penstock.spec.study import Study
from penstock.text import first_of, listed, tenths, term_text

if TYPE_CHECKING:
    from penstock.design.planned import Alias

ROMAN = (
    "",
    "I",
    "II",
    "III",
    "IV",
    "V",
    "VI",
    "VII",
    "VIII",
    "IX",
    "X",
    "XI",
    "XII",
    "XIII",
    "XIV",
    "XV",
)


#: maximum number of main effects whose partial aliases are listed
MOST_MIXED = 6
#: maximum number of aliased pairs listed in one sentence
MOST_PAIRS = 30
#: beginning of the sentence that lists aliased pairs
ALIASED = "Aliased, not separable by these runs: "


def roman(resolution: int | None) -> str:
    """The resolution in Roman numerals; `full` for a full design."""
    if resolution is None:
        return "full"
    return ROMAN[resolution] if resolution < len(ROMAN) else str(resolution)


def cautions(
    study: Study,
    resolution: int | None,
    aliases: Sequence[Alias],
    power: dict[str, Any],
    *,
    two_level: bool,
    pure: int = 0,
    also: Sequence[str] = (),
) -> list[str]:
    """Sentences that apply to this plan. `pure`: degrees of freedom of replicates within blocks; `also`:
    sentences of the kind of design."""
    sentences: list[str] = list(also)
    if resolution is not None:
        sentences += _fraction(resolution, aliases)
        if "width_against_full" in power:
            wide = f"{power['width_against_full']:.3f}"
            unblocked = f"{power.get('width_against_full_random', 0.0):.3f}"
            sentences.append(
                f"Intervals are {wide} times as wide as the full design's with as many replicates"
                + ("." if unblocked in (wide, "0.000") else f" ({unblocked} times without blocks).")
            )
    if not two_level:
        sentences.append(
            "Factors of more than two levels are reported by the variation they explain and a test, not by "
            "one coefficient, unless their line is a term of its own."
        )
        if study.design.sequential is not None:
            sentences.append(
                "This sequential study is not screened, which takes two levels of every factor: from the "
                "runs of its design it goes to search and confirmation; no treatment is added to tell "
                "effects apart."
            )
    of_numbers = [f.name for f in study.factors if len(f.levels) == 2 and numeric(f) is not None]
    if two_level:
        middle = (
            f" A third level between those of {', '.join(of_numbers)} would show it."
            if of_numbers
            else ""
        )
        sentences.append(f"Two levels show no curvature between them.{middle}")
    sentences.append("Levels outside those that were run are not covered.")
    sentences += _error(study, power, pure)
    if study.design.order == "standard":
        sentences.append("The order is not randomised: drift over time can look like an effect.")
    if any(disk.profile is not None for node in study.platform.nodes for disk in node.disks):
        sentences.append(
            "Disks are emulated: results apply to the real device as far as the profile does; "
            "runs whose disk did not deliver what its profile specifies are degraded or excluded."
        )
    return sentences


def _error(study: Study, power: dict[str, Any], pure: int) -> list[str]:
    """The error term of the effects, and the differences that it does not detect."""
    design = study.design
    df = power["degrees_of_freedom"]
    sentences = []
    if design.replicates == 1 and not df:
        sentences.append(
            "No pure error: with one replicate, effects are tested against each other (Lenth), not against "
            "the spread between repeated runs."
        )
        wide = [f for f in study.factors if len(f.levels) > 2]
        full = design.kind == "full" and not design.forbidden
        numbers = [f.name for f in wide if full and numeric(f) is not None]
        others = [f.name for f in wide if f.name not in numbers]
        if numbers:
            sentences.append(
                f"Effects of {listed(numbers)} are tested by the largest of their contrasts (linear, "
                "quadratic, …, and the products of these)."
            )
        if others:
            sentences.append(
                f"No effect that {listed(others, 'or')} takes part in is tested: without replicates, "
                "more than two levels are tested only where a full design has numbers for them."
            )
    elif 0 < pure < df:
        sentences.append(
            f"Effects are tested against the residuals of the model ({df} degrees of freedom), of "
            f"which {pure} are "
            "pure error, from treatments that are repeated; the others contain effects that the model lacks."
        )
    elif not pure:
        sentences.append(
            f"No pure error: no treatment is repeated, so effects are tested against the residuals "
            f"of the model ({df} degrees of freedom), which holds every effect that is not in it."
        )
    if not df:
        return sentences
    share = power["detectable_share_80"]
    sentences.append(
        f"Differences of level means below {power['detectable_sigma_80']:.2f} standard deviations are "
        f"found with a probability below 80 % ({tenths(share)} of the mean if "
        f"runs vary by {tenths(design.noise)}, which is {design.noise_from}), each tested "
        "individually, and the more so where many are tested together; not significant is not 'no effect'."
    )
    if design.detect is not None and share > design.detect * (1 + 1e-9):
        of = f" of {power['factor']}" if "factor" in power else ""
        sentences.append(
            f"design.detect asks for {tenths(design.detect)}; with {design.replicates} replicates in this "
            f"order a difference{of} is found from {tenths(share)} on, tested individually."
        )
    return sentences


def irregular(request: Asked, rows: Numbers, model: Model) -> list[str]:
    """Aliases of rows that are not a regular fraction, computed from the rows."""
    sentences = []
    if model == "main":
        sentences.append(
            "Only main effects are estimated. Interactions have no estimate; those that exist are part of "
            "what is reported as a main effect."
        )
    elif model == "squares":
        sentences.append(
            "Main effects and squares are estimated. Products of factors have no estimate; those that exist "
            "are part of what is reported as a square."
        )
    elif model == "pairs":
        sentences.append("Interactions of three or more factors are taken as 0.")
    else:
        sentences.append(
            "Main effects, squares of quantitative factors and products of two are estimated; all beyond is "
            "taken as 0."
        )
    if model in ("main", "squares"):
        sentences += _partial(mixed(request, rows, model))
    largest = correlation(request, rows)
    if largest > NEAR:
        sentences.append(
            f"Main effects are correlated, by {largest:.2f} at most: they share some of what they explain."
        )
    return sentences


def _partial(aliased: Sequence[Mixed]) -> list[str]:
    """Partial aliases of the terms of an irregular design."""
    sentences = []
    exact = [
        f"{term_text(one.term)} with {term_text(rival)}" for one in aliased for rival in one.exact
    ]
    if exact:
        sentences.append(f"{ALIASED}{'; '.join(first_of(exact, MOST_PAIRS))}.")
    parts = [one for one in aliased if len(one.pairs) > len(one.exact)]
    if parts:
        shown = ", ".join(
            f"{term_text(one.term)} up to {one.share:.2g} of {len(one.pairs) - len(one.exact)}"
            for one in parts[:MOST_MIXED]
        )
        more = f", {len(parts) - MOST_MIXED} more terms alike" if len(parts) > MOST_MIXED else ""
        sentences.append(f"Partly aliased: of the interactions of two factors {shown}{more}.")
    return sentences


def _fraction(resolution: int, aliases: Sequence[Alias]) -> list[str]:
    sentences: list[str] = []
    pairs = [
        f"{term_text(a.term)} with {term_text(t[1:])}"
        for a in aliases
        if a.term != "mean"
        for t in a.with_terms
        if a.term.count(":") + t.count(":") <= 2
    ]
    if pairs:
        sentences.append(f"{ALIASED}{'; '.join(first_of(pairs, MOST_PAIRS))}.")
    mean = next((a for a in aliases if a.term == "mean"), None)
    if mean is not None and mean.with_terms:
        sentences.append(
            f"The mean holds {', '.join(term_text(t[1:]) for t in mean.with_terms)} as well."
        )
    if resolution == 3:
        sentences.append("Resolution III: main effects are not free of two-factor interactions.")
    elif resolution == 4:
        sentences.append("Resolution IV: two-factor interactions are not free of each other.")
    sentences.append(
        "That a fraction names the same largest effects as a full design is no proof that they are clear; "
        "where every effect must be available a fraction is the wrong choice."
    )
    return sentences


def between_cautions(between: Sequence[Sequence[str]]) -> list[str]:
    """Effects that are confounded with blocks within passes, in all passes or in some."""
    passes: dict[str, list[int]] = {}
    for number, terms in enumerate(between, start=1):
        for term in terms:
            passes.setdefault(term, []).append(number)
    always = [t for t, where in passes.items() if len(where) == len(between)]
    sentences = []
    if always:
        sentences.append(
            f"block = {', '.join(map(term_text, always))}: the difference between blocks holds "
            f"{'it' if len(always) == 1 else 'them'}, so {'it is' if len(always) == 1 else 'they are'} not "
            "reported."
        )
    for term, where in passes.items():
        if term not in always:
            others = [str(n) for n in range(1, len(between) + 1) if n not in where]
            sentences.append(
                f"{term_text(term)} is the difference between blocks in pass "
                f"{listed([str(n) for n in where])}: it is estimated from pass {listed(others)} alone."
            )
    return sentences
