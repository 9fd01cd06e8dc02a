"""The wrong value of a platform is named from operation times of runs simulated with the changed value."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from penstock.archive.schemas import TABLES
from penstock.parts.prediction.queue_network.simulate import Simulator, makespan
from penstock.parts.prediction.workloads.make import make_workload
from penstock.parts.stores.workflow.execute import Executed
from penstock.parts.stores.workflow.suspects import Comparison, suspects, usual
from penstock.platform.hosts import Platform
from penstock.spec.store import Extent

PLATFORM = {
    "penstock_platform": 1,
    "name": "four",
    "hosts": [
        {"group": "head", "count": 1, "roles": ["manager"], "manager": {"service": "0.1ms"}},
        {
            "group": "node",
            "count": 4,
            "roles": ["storage", "client"],
            "storage": {
                "read": {"overhead": "1ms", "per_byte": "22ms/MiB"},
                "write": {"overhead": "1ms", "per_byte": "20ms/MiB"},
            },
        },
    ],
    "network": {"bandwidth": "12MB/s", "loopback": "260MB/s", "latency": "0.06ms"},
    "store": {"chunk": "256KiB", "stripe": 1, "placement": "round_robin"},
    "protocol": {"frame": "16KiB"},
}
SLOW = {"overhead": "2.5ms", "per_byte": "55ms/MiB"}
#: changes of the true platform, by the expected name
PLANTS = {
    "storage.read": {
        "hosts.node.storage.read": {"overhead": "1.2ms", "per_byte": "26.4ms/MiB"},
    },
    "storage.write": {
        "hosts.node.storage.write": {"overhead": "1.2ms", "per_byte": "24ms/MiB"},
    },
    "storage of node-2": {
        "hosts.node.except": {"2": {"storage": {"read": SLOW, "write": SLOW}}},
    },
    "link of node-1": {"hosts.node.except": {"1": {"network": {"bandwidth": "9.6MB/s"}}}},
    "network.bandwidth": {"network.bandwidth": "9.6MB/s"},
}


def _simulated_run(platform: Platform, seed: int, spread: float = 0.04) -> Comparison:
    """A simulated run of a pattern, with random errors of operation times and the placement of the model."""
    workload = make_workload("pipeline", "small", {"width": 4, "file_bytes": 4 * 2**20})
    rng = np.random.default_rng(seed)
    names = sorted(workload.file_sizes)
    holders = {name: f"node-{i % 4}" for i, name in enumerate(names)}
    placements = {
        name: [
            {"offset_bytes": 0, "length_bytes": workload.file_sizes[name], "hosts": [holders[name]]}
        ]
        for name in names
    }
    simulated = Simulator(workload, 1, None, json.dumps(placements)).full(platform.lower(), seed)
    tasks, operations = [], []
    for task in simulated["tasks"]:
        row = {k: task[k] for k in ("stage", "host", "start_s", "end_s")}
        tasks.append({"task": task["name"], "ready_s": 0.0, "sent_s": 0.0, **row})
        task_spec = next(t for t in workload.tasks if t.name == task["name"])
        for number, (operation, span) in enumerate(
            zip(task_spec.operations, task["spans"], strict=True)
        ):
            duration_s = (span["end_s"] - span["start_s"]) * float(np.exp(rng.normal(0, spread)))
            operations.append(
                {
                    "task": task["name"],
                    "number": number,
                    "op": operation.op,
                    "file": operation.file,
                    "offset_bytes": 0,
                    "size_bytes": operation.size_bytes,
                    "start_s": span["start_s"],
                    "end_s": span["start_s"] + duration_s,
                }
            )
    extents = {n: [Extent(0, workload.file_sizes[n], (holders[n],))] for n in names}
    run = Executed(
        makespan(simulated),
        pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow),
        pa.Table.from_pylist(operations, TABLES["workflow_operations"].arrow),
        extents=extents,
    )
    return Comparison(workload, [run])


@pytest.mark.parametrize("cause", PLANTS)
def test_a_changed_value_is_named_first(cause: str) -> None:
    platform = Platform.from_dict(PLATFORM)
    usual_errors = usual(platform, [_simulated_run(platform, seed) for seed in (1, 2, 3)])
    truth = platform.with_values(PLANTS[cause])
    named_suspects = suspects(
        platform, [_simulated_run(truth, seed) for seed in (4, 5, 6)], usual_errors
    )
    assert named_suspects
    assert named_suspects[0].name == cause


def test_random_differences_name_nothing() -> None:
    platform = Platform.from_dict(PLATFORM)
    usual_errors = usual(platform, [_simulated_run(platform, seed) for seed in (1, 2, 3)])
    assert (
        suspects(platform, [_simulated_run(platform, seed) for seed in (4, 5, 6)], usual_errors)
        == []
    )


def test_usual_errors_of_the_model_name_nothing() -> None:
    """If healthy runs have the same true value, it is not suspected."""
    platform = Platform.from_dict(PLATFORM)
    truth = platform.with_values(PLANTS["storage.read"])
    usual_errors = usual(platform, [_simulated_run(truth, seed) for seed in (1, 2, 3)])
    assert (
        suspects(platform, [_simulated_run(truth, seed) for seed in (4, 5, 6)], usual_errors) == []
    )
    assert suspects(platform, [_simulated_run(truth, seed) for seed in (4, 5, 6)]) != []
