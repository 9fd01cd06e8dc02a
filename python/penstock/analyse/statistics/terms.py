"""The terms of a model: its factors and interactions, and their coded columns.

Columns have one row per distinct treatment that was run; `Design.of_run` maps runs to treatments. Factors
of two levels are coded −1 and +1, others by effect coding (sum to zero). Names of factors never reach a
formula: a factor may have any name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.design import model
from penstock.design.contrasts import effect_coding, products
from penstock.design.matrix import alias_words
from penstock.design.plan import ALIAS_ORDER
from penstock.design.planned import Plan, coded_matrix
from penstock.errors import PenstockError

Values = NDArray[np.floating[Any]]
Numbers = NDArray[np.integer[Any]]

#: maximum number of terms of a fit
MOST_TERMS = 2500
#: maximum number of combinations of levels that have a number of 64 bits
_MOST_NUMBERED = 1 << 62


@dataclass(frozen=True)
class Term:
    """A group of columns tested together: one column for factors of two levels."""

    name: str
    #: treatments × degrees of freedom
    columns: Values
    aliases: str = ""

    @property
    def size(self) -> int:
        """Number of factors in the term."""
        return self.name.count(":") + 1

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.columns.shape[1])


@dataclass(frozen=True)
class Design:
    """The terms over the distinct treatments, their level numbers, and the treatment of each run."""

    terms: list[Term]
    levels: Numbers  # treatments × factors
    of_run: Numbers

    def columns(self, terms: Iterable[Term]) -> Values:
        """Columns of the mean and of `terms`, one row per treatment."""
        return np.hstack([np.ones((len(self.levels), 1)), *(t.columns for t in terms)])


def numbers(data: pd.DataFrame, plan: Plan) -> NDArray[np.int64]:
    """Runs × factors: level numbers from 0, in the study's order; PenstockError for an unknown level."""
    levels = np.empty((len(data), len(plan.factors)), dtype=np.int64)
    for j, factor in enumerate(plan.factors):
        places = {level.name: i for i, level in enumerate(factor.levels)}
        names = data[factor.name].tolist()
        levels[:, j] = [places.get(str(name), -1) for name in names]
        if (levels[:, j] < 0).any():
            strange = names[int(np.argmin(levels[:, j]))]
            raise PenstockError(f"{strange!r} is no level of {factor.name}")
    return levels


def design_of(data: pd.DataFrame, plan: Plan) -> Design:
    """The terms of a plan's model over the treatments with runs in `data`."""
    level = numbers(data, plan)
    sizes = [len(f.levels) for f in plan.factors]
    if math.prod(sizes) <= _MOST_NUMBERED:
        places = np.ravel_multi_index(tuple(level.T), tuple(sizes))
        _, first, of_run = np.unique(places, return_index=True, return_inverse=True)
    else:
        _, first, of_run = np.unique(level, axis=0, return_index=True, return_inverse=True)
    level = level[first]
    return Design(_terms(level, plan), level, of_run.reshape(-1))


def sum_to_zero(numbers_of: Numbers) -> Values:
    """Effect coding: one column per level but the last, which is −1 in all of them."""
    return np.asarray(effect_coding(int(numbers_of.max()) + 1)[numbers_of])


def _terms(level: Numbers, plan: Plan) -> list[Term]:
    names = [f.name for f in plan.factors]
    if plan.model is not None:
        return [Term(*one) for one in model.terms(plan.factors, plan.model, level.astype(np.int64))]
    if plan.two_level:
        coded = 2.0 * level - 1.0
        if not plan.fraction:
            coded = np.column_stack([_of_two(of_factor) for of_factor in level.T])
        return _two_level_terms(coded, names, plan)
    codes = [_coded_factor(level[:, j], len(f.levels)) for j, f in enumerate(plan.factors)]
    terms = []
    for size in range(1, _longest_mixed([c.shape[1] for c in codes]) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            columns = codes[chosen[0]]
            for j in chosen[1:]:
                columns = products(columns, codes[j])
            terms.append(Term(":".join(names[j] for j in chosen), columns))
    return terms


def _longest_mixed(widths: list[int]) -> int:
    """Maximum number of factors of an interaction in the model: all, unless that is too many columns."""
    total = 0
    for size in range(1, len(widths) + 1):
        total += sum(math.prod(c) for c in itertools.combinations(widths, size))
        if total > MOST_TERMS and size > 2:
            return size - 1
    return len(widths)


def _coded_factor(level: Numbers, levels: int) -> Values:
    if levels == 2:
        return _of_two(level)[:, None]
    codes = np.unique(level, return_inverse=True)[1]
    if codes.max() == 0:
        return np.zeros((len(level), 1))
    return sum_to_zero(codes)


def _of_two(level: Numbers) -> Values:
    """−1 and +1; 0 everywhere if only one of the two levels occurs."""
    coded: Values = 2.0 * level - 1.0
    return coded if np.ptp(coded) else 0 * coded


def _two_level_terms(coded: Values, names: list[str], plan: Plan) -> list[Term]:
    """One term per contrast column of the plan's matrix: its shortest word, with its aliases."""
    terms = []
    for group in alias_words(coded_matrix(plan), _longest(plan)):
        first = group[0][0]
        others = [(w, s) for w, s in group[1:] if w.bit_count() <= ALIAS_ORDER]
        if first == 0:
            continue
        chosen = [j for j in range(len(names)) if first >> j & 1]
        product = np.prod(coded[:, chosen], axis=1)[:, None]
        shown = [
            f"{'+' if sign > 0 else '-'}{':'.join(names[j] for j in range(len(names)) if w >> j & 1)}"
            for w, sign in others
        ]
        terms.append(Term(":".join(names[j] for j in chosen), product, ", ".join(shown)))
    return terms


def _longest(plan: Plan) -> int:
    """Maximum word length of terms in the model: all contrasts, unless there are more than `MOST_TERMS`;
    then the longest remain in the residual. Words of K−P factors meet every contrast."""
    factors = len(plan.factors)
    order, contrasts = 0, 0
    while order < max(min(ALIAS_ORDER, factors), factors - plan.fraction):
        contrasts += math.comb(factors, order + 1)
        if contrasts > MOST_TERMS and order >= 2:
            break
        order += 1
    return order
