"""Plackett-Burman designs: up to N−1 factors of two levels in N runs, N a multiple of 4.

Rows of a Hadamard matrix by Paley's constructions (Journal of Mathematics and Physics 12, 1933) and
Sylvester's doubling; the designs are those of Plackett and Burman (Biometrika 33, 1946) up to equivalence.
"""

from __future__ import annotations

import numpy as np

from penstock.design.kinds.base import Asked, Claim, Numbers, no_forbidden

WHAT = "Main effects of up to N-1 two-level factors in N runs (12, 20, 24, ...)."
OPTIONS = {"runs": "N, a multiple of 4 above the number of factors; the least of 12, 20, 24, 28, …"}
CANNOT = (
    "Plackett-Burman: two-factor interactions are spread in part over many main effects; main effects are "
    "estimated correctly as far as interactions are small.",
)
SIZES = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48)


def fault(request: Asked) -> str:
    """Fault unless factors have two levels, all fit, and rows are distinct."""
    if any(n != 2 for n in request.levels):
        return "two levels for every factor, or kind: orthogonal-array"
    runs = request.options.get("runs", 12)
    if runs not in SIZES or runs <= len(request.factors):
        fitting = [n for n in SIZES if n > len(request.factors)]
        return f"runs: one of {', '.join(map(str, fitting))}"
    if len(np.unique(_columns(request), axis=0)) < _runs(request):
        return f"at least {_least(_runs(request))} factors for {_runs(request)} runs, or a fraction"
    return no_forbidden(request)


def treatments(request: Asked) -> Numbers:
    """N rows; the last has the first level of every factor."""
    return _columns(request)


def claim(request: Asked) -> Claim:
    """Claim an orthogonal array of strength 2."""
    return Claim(strength=2, runs=_runs(request))


def _least(runs: int) -> int:
    array = hadamard(runs)[:, 1:]
    for count in range(2, runs):
        if len(np.unique(array[:, :count], axis=0)) == runs:
            return count
    return runs - 1


def _runs(request: Asked) -> int:
    at_least = max(12, len(request.factors) + 1)
    return request.whole("runs", next(n for n in SIZES if n >= at_least and n not in (16, 32)))


def _columns(request: Asked) -> Numbers:
    columns: Numbers = (hadamard(_runs(request))[:, 1 : len(request.factors) + 1] + 1) // 2
    return columns


def hadamard(order: int) -> Numbers:
    """A ±1 matrix with orthogonal columns, the first all +1. ValueError for an order without construction."""
    if order in (1, 2):
        return np.array([[1, 1], [1, -1]][:order])[:, :order]
    if order % 4 == 0 and _prime(order - 1):
        q = order - 1
        paley: Numbers = np.ones((order, order), dtype=np.int64)
        paley[1:, 1:] = _jacobsthal(q) - np.eye(q, dtype=np.int64)
        return _first_column(paley)
    half = order // 2
    if order % 4 == 0 and half % 2 == 0 and _prime(half - 1) and (half - 1) % 4 == 1:
        q = half - 1
        conference: Numbers = np.ones((half, half), dtype=np.int64)
        conference[1:, 1:] = _jacobsthal(q)
        conference[0, 0] = 0
        same = np.array([[1, 1], [1, -1]])
        turned = np.array([[1, -1], [-1, -1]])
        unit: Numbers = np.eye(half, dtype=np.int64)
        return _first_column(np.kron(conference, same) + np.kron(unit, turned))
    if order % 2 == 0:
        inner = hadamard(half)
        return np.block([[inner, inner], [inner, -inner]])
    raise ValueError(f"no Hadamard matrix of order {order} is constructed here")


def _first_column(matrix: Numbers) -> Numbers:
    """Rows with signs changed so that the first column is +1."""
    turned: Numbers = matrix * matrix[:, :1]
    return turned


def _jacobsthal(q: int) -> Numbers:
    """χ(j − i) over the field of q elements, χ the quadratic character."""
    squares = {i * i % q for i in range(1, q)}
    character = np.array([0, *(1 if i in squares else -1 for i in range(1, q))])
    rows, columns = np.indices((q, q))
    values: Numbers = character[(columns - rows) % q]
    return values


def _prime(n: int) -> bool:
    return n > 1 and all(n % i for i in range(2, int(n**0.5) + 1))
