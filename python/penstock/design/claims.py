"""Verification of the claims of a kind of design, from its treatments."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.design import model as models
from penstock.design.alias_matrix import of_treatments
from penstock.design.contrasts import polynomial
from penstock.design.kinds.base import Asked, Claim, Model, Numbers
from penstock.errors import PenstockError

#: columns with a smaller correlation count as orthogonal
NEAR = 1e-9


@dataclass(frozen=True)
class Mixed:
    """A term and the products of factors that are aliased with its estimate.

    `share`: the largest partial alias; `exact` aliases are not separable from the term.
    """

    term: str
    pairs: list[str]
    share: float
    exact: list[str] = field(default_factory=list)


def check(request: Asked, treatments: Any, claim: Claim) -> Numbers:
    """The rows as level numbers; PenstockError names the claim that does not hold."""
    rows = np.asarray(treatments)
    levels = request.levels
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(levels):
        raise PenstockError(f"the design gave a matrix of {rows.shape}")
    rows = rows.astype(np.int64)
    if (rows < 0).any() or (rows >= np.array(levels)).any():
        raise PenstockError("the design names levels that the factors do not have")
    if not claim.repeated and len(np.unique(rows, axis=0)) != len(rows):
        raise PenstockError("the design has a treatment twice")
    if claim.runs is not None and len(rows) != claim.runs:
        raise PenstockError(f"the design has {len(rows)} treatments, {claim.runs} were requested")
    if not request.allowed(rows).all():
        raise PenstockError("the design contains a forbidden combination")
    _levels(request, rows, claim)
    if claim.strength >= 2:
        _pairs(request, rows)
    if claim.clear:
        _clear(request, rows)
    if claim.model is None:
        return rows
    x = models.matrix(request.factors, claim.model, rows)
    if int(np.linalg.matrix_rank(x)) < x.shape[1]:
        raise PenstockError(
            f"{len(rows)} treatments do not separate the {x.shape[1]} coefficients of the model "
            f"{claim.model} apart"
        )
    return rows


def _levels(request: Asked, rows: Numbers, claim: Claim) -> None:
    for name, count, column in zip(request.names, request.levels, rows.T, strict=True):
        often = np.bincount(column, minlength=count)
        if not often.all():
            raise PenstockError(f"the design never runs a level of {name}")
        if claim.strength >= 1 and np.ptp(often):
            raise PenstockError(f"column {name} is not balanced: {often.tolist()}")
        if claim.near and np.ptp(often) > 1:
            raise PenstockError(f"levels of {name} are run {often.tolist()} times")


def _pairs(request: Asked, rows: Numbers) -> None:
    for i, j in itertools.combinations(range(len(request.levels)), 2):
        cells = rows[:, i] * request.levels[j] + rows[:, j]
        often = np.bincount(cells, minlength=request.levels[i] * request.levels[j])
        if np.ptp(often):
            raise PenstockError(
                f"columns {request.names[i]} and {request.names[j]} are not orthogonal"
            )


def _clear(request: Asked, rows: Numbers) -> None:
    """Check that linear effects of symmetric levels are orthogonal to all second-order terms; those of
    three levels to each other as well."""
    coded = rows - (np.array(request.levels) - 1) / 2
    three = [j for j, n in enumerate(request.levels) if n > 2]
    second = [coded[:, i] * coded[:, j] for i, j in itertools.combinations(range(len(coded.T)), 2)]
    second += [coded[:, j] ** 2 for j in three]
    for j in range(len(coded.T)):
        others = [coded[:, i] for i in range(len(coded.T)) if i != j and i in three and j in three]
        if any(abs(float(coded[:, j] @ other)) > NEAR for other in [*others, *second]):
            raise PenstockError(f"column {request.names[j]} is not clear of second order")


def mixed(request: Asked, rows: Numbers, model: Model = "main") -> list[Mixed]:
    """For each term of the model, the terms one order beyond it that bias its estimate."""
    return [
        Mixed(
            term,
            [s.rival for s in shares],
            max((abs(s.share) for s in shares if not s.exact), default=1.0),
            [s.rival for s in shares if s.exact],
        )
        for term, shares in of_treatments(request.factors, model, rows).items()
        if shares
    ]


def correlation(request: Asked, rows: Numbers) -> float:
    """The largest correlation of two main effects (linear contrasts of numeric factors)."""
    columns = []
    for j, count in enumerate(request.levels):
        values = request.values(j)
        code = polynomial(values or list(range(count)), 1)[:, 0]
        column = code[rows[:, j]]
        columns.append(column - column.mean())
    largest = 0.0
    for a, b in itertools.combinations(columns, 2):
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        largest = max(largest, abs(float(a @ b)) / size if size else 0.0)
    return largest
