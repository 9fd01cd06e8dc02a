"""The platform file: models that mirror the YAML, key by key, and the source of the JSON Schema."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from penstock.platform.fields import (
    Bandwidth,
    Capacity,
    Duration,
    Factor,
    Frequency,
    Payload,
    PlacementUnit,
    PlainSize,
    PositiveSize,
    PricePerTime,
    Proportional,
    Rack,
    Stripe,
    Time,
    TimePerSize,
    Wait,
    Watts,
    Window,
)
from penstock.platform.stores import STORES
from penstock.spec.fields import expect
from penstock.spec.machine import EmulatedPart, Engine, ImpairmentFile, MachineFile, Peers
from penstock.spec.quantities import Flag, Part, Text


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", text):
        raise expect("a name of letters, digits, '_' and '-' (at most 32), such as nodes")
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9*?\[\]!._:-]{1,255}", text):
        raise expect("a physical host, or a pattern such as rack1-*")
    return text


Name = Annotated[Text, AfterValidator(_name)]
PhysicalHosts = Annotated[Text, AfterValidator(_host)]
Role = Literal["client", "storage", "manager"]


class ServiceFile(Part):
    """Time of one request on one server: overhead + bytes × per_byte (or bytes / rate)."""

    overhead: Time = Field("0s", description="Time of a request that does not depend on its size.")
    per_byte: TimePerSize | None = Field(None, description="Time per size, such as 1 ms/MiB.")
    rate: Bandwidth | None = Field(None, description="Instead of per_byte: rate.")


class LinkFile(ImpairmentFile):
    """A host's own link to the network, in both directions."""

    bandwidth: Bandwidth | None = Field(None, description="Rate of the link in each direction.")
    out: Bandwidth | None = Field(
        None, description="Rate of sending, if it differs from bandwidth."
    )
    in_: Bandwidth | None = Field(
        None, alias="in", description="Rate of receiving, if it differs from bandwidth."
    )
    loopback: Bandwidth | None = Field(None, description="Rate between programs of one host.")
    latency: Duration | None = Field(
        None, description="Latency of this link; that of a group is added to the network's."
    )


class NetworkFile(LinkFile):
    """The network: links of the hosts, unless their group overrides them, and the core between them."""

    fabric: Bandwidth | None = Field(
        None, description="Rate of the core for all hosts together; no limit by default."
    )
    rack_uplink: Bandwidth | None = Field(
        None, description="Rate between a rack and the core in each direction; no limit by default."
    )
    sharing: Literal["fifo", "fair"] = Field(
        "fifo",
        description="Sharing of a link: fifo, first come first served; fair, by flow, with control "
        "messages first.",
    )
    payload: Payload = Field(
        1.0,
        description="Share of the rates between hosts that carries data: a number, or ethernet (1448 "
        "of 1514 bytes).",
    )
    subnet: Text | None = Field(None, description="Addresses of started nodes; chosen by default.")
    matrix: Peers | None = Field(
        None,
        description="Latency between nodes, in addition to that of the links; names may be patterns. "
        "The reverse direction is the same unless stated.",
    )
    host: Flag | None = Field(None, description="Give this host an address in the network.")
    engine: Engine | None = Field(
        None, description="Program that delays and loses packets; netem if the kernel has it."
    )


class StorageFile(Part):
    """Storage of chunks on a host: seeded service times, a storage profile, or one of the host's disks."""

    read: ServiceFile | None = Field(None, description="Service time of reading one chunk.")
    write: ServiceFile | None = Field(None, description="Service time of writing one chunk.")
    servers: int | None = Field(
        None, ge=1, le=65536, description="Number of requests served at the same time; 1."
    )
    profile: Text | None = Field(
        None,
        description="Instead of service times: a ready profile, or a JSON file next to the platform.",
    )
    disk: Text | None = Field(
        None, description="Instead of service times: the name of one of the host's disks."
    )
    time_scale: Factor | None = Field(
        None, description="The disk is this many times slower than the profile; 1."
    )
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="Seed of the profile's random numbers."
    )
    capacity: Capacity | None = Field(
        None, description="Space for chunks; by default the size of the disk, else unlimited."
    )


class ManagerFile(Part):
    """The metadata manager of a host."""

    service: ServiceFile = Field(description="Service time of one request.")
    servers: int = Field(
        1, ge=1, le=65536, description="Number of requests served at the same time."
    )


class ClientFile(Part):
    """Cost of a request on a client itself."""

    service: ServiceFile = Field(
        ServiceFile.model_validate({}), description="Service time of one request; none."
    )


class StateFile(Part):
    """A frequency of the processors. Absent values are those of the power itself."""

    frequency: Frequency = Field(description="Name of the state, for power.frequency.")
    idle: Watts | None = Field(None, description="Power of an idle host.")
    app: Watts | None = Field(None, description="Power while computing.")
    storage: Watts | None = Field(None, description="Power while the storage works.")
    network: Watts | None = Field(None, description="Power while sending or receiving.")
    peak: Watts | None = Field(None, description="Largest power of the host.")
    speed: Factor = Field(1.0, description="Speed of computing, multiplied by the host's speed.")
    service_speed: Factor = Field(
        1.0, description="Speed of the services of storage, manager and client."
    )


class PowerFile(Part):
    """Power of a host and of each of its activities."""

    idle: Watts | None = Field(None, description="Power of an idle host.")
    app: Watts | None = Field(
        None, description="Power while computing; that of an idle host by default."
    )
    storage: Watts | None = Field(
        None, description="Power while the storage works; that of an idle host by default."
    )
    network: Watts | None = Field(
        None, description="Power while sending or receiving; that of an idle host by default."
    )
    peak: Watts | None = Field(None, description="Largest power of the host.")
    cap: bool = Field(False, description="Limit the sum of concurrent activities to peak.")
    states: list[StateFile] = Field([], description="Frequencies that can be selected.")
    frequency: Frequency | None = Field(
        None, description="Selected state; none: the values of power itself."
    )
    proportional: Proportional = Field(
        False, description="Share of the idle power that is used only while the host is busy."
    )
    manager: bool = Field(False, description="Include hosts that are managers only in the energy.")


class PriceFile(Part):
    """Price of a host."""

    per_host: PricePerTime = Field(description="Price per host and time, such as 0.10 EUR/h.")
    started_hours: bool = Field(False, description="Charge every started hour in full.")


class HostFile(MachineFile):
    """Properties of a group and of single hosts of it."""

    network: LinkFile | None = Field(
        None, description="Link of the host; that of the network by default."
    )
    speed: Factor | None = Field(
        None, description="Speed of computing relative to the workload's times; 1."
    )
    slots: int | None = Field(None, ge=1, le=65536, description="Number of concurrent tasks; 1.")
    storage: StorageFile | None = Field(None, description="Storage of chunks.")
    manager: ManagerFile | None = Field(None, description="Metadata manager.")
    client: ClientFile | None = Field(None, description="Time that a client needs for a request.")
    rack: Rack | None = Field(
        None, description="Rack, or a list of racks over which the group is spread; 0."
    )
    host: PhysicalHosts | None = Field(
        None,
        description="Physical hosts that may run it: a name, an address, or a pattern such as "
        "rack1-*; only for a cluster on several hosts.",
    )
    price: PriceFile | None = Field(
        None, description="Price of these hosts; that of the platform by default."
    )
    power: PowerFile | None = Field(
        None, description="Power of these hosts; that of the platform by default."
    )


class GroupFile(HostFile):
    """A group of identical hosts."""

    group: Name = Field(description="Name of the group; its hosts are NAME-0, NAME-1, …")
    count: int = Field(ge=1, le=100_000, description="Number of hosts.")
    roles: list[Role] = Field([], description="Roles in a prediction: client, storage, manager.")
    except_: dict[str, HostFile] = Field(
        {}, alias="except", description="Values of single hosts: number or range → values."
    )


class StoreFile(Part):
    """Layout and data movement of the object store, and its engine."""

    engine: Text | None = Field(
        None, description="Engine that `penstock store up` starts; without like, its values apply."
    )
    mount: Text | None = Field(
        None, description="Mount point of the started store on the nodes; /store."
    )
    keep: list[Text] = Field(
        [], description="Patterns of files that must be staged out before the store is stopped."
    )
    like: Annotated[str, WithJsonSchema({"enum": list(STORES)})] | None = Field(
        None, description="Ready store that gives the default values."
    )
    chunk: PositiveSize | None = Field(None, description="Size of a chunk; 1MiB.")
    stripe: Stripe | None = Field(None, description="Number of storage hosts of one file; all.")
    replicas: int | None = Field(
        None, ge=1, le=65535, description="Number of copies of each chunk; 1."
    )
    replication: Literal["chain", "parallel", "client"] | None = Field(
        None, description="Sender of the copies; chain."
    )
    forward: Literal["chunk", "frame"] | None = Field(
        None, description="Forward copies chunk by chunk or frame by frame; chunk."
    )
    placement: (
        Literal["striped", "round_robin", "local", "collocate", "scatter", "random", "balanced"]
        | None
    ) = Field(None, description="Placement of chunks without hints; striped.")
    shuffle: Literal["fresh", "constant", "none"] | None = Field(
        None, description="Order of the storage hosts of a stripe; fresh."
    )
    round_robin: Literal["restart", "continue"] | None = Field(
        None,
        description="Start of a round robin: the first storage host each time (restart), or the host "
        "after the last one of the previous file; restart.",
    )
    placement_unit: PlacementUnit | None = Field(
        None,
        description="Bytes of a file that are placed together on one host: a size, file, or request "
        "(each request is placed separately); request.",
    )
    window: Window | None = Field(
        None, description="Number of outstanding chunk requests of one operation; unlimited."
    )
    write_contention: Duration | None = Field(
        None,
        description="Additional time of a write for each other task that writes at the same time; 0s.",
    )
    allocation: Literal["manager", "none"] | None = Field(
        None,
        description="Locate files for writes and opens by a request to the manager, or by hash; "
        "manager.",
    )
    read_replica: Literal["local_first", "random"] | None = Field(
        None, description="Copy that is read; local_first."
    )


class ProtocolFile(Part):
    """Messages on the network."""

    frame: PositiveSize = Field("64KiB", description="Largest number of bytes sent at once.")
    control: PlainSize = Field("1KiB", description="Size of a control message.")
    merge_frames: bool = Field(True, description="Merge the frames of a message to one event.")
    latency: Duration = Field(
        "0s",
        description="Time of a message between programs, in addition to the latency of the network.",
    )


class SchedulerFile(Part):
    """Choice of the host that runs a task."""

    kind: Literal["workqueue", "data_location"] = Field(
        "workqueue", description="Host of a task: the next idle one, or the one with its data."
    )
    wait: Wait = Field("0s", description="Time that a task waits for the host with its data.")
    inputs: Literal["read", "files"] = Field(
        "read",
        description="Data that count for data_location: the bytes that the task reads, or all of each"
        " file that it reads from.",
    )
    fill: Literal["spread", "pack"] = Field(
        "spread",
        description="Choice among hosts with a free slot: the one with the fewest tasks (spread), or "
        "the first one (pack).",
    )


class LaunchFile(Part):
    """Cost of starting a task."""

    overhead: Time = Field(
        "0s", description="Time to start each task, unless the workload states it."
    )
    stagger: Time = Field(
        "0s", description="Delay of tasks without predecessors after the start of the run."
    )
    tag: Time = Field("0s", description="Time for each file with hints that the task writes.")
    locate: Time = Field(
        "0s",
        description="With data_location: time to locate the output of an earlier task, for each task "
        "that reads it.",
    )


class PreprocessFile(Part):
    """Processing of operations before they reach the store."""

    aggregate: bool = Field(True, description="Merge consecutive operations.")
    cache: PlainSize = Field("0B", description="Size of a client's cache of chunks.")
    prefetch: int = Field(
        0, ge=0, le=2**31, description="Number of chunks that a client reads ahead."
    )


class AssumedFile(Part):
    """A value that was not measured, and its possible range."""

    path: Text = Field(description="Key of the value, such as hosts.nodes.storage.write.")
    low: Any = Field(None, description="Smallest possible value.")
    high: Any = Field(None, description="Largest possible value.")
    within: Text | None = Field(
        None, description="Instead of low and high: largest deviation, such as 50%."
    )
    note: Text | None = Field(None, description="Reason for the value.")


class PlatformFile(EmulatedPart):
    """A platform: hosts, their services, and their network."""

    penstock_platform: int = Field(ge=1, le=1, description="Version of this format: 1.")
    name: Annotated[Text, AfterValidator(_name)] = Field(description="Name of the platform.")
    description: Text | None = Field(None, description="Description in a sentence or two.")
    hosts: list[GroupFile] = Field(min_length=1, description="Groups of hosts; at least one.")
    network: NetworkFile = Field(
        NetworkFile.model_validate({}), description="Network between the hosts."
    )
    store: StoreFile = Field(
        StoreFile.model_validate({}), description="Layout and transfer of data."
    )
    protocol: ProtocolFile = Field(
        ProtocolFile.model_validate({}), description="Messages on the network."
    )
    scheduler: SchedulerFile = Field(
        SchedulerFile.model_validate({}), description="Choice of the host of each task."
    )
    launch: LaunchFile = Field(
        LaunchFile.model_validate({}), description="Costs of starting a task."
    )
    preprocess: PreprocessFile = Field(
        PreprocessFile.model_validate({}), description="Steps before the store."
    )
    power: PowerFile | None = Field(None, description="Power of the hosts.")
    price: PriceFile | None = Field(None, description="Price of the hosts.")
    facts: dict[str, Any] = Field(
        {}, description="Further facts about the hosts, used only for the verdict on a prediction."
    )
    assumed: list[AssumedFile] = Field([], description="Values that were not measured.")
