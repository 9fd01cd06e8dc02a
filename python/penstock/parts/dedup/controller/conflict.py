"""Conflicts between time and energy: similarities at which the two prefer different configurations."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.parts.dedup.controller.energy import PowerModel, break_even, relative_energy
from penstock.parts.dedup.controller.model import break_even_time, relative_time
from penstock.text import tenths


@dataclass(frozen=True)
class Conflict:
    """Break-even similarities, and the largest losses between them.

    `energy_loss` is the share of extra energy that the fastest configuration wastes, `total_energy_loss` the
    share of all energy including idle machines; `time_loss` the share of time that the most economical
    configuration wastes. Each is the largest in the interval.
    """

    r: float
    ratio: float
    time: float
    energy: float
    energy_loss: float
    total_energy_loss: float
    time_loss: float

    @property
    def interval(self) -> tuple[float, float]:
        """Similarities between the two break-evens, within 0…1."""
        low, high = sorted((self.time, self.energy))
        return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)

    @property
    def width(self) -> float:
        """Width of the interval."""
        low, high = self.interval
        return high - low


def conflict(power: PowerModel, r: float) -> Conflict:
    """Compare the break-even similarities of time and energy for hashing that takes `r` of sending."""
    time, energy = break_even_time(r), break_even(power, r)
    # losses grow with the distance from the metric's own break-even: the largest are at the other's
    at_time, at_energy = min(max(time, 0.0), 1.0), min(max(energy, 0.0), 1.0)
    return Conflict(
        r=r,
        ratio=power.ratio,
        time=time,
        energy=energy,
        energy_loss=_loss(relative_energy(power, r, at_time)),
        total_energy_loss=_loss(_relative_total(power, r, at_time)),
        time_loss=_loss(relative_time(r, at_energy)),
    )


def _loss(on: float) -> float:
    """Loss of the worse of two configurations, of which one costs 1 and the other `on`."""
    return max(on, 1.0) / min(on, 1.0) - 1


def _relative_total(power: PowerModel, r: float, z: float) -> float:
    on = power.total_j(r, 1 - z, relative_time(r, z))
    return on / power.total_j(0.0, 1.0, 1.0)


def lines(result: Conflict) -> list[str]:
    """The report: break-evens, the interval between them, the largest losses."""
    low, high = result.interval
    text = [
        f"break-even of time: {tenths(result.time)}; of energy: {tenths(result.energy)} "
        f"(ratio {result.ratio:.2f})",
    ]
    if result.width < 0.005:
        return [*text, "no conflict: time and energy prefer the same configuration"]
    faster, economical = ("off", "on") if result.energy < result.time else ("on", "off")
    return [
        *text,
        f"conflict for similarities from {tenths(low)} to {tenths(high)} "
        f"({100 * result.width:.0f} points): {faster} is faster, {economical} takes less energy",
        f"the fastest configuration wastes up to {tenths(result.energy_loss)} of the energy beyond idle "
        f"machines ({tenths(result.total_energy_loss)} of all energy)",
        f"the most economical configuration wastes up to {tenths(result.time_loss)} of the time",
    ]
