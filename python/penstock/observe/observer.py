"""Protocol of observers of a run: the rows of `penstock.plugins.OBSERVERS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.journal.journal import Journal


@dataclass(frozen=True)
class Watched:
    """Targets of observers: the group whose members are traced (None: no tracing), groups by name for the
    monitor (a node's `net` is its table of interfaces), counter pages and devices of the emulated disks
    by disk_id, capacities of nodes' links by `NODE INTERFACE` [bytes/s].
    """

    scope: RunCgroup | int | None
    group: RunCgroup | None
    nodes: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    pages: Mapping[str, Path] = field(default_factory=dict)
    devices: Mapping[tuple[int, int], str] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Seen:
    """Records of one observer of a run: small tables by name, its receipt, the number of losses, the file
    of a table that it wrote into the bundle itself, and its entries of the manifest.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    receipt: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    events_path: Path | None = None
    manifest: dict[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    """Watches runs one after the other: `start` and `finish` for each run of a study, then `stop`.

    It says nothing to the host that the journal was not told of, and what it keeps per event lies in a file.
    Three methods may be there or not: `live()` (`followed`), `environment()` (`command_environment`), and a
    static `mistakes(settings)`, all that is wrong with the settings of a study as (path below them, found,
    expected).
    """

    def __init__(self, journal: Journal, home: Path, settings: Mapping[str, Any]) -> None:
        """`home` is a private directory; `settings` is what the study says of it. BadInput for wrong ones."""

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """A run begins; what is spooled lies in `out_dir` (None, where no run of a study: where it likes)."""

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """The run has ended. `run`: begin and end of the program [CLOCK_MONOTONIC ns]. A run of a study has a
        bundle."""

    def stop(self) -> None:
        """Ends what it started; also where it was never begun."""


def followed(observer: Observer) -> dict[str, Any]:
    """Source of an observer's recording while it goes on, from its `live()`: JSON values.

    Empty where it has no such method, or no live source.
    """
    live = getattr(observer, "live", None)
    return dict(live()) if live is not None else {}


def command_environment(observer: Observer) -> dict[str, str]:
    """Variables of the watched command from the observer's `environment()` between `start` and `finish`.
    Empty where it has no such method.
    """
    environment = getattr(observer, "environment", None)
    return dict(environment()) if environment is not None else {}
