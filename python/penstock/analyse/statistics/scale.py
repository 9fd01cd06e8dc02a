"""Analysis scale of a response: as measured, logarithms, a Box-Cox power, or ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, stats

from penstock.analyse.rounding import rounding_of
from penstock.analyse.statistics.bias import Values, used
from penstock.errors import PenstockError
from penstock.spec.study import Response, Study

LINEAR, LOG, BOX_COX, RANK = "linear", "log", "box-cox", "rank"
SCALES = (LINEAR, LOG, BOX_COX, RANK)
#: ratio of treatment means from which effects are ratios, unless the spread of the runs contradicts it
THREEFOLD = 3.0
#: ratio from which effects are always ratios: differences would only reflect the largest mean
HUNDREDFOLD = 100.0
#: level of the test of logarithms against the spread of the runs
_LEVEL = 0.05
#: range of Box-Cox powers on either side of 0
MOST_POWER = 3.0
#: Box-Cox powers smaller than this are logarithms
NO_POWER = 1e-6

SCALE_TEXTS = {
    LINEAR: "as measured (differences)",
    LOG: "natural logarithms (ratios)",
    BOX_COX: "a Box-Cox power",
    RANK: "ranks",
}


def scaled(
    values: NDArray[np.floating[Any]], scale: str, power: float | None = None
) -> NDArray[np.floating[Any]]:
    """The values on a scale. Box-Cox (1964) applies to the values over their geometric mean, so that
    precision does not depend on the unit, with `power`, else the maximum-likelihood one for values about a
    single mean; ranks are mean ranks (Conover & Iman 1981). PenstockError if the scale does not fit.
    """
    if scale == LINEAR:
        return values
    if scale == RANK:
        return np.asarray(stats.rankdata(values))
    if not np.all(values > 0):
        raise PenstockError(
            f"found a value of {values.min():g}; expected all above 0 for the scale {scale}"
        )
    if scale == LOG:
        return np.asarray(np.log(values))
    if scale == BOX_COX:
        relative = values / geometric_mean(values)
        if power is None:
            _, power = stats.boxcox(relative)
        logs = np.log(relative)
        return np.asarray(logs if abs(power) < NO_POWER else np.expm1(power * logs) / power)
    raise PenstockError(f"found scale {scale}; expected one of {', '.join(SCALES)}")


def scaled_ends(
    values: Values, low: Values, high: Values, scale: str, power: float | None = None
) -> tuple[Values, Values]:
    """Distance of the undisturbed value below and above each value, on a scale (`scaled`).

    Ranks move by the maximum change of the order of the runs.
    """
    if scale == RANK:
        lowest = np.array([1 + np.sum(high < end) for end in low])
        highest = np.array([len(low) - np.sum(low > end) for end in high])
        ranks = stats.rankdata(values)
        return np.maximum(ranks - lowest, 0.0), np.maximum(highest - ranks, 0.0)
    at, below, above = (_on_scale(end, values, scale, power) for end in (values, low, high))
    return np.maximum(at - below, 0.0), np.maximum(above - at, 0.0)


def _on_scale(ends: Values, values: Values, scale: str, power: float | None) -> Values:
    """Ends on the scale of the values: Box-Cox applies to values over their geometric mean."""
    if scale != BOX_COX or power is None:
        return scaled(ends, scale)
    logs = np.log(ends / geometric_mean(values))
    return np.asarray(logs if abs(power) < NO_POWER else np.expm1(power * logs) / power)


def geometric_mean(values: NDArray[np.floating[Any]]) -> float:
    """Geometric mean of values above 0."""
    return float(np.exp(np.log(values).mean()))


def power_beside(values: NDArray[np.floating[Any]], columns: NDArray[np.floating[Any]]) -> float:
    """The maximum-likelihood Box-Cox power for values about a linear model (Box & Cox 1964, equation 8).

    `columns`: runs × coefficients of the model. PenstockError if a value is not above 0, or if the model
    leaves no residuals.
    """
    if not np.all(values > 0):
        raise PenstockError(
            f"found a value of {values.min():g}; expected all above 0 for the scale {BOX_COX}"
        )
    if columns.shape[1] >= len(values):
        raise PenstockError("no Box-Cox power can be chosen: the model fits every run")
    basis = np.linalg.qr(columns)[0]

    def spread(power: float) -> float:
        # values have geometric mean 1, hence the Jacobian is 1
        moved = scaled(values, BOX_COX, power)
        rest = moved - basis @ (basis.T @ moved)
        return float(rest @ rest)

    best = optimize.minimize_scalar(spread, bounds=(-MOST_POWER, MOST_POWER), method="bounded")
    return float(best.x)


def unscaled(value: float, scale: str, power: float | None = None, middle: float = 1.0) -> float:
    """Inverse of `scaled` for one value; 0 or infinity beyond the end of a Box-Cox scale.

    `middle`: the geometric mean of the values scaled by Box-Cox."""
    if scale == BOX_COX and power is not None and abs(power) >= NO_POWER:
        if power * value <= -1:
            return 0.0 if power > 0 else math.inf
        value = math.log1p(power * value) / power
    elif scale not in (LOG, BOX_COX):
        return value
    natural = math.exp(value) if value < 700 else math.inf
    return middle * natural if scale == BOX_COX else natural


def effect_scale(rows: pd.DataFrame) -> str:
    """The scale of the effects of a response, by its rows of the table; linear without any."""
    return str(rows["scale"].iloc[0]) if "scale" in rows and len(rows) else LINEAR


def analysis_scale(runs: pd.DataFrame, study: Study, response: Response) -> str:
    """The scale of the effects of a response: as declared, else the usual one of these runs."""
    if response.scale != "auto":
        return response.scale
    surface = study.design.purpose == "optimise" or any(r.desire for r in study.responses)
    return usual_scale(runs, response.name, surface=surface)


def usual_scale(runs: pd.DataFrame, response: str, *, surface: bool = False) -> str:
    """The scale of a response with `scale: auto`: logarithms or as measured.

    Logarithms require values above 0 and treatment means that differ threefold. Below a hundredfold the
    spread of runs within treatments must not contradict them: of the Box-Cox powers 0 and 1, 1 must not be
    better at 5 % (likelihood ratio, Box & Cox 1964; never contradicted without replicates). For a
    polynomial `surface`, values below a hundredfold remain as measured.
    """
    values = pd.to_numeric(runs[response], errors="coerce").astype(float)
    values = values[used(runs, response)]
    if values.empty or not (values > 0).all() or "treatment_id" not in runs.columns:
        return LINEAR
    treatments = runs.loc[values.index, "treatment_id"]
    means = values.groupby(treatments).mean()
    if means.max() < (HUNDREDFOLD if surface else THREEFOLD) * means.min():
        return LINEAR
    if means.max() >= HUNDREDFOLD * means.min():
        return LOG
    return LINEAR if _contradicts_logarithms(values, treatments) else LOG


def _contradicts_logarithms(values: pd.Series[float], treatments: pd.Series[str]) -> bool:
    """True if the spread within treatments fits equal differences and not equal ratios."""
    free = len(values) - treatments.nunique()
    relative = (values / geometric_mean(values.to_numpy())).to_numpy()

    def spread(of: NDArray[np.floating[Any]]) -> float:
        column = pd.Series(of, index=values.index)
        return float(((column - column.groupby(treatments).transform("mean")) ** 2).sum())

    as_measured, logarithms = spread(relative), spread(np.log(relative))
    # values that differ by more than rounding have logarithms that do
    if free < 1 or not as_measured > rounding_of(relative) ** 2:
        return False
    limit = float(stats.chi2.ppf(1 - _LEVEL, 1))
    return free * math.log(logarithms / as_measured) > limit
