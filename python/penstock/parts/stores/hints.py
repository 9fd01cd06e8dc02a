"""Hints: extended attributes `user.penstock.KEY` of a file.

A hint is a row of `penstock.plugins.STORE_HINTS`: a key, a check of its value, its mapping for engines
without native support, and its keys in a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import BadInput
from penstock.plugins import STORE_HINTS
from penstock.spec.store import PREFIX, Support
from penstock.spec.units import parse_size

#: applies a hint on one engine: (site, node, path, value, empty) → degree of support
Mapped = Callable[..., Support]


@dataclass(frozen=True)
class Hint:
    """One key. `parse` returns the engines' value, or raises ValueError with the expected ones.

    `engines` maps it for engines without native support; `model` gives the equivalent keys of a predicted
    file (docs/workload-file.md), {} if predictions ignore it.
    """

    key: str
    what: str
    parse: Callable[[str], Any]
    engines: Mapping[str, Mapped] = field(default_factory=dict)
    model: Callable[[Any], dict[str, Any]] = lambda _: {}


def hint(key: str) -> Hint | None:
    """The hint of that key; None for an attribute without a meaning."""
    if key not in STORE_HINTS:
        return None
    loaded: Hint = STORE_HINTS.load(key)
    return loaded


def checked(key: str, text: str) -> Any:
    """The engines' value of a tag; the text itself for a key without a meaning. BadInput."""
    meaning = hint(key)
    if meaning is None:
        return text
    try:
        return meaning.parse(text)
    except ValueError as error:
        raise BadInput(f"{key}={text}: found {text!r}; expected {error}") from None


def attribute(key: str) -> str:
    """The extended attribute of a key. BadInput for an invalid attribute name."""
    if (
        not key
        or len(key) > 100
        or not key.isascii()
        or any(c.isspace() or c in "=/\0" for c in key)
    ):
        raise BadInput(f"found the tag {key!r}; expected a short word such as Replication")
    return PREFIX + key


def _level(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise ValueError("a number of copies from 1 to 64")
    return int(text)


def _bytes(text: str) -> int:
    try:
        size = int(text) if text.isdigit() else parse_size(text)
    except ValueError as error:
        raise ValueError("a size such as 256KiB") from error
    if size <= 0:
        raise ValueError("a size such as 256KiB")
    return size


def _width(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("a number of storage nodes")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "on", "off", "yes", "no"):
        raise ValueError("true or false")
    return text.lower() in ("true", "on", "yes")


@dataclass(frozen=True)
class Placement:
    """Placement of a file's chunks: `local`, `collocation` with a `group`, `scatter` by `chunks`, or on the
    node `host`.
    """

    kind: str
    group: str = ""
    chunks: int = 0
    host: str = ""


def _placement(text: str) -> Placement:
    parts = text.split()
    if parts == ["local"]:
        return Placement("local")
    if len(parts) == 2 and parts[0] == "collocation":
        return Placement("collocation", group=parts[1])
    if len(parts) == 2 and parts[0] == "scatter" and parts[1].isdigit() and int(parts[1]) > 0:
        return Placement("scatter", chunks=int(parts[1]))
    if len(parts) == 2 and parts[0] == "host":
        return Placement("host", host=parts[1])
    raise ValueError("local, collocation GROUP, scatter CHUNKS, or host NODE")


def _placed(value: Placement) -> dict[str, Any]:
    """Equivalent hints of a workload file."""
    if value.kind == "collocation":
        return {"placement": "collocate", "group": value.group}
    if value.kind == "scatter":
        return {"placement": "scatter", "scatter": value.chunks}
    if value.kind == "host":
        return {"placement": "host", "host": value.host}
    return {"placement": "local"}


REPLICATION = Hint(
    "Replication", "copies of the file's chunks", _level, model=lambda n: {"replicas": n}
)
CHUNK_SIZE = Hint(
    "ChunkSize", "size of the file's chunks", _bytes, model=lambda n: {"chunk_bytes": n}
)
STRIPE_WIDTH = Hint(
    "StripeWidth",
    "storage nodes over which the file is spread",
    _width,
    model=lambda n: {"stripe_width": n},
)
CACHE_SIZE = Hint("CacheSize", "cache of a client for the file", _bytes)
DEDUPLICATION = Hint("deduplication", "store equal chunks once", _flag)
PLACEMENT = Hint("DP", "where the file's chunks go", _placement, model=_placed)


def chunk_bytes(tag: str | None, otherwise: int) -> int:
    """Chunk size of a file from its attribute ChunkSize [bytes]; `otherwise` without a valid one."""
    try:
        return _bytes(tag or "")
    except ValueError:
        return otherwise
