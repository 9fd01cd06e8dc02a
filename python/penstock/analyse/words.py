"""Sizes, times, shares and lists in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def size(nbytes: float) -> str:
    """4096 as `4 KiB`: three digits, binary units."""
    value = float(nbytes)
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def duration(ns: float) -> str:
    """1500 ns as `1.5 µs`: three digits."""
    for limit, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if ns < limit:
            return f"{ns / (limit / 1e3):.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def percent(share: float) -> str:
    """A share as whole percent; more than 100 where things happen side by side."""
    return "less than 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def phase(found: Mapping[str, Any]) -> str:
    """A phase's class with its number of streams or its steps, where it has them."""
    if found.get("k"):
        return f"{found['class']} ({found['k']})"
    if found.get("strides_bytes"):
        return f"{found['class']} (by {', '.join(map(str, found['strides_bytes']))})"
    return str(found["class"])


#: basis of verdicts on mapped files
FAULTS = "faults"


def basis_in_words(basis: str) -> str:
    """What a verdict rests on, as told to people: faults are fewer than the accesses that they stand for."""
    return f"{basis} (lower bound)" if basis == FAULTS else basis


def times(ratio: float) -> str:
    """A ratio in words of two digits: `320×`, `12×`, `1.1×`."""
    if not math.isfinite(ratio):
        return "?×"
    if ratio < 1.095:
        return f"{ratio:.2f}×"
    return f"{_rounded(ratio):,.{1 if ratio < 9.95 else 0}f}×"


def ratio_words(ratio: float) -> str:
    """A ratio of 2 or more as `5.8 times`, one below as `12 % more`."""
    if ratio >= 1.995:
        return f"{times(ratio)[:-1]} times"
    return f"{percent(ratio - 1)} more"


def quantity(value: float, unit: str = "") -> str:
    """A number to three digits with its unit: `41.2 MiB/s`, `18,400/s`."""
    if not math.isfinite(value):
        return "–"
    rounded = _rounded(value, 3)
    size = abs(rounded)
    digits = 0 if size >= 100 or size == 0 else max(0, 2 - math.floor(math.log10(size)))
    number = f"{rounded:,.{min(digits, 6)}f}".replace("-", "−")
    if unit.startswith("1/"):
        return number + unit[1:]
    return number if unit in ("", "1") else f"{number} {unit}"


def _rounded(value: float, digits: int = 2) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def listed(words: list[str], last: str = "and") -> str:
    """`a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def term_words(term: str) -> str:
    """A term for readers: `disk × pattern`."""
    return str(term).replace(":", " × ").replace("_", " ")


def named_unit(name: str, unit: str) -> str:
    """`bandwidth (MiB/s)`: a name with its unit, where it has one."""
    return name if unit in ("", "1") else f"{name} ({unit})"
