"""Use of a study's `limits`, over all resumptions."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import BadInput
from penstock.spec.study import Limits
from penstock.writing import atomic_file

if TYPE_CHECKING:
    from penstock.host.probe.meter import Meter

FILE = "used.json"


@dataclass
class Used:
    """Runs, seconds of work and joules so far; written after each run. Counts from its creation."""

    out: Path
    limits: Limits
    runs: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0
    meter: Meter | None = None
    _since: float = field(default_factory=time.monotonic)
    _counts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, out: Path, limits: Limits) -> Used:
        """Resources used by earlier conductors in `out`. BadInput for a limit of energy without a counter."""
        used = cls(out, limits)
        if limits.energy_j is not None:
            from penstock.host.probe.meter import (
                find_meter,  # imports statistics, which takes half a second
            )

            meter, missing = find_meter()
            if meter is None or not meter.counters:
                raise BadInput(
                    f"limits.energy: found no energy counter ({missing or 'a sensor of power only'}); "
                    "expected RAPL, or a study without this limit"
                )
            used.meter, used._counts = meter, meter.counts()
        path = out / FILE
        if path.exists():
            try:
                usage = json.loads(path.read_text())
                used.runs, used.time_s = int(usage["runs"]), float(usage["time_s"])
                used.energy_j = float(usage["energy_j"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise BadInput(f"{path}: not what a study has used: {error}") from error
        return used

    @property
    def any(self) -> bool:
        """True if there is a limit."""
        return self.limits != Limits()

    def ran(self) -> None:
        """Count one more run."""
        now = time.monotonic()
        self.runs += 1
        self.time_s += now - self._since
        self._since = now
        if self.meter is not None:
            counts = self.meter.counts()
            self.energy_j += self.meter.joules(self._counts, counts)
            self._counts = counts
        self.write()

    def reached(self) -> str:
        """Message on the limit that is reached; empty if none is."""
        limits = self.limits
        if limits.runs is not None and self.runs >= limits.runs:
            return f"{self.runs} of {limits.runs} runs"
        if limits.time_s is not None and self.time_s >= limits.time_s:
            return f"{self.time_s:.0f} of {limits.time_s:.0f} s at work"
        if limits.energy_j is not None and self.energy_j >= limits.energy_j:
            return f"{self.energy_j:.0f} of {limits.energy_j:.0f} J"
        return ""

    def write(self) -> None:
        """Write the usage to OUT, with the limit that is reached."""
        usage = {
            "runs": self.runs,
            "time_s": round(self.time_s, 3),
            "energy_j": round(self.energy_j, 3),
            "reached": self.reached(),
        }
        with atomic_file(self.out / FILE) as draft:
            draft.write_text(json.dumps(usage, indent=1) + "\n")
