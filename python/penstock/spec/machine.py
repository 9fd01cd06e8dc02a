"""Machines, networks and their changes: one model for a study's nodes and a platform's hosts.

In a study any value may be a template; a platform file has no factors, and therefore no templates.
`platform/emulation.py` converts them to a cluster specification.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from penstock.errors import BadInput
from penstock.plugins import DISK_BACKENDS, NODE_RUNTIMES
from penstock.spec.fields import expect, is_json
from penstock.spec.quantities import (
    AUTO,
    Chance,
    Choice,
    Count,
    Cpuset,
    CpusetOrMax,
    Flag,
    Iops,
    OneOrEach,
    OrMax,
    OrTemplate,
    Owner,
    Part,
    Portion,
    PositiveTime,
    Privilege,
    Rate,
    Ratio,
    RatioOrMax,
    Scale,
    ScaleOrMax,
    Seed,
    Size,
    SizeFromZero,
    SizeOrMax,
    Text,
    Time,
    TimeOrMax,
)

Backend = Annotated[str, Choice(("auto", *DISK_BACKENDS))]
Access = Annotated[str, Choice(("any", "direct"))]
Engine = Annotated[str, Choice(("auto", "netem", "relay"))]
Spread = Annotated[str, Choice(("constant", "uniform", "normal", "pareto"))]
Operation = Annotated[str, Choice(("read", "write", "flush", "any"))]
FaultMode = Annotated[str, Choice(("error", "zero", "flip", "torn"))]
BadMode = Annotated[str, Choice(("error", "flip", "zero"))]
Noticed = Annotated[str, Choice(("read", "write", "any"))]
Fires = Annotated[str, Choice(("every", "once"))]
Churn = Annotated[str, Choice(("up", "down", "freeze", "unfreeze"))]
Runtime = Annotated[str, Choice(("auto", *NODE_RUNTIMES))]


def _plain(value: Any) -> Any:
    """A mapping that JSON can express: without dates, and with finite numbers."""
    if not is_json(value):
        raise expect("a mapping with finite numbers, such as {iops: {base: 100}}")
    return value


class LimitsFile(Part):
    """Upper limits of a disk, independent of each other; `max`: none."""

    read: Rate | None = Field(None, description="Limit of read bytes per time.")
    write: Rate | None = Field(None, description="Limit of written bytes per time.")
    read_iops: Iops | None = Field(None, description="Limit of reads per time.")
    write_iops: Iops | None = Field(None, description="Limit of writes per time.")


class StallFile(Part):
    """Times at which a disk serves nothing."""

    period: PositiveTime = Field(
        description="Time from one stall to the next; the first one starts at once."
    )
    length: PositiveTime = Field(description="Duration of each stall.")


class SlowNowAndThenFile(Part):
    """Random requests that take longer."""

    probability: Portion = Field(description="Share of the requests that are slow.")
    factor: Scale = Field(description="Factor of their time.")


class SlowFile(Part):
    """Slow service of a disk."""

    factor: ScaleOrMax = Field("1", description="Factor of the time of every request.")
    ramp: TimeOrMax | None = Field(None, description="Time over which the factor is reached.")
    stall: Annotated[StallFile, OrMax()] | None = Field(None, description="Recurring stalls.")
    random: Annotated[SlowNowAndThenFile, OrMax()] | None = Field(
        None, description="Random slow requests."
    )


class FaultFile(Part):
    """Requests that fail, or that return or write wrong data."""

    op: Operation = Field("any", description="Kind of the requests.")
    error: Text = Field("EIO", description="Name of the error, such as EIO or ENOSPC.")
    from_: SizeFromZero | None = Field(
        None, alias="from", description="Smallest offset in the file."
    )
    to: SizeFromZero | None = Field(None, description="Largest offset in the file, exclusive.")
    file: Text | None = Field(None, description="Pattern of the paths of files.")
    probability: Portion | None = Field(
        None, description="Share of these requests that are affected; all."
    )
    mode: FaultMode = Field(
        "error", description="Effect: an error, or zeros, a flipped bit, a truncated write."
    )
    seed: Seed | None = Field(None, description="Seed of the random choice; 0.")


class BadSpaceFile(Part):
    """Bad blocks, always the same ones."""

    share: Portion = Field(description="Share of the space that is bad.")
    mode: BadMode = Field("error", description="Effect of reading a bad block.")
    seed: Seed | None = Field(None, description="Seed of the choice of blocks; 0.")
    op: Noticed | None = Field(None, description="Requests that are affected: read, write, or any.")


class FeaturesFile(Part):
    """Differences of a disk from its profile; in a schedule `max` restores the initial value."""

    slow: Annotated[SlowFile, OrMax()] | None = Field(None, description="Slow service.")
    readahead: Annotated[Flag, OrMax()] | None = Field(
        None, description="Read-ahead of the device; false: off."
    )
    cache: Annotated[Flag, OrMax()] | None = Field(
        None, description="Write cache of the device; false: off."
    )
    servers: Annotated[Count, OrMax()] | None = Field(
        None, description="Number of requests that it serves at once."
    )
    faults: Annotated[list[FaultFile], OrMax()] | None = Field(
        None, description="Requests that fail."
    )
    bad_space: Annotated[BadSpaceFile, OrMax()] | None = Field(
        None, description="Blocks that are bad."
    )
    read_only: Annotated[Flag, OrMax()] | None = Field(None, description="Writes fail (EROFS).")
    full: Annotated[Flag, OrMax()] | None = Field(None, description="The disk is full (ENOSPC).")
    fail_stop: Annotated[Flag, OrMax()] | None = Field(None, description="All requests fail.")
    credits: Annotated[dict[str, Any], BeforeValidator(_plain), OrMax()] | None = Field(
        None, description="Burst credits, as in a profile."
    )
    volatile: Annotated[Flag, OrMax()] | None = Field(
        None, description="Store unflushed data separately, so that a power cut can discard them."
    )


class DiskFile(Part):
    """One disk of a node."""

    name: Text = Field(
        description="Name of the disk, by which templates refer to its directory: `{name}`."
    )
    profile: Text | None = Field(
        None, description="Ready profile, JSON file next to the study, or template."
    )
    directory: Text | None = Field(
        None,
        description="Instead of a profile: a host directory that is measured without emulation.",
    )
    time_scale: OneOrEach = Field(
        "1",
        description="The disk is this many times slower than the profile; above 0. auto: the nearest "
        "sustainable value for all disks with auto; or one value per profile.",
    )
    size: Size | None = Field(
        None, description="Upper limit of the space that the data of the disk need."
    )
    mount: Text | None = Field(None, description="Mount point; chosen by default.")
    backend: Backend | None = Field(None, description="Back end; chosen by the requested features.")
    limits: Annotated[LimitsFile, OrTemplate()] | None = Field(
        None, description="Upper limits, independent of each other."
    )
    readahead: SizeFromZero | None = Field(
        None, description="Largest read-ahead of the node's kernel; 128KiB."
    )
    features: Annotated[FeaturesFile, OrTemplate()] | None = Field(
        None, description="Deviations from the profile."
    )
    seed: Seed | None = Field(None, description="Seed of the random numbers; chosen by default.")
    io: Access | None = Field(
        None, description="I/O of its programs: any, or direct I/O only (for cgroup1)."
    )
    allow_unhonoured: Flag | None = Field(
        None, description="Accept a limit that the back end does not apply to all I/O."
    )
    owner: Owner | None = Field(
        None, description="User and group of its root directory, as numbers."
    )


class ImpairmentFile(Part):
    """Impairments of packets in transit, other than latency and bandwidth."""

    jitter: Time | None = Field(None, description="Variation of the latency about its mean.")
    distribution: Spread | None = Field(
        None, description="Distribution of the latency: constant, or uniform."
    )
    loss: Chance | None = Field(None, description="Share of lost packets.")
    duplicate: Chance | None = Field(None, description="Share of duplicated packets.")
    corrupt: Chance | None = Field(None, description="Share of packets with a flipped bit.")
    reorder: Chance | None = Field(None, description="Share of packets that overtake others.")


class WireFile(ImpairmentFile):
    """Properties of an interface, or of every interface of a network."""

    bandwidth: Rate | None = Field(None, description="Rate in each direction; max: no limit.")
    out: Rate | None = Field(None, description="Rate of sending, if it differs from bandwidth.")
    in_: Rate | None = Field(None, alias="in", description="Rate of receiving, if it differs.")
    latency: Time | None = Field(None, description="Latency of packets that leave, one way.")


class InterfaceFile(WireFile):
    """One interface of a node; absent values are those of its network."""

    network: Text = Field("net", description="Network of the interface.")
    address: Text | None = Field(None, description="Address; chosen by default.")


def _peers(value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise expect("latencies by node and peer, such as {a: {b: 5ms}}")
    return value


Peers = Annotated[dict[str, dict[str, Time]], BeforeValidator(_peers)]


class NetworkPart(WireFile):
    """A network and the properties of all its interfaces."""

    subnet: Text | None = Field(None, description="Addresses, such as 10.88.1.0/24.")
    matrix: Peers | None = Field(
        None,
        description="Latency between nodes, in addition to that of the interfaces; names may be "
        "patterns. The reverse direction is the same unless stated.",
    )
    host: Flag | None = Field(None, description="Give this host an address in the network.")
    engine: Engine | None = Field(
        None, description="Program that delays and loses packets; netem if the kernel has it."
    )


class NamedNetworkFile(NetworkPart):
    """A network in addition to the one called net."""

    name: Text = Field(description="Name of the network.")


class MachineFile(Part):
    """Properties common to a virtual node and a host of a platform file."""

    memory: Size | None = Field(None, description="Memory limit; includes the page cache.")
    memory_soft: Size | None = Field(
        None,
        description="Memory above which the node is throttled and its memory reclaimed, without a "
        "kill.",
    )
    cpus: Scale | None = Field(None, description="Processor time of the node, in processors.")
    cpuset: Cpuset | None = Field(None, description="Numbers of the processors, such as 0 or 0-1.")
    cpu_ratio: Ratio | None = Field(None, description="Speed of each processor, at most 1.")
    image: Text | None = Field(
        None,
        description="Directory that is the root file system; by default that of the host, copy on "
        "write.",
    )
    ssh: Flag | None = Field(None, description="Run an SSH server in the node.")
    privileges: list[Privilege] = Field(
        [], description="Capabilities and devices beyond those of every node: SYS_TIME, /dev/fuse."
    )
    tenant: Text | None = Field(
        None, description="Tenant of the node; dashboards add up the use of each tenant."
    )
    disks: list[DiskFile] = Field([], description="Disks, emulated or plain directories.")
    interfaces: list[InterfaceFile] = Field([], description="Interfaces; one in the network net.")


class NodeFile(MachineFile):
    """One node, or several identical ones."""

    name: Text = Field(description="Name of the node; with a count NAME-0, NAME-1, …")
    count: Count | None = Field(
        None, description="Number of nodes; without it one node, called NAME."
    )


def time_scale_of(disk: DiskFile) -> float:
    """A disk's time scale as a number. BadInput for an undecided or variable one."""
    if disk.time_scale == AUTO and disk.profile is None:
        return 1.0
    if disk.time_scale == AUTO:
        raise BadInput(
            f"disk {disk.name}: found time_scale auto, which is decided by penstock run; expected a number"
        )
    if not isinstance(disk.time_scale, str):
        raise BadInput(
            f"disk {disk.name}: found a time_scale for each of {', '.join(disk.time_scale)}, which a study "
            "may say; expected a number"
        )
    return float(disk.time_scale)


def node_names(name: str, count: Any) -> list[str]:
    """Names of the nodes of one entry: NAME, or with a count NAME-0, NAME-1, …"""
    return [name] if count is None else [f"{name}-{i}" for i in range(int(count))]


class ConditionFile(Part):
    """Condition of an event."""

    metric: Text | None = Field(None, description="Counter of a disk.")
    disk: Text | None = Field(None, description="NODE.DISK of the counter.")
    above: float | int | None = Field(
        None, description="Fire when the counter is above this value."
    )
    below: float | int | None = Field(
        None, description="Fire when the counter is below this value."
    )
    log: Text | None = Field(None, description="File that the workload writes.")
    regex: Text | None = Field(None, description="Fire when a line matches this expression.")
    phase: Text | None = Field(None, description="Fire at the mark of this phase.")
    fires: Fires | None = Field(
        None,
        description="every: at each line, mark, and crossing of the bound; once: the first time only."
        " every.",
    )


def _patterns(value: Any) -> Any:
    several = value if isinstance(value, list) else [value]
    if not several or not all(isinstance(v, str) and v.strip() for v in several):
        raise expect("a node, a pattern such as data-*, or a list of them")
    return several


Patterns = Annotated[
    list[str],
    BeforeValidator(_patterns),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class EventFile(WireFile):
    """One change of a schedule."""

    at: Time = Field(
        "0s", description="Time after the start of the schedule, or after the mark of `phase`."
    )
    phase: Text | None = Field(None, description="Phase whose mark is the origin of the time.")
    when: ConditionFile | None = Field(
        None, description="Instead of a time: the condition of the change."
    )
    nodes: Patterns = Field(["*"], description="Nodes: names or patterns; all.")
    disk: Text | None = Field(None, description="Disk that changes.")
    limits: Annotated[LimitsFile, OrMax(), OrTemplate()] | None = Field(
        None, description="Limits of the disk; others stay. max: no limit."
    )
    features: Annotated[FeaturesFile, OrTemplate()] | None = Field(
        None, description="Features of the disk; others stay."
    )
    profile: Text | None = Field(None, description="Profile of the disk.")
    time_scale: Scale | None = Field(
        None, description="The disk is this many times slower than that profile."
    )
    power_cut: Flag | None = Field(None, description="Power cut: the disk loses unflushed data.")
    network: Text | None = Field(None, description="Network whose interface changes; net.")
    cpus: ScaleOrMax | None = Field(None, description="Processor time of the node, in processors.")
    cpuset: CpusetOrMax | None = Field(None, description="Numbers of the processors.")
    cpu_ratio: RatioOrMax | None = Field(None, description="Speed of each processor.")
    memory: SizeOrMax | None = Field(None, description="Memory limit.")
    memory_soft: SizeOrMax | None = Field(
        None, description="Memory above which the node is throttled and its memory reclaimed."
    )
    node: Churn | None = Field(None, description="State of the node.")


class EmulatedPart(Part):
    """Keys for started resources, common to a study's platform and a platform file."""

    networks: list[NamedNetworkFile] = Field([], description="Networks in addition to net.")
    schedule: list[EventFile] = Field([], description="Changes over time.")
    runtime: Runtime | None = Field(None, description="Runtime of the nodes; auto.")


class SharedStoreFile(Part):
    """A shared store that is started over the nodes for each run."""

    engine: Text = Field(description="Engine: moosefs, cephfs, ….")
    manager: Patterns | None = Field(
        None, description="Nodes of the manager; the first storage node."
    )
    storage: Patterns = Field(["*"], description="Storage nodes; all.")
    clients: Patterns = Field(["*"], description="Client nodes; all.")
    mount: Text | None = Field(None, description="Mount point; /store.")
    chunk: Size | None = Field(None, description="Size of a chunk; that of the engine by default.")
    stripe: Count | None = Field(
        None, description="Number of storage nodes of one file; that of the engine by default."
    )
    replicas: Count | None = Field(
        None, description="Number of copies of each chunk; that of the engine by default."
    )
    placement: Text | None = Field(
        None, description="Placement of chunks; that of the engine by default."
    )
    cache: Size | None = Field(None, description="Cache of a client.")
    prefetch: Count | None = Field(None, description="Number of chunks that a client reads ahead.")


class PlatformFile(EmulatedPart):
    """The platform of the workload."""

    nodes: list[NodeFile] = Field(min_length=1, description="Nodes; at least one.")
    network: NetworkPart | None = Field(
        None, description="The network net, to which all nodes are connected."
    )
    store: SharedStoreFile | None = Field(None, description="Shared store over the nodes.")
