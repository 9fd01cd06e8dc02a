"""Predicted quantities as text: three significant digits and a suitable unit."""

from __future__ import annotations

import math

from penstock.text import short

_TIMES = (
    (86400.0, "d"),
    (3600.0, "h"),
    (60.0, "min"),
    (1.0, "s"),
    (1e-3, "ms"),
    (1e-6, "µs"),
    (1e-9, "ns"),
)
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ENERGIES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))


def digits(value: float, count: int = 3) -> str:
    """The number to that many significant digits: `0.0123`, `4.8`, `1,230`."""
    if not math.isfinite(value):
        return "unbounded" if value > 0 else "–"
    return short(value, count)


def seconds(value: float, count: int = 3) -> str:
    """`4.8 s`, `12.5 ms`, `2.25 h`, to `count` significant digits."""
    return " ".join(_time_parts(value, count))


def percent(share: float) -> str:
    """`90 %`, `99.9 %`: a requested probability, never rounded up to 100 %."""
    return f"{100 * share:.10g} %"


def seconds_range(low: float, high: float, between: str = " and ") -> str:
    """Two times in the unit of the longer one: `4.6 and 5.1 s`."""
    if not math.isfinite(high):
        return f"{seconds(low)}{between}unbounded"
    unit = _unit(high)
    factor = next(f for f, u in _TIMES if u == unit)
    count = digits_apart(low, high)
    return f"{digits(low / factor, count)}{between}{digits(high / factor, count)} {unit}"


def digits_apart(low: float, high: float) -> int:
    """Digits that distinguish both numbers, and one more; 3 to 6."""
    apart = high - low
    if not 0 < apart < high or not math.isfinite(high):
        return 3
    return min(6, max(3, math.floor(math.log10(high)) - math.floor(math.log10(apart)) + 2))


def _unit(value: float) -> str:
    # minutes and hours only for long times
    steps = ((172800.0, "d"), (7200.0, "h"), (600.0, "min"), *_TIMES[3:6])
    for least, unit in steps:
        if abs(value) >= least * 0.9995:
            return unit
    return "ns" if value else "s"


def _time_parts(value: float, count: int = 3) -> tuple[str, str]:
    if not math.isfinite(value):
        return digits(value), ""
    unit = _unit(value)
    factor = next(f for f, u in _TIMES if u == unit)
    return digits(value / factor, count), unit


def size(value: float) -> str:
    """`1.5 GiB`, powers of 1024."""
    unit = 0
    while abs(value) >= 1000 and unit < len(_SIZES) - 1:
        value /= 1024
        unit += 1
    return f"{digits(value)} {_SIZES[unit]}"


def joules(value: float) -> str:
    """`12.3 kJ`."""
    for factor, unit in _ENERGIES:
        if abs(value) >= factor:
            return f"{digits(value / factor)} {unit}"
    return f"{digits(value)} J"


def money(amount: float, currency: str) -> str:
    """`0.03 EUR`: cents, or two significant digits below one."""
    if amount and abs(amount) < 0.01:
        return f"{digits(amount, 2)} {currency}"
    return f"{amount:,.2f} {currency}"


def share(value: float) -> str:
    """`97 %`."""
    if 0 < value < 1e-4:
        return "< 0.01 %"
    if 0 < value < 0.01:
        return f"{digits(100 * value, 1)} %"
    return f"{100 * value:.0f} %"
