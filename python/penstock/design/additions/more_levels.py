"""Additions to a design whose factors have more than two levels: optimal treatments, or replicates.

Rivals are defined for two-level factors only (`two_levels.py`). A step here adds the treatments that, with
all existing ones, maximise the determinant of a model: a larger model than the plan's if enough treatments
estimate it with stages as blocks, else the plan's own with narrower intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design import model as models
from penstock.design.additions.two_levels import (
    MOST_ADDED,
    Question,
    Step,
    checked_count,
    chosen_rows,
)
from penstock.design.contrasts import products
from penstock.design.kinds.base import Asked, Model, Numbers, numeric
from penstock.design.kinds.optimal import D, possible
from penstock.design.matrix import Matrix
from penstock.design.planned import coded_type
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Factor

#: arguments of `--augment` for such a design
KINDS = ("optimal:ROWS", "replicates:NUMBER")

#: maximum number of candidate treatments
_MOST_POOL = 4096

Forbidden = Sequence[Mapping[str, tuple[str, ...]]]
Values = NDArray[np.floating[Any]]


def numbers_of(factors: Sequence[Factor], coded: Matrix) -> Numbers:
    """Level numbers from 0 of coded rows (−1 and +1 for factors of two levels)."""
    two = np.array([len(f.levels) == 2 for f in factors])
    wide = np.asarray(coded, dtype=np.int64)
    numbers: Numbers = np.where(two, (wide + 1) // 2, wide)
    return numbers


def coded_of(factors: Sequence[Factor], numbers: Numbers) -> Matrix:
    """Coded rows of level numbers."""
    two = np.array([len(f.levels) == 2 for f in factors])
    return np.asarray(np.where(two, 2 * numbers - 1, numbers).astype(coded_type(factors)))


def level_step(
    kind: str,
    factors: Sequence[Factor],
    model: Model | None,
    coded: Matrix,
    stages: Sequence[int],
    *,
    seed: int,
    forbidden: Forbidden = (),
    again: bool = False,
    open_questions: Sequence[Question] = (),
) -> Step:
    """The step of this `kind` (one of `KINDS`) for rows run in `stages`. With `open_questions`: rows that
    separate their terms from their rivals, adjusted for the model. BadInput if there is no such step."""
    word, _, argument = kind.partition(":")
    existing = np.unique(numbers_of(factors, coded), axis=0)
    if word == "replicates":
        return Step(f"replicates:{checked_count(argument or '1', kind, 1000)}", coded[:0])
    if word != "optimal":
        raise BadInput(
            f"--augment: found {kind!r}; expected {' or '.join(KINDS)}: factors of more than two levels have "
            "no foldover, and rivals are not listed for them"
        )
    everything = Asked(tuple(factors), {}, seed, tuple(forbidden))
    free = possible(everything) - len(existing)
    if not free or model is None:
        raise BadInput(f"--augment {kind}: all of these treatments are in the plan already")
    count = checked_count(
        argument or str(min(free, max(1, -(-len(existing) // 3)))), kind, MOST_ADDED
    )
    if count > free:
        raise BadInput(f"--augment optimal:{count}: only {free} treatments have not been run")
    if open_questions:
        return _separating(
            everything, model, numbers_of(factors, coded), stages, count, open_questions, again
        )
    fault_text = ""
    for larger in larger_models(factors, model):
        options = {
            "model": "main" if larger == "squares" else larger,  # the same coefficients
            "runs": len(existing) + count,
            "keep": [
                {f.name: f.levels[int(n)].name for f, n in zip(factors, row, strict=True)}
                for row in existing
            ],
        }
        request = Asked(tuple(factors), options, seed, tuple(forbidden))
        if fault := D.fault(request):
            fault_text = f"expected {fault}"
            continue
        try:
            rows = D.treatments(request)
        except PenstockError as error:
            fault_text = str(error)
            continue
        new = rows[len(existing) :]
        together, labels = with_step(numbers_of(factors, coded), stages, new, again=again)
        if larger == model or tells(factors, larger, together, labels):
            return Step(f"optimal:{len(new)}", coded_of(factors, new))
    raise BadInput(f"--augment optimal:{count}: {fault_text}")


def _separating(
    request: Asked,
    model: Model,
    existing: Numbers,
    stages: Sequence[int],
    count: int,
    open_questions: Sequence[Question],
    again: bool,
) -> Step:
    """Rows that separate terms from their rivals, with the pairs separated and not separated."""
    factors = request.factors
    rivals = sorted({w for q in open_questions for w in q.plausible})
    pool = _free(request, existing)
    if len(pool) < count:
        raise BadInput(f"--augment optimal:{count}: only {len(pool)} treatments have not been run")

    def all_columns(rows: Numbers, labels: Sequence[int]) -> Values:
        of_stage = np.column_stack(
            [np.equal(labels, s).astype(float) for s in range(1, max(stages) + 2)]
        )
        own = [c for _, c in models.terms(factors, model, rows)]
        return np.hstack([of_stage, *own, *(_product(factors, rows, w) for w in rivals)])

    had = all_columns(existing, stages)
    may = all_columns(pool, [max(stages) + 1] * len(pool))
    new = pool[chosen_rows(had, may, count)]
    together, labels = with_step(existing, stages, new, again=again)
    broken, remaining = list[tuple[int, int]](), list[tuple[int, int]]()
    for question in open_questions:
        for rival in question.plausible:
            apart = _apart(factors, model, together, labels, rival)
            (broken if apart else remaining).append((question.term, rival))
    return Step(f"optimal:{count}", coded_of(factors, new), tuple(broken), tuple(remaining))


def _free(request: Asked, existing: Numbers) -> Numbers:
    """Treatments that may be run and were not: all, or a random sample."""
    sizes = request.levels
    if request.combinations <= _MOST_POOL:
        every = np.array(list(np.ndindex(*sizes)), dtype=np.int64)
    else:
        draws = np.random.default_rng(request.seed)
        every = np.unique(
            np.column_stack([draws.integers(0, n, _MOST_POOL) for n in sizes]), axis=0
        ).astype(np.int64)
    every = every[request.allowed(every)]
    existing_rows = {tuple(row) for row in existing.tolist()}
    return every[[tuple(row) not in existing_rows for row in every.tolist()]]


def _product(factors: Sequence[Factor], rows: Numbers, word: int) -> Values:
    """The columns of the interaction of the factors of a word."""
    code: Values = np.ones((len(rows), 1))
    for j, factor in enumerate(factors):
        if word >> j & 1:
            own = models.terms([factor], "main", rows[:, j : j + 1])[0][1]
            code = products(code, own)
    return code


def _apart(
    factors: Sequence[Factor], model: Model, rows: Numbers, labels: Sequence[int], rival: int
) -> bool:
    """True if the rows determine the interaction of a word, adjusted for the model and the stages."""
    x = columns(factors, model, rows, labels)
    product = _product(factors, rows, rival)
    together = np.hstack([x, product])
    rank, alone = (int(np.linalg.matrix_rank(one)) for one in (together, x))
    return bool(rank == alone + product.shape[1])


def with_step(
    existing: Numbers, stages: Sequence[int], new: Numbers, *, again: bool
) -> tuple[Numbers, list[int]]:
    """All rows and their stages after a step."""
    added = np.vstack([np.unique(existing, axis=0), new]) if again else new
    return np.vstack([existing, added]), [*stages, *[max(stages) + 1] * len(added)]


def larger_models(factors: Sequence[Factor], model: Model) -> tuple[Model, ...]:
    """Models that more treatments could estimate: largest first, the plan's own last."""
    if model not in ("main", "squares") or len(factors) < 2:
        return (model,)
    curved = any(len(f.levels) > 2 and numeric(f) is not None for f in factors)
    return ("pairs", "quadratic", model) if curved else ("pairs", model)


def estimable_model(
    factors: Sequence[Factor], model: Model | None, coded: Matrix, stages: Sequence[int]
) -> Model | None:
    """The largest model, from the plan's upwards, that all rows estimate adjusted for the stages."""
    if model is None:
        return None
    numbers = numbers_of(factors, coded)
    for larger in larger_models(factors, model):
        if larger == model or tells(factors, larger, numbers, stages):
            return larger
    return model


def tells(factors: Sequence[Factor], model: Model, numbers: Numbers, stages: Sequence[int]) -> bool:
    """True if rows estimate a model adjusted for the stages: at least 1.5 treatments per coefficient, and
    no near-confounding (`model.MOST_CONDITION`)."""
    x = columns(factors, model, numbers, stages)
    return (
        2 * len(np.unique(numbers, axis=0)) >= 3 * models.coefficients(factors, model)
        and int(np.linalg.matrix_rank(x)) == x.shape[1]
        and float(np.linalg.cond(x)) <= models.MOST_CONDITION
    )


def columns(
    factors: Sequence[Factor], model: Model, numbers: Numbers, blocks: Sequence[int]
) -> Values:
    """Rows × columns: the model's, mean first, then one for each block but the first."""
    label = np.unique(np.asarray(blocks), return_inverse=True)[1]
    of_block: Values = np.eye(int(label.max()) + 1)[label][:, 1:]
    return np.hstack([models.matrix(factors, model, numbers), of_block])
