"""Blocks smaller than a pass, for two-level designs: choice of the contrasts confounded with blocks.

A pass of N treatments is cut into 2^b blocks by the signs of b contrasts; these and their products, 2^b −
1 in all, are then confounded with blocks. The choice has the longest and fewest shortest words (in a
fraction, the shortest alias of each counts); among ties, contrasts that earlier passes did not confound,
so that the passes together estimate all of them (Montgomery, Design and Analysis of Experiments, chapter
7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.design.generators import members
from penstock.design.matrix import Matrix, column
from penstock.errors import BadInput

#: number of random starts of a search
_STARTS = 12

Words = NDArray[np.int64]


def blocks_of_pass(treatments: int, size: int) -> int:
    """Number of blocks of `size` runs in a pass of `treatments`. BadInput unless it is a power of two."""
    if size >= treatments:
        return 1
    if size < 2 or size & (size - 1):
        raise BadInput(f"found design.block_size {size}; expected a power of two: 2, 4, 8, …")
    return treatments // size


def confounded(
    factors: int, relation: Iterable[int], blocks: int, passes: int
) -> list[list[list[int]]]:
    """For each pass, the contrasts confounded with its blocks: the words of each, shortest first (several
    in a fraction, whose constant words are `relation`)."""
    constant = sorted(relation)
    classes = _classes(factors, constant)
    heads = np.array(sorted(classes), dtype=np.int64)
    length = np.zeros(1 << factors, dtype=np.int64)
    for head, aliases in classes.items():
        length[head] = min(w.bit_count() for w in aliases)
    used = np.zeros(1 << factors, dtype=np.int64)
    by_pass = []
    for _ in range(passes):
        chosen = _choose(heads, length, used, blocks.bit_length() - 1, factors)
        used[chosen] += 1
        groups = [sorted(classes[int(w)], key=_by_length) for w in chosen]
        by_pass.append(sorted(groups, key=lambda g: (-g[0].bit_count(), members(g[0]))))
    return by_pass


def block_numbers(matrix: Matrix, groups: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The block of each treatment of a pass, from 0, by the signs of the contrasts."""
    if not groups:
        return np.zeros(len(matrix), dtype=np.int64)
    signs = np.column_stack([column(matrix, group[0]) for group in groups])
    return np.asarray(np.unique(signs, axis=0, return_inverse=True)[1]).reshape(-1)


def _by_length(word: int) -> tuple[int, list[int]]:
    return word.bit_count(), members(word)


class _Reduced:
    """Representative of each alias set: the word without leading factors of independent constant words."""

    def __init__(self, constant: Sequence[int]) -> None:
        self._pivots: list[tuple[int, int]] = []
        for word in constant:
            rest = self.of(word)
            if not rest:
                continue
            bit = 1 << (rest.bit_length() - 1)
            self._pivots = [(b, w ^ rest if w & bit else w) for b, w in self._pivots]
            self._pivots.append((bit, rest))

    def of(self, word: int) -> int:
        for bit, constant in self._pivots:
            if word & bit:
                word ^= constant
        return word


def _classes(factors: int, constant: Sequence[int]) -> dict[int, list[int]]:
    """Words by the representative of their alias set, without the constant ones."""
    reduced = _Reduced(constant)
    classes: dict[int, list[int]] = {}
    for word in range(1, 1 << factors):
        if head := reduced.of(word):
            classes.setdefault(head, []).append(word)
    return classes


def _choose(heads: Words, length: Words, used: Words, independent: int, factors: int) -> Words:
    """The best group of `independent` words by local search: from random groups (fixed seed), replace one
    word by the best other until there is no gain."""
    best: tuple[tuple[int, ...], Words] | None = None
    for start in range(_STARTS):
        draws = np.random.default_rng(start)
        basis: list[int] = []
        for word in draws.permutation(heads):
            if len(basis) == independent:
                break
            if word not in _span(basis):
                basis.append(int(word))
        score: tuple[int, ...] | None = None
        while True:
            extended = min(
                (_extended(part, heads, length, used, factors) for part in _parts(basis)),
                key=lambda one: (one[0], one[1]),
            )
            if score is not None and extended[0] >= score:
                break
            score, basis = extended
        group = np.sort(_span(basis))[1:]
        if best is None or (score, group.tolist()) < (best[0], best[1].tolist()):
            best = score, group
    assert best is not None
    return best[1]


def _span(basis: Sequence[int]) -> Words:
    """All products of words, the empty one among them."""
    products = np.zeros(1, dtype=np.int64)
    for word in basis:
        products = np.concatenate([products, products ^ word])
    return products


def _parts(basis: list[int]) -> Iterator[list[int]]:
    """Bases of the subgroups with one independent word fewer: a sample if there are many."""
    for at, word in enumerate(basis):
        rest = [w for i, w in enumerate(basis) if i != at]
        yield rest
        for i in range(len(rest)):
            yield [w ^ word if j == i else w for j, w in enumerate(rest)]


def _extended(
    part: list[int], heads: Words, length: Words, used: Words, factors: int
) -> tuple[tuple[int, ...], list[int]]:
    """The group with the best further word, and its score: number of words of length 1, 2, …, and how
    often they were used."""
    span = _span(part)
    candidates = heads[~np.isin(heads, span)]
    new = span[:, None] ^ candidates[None, :]
    lengths = length[new]
    counts = [(lengths == n).sum(axis=0) for n in range(1, factors + 1)]
    counts.append(used[new].sum(axis=0))
    at = int(np.lexsort([candidates, *reversed(counts)])[0])
    have = np.bincount(length[span[1:]], minlength=factors + 1)[1:]
    score = [int(c[at]) for c in counts]
    totals = [a + int(b) for a, b in zip(score, [*have, used[span].sum()], strict=True)]
    return tuple(totals), [*part, int(candidates[at])]
