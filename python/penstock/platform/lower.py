"""A platform in numbers, as input of the simulator: bytes, seconds, B/s ("penstock/network/1")."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.platform.draws import (
    integer_part,
    parse_bandwidth,
    parse_duration,
    parse_share,
    parse_size,
    parse_time_per_size,
    placed,
)
from penstock.platform.emulation import delays_of, limits_patch
from penstock.platform.fields import parse_payload
from penstock.platform.file import (
    HostFile,
    LinkFile,
    PlatformFile,
    ServiceFile,
    StorageFile,
)
from penstock.platform.power import Power, Price, chosen_state, power_of, price_of
from penstock.platform.profiles import scaled
from penstock.platform.stores import ready_store
from penstock.spec.machine import MachineFile, NodeFile, time_scale_of

SCHEMA_ID = "penstock/network/1"


@dataclass(frozen=True)
class Host:
    """One host of a platform. `speed` is that of computing, including the selected frequency; `node` is the
    host as a node of a study (memory, processors, disks); `power` and `price` are None if not declared,
    `power` also if it does not count (a manager only)."""

    name: str
    group: str
    index: int
    rack: int
    roles: frozenset[str]
    node: NodeFile
    speed: float
    slots: int
    power: Power | None
    price: Price | None
    part: HostFile


def merge(base: Any, change: Any, *, storage: bool = False) -> Any:
    """Merge `change` over `base`: mappings by key; everything else is replaced."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return base if change is None else change
    if storage and kind_of_storage(change) not in ("", kind_of_storage(base)):
        return dict(change)
    merged = dict(base)
    for key, value in change.items():
        merged[key] = merge(merged.get(key), value, storage=key == "storage")
    return merged


def kind_of_storage(storage: Mapping[str, Any]) -> str:
    """`profile`, `disk` or `services`; empty if none is given."""
    for key in ("profile", "disk"):
        if storage.get(key) is not None:
            return key
    return "services" if {"read", "write"} & set(storage) else ""


def covers(key: str, index: int) -> bool:
    """True if a key of `except`, `3` or `3-5`, includes the host `index`. ValueError for an invalid key."""
    first, dash, last = key.partition("-")
    return int(first) <= index <= int(last if dash else first)


def racks_of(rack: Any, index: int, count: int) -> int:
    """Rack of host `index` of `count`: a list of racks is filled in equal, contiguous parts."""
    several = rack if isinstance(rack, list) else [rack if rack is not None else 0]
    return int(several[index * len(several) // count])


def parts(document: Mapping[str, Any]) -> list[tuple[dict[str, Any], int, dict[str, Any]]]:
    """(group, index, effective plain values) of every host, in order."""
    shared = {k: document[k] for k in ("power", "price") if document.get(k) is not None}
    link = {k: v for k, v in (document.get("network") or {}).items() if k in _LINK}
    shared["network"] = link
    hosts = []
    for group in document["hosts"]:
        own = {k: v for k, v in group.items() if k not in ("group", "count", "roles", "except")}
        base = merge(shared, own)
        changes: Mapping[str, Any] = group.get("except") or {}
        for index in range(group["count"]):
            part = base
            for key, change in changes.items():
                if covers(key, index):
                    part = merge(part, change)
            hosts.append((group, index, part))
    return hosts


_LINK = ("bandwidth", "out", "in", "loopback")


def expand(document: Mapping[str, Any]) -> list[Host]:
    """All hosts of a validated document."""
    first: dict[tuple[int, int], Host] = {}
    hosts = []
    for group, index, plain in parts(document):
        key = (id(group), id(plain))
        if key not in first:
            first[key] = _host(group, index, placed(HostFile.model_validate(plain), plain))
        like = first[key]
        name = f"{group['group']}-{index}"
        rack = racks_of(like.part.rack, index, group["count"])
        node = like.node.model_copy(update={"name": name})
        hosts.append(dataclasses.replace(like, name=name, index=index, rack=rack, node=node))
    return hosts


def _host(group: Mapping[str, Any], index: int, part: HostFile) -> Host:
    """Host of that part, without name and rack."""
    roles = frozenset(group.get("roles") or [])
    speed = part.speed if part.speed is not None else 1.0
    power = None
    if part.power is not None:
        state = chosen_state(part.power)
        speed = speed * (state.speed if state is not None else 1.0)
        if roles != {"manager"} or part.power.manager:
            power = power_of(part.power)
    return Host(
        name="",
        group=group["group"],
        index=index,
        rack=0,
        roles=roles,
        node=NodeFile(name="-", **{k: getattr(part, k) for k in MachineFile.model_fields}),
        speed=speed,
        slots=part.slots or 1,
        power=power,
        price=price_of(part.price) if part.price is not None else None,
        part=part,
    )


def scale_times(distribution: Any, factor: float) -> Any:
    """A number of seconds or a distribution, multiplied by `factor`."""
    if not isinstance(distribution, dict):
        return distribution * factor
    scaled_parts: dict[str, Any] = {}
    for key, value in distribution.items():
        if key == "parts":
            scaled_parts[key] = [
                {**p, "of": scale_times(p["of"], factor)} if "of" in p else scale_times(p, factor)
                for p in value
            ]
        elif key == "quantiles":
            scaled_parts[key] = [[p, t * factor] for p, t in value]
        else:
            scaled_parts[key] = (
                value * factor if key.endswith("_s") and value is not None else value
            )
    return scaled_parts


def time_of(value: Any) -> Any:
    """Seconds of a duration; distributions are unchanged."""
    return parse_duration(value) if isinstance(value, str) else value


def service_of(service: ServiceFile, factor: float = 1.0) -> dict[str, Any]:
    """A service in numbers, multiplied by `factor`."""
    per_byte = 0.0
    if service.per_byte is not None:
        per_byte = parse_time_per_size(service.per_byte)
    elif service.rate is not None:
        per_byte = 1 / parse_bandwidth(service.rate)
    return {
        "overhead": scale_times(time_of(service.overhead), factor),
        "s_per_byte": per_byte * factor,
    }


def link_of(link: LinkFile, payload: float = 1.0) -> dict[str, float]:
    """A host's link in numbers; between hosts `payload` of it is data. KeyError for a missing value."""
    both = link.bandwidth
    out, inwards = link.out or both, link.in_ or both
    if out is None or inwards is None or link.loopback is None:
        raise KeyError("loopback" if link.loopback is None else "bandwidth")
    return {
        "out_bps": parse_bandwidth(out) * payload,
        "in_bps": parse_bandwidth(inwards) * payload,
        "loopback_bps": parse_bandwidth(link.loopback),
        "latency_s": parse_duration(link.latency) if link.latency is not None else 0.0,
    }


def capacity_of(host: Host, storage: StorageFile) -> int | None:
    """Capacity of a host's storage [bytes]; None without a limit. KeyError if it depends on a missing
    value."""
    disk = next((d for d in host.node.disks if d.name == storage.disk), None)
    size = disk.size if disk is not None else None
    declared = storage.capacity
    if declared is None:
        return None if size is None else parse_size(size)
    if declared == "unlimited":
        return None
    if declared == "memory" or (declared.rstrip().endswith("%") and size is None):
        size_of_all = host.node.memory
        if size_of_all is None:
            raise KeyError("memory")
    elif declared == "disk" or declared.rstrip().endswith("%"):
        if size is None:
            raise KeyError("disk")
        size_of_all = size
    else:
        return parse_size(declared)
    share = parse_share(declared) if declared.rstrip().endswith("%") else 1.0
    return integer_part(parse_size(size_of_all) * share)


class Lowering:
    """Converts one validated platform to numbers. `profiles`: by their name in the file."""

    def __init__(
        self, file: PlatformFile, hosts: list[Host], profiles: Mapping[str, dict[str, Any]]
    ) -> None:
        self.file, self.hosts, self.profiles = file, hosts, profiles
        self.payload = parse_payload(file.network.payload)
        self._scaled: dict[tuple[str, float], dict[str, Any]] = {}
        self._bodies: dict[tuple[int, frozenset[str]], dict[str, Any]] = {}

    def network(self) -> dict[str, Any]:
        """The complete platform, as "penstock/network/1"."""
        file = self.file
        return {
            "schema": SCHEMA_ID,
            "hosts": [self._host(h) for h in self.hosts],
            "fabric": {
                "latency_s": parse_duration(file.network.latency or "0s")
                + self._between()
                + parse_duration(file.protocol.latency),
                "capacity_bps": self._bandwidth(file.network.fabric),
                "rack_uplink_bps": self._bandwidth(file.network.rack_uplink),
                "sharing": file.network.sharing,
            },
            "store": store_of(file),
            "protocol": {
                "frame_bytes": parse_size(file.protocol.frame),
                "control_bytes": parse_size(file.protocol.control),
                "merge_frames": file.protocol.merge_frames,
            },
            "scheduler": {
                "kind": file.scheduler.kind,
                "wait_s": None
                if file.scheduler.wait == "forever"
                else parse_duration(file.scheduler.wait),
                "inputs": file.scheduler.inputs,
                "fill": file.scheduler.fill,
            },
            "launch": {
                "overhead": time_of(file.launch.overhead),
                "stagger": time_of(file.launch.stagger),
                "tag": time_of(file.launch.tag),
                "locate": time_of(file.launch.locate),
            },
            "preprocess": {
                "aggregate": file.preprocess.aggregate,
                "cache_bytes": parse_size(file.preprocess.cache),
                "prefetch_chunks": file.preprocess.prefetch,
            },
        }

    def _bandwidth(self, text: str | None) -> float | None:
        return None if text is None else parse_bandwidth(text) * self.payload

    def _between(self) -> float:
        """Mean additional latency of the matrix between two hosts [s]."""
        names = [h.name for h in self.hosts]
        if self.file.network.matrix is None or len(names) < 2:
            return 0.0
        delays = delays_of(self.file.network.matrix, names)
        return sum(delays.values()) / (len(names) * (len(names) - 1))

    def _host(self, host: Host) -> dict[str, Any]:
        key = (id(host.part), host.roles)
        if key not in self._bodies:
            self._bodies[key] = self._body(host)
        return {
            "name": host.name,
            "group": host.group,
            "rack": host.rack,
            **self._bodies[key],
        }

    def _body(self, host: Host) -> dict[str, Any]:
        part = host.part
        slower = 1.0
        if part.power is not None:
            state = chosen_state(part.power)
            slower = 1 / state.service_speed if state is not None else 1.0
        client: dict[str, Any] | None = None
        storage: dict[str, Any] | None = None
        manager: dict[str, Any] | None = None
        if "client" in host.roles:
            client = {"slots": host.slots, "speed": host.speed}
            if part.client is not None:
                client["service"] = service_of(part.client.service, slower)
        if "storage" in host.roles:
            storage = self._storage(host, slower)
        if "manager" in host.roles and part.manager is not None:
            manager = {
                "service": service_of(part.manager.service, slower),
                "servers": part.manager.servers,
            }
        return {
            "network": link_of(part.network or LinkFile.model_validate({}), self.payload),
            "client": client,
            "storage": storage,
            "manager": manager,
        }

    def _storage(self, host: Host, slower: float) -> dict[str, Any]:
        storage = storage_of(host.part)
        capacity = capacity_of(host, storage)
        if storage.read is not None and storage.write is not None:
            return {
                "read": service_of(storage.read, slower),
                "write": service_of(storage.write, slower),
                "servers": storage.servers or 1,
                "capacity_bytes": capacity,
            }
        name, scale = storage.profile, storage.time_scale or 1.0
        limits: dict[str, float] = {}
        if storage.disk is not None:
            disk = next(d for d in host.node.disks if d.name == storage.disk)
            name, scale = disk.profile, time_scale_of(disk)
            if disk.limits is not None:
                limits = {k: v for k, v in limits_patch(disk.limits).items() if v is not None}
        key = (str(name), scale * slower)
        if key not in self._scaled:
            self._scaled[key] = scaled(self.profiles[key[0]], key[1])
        profile = self._scaled[key]
        if limits:
            text = ", ".join(f"{k} {v:g}" for k, v in sorted(limits.items()))
            own = {k: v for k, v in (profile.get("limits") or {}).items() if v is not None}
            least = {k: min(v, own.get(k, v)) for k, v in limits.items()}
            named = {"name": f"{profile['name']} ({text})", "limits": {**own, **least}}
            profile = {**profile, **named}
        service: dict[str, Any] = {"profile": profile, "capacity_bytes": capacity}
        return service if storage.seed is None else {**service, "seed": storage.seed}


def storage_of(part: HostFile) -> StorageFile:
    """Storage of a host: as declared, else its first disk."""
    declared = part.storage or StorageFile.model_validate({})
    if (
        declared.disk is None
        and declared.profile is None
        and declared.read is None
        and declared.write is None
    ):
        disk = next((d.name for d in part.disks if d.profile is not None), None)
        return declared.model_copy(update={"disk": disk})
    return declared


def unit_of(text: str) -> int | str | None:
    """Bytes that are placed together, or `file`; None for each request by itself."""
    if text in ("request", "file"):
        return None if text == "request" else text
    return parse_size(text)


def store_of(file: PlatformFile) -> dict[str, Any]:
    """The store in numbers: the file's values over the defaults of its ready store."""
    declared = {k: v for k, v in file.store if v is not None and k != "like"}
    store = {**ready_store(file.store.like, file.store.engine), **declared}
    return {
        "chunk_bytes": parse_size(store["chunk"]),
        "stripe_width": None if store["stripe"] == "all" else store["stripe"],
        "replicas": store["replicas"],
        "replication": store["replication"],
        "forward": store["forward"],
        "placement": store["placement"],
        "shuffle": store["shuffle"],
        "round_robin": store["round_robin"],
        "placement_unit": unit_of(store["placement_unit"]),
        "write_contention_s": parse_duration(store["write_contention"]),
        "window": None if store["window"] == "unlimited" else store["window"],
        "allocation": store["allocation"],
        "read_replica": store["read_replica"],
    }
