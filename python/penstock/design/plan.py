"""From a study to its plan: which runs, in which order, and what they cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.design.caution import cautions
from penstock.design.generators import (
    Generator,
    NoFraction,
    choose_generators,
    defining_relation,
    length,
    members,
    parse_generator,
    resolution,
    word_lengths,
)
from penstock.design.matrix import Matrix, alias_words, two_level, verify
from penstock.design.order import ORDER_WHY, run_order
from penstock.errors import BadInput, PenstockError
from penstock.plugins import DESIGNS
from penstock.spec.study import Factor, Study

#: aliases are listed up to this many factors
ALIAS_ORDER = 3


@dataclass(frozen=True)
class PlannedRun:
    """One run; `coded` is −1 or +1 for factors of two levels, else the number of the level from 0."""

    run_id: str
    run_order: int
    replicate: int
    block: int
    treatment_id: str
    standard_order: int
    levels: dict[str, str]
    coded: dict[str, int]
    #: which part of the study it belongs to; from 2 on they were added (`design/stages.py`)
    stage: int = 1


@dataclass(frozen=True)
class Alias:
    """What one contrast column really holds: `term` plus `with_terms`, signs as `+a:b` or `-a:b`."""

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
    #: what was added to the plan of the study, stage 2 first (`design.stages.Stage`)
    stages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def two_level(self) -> bool:
        """Whether every factor has two levels."""
        return all(len(f.levels) == 2 for f in self.factors)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        value: dict[str, Any] = {**vars(self)}
        value["rows"] = [vars(row) for row in self.rows]
        value["aliases"] = [vars(alias) for alias in self.aliases]
        value["factors"] = [factor.model_dump(mode="json") for factor in self.factors]
        value["word_lengths"] = {str(k): v for k, v in self.word_lengths.items()}
        value["two_level"] = self.two_level
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
    from penstock.design.estimate import estimate
    from penstock.design.power import power_of

    factors = list(study.factors)
    names = [f.name for f in factors]
    two = all(len(f.levels) == 2 for f in factors)
    generators = _generators(study, names) if two and study.design.kind == "full" else []
    kind = study.design.kind
    regular = two and kind == "full"
    matrix = (
        two_level(len(factors), generators)
        if regular
        else _of_kind(study, [len(f.levels) for f in factors])
    )
    relation = defining_relation(g.relation for g in generators)
    grade = resolution(relation)
    if regular:
        relation = verify(matrix, 1 << (len(factors) - len(generators)), grade, names).relation
    rows = _rows(study, matrix, regular)
    seconds, why = estimate(study, rows)
    aliases = alias_table(matrix, names, relation) if two and generators else []
    power = power_of(len(matrix), study.design.replicates, study.design.noise, len(generators))
    return Plan(
        study_id=study.study_id,
        rows=rows,
        factors=factors,
        treatments=len(matrix),
        replicates=study.design.replicates,
        fraction=len(generators),
        generators=[_generator_text(g, names) for g in generators],
        defining_relation=relation_text(relation, names) if generators else [],
        resolution=grade,
        word_lengths={
            n: count for n, count in enumerate(word_lengths(relation, len(factors)), 3) if count
        },
        aliases=aliases,
        order=study.design.order,
        order_why=ORDER_WHY[study.design.order],
        seed=study.design.seed,
        estimated_s=seconds,
        estimate_why=why,
        power=power,
        cautions=cautions(study, grade, aliases, power, two_level=regular),
    )


def _of_kind(study: Study, levels: list[int]) -> Matrix:
    """The matrix of a kind of design by level numbers; PenstockError where that is no design."""
    design = study.design
    made = np.asarray(DESIGNS.load(design.kind)(levels, design.options, design.seed))
    if made.ndim != 2 or not len(made) or made.shape[1] != len(levels):
        raise PenstockError(f"the design {design.kind} gave a matrix of {made.shape}")
    if (made < 0).any() or (made >= np.array(levels)).any():
        raise PenstockError(f"the design {design.kind} names levels that the factors do not have")
    return made.astype(np.int8)


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
    return f"{names[generator.factor]} = {sign}{_word(generator.word, names, '*')}"


def _word(word: int, names: list[str], between: str) -> str:
    return between.join(names[i] for i in members(word)) if word else "I"


def relation_text(relation: dict[int, int], names: list[str]) -> list[str]:
    """Signed words, `I` first, shorter before longer."""
    return [
        _signed(sign, word, names, "*") for word, sign in sorted(relation.items(), key=_by_length)
    ]


def _signed(sign: int, word: int, names: list[str], between: str) -> str:
    return ("-" if sign < 0 else "") + _word(word, names, between)


def alias_table(matrix: Matrix, names: list[str], relation: dict[int, int]) -> list[Alias]:
    """What every contrast of the matrix holds, the mean first; `relation` are its constant words."""
    found = []
    for group in alias_words(matrix, ALIAS_ORDER):
        (first, _), *others = group
        terms = [("+" if s > 0 else "-") + _word(w, names, ":") for w, s in others]
        longer = len(relation) - len(group)
        found.append(
            Alias(
                term=_word(first, names, ":") if first else "mean",
                with_terms=terms,
                words=_in_words(first, others, longer, names),
                longer=longer,
            )
        )
    return found


def _in_words(first: int, others: list[tuple[int, int]], longer: int, names: list[str]) -> str:
    def product(word: int) -> str:
        text = " x ".join(names[i] for i in members(word))
        return f"({text})" if length(word) > 1 else text

    what = "the mean" if first == 0 else " x ".join(names[i] for i in members(first))
    parts = "".join(f" {'+' if s > 0 else '-'} {product(w)}" for w, s in others)
    if longer:
        parts += f" + {longer} of higher order"
    if not parts:
        return f"What is reported as {what} is {what} alone."
    return f"What is reported as {what} is {what}{parts}; they cannot be separated by this design."


def _rows(study: Study, matrix: Matrix, signs: bool) -> list[PlannedRun]:
    """`signs`: the matrix is of −1 and +1, not of level numbers."""
    factors, replicates = study.factors, study.design.replicates
    width = max(2, len(str(len(matrix))))
    rows: list[PlannedRun] = []
    order = run_order(len(matrix), replicates, study.design.seed, study.design.order)
    digits = max(3, len(str(len(order))))
    for place, (replicate, standard) in enumerate(order, start=1):
        values = [int(v) for v in matrix[standard]]
        numbers = [(v + 1) // 2 for v in values] if signs else values
        rows.append(
            PlannedRun(
                run_id=f"r{place:0{digits}d}",
                run_order=place,
                replicate=replicate,
                block=replicate if study.design.order == "interleaved" else 1,
                treatment_id=f"t{standard + 1:0{width}d}",
                standard_order=standard + 1,
                levels={f.name: f.levels[n].name for f, n in zip(factors, numbers, strict=True)},
                coded={
                    f.name: 2 * n - 1 if len(f.levels) == 2 else n
                    for f, n in zip(factors, numbers, strict=True)
                },
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
