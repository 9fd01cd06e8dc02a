"""Dimensions of the published table I, and one point of them (Mytilinis 2015).

`clients` excludes the measured one; each has the same pattern on its own data: 0 is a program alone on the
storage. All `nodes` have these clients. The throughput of a point is that of one client.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.spec.source import Source, read_source
from penstock.spec.units import parse_size

MIB = 1 << 20
#: storage on a disk of each node
LOCAL = "local"
MOST_NODES = 64
_SKEW = re.compile(r"skew-(\d{1,3})-(\d{1,3})")
_STORAGE = re.compile(r"[a-z][a-z0-9-]{0,31}")
_SPACE_VERSION = 1


@dataclass(frozen=True)
class Point:
    """One combination: pattern of the clients, number of other clients, bytes per request and of data, nodes,
    and the storage that these use."""

    operation: str
    pattern: str
    access: str
    clients: int
    request_bytes: int
    data_bytes: int
    nodes: int = 1
    storage: str = LOCAL

    @property
    def name(self) -> str:
        """Short unique name; a level name of the study."""
        size = f"{_exact(self.request_bytes)} of {_exact(self.data_bytes)}"
        name = f"{self.operation} {self.pattern} {size} {self.access} +{self.clients}"
        deployed = (self.nodes, self.storage) != (1, LOCAL)
        return f"{name} x{self.nodes} {self.storage}" if deployed else name

    @classmethod
    def from_name(cls, name: str) -> Point:
        """Point of that name; ValueError for an invalid one."""
        operation, pattern, request, of, data, access, clients, *deployed = name.split(" ")
        nodes, storage = deployed or ("x1", LOCAL)
        if of != "of" or not nodes.startswith("x"):
            raise ValueError(name)
        sizes = parse_size(request), parse_size(data)
        return cls(operation, pattern, access, int(clients), *sizes, int(nodes[1:]), storage)


DIMENSIONS = tuple(Point.__dataclass_fields__)
CATEGORIES = ("operation", "pattern", "access", "storage")
#: dimensions that earlier spaces lack
_DEPLOYED = ("nodes", "storage")
#: user's name → dimension
_NAMES = {"request": "request_bytes", "size": "data_bytes", **{d: d for d in DIMENSIONS}}
_EXPECTED = {
    "operation": "read or write",
    "pattern": "sequential, or skew-X-Y: X % of the requests on Y % of the data, such as skew-90-10",
    "access": "buffered (through the page cache) or direct",
    "clients": "an integer number of clients in addition to the measured one, 0 to 256",
    "request_bytes": "a multiple of 512 B, such as 4KiB",
    "data_bytes": "a size of at least 1 MiB, such as 64MiB",
    "nodes": "an integer number of nodes, 1 to 64",
    "storage": "local (a disk of each node), or the engine of a store such as cephfs",
}


@dataclass(frozen=True)
class Space:
    """Values of each dimension; the grid is their product, without points whose request exceeds the data."""

    operation: tuple[str, ...] = ("read", "write")
    pattern: tuple[str, ...] = ("sequential", "skew-50-50", "skew-90-10")
    access: tuple[str, ...] = ("buffered",)
    clients: tuple[int, ...] = (0, 1, 2, 4)
    request_bytes: tuple[int, ...] = (4096, 65536, MIB)
    data_bytes: tuple[int, ...] = (64 * MIB, 256 * MIB)
    nodes: tuple[int, ...] = (1,)
    storage: tuple[str, ...] = (LOCAL,)

    @property
    def deployed(self) -> bool:
        """True if its points need nodes or a store; else they are measured on the host itself."""
        return (self.nodes, self.storage) != ((1,), (LOCAL,))

    def values(self, dimension: str) -> tuple[Any, ...]:
        """The values of a dimension."""
        values_of_dimension: tuple[Any, ...] = getattr(self, dimension)
        return values_of_dimension

    def grid(self) -> list[Point]:
        """Every point, the last dimension fastest."""
        product = itertools.product(*(self.values(d) for d in DIMENSIONS))
        points = [Point(*p) for p in product]
        return [p for p in points if p.request_bytes <= p.data_bytes]

    def with_values(self, **values: Sequence[Any]) -> Space:
        """The same space with other values of some dimensions."""
        return Space(**{**vars(self), **{k: tuple(v) for k, v in values.items()}})

    def to_dict(self) -> dict[str, list[Any]]:
        return {d: list(self.values(d)) for d in DIMENSIONS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Sequence[Any]]) -> Space:
        """The space of `to_dict`; BadInput for invalid values."""
        try:
            stored = [d for d in DIMENSIONS if d in values or d not in _DEPLOYED]
            return cls(**{d: tuple(values[d]) for d in stored})
        except (KeyError, TypeError) as error:
            raise BadInput(f"this is no space of points: {error}") from None


DEFAULT = Space()
#: the published ranges (Mytilinis 2015)
TABLE_I = Space(
    data_bytes=(64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB),
    clients=(0, 1, 2, 3, 4),
    nodes=(1, 2, 4, 8, 16),
)
QUICK = Space(clients=(0, 2), request_bytes=(4096, MIB), data_bytes=(32 * MIB, 128 * MIB))


def _exact(size: int) -> str:
    """A size in the largest unit that divides it."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{size}B"


def shown_bytes(size: float) -> str:
    """A size as text: `64KiB`, `1GiB`, `1.5MiB`."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g}{unit}"
    return f"{size:.4g}B"


def skew(pattern: str) -> tuple[int, int] | None:
    """X and Y of `skew-X-Y`; None for a sequential pattern. BadInput for others."""
    if pattern == "sequential":
        return None
    match = _SKEW.fullmatch(pattern)
    if match is None or not (1 <= int(match[1]) <= 99 and 1 <= int(match[2]) <= 99):
        raise BadInput(f"found the pattern {pattern!r}; expected {_EXPECTED['pattern']}")
    return int(match[1]), int(match[2])


def dimension(name: str) -> str | None:
    """Dimension of a user's name; None if unknown."""
    return _NAMES.get(name.strip())


def value_of(dimension: str, raw: Any) -> Any:
    """One value of a dimension, as written by a user; ValueError with the expected values."""
    expected = _EXPECTED[dimension]
    text = str(raw).strip()
    if dimension == "operation" and text in ("read", "write"):
        return text
    if dimension == "access" and text in ("buffered", "direct"):
        return text
    if dimension == "pattern":
        try:
            skew(text)
        except BadInput:
            raise ValueError(expected) from None
        return text
    if dimension == "clients" and text.isdecimal() and int(text) <= 256:
        return int(text)
    if dimension == "nodes" and text.isdecimal() and 1 <= int(text) <= MOST_NODES:
        return int(text)
    if dimension == "storage" and _STORAGE.fullmatch(text):
        return text
    if dimension in ("request_bytes", "data_bytes"):
        try:
            size = parse_size(text)
        except ValueError:
            raise ValueError(expected) from None
        least = 512 if dimension == "request_bytes" else MIB
        if size >= least and size % 512 == 0 and math.isfinite(size):
            return size
    raise ValueError(expected)


def with_dimensions(space: Space, texts: Sequence[str]) -> Space:
    """The space after `--dimension NAME=v1,v2…`; BadInput with the actual and the expected value."""
    for text in texts:
        name, equals, listed = text.partition("=")
        which = dimension(name)
        if which is None or not equals:
            names = ", ".join(k for k in _NAMES if not k.endswith("_bytes"))
            raise BadInput(
                f"--dimension {text}: found {name.strip() or 'nothing'!r}; expected NAME=value,value… "
                f"of {names}"
            )
        values = []
        for one in listed.split(","):
            try:
                values.append(value_of(which, one))
            except ValueError as error:
                raise BadInput(
                    f"--dimension {text}: found {one.strip()!r}; expected {error}"
                ) from None
        space = space.with_values(**{which: _each_once(values)})
    return _not_empty(space, "--dimension")


def read_space(path: Path) -> Space:
    """The space in a YAML or JSON file: `penstock_space: 1` and `dimensions: {name: [values]}`.

    Other dimensions have their default. BadInput with every mistake and its line.
    """
    try:
        source = read_source(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; expected a space file") from None
    document = source.value if isinstance(source.value, dict) else {}
    if document.get("penstock_space") != _SPACE_VERSION:
        at = ("penstock_space",) if "penstock_space" in document else ()
        actual = repr(document["penstock_space"]) if at else "no penstock_space"
        source.mistake(at, actual, f"penstock_space: {_SPACE_VERSION}")
    for key in document:
        if key not in ("penstock_space", "dimensions"):
            source.mistake((key,), f"'{key}'", "penstock_space or dimensions", key=True)
    dimensions = document.get("dimensions", {})
    values: dict[str, list[Any]] = {}
    if not isinstance(dimensions, dict):
        source.mistake(("dimensions",), repr(dimensions), "a mapping: name: [values]")
    else:
        for name, listed in dimensions.items():
            _read_dimension(source, str(name), listed, values)
    if source.mistakes:
        raise BadInput(mistakes=source.mistakes)
    return _not_empty(DEFAULT.with_values(**values), str(path))


def _read_dimension(
    source: Source, name: str, listed: Any, values_by_name: dict[str, list[Any]]
) -> None:
    which = dimension(name)
    if which is None:
        names = ", ".join(k for k in _NAMES if not k.endswith("_bytes"))
        source.mistake(("dimensions", name), f"'{name}'", f"one of {names}", key=True)
        return
    if not isinstance(listed, list) or not listed:
        source.mistake(("dimensions", name), repr(listed), "a list of values, not empty")
        return
    values = []
    for i, one in enumerate(listed):
        try:
            values.append(value_of(which, one))
        except ValueError as error:
            source.mistake(("dimensions", name, i), repr(one), str(error))
    values_by_name[which] = _each_once(values)


def _each_once(values: list[Any]) -> list[Any]:
    unique = list(dict.fromkeys(values))
    return sorted(unique) if unique and not isinstance(unique[0], str) else unique


def _not_empty(space: Space, where: str) -> Space:
    if not space.grid():
        raise BadInput(f"{where}: found no point whose request fits into its data; expected one")
    return space
