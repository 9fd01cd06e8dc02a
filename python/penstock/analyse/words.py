"""Sizes, times and shares in words."""

from __future__ import annotations

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
