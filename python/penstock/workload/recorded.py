"""A response from a run's recorded series: the monitor's, a collector's, or an expression of them.

The expression gives one series (`archive.expression`), `take` a statistic of its values in a phase. `mean`
and `integral` weigh each value by its time (trapezoids between neighbours; the first and the last value last
until the ends of the phase).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.archive.completeness import TAKEN
from penstock.archive.series.expression import evaluated
from penstock.archive.series.series import Array, Recorded, Series
from penstock.errors import PenstockError, printable
from penstock.spec.study import ResponseSource
from penstock.spec.units import Unit, convert, parse_unit
from penstock.workload.measured import IncompleteError

_MOST_NAMED = 5


def recorded_value(recorded: Recorded, of_run: str, source: ResponseSource, unit: str) -> float:
    """Value in `unit`, of a run's series; `of_run` is the verdict for series without their own.

    PenstockError for no or several series, no value, or an incompatible unit; IncompleteError for incomplete
    data.
    """
    if recorded.axis != "time":
        raise PenstockError("found series that are not over time; expected some that are")
    expression = source.expression or ""
    chosen, used = evaluated(expression, recorded.series)
    for one in used:
        verdict = one.verdict or of_run
        if verdict not in TAKEN:
            raise IncompleteError(
                f"found {printable(one.name)} to be {verdict}; expected it to be complete"
            )
    if isinstance(chosen, float):
        raise PenstockError(f"found a number, {expression}; expected a series")
    if len(chosen) != 1:
        named = ", ".join(printable(s.name or s.node) for s in chosen[:_MOST_NAMED])
        rest = ", …" if len(chosen) > _MOST_NAMED else ""
        raise PenstockError(
            f"found {len(chosen)} series ({named}{rest}); expected one: "
            f"sum({expression}), mean({expression}), or one of them by its name"
        )
    (series,) = chosen
    phase = recorded.phase(source.phase, "phase")
    there = np.isfinite(series.y)
    inside = there & (series.x >= phase.start_s) & (series.x <= phase.end_s)
    if not inside.any():
        raise PenstockError(
            f"found no value of {expression} in {source.phase}; expected at least one"
        )
    x, y = series.x[inside], series.y[inside]
    value = _NUMBERS[source.take](x - phase.start_s, y, phase.end_s - phase.start_s)
    return _in(unit, value, series, source.take)


def _in(unit: str, value: float, series: Series, take: str) -> float:
    """Value in the response's unit; a value without a unit is assumed to be in it."""
    if not series.unit:
        return value
    try:
        if take == "integral":
            return _integral_in(unit, value, parse_unit(series.unit))
        return convert(value, series.unit, unit)
    except ValueError as error:
        raise PenstockError(f"found {printable(series.name)} in {series.unit}: {error}") from None


def _integral_in(unit: str, value: float, of: Unit) -> float:
    """Integral over seconds, in `unit`: of a power an energy, of a rate an amount, of a share a time.

    A count has no unit of its integral, and is taken as it is unless `unit` is a time. ValueError for other
    quantities.
    """
    target = parse_unit(unit)
    if of.dimension in ("share", "count") and target.dimension == "time":
        return value * of.factor / target.factor
    if of.dimension == "count":
        return value
    if of.dimension == "power":
        return convert(value * of.factor, "J", unit)
    amount = "1" if target.dimension == "count" else target.dimension
    if of.dimension != f"{amount}/time":
        raise ValueError(f"its integral over time is no {target.dimension}, as {unit} is")
    return value * of.factor / target.factor


def _integral(x: Array, y: Array, seconds: float) -> float:
    """Area under the values from 0 to `seconds`."""
    at = np.concatenate([[0.0], x, [seconds]])
    values = np.concatenate([y[:1], y, y[-1:]])
    return float(np.trapezoid(values, at))


def _mean(x: Array, y: Array, seconds: float) -> float:
    return _integral(x, y, seconds) / seconds if seconds > 0 else float(y.mean())


_NUMBERS: dict[str, Callable[[Array, Array, float], float]] = {
    "mean": _mean,
    "integral": _integral,
    "min": lambda x, y, s: float(y.min()),
    "max": lambda x, y, s: float(y.max()),
    "first": lambda x, y, s: float(y[0]),
    "last": lambda x, y, s: float(y[-1]),
    "median": lambda x, y, s: float(np.median(y)),
    "p95": lambda x, y, s: float(np.quantile(y, 0.95)),
    "p99": lambda x, y, s: float(np.quantile(y, 0.99)),
    "sum": lambda x, y, s: float(y.sum()),
}
