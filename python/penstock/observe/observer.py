"""Protocol of observers of a run: the rows of `penstock.plugins.OBSERVERS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.journal.journal import Journal

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.archive.bundle import Bundle


@dataclass(frozen=True)
class Watched:
    """Targets of observers: the traced group (None: no tracing), groups by name for the monitor (a node's
    `net` is its table of interfaces), counter pages and devices of the emulated disks by disk_id, capacities
    of nodes' links by `NODE INTERFACE` [bytes/s].
    """

    scope: RunCgroup | int | None
    group: RunCgroup | None
    nodes: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)
    pages: Mapping[str, Path] = field(default_factory=dict)
    devices: Mapping[tuple[int, int], str] = field(default_factory=dict)
    links: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Seen:
    """Records of one observer of a run: small tables by name, its receipt, the number of losses, the file of
    a table that it wrote into the bundle, and its entries of the manifest.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    receipt: dict[str, Any] = field(default_factory=dict)
    lost: int = 0
    events_path: Path | None = None
    manifest: dict[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    """Observes runs one after the other: `start` and `finish` for each run of a study, then `stop`.

    It records changes of the host in the journal first, and spools records of events to a file. Three methods
    are optional: `live()` (see `followed`), `environment()` (see `command_environment`), and a static
    `mistakes(settings)`, which returns errors in a study's settings as (path below them, actual value,
    expected value).
    """

    def __init__(self, journal: Journal, home: Path, settings: Mapping[str, Any]) -> None:
        """`home` is a private directory; `settings` are the study's. BadInput for invalid ones."""

    def start(self, watched: Watched, out_dir: Path | None) -> None:
        """Start of a run; spools to `out_dir` (None outside a study: any place)."""

    def finish(self, bundle: Bundle | None, run: tuple[int, int] | None) -> Seen:
        """End of a run. `run`: start and end of the program [CLOCK_MONOTONIC ns]. A run of a study has a
        bundle."""

    def stop(self) -> None:
        """End everything it started, if anything."""


def followed(observer: Observer) -> dict[str, Any]:
    """Live source of an observer's recording, from its `live()`: JSON values.

    Empty without such a method or source.
    """
    live = getattr(observer, "live", None)
    return dict(live()) if live is not None else {}


def command_environment(observer: Observer) -> dict[str, str]:
    """Variables for the observed command from the observer's `environment()` between `start` and `finish`.
    Empty without such a method.
    """
    environment = getattr(observer, "environment", None)
    return dict(environment()) if environment is not None else {}
