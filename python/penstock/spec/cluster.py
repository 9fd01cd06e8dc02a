"""The specification of a cluster: nodes, disks and links, and their changes. Units: bytes, seconds, bytes/s.

Made from a platform file (`platform/`) or from a study's treatment; used by `emulate/`. Nothing here is a
template any more, and nothing here touches the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

#: resources that an event may change
Resource = Literal["disk", "network", "cpu", "memory", "node"]

#: nodes on one network: the ports of a Linux bridge (BR_MAX_PORTS)
MOST_NODES = 1022


@dataclass(frozen=True)
class Limits:
    """Upper limits of a disk, each for itself; None: no limit."""

    read_bps: float | None = None
    write_bps: float | None = None
    read_iops: float | None = None
    write_iops: float | None = None


@dataclass(frozen=True)
class DiskSpec:
    """One disk of a node.

    `profile` is a StorageProfile's JSON, already scaled, or None: then the disk is as fast as its backing
    directory, but for `limits`. `mount` is where the node sees it (default `/disks/NAME`); `directory` holds
    its files (default: one of penstock's own, removed with the node). `patch` is what is changed on it from
    the beginning, with the keys of `docs/emulation.md` (limits, slow, faults, …). `owner` is (uid, gid).
    `io` says what the node's programs do: a back end that cannot limit buffered writes is refused unless
    they use `direct` I/O only, or `allow_unhonoured` says that it is known.
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
    """A one-way delay: its mean, and how it varies about it ('constant', 'uniform', 'normal', 'pareto')."""

    mean_s: float = 0.0
    jitter_s: float = 0.0
    distribution: Literal["constant", "uniform", "normal", "pareto"] = "constant"


@dataclass(frozen=True)
class LinkSpec:
    """One interface of a node; None: no limit. Shares are probabilities per packet.

    What has no `in_` before it is of what leaves the node, the others of what arrives there.
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
class NetworkSpec:
    """A network of its own (one bridge).

    `delay_s`: one-way delay between any two nodes, beside the links' own; `delays`: that of single pairs,
    both ways unless the other way is given too. `host`: the host has an address in it. `engine`: what
    delays and loses packets; 'auto' takes netem where the kernel has it, else the relay. `link_delay_s`:
    latency of the network that the `delay` of each link contains, because it varies from packet to packet.
    """

    name: str = "net"
    subnet: str | None = None
    delay_s: float = 0.0
    delays: dict[tuple[str, str], float] = field(default_factory=dict)
    host: bool = False
    engine: Literal["auto", "netem", "relay"] = "auto"
    link_delay_s: float = 0.0


@dataclass(frozen=True)
class NodeSpec:
    """One virtual node. `image`: its root file system (a directory; None: the host's own, copy on write).

    `cpus`: processors' worth of time; `cpuset`: which processors; `cpu_ratio`: speed in ]0, 1] of each,
    as if its frequency were lower. `memory_bytes` kills what exceeds it, `memory_soft_bytes` only presses.
    `privileges`: capabilities and devices beyond those of every node. `tenant`: whose it is.
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
    #: directories of the host as the node sees them: (on the host, in the node)
    shared: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class When:
    """When an event fires: `at_s` after the schedule began, or after the mark of `phase`; or as soon as
    `condition` holds (`{metric, disk, above|below}`, `{log, regex}`, `{phase}`)."""

    at_s: float = 0.0
    phase: str | None = None
    condition: dict[str, Any] | None = None


@dataclass(frozen=True)
class Event:
    """A patch of what is desired: of `resource` (and its `name`, such as a disk's) on `nodes` (names or
    patterns, `*` all). A value `max` restores what there was without a limit."""

    when: When
    resource: Resource
    patch: dict[str, Any]
    nodes: tuple[str, ...] = ("*",)
    name: str | None = None


@dataclass(frozen=True)
class ClusterSpec:
    """Everything that is put up together."""

    name: str
    nodes: tuple[NodeSpec, ...]
    networks: tuple[NetworkSpec, ...] = (NetworkSpec(),)
    events: tuple[Event, ...] = ()
    runtime: str = "auto"
