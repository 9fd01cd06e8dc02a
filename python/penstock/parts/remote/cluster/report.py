"""A plan as tables on the terminal, and as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.parts.remote.cluster.demand import LINK_IN, LINK_OUT, RESOURCES, bit_rate
from penstock.parts.remote.cluster.plan import ClusterPlan
from penstock.parts.remote.cluster.verify import VXLAN
from penstock.text import counted, percentage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.table import Table

    from penstock.parts.remote.cluster.hosts_file import PathsFile

#: overcommitments on the terminal
_SHOWN = 8
_CPU, _MEMORY = 0, 1
_DISK = slice(2, len(RESOURCES))
_OUT, _IN = len(RESOURCES), len(RESOURCES) + 1


def host_table(plan: ClusterPlan) -> Table:
    """One row per host with nodes: their demands, as shares of what the host sustains; `!` above that."""
    from penstock.terminal import plain_table

    numbers = ("nodes", "CPU", "", "memory", "", "disk", "out to hosts", "", "in", "")
    table = plain_table(("host",), numbers)
    placement = plan.placement
    counts = np.bincount(placement.host_of, minlength=len(placement.hosts))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(placement.used > 0, placement.used / placement.supply, 0.0)
    for i, host in enumerate(placement.hosts):
        used = placement.used[i]
        if not counts[i]:
            continue
        table.add_row(
            host.name,
            f"{counts[i]:,}",
            RESOURCES[_CPU].text(used[_CPU]),
            _share(shares[i, _CPU]),
            RESOURCES[_MEMORY].text(used[_MEMORY]),
            _share(shares[i, _MEMORY]),
            _share(shares[i, _DISK].max()),
            bit_rate(used[_OUT]),
            _share(shares[i, _OUT]),
            bit_rate(used[_IN]),
            _share(shares[i, _IN]),
            style="bold red" if (shares[i] > 1 + 1e-9).any() else None,
        )
    return table


def _share(share: float) -> str:
    return f"{percentage(share)}{'!' if share > 1 + 1e-9 else ''}"


def network_table(plan: ClusterPlan) -> Table:
    """One row per network."""
    from penstock.terminal import plain_table

    table = plain_table(("network", "subnet", "gateway"), ("nodes", "hosts", "VXLAN", "MTU"))
    for network in plan.addresses.networks:
        table.add_row(
            network.name,
            str(network.subnet),
            network.gateway or "–",
            f"{network.nodes:,}",
            f"{len(network.endpoints):,}",
            str(network.vxlan_id or "–"),
            str(network.mtu),
        )
    return table


def path_table(measured: PathsFile) -> Table:
    """One row per pair of hosts."""
    from penstock.terminal import plain_table

    table = plain_table(("from", "to"), ("latency us", "loss"))
    for path in measured.paths:
        table.add_row(*path.hosts, f"{path.delay_s * 1e6:,.1f}", percentage(path.loss, 3))
    return table


def closing_lines(plan: ClusterPlan) -> Iterator[str]:
    """Overcommitments, traffic between hosts, delays to add, and notes."""
    placement = plan.placement
    idle = len(placement.hosts) - len(np.unique(placement.host_of))
    if idle:
        yield f"{counted(idle, 'host')} without nodes"
    yield from (f"overcommitted: {over.text}" for over in placement.over[:_SHOWN])
    if len(placement.over) > _SHOWN:
        yield f"{len(placement.over) - _SHOWN} more overcommitments"
    total = float(placement.traffic.out_bps.sum())
    more = "; more from links without a rate" if placement.traffic.unlimited else ""
    yield f"between hosts: at most {bit_rate(total)} together{more}"
    for network in plan.addresses.networks:
        delays = [
            p.added_delay_s
            for p in plan.paths
            if p.network == network.name and p.added_delay_s is not None
        ]
        if delays:
            low, high = (f"{delay * 1e6:,.1f}" for delay in (min(delays), max(delays)))
            added = low if low == high else f"{low} to {high}"
            yield f"network {network.name}: links add {added} us to the delay of paths between hosts"
    yield from (f"note: {text}" for text in plan.notes)


def document(plan: ClusterPlan) -> Mapping[str, object]:
    """The plan as JSON values; bytes, seconds, bytes per second."""
    placement, addresses = plan.placement, plan.addresses
    kinds = [r.name for r in (*RESOURCES, LINK_OUT, LINK_IN)]
    return {
        "schema": "penstock/cluster-plan/1",
        "cluster": plan.spec.name,
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "nodes": placement.on(i),
                "demand": dict(zip(kinds, placement.used[i].tolist(), strict=True)),
                "supply": {
                    kind: value if np.isfinite(value) else None
                    for kind, value in zip(kinds, placement.supply[i].tolist(), strict=True)
                },
            }
            for i, host in enumerate(placement.hosts)
        ],
        "overcommitted": [
            {"host": o.host, "resource": o.resource, "demand": o.demand, "supply": o.supply}
            for o in placement.over
        ],
        "networks": [
            {
                "name": n.name,
                "subnet": str(n.subnet),
                "gateway": n.gateway,
                "mtu": n.mtu,
                "vxlan_id": n.vxlan_id,
                "endpoints": dict(n.endpoints),
            }
            for n in addresses.networks
        ],
        "addresses": {node: dict(by_network) for node, by_network in addresses.addresses.items()},
        "routes": [
            {
                "host": r.host,
                "network": r.network,
                "target": str(r.target),
                "gateway": r.gateway,
            }
            for r in addresses.routes
        ],
        "paths": [
            {
                "network": p.network,
                "from": p.source,
                "to": p.target,
                "delay_s": p.real.delay_s,
                "loss": p.real.loss,
                "added_delay_s": p.added_delay_s,
                "added_loss": p.added_loss,
            }
            for p in plan.paths
        ],
        "notes": list(plan.notes),
    }


def fact_lines(facts: Mapping[str, object]) -> Iterator[str]:
    """The facts of a host that a plan needs."""
    from penstock.parts.remote.cluster.hosts_file import FactsFile

    read = FactsFile.model_validate(facts)
    host, floors, link = read.host, read.floors, read.link
    yield f"penstock   {host.penstock}"
    yield f"processors {host.cpus}"
    yield f"memory     {host.memory_bytes / 2**30:,.1f} GiB"
    if host.storage.free_bytes is not None:
        yield f"disk space {host.storage.free_bytes / 2**30:,.1f} GiB free"
    if floors is not None:
        yield (
            f"disks      {floors.read_bps / 2**20:,.0f} MiB/s read, {floors.write_bps / 2**20:,.0f} MiB/s "
            f"written, {floors.iops:,.0f} requests/s, {floors.service_floor_ns / 1e3:,.0f} us per request"
        )
    else:
        yield f"disks      could not be measured: {facts['floors_unknown_because']}"
    rate = "unknown rate" if link.rate_bps is None else bit_rate(link.rate_bps)
    yield f"link       {rate}, MTU {link.mtu}" if link.mtu else "link       name it with --address"
    missing = [f.name for f in read.features if f.name == VXLAN and f.verdict != "supported"]
    yield f"VXLAN      {'unsupported or not tested' if missing else 'supported'}"
