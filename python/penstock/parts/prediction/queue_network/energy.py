"""Energy of a run from the time of its hosts in each state (equations 3.4 and 3.5 of the source).

    E = Σ over client and storage hosts of  P_idle · T + P_app · T_app + P_sm · T_sm + P_net · T_net

T is the makespan, T_app the time spent computing (the mean over the host's slots, as P_app is the power of
a processor at full load), T_sm the time with the storage server busy, T_net the time in which the host sent
or received; P_app, P_sm and P_net are powers *above* idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.analyse.statistics.prediction_intervals import Interval
from penstock.platform.power import Power


@dataclass(frozen=True)
class HostEnergy:
    """Joules of one host by state; `capped_j` is the reduction by the cap at peak power (0 or negative)."""

    host: str
    idle_j: float
    app_j: float
    storage_j: float
    network_j: float
    capped_j: float = 0.0

    @property
    def total_j(self) -> float:
        return self.idle_j + self.app_j + self.storage_j + self.network_j + self.capped_j


@dataclass(frozen=True)
class Energy:
    """Joules of a run, by host and by state; `interval`: of the total of a single run."""

    hosts: tuple[HostEnergy, ...]
    omitted: tuple[str, ...] = ()
    interval: Interval | None = None

    @property
    def total_j(self) -> float:
        """Energy of all counted hosts."""
        return math.fsum(h.total_j for h in self.hosts)

    def by_state(self) -> dict[str, float]:
        """Joules in `idle`, `app`, `storage`, `network` and `capped`."""
        names = ("idle", "app", "storage", "network", "capped")
        return {n: math.fsum(getattr(h, f"{n}_j") for h in self.hosts) for n in names}

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/prediction/1`, under `energy`."""
        return {
            "total_j": self.total_j,
            "interval": None if self.interval is None else self.interval.ends(),
            "by_state_j": self.by_state(),
            "by_host_j": {h.host: h.total_j for h in self.hosts},
            "left_out": list(self.omitted),
        }


def host_energy(
    host: str, power: Power, makespan_s: float, app_s: float, storage_s: float, network_s: float
) -> HostEnergy:
    """Equation 3.4 for one host; seconds and joules.

    States are assumed not to overlap, so a host in several of them draws the sum of their powers; with
    `power.cap` the mean power stays at or below the peak.
    """
    energy = HostEnergy(
        host,
        power.idle_j(makespan_s, app_s + storage_s + network_s),
        power.app_w * app_s,
        power.storage_w * storage_s,
        power.network_w * network_s,
    )
    if power.cap and power.peak_w is not None:
        most_j = power.peak_w * makespan_s
        return replace(energy, capped_j=min(0.0, most_j - energy.total_j))
    return energy


def run_energy(
    makespan_s: float,
    hosts: Iterable[Mapping[str, Any]],
    powers: Mapping[str, Power],
) -> Energy:
    """Energy of one run.

    `hosts` are the outcome's rows (`name`, `app_s`, `storage_s`, `network_s`); `powers` by host name. Hosts
    without one are excluded, such as a platform's managers.
    """
    energies, missing = [], []
    for row in hosts:
        name = str(row["name"])
        if name not in powers:
            missing.append(name)
            continue
        times = (float(row["app_s"]), float(row["storage_s"]), float(row["network_s"]))
        energies.append(host_energy(name, powers[name], makespan_s, *times))
    return Energy(tuple(energies), tuple(missing))
