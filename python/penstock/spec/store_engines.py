"""Capabilities of the engines of shared stores: one table, read by the engines and by predictions.

An engine's row has its support of each parameter of a store and of each hint, and the values that it refuses
although it supports the parameter or the hint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.plugins import STORE_ENGINES
from penstock.spec.store import PARAMETERS, Support, emulated, native, refused

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


@dataclass(frozen=True)
class Circumstances:
    """Properties of a store on which the support of a value may depend.

    `storage`: names of its storage nodes; `writers`: nodes that may write the file; `copies`, `chunk_bytes`:
    of the file before the value is applied, by default the store's; `placed`: a hint puts all chunks of the
    file on one node.
    """

    storage: tuple[str, ...]
    writers: tuple[str, ...] = ()
    copies: int = 1
    chunk_bytes: int = MIB
    placed: bool = False


#: reason why a value is refused, empty if it is supported
Limit = Callable[[Any, Circumstances], str]


@dataclass(frozen=True)
class ClientCache:
    """Cache of an engine's client, and its read-ahead without the parameter `prefetch`.

    `periods`: read-ahead in units of the bytes of a file that lie together on one node.
    """

    least_bytes: int
    default_bytes: int
    periods: int

    def cache_bytes(self, parameter: int | None) -> int:
        """Size of the cache with that value of the parameter `cache`; None: undeclared."""
        return self.default_bytes if parameter is None else max(self.least_bytes, parameter)


def client_sizes(
    client: ClientCache, parameters: Mapping[str, Any], chunk_bytes: int
) -> tuple[int, int]:
    """Cache and read-ahead of a client that penstock mounts [bytes].

    Data that are read ahead replace others in the cache. If they exceed it, they replace each other before
    they are read, and are fetched again; so at most half of the cache is read ahead.
    """
    cache = client.cache_bytes(parameters.get("cache"))
    ahead = cache // 2
    if "prefetch" in parameters:
        ahead = min(ahead, max(1, parameters["prefetch"]) * chunk_bytes)
    return cache, ahead


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of an engine.

    `support`: by parameter and by hint (`DP` with its kind: `DP local`). A row of one value, such as
    `placement random`, takes precedence over the parameter's own. `limits`: by the same keys.
    `chunk_bytes`: size of a chunk by default. `writers`: predictions of clients that write at once were
    compared with runs. `client`: None if the client caches nothing, or if its read-ahead is always smaller
    than its cache.
    """

    support: Mapping[str, Support]
    limits: Mapping[str, Limit] = field(default_factory=dict)
    chunk_bytes: int = MIB
    most_storage: int | None = None
    writers: bool = False
    client: ClientCache | None = None

    def of(self, key: str, value: Any, circumstances: Circumstances) -> Support:
        """Support of a parameter or a hint with this value."""
        own = self.support.get(f"{key} {value}", self.support.get(key))
        if own is None:
            return refused("it has no equivalent")
        if own.how != "refused" and (reason := self.limit(key, value, circumstances)):
            return refused(reason)
        return own

    def limit(self, key: str, value: Any, circumstances: Circumstances) -> str:
        """Reason why the engine refuses this value; empty for values of a parameter without limits."""
        limit = self.limits.get(key)
        return "" if limit is None else limit(value, circumstances)

    def excess(self, storage_nodes: int) -> str:
        """Reason why the engine refuses that many storage nodes; empty if it supports them."""
        if self.most_storage is None or storage_nodes <= self.most_storage:
            return ""
        expected = f"at most {self.most_storage} (labels are letters)"
        return f"found {storage_nodes} storage nodes; expected {expected}"

    def refusal(self, parameters: Mapping[str, Any], circumstances: Circumstances) -> str:
        """The first value that no store of the engine has, with the expected ones; empty if none."""
        if excess := self.excess(len(circumstances.storage)):
            return excess
        for key in PARAMETERS:
            if key in parameters and (reason := self.limit(key, parameters[key], circumstances)):
                return f"store.{key}: {reason}"
        return ""


@dataclass(frozen=True)
class Sizes:
    """Sizes of chunks that an engine supports; `expected` describes them."""

    least_bytes: int
    most_bytes: int
    step_bytes: int
    expected: str

    def refusal(self, size_bytes: int) -> str:
        """Reason why a size is refused; empty if it is supported."""
        valid = self.least_bytes <= size_bytes <= self.most_bytes
        if valid and size_bytes % self.step_bytes == 0:
            return ""
        return f"found {size_bytes} bytes; expected {self.expected}"


#: CEPH_MIN_STRIPE_UNIT, and osd_max_object_size as configured
CEPH_SIZES = Sizes(64 * KIB, GIB, 64 * KIB, "a multiple of 64 KiB up to 1024 MiB")
#: limits of the shard translator's option
GLUSTER_SIZES = Sizes(4 * MIB, 4 * TIB, 1, "4 MiB to 4 TiB")
#: dfs.namenode.fs-limits.min-block-size as configured, dfs.bytes-per-checksum
HDFS_SIZES = Sizes(64 * KIB, 2**63 - 1, 512, "a multiple of 512 bytes, 65536 or more")


def _only(*values: str, why: str = "") -> Limit:
    """Limit of a parameter with few values."""

    def limit(value: Any, _: Circumstances) -> str:
        expected = f"{' or '.join(values)}{why}"
        return "" if value in values else f"found {value}; expected {expected}"

    return limit


def _size(sizes: Sizes) -> Limit:
    return lambda value, _: sizes.refusal(value)


def _together(sizes: Sizes) -> Limit:
    """Limit of `DP scatter`, whose chunks form one chunk of the engine."""
    return lambda chunks, at: sizes.refusal(chunks * at.chunk_bytes)


def _copies(value: int, at: Circumstances) -> str:
    excess = value > len(at.storage)
    return f"{value} copies on {len(at.storage)} storage nodes" if excess else ""


def _own_node(_: Any, at: Circumstances) -> str:
    stores = not set(at.storage).isdisjoint(at.writers)
    return "" if stores else f"{', '.join(at.writers) or 'no client'} stores nothing"


def _storage_node(host: str, at: Circumstances) -> str:
    return "" if host in at.storage else f"{host} is no storage node"


_PLACES: dict[str, Limit] = {"DP local": _own_node, "DP host": _storage_node}


def _moosefs() -> Capabilities:
    """According to its manual pages, verified by the conformance suite."""
    fixed = refused("chunks are as large as the file up to 64 MiB, and that is fixed")
    one_server = refused("each server of a chunk has all of it")
    return Capabilities(
        {
            "chunk": fixed,
            "stripe": one_server,
            "replicas": native("the goal of the root directory (mfssetgoal)"),
            "replication": native("always a chain from server to server"),
            "placement": native(
                "always by free space and load of the servers: balanced, and in turns"
            ),
            "cache": emulated("an option of each mount, not of a file"),
            "prefetch": emulated("an option of each mount, not of a file"),
            "Replication": native("the file's goal (mfssetgoal); what was written is copied later"),
            "ChunkSize": fixed,
            "StripeWidth": one_server,
            "CacheSize": refused("the cache is an option of the mount, not of a file"),
            "deduplication": refused("MooseFS does not deduplicate chunks"),
            "setfattr": emulated(
                "an empty file's tags are taken up when it is next opened (store up --watch)"
            ),
            "DP local": emulated("a storage class with the label of the writer's node"),
            "DP collocation": emulated("a storage class with the label of the group's node"),
            "DP host": emulated("a storage class with the label of that node"),
            "DP scatter": refused(
                "chunks of 64 MiB are placed one by one; a row of several cannot be placed together"
            ),
            "DP scatter 1": native("as it is"),
        },
        {
            "replication": _only("chain", why=", server to server"),
            "placement": _only("balanced", "round_robin", why=", by free space and load"),
            "Replication": _copies,
            **_PLACES,
        },
        chunk_bytes=64 * MIB,
        most_storage=26,
        writers=True,
    )


def _ceph_width(value: int, at: Circumstances) -> str:
    if value > len(at.storage):
        return f"{value} of {len(at.storage)} storage nodes"
    if at.placed and value > 1:
        return "its chunks go to one node (DP)"
    if not at.placed and at.copies > value:
        return f"{at.copies} copies on {value} storage nodes"
    return ""


def _cephfs() -> Capabilities:
    """According to the documentation of file layouts and pools."""
    return Capabilities(
        {
            "chunk": native("stripe_unit and object_size of the root's layout, in steps of 64 KiB"),
            "stripe": native(
                "stripe_count of the root's layout; fewer nodes where objects fall together"
            ),
            "replicas": native("the size of the root's pool"),
            "replication": native("always parallel: the primary OSD sends to all others at once"),
            "placement": refused(
                "always random, by the hash of an object's name; a file has its directory's pool"
            ),
            "placement random": native("by the hash of an object's name"),
            "cache": emulated("client_oc_size of each mount, not of a file"),
            "prefetch": emulated("client_readahead_max_bytes of each mount, not of a file"),
            "Replication": emulated("a pool of that size; only while the file is empty"),
            "ChunkSize": native("stripe_unit and object_size of the layout, in steps of 64 KiB"),
            "StripeWidth": emulated("a pool over that many nodes, on which objects fall by hash"),
            "CacheSize": refused("the cache is an option of the mount, not of a file"),
            "deduplication": refused("CephFS does not deduplicate chunks"),
            "setfattr": emulated(
                "an empty file's tags are taken up when it is next opened (store up --watch)"
            ),
            "DP local": emulated("a pool whose first copy is on the writer's node"),
            "DP collocation": emulated("a pool whose first copy is on the group's node"),
            "DP host": emulated("a pool whose first copy is on that node"),
            "DP scatter": native("an object_size of that many chunks, stripe_count 1"),
        },
        {
            "chunk": _size(CEPH_SIZES),
            "replication": _only("parallel", why=" (the primary OSD sends all copies)"),
            "ChunkSize": _size(CEPH_SIZES),
            "Replication": _copies,
            "StripeWidth": _ceph_width,
            "DP scatter": _together(CEPH_SIZES),
            **_PLACES,
        },
        chunk_bytes=4 * MIB,
        # client_oc_size; client_readahead_max_periods
        client=ClientCache(MIB, 64 * MIB, 4),
    )


def _gluster_stripe(value: Any, at: Circumstances) -> str:
    nodes = len(at.storage)
    if value in ("all", 1, nodes):
        return ""
    return f"found {value}; expected 1 or all of {nodes} storage nodes"


def _glusterfs() -> Capabilities:
    """Capabilities of one volume."""
    sharded = "the shard size with which the file is created, of 4 MiB or more"
    placed = "the file is created in the replica set of {}, as one chunk"
    return Capabilities(
        {
            "chunk": native(
                "the volume's shard size (features.shard-block-size), of 4 MiB or more"
            ),
            "stripe": emulated(
                "all: shards go by the hash of their names; 1: files are not sharded", partly=True
            ),
            "replicas": native("replica sets of the volume"),
            "replication": native("always the client, to all copies at once"),
            "placement": native("by the hash of names: striped and random are the same"),
            "cache": emulated("performance.cache-size of every client, not of a file"),
            "prefetch": refused("a client reads at most 2 MiB ahead, which is less than a chunk"),
            "Replication": native("the number that the volume has; else refused", partly=True),
            "ChunkSize": emulated(sharded, partly=True),
            "StripeWidth": emulated(
                "1: the file is not sharded; else refused, because placement by hash guarantees no "
                "number of nodes",
                partly=True,
            ),
            "CacheSize": refused("the cache is the volume's, not of a file"),
            "deduplication": refused("GlusterFS does not deduplicate shards"),
            "setfattr": refused(
                "tags replace the file, and a program that opens it already has the previous one"
            ),
            "DP local": emulated(placed.format("the writer's node")),
            "DP host": emulated(placed.format("that node")),
            "DP collocation": emulated(placed.format("the group")),
            "DP scatter": emulated(f"chunks that stay together are one shard: {sharded}"),
        },
        {
            "chunk": _size(GLUSTER_SIZES),
            "stripe": _gluster_stripe,
            "replication": _only("client", why=", which sends all copies"),
            "placement": _only("striped", "random", why=", both by hash"),
            "ChunkSize": _size(GLUSTER_SIZES),
            "StripeWidth": lambda value, _: (
                "" if value == 1 else "shards go by the hash of their names"
            ),
            "Replication": lambda value, at: (
                "" if value == at.copies else f"the volume has copies: {at.copies}"
            ),
            "DP scatter": _together(replace(GLUSTER_SIZES, least_bytes=1)),
            **_PLACES,
        },
        chunk_bytes=64 * MIB,
    )


def _hdfs() -> Capabilities:
    """The declared support, and `mount`."""
    block = "the block size with which the file is created, a multiple of 512 B from 64 KiB"
    one_node = refused(
        "each node of a block has all of it, and the first copy is on the writer's node"
    )
    return Capabilities(
        {
            "mount": refused(
                "fuse-dfs is not packaged, its NFS gateway needs an NFS client in the kernel"
            ),
            "chunk": native("the block size (dfs.blocksize), of 64 KiB or more"),
            "stripe": one_node,
            "replicas": native("dfs.replication"),
            "replication": native("always a chain from data node to data node"),
            "placement": native("local: the first copy with the writer, the others anywhere"),
            "cache": refused("a client caches nothing that it reads"),
            "prefetch": emulated("what data nodes read ahead (dfs.datanode.readahead.bytes)"),
            "Replication": native("the file's own; what was written is copied later"),
            "ChunkSize": native(block, partly=True),
            "StripeWidth": one_node,
            "CacheSize": refused("a client caches nothing that it reads"),
            "deduplication": refused("HDFS does not deduplicate blocks"),
            "setfattr": refused("no node mounts it, so no program sets attributes there"),
            "DP host": refused("a block goes to the writer's data node first, else anywhere"),
            "DP local": native("the first copy goes to the writer's data node"),
            "DP collocation": emulated(
                "written through the data node of the group, which keeps the first copy"
            ),
            "DP scatter": native(f"chunks that stay together are one block: {block}"),
        },
        {
            "chunk": _size(HDFS_SIZES),
            "replication": _only("chain"),
            "placement": _only("local"),
            "Replication": _copies,
            "ChunkSize": _size(HDFS_SIZES),
            "DP scatter": _together(HDFS_SIZES),
            "DP local": _own_node,
        },
        chunk_bytes=128 * MIB,
    )


def _directory() -> Capabilities:
    """Tags are stored and returned, without effect."""
    nothing = refused("one directory of one host knows no chunks, copies or nodes")
    hints = ("Replication", "ChunkSize", "StripeWidth", "CacheSize", "deduplication")
    kinds = (f"DP {kind}" for kind in ("local", "collocation", "scatter", "host"))
    watched = emulated("tags are looked at when a file is opened (store up --watch)")
    return Capabilities(
        {**dict.fromkeys((*PARAMETERS, *hints, *kinds), nothing), "setfattr": watched}
    )


#: by name of the engine
CAPABILITIES: dict[str, Capabilities] = {
    "moosefs": _moosefs(),
    "glusterfs": _glusterfs(),
    "hdfs": _hdfs(),
    "cephfs": _cephfs(),
    "directory": _directory(),
}


def capabilities(engine: str) -> Capabilities | None:
    """Capabilities of an engine; of an engine of another package its declared support; None if unknown."""
    built_in = CAPABILITIES.get(engine)
    if built_in is None and engine in STORE_ENGINES:
        return Capabilities(STORE_ENGINES.load(engine)().support())
    return built_in
