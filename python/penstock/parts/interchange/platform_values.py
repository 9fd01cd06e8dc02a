"""Names, quantities and errors for readers of platforms of other programs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from penstock.errors import BadInput, Mistake


def mistake(path: Path, line: int, actual: str, expected: str, column: int = 1) -> BadInput:
    """The error for one mistake in a foreign file: "found `actual`; expected `expected`"."""
    return BadInput(mistakes=[Mistake(str(path), line, column, actual, expected)])


class Names:
    """Unique names of groups for hosts or of networks: at most 32 letters, digits, `_` and `-`.

    `original` has the original name of each one whose name differs. The names `taken` are never used.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self.original: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Create the name of a host's group or of a network."""
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:32].strip("-_") or "host"
        unique, number = plain, 2
        while unique in self._taken:
            suffix = f"-{number}"
            unique, number = plain[: 32 - len(suffix)] + suffix, number + 1
        self._taken.add(unique)
        if unique != name:
            self.original[unique] = name
        return unique


def bit_rate(bits_per_s: float) -> str:
    """Format a rate for a platform file."""
    return f"{bits_per_s / 1e6:.12g} Mbit/s"


def byte_rate(bytes_per_s: float) -> str:
    """Format a rate of a disk for a platform file."""
    return f"{bytes_per_s:.12g} B/s"


def seconds(duration_s: float) -> str:
    """Format a duration for a platform file."""
    return f"{duration_s * 1e6:.12g}us"


def number_with_unit(text: str, units: Mapping[str, float], bare: float | None) -> float | None:
    """Parse a number with a unit such as `12.5MBps`; `units` and `bare` (no unit) are factors.

    None for invalid text, an unknown unit, and a number that is not finite.
    """
    match = re.fullmatch(
        r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*", text
    )
    if match is None:
        return None
    factor = units.get(match[2]) if match[2] else bare
    number = None if factor is None else float(match[1]) * factor
    return number if number is not None and math.isfinite(number) else None
