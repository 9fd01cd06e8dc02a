"""Terms beyond the model of an irregular design: their share in the estimates, and the smallest sets of terms
that explain the runs as well as the model does.

The shares are the alias matrix of the analysed runs (`design/alias_matrix.py`), so that lost and excluded
runs are reflected. Explanations are searched among the terms of the model and the interactions of one
order more; an interaction enters only with one of its factors (weak heredity; Hamada & Wu, Journal of
Quality Technology 24, 1992): smaller sets first, the most promising of each size. With replicates a set
explains the runs if pure error leaves no lack of fit at 5 %; without, if Akaike's corrected criterion is
within 2 of the smallest (Burnham & Anderson 2002).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.statistics.fit import ASSUMED, Fit
from penstock.analyse.statistics.terms import Values
from penstock.design.alias_matrix import Named, Share, beyond, shares
from penstock.design.model import terms
from penstock.design.planned import Plan
from penstock.text import square_of

#: level of the lack-of-fit test
LEVEL = 0.05
#: minimum degrees of freedom of pure error for the lack-of-fit test
LEAST_PURE = 3
#: maximum numbers of sets retained per size, and of terms in a set
_MOST_SETS, _MOST_TERMS = 40, 8
#: difference of Akaike's criterion within which sets are equivalent
_AS_GOOD = 2.0
_TINY = 1e-10


def shares_of(fit: Fit, plan: Plan, names: Sequence[str] | None = None) -> dict[str, list[Share]]:
    """The alias matrix of the runs of a fit: for each term with an estimate, its aliases without one.

    `names`: the terms that have an estimate, if they differ from the fit's.
    """
    base, inside, outside = _columns(fit, plan, names)
    return shares(base, inside, outside)


def with_aliases(table: pd.DataFrame, fit: Fit, plan: Plan) -> pd.DataFrame:
    """The effects table with the partial aliases of each term in `aliases`; unchanged for a regular design
    with runs of every treatment."""
    if plan.model is None and ASSUMED not in fit.without:
        return table
    rivals = shares_of(fit, plan)
    aliases = [
        ", ".join([*filter(None, [regular]), *(share.text for share in rivals.get(term, ()))])
        for term, regular in zip(table["term"].tolist(), table["aliases"].tolist(), strict=True)
    ]
    return table.assign(aliases=np.array(aliases, dtype=object))


def _columns(
    fit: Fit, plan: Plan, names: Sequence[str] | None = None
) -> tuple[Values, list[Named], list[Named]]:
    """Columns of mean and blocks, of the terms with an estimate, and of those beyond, by runs."""
    of_run = fit.design.of_run
    base = np.hstack([np.ones((len(of_run), 1)), fit.block_columns])
    if names is not None:
        levels = fit.design.levels.astype(np.int64)
        every = [
            (n, c[of_run])
            for model in ("main", "pairs")
            for n, c in [*terms(plan.factors, "main", levels), *beyond(plan.factors, model, levels)]
        ]
        by_name = dict(every)
        inside = [(n, by_name[n]) for n in names if n in by_name]
        return base, inside, [(n, c) for n, c in by_name.items() if n not in names]
    inside, outside = list[Named](), list[Named]()
    for term, without in zip(fit.design.terms, fit.without, strict=True):
        if not np.any(term.columns):
            continue
        (outside if without else inside).append((term.name, term.columns[of_run]))
    if plan.model is not None:
        levels = fit.design.levels.astype(np.int64)
        outside += [(n, c[of_run]) for n, c in beyond(plan.factors, plan.model, levels)]
    return base, inside, outside


@dataclass(frozen=True)
class Explained:
    """The smallest `sets` of terms that explain the runs; `main_alone`: True if the model's terms do.

    `pure`: by pure error, else by Akaike's criterion.
    """

    sets: list[tuple[str, ...]] = field(default_factory=list)
    main_alone: bool = True
    pure: bool = False

    @property
    def terms(self) -> set[str]:
        """The terms of any of the sets."""
        return {t for one in self.sets for t in one}


@dataclass
class _Set:
    """A set of terms, an orthonormal basis of its columns with mean and blocks, and its residual."""

    names: tuple[str, ...]
    basis: Values
    rest: float


def explained(fit: Fit, plan: Plan, names: Sequence[str] | None = None) -> Explained:
    """The sets of terms that explain the runs of a fit; none if nothing is significant or no small set does.

    `names`: as in `shares_of`; interactions of three factors are then omitted.
    """
    base, inside, outside = _columns(fit, plan, names)
    if names is not None:
        outside = [one for one in outside if one[0].count(":") < 2]
    y = fit.y
    kinds = len(fit.design.levels)
    treatments: Values = np.eye(kinds)[fit.design.of_run]
    full = _basis(np.hstack([base, treatments]))
    pure_ss = float(y @ y - (full.T @ y) @ (full.T @ y))
    pure_df = len(y) - full.shape[1]
    pure = pure_df >= LEAST_PURE and pure_ss > _TINY * float(y @ y)
    most = min(_MOST_TERMS, kinds - 2 if pure else (kinds - 1) // 2)
    start = _Set((), _basis(base), 0.0)
    start.rest = float(y @ y - (start.basis.T @ y) @ (start.basis.T @ y))
    model = _basis(np.hstack([base, *(c for _, c in inside)]))
    unexplained = float(y @ y - (model.T @ y) @ (model.T @ y))
    within = {n for n, _ in inside}

    def fits(rest: float, columns: int) -> bool:
        lack = full.shape[1] - columns
        if lack < 1:
            return True
        ratio = max(rest - pure_ss, 0.0) / lack / (pure_ss / pure_df)
        return bool(stats.f.sf(ratio, lack, pure_df) > LEVEL)

    alone = fits(unexplained, model.shape[1]) if pure else True
    dictionary = [*inside, *outside]
    place = {name: at for at, (name, _) in enumerate(dictionary)}

    def names_of(sets: Sequence[_Set]) -> list[tuple[str, ...]]:
        # a canonical order, independent of the order of selection
        return [tuple(sorted(one.names, key=place.__getitem__)) for one in sets]

    beam, scored = [start], list[tuple[float, _Set]]()
    if pure and fits(start.rest, start.basis.shape[1]):
        return Explained([], alone, pure)
    if not pure:
        scored.append((_criterion(start, len(y)), start))
    for _ in range(most):
        beam = _larger(beam, dictionary, within, y)
        if not beam:
            break
        if pure:
            good = [s for s in beam if fits(s.rest, s.basis.shape[1])]
            if good:
                return Explained(names_of(good), alone, pure)
        else:
            scored += [(_criterion(s, len(y)), s) for s in beam]
    if pure or not scored:
        return Explained([], alone, pure)
    best = min(score for score, _ in scored)
    near = [s for score, s in scored if score <= best + _AS_GOOD and s.names]
    fewest = min((len(s.names) for s in near), default=0)
    return Explained(names_of([s for s in near if len(s.names) == fewest]), alone, pure)


def _criterion(one: _Set, n: int) -> float:
    """Akaike's criterion with the small-sample correction."""
    k = one.basis.shape[1] + 1
    if n - k - 1 <= 0:
        return math.inf
    spread = max(one.rest / n, 1e-300)
    return float(n * math.log(spread) + 2 * k + 2 * k * (k + 1) / (n - k - 1))


def _larger(
    beam: Sequence[_Set], dictionary: Sequence[Named], inside: set[str], y: Values
) -> list[_Set]:
    """The most promising sets with one more term, without duplicates."""
    candidates: dict[frozenset[str], tuple[float, _Set, int]] = {}
    single = [i for i, (_, c) in enumerate(dictionary) if c.shape[1] == 1]
    stacked = np.hstack([dictionary[i][1] for i in single]) if single else np.empty((len(y), 0))
    sizes = np.einsum("ij,ij->j", stacked, stacked)
    for one in beam:
        rest_y = y - one.basis @ (one.basis.T @ y)
        gains = np.full(len(dictionary), -1.0)
        if single:
            rest = stacked - one.basis @ (one.basis.T @ stacked)
            sizes_rest = np.einsum("ij,ij->j", rest, rest)
            independent = sizes_rest > 1e-9 * sizes
            gains[single] = np.where(
                independent, (rest.T @ rest_y) ** 2 / np.where(independent, sizes_rest, 1), -1
            )
        for i, (name, columns) in enumerate(dictionary):
            if name in one.names or not _may_enter(name, one.names, inside):
                continue
            if columns.shape[1] > 1:
                new = _basis(columns - one.basis @ (one.basis.T @ columns), float(len(columns)))
                gains[i] = float(((new.T @ rest_y) ** 2).sum()) if new.shape[1] else -1
            if gains[i] <= 0:
                continue
            key = frozenset((*one.names, name))
            if key not in candidates or one.rest - gains[i] < candidates[key][0]:
                candidates[key] = (one.rest - gains[i], one, i)
    best = sorted(candidates.values(), key=lambda item: item[0])[:_MOST_SETS]
    sets = []
    for rest_squares, one, i in best:
        name, columns = dictionary[i]
        new = _basis(columns - one.basis @ (one.basis.T @ columns), float(len(columns)))
        sets.append(_Set((*one.names, name), np.hstack([one.basis, new]), max(rest_squares, 0.0)))
    return sets


def _may_enter(name: str, chosen: Sequence[str], inside: set[str]) -> bool:
    """True if a term may follow the chosen ones: a main effect, or a product with one of its factors."""
    parts = name.split(":")
    if len(parts) == 1:
        return True
    if square := square_of(name):
        return square in chosen or name in inside
    if len(parts) == 2:
        return any(p in chosen for p in parts)
    return any(set(c.split(":")) < set(parts) for c in chosen)


def _basis(columns: Values, size: float = 0.0) -> Values:
    """An orthonormal basis; `size`: norm relative to which smaller columns count as zero."""
    if not columns.shape[1]:
        return columns
    q, values, _ = np.linalg.svd(columns, full_matrices=False)
    least = 1e-9 * max(float(values[0]), math.sqrt(size))
    basis: Values = q[:, values > least]
    return basis
