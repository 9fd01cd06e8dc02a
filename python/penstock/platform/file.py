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

    overhead: Time = Field("0s", description="What does not depend on the size.")
    per_byte: TimePerSize | None = Field(None, description="Time per size, such as 1 ms/MiB.")
    rate: Bandwidth | None = Field(None, description="Instead of per_byte: bytes per time.")


class LinkFile(ImpairmentFile):
    """A host's own link to the network, in both directions."""

    bandwidth: Bandwidth | None = Field(None, description="Of the link, each direction.")
    out: Bandwidth | None = Field(None, description="Outwards, if it differs from bandwidth.")
    in_: Bandwidth | None = Field(
        None, alias="in", description="Inwards, if it differs from bandwidth."
    )
    loopback: Bandwidth | None = Field(None, description="Between programs of one host.")
    latency: Duration | None = Field(
        None, description="Of this link; of a group: added to the network's own."
    )


class NetworkFile(LinkFile):
    """The network: every host's link unless its group says otherwise, and what lies between them."""

    fabric: Bandwidth | None = Field(
        None, description="Of all hosts together; without it the core is no limit."
    )
    rack_uplink: Bandwidth | None = Field(
        None, description="Between a rack and the core, each direction; without it no limit."
    )
    sharing: Literal["fifo", "fair"] = Field(
        "fifo",
        description="How messages share a link: first come first served, or fairly by flow, control "
        "messages first.",
    )
    payload: Payload = Field(
        1.0,
        description="Share of the rates between hosts that carries data: a number, or ethernet "
        "(1448 of 1514 bytes).",
    )
    subnet: Text | None = Field(None, description="Addresses of the nodes put up; chosen.")
    matrix: Peers | None = Field(
        None,
        description="Latency from node to node, in addition to the links' own; names may be "
        "patterns, and the way back is the same unless stated.",
    )
    host: Flag | None = Field(None, description="Whether this host has an address in it.")
    engine: Engine | None = Field(
        None, description="What delays and loses packets; netem where the kernel has it."
    )


class StorageFile(Part):
    """Storage of chunks on a host: seeded service times, a storage profile, or one of the host's disks."""

    read: ServiceFile | None = Field(None, description="Service of one chunk read.")
    write: ServiceFile | None = Field(None, description="Service of one chunk written.")
    servers: int | None = Field(
        None, ge=1, le=65536, description="Requests served at the same time; 1."
    )
    profile: Text | None = Field(
        None, description="Instead: a ready profile, or a JSON file next to the platform."
    )
    disk: Text | None = Field(None, description="Instead: the name of one of the host's disks.")
    time_scale: Factor | None = Field(
        None, description="How many times slower than the profile; 1."
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="Of the profile's draws.")
    capacity: Capacity | None = Field(
        None, description="Space for chunks; default: the disk's size, else unlimited."
    )


class ManagerFile(Part):
    """The metadata manager of a host."""

    service: ServiceFile = Field(description="Service of one request.")
    servers: int = Field(1, ge=1, le=65536, description="Requests served at the same time.")


class ClientFile(Part):
    """Cost of a request on a client itself."""

    service: ServiceFile = Field(
        ServiceFile.model_validate({}), description="Service of one request; none."
    )


class StateFile(Part):
    """One frequency of the processors. What is not said is as at the power's own level."""

    frequency: Frequency = Field(description="By which it is chosen.")
    idle: Watts | None = Field(None, description="Doing nothing.")
    app: Watts | None = Field(None, description="While computing.")
    storage: Watts | None = Field(None, description="While storage works.")
    network: Watts | None = Field(None, description="While sending or receiving.")
    peak: Watts | None = Field(None, description="Most that the host ever draws.")
    speed: Factor = Field(1.0, description="Of computing, in addition to the host's speed.")
    service_speed: Factor = Field(
        1.0, description="Of the services of storage, manager and client."
    )


class PowerFile(Part):
    """Power of a host, in all, in each of its activities."""

    idle: Watts | None = Field(None, description="Doing nothing.")
    app: Watts | None = Field(None, description="While computing; idle if not said.")
    storage: Watts | None = Field(None, description="While storage works; idle if not said.")
    network: Watts | None = Field(None, description="While sending or receiving; idle if not said.")
    peak: Watts | None = Field(None, description="Most that the host ever draws.")
    cap: bool = Field(False, description="Never more than peak, whatever goes on at once.")
    states: list[StateFile] = Field([], description="Frequencies that can be chosen.")
    frequency: Frequency | None = Field(
        None, description="The one of states that is chosen; none: the power's own values."
    )
    proportional: Proportional = Field(
        False, description="Share of the idle power that is drawn only while the host is busy."
    )
    manager: bool = Field(
        False, description="Hosts that are managers only count in the energy as well."
    )


class PriceFile(Part):
    """Price of a host."""

    per_host: PricePerTime = Field(description="Per host and time, such as 0.10 EUR/h.")
    started_hours: bool = Field(False, description="Every started hour is paid in full.")


class HostFile(MachineFile):
    """Properties of a group and of single hosts of it."""

    network: LinkFile | None = Field(None, description="Its link, where it is not the network's.")
    speed: Factor | None = Field(None, description="Of computing; 1 is the workload's own.")
    slots: int | None = Field(None, ge=1, le=65536, description="Tasks at the same time; 1.")
    storage: StorageFile | None = Field(None, description="What stores chunks.")
    manager: ManagerFile | None = Field(None, description="The metadata manager.")
    client: ClientFile | None = Field(None, description="What a client needs for a request.")
    rack: Rack | None = Field(
        None, description="The rack, or a list of racks over which the group is spread; 0."
    )
    host: PhysicalHosts | None = Field(
        None,
        description="Physical hosts that may carry it: a name, an address, or a pattern such as rack1-*; "
        "only for a cluster on several hosts.",
    )
    price: PriceFile | None = Field(None, description="Where it is not the platform's.")
    power: PowerFile | None = Field(None, description="Where it is not the platform's.")


class GroupFile(HostFile):
    """Hosts that are alike."""

    group: Name = Field(description="The group's name; its hosts are NAME-0, NAME-1, …")
    count: int = Field(ge=1, le=100_000, description="How many hosts.")
    roles: list[Role] = Field(
        [], description="client, storage, manager: what a prediction has them do."
    )
    except_: dict[str, HostFile] = Field(
        {}, alias="except", description="What differs on single hosts: number or range → values."
    )


class StoreFile(Part):
    """Layout and data movement of the object store, and its engine."""

    engine: Text | None = Field(
        None, description="What `penstock store up` puts up; without like, its values hold."
    )
    mount: Text | None = Field(
        None, description="Where nodes see the store that is put up; /store."
    )
    keep: list[Text] = Field(
        [], description="Files, as patterns, that must be staged out before the store goes down."
    )
    like: Annotated[str, WithJsonSchema({"enum": list(STORES)})] | None = Field(
        None, description="A ready store whose values hold where none is given."
    )
    chunk: PositiveSize | None = Field(None, description="Size of a chunk; 1MiB.")
    stripe: Stripe | None = Field(None, description="Storage hosts of one file; all.")
    replicas: int | None = Field(None, ge=1, le=65535, description="Copies of each chunk; 1.")
    replication: Literal["chain", "parallel", "client"] | None = Field(
        None, description="Who sends the copies; chain."
    )
    forward: Literal["chunk", "frame"] | None = Field(
        None, description="Copies are forwarded chunk by chunk or frame by frame; chunk."
    )
    placement: (
        Literal["striped", "round_robin", "local", "collocate", "scatter", "random", "balanced"]
        | None
    ) = Field(None, description="Where chunks go unless a file's hints say otherwise; striped.")
    shuffle: Literal["fresh", "constant", "none"] | None = Field(
        None, description="Order of the storage hosts of a stripe; fresh."
    )
    round_robin: Literal["restart", "continue"] | None = Field(
        None,
        description="Where a round robin begins: at the first storage host each time, or after "
        "the last host of the previous file; restart.",
    )
    placement_unit: PlacementUnit | None = Field(
        None,
        description="Bytes of a file that are placed together on one host: a size, file, or request "
        "(each request is placed by itself); request.",
    )
    window: Window | None = Field(
        None, description="Chunk requests of one operation under way at once; unlimited."
    )
    write_contention: Duration | None = Field(
        None,
        description="Additional time of a write for each other task that writes at the same time; 0s.",
    )
    allocation: Literal["manager", "none"] | None = Field(
        None, description="Writes and opens ask the manager, or place by hash; manager."
    )
    read_replica: Literal["local_first", "random"] | None = Field(
        None, description="Which copy is read; local_first."
    )


class ProtocolFile(Part):
    """Messages on the network."""

    frame: PositiveSize = Field("64KiB", description="Most bytes that are sent at once.")
    control: PlainSize = Field("1KiB", description="Size of a control message.")
    merge_frames: bool = Field(True, description="Frames of one message make one event.")
    latency: Duration = Field(
        "0s",
        description="Of a message between programs, in addition to the latency of the network.",
    )


class SchedulerFile(Part):
    """Choice of the host that runs a task."""

    kind: Literal["workqueue", "data_location"] = Field(
        "workqueue", description="The next idle host, or the one that holds the data."
    )
    wait: Wait = Field("0s", description="How long a task waits for the host that holds its data.")
    inputs: Literal["read", "files"] = Field(
        "read",
        description="What of a task's inputs counts for data_location: the bytes that it reads, or "
        "all of each file that it reads from.",
    )
    fill: Literal["spread", "pack"] = Field(
        "spread",
        description="Which of several hosts with a free slot: the one that runs the fewest tasks; the first.",
    )


class LaunchFile(Part):
    """Cost of starting a task."""

    overhead: Time = Field("0s", description="Of every task, unless the workload says.")
    stagger: Time = Field(
        "0s", description="How much later than the run a task without predecessors starts."
    )
    tag: Time = Field("0s", description="For each file with hints that the task writes.")
    locate: Time = Field(
        "0s",
        description="With data_location: finding what an earlier task wrote, for a task that reads it.",
    )


class PreprocessFile(Part):
    """Processing of operations before they reach the store."""

    aggregate: bool = Field(True, description="Operations that continue each other become one.")
    cache: PlainSize = Field("0B", description="Chunks that a client keeps.")
    prefetch: int = Field(0, ge=0, le=2**31, description="Chunks that a client reads ahead.")


class AssumedFile(Part):
    """A value that was not measured, and how far off it may be."""

    path: Text = Field(description="Which value, such as hosts.nodes.storage.write.")
    low: Any = Field(None, description="Least that it may be.")
    high: Any = Field(None, description="Most that it may be.")
    within: Text | None = Field(None, description="Instead: how far off at most, such as 50%.")
    note: Text | None = Field(None, description="Why this value.")


class PlatformFile(EmulatedPart):
    """A platform: hosts, what serves on them, what joins them."""

    penstock_platform: int = Field(ge=1, le=1, description="Version of this format: 1.")
    name: Annotated[Text, AfterValidator(_name)] = Field(description="The platform's name.")
    description: Text | None = Field(None, description="What it is, in a sentence or two.")
    hosts: list[GroupFile] = Field(min_length=1, description="Groups of hosts; at least one.")
    network: NetworkFile = Field(
        NetworkFile.model_validate({}), description="What joins the hosts."
    )
    store: StoreFile = Field(
        StoreFile.model_validate({}), description="How data are laid out and moved."
    )
    protocol: ProtocolFile = Field(
        ProtocolFile.model_validate({}), description="Messages on the network."
    )
    scheduler: SchedulerFile = Field(
        SchedulerFile.model_validate({}), description="Which host runs a task."
    )
    launch: LaunchFile = Field(
        LaunchFile.model_validate({}), description="What starting a task costs."
    )
    preprocess: PreprocessFile = Field(
        PreprocessFile.model_validate({}), description="What happens before the store."
    )
    power: PowerFile | None = Field(None, description="What a host draws.")
    price: PriceFile | None = Field(None, description="What a host costs.")
    facts: dict[str, Any] = Field(
        {}, description="What else is known of the hosts; only the verdict of a prediction uses it."
    )
    assumed: list[AssumedFile] = Field([], description="Values that were not measured.")
