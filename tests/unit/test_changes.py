"""Actions that changes of factors require before each run, and their output by `plan --show`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.design.changes import Changes, sequence
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.spec.study import ACTIONS, Study
from penstock.study.load import load_study
from tests.support import commands

STUDY = """
penstock: 1
name: changes
question: What does a change make necessary?
factors:
  image:  {levels: [a, b], change: redeploy}
  data:   {levels: [c, d], change: reformat}
  cache:  {levels: [e, f], change: remount}
  jobs:   {levels: [1, 2]}
design: {kind: full, replicates: 2, seed: 3, order: interleaved}
platform: {nodes: [{name: node1}]}
workload:
  hooks: {remount: "echo {cache}", apply: "echo {jobs}", verify: "true", undo: "true"}
  command: "echo {image} {data}"
responses: {time: {from: wall_s, unit: s, better: lower}}
"""


def study(tmp_path: Path, **changed: str) -> Study:
    text = STUDY
    for key, value in changed.items():
        text = text.replace(*value.split(" -> ")) if key else text
    (tmp_path / "study.yaml").write_text(text)
    return load_study(tmp_path / "study.yaml")


def planned(tmp_path: Path, order: str = "interleaved") -> tuple[Study, Plan]:
    loaded = study(tmp_path, order=f"order: interleaved -> order: {order}")
    return loaded, make_plan(loaded)


def test_an_action_runs_only_where_a_factor_that_needs_it_changes(tmp_path: Path) -> None:
    # expected actions for each pair of runs; fails if one is missing or unnecessary
    loaded, plan = planned(tmp_path)
    steps = list(sequence(loaded.factors, plan.rows))
    assert steps[0].actions == ("redeploy", "reformat", "restart", "remount")
    for before, row, step in zip(plan.rows, plan.rows[1:], steps[1:], strict=False):
        differs = {n for n in row.levels if before.levels[n] != row.levels[n]}
        assert set(step.changed) == differs
        if "image" in differs:
            expected: tuple[str, ...] = ("redeploy", "reformat", "restart", "remount")
        elif "data" in differs:
            expected = ("reformat", "restart", "remount")
        else:
            expected = ("remount",) if "cache" in differs else ()
        assert step.actions == expected
    assert any(not s.actions for s in steps)  # only jobs changes
    assert any(s.actions == ("remount",) for s in steps)


def test_after_a_failed_run_all_actions_are_repeated(tmp_path: Path) -> None:
    loaded, plan = planned(tmp_path)
    changes = Changes(loaded.factors, plan.rows)
    changes.completed(plan.rows[0])
    assert changes.step(plan.rows[0]).actions == ()  # the same setting again
    changes.lost()
    assert changes.step(plan.rows[0]).actions == ACTIONS[::-1]


def test_a_redeployment_starts_each_whole_plot(tmp_path: Path) -> None:
    # without a redeployment, consecutive whole plots of one setting would be one
    loaded, plan = planned(tmp_path, "split-plot")
    assert "image" in plan.whole_plot_factors
    before = None
    for row, step in zip(plan.rows, sequence(loaded.factors, plan.rows), strict=True):
        redeployed = "redeploy" in step.actions
        if before is not None:
            assert redeployed == (row.whole_plot != before.whole_plot)
        before = row


def test_actions_of_a_strip_run_once_in_a_replicate(tmp_path: Path) -> None:
    loaded, plan = planned(tmp_path, "strip-plot")
    assert plan.strip_factors == ["data"]
    seen_strips: dict[int, int] = {}
    before = None
    for row, step in zip(plan.rows, sequence(loaded.factors, plan.rows), strict=True):
        new = before is None or row.strip not in seen_strips
        seen_strips[row.strip] = 1
        if before is not None and "redeploy" not in step.actions:
            assert ("reformat" in step.actions) == (new and "data" in step.changed)
        before = row
    assert len(seen_strips) == 4  # two settings in each of two replicates


def test_plan_show_prints_the_executed_sequence(tmp_path: Path) -> None:
    loaded, plan = planned(tmp_path)
    line = [sys.executable, "-m", "penstock", "plan", str(tmp_path / "study.yaml"), "--show"]
    output = commands.run(line, capture_output=True, text=True, check=True).stdout
    assert max(map(len, output.splitlines())) <= 100
    printed = json.loads(
        commands.run([*line, "--json"], capture_output=True, text=True, check=True).stdout
    )["sequence"]
    expected = [s.to_json() for s in sequence(loaded.factors, plan.rows)]
    assert printed == json.loads(json.dumps(expected))
    runs = output.split("Runs, in the order they will be made\n")[1]
    for step in expected:
        assert f"{step['run_id']}: " in runs
    assert "remount (cache): disks are mounted again; echo {cache}" in output


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("remount: ", "mount: ", "expected one of"),
        ('verify: "true"', 'verify: "{nothing}"', "unknown name"),
        (
            "platform: {nodes: [{name: node1}]}",
            "platform: {nodes: [{name: node1, memory: 1GiB}]}\nguest: {}",
            "one node with a name alone",
        ),
        ("platform: {", "guest: {programs: [../sh]}\nplatform: {", "a name of letters"),
        ("platform: {", "guest: {files: [../..]}\nplatform: {", "below the study file's directory"),
        (
            "platform: {",
            "guest: {disks: [{size: 1GiB, bandwidth: 5 apples}]}\nplatform: {",
            "125 MB/s",
        ),
        ("platform: {", "guest: {kernel: '-o x'}\nplatform: {", "the name of a Debian release"),
        ("platform: {", "guest: {}\nplatform: {", "the guest is discarded after the run"),
    ],
)
def test_bad_input(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in STUDY
    (tmp_path / "study.yaml").write_text(STUDY.replace(old, new))
    line = [sys.executable, "-m", "penstock", "plan", str(tmp_path / "study.yaml")]
    result = commands.run(line, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert expected in result.stderr, result.stderr
