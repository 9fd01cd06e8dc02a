"""Uncertain values: estimates with an interval (seeded), and assumptions with a range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from penstock.platform.draws import with_draws
from penstock.platform.fields import UNCERTAIN
from penstock.platform.file import PlatformFile
from penstock.platform.paths import NoPath, dotted, find, get
from penstock.spec.mistakes import entry_at
from penstock.spec.names import suggestion
from penstock.spec.source import Path, Source
from penstock.spec.units import Unit, parse_quantity, parse_share

#: keys of an estimate
ESTIMATE_KEYS = "value low high level n method date host kernel converged clamped note".split()
#: range of an assumption without one: this share below and above its value
DEFAULT_WITHIN = 0.5


class Assumed(NamedTuple):
    """An assumed value: `value`, `low` and `high` in the form of the file (input of `with_values`)."""

    path: str
    value: Any
    low: Any
    high: Any
    note: str


@dataclass(frozen=True)
class Estimate:
    """A measured value with its interval; numbers are in `unit`, empty for a plain number."""

    path: str
    value: float
    low: float
    high: float
    unit: str = ""
    level: float = 0.95
    n: int | None = None
    method: str = ""
    date: str = ""
    host: str = ""
    kernel: str = ""
    converged: bool = True
    clamped: bool = False
    note: str = ""


class Amount(NamedTuple):
    """A number and its unit; None for a plain number; `integral` if it must be an integer."""

    number: float
    unit: Unit | None
    integral: bool = False

    def text(self, number: float) -> Any:
        """Another number of the same unit, in the form of the file."""
        if self.unit is None:
            return max(1, round(number)) if self.integral else number
        if self.unit.dimension == "size":
            return f"{round(self.base(number))} B"
        return f"{number:.10g} {self.unit.text}"

    def base(self, number: float) -> float:
        """Number of `text(number)` in the base unit."""
        if self.unit is None:
            return float(self.text(number))
        if self.unit.dimension == "size":
            return max(1, round(number * self.unit.factor))
        return float(f"{number:.10g}") * self.unit.factor


def amount(value: Any) -> Amount:
    """Number in a value of the file. ValueError without one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a number, with its unit if it has one")
    if isinstance(value, str):
        try:
            return Amount(float(value), None)
        except ValueError:
            return Amount(*parse_quantity(value))
    return Amount(float(value), None, isinstance(value, int))


def is_estimate(value: Any) -> bool:
    """True if a value of the file is an estimate."""
    return isinstance(value, dict) and "value" in value


def stripped(value: Any) -> Any:
    """The values alone: each estimate replaced by its value, nulls removed."""
    if is_estimate(value):
        return value["value"]
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [stripped(v) for v in value]
    return value


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Paths of estimates."""
    if is_estimate(value):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("assumed", "facts") or path:
                yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*path, i))


def estimates(document: dict[str, Any]) -> list[Estimate]:
    """Every estimate of a checked document."""
    results = []
    for path, entry in places(document):
        value = amount(entry["value"])
        low, high = (_in(entry.get(k, entry["value"]), value) for k in ("low", "high"))
        rest = {k: v for k, v in entry.items() if k not in ("value", "low", "high", "level")}
        results.append(
            Estimate(
                path=dotted(document, path),
                value=value.number,
                low=low,
                high=high,
                unit=value.unit.text if value.unit else "",
                level=parse_share(entry["level"]) if "level" in entry else 0.95,
                **{k: v for k, v in rest.items() if v is not None},
            )
        )
    return results


def _in(text: Any, like: Amount) -> float:
    """Number of `text` in the unit of `like`. ValueError for a quantity of another kind."""
    other = amount(text)
    kinds = [a.unit.dimension if a.unit else "" for a in (other, like)]
    if kinds[0] != kinds[1]:
        raise ValueError("a value of the same kind")
    if other.unit is None or like.unit is None or other.unit == like.unit:
        return other.number
    return other.number * other.unit.factor / like.unit.factor


def check_estimates(source: Source) -> None:
    """Add mistakes of estimates, except their values, which are validated like any other."""
    for path, entry in places(source.value):
        if not _may_be_one(path):
            source.mistake(path, f"an estimate of {path[-1]}", "a plain value; this one is certain")
            continue
        for key in entry:
            if key not in ESTIMATE_KEYS:
                expected = f"one of {', '.join(ESTIMATE_KEYS)}{suggestion(key, ESTIMATE_KEYS)}"
                source.mistake((*path, key), f"the unknown key '{key}'", expected, key=True)
        try:
            amount(entry["value"])
        except ValueError:
            actual = "nothing" if entry["value"] is None else f"'{entry['value']}'"
            source.mistake((*path, "value"), actual, "a number, with its unit if it has one")
        _check_range(source, path, entry, entry.get("value"), "an estimate's value")
        _check_rest(source, path, entry)


def _may_be_one(path: Path) -> bool:
    """True if the format allows an estimate at `path`."""
    entry = entry_at(PlatformFile, path)
    return any(UNCERTAIN in choice for choice in (entry, *entry.get("anyOf", [])))


_REST: dict[str, tuple[type | tuple[type, ...], str]] = {
    "method": (str, "text"),
    "date": (str, "text"),
    "host": (str, "text"),
    "kernel": (str, "text"),
    "note": (str, "text"),
    "converged": (bool, "true or false"),
    "clamped": (bool, "true or false"),
}


def _check_rest(source: Source, path: Path, entry: dict[str, Any]) -> None:
    for key, (kind, expected) in _REST.items():
        if key in entry and not isinstance(entry[key], kind):
            source.mistake((*path, key), f"'{entry[key]}'", expected)
    count = entry.get("n", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        source.mistake((*path, "n"), f"'{count}'", "an integer of at least 1")
    if "level" in entry:
        try:
            good = 0 < parse_share(str(entry["level"])) < 1
        except ValueError:
            good = False
        if not good:
            source.mistake((*path, "level"), f"'{entry['level']}'", "a share, such as 95%")


def _check_range(source: Source, path: Path, entry: dict[str, Any], value: Any, what: str) -> None:
    """Check that `low` and `high` are of the kind of `value` and enclose it."""
    try:
        like = amount(value)
    except ValueError:
        return  # the value itself is reported with its key
    for key, sign in (("low", 1), ("high", -1)):
        if entry.get(key) is None:
            continue
        try:
            number = _in(entry[key], like)
        except ValueError:
            source.mistake((*path, key), f"'{entry[key]}'", f"a value such as {value}")
            continue
        if not math.isfinite(number) or (like.number - number) * sign < 0:
            side = "at most" if sign > 0 else "at least"
            source.mistake((*path, key), f"'{entry[key]}'", f"{side} {what}, {value}")


# ---------------------------------------------------------------- assumptions


def leaves(document: Any, path: Path, *, below: bool = False) -> Iterator[Path]:
    """Paths of the numbers at or below `path`; below it without integers, which are known counts."""
    value = get(document, path)
    if isinstance(value, dict):
        for key in value:
            yield from leaves(document, (*path, key), below=True)
    elif isinstance(value, list):
        for i in range(len(value)):
            yield from leaves(document, (*path, i), below=True)
    else:
        try:
            integral = amount(value).integral
        except ValueError:
            return
        if not (below and integral):
            yield path


def check_assumed(source: Source, document: dict[str, Any]) -> None:
    """Record assumptions with an unknown path or an invalid range."""
    declared = document.get("assumed")
    for i, entry in enumerate(declared if isinstance(declared, list) else []):
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            continue
        at: Path = ("assumed", i)
        try:
            where = find(document, entry["path"])
        except NoPath as error:
            source.mistake(
                (*at, "path"),
                f"the assumed path '{entry['path']}' ({error.actual})",
                error.expected,
            )
            continue
        numbers = list(leaves(document, where))
        if not numbers:
            source.mistake(
                (*at, "path"),
                f"the assumed path '{entry['path']}', which is not a number",
                "a value of this file that is a number",
            )
            continue
        ranged = [k for k in ("low", "high") if entry.get(k) is not None]
        if ranged and "within" in entry:
            source.mistake((*at, "within"), "both within and low or high", "one of them", key=True)
        elif ranged and len(numbers) > 1:
            source.mistake(
                (*at, ranged[0]),
                f"a range for {len(numbers)} values",
                "the path of one value, or within: 50%",
                key=True,
            )
        elif ranged:
            _check_range(source, at, entry, get(document, numbers[0]), "the assumed value")
        if isinstance(entry.get("within"), str):
            try:
                parse_share(entry["within"])
            except ValueError as error:
                source.mistake((*at, "within"), f"'{entry['within']}'", str(error))


def ends(document: dict[str, Any]) -> Iterator[tuple[Path, str, Any]]:
    """(path of the bound, path of its value, the bound) of every range."""
    plain = stripped(document)
    for path, estimate in places(document):
        for key in ("low", "high"):
            if key in estimate:
                yield (*path, key), dotted(document, path), estimate[key]
    for i, entry in enumerate(_entries(plain)):
        for line in assumed({**plain, "assumed": [entry]}):
            for key, text in (("low", line.low), ("high", line.high)):
                yield ("assumed", i, key if key in entry else "within"), line.path, text


def ranged(document: dict[str, Any]) -> dict[str, Path]:
    """Numeric assumptions, and their paths."""
    by_path: dict[str, Path] = {}
    plain = stripped(document)
    for entry in _entries(document):
        try:
            where = find(plain, entry["path"])
        except NoPath:
            continue
        if any(True for _ in leaves(plain, where)):
            by_path[entry["path"]] = where
    return by_path


def forget(document: dict[str, Any], assumptions: dict[str, Path], chosen: list[Path]) -> None:
    """Remove the `assumptions` whose value was chosen, or removed by a choice."""
    now = ranged(document)
    gone = {
        path
        for path, where in assumptions.items()
        if path not in now or any(where[: len(c)] == c for c in chosen)
    }
    if gone:
        document["assumed"] = [
            e for e in document["assumed"] if not (isinstance(e, dict) and e.get("path") in gone)
        ]


def _entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    declared = document.get("assumed")
    return [
        e
        for e in (declared if isinstance(declared, list) else [])
        if isinstance(e, dict) and isinstance(e.get("path"), str)
    ]


def assumed(document: dict[str, Any], chosen: frozenset[Path] = frozenset()) -> list[Assumed]:
    """Assumptions of a validated document (estimates stripped), a row for each number; without those that
    were `chosen` since."""
    lines = []
    for entry in document.get("assumed") or []:
        within = parse_share(entry["within"]) if entry.get("within") else DEFAULT_WITHIN
        for path in leaves(document, find(document, entry["path"])):
            if any(path[: len(c)] == c for c in chosen):
                continue
            value = get(document, path)
            here = amount(value)
            low, high = entry.get("low"), entry.get("high")
            if low is None and high is None:
                low = here.text(here.number * (1 - within))
                high = here.text(here.number * (1 + within))
            lines.append(
                Assumed(
                    dotted(document, path),
                    value,
                    value if low is None else low,
                    value if high is None else high,
                    entry.get("note") or "",
                )
            )
    return lines


# ---------------------------------------------------------------- drawing


class Range(NamedTuple):
    """An uncertain value of the file, and its bounds in the same unit.

    `level` is that of an estimate's interval, None for an assumption; `most` is the format's maximum.
    """

    path: Path
    value: Any
    like: Amount
    low: float
    high: float
    level: float | None
    most: float

    def draw(self, rng: np.random.Generator) -> float:
        """One number, in the unit of `value`."""
        if self.level is not None:
            return min(_two_sided(rng, self), self.most)
        here = self.like.number
        sides = [(a, b) for a, b in ((self.low, here), (here, self.high)) if a < b]
        return float(rng.uniform(*sides[int(rng.integers(len(sides)))])) if sides else here


def ranges(
    document: dict[str, Any], *, assumptions: bool, chosen: frozenset[Path]
) -> Iterator[Range]:
    """Every estimate, with `assumptions` those as well, in the order of their draws."""
    for path, estimate in places(document):
        like = amount(estimate["value"])
        low, high = (_in(estimate.get(k, estimate["value"]), like) for k in ("low", "high"))
        level = parse_share(estimate["level"]) if "level" in estimate else 0.95
        yield Range(path, estimate["value"], like, low, high, level, _most(path))
    plain = stripped(document) if assumptions else {}
    for entry in assumed(plain, chosen):
        like = amount(entry.value)
        bounds = _in(entry.low, like), _in(entry.high, like)
        yield Range(find(plain, entry.path), entry.value, like, *bounds, None, math.inf)


def drawn(
    document: dict[str, Any],
    rngs: Sequence[np.random.Generator],
    *,
    assumptions: bool = False,
    chosen: frozenset[Path] = frozenset(),
) -> Iterator[tuple[list[int], dict[Path, Any], dict[Path, Any]]]:
    """Every estimate of `document` sampled from its interval, with `assumptions` those as well; one draw per
    generator.

    An estimate has two half-normal distributions around its value, equally likely, with the bounds of the
    interval as quantiles, truncated at zero and at twice their distance; an assumption is below or above its
    value with equal probability, and uniform on each side.

    Yields groups of draws: their indices, values that all of them have (counts and others that cannot be
    arrays), and values with the number of each of them (`draws.with_draws`), by path.
    """
    values = list(ranges(document, assumptions=assumptions, chosen=chosen))
    numbers = np.array([[value.draw(rng) for value in values] for rng in rngs])
    alone = [k for k, value in enumerate(values) if not _array(value.path)]
    by_alone: dict[tuple[Any, ...], list[int]] = {}
    for i, row in enumerate(numbers):
        texts = tuple(values[k].like.text(float(row[k])) for k in alone)
        by_alone.setdefault(texts, []).append(i)
    for texts, rows in by_alone.items():
        common = {values[k].path: text for k, text in zip(alone, texts, strict=True)}
        arrays = {}
        for value, column in zip(values, numbers[rows].T.tolist(), strict=True):
            if value.path not in common:
                base = np.array([value.like.base(number) for number in column])
                arrays[value.path] = with_draws(value.value, base)
        yield rows, common, arrays


def _array(path: Path) -> bool:
    """True if the conversion to numbers takes arrays at `path`; not for counts and factors of a profile."""
    return _may_be_one(path) and path[-1] not in ("time_scale", "service_speed")


def _most(path: Path) -> float:
    """Maximum of the format at `path`; infinite without one."""
    entry = entry_at(PlatformFile, path)
    choices = (entry, *entry.get("anyOf", []))
    return float(next((c["maximum"] for c in choices if "maximum" in c), math.inf))


@cache
def _deviations(level: float) -> float:
    """Standard deviations from the centre of an interval to its bounds."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def _two_sided(rng: np.random.Generator, of: Range) -> float:
    value = of.like.number
    z = _deviations(of.level or 0.95)
    for _ in range(100):
        step = float(rng.standard_normal()) / z
        number = value + step * ((of.high - value) if step > 0 else (value - of.low))
        if (number > 0 or number == value) and abs(step) <= 2:
            return number
    return value
