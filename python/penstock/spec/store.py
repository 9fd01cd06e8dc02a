"""A shared store's specification: its parameters, its hints, and an engine's support of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: default mount point of a store on nodes
MOUNT = "/store"
#: default engine (docs/adr/0057-the-default-engine.md)
DEFAULT_ENGINE = "cephfs"
#: prefix of a hint's key in the name of its extended attribute
PREFIX = "user.penstock."
#: parameters of a store, by the keys of a platform file, with their meanings
PARAMETERS = {
    "chunk": "size of a chunk",
    "stripe": "storage hosts over which one file is spread",
    "replicas": "copies of each chunk",
    "replication": "who sends the copies",
    "placement": "where chunks go",
    "cache": "what a client retains of the data it read",
    "prefetch": "what a client reads ahead",
}

How = Literal["native", "emulated", "refused"]


@dataclass(frozen=True)
class Support:
    """An engine's support of a parameter or a hint, with the reason: native, emulated, or none.

    `partly`: only for some values, given in `why`; the engine refuses the others on request.
    """

    how: How
    why: str
    partly: bool = False

    def to_dict(self) -> dict[str, str]:
        return {"how": self.how, "why": self.why}


def native(why: str, *, partly: bool = False) -> Support:
    """Supported by the engine."""
    return Support("native", why, partly)


def emulated(why: str, *, partly: bool = False) -> Support:
    """Supported through an emulation on top of the engine."""
    return Support("emulated", why, partly)


def refused(why: str) -> Support:
    """Not supported by this engine."""
    return Support("refused", why)


@dataclass(frozen=True)
class StoreSpec:
    """A store to be started: `engine`, values of PARAMETERS, mount point, patterns of `kept` files.

    Sizes are bytes. `kept` are patterns of paths within the store whose files `down` requires on the backend.
    `options` are specific to the engine. `watched`: tags set by programs are applied when a file is opened.
    """

    engine: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    mount: str = MOUNT
    kept: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    watched: bool = False


@dataclass(frozen=True)
class Roles:
    """Names of nodes by role."""

    managers: tuple[str, ...]
    storage: tuple[str, ...]
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Deployment:
    """A store and its nodes."""

    spec: StoreSpec
    roles: Roles


@dataclass(frozen=True)
class Extent:
    """Extent of a file: bytes from `offset_bytes` on, and the nodes with a copy of all of them."""

    offset_bytes: int
    length_bytes: int
    nodes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values as in `penstock store locate --json`."""
        return {
            "offset_bytes": self.offset_bytes,
            "length_bytes": self.length_bytes,
            "nodes": list(self.nodes),
        }
