"""From a study to its plan: which runs, in which order, and what they cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design.alias_matrix import MOST_WRITTEN, of_treatments
from penstock.design.caution import between_cautions, cautions, irregular
from penstock.design.claims import check
from penstock.design.generators import (
    Generator,
    NoFraction,
    choose_generators,
    defining_relation,
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
from penstock.errors import BadInput, PenstockError
from penstock.plugins import DESIGNS
from penstock.spec.study import Factor, Study
from penstock.text import term_text

#: aliases are listed up to this many factors
ALIAS_ORDER = 3
#: partial aliases that a plan records of each term, at most
MOST_PARTIAL = 60


@dataclass(frozen=True)
class PlannedRun:
    """One run; `coded` is −1 or +1 for factors of two levels, else the number of the level from 0.

    Runs of one `whole_plot` (of one `strip`) share a setting of the factors that are hard to change; 0: none
    is kept.
    """

    run_id: str
    run_order: int
    replicate: int
    block: int
    treatment_id: str
    standard_order: int
    levels: dict[str, str]
    coded: dict[str, int]
    whole_plot: int = 0
    strip: int = 0
    #: which part of the study it belongs to; from 2 on they were added (`design/stages.py`)
    stage: int = 1


@dataclass(frozen=True)
class Alias:
    """What one contrast column really holds: `term` plus `with_terms`, signs as `+a:b` or `-a:b`.

    A partial alias has its share before it: `+0.33 a:b`; of factors of more levels without a sign.
    """

    term: str
    with_terms: list[str]
    words: str
    longer: int = 0


@dataclass(frozen=True)
class Plan:
    """The runs in the order they will be made, with what is known before anything runs."""

    study_id: str
    rows: list[PlannedRun]
    factors: list[Factor]
    treatments: int
    replicates: int
    fraction: int
    generators: list[str]
    defining_relation: list[str]
    resolution: int | None
    word_lengths: dict[int, int]
    aliases: list[Alias]
    order: str
    order_why: str
    seed: int
    estimated_s: float
    estimate_why: str
    power: dict[str, Any]
    cautions: list[str]
    kind: str = "full"
    #: terms that the runs tell (`penstock.design.kinds.base.Model`); None: all that the treatments have
    model: Model | None = None
    #: what was chosen for which purpose, why, and what else there was; None where the study said its kind
    choice: dict[str, Any] | None = None
    #: what each order that could be had would take and tell, where changes of factors cost something
    orders: list[dict[str, Any]] = field(default_factory=list)
    #: factors whose settings are kept: in whole plots, in the strips that cross them
    whole_plot_factors: list[str] = field(default_factory=list)
    strip_factors: list[str] = field(default_factory=list)
    #: of each pass, the terms that are the difference between its blocks, where it is cut into some
    between_blocks: list[list[str]] = field(default_factory=list)
    #: what was added to the plan of the study, stage 2 first (`design.stages.Stage`)
    stages: list[dict[str, Any]] = field(default_factory=list)
    #: `alpha` and `spending` of a sequential study, whose looks share alpha
    sequential: dict[str, Any] | None = None

    @property
    def two_level(self) -> bool:
        """Whether every factor has two levels."""
        return all(len(f.levels) == 2 for f in self.factors)

    @property
    def tested_terms(self) -> int:
        """How many terms the analysis judges together."""
        from penstock.design.model import terms

        if self.model is not None:
            none = np.zeros((1, len(self.factors)), dtype=np.int64)
            return len(terms(self.factors, self.model, none))
        if not self.two_level:
            return int((1 << len(self.factors)) - 1)
        never = set.intersection(*map(set, self.between_blocks)) if self.between_blocks else set()
        return self.treatments - 1 - len(never)

    @property
    def power_together(self) -> dict[str, Any]:
        """What of `power` holds where all terms are judged together, as the report does."""
        from penstock.design.power import power_together

        return power_together(self.power, self.tested_terms)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        value: dict[str, Any] = {**vars(self)}
        value["rows"] = [vars(row) for row in self.rows]
        value["aliases"] = [vars(alias) for alias in self.aliases]
        value["factors"] = [factor.model_dump(mode="json") for factor in self.factors]
        value["word_lengths"] = {str(k): v for k, v in self.word_lengths.items()}
        value["two_level"] = self.two_level
        value["power_together"] = self.power_together
        return value

    def with_runs(self, rows: Sequence[PlannedRun]) -> Plan:
        """The same plan with other rows."""
        return Plan(**{**self.__dict__, "rows": list(rows)})


def treatments_of(plan: Plan) -> list[dict[str, str]]:
    """The levels of each treatment of a plan, once."""
    return list({row.treatment_id: row.levels for row in plan.rows}.values())


def plan_from_json(value: dict[str, Any]) -> Plan:
    """The plan that `to_json` wrote; BadInput if the value is none."""
    try:
        known = {k: v for k, v in value.items() if k in Plan.__dataclass_fields__}
        known["rows"] = [PlannedRun(**row) for row in value["rows"]]
        known["factors"] = [Factor.model_validate(f, strict=False) for f in value["factors"]]
        known["aliases"] = [Alias(**a) for a in value["aliases"]]
        known["word_lengths"] = {int(k): v for k, v in value["word_lengths"].items()}
        return Plan(**known)
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"this is no plan: {error}") from None


def make_plan(study: Study) -> Plan:
    """The plan of a study. PenstockError if the matrix is not what was asked for (never expected)."""
    from penstock.design import model as models
    from penstock.design.estimate import changes_s, estimate
    from penstock.design.power import effective_by_factor, error_df, power_of, pure_df

    factors = list(study.factors)
    names = [f.name for f in factors]
    two = all(len(f.levels) == 2 for f in factors)
    kind = study.design.kind
    regular = two and kind == "full" and not study.design.forbidden
    generators = _generators(study, names) if regular else []
    relation = defining_relation(g.relation for g in generators)
    grade = resolution(relation)
    model: Model | None = None
    effective: list[float] | None = None
    also, aliases = list[str](), list[Alias]()
    in_order: Ordered | None = None
    if study.design.block_size is not None and not regular:
        raise BadInput(
            "found design.block_size; expected factors of two levels, and a full design or a fraction"
        )
    if regular:
        signs = two_level(len(factors), generators)
        relation = verify(signs, 1 << (len(factors) - len(generators)), grade, names).relation
        aliases = alias_table(signs, names, relation) if generators else []
        levels = (signs.astype(np.int64) + 1) // 2
        in_order = in_blocks(study, signs, relation)
    else:
        numbers, model, also = treatments(study)
        aliases = partial_aliases(factors, model, numbers) if model is not None else []
        levels, effective = (
            numbers.astype(np.int64),
            effective_by_factor(factors, model or "main", numbers),
        )
    # rows that are repeated are ordered as any others, and are then runs of one treatment
    of_row = _first_places(levels)
    replicates = study.design.replicates
    base_s = estimate(study, len(levels) * replicates, 0.0)[0]
    in_order = in_order or ordered(study, levels, base_s, model, effective)
    rows = _rows(study, levels, of_row, in_order)
    pure = pure_df([r.treatment_id for r in rows], [r.block for r in rows])
    seconds, why = estimate(study, len(rows), changes_s(study, levels, in_order))
    passes = in_order.order in PASSES
    df = (
        pure
        if in_order.between
        else error_df(
            len(levels), replicates, passes=passes,
            coefficients=models.coefficients(factors, model) if model else None,
        )
    )  # fmt: skip
    between = [[term_of(g[0], names) for g in groups] for groups in in_order.between]
    as_kept = power_as_ordered(in_order, study.design.noise)
    worst = min(effective) if effective is not None else None
    power = power_of(
        len(levels), replicates, study.design.noise, len(generators), worst, df,
        error_df(len(levels) << len(generators), replicates, passes=passes),
    )  # fmt: skip
    power |= as_kept or {}
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
        aliases=aliases,
        order=in_order.order,
        order_why=in_order.why,
        seed=study.design.seed,
        estimated_s=seconds,
        estimate_why=why,
        power=power,
        cautions=[
            *cautions(study, grade, aliases, power, two_level=two, pure=pure, also=also),
            *cautions_of(in_order, factors),
            *between_cautions(between),
            *too_much,
        ],
        kind="fraction" if generators else kind,
        model=model,
        choice=study.design.choice,
        orders=[option.to_json() for option in in_order.options],
        whole_plot_factors=list(in_order.hard),
        strip_factors=list(in_order.strips),
        between_blocks=between,
        sequential=_looks_share(study),
    )


def _looks_share(study: Study) -> dict[str, Any] | None:
    """What the looks of a sequential study share; None of one that looks once."""
    said = study.design.sequential
    return None if said is None else {"alpha": said.alpha, "spending": said.spending}


def _too_much(study: Study, runs: int, seconds: float, why: str) -> list[str]:
    """What the plan says where it is over the budget. BadInput where the study says its kind: only a purpose
    chooses within the budget, by the time of a random order."""
    from penstock.design.estimate import drawn_changes_s, over_budget, run_seconds

    design = study.design
    found = []
    if over := over_budget(design, runs, seconds):
        what = f"{runs} runs, {seconds / 3600:.2g} h ({why})"
        if design.choice is None:
            raise BadInput(
                f"found a plan of {what}, {over}, which design.budget has; expected fewer treatments, "
                "replicates or changes, less to detect, or a larger budget"
            )
        found.append(f"The plan takes {what} in its order, {over}, which design.budget has.")
    if design.sequential is not None:
        most = design.sequential.runs
        longest = most * (run_seconds(study) + drawn_changes_s(study))
        if over := over_budget(design, 0, longest):
            found.append(
                f"All {most} runs that the sequential study may make would take {longest / 3600:.2g} h, "
                f"{over}, which design.budget has; `limits.time` ends it."
            )
    return found


def treatments(study: Study) -> tuple[Numbers, Model | None, list[str]]:
    """Treatments of a kind by level numbers, verified; the model that they tell (None: all terms), and what
    they cannot tell. BadInput where there is no such design; PenstockError where a promise is broken."""
    design = study.design
    kind = DESIGNS.load(design.kind)
    asked = asked_of(study)
    if fault := kind.fault(asked):
        raise BadInput(f"found the design {design.kind} for these factors; expected {fault}")
    claim = kind.claim(asked)
    try:
        rows = check(asked, kind.treatments(asked), claim)
    except PenstockError as error:
        if not design.forbidden or isinstance(error, BadInput):
            raise
        raise BadInput(f"found that {error}; expected fewer design.forbidden") from None
    if design.kind == "full" and not design.forbidden:
        return rows, None, []
    told = irregular(asked, rows, claim.model) if claim.model is not None else []
    found = [*kind.CANNOT, *told]
    return rows, claim.model, found


def asked_of(study: Study) -> Asked:
    """What a kind of design is asked for by a study."""
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
            added = max(added, quick_fraction(len(names)))
        return choose_generators(len(names), added)
    except NoFraction as error:
        raise BadInput(f"no such fraction: expected {error}") from None


def quick_fraction(factors: int) -> int:
    """The largest P that keeps resolution IV or more; 0 if none does."""
    best = 0
    for added in range(1, factors):
        try:
            generators = choose_generators(factors, added)
        except NoFraction:
            break
        grade = resolution(defining_relation(g.relation for g in generators))
        if grade is None or grade < 4:
            break
        best = added
    return best


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
    """What every contrast of the matrix holds, the mean first; `relation` are its constant words."""
    found = []
    for group in alias_words(matrix, ALIAS_ORDER):
        (first, _), *others = group
        terms = [("+" if s > 0 else "-") + term_of(w, names) for w, s in others]
        longer = len(relation) - len(group)
        found.append(
            Alias(
                term=term_of(first, names) if first else "mean",
                with_terms=terms,
                words=_in_words(first, others, longer, names),
                longer=longer,
            )
        )
    return found


def partial_aliases(
    factors: Sequence[Factor], model: Model, numbers: Numbers, most: int = MOST_PARTIAL
) -> list[Alias]:
    """What each term of a model holds of the terms beyond it where treatments are no regular fraction: the
    largest `most` of each."""
    found = []
    for term, shares in of_treatments(factors, model, numbers).items():
        if not shares:
            continue
        said = [term_text(s.text) for s in shares[:MOST_WRITTEN]]
        rest = shares[MOST_WRITTEN:]
        more = f" and up to {abs(rest[0].share):.2g} of {len(rest)} more" if rest else ""
        found.append(
            Alias(
                term=term,
                with_terms=[s.text for s in shares[:most]],
                words=f"{term_text(term)} {' '.join(said)}{more}",
                longer=len(shares) - len(shares[:most]),
            )
        )
    return found


def _in_words(first: int, others: list[tuple[int, int]], longer: int, names: list[str]) -> str:
    """A contrast as a sum: `A × B + C × E − D × F + 2 of higher order`."""
    parts = [f"{'+' if sign > 0 else '−'} {term_text(term_of(w, names))}" for w, sign in others]
    if longer:
        parts.append(f"+ {longer} of higher order")
    return " ".join([term_text(term_of(first, names)) if first else "mean", *parts])


def _first_places(levels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The treatment of each row, from 0 in the order in which they first occur."""
    _, first, of_row = np.unique(levels, axis=0, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[of_row.reshape(-1)])


def _rows(
    study: Study,
    levels: NDArray[np.integer[Any]],
    of_row: NDArray[np.int64],
    in_order: Ordered,
) -> list[PlannedRun]:
    """The runs of a matrix of level numbers in their order; `of_row`: the treatment of each of its rows."""
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


def coded_matrix(plan: Plan) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Treatments × factors of the plan's coded levels, in standard order."""
    first: dict[int, PlannedRun] = {}
    for row in plan.rows:
        first.setdefault(row.standard_order, row)
    names = [f.name for f in plan.factors]
    return np.array(
        [[first[i].coded[n] for n in names] for i in sorted(first)], dtype=np.int8
    ).reshape(len(first), len(names))
