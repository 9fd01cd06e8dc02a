"""The value that is wrong is named from what operations took: runs are made by the model with it changed."""

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
#: what is changed in truth, and what is to be named
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


def _ran(platform: Platform, seed: int, spread: float = 0.04) -> Comparison:
    """A run of a pattern as the model makes it, every operation off by chance, files where it put them."""
    workload = make_workload("pipeline", "small", {"width": 4, "file_bytes": 4 * 2**20})
    chance = np.random.default_rng(seed)
    names = sorted(workload.file_sizes)
    lies = {name: f"node-{i % 4}" for i, name in enumerate(names)}
    at = {
        name: [
            {"offset_bytes": 0, "length_bytes": workload.file_sizes[name], "hosts": [lies[name]]}
        ]
        for name in names
    }
    done = Simulator(workload, 1, None, json.dumps(at)).full(platform.lower(), seed)
    tasks, operations = [], []
    for task in done["tasks"]:
        row = {k: task[k] for k in ("stage", "host", "start_s", "end_s")}
        tasks.append({"task": task["name"], "ready_s": 0.0, "sent_s": 0.0, **row})
        known = next(t for t in workload.tasks if t.name == task["name"])
        for number, (one, span) in enumerate(zip(known.operations, task["spans"], strict=True)):
            took = (span["end_s"] - span["start_s"]) * float(np.exp(chance.normal(0, spread)))
            operations.append(
                {
                    "task": task["name"],
                    "number": number,
                    "op": one.op,
                    "file": one.file,
                    "offset_bytes": 0,
                    "size_bytes": one.size_bytes,
                    "start_s": span["start_s"],
                    "end_s": span["start_s"] + took,
                }
            )
    extents = {n: [Extent(0, workload.file_sizes[n], (lies[n],))] for n in names}
    run = Executed(
        makespan(done),
        pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow),
        pa.Table.from_pylist(operations, TABLES["workflow_operations"].arrow),
        extents=extents,
    )
    return Comparison(workload, [run])


@pytest.mark.parametrize("named", PLANTS)
def test_what_is_changed_is_named_first(named: str) -> None:
    platform = Platform.from_dict(PLATFORM)
    known = usual(platform, [_ran(platform, seed) for seed in (1, 2, 3)])
    truth = platform.with_values(PLANTS[named])
    found = suspects(platform, [_ran(truth, seed) for seed in (4, 5, 6)], known)
    assert found
    assert found[0].name == named


def test_nothing_is_named_where_chance_alone_differs() -> None:
    platform = Platform.from_dict(PLATFORM)
    known = usual(platform, [_ran(platform, seed) for seed in (1, 2, 3)])
    assert suspects(platform, [_ran(platform, seed) for seed in (4, 5, 6)], known) == []


def test_what_the_model_is_always_off_by_is_no_suspicion() -> None:
    """With the healthy runs made by another truth, the same truth is nothing new."""
    platform = Platform.from_dict(PLATFORM)
    truth = platform.with_values(PLANTS["storage.read"])
    known = usual(platform, [_ran(truth, seed) for seed in (1, 2, 3)])
    assert suspects(platform, [_ran(truth, seed) for seed in (4, 5, 6)], known) == []
    assert suspects(platform, [_ran(truth, seed) for seed in (4, 5, 6)]) != []
