"""Augmented studies: a planted alias and its removal, kills, limits and sequential designs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.support import commands
from tests.support.environment import environment_in
from tests.support.waiting import until

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
]

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
#: c × d is planted; 8 runs report it as its alias a × b
STUDY = """
penstock: 1
name: planted
question: Which setting is fastest?
factors:
  a: {levels: [-1, 1]}
  b: {levels: [-1, 1]}
  c: {levels: [-1, 1]}
  d: {levels: [-1, 1]}
design: {kind: {fraction: 1}, replicates: 2, seed: 4 SEQUENTIAL}
platform: {nodes: [{name: n}]}
workload:
  command: >
    SLEEP noise=$(od -An -N1 -tu1 /dev/urandom);
    echo took $(( 10000 + 2000 * {a} + 10 * {b} - 900 * {c} + 800 * {c} * {d} + noise % 100 ))
  timeout: 30s
  expected: 1s
responses: {took: {from: {regex: 'took (\\S+)'}, unit: s, better: lower}}
observers: {monitor: null}
LIMITS
"""


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path)


def study(directory: Path, sequential: str = "", limits: str = "", sleep: str = "true;") -> Path:
    path = directory / "planted.study.yaml"
    text = STUDY.replace("SEQUENTIAL", sequential).replace("LIMITS", limits)
    path.write_text(text.replace("SLEEP", sleep))
    return path


def penstock(
    environment: dict[str, str], *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    argv = [*PENSTOCK, *map(str, arguments)]
    return commands.run(argv, env=environment, capture_output=True, text=True)


def run_study(
    environment: dict[str, str], *arguments: str | Path, report: str = "--no-report"
) -> dict:
    result = penstock(environment, "run", report, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def finding_codes(summary: dict) -> set[str]:
    return {f["code"] for f in summary["findings"]}


def test_a_planted_alias_is_reported_and_resolved(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    file, out = study(tmp_path), tmp_path / "out"
    first = run_study(environment, file, "-o", out)
    assert "effect-aliased" in finding_codes(first)
    assert not (out / "report.html").exists()
    aliased = pd.read_parquet(out / "effects.parquet").set_index("term")["coefficient"]
    assert aliased["a:b"] == pytest.approx(800, abs=60)
    before = {p.name: p.stat().st_mtime_ns for p in (out / "runs").glob("*/manifest.json")}

    plan = penstock(environment, "plan", "--augment", out, "--json")
    planned = json.loads(plan.stdout)
    assert {"term": "a:b", "rival": "c:d"} in planned["recommended"]["rivals_broken"]

    second = run_study(environment, file, "-o", out, "--augment", "foldover:d", report="--report")
    assert (out / "report.html").is_file()
    assert second["runs"] == second["valid_runs"] == 32
    assert "effect-aliased" not in finding_codes(second)
    resolved = pd.read_parquet(out / "effects.parquet").set_index("term")["coefficient"]
    assert resolved["c:d"] == pytest.approx(800, abs=60)
    assert abs(resolved["a:b"]) < 60
    runs = pd.read_parquet(out / "runs.parquet")
    assert set(runs.loc[runs["stage"] == 2, "run_order"]) == set(range(17, 33))
    after = {p.name: p.stat().st_mtime_ns for p in (out / "runs").glob("*/manifest.json")}
    assert before.items() <= after.items()
    assert set(pd.read_parquet(out / "ledger.parquet")["purpose"]) == {"screen", "augment"}


def test_a_killed_stage_continues_as_planned(tmp_path: Path, environment: dict[str, str]) -> None:
    # the eleventh run, the third of the second stage, waits for its kill
    launches = tmp_path / "launches"
    wait = f"echo x >> {launches}; [ $(wc -l < {launches}) != 11 ] || sleep 25;"
    file, out = study(tmp_path, sleep=wait), tmp_path / "out"
    file.write_text(file.read_text().replace("replicates: 2", "replicates: 1"))
    run_study(environment, file, "-o", out)
    argv = [*PENSTOCK, "run", str(file), "-o", str(out), "--augment", "foldover:d"]
    conductor = commands.popen(argv, env=environment, start_new_session=True)
    until(lambda: len(launches.read_text().split()) >= 11, 120)
    os.kill(conductor.pid, signal.SIGKILL)
    conductor.wait()
    planned = json.loads((out / "plan.json").read_text())["rows"]
    assert len(planned) == 16

    early = penstock(environment, "run", file, "-o", out, "--augment", "foldover")
    assert early.returncode == 2
    assert "not made yet" in early.stderr

    summary = run_study(environment, file, "-o", out, "--resume")
    assert summary["valid_runs"] == 16
    assert summary["runs_made_now"] == 6
    assert json.loads((out / "plan.json").read_text())["rows"] == planned
    runs = pd.read_parquet(out / "runs.parquet")
    assert list(runs["run_id"]) == [r["run_id"] for r in planned]
    assert (pd.read_parquet(out / "attempts.parquet")["attempt"] > 1).sum() <= 1


def test_a_sequential_study_screens_searches_and_confirms(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    sequential = ", sequential: {runs: 44, search_runs: 2, confirm: 3, default: {a: 1}}"
    file, out = study(tmp_path, sequential), tmp_path / "out"
    summary = run_study(environment, file, "-o", out, report="--report")
    assert (out / "report.html").is_file()
    stages = json.loads((out / "plan.json").read_text())["stages"]
    assert stages[0]["purpose"] == "augment"
    assert stages[-1]["purpose"] == "confirm"
    assert stages[-1]["treatments"][0] == {"a": "-1", "b": "-1", "c": "1", "d": "-1"} or (
        stages[-1]["treatments"][0] == {"a": "-1", "b": "1", "c": "1", "d": "-1"}
    )
    assert "confirmation" in finding_codes(summary)
    assert summary["runs"] == summary["planned_runs"] <= 44
    resumed = run_study(environment, file, "-o", out, "--resume")
    assert resumed["runs_made_now"] == 0


def test_a_limit_ends_a_study_early(tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "out"
    summary = run_study(environment, study(tmp_path, limits="limits: {runs: 10}"), "-o", out)
    assert summary["runs"] == 10
    assert summary["stopped_because"] == "10 of 10 runs"
    assert {"limit-reached", "run-missing"} <= finding_codes(summary)
    extended = run_study(
        environment, study(tmp_path, limits="limits: {runs: 99}"), "-o", out, "--resume"
    )
    assert extended["runs"] == 16
    assert "limit-reached" not in finding_codes(extended)


def test_an_optimal_design_is_augmented_by_optimal_rows_and_replicates(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Start with 14 of 36 combinations; each stage is a block in the tables of effects."""
    file, out = tmp_path / "levels.study.yaml", tmp_path / "out"
    file.write_text("""penstock: 1
name: levels
question: Which?
factors:
  jobs: {levels: [1, 8, 64]}
  disk: {levels: [hdd, ssd]}
  fs: {levels: [ext4, xfs, btrfs]}
  sync: {levels: [a, b]}
design:
  kind: {d-optimal: {model: main, runs: 14}}
  replicates: 2
  forbidden: [{disk: hdd, jobs: 64, fs: xfs}]
platform: {nodes: [{name: n}]}
workload: {command: 'echo y: {jobs} {disk} {fs} {sync}', timeout: 30s}
responses: {y: {from: {regex: 'y: ([0-9.]+)'}, unit: s, better: lower, scale: linear}}
observers: {monitor: null}
settle: {drop_caches: false, sync: false}
""")
    assert run_study(environment, file, "-o", out)["runs"] == 28
    planned = json.loads(penstock(environment, "plan", "--augment", out, "--json").stdout)
    assert [s["augment"] for s in planned["steps"]] == [
        "optimal:5", "optimal:7", "optimal:14", "replicates:1",
    ]  # fmt: skip
    refused = penstock(environment, "run", file, "-o", out, "--augment", "foldover")
    assert (refused.returncode, "optimal:ROWS or replicates:NUMBER" in refused.stderr) == (2, True)
    assert run_study(environment, file, "-o", out, "--augment", "optimal:6")["runs"] == 40
    third = run_study(environment, file, "-o", out, "--augment", "replicates:1")
    assert third["runs"] == third["valid_runs"] == 60
    plan = json.loads((out / "plan.json").read_text())
    levels = [tuple(sorted(r["levels"].items())) for r in plan["rows"]]
    assert len(set(levels)) == 20
    forbidden = {("disk", "hdd"), ("fs", "xfs"), ("jobs", "64")}
    assert not any(forbidden <= set(row) for row in levels)
    table = pd.read_parquet(out / "effects.parquet").set_index("term")
    assert table.loc["block", "df"] == 4  # five passes in three stages
    assert table.loc["residual", "df"] == plan["power"]["degrees_of_freedom"]
