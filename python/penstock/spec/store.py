"""A shared store as it can be asked for: its parameters, its hints, and how far an engine meets each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: where nodes see the store unless the platform says otherwise
MOUNT = "/store"
#: what a store is made of where nobody says it (docs/adr/0057-the-default-engine.md)
DEFAULT_ENGINE = "cephfs"
#: hints are extended attributes with this before their key
PREFIX = "user.penstock."
#: what a store is configured with as a whole, by the keys of a platform file, and what each means
PARAMETERS = {
    "chunk": "size of a chunk",
    "stripe": "storage hosts over which one file is spread",
    "replicas": "copies of each chunk",
    "replication": "who sends the copies",
    "placement": "where chunks go",
    "cache": "what a client keeps of what it read",
    "prefetch": "what a client reads ahead",
}

How = Literal["native", "emulated", "refused"]


@dataclass(frozen=True)
class Support:
    """The support of an engine for a parameter or a hint, with its reason: native, by a wrapper, or none.

    `partly`: for some values only, which `why` names; the others are refused when they are asked for.
    """

    how: How
    why: str
    partly: bool = False

    def to_dict(self) -> dict[str, str]:
        """In JSON values."""
        return {"how": self.how, "why": self.why}


def native(why: str, *, partly: bool = False) -> Support:
    """The engine does it by itself."""
    return Support("native", why, partly)


def emulated(why: str, *, partly: bool = False) -> Support:
    """The engine can be brought to it."""
    return Support("emulated", why, partly)


def refused(why: str) -> Support:
    """It cannot be had from this engine."""
    return Support("refused", why)


@dataclass(frozen=True)
class StoreSpec:
    """A store to be put up: `engine`, values of PARAMETERS, where it is seen, which files are `kept`.

    Sizes are bytes. `kept` are patterns of paths within the store that `down` must find on the backend.
    `options` are the engine's own. `watched`: tags that programs set are taken up when a file is opened.
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
    """A store and the nodes it is put up on."""

    spec: StoreSpec
    roles: Roles


@dataclass(frozen=True)
class Extent:
    """A part of a file: bytes from `offset_bytes` on, and the nodes that each hold all of it."""

    offset_bytes: int
    length_bytes: int
    nodes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """In JSON values, as `penstock store locate --json` gives them."""
        return {
            "offset_bytes": self.offset_bytes,
            "length_bytes": self.length_bytes,
            "nodes": list(self.nodes),
        }
