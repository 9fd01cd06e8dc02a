"""A collector: the host's load, once at its start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.parts.monitoring.collectors.collector import Intake, Receipt, only
from penstock.parts.monitoring.experiments.points import Sink, points


class ToyCollector:
    """Read one file. Settings: `file`."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("file",))
        self._name, self._file = name, Path(settings.get("file", "/proc/loadavg"))

    async def start(self, sink: Sink) -> None:
        """Read the file."""
        self._intake = Intake(self._name, sink)
        load = float(self._file.read_text().split()[0])
        table = points(metric=["load"], utc_ns=[time.time_ns()], float=[load])
        await asyncio.to_thread(self._intake.keep, table)

    async def stop(self) -> Receipt:
        """Stop: there is no background work."""
        return self._intake.receipt
