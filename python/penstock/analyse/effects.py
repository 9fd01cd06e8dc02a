"""Effects and interactions of a designed experiment: estimates, intervals, allocation of variation.

Model: y = q0 + Σ q_w x_w + e with x_w the product of the coded (−1, +1) columns of the factors in w. The
coefficient is q, the effect 2q: mean at the second level minus mean at the first. Where each replicate was a
complete shuffled pass, the pass is a block of the model and takes its degrees of freedom. Balanced data give
the textbook estimates (Jain 1991, chapters 17-19); lost runs are met by least squares on the same columns,
blocks summing to zero, each term adjusted for all others (type III); nothing is imputed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    kept: list[bool]


def effects(
    runs: pd.DataFrame, plan: Plan, response: str, confidence: float = 0.95
) -> pd.DataFrame:
    """The effects table of one response, one row per term, then `block` (if blocks are in the model) and
    `residual`; columns in `COLUMNS`.

    `runs`: one row per run with a column per factor (level names), `replicate` or `run_id`, `valid` (runs
    that are not are left out) and the response. Shares are percent of the total variation about the mean.
    Without pure error the intervals are Lenth's (`method` says which; `confidence` then gives his margin
    ME). PenstockError if a column is missing or fewer than two runs are valid.
    """
    data = _usable(runs, plan, response)
    y = data[response].to_numpy(dtype=np.float64)
    blocks = _block_columns(data, plan)
    terms = _terms(data, plan)
    fit = _least_squares(y, terms, blocks)
    scale = float(np.sum((y - y.mean()) ** 2))
    rows, at = [], 1
    for i, term in enumerate(terms):
        width = term.columns.shape[1]
        rows.append(_row(term, fit, slice(at, at + width), scale, confidence, kept=fit.kept[i]))
        at += width
    if fit.df_error < 1:
        _lenth(rows, confidence)
    _holm(rows)
    if blocks.shape[1]:
        rows.append(_block_row(fit, at, blocks.shape[1], scale))
    rows.append(_residual_row(fit, scale))
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
        return _two_level_terms(2.0 * level - 1.0, names, plan)
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
        return (2.0 * level - 1.0)[:, None]
    code: Values = np.vstack([np.eye(levels - 1), -np.ones(levels - 1)])
    return np.asarray(code[level])


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


def _least_squares(y: Values, terms: list[_Term], blocks: Values) -> _Fit:
    """Fits mean, terms and blocks; a term whose columns depend on earlier ones is left out.

    Blocks come first in the choice (they were executed), then terms from main effects upward.
    """
    n = len(y)
    basis: Values = np.empty((n, 0))
    basis, _ = _extend(basis, np.ones((n, 1)))
    basis, _ = _extend(basis, blocks)
    kept = []
    for term in terms:
        larger, new = _extend(basis, term.columns)
        good = new == term.columns.shape[1]
        kept.append(good)
        basis = larger if good else basis
    columns: list[Values] = [np.ones((n, 1))]
    columns += [
        t.columns if k else np.zeros_like(t.columns) for t, k in zip(terms, kept, strict=True)
    ]
    columns.append(blocks)
    x = np.hstack(columns)
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
    return _Fit(solution, covariance, error, df, kept)


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


def _row(
    term: _Term, fit: _Fit, where: slice, scale: float, confidence: float, *, kept: bool
) -> dict[str, Any]:
    width = term.columns.shape[1]
    row: dict[str, Any] = {"term": term.name, "aliases": term.aliases, "df": width}
    if not kept:
        aliases = f"{term.aliases}, " if term.aliases else ""
        return row | {"aliases": aliases + NOT_ESTIMABLE, "method": "not estimable", "df": 0}
    ss = _sum_of_squares(fit, where)
    row |= {"sum_of_squares": ss, "mean_square": ss / width}
    row["variation_share"] = 100 * ss / scale if scale > 0 else 0.0
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


def _block_row(fit: _Fit, at: int, width: int, scale: float) -> dict[str, Any]:
    where = slice(at, at + width)
    ss = _sum_of_squares(fit, where)
    row: dict[str, Any] = {
        "term": "block",
        "df": width,
        "sum_of_squares": ss,
        "mean_square": ss / width,
        "variation_share": 100 * ss / scale if scale > 0 else 0.0,
        "method": "F test",
    }
    if fit.df_error > 0 and fit.residual > 0:
        row["f_value"] = ss / width / (fit.residual / fit.df_error)
        row["p_value"] = float(stats.f.sf(row["f_value"], width, fit.df_error))
    return row


def _residual_row(fit: _Fit, scale: float) -> dict[str, Any]:
    return {
        "term": "residual",
        "df": fit.df_error,
        "sum_of_squares": fit.residual,
        "mean_square": fit.residual / fit.df_error if fit.df_error > 0 else math.nan,
        "variation_share": 100 * fit.residual / scale if scale > 0 else 0.0,
    }


# ---------------------------------------------------------------- judging


@dataclass(frozen=True)
class Lenth:
    """Lenth's measures of the spread of effects without replicates (Technometrics 31, 1989), in effects."""

    s0: float
    pse: float
    me: float
    sme: float


def lenth(effect_values: Sequence[float], confidence: float = 0.95) -> Lenth:
    """s0, pseudo standard error, margin and simultaneous margin of m effects (DN-16)."""
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
