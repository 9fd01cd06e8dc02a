"""Pure parts of a campaign: freezing and resuming, prepared data, disk space, judgement."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.campaign.campaign import _described
from penstock.campaign.evidence.interrupted import interrupted_attempts, note_interrupted
from penstock.campaign.evidence.judgement import Evidence, judge
from penstock.campaign.frozen import (
    altered,
    campaign,
    differences,
    freeze,
    read_campaign,
)
from penstock.campaign.manifest import draw_seed
from penstock.campaign.places.cluster_reuse import changes_between
from penstock.campaign.places.work_directory import passable, work_directory
from penstock.campaign.preparation import disk_space
from penstock.campaign.preparation.prepared import PreparedData, copy_tree, preparation_key
from penstock.campaign.preparation.settle import dirty_bytes, undrained
from penstock.campaign.run import run_study
from penstock.design.plan import make_plan
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.host.processes.launch import Finished, last_line
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, Limits, LinkSpec, NodeSpec, When
from penstock.spec.study import Retry
from penstock.study.load import load_study
from penstock.study.resolve import resolved_treatments
from penstock.text import first_reason

STUDY = """
penstock: 1
name: tiny
question: Does it run?
factors:
  word: {levels: [one, two]}
  more: {levels: [a, b]}
design: {kind: full, replicates: 1, seed: 3}
platform:
  nodes: [{name: node1, disks: [{name: data, profile: rate-20mib, size: 32MiB}]}]
workload:
  prepare: touch {data}/{word}
  mutates: false
  command: cat {data}/{word} {more}
responses:
  time: {from: wall_s, unit: s, better: lower}
"""


def frozen(tmp_path: Path, text: str = STUDY, overrides: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    path = tmp_path / "tiny.study.yaml"
    path.write_text(text)
    study = load_study(path, list(overrides))
    plan = make_plan(study)
    facts = campaign(
        study, plan, _described(study, resolved_treatments(study, plan.rows)), list(overrides)
    )
    return study, plan, facts


def test_a_frozen_study_is_read_back(tmp_path: Path) -> None:
    study, plan, facts = frozen(tmp_path)
    out = tmp_path / "out"
    freeze(out, study, plan, facts)
    assert read_campaign(out) == facts
    assert (out / "study.yaml").read_text() == STUDY
    assert plan_from_json(json.loads((out / "plan.json").read_text())).rows == plan.rows


def test_a_frozen_study_contains_the_overrides(tmp_path: Path) -> None:
    study, plan, facts = frozen(tmp_path, overrides=("design.seed=9", "workload.mutates=true"))
    out = tmp_path / "out"
    freeze(out, study, plan, facts)
    frozen_study = load_study(out / "study.yaml")
    assert frozen_study.design.seed == 9
    assert frozen_study.workload.mutates is True
    assert "--set design.seed=9" in (out / "study.yaml").read_text().splitlines()[0]


def test_a_resumed_study_may_grow(tmp_path: Path) -> None:
    _, plan, before = frozen(tmp_path)
    _, longer, after = frozen(tmp_path, STUDY.replace("replicates: 1", "replicates: 3"))
    assert len(longer.rows) == 3 * len(plan.rows)
    runs = {r.run_id for r in plan.rows}
    assert altered(before, after, runs, runs, tmp_path) == set()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("cat {data}", "wc {data}"), "command: was"),
        (("rate-20mib", "service-5ms"), "profile"),
        (("mutates: false", "mutates: true"), "mutates: was false, is true"),
        (("seed: 3", "seed: 4"), "run r00"),
        (("touch {data}", "true {data}"), "prepare"),
    ],
)
def test_a_resumed_study_may_not_alter_completed_runs(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    _, plan, before = frozen(tmp_path)
    _, _, after = frozen(tmp_path, STUDY.replace(*change))
    runs = {r.run_id for r in plan.rows}
    with pytest.raises(BadInput, match=message):
        altered(before, after, runs, runs, tmp_path)
    assert altered(before, after, set(), set(), tmp_path) == set()  # no runs, no alterations


def test_runs_that_are_not_valid_may_be_altered(tmp_path: Path) -> None:
    """After a command is corrected, the study continues in its directory."""
    _, plan, before = frozen(tmp_path)
    _, _, after = frozen(tmp_path, STUDY.replace("cat {data}", "wc {data}"))
    runs = {r.run_id for r in plan.rows}
    assert altered(before, after, runs, set(), tmp_path) == runs
    run = min(runs)
    with pytest.raises(BadInput, match=f"valid runs in .*: run {run}: command: was"):
        altered(before, after, runs, {run}, tmp_path)


def test_differences_have_a_path() -> None:
    assert differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 1}, "c": 2}) == []
    assert differences({"a": {"b": 1}}, {"a": {"b": 2}}) == ["a.b: was 1, is 2"]
    assert differences({"a": 1}, {}) == ["a: was 1, is null"]


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    frozen(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("precious")
    with pytest.raises(BadInput, match="other files"):
        run_study(tmp_path / "tiny.study.yaml", out)
    assert [p.name for p in out.iterdir()] == ["thesis.txt"]


def test_results_are_not_overwritten_without_resume(tmp_path: Path) -> None:
    study, plan, facts = frozen(tmp_path)
    out = tmp_path / "out"
    freeze(out, study, plan, facts)
    with pytest.raises(BadInput, match="--resume"):
        run_study(tmp_path / "tiny.study.yaml", out)
    other_study = tmp_path / "other.study.yaml"
    other_study.write_text(STUDY.replace("name: tiny", "name: other"))
    with pytest.raises(BadInput, match="has results of the study tiny"):
        run_study(other_study, out, resume=True)


def test_data_are_prepared_once_per_key(tmp_path: Path) -> None:
    calls: list[str] = []

    def make(disks: dict[str, Path]) -> None:
        calls.append("made")
        (disks["data"] / "file").write_text("content")

    data = PreparedData(tmp_path)
    first = preparation_key("touch a", ["data"], {}, None)
    assert data.get(first, ["data"], make).disks["data"].joinpath("file").exists()
    data.get(first, ["data"], make)
    PreparedData(tmp_path).get(first, ["data"], make)
    assert calls == ["made"]
    data.get(preparation_key("touch b", ["data"], {}, None), ["data"], make)
    assert calls == ["made", "made"]


def test_an_interrupted_preparation_is_repeated(tmp_path: Path) -> None:
    def fails(disks: dict[str, Path]) -> None:
        (disks["data"] / "half").write_text("half")
        raise PenstockError("no")

    data = PreparedData(tmp_path)
    with pytest.raises(PenstockError):
        data.get("key", ["data"], fails)
    assert not data.has("key")
    again = data.get("key", ["data"], lambda disks: (disks["data"] / "whole").touch())
    assert [p.name for p in again.disks["data"].iterdir()] == ["whole"]


def test_altered_shared_data_are_prepared_again(tmp_path: Path) -> None:
    data = PreparedData(tmp_path)
    first = data.get("key", ["data"], lambda disks: disks["data"].joinpath("f").write_text("a"))
    assert not data.forget_if_altered(first)
    (first.disks["data"] / "f").write_text("longer")
    assert data.forget_if_altered(first)
    assert not data.has("key")
    data.get("key", ["data"], lambda disks: disks["data"].joinpath("f").write_text("a"))
    assert (first.disks["data"] / "f").read_text() == "a"


def test_contents_of_shared_files_may_change_if_only_sizes_count(tmp_path: Path) -> None:
    data = PreparedData(tmp_path)
    first = data.get("key", ["data"], lambda disks: disks["data"].joinpath("f").write_text("a"))
    (first.disks["data"] / "f").write_text("b")
    assert not data.forget_if_altered(first, contents=True)
    (first.disks["data"] / "f").write_text("longer")
    assert data.forget_if_altered(first, contents=True)


def test_prepared_data_of_a_plain_directory_are_inside_it(tmp_path: Path) -> None:
    plain = {"data": tmp_path / "device"}

    def make(disks: dict[str, Path]) -> None:
        (disks["data"] / "f").write_text("a")

    prepared = PreparedData(tmp_path / "work").get("key", ["data"], make, plain)
    assert tmp_path / "device" in prepared.disks["data"].parents
    assert PreparedData(tmp_path / "work").has("key")
    (tmp_path / "device").rename(tmp_path / "gone")
    later = PreparedData(tmp_path / "work")
    assert not later.has("key")
    assert (later.get("key", ["data"], make, plain).disks["data"] / "f").read_text() == "a"


def test_needs_on_one_file_system_are_summed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    needs = [(tmp_path, disk_space.Need(1, 2, 3)), (tmp_path / "a", disk_space.Need(10, 20, 30))]
    assert disk_space.by_file_system(needs) == [(tmp_path, disk_space.Need(11, 22, 33))]


def test_a_missing_plain_directory_is_refused(tmp_path: Path) -> None:
    text = STUDY.replace("profile: rate-20mib", f"directory: {tmp_path}/none")
    path = tmp_path / "tiny.study.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match="none: found no directory"):
        run_study(path, tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_a_copied_tree_is_independent(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").write_text("before")
    copy_tree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "file").write_text("after")
    assert (tmp_path / "a" / "file").read_text() == "before"
    with pytest.raises(PenstockError, match="copied"):
        copy_tree(tmp_path / "none", tmp_path / "b")


def test_a_full_disk_is_predicted_with_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: (100 << 20, 10 << 20))
    disk_space.check(tmp_path, disk_space.Need(0, 0, 90 << 20), 3)
    with pytest.raises(PenstockError, match=r"100 MiB free, 111 MiB needed for 3 more runs"):
        disk_space.check(tmp_path, disk_space.Need(50 << 20, 50 << 20, 1 << 20), 3)


def test_sizes_of_results_are_predicted_from_existing_ones() -> None:
    assert disk_space.bundles_need(2, []) == 2 * disk_space.FIRST_BUNDLE_BYTES
    assert disk_space.bundles_need(10, [1000, 3000]) == 33000


def test_an_interrupted_attempt_is_remembered(tmp_path: Path) -> None:
    assert interrupted_attempts(tmp_path) == {}
    note_interrupted(tmp_path, "r004", 2)
    assert interrupted_attempts(tmp_path) == {"r004": 2}


def test_seeds_differ_between_runs_and_are_reproducible() -> None:
    seeds = {draw_seed(1, r, n) for r in ("r001", "r002") for n in (1, 2)}
    assert len(seeds) == 4
    assert draw_seed(1, "r001", 1) == draw_seed(1, "r001", 1)
    assert all(0 <= s < 2**53 for s in seeds)


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("first\nNo space left\n\n")
    assert last_line(log) == "No space left"


def test_a_private_parent_directory_blocks_others(tmp_path: Path) -> None:
    closed = tmp_path / "closed" / "in"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    assert not passable(closed)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has programs of other users")
def test_a_work_directory_outside_a_private_path_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    outs = [tmp_path / "closed" / name for name in ("one", "two")]
    for out in outs:
        out.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    first, second = map(work_directory, outs)
    assert first != second
    assert first.parent == second.parent == tmp_path / "state-passable" / "work"
    for place in (first, first.parent):
        assert place.stat().st_mode & 0o777 == 0o711
    assert work_directory(outs[0]) == first  # found again by a user who may read OUT
    (outs[1] / ".work").write_text(f"{first}\n")
    assert work_directory(outs[1]) not in (first, second)  # not the directory of another study


def evidence(**more: object) -> Evidence:
    values: dict[str, object] = {
        "finished": Finished(0, None, False, 0, 1, 0.0, 1),
        "timeout_s": 10.0,
        "last_line": "",
        "oom_kills": 0,
        "node_faults": (),
        "state_faults": (),
        "data_altered": False,
        "fidelity_faults": (),
        "lost_events": 0,
        "recorded_events": 100,
        "unplaced_faults": 0,
        "missed_samples": 0,
        "expected_samples": 5,
    }
    return Evidence(**{**values, **more})  # type: ignore[arg-type]


def ended(status: int, signal: int | None = None, timed_out: bool = False) -> Finished:
    return Finished(status, signal, timed_out, 0, 1, 0.0, 1)


def test_a_missing_command_on_a_node_names_private_directories() -> None:
    last = {"finished": ended(127), "last_line": "kv: not found"}
    assert "a /tmp and a /run of their own" in judge(evidence(**last, on_nodes=True)).reason
    assert "/tmp" not in judge(evidence(**last)).reason
    failed = {"finished": ended(1), "on_nodes": True}
    assert "/tmp" not in judge(evidence(**failed)).reason


def test_a_run_s_line_has_its_first_reason() -> None:
    assert first_reason("late; the tracer lost 1 of 9 events; cold") == "late (and 2 more)"
    assert first_reason("late") == "late"


def test_a_good_run_is_valid() -> None:
    judgement = judge(evidence())
    assert (judgement.state, judgement.valid, judgement.reason, judgement.repeatable) == (
        "finished",
        True,
        "",
        False,
    )


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"state_faults": ("data: 5 % resident",)}, "5 % resident"),
        ({"fidelity_faults": ("data: late",)}, "data: late"),
        ({"lost_events": 1}, "lost 1 of 101 events"),
        ({"lost_events": 1, "unplaced_faults": 1}, "lost 1 of 101 events"),
        (
            {"lost_events": 3, "unplaced_faults": 2, "recorded_events": 9997},
            "lost 3 of 10000 events",
        ),
        ({"missed_samples": 2}, "missed 2 of 5"),
    ],
)
def test_transient_faults_are_invalid_and_repeatable(fault: dict[str, object], reason: str) -> None:
    judgement = judge(evidence(**fault))
    assert judgement.state == "finished"
    assert not judgement.valid
    assert judgement.repeatable
    assert reason in judgement.reason


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        ({"state_faults": ("data: 5 % resident",)}, 0),
        ({"fidelity_faults": ("data: late",)}, 3),
        ({"lost_events": 1}, 1),
        ({"missed_samples": 2, "fidelity_faults": ("data: late",)}, 3),
        ({"finished": ended(3)}, 2),
        ({"finished": ended(137, 9, True)}, 4),
        ({"oom_kills": 1}, 2),
        ({"node_faults": ("n1 is gone",)}, 2),
        ({"data_altered": True}, 0),
        ({}, 0),
    ],
)
def test_each_cause_has_its_own_number_of_retries(fault: dict[str, object], times: int) -> None:
    """Fails if one cause is taken for another: each has its own number."""
    retry = Retry(state=0, disk=3, losses=1, failed=2, timed_out=4)
    assert retry.times(judge(evidence(**fault)).causes) == times


def test_a_few_unplaced_faults_do_not_invalidate_a_run() -> None:
    assert judge(evidence(lost_events=9, unplaced_faults=9, recorded_events=9_000)).valid
    assert not judge(evidence(lost_events=10, unplaced_faults=10, recorded_events=9_000)).valid


@pytest.mark.parametrize(
    ("finished", "state", "reason"),
    [
        (ended(3), "failed", "status 3: no such table"),
        (ended(137, 9), "failed", "signal 9"),
        (ended(137, 9, True), "timed-out", "longer than 10 s"),
    ],
)
def test_a_workload_that_ended_badly_has_failed(
    finished: Finished, state: str, reason: str
) -> None:
    judgement = judge(evidence(finished=finished, last_line="no such table", lost_events=5))
    assert (judgement.state, judgement.valid, judgement.repeatable) == (state, False, False)
    assert reason in judgement.reason


def test_a_run_that_changed_shared_data_is_invalid_and_not_repeated() -> None:
    judgement = judge(evidence(data_altered=True))
    assert (judgement.state, judgement.valid, judgement.repeatable) == ("finished", False, False)
    assert "mutates: true" in judgement.reason


def test_killed_process_fails_the_run_whatever_its_status() -> None:
    judgement = judge(evidence(oom_kills=2))
    assert (judgement.state, judgement.valid, judgement.repeatable) == ("failed", False, False)
    assert "2 processes killed" in judgement.reason


def test_a_node_that_died_fails_the_run() -> None:
    judgement = judge(evidence(node_faults=("node a died: its first process was killed",)))
    assert (judgement.state, judgement.valid) == ("failed", False)
    assert "node a died" in judgement.reason


def test_an_out_of_memory_kill_is_named() -> None:
    assert "out of the memory" in judge(evidence(finished=ended(137, 9), oom_kills=1)).reason


def test_changes_that_need_no_new_cluster() -> None:
    spec = ClusterSpec("a", (NodeSpec("n", disks=(DiskSpec("d"),)), NodeSpec("m")))
    n, m = spec.nodes
    faster = replace(n, cpus=0.5, disks=(replace(n.disks[0], limits=Limits(read_bps=1e6)),))
    linked = replace(m, links=(LinkSpec(out_bps=2e6),), memory_bytes=64 << 20)
    changes = changes_between(spec, replace(spec, name="b", nodes=(faster, linked)))
    assert changes is not None
    assert [(c.nodes, c.resource, c.name, c.patch) for c in changes] == [
        (("n",), "cpu", None, {"cpus": 0.5}),
        (("n",), "disk", "d", {"limits": {"read_bps": 1e6}}),
        (("m",), "memory", None, {"hard": 64 << 20}),
        (("m",), "network", "net", {"out_bps": 2e6}),
    ]
    assert changes_between(spec, spec) == []
    assert changes_between(spec, replace(spec, nodes=(n,))) is None
    other_profile = replace(n, disks=(replace(n.disks[0], profile={"name": "x"}),))
    assert changes_between(spec, replace(spec, nodes=(other_profile, m))) is None
    event = Event(When(), "cpu", {"cpus": 1.0})
    assert changes_between(spec, replace(spec, events=(event,))) is None


def test_a_run_waits_for_write_back() -> None:
    remaining = iter([300 << 20, 100 << 20, 10 << 20])
    assert undrained(16 << 20, 60.0, lambda: next(remaining)) == ""
    message = undrained(16 << 20, 0.0, lambda: 48 << 20)
    assert message.startswith(
        "48.0 MiB of this host still to be written back at the start, at most 16"
    )
    assert dirty_bytes() >= 0
