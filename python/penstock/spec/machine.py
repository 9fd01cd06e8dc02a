"""Machines, networks and their changes: one model for a study's nodes and a platform's hosts.

In a study any value may be a template; a platform file has no factors, and therefore no templates.
`platform/emulation.py` converts them to a cluster specification.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from penstock.errors import BadInput
from penstock.plugins import DISK_BACKENDS, NODE_RUNTIMES
from penstock.spec.fields import expect
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


class LimitsFile(Part):
    """Upper limits of a disk, each for itself; `max`: none."""

    read: Rate | None = Field(None, description="Bytes read per time.")
    write: Rate | None = Field(None, description="Bytes written per time.")
    read_iops: Iops | None = Field(None, description="Reads per time.")
    write_iops: Iops | None = Field(None, description="Writes per time.")


class StallFile(Part):
    """Times at which a disk does nothing."""

    period: PositiveTime = Field(description="From one stall to the next; the first is at once.")
    length: PositiveTime = Field(description="How long each lasts.")


class SlowNowAndThenFile(Part):
    """Requests that take longer by chance."""

    probability: Portion = Field(description="Share of the requests.")
    factor: Scale = Field(description="How many times longer these take.")


class SlowFile(Part):
    """A disk that fails slowly."""

    factor: ScaleOrMax = Field("1", description="How many times longer every request takes.")
    ramp: TimeOrMax | None = Field(None, description="Time over which the factor is reached.")
    stall: Annotated[StallFile, OrMax()] | None = Field(None, description="Stalls that come back.")
    random: Annotated[SlowNowAndThenFile, OrMax()] | None = Field(
        None, description="Single requests, by chance."
    )


class FaultFile(Part):
    """Requests that fail, or do what they should not."""

    op: Operation = Field("any", description="Of which kind.")
    error: Text = Field("EIO", description="Name of the error, such as EIO or ENOSPC.")
    from_: SizeFromZero | None = Field(None, alias="from", description="Offset in the file: least.")
    to: SizeFromZero | None = Field(None, description="Offset in the file: below this.")
    file: Text | None = Field(None, description="Only files whose path fits this pattern.")
    probability: Portion | None = Field(None, description="Share of these requests; all.")
    mode: FaultMode = Field(
        "error", description="They fail, or hold zeros, a flipped bit, a part of what was written."
    )
    seed: Seed | None = Field(None, description="Of the draws; 0.")


class BadSpaceFile(Part):
    """Blocks that are bad, the same ones every time."""

    share: Portion = Field(description="Of the space.")
    mode: BadMode = Field("error", description="What reading one does.")
    seed: Seed | None = Field(None, description="Of the choice; 0.")
    op: Noticed | None = Field(None, description="What notices: read, or write, or any.")


class FeaturesFile(Part):
    """Differences of a disk from its profile; in a schedule `max` restores the initial value."""

    slow: Annotated[SlowFile, OrMax()] | None = Field(None, description="It fails slowly.")
    readahead: Annotated[Flag, OrMax()] | None = Field(
        None, description="The device's own readahead; false: off."
    )
    cache: Annotated[Flag, OrMax()] | None = Field(
        None, description="The device's write cache; false: off."
    )
    servers: Annotated[Count, OrMax()] | None = Field(
        None, description="Requests that it serves at once."
    )
    faults: Annotated[list[FaultFile], OrMax()] | None = Field(
        None, description="Requests that fail."
    )
    bad_space: Annotated[BadSpaceFile, OrMax()] | None = Field(
        None, description="Blocks that are bad."
    )
    read_only: Annotated[Flag, OrMax()] | None = Field(None, description="Writing fails (EROFS).")
    full: Annotated[Flag, OrMax()] | None = Field(None, description="There is no space (ENOSPC).")
    fail_stop: Annotated[Flag, OrMax()] | None = Field(None, description="Everything fails.")
    credits: Annotated[dict[str, Any], OrMax()] | None = Field(
        None, description="Burst credits, as in a profile."
    )
    volatile: Annotated[Flag, OrMax()] | None = Field(
        None, description="What is not flushed is kept apart, so that a power cut can take it."
    )


class DiskFile(Part):
    """One disk of a node."""

    name: Text = Field(description="What templates call the disk's directory: `{name}`.")
    profile: Text | None = Field(
        None, description="Ready profile, JSON file next to the study, or template."
    )
    directory: Text | None = Field(
        None, description="Instead of a profile: a host directory to measure as it is."
    )
    time_scale: OneOrEach = Field(
        "1",
        description="How many times slower than the profile; > 0. auto: the nearest sustainable one, "
        "of all disks with auto; or one for each profile.",
    )
    size: Size | None = Field(None, description="Space the disk's data needs at most.")
    mount: Text | None = Field(None, description="Where to mount it; default: chosen by penstock.")
    backend: Backend | None = Field(None, description="Back end; chosen by the requested features.")
    limits: Annotated[LimitsFile, OrTemplate()] | None = Field(
        None, description="Upper limits, each for itself."
    )
    readahead: SizeFromZero | None = Field(
        None, description="What the node's kernel reads ahead at most; 128KiB."
    )
    features: Annotated[FeaturesFile, OrTemplate()] | None = Field(
        None, description="What is otherwise than the profile says."
    )
    seed: Seed | None = Field(None, description="Of its draws; chosen by penstock.")
    io: Access | None = Field(
        None, description="What its programs do: any, or direct I/O alone (for cgroup1)."
    )
    allow_unhonoured: Flag | None = Field(
        None, description="A limit that the back end does not hold for all I/O is taken anyway."
    )
    owner: Owner | None = Field(None, description="User and group of its root, as numbers.")


class ImpairmentFile(Part):
    """Impairments of packets in transit, other than latency and bandwidth."""

    jitter: Time | None = Field(None, description="How far the latency varies about its mean.")
    distribution: Spread | None = Field(None, description="How it varies; constant, or uniform.")
    loss: Chance | None = Field(None, description="Share of packets that are lost.")
    duplicate: Chance | None = Field(None, description="Share that comes twice.")
    corrupt: Chance | None = Field(None, description="Share with a bit turned.")
    reorder: Chance | None = Field(None, description="Share that overtakes the others.")


class WireFile(ImpairmentFile):
    """Properties of an interface, or of every interface of a network."""

    bandwidth: Rate | None = Field(None, description="Each direction; max: no limit.")
    out: Rate | None = Field(None, description="Outwards, if it differs from bandwidth.")
    in_: Rate | None = Field(None, alias="in", description="Inwards, if it differs.")
    latency: Time | None = Field(None, description="One way, of packets that leave.")


class InterfaceFile(WireFile):
    """One interface of a node; what it does not say is as its network says."""

    network: Text = Field("net", description="The network that it is in.")
    address: Text | None = Field(None, description="Its address; chosen by penstock.")


def _peers(value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise expect("latencies by node and peer, such as {a: {b: 5ms}}")
    return value


Peers = Annotated[dict[str, dict[str, Time]], BeforeValidator(_peers)]


class NetworkPart(WireFile):
    """A network and what holds for every interface in it."""

    subnet: Text | None = Field(None, description="Its addresses, such as 10.88.1.0/24.")
    matrix: Peers | None = Field(
        None,
        description="Latency from node to node, in addition to the interfaces' own; names may be "
        "patterns, and the way back is the same unless stated.",
    )
    host: Flag | None = Field(None, description="Whether this host has an address in it.")
    engine: Engine | None = Field(
        None, description="What delays and loses packets; netem where the kernel has it."
    )


class NamedNetworkFile(NetworkPart):
    """A network beside the one called net."""

    name: Text = Field(description="The network's name.")


class MachineFile(Part):
    """Properties common to a virtual node and a host of a platform file."""

    memory: Size | None = Field(None, description="Memory limit, page cache included.")
    memory_soft: Size | None = Field(
        None, description="Memory beyond which it is pressed, but not killed."
    )
    cpus: Scale | None = Field(None, description="Processors that the node may use.")
    cpuset: Cpuset | None = Field(None, description="Which processors, such as 0 or 0-1.")
    cpu_ratio: Ratio | None = Field(None, description="Speed of each, at most 1.")
    image: Text | None = Field(
        None, description="Directory that is its root file system; the host's own, copy on write."
    )
    ssh: Flag | None = Field(None, description="Whether an SSH server runs in it.")
    privileges: list[Privilege] = Field(
        [], description="Capabilities and devices beyond those of every node: SYS_TIME, /dev/fuse."
    )
    tenant: Text | None = Field(
        None, description="Whose it is: dashboards add up what tenants use."
    )
    disks: list[DiskFile] = Field([], description="Its disks, emulated or plain directories.")
    interfaces: list[InterfaceFile] = Field(
        [], description="Its interfaces; one in the network net."
    )


class NodeFile(MachineFile):
    """One node, or several that are alike."""

    name: Text = Field(description="The node's name; with a count NAME-0, NAME-1, …")
    count: Count | None = Field(None, description="How many; without it one that is called NAME.")


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

    metric: Text | None = Field(None, description="A counter of a disk.")
    disk: Text | None = Field(None, description="NODE.DISK whose counter it is.")
    above: float | int | None = Field(None, description="Fires when the counter is above this.")
    below: float | int | None = Field(None, description="Fires when the counter is below this.")
    log: Text | None = Field(None, description="A file that the workload writes.")
    regex: Text | None = Field(None, description="Fires when a line of it fits this.")
    phase: Text | None = Field(None, description="Fires with the mark of this phase.")
    fires: Fires | None = Field(
        None,
        description="every: each line, each mark, each time that the counter comes to be so; once: "
        "the first time only. every.",
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
    """One change at one time."""

    at: Time = Field("0s", description="After the schedule began, or after the mark of `phase`.")
    phase: Text | None = Field(None, description="The phase after whose mark the time counts.")
    when: ConditionFile | None = Field(None, description="Instead: what it waits for.")
    nodes: Patterns = Field(["*"], description="Which nodes: names or patterns; all.")
    disk: Text | None = Field(None, description="The disk that changes.")
    limits: Annotated[LimitsFile, OrMax(), OrTemplate()] | None = Field(
        None, description="Its limits; others stay. max: none of them."
    )
    features: Annotated[FeaturesFile, OrTemplate()] | None = Field(
        None, description="Its features; others stay."
    )
    profile: Text | None = Field(None, description="Its profile.")
    time_scale: Scale | None = Field(None, description="How many times slower than that profile.")
    power_cut: Flag | None = Field(None, description="It loses what was not flushed.")
    network: Text | None = Field(None, description="The network whose interface changes; net.")
    cpus: ScaleOrMax | None = Field(None, description="Processors that the node may use.")
    cpuset: CpusetOrMax | None = Field(None, description="Which processors.")
    cpu_ratio: RatioOrMax | None = Field(None, description="Speed of each.")
    memory: SizeOrMax | None = Field(None, description="Memory limit.")
    memory_soft: SizeOrMax | None = Field(None, description="Memory beyond which it is pressed.")
    node: Churn | None = Field(None, description="What becomes of the node itself.")


class EmulatedPart(Part):
    """Keys common to a study's platform and a platform file, about started resources."""

    networks: list[NamedNetworkFile] = Field([], description="Networks in addition to net.")
    schedule: list[EventFile] = Field([], description="Changes over time.")
    runtime: Runtime | None = Field(None, description="What holds the nodes; auto.")


class SharedStoreFile(Part):
    """A shared store that is put up over the nodes for each run."""

    engine: Text = Field(description="What it is made of: moosefs, cephfs, ….")
    manager: Patterns | None = Field(
        None, description="Nodes of its manager; the first of storage."
    )
    storage: Patterns = Field(["*"], description="Nodes that store; all.")
    clients: Patterns = Field(["*"], description="Nodes that see it; all.")
    mount: Text | None = Field(None, description="Where they see it; /store.")
    chunk: Size | None = Field(None, description="Size of a chunk; the engine's own.")
    stripe: Count | None = Field(None, description="Storage nodes of one file; the engine's own.")
    replicas: Count | None = Field(None, description="Copies of each chunk; the engine's own.")
    placement: Text | None = Field(None, description="Where chunks go; the engine's own.")
    cache: Size | None = Field(None, description="What a client keeps of what it read.")
    prefetch: Count | None = Field(None, description="Chunks that a client reads ahead.")


class PlatformFile(EmulatedPart):
    """The platform of the workload."""

    nodes: list[NodeFile] = Field(min_length=1, description="Nodes; at least one.")
    network: NetworkPart | None = Field(None, description="The network net, in which all are.")
    store: SharedStoreFile | None = Field(None, description="A shared store over the nodes.")
