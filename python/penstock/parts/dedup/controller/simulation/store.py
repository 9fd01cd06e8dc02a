"""Simulated store: times and similarities of writes, with the losses of a change of configuration."""

from __future__ import annotations

import functools
import itertools
import math
import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.dedup.controller.energy import PowerModel, energy_of
from penstock.parts.dedup.controller.settings import OFF
from penstock.parts.dedup.controller.utility import Costs
from penstock.parts.dedup.record import WriteRecord


@dataclass(frozen=True)
class Scenario:
    """A stream of writes to a store.

    `ratios` and `similarity` have an item for each deduplicating configuration: time to hash over time to
    send, and a process (`similarity.process`). `noise`: standard deviations of the logarithms of send and
    hash time. `overlap`: share of the shorter of hashing and sending that overlaps. `sampled`: the store
    supports shadow sampling. `every_s`: time between the starts of writes.
    """

    ratios: Mapping[str, float]
    similarity: Mapping[str, str]
    writes: int = 1000
    write_bytes: int = 256 << 20
    chunk_bytes: int = 64 << 10
    send_bps: float = 125e6
    noise: tuple[float, float] = (0.05, 0.02)
    overlap: float = 0.0
    sampled: bool = True
    every_s: float = 10.0
    power: PowerModel | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        if set(self.ratios) != set(self.similarity) or OFF in self.ratios or not self.ratios:
            actual = (
                f"ratios of {', '.join(self.ratios)}, similarity of {', '.join(self.similarity)}"
            )
            raise BadInput(f"found {actual}; expected both for the same configurations except off")

    @property
    def configurations(self) -> tuple[str, ...]:
        """All configurations, off first."""
        return (OFF, *self.ratios)


@dataclass(slots=True)
class Draw:
    """Costs of one write under any configuration: seconds to send and to hash all, similarities."""

    send_s: float
    hash_s: tuple[float, ...]
    expected: tuple[float, ...]
    similarity: tuple[float, ...]


class SimulatedStore:
    """State of one stream in a store: the configuration of the previous version.

    Chunks of another configuration, and versions without deduplication, have no hashes to compare with: the
    first version after a change has no similarity. A sample compares with the sample before.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self._scenario = scenario
        self._index = {name: i for i, name in enumerate(scenario.ratios)}
        self._chunks = max(1, scenario.write_bytes // scenario.chunk_bytes)
        self._previous = ""
        self._sampled = False
        self._random = random.Random(seed)

    def write(self, draw: Draw, configuration: str, share: float, at_s: float) -> WriteRecord:
        """One version; `share` of its chunks is sampled if `configuration` is off."""
        scenario = self._scenario
        if configuration == OFF:
            record = self._plain(draw, share if scenario.sampled else 0.0, at_s)
        else:
            i = self._index[configuration]
            z = draw.similarity[i] if configuration == self._previous else 0.0
            hashing, sending = draw.hash_s[i], draw.send_s * (1 - z)
            duration = hashing + sending - scenario.overlap * min(hashing, sending)
            similar = round(z * scenario.write_bytes)
            record = WriteRecord(
                "f", at_s, duration, hashing, sending, scenario.write_bytes, similar,
                self._chunks, round(z * self._chunks), configuration,
            )  # fmt: skip
            self._sampled = i == 0
        self._previous = configuration
        return record

    def _plain(self, draw: Draw, share: float, at_s: float) -> WriteRecord:
        chunks = int(share * self._chunks)
        hashing, similar = 0.0, 0
        if chunks:
            hashing = draw.hash_s[0] * chunks / self._chunks
            if self._sampled:
                similar = binomial(self._random, chunks, draw.similarity[0])
        self._sampled = chunks > 0
        return WriteRecord(
            "f", at_s, draw.send_s + hashing, hashing, draw.send_s, self._scenario.write_bytes,
            0, chunks, similar, OFF,
        )  # fmt: skip


def binomial(source: random.Random, n: int, p: float) -> int:
    """A binomial number: from its distribution for p in steps of 0.001, or approximately normal."""
    if n * p * (1 - p) >= 10:
        return min(n, max(0, round(source.gauss(n * p, math.sqrt(n * p * (1 - p))))))
    return bisect(_distribution(n, round(p, 3)), source.random())


@functools.lru_cache(maxsize=4096)
def _distribution(n: int, p: float) -> list[float]:
    """Probabilities of at most 0, 1, …, n - 1."""
    if p in (0.0, 1.0):
        return [1.0 - p] * n
    log = math.lgamma
    terms = (
        math.exp(
            log(n + 1) - log(k + 1) - log(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        )
        for k in range(n)
    )
    return list(itertools.accumulate(terms))


def costs(scenario: Scenario, draw: Draw, z: Sequence[float]) -> list[Costs]:
    """Costs of a write in each configuration, off first, with similarities `z` and a predecessor."""
    power, size = scenario.power, scenario.write_bytes
    rows: list[Costs] = []
    for hashing, similar in ((0.0, 0.0), *zip(draw.hash_s, z, strict=True)):
        sending = draw.send_s * (1 - similar)
        time = hashing + sending - scenario.overlap * min(hashing, sending)
        energy = 0.0 if power is None else power.extra_j(hashing, sending)
        rows.append((time, size * (1 - similar), energy))
    return rows


def record_costs(scenario: Scenario, record: WriteRecord) -> Costs:
    """Costs of a write as recorded."""
    power = scenario.power
    energy = 0.0 if power is None else energy_of(record, power)
    return record.duration_s, float(record.bytes - record.similar_bytes), energy
