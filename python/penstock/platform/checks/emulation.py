"""Checks of machines, networks and schedules beyond their schema, with the position of each mistake."""

from __future__ import annotations

import fnmatch
import ipaddress
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.platform.emulation import MAIN, events_of
from penstock.spec.check_cluster import METRICS, keys_of
from penstock.spec.machine import (
    EventFile,
    InterfaceFile,
    MachineFile,
    NamedNetworkFile,
    NetworkPart,
    SlowFile,
    StallFile,
    WireFile,
)
from penstock.spec.names import listed, suggestion
from penstock.spec.source import Path, Source
from penstock.spec.units import parse_duration, parse_size

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}")
#: keys of an event that change a disk
_OF_DISK = ("limits", "features", "profile", "power_cut")


@dataclass(frozen=True)
class Machines:
    """Identical machines: their path in the file, their names, their declaration."""

    path: Path
    names: tuple[str, ...]
    file: MachineFile


@dataclass(frozen=True)
class Placed:
    """A network and its path in the file."""

    path: Path
    file: NamedNetworkFile


def check_emulation(
    source: Source,
    machines: Sequence[Machines],
    networks: Sequence[Placed],
    schedule: Sequence[EventFile],
    at: Path,
) -> None:
    """Add every mistake to `source`; `at` is the path of the schedule. There are no templates."""
    nodes = {name: m for m in machines for name in m.names}
    by_name = {p.file.name: p.file for p in networks}
    by_name.setdefault(MAIN, NamedNetworkFile(name=MAIN))
    for m in machines:
        _machine(source, m, by_name)
    _networks(source, networks, nodes)
    _addresses(source, machines, by_name)
    for i, event in enumerate(schedule):
        _event(source, (*at, i), event, nodes, by_name)
    _twice(source, schedule, at, nodes)


def networks_of(
    main: NetworkPart | None, others: Sequence[NamedNetworkFile], above: Path
) -> list[Placed]:
    """The network `net` (if declared) and the others, with their paths."""
    placed = []
    if main is not None:
        network = NamedNetworkFile.model_validate(
            {"name": MAIN, **main.model_dump(by_alias=True, exclude_none=True)}
        )
        placed.append(Placed((*above, "network"), network))
    placed += [Placed((*above, "networks", i), n) for i, n in enumerate(others)]
    return placed


def _machine(source: Source, m: Machines, networks: dict[str, NamedNetworkFile]) -> None:
    file = m.file
    hard, soft = file.memory, file.memory_soft
    if hard is not None and soft is not None and parse_size(soft) > parse_size(hard):
        expected = f"a size of at most {hard}"
        source.mistake((*m.path, "memory_soft"), f"'{soft}', more than memory", expected)
    mounts: dict[str, str] = {}
    for j, disk in enumerate(file.disks):
        at = (*m.path, "disks", j)
        if disk.backend in ("cgroup1", "cgroup2") and disk.profile is not None:
            source.mistake(
                (*at, "backend"),
                f"'{disk.backend}' for a disk with a profile",
                "fuse or auto; control groups limit rates, they have no service times",
            )
        if disk.mount is not None:
            if not disk.mount.startswith("/"):
                source.mistake((*at, "mount"), f"'{disk.mount}'", "an absolute path")
            elif disk.mount.rstrip("/") in mounts:
                other = mounts[disk.mount.rstrip("/")]
                source.mistake(
                    (*at, "mount"),
                    f"'{disk.mount}', the mount point of disk '{other}'",
                    "a mount point of no other disk",
                )
            mounts[disk.mount.rstrip("/")] = disk.name
        slow = disk.features.slow if disk.features is not None else None
        if isinstance(slow, SlowFile) and isinstance(slow.stall, StallFile):
            _stall(source, (*at, "features", "slow", "stall"), slow.stall.period, slow.stall.length)
    here: set[str] = set()
    for j, interface in enumerate(file.interfaces):
        at = (*m.path, "interfaces", j)
        if interface.network not in networks:
            names = list(networks)
            source.mistake(
                (*at, "network"),
                f"the unknown network '{interface.network}'",
                f"{listed(names)}{suggestion(interface.network, names)}",
            )
        elif interface.network in here:
            source.mistake(
                (*at, "network"),
                f"a second interface in the network '{interface.network}'",
                "one interface for each network",
            )
        here.add(interface.network)
        _wire(source, at, interface, networks.get(interface.network))


def _stall(source: Source, path: Path, period: str, length: str) -> None:
    if parse_duration(length) > parse_duration(period):
        source.mistake(
            (*path, "length"), f"'{length}', longer than the period", f"at most {period}"
        )


def _wire(source: Source, path: Path, wire: WireFile, above: WireFile | None = None) -> None:
    jitter = wire.jitter or (above.jitter if above is not None else None)
    latency = wire.latency or (above.latency if above is not None else None)
    if wire.distribution is not None and jitter is None:
        actual = "a distribution without jitter"
        source.mistake((*path, "distribution"), actual, "jitter: 1ms", key=True)
    if wire.jitter is not None:
        if parse_duration(wire.jitter) > parse_duration(latency or "0s"):
            actual = f"'{wire.jitter}', more than the latency ({latency or 'none'})"
            expected = "at most the latency; no packet arrives before it was sent"
            source.mistake((*path, "jitter"), actual, expected)
        if wire.distribution == "constant":
            actual, expected = "'constant' with jitter", "uniform, normal or pareto"
            source.mistake((*path, "distribution"), actual, expected)
    if wire.reorder is not None and not parse_duration(latency or "0s"):
        expected = "latency: 1ms, which those that overtake do not have"
        source.mistake((*path, "reorder"), "reorder without latency", expected, key=True)


def _networks(source: Source, networks: Sequence[Placed], nodes: dict[str, Machines]) -> None:
    taken: set[str] = set()
    ranges: list[tuple[str, ipaddress.IPv4Network]] = []
    for placed in networks:
        path, network = placed.path, placed.file
        if path[-1] != "network":
            if not _NAME.fullmatch(network.name):
                expected = "letters, digits and '-' (at most 32), such as storage"
                source.mistake((*path, "name"), f"the name '{network.name}'", expected)
            elif network.name in taken:
                actual = f"a second network called '{network.name}'"
                source.mistake((*path, "name"), actual, "each name once")
        taken.add(network.name)
        _wire(source, path, network)
        for a, peers in (network.matrix or {}).items():
            for b in (a, *peers):
                if not fnmatch.filter(nodes, b):
                    at = (*path, "matrix", a, b) if b != a else (*path, "matrix", a)
                    source.mistake(at, f"'{b}', which is no node", _nodes(nodes, b), key=True)
        if network.subnet is None:
            continue
        subnet = _subnet(source, (*path, "subnet"), network.subnet)
        if subnet is None:
            continue
        count = sum(
            1
            for m in nodes.values()
            if any(i.network == network.name for i in m.file.interfaces)
            or (not m.file.interfaces and network.name == MAIN)
        )
        if subnet.num_addresses - 3 < count:
            source.mistake(
                (*path, "subnet"),
                f"'{network.subnet}' for {count} nodes",
                f"room for {count} nodes, the host and two addresses that none can have",
            )
        for other, taken_subnet in ranges:
            if subnet.overlaps(taken_subnet):
                source.mistake(
                    (*path, "subnet"),
                    f"'{network.subnet}', which overlaps that of '{other}' ({taken_subnet})",
                    "a subnet that overlaps no other",
                )
        ranges.append((network.name, subnet))


def _subnet(source: Source, path: Path, text: str) -> ipaddress.IPv4Network | None:
    expected = "private IPv4 addresses as network/bits, such as 10.88.1.0/24"
    try:
        subnet = ipaddress.IPv4Network(text)
    except ValueError as error:
        source.mistake(path, f"'{text}' ({error})", expected)
        return None
    if not subnet.is_private or subnet.is_loopback or subnet.is_link_local or subnet.prefixlen < 8:
        source.mistake(path, f"'{text}'", expected)
        return None
    return subnet


def _addresses(
    source: Source, machines: Sequence[Machines], networks: dict[str, NamedNetworkFile]
) -> None:
    taken: dict[str, str] = {}
    for m in machines:
        for j, interface in enumerate(m.file.interfaces):
            if interface.address is None:
                continue
            at = (*m.path, "interfaces", j, "address")
            text = interface.address
            network = networks.get(interface.network)
            subnet = network.subnet if network is not None else None
            try:
                address = ipaddress.IPv4Address(text)
            except ValueError:
                source.mistake(at, f"'{text}'", "an IPv4 address, such as 10.88.1.2")
                continue
            if len(m.names) > 1:
                actual = f"one address for {len(m.names)} nodes"
                source.mistake(at, actual, "no address, or a separate node entry")
            elif subnet is None:
                expected = f"a subnet of the network '{interface.network}' that contains it"
                source.mistake(at, f"'{text}'", expected)
            elif not _inside(address, subnet):
                source.mistake(at, f"'{text}'", f"an address of {subnet} that a node can have")
            elif text in taken:
                source.mistake(
                    at, f"'{text}', which {taken[text]} has", "an address of no other node"
                )
            taken[text] = m.names[0] if m.names else "another node"


def _inside(address: ipaddress.IPv4Address, subnet: str) -> bool:
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError:
        return True  # reported with the network
    return address in network and address not in (
        network.network_address,
        network.broadcast_address,
    )


def _nodes(nodes: dict[str, Machines], name: str) -> str:
    names = list(nodes)
    shown = names if len(names) <= 8 else [*names[:7], "…"]
    return f"a node or a pattern: {listed(shown)}{suggestion(name, names)}"


def _event(
    source: Source,
    path: Path,
    event: EventFile,
    nodes: dict[str, Machines],
    networks: dict[str, NamedNetworkFile],
) -> None:
    chosen: list[str] = []
    for pattern in event.nodes:
        fit = fnmatch.filter(nodes, pattern)
        if not fit:
            actual = f"'{pattern}', which is no node"
            source.mistake((*path, "nodes"), actual, _nodes(nodes, pattern))
        chosen += fit
    fields = event.model_fields_set
    of_disk = [k for k in _OF_DISK if k in fields]
    if of_disk and event.disk is None:
        source.mistake(path, f"{of_disk[0]} without disk", "disk: the name of one", key=True)
    if event.disk is not None:
        if not of_disk:
            expected = "what changes on it: limits, features or profile"
            source.mistake((*path, "disk"), "a disk and no change of it", expected, key=True)
        disks = sorted({d.name for n in chosen for d in nodes[n].file.disks})
        if chosen and not fnmatch.filter(disks, event.disk):
            expected = f"a disk of these nodes: {listed(disks) or 'they have none'}"
            actual = f"the disk '{event.disk}'"
            source.mistake((*path, "disk"), actual, expected + suggestion(event.disk, disks))
    if event.time_scale is not None and event.profile is None:
        source.mistake((*path, "time_scale"), "time_scale without profile", "profile", key=True)
    wired = fields & set(WireFile.model_fields)
    network = event.network or MAIN
    if event.network is not None and not wired:
        expected = "what changes: bandwidth, latency, loss, …"
        source.mistake((*path, "network"), "a network and no change of it", expected, key=True)
    if wired and network not in networks:
        names = list(networks)
        actual = f"the unknown network '{network}'"
        source.mistake((*path, "network"), actual, f"{listed(names)}{suggestion(network, names)}")
    elif wired and chosen and not any(_is_in(nodes[n].file, network) for n in chosen):
        actual = f"the network '{network}', where none of these nodes is"
        source.mistake((*path, "network"), actual, "a network of theirs", key=True)
    changes = fields - {"at", "phase", "when", "nodes", "disk", "network", "time_scale"}
    if not changes and event.disk is None and event.network is None:
        expected = "one of limits, features, bandwidth, latency, cpus, memory, node, …"
        source.mistake(path, "an event that changes nothing", expected, key=True)
    _condition(source, path, event, nodes)


def _is_in(file: MachineFile, network: str) -> bool:
    interfaces = file.interfaces or [InterfaceFile(network=MAIN)]
    return any(i.network == network for i in interfaces)


def _condition(source: Source, path: Path, event: EventFile, nodes: dict[str, Machines]) -> None:
    when = event.when
    if when is None:
        return
    at = (*path, "when")
    kinds = [k for k in ("metric", "log", "phase") if getattr(when, k) is not None]
    if len(kinds) != 1:
        actual = (
            f"both {listed(kinds).replace(' or ', ' and ')}" if kinds else "nothing to wait for"
        )
        source.mistake(at, actual, "one of metric (with above or below), log (with regex), phase")
        return
    if kinds == ["metric"] and (when.above is None) == (when.below is None):
        source.mistake(at, "a metric without one bound", "either above or below")
    if when.metric is not None:
        if when.metric not in METRICS:
            expected = f"{listed(list(METRICS))}{suggestion(when.metric, list(METRICS))}"
            source.mistake((*at, "metric"), f"the unknown counter '{when.metric}'", expected)
        disks = [f"{n}.{d.name}" for n, m in nodes.items() for d in m.file.disks]
        if when.disk is None:
            source.mistake(at, "a metric without disk", "disk: NODE.DISK", key=True)
        elif when.disk not in disks:
            shown = disks if len(disks) <= 8 else [*disks[:7], "…"]
            expected = f"NODE.DISK: {listed(shown) or 'there are no disks'}"
            actual = f"the disk '{when.disk}'"
            source.mistake((*at, "disk"), actual, expected + suggestion(when.disk, disks))
    if (kinds == ["log"]) != (when.regex is not None):
        source.mistake(at, "a log or a regex alone", "log and regex together")
    if when.regex is not None:
        try:
            re.compile(when.regex)
        except re.error as error:
            source.mistake((*at, "regex"), f"'{when.regex}'", f"a regular expression ({error})")


def _twice(
    source: Source, schedule: Sequence[EventFile], at: Path, nodes: dict[str, Machines]
) -> None:
    """Report two values of one key at the same time."""
    seen: dict[tuple[object, ...], int] = {}
    for i, event in enumerate(schedule):
        if event.when is not None:
            continue
        date = (parse_duration(event.at), event.phase)
        for change in events_of(event, None):
            for node in dict.fromkeys(n for p in change.nodes for n in fnmatch.filter(nodes, p)):
                names: list[str | None] = [change.name]
                if change.resource == "disk":
                    there = (d.name for d in nodes[node].file.disks)
                    names = [d for d in there if fnmatch.fnmatchcase(d, change.name or "")]
                for name, key in itertools.product(names, keys_of(change.patch)):
                    whose = (*date, node, change.resource, name)
                    parent, dot, _ = key.partition(".")
                    for other in (key, parent if dot else f"{parent}."):
                        before = seen.get((*whose, other), i)
                        if before != i:
                            source.mistake(
                                (*at, i),
                                f"another value for {key} of {node} at {event.at}",
                                f"one value at a time; entry {before + 1} has one already",
                            )
                            return
                    seen[*whose, key] = i
                    if dot:
                        seen[*whose, f"{parent}."] = i
