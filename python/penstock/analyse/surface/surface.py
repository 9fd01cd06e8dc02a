"""Response surfaces over factors: predictions at treatments that were not run, curvature, lack of fit, the
stationary point and the best setting within the levels.

Numbers are coded from −1 (lowest level) to +1 (highest), other factors by effect coding. The model has
main effects, squares of numbers of three levels or more, and those products of two factors that the runs
determine; blocks sum to zero. With settings shared by several runs the fit is by restricted maximum
likelihood, with the degrees of freedom of the settings. (Box & Wilson, Journal of the Royal Statistical
Society B 13, 1951; Myers, Montgomery & Anderson-Cook, Response Surface Methodology, 4th ed. 2016, ch. 6.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, stats

from penstock.analyse.rounding import rounding_of, without_rounding
from penstock.analyse.statistics import strata
from penstock.analyse.statistics.bias import valid_only
from penstock.analyse.statistics.designed import designed_part
from penstock.analyse.statistics.fit import Fit, fitted, usable
from penstock.analyse.statistics.scale import (
    BOX_COX,
    LINEAR,
    RANK,
    SCALE_TEXTS,
    geometric_mean,
    power_beside,
    scaled,
    unscaled,
)
from penstock.analyse.statistics.terms import Numbers, Values
from penstock.analyse.surface.crossed import Crossed, crossed
from penstock.design.contrasts import products
from penstock.design.kinds.base import numeric
from penstock.design.planned import Plan
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Factor

#: setting of each factor: a number, or the name of a level
At = dict[str, float | str]
#: maximum number of settings evaluated before the best is refined
_MOST_SETTINGS = 20_000
_GRID = 9
_REFINED = 6
_DRAWS = 2000
#: ratio of curvatures below which a direction is a ridge
_RIDGE = 0.05
COLUMNS = (
    "response", "term", "coefficient", "standard_error", "ci_low", "ci_high", "p_value", "df",
    "sum_of_squares", "df_error", "scale", "power", "geometric_mean",
)  # fmt: skip
OPTIMUM_COLUMNS = (
    "response", "what", "at", "nature", "value", "ci_low", "ci_high", "run_low", "run_high",
)  # fmt: skip
PURE, LACK, CURVATURE = "pure error", "lack of fit", "curvature at the centre"


@dataclass(frozen=True)
class Predicted:
    """The response at a setting, the interval of its mean and that of one run."""

    value: float
    low: float
    high: float
    run_low: float
    run_high: float


@dataclass(frozen=True)
class Test:
    """An F test of the surface: sum of squares, degrees of freedom of both sides, F and p."""

    name: str
    sum_of_squares: float
    df: int
    df_error: int
    f: float
    p: float


@dataclass(frozen=True)
class Surface:
    """The fit; `terms` are the factor indices of each product, twice for a square."""

    response: str
    scale: str
    factors: Sequence[Factor]
    terms: list[tuple[int, ...]]
    coefficients: Values
    covariance: Values
    variance: float
    df: float
    of_column: list[str]
    tests: list[Test] = field(default_factory=list)
    #: products of two factors that the runs do not determine
    undetermined: list[str] = field(default_factory=list)
    #: of a Box-Cox scale, with the geometric mean of the runs
    power: float | None = None
    middle: float = 1.0
    #: fit of runs that share settings in two directions
    crossed: Crossed | None = None

    def coded(self, at: Mapping[str, float | str]) -> list[Values]:
        """The columns of each factor at a setting. BadInput for an unknown factor or level, or a number
        outside the levels."""
        names = [f.name for f in self.factors]
        if strange := [name for name in at if name not in names]:
            raise BadInput(f"found the factor {strange[0]}; expected {', '.join(names)}")
        columns = []
        for factor in self.factors:
            if factor.name not in at:
                raise BadInput(
                    f"found no {factor.name}; expected a value of every factor: {', '.join(names)}"
                )
            columns.append(_columns(factor, at[factor.name]))
        return columns

    def row(self, columns: Sequence[Values]) -> Values:
        """A row of the model from the columns of each factor."""
        parts: list[Values] = [np.ones(1)]
        for term in self.terms:
            if len(term) == 1:
                parts.append(columns[term[0]])
            elif term[0] == term[1]:
                parts.append(columns[term[0]] ** 2)
            else:
                parts.append(np.outer(columns[term[0]], columns[term[1]]).ravel())
        return np.concatenate(parts)

    def predict(self, at: Mapping[str, float | str], confidence: float = 0.95) -> Predicted:
        """The response at a setting."""
        x = self.row(self.coded(at))
        middle = float(x @ self.coefficients)
        spread = float(x @ self.covariance @ x)
        df = self.df_of(x)
        t = float(stats.t.ppf((1 + confidence) / 2, df)) if df > 0 else math.nan
        half, of_run = t * math.sqrt(spread), t * math.sqrt(spread + self.variance)
        ends = [middle, middle - half, middle + half, middle - of_run, middle + of_run]
        return Predicted(*(self.natural(v) for v in ends))

    def df_of(self, row: Values) -> float:
        """Degrees of freedom of the variance of a combination of coefficients."""
        if self.crossed is None:
            return self.df
        # block coefficients follow the model's own
        blocks = len(self.crossed.coefficients) - len(row)
        return self.crossed.df(np.concatenate([row, np.zeros(blocks)]))

    def natural(self, value: float) -> float:
        """Value on the scale of the fit in units of the response; the median of runs."""
        return unscaled(value, self.scale, self.power, self.middle)

    def draws(self, count: int = _DRAWS, seed: int = 1) -> Values:
        """Samples from the distribution of the coefficients (multivariate t), draws × coefficients.

        `df` is above 0.
        """
        random = np.random.default_rng(seed)
        root = _root(self.covariance)
        normal = random.normal(size=(count, len(self.coefficients))) @ root.T
        chi = random.chisquare(self.df, count) / self.df
        drawn: Values = self.coefficients + normal / np.sqrt(chi)[:, None]
        return drawn


@dataclass(frozen=True)
class Stationary:
    """A stationary point: a maximum, minimum, saddle or ridge, with the 95 % interval of each number (NaN
    without degrees of freedom of the error); `inside`: within the levels."""

    at: At
    nature: str
    inside: bool
    low: dict[str, float]
    high: dict[str, float]


def _root(covariance: Values) -> Values:
    values, axes = np.linalg.eigh(covariance)
    return np.asarray(axes * np.sqrt(np.maximum(values, 0)))


def numbers_of(factor: Factor) -> list[float] | None:
    """The values of a quantitative factor; None for a qualitative one."""
    values = numeric(factor)
    return values if values is not None and len(values) > 1 else None


def _columns(factor: Factor, value: float | str) -> Values:
    values = numbers_of(factor)
    names = [level.name for level in factor.levels]
    if values is not None:
        if isinstance(value, str) and value in names:
            number = values[names.index(value)]
        else:
            try:
                number = float(value)
            except ValueError:
                raise BadInput(f"found {factor.name} = {value!r}; expected a number") from None
        low, high = min(values), max(values)
        slack = 1e-9 * (high - low)
        if not low - slack <= number <= high + slack:
            raise BadInput(
                f"found {factor.name} = {number:g}; expected {low:g} to {high:g}: nothing is known outside "
                "of the levels that were run"
            )
        return np.array([(2 * number - low - high) / (high - low)])
    if str(value) not in names:
        raise BadInput(f"found {factor.name} = {value}; expected one of {', '.join(names)}")
    return np.asarray(_effect_code(len(names))[names.index(str(value))])


def _effect_code(levels: int) -> Values:
    code: Values = np.vstack([np.eye(levels - 1), -np.ones(levels - 1)])
    return code if levels > 2 else -code


def surface(
    runs: pd.DataFrame,
    plan: Plan,
    response: str,
    scale: str = LINEAR,
    names: Collection[str] | None = None,
) -> Surface:
    """The surface of a response over the valid runs, without degraded ones, in the factors of `names`
    (default: all). PenstockError if it cannot be fitted.

    On a Box-Cox scale the power is the maximum-likelihood one for this surface.
    """
    if scale == RANK:
        raise PenstockError(
            f"a surface is of values, their logarithms or a power of them; {response} is on the scale of "
            f"{SCALE_TEXTS[scale]}"
        )
    runs = valid_only(runs)
    if plan.stages:
        runs, plan = designed_part(runs, plan)
    fit = fitted(runs, plan, response, LINEAR if scale == BOX_COX else scale)
    places = [j for j, f in enumerate(plan.factors) if names is None or f.name in names]
    factors = [plan.factors[j] for j in places]
    levels = fit.design.levels[:, places]
    columns = [
        np.vstack([_columns(f, level.name) for level in f.levels])[levels[:, j]]
        for j, f in enumerate(factors)
    ]
    design = np.ones((len(levels), 1))
    blocks_of = fit.block_columns
    basis = np.linalg.qr(np.hstack([np.ones((len(fit.y), 1)), blocks_of]))[0]
    terms: list[tuple[int, ...]] = []
    of_column, undetermined = ["mean"], []
    distinct = len(np.unique(np.column_stack([fit.design.of_run, blocks_of]), axis=0))
    for term in _candidates(factors, levels):
        block = _product(term, columns)
        larger = _extended(basis, block[fit.design.of_run])
        if larger is None or larger.shape[1] > distinct:
            if len(term) == 2:
                undetermined.append(_name(factors, term))
            continue
        basis = larger
        terms.append(term)
        design = np.hstack([design, block])
        of_column += [_name(factors, term)] * block.shape[1]
    x = np.hstack([design[fit.design.of_run], blocks_of])
    power, middle = None, 1.0
    if scale == BOX_COX:
        power, middle = power_beside(fit.y, x), geometric_mean(fit.y)
        data = usable(runs, plan, response)
        fit = fitted(data.assign(**{response: scaled(fit.y, scale, power)}), plan, response)
    both = crossed(fit.y, x, fit.groups, fit.errors) if len(fit.groups) > 1 else None
    solved = _least_squares(fit, x) if both is None else _of_crossed(both)
    width = design.shape[1]
    built = Surface(
        response, scale, factors, terms, solved[0][:width], solved[1][:width, :width], solved[2],
        solved[3], of_column, [], undetermined, power, middle, both,
    )  # fmt: skip
    if fit.groups:
        return built
    return Surface(**{**vars(built), "tests": list(_tests(fit, x, factors, columns))})


def _candidates(factors: Sequence[Factor], levels: Numbers) -> Iterator[tuple[int, ...]]:
    places = range(len(factors))
    yield from ((j,) for j in places)
    for j in places:
        if numbers_of(factors[j]) is not None and len(np.unique(levels[:, j])) > 2:
            yield (j, j)
    yield from itertools.combinations(places, 2)


def _product(term: tuple[int, ...], columns: list[Values]) -> Values:
    if len(term) == 1:
        return np.asarray(columns[term[0]])
    if term[0] == term[1]:
        return np.asarray(columns[term[0]] ** 2)
    return products(columns[term[0]], columns[term[1]])


def _name(factors: Sequence[Factor], term: tuple[int, ...]) -> str:
    if len(term) == 2 and term[0] == term[1]:
        return f"{factors[term[0]].name}²"
    return ":".join(factors[j].name for j in term)


def _extended(basis: Values, columns: Values) -> Values | None:
    """The orthonormal basis with all of these columns, None if one depends on the others."""
    for column in columns.T:
        rest = column - basis @ (basis.T @ column)
        rest = rest - basis @ (basis.T @ rest)
        length = float(np.linalg.norm(rest))
        if length <= 1e-7 * max(float(np.linalg.norm(column)), 1e-30):
            return None
        basis = np.column_stack([basis, rest / length])
    return basis


def _of_crossed(both: Crossed) -> tuple[Values, Values, float, float]:
    """The same for runs that share settings in two directions; the least degrees of freedom of a stratum."""
    df = min(df for _, _, df in both.by_stratum)
    return both.coefficients, both.covariance, both.run_variance, df


def _least_squares(fit: Fit, x: Values) -> tuple[Values, Values, float, float]:
    """Coefficients, their covariance, the variance of a run, degrees of freedom."""
    if fit.groups:
        name, group = next(iter(fit.groups.items()))
        mixed = strata.mixed(fit.y, x, group)
        df = float(fit.errors[name].df)
        if df < 1:
            raise PenstockError(
                f"no error estimate for a surface: there are too few settings of the "
                f"{name.replace('_', ' ')}s"
            )
        return (
            mixed.coefficients, mixed.covariance, mixed.run_variance + mixed.setting_variance, df,
        )  # fmt: skip
    q, r = np.linalg.qr(x)
    inverse = np.linalg.inv(r)
    solution = inverse @ (q.T @ fit.y)
    solution, residual = without_rounding(fit.y, solution, fit.y - x @ solution)
    df = len(x) - x.shape[1]
    variance = float(residual @ residual) / df if df > 0 else math.nan
    return solution, inverse @ inverse.T * variance, variance, float(df)


def _tests(fit: Fit, x: Values, factors: Sequence[Factor], columns: list[Values]) -> Iterator[Test]:
    """Lack of fit against pure error, and the mean of the corners against that of the centre."""
    of_run = fit.design.of_run
    full = np.hstack([np.eye(len(fit.design.levels))[of_run], fit.block_columns])
    rank = int(np.linalg.matrix_rank(full))
    pure = _rest(full, fit.y)
    df_pure = len(fit.y) - rank
    model = _rest(x, fit.y)
    df_model = len(fit.y) - x.shape[1]
    df_lack = df_model - df_pure
    if df_pure < 1:
        return
    variance = pure / df_pure
    yield Test(PURE, pure, df_pure, df_pure, math.nan, math.nan)
    if df_lack > 0:
        yield _f_test(LACK, max(model - pure, 0.0), df_lack, variance, df_pure)
    if any(numbers_of(f) is None for f in factors):
        return
    place = np.hstack(columns)
    centre = np.all(np.abs(place) < 1e-9, axis=1)
    corner = np.all(np.abs(np.abs(place) - 1) < 1e-9, axis=1)
    if centre.any() and corner.any():
        # corners' mean minus the centre's, from treatment means adjusted for blocks
        solution = np.linalg.pinv(full.T @ full)
        means = solution @ full.T @ fit.y
        weights = np.zeros(full.shape[1])
        weights[np.flatnonzero(corner)] = 1 / corner.sum()
        weights[np.flatnonzero(centre)] = -1 / centre.sum()
        difference = float(weights @ means)
        if abs(difference) <= rounding_of(fit.y):
            difference = 0.0
        spread = float(weights @ solution @ weights)
        yield _f_test(CURVATURE, difference**2 / spread, 1, variance, df_pure)


def _rest(x: Values, y: Values) -> float:
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    _, residual = without_rounding(y, solution, y - x @ solution)
    return float(residual @ residual)


def _f_test(name: str, square: float, df: int, variance: float, df_error: int) -> Test:
    """The test of a sum of squares; without pure error anything but rounding errors is significant."""
    if not variance > 0:
        f = math.inf if square > 0 else 0.0
        return Test(name, square, df, df_error, f, 0.0 if square > 0 else 1.0)
    f = square / df / variance
    return Test(name, square, df, df_error, f, float(stats.f.sf(f, df, df_error)))


def surface_table(surface: Surface, confidence: float = 0.95) -> pd.DataFrame:
    """A row for each coefficient and each test; columns in `COLUMNS`."""
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(surface.of_column):
        q, spread = float(surface.coefficients[i]), float(surface.covariance[i, i])
        error = math.sqrt(spread) if spread >= 0 else math.nan
        df = surface.df_of(np.eye(len(surface.coefficients))[i])
        t = float(stats.t.ppf((1 + confidence) / 2, df)) if df > 0 else math.nan
        tested = df > 0 and error > 0
        rows.append(
            {
                "term": name,
                "coefficient": q,
                "standard_error": error,
                "ci_low": q - t * error,
                "ci_high": q + t * error,
                "p_value": float(2 * stats.t.sf(abs(q) / error, df)) if tested else math.nan,
                "df": 1,
                "df_error": df,
            }
        )
    rows += [
        {
            "term": test.name,
            "p_value": test.p,
            "df": test.df,
            "sum_of_squares": test.sum_of_squares,
            "df_error": float(test.df_error),
        }
        for test in surface.tests
    ]
    table = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    table["response"], table["scale"] = surface.response, surface.scale
    table["power"] = math.nan if surface.power is None else surface.power
    table["geometric_mean"] = math.nan if surface.power is None else surface.middle
    numeric = [c for c in COLUMNS if c not in ("response", "term", "scale", "df")]
    return table.astype(dict.fromkeys(numeric, "float64") | {"df": "int64"})


# ---------------------------------------------------------------- best setting


class Merit:
    """Objective to maximise over settings: a function of predicted responses."""

    def __init__(self, surfaces: Sequence[Surface], of: Any) -> None:
        self.surfaces, self._of = surfaces, of

    def __call__(self, columns: Sequence[Values]) -> float:
        values = [s.natural(float(s.row(columns) @ s.coefficients)) for s in self.surfaces]
        return float(self._of(values))


def best_setting(
    merit: Merit, forbidden: Sequence[Mapping[str, Sequence[str]]] = (), seed: int = 1
) -> At:
    """The setting within the levels that maximises the merit; numbers between levels are allowed,
    forbidden combinations are not. PenstockError if no setting is allowed."""
    factors = merit.surfaces[0].factors
    options: list[list[float | str]] = []
    for factor in factors:
        values = numbers_of(factor)
        if values is None:
            options.append([level.name for level in factor.levels])
        else:
            grid = np.linspace(min(values), max(values), _GRID).tolist()
            options.append(sorted(set(grid) | set(values)) if len(factors) < 5 else sorted(values))
    if math.prod(map(len, options)) <= _MOST_SETTINGS:
        every: list[tuple[float | str, ...]] = list(itertools.product(*options))
    else:
        random = np.random.default_rng(seed)
        every = [
            tuple(o[int(i)] for o, i in zip(options, row, strict=True))
            for row in np.column_stack(
                [random.integers(0, len(o), _MOST_SETTINGS) for o in options]
            )
        ]
    names = [f.name for f in factors]
    coded = [{v: _columns(f, v) for v in o} for f, o in zip(factors, options, strict=True)]
    allowed = [
        row
        for row in every
        if not _is_forbidden(dict(zip(names, row, strict=True)), factors, forbidden)
    ]
    if not allowed:
        raise PenstockError("every setting is forbidden")
    scored = sorted(
        (
            (merit([c[v] for c, v in zip(coded, row, strict=True)]), i)
            for i, row in enumerate(allowed)
        ),
        key=lambda pair: -pair[0],
    )
    best, value = dict(zip(names, allowed[scored[0][1]], strict=True)), scored[0][0]
    for _, i in scored[:_REFINED]:
        refined = _refined(merit, dict(zip(names, allowed[i], strict=True)))
        if _is_forbidden(refined, factors, forbidden):
            continue
        there = merit([_columns(f, refined[f.name]) for f in factors])
        if there > value + 1e-9 * abs(value):
            best, value = refined, there
    return best


def _refined(merit: Merit, at: At) -> At:
    factors = merit.surfaces[0].factors
    moving = [f for f in factors if numbers_of(f) is not None]
    fixed = {f.name: _columns(f, at[f.name]) for f in factors}
    if not moving:
        return at

    def loss(z: Values) -> float:
        here = fixed | {f.name: np.array([v]) for f, v in zip(moving, z, strict=True)}
        return -merit([here[f.name] for f in factors])

    start = np.array([fixed[f.name][0] for f in moving])
    optimum = optimize.minimize(loss, start, method="L-BFGS-B", bounds=[(-1.0, 1.0)] * len(moving))
    return at | {f.name: _value(f, float(z)) for f, z in zip(moving, optimum.x, strict=True)}


def _value(factor: Factor, coded: float) -> float:
    values = numbers_of(factor)
    assert values is not None
    low, high = min(values), max(values)
    value = (low + high) / 2 + coded * (high - low) / 2
    near = min(values, key=lambda v: abs(v - value))
    return near if abs(near - value) < 1e-6 * (high - low) else value


def _is_forbidden(
    at: Mapping[str, float | str],
    factors: Sequence[Factor],
    forbidden: Sequence[Mapping[str, Sequence[str]]],
) -> bool:
    """True if a setting, each number rounded to its nearest level, is a forbidden combination."""
    if not forbidden:
        return False
    nearest = {}
    for factor in factors:
        values, value = numbers_of(factor), at[factor.name]
        if values is None or isinstance(value, str):
            nearest[factor.name] = str(value)
        else:
            place = int(np.argmin([abs(v - value) for v in values]))
            nearest[factor.name] = factor.levels[place].name
    return any(
        all(nearest[n] in levels for n, levels in combination.items()) for combination in forbidden
    )


def stationary(surface: Surface, at: Mapping[str, float | str]) -> Stationary | None:
    """The stationary point in the numbers that have a square, other factors as in `at`; None without
    squares."""
    places = [t[0] for t in surface.terms if len(t) == 2 and t[0] == t[1]]
    if not places:
        return None
    columns = surface.coded(at)
    first = _solved(surface, surface.coefficients, columns, places)
    if first is None:
        return None
    point, curvature = first
    values = np.linalg.eigvalsh(curvature)
    size = np.abs(values)
    if size.min() < _RIDGE * size.max():
        nature = "ridge"
    elif values.max() < 0:
        nature = "maximum"
    else:
        nature = "minimum" if values.min() > 0 else "saddle"
    factors = [surface.factors[j] for j in places]
    names = [f.name for f in factors]
    low = high = np.full(len(places), math.nan)
    if surface.df > 0:
        solved = [_solved(surface, q, columns, places) for q in surface.draws()]
        points = np.array([s[0] for s in solved if s is not None])
        low, high = np.quantile(points, [0.025, 0.975], axis=0)
    return Stationary(
        {f.name: _value(f, float(z)) for f, z in zip(factors, point, strict=True)},
        nature,
        bool(np.all(np.abs(point) <= 1)),
        {n: _value(f, float(z)) for n, f, z in zip(names, factors, low, strict=True)},
        {n: _value(f, float(z)) for n, f, z in zip(names, factors, high, strict=True)},
    )


def _solved(
    surface: Surface, coefficients: Values, columns: Sequence[Values], places: list[int]
) -> tuple[Values, Values] | None:
    """Coded numbers at which the slope is 0, and the matrix of second derivatives."""
    count = len(places)

    def value(z: Values) -> float:
        here = list(columns)
        for place, number in zip(places, z, strict=True):
            here[place] = np.array([number])
        return float(surface.row(here) @ coefficients)

    # differences over steps of 1 are exact for a quadratic
    middle, unit = value(np.zeros(count)), np.eye(count)
    ahead, behind = [value(u) for u in unit], [value(-u) for u in unit]
    slope = np.array([(a - b) / 2 for a, b in zip(ahead, behind, strict=True)])
    second = np.diag([a + b - 2 * middle for a, b in zip(ahead, behind, strict=True)])
    for i, j in itertools.combinations(range(count), 2):
        second[i, j] = second[j, i] = value(unit[i] + unit[j]) - ahead[i] - ahead[j] + middle
    try:
        return -np.linalg.solve(second, slope), second
    except np.linalg.LinAlgError:
        return None
