"""Routes between the networks of a cluster: a router of this host with an address in each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.emulate.network.addresses import Subnet
from penstock.host.journal.journal import Entry, Journal
from penstock.host.network.netns import inside
from penstock.host.network.pinned_netns import pin_namespace
from penstock.spec.cluster import NetworkSpec, RouterSpec


def with_routers(networks: Sequence[NetworkSpec], used: Collection[str]) -> list[NetworkSpec]:
    """The networks that nodes use; several in which the host has an address have a router between them."""
    chosen = [n for n in networks if n.name in used or n.router is not None]
    if sum(n.host for n in chosen) < 2:
        return chosen
    return [replace(n, router=n.router or RouterSpec()) if n.host else n for n in chosen]


def routers_of(
    networks: Sequence[NetworkSpec], subnets: Mapping[str, Subnet]
) -> dict[str, tuple[str, str]]:
    """Name and address of the router in each network that has one."""
    return {
        n.name: (n.router.name, n.router.address or router_address(subnets[n.name]))
        for n in networks
        if n.router is not None
    }


def router_address(subnet: Subnet, number: int = 0) -> str:
    """Address of the router of the host with this number: before that of the host itself."""
    return str(subnet[-3 - number])


def router_namespace(journal: Journal, run: str | None) -> Entry:
    """Create a network namespace that forwards packets; its path is the target of the entry."""
    entry = pin_namespace(journal, run)
    inside(Path(entry.target), lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
    return entry
