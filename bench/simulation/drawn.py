"""Random scenarios in which all machines differ: no events coincide, so the order of ties does not matter."""

from __future__ import annotations

import random
from typing import Any

from bench.simulation import scenarios as s

Json = dict[str, Any]


def network(rng: random.Random) -> Json:
    """Two to eight different workers and a manager; every option that both engines have."""
    workers = rng.randint(2, 8)
    platform = s.platform(
        workers + 1,
        shuffle="none",
        replicas=rng.randint(1, min(3, workers)),
        replication=rng.choice(["chain", "parallel", "client"]),
        forward=rng.choice(["chunk", "frame"]),
        stripe_width=rng.choice([None, 1, 2]),
        chunk_bytes=rng.choice([262144, s.MIB, 300001]),
        scheduler=rng.choice(["workqueue", "data_location"]),
        latency_s=rng.choice([0.0, rng.uniform(0, 1e-3)]),
        manager_s=rng.uniform(0, 1e-3),
    )
    platform["store"]["window"] = rng.choice([None, 1, 3])
    if rng.random() < 0.3:
        platform["fabric"]["capacity_bps"] = rng.uniform(2e7, 5e8)
    if rng.random() < 0.3:
        platform["fabric"]["rack_uplink_bps"] = rng.uniform(2e7, 5e8)
    for host in platform["hosts"]:
        host["rack"] = rng.randint(0, 2)
        if host["client"]:
            host["client"]["slots"] = rng.choice([1, 1, 2])
        host["network"] = {
            "out_bps": rng.uniform(5e6, 3e8),
            "in_bps": rng.uniform(5e6, 3e8),
            "loopback_bps": rng.uniform(1e8, 1e9),
            "latency_s": rng.choice([0.0, rng.uniform(0, 1e-3)]),
        }
        if host["storage"]:
            services = {
                operation: {"overhead": rng.uniform(0, 1e-3), "s_per_byte": rng.uniform(0, 3e-8)}
                for operation in ("read", "write")
            }
            host["storage"] = {**services, "servers": rng.randint(1, 3), "capacity_bytes": None}
    return platform


def scenario(seed: int) -> tuple[Json, Json]:
    """Workload and platform. With replicas, nothing is read: each engine samples a remote replica."""
    rng = random.Random(seed)
    platform = network(rng)
    workers, replicas = len(platform["hosts"]) - 1, platform["store"]["replicas"]
    size = rng.randint(1, 6 * s.MIB)
    optimised = replicas == 1 and rng.random() < 0.3
    kind = rng.choice(["reduce", "pipeline", "broadcast", "writers"])
    if kind == "reduce":
        work = s.reduce(workers, size, optimised)
    elif kind == "pipeline":
        work = s.pipeline(workers, size, rng.randint(1, 3), optimised)
    elif kind == "broadcast":
        work = s.broadcast(workers, size)
    else:
        work = s.writers(tuple(range(workers)), size)
    if replicas > 1:
        for task in work["tasks"]:
            task["operations"] = [o for o in task["operations"] if o["op"] == "write"]
        work["tasks"] = [task for task in work["tasks"] if task["operations"]]
    return work, platform
