"""Physical hosts and the paths between them. Units: bytes, seconds, bytes/s."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PhysicalHost:
    """One host, with the figures that `penstock doctor` measured there.

    `address`: end point of its tunnels. `iops` and `*_bps` of the disk are those of emulated disks;
    `service_floor_s` is their shortest service time. `link_bps`: rate of the link in each direction; `mtu`:
    largest IP packet on its paths. `features`: verdict of each feature. `clock_offset_s`: clock of the host
    − that of this one, with its bound; None if it was not measured. None of a disk figure: not measured.
    """

    name: str
    address: str
    processors: int
    memory_bytes: float
    link_bps: float
    mtu: int
    version: str
    read_bps: float | None = None
    write_bps: float | None = None
    iops: float | None = None
    service_floor_s: float | None = None
    disk_bytes: float | None = None
    clock_offset_s: float | None = None
    clock_bound_s: float = 0.0
    features: Mapping[str, str] = field(default_factory=dict, hash=False)

    def matches(self, pattern: str) -> bool:
        """True if the name or the address matches a pattern such as `rack1-*`."""
        return any(fnmatch.fnmatchcase(text, pattern) for text in (self.name, self.address))


@dataclass(frozen=True)
class RealPath:
    """Measured one-way delay [s] and loss (a probability per packet) from one host to another."""

    delay_s: float
    loss: float = 0.0


@dataclass(frozen=True)
class PathRule:
    """Path from hosts to hosts; both are patterns of names or addresses."""

    source: str
    target: str
    path: RealPath


@dataclass(frozen=True)
class Inventory:
    """Physical hosts, and the paths between them: later rules take precedence; without a rule for a
    direction, that of the opposite one applies."""

    hosts: tuple[PhysicalHost, ...]
    rules: tuple[PathRule, ...] = ()

    def paths(self, hosts: Sequence[PhysicalHost]) -> dict[tuple[str, str], RealPath]:
        """Path from each of these hosts to each other; pairs that no rule covers are absent."""
        forward: dict[tuple[str, str], RealPath] = {}
        back: dict[tuple[str, str], RealPath] = {}
        for rule in self.rules:
            sources = [h.name for h in hosts if h.matches(rule.source)]
            targets = [h.name for h in hosts if h.matches(rule.target)]
            for a in sources:
                for b in targets:
                    if a != b:
                        forward[a, b] = back[b, a] = rule.path
        return back | forward


def some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
