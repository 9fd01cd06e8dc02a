"""Predictions compared with measured runs: order, regret, Kendall's tau, resumption, placements."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.documents import EXPLORATION
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.exploration.confirmation.confirm import (
    RUNS,
    MeasuredRuns,
    confirm,
    first_configurations,
)
from penstock.parts.prediction.exploration.document import document
from penstock.parts.prediction.exploration.recommend import recommend
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.request import hinted
from penstock.parts.prediction.exploration.run import Exploration, Question, Settings, explore
from penstock.parts.prediction.exploration.simulate import Simulated
from penstock.parts.prediction.exploration.space.expression import parse_objective
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.parts.prediction.report.exploration import Named, page
from penstock.parts.prediction.report.exploration_text import answer, confirmed_table
from penstock.parts.prediction.workloads.synthetic import Shape, pipeline
from penstock.platform.hosts import read_platform
from tests.examples.explore import Known, Quiet, space_of

#: predicted makespans by number of hosts
TIMES = {2: 100.0, 4: 110.0, 6: 130.0, 8: 200.0}


def explored(objective: str | None = "time") -> Exploration:
    space = space_of("hosts.app.count=2,4,6,8")
    evaluator = Known(
        space, lambda values: TIMES[values["hosts.app.count"]], watts=None, common=0.05
    )
    question = Question(None if objective is None else parse_objective(objective))
    return explore(Record(space, evaluator), question, Settings(), Quiet())


class Store:
    """Measures planted makespans of configuration i in run n."""

    def __init__(self, makespans: dict[int, list[float]], fails: dict[int, str] | None = None):
        self.makespans, self.fails = makespans, fails or {}
        self.saturated: list[float] = []
        self.calls: list[tuple[Candidate, int]] = []

    def measure(self, c: Candidate, repeat: int, measured: Callable[[float, bool], None]) -> None:
        self.calls.append((c, repeat))
        for _ in range(repeat):
            if c[0] in self.fails:
                raise PenstockError(self.fails[c[0]])
            makespan_s = self.makespans[c[0]].pop(0)
            measured(makespan_s, makespan_s in self.saturated)


def test_the_first_configurations_are_in_the_order_of_the_prediction() -> None:
    assert first_configurations(explored(), 3) == [(0,), (1,), (2,)]
    assert first_configurations(explored(), 99) == [(0,), (1,), (2,), (3,)]


def test_regret_and_tau_of_a_wrong_order() -> None:
    """The second takes 90 s, the chosen one 99 s: 10 % regret; one of three pairs is reversed."""
    exploration = explored()
    store = Store({0: [98.0, 100.0], 1: [89.0, 91.0], 2: [129.0, 131.0]})
    comparison = confirm(
        exploration, first_configurations(exploration, 3), 2, store.measure, MeasuredRuns(None)
    )
    assert [row.measured_s for row in comparison.rows] == [99.0, 90.0, 130.0]
    assert comparison.regret == pytest.approx(0.1)
    assert comparison.tau == pytest.approx(1 / 3)
    low, high = comparison.rows[0].ends(0.9)  # type: ignore[misc]
    assert (99 - low) / 1.0 == pytest.approx(6.314, abs=1e-3)  # Student, one degree of freedom
    assert high - 99 == pytest.approx(99 - low)
    exploration.confirmation = comparison
    point = dict(answer(exploration, recommend(exploration)).points)["Confirmation"]
    assert point.startswith(
        "3 configurations measured, 2 runs each; regret 10.0 %; Kendall's tau 0.33."
    )
    rows = confirmed_table(exploration).rows
    assert [row[0] for row in rows] == [f"{n} application hosts" for n in (2, 4, 6)]
    report = document(exploration, recommend(exploration))
    assert report["confirmed"]["rows"][1]["makespans_s"] == [89.0, 91.0]
    assert report["confirmed"]["regret"] == pytest.approx(0.1)
    assert set(report) == {k.path.split("[")[0].split(".")[0] for k in EXPLORATION.keys}
    html = page(exploration, recommend(exploration), Named("work", "platform"))
    assert 'id="confirmed"' in html
    assert "not measured" not in html


def test_the_regret_is_that_of_the_objective() -> None:
    """Costs of 3 and 5 hosts: predicted 3 x 100 and 5 x 110, measured 600 and 500."""
    exploration = explored("cost")
    store = Store({0: [200.0], 1: [100.0]})
    comparison = confirm(exploration, [(0,), (1,)], 1, store.measure, MeasuredRuns(None))
    assert comparison.regret == pytest.approx(0.2)
    assert comparison.rows[0].ends(0.9) is None
    assert "(cost)" in comparison.text


def test_measured_runs_are_not_repeated(tmp_path: Path) -> None:
    exploration = explored()
    candidates = first_configurations(exploration, 2)
    first = Store({0: [98.0], 1: []})

    def interrupted(c: Candidate, repeat: int, measured: Callable[[float, bool], None]) -> None:
        first.measure(c, 1, measured)
        raise KeyboardInterrupt

    comparison = confirm(exploration, candidates, 2, interrupted, MeasuredRuns(tmp_path))
    assert comparison.stopped
    assert [row.makespans_s for row in comparison.rows] == [(98.0,), ()]
    assert first.calls == [((0,), 1)]
    with (tmp_path / RUNS).open("a") as file:
        file.write('{"candidate_id": "c0000')  # cut off by a crash
    second = Store({0: [100.0], 1: [90.0, 91.0]})
    second.saturated = [91.0]
    comparison = confirm(exploration, candidates, 2, second.measure, MeasuredRuns(tmp_path))
    assert not comparison.stopped
    assert second.calls == [((0,), 1), ((1,), 2)]
    assert comparison.rows[0].makespans_s == (98.0, 100.0)
    third = Store({})
    repeated = confirm(exploration, candidates, 2, third.measure, MeasuredRuns(tmp_path))
    assert third.calls == []
    assert repeated == comparison
    assert [r.saturated for r in repeated.rows] == [0, 1]
    assert "the host was saturated in 1 of 4 runs" in repeated.text


def test_a_failed_configuration_has_a_reason() -> None:
    exploration = explored()
    store = Store({1: [90.0]}, fails={0: "node-1 did not start"})
    comparison = confirm(exploration, [(0,), (1,)], 1, store.measure, MeasuredRuns(None))
    assert [row.error for row in comparison.rows] == ["node-1 did not start", ""]
    assert (comparison.regret, comparison.tau) == (None, None)
    assert "1 failed" in comparison.text
    none = Store({}, fails={0: "node-1 did not start", 1: "nor node-2"})
    with pytest.raises(PenstockError, match="node-1 did not start"):
        confirm(exploration, [(0,), (1,)], 1, none.measure, MeasuredRuns(None))


def test_measured_configurations_are_no_next_step() -> None:
    space = space_of("hosts.app.count=2,4")
    evaluator = Known(space, lambda _: 100.0, price=None, watts=None, independent=0.05)
    exploration = explore(Record(space, evaluator), Question(), Settings(), Quiet())
    rec = recommend(exploration)
    assert rec.state == "undecided"
    assert "Next step" in dict(answer(exploration, rec).points)
    store = Store({0: [99.0], 1: [101.0]})
    exploration.confirmation = confirm(exploration, rec.run, 1, store.measure, MeasuredRuns(None))
    assert "Next step" not in dict(answer(exploration, rec).points)
    half = replace(exploration.confirmation, rows=exploration.confirmation.rows[:1])
    exploration.confirmation = half
    assert "Next step" in dict(answer(exploration, rec).points)


PLATFORM = b"""
penstock_platform: 1
name: nodes
hosts:
  - group: node
    count: 4
    roles: [client, storage]
    storage: {read: {per_byte: 1 ms/MiB}, write: {per_byte: 1 ms/MiB}}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 20 Mbit/s, loopback: 1 GB/s, latency: 50us}
"""


def test_placements_are_default_and_workflow_aware() -> None:
    """Each file has one reader: with hints and by data, no byte crosses the slow links."""
    platform = read_platform(PLATFORM, Path("platform.yaml"), [])
    workload = pipeline(Shape(width=4, file_bytes=4 << 20, compute_s=0.1))
    space = space_of("placement=default,workflow-aware", "store.chunk=1MiB,4MiB")
    variants = hinted(workload, platform, space)
    simulated = Simulated(workload, platform, space, 0, variants)
    measures = {c: m for c, (m,) in zip(space, simulated.evaluate(list(space), [1]), strict=True)}
    for chunk in (0, 1):
        default, aware = measures[(0, chunk)], measures[(1, chunk)]
        assert aware.makespan_s < 0.7 * default.makespan_s
        assert aware.network_bytes < default.network_bytes
    assert simulated.platform_values((1, 0)) == {
        "scheduler.kind": "data_location",
        "store.chunk": "1MiB",
    }
    assert all(f.hints is None for f in simulated.workload_of((0, 0)).files)
    assert any(f.hints is not None for f in simulated.workload_of((1, 0)).files)
    assert simulated.judge((1, 0))["makespan_s"] == pytest.approx(
        measures[(1, 0)].makespan_s, rel=0.2
    )


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(BadInput, match="expected default or workflow-aware"):
        space_of("placement=default,aware")


def test_the_command_measures_predicted_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli import main
    from penstock.plugins import FUNCTIONS

    calls: list[dict[str, Any]] = []

    def measure(workflow: Path, platform: Path, changes: Any, *others: Any) -> None:
        inputs, repeat, measured, _ = others
        hints = [f.get("hints") for f in json.loads(workflow.read_text())["files"]]
        calls.append({"changes": changes, "repeat": repeat, "hints": any(hints), "inputs": inputs})
        for _ in range(repeat):
            measured(5.0, False)

    load = type(FUNCTIONS).load
    monkeypatch.setattr(
        type(FUNCTIONS),
        "load",
        lambda table, name: measure if name == "measure-configuration" else load(table, name),
    )
    workflow = pipeline(Shape(width=4, file_bytes=4 << 20, compute_s=0.1))
    (tmp_path / "w.json").write_text(json.dumps(workflow.to_dict()))
    (tmp_path / "p.yaml").write_bytes(PLATFORM)
    out = tmp_path / "out"
    arguments = ["explore", str(tmp_path / "w.json"), "-p", str(tmp_path / "p.yaml")]
    arguments += ["--vary", "placement=default,workflow-aware", "--set", "network.latency=60us"]
    arguments += [
        "--objective",
        "time",
        "--confirm",
        "2",
        "--repeat",
        "2",
        "-o",
        str(out),
        "--json",
    ]
    for resume in ([], ["--resume"]):
        monkeypatch.setattr("sys.argv", ["penstock", *arguments, *resume])
        with pytest.raises(SystemExit, match="0"):
            main()
        report = json.loads(capsys.readouterr().out)
        assert [r["makespans_s"] for r in report["confirmed"]["rows"]] == [[5.0, 5.0]] * 2
    assert [call["hints"] for call in calls] == [True, False]
    assert calls[0]["changes"] == ["network.latency=60us", "scheduler.kind=data_location"]
    assert calls[1]["changes"] == ["network.latency=60us", "scheduler.kind=workqueue"]
    assert all(call["repeat"] == 2 and call["inputs"] == tmp_path for call in calls)
    assert report["recommendation"]["configuration"]["placement"] == "workflow-aware"
