"""Numbers, names and lists in words: sizes, times, shares, counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def size(nbytes: float) -> str:
    """4096 as `4 KiB`: three digits, binary units."""
    value = float(nbytes)
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"


def measured(value: float, unit: str) -> str:
    """A value with its unit: bytes, also per second, as `size`, others with four digits."""
    if unit in ("B", "B/s"):
        return size(value) + unit.removeprefix("B")
    return f"{value:.4g}" + ("" if unit == "1" else f" {unit}")


def duration(ns: float) -> str:
    """1500 ns as `1.5 µs`: three digits."""
    for limit, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if ns < limit:
            return f"{ns / (limit / 1e3):.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


#: speeds that have a sign of their own
_SPEEDS = {1.5: "⅔", 2.0: "½", 3.0: "⅓", 4.0: "¼", 8.0: "⅛"}


def speed(time_scale: float) -> str:
    """How fast a disk is beside the real one: `¼ speed`, `1/12 speed`, `full speed`; `2× speed` of 0.5."""
    if time_scale == 1:
        return "full speed"
    if time_scale < 1:
        return f"{1 / time_scale:g}× speed"
    return f"{_SPEEDS.get(time_scale) or f'1/{time_scale:.10g}'} speed"


def at_speed(name: str, time_scale: float) -> str:
    """A disk, profile or level with its speed: `sata-ssd at ¼ speed`; at full speed the name alone."""
    return name if time_scale == 1 else f"{name} at {speed(time_scale)}"


def percent(share: float) -> str:
    """A share as whole percent. Time of several threads may be more than all: see `waited`."""
    return "less than 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def waited(share: float) -> str:
    """Time that threads spend per time: `65 %`; of several at once `2.65 thread-seconds per second`."""
    return percent(share) if share <= 1 else f"{share:.3g} thread-seconds per second"


def of_run(share: float) -> str:
    """The same of the run: `65 % of the run`, `2.65 thread-seconds per second of the run`."""
    return f"{waited(share)} of the run"


def tenths(share: float) -> str:
    """A share in percent to one decimal: `8.0 %`."""
    return f"{100 * share:.1f} %"


def phase(found: Mapping[str, Any]) -> str:
    """A phase's class with its number of streams or its steps, where it has them."""
    if found.get("k"):
        return f"{found['class']} ({found['k']})"
    if found.get("strides_bytes"):
        return f"{found['class']} (by {', '.join(map(str, found['strides_bytes']))})"
    return str(found["class"])


#: basis of verdicts on mapped files
FAULTS = "faults"


def basis_text(basis: str) -> str:
    """What a verdict rests on, as told to people: faults are fewer than the accesses that they stand for."""
    return f"{basis} (lower bound)" if basis == FAULTS else basis


def times(ratio: float) -> str:
    """A ratio in words of two digits: `320×`, `12×`, `1.1×`, `0.0058×`."""
    if not math.isfinite(ratio):
        return "?×"
    if ratio < 0.0995:
        return f"{_rounded(ratio):.12g}×"
    if ratio < 1.095:
        return f"{ratio:.2f}×"
    return f"{_rounded(ratio):,.{1 if ratio < 9.95 else 0}f}×"


def factor(ratio: float) -> str:
    """A ratio as a factor: `320`, `5.8`, `1.04`."""
    return times(ratio)[:-1]


def difference(ratio: float) -> str:
    """How far apart two values are, by the ratio of the one to the other: 1.12 `12 %`, 0.67 `33 %`."""
    share = abs(ratio - 1)
    return percent(share) if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"


def percents(low: float, high: float) -> str:
    """A range of shares: `2 to 9 %`, `0.3 to 1.1 %`."""
    digits = 0 if max(abs(low), abs(high)) >= 0.02 else 1
    ends = [f"{100 * end:.{digits}f}".replace("-", "−") for end in (low, high)]
    return f"{' to '.join(dict.fromkeys(ends))} %"


def cannot_exclude(ratio: float) -> str:
    """What is said where two values are not told apart, by the largest ratio that they may have."""
    if not math.isfinite(ratio):
        return ""
    size = difference(ratio) if ratio < 2 else f"a factor of {factor(ratio)}"
    return f"; a difference of up to {size} cannot be ruled out"


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


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def term_text(term: str) -> str:
    """A term for readers: `disk × pattern`, `jobs²`."""
    if factor := square_of(term):
        return f"{term_text(factor)}²"
    return str(term).replace(":", " × ").replace("_", " ")


def square_of(term: str) -> str:
    """The factor whose square a term is (`jobs` of `jobs:jobs`), else empty."""
    first, _, second = str(term).partition(":")
    return first if first == second else ""


def named_unit(name: str, unit: str) -> str:
    """`bandwidth (MiB/s)`: a name with its unit, where it has one."""
    return name if unit in ("", "1") else f"{name} ({unit})"


def counted(number: float, what: str, several: str | None = None) -> str:
    """`1 task`, `2 tasks`, `1,234 tasks`."""
    return f"{number:,.0f} {what if number == 1 else several or f'{what}s'}"


def shortened(name: str, most: int = 60) -> str:
    """A name for a table or a sentence: what is longer than `most` characters loses its middle."""
    if len(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"
