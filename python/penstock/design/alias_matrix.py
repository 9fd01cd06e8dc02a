"""The alias matrix: bias of each estimate of a model by each term that the model omits.

With the model's columns X₁ and further columns X₂ the expected estimate is β₁ + A β₂, A = (X₁'X₁)⁻¹X₁'X₂
(Box & Wilson, Journal of the Royal Statistical Society B 13, 1951). In a regular fraction the entries are
0 and ±1. In Plackett-Burman designs, orthogonal arrays, optimal designs, definitive screening designs and
any design that lost treatments they lie in between: partial aliases.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.design import model as models
from penstock.design.contrasts import Values, effect_coding, products
from penstock.design.kinds.base import Model, Numbers, numeric
from penstock.spec.study import Factor

#: a name and its columns (runs × degrees of freedom)
Named = tuple[str, Values]
#: smaller shares are not reported as aliases
LEAST_SHARE = 1e-6
#: maximum number of columns beyond a model
MOST_COLUMNS = 6000
#: maximum number of aliases listed per term
MOST_WRITTEN = 6


@dataclass(frozen=True)
class Share:
    """A term beyond the model and the bias that one unit of it adds to the coefficient of a model term.

    If either term has several columns, `share` is the largest cosine between their spaces and has no sign
    (`signed` is False). `exact`: the runs do not separate the two terms.
    """

    rival: str
    share: float
    exact: bool = False
    signed: bool = True

    @property
    def text(self) -> str:
        """`+A:B`, `-0.33 A:B`; no sign if unsigned."""
        sign = ("+" if self.share > 0 else "-") if self.signed else ""
        if self.exact and abs(abs(self.share) - 1) < LEAST_SHARE:
            return f"{sign}{self.rival}"
        return f"{sign}{abs(self.share):.2g} {self.rival}"


def shares(base: Values, terms: Sequence[Named], others: Sequence[Named]) -> dict[str, list[Share]]:
    """Shares of the `others` in each term: exact ones first, then in descending order.

    `base`: runs × columns of the mean and the blocks. Terms without an estimate are omitted.
    """
    if not terms or not others:
        return {}
    columns = [np.asarray(c, dtype=float) for _, c in terms]
    if all(c.shape[1] == 1 for c in (*columns, *(c for _, c in others))):
        return _single(base, terms, others)
    outside = np.hstack([c for _, c in others])
    ends = np.cumsum([0, *(c.shape[1] for _, c in others)])
    centred = outside - _projected(_basis(base), outside)
    by_term: dict[str, list[Share]] = {}
    for at, (name, own) in enumerate(zip([n for n, _ in terms], columns, strict=True)):
        if not np.any(own):
            continue
        beside = _basis(np.hstack([base, *(c for i, c in enumerate(columns) if i != at)]))
        rest = own - _projected(beside, own)
        if float(np.linalg.norm(rest)) < 1e-8 * float(np.linalg.norm(own)):
            continue
        alone = own - _projected(_basis(base), own)
        every = _of_single(rest, alone, outside, centred, ends)
        for j in np.flatnonzero(np.diff(ends) > 1).tolist():
            every[j] = _share(rest, alone, outside, centred, ends[j : j + 2])
        named_shares = [
            replace(share, rival=others[j][0])
            for j, share in sorted(every.items())
            if share is not None
        ]
        by_term[name] = sorted(named_shares, key=lambda s: (not s.exact, -round(abs(s.share), 9)))
    return by_term


def _single(
    base: Values, terms: Sequence[Named], others: Sequence[Named]
) -> dict[str, list[Share]]:
    """`shares` for terms of one column each: rows of the alias matrix."""
    own, outside = np.hstack([c for _, c in terms]), np.hstack([c for _, c in others])
    x = np.hstack([base, own])
    inverse = np.linalg.pinv(x)
    estimable = np.isclose((inverse @ x).diagonal(), 1.0, atol=1e-6)[base.shape[1] :]
    matrix = (inverse @ outside)[base.shape[1] :]
    mean = _basis(base)
    centred_own, centred = own - _projected(mean, own), outside - _projected(mean, outside)
    sizes = np.outer(np.linalg.norm(centred_own, axis=0), np.linalg.norm(centred, axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = (
            np.where(sizes > 1e-9, np.abs(centred_own.T @ centred) / sizes, 0.0) > 1 - LEAST_SHARE
        )
    there = np.linalg.norm(centred, axis=0) > 1e-8 * np.linalg.norm(outside, axis=0)
    by_term: dict[str, list[Share]] = {}
    for i, (name, _) in enumerate(terms):
        if not estimable[i]:
            continue
        shares_of_term = [
            Share(others[int(j)][0], float(matrix[i, j]), bool(exact[i, j]))
            for j in np.flatnonzero(there & (np.abs(matrix[i]) > LEAST_SHARE))
        ]
        by_term[name] = sorted(shares_of_term, key=lambda s: (not s.exact, -round(abs(s.share), 9)))
    return by_term


def _of_single(
    rest: Values, alone: Values, outside: Values, centred: Values, ends: Values
) -> dict[int, Share | None]:
    """`_share` of each other term of one column, by its index, together: there may be thousands."""
    single = np.flatnonzero(np.diff(ends) == 1)
    its, z = centred[:, ends[single]], outside[:, ends[single]]
    sizes = np.linalg.norm(its, axis=0)
    there = sizes >= 1e-8 * np.maximum(np.linalg.norm(z, axis=0), 1e-300)
    unit = its / np.where(sizes > 0, sizes, 1.0)
    exact = np.linalg.norm(_basis(alone).T @ unit, axis=0) > 1 - LEAST_SHARE
    signed = rest.shape[1] == 1
    if signed:
        values = (rest[:, 0] @ z) / float(rest[:, 0] @ rest[:, 0])
    else:
        values = np.linalg.norm(_basis(rest).T @ unit, axis=0)
    there &= np.abs(values) > LEAST_SHARE
    return {
        int(j): Share("", float(value), bool(is_exact), signed)
        for j, value, is_exact in zip(single[there], values[there], exact[there], strict=True)
    }


def _share(
    rest: Values, alone: Values, outside: Values, centred: Values, ends: Values
) -> Share | None:
    """Share of one other term of several columns, without its name: `rest` is the term adjusted for the
    model, `alone` adjusted for the mean."""
    where = slice(int(ends[0]), int(ends[1]))
    its, z = centred[:, where], outside[:, where]
    if float(np.linalg.norm(its)) < 1e-8 * max(float(np.linalg.norm(z)), 1e-300):
        return None
    exact = _cosine(alone, its) > 1 - LEAST_SHARE
    value = _cosine(rest, its)
    return Share("", value, exact, signed=False) if value > LEAST_SHARE else None


def _cosine(one: Values, other: Values) -> float:
    """The cosine of the smallest angle between two spaces of columns."""
    basis_one, basis_other = _basis(one), _basis(other)
    if not basis_one.shape[1] or not basis_other.shape[1]:
        return 0.0
    if basis_one.shape[1] == basis_other.shape[1] == 1:
        return abs(float(basis_one[:, 0] @ basis_other[:, 0]))
    return float(np.linalg.norm(basis_one.T @ basis_other, 2))


def _basis(columns: Values) -> Values:
    """An orthonormal basis of the columns."""
    if columns.shape[1] == 1:
        length = float(np.linalg.norm(columns))
        one: Values = columns / length if length else columns[:, :0]
        return one
    q, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    basis: Values = q[:, sizes > 1e-9 * max(float(sizes[0]), 1e-300)]
    return basis


def _projected(basis: Values, columns: Values) -> Values:
    return np.asarray(basis @ (basis.T @ columns))


def beyond(factors: Sequence[Factor], model: Model, numbers: Numbers) -> list[Named]:
    """Terms one order beyond a model, over runs × factors of level numbers: products of two factors, or of
    three if the model has those of two.

    In a model with squares, numeric factors contribute their linear contrasts. If the three-factor
    products exceed `MOST_COLUMNS` columns, they are omitted.
    """
    curved = model in ("squares", "quadratic")
    coded = [_coded(f, numbers[:, j], linear=curved) for j, f in enumerate(factors)]
    size = 2 if model in ("main", "squares") else 3
    terms_beyond: list[Named] = []
    total = 0
    for chosen in itertools.combinations(range(len(factors)), size):
        columns = coded[chosen[0]]
        for j in chosen[1:]:
            columns = products(columns, coded[j])
        total += columns.shape[1]
        if total > MOST_COLUMNS:
            return []
        terms_beyond.append((":".join(factors[j].name for j in chosen), columns))
    return terms_beyond


def _coded(factor: Factor, of_factor: Numbers, *, linear: bool) -> Values:
    levels, values = len(factor.levels), numeric(factor)
    if levels == 2:
        two: Values = 2.0 * of_factor[:, None] - 1.0
        return two
    if linear and values is not None:
        line = np.asarray(values, dtype=float)[of_factor]
        middle, half = (max(values) + min(values)) / 2, (max(values) - min(values)) / 2
        straight: Values = ((line - middle) / half)[:, None]
        return straight
    many: Values = effect_coding(levels)[of_factor]
    return many


def of_treatments(
    factors: Sequence[Factor], model: Model, numbers: Numbers
) -> dict[str, list[Share]]:
    """Shares by model term, for treatments that are run equally often."""
    ones: Values = np.ones((len(numbers), 1))
    return shares(ones, models.terms(factors, model, numbers), beyond(factors, model, numbers))
