"""Names, quantities and mistakes for readers of platforms of other programs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import BadInput, Mistake


def mistake(path: Path, line: int, found: str, expected: str, column: int = 1) -> BadInput:
    """The error for one mistake of a foreign file."""
    return BadInput(mistakes=[Mistake(str(path), line, column, found, expected)])


class Names:
    """Names of groups for hosts that have other names: letters, digits, `_`, `-`; 32 at most; each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self.original: dict[str, str] = {}

    def of(self, name: str) -> str:
        """A name for this one."""
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:32].strip("-_") or "host"
        made, number = plain, 2
        while made in self._taken:
            ending = f"-{number}"
            made, number = plain[: 32 - len(ending)] + ending, number + 1
        self._taken.add(made)
        if made != name:
            self.original[made] = name
        return made


def bit_rate(bits_per_s: float) -> str:
    """A rate as the platform file writes it."""
    return f"{bits_per_s / 1e6:.12g} Mbit/s"


def byte_rate(bytes_per_s: float) -> str:
    """The same in bytes, for disks."""
    return f"{bytes_per_s:.12g} B/s"


def seconds(duration_s: float) -> str:
    """A duration as the platform file writes it."""
    return f"{duration_s * 1e6:.12g}us"


def number_with_unit(text: str, units: Mapping[str, float], bare: float | None) -> float | None:
    """`12.5MBps` by a table of units; a number alone counts `bare`. None for what is neither."""
    match = re.fullmatch(
        r"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*", text
    )
    if match is None:
        return None
    factor = units.get(match[2]) if match[2] else bare
    number = None if factor is None else float(match[1]) * factor
    return number if number is not None and math.isfinite(number) else None
