"""Predictions of small cases equal results computed by hand (docs/model.md).

Set V of the specification: links of 12.5 MB/s, loopback ten times that, frames of 64 KiB, control messages
of 1 KiB, chunks of 1 MiB, a manager that takes 0.5 ms and storage that takes 1 ms a chunk.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform

MIB = 1 << 20
B = 12.5e6
LOOP = 125e6
C = 1024 / B  # a control message on one queue
S = MIB / B
F = 65536 / B
MA = 0.5e-3
SM = 1e-3
ALLOT = 4 * C + MA  # request to the manager and reply
SERVICE = {"per_byte": "1 ms/MiB"}
STORAGE = {"read": SERVICE, "write": SERVICE}


def platform(*, clients: int = 1, storages: int = 1, joined: int = 0, **more: Any) -> Platform:
    """Platform of clients, storage hosts, hosts of both roles and a manager; `more`: further keys."""
    hosts: list[dict[str, Any]] = []
    if clients:
        hosts.append({"group": "app", "count": clients, "roles": ["client"]})
    if storages:
        hosts.append({"group": "data", "count": storages, "roles": ["storage"], "storage": STORAGE})
    if joined:
        both = {"group": "node", "count": joined, "roles": ["client", "storage"]}
        hosts.append({**both, "storage": STORAGE})
    boss = {"group": "boss", "count": 1, "roles": ["manager"], "manager": {"service": "0.5ms"}}
    groups = more.pop("groups", {})
    for host in hosts:
        host.update(groups.get(host["group"], {}))
    boss.update(groups.get("boss", {}))
    network = {"bandwidth": "12.5 MB/s", "loopback": "125 MB/s", **more.pop("network", {})}
    store = {"shuffle": "none", **more.pop("store", {})}
    document = {"penstock_platform": 1, "name": "v", "hosts": [*hosts, boss]}
    return Platform.from_dict(
        copy.deepcopy({**document, "network": network, "store": store, **more})
    )


def task(name: str, *operations: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "operations": list(operations), **more}


def write(file: str, size: float, offset: float = 0) -> dict[str, Any]:
    return {"op": "write", "file": file, "offset_bytes": int(offset), "size_bytes": int(size)}


def read(file: str, size: float, offset: float = 0) -> dict[str, Any]:
    return {"op": "read", "file": file, "offset_bytes": int(offset), "size_bytes": int(size)}


def opened(file: str) -> dict[str, Any]:
    return {"op": "open", "file": file}


def compute(seconds: float) -> dict[str, Any]:
    return {"op": "compute", "seconds": seconds}


def preloaded(name: str, size: float, **hints: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name, "size_bytes": int(size), "preloaded": True}
    return {**document, "hints": hints} if hints else document


def workload(*tasks: dict[str, Any], files: tuple[dict[str, Any], ...] = ()) -> Workload:
    document = {"schema": "penstock/workload/1", "name": "w", "files": list(files)}
    return workload_from_dict({**document, "tasks": list(tasks)})


def predicted(work: Workload, cluster: Platform) -> Prediction:
    return predict(work, cluster, seeds=1, detail=True, explained=False, threads=1)


K = 10
WRITE = workload(task("w", write("f", K * MIB)))
READ = workload(task("r", opened("f"), read("f", K * MIB)), files=(preloaded("f", K * MIB),))

CASES: dict[str, tuple[Workload, Platform, float]] = {
    "computing only": (workload(task("a", compute(3))), platform(), 3),
    "twice the speed": (
        workload(task("a", compute(3))),
        platform(groups={"app": {"speed": 2}}),
        1.5,
    ),
    "five tasks on two slots": (
        workload(*(task(f"t{i}", compute(s)) for i, s in enumerate((4, 3, 3, 2, 2)))),
        platform(groups={"app": {"slots": 2}}),
        8,
    ),
    "three launches in a row": (
        workload(*(task(f"t{i}", compute(1)) for i in range(3))),
        platform(launch={"overhead": "0.5s"}),
        4.5,
    ),
    "a task's own launch goes first": (
        workload(task("a", compute(1), launch=2)),
        platform(launch={"overhead": "0.5s"}),
        3,
    ),
    "not before": (workload(task("a", compute(1), not_before_s=10)), platform(), 11),
    "stagger": (
        workload(task("a", compute(1)), task("b", compute(1), after=["a"])),
        platform(launch={"stagger": "2s"}),
        4,
    ),
    "after another": (
        workload(task("b", compute(1), after=["a"]), task("a", compute(2))),
        platform(clients=5),
        3,
    ),
    "write": (WRITE, platform(), 10 * C + 2 * MA + K * S + F + SM),
    "write with latency": (
        WRITE,
        platform(network={"latency": "1ms"}),
        10 * C + 6e-3 + 2 * MA + K * S + F + SM,
    ),
    "latency of a host's own link is added": (
        WRITE,
        platform(groups={"app": {"network": {"latency": "1ms"}}}),
        10 * C + 6e-3 + 2 * MA + K * S + F + SM,
    ),
    "write, slow storage": (
        WRITE,
        platform(
            groups={"data": {"storage": {"read": "0.2s", "write": "0.2s"}}},
        ),
        10 * C + 2 * MA + S + F + K * 0.2,
    ),
    "slow storage with as many servers as chunks": (
        WRITE,
        platform(groups={"data": {"storage": {"read": "0.2s", "write": "0.2s", "servers": K}}}),
        10 * C + 2 * MA + K * S + F + 0.2,
    ),
    "slow storage behind two stripes": (
        WRITE,
        platform(
            storages=2,
            groups={"data": {"storage": {"read": "0.2s", "write": "0.2s"}}},
        ),
        # host 0 stores chunks 0, 2, …; host 1 gets its first after the second was sent
        10 * C + 2 * MA + 2 * S + F + K / 2 * 0.2,
    ),
    "a last chunk of a half": (
        workload(task("w", write("f", 10.5 * MIB))),
        platform(),
        10 * C + 2 * MA + 10.5 * S + F + SM / 2,
    ),
    "a chunk larger than the file": (
        workload(task("w", write("f", MIB / 4))),
        platform(store={"chunk": "64MiB"}),
        10 * C + 2 * MA + S / 4 + F + SM / 4,
    ),
    "a frame larger than the chunk": (
        workload(task("w", write("f", MIB))),
        platform(protocol={"frame": "8MiB"}),
        10 * C + 2 * MA + 2 * S + SM,
    ),
    "nothing written": (workload(task("w", write("f", 0))), platform(), 2 * ALLOT),
    "nothing read": (
        workload(task("r", opened("f"), read("f", 0)), files=(preloaded("f", 0),)),
        platform(),
        ALLOT,
    ),
    "read": (READ, platform(), 6 * C + MA + SM + K * S + F),
    "read without opening": (
        workload(task("r", read("f", K * MIB)), files=(preloaded("f", K * MIB),)),
        platform(),
        2 * C + SM + K * S + F,
    ),
    "the middle of a file": (
        workload(
            task("r", read("f", 2 * MIB, 4 * MIB)),
            files=(preloaded("f", K * MIB),),
        ),
        platform(),
        2 * C + SM + 2 * S + F,
    ),
    "window of one": (
        WRITE,
        platform(store={"window": 1}),
        2 * ALLOT + K * (S + F + SM + 2 * C),
    ),
    "window of one with latency": (
        WRITE,
        platform(store={"window": 1}, network={"latency": "1ms"}),
        2 * ALLOT + 4e-3 + K * (S + F + SM + 2 * C + 2e-3),
    ),
    "chain of three": (
        workload(task("w", write("f", MIB))),
        platform(storages=3, store={"replicas": 3}),
        14 * C + 2 * MA + 3 * (S + F + SM),
    ),
    "chain of three by frames": (
        workload(task("w", write("f", MIB))),
        platform(storages=3, store={"replicas": 3, "forward": "frame"}),
        14 * C + 2 * MA + S + 5 * F + SM,
    ),
    "three in parallel": (
        workload(task("w", write("f", MIB))),
        platform(storages=3, store={"replicas": 3, "replication": "parallel"}),
        12 * C + 2 * MA + 3 * S + 2 * F + 2 * SM,
    ),
    "two by the client, no manager asked": (
        workload(task("w", write("f", MIB))),
        platform(storages=2, store={"replicas": 2, "replication": "client", "allocation": "none"}),
        2 * S + F + SM + 2 * C,
    ),
    "local write": (
        WRITE,
        platform(clients=0, storages=0, joined=1),
        2 * ALLOT + K * MIB / LOOP + SM + 1024 / LOOP,
    ),
    "local placement among others": (
        WRITE,
        platform(clients=0, storages=0, joined=4, store={"placement": "local"}),
        2 * ALLOT + K * MIB / LOOP + SM + 1024 / LOOP,
    ),
    "local read": (
        workload(task("r", read("f", K * MIB)), files=(preloaded("f", K * MIB),)),
        platform(clients=0, storages=0, joined=1),
        1024 / LOOP + SM + K * MIB / LOOP,
    ),
    "a receiver of half the bandwidth": (
        WRITE,
        platform(groups={"data": {"network": {"in": "6.25 MB/s"}}}),
        10 * C + 2 * MA + F + 2 * K * S + SM,
    ),
    "a core of half the bandwidth": (
        WRITE,
        platform(network={"fabric": "6.25 MB/s"}),
        # acknowledgements of four chunks precede the last frame of the last chunk in the core
        20 * C + 2 * MA + F + 2 * K * S + F + SM + 4 * 2 * C,
    ),
    "a rack's uplink of half the bandwidth": (
        # each of five control messages passes four more queues: to the other rack and back
        WRITE,
        platform(
            network={"rack_uplink": "6.25 MB/s"},
            groups={"data": {"rack": 1}, "boss": {"rack": 1}},
        ),
        30 * C + 2 * MA + F + 2 * K * S + 2 * F + F + SM,
    ),
    "all in one rack": (
        WRITE,
        platform(network={"rack_uplink": "1 kB/s"}),
        10 * C + 2 * MA + K * S + F + SM,
    ),
    "appending writes are one": (
        workload(task("w", *(write("f", MIB, i * MIB) for i in range(K)))),
        platform(),
        10 * C + 2 * MA + K * S + F + SM,
    ),
    "appending writes each for itself": (
        workload(task("w", *(write("f", MIB, i * MIB) for i in range(K)))),
        platform(preprocess={"aggregate": False}),
        K * (10 * C + 2 * MA + S + F + SM),
    ),
    "read again out of the cache": (
        workload(
            task("r", read("f", 4 * MIB), compute(1), read("f", 4 * MIB)),
            files=(preloaded("f", 4 * MIB),),
        ),
        platform(preprocess={"cache": "4MiB"}),
        1 + 2 * C + SM + 4 * S + F,
    ),
    "read again without a cache": (
        workload(
            task("r", read("f", 4 * MIB), compute(1), read("f", 4 * MIB)),
            files=(preloaded("f", 4 * MIB),),
        ),
        platform(),
        1 + 2 * (2 * C + SM + 4 * S + F),
    ),
    "the client's own service": (
        workload(task("w", write("f", 0))),
        platform(groups={"app": {"client": {"service": "10ms"}}}),
        0.01 + 2 * ALLOT,
    ),
    "a frequency of half the speed": (
        workload(task("a", compute(3))),
        platform(
            power={
                "idle": "90 W",
                "states": [{"frequency": "1 GHz", "speed": 0.5}, {"frequency": "2 GHz"}],
                "frequency": "1 GHz",
            }
        ),
        6,
    ),
    "a chunk size of the file's own": (
        workload(
            task("w", write("f", K * MIB)),
            files=({"name": "f", "hints": {"chunk_bytes": MIB // 4}},),
        ),
        platform(),
        10 * C + 2 * MA + K * S + F + SM / 4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_makespan(name: str):
    work, cluster, expected = CASES[name]
    assert predicted(work, cluster).makespan_s == pytest.approx(expected, rel=1e-6)


def test_wrong_service_time_changes_the_makespan():
    slower = platform(groups={"data": {"storage": {"read": "2ms", "write": "2ms"}}})
    _, _, expected = CASES["write"]
    assert predicted(WRITE, slower).makespan_s != pytest.approx(expected, rel=1e-6)


def test_bytes_of_a_write():
    b = predicted(WRITE, platform()).bytes
    assert (
        b["network"] == K * MIB + 14 * 1024
    )  # an acknowledgement per chunk, four messages of the manager
    assert (b["written"], b["read"], b["stored"]) == (K * MIB, 0, K * MIB)
    assert (b["loopback"], b["written_local"]) == (0, 0)


def test_bytes_of_a_replicated_write():
    cluster = platform(clients=0, storages=0, joined=3, store={"placement": "local", "replicas": 2})
    prediction = predicted(WRITE, cluster)
    assert prediction.bytes["stored"] == 2 * K * MIB
    assert prediction.bytes["written_local"] == K * MIB
    assert sum(h["stored_bytes"] for h in prediction.hosts) == 2 * K * MIB
    assert next(h for h in prediction.hosts if h["name"] == "node-0")["stored_bytes"] == K * MIB


def test_energy_and_cost_of_a_write():
    power = {"idle": "90 W", "app": "125 W", "storage": "130 W", "network": "128 W"}
    prediction = predicted(WRITE, platform(power=power, price="3.6 EUR/h"))
    t = prediction.makespan_s
    assert prediction.energy is not None
    assert prediction.cost is not None
    assert prediction.cost.amount == pytest.approx(3 * t * 3.6 / 3600, rel=1e-9)
    data = next(h for h in prediction.energy.hosts if h.host == "data-0")
    assert data.idle_j == pytest.approx(90 * t, rel=1e-9)
    assert data.storage_j == pytest.approx(40 * K * SM, rel=1e-9)
    assert data.app_j == 0
    app = next(h for h in prediction.energy.hosts if h.host == "app-0")
    # ten chunks, the last acknowledgement and four manager messages; other acknowledgements overlap
    assert app.network_j == pytest.approx(38 * (K * S + 5 * C), rel=1e-6)
    assert prediction.energy.omitted == ("boss-0",)


def test_energy_of_computing_and_started_hours():
    power = {"idle": "91.6 W", "app": "125.2 W"}
    price = {"per_host": "0.10 EUR/h", "started_hours": True}
    work = workload(task("a", compute(3601)))
    prediction = predicted(work, platform(power=power, price=price))
    assert prediction.energy_j == pytest.approx(2 * 91.6 * 3601 + 33.6 * 3601, rel=1e-9)
    assert prediction.cost is not None
    assert prediction.cost.amount == pytest.approx(3 * 2 * 0.10, rel=1e-9)


def test_store_of_exactly_the_file_size():
    full = {"storage": {**STORAGE, "capacity": "10MiB"}}
    assert predicted(WRITE, platform(groups={"data": full})).bytes["stored"] == K * MIB
    one_more = workload(task("w", write("f", K * MIB + 1)))
    with pytest.raises(PenstockError, match="data-0"):
        predicted(one_more, platform(groups={"data": full}))


def hosts_of(prediction: Prediction) -> dict[str, str]:
    return {t["name"]: t["host"] for t in prediction.tasks or ()}


def test_data_location_scheduler():
    files = tuple(
        preloaded(f"f{i}", 4 * MIB, placement="local", host=f"node-{3 - i}") for i in range(4)
    )
    work = workload(
        *(task(f"t{i}", opened(f"f{i}"), read(f"f{i}", 4 * MIB)) for i in range(4)), files=files
    )
    cluster = platform(clients=0, storages=0, joined=4, scheduler={"kind": "data_location"})
    prediction = predicted(work, cluster)
    assert hosts_of(prediction) == {f"t{i}": f"node-{3 - i}" for i in range(4)}
    assert prediction.bytes["read_local"] == 16 * MIB
    by_queue = predicted(work, platform(clients=0, storages=0, joined=4))
    assert hosts_of(by_queue) == {f"t{i}": f"node-{i}" for i in range(4)}
    assert by_queue.bytes["read_local"] == 0


def test_wait_for_the_host_with_the_data():
    def work(first_s: float) -> Workload:
        files = (preloaded("f", 4 * MIB, host="node-0", placement="local"),)
        busy = task("busy", compute(first_s), machine="node-0")
        return workload(busy, task("t", read("f", 4 * MIB), not_before_s=0.5), files=files)

    def host(wait: str, first_s: float) -> str:
        scheduler = {"kind": "data_location", "wait": wait}
        cluster = platform(clients=0, storages=0, joined=2, scheduler=scheduler)
        return hosts_of(predicted(work(first_s), cluster))["t"]

    assert host("0s", 1) == "node-1"
    assert host("2s", 1) == "node-0"
    assert host("forever", 100) == "node-0"
    assert host("2s", 100) == "node-1"


def test_task_bound_to_a_group_or_host():
    cluster = platform(clients=2, storages=0, joined=2)
    work = workload(
        task("a", compute(1), machine="node"),
        task("b", compute(1), machine="node-1"),
        task("c", compute(1), machine="app-1"),
    )
    assert hosts_of(predicted(work, cluster)) == {"a": "node-0", "b": "node-1", "c": "app-1"}


def test_placement_by_hints():
    hints = {"placement": "collocate", "group": "g"}
    files = tuple({"name": f"f{i}", "hints": hints} for i in range(4))
    work = workload(*(task(f"t{i}", write(f"f{i}", 3 * MIB)) for i in range(4)), files=files)
    collocated = predicted(work, platform(storages=4))
    stored = sorted(h["stored_bytes"] for h in collocated.hosts)
    assert stored[-1] == 12 * MIB
    assert sum(stored) == 12 * MIB
    striped = predicted(workload(task("w", write("f", 8 * MIB))), platform(storages=4))
    assert sorted(h["stored_bytes"] for h in striped.hosts)[-4:] == [2 * MIB] * 4
    scatter = ({"name": "f", "hints": {"placement": "scatter", "scatter": 4}},)
    scattered = predicted(
        workload(task("w", write("f", 8 * MIB)), files=scatter), platform(storages=4)
    )
    assert sorted(h["stored_bytes"] for h in scattered.hosts)[-4:] == [0, 0, 4 * MIB, 4 * MIB]


def test_shared_link_is_the_bottleneck():
    prediction = predicted(WRITE, platform(network={"fabric": "6.25 MB/s"}))
    assert prediction.bottleneck is not None
    assert prediction.bottleneck.station == "fabric/core"
    assert prediction.bottleneck.text == "the core of the network"
    assert prediction.bottleneck.utilisation > 0.99
    racks = platform(network={"rack_uplink": "1 MB/s"}, groups={"data": {"rack": 1}})
    bottleneck = predicted(WRITE, racks).bottleneck
    assert bottleneck is not None
    assert bottleneck.text == "the uplink of rack 0"


def test_network_latency_is_the_bottleneck():
    prediction = predicted(
        workload(task("w", write("f", 0))), platform(network={"latency": "100ms"})
    )
    assert prediction.bottleneck is not None
    assert prediction.bottleneck.text == "the latency of the network"


def test_waiting_for_a_slot_is_charged_to_the_running_task():
    # ten tasks of one client write 0 bytes in turn: only the manager and its network path are used
    prediction = predicted(
        workload(*(task(f"t{i}", write(f"f{i}", 0)) for i in range(10))), platform()
    )
    assert prediction.makespan_s == pytest.approx(20 * ALLOT, rel=1e-6)
    assert prediction.bottleneck is not None
    assert prediction.bottleneck.kind == "manager"
    shares = {s["name"]: s["critical_share"] for s in prediction.stations}
    assert shares["app-0/slots"] == 0
    assert shares["boss-0/manager"] == pytest.approx(MA / ALLOT, rel=1e-4)
    assert all(t["critical"] for t in prediction.tasks or ())
