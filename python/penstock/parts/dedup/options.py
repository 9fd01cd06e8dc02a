"""Options of a deduplicating mount, checked."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput

#: the part's functions in Rust
native: Any = importlib.import_module("penstock._native")

AUTO = "auto"
HASHES = ("blake3", "sha256")
SCOPES = ("family", "global")
#: the fastest chunker and hash of docs/dedup.md
DEFAULT_CHUNKING = "seqcdc:16KiB,64KiB,256KiB"
DEFAULT_HASH = "blake3"
#: parts of a path that differ between versions
DEFAULT_FAMILY = "[0-9]+"
#: configurations between which the controller chooses
AUTO_CONFIGURATIONS = ("off", "fixed:64KiB", DEFAULT_CHUNKING)


@dataclass(frozen=True)
class MountOptions:
    """Options of a mount.

    `chunking` is `off`, `fixed:SIZE`, `fastcdc:MIN,AVG,MAX`, `seqcdc:MIN,AVG,MAX`, or `auto`: then the
    controller chooses one of `configurations` for each version, by the settings in the file `controller`
    (None: its defaults). `family` is a regular expression: paths that differ only in its matches are versions
    of one family. `trust`: chunks are read without a comparison with their hashes. `sync`: each version is
    written to the devices when it is closed.
    """

    chunking: str = DEFAULT_CHUNKING
    hash: str = DEFAULT_HASH
    scope: str = "family"
    family: str = DEFAULT_FAMILY
    configurations: Sequence[str] = AUTO_CONFIGURATIONS
    controller: Path | None = None
    trust: bool = False
    sync: bool = False

    def __post_init__(self) -> None:
        one_of("hash", self.hash, HASHES)
        one_of("scope", self.scope, SCOPES)
        for name in self.configurations if self.chunking == AUTO else (self.chunking,):
            normal_chunking(name)
        family_of(self.family, "")
        if self.controller is not None and self.chunking != AUTO:
            raise BadInput(f"controller: found chunking {self.chunking}; expected {AUTO} with it")
        if self.controller is not None:
            from penstock.parts.dedup.controller.settings_file import read_settings

            read_settings(self.controller)  # raises BadInput

    def server_config(self) -> dict[str, Any]:
        """Fields of the server's configuration that these options determine."""
        config: dict[str, Any] = {
            "chunking": self.chunking,
            "hash": self.hash,
            "scope": self.scope,
            "family": self.family,
            "trust": self.trust,
            "sync": self.sync,
        }
        if self.chunking == AUTO:
            names = [normal_chunking(name) for name in self.configurations]
            # until the controller chooses
            config["chunking"] = names[0]
            settings = None if self.controller is None else str(self.controller.absolute())
            config["controller"] = {"configurations": names, "settings": settings}
        return config


def normal_chunking(text: str) -> str:
    """A configuration with sizes in bytes, as records have it. Raises BadInput if it is invalid."""
    try:
        return str(native.dedup_chunking(text))
    except ValueError as error:
        raise BadInput(f"chunking: {error}") from None


def family_of(rule: str, path: str) -> str:
    """Family of a path by a rule, a regular expression. Raises BadInput if it is invalid."""
    try:
        return str(native.dedup_family(rule, path))
    except ValueError as error:
        raise BadInput(" ".join(str(error).split())) from None


def one_of(key: str, value: str, choices: Sequence[str]) -> None:
    """Raises BadInput unless `value` is one of `choices`."""
    if value not in choices:
        raise BadInput(f"{key}: found {value!r}; expected {' or '.join(choices)}")
