"""Interface of a cluster that is up, on this host (`Cluster`) or on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock.emulate.cluster.cluster import Progress, RunningNode


class RunningCluster(Protocol):
    """Nodes that are up. The state of the nodes is that of the last `refresh`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def home(self) -> Path:
        """Directory of this host that is removed with the cluster."""

    @property
    def nodes(self) -> dict[str, RunningNode]:
        """Its nodes by name."""

    @property
    def interrupted(self) -> bool:
        """True if the command that starts or stops it died before its end."""

    def chosen(self, patterns: Sequence[str]) -> list[RunningNode]:
        """Nodes that match names and patterns. Raises BadInput for one without a match."""

    def refresh(self) -> None:
        """Request the current state of the nodes."""

    def status(self) -> list[dict[str, Any]]:
        """The nodes with their use of processors, memory, disks and links."""

    def spec_json(self) -> dict[str, Any]:
        """The specification that it was started with, in JSON values."""

    def set_delays(self, network: str, delays: Mapping[tuple[str, str], float]) -> None:
        """Change one-way delays of pairs of nodes [s]."""

    def completed(self) -> None:
        """Mark it complete: it survives this process."""

    def ending(self) -> None:
        """Mark it incomplete: `penstock undo` stops it if this process dies."""

    def down(self, progress: Progress | None = None) -> None:
        """Stop its nodes."""
