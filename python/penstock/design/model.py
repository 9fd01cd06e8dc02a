"""The terms of a model and their columns from level numbers, for the evaluation and analysis of designs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from penstock.design.contrasts import Values, curve, effect_coding, products
from penstock.design.kinds.base import MODELS, Model, Numbers, numeric
from penstock.spec.study import Factor

#: condition number of the matrix above which coefficients are nearly confounded
MOST_CONDITION = 30


def terms(factors: Sequence[Factor], model: Model, numbers: Numbers) -> list[tuple[str, Values]]:
    """Name and columns (runs × degrees of freedom) of each term, without the mean.

    `numbers`: runs × factors of level numbers. Two levels are −1 and +1. Models `main` and `pairs` use
    effect coding for more levels; `quadratic` has a linear and a quadratic column for quantitative
    factors, scaled to a largest entry of 1, and products of the linear ones. In `squares` the two columns
    are separate terms: the square of `a` is `a:a`, and the linear one is −1 at the first level, +1 at the
    last.
    """
    squares = model in ("quadratic", "squares")
    main = [_columns(f, numbers[:, j], squares=squares) for j, f in enumerate(factors)]
    if model == "squares":
        return _apart(factors, main)
    by_name = [(f.name, main[j]) for j, f in enumerate(factors)]
    if model == "main":
        return by_name
    linear = [
        c[:, :1] if squares and numeric(f) is not None else c
        for f, c in zip(factors, main, strict=True)
    ]
    for a, b in itertools.combinations(range(len(factors)), 2):
        name = f"{factors[a].name}:{factors[b].name}"
        by_name.append((name, products(linear[a], linear[b])))
    return by_name


def _apart(factors: Sequence[Factor], main: Sequence[Values]) -> list[tuple[str, Values]]:
    """Linear contrasts of all factors, then squares; a qualitative factor of more levels is one term."""
    lines, squares = list[tuple[str, Values]](), list[tuple[str, Values]]()
    for factor, columns in zip(factors, main, strict=True):
        values = numeric(factor)
        if len(factor.levels) == 2 or values is None:
            lines.append((factor.name, columns))
            continue
        sign = 1.0 if values[-1] > values[0] else -1.0
        lines.append((factor.name, sign * columns[:, :1]))
        squares.append((f"{factor.name}:{factor.name}", columns[:, 1:]))
    return [*lines, *squares]


def matrix(factors: Sequence[Factor], model: Model, numbers: Numbers) -> Values:
    """Runs × coefficients, the mean first."""
    ones: Values = np.ones((len(numbers), 1))
    return np.hstack([ones, *(columns for _, columns in terms(factors, model, numbers))])


def coefficients(factors: Sequence[Factor], model: Model) -> int:
    """Number of coefficients of the model, including the mean."""
    none: Numbers = np.zeros((1, len(factors)), dtype=np.int64)
    return int(matrix(factors, model, none).shape[1])


def largest_model(factors: Sequence[Factor], numbers: Numbers) -> Model | None:
    """The largest model of which these runs estimate every coefficient; None if there is none.

    Models beyond the main effects require 1.5 runs per coefficient and no near-confounding (condition of X
    at most 30; Belsley, Kuh and Welsch 1980).
    """
    for model in reversed(MODELS):
        if model != "main" and len(factors) < 2 and model == "pairs":
            continue
        x = matrix(factors, model, numbers)
        if x.shape[1] > len(x) or int(np.linalg.matrix_rank(x)) < x.shape[1]:
            continue
        if model == "main" or (
            2 * len(x) >= 3 * x.shape[1] and np.linalg.cond(x) <= MOST_CONDITION
        ):
            return model
    return None


def _columns(factor: Factor, of_factor: Numbers, *, squares: bool) -> Values:
    levels = len(factor.levels)
    if levels == 2:
        column: Values = 2.0 * of_factor[:, None] - 1.0
        return column
    values = numeric(factor)
    code = curve(values) if squares and values is not None else effect_coding(levels)
    chosen: Values = code[of_factor]
    return chosen
