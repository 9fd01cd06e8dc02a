"""Checks of physical hosts before anything is changed: all errors at once, one message each."""

from __future__ import annotations

import importlib.util
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from penstock.errors import BadInput
from penstock.parts.remote.cluster.physical import Inventory, PhysicalHost
from penstock.spec.cluster import ClusterSpec
from penstock.text import listed
from penstock.version import version

#: bytes that a VXLAN tunnel adds to each packet: Ethernet, IPv4, UDP and VXLAN headers (RFC 7348)
VXLAN_BYTES = 50
#: smallest packet size of a network of nodes: that of IPv6 (RFC 8200)
LEAST_MTU = 1280
#: largest difference of two clocks, by which the times of events and samples are compared [s]
MOST_CLOCK_S = 0.1
#: libraries of the part that encrypt connections between hosts
_TLS = ("cryptography", "distributed")
#: name of the feature of a host that carries a network to other hosts
VXLAN = "vxlan"


def check_hosts(inventory: Inventory, spec: ClusterSpec) -> None:
    """Raise BadInput with every reason for which the hosts cannot carry the cluster."""
    wrong = [
        *_names(inventory.hosts),
        *_addresses(inventory.hosts),
        *_versions(inventory.hosts),
        *_clocks(inventory.hosts),
        *_mtus(inventory.hosts),
        *_features(inventory.hosts, needed_features(spec, several=len(inventory.hosts) > 1)),
        *_disks(inventory.hosts, spec),
        *_paths(inventory),
        *(_tls() if len(inventory.hosts) > 1 else ()),
    ]
    if wrong:
        raise BadInput("\n".join(wrong))


def _names(hosts: Sequence[PhysicalHost]) -> Iterator[str]:
    for name, times in Counter(h.name for h in hosts).items():
        if times > 1:
            yield f"host {name}: found {times} hosts with this name; expected one"
    by_address = defaultdict(list)
    for host in hosts:
        by_address[host.address].append(host.name)
    for address, names in by_address.items():
        if len(set(names)) > 1:
            yield f"hosts {_and(names)}: found the address {address} for all; expected one each"


def _addresses(hosts: Sequence[PhysicalHost]) -> Iterator[str]:
    for host in hosts if len(hosts) > 1 else ():
        try:
            ipaddress.IPv4Address(host.address)
        except ValueError:
            yield (
                f"host {host.name}: address: found {host.address!r}; expected the IPv4 address of its end "
                "of the tunnels"
            )


def _versions(hosts: Sequence[PhysicalHost]) -> Iterator[str]:
    by_version = defaultdict(list)
    for host in hosts:
        by_version[host.version].append(host.name)
    for other in sorted(set(by_version) - {version()}):
        yield (
            f"{_hosts(by_version[other])}: found penstock {other}; expected {version()}, "
            "the version of this host"
        )


def _clocks(hosts: Sequence[PhysicalHost]) -> Iterator[str]:
    for host in hosts:
        offset_s = host.clock_offset_s
        if offset_s is not None and abs(offset_s) + host.clock_bound_s > MOST_CLOCK_S:
            yield (
                f"host {host.name}: found a clock {offset_s:+.3f} s from this host's "
                f"(± {host.clock_bound_s:.3f} s); expected at most {MOST_CLOCK_S:g} s: "
                "synchronise it, for example with chrony"
            )


def _mtus(hosts: Sequence[PhysicalHost]) -> Iterator[str]:
    if len(hosts) < 2:
        return
    least = LEAST_MTU + VXLAN_BYTES
    for host in hosts:
        if host.mtu < least:
            yield (
                f"host {host.name}: found an MTU of {host.mtu} bytes; expected at least {least} "
                f"({LEAST_MTU} for nodes, {VXLAN_BYTES} for VXLAN)"
            )


def needed_features(spec: ClusterSpec, *, several: bool) -> dict[str, str]:
    """Features that each host needs (alternatives with `|`), with their purposes."""
    needed = dict.fromkeys(("root", "namespaces", "veth", "node limits"), "virtual nodes")
    links = [link for node in spec.nodes for link in node.links]
    if any(link.out_bps is not None or link.in_bps is not None for link in links):
        needed["tbf"] = "links with a rate"
    shares = ("loss", "duplicate", "corrupt", "reorder")
    impaired = any(
        delay.mean_s or delay.jitter_s for link in links for delay in (link.delay, link.in_delay)
    ) or any(
        getattr(link, f"{way}{share}") for link in links for way in ("", "in_") for share in shares
    )
    if impaired or any(n.delay_s or n.delays for n in spec.networks):
        needed["netem|relay"] = "links with delay and loss"
    if any(disk.profile is not None for node in spec.nodes for disk in node.disks):
        needed["fuse"] = "emulated disks"
    if any(node.ssh for node in spec.nodes):
        needed["sshd"] = "nodes with an SSH server"
    if several:
        needed[VXLAN] = "networks on several hosts"
    return needed


def _features(hosts: Iterable[PhysicalHost], needed: dict[str, str]) -> Iterator[str]:
    for host in hosts:
        for names, purpose in needed.items():
            verdicts = [host.features.get(name, "not tested") for name in names.split("|")]
            if "supported" not in verdicts:
                verdict = "not tested" if "not tested" in verdicts else verdicts[0]
                yield (
                    f"host {host.name}: found {names.replace('|', ' and ')} {verdict}; "
                    f"expected it for {purpose}: see `penstock doctor` there"
                )


def _disks(hosts: Iterable[PhysicalHost], spec: ClusterSpec) -> Iterator[str]:
    if not any(
        disk.profile is not None or any(v is not None for v in vars(disk.limits).values())
        for node in spec.nodes
        for disk in node.disks
    ):
        return
    for host in hosts:
        if host.iops is None:
            yield (
                f"host {host.name}: found no measured speed of its disks; "
                "expected `floors` in its facts: run `penstock doctor --refresh` there"
            )


def _paths(inventory: Inventory) -> Iterator[str]:
    names = [h.name for h in inventory.hosts]
    paths = inventory.paths(inventory.hosts)
    missing = [(a, b) for a in names for b in names if a != b and (a, b) not in paths]
    if missing:
        more = f" and {len(missing) - 1} more" * (len(missing) > 1)
        yield (
            f"paths: found no delay from {missing[0][0]} to {missing[0][1]}{more}; expected an entry for "
            "each pair of hosts, such as {from: '*', to: '*', latency: 50us}"
        )


def _tls() -> Iterator[str]:
    missing = [name for name in _TLS if importlib.util.find_spec(name) is None]
    if missing:
        yield (
            f"TLS: found no {' and '.join(missing)} here; expected it for encrypted connections between "
            "hosts: pip install 'penstock[hosts]'"
        )


def _hosts(names: list[str]) -> str:
    return f"host{'s' * (len(names) > 1)} {_and(names)}"


def _and(names: list[str]) -> str:
    shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
    return listed(shown)
