"""The plan of a study: its runs, their order, and the effects that they cannot separate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design.alias_matrix import MOST_WRITTEN, of_treatments
from penstock.design.caution import between_cautions, cautions, irregular
from penstock.design.claims import check
from penstock.design.estimate import changes_s, drawn_changes_s, estimate, over_budget, run_seconds
from penstock.design.generators import (
    Generator,
    NoFraction,
    choose_generators,
    defining_relation,
    largest_fraction,
    length,
    members,
    parse_generator,
    resolution,
    term_of,
    word_lengths,
)
from penstock.design.kinds.base import Asked, Model, Numbers
from penstock.design.matrix import Matrix, alias_words, two_level, verify
from penstock.design.orders import (
    PASSES,
    Ordered,
    cautions_of,
    in_blocks,
    ordered,
    power_as_ordered,
)
from penstock.design.planned import Alias, Plan, PlannedRun
from penstock.design.power import effective_by_factor, error_df, power_of, pure_df
from penstock.errors import BadInput, PenstockError
from penstock.plugins import DESIGNS
from penstock.spec.study import Factor, Study
from penstock.text import term_text

#: maximum number of factors in a listed alias
ALIAS_ORDER = 3
#: maximum number of partial aliases recorded per term
MOST_PARTIAL = 60


def make_plan(study: Study) -> Plan:
    """The plan of a study. PenstockError if the matrix violates the request (never expected)."""
    factors = list(study.factors)
    names = [f.name for f in factors]
    design = _design(study)
    levels, relation, generators = design.levels, design.relation, design.generators
    grade = resolution(relation)
    in_order = in_blocks(study, design.signs, relation) if design.signs is not None else None
    # repeated rows are ordered like others, and become runs of one treatment
    of_row = _first_places(levels)
    base_s = estimate(study, len(levels) * study.design.replicates, 0.0)[0]
    in_order = in_order or ordered(study, levels, base_s, design.model, design.effective)
    rows = _rows(study, levels, of_row, in_order)
    pure = pure_df([r.treatment_id for r in rows], [r.block for r in rows])
    seconds, why = estimate(
        study, len(rows), changes_s(study, levels, in_order.places, in_order.strips)
    )
    between = [[term_of(g[0], names) for g in groups] for groups in in_order.between]
    power = _power(study, design, in_order, pure)
    too_much = _too_much(study, len(rows), seconds, why)
    return Plan(
        study_id=study.study_id,
        rows=rows,
        factors=factors,
        treatments=int(of_row.max()) + 1,
        replicates=study.design.replicates,
        fraction=len(generators),
        generators=[_generator_text(g, names) for g in generators],
        defining_relation=relation_text(relation, names) if generators else [],
        resolution=grade,
        word_lengths={
            n: count for n, count in enumerate(word_lengths(relation, len(factors)), 3) if count
        },
        aliases=design.aliases,
        order=in_order.order,
        order_why=in_order.why,
        seed=study.design.seed,
        estimated_s=seconds,
        estimate_why=why,
        power=power,
        cautions=[
            *cautions(
                study,
                grade,
                design.aliases,
                power,
                two_level=all(len(f.levels) == 2 for f in factors),
                pure=pure,
                also=design.limits,
            ),
            *cautions_of(in_order, factors),
            *between_cautions(between),
            *too_much,
        ],
        kind="fraction" if generators else study.design.kind,
        model=design.model,
        choice=study.design.choice,
        orders=[option.to_json() for option in in_order.options],
        whole_plot_factors=list(in_order.hard),
        strip_factors=list(in_order.strips),
        between_blocks=between,
        sequential=_looks_share(study),
    )


@dataclass(frozen=True)
class _Design:
    """Treatments of a study before they are ordered and replicated."""

    #: treatments × factors, level numbers
    levels: NDArray[np.int64]
    aliases: list[Alias]
    generators: list[Generator] = field(default_factory=list)
    #: constant words of a full design or a fraction of two levels
    relation: dict[int, int] = field(default_factory=lambda: defining_relation([]))
    #: its matrix of −1 and +1; None for other designs
    signs: Matrix | None = None
    model: Model | None = None
    #: as in `power.effective_by_factor`; None: all treatments
    effective: list[float] | None = None
    limits: list[str] = field(default_factory=list)


def _design(study: Study) -> _Design:
    """The verified treatments. BadInput if the design does not exist."""
    factors = study.factors
    names = [f.name for f in factors]
    two = all(len(f.levels) == 2 for f in factors)
    if two and study.design.kind == "full" and not study.design.forbidden:
        generators = _generators(study, names)
        grade = resolution(defining_relation(g.relation for g in generators))
        signs = two_level(len(factors), generators)
        relation = verify(signs, 1 << (len(factors) - len(generators)), grade, names).relation
        aliases = alias_table(signs, names, relation) if generators else []
        return _Design((signs.astype(np.int64) + 1) // 2, aliases, generators, relation, signs)
    if study.design.block_size is not None:
        raise BadInput(
            "found design.block_size; expected factors of two levels, and a full design or a fraction"
        )
    numbers, model, limits = treatments(study)
    return _Design(
        numbers.astype(np.int64),
        partial_aliases(factors, model, numbers) if model is not None else [],
        model=model,
        effective=effective_by_factor(factors, model or "main", numbers),
        limits=limits,
    )


def _power(study: Study, design: _Design, in_order: Ordered, pure: int) -> dict[str, Any]:
    """Power of the ordered design; `pure`: degrees of freedom of its repeated runs."""
    from penstock.design import model as models

    runs, replicates, noise = len(design.levels), study.design.replicates, study.design.noise
    passes, fraction = in_order.order in PASSES, len(design.generators)
    coefficients = models.coefficients(study.factors, design.model) if design.model else None
    df = error_df(runs, replicates, passes=passes, coefficients=coefficients)
    full_df = error_df(runs << fraction, replicates, passes=passes)
    worst = min(design.effective) if design.effective is not None else None
    df = pure if in_order.between else df
    power = power_of(runs, replicates, noise, fraction, worst, df, full_df)
    return power | (power_as_ordered(in_order, noise) or {})


def _looks_share(study: Study) -> dict[str, Any] | None:
    """Error level shared by the looks of a sequential study; None for a study with a single look."""
    spec = study.design.sequential
    return None if spec is None else {"alpha": spec.alpha, "spending": spec.spending}


def _too_much(study: Study, runs: int, seconds: float, why: str) -> list[str]:
    """Sentences of the plan if it exceeds the budget. BadInput if the study names its kind: only a purpose
    chooses within the budget, by the time of a random order."""
    design = study.design
    sentences = []
    if over := over_budget(design, runs, seconds):
        what = f"{runs} runs, {seconds / 3600:.2g} h ({why})"
        if design.choice is None:
            raise BadInput(
                f"found a plan of {what}, {over}, which design.budget has; expected fewer treatments, "
                "replicates or changes, less to detect, or a larger budget"
            )
        sentences.append(f"The plan takes {what} in its order, {over}, which design.budget has.")
    if design.sequential is not None:
        most = design.sequential.runs
        longest = most * (run_seconds(study) + drawn_changes_s(study))
        if over := over_budget(design, 0, longest):
            sentences.append(
                f"All {most} runs that the sequential study may make would take {longest / 3600:.2g} h, "
                f"{over}, which design.budget has; `limits.time` ends it."
            )
    return sentences


def treatments(study: Study) -> tuple[Numbers, Model | None, list[str]]:
    """Verified treatments as level numbers; the model that they estimate (None: all terms), and its
    limits. BadInput if the design does not exist; PenstockError if it violates a claim."""
    design = study.design
    kind = DESIGNS.load(design.kind)
    request = design_request(study)
    if fault := kind.fault(request):
        raise BadInput(f"found the design {design.kind} for these factors; expected {fault}")
    claim = kind.claim(request)
    try:
        rows = check(request, kind.treatments(request), claim)
    except PenstockError as error:
        if not design.forbidden or isinstance(error, BadInput):
            raise
        raise BadInput(f"found that {error}; expected fewer design.forbidden") from None
    if design.kind == "full" and not design.forbidden:
        return rows, None, []
    aliased = irregular(request, rows, claim.model) if claim.model is not None else []
    sentences = [*kind.CANNOT, *aliased]
    return rows, claim.model, sentences


def design_request(study: Study) -> Asked:
    """The study's request for its kind of design."""
    design = study.design
    return Asked(study.factors, design.options, design.seed, design.forbidden)


def _by_length(item: tuple[int, int]) -> tuple[int, list[int]]:
    return length(item[0]), members(item[0])


def _generators(study: Study, names: list[str]) -> list[Generator]:
    design = study.design
    try:
        if design.generators:
            return [parse_generator(text, names) for text in design.generators]
        added = design.fraction
        if study.quick:
            added = max(added, largest_fraction(len(names), 4))
        return choose_generators(len(names), added)
    except NoFraction as error:
        raise BadInput(f"no such fraction: expected {error}") from None


def _generator_text(generator: Generator, names: list[str]) -> str:
    sign = "-" if generator.sign < 0 else ""
    return f"{names[generator.factor]} = {sign}{term_of(generator.word, names, '*')}"


def relation_text(relation: dict[int, int], names: list[str]) -> list[str]:
    """Signed words, `I` first, shorter before longer."""
    return [
        _signed(sign, word, names, "*") for word, sign in sorted(relation.items(), key=_by_length)
    ]


def _signed(sign: int, word: int, names: list[str], between: str) -> str:
    return ("-" if sign < 0 else "") + term_of(word, names, between)


def alias_table(matrix: Matrix, names: list[str], relation: dict[int, int]) -> list[Alias]:
    """Terms of every contrast of the matrix, the mean first; `relation`: its constant words."""
    aliases = []
    for group in alias_words(matrix, ALIAS_ORDER):
        (first, _), *others = group
        terms = [("+" if s > 0 else "-") + term_of(w, names) for w, s in others]
        longer = len(relation) - len(group)
        aliases.append(
            Alias(
                term=term_of(first, names) if first else "mean",
                with_terms=terms,
                words=_sum_text(first, others, longer, names),
                longer=longer,
            )
        )
    return aliases


def partial_aliases(
    factors: Sequence[Factor], model: Model, numbers: Numbers, most: int = MOST_PARTIAL
) -> list[Alias]:
    """Partial aliases of each model term with terms beyond it, for treatments that are not a regular
    fraction: the largest `most` of each."""
    aliases = []
    for term, shares in of_treatments(factors, model, numbers).items():
        if not shares:
            continue
        texts = [term_text(s.text) for s in shares[:MOST_WRITTEN]]
        rest = shares[MOST_WRITTEN:]
        more = f" and up to {abs(rest[0].share):.2g} of {len(rest)} more" if rest else ""
        aliases.append(
            Alias(
                term=term,
                with_terms=[s.text for s in shares[:most]],
                words=f"{term_text(term)} {' '.join(texts)}{more}",
                longer=len(shares) - len(shares[:most]),
            )
        )
    return aliases


def _sum_text(first: int, others: list[tuple[int, int]], longer: int, names: list[str]) -> str:
    """A contrast as a sum: `A × B + C × E − D × F + 2 of higher order`."""
    parts = [f"{'+' if sign > 0 else '−'} {term_text(term_of(w, names))}" for w, sign in others]
    if longer:
        parts.append(f"+ {longer} of higher order")
    return " ".join([term_text(term_of(first, names)) if first else "mean", *parts])


def _first_places(levels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The treatment of each row, numbered from 0 by first occurrence."""
    _, first, of_row = np.unique(levels, axis=0, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[of_row.reshape(-1)])


def _rows(
    study: Study,
    levels: NDArray[np.integer[Any]],
    of_row: NDArray[np.int64],
    in_order: Ordered,
) -> list[PlannedRun]:
    """The runs of a matrix of level numbers in their order; `of_row`: the treatment of each row."""
    factors = study.factors
    width = max(2, len(str(int(of_row.max()) + 1)))
    passes = in_order.order in PASSES
    rows: list[PlannedRun] = []
    digits = max(3, len(str(len(in_order.places))))
    names = [f.name for f in factors]
    named = [[f.levels[n].name for n in c] for f, c in zip(factors, levels.T.tolist(), strict=True)]
    two = np.array([len(f.levels) == 2 for f in factors])
    coded = np.where(two, 2 * levels - 1, levels).tolist()
    by_treatment = list(zip(*named, strict=True))
    for number, place in enumerate(in_order.places, start=1):
        rows.append(
            PlannedRun(
                run_id=f"r{number:0{digits}d}",
                run_order=number,
                replicate=place.replicate,
                block=place.block or (place.replicate if passes else 1),
                treatment_id=f"t{of_row[place.treatment] + 1:0{width}d}",
                standard_order=int(of_row[place.treatment]) + 1,
                levels=dict(zip(names, by_treatment[place.treatment], strict=True)),
                coded=dict(zip(names, coded[place.treatment], strict=True)),
                whole_plot=place.whole_plot,
                strip=place.strip,
            )
        )
    return rows
