"""The scenarios that every engine simulates: workloads and lowered platforms as plain dictionaries.

Sizes in bytes, times in seconds, rates in bytes per second. The formats are those that
`native.NetworkWorkload` takes (`penstock/workload/1`, `penstock/network/1`).
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
MIB = 1 << 20
MB = 10**6
GIGABIT_BPS = 125e6  # 1 Gbit/s, Costa 2014
MANAGER = "manager"


def machine(number: int) -> str:
    return f"node-{number}"


def platform(
    nodes: int,
    *,
    storage: tuple[int, ...] | None = None,
    clients: tuple[int, ...] | None = None,
    out_bps: float = GIGABIT_BPS,
    loopback_bps: float = 1e9,
    latency_s: float = 0.0,
    chunk_bytes: int = MIB,
    stripe_width: int | None = None,
    replicas: int = 1,
    replication: str = "chain",
    forward: str = "chunk",
    placement: str = "striped",
    allocation: str = "manager",
    shuffle: str = "fresh",
    scheduler: str = "workqueue",
    merge: bool = True,
    manager_s: float = 0.5e-3,
    storage_s_per_byte: float = 1e-9,
    frame_bytes: int = 65536,
) -> Json:
    """`nodes` machines, of which the last is the manager; clients and storage are on all others unless named.
    The service times (RAM disks at 1 GB/s, 0.5 ms of the manager per request) are assumptions: the source
    has none.
    """
    workers = nodes - 1
    storage = tuple(range(workers)) if storage is None else storage
    clients = tuple(range(workers)) if clients is None else clients
    link = {"out_bps": out_bps, "in_bps": out_bps, "loopback_bps": loopback_bps, "latency_s": 0.0}
    service = {"overhead": 0.0, "s_per_byte": storage_s_per_byte}
    disk = {"read": service, "write": service, "servers": 1, "capacity_bytes": None}
    hosts = [
        {
            "name": machine(n),
            "group": "nodes",
            "rack": 0,
            "network": link,
            "client": {"slots": 1, "speed": 1.0} if n in clients else None,
            "storage": disk if n in storage else None,
            "manager": None,
        }
        for n in range(workers)
    ]
    hosts.append(
        {
            "name": MANAGER,
            "group": "manager",
            "rack": 0,
            "network": link,
            "client": None,
            "storage": None,
            "manager": {"service": {"overhead": manager_s, "s_per_byte": 0.0}, "servers": 1},
        }
    )
    return {
        "schema": "penstock/network/1",
        "hosts": hosts,
        "fabric": {"latency_s": latency_s, "capacity_bps": None, "rack_uplink_bps": None},
        "store": {
            "chunk_bytes": chunk_bytes,
            "stripe_width": stripe_width,
            "replicas": replicas,
            "replication": replication,
            "forward": forward,
            "placement": placement,
            "shuffle": shuffle,
            "window": None,
            "allocation": allocation,
            "read_replica": "local_first",
        },
        "protocol": {"frame_bytes": frame_bytes, "control_bytes": 1024, "merge_frames": merge},
        "scheduler": {"kind": scheduler, "wait_s": 0},
        "launch": {"overhead": 0.0, "stagger": 0.0},
        "preprocess": {"aggregate": False, "cache_bytes": 0, "prefetch_chunks": 0},
    }


def read(file: str, size: int) -> list[Json]:
    return [
        {"op": "open", "file": file},
        {"op": "read", "file": file, "offset_bytes": 0, "size_bytes": size},
        {"op": "close", "file": file},
    ]


def write(file: str, size: int) -> list[Json]:
    return [{"op": "write", "file": file, "offset_bytes": 0, "size_bytes": size}]


def task(name: str, stage: str, operations: list[Json], machine: str | None = None) -> Json:
    return {
        "name": name,
        "stage": stage,
        "machine": machine,
        "after": [],
        "launch": 0.0,
        "not_before_s": 0,
        "operations": operations,
    }


def file(name: str, size: int, preloaded: bool = False, **hints: Any) -> Json:
    return {"name": name, "size_bytes": size, "preloaded": preloaded, "hints": hints}


def workload(name: str, files: list[Json], tasks: list[Json]) -> Json:
    return {"schema": "penstock/workload/1", "name": name, "files": files, "tasks": tasks}


def reduce(workers: int, size: int, optimised: bool, pinned: bool = False) -> Json:
    """Three stages (Costa 2014): stage in, produce, reduce; each writes what it read. `size` bytes per worker
    and stage; the one reducing task reads and writes `workers * size`. `optimised` is the published WOSS:
    local files, the reducer's inputs collocated. `pinned`: fixed machines instead of a scheduler.
    """
    local = {"placement": "local"} if optimised else {}
    together = {"placement": "collocate", "group": "reduce"} if optimised else {}
    files, tasks = [], []
    for n in range(workers):
        at = local | {"host": machine(n)} if optimised else {}
        files.append(file(f"raw{n}", size, True, **at))
        files.append(file(f"in{n}", size, **local))
        files.append(file(f"mid{n}", size, **together))
    files.append(file("out", workers * size, **local))
    for n in range(workers):
        host = machine(n) if pinned else None
        tasks.append(
            task(f"stage-in{n}", "stage-in", read(f"raw{n}", size) + write(f"in{n}", size), host)
        )
    for n in range(workers):
        host = machine(n) if pinned else None
        tasks.append(
            task(f"produce{n}", "produce", read(f"in{n}", size) + write(f"mid{n}", size), host)
        )
    steps = [step for n in range(workers) for step in read(f"mid{n}", size)]
    last = machine(0) if pinned else None
    tasks.append(task("reduce", "reduce", steps + write("out", workers * size), last))
    return workload("reduce", files, tasks)


def pipeline(
    workers: int, size: int, stages: int = 3, optimised: bool = False, pinned: bool = False
) -> Json:
    """`workers` chains of `stages` tasks; each reads its input file and writes the next (Costa 2014)."""
    local = {"placement": "local"} if optimised else {}
    files, tasks = [], []
    for n in range(workers):
        at = local | {"host": machine(n)} if optimised else {}
        files.append(file(f"f{n}.0", size, True, **at))
        files += [file(f"f{n}.{s + 1}", size, **local) for s in range(stages)]
    for s in range(stages):
        for n in range(workers):
            steps = read(f"f{n}.{s}", size) + write(f"f{n}.{s + 1}", size)
            host = machine(n) if pinned else None
            tasks.append(task(f"t{n}.{s}", f"stage{s}", steps, host))
    return workload("pipeline", files, tasks)


def broadcast(workers: int, size: int, pinned: bool = False) -> Json:
    """One task writes a file that `workers` tasks read (Costa 2014)."""
    files = [file("shared", size)]
    tasks = [task("source", "source", write("shared", size), machine(0) if pinned else None)]
    for n in range(workers):
        host = machine(n) if pinned else None
        tasks.append(task(f"sink{n}", "sink", read("shared", size), host))
    return workload("broadcast", files, tasks)


def writers(clients: tuple[int, ...], size: int) -> Json:
    """Each of `clients` writes one file of `size` bytes at once: a flow for one, incast for several."""
    files = [file(f"f{n}", size) for n in clients]
    tasks = [task(f"w{n}", "write", write(f"f{n}", size), machine(n)) for n in clients]
    return workload("writers", files, tasks)


def reader(size: int, client: int) -> Json:
    """One client opens and reads an existing file."""
    steps = read("f0", size)
    return workload("reader", [file("f0", size, True)], [task("r", "read", steps, machine(client))])


def chunk_requests(work: Json, network: Json) -> int:
    """Number of chunk requests of the storage modules: reads, and writes times replicas."""
    chunk, replicas = network["store"]["chunk_bytes"], network["store"]["replicas"]
    total = 0
    for each in work["tasks"]:
        for step in each["operations"]:
            if step["op"] in ("read", "write"):
                copies = replicas if step["op"] == "write" else 1
                total += copies * -(-step["size_bytes"] // chunk)
    return total
