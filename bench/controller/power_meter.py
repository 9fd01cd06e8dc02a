"""Emulated power meter: one average per second, in watts, within 1.5 % (the meters of Costa 2014, 5.4.1)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.dedup.controller.energy import PowerModel

PERIOD_S = 1.0
#: shorter batches have too few readings
LEAST_READINGS = 10


@dataclass(frozen=True)
class Meter:
    """A meter at the outlet of one machine: its constant relative error, and the resolution of a reading."""

    gain: float
    resolution_w: float = 1.0

    @classmethod
    def from_seed(cls, seed: int, accuracy: float = 0.015) -> Meter:
        """A meter with a random error within its accuracy."""
        return cls(1 + random.Random(seed).uniform(-accuracy, accuracy))

    def readings(self, phases: Sequence[tuple[float, float]]) -> list[float]:
        """Readings [W] of a machine with the `phases` (duration [s], power [W]), one per full period."""
        values: list[float] = []
        energy_j, elapsed_s = 0.0, 0.0
        for duration_s, watts in phases:
            rest_s = duration_s
            while elapsed_s + rest_s >= PERIOD_S:
                part_s = PERIOD_S - elapsed_s
                mean_w = (energy_j + part_s * watts) / PERIOD_S
                values.append(round(self.gain * mean_w / self.resolution_w) * self.resolution_w)
                energy_j, elapsed_s, rest_s = 0.0, 0.0, rest_s - part_s
            energy_j += rest_s * watts
            elapsed_s += rest_s
        return values


@dataclass(frozen=True)
class MeteredBatch:
    """Energy of a batch of writes by the meters. `short` flags fewer than `LEAST_READINGS` readings."""

    writes: int
    duration_s: float
    total_j: float
    idle_j: float
    short: bool

    @property
    def extra_j_per_write(self) -> float:
        """Energy of a write beyond that of idle machines."""
        return (self.total_j - self.idle_j) / self.writes


def metered(
    power: PowerModel,
    writes: Sequence[tuple[float, float]],
    meters: Sequence[Meter],
    idle_s: float = 60.0,
) -> MeteredBatch:
    """Measure a batch of writes (seconds of hashing, then seconds of sending); each machine has a meter. The
    first machine is the client. The same meters measure the idle power for `idle_s` before.
    """
    if len(meters) != power.senders:
        raise BadInput(
            f"meters: found {len(meters)}; expected one for each of {power.senders} machines"
        )
    duration_s = sum(hashing + sending for hashing, sending in writes)
    total_w = idle_w = 0.0
    count = 0
    for number, meter in enumerate(meters):
        hash_w = power.hash_w if number == 0 else power.idle_w
        phases = [phase for h, s in writes for phase in ((h, hash_w), (s, power.io_w))]
        values = meter.readings(phases)
        count = len(values)
        total_w += _mean(values)
        idle_w += _mean(meter.readings([(idle_s, power.idle_w)]))
    short = count < LEAST_READINGS
    return MeteredBatch(len(writes), duration_s, total_w * duration_s, idle_w * duration_s, short)


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise BadInput(f"duration: found less than {PERIOD_S:g} s; expected a period of the meter")
    return sum(values) / len(values)


def measured_break_even(
    power: PowerModel, r: float, send_s: float, seed: int, writes: int = 50
) -> float:
    """Similarity at which batches with and without deduplication take the same extra energy.

    `send_s` is the time to send one write. Batches of similarity 0, 10, … 100 %, one meter per machine; the
    least-squares line through those with deduplication is intersected with the one without.
    """
    meters = [Meter.from_seed(seed + number) for number in range(power.senders)]
    off = metered(power, [(0.0, send_s)] * writes, meters).extra_j_per_write
    similarities = [step / 10 for step in range(11)]
    energies = [
        metered(power, [(r * send_s, (1 - z) * send_s)] * writes, meters).extra_j_per_write
        for z in similarities
    ]
    mean_z, mean_j = sum(similarities) / 11, sum(energies) / 11
    covariance = sum(
        (z - mean_z) * (j - mean_j) for z, j in zip(similarities, energies, strict=True)
    )
    slope = covariance / sum((z - mean_z) ** 2 for z in similarities)
    return mean_z + (off - mean_j) / slope
