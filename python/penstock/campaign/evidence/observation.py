"""Records of the observers and the disks of one run of a study."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.campaign.evidence.disk_observation import DiskObservation
from penstock.observe.recorder import Observation


@dataclass
class RunObservation(Observation):
    """Records of the observers and the disks of one run."""

    disks: DiskObservation = field(default_factory=DiskObservation)

    def events(self, columns: list[str]) -> pa.Table | None:
        """Reads and writes of the run; None if there is no record of all of them."""
        return None if self.manifest.get("filters") else super().events(columns)

    def tables(self) -> dict[str, pa.Table]:
        """All small tables by name."""
        return {**self.observed, **self.disks.tables}

    @property
    def fidelity_faults(self) -> tuple[str, ...]:
        """Deviations of disks from their specifications, one message per disk."""
        return self.disks.faults
