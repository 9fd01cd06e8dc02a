"""Deterministic check vectors of the specification (§12, set V): cases whose makespan has a closed form.

Every engine must return `expected_s`. The values were derived on paper, not by any of the engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.simulation import scenarios as s

B = 12.5e6
CHUNK = s.MIB


@dataclass(frozen=True)
class Vector:
    """One case: makespan in seconds, accepted relative deviation."""

    name: str
    workload: dict[str, Any]
    network: dict[str, Any]
    expected_s: float
    relative: float = 1e-6


def network(hosts: int, disk_s: float = 1e-3, **options: Any) -> dict[str, Any]:
    """Set V on `hosts` hosts and a manager; `disk_s` seconds per chunk of 1 MiB."""
    settings: dict[str, Any] = {"out_bps": B, "loopback_bps": 125e6, "shuffle": "none"}
    return s.platform(hosts + 1, **(settings | {"storage_s_per_byte": disk_s / CHUNK} | options))


def apart(storage: int, disk_s: float = 1e-3, **options: Any) -> dict[str, Any]:
    """One client (the first host) and `storage` storage hosts."""
    return network(
        1 + storage, disk_s, clients=(0,), storage=tuple(range(1, 1 + storage)), **options
    )


def chain(replicas: int, replication: str = "chain") -> dict[str, Any]:
    return apart(replicas, replicas=replicas, replication=replication)


def together(count: int) -> dict[str, Any]:
    return s.writers(tuple(range(count)), 10 * CHUNK)


def small_reduce(optimised: bool) -> dict[str, Any]:
    """Four producers write 4 MiB each, one task reads all of it and writes 4 MiB."""
    size = 4 * CHUNK
    hints = {"placement": "collocate", "group": "g"} if optimised else {}
    files = [s.file(f"m{n}", size, **hints) for n in range(4)]
    files.append(s.file("out", size, **({"placement": "local"} if optimised else {})))
    tasks = [s.task(f"p{n}", "produce", s.write(f"m{n}", size)) for n in range(4)]
    reads = [step for n in range(4) for step in s.read(f"m{n}", size)]
    tasks.append(s.task("reduce", "reduce", reads + s.write("out", size)))
    return s.workload("reduce", files, tasks)


def compute_only() -> dict[str, Any]:
    tasks = [
        s.task(f"c{n}", "compute", [{"op": "compute", "seconds": seconds}])
        for n, seconds in enumerate([4.0, 3.0, 3.0, 2.0, 2.0])
    ]
    return s.workload("compute", [], tasks)


def all_vectors() -> list[Vector]:
    ten = s.writers((0,), 10 * CHUNK)
    single = s.writers((0,), CHUNK)
    half = s.writers((0,), 10 * CHUNK + CHUNK // 2)
    read = s.reader(10 * CHUNK, 0)
    local = network(1, placement="local")
    return [
        Vector("write K=10, width 1", ten, apart(1), 0.84692288),
        Vector("write, 200 ms disk", ten, apart(1, 0.2), 2.09094816),
        Vector("write, 200 ms disk, width 4", ten, apart(4, 0.2), 1.04592288),
        Vector("write, latency 1 ms", ten, apart(1, latency_s=1e-3), 0.85292288),
        Vector("read K=10", read, apart(1), 0.84609520),
        Vector("read, 200 ms disk", read, apart(1, 0.2), 2.09012048),
        Vector("chain r=3", single, chain(3), 0.27253376),
        Vector(
            "chain r=3, frame by frame", single, apart(3, replicas=3, forward="frame"), 0.11324736
        ),
        Vector("parallel r=3", single, chain(3, "parallel"), 0.26612704),
        Vector(
            "client r=2, no manager",
            single,
            apart(2, replicas=2, replication="client", allocation="none"),
            0.17417888,
        ),
        Vector("local write", ten, local, 0.08654963),
        Vector("last chunk half", half, apart(1), 0.88836592),
        Vector(
            "incast 5",
            together(5),
            network(6, clients=(0, 1, 2, 3, 4), storage=(5,)),
            4.20236608,
        ),
        Vector("8 collocated, same order", together(8), network(8), 1.18387680),
        Vector("8 collocated, local", together(8), network(8, placement="local"), 0.09004963, 0.02),
        Vector(
            "reduce, collocated",
            small_reduce(True),
            network(4, scheduler="data_location"),
            1.193056,
            0.001 / 1.193056,
        ),
        Vector("reduce, striped", small_reduce(False), network(4), 1.722783, 0.02),
        Vector("compute only", compute_only(), network(2), 8.0),
    ]
