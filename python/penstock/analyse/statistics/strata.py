"""Strata of an order: runs that shared a setting, and the error term of each term.

If a setting was shared by several runs (a whole plot, or the rows and columns of a strip-plot), its random
effect is common to these runs: factors that changed with the setting are tested by the variation between
settings, the others by the variation within them (Fisher 1925; Box, Hunter & Hunter 2005, chapter 9). Data
in which each term lies in one stratum give exact tests. Lost runs unbalance them: the variances of
settings and runs are then estimated by restricted maximum likelihood, terms by generalised least squares,
and degrees of freedom after Satterthwaite, bounded by those of the settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import linalg, optimize

from penstock.analyse.rounding import ROUNDING
from penstock.analyse.statistics.terms import Numbers, Values
from penstock.design.planned import Plan
from penstock.errors import PenstockError

#: the stratum of single runs
RUN = "run"
#: stratum of the columns of mean and blocks, above all strata
ALL = ""
#: strata of a plan, coarse before fine: attribute of a planned run, stratum
PLOTS = (("whole_plot", "whole_plot"), ("strip", "strip"))
#: minimum relative size of a term's component in a stratum
_THERE = 1e-8


@dataclass(frozen=True)
class Stratum:
    """The error of one stratum: its sum of squares and degrees of freedom."""

    name: str
    sum_of_squares: float
    df: int

    @property
    def mean_square(self) -> float:
        """Mean square; NaN without degrees of freedom."""
        return self.sum_of_squares / self.df if self.df > 0 else math.nan


def groups_of(data: pd.DataFrame, plan: Plan) -> dict[str, Numbers]:
    """Stratum → the setting of each run, for a plan whose order shares settings; else empty.

    A run that was repeated outside its setting had a setting of its own: if starting times are recorded,
    only neighbours in time share a setting.
    """
    if not plan.rows or all(row.whole_plot == 0 for row in plan.rows):
        return {}
    if "run_id" not in data.columns:
        raise PenstockError(
            "the runs have no column run_id: the settings that they shared are unknown"
        )
    settings: dict[str, Numbers] = {}
    for attribute, name in PLOTS:
        planned = {row.run_id: int(getattr(row, attribute)) for row in plan.rows}
        if not any(planned.values()):
            continue
        label = data["run_id"].astype(str).map(planned)
        if label.isna().any():
            strange = data["run_id"][label.isna()].iloc[0]
            raise PenstockError(
                f"run {strange} is not in the plan: the settings that it shared are unknown"
            )
        of_run = label.to_numpy(dtype=np.int64)
        if attribute == "whole_plot":
            of_run = _as_executed(data, of_run)
        settings[name] = np.unique(of_run, return_inverse=True)[1]
    return settings


def _as_executed(data: pd.DataFrame, planned: Numbers) -> Numbers:
    """Settings in order of time: stretches of runs of one planned whole plot."""
    start = _starts(data)
    if start is None:
        return planned
    order = np.argsort(start, kind="stable")
    changed = np.diff(planned[order], prepend=planned[order[0]] - 1) != 0
    executed = np.empty_like(planned)
    executed[order] = np.cumsum(changed)
    return executed


def _starts(data: pd.DataFrame) -> Values | None:
    """The starting times of the runs [ns]; None unless all are recorded."""
    if "start_realtime_ns" not in data.columns:
        return None
    start = pd.to_numeric(data["start_realtime_ns"], errors="coerce").to_numpy(dtype=float)
    return start if np.isfinite(start).all() else None


def places_in_time(data: pd.DataFrame, planned: Values) -> Values:
    """The place of each run in time, from 1; as `planned` unless all starting times are recorded. A run that
    was repeated has the place of its repetition."""
    start = _starts(data)
    if start is None:
        return planned
    places = np.empty(len(start))
    places[np.argsort(start, kind="stable")] = np.arange(1.0, len(start) + 1)
    return places


def means_of(columns: Values, of_run: Numbers) -> Values:
    """Columns with each run's value replaced by the mean of its group."""
    wide = columns if columns.ndim == 2 else columns[:, None]
    groups = int(of_run.max()) + 1
    sums = np.zeros((groups, wide.shape[1]))
    np.add.at(sums, of_run, wide)
    means = (sums / np.bincount(of_run, minlength=groups)[:, None])[of_run]
    return means if columns.ndim == 2 else means[:, 0]


def stratum_of(columns: Values, groups: dict[str, Numbers]) -> str | None:
    """The stratum of a term: the first with settings in which it is constant, or the run stratum if it
    sums to zero within each; None if it lies in several."""
    norm = float(np.linalg.norm(columns))
    shares = {}
    for name, of_run in groups.items():
        shares[name] = float(np.linalg.norm(means_of(columns, of_run))) / norm if norm else 0.0
    for name, share in shares.items():
        if abs(share - 1) < _THERE:
            return name
    return RUN if all(share < _THERE for share in shares.values()) else None


def error_strata(
    residuals: Values, used: Values, of_column: Sequence[str], groups: dict[str, Numbers]
) -> dict[str, Stratum]:
    """The error of each stratum of orthogonal data.

    `residuals` of the least-squares fit; `used`: its columns, `of_column` the stratum of each (`RUN`, `ALL`
    or a key of `groups`).
    """
    strata: dict[str, Stratum] = {}
    rest, df_rest = float(residuals @ residuals), len(residuals) - used.shape[1]
    coarse: list[str] = []
    for name, of_run in groups.items():
        inside = [c for c in coarse if _nested(groups[c], of_run)]
        mean = means_of(residuals, of_run)
        squares = float(mean @ mean) - sum(strata[c].sum_of_squares for c in inside)
        first = np.unique(of_run, return_index=True)[1]
        members = [i for i, s in enumerate(of_column) if s in (ALL, name, *inside)]
        fixed = [used[:, members], *(_indicators(groups[c]) for c in inside)]
        df = len(first) - int(np.linalg.matrix_rank(np.hstack(fixed)[first]))
        strata[name] = Stratum(name, max(squares, 0.0) if df else 0.0, df)
        rest, df_rest = rest - strata[name].sum_of_squares, df_rest - df
        coarse.append(name)
    strata[RUN] = Stratum(RUN, max(rest, 0.0) if df_rest else 0.0, df_rest)
    return strata


def _nested(outer: Numbers, inner: Numbers) -> bool:
    """True if every group of `inner` lies in one of `outer`."""
    pairs = np.unique(np.column_stack([outer, inner]), axis=0)
    return len(pairs) == len(np.unique(inner))


def _indicators(of_run: Numbers) -> Values:
    return np.asarray(np.eye(int(of_run.max()) + 1)[of_run])


def equal_sizes(of_run: Numbers) -> bool:
    """True if all settings have the same number of runs."""
    counts = np.bincount(of_run)
    return bool((counts == counts[0]).all())


# ---------------------------------------------------------------- unbalanced: REML


@dataclass(frozen=True)
class Mixed:
    """A fit with a random setting: coefficients with their covariance, variances of run and setting.

    `uncertainty` is the covariance of the two variances, `gradients` the derivatives of the coefficients'
    covariance by them; both None if the settings have no variance.
    """

    coefficients: Values
    covariance: Values
    run_variance: float
    setting_variance: float
    uncertainty: Values | None
    gradients: tuple[Values, Values] | None

    def df(self, where: slice, most: float) -> float:
        """Satterthwaite's degrees of freedom of the term in these columns, at most `most`.

        Several columns are decomposed along the principal axes of their covariance (Fai & Cornelius 1996).
        """
        if self.uncertainty is None or self.gradients is None:
            return most
        block = self.covariance[where, where]
        values, axes = np.linalg.eigh(block)
        each = []
        for value, axis in zip(values, axes.T, strict=True):
            slope = np.array([axis @ g[where, where] @ axis for g in self.gradients])
            spread = float(slope @ self.uncertainty @ slope)
            each.append(2 * value**2 / spread if spread > 0 else most)
        if len(each) == 1:
            return min(each[0], most)
        total = sum(d / (d - 2) for d in each if d > 2)
        joint = 2 * total / (total - len(each)) if total > len(each) else 1.0
        return min(joint, most)


def whitened_by(theta: float, columns: Values, of_run: Numbers) -> Values:
    """Columns transformed to independent runs; `theta`: variance of settings relative to that of runs."""
    shrink = 1 - 1 / np.sqrt(1 + np.bincount(of_run) * theta)
    return np.asarray(columns - shrink[of_run][:, None] * means_of(columns, of_run))


def mixed(y: Values, x: Values, of_run: Numbers) -> Mixed:
    """Restricted maximum likelihood for y = Xβ + setting + e (Patterson & Thompson 1971).

    `x` has full column rank and fewer columns than rows; otherwise PenstockError.
    """
    n, p = x.shape
    if n <= p or int(np.linalg.matrix_rank(x)) < p:
        raise PenstockError("too few runs for the variances of settings and runs")
    # in units of the residual spread, to suit the step sizes of the derivatives
    scale = float(np.linalg.norm(y - x @ np.linalg.lstsq(x, y, rcond=None)[0])) / math.sqrt(n - p)
    if scale <= ROUNDING * float(np.linalg.norm(y)) / math.sqrt(n):
        raise PenstockError("the runs do not vary within or between settings")
    counts = np.bincount(of_run)

    def whitened(theta: float) -> tuple[Values, Values, float]:
        both = whitened_by(theta, np.column_stack([x, y / scale]), of_run)
        r = np.asarray(np.linalg.qr(both, mode="r"))
        return r[:p, :p], r[:p, p], float(r[p, p]) ** 2

    def criterion(variances: Values) -> float:
        """−2 times the restricted log-likelihood, without its constant."""
        run, setting = variances
        r, _, rss = whitened(setting / run)
        log_det = (n - p) * math.log(run) + float(np.log1p(counts * setting / run).sum())
        return float(log_det + 2 * float(np.log(np.abs(np.diag(r))).sum()) + rss / run)

    def at(ratio: float) -> tuple[float, float]:
        _, _, rss = whitened(ratio)
        run = rss / (n - p)
        return criterion(np.array([run, ratio * run])), run

    best = optimize.minimize_scalar(
        lambda log: at(math.exp(log))[0],
        bounds=(-12, 14),
        method="bounded",
        options={"xatol": 1e-9},
    )
    ratio = math.exp(float(best.x))
    if at(0.0)[0] <= at(ratio)[0] or ratio < 1e-5:
        ratio = 0.0
    run = at(ratio)[1]
    setting = ratio * run

    def covariance(variances: Values) -> Values:
        r, _, _ = whitened(variances[1] / variances[0])
        inverse = linalg.solve_triangular(r, np.eye(p))
        return np.asarray(variances[0] * inverse @ inverse.T)

    here = np.array([run, setting])
    r, projected, _ = whitened(ratio)
    beta = linalg.solve_triangular(r, projected) * scale
    covariance_here = covariance(here)
    uncertainty = gradients = None
    if ratio > 0:
        steps = 1e-4 * np.maximum(here, 1e-3 * run)
        information = _hessian(criterion, here, steps) / 2
        if np.all(np.linalg.eigvalsh(information) > 0):
            uncertainty = np.linalg.inv(information)
            sides = [(covariance(here + d) - covariance(here - d)) for d in np.diag(steps)]
            gradients = (sides[0] / (2 * steps[0]), sides[1] / (2 * steps[1]))
    squared = scale**2
    if uncertainty is not None and gradients is not None:
        gradients = (gradients[0] * squared, gradients[1] * squared)
    return Mixed(
        beta, covariance_here * squared, run * squared, setting * squared, uncertainty, gradients
    )


def _hessian(function: Any, at: Values, steps: Values) -> Values:
    """Second derivatives by central differences."""
    derivatives = np.empty((2, 2))
    moves = np.diag(steps)
    for i in range(2):
        for j in range(2):
            a, b = moves[i], moves[j]
            derivatives[i, j] = (
                function(at + a + b)
                - function(at + a - b)
                - function(at - a + b)
                + function(at - a - b)
            ) / (4 * steps[i] * steps[j])
    return derivatives
