"""Units: sizes, durations, shares and rates as text, with their dimension and factor to a base unit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from penstock.text import TIME_SPELLINGS

_SIZES = {"B": 1.0}
for _power, _letter in enumerate("kMGTPE", start=1):
    _SIZES[f"{_letter}B"] = 1000.0**_power
for _power, _letter in enumerate("KMGTPE", start=1):
    _SIZES[f"{_letter}iB"] = 1024.0**_power
_SIZES |= {"bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9}
_TIMES = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_SHARES = {"%": 0.01}
_COUNTS = dict.fromkeys(
    "1 requests operations transactions rows files records tasks events pages errors processes".split(),
    1.0,
)
#: maximum size: limit of the simulator's counters
MOST_BYTES = 1 << 60
#: maximum duration [s]: its nanoseconds have 64 bits
MOST_S = 9e9
_OTHERS = {
    "Hz": (1.0, "1/time"),
    "kHz": (1e3, "1/time"),
    "MHz": (1e6, "1/time"),
    "GHz": (1e9, "1/time"),
    "IOPS": (1.0, "1/time"),
    "tps": (1.0, "1/time"),
    "W": (1.0, "power"),
    "mW": (1e-3, "power"),
    "kW": (1e3, "power"),
    "J": (1.0, "energy"),
    "Wh": (3600.0, "energy"),
    "kWh": (3.6e6, "energy"),
    "V": (1.0, "voltage"),
    "°C": (1.0, "temperature"),
    # 25 °C are not 25 K: units have factors, but no offsets
    "K": (1.0, "thermodynamic temperature"),
    "EUR": (1.0, "money"),
    "USD": (1.0, "dollars"),
    "GBP": (1.0, "pounds"),
    "CHF": (1.0, "francs"),
}
_SIMPLE: dict[str, tuple[float, str]] = {
    **{u: (f, "size") for u, f in _SIZES.items()},
    **{u: (f, "time") for u, f in _TIMES.items()},
    **{u: (f, "share") for u, f in _SHARES.items()},
    **{u: (f, "count") for u, f in _COUNTS.items()},
    **_OTHERS,
}
_SHORT_COUNTS = "ops req reqs iops tps qps rps byte bytes bit bits rows txn txns queries".split()
#: other spellings of units, which are invalid as names of counts
_MEANT_OTHERWISE = frozenset(
    [u.lower() for u in _SIMPLE]
    + "bit bits byte bytes kilobytes megabytes gigabytes bps kbps mbps gbps".split()
    + [*TIME_SPELLINGS, "weeks"]
    + "percent watt watts joule joules hertz".split()
    + "volt volts euro euros dollar dollars".split()
    + [f"{p}{u}" for p in ("kilo", "mega", "giga") for u in ("byte", "bit", "bits")]
    # a prefix of a count would be a part of its name, and 5 kops/s be 5 per second
    + [f"{p}{u}" for p in "kmg" for u in [*_COUNTS, *_SHORT_COUNTS]]
)
_NUMBER = re.compile(r"\s*([+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)\s*(.*?)\s*")

#: currencies of prices
CURRENCIES = ("EUR", "USD", "GBP", "CHF")

SIZE_UNITS = "B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
DURATION_UNITS = "ns, us, ms, s, min, h"
UNIT_EXAMPLES = (
    "B, MiB, s, ms, %, MiB/s, 1/s, IOPS, J, W, 1 (a plain number), requests/s (any word counts)"
)


@dataclass(frozen=True)
class Unit:
    """One unit: value in the base unit = value × factor; only equal dimensions convert."""

    text: str
    factor: float
    dimension: str


def parse_unit(text: str) -> Unit:
    """Unit named by `text`, `A` or `A/B`; ValueError for an unknown one.

    An unknown word of three lower-case letters or more is a count of these items.
    """
    parts = [_simple(part.strip()) for part in text.split("/")]
    if len(parts) > 2:
        raise ValueError(f"{text!r} is not a unit")
    factor, dimension = parts[0]
    if len(parts) == 1:
        return Unit(text.strip(), factor, dimension)
    below, below_dimension = parts[1]
    if below_dimension == dimension:
        return Unit(text.strip(), factor / below, "count")
    above = "1" if dimension == "count" else dimension
    name = above if below_dimension == "count" else f"{above}/{below_dimension}"
    return Unit(text.strip(), factor / below, name)


def _simple(text: str) -> tuple[float, str]:
    """Factor and dimension of a unit without a slash; ValueError for an unknown one."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    word = text.replace("-", "").replace("_", "")
    if len(word) < 3 or not word.isalpha() or not word.islower() or text in _MEANT_OTHERWISE:
        raise ValueError(f"{text!r} is not a unit")
    return 1.0, "count"


def convert(value: float, from_unit: str, to_unit: str) -> float:
    """`value` of `from_unit` in `to_unit`; ValueError for an unknown unit or different dimensions."""
    source, target = parse_unit(from_unit), parse_unit(to_unit)
    if source.dimension != target.dimension:
        raise ValueError(f"{from_unit} is a {source.dimension}, {to_unit} is a {target.dimension}")
    return value if source.factor == target.factor else value * source.factor / target.factor


def _quantity(text: str, units: dict[str, float], what: str, expected: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{what}, such as {expected}")
    number, unit = float(match.group(1)), match.group(2)
    if not unit:
        raise ValueError(f"{what} with its unit, such as {expected}")
    if unit not in units:
        raise ValueError(f"{what} with a unit that exists, such as {expected}")
    value = number * units[unit]
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} that is not negative, such as {expected}")
    return value


def parse_size(text: str) -> int:
    """Bytes of a size such as `512MiB` (1024) or `512MB` (1000); ValueError with the expected form."""
    sizes = {u: f for u, f in _SIZES.items() if not u.endswith("bit")}
    value = _quantity(text, sizes, "a size", f"512MiB ({SIZE_UNITS})")
    if value != int(value):
        raise ValueError("a size in bytes, such as 512MiB")
    return int(value)


def parse_bounded_size(text: str) -> int:
    """The same, at most `MOST_BYTES`."""
    size = parse_size(text)
    if size > MOST_BYTES:
        raise ValueError("a size of at most 2^60 bytes, such as 1TiB")
    return size


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `60s` or `10ms`, at most `MOST_S`; ValueError with the expected form."""
    seconds = _quantity(text, _TIMES, "a duration", f"60s or 10ms ({DURATION_UNITS})")
    if seconds > MOST_S:
        raise ValueError("a duration of at most 9e9s, such as 60s")
    return seconds


def parse_quantity(text: str) -> tuple[float, Unit]:
    """Number and unit of a text such as `1 Gbit/s` or `0.10 EUR/h`; ValueError with the expected form.

    The number is not converted; times `unit.factor` it is in the base unit (bytes, seconds, watts, …).
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError("a number with its unit, such as 60s or 125 MB/s")
    number, unit = float(match.group(1)), match.group(2)
    if not unit:
        raise ValueError("a number with its unit, such as 60s or 125 MB/s")
    return number, parse_unit(unit)


def _measure(text: str, dimension: str, what: str, example: str) -> float:
    try:
        number, unit = parse_quantity(text)
    except ValueError:
        raise ValueError(f"{what} with its unit, such as {example}") from None
    if unit.dimension != dimension:
        raise ValueError(f"{what} with a unit of its kind, such as {example}")
    value = number * unit.factor
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{what} that is not negative, such as {example}")
    return value


def parse_bandwidth(text: str) -> float:
    """Bytes per second of `1 Gbit/s` or `125 MB/s`, above 0; ValueError with the expected form."""
    value = _measure(text, "size/time", "a bandwidth", "1 Gbit/s or 125 MB/s")
    if value <= 0:
        raise ValueError("a bandwidth above 0, such as 1 Gbit/s or 125 MB/s")
    return value


def parse_time_per_size(text: str) -> float:
    """Seconds per byte of `1 ms/MiB`; ValueError with the expected form."""
    return _measure(text, "time/size", "a time per size", "1 ms/MiB")


def parse_power(text: str) -> float:
    """Watts of `91.6 W`; ValueError with the expected form."""
    return _measure(text, "power", "a power", "91.6 W")


def parse_frequency(text: str) -> float:
    """Hertz of `2.3 GHz`, above 0; ValueError with the expected form."""
    value = _measure(text, "1/time", "a frequency", "2.3 GHz")
    if value <= 0:
        raise ValueError("a frequency above 0, such as 2.3 GHz")
    return value


def parse_price(text: str) -> tuple[float, str]:
    """Amount per second and currency of `0.10 EUR/h`; ValueError with the expected form."""
    expected = f"a price per time, such as 0.10 EUR/h ({', '.join(CURRENCIES)})"
    try:
        number, unit = parse_quantity(text)
    except ValueError:
        raise ValueError(expected) from None
    currency = unit.text.partition("/")[0].strip()
    if currency not in CURRENCIES or not unit.dimension.endswith("/time"):
        raise ValueError(expected)
    if not math.isfinite(number) or number < 0:
        raise ValueError("a price that is not negative, such as 0.10 EUR/h")
    return number * unit.factor, currency


def parse_share(text: str) -> float:
    """Share 0…1 of a percentage such as `1%`; ValueError with the expected form."""
    value = _quantity(text, _SHARES, "a share", "1%")
    if value > 1:
        raise ValueError("a share of at most 100%")
    return value
