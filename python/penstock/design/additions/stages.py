"""Stages: runs added to the plan of a study.

A stage lists its treatments, so that a resumed study has the same runs regardless of how they were chosen.
Runs of earlier stages keep their names, places and order. A stage is a block of the model, or several if
its replicates are separate passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design.additions.more_levels import columns, estimable_model, numbers_of
from penstock.design.additions.two_levels import ORDER, Step, stage_words
from penstock.design.alias_matrix import Named, beyond
from penstock.design.caution import between_cautions, cautions, irregular
from penstock.design.estimate import changed_s, estimate
from penstock.design.generators import term_of, word_lengths
from penstock.design.kinds.base import Numbers
from penstock.design.matrix import Matrix, constant_words, is_regular
from penstock.design.model import terms
from penstock.design.order import (
    BLOCKS,
    INTERLEAVED,
    RANDOM,
    RESTRICTED,
    SPLIT_PLOT,
    SPLIT_PLOT_RANDOM,
    Place,
    places,
)
from penstock.design.orders import PASSES
from penstock.design.plan import alias_table, design_request, partial_aliases, relation_text
from penstock.design.planned import Alias, Plan, PlannedRun, coded_matrix, coded_type
from penstock.design.power import effective_by_columns, error_df, power_at, power_of, pure_df
from penstock.errors import BadInput
from penstock.spec.study import Study

#: stages whose runs are chosen in advance, and thus enter the analysis of effects
DESIGNED = ("augment", "replicates")
PURPOSES = (*DESIGNED, "optimise", "confirm")
#: maximum numbers of stages of a study, and of runs per stage
MOST_STAGES = 64
MOST_RUNS = 20_000


@dataclass(frozen=True)
class Stage:
    """Runs added to a plan: `treatments` (levels by factor) with `replicates` runs each.

    `purpose` is one of `PURPOSES`, `kind` the argument of `--augment`, `why` a sentence, `reasons` one for
    each treatment if they were chosen individually.
    """

    purpose: str
    kind: str
    treatments: tuple[dict[str, str], ...]
    replicates: int
    why: str
    reasons: tuple[str, ...] = ()
    #: alpha that a sequential study spent on the look before this stage
    spent: float = 0.0
    #: reason for the end of a sequential study's screening before this stage: the rule and its values
    ended: str = ""
    #: interactions that a stage of multi-level factors separates, and that the analysis then includes
    rivals: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        lists = ("treatments", "reasons", "rivals")
        return {**asdict(self), **{name: list(getattr(self, name)) for name in lists}}


def stage_from_json(value: Any) -> Stage:
    """Inverse of `to_json`. BadInput for an invalid value."""
    try:
        stage = Stage(**value)
        rows = tuple({str(k): str(v) for k, v in row.items()} for row in stage.treatments)
        if stage.purpose not in PURPOSES or not rows or not 1 <= int(stage.replicates) <= 1000:
            raise ValueError(stage.purpose)
        reasons, rivals = (tuple(str(r) for r in texts) for texts in (stage.reasons, stage.rivals))
        return replace(stage, treatments=rows, reasons=reasons, rivals=rivals)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"found a stage {value!r}; expected one that penstock wrote") from error


def bare(stage: Mapping[str, Any]) -> dict[str, Any]:
    """The stage without the plan's annotations."""
    return {k: v for k, v in stage.items() if k != "confounded"}


def stage_of(step: Step, plan: Plan, why: str, *, again: bool = False) -> Stage:
    """The stage that runs a step; `again`: including the existing treatments."""
    rows = step.rows
    purpose, replicates = "augment", plan.replicates
    if step.kind.startswith("replicates"):
        purpose, replicates = "replicates", int(step.kind.partition(":")[2])
        rows = coded_matrix(plan)
    elif again:
        rows = np.vstack([coded_matrix(plan), rows])
    treatments = tuple(levels_of(plan, row) for row in rows)
    rivals: tuple[str, ...] = ()
    if not plan.two_level:
        names = [f.name for f in plan.factors]
        rivals = tuple(dict.fromkeys(term_of(rival, names) for _, rival in step.broken))
    return Stage(purpose, step.kind, treatments, replicates, why, rivals=rivals)


def levels_of(plan: Plan, coded: Sequence[int] | Matrix) -> dict[str, str]:
    """Level names of a treatment in −1 and +1 (level numbers for factors of more than two levels)."""
    return {
        f.name: f.levels[(int(c) + 1) // 2 if len(f.levels) == 2 else int(c)].name
        for f, c in zip(plan.factors, coded, strict=True)
    }


def with_stages(plan: Plan, study: Study, stages: Sequence[Stage]) -> Plan:
    """The plan of a study with its additions. BadInput for a stage that does not fit."""
    if not stages:
        return plan
    if len(stages) > MOST_STAGES:
        raise BadInput(f"found {len(stages)} stages; expected at most {MOST_STAGES}")
    rows = list(plan.rows)
    for number, stage in enumerate(stages, start=2):
        rows += _rows(plan, rows, stage, number, study)
    if len(rows) > MOST_RUNS:
        raise BadInput(f"found {len(rows)} runs; expected at most {MOST_RUNS}")
    seconds, why = estimate(study, len(rows), changed_s(study, rows))
    combined = replace(
        plan,
        rows=rows,
        treatments=len({r.treatment_id for r in rows}),
        estimated_s=seconds,
        estimate_why=why,
    )
    matrix, labels = designed(combined, stages)
    recorded = [stage.to_json() for stage in stages]
    for at, record in enumerate(recorded, start=2):
        upto = [i for i, s in enumerate(labels) if s <= at]
        names = [f.name for f in plan.factors]
        order = len(names) if len(names) <= 10 else ORDER
        confounded = (
            stage_words(matrix[upto], [labels[i] for i in upto], order) if plan.two_level else ()
        )
        record["confounded"] = [term_of(w, names) for w in confounded] if at in labels else []
    combined = replace(combined, stages=recorded)
    if plan.two_level:
        return _with_estimates(combined, study, np.unique(matrix, axis=0))
    return _with_levels(
        combined, study, matrix, labels, grown=combined.treatments > plan.treatments
    )


def designed(plan: Plan, stages: Sequence[Stage]) -> tuple[Matrix, list[int]]:
    """Coded rows of the designed stages (each treatment once per stage) and the stage of each."""
    included = {1, *(n for n, s in enumerate(stages, start=2) if s.purpose in DESIGNED)}
    names = [f.name for f in plan.factors]
    seen = {
        (r.stage, r.standard_order): [r.coded[n] for n in names]
        for r in plan.rows
        if r.stage in included
    }
    order = sorted(seen)
    coded = np.array([seen[k] for k in order], dtype=coded_type(plan.factors))
    return coded, [k[0] for k in order]


def _rows(
    plan: Plan, before: list[PlannedRun], stage: Stage, number: int, study: Study
) -> list[PlannedRun]:
    existing = {tuple(sorted(r.levels.items())): r for r in before}
    width = len(plan.rows[0].treatment_id) - 1
    digits = len(plan.rows[0].run_id) - 1
    replicates = {r.treatment_id: 0 for r in before}
    for r in before:
        replicates[r.treatment_id] = max(replicates[r.treatment_id], r.replicate)
    block = max(r.block for r in before)
    orders = max(r.standard_order for r in before)
    treatments: list[tuple[str, int, dict[str, str], dict[str, int]]] = []
    _may_be_run(study, stage)
    for levels in stage.treatments:
        earlier = existing.get(tuple(sorted(levels.items())))
        if earlier is None:
            orders += 1
            coded = _coded(plan, levels)
            treatments.append((f"t{orders:0{width}d}", orders, levels, coded))
        else:
            order = earlier.standard_order
            treatments.append((earlier.treatment_id, order, earlier.levels, earlier.coded))
    planned: list[PlannedRun] = []
    passes = plan.order in PASSES or stage.purpose == "confirm"
    last_plots = (max(r.whole_plot for r in before), max(r.strip for r in before))
    placed = _placed(plan, [levels for _, _, levels, _ in treatments], stage, number, study)
    for place, one in enumerate(placed, start=len(before) + 1):
        treatment, order, levels, coded = treatments[one.treatment]
        planned.append(
            PlannedRun(
                run_id=f"r{place:0{digits}d}",
                run_order=place,
                replicate=replicates.get(treatment, 0) + one.replicate,
                block=block + (one.replicate if passes else 1),
                treatment_id=treatment,
                standard_order=order,
                levels=levels,
                coded=coded,
                whole_plot=one.whole_plot and last_plots[0] + one.whole_plot,
                strip=one.strip and last_plots[1] + one.strip,
                stage=number,
            )
        )
    return planned


def _placed(
    plan: Plan, treatments: Sequence[dict[str, str]], stage: Stage, number: int, study: Study
) -> list[Place]:
    """Runs of a stage in the plan's kind of order; settings are shared as in earlier stages.

    A confirmation always runs in passes: each pair is a block.
    """
    confirm = stage.purpose == "confirm"
    if plan.order in RESTRICTED:
        names = [f.name for f in plan.factors]
        levels = [
            [[v.name for v in f.levels].index(one[f.name]) for f in plan.factors]
            for one in treatments
        ]
        seed = (study.design.seed + (number << 40)) % (1 << 64)  # independent random stream
        return places(
            np.array(levels), stage.replicates, seed,
            SPLIT_PLOT if confirm and plan.order == SPLIT_PLOT_RANDOM else plan.order,
            [names.index(n) for n in plan.whole_plot_factors],
            [names.index(n) for n in plan.strip_factors],
        )  # fmt: skip
    run_places = []
    for again in range(1, stage.replicates + 1):
        shuffled = np.arange(len(treatments))
        if confirm or plan.order in (INTERLEAVED, BLOCKS):
            shuffled = _shuffled(study, again, number, len(treatments))
        run_places += [Place(again, int(i)) for i in shuffled]
    if plan.order == RANDOM and not confirm:
        run_places = [run_places[i] for i in _shuffled(study, 0, number, len(run_places))]
    return run_places


def _shuffled(study: Study, again: int, number: int, count: int) -> NDArray[np.int64]:
    """Random order of one pass of a stage, or of all its runs if `again` is 0."""
    key = [study.design.seed & 0xFFFFFFFF, study.design.seed >> 32, again, number]
    return np.random.Generator(np.random.PCG64(key)).permutation(count)


def _may_be_run(study: Study, stage: Stage) -> None:
    """Raise BadInput if the study forbids a treatment of a stage."""
    for levels in stage.treatments:
        for combination in study.design.forbidden:
            if all(levels.get(name) in names for name, names in combination.items()):
                what = ", ".join(f"{name} {levels[name]}" for name in combination)
                raise BadInput(
                    f"found {what} in a stage, which design.forbidden excludes; expected allowed treatments"
                )


def _coded(plan: Plan, levels: dict[str, str]) -> dict[str, int]:
    coded = {}
    for factor in plan.factors:
        names = [level.name for level in factor.levels]
        if levels.get(factor.name) not in names:
            raise BadInput(
                f"found the level {levels.get(factor.name)!r} of {factor.name} in a stage; expected "
                f"{', '.join(names)}"
            )
        number = names.index(levels[factor.name])
        coded[factor.name] = 2 * number - 1 if len(names) == 2 else number
    return coded


def _with_levels(
    plan: Plan, study: Study, matrix: Matrix, labels: Sequence[int], *, grown: bool
) -> Plan:
    """The plan with the estimates of all designed rows of multi-level factors; `grown`: treatments were
    added."""
    model = estimable_model(plan.factors, plan.model, matrix, labels) if grown else plan.model
    combined = replace(plan, model=model)
    power = power_of_stages(combined, study.design.noise)
    also, aliases = list[str](), list[Alias]()
    if model is not None:
        rows = np.unique(numbers_of(plan.factors, matrix), axis=0)
        also = irregular(design_request(study), rows, model)
        aliases = partial_aliases(plan.factors, model, rows)
    pure = _pure(combined)
    sentences = cautions(study, plan.resolution, [], power, two_level=False, pure=pure, also=also)
    return replace(combined, power=power, cautions=sentences, aliases=aliases)


def _pure(plan: Plan) -> int:
    """Degrees of freedom of all runs that repeat treatments within blocks."""
    return pure_df([r.treatment_id for r in plan.rows], [r.block for r in plan.rows])


def separated(plan: Plan, numbers: Numbers, model: Collection[str]) -> list[Named]:
    """Interactions that stages separate from other terms and that the model lacks, with their columns.

    `numbers`: runs × factors of level numbers; `model`: the names of the model's terms.
    """
    rivals = dict.fromkeys(rival for stage in plan.stages for rival in stage.get("rivals") or [])
    products = dict(beyond(plan.factors, "main", numbers)) if rivals else {}
    return [(r, products[r]) for r in rivals if r in products and r not in model]


def power_of_stages(plan: Plan, noise: float, fraction: int = 0) -> dict[str, Any]:
    """Power of all designed runs together; each block costs a degree of freedom."""
    included = {1, *(n for n, s in enumerate(plan.stages, start=2) if s["purpose"] in DESIGNED)}
    rows = [r for r in plan.rows if r.stage in included]
    blocks = [r.block for r in rows]
    if plan.whole_plot_factors:  # more settings detect at least the effects of the first stage
        return plan.power
    if not plan.two_level:
        names = [f.name for f in plan.factors]
        coded = np.array(
            [[r.coded[n] for n in names] for r in rows], dtype=coded_type(plan.factors)
        )
        numbers = numbers_of(plan.factors, coded)
        model = plan.model or "main"
        x = columns(plan.factors, model, numbers, blocks)
        of_model = {name for name, _ in terms(plan.factors, model, numbers)}
        x = np.hstack([x, *(product for _, product in separated(plan, numbers, of_model))])
        df = len(x) - int(np.linalg.matrix_rank(x))
        if plan.model is None:
            df = pure_df([r.treatment_id for r in rows], blocks)
        if df < 1:
            return {"degrees_of_freedom": 0, "assumed_noise": noise}
        effective = effective_by_columns(plan.factors, model, numbers, x)
        return power_at(2 / math.sqrt(min(effective)), df, noise)
    kinds = len({r.treatment_id for r in rows})
    return power_of(
        kinds, plan.replicates, noise, fraction, len(rows) / plan.replicates,
        pure_df([r.treatment_id for r in rows], blocks),
        error_df(kinds << fraction, plan.replicates, passes=plan.order in PASSES),
    )  # fmt: skip


def _with_estimates(plan: Plan, study: Study, matrix: Matrix) -> Plan:
    """The plan with the estimates of all designed rows together."""
    names = [f.name for f in plan.factors]
    relation = constant_words(matrix)
    regular = is_regular(matrix, relation)
    fraction = len(relation).bit_length() - 1
    if not regular:  # lower bound: a fraction of this size of a full design
        fraction = max(0, len(names) - (len(matrix).bit_length() - 1))
    grade = min((w.bit_count() for w in relation if w), default=None)
    if fraction and grade is None:
        grade = plan.resolution
    aliases = alias_table(matrix, names, relation) if fraction else []
    if not regular:
        aliases = partial_aliases(plan.factors, "main", numbers_of(plan.factors, matrix))
    power = power_of_stages(plan, study.design.noise, fraction)
    sentences = cautions(
        study, grade if fraction else None, aliases, power, two_level=True, pure=_pure(plan)
    )
    sentences += between_cautions(plan.between_blocks)
    sentences += [
        f"Stage {n}: the difference between stages is confounded with {', '.join(s['confounded'])}; it is "
        "not reported as an effect."
        for n, s in enumerate(plan.stages, start=2)
        if s["confounded"]
    ]
    return replace(
        plan,
        fraction=fraction,
        generators=[] if fraction != plan.fraction else plan.generators,
        defining_relation=relation_text(relation, names) if len(relation) > 1 else [],
        resolution=grade if fraction else None,
        word_lengths={
            n: count for n, count in enumerate(word_lengths(relation, len(names)), 3) if count
        },
        aliases=aliases,
        power=power,
        cautions=sentences,
    )
