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
            "one coefficient, unless the model has a separate linear term."
        )
        if study.design.sequential is not None:
            sentences.append(
                "This sequential study has no screening, because not all factors have two levels: search and "
                "confirmation follow the runs of its design. No treatment is added to separate effects."
            )
    of_numbers = [f.name for f in study.factors if len(f.levels) == 2 and numeric(f) is not None]
    if two_level:
        middle = (
            f" A third level between those of {', '.join(of_numbers)} would show it."
            if of_numbers
            else ""
        )
        sentences.append(f"Two levels show no curvature between them.{middle}")
    sentences.append("Conclusions apply to the levels of the study only.")
    sentences += _error(study, power, pure)
    if study.design.order == "standard":
        sentences.append("The order is not randomised: drift over time can look like an effect.")
    if any(disk.profile is not None for node in study.platform.nodes for disk in node.disks):
        sentences.append(
            "Disks are emulated: results apply to a real device as far as its profile describes it. Runs "
            "whose disk does not follow its profile are degraded or excluded."
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
                f"Effects with {listed(others, 'or')} are not tested: without replicates, factors of more "
                "than two levels are tested only if the design is full and their levels are numbers."
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
            f"of the model ({df} degrees of freedom), which contain every effect that it lacks."
        )
    if not df:
        return sentences
    share = power["detectable_share_80"]
    sentences.append(
        f"A difference of level means below {power['detectable_sigma_80']:.2f} standard deviations "
        f"({tenths(share)} of the mean if runs vary by {tenths(design.noise)}, {design.noise_from}) may be "
        "missed: its power is below 80 % in a single test, and less if several effects are tested together. "
        "Not significant does not mean no effect."
    )
    if design.detect is not None and share > design.detect * (1 + 1e-9):
        of = f" of {power['factor']}" if "factor" in power else ""
        sentences.append(
            f"design.detect requests {tenths(design.detect)}; {design.replicates} replicates in this order "
            f"detect a difference{of} of {tenths(share)} or more (power 80 %, single test)."
        )
    return sentences


def irregular(request: Asked, rows: Numbers, model: Model) -> list[str]:
    """Aliases of rows that are not a regular fraction, computed from the rows."""
    sentences = []
    if model == "main":
        sentences.append(
            "Only main effects are estimated. An existing interaction is part of the reported main effects."
        )
    elif model == "squares":
        sentences.append(
            "Main effects and squares are estimated. An existing product of factors is part of the reported "
            "squares."
        )
    elif model == "pairs":
        sentences.append("Interactions of three or more factors are assumed to be 0.")
    else:
        sentences.append(
            "Main effects, squares of quantitative factors and products of two are estimated; all others are "
            "assumed to be 0."
        )
    if model in ("main", "squares"):
        sentences += _partial(mixed(request, rows, model))
    largest = correlation(request, rows)
    if largest > NEAR:
        sentences.append(
            f"Main effects are correlated, by at most {largest:.2f}: they share a part of the variation."
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
        sentences.append(f"Partly aliased: of the two-factor interactions {shown}{more}.")
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
            f"The mean includes {', '.join(term_text(t[1:]) for t in mean.with_terms)}."
        )
    if resolution == 3:
        sentences.append("Resolution III: main effects are aliased with two-factor interactions.")
    elif resolution == 4:
        sentences.append("Resolution IV: two-factor interactions are aliased with each other.")
    sentences.append(
        "Even if a fraction reports the same largest effects as the full design, they may be aliased. If "
        "every effect must be estimated, run the full design."
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
            f"block = {', '.join(map(term_text, always))}: confounded with the difference between blocks, so "
            f"{'it is' if len(always) == 1 else 'they are'} not reported."
        )
    for term, where in passes.items():
        if term not in always:
            others = [str(n) for n in range(1, len(between) + 1) if n not in where]
            sentences.append(
                f"{term_text(term)} is confounded with blocks in pass {listed([str(n) for n in where])}: "
                f"it is estimated from pass {listed(others)} only."
            )
    return sentences
