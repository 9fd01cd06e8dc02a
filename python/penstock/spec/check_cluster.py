"""Checks of a cluster's specification: all errors at once, before the host is modified."""

from __future__ import annotations

import fnmatch
import ipaddress
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from penstock.errors import BadInput
from penstock.plugins import NODE_RUNTIMES
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, LinkSpec, NodeSpec
from penstock.spec.privileges import parse_privilege
from penstock.spec.units import MOST_BYTES

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_DISK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
#: a shell does not start with less memory [bytes]
LEAST_MEMORY_BYTES = 4 << 20
#: beyond these the kernel refuses a limit
MOST_CPUS = 100_000
#: paths at which a disk would hide files that a node needs
_TAKEN = ("/", "/proc", "/sys", "/dev", "/run", "/etc", "/tmp", "/bin", "/usr", "/lib")
#: keys of a patch, by resource, that are defined here; disks and networks define their own
CPU_KEYS = ("cpus", "cpuset", "ratio")
MEMORY_KEYS = ("hard", "soft")
NODE_STATES = ("up", "down", "frozen", "running")
#: counters of a disk for conditions; a throttled disk has only the first five
METRICS = (
    *("reads", "writes", "read_bytes", "written_bytes", "write_bytes"),
    *("flushes", "read_service_ns", "write_service_ns", "flush_service_ns"),
    *("read_time_ns", "write_time_ns", "flush_time_ns", "busy_ns", "in_flight", "queue_time_ns"),
    *("late_count", "lateness_ns_total", "lateness_ns_max"),
    *("asked_time_ns", "delivered_time_ns", "errors"),
)
_CONDITION_KEYS = ("metric", "disk", "above", "below", "log", "regex", "phase", "fires")


def check_cluster(spec: ClusterSpec) -> None:
    """Raise BadInput with every mistake of a specification."""
    wrong = list(_cluster(spec))
    if wrong:
        raise BadInput("\n".join(wrong))


def matching(patterns: Iterable[str], nodes: Iterable[str]) -> list[str]:
    """Nodes that match names or patterns (`*`, `?`), in their own order.

    Raises BadInput for a pattern without a match.
    """
    names = list(nodes)
    existing = nodes if isinstance(nodes, Mapping) else set(names)
    chosen: set[str] = set()
    for pattern in patterns:
        if pattern in existing:
            chosen.add(pattern)
            continue
        pattern_re = "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern)
        matches = [name for name in names if re.fullmatch(pattern_re, name)]
        if not matches:
            raise BadInput(f"no node {pattern!r}; there are {_some(names)}")
        chosen.update(matches)
    if len(chosen) == 1:
        return list(chosen)
    return [name for name in names if name in chosen]


def check_cpu(patch: dict[str, object], where: str) -> Iterator[str]:
    """Mistakes of a patch of processors."""
    available = set(os.sched_getaffinity(0))
    for key, value in patch.items():
        if key not in CPU_KEYS:
            yield f"{where}: found {key!r}; expected any of {', '.join(CPU_KEYS)}"
        elif value is None or value == "max":
            continue
        elif key == "cpuset":
            requested = set(value) if isinstance(value, list | tuple) else set()
            if not requested or not requested <= available:
                yield f"{where}: cpuset found {value!r}; expected processors of {sorted(available)}"
        elif not _positive(value) or value < 0.001:
            yield f"{where}: {key} found {value!r}; expected a number of at least 0.001"
        elif value > MOST_CPUS:
            yield f"{where}: {key} found {str(value)[:20]}; expected a number of at most {MOST_CPUS:,}"
        elif key == "ratio" and value > 1:
            yield f"{where}: cpu ratio found {value!r}; expected a share in ]0, 1]"


def check_memory(patch: dict[str, object], where: str) -> Iterator[str]:
    """Mistakes of a patch of memory."""
    for key, value in patch.items():
        if key not in MEMORY_KEYS:
            yield f"{where}: found {key!r}; expected any of {', '.join(MEMORY_KEYS)}"
        elif value is None or value == "max":
            continue
        elif not isinstance(value, int) or isinstance(value, bool) or value < LEAST_MEMORY_BYTES:
            yield f"{where}: {key} memory found {value!r}; expected at least 4 MiB, in bytes"
        elif value > MOST_BYTES:
            yield f"{where}: {key} memory found {value!r}; expected at most 2^60 bytes"
    hard, soft = patch.get("hard"), patch.get("soft")
    if isinstance(hard, int) and isinstance(soft, int) and soft > hard:
        yield f"{where}: soft memory limit {soft} is above the hard one {hard}"


def check_state(patch: dict[str, object], where: str) -> Iterator[str]:
    """Mistakes of a patch of a node's state."""
    for key, value in patch.items():
        if key != "state":
            yield f"{where}: found {key!r}; expected state"
        elif value not in NODE_STATES:
            yield f"{where}: state found {value!r}; expected any of {', '.join(NODE_STATES)}"


def _cluster(spec: ClusterSpec) -> Iterator[str]:
    if not _CLUSTER.fullmatch(spec.name):
        yield f"cluster name: found {spec.name!r}; expected letters, digits, _ and -, at most 32"
    if spec.runtime not in ("auto", *NODE_RUNTIMES):
        runtimes = ", ".join(["auto", *NODE_RUNTIMES])
        yield f"found runtime {spec.runtime!r}; expected one of {runtimes}"
    if not spec.nodes:
        yield "found no node; expected at least one"
    yield from _twice("node", (node.name for node in spec.nodes))
    yield from _twice("network", (network.name for network in spec.networks))
    networks: dict[str, Any] = {}
    for network in spec.networks:
        try:
            networks[network.name] = network.subnet and ipaddress.ip_network(network.subnet)
        except ValueError as error:
            yield f"network {network.name}: found subnet {network.subnet!r}; {error}"
    subnets = [(name, subnet) for name, subnet in networks.items() if subnet]
    for number, (name, subnet) in enumerate(subnets):
        for other, other_subnet in subnets[:number]:
            if subnet.version == other_subnet.version and subnet.overlaps(other_subnet):
                yield f"network {name}: {subnet} overlaps {other_subnet} of {other}"
    addresses = Counter(
        (link.network, link.address) for node in spec.nodes for link in node.links if link.address
    )
    for (name, address), times in addresses.items():
        if times > 1:
            yield f"network {name}: address {address} is given to {times} nodes"
    for node in spec.nodes:
        yield from _node(node, networks)
    yield from check_events(spec.events, Targets({node.name: node for node in spec.nodes}))


class Targets:
    """Disks and links affected by events, with a cache."""

    def __init__(self, nodes: Mapping[str, NodeSpec]) -> None:
        self.nodes = nodes
        self._cache: dict[tuple[Any, ...], dict[str | None, tuple[str, ...]]] = {}

    def of(self, event: Event) -> dict[str | None, tuple[str, ...]]:
        """Selected nodes by the name of their disk or network (None for other resources).

        The name of a disk may be a pattern. Raises BadInput if no selected node has a match.
        """
        key = (event.nodes, event.resource, event.name)
        if key not in self._cache:
            self._cache[key] = self._find(event)
        return self._cache[key]

    def _find(self, event: Event) -> dict[str | None, tuple[str, ...]]:
        chosen = matching(event.nodes, self.nodes)
        if event.resource not in ("disk", "network"):
            return {None: tuple(chosen)}
        targets: dict[str | None, tuple[str, ...]] = {}
        there: dict[str, None] = {}
        for node in chosen:
            for name in names_of(self.nodes[node], event.resource):
                there[name] = None
                if fnmatch.fnmatchcase(name, event.name or ""):
                    targets[name] = (*targets.get(name, ()), node)
        if not targets:
            names = _some(list(there)) or "none"
            raise BadInput(
                f"{', '.join(event.nodes)}: no {event.resource} {event.name!r}; there are {names}"
            )
        return targets


def names_of(node: NodeSpec, resource: str) -> list[str]:
    """Names of a node's disks or networks."""
    if resource == "disk":
        return [disk.name for disk in node.disks]
    return [link.network for link in node.links] if resource == "network" else []


def check_events(events: Iterable[Event], targets: Targets) -> list[str]:
    """Mistakes of a schedule: of single events, and concurrent patches of one key."""
    numbered = list(enumerate(events))
    names = list(targets.nodes)
    wrong = []
    for number, event in numbered:
        where = f"event {number}"
        mistakes = list(check_event(event, names, where))
        if not mistakes:
            mistakes += _watched(event, targets.nodes, where)
            try:
                targets.of(event)
            except BadInput as error:
                mistakes.append(f"{where}: {error}")
        wrong += mistakes
    return wrong or list(_same_twice(numbered, targets))


def _watched(event: Event, nodes: Mapping[str, NodeSpec], where: str) -> Iterator[str]:
    condition = event.when.condition or {}
    if condition.get("metric") is not None:
        node, _, disk = str(condition["disk"]).rpartition(".")
        if node not in nodes or disk not in names_of(nodes[node], "disk"):
            disk_names = [f"{n}.{d}" for n in nodes for d in names_of(nodes[n], "disk")]
            fault = f"{where}: the condition's disk {condition['disk']!r}"
            yield f"{fault}; expected one of {_some(disk_names) or 'none, there are no disks'}"


def _same_twice(events: Iterable[tuple[int, Event]], targets: Targets) -> Iterator[str]:
    """Concurrent patches of the same key, whose order is ambiguous."""
    seen: dict[tuple[Any, ...], int] = {}
    for number, event in events:
        when = (event.when.at_s, event.when.phase, repr(event.when.condition))
        keys = list(keys_of(event.patch))
        for name, nodes in targets.of(event).items():
            for node in nodes:
                whose = (when, event.resource, name, node)
                for key in keys:
                    complete, dot, _ = key.partition(".")
                    first = next(
                        (
                            seen[*whose, other]
                            for other in (key, complete if dot else f"{complete}.")
                            if seen.get((*whose, other), number) != number
                        ),
                        None,
                    )
                    if first is not None:
                        yield (
                            f"events {first} and {number} change {key} of {node} at the same time"
                        )
                    seen.setdefault((*whose, key), number)
                    if dot:
                        seen.setdefault((*whose, f"{complete}."), number)


def keys_of(patch: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Keys that a patch sets, each limit and each part of a delay separately."""
    for key, value in patch.items():
        if isinstance(value, Mapping) and key in ("limits", "delay"):
            yield from keys_of(value, f"{key}.")
        else:
            yield f"{above}{key}"


def check_event(event: Event, names: list[str], where: str) -> Iterator[str]:
    """Mistakes of one event."""
    try:
        matching(event.nodes, names)
    except BadInput as error:
        yield f"{where}: {error}"
    at_s = event.when.at_s
    if not math.isfinite(at_s) or at_s < 0:
        yield f"{where}: time found {at_s!r}; expected seconds from 0 on"
    if event.when.condition is not None:
        yield from check_condition(event.when.condition, where)
    if not event.patch:
        yield f"{where}: changes nothing"
    checks = {"cpu": check_cpu, "memory": check_memory, "node": check_state}
    if event.resource in checks:
        yield from checks[event.resource](event.patch, where)
    elif event.name is None:
        yield f"{where}: expected the name of the {event.resource}"


def _node(node: NodeSpec, networks: dict[str, Any]) -> Iterator[str]:
    where = f"node {node.name}"
    if not _NODE.fullmatch(node.name):
        yield f"node name: found {node.name!r}; expected letters, digits, -, _ and ., at most 63"
    if node.image is not None and not os.path.isdir(node.image):
        yield f"{where}: image {node.image} is not a directory"
    cpu = {"cpus": node.cpus, "cpuset": node.cpuset, "ratio": node.cpu_ratio}
    yield from check_cpu({k: v for k, v in cpu.items() if v is not None}, where)
    yield from check_memory({"hard": node.memory_bytes, "soft": node.memory_soft_bytes}, where)
    yield from _twice(f"{where}: disk", (disk.name for disk in node.disks))
    yield from _twice(f"{where}: mount point", (mount_point(disk) for disk in node.disks))
    yield from _twice(f"{where}: link to network", (link.network for link in node.links))
    for privilege in node.privileges:
        try:
            parse_privilege(privilege)
        except ValueError as error:
            yield f"{where}: privileges: found {privilege!r}; expected {error}"
    for disk in node.disks:
        yield from _disk(disk, f"{where}: disk {disk.name}")
    for link in node.links:
        yield from _link(link, networks, f"{where}: link {link.network}")


def mount_point(disk: DiskSpec) -> str:
    """Mount point of a disk in the node."""
    return os.path.normpath(disk.mount or f"/disks/{disk.name}")


def _disk(disk: DiskSpec, where: str) -> Iterator[str]:
    if not _DISK.fullmatch(disk.name):
        yield f"{where}: found that name; expected letters, digits, _ and -, at most 32"
    at = mount_point(disk)
    if (
        not at.startswith("/")
        or at in _TAKEN
        or at.startswith(("/proc/", "/sys/", "/dev/", "/run/"))
    ):
        yield f"{where}: mount point found {disk.mount!r}; expected an absolute path that no other disk uses"
    if disk.directory is not None and not os.path.isdir(disk.directory):
        yield f"{where}: {disk.directory} is not a directory"
    if not _positive(disk.time_scale):
        yield f"{where}: time scale found {disk.time_scale!r}; expected a number above 0"
    for name, value in vars(disk.limits).items():
        if value is not None and not _positive(value):
            yield f"{where}: {name} found {value!r}; expected a number above 0"


def _link(link: LinkSpec, networks: dict[str, Any], where: str) -> Iterator[str]:
    if link.network not in networks:
        yield f"{where}: no such network; there are {_some(list(networks))}"
    subnet = networks.get(link.network)
    if link.address is not None:
        try:
            address = ipaddress.ip_address(link.address.partition("/")[0])
        except ValueError:
            yield f"{where}: found address {link.address!r}; expected one such as 10.88.1.5"
        else:
            if subnet and address not in subnet:
                yield f"{where}: address {link.address} is not in {subnet}"
    for name in ("out_bps", "in_bps"):
        value = getattr(link, name)
        if value is not None and not _positive(value):
            yield f"{where}: {name} found {value!r}; expected bytes per second above 0"
    for name in ("loss", "duplicate", "corrupt", "reorder"):
        value = getattr(link, name)
        if not 0 <= value <= 1:
            yield f"{where}: {name} found {value!r}; expected a probability"
    for name in ("mean_s", "jitter_s"):
        value = getattr(link.delay, name)
        if not math.isfinite(value) or value < 0:
            yield f"{where}: delay {name} found {value!r}; expected seconds from 0 on"


def _twice(what: str, names: Iterable[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{what} {name} occurs {times} times"


def _positive(value: object) -> TypeGuard[int | float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def check_condition(condition: dict[str, Any], where: str) -> Iterator[str]:
    """Mistakes of a condition."""
    kinds = [key for key in ("metric", "log", "phase") if condition.get(key) is not None]
    unknown = sorted(set(condition) - set(_CONDITION_KEYS))
    if unknown or len(kinds) != 1:
        actual = unknown[0] if unknown else " and ".join(kinds) or "none of them"
        yield f"{where}: found {actual}; expected one of metric, log and phase"
    elif condition.get("fires", "every") not in ("every", "once"):
        yield f"{where}: fires found {condition['fires']!r}; expected every or once"
    elif kinds == ["metric"]:
        bounds = [k for k in ("above", "below") if isinstance(condition.get(k), int | float)]
        if len(bounds) != 1 or "." not in str(condition.get("disk")):
            yield f"{where}: a metric needs disk: NODE.DISK and a number, above or below"
        if condition["metric"] not in METRICS:
            fault = f"{where}: metric found {condition['metric']!r}"
            yield f"{fault}; expected one of {', '.join(METRICS)}"
    elif kinds == ["log"]:
        if not str(condition["log"]).startswith("/"):
            fault = f"{where}: log found {condition['log']!r}"
            yield f"{fault}; expected an absolute path of the host"
        try:
            re.compile(str(condition.get("regex") or "("))
        except re.error as error:
            yield f"{where}: regex found {condition.get('regex')!r}: {error}"


def repeats(condition: Mapping[str, Any]) -> bool:
    """True if an event repeats whenever its condition becomes true."""
    return bool(condition) and condition.get("fires", "every") == "every"
