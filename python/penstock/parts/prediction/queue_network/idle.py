"""Idle hosts of a prediction: no task and no data in any simulated run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.platform.hosts import Platform
from penstock.text import first_of, listed

Row = Mapping[str, Any]

#: names of hosts in the sentence
_NAMED = 3


@dataclass(frozen=True)
class IdleHosts:
    """Hosts without a task and without data, of all clients and storage hosts, and the remedy."""

    hosts: tuple[str, ...]
    of: int
    remedy: str

    @property
    def text(self) -> str:
        """`4 of 8 hosts were idle (node-4, node-5, …): …`."""
        if not self.hosts:
            return ""
        names = listed(first_of(self.hosts, _NAMED), "and")
        verb = "was" if len(self.hosts) == 1 else "were"
        return f"{len(self.hosts)} of {self.of} hosts {verb} idle ({names}): {self.remedy}."

    def to_dict(self) -> Mapping[str, object]:
        """As in `penstock/prediction/1`."""
        return {"hosts": list(self.hosts), "of": self.of, "remedy": self.remedy, "text": self.text}


def idle_hosts(platform: Platform, rows: Sequence[Row]) -> IdleHosts:
    """Clients without a task and storage hosts without data; `rows` are the hosts of the prediction.

    A host of both roles is idle if it has neither. Hosts that are only managers do not count.
    """
    by_name = {str(row["name"]): row for row in rows}
    hosts = [h for h in platform.hosts if h.roles & {"client", "storage"} and h.name in by_name]
    busy = {h.name for h in hosts if _busy(by_name[h.name])}
    idle = [h for h in hosts if h.name not in busy]
    remedies = []
    if any("client" in h.roles for h in idle):
        remedies.append(_of_tasks(platform))
    if any("storage" in h.roles for h in idle):
        remedies.append("wider stripes, smaller chunks or more replicas place data on more hosts")
    groups = listed([f"hosts.{group}.count" for group in dict.fromkeys(h.group for h in idle)])
    remedies.append(f"or reduce {groups}")
    return IdleHosts(tuple(h.name for h in idle), len(hosts), ", ".join(remedies) if idle else "")


def _busy(row: Row) -> bool:
    return bool(row["tasks"] or row["stored_bytes"] or row["storage_s"])


def _of_tasks(platform: Platform) -> str:
    """Remedy for hosts without tasks."""
    scheduler = platform.file.scheduler
    if scheduler.fill == "pack":
        return "`scheduler.fill: spread` gives each host tasks"
    if scheduler.kind == "data_location":
        return "`scheduler.kind: workqueue` also uses hosts without the data of a task"
    return "more tasks at the same time use more hosts"
