"""The recorded word-length patterns, checked without the program of their origin and our designs."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

PATTERNS = {
    tuple(map(int, key.split(","))): words
    for key, words in json.loads(
        (Path(__file__).parents[1] / "golden" / "designs" / "word-lengths.json").read_text()
    )["patterns"].items()
}
#: largest number of fractions for an exhaustive search
MOST = 15_000
#: generators of textbooks (Box, Hunter & Hunter 2005, chapter 6; Montgomery 2013, chapter 8)
PRINTED = {
    (5, 2): "D=AB E=AC",
    (6, 3): "D=AB E=AC F=BC",
    (7, 4): "D=AB E=AC F=BC G=ABC",
    (6, 2): "E=ABC F=BCD",
    (7, 3): "E=ABC F=BCD G=ACD",
    (8, 4): "E=BCD F=ACD G=ABC H=ABD",
}


def krawtchouk(n: int, j: int, i: int) -> int:
    return sum(
        (-1) ** s * math.comb(i, s) * math.comb(n - i, j - s)
        for s in range(max(0, j - n + i), min(i, j) + 1)
    )


@pytest.mark.parametrize("case", sorted(PATTERNS), ids=str)
def test_a_pattern_is_possible_for_a_defining_relation(case: tuple[int, int]) -> None:
    """The rows are the dual code: by MacWilliams (1963) their weights are integers with the sum 2^(K-P)."""
    factors, added = case
    counts = [1, 0, 0, *PATTERNS[case]]
    assert len(counts) == factors + 1
    assert sum(counts) == 1 << added
    weights = [
        sum(counts[i] * krawtchouk(factors, j, i) for i in range(factors + 1))
        for j in range(factors + 1)
    ]
    assert all(w >= 0 and w % (1 << added) == 0 for w in weights)
    rows = [w >> added for w in weights]
    assert rows[0] == 1
    assert sum(rows) == 1 << (factors - added)


def best(factors: int, added: int) -> list[int]:
    """The smallest pattern of all choices of columns for the added factors, by exhaustive search."""
    basic = factors - added
    columns = [w for w in range(1, 1 << basic) if w.bit_count() > 1]
    chosen = np.array(list(itertools.combinations(columns, added)), dtype=np.int64)
    counts = np.zeros((len(chosen), factors + 1), dtype=np.int64)
    ones = np.array([w.bit_count() for w in range(1 << basic)])
    for subset in range(1, 1 << added):
        word = np.zeros(len(chosen), dtype=np.int64)
        for j in range(added):
            if subset >> j & 1:
                word ^= chosen[:, j]
        counts[np.arange(len(chosen)), ones[word] + subset.bit_count()] += 1
    order = np.lexsort(counts.T[::-1])
    return [int(n) for n in counts[order[0]][3:]]


SEARCHED = [(k, p) for k, p in sorted(PATTERNS) if math.comb(2 ** (k - p) - 1 - (k - p), p) <= MOST]


@pytest.mark.parametrize("case", SEARCHED, ids=str)
def test_no_fraction_has_less_aberration(case: tuple[int, int]) -> None:
    assert PATTERNS[case] == best(*case)


def test_searched_and_published_patterns() -> None:
    runs = [k - p for k, p in SEARCHED]
    assert {case for case in PATTERNS if case[0] - case[1] in (3, 4)} <= set(SEARCHED)
    assert runs.count(5) >= 4
    for (factors, added), generators in PRINTED.items():
        relations = [frozenset(text.replace("=", "")) for text in generators.split()]
        lengths = [0] * (factors + 1)
        for size in range(1, added + 1):
            for subset in itertools.combinations(relations, size):
                product: frozenset[str] = frozenset()
                for word in subset:
                    product ^= word
                lengths[len(product)] += 1
        assert PATTERNS[factors, added] == lengths[3:]


def test_a_wrong_pattern_is_detected() -> None:
    """Planted: a word moved from one length to the next, so that the weights are no code."""
    counts = [1, 0, 0, 0, 6, 1, 0, 0]
    weights = [sum(counts[i] * krawtchouk(7, j, i) for i in range(8)) for j in range(8)]
    assert any(w < 0 or w % 8 for w in weights)
