"""Numbers, names and lists as text: sizes, times, shares, counts."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")

#: units with prefixes, by kind, smallest first, each with its size in the kind's base unit
_UNITS: tuple[dict[str, float], ...] = (
    {"ps": 1e-12, "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0},
    {u: 1024.0**i for i, u in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))},
    {u: 1000.0**i for i, u in enumerate(("B", "kB", "MB", "GB", "TB", "PB"))},
    {u: 1000.0**i for i, u in enumerate(("bit", "kbit", "Mbit", "Gbit", "Tbit"))},
    {u: 1000.0**i for i, u in enumerate(("nJ", "µJ", "mJ", "J", "kJ", "MJ", "GJ"), -3)},
    {u: 1000.0**i for i, u in enumerate(("nW", "µW", "mW", "W", "kW", "MW", "GW"), -3)},
    {u: 1000.0**i for i, u in enumerate(("mHz", "Hz", "kHz", "MHz", "GHz"), -1)},
    {u: 1000.0**i for i, u in enumerate(("nV", "µV", "mV", "V", "kV"), -3)},
)
#: alternative spellings of units
_SPELT = {"us": "µs", "μs": "µs", "sec": "s", "bytes": "B"}
#: spellings of units of time in names of columns and in the output of programs
TIME_SPELLINGS = {
    spelling: unit
    for unit, spellings in {
        "ns": "nsec nsecs nanos nanosecond nanoseconds",
        "us": "\u03bcs usec usecs micros microsecond microseconds",
        "ms": "msec msecs millis millisecond milliseconds",
        "s": "sec secs second seconds",
        "min": "mins minute minutes",
        "h": "hr hrs hour hours",
        "d": "day days",
    }.items()
    for spelling in spellings.split()
}
#: range of numbers in which a requested unit is retained; small units of counters up to 1000
_STAYS = (0.1, 10_000.0)
_COUNTERS = ("ps", "ns", "µs", "B")
#: numbers outside this range are in exponential notation
_SMALLEST, _LARGEST = 1e-4, 1e15
#: largest logarithm of a ratio that is shown
_LARGEST_LOG = 20.0


def number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits: `0.0123`, `4.80`, `1,230`, `2.10e−7`; `–` if not finite."""
    if not math.isfinite(value):
        return "–"
    rounded = _rounded(value, digits) or 0.0  # also replaces −0
    size = abs(rounded)
    if size and not _SMALLEST <= size < _LARGEST:
        mantissa, _, power = f"{rounded:.{digits - 1}e}".partition("e")
        return f"{mantissa}e{int(power)}".replace("-", "−")
    integral = size == 0 or size >= 10 ** (digits - 1)
    places = 0 if integral else digits - 1 - math.floor(math.log10(size))
    return f"{rounded:,.{places}f}".replace("-", "−")


def fitting(values: Iterable[float], unit: str) -> tuple[float, str]:
    """Factor and unit that make the largest of the values easy to read.

    The unit stays from 0.1 to 10,000; outside, its prefix is changed if possible: 2.1e-7 s in ns.
    """
    most = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    base, slash, per = unit.partition("/")
    base = _SPELT.get(base, base)
    low, high = _STAYS
    if base in _COUNTERS:
        high = 1000.0
    kind = next((k for k in _UNITS if base in k), None)
    if kind is None or most == 0 or low <= most < high:
        return 1.0, unit
    fits = [u for u, f in kind.items() if most * kind[base] >= f * 0.9995]
    taken = fits[-1] if fits else next(iter(kind))
    return kind[base] / kind[taken], f"{taken}{slash}{per}"


def quantity(value: float, unit: str = "") -> str:
    """A number with three digits and its unit: `41.2 MiB/s`, `18,400/s`, `210 ns`."""
    return quantities([value], unit)


def quantities(values: Sequence[float], unit: str = "", between: str = " to ") -> str:
    """Numbers with three digits and a common unit: `1.20 to 4.81 s`."""
    if not any(math.isfinite(v) for v in values):
        return "–"
    factor, unit = fitting(values, unit)
    joined = between.join(dict.fromkeys(number(v * factor) for v in values))
    if unit.startswith("1/"):
        return joined + unit[1:]
    return joined if unit in ("", "1") else f"{joined} {unit}"


def estimate(value: float, low: float, high: float, unit: str = "") -> str:
    """A value with its interval: `889/s (873–905)`; without an interval only the value."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return quantity(value, unit)
    scale, unit = fitting([value], unit)
    return (
        f"{quantity(value * scale, unit)} ({span(*(number(end * scale) for end in (low, high)))})"
    )


def with_interval(value: float, low: float, high: float) -> tuple[str, str]:
    """A value and its interval as text, with at most two digits of the half width of the interval and at most
    three digits: (`0.07`, `−0.06 to 0.40`). The interval is empty if it is not finite."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return number(value), ""
    half = (high - low) / 2
    places = 1 - math.floor(math.log10(half)) if half > 0 else 15

    def shown(v: float) -> str:
        if v == 0 or abs(v) >= 10.0 ** (3 - places) or not 0 <= places <= 4:
            return number(v)
        return f"{round(v, places) + 0.0:,.{places}f}".replace("-", "−")

    return shown(value), span(shown(low), shown(high))


def span(low: str, high: str) -> str:
    """Bounds of a range: `29–35`; `−3 to 2`; a single one if their texts are equal."""
    between = " to " if "−" in low + high else "–"
    return between.join(dict.fromkeys((low, high)))


def _engineering(value: float, unit: str) -> str:
    """Three digits without trailing zeros, from 1 to 999 if there is a unit for it."""
    kind = next(k for k in _UNITS if unit in k)
    of_unit = value * kind[unit]
    fits = [u for u, f in kind.items() if abs(of_unit) >= f * (0.9995 if f <= 1 else 0.976)]
    taken = fits[-1] if fits else unit
    return f"{short(of_unit / kind[taken])} {taken}"


def short(value: float, digits: int = 3) -> str:
    """As `number`, without trailing zeros: `4.8`."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def size(nbytes: float) -> str:
    """4096 as `4 KiB`: three digits, binary units."""
    return _engineering(float(nbytes), "B")


def measured(value: float, unit: str) -> str:
    """A value with its unit: bytes, also per second, as `size`, others with four digits."""
    if unit in ("B", "B/s"):
        return size(value) + unit.removeprefix("B")
    return short(value, 4) + ("" if unit == "1" else f" {unit}")


def duration(ns: float) -> str:
    """1500 ns as `1.5 µs`: three digits."""
    return _engineering(float(ns), "ns")


#: speeds with a symbol
_SPEEDS = {1.5: "⅔", 2.0: "½", 3.0: "⅓", 4.0: "¼", 8.0: "⅛"}


def speed(time_scale: float) -> str:
    """The speed of a disk relative to the real one: `¼ speed`, `full speed`; `2× speed` of 0.5."""
    if time_scale == 1:
        return "full speed"
    if time_scale < 1:
        return f"{1 / time_scale:g}× speed"
    return f"{_SPEEDS.get(time_scale) or f'1/{time_scale:.10g}'} speed"


def at_speed(name: str, time_scale: float) -> str:
    """A disk, profile or level with its speed: `sata-ssd at ¼ speed`; at full speed only the name."""
    return name if time_scale == 1 else f"{name} at {speed(time_scale)}"


def percent(share: float) -> str:
    """A rounded share in percent, `–` if not finite. Time of threads may exceed 100 %: see `waited`."""
    if not math.isfinite(share):
        return "–"
    return "less than 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def waited(share: float) -> str:
    """Thread time per time: `65 %`; above 100 % `the time of 2.65 threads`."""
    return f"the time of {short(share)} threads" if _of_threads(share) else percent(share)


def _of_threads(share: float) -> bool:
    """True for the time of several threads: 1.004 would be `the time of 1 threads`."""
    return math.isfinite(share) and round(share, 2) > 1


def of_run(share: float) -> str:
    """`waited` for a run: `65 % of the run`, `the time of 2.65 threads`."""
    return waited(share) if _of_threads(share) else f"{waited(share)} of the run"


def percentage(share: float, places: int = 0) -> str:
    """A share in percent to that many decimals: `12 %`, `−0.9 %`."""
    return signed_percent(share, places).removeprefix("+")


def signed_percent(share: float, places: int = 1) -> str:
    """A relative difference in percent to that many decimals: `+3.1 %`, `−0.9 %`; `–` if not finite."""
    if not math.isfinite(share):
        return "–"
    # adding 0.0 replaces −0
    return f"{round(100 * share, places) + 0.0:+,.{places}f} %".replace("-", "−")


def signed(share: float, digits: int = 2) -> str:
    """A relative difference in percent to that many significant digits: `+3.1 %`, `−0.93 %`, `0 %`."""
    if not math.isfinite(share):
        return "–"
    if abs(share) < 0.0005:
        return "0 %"
    return f"{'+' if share > 0 else '−'}{short(abs(100 * share), digits)} %"


def tenths(share: float) -> str:
    """A share in percent to one decimal: `8.0 %`."""
    return percentage(share, 1)


def phase(row: Mapping[str, Any]) -> str:
    """Class of a phase, with its number of streams or its strides if any."""
    if row.get("k"):
        return f"{row['class']} ({row['k']})"
    if row.get("strides_bytes"):
        return f"{row['class']} (by {', '.join(map(str, row['strides_bytes']))})"
    return str(row["class"])


#: basis of verdicts on mapped files
FAULTS = "faults"


def basis_text(basis: str) -> str:
    """The basis of a verdict for reports. Faults are a lower bound: one stands for several accesses."""
    return f"{basis} (lower bound)" if basis == FAULTS else basis


def times(ratio: float) -> str:
    """A ratio with two digits: `320×`, `12×`, `1.1×`, `0.0058×`."""
    if not math.isfinite(ratio):
        return "?×"
    if ratio < 0.0995:
        return f"{_rounded(ratio):.12g}×"
    if ratio < 1.095:
        return f"{ratio:.2f}×"
    return f"{_rounded(ratio):,.{1 if ratio < 9.95 else 0}f}×"


def ratio_text(logarithm: float) -> str:
    """The ratio of a natural logarithm as `times`, `?×` beyond what a figure can show."""
    return times(math.exp(logarithm) if abs(logarithm) < _LARGEST_LOG else math.inf)


def factor(ratio: float) -> str:
    """A ratio as a factor: `320`, `5.8`, `1.04`."""
    return times(ratio)[:-1]


def difference(ratio: float) -> str:
    """The difference of two values by their ratio: 1.12 `12 %`, 0.67 `33 %`."""
    share = abs(ratio - 1)
    return percent(share) if not 0 < share < 0.01 else f"{100 * share:.1g} %"


def percents(low: float, high: float) -> str:
    """A range of shares: `2–9 %`, `0.3–1.1 %`, `−1 to 9 %`."""
    digits = 0 if max(abs(low), abs(high)) >= 0.02 else 1
    return f"{span(*(f'{100 * end:.{digits}f}'.replace('-', '−') for end in (low, high)))} %"


def up_to(ratio: float) -> str:
    """Largest difference within an interval, by its ratio: `up to 42 %`; empty without one."""
    if not math.isfinite(ratio):
        return ""
    return f"up to {difference(ratio) if ratio < 2 else f'a factor of {factor(ratio)}'}"


def _rounded(value: float, digits: int = 2) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def listed(items: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def first_of(items: Sequence[str], most: int) -> list[str]:
    """The first `most` items and the number of the others: `a`, `b`, `3 more`."""
    others = len(items) - most
    return [*items[:most], f"{others:,} more"] if others > 0 else list(items)


def term_text(term: str) -> str:
    """A term as text: `disk × pattern`, `jobs²`."""
    if factor := square_of(term):
        return f"{term_text(factor)}²"
    return str(term).replace(":", " × ").replace("_", " ")


def square_of(term: str) -> str:
    """Factor whose square a term is (`jobs` of `jobs:jobs`), else empty."""
    first, _, second = str(term).partition(":")
    return first if first == second else ""


def named_unit(name: str, unit: str) -> str:
    """A name with its unit, if any: `bandwidth (MiB/s)`."""
    return name if unit in ("", "1") else f"{name} ({unit})"


def counted(number: float, what: str, several: str | None = None) -> str:
    """`1 task`, `2 tasks`, `1,234 tasks`."""
    return f"{number:,.0f} {what if number == 1 else several or f'{what}s'}"


def first_reason(reason: str) -> str:
    """First of several reasons, and the number of others: `it took too long (and 2 more)`."""
    reasons = list(dict.fromkeys(part.strip() for part in reason.split(";")))
    more = len(reasons) - 1
    return f"{reasons[0]} (and {more} more)" if more else reasons[0]


def like(name: str, names: Sequence[str], most: int = 3) -> list[str]:
    """The names with a similar spelling, or with all words of `name`; the most similar first."""
    parts = [part for part in re.split(r"[^A-Za-z0-9]+", name.casefold()) if part]
    similar = difflib.get_close_matches(name, names, n=most, cutoff=0.6)
    containing = [n for n in names if parts and all(part in n.casefold() for part in parts)]
    return list(dict.fromkeys([*similar, *containing]))[:most]


def without_nan(value: T) -> T:
    """A value for JSON, which has no NaN and no infinity: null in their place, also in lists and mappings."""
    plain: Any = value
    if isinstance(value, dict):
        plain = {key: without_nan(inner) for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        plain = [without_nan(inner) for inner in value]
    elif isinstance(value, float) and not math.isfinite(value):
        plain = None
    return cast(T, plain)


def matches_pattern(name: str, pattern: str) -> bool:
    """True if a name matches a pattern with `*` and `?`; brackets, which names may contain, are literal."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def shortened(name: str, most: int = 60) -> str:
    """A name for a table or a sentence: longer ones lose their middle."""
    if len(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"


def outside_text(points: int, by_ns: int | None) -> str:
    """A phrase for points outside of the experiment: `12 points outside the experiment, about …`."""
    phrase = f"{counted(points, 'point')} outside the experiment"
    if by_ns is None:
        return phrase
    where = "after" if by_ns > 0 else "before"
    why = (
        "the sender's clock is ahead"
        if by_ns > 0
        else "older points, or the sender's clock is behind"
    )
    return f"{phrase}, about {_about(abs(by_ns))} {where} it: {why}"


def _about(ns: int) -> str:
    """A time with two digits: `1 h`, `2.5 min`."""
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if ns >= 0.95 * unit * 1e9:
            number = ns / 1e9 / unit
            return f"{number:.2g} {name}" if number < 99 else f"{number:.0f} {name}"
    return duration(ns)


#: maximum number of words of the first sentence of an answer
HEADLINE = 30


def concise(*texts: str, most: int = HEADLINE) -> str:
    """First of several texts, fullest first, with at most `most` words; else the last."""
    return next((t for t in texts if len(t.split()) <= most), texts[-1])


#: width of a terminal
COLUMNS = 100
_NUMBER_UNIT = re.compile(r"(\d) (?=[%A-Za-zµ])")


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; headings with a leading `#` are over numbers, which end in one column."""
    shown = [[h.lstrip("#") for h in heads], *rows]
    widths = [max(len(row[i]) for row in shown) for i in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if head.startswith("#") else cell.ljust(width)
            for cell, width, head in zip(row, widths, heads, strict=True)
        ).rstrip()
        for row in shown
    ]


def labelled(label: str, text: str, width: int = COLUMNS) -> list[str]:
    """A point as lines: its label, then the text in a column."""
    return wrapped(text, width, f"  {label:<12} ")


def wrapped(text: str, width: int = COLUMNS, lead: str = "") -> list[str]:
    """Lines of a text after `lead`; a number and its unit are not separated."""
    joined = _NUMBER_UNIT.sub("\\1\u00a0", text)
    lines = textwrap.wrap(
        joined,
        width,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]
