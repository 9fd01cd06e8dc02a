"""Effects and interactions of a designed experiment: estimates, intervals, allocation of variation.

Model: y = q0 + Σ q_w x_w + e with x_w the product of the coded (−1, +1) columns of the factors in w. The
coefficient is q, the effect 2q: mean at the second level minus mean at the first. Where each replicate was a
complete shuffled pass, the pass is a block of the model and takes its degrees of freedom. Where a setting was
kept over several runs, each term is judged by the error of its own stratum (`strata.py`): which terms these
are follows from the order that was executed. Balanced data give
the textbook estimates (Jain 1991, chapters 17-19); lost runs are met by least squares on the same columns,
blocks summing to zero, each term adjusted for all others (type III; types I and II stand beside); nothing is
imputed.

Where all runs of a treatment are lost, a term has an estimate only if nothing that the whole design keeps
apart from it is mixed into it; no term has a share of the variation then, because shares would not add up. A
full design may still be fitted without its longest interactions: those are then `ASSUMED`. A full design that
lost all of a level is one of the levels that are left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import linalg, special, stats

from penstock.analyse import strata
from penstock.analyse.adjusted import benjamini_hochberg, holm
from penstock.analyse.scale import BOX_COX, LINEAR, LOG, power_beside, scaled
from penstock.analyse.significance import LENTH, together
from penstock.analyse.strata import RUN
from penstock.analyse.terms import Design, Numbers, Term, Values, design_of, numbers, sum_to_zero
from penstock.design.plan import Plan
from penstock.errors import PenstockError

__all__ = ["ASSUMED", "COLUMNS", "NOT_ESTIMABLE", "all_effects", "effects", "lenth", "numbers"]

COLUMNS = (
    "response",
    "term",
    "coefficient",
    "effect",
    "ci_low",
    "ci_high",
    "effect_ci_low",
    "effect_ci_high",
    "variation_share",
    "p_value",
    "aliases",
    "df",
    "sum_of_squares",
    "mean_square",
    "f_value",
    "p_holm",
    "p_bh",
    "standard_error",
    "df_error",
    "method",
    "n",
    "stratum",
    "variance",
    "sum_of_squares_1",
    "sum_of_squares_2",
    "correlations",
    "scale",
    "ratio",
    "ratio_ci_low",
    "ratio_ci_high",
)
#: methods of terms without an estimate
NOT_ESTIMABLE = "not estimable"
ASSUMED = "assumed 0"
_UNTOLD = "not estimable from the runs that are valid"
#: method of a term whose stratum has no degrees of freedom
NO_ERROR = "no error to judge by"
REML = "REML"
#: interactions of so many factors are never assumed to be 0
_NEVER_ASSUMED = 2
#: rows × columns² from which the fit goes by the products of columns, not by the columns
_MANY = 4e9
#: smallest eigenvalue of the columns' correlations from which they are independent
_INDEPENDENT = 1e-9
#: sums of squares of type II are worked out for up to so many terms of data out of balance
_MOST_TYPE_2 = 130


@dataclass(frozen=True)
class Fit:
    """Least squares of mean, terms and blocks, with the error of each term."""

    design: Design
    y: Values
    coefficients: Values
    covariance: Values  # without σ²
    residuals: Values
    #: columns of each term in `coefficients`; the mean is the first, blocks come last
    where: list[slice]
    blocks: slice
    #: how each term came to its estimate: empty, or `NOT_ESTIMABLE` or `ASSUMED`
    without: list[str]
    #: whether every term of the design has an estimate
    whole: bool
    #: stratum of each term, and the error of each stratum
    of_term: list[str]
    errors: dict[str, strata.Stratum]
    groups: dict[str, Numbers]
    #: the fit with random settings where data are out of balance
    mixed: strata.Mixed | None = None
    #: what of `coefficients` is in `mixed`
    used: Values | None = None
    #: block of each run, and its sum-to-zero columns (runs × columns)
    block: Numbers | None = None
    block_columns: Values = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def df_error(self) -> int:
        """Degrees of freedom that the model leaves."""
        return sum(error.df for error in self.errors.values())

    @property
    def fitted(self) -> Values:
        """The response as fitted, of each run."""
        return self.y - self.residuals


def effects(
    runs: pd.DataFrame,
    plan: Plan,
    response: str,
    confidence: float = 0.95,
    scale: str = LINEAR,
) -> pd.DataFrame:
    """The effects table of one response, one row per term, then `block` (if blocks are in the model), the
    error of settings that were kept (`whole_plot`, `strip`) and `residual`; columns in `COLUMNS`.

    `runs`: one row per run with a column per factor (level names), `replicate` or `run_id`, `valid` (runs
    that are not are left out) and the response. Shares are percent of the total variation about the mean, or
    of the sum of all parts where lost runs make that larger. On another `scale` (`scale.py`) coefficients,
    effects and intervals are of the transformed response; on that of logarithms `ratio` is the second level
    over the first.
    Without pure error the intervals are Lenth's (`method` says which; `confidence` then gives his margin
    ME). PenstockError if a column is missing or fewer than two runs are valid.
    """
    if plan.stages:
        from penstock.analyse.staged import staged_effects

        return staged_effects(
            runs,
            plan,
            response,
            confidence,
            lambda r, p: effects(r, p, response, confidence, scale),
            scale,
        )
    return effects_of(fitted(runs, plan, response, scale), response, confidence, scale)


def effects_of(
    fit: Fit, response: str, confidence: float = 0.95, scale: str = LINEAR
) -> pd.DataFrame:
    """`effects` of a fit."""
    y, n = fit.y, len(fit.y)
    rows = [_row(fit, i, confidence) for i in range(len(fit.design.terms))]
    for name, error in fit.errors.items():
        if error.df < 1:
            _lenth([r for r in rows if r["stratum"] == name], confidence)
    tested = [row for row in rows if "p_value" in row]
    raw = [float(row["p_value"]) for row in tested]
    if all(row.get("method") == LENTH for row in tested):
        # effects that are judged against each other: by Lenth's simultaneous margin
        jointly = [together(p, len(tested)) for p in raw]
    else:
        jointly = holm(raw)
    for row, by_holm, by_bh in zip(tested, jointly, benjamini_hochberg(raw), strict=True):
        row |= {"p_holm": by_holm, "p_bh": by_bh}
    _types(rows, fit)
    _correlations(rows, fit)
    if fit.blocks.stop > fit.blocks.start:
        rows.append(_block_row(fit))
    rows += [_error_row(fit, name) for name in fit.errors]
    if fit.whole:
        _shares(rows, float(np.sum((y - y.mean()) ** 2)))
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    table["response"] = response
    table["n"] = n
    table["scale"] = scale
    for column in ("aliases", "correlations"):
        table[column] = table[column].astype(object).fillna("")
    table["method"] = table["method"].astype(object).fillna("least squares")
    if scale == LOG:
        for ratio, effect in (
            ("ratio", "effect"),
            ("ratio_ci_low", "effect_ci_low"),
            ("ratio_ci_high", "effect_ci_high"),
        ):
            table[ratio] = np.exp(table[effect].astype(float))
    numeric = [c for c in COLUMNS if c not in _TEXTS]
    return table.astype(dict.fromkeys(numeric, "float64") | {"df": "int64", "n": "int64"})


_TEXTS = ("response", "term", "aliases", "method", "stratum", "correlations", "scale")


def fitted(runs: pd.DataFrame, plan: Plan, response: str, scale: str = LINEAR) -> Fit:
    """The fit that `effects` tells: least squares with the strata of the order. PenstockError as there."""
    data = usable(runs, plan, response)
    if plan.stages:
        from penstock.analyse.staged import designed_plan

        plan = designed_plan(plan)
    design, block = design_of(data, plan), _blocks(data, plan)
    values = pd.to_numeric(data[response]).to_numpy(dtype=np.float64)
    power = _power(values, design, block) if scale == BOX_COX else None
    return _fit(scaled(values, scale, power), design, block, strata.groups_of(data, plan), plan)


def _power(values: Values, design: Design, block: Numbers | None) -> float:
    """The Box-Cox power beside the terms and blocks; beside the main effects where these meet every run."""
    blocks = np.empty((len(values), 0)) if block is None else sum_to_zero(block)
    main = [t for t in design.terms if t.size == 1]
    many = len(values) * float(sum(t.width for t in design.terms)) ** 2 > _MANY
    for terms in [main] if many else [design.terms, main]:
        columns = np.hstack([np.ones((len(design.levels), 1)), *(t.columns for t in terms)])
        basis = _start(np.hstack([blocks, columns[design.of_run]]))
        if basis.shape[1] < len(values):
            return power_beside(values, basis)
    return power_beside(values, np.ones((len(values), 1)))


def all_effects(runs: pd.DataFrame, plan: Plan, responses: Sequence[str]) -> pd.DataFrame:
    """`effects` of every response, one below the other."""
    return pd.concat([effects(runs, plan, name) for name in responses], ignore_index=True)


# ---------------------------------------------------------------- what goes into the fit


def usable(runs: pd.DataFrame, plan: Plan, response: str) -> pd.DataFrame:
    """The valid runs with a finite number for the response, of a study that went on those of its designed
    stages with `replicate` as their block. PenstockError where fewer than two are."""
    needed = [*(f.name for f in plan.factors), response]
    missing = [name for name in needed if name not in runs.columns]
    if missing:
        raise PenstockError(f"the runs have no column {', '.join(missing)}")
    data = runs
    if plan.stages:
        from penstock.analyse.staged import designed_part

        data, plan = designed_part(runs, plan)
    if "valid" in data.columns:
        data = data[data["valid"].eq(True)]
    if "source" in data.columns:  # what was predicted is no run
        data = data[data["source"].isna() | data["source"].isin(["", "measured"])]
    values = pd.to_numeric(data[response], errors="coerce").astype(float)
    data = data[np.isfinite(values)]
    if len(data) < 2:
        raise PenstockError(
            f"{len(data)} valid run{'s' * (len(data) != 1)} with {response}: no effects"
        )
    return data


def _blocks(data: pd.DataFrame, plan: Plan) -> Numbers | None:
    """The block of each run, from 0; None unless rounds were blocks."""
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


# ---------------------------------------------------------------- the fit


def _fit(
    y: Values, design: Design, block: Numbers | None, groups: dict[str, Numbers], plan: Plan
) -> Fit:
    """Fits mean, terms and blocks; a term whose columns depend on earlier ones is left out.

    Blocks come first in the choice (they were executed), then terms from main effects upward. What is left
    out changes no term that has an estimate.
    """
    cells = _Cells.of(design.of_run, block)
    blocks = cells.blocks
    terms = design.terms
    without, whole = _not_estimable(terms, cells, may_assume=not plan.fraction)
    used_terms = terms if whole else _kept(terms, without, cells)
    widths = [term.width for term in used_terms]
    ends = 1 + np.cumsum([0, *widths])
    where = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
    of_blocks = slice(int(ends[-1]), int(ends[-1]) + blocks.shape[1])
    of_treatment = np.hstack([np.ones((len(design.levels), 1)), *(t.columns for t in used_terms)])
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
        found = linalg.cho_solve(factor, product)
        covariance[np.ix_(used, used)] = linalg.cho_solve(factor, np.eye(len(gram)))
        kinds = of_treatment.shape[1]
        predicted = (of_treatment @ found[:kinds])[design.of_run] + blocks @ found[kinds:]
        residuals = y - middle - predicted
        found[0] += middle
        solution[used] = found
    fit = Fit(
        design, y, solution, covariance, residuals, where, of_blocks, without, whole,
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
    found = [
        strata.stratum_of(t.columns[of_run], fit.groups) if np.any(t.columns) else RUN
        for t in terms
    ]
    level = all(strata.equal_sizes(group) for group in fit.groups.values())
    of_column = [strata.ALL]
    for term, name in zip(terms, found, strict=True):
        of_column += [name or RUN] * int(np.any(term.columns, axis=0).sum())
    of_column += [strata.ALL] * (fit.blocks.stop - fit.blocks.start)
    if level and None not in found and not fit.without.count(ASSUMED):
        errors = strata.error_strata(fit.residuals, by_run, of_column, fit.groups)
        return replace(fit, of_term=[name or RUN for name in found], errors=errors)
    return _out_of_balance(fit, terms, by_run)


def _out_of_balance(fit: Fit, terms: list[Term], by_run: Values) -> Fit:
    """The fit with random settings; without errors where there is more than one kind of setting."""
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
    # a term that is not within settings alone has no more degrees of freedom than these
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
    found = replace(fit, of_term=of_term, errors=errors)
    if others or df < 1:
        return found
    try:
        return replace(found, mixed=strata.mixed(fit.y, by_run, group))
    except PenstockError:
        return found


def _between(columns: Values, group: Numbers) -> bool:
    """Whether a term's columns are constant within every setting."""
    return bool(np.allclose(columns, strata.means_of(columns, group), atol=1e-9))


@dataclass(frozen=True)
class _Cells:
    """The distinct combinations of treatment and block that were run, and how often."""

    treatment: Numbers
    block: Numbers
    count: Numbers
    #: block columns of each block
    code: Values
    of_run: Numbers
    block_of_run: Numbers

    @classmethod
    def of(cls, of_run: Numbers, label: Numbers | None) -> _Cells:
        """Of the treatment and the block of each run."""
        if label is None:
            code: Values = np.empty((1, 0))
            label = np.zeros(len(of_run), dtype=np.int64)
        else:
            code = sum_to_zero(np.arange(int(label.max()) + 1))
        together = of_run * len(code) + label
        found, count = np.unique(together, return_counts=True)
        return cls(found // len(code), found % len(code), count, code, of_run, label)

    @property
    def blocks(self) -> Values:
        """The block columns of each run."""
        return np.asarray(self.code[self.block_of_run])

    def products(
        self, columns: Values, blocks: Values, y: Values | None = None
    ) -> tuple[Values, Values]:
        """X'X of columns by treatment followed by those of blocks, and X'y."""
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
        """Block columns of each cell, and those of each term."""
        return self.code[self.block], [t.columns[self.treatment] for t in terms]


def _kept(terms: list[Term], without: list[str], cells: _Cells) -> list[Term]:
    """The terms, with zeros for those that are assumed to be 0 or depend on earlier ones."""
    found = []
    blocks, by_cell = cells.rows(terms)
    basis = _start(blocks)
    for term, columns, method in zip(terms, by_cell, without, strict=True):
        larger, new = _extend(basis, columns)
        good = new == term.width and method != ASSUMED
        basis = larger if good else basis
        found.append(term if good else replace(term, columns=np.zeros_like(term.columns)))
    return found


def _start(blocks: Values) -> Values:
    """The basis of mean and blocks."""
    basis, _ = _extend(np.empty((len(blocks), 0)), np.ones((len(blocks), 1)))
    return _extend(basis, blocks)[0]


def _not_estimable(terms: list[Term], cells: _Cells, *, may_assume: bool) -> tuple[list[str], bool]:
    """Why terms have no estimate (`NOT_ESTIMABLE`, `ASSUMED`; empty: they have one); whether all have one."""
    there = [bool(np.any(term.columns)) for term in terms]
    gone = ["" if t else NOT_ESTIMABLE for t in there]
    if _independent([t for t, whole in zip(terms, there, strict=True) if whole], cells):
        return gone, all(there)
    sizes = [term.size for term in terms]
    for most in range(max(sizes) - 1, _NEVER_ASSUMED - 1, -1) if may_assume else ():
        short = [t for t, s, whole in zip(terms, sizes, there, strict=True) if whole and s <= most]
        if _independent(short, cells):
            long = [ASSUMED if s > most and not g else g for g, s in zip(gone, sizes, strict=True)]
            return long, False
    return _mixed_in(terms, cells), False


def _independent(terms: list[Term], cells: _Cells) -> bool:
    """Whether these terms, mean and blocks are all told apart by the runs."""
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
    """No eigenvalue of a symmetric matrix of diagonal 1 is below this, which costs little where its `first`
    columns are nearly orthogonal to each other and to the others.

    Gershgorin's circles hold those of the first, Weyl's inequality what couples them to the others.
    """
    most = float((np.abs(gram[:first, :first]).sum(axis=1) - 1).max(initial=0.0))
    coupling = float(np.linalg.norm(gram[:first, first:]))
    if most + coupling >= 1:
        return -math.inf
    others = gram[first:, first:]
    least = float(np.linalg.eigvalsh(others)[0]) if len(others) else 1.0
    return min(1 - most, least) - coupling


def _mixed_in(terms: list[Term], cells: _Cells) -> list[str]:
    """`NOT_ESTIMABLE` for terms with others mixed in: where the model's null space touches their columns."""
    blocks, by_cell = cells.rows(terms)
    x = np.hstack([np.ones((len(blocks), 1)), blocks, *by_cell])
    values, rows = np.linalg.svd(x, full_matrices=True)[1:]
    rank = int(np.sum(values > 1e-8 * values[0]))
    touched = np.any(np.abs(rows[rank:]) > 1e-8, axis=0)
    found, at = [], 1 + blocks.shape[1]
    for term in terms:
        found.append(NOT_ESTIMABLE if touched[at : at + term.width].any() else "")
        at += term.width
    return found


def _extend(basis: Values, columns: Values) -> tuple[Values, int]:
    """An orthonormal basis with `columns` added, and how many of them were independent of it."""
    new = 0
    for column in columns.T:
        norm = float(np.linalg.norm(column))
        rest = column - basis @ (basis.T @ column)
        rest = rest - basis @ (basis.T @ rest)  # twice is enough (Kahan; Parlett 1980)
        left = float(np.linalg.norm(rest))
        if norm > 0 and left > 1e-8 * norm:
            basis = np.column_stack([basis, rest / left])
            new += 1
    return basis, new


# ---------------------------------------------------------------- rows of the table


def _sum_of_squares(fit: Fit, where: slice) -> float:
    """Type III: what the fit loses without these columns."""
    q, cov = fit.coefficients[where], fit.covariance[where, where]
    return float(q @ np.linalg.solve(cov, q))


def estimate(fit: Fit, i: int) -> tuple[Values, Values, float]:
    """Coefficients of a term, their covariance and the degrees of freedom of that; NaN where there is no
    error to judge by."""
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
    variance = error.mean_square
    return fit.coefficients[where], fit.covariance[where, where] * variance, float(error.df)


def _row(fit: Fit, i: int, confidence: float) -> dict[str, Any]:
    term, where, name = fit.design.terms[i], fit.where[i], fit.of_term[i]
    width = term.width
    row: dict[str, Any] = {
        "term": term.name, "aliases": term.aliases, "df": width, "stratum": name,
        "df_error": fit.errors[name].df,
    }  # fmt: skip
    if fit.without[i]:
        aliases = f"{term.aliases}, " if term.aliases else ""
        return row | {"aliases": aliases + _UNTOLD, "method": fit.without[i], "df": 0}
    ss = _sum_of_squares(fit, where)
    row |= {"sum_of_squares": ss, "mean_square": ss / width}
    q, covariance, df = estimate(fit, i)
    row["df_error"] = df
    known = df > 0 and bool(np.isfinite(covariance).all())
    if known and np.all(np.diag(covariance) > 0):
        row["f_value"] = float(q @ np.linalg.solve(covariance, q)) / width
        row["p_value"] = float(special.fdtrc(width, df, row["f_value"]))
    elif known:
        row["p_value"] = 0.0 if ss > 0 else 1.0
    elif fit.groups:
        row["method"] = NO_ERROR
    if width == 1:
        row |= _interval(float(q[0]), float(covariance[0, 0]), df if known else 0, confidence)
    elif known:
        row["method"] = "F test"
    if fit.mixed is not None and known:
        row["method"] = REML
    return row


@lru_cache(maxsize=64)
def _student(confidence: float, df: float) -> float:
    """Half width of a two-sided interval in standard errors."""
    return float(stats.t.ppf((1 + confidence) / 2, df))


def _interval(q: float, variance: float, df: float, confidence: float) -> dict[str, Any]:
    found: dict[str, Any] = {"coefficient": q, "effect": 2 * q}
    if df <= 0:
        return found
    error = math.sqrt(variance)
    half = _student(confidence, df) * error
    return found | {
        "standard_error": error,
        "ci_low": q - half,
        "ci_high": q + half,
        "effect_ci_low": 2 * (q - half),
        "effect_ci_high": 2 * (q + half),
        "method": "student",
    }


def _block_row(fit: Fit) -> dict[str, Any]:
    where = fit.blocks
    width = where.stop - where.start
    ss = _sum_of_squares(fit, where)
    # blocks hold whole settings
    name = next(iter(fit.errors))
    error = fit.errors[name]
    row: dict[str, Any] = {
        "term": "block",
        "df": width,
        "sum_of_squares": ss,
        "mean_square": ss / width,
        "method": "F test",
        "stratum": name,
        "df_error": error.df,
    }
    if error.df > 0 and error.sum_of_squares > 0 and fit.mixed is None:
        row["f_value"] = ss / width / error.mean_square
        row["p_value"] = float(stats.f.sf(row["f_value"], width, error.df))
    return row


def _error_row(fit: Fit, name: str) -> dict[str, Any]:
    error = fit.errors[name]
    return {
        "term": "residual" if name == RUN else name,
        "df": error.df,
        "sum_of_squares": error.sum_of_squares,
        "mean_square": error.mean_square,
        "stratum": name,
        "df_error": error.df,
        "variance": _variance(fit, name),
    }


def _variance(fit: Fit, name: str) -> float:
    """Variance that a stratum adds to a run, not below 0."""
    run = fit.errors[RUN].mean_square
    if fit.mixed is not None:
        return fit.mixed.run_variance if name == RUN else fit.mixed.setting_variance
    if name == RUN:
        return run
    size = len(fit.y) / (int(fit.groups[name].max()) + 1)
    return max((fit.errors[name].mean_square - run) / size, 0.0)


def _shares(rows: list[dict[str, Any]], total: float) -> None:
    """Per cent of the variation; of the sum of all parts where that is more, because parts overlap."""
    scale = max(total, sum(row["sum_of_squares"] for row in rows))
    for row in rows:
        row["variation_share"] = 100 * row["sum_of_squares"] / scale if total > 0 else 0.0


def _types(rows: list[dict[str, Any]], fit: Fit) -> None:
    """Sums of squares of type I (terms in their order) and II (adjusted for all that do not contain it).

    Only where every term has an estimate; of balanced data all types are one.
    """
    if not fit.whole:
        return
    terms = fit.design.terms
    x = np.hstack([np.ones((len(fit.design.levels), 1)), *(t.columns for t in terms)])
    cells = _Cells.of(fit.design.of_run, fit.block)
    gram, product = cells.products(x, fit.block_columns, fit.y - fit.y.mean())
    size = np.sqrt(np.diag(gram))
    tilted = np.abs(gram / np.outer(size, size))
    for where in [slice(0, 1), *fit.where, fit.blocks]:
        tilted[where, where] = 0
    if tilted.max(initial=0) < 1e-9:
        for row in rows:
            row["sum_of_squares_1"] = row["sum_of_squares_2"] = row["sum_of_squares"]
        return
    blocks = list(range(fit.blocks.start, fit.blocks.stop))
    order = [0, *blocks, *range(1, fit.blocks.start)]
    lower = np.linalg.cholesky(gram[np.ix_(order, order)])
    share = linalg.solve_triangular(lower, product[order], lower=True) ** 2
    for row, where in zip(rows, fit.where, strict=True):
        row["sum_of_squares_1"] = float(
            share[where.start + len(blocks) : where.stop + len(blocks)].sum()
        )
    if len(terms) > _MOST_TYPE_2:
        return
    names = [set(t.name.split(":")) for t in terms]
    for i, row in enumerate(rows):
        mine = list(range(fit.where[i].start, fit.where[i].stop))
        beside = [0, *blocks]
        for j, where in enumerate(fit.where):
            if not names[i] <= names[j]:
                beside += range(where.start, where.stop)
        row["sum_of_squares_2"] = _explained(gram, product, beside + mine) - _explained(
            gram, product, beside
        )


def _explained(gram: Values, product: Values, columns: list[int]) -> float:
    return float(
        product[columns]
        @ linalg.solve(gram[np.ix_(columns, columns)], product[columns], assume_a="pos")
    )


def _correlations(rows: list[dict[str, Any]], fit: Fit) -> None:
    """Of estimates that lost runs made depend on each other, the three largest correlations of each."""
    single = [i for i, t in enumerate(fit.design.terms) if t.width == 1 and not fit.without[i]]
    at = [fit.where[i].start for i in single]
    cov = fit.covariance[np.ix_(at, at)]
    size = np.sqrt(np.diag(cov))
    found = cov / np.outer(size, size)
    np.fill_diagonal(found, 0)
    found[np.abs(found) < 1e-6] = 0
    for i, line in zip(single, found, strict=True):
        largest = [int(j) for j in np.argsort(-np.abs(line), kind="stable")[:3] if line[j]]
        names = [fit.design.terms[single[j]].name for j in largest]
        rows[i]["correlations"] = ", ".join(
            f"{name} {line[j]:+.2f}" for name, j in zip(names, largest, strict=True)
        )


# ---------------------------------------------------------------- judging


@dataclass(frozen=True)
class Lenth:
    """Lenth's measures of the spread of effects without replicates (Technometrics 31, 1989), in effects."""

    s0: float
    pse: float
    me: float
    sme: float


def lenth(effect_values: Sequence[float], confidence: float = 0.95) -> Lenth:
    """s0, pseudo standard error, margin and simultaneous margin of m effects."""
    sizes = np.abs(np.asarray(effect_values, dtype=float))
    s0 = 1.5 * float(np.median(sizes))
    small = sizes[sizes < 2.5 * s0]
    pse = 1.5 * float(np.median(small)) if len(small) else 0.0
    m = len(sizes)
    together = 1 - (1 - confidence ** (1 / m)) / 2
    return Lenth(
        s0,
        pse,
        float(stats.t.ppf((1 + confidence) / 2, m / 3)) * pse,
        float(stats.t.ppf(together, m / 3)) * pse,
    )


def _lenth(rows: list[dict[str, Any]], confidence: float) -> None:
    """Intervals of Lenth's margin, where there is no pure error and every term has one coefficient."""
    usable = [r for r in rows if "effect" in r]
    if len(usable) < 3:
        for row in usable:
            row["method"] = NO_ERROR
        return
    measure = lenth([r["effect"] for r in usable], confidence)
    for row in usable:
        half = measure.me / 2
        row |= {
            "standard_error": measure.pse / 2,
            "ci_low": row["coefficient"] - half,
            "ci_high": row["coefficient"] + half,
            "effect_ci_low": row["effect"] - measure.me,
            "effect_ci_high": row["effect"] + measure.me,
            "method": LENTH,
        }
        if measure.pse > 0:
            ratio = abs(row["effect"]) / measure.pse
            row["p_value"] = float(2 * stats.t.sf(ratio, len(usable) / 3))
        else:
            row["p_value"] = 0.0 if row["effect"] else 1.0
