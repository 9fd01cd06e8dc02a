"""Runs of a workflow as rows for `penstock check`: their contents, and the nodes that they name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.archive.schemas import TABLES
from penstock.parts.conformity.contention import Comparison, uneven_nodes
from penstock.parts.conformity.expected import Expectation
from penstock.parts.conformity.measured_rows import measured_of
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.execute import Executed
from penstock.parts.stores.workflow.measured_rows import differences, measured_rows
from penstock.platform.hosts import Platform
from penstock.spec.store import Extent

MIB = 2**20
NODES = [f"node-{i}" for i in range(4)]
PLATFORM = {
    "penstock_platform": 1,
    "name": "four",
    "hosts": [
        {"group": "head", "count": 1, "roles": ["manager"], "manager": {"service": "0.1ms"}},
        {
            "group": "node",
            "count": 4,
            "roles": ["storage", "client"],
            "storage": {"read": "1ms", "write": "1ms"},
        },
    ],
    "network": {"bandwidth": "12.5 MB/s", "loopback": "1 GB/s"},
    "store": {"chunk": "1MiB", "stripe": 1},
}


def executed(seconds: dict[str, float], noise: float = 0.0) -> Executed:
    """Every node reads a file of 8 MiB from its neighbour, which takes `seconds` of the neighbour's name."""
    tasks, operations, extents = [], [], {}
    for number, holder in enumerate(NODES):
        reader, duration_s = NODES[(number + 1) % 4], seconds[holder] * (1 + noise)
        name, begin = f"t{number}", 0.1
        times = {"ready_s": 0.0, "sent_s": 0.05, "start_s": begin, "end_s": begin + duration_s}
        tasks.append({"task": name, "stage": "read", "host": reader, **times})
        operations.append(
            {
                "task": name,
                "number": 0,
                "op": "read",
                "file": f"f{number}",
                "offset_bytes": 0,
                "size_bytes": 8 * MIB,
                "start_s": begin,
                "end_s": begin + duration_s,
            }
        )
        extents[f"f{number}"] = [Extent(0, 8 * MIB, (holder,))]
    return Executed(
        0.1 + max(seconds.values()) * (1 + noise),
        pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow),
        pa.Table.from_pylist(operations, TABLES["workflow_operations"].arrow),
        extents=extents,
    )


def workload() -> Workload:
    files = tuple(File(f"f{i}", 8 * MIB, preloaded=True) for i in range(4))
    tasks = tuple(
        Task(f"t{i}", (Operation("read", f"f{i}", 0, 8 * MIB),), stage="read") for i in range(4)
    )
    return Workload("reads", files, tasks)


def test_operations_name_their_client_and_transfers_their_storage_node() -> None:
    rows = measured_rows([executed(dict.fromkeys(NODES, 0.8))]).to_pylist()
    assert rows[0]["metric"] == "makespan"
    assert rows[0]["value"] == pytest.approx(0.9)
    (client,) = [r for r in rows if r["module"] == "client" and r["node"] == "node-1"]
    assert (client["operation"], client["value"]) == ("read", pytest.approx(0.8))
    (transfer,) = [r for r in rows if r["module"] == "storage" and r["node"] == "node-0"]
    assert (transfer["operation"], transfer["metric"]) == ("remote read", "transfer_time")
    assert transfer["value"] == pytest.approx(0.1)


@pytest.mark.parametrize(("slower", "reported"), [(1.25, True), (1.05, False)])
def test_a_link_at_four_fifths_of_its_rate_is_reported(slower: float, reported: bool) -> None:
    seconds = dict.fromkeys(NODES, 0.7) | {"node-2": 0.7 * slower}
    runs = [executed(seconds, noise) for noise in (-0.01, 0.0, 0.01)]
    comparison = Comparison(Expectation("none", ()), measured_of(measured_rows(runs), "runs"), ())
    findings = uneven_nodes(comparison)
    assert findings is not None
    assert [f.evidence["node"] for f in findings] == (["node-2"] if reported else [])


def test_files_on_several_nodes_name_no_node() -> None:
    run = executed(dict.fromkeys(NODES, 0.8))
    run.extents["f0"] = [Extent(0, 8 * MIB, ("node-0", "node-3"))]
    run.extents["f1"] = [Extent(0, MIB, ("node-1",)), Extent(MIB, 7 * MIB, ("node-2",))]
    rows = measured_rows([run]).to_pylist()
    assert sorted(r["node"] for r in rows if r["module"] == "storage") == ["node-2", "node-3"]


def test_differences_from_the_prediction_are_described() -> None:
    prediction = predict(workload(), Platform.from_dict(PLATFORM), explained=False)
    mean_s = prediction.operations["read"]["mean_s"]
    even = [executed(dict.fromkeys(NODES, mean_s), n) for n in (-0.01, 0.0, 0.01)]
    assert not [s for s in differences(prediction, even) if "client read" in s]
    slow = dict.fromkeys(NODES, 1.5 * mean_s) | {"node-2": 2.2 * mean_s}
    text = " ".join(differences(prediction, [executed(slow, n) for n in (-0.01, 0.0, 0.01)]))
    assert "client read: " in text
    assert "node-2 takes 47 % longer for storage/remote read than others" in text
