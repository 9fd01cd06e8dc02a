"""Ready stores of platform files by name: defaults of `store: {like: NAME}`."""

from __future__ import annotations

from typing import Any

#: keys of the platform file; `mosastore` has the defaults of the format. Sources of the values: mosastore:
#: Costa 2014; hdfs: dfs.blocksize, dfs.replication and the client's packet of 64 KiB (hdfs-default.xml);
#: moosefs: 64 MiB of a file on one server, goal 2 (mfsmaster manual); they pass network and storage block by
#: block, servers are assigned evenly (docs/adr/0059); gluster: whole files placed by hash, the client writes
#: every replica (replica 3, administrator guide); cephfs: objects of 4 MiB, pool size 3, the primary writes
#: the others (file layouts, architecture); its window is fitted to recorded runs (docs/adr/0102).
STORES: dict[str, dict[str, Any]] = {
    "mosastore": {
        "chunk": "1MiB",
        "stripe": "all",
        "replicas": 1,
        "replication": "chain",
        "forward": "chunk",
        "placement": "striped",
        "shuffle": "fresh",
        "round_robin": "restart",
        "placement_unit": "request",
        "window": "unlimited",
        "write_contention": "0s",
        "allocation": "manager",
        "read_replica": "local_first",
    },
    "hdfs": {
        "chunk": "128MiB",
        "stripe": "all",
        "replicas": 3,
        "replication": "chain",
        "forward": "frame",
        "placement": "local",
        "shuffle": "fresh",
        "round_robin": "restart",
        "placement_unit": "request",
        "window": 1,
        "write_contention": "0s",
        "allocation": "manager",
        "read_replica": "local_first",
    },
    "moosefs": {
        "chunk": "256KiB",
        "stripe": 1,
        "replicas": 2,
        "replication": "chain",
        "forward": "frame",
        "placement": "balanced",
        "shuffle": "fresh",
        "round_robin": "restart",
        "placement_unit": "64MiB",
        "window": "unlimited",
        "write_contention": "0s",
        "allocation": "manager",
        "read_replica": "local_first",
    },
    "gluster": {
        "chunk": "128KiB",
        "stripe": 1,
        "replicas": 3,
        "replication": "client",
        "forward": "chunk",
        "placement": "striped",
        "shuffle": "fresh",
        "round_robin": "restart",
        "placement_unit": "file",
        "window": "unlimited",
        "write_contention": "0s",
        "allocation": "none",
        "read_replica": "local_first",
    },
    "cephfs": {
        "chunk": "4MiB",
        "stripe": "all",
        "replicas": 3,
        "replication": "parallel",
        "forward": "chunk",
        "placement": "random",
        "shuffle": "fresh",
        "round_robin": "restart",
        "placement_unit": "request",
        "window": 2,
        "write_contention": "0s",
        "allocation": "none",
        "read_replica": "random",
    },
}

DEFAULT = "mosastore"

#: default number of copies of each chunk in a started store
PUT_UP_REPLICAS = 1

#: default ready store of an engine
_OF_ENGINES = {"hdfs": "hdfs", "moosefs": "moosefs", "glusterfs": "gluster", "cephfs": "cephfs"}


def ready_store(like: str | None, engine: str | None = None) -> dict[str, Any]:
    """Defaults of a file: those of `like`, else of the engine's store, else of the default one.

    A started engine has one copy of each chunk by default, and so has its prediction.
    """
    ready = _OF_ENGINES.get(engine or "")
    if like is None and ready is not None:
        return {**STORES[ready], "replicas": PUT_UP_REPLICAS}
    return STORES[like or DEFAULT]
