"""The simulator through its Python class: closed forms, errors of one line, and threads."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

_native: Any = importlib.import_module("penstock._native")

C, S, F, B = 1024.0, 1048576.0, 65536.0, 12.5e6
CHUNK = 1 << 20


def platform(storage_s: float = 0.001, hosts: int = 1, **store: Any) -> str:
    """Set V of the check vectors: a client, a manager and storage hosts, 12.5 MB/s each."""
    link = {"out_bps": B, "in_bps": B, "loopback_bps": 10 * B}
    service = {"s_per_byte": storage_s / S}
    described = [
        {"name": "c", "network": link, "client": {}},
        {"name": "m", "network": link, "manager": {"service": 0.0005}},
        *(
            {"name": f"s{i}", "network": link, "storage": {"read": service, "write": service}}
            for i in range(hosts)
        ),
    ]
    return json.dumps(
        {
            "schema": "penstock/network/1",
            "hosts": described,
            "store": {"chunk_bytes": CHUNK, **store},
        }
    )


def workload(chunks: float = 10, tasks: int = 1) -> Any:
    """Tasks that each write a file of `chunks` chunks."""
    return _native.NetworkWorkload(
        json.dumps(
            {
                "schema": "penstock/workload/1",
                "name": "writes",
                "tasks": [
                    {
                        "name": f"w{i}",
                        "operations": [
                            {"op": "write", "file": f"f{i}", "size_bytes": int(chunks * CHUNK)}
                        ],
                    }
                    for i in range(tasks)
                ],
            }
        )
    )


def closed_form(chunks: float = 10, storage_s: float = 0.001) -> float:
    """PR §12, first row."""
    return 10 * C / B + 2 * 0.0005 + chunks * S / B + F / B + storage_s


def test_closed_form_of_a_write() -> None:
    outcome = json.loads(workload().simulate(platform(), 1))
    assert outcome["makespan_s"] == pytest.approx(closed_form(), rel=1e-6)
    assert outcome["bytes"]["network"] == 10_500_096
    assert outcome["error"] is None
    assert "tasks" not in outcome
    slower = json.loads(workload().simulate(platform(storage_s=0.00105), 1))
    assert slower["makespan_s"] != pytest.approx(closed_form(), rel=1e-6)


def test_full_detail_has_tasks_with_spans() -> None:
    outcome = json.loads(workload(tasks=3).simulate(platform(hosts=2), 1, "full"))
    assert [task["name"] for task in outcome["tasks"]] == ["w0", "w1", "w2"]
    for task in outcome["tasks"]:
        (span,) = task["spans"]
        assert (span["op"], span["bytes"]) == ("write", 10 * CHUNK)
        assert task["start_s"] == span["start_s"] < span["end_s"] == task["end_s"]
        assert task["host"] == "c"
    (stage,) = outcome["stages"]
    assert stage["tasks"] == 3
    assert stage["written_bytes"] == 30 * CHUNK
    utilisation = {row["name"]: row["utilisation"] for row in outcome["stations"]}
    assert utilisation["c/out"] > 0.95 > utilisation["s0/storage"] > 0


def test_simulate_many_equals_single_simulations() -> None:
    work = workload(tasks=4)
    networks = [
        platform(hosts=n, replicas=r, replication=p)
        for n in (2, 4)
        for r in (1, 2)
        for p in ("chain", "parallel", "client")
    ]
    by_network = work.simulate_many(networks, [1, 2, 3], 1)
    assert (
        by_network
        == work.simulate_many(networks, [1, 2, 3], 2)
        == work.simulate_many(networks, [1, 2, 3])
    )
    assert [len(outcomes) for outcomes in by_network] == [3] * len(networks)
    assert by_network[5][1] == work.simulate(networks[5], 2)
    assert any(outcomes[0] != outcomes[1] for outcomes in by_network)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": []}, "no host has storage"),
        ({"store": {"chunk_bytes": CHUNK, "replicas": 2}}, "only 1 storage hosts"),
        ({"store": {"chunk_bytes": CHUNK, "stripe_width": 2}}, "only 1 storage hosts"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"schema": "penstock/network/9"}, "penstock/network/1"),
        ({"fabric": {"latency_s": -1}}, "fabric.latency_s is -1"),
    ],
)
def test_bad_networks_are_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    network = json.dumps({**json.loads(platform()), **change})
    with pytest.raises(ValueError, match=message) as error:
        workload().simulate(network, 1)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=message):
        workload().simulate_many([platform(), network], [1])


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "no tasks"),
        ([{"name": "t", "operations": []}], 'task "t" has no operations'),
        (
            [
                {"name": "a", "after": ["b"], "operations": [{"op": "compute", "seconds": 1}]},
                {"name": "b", "after": ["a"], "operations": [{"op": "compute", "seconds": 1}]},
            ],
            'circle: "a" before "b" before "a"',
        ),
        (
            [{"name": "t", "operations": [{"op": "read", "file": "f", "size_bytes": 1}]}],
            'reads file "f", which no task writes',
        ),
        ([{"name": "t", "operations": [{"op": "compute", "seconds": float("nan")}]}], "line 1"),
    ],
)
def test_bad_workloads_are_refused_in_one_line(tasks: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        _native.NetworkWorkload(json.dumps({"schema": "penstock/workload/1", "tasks": tasks}))
    assert "\n" not in str(error.value)


def test_unknown_detail_is_refused() -> None:
    with pytest.raises(ValueError, match='"summary" or "full"'):
        workload().simulate(platform(), 1, "everything")


def test_full_store_is_in_the_outcome() -> None:
    network = json.loads(platform())
    network["hosts"][2]["storage"]["capacity_bytes"] = CHUNK
    outcome = json.loads(workload().simulate(json.dumps(network), 1))
    assert outcome["error"]["kind"] == "full"
    assert 'task "w0" writes file "f0"' in outcome["error"]["message"]
