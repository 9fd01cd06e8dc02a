"""The matrix to run: coded columns, and resolution and aliases computed from them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.design.generators import Generator, words_up_to
from penstock.errors import PenstockError

Matrix = NDArray[np.int8]

#: maximum number of factors for an exhaustive search over words
MOST_FACTORS = 20


def two_level(factors: int, generators: Sequence[Generator]) -> Matrix:
    """Rows × factors of −1/+1: basic factors lexicographic, the first slowest, −1 before +1."""
    added = {g.factor for g in generators}
    basic = [i for i in range(factors) if i not in added]
    rows = 1 << len(basic)
    matrix = np.empty((rows, factors), dtype=np.int8)
    index = np.arange(rows)
    for place, factor in enumerate(basic):
        matrix[:, factor] = 2 * (index >> (len(basic) - 1 - place) & 1) - 1
    for generator in generators:
        matrix[:, generator.factor] = generator.sign * column(matrix, generator.word)
    return matrix


def column(matrix: Matrix, word: int) -> Matrix:
    """Product of the columns of the factors in `word` (all ones for word 0)."""
    product = np.ones(matrix.shape[0], dtype=np.int8)
    for i in range(matrix.shape[1]):
        if word >> i & 1:
            product = product * matrix[:, i]
    return product


@dataclass(frozen=True)
class Verified:
    """Properties of the columns of the matrix, computed from them."""

    resolution: int | None
    relation: dict[int, int]  # word → sign, for every word whose column is constant


def verify(
    matrix: Matrix, runs: int, resolution: int | None, names: Sequence[str] | None = None
) -> Verified:
    """Brute force on the matrix: rows, P1–P3 of every contrast, constant words.

    PenstockError names the column that violates the request.
    """
    rows, factors = matrix.shape
    numbers = (matrix > 0) @ (np.int64(1) << np.arange(factors))
    if rows != runs or len(np.unique(numbers)) != rows:
        raise PenstockError(f"the design has {rows} rows, not {runs} distinct ones")
    relation = constant_words(matrix)
    actual = min((w.bit_count() for w in relation if w), default=None)
    check_columns(matrix, names)
    if actual != resolution:
        raise PenstockError(f"the design has resolution {actual}, {resolution} was requested")
    if not is_regular(matrix, relation):
        raise PenstockError(f"{len(relation)} constant words do not fit {rows} rows")
    return Verified(actual, relation)


def check_columns(matrix: Matrix, names: Sequence[str] | None = None) -> None:
    """P1–P3 on every factor column: sum 0, orthogonal to each other, absolute sum N."""
    rows, factors = matrix.shape
    names = names or [f"{i + 1}" for i in range(factors)]
    wide = matrix.astype(np.int64)
    for i in range(factors):
        if np.abs(wide[:, i]).sum() != rows or not np.all(np.abs(wide[:, i]) == 1):
            raise PenstockError(f"column {names[i]} has other values than -1 and +1")
        if wide[:, i].sum() != 0:
            raise PenstockError(f"column {names[i]} does not sum to 0")
    products = wide.T @ wide
    for i, j in itertools.combinations(range(factors), 2):
        if abs(products[i, j]) not in (0, rows):
            raise PenstockError(f"columns {names[i]} and {names[j]} are partly confounded")


def is_regular(matrix: Matrix, relation: Mapping[int, int]) -> bool:
    """True if distinct rows with these constant words are a regular fraction, or the full design."""
    rows, factors = matrix.shape
    return bool(len(relation) * rows == 1 << factors)


def regular(matrix: Matrix) -> bool:
    """True if distinct rows are a regular fraction or the full design: every two words have the same
    column up to sign, or orthogonal ones. Other designs have partial aliases (`alias_matrix.py`)."""
    rows, factors = matrix.shape
    if rows & (rows - 1) or factors > MOST_FACTORS:
        return False
    return is_regular(matrix, constant_words(matrix))


def constant_words(matrix: Matrix) -> dict[int, int]:
    """Every word whose product column is constant, with its sign, by trying all 2^K words.

    Columns are bit sets over rows: the product of ±1 columns is the exclusive or of their −1 rows.
    """
    rows, factors = matrix.shape
    negative = [
        int.from_bytes(np.packbits(matrix[:, i] < 0, bitorder="little").tobytes(), "little")
        for i in range(factors)
    ]
    everything = (1 << rows) - 1
    signs = {0: 1}
    gray, product, word = 0, 0, 0
    for step in range(1, 1 << factors):
        flip = (step & -step).bit_length() - 1
        gray ^= 1 << flip
        product ^= negative[flip]
        word = gray
        if product == 0:
            signs[word] = 1
        elif product == everything:
            signs[word] = -1
    return signs


def alias_words(matrix: Matrix, order: int) -> list[list[tuple[int, int]]]:
    """Sets of words (up to `order`) with the same column up to sign: each [(word, sign), …], shortest first.

    The set of the mean (word 0) comes first. Signs are relative to the first word of the set. For a
    regular fraction these are all aliases; other designs have partial ones as well (`alias_matrix.py`).
    """
    groups: dict[bytes, list[tuple[int, int]]] = {}
    for word in [0, *words_up_to(matrix.shape[1], order)]:
        values = column(matrix, word)
        sign = int(values[0])
        groups.setdefault((values * sign).astype(np.int8).tobytes(), []).append((word, sign))
    return [[(w, s * group[0][1]) for w, s in group] for group in groups.values()]
