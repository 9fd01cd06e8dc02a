"""The space of decisions: axes, their levels, and their combinations.

One axis is one decision: the number of hosts of a group, the split of hosts between two groups, a setting of
the store, a disk profile, a frequency (provisioning, partitioning and configuration in one search, Costa
2014).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.exploration.space.levels import (
    LevelFault,
    check_levels,
    magnitude,
    parse_levels,
    quantity,
    show,
)
from penstock.spec.source import Position, Source

#: index of the level of each axis, in the order of the axes
Candidate = tuple[int, ...]

#: axis of the default and the workflow-aware placement, and its key for the hints of files, which are of the
#: workload and not of the platform
PLACEMENT, HINTS = "placement", "hints"
#: placement → without hints to the next idle host, or with the hints of the graph to the host with the data
_PLACEMENTS = {
    "default": ((HINTS, "never"), ("scheduler", "workqueue")),
    "workflow-aware": ((HINTS, "auto"), ("scheduler", "data_location")),
}
_SPLIT = "hosts.app:hosts.storage/19 (19 hosts between the two groups; several totals by commas)"
_MOST_HOSTS = 100_000


@dataclass(frozen=True)
class Level:
    """One level: its text, its platform values (by dotted path), its magnitude if any."""

    label: str
    values: tuple[tuple[str, Any], ...]
    magnitude: float | None = None

    @property
    def of_platform(self) -> tuple[tuple[str, Any], ...]:
        """The values without those of the workload."""
        return tuple((key, value) for key, value in self.values if key != HINTS)


@dataclass(frozen=True)
class Axis:
    """One decision: its name, its levels in the given order, and its source position."""

    name: str
    levels: tuple[Level, ...]
    position: Position

    @property
    def keys(self) -> tuple[str, ...]:
        """Dotted paths of the platform values that it sets."""
        return tuple(key for key, _ in self.levels[0].values)

    @property
    def ordered(self) -> bool:
        """True if the levels are in numeric order, so that a search may move step by step."""
        numbers = [level.magnitude for level in self.levels]
        if any(n is None for n in numbers):
            return False
        pairs = list(itertools.pairwise(numbers))
        return all(a < b for a, b in pairs) or all(a > b for a, b in pairs)  # type: ignore[operator]

    @property
    def stepwise(self) -> bool:
        """True if a search may move to a neighbouring level; includes splits of several totals."""
        return self.ordered or self.name == "split"

    @property
    def labels(self) -> list[str]:
        """Texts of the levels."""
        return [level.label for level in self.levels]


@dataclass(frozen=True)
class RefusedLevel:
    """A level that the engine of the store refuses, and the reason."""

    axis: str
    level: str
    why: str


@dataclass(frozen=True)
class Space:
    """All combinations of the levels of the axes; `refused`: levels that were removed from them."""

    axes: tuple[Axis, ...]
    refused: tuple[RefusedLevel, ...] = ()

    @property
    def size(self) -> int:
        """Number of combinations, feasible or not."""
        return math.prod(len(axis.levels) for axis in self.axes)

    def __iter__(self) -> Iterator[Candidate]:
        return (self.candidate(i) for i in range(self.size))

    def candidate(self, number: int) -> Candidate:
        """The combination of that number, 0 … size - 1; the last axis varies fastest."""
        indices = []
        for axis in reversed(self.axes):
            number, index = divmod(number, len(axis.levels))
            indices.append(index)
        return tuple(reversed(indices))

    def number(self, candidate: Candidate) -> int:
        """The inverse of `candidate`."""
        number = 0
        for axis, index in zip(self.axes, candidate, strict=True):
            number = number * len(axis.levels) + index
        return number

    def levels(self, candidate: Candidate) -> list[Level]:
        """The level of each axis."""
        return [axis.levels[i] for axis, i in zip(self.axes, candidate, strict=True)]

    def values(self, candidate: Candidate) -> dict[str, Any]:
        """Platform values by dotted path."""
        return {key: v for level in self.levels(candidate) for key, v in level.values}

    def labels(self, candidate: Candidate) -> dict[str, str]:
        """Text of the level by name of the axis."""
        chosen = zip(self.axes, candidate, strict=True)
        return {axis.name: axis.levels[i].label for axis, i in chosen}

    def to_dict(self) -> dict[str, Any]:
        """Axes, keys and labels, as plain values."""
        axes = [
            {"name": a.name, "keys": list(a.keys), "levels": a.labels, "ordered": a.ordered}
            for a in self.axes
        ]
        refused = {"refused": [vars(r) for r in self.refused]} if self.refused else {}
        return {"axes": axes, "size": self.size, **refused}


def parse_axis(text: str) -> Axis:
    """The axis of one `--vary KEY=LEVELS`; BadInput with the position in the text."""
    name, equals, levels_text = text.partition("=")
    name = name.strip()
    where = Position(f"--vary {text}", 1, 1)
    if not equals or not name:
        raise where.bad_input(f"'{text}'", "KEY=LEVELS, such as hosts.app.count=2..18")
    behind = Position(where.file, 1, len(text) - len(levels_text) + 1)
    try:
        return axis_of(name, levels_text, where)
    except LevelFault as fault:
        raise behind.bad_input(fault.found, fault.expected) from None


def axis_of(name: str, raw: Any, position: Position) -> Axis:
    """The axis `name` with the levels of a text or a list of values; `LevelFault` for invalid ones."""
    if name == "split":
        return _split(str(raw), position)
    if name == PLACEMENT:
        return _placement(raw, position)
    if any(not step for step in name.split(".")):
        raise LevelFault(f"the key '{name}'", "a dotted path of the platform, such as store.chunk")
    if isinstance(raw, list):
        flat: list[Any] = []
        for item in raw:
            flat += parse_levels(item) if isinstance(item, str) and ".." in item else [item]
        levels = check_levels(flat)
    elif isinstance(raw, str):
        levels = parse_levels(raw)
    else:
        levels = check_levels([raw])
    if name.startswith("hosts.") and name.endswith(".count"):
        for level in levels:
            if (
                isinstance(level, bool)
                or not isinstance(level, int)
                or not 0 <= level <= _MOST_HOSTS
            ):
                raise LevelFault(f"{show(level)} hosts", f"integers from 0 to {_MOST_HOSTS}")
    with_values = tuple(Level(show(v), ((name, v),), magnitude(v)) for v in levels)
    return Axis(name, with_values, position)


def _placement(raw: Any, position: Position) -> Axis:
    names = check_levels(raw) if isinstance(raw, list) else parse_levels(str(raw))
    for name in names:
        if name not in _PLACEMENTS:
            raise LevelFault(f"the placement {show(name)}", " or ".join(_PLACEMENTS))
    return Axis(PLACEMENT, tuple(Level(n, _PLACEMENTS[n]) for n in names), position)


def _split(text: str, position: Position) -> Axis:
    """`A:B/N`: every split of N hosts between the groups A and B, at least one each.

    With several N, all splits of each, in order of N and then of A.
    """
    groups_text, stroke, totals_text = text.strip().partition("/")
    groups = [
        g.strip().removeprefix("hosts.").removesuffix(".count") for g in groups_text.split(":")
    ]
    if not stroke or len(groups) != 2 or not all(groups) or groups[0] == groups[1]:
        raise LevelFault(f"'{text.strip()}'", _SPLIT)
    first, second = (f"hosts.{group}.count" for group in groups)
    levels: list[Level] = []
    totals = parse_levels(totals_text)
    for total in totals:
        parsed = quantity(str(total))
        if parsed is None or parsed.unit or not isinstance(total, int) or not 2 <= total <= 1000:
            raise LevelFault(f"a total of {show(total)}", "integer numbers of hosts, 2 to 1000")
        for a in range(1, total):
            values = ((first, a), (second, total - a))
            levels.append(Level(f"{a}+{total - a}", values, a if len(totals) == 1 else None))
    return Axis("split", tuple(levels), position)


def make_space(axes: Sequence[Axis]) -> Space:
    """The space of these axes; BadInput without axes or if two set the same value."""
    if not axes:
        raise BadInput("nothing to vary; give --vary KEY=LEVELS or --space FILE")
    owner: dict[str, Axis] = {}
    for axis in axes:
        for key in (axis.name, *axis.keys):
            other = owner.setdefault(key, axis)
            if other is not axis:
                where = f"{other.position.file}:{other.position.line}"
                raise axis.position.bad_input(
                    f"'{key}' a second time (first at {where})", "each key once"
                )
    return Space(tuple(axes))


def axes_of_source(source: Source, mapping: Mapping[str, Any], path: tuple[str, ...]) -> list[Axis]:
    """Axes of a mapping of keys to levels in a file; `source` collects every mistake."""
    axes = []
    for name, raw in mapping.items():
        try:
            axes.append(axis_of(name, raw, source.at((*path, name), key=True)))
        except LevelFault as fault:
            source.mistake((*path, name), fault.found, fault.expected)
    return axes
