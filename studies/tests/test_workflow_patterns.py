"""The study of workflow patterns: claims on modelled results, treatments, simulations, and resuming."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.parts.prediction.workloads.make import make_workload
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT
from penstock.parts.stores.workflow.running.executed import executed
from penstock.parts.stores.workflow.running.recovery import Troubles
from penstock.platform.hosts import load_platform
from penstock.spec.store import Extent
from studies import workflow_patterns
from studies.claims import Claim, Result, status
from studies.patterns_study import evaluation, runs, splits
from studies.patterns_study.runs import Part, Run, Simulated, remote_bytes, simulate
from studies.patterns_study.treatments import (
    COMPUTE_S,
    FULL,
    GROUNDS,
    QUICK,
    AnyTreatment,
    Ground,
    Size,
    Split,
    SplitGround,
    Treatment,
    ground_of,
)
from studies.stores import DEFAULT as MODEL
from studies.stores import models

PARTS = tuple(GROUNDS)
ENGINES = ("moosefs", "cephfs")
CLUSTER = runs.HERE / "cluster.platform.yaml"
PIPELINE = Treatment("moosefs", 4, "pipeline", 2560, AWARE)
Time = Callable[[Any], float]


def expected_s(treatment: AnyTreatment) -> float:
    """Time of a treatment with which every claim is met."""
    if isinstance(treatment, Split):
        # time of a computation, and of reading from the store
        return COMPUTE_S / treatment.app + 1.7 * max(1.0, treatment.app / treatment.storage)
    if treatment.pattern == "broadcast":
        return 3.0 if treatment.engine == "cephfs" else 4.0 - 0.5 * max(1, treatment.copies)
    return 2.0 if treatment.aware else 5.0


def modelled(name: str, size: Size = QUICK, time: Time = expected_s) -> Part:
    """Complete results: runs differ by one percent."""
    ground, part = ground_of(name, size), Part(name, size, "penstock_platform: 1")
    for treatment in evaluation.required(part):
        part.runs += [
            modelled_run(treatment, block, time(treatment) * (1 + 0.01 * (block % 3 - 1)))
            for block in range(size.repeat)
        ]
    for treatment in evaluation.everything(part):
        times = tuple(expected_s(treatment) * (1 + 0.001 * i) for i in range(size.seeds))
        part.simulated.append(Simulated(treatment, times))
    if isinstance(ground, Ground):
        part.planted = [
            Simulated(replace(PIPELINE, engine=name, store=store), (value,) * size.seeds)
            for store, value in ((DEFAULT, 5.0), (AWARE, 9.0))
        ]
    return part


def patterns_on(name: str, size: Size = QUICK) -> Ground:
    ground = ground_of(name, size)
    assert isinstance(ground, Ground)
    return ground


def modelled_run(treatment: AnyTreatment, block: int, makespan_s: float, reason: str = "") -> Run:
    return Run(
        treatment,
        block,
        makespan_s,
        {"stage-1": makespan_s},
        makespan_s / 10,
        10_000_000,
        5_000_000,
        10_000_000,
        100.0,
        0.3,
        0.1,
        reason,
    )


def failing(claims: list[Claim]) -> dict[str, Result]:
    return {f"{c.of}: {c.wording}": c.result for c in claims if c.result is not Result.MET}


@pytest.mark.parametrize("size", [QUICK, FULL], ids=lambda size: size.name)
@pytest.mark.parametrize("name", PARTS)
def test_expected_times_meet_every_claim(name: str, size: Size) -> None:
    part = modelled(name, size)
    claims = evaluation.claims_of(part)
    assert failing(claims) == {}
    assert status(claims, evaluation.planted(part)) == 0
    named = [f"{c.of}: {c.wording}" for c in claims]
    assert len(set(named)) == len(named)
    # the quick size of CephFS has no pattern whose sign is published
    detected = None if (name, size) == ("cephfs", QUICK) else True
    planted = evaluation.planted(part).values()
    assert list(planted) == [detected] if name == "blast" else [detected, True]
    assert not evaluation.incomplete(part)


@pytest.mark.parametrize("name", PARTS)
def test_a_removed_treatment_is_not_measured(name: str) -> None:
    part = modelled(name)
    unused = 0
    for absent in evaluation.required(part):
        rest = replace(part, runs=[run for run in part.runs if run.treatment != absent])
        claims = evaluation.claims_of(rest)
        assert len(claims) == len(evaluation.claims_of(part))
        results = failing(claims)
        assert set(results.values()) == {Result.NOT_MEASURED}
        assert all(str(absent) in c.missing for c in claims if c.result is Result.NOT_MEASURED)
        assert status(claims) == 3
        assert evaluation.incomplete(rest) == [str(absent)]
        unused += not results
    assert unused == 0


@pytest.mark.parametrize("name", PARTS)
def test_a_removed_simulation_is_not_measured(name: str) -> None:
    """Also on a larger cluster, if a sign is claimed there."""
    part = modelled(name)
    needed = 0
    for absent in part.simulated:
        rest = replace(
            part,
            simulated=[simulation for simulation in part.simulated if simulation is not absent],
        )
        results = failing(evaluation.claims_of(rest))
        assert set(results.values()) <= {Result.NOT_MEASURED}
        needed += bool(results)
    # pipeline and reduce with both stores on 25 nodes
    signs = {"moosefs": 4, "reducer": 2}.get(name, 0)
    assert needed == len(evaluation.required(part)) + signs


def test_one_run_does_not_count_as_measured() -> None:
    part = modelled("moosefs")
    first = next(run for run in part.runs if run.treatment == PIPELINE)
    once = replace(part, runs=[r for r in part.runs if r.treatment != PIPELINE or r is first])
    assert Result.NOT_MEASURED in failing(evaluation.claims_of(once)).values()


def test_a_run_that_is_not_valid_does_not_count() -> None:
    part = modelled("moosefs")
    part.runs = [
        replace(run, reason="hint refused: x") if run.treatment == PIPELINE else run
        for run in part.runs
    ]
    assert part.makespans(PIPELINE) == []
    assert set(failing(evaluation.claims_of(part)).values()) == {Result.NOT_MEASURED}


@pytest.mark.parametrize("pattern", ["pipeline", "reduce"])
def test_a_wrong_sign_is_not_met(pattern: str) -> None:
    def slower(treatment: Treatment) -> float:
        wrong = treatment.pattern == pattern and treatment.aware
        return 9.0 if wrong else expected_s(treatment)

    part = modelled("moosefs", time=slower)
    results = failing(evaluation.claims_of(part))
    sign = f"moosefs, 4 nodes: {pattern} of 2560 KiB: the workflow-aware store is faster"
    order = f"moosefs, 4 nodes: {pattern} of 2560 KiB: the simulation has the measured order"
    assert results[sign] is Result.NOT_MET
    assert next(r for name, r in results.items() if name.startswith(order)) is Result.NOT_MET
    assert status(evaluation.claims_of(part)) == 3
    # the other patterns are as before
    assert all(pattern in name for name in results)


def test_a_wrong_sign_of_a_larger_cluster_is_not_met() -> None:
    part = modelled("moosefs")
    part.simulated = [
        replace(simulation, makespans_s=tuple(9.0 + 0.01 * i for i in range(QUICK.seeds)))
        if simulation.treatment == replace(PIPELINE, nodes=25)
        else simulation
        for simulation in part.simulated
    ]
    wording = "pipeline of 2560 KiB: the workflow-aware store is faster"
    assert failing(evaluation.claims_of(part)) == {
        f"moosefs, 25 nodes, simulated: {wording}": Result.NOT_MET
    }


def test_a_difference_within_its_interval_is_undecided() -> None:
    part = modelled("moosefs")
    times = iter((1.0, 5.0, 6.0))
    part.runs = [
        replace(run, makespan_s=next(times)) if run.treatment == PIPELINE else run
        for run in part.runs
    ]
    results = failing(evaluation.claims_of(part))
    sign = "moosefs, 4 nodes: pipeline of 2560 KiB: the workflow-aware store is faster"
    assert results[sign] is Result.UNDECIDED


@pytest.mark.parametrize(("four_s", "result"), [(3.1, Result.MET), (4.0, Result.NOT_MET)])
def test_copies_of_spread_chunks_make_no_difference(four_s: float, result: Result) -> None:
    part = modelled("cephfs", time=lambda t: four_s if t.copies == 4 else expected_s(t))
    claims = [c for c in evaluation.claims_of(part) if "copies make no difference" in c.wording]
    assert [c.result for c in claims] == [result]


def test_scattered_times_of_copies_are_undecided() -> None:
    part = modelled("cephfs")
    part.runs = [
        replace(run, makespan_s=2.0 + run.block) if run.treatment.copies == 4 else run
        for run in part.runs
    ]
    claims = [c for c in evaluation.claims_of(part) if "copies make no difference" in c.wording]
    assert [c.result for c in claims] == [Result.UNDECIDED]


def test_copies_that_do_not_help_on_one_node_are_not_met() -> None:
    part = modelled("moosefs", time=lambda t: 6.0 if t.copies == 4 else expected_s(t))
    claims = [c for c in evaluation.claims_of(part) if "copies are faster" in c.wording]
    assert [c.result for c in claims] == [Result.NOT_MET]


def test_a_simulation_that_is_far_off_is_not_met() -> None:
    part = modelled("moosefs", time=lambda t: expected_s(t) * (1.2 if t.pattern == "gather" else 1))
    wording = "moosefs: gather: the simulation has the measured times"
    assert failing(evaluation.claims_of(part)) == {wording: Result.NOT_MET}


def test_a_plant_without_effect_fails_the_study() -> None:
    part = modelled("moosefs")
    part.planted = [replace(simulation, makespans_s=(5.0, 5.0)) for simulation in part.planted]
    planted = evaluation.planted(part)
    assert planted[f"moosefs: {evaluation.SLOW}"] is False
    assert status(evaluation.claims_of(part), planted) == 1


def test_stored_results_are_evaluated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command on stored results evaluates the same claims, and records complete results only."""
    recorded: list[Any] = []
    monkeypatch.setattr(
        workflow_patterns.record, "keep", lambda *arguments: recorded.append(arguments)
    )
    parts = [modelled(name) for name in PARTS]

    def evaluated_again() -> tuple[int, dict[str, Any]]:
        for part in parts:
            workflow_patterns.store_part(tmp_path, part)
        arguments = ["--compare", "--json", "--record", "x", "-o", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["workflow_patterns.py", *arguments])
        exit_status = workflow_patterns.main()
        return exit_status, json.loads(capsys.readouterr().out)

    exit_status, document = evaluated_again()
    assert exit_status == 0
    claims = [claim for part in parts for claim in evaluation.claims_of(part)]
    assert [c["evidence"] for c in document["claims"]] == [c.evidence for c in claims]
    assert {row["metric"] for row in document["rows"]} >= {name for name, *_ in evaluation.METRICS}
    ((name, rows, planted, about),) = recorded
    assert (name, planted) == ("x", document["planted"])
    assert len(rows) == len(claims) + len(document["rows"])
    assert "others used 0.10 processors" in about
    recorded.clear()
    parts[0].runs.pop()
    exit_status, _ = evaluated_again()
    assert exit_status == 0  # two of three runs are enough for an interval
    assert recorded == []
    file = tmp_path / "moosefs.json"
    file.write_text(file.read_text().replace('"makespan_s":', '"other":'))
    monkeypatch.setattr(sys, "argv", ["workflow_patterns.py", "--compare", "-o", str(tmp_path)])
    assert workflow_patterns.main() == 2
    assert "makespan_s" in capsys.readouterr().err


def test_a_quick_study_has_the_parts_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workflow_patterns.chosen([], quick=True) == ["moosefs", "cephfs"]
    assert workflow_patterns.chosen([], quick=False) == list(PARTS)
    assert workflow_patterns.chosen(["blast", "moosefs"], quick=True) == ["moosefs", "blast"]
    monkeypatch.setattr(sys, "argv", ["workflow_patterns.py", "other"])
    assert workflow_patterns.main() == 2


def test_results_of_another_size_are_not_continued(tmp_path: Path) -> None:
    workflow_patterns.store_part(tmp_path, modelled("moosefs", QUICK))
    file = workflow_patterns.file_of(tmp_path, "moosefs")
    assert workflow_patterns.read_or_new(file, "moosefs", QUICK).runs
    with pytest.raises(workflow_patterns.BadInput, match="results of the quick size"):
        workflow_patterns.read_or_new(file, "moosefs", FULL)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Treatment, int]]:
    """Runs that are measured, without a store: those of the pipeline are not valid at first."""
    seen: list[tuple[Treatment, int]] = []

    @contextlib.contextmanager
    def no_store(*_: object) -> Iterator[None]:
        yield None

    def run(treatment: Treatment, block: int, *_: object) -> Run:
        again = (treatment, block) in seen
        seen.append((treatment, block))
        busy = treatment == PIPELINE and not again
        return modelled_run(treatment, block, 1.0, "busy" if busy else "")

    monkeypatch.setattr(runs, "store_of", no_store)
    monkeypatch.setattr(runs, "_run", run)
    monkeypatch.setattr(runs, "seeded", lambda *_: model_platform())
    monkeypatch.setattr(runs, "simulate", lambda t, *_: Simulated(t, (1.0, 1.0, 1.0)))
    return seen


def model_platform() -> str:
    return load_platform(CLUSTER).with_values(models("moosefs")[MODEL]).to_yaml()


def test_an_interrupted_study_continues_with_its_missing_runs(
    counted: list[tuple[Treatment, int]], tmp_path: Path
) -> None:
    ground = patterns_on("moosefs")
    treatments, saved = ground.treatments(4), []

    class Interrupted(Exception):
        pass

    def save(part: Part) -> None:
        workflow_patterns.store_part(tmp_path, part)
        saved.append(len(part.runs))
        if len(part.runs) == 7:
            raise Interrupted

    with pytest.raises(Interrupted):
        runs.measure(ground, Part("moosefs", QUICK), save)
    assert saved == list(range(8))
    part = workflow_patterns.read_or_new(tmp_path / "moosefs.json", "moosefs", QUICK)
    assert len(part.runs) == 7
    runs.measure(ground, part)
    # each treatment once in a block, that of the invalid run twice
    assert len(counted) == len(part.runs) == QUICK.repeat * (len(treatments) + 1)
    assert all(len(part.valid(treatment)) == QUICK.repeat for treatment in treatments)
    assert len(part.simulated) == len(treatments) * (1 + len(QUICK.scaled))
    assert len(part.planted) == 2
    counted.clear()
    runs.measure(ground, part)
    assert counted == []


def test_a_warm_up_is_not_counted(counted: list[tuple[Treatment, int]]) -> None:
    ground = patterns_on("cephfs")
    part = runs.measure(ground, Part("cephfs", QUICK))
    treatments = ground.treatments(4)
    assert [treatment for treatment, block in counted if block < 0] == treatments
    assert len(part.runs) == len(treatments) * QUICK.repeat


@pytest.mark.parametrize("engine", ENGINES)
def test_hints_follow_the_treatment(engine: str) -> None:
    for treatment in patterns_on(engine, FULL).treatments(8):
        workload = treatment.workload()
        hints = [f.hints for f in workload.files if f.hints is not None]
        assert bool(hints) == treatment.aware
        copies = {h.replicas for h in hints if h.replicas}
        assert copies == ({treatment.copies} if treatment.copies else set())
        parts = {h.scatter for h in hints if h.scatter}
        # a part is 1 MiB, in chunks of 64 KiB
        assert parts == ({16} if treatment.pattern == "scatter" and treatment.aware else set())
        assert max(workload.file_sizes.values()) >= treatment.file_kib * 1024


def test_parts_are_collected_on_the_faster_node() -> None:
    default, aware = (treatment.workload() for treatment in patterns_on("reducer").treatments(4))
    for workload in (default, aware):
        assert [t.machine for t in workload.tasks if t.stage == "reduce"] == ["node-0"]
        assert {t.machine for t in workload.tasks if t.stage == "produce"} == {None}
    hosts = {f.name: f.hints.host for f in aware.files if f.hints is not None and f.hints.host}
    assert hosts == {f"part-{i}": "node-0" for i in range(4)}
    assert all(f.hints is None for f in default.files)
    (cluster, *_) = ground_of("reducer", QUICK).clusters
    platform = runs.platform_of(ground_of("reducer", QUICK), cluster)
    out_bps = {host["name"]: host["network"]["out_bps"] for host in platform.lower()["hosts"]}
    assert out_bps["node-0"] == 2 * out_bps["node-1"]


def test_bytes_over_links_follow_from_the_places_of_files() -> None:
    workload = make_workload("pipeline", "small", {"width": 1, "stages": 1, "file_bytes": 100})
    (task,) = workload.tasks

    def over_links(read: tuple[str, ...], written: tuple[str, ...]) -> int:
        answer = dict.fromkeys(
            ("ready_ns", "decision_ns", "sent_ns", "started_ns", "ended_ns", "complete_ns",
             "tag_ns", "forked_ns"),
            0,
        )  # fmt: skip
        extents = {
            "in-0": [Extent(0, 60, read), Extent(60, 40, ("node-9",))],
            "out-0-1": [Extent(0, 100, written)],
        }
        done = executed(
            workload,
            {0: {**answer, "operations": [], "host": "node-0", "attempt": 1}},
            0,
            extents=extents,
            tags=[],
            troubles=Troubles(),
        )
        return remote_bytes(workload, done)

    assert task.operations
    assert over_links(("node-0",), ("node-0",)) == 40
    assert over_links(("node-1",), ("node-0",)) == 100
    assert over_links(("node-1", "node-0"), ("node-1", "node-2")) == 40 + 200


def test_the_model_places_files_as_hinted() -> None:
    platform = runs.read_platform(model_platform().encode(), CLUSTER)

    def times(store: str, **changes: object) -> tuple[float, ...]:
        values = {"network.loopback": runs.SLOW_LOOPBACK} if changes else {}
        return simulate(replace(PIPELINE, store=store), platform.with_values(values), 3).makespans_s

    default, aware = times(DEFAULT), times(AWARE)
    assert max(aware) < min(default)
    # the plant of the study
    assert min(times(AWARE, slow=True)) > max(times(DEFAULT, slow=True))


def test_reasons_of_runs_that_are_not_valid() -> None:
    def reason(busy: float, support: str, died: list[str]) -> str:
        tag = SimpleNamespace(
            path="f",
            key="DP",
            value="local",
            support=SimpleNamespace(how=support, why="it lacks it"),
        )
        return runs._reason(SimpleNamespace(tags=[tag], died=died), busy)

    assert reason(0.3, "native", []) == ""
    assert "it lacks it" in reason(0.3, "refused", [])
    assert "node-1" in reason(0.3, "native", ["node-1"])
    assert "90%" in reason(0.9, "native", [])


def test_times_without_an_interior_optimum_are_not_met() -> None:
    part = modelled("blast", time=lambda split: 30.0 / split.app)
    claims = evaluation.claims_of(part)
    results = {c.wording: c.result for c in claims}
    assert results["time against application nodes is U-shaped"] is Result.NOT_MET
    assert results["the simulation has the fastest split"] is Result.NOT_MET
    assert results["slowest over fastest split"] is Result.MET
    assert evaluation.planted(part) == {f"blast: {splits.EXCHANGED}": None}


def test_splits_that_hardly_differ_are_undecided() -> None:
    part = modelled("blast", time=lambda split: 6.0 if split.app == 5 else 6.02)
    results = {c.wording: c.result for c in evaluation.claims_of(part)}
    assert results["time against application nodes is U-shaped"] is Result.UNDECIDED
    assert results["slowest over fastest split"] is Result.NOT_MET


def test_extra_cost_of_more_nodes() -> None:
    few = {Split(5, 2, 256): 12.0, Split(5, 3, 256): 10.0}
    many = {Split(9, 5, 256): 5.0, Split(9, 6, 256): 6.0}
    faster, more = splits.trade_off(few, many)
    assert faster == pytest.approx(2.0)
    # ten nodes for 5 s, six for 10 s
    assert more == pytest.approx(100 * (50 / 60 - 1))

    def slower(split: Split) -> float:
        return expected_s(split) * (1.1 if split.nodes == 9 else 1.0)

    part = modelled("blast", FULL, slower)
    costs = [c for c in evaluation.claims_of(part) if "extra cost" in c.wording]
    assert [c.result for c in costs] == [Result.NOT_MET] * 3


def test_queries_are_divided_over_the_application() -> None:
    for split in GROUNDS["blast"].clusters[0].treatments:
        assert isinstance(split, Split)
        workload = split.workload()
        assert len(workload.tasks) == split.app + 1
        total_s = sum(o.seconds for t in workload.tasks for o in t.operations if o.op == "compute")
        assert total_s == pytest.approx(COMPUTE_S)
    ground = GROUNDS["blast"]
    assert isinstance(ground, SplitGround)
    counts = {
        (treatment.app, treatment.storage) for c in ground.clusters for treatment in c.treatments
    }
    assert {(1, 8), (8, 1), (1, 4), (4, 1)} <= counts


def test_the_model_has_an_interior_optimum() -> None:
    """Neither end is the fastest: one node searches alone, or eight read from one storage node."""
    ground = GROUNDS["blast"]
    file = runs.HERE / ground.file
    platform = load_platform(file).with_values({**models("cephfs")[MODEL], "store.chunk": "256KiB"})
    times = [sum(simulate(Split(9, app, 256), platform, 2).makespans_s) for app in (1, 3, 5, 7, 8)]
    assert times.index(min(times)) not in (0, len(times) - 1)
    assert max(times) >= splits.WORST * min(times)
