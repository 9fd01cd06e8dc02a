"""Hosts with parts of the same data at unequal rates, an input of the applicability verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.parts.prediction.workloads.distribution import mean_s
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.profile.model import StorageProfile

Row = dict[str, Any]

#: relative difference from the fastest host above which hosts are unequal: the tolerance for a node without a
#: profile of its own
UNEQUAL = 0.1


@dataclass(frozen=True)
class Rates:
    """Rate of each host that stores data [B/s] by name.

    `part` is the differing component (`links`, `storage`), `verb` the host's activity (`receives`, `stores`,
    …).
    """

    part: str
    verb: str
    by_host: Mapping[str, float]

    @property
    def slow(self) -> dict[str, float]:
        """Hosts more than a tenth slower than the fastest, slowest first; relative rate."""
        most = max(self.by_host.values(), default=0.0)
        shares = {h: rate / most for h, rate in self.by_host.items() if rate < (1 - UNEQUAL) * most}
        return dict(sorted(shares.items(), key=lambda one: one[1]))

    @property
    def fastest(self) -> str:
        """The fastest host, the first of several."""
        return max(self.by_host, key=lambda host: self.by_host[host])


def spread_rates(
    workload: Workload, network: Row, stages: Sequence[Row], hosts: Sequence[Row]
) -> list[Rates]:
    """Rates of the hosts over which a store has distributed data; none if each file is local to its users.

    `stages` and `hosts` are those of the simulated runs: for any placement, the hosts are those with bytes at
    the end, and data are distributed if tasks moved bytes to or from other hosts than their own.
    """
    holding = {h["name"] for h in hosts if h["stored_bytes"] > 0}
    remote = sum(float(s.get("remote_bytes", 0)) for s in stages)
    if len(holding) < 2 or not (remote or _copied(workload, network)):
        return []
    of = [h for h in network["hosts"] if h["name"] in holding and h.get("storage")]
    chunk = float(network["store"]["chunk_bytes"])
    rates = []
    for moved, link, verb, op, does in (
        ("written_bytes", "in_bps", "receives", "write", "stores"),
        ("read_bytes", "out_bps", "sends", "read", "reads"),
    ):
        if not any(float(s.get(moved, 0)) for s in stages):
            continue
        rates.append(Rates("links", verb, {h["name"]: float(h["network"][link]) for h in of}))
        rate = _storage_rate(op, chunk)
        rates.append(Rates("storage", does, {h["name"]: rate(h["storage"]) for h in of}))
    return rates


def _copied(workload: Workload, network: Row) -> bool:
    hints = [file.hints for file in workload.files]
    hints += [o.hints for task in workload.tasks for o in task.operations if o.op == "set_xattr"]
    most = max((h.replicas or 1 for h in hints if h is not None), default=1)
    return max(most, int(network["store"]["replicas"])) > 1


def _storage_rate(op: str, chunk_bytes: float) -> Callable[[Row], float]:
    """Rate of a storage that always has a whole chunk to serve [B/s]; identical hosts share one object."""
    by_object: dict[int, float] = {}

    def rate(storage: Row) -> float:
        if id(storage) not in by_object:
            by_object[id(storage)] = _rate(storage, op, chunk_bytes)
        return by_object[id(storage)]

    return rate


def _rate(storage: Row, op: str, chunk_bytes: float) -> float:
    profile = storage.get("profile")
    if profile is None:
        service = storage[op]
        seconds = mean_s(service["overhead"]) + chunk_bytes * float(service["s_per_byte"])
        return int(storage["servers"]) * chunk_bytes / seconds if seconds > 0 else float("inf")
    moments = StorageProfile.from_dict(profile).moments(op, True, int(chunk_bytes))
    rate = moments.capacity_iops * chunk_bytes
    limit = (profile.get("limits") or {}).get(f"{op}_bps")
    return min(rate, float(limit)) if limit else rate
