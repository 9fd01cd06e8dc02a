"""Levels as text: `2..18`, `2..18/4`, `256KiB..4MiB*2`, `1,2,4`, and mixtures of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.spec.source import read_value
from penstock.spec.units import parse_quantity, parse_size

#: more levels on one axis are assumed to be a mistake
MOST_LEVELS = 1000

EXAMPLES = "2..18, 2..18/4 (step), 256KiB..4MiB*2 (factor) or a list such as 1,2,4"
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ°%].*?)?\s*")
#: `b/step` or `b*factor`; a unit such as MB/s has no digit after its slash
_STEP = re.compile(r"(.*?)([/*])\s*([+-]?[\d.].*)")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class LevelFault(ValueError):  # noqa: N818 - reads as what it is
    """Invalid level: `found` and `expected` as text."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"found {found}; expected {expected}")
        self.found = found
        self.expected = expected


@dataclass(frozen=True)
class Quantity:
    """A number as written and its unit, '' for none."""

    number: Decimal
    unit: str

    @property
    def size(self) -> int | None:
        """Bytes, for a unit of size."""
        try:
            return parse_size(f"{self.number}{self.unit}")
        except ValueError:
            return None


def quantity(text: str) -> Quantity | None:
    """Number and unit of a text such as `2`, `256KiB` or `1.2 GHz`; None for other text."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        number = Decimal(match.group(1))
    except InvalidOperation:  # pragma: no cover - the expression admits numbers only
        return None
    return Quantity(number, (match.group(2) or "").strip())


def parse_levels(text: str) -> list[Any]:
    """Values of the text in its order: numbers, or texts with their unit.

    Raises `LevelFault`.
    """
    levels: list[Any] = []
    for part in text.split(","):
        if not part.strip():
            raise LevelFault(
                f"'{text}'" if text.strip() else "nothing", f"levels such as {EXAMPLES}"
            )
        levels += _range(part) if ".." in part else [read_value(part.strip())]
        if len(levels) > MOST_LEVELS:
            raise LevelFault(
                f"more than {MOST_LEVELS} levels",
                "fewer; give a step (a..b/step) or a factor (a..b*2)",
            )
    return check_levels(levels)


def check_levels(levels: list[Any]) -> list[Any]:
    """The same levels; `LevelFault` for none, a duplicate, or a value that is not plain."""
    if not levels:
        raise LevelFault("no level", f"levels such as {EXAMPLES}")
    seen: set[str] = set()
    for level in levels:
        if isinstance(level, (dict, list)):
            raise LevelFault(f"the level {level!r}", "a plain value: a number, a size, a name")
        label = show(level)
        if label in seen:
            raise LevelFault(f"the level {label} twice", "each level once")
        seen.add(label)
    return levels


def show(level: Any) -> str:
    """A level as a user writes it."""
    if level is None:
        return "null"
    if isinstance(level, bool):
        return str(level).lower()
    return f"{level:g}" if isinstance(level, float) else str(level)


def magnitude(level: Any) -> float | None:
    """Number of a level in the base unit of its kind, as in expressions: bytes, seconds; None for a name."""
    if isinstance(level, bool) or level is None:
        return None
    if isinstance(level, (int, float)):
        return float(level)
    parsed = quantity(str(level))
    if parsed is None:
        return None
    if not parsed.unit:
        return float(parsed.number)
    try:
        number, unit = parse_quantity(str(level))
    except ValueError:
        return None
    return float(parsed.size if parsed.size is not None else number * unit.factor)


def _range(part: str) -> list[Any]:
    low_text, _, high_text = part.partition("..")
    operator, by_text = "", ""
    stepped = _STEP.fullmatch(high_text)
    if stepped is not None:
        high_text, operator, by_text = stepped.groups()
    low, high = quantity(low_text), quantity(high_text)
    if low is None or high is None:
        raise LevelFault(
            f"'{part.strip()}'", "a range of two numbers, such as 2..18 or 256KiB..4MiB*2"
        )
    if low.unit == high.unit:
        first, last, unit = low.number, high.number, low.unit
    elif low.size is not None and high.size is not None:
        first, last, unit = Decimal(low.size), Decimal(high.size), "B"
    else:
        raise LevelFault(f"'{part.strip()}'", "the same unit at both ends")
    if last < first:
        raise LevelFault(f"'{part.strip()}'", "the smaller end first")
    by = _by(part, operator, by_text, unit)
    numbers = [first]
    while True:
        after = numbers[-1] * by if operator == "*" else numbers[-1] + by
        if after > last:
            break
        numbers.append(after)
        if len(numbers) > MOST_LEVELS:
            raise LevelFault(
                f"more than {MOST_LEVELS} levels in '{part.strip()}'",
                "fewer; give a step (a..b/step) or a factor (a..b*2)",
            )
    return [_written(n, unit) for n in numbers]


def _by(part: str, operator: str, by_text: str, unit: str) -> Decimal:
    """Step or factor; a step may have its own unit in a range of sizes."""
    if not operator:
        return Decimal(1)
    by = quantity(by_text)
    if by is None or (operator == "*" and by.unit):
        raise LevelFault(f"'{part.strip()}'", "a number after / (step) or * (factor)")
    number = by.number
    if by.unit and by.unit != unit:
        if unit not in _BINARY or by.size is None:
            raise LevelFault(f"'{part.strip()}'", "the step in the unit of the range")
        number = Decimal(by.size) / Decimal(parse_size(f"1{unit}"))
    if operator == "*" and number <= 1:
        raise LevelFault(f"the factor {by_text.strip()}", "a factor above 1")
    if number <= 0:
        raise LevelFault(f"the step {by_text.strip()}", "a step above 0")
    return number


def _written(number: Decimal, unit: str) -> Any:
    """A number as a user would write it: an integer if possible, sizes in the largest exact unit."""
    if unit == "B" and number == int(number):
        size, power = int(number), 0
        while size and size % 1024 == 0 and power < len(_BINARY) - 1:
            size, power = size // 1024, power + 1
        return f"{size}{_BINARY[power]}"
    if unit:
        return f"{number.normalize():f}{unit}"
    return int(number) if number == int(number) else float(number)
