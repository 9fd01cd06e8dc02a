"""Power of this host from the kernel's meters: RAPL counters by package, and hwmon sensors.

Settings: `interval_s` (1, at most 60), `sys` (/sys; another root for a recorded tree). Power of a counter is
its mean since the poll before. A counter wraps around once between two polls at most: at 60 s that takes
more than a kilowatt in one package.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.probe.meter import PLATFORM, power_sensors, rapl_zones
from penstock.parts.monitoring.collectors.collector import (
    Intake,
    Receipt,
    due,
    ended,
    interval_of,
    only,
    setting,
)
from penstock.parts.monitoring.experiments.points import (
    Account,
    Closed,
    Sink,
    canonical_labels,
    points,
)

#: longest interval, of which a counter wraps around at most once [s]
LONGEST_S = 60.0
#: metrics of processor packages, of the zone of the platform that includes them, and of sensors
PACKAGE, OF_PLATFORM, SENSOR = "rapl_power_watts", "platform_power_watts", "hwmon_power_watts"
Name = tuple[str, str]


class PowerMeters:
    """Polls the meters of this host."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("interval_s", "sys"))
        self.name = name
        self._interval_s = interval_of(name, settings)
        if self._interval_s > LONGEST_S:
            raise BadInput(
                f"{name}: found interval_s {self._interval_s:g}; expected at most {LONGEST_S:g}"
            )
        self._sys = Path(setting(name, settings, "sys", str, "/sys"))
        #: counters and the time at the last poll [µJ, ns]
        self._before: tuple[list[int], int] | None = None

    async def start(self, sink: Sink) -> None:
        """Raises PenstockError if this host has no readable meter."""
        self._zones, unreadable = rapl_zones(self._sys)
        self._sensors = power_sensors(self._sys)
        if not self._zones and not self._sensors:
            raise PenstockError(
                f"{self.name}: found no RAPL and no hwmon power sensor{unreadable}; expected one"
            )
        self.intake = Intake(self.name, sink)
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> Receipt:
        polls = self.intake.due()
        await ended(self._task)
        interval_ns, since_ns = round(self._interval_s * 1e9), self.intake.begun_ns
        accounts = [
            Account(metric, labels, interval_ns, expected=number, since_ns=since_ns)
            for names, number in ((self._counted(), max(0, polls - 1)), (self._sensed(), polls))
            for metric, labels in names
        ]
        await asyncio.to_thread(self.intake.ends, accounts)
        return self.intake.receipt

    def _counted(self) -> list[Name]:
        return [
            (OF_PLATFORM if z.name == PLATFORM else PACKAGE, canonical_labels({"zone": z.name}))
            for z in self._zones
        ]

    def _sensed(self) -> list[Name]:
        return [(SENSOR, canonical_labels({"sensor": s.name})) for s in self._sensors]

    async def _poll(self) -> None:
        async for utc_ns in due(self._interval_s, self.intake):
            try:
                values = await asyncio.to_thread(self._values)
                table = points(
                    metric=[metric for (metric, _), _ in values],
                    labels=[labels for (_, labels), _ in values],
                    unit=["W"] * len(values),
                    utc_ns=[utc_ns] * len(values),
                    float=[watts for _, watts in values],
                )
                await asyncio.to_thread(self.intake.keep, table)
            except OSError as error:
                self._before = None
                self.intake.receipt.failed(f"{error.filename}: {error.strerror}")
            except (PenstockError, ValueError) as error:
                self.intake.receipt.failed(str(error))
                if isinstance(error, Closed):
                    return

    def _values(self) -> list[tuple[Name, float]]:
        """Watts of sensors, and of counters since the last poll."""
        counts = [int(zone.energy.read_text()) for zone in self._zones]
        now_ns = time.monotonic_ns()
        before, self._before = self._before, (counts, now_ns)
        rows = [
            (name, int(sensor.power.read_text()) * 1e-6)
            for name, sensor in zip(self._sensed(), self._sensors, strict=True)
        ]
        if before is None:
            return rows
        earlier, then_ns = before
        seconds = (now_ns - then_ns) / 1e9
        for name, zone, first, last in zip(
            self._counted(), self._zones, earlier, counts, strict=True
        ):
            rows.append((name, zone.joules(first, last) / seconds))
        return rows
