"""Power and energy of this host, from the kernel's meters: RAPL counters or a hwmon sensor."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import os
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.host.network.loopback import Measured, interval


@dataclass(frozen=True)
class Meter:
    """A meter: energy counters in microjoules with the values at which they wrap around, or one sensor in
    microwatts. `what`: the part of the host that it measures."""

    what: str
    counters: tuple[tuple[Path, int], ...] = ()
    sensor: Path | None = None

    def watts(self, seconds: float) -> float:
        """Mean power over the next `seconds`. OSError if the meter is no longer readable."""
        if self.sensor is not None:
            readings = []
            for _ in range(5):
                readings.append(int(self.sensor.read_text()) * 1e-6)
                time.sleep(seconds / 5)
            return sum(readings) / len(readings)
        before = self.counts()
        start = time.perf_counter()
        time.sleep(seconds)
        elapsed = time.perf_counter() - start
        return self.joules(before, self.counts()) / elapsed

    def counts(self) -> list[int]:
        """Current counters [µJ]; none of a sensor. OSError if they are no longer readable."""
        return [int(path.read_text()) for path, _ in self.counters]

    def joules(self, before: list[int], after: list[int]) -> float:
        """Energy between two `counts`, less than one wrap-around apart."""
        turns = (most for _, most in self.counters)
        return sum((b - a) % t for a, b, t in zip(before, after, turns, strict=True)) * 1e-6


#: name of the zone of the complete platform, which includes the packages
PLATFORM = "psys"


@dataclass(frozen=True)
class Zone:
    """An energy counter of RAPL in microjoules: its name (`package-0`), and its range."""

    name: str
    energy: Path
    range_uj: int

    def joules(self, before: int, after: int) -> float:
        """Energy between two values, less than one wrap-around apart."""
        return (after - before) % self.range_uj * 1e-6


@dataclass(frozen=True)
class Sensor:
    """A power sensor of hwmon in microwatts."""

    name: str
    power: Path


def rapl_zones(sys: Path = Path("/sys")) -> tuple[list[Zone], str]:
    """Zones of RAPL that are no part of another one, and why others cannot be read."""
    zones, unreadable = [], ""
    for place in sorted((sys / "class/powercap").glob("intel-rapl:*")):
        if place.name.count(":") != 1:
            continue  # a part of another zone
        try:
            int((place / "energy_uj").read_text())
            range_uj = int((place / "max_energy_range_uj").read_text())
        except (OSError, ValueError) as error:
            unreadable = (
                f"; {place.name} cannot be read ({getattr(error, 'strerror', None) or error})"
            )
            continue
        zones.append(Zone(_label(place), place / "energy_uj", range_uj))
    return zones, unreadable


def _label(place: Path) -> str:
    """Name of a device by its driver, else that of its directory."""
    name = place / "name"
    return name.read_text().strip() if name.is_file() else place.name


def power_sensors(sys: Path = Path("/sys")) -> list[Sensor]:
    """Power sensors of all chips: current values, or averages where a chip has no other."""
    sensors = []
    for chip in sorted((sys / "class/hwmon").glob("hwmon*")):
        numbers = {p.name.split("_")[0] for p in chip.glob("power*_*")}
        for number in sorted(numbers):
            files = [chip / f"{number}_{kind}" for kind in ("input", "average")]
            for file in files:
                try:
                    int(file.read_text())
                except (OSError, ValueError):
                    continue
                sensors.append(Sensor(f"{chip.name} {_label(chip)} {number}", file))
                break
    return sensors


def find_meter(sys: Path = Path("/sys")) -> tuple[Meter | None, str]:
    """Meter of this host, or None and the places searched."""
    zones, unreadable = rapl_zones(sys)
    counters = [(z.energy, z.range_uj) for z in zones if z.name != PLATFORM]
    sensors = sorted((sys / "class/hwmon").glob("hwmon*/power1_input"))
    for sensor in sensors:
        try:
            int(sensor.read_text())
        except (OSError, ValueError):
            continue
        if _label(sensor.parent) in ("power_meter", "acpi_power_meter"):
            return Meter("the host, by its power meter", sensor=sensor), ""
    if counters:
        return Meter("the processor packages only, by RAPL", counters=tuple(counters)), ""
    return (
        None,
        f"no RAPL (class/powercap) and no power meter (class/hwmon){unreadable}",
    )


def measure(meter: Meter, repetitions: int = 5, seconds: float = 0.4) -> tuple[Measured, Measured]:
    """(idle, all processors busy) in watts. OSError if the meter is no longer readable."""
    idle = interval([meter.watts(seconds) for _ in range(repetitions)])
    stop = multiprocessing.get_context("spawn").Event()
    cores = len(os.sched_getaffinity(0))
    spinners = [
        multiprocessing.get_context("spawn").Process(target=_spin, args=(stop,), daemon=True)
        for _ in range(cores)
    ]
    try:
        for spinner in spinners:
            spinner.start()
        time.sleep(1.0)
        busy = interval([meter.watts(seconds) for _ in range(repetitions)])
    finally:
        stop.set()
        for spinner in spinners:
            spinner.join(timeout=5)
            spinner.kill()
    return idle, busy


def _spin(stop: multiprocessing.synchronize.Event) -> None:
    number = 1
    while not stop.is_set():
        for _ in range(10_000):
            number = number * 48271 % 2147483647
