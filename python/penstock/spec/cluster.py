"""The specification of a cluster: nodes, disks and links, and their changes. Units: bytes, seconds, bytes/s.

Built from a platform file (`platform/`) or a study's treatment; `emulate/` uses it. It contains no templates,
and nothing here accesses the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: resources of events
Resource = Literal["disk", "network", "cpu", "memory", "node"]

#: nodes per network: the ports of a Linux bridge (BR_MAX_PORTS)
MOST_NODES = 1022


@dataclass(frozen=True)
class Limits:
    """Upper limits of a disk; None: no limit."""

    read_bps: float | None = None
    write_bps: float | None = None
    read_iops: float | None = None
    write_iops: float | None = None


@dataclass(frozen=True)
class DiskSpec:
    """One disk of a node.

    `profile` is a StorageProfile's JSON, already scaled; with None the disk is as fast as its backing
    directory, except for `limits`. `mount` is its mount point in the node (default `/disks/NAME`);
    `directory` is for its files (default: one of penstock's own, removed with the node). `patch` has its
    initial changes, with the keys of `docs/emulation.md` (limits, slow, faults, …). `owner` is (uid, gid).
    `io` declares the I/O of the node's programs: a back end that cannot limit buffered writes is refused
    unless they use only `direct` I/O, or `allow_unhonoured` accepts the deviation.
    """

    name: str
    profile: dict[str, Any] | None = None
    profile_name: str = ""
    time_scale: float = 1.0
    directory: Path | None = None
    size_bytes: int | None = None
    mount: str | None = None
    backend: str = "auto"
    limits: Limits = Limits()
    readahead_bytes: int = 128 * 1024
    seed: int = 0
    owner: tuple[int, int] | None = None
    io: Literal["any", "direct"] = "any"
    allow_unhonoured: bool = False
    patch: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Delay:
    """A one-way delay: its mean and its distribution ('constant', 'uniform', 'normal', 'pareto')."""

    mean_s: float = 0.0
    jitter_s: float = 0.0
    distribution: Literal["constant", "uniform", "normal", "pareto"] = "constant"


@dataclass(frozen=True)
class LinkSpec:
    """One interface of a node; None: no limit. Shares are probabilities per packet.

    Fields without the prefix `in_` are for outgoing packets, the others for incoming ones.
    """

    network: str = "net"
    address: str | None = None
    out_bps: float | None = None
    in_bps: float | None = None
    delay: Delay = Delay()
    loss: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    in_delay: Delay = Delay()
    in_loss: float = 0.0
    in_duplicate: float = 0.0
    in_corrupt: float = 0.0
    in_reorder: float = 0.0


@dataclass(frozen=True)
class TunnelSpec:
    """End of a network that has nodes on other hosts: a VXLAN segment.

    `address`: of this host; `peers`: of the other hosts; `mtu`: of all nodes of the network. `nodes`: names
    and addresses of the nodes on other hosts. `groups`: nodes of one host with equal delays. `delays`:
    one-way delay between a group of this host and one of another host [s], by their numbers; it may shorten
    the delays of their links. The delay of the path between the hosts comes in addition.
    """

    segment: int
    address: str
    peers: tuple[str, ...]
    mtu: int
    nodes: tuple[tuple[str, str], ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    delays: dict[tuple[int, int], float] = field(default_factory=dict)
    port: int = 4789


@dataclass(frozen=True)
class RouterSpec:
    """Router of this host between all networks that have one; `address`: in this network (None: chosen)."""

    #: names of nodes begin with a letter or a digit
    name: str = "_router"
    address: str | None = None


@dataclass(frozen=True)
class NetworkSpec:
    """A separate network (one bridge).

    `delay_s`: one-way delay between any two nodes, in addition to the links' own; `delays`: that of single
    pairs, symmetric unless the other direction is given too. `host`: the host has an address in it. `engine`:
    emulator of delays and losses; 'auto' selects netem if the kernel has it, else the relay. `link_delay_s`:
    latency of the network included in the `delay` of each link, because it varies from packet to packet.
    `router`: None without routes to other networks.
    """

    name: str = "net"
    subnet: str | None = None
    delay_s: float = 0.0
    delays: dict[tuple[str, str], float] = field(default_factory=dict)
    host: bool = False
    engine: Literal["auto", "netem", "relay"] = "auto"
    link_delay_s: float = 0.0
    router: RouterSpec | None = None
    #: only of a cluster on several hosts
    tunnel: TunnelSpec | None = None


@dataclass(frozen=True)
class NodeSpec:
    """One virtual node. `image`: its root file system (a directory; None: the host's own, copy on write).

    `cpus`: processor time, in processors; `cpuset`: allowed processors; `cpu_ratio`: speed in ]0, 1] of each,
    as at a lower frequency. Exceeding `memory_bytes` kills processes, exceeding `memory_soft_bytes` only
    reclaims memory. `privileges`: additional capabilities and devices. `tenant`: its owner.
    """

    name: str
    image: Path | None = None
    cpus: float | None = None
    cpuset: tuple[int, ...] | None = None
    cpu_ratio: float | None = None
    memory_bytes: int | None = None
    memory_soft_bytes: int | None = None
    disks: tuple[DiskSpec, ...] = ()
    links: tuple[LinkSpec, ...] = (LinkSpec(),)
    ssh: bool = False
    privileges: tuple[str, ...] = ()
    tenant: str = ""
    #: directories of the host in the node: (path on the host, path in the node)
    shared: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class When:
    """Time of an event: `at_s` after the start of the schedule, or after the mark of `phase`; or as soon as
    `condition` is true (`{metric, disk, above|below}`, `{log, regex}`, `{phase}`)."""

    at_s: float = 0.0
    phase: str | None = None
    condition: dict[str, Any] | None = None


@dataclass(frozen=True)
class Event:
    """A patch of the desired state: of `resource` (and its `name`, such as a disk's) on `nodes` (names or
    patterns, `*` all). A value `max` removes a limit."""

    when: When
    resource: Resource
    patch: dict[str, Any]
    nodes: tuple[str, ...] = ("*",)
    name: str | None = None


@dataclass(frozen=True)
class ClusterSpec:
    """Everything that is started together."""

    name: str
    nodes: tuple[NodeSpec, ...]
    networks: tuple[NetworkSpec, ...] = (NetworkSpec(),)
    events: tuple[Event, ...] = ()
    runtime: str = "auto"
