"""Effects and interactions of a designed experiment: estimates, intervals, allocation of variation.

Model: y = q0 + Σ q_w x_w + e with x_w the product of the coded (−1, +1) columns of the factors in w. The
coefficient is q, the effect 2q: mean at the second level minus mean at the first. Where each replicate was a
complete shuffled pass, the pass is a block of the model and takes its degrees of freedom. Balanced data give
the textbook estimates (Jain 1991, chapters 17-19); lost runs are met by least squares on the same columns,
blocks summing to zero, each term adjusted for all others (type III); nothing is imputed.

Where all runs of a treatment are lost, a term has an estimate only if nothing that the whole design keeps
apart from it is mixed into it; no term has a share of the variation then, because shares would not add up. A
full design may still be fitted without its longest interactions: those are then `ASSUMED`. A full design that
lost all of a level is one of the levels that are left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from penstock.design.matrix import alias_words
from penstock.design.plan import ALIAS_ORDER, Plan, coded_matrix
from penstock.errors import PenstockError

Values = NDArray[np.floating[Any]]

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
    "standard_error",
    "df_error",
    "method",
    "n",
)
#: more terms than this are not fitted
MOST_TERMS = 2500
NOT_ESTIMABLE = "not estimable from the runs that are valid"
#: methods of terms without an estimate
NOT_ESTIMABLE = "not estimable"
ASSUMED = "assumed 0"
#: interactions of so many factors are never assumed to be 0
_NEVER_ASSUMED = 2


@dataclass(frozen=True)
class _Term:
    """A group of columns that is tested together: one column for factors of two levels."""

    name: str
    columns: Values  # n × degrees of freedom
    aliases: str = ""


@dataclass(frozen=True)
class _Fit:
    """Least squares of all terms and blocks."""

    coefficients: Values
    covariance: Values  # without σ²
    residual: float
    df_error: int
    #: how each term came to its estimate: empty, or `NOT_ESTIMABLE` or `ASSUMED`
    without: list[str]
    #: whether every term of the design has an estimate
    whole: bool


def effects(
    runs: pd.DataFrame, plan: Plan, response: str, confidence: float = 0.95
) -> pd.DataFrame:
    """The effects table of one response, one row per term, then `block` (if blocks are in the model) and
    `residual`; columns in `COLUMNS`.

    `runs`: one row per run with a column per factor (level names), `replicate` or `run_id`, `valid` (runs
    that are not are left out) and the response. Shares are percent of the total variation about the mean, or
    of the sum of all parts where lost runs make that larger.
    Without pure error the intervals are Lenth's (`method` says which; `confidence` then gives his margin
    ME). PenstockError if a column is missing or fewer than two runs are valid.
    """
    if plan.stages:
        from penstock.analyse.staged import staged_effects

        return staged_effects(
            runs, plan, response, confidence, lambda r, p: effects(r, p, response, confidence)
        )
    data = _usable(runs, plan, response)
    y = data[response].to_numpy(dtype=np.float64)
    blocks = _block_columns(data, plan)
    terms = _terms(data, plan)
    fit = _least_squares(y, terms, blocks, may_assume=not plan.fraction)
    rows, at = [], 1
    for i, term in enumerate(terms):
        width = term.columns.shape[1]
        rows.append(_row(term, fit, slice(at, at + width), confidence, fit.without[i]))
        at += width
    if fit.df_error < 1:
        _lenth(rows, confidence)
    _holm(rows)
    if blocks.shape[1]:
        rows.append(_block_row(fit, at, blocks.shape[1]))
    rows.append(_residual_row(fit))
    if fit.whole:
        _shares(rows, float(np.sum((y - y.mean()) ** 2)))
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    table["response"] = response
    table["df_error"] = fit.df_error
    table["n"] = len(y)
    table["aliases"] = table["aliases"].fillna("")
    table["method"] = table["method"].fillna("least squares")
    return table.astype({"df": "int64", "df_error": "int64", "n": "int64"})


def all_effects(runs: pd.DataFrame, plan: Plan, responses: Sequence[str]) -> pd.DataFrame:
    """`effects` of every response, one below the other."""
    return pd.concat([effects(runs, plan, name) for name in responses], ignore_index=True)


# ---------------------------------------------------------------- what goes into the fit


def _usable(runs: pd.DataFrame, plan: Plan, response: str) -> pd.DataFrame:
    needed = [*(f.name for f in plan.factors), response]
    missing = [name for name in needed if name not in runs.columns]
    if missing:
        raise PenstockError(f"the runs have no column {', '.join(missing)}")
    data = runs
    if "valid" in data.columns:
        data = data[data["valid"].eq(True)]
    data = data[pd.to_numeric(data[response], errors="coerce").notna()]
    if len(data) < 2:
        raise PenstockError(
            f"{len(data)} valid run{'s' * (len(data) != 1)} with {response}: no effects"
        )
    return data


def numbers(data: pd.DataFrame, plan: Plan) -> NDArray[np.int64]:
    """Runs × factors: number of each level from 0, in the study's order; PenstockError for a strange one."""
    found = np.empty((len(data), len(plan.factors)), dtype=np.int64)
    for j, factor in enumerate(plan.factors):
        places = {level.name: i for i, level in enumerate(factor.levels)}
        column = data[factor.name].astype(str).map(places)
        if column.isna().any():
            strange = data[factor.name][column.isna()].iloc[0]
            raise PenstockError(f"{strange!r} is no level of {factor.name}")
        found[:, j] = column.to_numpy(dtype=np.int64)
    return found


def _block_columns(data: pd.DataFrame, plan: Plan) -> Values:
    """Sum-to-zero columns of the blocks that were run; none unless rounds were blocks."""
    if plan.order != "interleaved" or plan.replicates < 2:
        return np.empty((len(data), 0))
    if "replicate" in data.columns:
        labels = data["replicate"].to_numpy()
    elif "run_id" in data.columns:
        known = {row.run_id: row.block for row in plan.rows}
        labels = data["run_id"].map(known).to_numpy()
    else:
        raise PenstockError("the runs have no column replicate")
    return _sum_to_zero(np.unique(labels, return_inverse=True)[1])


def _sum_to_zero(numbers_of: NDArray[Any]) -> Values:
    """Effect coding: one column per level but the last, which is −1 in all of them."""
    levels = int(numbers_of.max()) + 1
    code: Values = np.vstack([np.eye(levels - 1), -np.ones(levels - 1)])
    return np.asarray(code[numbers_of])


def _terms(data: pd.DataFrame, plan: Plan) -> list[_Term]:
    level = numbers(data, plan)
    names = [f.name for f in plan.factors]
    if plan.two_level:
        coded = 2.0 * level - 1.0
        if not plan.fraction:
            coded = np.column_stack([_of_two(of_factor) for of_factor in level.T])
        return _two_level_terms(coded, names, plan)
    codes = [_coded_factor(level[:, j], len(f.levels)) for j, f in enumerate(plan.factors)]
    found = []
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(range(len(names)), size):
            columns = codes[chosen[0]]
            for j in chosen[1:]:
                columns = np.einsum("ia,ib->iab", columns, codes[j]).reshape(len(data), -1)
            found.append(_Term(":".join(names[j] for j in chosen), columns))
    return found


def _coded_factor(level: NDArray[np.int64], levels: int) -> Values:
    if levels == 2:
        return _of_two(level)[:, None]
    made = np.unique(level, return_inverse=True)[1]
    if made.max() == 0:
        return np.zeros((len(level), 1))
    return _sum_to_zero(made)


def _of_two(level: NDArray[np.int64]) -> Values:
    """−1 and +1; 0 everywhere where one of the two levels is all there is."""
    coded: Values = 2.0 * level - 1.0
    return coded if np.ptp(coded) else 0 * coded


def _two_level_terms(coded: Values, names: list[str], plan: Plan) -> list[_Term]:
    """One term per contrast column of the plan's matrix: its shortest word, with what is aliased to it."""
    found = []
    for group in alias_words(coded_matrix(plan), _longest(plan)):
        first = group[0][0]
        others = [(w, s) for w, s in group[1:] if w.bit_count() <= ALIAS_ORDER]
        if first == 0:
            continue
        chosen = [j for j in range(len(names)) if first >> j & 1]
        product = np.prod(coded[:, chosen], axis=1)[:, None]
        shown = [
            f"{'+' if sign > 0 else '-'}{':'.join(names[j] for j in range(len(names)) if w >> j & 1)}"
            for w, sign in others
        ]
        found.append(_Term(":".join(names[j] for j in chosen), product, ", ".join(shown)))
    return found


def _longest(plan: Plan) -> int:
    """Length of words up to which terms are in the model: all contrasts, unless there are more than
    `MOST_TERMS`; then the longest stay in the residual. Words of K−P factors meet every contrast."""
    factors = len(plan.factors)
    order, words = 0, 0
    while order < max(min(ALIAS_ORDER, factors), factors - plan.fraction):
        words += math.comb(factors, order + 1)
        if words > MOST_TERMS and order >= 2:
            break
        order += 1
    return order


# ---------------------------------------------------------------- the fit


def _least_squares(y: Values, terms: list[_Term], blocks: Values, *, may_assume: bool) -> _Fit:
    """Fits mean, terms and blocks; a term whose columns depend on earlier ones is left out.

    Blocks come first in the choice (they were executed), then terms from main effects upward. What is left
    out changes no term that has an estimate.
    """
    n = len(y)
    without, whole = _not_estimable(terms, blocks, n, may_assume=may_assume)
    used_terms = terms if whole else _kept(terms, without, _start(n, blocks))
    x = np.hstack([np.ones((n, 1)), *(term.columns for term in used_terms), blocks])
    used = np.any(x != 0, axis=0)
    solution = np.full(x.shape[1], np.nan)
    covariance = np.full((x.shape[1], x.shape[1]), np.nan)
    # lstsq, not inv(X'X): the condition of X, not its square, bounds the error
    q, r = np.linalg.qr(x[:, used])
    solution[used] = np.linalg.solve(r, q.T @ y)
    inverse = np.linalg.inv(r)
    covariance[np.ix_(used, used)] = inverse @ inverse.T
    residuals = y - x[:, used] @ solution[used]
    df = n - int(used.sum())
    error = float(residuals @ residuals) if df > 0 else 0.0
    return _Fit(solution, covariance, error, df, without, whole)


def _kept(terms: list[_Term], without: list[str], basis: Values) -> list[_Term]:
    """The terms, with zeros for those that are assumed to be 0 or depend on earlier ones."""
    found = []
    for term, method in zip(terms, without, strict=True):
        larger, new = _extend(basis, term.columns)
        good = new == term.columns.shape[1] and method != ASSUMED
        basis = larger if good else basis
        found.append(term if good else replace(term, columns=np.zeros_like(term.columns)))
    return found


def _start(n: int, blocks: Values) -> Values:
    """The basis of mean and blocks."""
    basis, _ = _extend(np.empty((n, 0)), np.ones((n, 1)))
    return _extend(basis, blocks)[0]


def _not_estimable(
    terms: list[_Term], blocks: Values, n: int, *, may_assume: bool
) -> tuple[list[str], bool]:
    """Why terms have no estimate (`NOT_ESTIMABLE`, `ASSUMED`; empty: they have one); whether all have one."""
    there = [bool(np.any(term.columns)) for term in terms]
    gone = ["" if t else NOT_ESTIMABLE for t in there]
    if _independent([t for t, whole in zip(terms, there, strict=True) if whole], blocks, n):
        return gone, all(there)
    sizes = [term.name.count(":") + 1 for term in terms]
    for most in range(max(sizes) - 1, _NEVER_ASSUMED - 1, -1) if may_assume else ():
        short = [t for t, s, whole in zip(terms, sizes, there, strict=True) if whole and s <= most]
        if _independent(short, blocks, n):
            long = [ASSUMED if s > most and not g else g for g, s in zip(gone, sizes, strict=True)]
            return long, False
    return _mixed(terms, blocks, n), False


def _independent(terms: list[_Term], blocks: Values, n: int) -> bool:
    """Whether these terms, mean and blocks are all told apart by the runs."""
    basis = _start(n, blocks)
    for term in terms:
        basis, new = _extend(basis, term.columns)
        if new < term.columns.shape[1]:
            return False
    return True


def _mixed(terms: list[_Term], blocks: Values, n: int) -> list[str]:
    """`NOT_ESTIMABLE` for terms with others mixed in: where the model's null space touches their columns."""
    x = np.hstack([np.ones((n, 1)), blocks, *(term.columns for term in terms)])
    values, rows = np.linalg.svd(x, full_matrices=True)[1:]
    rank = int(np.sum(values > 1e-8 * values[0]))
    touched = np.any(np.abs(rows[rank:]) > 1e-8, axis=0)
    found, at = [], 1 + blocks.shape[1]
    for term in terms:
        width = term.columns.shape[1]
        found.append(NOT_ESTIMABLE if touched[at : at + width].any() else "")
        at += width
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


def _sum_of_squares(fit: _Fit, where: slice) -> float:
    """Type III: what the fit loses without these columns."""
    q, cov = fit.coefficients[where], fit.covariance[where, where]
    return float(q @ np.linalg.solve(cov, q))


def _row(term: _Term, fit: _Fit, where: slice, confidence: float, without: str) -> dict[str, Any]:
    width = term.columns.shape[1]
    row: dict[str, Any] = {"term": term.name, "aliases": term.aliases, "df": width}
    if without:
        aliases = f"{term.aliases}, " if term.aliases else ""
        return row | {"aliases": aliases + NOT_ESTIMABLE, "method": without, "df": 0}
    ss = _sum_of_squares(fit, where)
    row |= {"sum_of_squares": ss, "mean_square": ss / width}
    variance = fit.residual / fit.df_error if fit.df_error > 0 else math.nan
    if variance > 0:
        row["f_value"] = ss / width / variance
        row["p_value"] = float(stats.f.sf(row["f_value"], width, fit.df_error))
    elif fit.df_error > 0:
        row["p_value"] = 0.0 if ss > 0 else 1.0
    if width == 1:
        row |= _interval(fit, where.start, variance, confidence)
    else:
        row["method"] = "F test"
    return row


def _interval(fit: _Fit, at: int, variance: float, confidence: float) -> dict[str, Any]:
    q = float(fit.coefficients[at])
    found: dict[str, Any] = {"coefficient": q, "effect": 2 * q}
    if fit.df_error < 1:
        return found
    error = math.sqrt(variance * float(fit.covariance[at, at]))
    half = float(stats.t.ppf((1 + confidence) / 2, fit.df_error)) * error
    return found | {
        "standard_error": error,
        "ci_low": q - half,
        "ci_high": q + half,
        "effect_ci_low": 2 * (q - half),
        "effect_ci_high": 2 * (q + half),
        "method": "student",
    }


def _block_row(fit: _Fit, at: int, width: int) -> dict[str, Any]:
    where = slice(at, at + width)
    ss = _sum_of_squares(fit, where)
    row: dict[str, Any] = {
        "term": "block",
        "df": width,
        "sum_of_squares": ss,
        "mean_square": ss / width,
        "method": "F test",
    }
    if fit.df_error > 0 and fit.residual > 0:
        row["f_value"] = ss / width / (fit.residual / fit.df_error)
        row["p_value"] = float(stats.f.sf(row["f_value"], width, fit.df_error))
    return row


def _residual_row(fit: _Fit) -> dict[str, Any]:
    return {
        "term": "residual",
        "df": fit.df_error,
        "sum_of_squares": fit.residual,
        "mean_square": fit.residual / fit.df_error if fit.df_error > 0 else math.nan,
    }


def _shares(rows: list[dict[str, Any]], total: float) -> None:
    """Per cent of the variation; of the sum of all parts where that is more, because parts overlap."""
    scale = max(total, sum(row["sum_of_squares"] for row in rows))
    for row in rows:
        row["variation_share"] = 100 * row["sum_of_squares"] / scale if total > 0 else 0.0


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
            row["method"] = "no error to judge by"
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
            "method": "lenth",
        }
        if measure.pse > 0:
            ratio = abs(row["effect"]) / measure.pse
            row["p_value"] = float(2 * stats.t.sf(ratio, len(usable) / 3))


def _holm(rows: list[dict[str, Any]]) -> None:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 6, 1979) beside the raw ones."""
    tested = sorted((r for r in rows if "p_value" in r), key=lambda r: float(r["p_value"]))
    largest = 0.0
    for i, row in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - i) * float(row["p_value"])))
        row["p_holm"] = largest
