"""Hints from the graph are applied if the prediction shows a gain; comparison of two stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.engines.moosefs import MooseFS
from penstock.parts.stores.workflow.benefit import chosen_hints
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT, Comparison
from penstock.parts.stores.workflow.spread import Spread
from penstock.platform.hosts import Platform, load_platform

MIB = 2**20


def platform(tmp_path: Path, bandwidth: str, loopback: str) -> Platform:
    path = tmp_path / "p.yaml"
    path.write_text(f"""
penstock_platform: 1
name: p
hosts:
  - {{group: head, count: 1, roles: [manager], manager: {{service: 0.5ms}}}}
  - group: node
    count: 4
    roles: [storage, client]
    storage: {{read: 1ms, write: 1ms}}
network: {{bandwidth: {bandwidth}, loopback: {loopback}}}
store: {{engine: moosefs}}
scheduler: {{kind: data_location}}
""")
    return load_platform(path, [], predicted=True)


def chains(width: int = 3, size: int = 16 * MIB) -> Workload:
    """Chains of two tasks, each with a file between them."""
    files = tuple(File(f"in-{i}", size, preloaded=True) for i in range(width))
    tasks = []
    for i in range(width):
        read, write = Operation("read", f"in-{i}", 0, size), Operation("write", f"m-{i}", 0, size)
        tasks.append(Task(f"a-{i}", (read, write), "first"))
        tasks.append(Task(f"b-{i}", (Operation("read", f"m-{i}", 0, size),), "second"))
    return Workload("chains", files, tuple(tasks))


def hinted(workload: Workload) -> set[str]:
    return {f.name for f in workload.files if f.hints is not None}


def test_a_hint_that_pays_is_applied_with_its_reason(tmp_path: Path) -> None:
    workload, decisions = chosen_hints(
        chains(), platform(tmp_path, "100 Mbit/s", "1 GB/s"), MooseFS().support()
    )
    (decision,) = decisions
    assert decision.applied
    assert (decision.files, decision.hint) == (3, "DP=local")
    assert decision.low_s is not None
    assert decision.low_s > 0
    assert hinted(workload) == {"m-0", "m-1", "m-2"}
    assert str(decision).startswith("hint DP=local for 3 files (first -> second, local): applied, ")


def test_a_hint_that_does_not_pay_is_not_applied(tmp_path: Path) -> None:
    # a node reaches itself more slowly than the others
    workload, (decision,) = chosen_hints(
        chains(), platform(tmp_path, "10 Gbit/s", "1 MB/s"), MooseFS().support()
    )
    assert not decision.applied
    assert "it would take longer" in decision.reason
    assert hinted(workload) == set()


def test_a_hint_that_the_store_refuses_is_not_predicted(tmp_path: Path) -> None:
    size = 128 * MIB
    reads = tuple(Task(f"r-{i}", (Operation("read", "f", i * size, size),)) for i in range(3))
    writer = Task("w", (Operation("write", "f", 0, 3 * size),))
    flow = Workload("parts", (), (writer, *reads))
    _, (decision,) = chosen_hints(
        flow, platform(tmp_path, "1 Gbit/s", "1 GB/s"), MooseFS().support()
    )
    assert not decision.applied
    assert decision.reason.startswith("the store refuses it: chunks of 64 MiB")
    assert decision.gain_s is None


@pytest.mark.parametrize(
    ("measured", "predicted", "sign"),
    [
        (Spread(2.0, 1.0, 3.0), Spread(1.0, 0.5, 1.5), "right"),
        (Spread(2.0, 1.0, 3.0), Spread(-1.0, -1.5, -0.5), "wrong"),
        (Spread(2.0, -1.0, 5.0), Spread(1.0, 0.5, 1.5), "undecided"),
        (Spread(2.0), Spread(1.0, 0.5, 1.5), "undecided"),
    ],
)
def test_the_sign_of_a_prediction(measured: Spread, predicted: Spread, sign: str) -> None:
    compared = Comparison({}, [DEFAULT, AWARE], measured, predicted)
    assert compared.sign == sign
