"""What to add to a design whose factors have more than two levels: optimal treatments, or replicates.

Rivals are told for two-level factors alone (`augment.py`). Here a step adds the treatments that make the
determinant of a model largest, with all that were made kept: a larger model than the plan's where so many
treatments tell it, stages being blocks, else the same one by narrower intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design import model as models
from penstock.design.augment import MOST_ADDED, Step
from penstock.design.kinds.base import Asked, Model, Numbers, numeric
from penstock.design.kinds.optimal import D, possible
from penstock.design.matrix import Matrix
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Factor

#: what `--augment` understands of such a design
KINDS = ("optimal:ROWS", "replicates:NUMBER")

Forbidden = Sequence[Mapping[str, tuple[str, ...]]]
Values = NDArray[np.floating[Any]]


def numbers_of(factors: Sequence[Factor], coded: Matrix) -> Numbers:
    """Level numbers from 0 of coded rows (−1 and +1 where a factor has two levels)."""
    two = np.array([len(f.levels) == 2 for f in factors])
    wide = np.asarray(coded, dtype=np.int64)
    found: Numbers = np.where(two, (wide + 1) // 2, wide)
    return found


def coded_of(factors: Sequence[Factor], numbers: Numbers) -> Matrix:
    """Coded rows of level numbers."""
    two = np.array([len(f.levels) == 2 for f in factors])
    return np.where(two, 2 * numbers - 1, numbers).astype(np.int8)


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
) -> Step:
    """The step that is called `kind` (one of `KINDS`) for rows that were made in `stages`. BadInput where
    there is none."""
    word, _, argument = kind.partition(":")
    made = np.unique(numbers_of(factors, coded), axis=0)
    if word == "replicates":
        return Step(f"replicates:{_whole(argument or '1', kind, 1000)}", coded[:0])
    if word != "optimal":
        raise BadInput(
            f"--augment: found {kind!r}; expected {' or '.join(KINDS)}: factors of more than two levels have "
            "no foldover, and rivals are not told for them"
        )
    asked = Asked(tuple(factors), {}, seed, tuple(forbidden))
    free = possible(asked) - len(made)
    if not free or model is None:
        raise BadInput(f"--augment {kind}: all of these treatments are in the plan already")
    count = _whole(argument or str(min(free, max(1, -(-len(made) // 3)))), kind, MOST_ADDED)
    if count > free:
        raise BadInput(f"--augment optimal:{count}: only {free} treatments have not been run")
    told = ""
    for larger in larger_models(factors, model):
        options = {
            "model": "main" if larger == "squares" else larger,  # the same coefficients
            "runs": len(made) + count,
            "keep": [
                {f.name: f.levels[int(n)].name for f, n in zip(factors, row, strict=True)}
                for row in made
            ],
        }
        wanted = Asked(tuple(factors), options, seed, tuple(forbidden))
        if fault := D.fault(wanted):
            told = f"expected {fault}"
            continue
        try:
            rows = D.treatments(wanted)
        except PenstockError as error:
            told = str(error)
            continue
        new = rows[len(made) :]
        together, labels = with_step(numbers_of(factors, coded), stages, new, again=again)
        if larger == model or tells(factors, larger, together, labels):
            return Step(f"optimal:{len(new)}", coded_of(factors, new))
    raise BadInput(f"--augment optimal:{count}: {told}")


def with_step(
    made: Numbers, stages: Sequence[int], new: Numbers, *, again: bool
) -> tuple[Numbers, list[int]]:
    """All rows and their stages after a step."""
    added = np.vstack([np.unique(made, axis=0), new]) if again else new
    return np.vstack([made, added]), [*stages, *[max(stages) + 1] * len(added)]


def larger_models(factors: Sequence[Factor], model: Model) -> tuple[Model, ...]:
    """The models that more treatments could tell, the largest first, the plan's own last."""
    if model not in ("main", "squares") or len(factors) < 2:
        return (model,)
    curved = any(len(f.levels) > 2 and numeric(f) is not None for f in factors)
    return ("pairs", "quadratic", model) if curved else ("pairs", model)


def told_model(
    factors: Sequence[Factor], model: Model | None, coded: Matrix, stages: Sequence[int]
) -> Model | None:
    """What all rows tell beside the stages: the plan's model, or a larger one that they determine."""
    if model is None:
        return None
    numbers = numbers_of(factors, coded)
    for larger in larger_models(factors, model):
        if larger == model or tells(factors, larger, numbers, stages):
            return larger
    return model


def tells(factors: Sequence[Factor], model: Model, numbers: Numbers, stages: Sequence[int]) -> bool:
    """Whether rows tell a model beside the stages: by half as many treatments again as it has coefficients,
    none of which is all but confounded (`model.MOST_CONDITION`)."""
    x = columns(factors, model, numbers, stages)
    return (
        2 * len(np.unique(numbers, axis=0)) >= 3 * models.coefficients(factors, model)
        and int(np.linalg.matrix_rank(x)) == x.shape[1]
        and float(np.linalg.cond(x)) <= models.MOST_CONDITION
    )


def columns(
    factors: Sequence[Factor], model: Model, numbers: Numbers, blocks: Sequence[int]
) -> Values:
    """Rows × columns: those of the model, the mean first, then one for each block but the first."""
    label = np.unique(np.asarray(blocks), return_inverse=True)[1]
    of_block: Values = np.eye(int(label.max()) + 1)[label][:, 1:]
    return np.hstack([models.matrix(factors, model, numbers), of_block])


def _whole(text: str, kind: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise BadInput(f"--augment {kind}: found {text!r}; expected a number from 1 to {most}")
    return int(text)
