"""Machines and networks of a platform (or a treatment of a study), in numbers, for `emulate/`.

Pure: nothing here reads the host. The values are already validated (`platform/checks/emulation.py`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from penstock.platform.profiles import scaled
from penstock.spec.cluster import (
    ClusterSpec,
    Delay,
    DiskSpec,
    Event,
    Limits,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
    Resource,
    When,
)
from penstock.spec.machine import (
    BadSpaceFile,
    DiskFile,
    EventFile,
    FaultFile,
    FeaturesFile,
    InterfaceFile,
    LimitsFile,
    MachineFile,
    NamedNetworkFile,
    SlowFile,
    SlowNowAndThenFile,
    StallFile,
    WireFile,
    time_scale_of,
)
from penstock.spec.quantities import (
    MAX,
    flag_of,
    parse_cpuset,
    parse_iops,
    parse_limit,
    parse_owner,
    parse_portion,
    parse_size_or_max,
)
from penstock.spec.units import parse_duration, parse_share, parse_size

#: default network of a node
MAIN = "net"
#: states of a node, in the terms of the supervisor
_STATES = {"up": "up", "down": "down", "freeze": "frozen", "unfreeze": "running"}
SHARES = ("loss", "duplicate", "corrupt", "reorder")
#: returns the storage profile of a name, unscaled
Profiles = Callable[[str], Mapping[str, Any]]


def cluster_of(
    name: str,
    machines: Sequence[tuple[str, MachineFile]],
    networks: Iterable[NamedNetworkFile],
    schedule: Iterable[EventFile],
    profiles: Profiles,
    *,
    base_dir: Path,
    runtime: str | None = None,
) -> ClusterSpec:
    """Cluster of these machines (name, declaration), without templates."""
    by_name = {n.name: n for n in networks}
    if MAIN not in by_name and any(
        i.network == MAIN
        for _, m in machines
        for i in m.interfaces or [InterfaceFile(network=MAIN)]
    ):
        by_name[MAIN] = NamedNetworkFile(name=MAIN)
    names = [machine for machine, _ in machines]
    return ClusterSpec(
        name=name,
        nodes=tuple(_node(n, m, by_name, profiles, base_dir) for n, m in machines),
        networks=tuple(_network(n, names, dict(machines)) for n in by_name.values()),
        events=tuple(
            _with_log(change, base_dir)
            for event in schedule
            for change in events_of(event, profiles, by_name)
        ),
        runtime=cast(Any, runtime or "auto"),
    )


def _with_log(event: Event, base_dir: Path) -> Event:
    """Resolve an event's log relative to the file that names it, like images and profiles."""
    condition = event.when.condition or {}
    if condition.get("log") is None:
        return event
    at = str((base_dir / condition["log"]).absolute())
    return replace(event, when=replace(event.when, condition={**condition, "log": at}))


def _node(
    name: str,
    machine: MachineFile,
    networks: Mapping[str, NamedNetworkFile],
    profiles: Profiles,
    base_dir: Path,
) -> NodeSpec:
    interfaces = machine.interfaces or [InterfaceFile(network=MAIN)]
    return NodeSpec(
        name=name,
        image=base_dir / machine.image if machine.image is not None else None,
        cpus=float(machine.cpus) if machine.cpus is not None else None,
        cpuset=parse_cpuset(machine.cpuset) if machine.cpuset is not None else None,
        cpu_ratio=float(machine.cpu_ratio) if machine.cpu_ratio is not None else None,
        memory_bytes=parse_size(machine.memory) if machine.memory is not None else None,
        memory_soft_bytes=parse_size(machine.memory_soft)
        if machine.memory_soft is not None
        else None,
        disks=tuple(disk_spec(d, profiles, base_dir) for d in machine.disks),
        links=tuple(_interface(i, networks[i.network]) for i in interfaces),
        ssh=machine.ssh is not None and flag_of(machine.ssh),
        privileges=tuple(machine.privileges),
        tenant=machine.tenant or "",
    )


def disk_spec(disk: DiskFile, profiles: Profiles, base_dir: Path) -> DiskSpec:
    """One disk in numbers, with its profile scaled."""
    scale = time_scale_of(disk)
    profile = None
    if disk.profile is not None:
        profile = scaled(dict(profiles(disk.profile)), scale)
    return DiskSpec(
        name=disk.name,
        profile=profile,
        profile_name=disk.profile or "",
        time_scale=scale,
        directory=base_dir / disk.directory if disk.directory is not None else None,
        size_bytes=parse_size(disk.size) if disk.size is not None else None,
        mount=disk.mount,
        backend=disk.backend or "auto",
        limits=limits_of(disk.limits),
        readahead_bytes=parse_size(disk.readahead)
        if disk.readahead is not None
        else DiskSpec.readahead_bytes,
        seed=int(disk.seed or 0),
        owner=parse_owner(disk.owner) if disk.owner is not None else None,
        io=cast(Any, disk.io or "any"),
        allow_unhonoured=disk.allow_unhonoured is not None and flag_of(disk.allow_unhonoured),
        patch=features_patch(disk.features) if disk.features is not None else {},
    )


def limits_of(limits: LimitsFile | None) -> Limits:
    """Limits in numbers; unspecified ones and `max` are None."""
    return Limits(**limits_patch(limits)) if limits is not None else Limits()


def limits_patch(limits: LimitsFile) -> dict[str, float | None]:
    """Limits in numbers; `max` is None."""
    patch: dict[str, float | None] = {}
    for key, parse in (
        ("read", parse_limit),
        ("write", parse_limit),
        ("read_iops", parse_iops),
        ("write_iops", parse_iops),
    ):
        text = getattr(limits, key)
        if text is not None:
            patch[key if key.endswith("iops") else f"{key}_bps"] = parse(text)
    return patch


def features_patch(features: FeaturesFile) -> dict[str, Any]:
    """Features of a disk as a patch for the disk server (docs/emulation.md)."""
    patch: dict[str, Any] = {}
    for key, read in _FEATURES.items():
        value = getattr(features, key)
        if value is not None:
            patch[key] = None if is_max(value) else read(value)
    return patch


def is_max(value: Any) -> bool:
    """True if a value resets its key."""
    return isinstance(value, str) and value.strip() == MAX


def _bad_space(bad: BadSpaceFile) -> dict[str, Any] | None:
    if parse_portion(bad.share) == 0:
        return None
    patch: dict[str, Any] = {"share": parse_portion(bad.share), "mode": bad.mode}
    if bad.seed is not None:
        patch["seed"] = int(bad.seed)
    if bad.op is not None:
        patch["op"] = bad.op
    return patch


def _slow(slow: SlowFile) -> dict[str, Any]:
    patch: dict[str, Any] = {"factor": None if is_max(slow.factor) else float(slow.factor)}
    if slow.ramp is not None:
        patch["ramp_s"] = None if is_max(slow.ramp) else parse_duration(slow.ramp)
    if isinstance(slow.stall, StallFile):
        period_s, length_s = (parse_duration(t) for t in (slow.stall.period, slow.stall.length))
        patch["stall"] = {"period_s": period_s, "length_s": length_s}
    elif slow.stall is not None:
        patch["stall"] = None
    if isinstance(slow.random, SlowNowAndThenFile):
        share = parse_portion(slow.random.probability)
        patch["random"] = {"probability": share, "factor": float(slow.random.factor)}
    elif slow.random is not None:
        patch["random"] = None
    return patch


def _fault(fault: FaultFile) -> dict[str, Any]:
    patch: dict[str, Any] = {"op": fault.op, "error": fault.error, "mode": fault.mode}
    for key, text in (("from", fault.from_), ("to", fault.to)):
        if text is not None:
            patch[key] = parse_size(text)
    if fault.file is not None:
        patch["file"] = fault.file
    if fault.probability is not None:
        patch["probability"] = parse_portion(fault.probability)
    if fault.seed is not None:
        patch["seed"] = int(fault.seed)
    return patch


_FEATURES: dict[str, Callable[[Any], Any]] = {
    "slow": _slow,
    **dict.fromkeys(("readahead", "cache", "read_only", "full", "fail_stop", "volatile"), flag_of),
    "servers": int,
    "faults": lambda faults: [_fault(f) for f in faults],
    "bad_space": _bad_space,
    "credits": dict,
}


def _interface(own: InterfaceFile, network: NamedNetworkFile) -> LinkSpec:
    """One interface. Impairments of its network apply once, to outgoing packets; those of the interface apply
    to outgoing and to incoming packets."""
    rates = _rates(network) | _rates(own)
    out, inwards = _way(network), _way(own)
    if network.jitter is None:
        out.pop("mean_s", None)  # the network's own latency: one delay for all pairs
    mean_s = out.pop("mean_s", 0.0) + inwards.get("mean_s", 0.0)
    leaving = {**out, **inwards, "mean_s": mean_s}
    return LinkSpec(
        network=own.network,
        address=own.address,
        delay=Delay(**leaving),
        in_delay=Delay(**inwards),
        out_bps=rates.get("out_bps"),
        in_bps=rates.get("in_bps"),
        **(_shares(network) | _shares(own)),
        **{f"in_{k}": v for k, v in _shares(own).items()},
    )


def _way(wire: WireFile) -> dict[str, Any]:
    """A delay with the fields of `Delay`."""
    fields: dict[str, Any] = {}
    if wire.latency is not None:
        fields["mean_s"] = parse_duration(wire.latency)
    if wire.jitter is not None:
        fields["jitter_s"] = parse_duration(wire.jitter)
        fields["distribution"] = "uniform"
    if wire.distribution is not None:
        fields["distribution"] = wire.distribution
    return fields


def _rates(wire: WireFile) -> dict[str, float | None]:
    rates: dict[str, float | None] = {}
    for text, keys in (
        (wire.bandwidth, ("out_bps", "in_bps")),
        (wire.out, ("out_bps",)),
        (wire.in_, ("in_bps",)),
    ):
        if text is not None:
            rates.update(dict.fromkeys(keys, parse_limit(text)))
    return rates


def _shares(wire: WireFile) -> dict[str, float]:
    texts = {key: getattr(wire, key) for key in SHARES}
    return {key: parse_share(text) for key, text in texts.items() if text is not None}


def wire_patch(wire: WireFile, network: NamedNetworkFile | None = None) -> dict[str, Any]:
    """A change of an interface in `network`, with the fields of `LinkSpec`; None for no limit."""
    patch: dict[str, Any] = dict(_rates(wire))
    delay = _way(wire)
    if delay:
        below = network.latency if network is not None and network.jitter is not None else None
        leaving = dict(delay)
        if "mean_s" in delay and below is not None:
            leaving["mean_s"] += parse_duration(below)
        patch |= {"delay": leaving, "in_delay": delay}
    shares = _shares(wire)
    return patch | shares | {f"in_{k}": v for k, v in shares.items()}


def _network(
    network: NamedNetworkFile, names: Sequence[str], machines: Mapping[str, MachineFile]
) -> NetworkSpec:
    """A network with the delays of its matrix, by direction; later entries take precedence.

    The latencies of the matrix are in addition to that of the network, which the delay of a pair replaces.
    """
    inside = [
        n
        for n in names
        if any(i.network == network.name for i in machines[n].interfaces)
        or (not machines[n].interfaces and network.name == MAIN)
    ]
    delays = delays_of(network.matrix or {}, inside)
    latency_s = parse_duration(network.latency or "0s")
    delay_s, link_delay_s = (latency_s, 0.0) if network.jitter is None else (0.0, latency_s)
    return NetworkSpec(
        network.name,
        network.subnet,
        delay_s=delay_s,
        delays={pair: delay_s + more_s for pair, more_s in delays.items()},
        host=network.host is not None and flag_of(network.host),
        engine=cast(Any, network.engine or "auto"),
        link_delay_s=link_delay_s,
    )


def delays_of(
    matrix: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Latencies of a matrix from node to node [s]; later entries take precedence, and the reverse direction
    defaults to the same value."""
    forward: dict[tuple[str, str], float] = {}
    back: dict[tuple[str, str], float] = {}
    for source, peers in matrix.items():
        for target, latency in peers.items():
            delay = parse_duration(latency)
            for a in fnmatch.filter(names, source):
                for b in fnmatch.filter(names, target):
                    if a != b:
                        forward[a, b] = back[b, a] = delay
    return back | forward


def events_of(
    event: EventFile,
    profiles: Profiles | None,
    networks: Mapping[str, NamedNetworkFile] | None = None,
) -> list[Event]:
    """One entry of a schedule as events, one for each resource that it changes.

    Without `profiles`, profiles are given by name only.
    """
    condition = None
    if event.when is not None:
        condition = event.when.model_dump(exclude_none=True)
    when = When(parse_duration(event.at), event.phase, condition)
    patches: list[tuple[Resource, str | None, dict[str, Any]]] = []
    disk = _disk_patch(event, profiles)
    if disk:
        patches.append(("disk", event.disk, disk))
    link = wire_patch(event, (networks or {}).get(event.network or MAIN))
    if link:
        patches.append(("network", event.network or MAIN, link))
    cpu: dict[str, Any] = {}
    for key, word, parse in (
        ("cpus", "cpus", float),
        ("cpuset", "cpuset", parse_cpuset),
        ("cpu_ratio", "ratio", float),
    ):
        text = getattr(event, key)
        if text is not None:
            cpu[word] = None if text == MAX else parse(text)
    if cpu:
        patches.append(("cpu", None, cpu))
    memory = {
        key: parse_size_or_max(text)
        for key, text in (("hard", event.memory), ("soft", event.memory_soft))
        if text is not None
    }
    if memory:
        patches.append(("memory", None, memory))
    if event.node is not None:
        patches.append(("node", None, {"state": _STATES[event.node]}))
    return [Event(when, r, patch, tuple(event.nodes), name) for r, name, patch in patches]


def _disk_patch(event: EventFile, profiles: Profiles | None) -> dict[str, Any]:
    patch = features_patch(event.features) if event.features is not None else {}
    if event.limits is not None:
        patch["limits"] = None if is_max(event.limits) else limits_patch(event.limits)
    if event.profile is not None and is_max(event.profile):
        patch["profile"] = None
    elif event.profile is not None and profiles is None:
        patch["profile"] = event.profile
    elif event.profile is not None and profiles is not None:
        patch["profile"] = scaled(dict(profiles(event.profile)), float(event.time_scale or 1.0))
    if event.power_cut is not None and flag_of(event.power_cut):
        patch["power_cut"] = True
    return patch
