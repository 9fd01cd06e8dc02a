"""The fit of a designed experiment: least squares of mean, terms and blocks, with the error of each term.

Lost runs are handled by least squares on the same columns, blocks summing to zero, each term adjusted for
all others; nothing is imputed. If all runs of a treatment are lost, a term has an estimate only if it is
not confounded with a term that the complete design separates from it. A full design may still be fitted
without its longest interactions, which are then `ASSUMED`. A full design that lost all runs of a level is
analysed as a design of the remaining levels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import linalg

from penstock.analyse.rounding import without_rounding
from penstock.analyse.statistics import strata
from penstock.analyse.statistics.bias import ends, reach, used
from penstock.analyse.statistics.designed import designed_part, designed_plan
from penstock.analyse.statistics.scale import BOX_COX, LINEAR, power_beside, scaled, scaled_ends
from penstock.analyse.statistics.spread import Unequal, unequal_spread
from penstock.analyse.statistics.strata import RUN
from penstock.analyse.statistics.terms import Design, Numbers, Term, Values, design_of, sum_to_zero
from penstock.design.planned import Plan
from penstock.errors import PenstockError

#: methods of terms without an estimate
NOT_ESTIMABLE = "not estimable"
ASSUMED = "assumed 0"
#: interactions of at most this many factors are never assumed to be 0
_NEVER_ASSUMED = 2
#: rows × columns² above which the fit uses the normal equations
_MANY = 4e9
#: maximum rows × columns² for variances of unequal levels
_MOST_UNEQUAL = 1e8
#: smallest eigenvalue of the columns' correlations at which they count as independent
_INDEPENDENT = 1e-9


@dataclass(frozen=True)
class Fit:
    """Least squares of mean, terms and blocks, with the error of each term."""

    design: Design
    y: Values
    coefficients: Values
    covariance: Values  # in units of σ²
    residuals: Values
    #: columns of each term in `coefficients`; the mean is first, blocks last
    where: list[slice]
    blocks: slice
    #: reason why a term has no estimate: empty, `NOT_ESTIMABLE` or `ASSUMED`
    without: list[str]
    #: True if every term of the design has an estimate
    complete: bool
    #: stratum of each term, and the error of each stratum
    of_term: list[str]
    errors: dict[str, strata.Stratum]
    groups: dict[str, Numbers]
    #: the fit with random settings for unbalanced data
    mixed: strata.Mixed | None = None
    #: mask of the `coefficients` that are in `mixed`
    used: Values | None = None
    #: block of each run, and its sum-to-zero columns (runs × columns)
    block: Numbers | None = None
    block_columns: Values = field(default_factory=lambda: np.empty((0, 0)))
    #: maximum distance of each run's undisturbed value below and above `y`; None without degraded runs
    bounds: tuple[Values, Values] | None = None

    @property
    def df_error(self) -> int:
        """Residual degrees of freedom."""
        return sum(error.df for error in self.errors.values())

    @property
    def fitted(self) -> Values:
        """Fitted response of each run."""
        return self.y - self.residuals

    @cached_property
    def columns(self) -> Values:
        """Columns of the mean, terms and blocks with an estimate, one row per run."""
        columns = self.design.columns(self.design.terms)
        x = np.hstack([columns[self.design.of_run], self.block_columns])
        assert self.used is not None
        return np.asarray(x[:, self.used])

    @cached_property
    def unequal(self) -> Unequal | None:
        """Variances of coefficients for unequal spread; None without a hint of it."""
        work = len(self.y) * float(len(self.coefficients)) ** 2
        if self.groups or self.mixed is not None or work > _MOST_UNEQUAL:
            return None
        levels = self.design.levels[self.design.of_run].T
        return unequal_spread(self.columns, self.residuals, list(levels))

    @cached_property
    def weights(self) -> Values:
        """Weight of each run in each coefficient; NaN in coefficients without an estimate."""
        x = self.columns
        assert self.used is not None
        weights = np.full((len(self.used), len(self.y)), np.nan)
        if self.mixed is not None and self.mixed.run_variance > 0:
            (group,) = self.groups.values()
            theta = self.mixed.setting_variance / self.mixed.run_variance
            whitened = strata.whitened_by(theta, x, group)
            whitening = strata.whitened_by(theta, np.eye(len(self.y)), group)
            weights[self.used] = np.linalg.pinv(whitened) @ whitening
        else:
            weights[self.used] = np.linalg.pinv(x)
        return weights

    def bias(self, i: int, sums: Values | None = None) -> tuple[Values, Values] | None:
        """Largest distance of the coefficients of a term, or weighted `sums` of them, below and above
        their estimates under the worst correction of degraded runs; None without degraded runs."""
        if self.bounds is None or self.without[i]:
            return None
        weights = self.weights[self.where[i]]
        return reach(weights if sums is None else sums @ weights, *self.bounds)


def fitted(runs: pd.DataFrame, plan: Plan, response: str, scale: str = LINEAR) -> Fit:
    """The fit of a response: least squares with the strata of the order. PenstockError as in `effects`."""
    data = usable(runs, plan, response)
    if plan.stages:
        plan = designed_plan(plan)
    design, block = design_of(data, plan), _blocks(data, plan)
    values = pd.to_numeric(data[response]).to_numpy(dtype=np.float64)
    power = _power(values, design, block) if scale == BOX_COX else None
    fit = _fit(scaled(values, scale, power), design, block, strata.groups_of(data, plan), plan)
    between = ends(data, response)
    if between is None:
        return fit
    return replace(fit, bounds=scaled_ends(values, *between, scale, power))


def by_terms(fit: Fit, terms: list[Term], plan: Plan) -> Fit:
    """The fit of the same runs with other terms over their treatments."""
    fit_of_terms = _fit(fit.y, replace(fit.design, terms=terms), fit.block, fit.groups, plan)
    return replace(fit_of_terms, bounds=fit.bounds)


def _power(values: Values, design: Design, block: Numbers | None) -> float:
    """Box-Cox power for terms and blocks; for main effects if all terms are too many or leave no residual."""
    blocks = np.empty((len(values), 0)) if block is None else sum_to_zero(block)
    main = [t for t in design.terms if t.size == 1]
    many = len(values) * float(sum(t.width for t in design.terms)) ** 2 > _MANY
    for terms in [main] if many else [design.terms, main]:
        basis = _start(np.hstack([blocks, design.columns(terms)[design.of_run]]))
        if basis.shape[1] < len(values):
            return power_beside(values, basis)
    return power_beside(values, np.ones((len(values), 1)))


def usable(runs: pd.DataFrame, plan: Plan, response: str) -> pd.DataFrame:
    """The valid runs with a finite response; in a staged study those of its designed stages, with their
    block as `replicate`. PenstockError if fewer than two remain."""
    needed = [*(f.name for f in plan.factors), response]
    missing = [name for name in needed if name not in runs.columns]
    if missing:
        raise PenstockError(f"the runs have no column {', '.join(missing)}")
    data = runs
    if plan.stages:
        data, plan = designed_part(runs, plan)
    good = used(data, response).to_numpy(bool, copy=True)
    if "source" in data.columns:  # predictions are not runs
        good &= (data["source"].isna() | data["source"].isin(["", "measured"])).to_numpy(bool)
    rows: pd.DataFrame = data.loc[good]
    if len(rows) < 2:
        raise PenstockError(
            f"{len(rows)} valid run{'s' * (len(rows) != 1)} with {response}: no effects"
        )
    return rows


def _blocks(data: pd.DataFrame, plan: Plan) -> Numbers | None:
    """The block of each run, from 0; None without blocks."""
    blocks = {row.run_id: row.block for row in plan.rows}
    passes = plan.order == "interleaved"
    if not (plan.replicates > 1 if passes else len(set(blocks.values())) > 1):
        return None
    if passes and "replicate" in data.columns:
        labels = data["replicate"].to_numpy()
    elif "run_id" in data.columns:
        labels = data["run_id"].map(blocks).to_numpy()
    else:
        raise PenstockError("the runs have no column replicate")
    return np.asarray(np.unique(labels, return_inverse=True)[1])


def _fit(
    y: Values, design: Design, block: Numbers | None, groups: dict[str, Numbers], plan: Plan
) -> Fit:
    """Fit mean, terms and blocks; a term whose columns depend on earlier ones is omitted.

    Blocks enter first (they were executed), then terms from main effects upward. Omitted terms change no
    term that has an estimate.
    """
    cells = Cells.of(design.of_run, block)
    blocks = cells.blocks
    terms = design.terms
    without, complete = _not_estimable(
        terms, cells, may_assume=not plan.fraction and not plan.between_blocks
    )
    used_terms = terms if complete else _estimable_terms(terms, without, cells)
    widths = [term.width for term in used_terms]
    ends = 1 + np.cumsum([0, *widths])
    where = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    of_blocks = slice(int(ends[-1]), int(ends[-1]) + blocks.shape[1])
    of_treatment = design.columns(used_terms)
    used = np.concatenate([np.any(of_treatment != 0, axis=0), np.ones(blocks.shape[1], dtype=bool)])
    solution = np.full(len(used), np.nan)
    covariance = np.full((len(used), len(used)), np.nan)
    of_treatment = of_treatment[:, used[: of_treatment.shape[1]]]
    by_run: Values | None = None
    if len(y) * float(used.sum()) ** 2 <= _MANY or groups:
        by_run = np.hstack([of_treatment[design.of_run], blocks])
        # by QR, not by inv(X'X): the condition of X, not its square, bounds the error
        q, r = np.linalg.qr(by_run)
        solution[used] = linalg.solve_triangular(r, q.T @ y)
        inverse = linalg.solve_triangular(r, np.eye(len(r)))
        covariance[np.ix_(used, used)] = inverse @ inverse.T
        residuals = y - by_run @ solution[used]
    else:
        middle = float(y.mean())
        gram, product = cells.products(of_treatment, blocks, y - middle)
        factor = linalg.cho_factor(gram)
        coefficients = linalg.cho_solve(factor, product)
        covariance[np.ix_(used, used)] = linalg.cho_solve(factor, np.eye(len(gram)))
        kinds = of_treatment.shape[1]
        predicted = (of_treatment @ coefficients[:kinds])[design.of_run] + blocks @ coefficients[
            kinds:
        ]
        residuals = y - middle - predicted
        coefficients[0] += middle
        solution[used] = coefficients
    solution, residuals = without_rounding(y, solution, residuals)
    fit = Fit(
        design, y, solution, covariance, residuals, where, of_blocks, without, complete,
        [RUN] * len(terms), {}, groups, used=used, block=block,
        block_columns=blocks,
    )  # fmt: skip
    return _with_errors(fit, used_terms, by_run)


def _with_errors(fit: Fit, terms: list[Term], by_run: Values | None) -> Fit:
    """The fit with the stratum of each term and the errors."""
    assert fit.used is not None
    df = len(fit.y) - int(fit.used.sum())
    error = float(fit.residuals @ fit.residuals) if df > 0 else 0.0
    if not fit.groups or by_run is None:
        return replace(fit, errors={RUN: strata.Stratum(RUN, error, df)})
    of_run = fit.design.of_run
    strata_of_terms = [
        strata.stratum_of(t.columns[of_run], fit.groups) if np.any(t.columns) else RUN
        for t in terms
    ]
    level = all(strata.equal_sizes(group) for group in fit.groups.values())
    of_column = [strata.ALL]
    for term, name in zip(terms, strata_of_terms, strict=True):
        of_column += [name or RUN] * int(np.any(term.columns, axis=0).sum())
    of_column += [strata.ALL] * (fit.blocks.stop - fit.blocks.start)
    if level and None not in strata_of_terms and not fit.without.count(ASSUMED):
        errors = strata.error_strata(fit.residuals, by_run, of_column, fit.groups)
        return replace(fit, of_term=[name or RUN for name in strata_of_terms], errors=errors)
    return _out_of_balance(fit, terms, by_run)


def _out_of_balance(fit: Fit, terms: list[Term], by_run: Values) -> Fit:
    """The fit with random settings; without errors if there is more than one kind of setting."""
    (name, group), *others = fit.groups.items()
    first = np.unique(group, return_index=True)[1]
    constant = [
        i
        for i in range(by_run.shape[1])
        if np.allclose(by_run[:, i], strata.means_of(by_run[:, i], group), atol=1e-9)
    ]
    df = len(first) - int(np.linalg.matrix_rank(by_run[first][:, constant]))
    df_run = max(len(fit.y) - by_run.shape[1] - df, 0)
    mean = strata.means_of(fit.residuals, group)
    between = float(mean @ mean) if df > 0 else 0.0
    within = max(float(fit.residuals @ fit.residuals) - between, 0.0) if df_run else 0.0
    # a term that varies within settings has at most these degrees of freedom
    of_run = fit.design.of_run
    of_term = [
        RUN
        if np.allclose(strata.means_of(t.columns[of_run], group), 0, atol=1e-9)
        or not _between(t.columns[of_run], group)
        else name
        for t in terms
    ]
    errors = {
        name: strata.Stratum(name, between, df if not others else 0),
        RUN: strata.Stratum(RUN, within, df_run if not others else 0),
    }
    balanced = replace(fit, of_term=of_term, errors=errors)
    if others or df < 1:
        return balanced
    try:
        return replace(balanced, mixed=strata.mixed(fit.y, by_run, group))
    except PenstockError:
        return balanced


def _between(columns: Values, group: Numbers) -> bool:
    """True if a term's columns are constant within every setting."""
    return bool(np.allclose(columns, strata.means_of(columns, group), atol=1e-9))


@dataclass(frozen=True)
class Cells:
    """Distinct combinations of treatment and block that were run, and their counts."""

    treatment: Numbers
    block: Numbers
    count: Numbers
    #: block columns of each block
    code: Values
    of_run: Numbers
    block_of_run: Numbers

    @classmethod
    def of(cls, of_run: Numbers, label: Numbers | None) -> Cells:
        """The cells of the treatment and the block of each run."""
        if label is None:
            code: Values = np.empty((1, 0))
            label = np.zeros(len(of_run), dtype=np.int64)
        else:
            code = sum_to_zero(np.arange(int(label.max()) + 1))
        together = of_run * len(code) + label
        codes, count = np.unique(together, return_counts=True)
        return cls(codes // len(code), codes % len(code), count, code, of_run, label)

    @property
    def blocks(self) -> Values:
        """The block columns of each run."""
        return np.asarray(self.code[self.block_of_run])

    def products(
        self, columns: Values, blocks: Values, y: Values | None = None
    ) -> tuple[Values, Values]:
        """X'X of the columns by treatment followed by the block columns, and X'y."""
        kinds = len(columns)
        table = np.zeros((kinds, len(self.code)))
        table[self.treatment, self.block] = self.count
        upper = columns.T @ (table.sum(axis=1)[:, None] * columns)
        cross = columns.T @ (table @ self.code)
        lower = self.code.T @ (table.sum(axis=0)[:, None] * self.code)
        gram = np.block([[upper, cross], [cross.T, lower]])
        if y is None:
            return gram, np.empty(0)
        by_kind = np.bincount(self.of_run, weights=y, minlength=kinds)
        return gram, np.concatenate([columns.T @ by_kind, blocks.T @ y])

    def rows(self, terms: Sequence[Term]) -> tuple[Values, list[Values]]:
        """Block columns of each cell, and the columns of each term."""
        return self.code[self.block], [t.columns[self.treatment] for t in terms]


def _estimable_terms(terms: list[Term], without: list[str], cells: Cells) -> list[Term]:
    """The terms, with zeros for those that are assumed to be 0 or depend on earlier ones."""
    estimable = []
    blocks, by_cell = cells.rows(terms)
    basis = _start(blocks)
    for term, columns, method in zip(terms, by_cell, without, strict=True):
        larger, new = _extend(basis, columns)
        good = new == term.width and method != ASSUMED
        basis = larger if good else basis
        estimable.append(term if good else replace(term, columns=np.zeros_like(term.columns)))
    return estimable


def _start(blocks: Values) -> Values:
    """Basis of mean and blocks."""
    basis, _ = _extend(np.empty((len(blocks), 0)), np.ones((len(blocks), 1)))
    return _extend(basis, blocks)[0]


def _not_estimable(terms: list[Term], cells: Cells, *, may_assume: bool) -> tuple[list[str], bool]:
    """Reasons why terms have no estimate (`NOT_ESTIMABLE`, `ASSUMED`, else empty); True if all have one."""
    there = [bool(np.any(term.columns)) for term in terms]
    gone = ["" if t else NOT_ESTIMABLE for t in there]
    if _independent([t for t, present in zip(terms, there, strict=True) if present], cells):
        return gone, all(there)
    sizes = [term.size for term in terms]
    for most in range(max(sizes) - 1, _NEVER_ASSUMED - 1, -1) if may_assume else ():
        short = [
            t for t, s, present in zip(terms, sizes, there, strict=True) if present and s <= most
        ]
        if _independent(short, cells):
            long = [ASSUMED if s > most and not g else g for g, s in zip(gone, sizes, strict=True)]
            return long, False
    return _mixed_in(terms, cells), False


def _independent(terms: list[Term], cells: Cells) -> bool:
    """True if the runs determine these terms, mean and blocks jointly."""
    columns = np.hstack([np.ones((int(cells.treatment.max()) + 1, 1)), *(t.columns for t in terms)])
    if columns.shape[1] + cells.code.shape[1] > len(cells.treatment):
        return False
    gram, _ = cells.products(columns, cells.code)
    size = np.sqrt(np.diag(gram))
    if not np.all(size > 0):
        return False
    gram /= np.outer(size, size)
    return _least_bound(gram, columns.shape[1]) > _INDEPENDENT or (
        float(np.linalg.eigvalsh(gram)[0]) > _INDEPENDENT
    )


def _least_bound(gram: Values, first: int) -> float:
    """A lower bound of the eigenvalues of a symmetric matrix with unit diagonal; cheap if its `first` columns
    are nearly orthogonal to each other and to the others.

    Gershgorin's circles bound those of the first columns, Weyl's inequality the coupling with the others.
    """
    most = float((np.abs(gram[:first, :first]).sum(axis=1) - 1).max(initial=0.0))
    coupling = float(np.linalg.norm(gram[:first, first:]))
    if most + coupling >= 1:
        return -math.inf
    others = gram[first:, first:]
    least = float(np.linalg.eigvalsh(others)[0]) if len(others) else 1.0
    return min(1 - most, least) - coupling


def _mixed_in(terms: list[Term], cells: Cells) -> list[str]:
    """`NOT_ESTIMABLE` for confounded terms: the model's null space intersects their columns."""
    blocks, by_cell = cells.rows(terms)
    x = np.hstack([np.ones((len(blocks), 1)), blocks, *by_cell])
    values, rows = np.linalg.svd(x, full_matrices=True)[1:]
    rank = int(np.sum(values > 1e-8 * values[0]))
    touched = np.any(np.abs(rows[rank:]) > 1e-8, axis=0)
    methods, at = [], 1 + blocks.shape[1]
    for term in terms:
        methods.append(NOT_ESTIMABLE if touched[at : at + term.width].any() else "")
        at += term.width
    return methods


def _extend(basis: Values, columns: Values) -> tuple[Values, int]:
    """An orthonormal basis extended by `columns`, and the number of independent new columns."""
    new = 0
    for column in columns.T:
        norm = float(np.linalg.norm(column))
        rest = column - basis @ (basis.T @ column)
        rest = rest - basis @ (basis.T @ rest)  # twice is enough (Kahan; Parlett 1980)
        norm_rest = float(np.linalg.norm(rest))
        if norm > 0 and norm_rest > 1e-8 * norm:
            basis = np.column_stack([basis, rest / norm_rest])
            new += 1
    return basis, new


def sum_of_squares(fit: Fit, where: slice) -> float:
    """Type III: increase of the residual sum of squares without these columns."""
    q, cov = fit.coefficients[where], fit.covariance[where, where]
    return float(q @ np.linalg.solve(cov, q))


def estimate(fit: Fit, i: int) -> tuple[Values, Values, float]:
    """Coefficients of a term, their covariance and its degrees of freedom; NaN without an error term."""
    where, error = fit.where[i], fit.errors[fit.of_term[i]]
    if fit.mixed is not None:
        assert fit.used is not None
        at = int(fit.used[: where.start].sum())
        inside = slice(at, at + where.stop - where.start)
        most = fit.errors[fit.of_term[i]].df
        return (
            fit.mixed.coefficients[inside],
            fit.mixed.covariance[inside, inside],
            fit.mixed.df(inside, most),
        )
    covariance, df = fit.covariance[where, where] * error.mean_square, float(error.df)
    if where.stop - where.start == 1 and df > 0 and fit.unequal is not None:
        variance, free = fit.unequal.of(fit.weights[where.start])
        if variance > covariance[0, 0] * (1 + 1e-9):
            covariance, df = np.array([[variance]]), min(free, df)
    return fit.coefficients[where], covariance, df
