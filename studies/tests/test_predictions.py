"""The comparison of predictions with runs: frozen scenarios, resuming, evaluation, faults, and its page."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import record
from penstock.errors import BadInput, PenstockError
from penstock.host.network.loopback import Measured as Interval
from penstock.parts.prediction.queue_network.identify import Measured
from penstock.parts.prediction.queue_network.simulate import Simulator
from penstock.parts.prediction.workloads.engine_hints import supported
from penstock.parts.stores.calibration.seed import Measurements
from penstock.parts.stores.calibration.trials import Trials
from penstock.parts.stores.calibration.window import DelayedReads
from penstock.parts.stores.workflow.running.executed import RunFailed, executed
from penstock.parts.stores.workflow.running.recovery import Troubles
from penstock.platform.hosts import Platform
from studies import predictions
from studies.claims import Result, status
from studies.common import host_load
from studies.common.host_load import Limits, Load
from studies.common.measurements import measurement_values, measurements_of
from studies.common.results import RowFile
from studies.prediction_study import accuracy, evaluation, faults, runs
from studies.prediction_study.evaluation import Case, Predicted
from studies.prediction_study.faults import CLEAN, FAULTS, HEALTHY, SEEDED, WORKLOADS
from studies.prediction_study.runs import (
    KINDS,
    QUICK,
    WARM_UP,
    Head,
    Part,
    Prediction,
    Run,
    Runner,
    Seeds,
)
from studies.prediction_study.scenarios import FROZEN, Scenario, checksum, frozen, frozen_text

IDLE = Load(0.2, 0.0, 0.01, 0.1, 0.4)
BUSY = replace(IDLE, busy=0.9)
PLAIN, HINTED = (Scenario("pipeline", 4, 4, hints) for hints in (False, True))
HEAD = Head("moosefs", "quick", "0")
SIZE = replace(QUICK, runs=3)


def run(scenario: Scenario, number: int, seconds: float = 2.0, load: Load = IDLE) -> Run:
    reason = Limits().exceeded(load)
    return Run(scenario, "", number, seconds, load, {"a": "node-0"}, [], {}, reason)


def case(times: list[float], predicted_s: float, scenario: Scenario = PLAIN) -> Case:
    predicted = Predicted(predicted_s, 0.9 * predicted_s, 1.1 * predicted_s, "ok")
    return Case(scenario, tuple(times), predicted)


class TestFrozen:
    """The list of scenarios."""

    def test_the_list_covers_all_engines_patterns_and_hints(self) -> None:
        scenarios = frozen()
        assert set(scenarios) == {"moosefs", "cephfs", "glusterfs"}
        everything = [
            scenario for engine_scenarios in scenarios.values() for scenario in engine_scenarios
        ]
        assert len(everything) >= 60
        assert all(
            len(set(engine_scenarios)) == len(engine_scenarios)
            for engine_scenarios in scenarios.values()
        )
        assert {scenario.nodes for scenario in everything} == {4, 8, 16}
        for engine_scenarios in scenarios.values():
            assert {scenario.pattern for scenario in engine_scenarios} == {
                "pipeline", "reduce", "broadcast", "scatter", "gather",
            }  # fmt: skip
            assert {scenario.hints for scenario in engine_scenarios} == {False, True}
            assert any(scenario.slow_link for scenario in engine_scenarios)
            assert any(scenario.slow_disk for scenario in engine_scenarios)
        assert frozen_text(scenarios) == FROZEN.read_text("utf-8")

    @pytest.mark.parametrize("engine", ["moosefs", "cephfs", "glusterfs"])
    def test_engines_support_the_hints_and_the_clusters(self, engine: str) -> None:
        for scenario in frozen()[engine]:
            nodes = runs.cluster_of(engine, scenario)
            workload = runs.workload_of(scenario, nodes)
            assert any(file.hints for file in workload.files) == scenario.hints
            assert supported(workload, nodes)[0].files == workload.files
            first, second = (n for n in nodes.hosts if n.name in ("node-0", "node-1"))
            assert (first.node.disks == second.node.disks) == (not scenario.slow_disk)

    def test_another_list_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "scenarios.json"
        file.write_text(FROZEN.read_text("utf-8").replace('["gather", 4', '["gather", 2', 1))
        with pytest.raises(BadInput, match="another list"):
            frozen(file)

    def test_a_frozen_list_cannot_be_replaced(self, tmp_path: Path) -> None:
        predictions.freeze(tmp_path / "out", {"moosefs": [PLAIN]})
        predictions.freeze(tmp_path / "out", {"moosefs": [PLAIN]})
        with pytest.raises(BadInput, match="other scenarios"):
            predictions.freeze(tmp_path / "out", {"moosefs": [HINTED]})

    def test_results_of_another_list_are_not_continued(self, tmp_path: Path) -> None:
        Part.opened(tmp_path / "a.jsonl", HEAD)
        with pytest.raises(BadInput, match="Use another OUT"):
            Part.opened(tmp_path / "a.jsonl", replace(HEAD, sha256="1"))


def test_a_killed_program_loses_the_incomplete_last_row_only(tmp_path: Path) -> None:
    file = RowFile(tmp_path / "rows.jsonl", KINDS)
    rows = [HEAD, run(PLAIN, 0), run(HINTED, 1)]
    for row in rows:
        file.append(row)
    complete = file.path.read_bytes()
    for lost in (1, 7):
        file.path.write_bytes(complete[:-lost])
        assert file.rows() == rows[:2]
    file.append(rows[2])
    assert file.rows() == rows
    file.path.write_text("[]\n")
    with pytest.raises(BadInput, match="line 1"):
        file.rows()


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (IDLE, ""),
        (BUSY, "processors busy 90 %, limit 70 %"),
        (replace(IDLE, stolen=0.1), "processors stolen 10 %, limit 2 %"),
        (replace(IDLE, others=0.5), "processors used by others 50 %, limit 10 %"),
        (replace(IDLE, cpu_waiting=0.8), "waiting for a processor 80 %, limit 50 %"),
        (replace(IDLE, cpu_waiting=None, io_waiting=1.0), ""),
    ],
)
def test_runs_on_a_saturated_host_are_not_valid(load: Load, reason: str) -> None:
    assert Limits().exceeded(load) == reason


def test_the_load_of_others_excludes_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 s on two processors: 12 s are busy; nodes use 4 s, their disk server 1 s, this process 3 s."""

    def node(*used_s: float) -> SimpleNamespace:
        times = iter(used_s)
        return SimpleNamespace(cgroup=SimpleNamespace(cpu_ns=lambda: round(1e9 * next(times))))

    server_s = iter([5.0, 6.0])

    def disks() -> list[dict[str, object]]:
        row = {"disks": {"store": {"stats": {"server_cpu_ns": 1e9 * next(server_s)}}}}
        return [row, {"disks": {}}]

    cluster = SimpleNamespace(nodes={"a": node(1.0, 4.0), "b": node(2.0, 3.0)}, status=disks)
    monkeypatch.setattr(host_load.os, "cpu_count", lambda: 2)
    ticks, clock, own = iter([(0, 0), (2000, 800)]), iter([0.0, 10.0]), iter([7.0, 10.0])
    monkeypatch.setattr(host_load, "busy_ticks", lambda: next(ticks))
    monkeypatch.setattr(host_load, "_stolen_ticks", lambda: 0)
    monkeypatch.setattr(host_load, "_waited_s", lambda _: None)
    times = SimpleNamespace(monotonic=lambda: next(clock), process_time=lambda: next(own))
    monkeypatch.setattr(host_load, "time", times)
    with host_load.watched(cluster) as watch:  # type: ignore[arg-type]
        pass
    assert watch.load.busy == pytest.approx(0.6)
    assert watch.load.others == pytest.approx(0.2)


class Campaign:
    """Runs of scenarios without a store: each takes its predicted time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.path, self.stores, self.measured = path, 0, list[tuple[Scenario, int]]()
        self.loads: list[Load] = []
        self.fail_at = -1
        monkeypatch.setattr(runs, "store_of", self._store_of)
        monkeypatch.setattr(Runner, "run", self._run)

    @contextlib.contextmanager
    def _store_of(self, *_: object) -> Iterator[None]:
        self.stores += 1
        yield None

    def _run(self, scenario: Scenario, number: int, label: str = "") -> Run:
        if len(self.measured) == self.fail_at:
            raise KeyboardInterrupt
        self.measured.append((scenario, number))
        load = self.loads.pop(0) if self.loads and number != WARM_UP else IDLE
        return run(scenario, number, load=load)

    def go(self) -> Part:
        part = Part.opened(self.path, HEAD)
        if part.seeds is None:
            part.add(Seeds({}))
            for scenario in (PLAIN, HINTED):
                part.add(Prediction(scenario, Predicted(2.0, 1.0, 3.0, "ok")))
            part.add(Prediction(PLAIN, Predicted(4.0, 1.0, 9.0, "ok"), planted=True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "platform_of", lambda *_: None)
            runs.measure(part, [PLAIN, HINTED], SIZE)
        return part


@pytest.fixture(name="campaign")
def _campaign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Campaign:
    return Campaign(monkeypatch, tmp_path / "moosefs.jsonl")


class TestMeasure:
    """Warm-ups, repetitions, and continuation after an interruption."""

    def test_the_first_run_of_each_scenario_does_not_count(self, campaign: Campaign) -> None:
        part = campaign.go()
        assert [n for _, n in campaign.measured] == [WARM_UP] * 2 + [0, 0, 1, 1, 2, 2]
        assert [len(part.valid(scenario)) for scenario in (PLAIN, HINTED)] == [3, 3]
        assert len(part.runs) == 8

    def test_runs_on_a_saturated_host_are_repeated_up_to_a_limit(self, campaign: Campaign) -> None:
        campaign.loads = [BUSY, IDLE, BUSY]
        part = campaign.go()
        assert [len(part.valid(entry)) for entry in (PLAIN, HINTED)] == [3, 3]
        assert sum(bool(entry.reason) for entry in part.runs) == 2
        campaign.path.unlink()
        campaign.loads = [BUSY] * 100
        part = campaign.go()
        assert [len(part.counted(entry)) for entry in (PLAIN, HINTED)] == [3, 3]
        assert not [entry for entry in part.runs if not entry.reason and entry.number != WARM_UP]

    def test_an_interrupted_campaign_continues(self, campaign: Campaign) -> None:
        campaign.fail_at = 5
        with pytest.raises(KeyboardInterrupt):
            campaign.go()
        before = list(campaign.measured)
        campaign.fail_at = -1
        part = campaign.go()
        again = campaign.measured[len(before) :]
        counted = [entry for entry in (*before, *again) if entry[1] != WARM_UP]
        assert sorted(map(str, counted)) == sorted(
            str((s, n)) for s in (PLAIN, HINTED) for n in range(3)
        )
        # scenarios on a new store need warm-up runs
        assert [n for _, n in again].count(WARM_UP) == 2
        assert [len(part.valid(entry)) for entry in (PLAIN, HINTED)] == [3, 3]
        stores = campaign.stores
        campaign.go()
        assert campaign.stores == stores  # all runs exist: no store is started

    def test_a_store_that_fails_is_replaced(
        self, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual_run, failed = campaign._run, list[int]()

        def failing(scenario: Scenario, number: int, label: str = "") -> Run:
            if number == 1 and not failed:
                failed.append(number)
                raise RunFailed("a task failed", SimpleNamespace())  # type: ignore[arg-type]
            return usual_run(scenario, number, label)

        monkeypatch.setattr(Runner, "run", staticmethod(failing))
        part = campaign.go()
        assert campaign.stores == 2
        assert [entry.reason for entry in part.runs if entry.reason] == ["failed: a task failed"]
        assert [len(part.valid(entry)) for entry in (PLAIN, HINTED)] == [3, 3]

    def test_a_store_that_does_not_start_ends_the_campaign(
        self, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(*_: object) -> None:
            raise PenstockError("no")

        monkeypatch.setattr(runs, "store_of", failing)
        with pytest.raises(PenstockError, match="no"):
            campaign.go()


def test_the_slow_link_and_the_slow_disk_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def seeded(_: Platform, seen: str) -> SimpleNamespace:
        slow = {w: {"per_byte": "50 ms/MiB"} for w in ("read", "write")} if seen == "slow" else {}
        document = runs.cluster(faults.ENGINE).with_values(SERVICES).document
        (group,) = (g for g in document["hosts"] if g["group"] == "node")
        return SimpleNamespace(document={"hosts": [{**group, "storage": slow or group["storage"]}]})

    monkeypatch.setattr(runs, "identified", seeded)
    monkeypatch.setattr(runs, "measurements_of", lambda values: values["of"])
    seeds = Seeds({"of": "nominal"}, {"of": "slow"})
    platform = runs.cluster(faults.ENGINE).with_values(SERVICES)
    for scenario in (replace(HINTED, slow_link=True), replace(HINTED, slow_disk=True)):
        values = runs.values_of(faults.ENGINE, seeds, scenario)
        _, first, second, *_ = platform.with_values(values).lower()["hosts"]
        rates = [host["network"]["out_bps"] for host in (first, second)]
        times = [host["storage"]["read"]["s_per_byte"] * 2**20 for host in (first, second)]
        assert rates[0] / rates[1] == (0.5 if scenario.slow_link else 1)
        assert times == pytest.approx([0.05 if scenario.slow_disk else 0.11, 0.11])
    with pytest.raises(BadInput, match="slow disk"):
        runs.values_of(faults.ENGINE, Seeds({"of": "nominal"}), replace(HINTED, slow_disk=True))


def test_a_run_has_the_hosts_of_its_tasks_and_the_reason_if_invalid() -> None:
    workload = PLAIN.workload()
    empty = executed(workload, {}, 0, extents={}, tags=[], troubles=Troubles())
    assert runs.run_of(PLAIN, empty, 0, "", IDLE, Limits()).reason == ""
    assert "busy" in runs.run_of(PLAIN, empty, 0, "", BUSY, Limits()).reason
    empty.died.append("node-1")
    assert runs.run_of(PLAIN, empty, 0, "", IDLE, Limits()).reason == "died: node-1"


class TestEvaluation:
    """Scores of cases with known results."""

    def test_a_perfect_model_is_limited_by_the_spread_of_the_runs(self) -> None:
        """65 % of means of two runs with a deviation of 15 % are within 10 %: P(|z| < 0.1 √2 / 0.15)."""
        random = np.random.default_rng(1)
        noisy = [case(list(10 * (1 + 0.15 * random.standard_normal(2))), 10.0) for _ in range(200)]
        expected = 200 * math.erf(0.1 * math.sqrt(2) / 0.15 / math.sqrt(2))
        assert evaluation.ceiling(noisy, 0.1) == pytest.approx(expected, rel=0.08)
        assert evaluation.ceiling(noisy, 0.2) > evaluation.ceiling(noisy, 0.1)
        many = [case(list(10 * (1 + 0.15 * random.standard_normal(30))), 10.0) for _ in range(20)]
        assert evaluation.ceiling(many, 0.1) > 19.9
        assert evaluation.ceiling([case([10.0, 10.0], 20.0)], 0.1) == 1.0

    @pytest.mark.parametrize(
        ("inside", "runs_", "verdict"),
        [(85, 100, "met"), (84, 100, "missed"), (8, 8, "met"), (590, 600, "missed")],
    )
    def test_intervals_may_be_too_narrow_or_too_wide(
        self, inside: int, runs_: int, verdict: str
    ) -> None:
        assert evaluation._coverage("a", "b", inside, runs_)["verdict"] == verdict

    def test_order_and_regret(self) -> None:
        slow, fast = case([10.0, 12.0], 11.0), case([5.0, 5.0], 6.0, HINTED)
        assert evaluation.regret([slow, fast]) == 0
        wrong = replace(fast, predicted=Predicted(20.0, 1.0, 30.0, "ok"))
        assert evaluation.regret([slow, wrong]) == pytest.approx(1.2)
        middle = case([7.0, 7.0], 8.0, replace(PLAIN, nodes=8))
        assert evaluation.tau([slow, fast, middle]) == 1.0
        assert evaluation.tau([slow, wrong, middle]) == pytest.approx(-1 / 3)

    def test_a_deviation_above_20_percent_is_allowed_only_outside_the_model(self) -> None:
        far = case([10.0, 10.0], 15.0)
        outside = replace(far, predicted=replace(far.predicted, verdict="outside"))
        for outcome, verdict in ((far, "missed"), (outside, "met")):
            rows = {r["metric"]: r for r in evaluation.rows([case([9.0, 9.1], 9.0), outcome], "a")}
            assert rows["a: farthest off"]["verdict"] == verdict
            assert rows["predicted within 10 %"]["value"] == "1 of 2"

    def test_an_interval_without_end_includes_all_longer_times(self) -> None:
        assert Predicted(1.0, 0.5, None, "ok").includes(1e9)
        assert not Predicted(1.0, 0.5, None, "ok").includes(0.4)


@pytest.fixture(name="measured")
def _measured(campaign: Campaign) -> predictions.Results:
    part = campaign.go()
    return predictions.Results(SIZE, {"moosefs": [PLAIN, HINTED]}, {"moosefs": part})


class TestProgram:
    """Claims, the planted model, and recording."""

    def test_a_scenario_without_its_runs_is_not_measured(
        self, measured: predictions.Results
    ) -> None:
        rows, claims = predictions.rows_and_claims(measured)
        assert {c.result for c in claims} == {Result.MET, Result.NOT_MET}  # wide intervals
        assert [r["value"] for r in rows if r["metric"] == "predicted"] == [2.0, 2.0]
        measured.parts["moosefs"].runs.remove(measured.parts["moosefs"].valid(HINTED)[0])
        rows, claims = predictions.rows_and_claims(measured)
        assert {c.result for c in claims} == {Result.NOT_MEASURED}
        assert {c.missing for c in claims} == {(f"moosefs: {HINTED}",)}
        assert status(claims) == 3
        measured.parts["moosefs"].runs.clear()
        assert [c.result for c in predictions.rows_and_claims(measured)[1]] == [Result.NOT_MEASURED]
        assert predictions.planted(measured) == {predictions.PLANT: None}

    def test_links_of_half_the_rate_are_detected(self, measured: predictions.Results) -> None:
        assert predictions.planted(measured) == {predictions.PLANT: True}
        part = measured.parts["moosefs"]
        part.predictions = [
            replace(p, predicted=Predicted(2.1, 1, 3, "ok")) for p in part.predictions
        ]
        assert predictions.planted(measured) == {predictions.PLANT: False}

    def test_only_complete_results_are_recorded(
        self, measured: predictions.Results, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        names: list[str] = []
        monkeypatch.setattr(record, "keep", lambda name, *_: names.append(name))
        monkeypatch.setattr(predictions, "HERE", tmp_path)
        options = argparse.Namespace(record="", only=[], engine=None)
        predictions.keep(options, measured, [], {})
        assert names == []  # not of the full size
        monkeypatch.setattr(predictions, "FULL", SIZE)
        predictions.keep(options, measured, [], {})
        assert names == [""]
        stored = RowFile(tmp_path / "recorded" / "moosefs.jsonl.gz", KINDS).rows()
        assert stored == measured.parts["moosefs"].file.rows()
        measured.parts["moosefs"].runs.pop()
        predictions.keep(options, measured, [], {})
        assert names == [""]


def simulated(platform: Platform, scenario: Scenario, label: str, number: int, seed: int) -> Run:
    """A run whose operations take their simulated times, within 3 %; each file is on one node."""
    nodes = [h.name for h in platform.hosts if "client" in h.roles]
    workload = runs.workload_of(scenario, runs.cluster(faults.ENGINE))
    random = np.random.default_rng(seed)
    hosts, places = dict[str, str](), dict[str, list[runs.Row]]()
    for i, task in enumerate(workload.tasks):
        hosts[task.name] = nodes[i % len(nodes)]
        for operation in task.operations:
            if operation.file is not None:
                any_node = nodes[random.integers(len(nodes))]
                host = hosts[task.name] if scenario.hints else any_node
                size = workload.file_sizes[operation.file]
                place = {"offset_bytes": 0, "length_bytes": size, "hosts": [host]}
                places.setdefault(operation.file, [place])
    tasks = tuple(replace(task, machine=hosts[task.name]) for task in workload.tasks)
    simulator = Simulator(replace(workload, tasks=tasks), 1, None, json.dumps(places))
    outcome = simulator.full(platform.lower(), seed)
    spans = {task["name"]: task["spans"] for task in outcome["tasks"]}
    operations = []
    for task in workload.tasks:
        for index, (operation, span) in enumerate(
            zip(task.operations, spans[task.name], strict=True)
        ):
            took = (span["end_s"] - span["start_s"]) * (1 + 0.03 * random.standard_normal())
            operations.append(
                {
                    "task": task.name, "number": index, "op": operation.op, "file": operation.file,
                    "offset_bytes": operation.offset_bytes, "size_bytes": operation.size_bytes,
                    "start_s": span["start_s"], "end_s": span["start_s"] + max(took, 1e-9),
                }
            )  # fmt: skip
    return Run(scenario, label, number, outcome["makespan_s"], IDLE, hosts, operations, places)


SERVICES = {
    "hosts.node.storage.read": {"overhead": "2 ms", "per_byte": "110 ms/MiB"},
    "hosts.node.storage.write": {"overhead": "2 ms", "per_byte": "110 ms/MiB"},
    "protocol.frame": "16KiB",
}
#: models of the faults
FAULTY = {
    CLEAN: {},
    "a link at 80 %": {"hosts.node.except": {"1": {"network": {"bandwidth": "16 Mbit/s"}}}},
    "a slow disk": {
        "hosts.node.except": {
            "3": {
                "storage": {
                    w: {"overhead": "2 ms", "per_byte": "210 ms/MiB"} for w in ("read", "write")
                }
            }
        }
    },
}


def test_simulated_faults_are_identified_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    healthy = runs.cluster(faults.ENGINE).with_values(SERVICES)
    monkeypatch.setattr(faults, "platform_of", lambda *_: healthy)
    size = replace(QUICK, healthy=3)
    part = Part.opened(tmp_path / "faults.jsonl", HEAD)
    part.seeds = Seeds({})
    seed = 0
    for label, number in (
        *((HEALTHY, n) for n in range(3)),
        *((fault, 0) for fault in FAULTY),
    ):
        platform = healthy.with_values(FAULTY.get(label, {}))
        for scenario in WORKLOADS:
            seed += 1
            part.runs.append(simulated(platform, scenario, label, number, seed))
    suspected = faults.named(part, size)
    first = {label: [s[0].name if s else "" for s in trials] for label, trials in suspected.items()}
    assert first == {
        CLEAN: [""],
        "a link at 80 %": ["link of node-1"],
        "a slow node": [],
        "a slow disk": ["storage of node-3"],
        SEEDED: ["storage.read"],
    }
    results = {c.of: c.result for c in faults.claims_of(suspected, size)}
    assert results.pop("faults: a slow node") is Result.NOT_MEASURED
    assert set(results.values()) == {Result.MET}


class TestFaults:
    """Trials and their claims."""

    def test_nine_of_ten_faults_and_19_of_20_clean_trials(self) -> None:
        size = replace(QUICK, clean=20, faulty=10)
        right = {label: [[named(fault.names[0])]] * 9 + [[]] for label, fault in FAULTS.items()}
        right |= {SEEDED: [[named("storage.read")]] * 9 + [[]]}
        right |= {CLEAN: [[]] * 19 + [[named("link of node-1")]]}
        assert {c.result for c in faults.claims_of(right, size)} == {Result.MET}
        for label in right:
            wrong = {**right, label: [*right[label][1:], [named("storage.write")]]}
            failing = [c.of for c in faults.claims_of(wrong, size) if c.result is Result.NOT_MET]
            assert failing == [f"faults: {label}"]
            few = {**right, label: right[label][1:]}
            missing = [c.of for c in faults.claims_of(few, size) if c.missing]
            assert missing == [f"faults: {label}"]
        assert {c.result for c in faults.claims_of({}, size)} == {Result.NOT_MEASURED}

    def test_a_trial_is_complete_and_valid(self, tmp_path: Path) -> None:
        part = Part.opened(tmp_path / "faults.jsonl", HEAD)
        attempt = [replace(run(scenario, 0), label=CLEAN) for scenario in WORKLOADS]
        part.runs = attempt[:3]  # killed while the runs were being stored
        assert faults.trial(part, CLEAN, 0) == []
        part.runs += attempt
        assert faults.trial(part, CLEAN, 0) == attempt
        assert faults.trial(part, CLEAN, 1) == []
        part.runs = [*attempt[:3], replace(attempt[3], reason="busy")]
        assert faults.trial(part, CLEAN, 0) == []


def named(name: str) -> faults.Suspect:
    return faults.Suspect(name, 1.25, 0.5)


class TestPage:
    """docs/accuracy.md."""

    def test_the_page_agrees_with_the_results(self) -> None:
        page = (accuracy.RESULTS.parents[1] / "docs" / "accuracy.md").read_text("utf-8")
        assert page == accuracy.page()

    def test_measured_scenarios_are_on_the_page(
        self, measured: predictions.Results, tmp_path: Path
    ) -> None:
        assert "Not measured yet" in accuracy.page(tmp_path)
        rows, _ = predictions.rows_and_claims(measured)
        facts = {"command": "c", "date": "d", "commit": "e", "about": "f", "rows": rows}
        (tmp_path / "predictions.json").write_text(json.dumps(facts))
        page = accuracy.page(tmp_path)
        assert "| moosefs | **all** | 2 | 2 | 2 | +0 % | +0 % |" in page
        assert "None." in page
        assert "### Goals" in page
        text = json.dumps({**facts, "rows": rows}).replace('"value": 2.0', '"value": 2.5', 1)
        (tmp_path / "predictions.json").write_text(text)
        assert f"| moosefs | {PLAIN} | 2.5 s (n = 3) | 2 s | −20 % | ok |" in accuracy.page(
            tmp_path
        )

    @pytest.mark.parametrize("scenario", [PLAIN, HINTED, replace(HINTED, slow_link=True),
                                          replace(PLAIN, slow_disk=True)])  # fmt: skip
    def test_names_of_scenarios_are_read_again(self, scenario: Scenario) -> None:
        assert accuracy.scenario_of(str(scenario)) == scenario
        assert accuracy.scenario_of("all runs") is None


def test_checksums_depend_on_engine_and_order() -> None:
    sums = {
        checksum({"moosefs": [PLAIN, HINTED]}),
        checksum({"moosefs": [HINTED, PLAIN]}),
        checksum({"cephfs": [PLAIN, HINTED]}),
    }
    assert len(sums) == 3


def test_measurements_are_stored_completely() -> None:
    rate = Interval(mean=2.4e6, low=2.3e6, high=2.5e6, n=12, converged=True)
    trials = Trials(
        {Measured("read", 65536, True): [0.1, 0.2]}, [0.01], [0.02], [0.03], 3, ["busy"]
    )
    delayed = DelayedReads(0.2, 8, 262144, [0.5], [0.9])
    seen = Measurements("moosefs", trials, rate, rate, rate, delayed)
    text = json.dumps(measurement_values(seen))
    assert measurements_of(json.loads(text)) == seen
    assert measurements_of(json.loads(text) | {"delayed": "none"}).delayed == "none"
