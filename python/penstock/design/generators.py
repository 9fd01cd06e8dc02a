"""Generators of two-level regular fractions: parser, choice, and defining relation.

A word is an integer: bit i set means that it contains factor i. The product of two words is their
exclusive or; signs multiply. Factors keep the order of the study file. The first K−P factors without a
generator are basic; added factors take a word of basic factors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.design.aberration import MINIMUM_ABERRATION

Relation = NDArray[np.int64]

#: maximum number of nodes per resolution of the search for generators of more than 15 factors
STEPS = 4_000


@dataclass(frozen=True)
class Generator:
    """Column of factor `factor` (index) = `sign` × product of the factors in `word` (bits)."""

    factor: int
    word: int
    sign: int = 1

    @property
    def relation(self) -> tuple[int, int]:
        """The defining word, with its sign: I = sign × (word and factor)."""
        return self.word | 1 << self.factor, self.sign


class NoFraction(ValueError):  # noqa: N818 - reads as what it is
    """The requested regular fraction does not exist; the message has the reason."""


def length(word: int) -> int:
    """Number of letters."""
    return word.bit_count()


def members(word: int) -> list[int]:
    """Indices of the factors in a word, ascending."""
    return [i for i in range(word.bit_length()) if word >> i & 1]


def word_of(term: str, names: Sequence[str]) -> int:
    """The word of a term such as `disk:jobs`."""
    return sum(1 << list(names).index(name) for name in term.split(":"))


def term_of(word: int, names: Sequence[str], between: str = ":") -> str:
    """The term of a word; `I` for none."""
    return between.join(names[i] for i in members(word)) if word else "I"


def words_up_to(factors: int, order: int) -> list[int]:
    """All words of 1…`order` of the first `factors` factors: shorter first, then alphabetical."""
    return [
        sum(1 << i for i in chosen)
        for n in range(1, min(order, factors) + 1)
        for chosen in itertools.combinations(range(factors), n)
    ]


def parse_generator(text: str, names: Sequence[str]) -> Generator:
    """Parse `jobs = disk*pattern` or `jobs = -disk*pattern`; NoFraction describes the error."""
    target_text, equals, right = text.partition("=")
    target, right = target_text.strip(), right.strip()
    if not equals or not right:
        raise NoFraction("a generator such as 'c = a*b'")
    sign = -1 if right.startswith("-") else 1
    parts = [p.strip() for p in right.lstrip("+-").split("*")]
    for name in (target, *parts):
        if name not in names:
            raise NoFraction(f"names of factors ({', '.join(names)}); '{name}' is none")
    if target in parts or len(set(parts)) != len(parts):
        raise NoFraction("each factor at most once")
    if len(parts) < 2:
        raise NoFraction("a product of at least two other factors")
    return Generator(names.index(target), sum(1 << names.index(p) for p in parts), sign)


def defining_relation(relations: Iterable[tuple[int, int]]) -> dict[int, int]:
    """All products of signed words, the identity (word 0) included: word → sign."""
    relation = {0: 1}
    for word, sign in relations:
        relation |= {w ^ word: s * sign for w, s in relation.items()}
    return relation


def word_lengths(relation: Iterable[int], factors: int) -> list[int]:
    """Word-length pattern: number of words of length 3, 4, … `factors`."""
    pattern = [0] * (factors + 1)
    for word in relation:
        pattern[length(word)] += word != 0
    return pattern[3:]


def resolution(relation: Iterable[int]) -> int | None:
    """Length of the shortest word; None for a full design, which has none."""
    lengths = [length(w) for w in relation if w]
    return min(lengths) if lengths else None


def choose_generators(factors: int, added: int) -> list[Generator]:
    """Maximum resolution, then minimum aberration; ties: shorter words, then alphabetical.

    Exact for up to 15 factors (`MINIMUM_ABERRATION`). Above: for each resolution from the Griesmer bound
    down, depth first over sets of `added` distinct words of the basic factors, bounded by the best pattern
    so far; `STEPS` nodes per resolution, which is not exhaustive. NoFraction if there are too few words.
    """
    basic = factors - added
    if added == 0:
        return []
    if published := MINIMUM_ABERRATION.get((factors, added)):
        return [Generator(basic + i, word) for i, word in enumerate(published)]
    candidates = [w for w in words_up_to(basic, basic) if length(w) >= 2]
    if len(candidates) < added:
        raise NoFraction(f"a fraction of at most {largest_fraction(factors)} for {factors} factors")
    best: list[int] | None = None
    for floor in range(highest_resolution(factors, added), 2, -1):
        best = _Search(candidates, basic, added, floor).best()
        if best:
            break
    generators = best or candidates[:added]
    return [Generator(basic + i, word) for i, word in enumerate(generators)]


def largest_fraction(factors: int, least: int = 3) -> int:
    """The largest P of a fraction 2^(K−P) of resolution `least` or more; 0 if there is none."""
    if least == 3:
        return max(p for p in range(factors) if 2 ** (factors - p) - 1 >= factors or p == 0)
    best = 0
    for added in range(1, factors):
        try:
            generators = choose_generators(factors, added)
        except NoFraction:
            break
        grade = resolution(defining_relation(g.relation for g in generators))
        if grade is None or grade < least:
            break
        best = added
    return best


def highest_resolution(factors: int, added: int) -> int:
    """Griesmer bound (IBM Journal 4, 1960): words of a relation are a linear code of dimension P."""
    return max(
        d for d in range(1, factors + 1) if sum(-(-d // 2**i) for i in range(added)) <= factors
    )


class _Search:
    """Depth-first search for the set of words with the lexicographically smallest pattern.

    Every word of the relation has at least `floor` letters. Relabelling basic factors leaves the pattern,
    so the first word may be the first of its length.
    """

    def __init__(self, candidates: list[int], basic: int, added: int, floor: int) -> None:
        self.candidates = np.array(candidates, dtype=np.int64)
        self.basic = basic
        self.added = added
        self.floor = floor
        self.chosen: list[int] = []
        self.pattern: list[int] | None = None
        self.remaining = STEPS

    def best(self) -> list[int]:
        nothing: list[int] = [0] * (self.basic + self.added + 1)
        first = self.candidates[self.candidates & (self.candidates + 1) == 0]
        self._extend([], np.zeros(1, dtype=np.int64), nothing, first)
        return self.chosen

    def _extend(
        self, chosen: list[int], relation: Relation, pattern: list[int], options: Relation
    ) -> None:
        """Try each of `options` as the next word; `pattern` has the counts so far."""
        self.remaining -= 1
        place = len(chosen)
        joined = options[:, None] | 1 << (self.basic + place)
        lengths = np.bitwise_count(relation[None, :] ^ joined)
        good = lengths.min(axis=1, initial=self.basic + self.added) >= self.floor
        options, lengths = options[good], lengths[good]
        for i, word in enumerate(options.tolist()):
            if self.remaining <= 0 and self.chosen:
                return
            counts = np.bincount(lengths[i], minlength=len(pattern)).tolist()
            grown = [a + b for a, b in zip(pattern, counts, strict=True)]
            if self.pattern is not None and grown >= self.pattern:
                continue  # words are only added, so the pattern only grows
            if place + 1 == self.added:
                self.chosen, self.pattern = [*chosen, word], grown
                continue
            if self.remaining <= 0:
                return
            larger = np.concatenate([relation, relation ^ (word | 1 << (self.basic + place))])
            later = options if place else self.candidates
            after = int(np.flatnonzero(later == word)[0]) + 1
            self._extend([*chosen, word], larger, grown, later[after:])
