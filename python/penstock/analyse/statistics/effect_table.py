"""The table of effects of a fit: a row for each term, with its interval and its share of the variation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import pandas as pd
from scipy import linalg, special, stats

from penstock.analyse.statistics.few_runs import few_runs
from penstock.analyse.statistics.fit import NOT_ESTIMABLE, Cells, Fit, estimate, sum_of_squares
from penstock.analyse.statistics.multiple_tests import benjamini_hochberg, holm
from penstock.analyse.statistics.scale import LINEAR, LOG
from penstock.analyse.statistics.significance import LENTH, LEVEL, together
from penstock.analyse.statistics.strata import RUN
from penstock.analyse.statistics.terms import Numbers, Values
from penstock.design.planned import Plan
from penstock.text import square_of

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
    "level",
    "bias",
)
_UNTOLD = "not estimable from the runs that are valid"
#: method of a term confounded with the blocks of every pass
CONFOUNDED_WITH_BLOCKS = "confounded with blocks"
#: method of a term whose stratum has no degrees of freedom
NO_ERROR = "no error estimate"
REML = "REML"
#: maximum number of terms for type II sums of squares of unbalanced data
_MOST_TYPE_2 = 130


def effects_of(
    fit: Fit,
    response: str,
    confidence: float = 0.95,
    scale: str = LINEAR,
    parts: Mapping[str, Sequence[float]] | None = None,
) -> pd.DataFrame:
    """`effects` of a fit; `parts`: contrasts of terms of several columns, as from `_parts`."""
    rows = [_row(fit, i, confidence) for i in range(len(fit.design.terms))]
    for row in rows:
        if row["df"] > 1 and row["term"] in (parts or {}):
            row["parts"] = (parts or {})[row["term"]]
            if fit.bounds is not None:  # for a contrast of length 1 (Cauchy-Schwarz)
                far = float(np.linalg.norm(np.maximum(*fit.bounds)))
                row["bias"] = 2 * far / math.sqrt(len(fit.y))
    for name, error in fit.errors.items():
        if error.df < 1:
            _lenth([r for r in rows if r["stratum"] == name], confidence)
    judge_together(rows)
    if doubt := few_runs(fit, rows):
        for row in rows:
            if row["term"] in doubt.doubted:
                row["p_holm"] = 1.0
    _types(rows, fit)
    _correlations(rows, fit)
    if fit.blocks.stop > fit.blocks.start:
        rows.append(_block_row(fit))
    rows += [_error_row(fit, name) for name in fit.errors]
    if fit.complete:
        share_variation(rows, fit.y)
    return table_of(rows, response, len(fit.y), scale)


def judge_together(rows: list[dict[str, Any]]) -> None:
    """Add the p-values adjusted for all tested terms."""
    tested = [row for row in rows if "p_value" in row]
    raw = [float(row["p_value"]) for row in tested]
    if all(row.get("method") == LENTH for row in tested):
        # effects tested against each other: by Lenth's simultaneous margin
        jointly = [together(p, len(tested)) for p in raw]
    else:
        jointly = holm(raw)
    for row, by_holm, by_bh in zip(tested, jointly, benjamini_hochberg(raw), strict=True):
        row |= {"p_holm": by_holm, "p_bh": by_bh}


def share_variation(rows: list[dict[str, Any]], y: Values) -> None:
    """Add each part's percentage of the sum of all parts: the variation of `y` if they are orthogonal.

    Parts of unbalanced runs overlap, so that their sum may exceed or fall below the variation.
    """
    total = float(np.nansum([row["sum_of_squares"] for row in rows])) if np.ptp(y) > 0 else 0.0
    for row in rows:
        row["variation_share"] = 100 * row["sum_of_squares"] / total if total > 0 else 0.0


def table_of(rows: Sequence[Mapping[str, Any]], response: str, n: int, scale: str) -> pd.DataFrame:
    """The effects table of rows on a scale, of `n` runs; on the logarithmic scale with ratios."""
    constants: dict[str, Any] = {"response": response, "n": n, "scale": scale, "level": LEVEL}
    columns: dict[str, Any] = {}
    for column in COLUMNS:
        values = [constants[column] if column in constants else row.get(column) for row in rows]
        if column in _UNSAID:
            texts = [v if isinstance(v, str) else _UNSAID[column] for v in values]
            columns[column] = np.array(texts, dtype=object)
        elif column in _TEXTS:
            columns[column] = values
        else:
            columns[column] = np.array(values, "int64" if column in ("df", "n") else "float64")
    if scale == LOG:
        for part in ("", "_ci_low", "_ci_high"):
            columns["ratio" + part] = np.exp(columns["effect" + part])
    return pd.DataFrame(columns, columns=list(COLUMNS))


_TEXTS = ("response", "term", "aliases", "method", "stratum", "correlations", "scale")
#: defaults of missing values
_UNSAID = {"aliases": "", "correlations": "", "method": "least squares"}


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
    ss = sum_of_squares(fit, where)
    row |= {"sum_of_squares": ss, "mean_square": ss / width}
    q, covariance, df = estimate(fit, i)
    row["df_error"] = df
    tested = df > 0 and bool(np.isfinite(covariance).all())
    bias = fit.bias(i)
    if tested and np.all(np.diag(covariance) > 0):
        row["f_value"] = float(q @ np.linalg.solve(covariance, q)) / width
        least = row["f_value"] if bias is None else _least_f(fit, i, q, covariance)
        row["p_value"] = float(special.fdtrc(width, df, least))
    elif tested:
        row["p_value"] = 0.0 if ss > 0 and bias is None else 1.0
    elif fit.groups:
        row["method"] = NO_ERROR
    if width == 1 and not square_of(term.name):
        row |= _interval(float(q[0]), float(covariance[0, 0]), df if tested else 0, confidence)
        row |= widened(row, bias)
    elif tested:
        row["method"] = "F test"
    if fit.mixed is not None and tested:
        row["method"] = REML
    return row


def _least_f(fit: Fit, i: int, q: Values, covariance: Values) -> float:
    """The smallest F of a term under any correction of degraded runs: by the triangle inequality in the
    norm of the test, exact for a term of one coefficient."""
    assert fit.bounds is not None
    if len(q) == 1:
        below, above = fit.bias(i) or (np.zeros(1), np.zeros(1))
        least = max(abs(float(q[0])) - float((below if q[0] > 0 else above)[0]), 0.0)
        return least**2 / float(covariance[0, 0])
    weights = fit.weights[fit.where[i]]
    far = np.maximum(*fit.bounds)
    moved = float(np.sqrt(np.sum(weights * np.linalg.solve(covariance, weights), axis=0)) @ far)
    size = math.sqrt(float(q @ np.linalg.solve(covariance, q)))
    return max(size - moved, 0.0) ** 2 / len(q)


def widened(row: Mapping[str, Any], bias: tuple[Values, Values] | None) -> dict[str, Any]:
    """Bounds of a coefficient and its effect, widened by the bias of degraded runs."""
    if bias is None:
        return {}
    below, above = (float(side[0]) for side in bias)
    ends = {"bias": 2 * max(below, above), "_bias": (2 * below, 2 * above)}
    for name, factor in (("", 1), ("effect_", 2)):
        if f"{name}ci_low" in row:
            ends[f"{name}ci_low"] = row[f"{name}ci_low"] - factor * below
            ends[f"{name}ci_high"] = row[f"{name}ci_high"] + factor * above
    return ends


@lru_cache(maxsize=64)
def _student(confidence: float, df: float) -> float:
    """Half-width of a two-sided interval in standard errors."""
    return float(stats.t.ppf((1 + confidence) / 2, df))


def _interval(q: float, variance: float, df: float, confidence: float) -> dict[str, Any]:
    estimates: dict[str, Any] = {"coefficient": q, "effect": 2 * q}
    if df <= 0:
        return estimates
    error = math.sqrt(variance)
    half = _student(confidence, df) * error
    return estimates | {
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
    ss = sum_of_squares(fit, where)
    # blocks contain complete settings
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
        row["p_value"] = float(special.fdtrc(width, error.df, row["f_value"]))
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
    """Variance component of a stratum, at least 0."""
    run = fit.errors[RUN].mean_square
    if fit.mixed is not None:
        return fit.mixed.run_variance if name == RUN else fit.mixed.setting_variance
    if name == RUN:
        return run
    size = len(fit.y) / (int(fit.groups[name].max()) + 1)
    return max((fit.errors[name].mean_square - run) / size, 0.0)


def _types(rows: list[dict[str, Any]], fit: Fit) -> None:
    """Sums of squares of type I (terms in order) and II (adjusted for all terms that do not contain it).

    Only if every term has an estimate; for balanced data the types are equal.
    """
    if not fit.complete:
        return
    terms = fit.design.terms
    x = fit.design.columns(terms)
    cells = Cells.of(fit.design.of_run, fit.block)
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
    # a square contains its factor, not the other way round
    names = [{*t.name.split(":"), *([t.name] if square_of(t.name) else ())} for t in terms]
    for i, row in enumerate(rows):
        own = list(range(fit.where[i].start, fit.where[i].stop))
        beside = [0, *blocks]
        for j, where in enumerate(fit.where):
            if not names[i] <= names[j]:
                beside += range(where.start, where.stop)
        row["sum_of_squares_2"] = _explained(gram, product, beside + own) - _explained(
            gram, product, beside
        )


def _explained(gram: Values, product: Values, columns: list[int]) -> float:
    return float(
        product[columns]
        @ linalg.solve(gram[np.ix_(columns, columns)], product[columns], assume_a="pos")
    )


def _correlations(rows: list[dict[str, Any]], fit: Fit) -> None:
    """The three largest correlations of each estimate with others, if lost runs caused any."""
    single = [i for i, t in enumerate(fit.design.terms) if t.width == 1 and not fit.without[i]]
    at = [fit.where[i].start for i in single]
    cov = fit.covariance[np.ix_(at, at)]
    size = np.sqrt(np.diag(cov))
    correlations = cov / np.outer(size, size)
    np.fill_diagonal(correlations, 0)
    correlations[np.abs(correlations) < 1e-6] = 0
    for i, line in zip(single, correlations, strict=True):
        largest = [int(j) for j in np.argsort(-np.abs(line), kind="stable")[:3] if line[j]]
        names = [fit.design.terms[single[j]].name for j in largest]
        rows[i]["correlations"] = ", ".join(
            f"{name} {line[j]:+.2f}" for name, j in zip(names, largest, strict=True)
        )


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
    """Intervals of Lenth's margin for terms without pure error; a term of several contrasts is tested by
    the largest of them, adjusted for their number (Šidák)."""
    usable = [r for r in rows if "effect" in r]
    wide = [r for r in rows if "parts" in r]
    sizes = [*(r["effect"] for r in usable), *(size for r in wide for size in r["parts"])]
    if len(sizes) < 3:
        for row in [*usable, *wide]:
            row["method"] = NO_ERROR
        return
    measure = lenth(sizes, confidence)

    def chance(size: float) -> float:
        """The p-value of a contrast of this size."""
        if measure.pse > 0:
            return float(2 * stats.t.sf(abs(size) / measure.pse, len(sizes) / 3))
        return 0.0 if size else 1.0

    for row in wide:
        # test by the largest of its contrasts
        largest = max(max(map(abs, row["parts"])) - row.get("bias", 0.0), 0.0)
        row |= {"method": LENTH, "p_value": together(chance(largest), len(row["parts"]))}
    for row in usable:
        half = measure.me / 2
        below, above = row.get("_bias", (0.0, 0.0))
        least = max(abs(row["effect"]) - (below if row["effect"] > 0 else above), 0.0)
        row |= {
            "standard_error": measure.pse / 2,
            "ci_low": row["coefficient"] - half - below / 2,
            "ci_high": row["coefficient"] + half + above / 2,
            "effect_ci_low": row["effect"] - measure.me - below,
            "effect_ci_high": row["effect"] + measure.me + above,
            "method": LENTH,
            "p_value": chance(least),
        }


def named_between_blocks(table: pd.DataFrame, plan: Plan, y: Values) -> pd.DataFrame:
    """The effects table of a plan with blocks within passes: marks terms confounded with blocks; if no
    other term lacks an estimate, the rest have shares of the variation of `y`."""
    missing = table["method"].eq(NOT_ESTIMABLE)
    block = np.array([row.block for row in plan.rows])
    lost = table.loc[missing, "term"]
    between = table["term"].isin([t for t in lost if _is_between(plan, str(t), block)])
    table.loc[between, "method"] = CONFOUNDED_WITH_BLOCKS
    table.loc[between, "aliases"] = table.loc[between, "aliases"].str.replace(
        r"not estimable.*", "the difference between blocks", regex=True
    )
    return share_among(table, missing == between, y)


def share_among(table: pd.DataFrame, by_design: pd.Series[bool], y: Values) -> pd.DataFrame:
    """The table with shares of the variation of `y`, if the design explains all missing terms."""
    if bool(by_design.all()):
        rows = [{"sum_of_squares": s} for s in table["sum_of_squares"]]
        share_variation(rows, y)
        table["variation_share"] = [row["variation_share"] for row in rows]
    return table


def _is_between(plan: Plan, term: str, block: Numbers) -> bool:
    """True if a term is constant in each block."""
    signs = np.array([prod(row.coded[name] for name in term.split(":")) for row in plan.rows])
    return all(len(set(signs[block == b])) == 1 for b in set(block))
