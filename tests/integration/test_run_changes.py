"""Effects of a change of a factor: new data, new mounts and the hooks of the study."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.disks.transport import TRANSPORTS
from penstock.host.journal.journal import Journal
from tests.integration.known_host import with_known_host
from tests.support import commands
from tests.support.environment import environment_in

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
]

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
#: a disk that is a directory of the study, without a certificate
PLAIN = "directory: plain"
#: the data contains the time of its creation; hooks write a log
STUDY = """
penstock: 1
name: changes
question: What does a change do?
factors:
  kind:  {levels: [a, b], change: reformat}
  mount: {levels: [c, d], change: remount}
  jobs:  {levels: [1, 2]}
design: {kind: full, replicates: 1, seed: 1, order: interleaved}
platform:
  nodes: [{name: n, CPUS disks: [{name: data, DISK, size: 4MiB}]}]
workload:
  prepare: "date +%s%N > {data}/born; head -c 65536 /dev/urandom > {data}/file"
  mutates: false
  hooks:
    redeploy: "echo redeploy >> {study_dir}/log"
    reformat: "echo reformat >> {study_dir}/log"
    restart: "echo restart >> {study_dir}/log"
    remount: "echo remount >> {study_dir}/log"
    apply: "echo apply {kind} {mount} {jobs} >> {study_dir}/log"
    verify: "test ! -e {study_dir}/wrong || { rm {study_dir}/wrong; echo wrong level >&2; false; }"
    undo: "echo undo >> {study_dir}/log"
  command: "echo born $(cat {data}/born)"
  timeout: 30s
  expected: 1s
responses: {born: {from: {regex: 'born (.*)'}, unit: s, better: lower}}
observers: {monitor: null}
settle: {resident_at_most: null}
# what else the host did in a run of milliseconds may spoil its certificate, not what is looked at here
retry: {disk: 0}
"""


def run(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    with_known_host(tmp_path / "state")
    environment = environment_in(tmp_path)
    return commands.run(
        [*PENSTOCK, *argv], capture_output=True, text=True, env=environment, timeout=300, check=False
    )  # fmt: skip


def study(tmp_path: Path, cpus: str = "", disk: str = PLAIN) -> Path:
    path = tmp_path / "changes.study.yaml"
    (tmp_path / "plain").mkdir()
    text = (
        STUDY.replace("CPUS", cpus)
        .replace("DISK", disk)
        .replace("|| { rm", "|| {{ rm")
        .replace("false; }", "false; }}")
    )
    path.write_text(text)
    return path


def planned(tmp_path: Path, path: Path) -> list[dict[str, Any]]:
    result = run(tmp_path, "plan", str(path), "--show", "--json")
    assert result.returncode == 0, result.stderr
    sequence: list[dict[str, Any]] = json.loads(result.stdout)["sequence"]
    return sequence


def manifests(out: Path) -> dict[str, dict[str, Any]]:
    return {
        p.parent.name: json.loads(p.read_text()) for p in sorted(out.glob("runs/r*/manifest.json"))
    }


@pytest.mark.parametrize("disk", ["profile: sata-ssd, time_scale: 20", PLAIN])
def test_runs_perform_the_planned_actions_and_data_is_recreated_on_reformat(
    tmp_path: Path, disk: str
) -> None:
    path, out = study(tmp_path, disk=disk), tmp_path / "out"
    steps = planned(tmp_path, path)
    result = run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    # a busy host may make each short run on an emulated disk invalid
    assert result.returncode == 0 or disk != PLAIN, result.stderr
    runs = manifests(out)
    assert [runs[s["run_id"]]["actions"] for s in steps] == [s["actions"] for s in steps]
    log = []
    for step in steps:
        levels = runs[step["run_id"]]["levels"]
        log += [*step["actions"], f"apply {levels['kind']} {levels['mount']} {levels['jobs']}"]
    assert (tmp_path / "log").read_text().splitlines() == [*log, "undo"]
    for manifest in runs.values():
        (state,) = manifest["device_state"].values()
        assert "in_flight" in state
        if "profile" in disk:
            assert state.pop("transport") in TRANSPORTS
            assert state == {"in_flight": 0, "dirty_bytes": 0.0, "credits": {}}
    creations = [(out / "runs" / s["run_id"] / "stdout.txt").read_text() for s in steps]
    for before, after, step in zip(creations, creations[1:], steps[1:], strict=False):
        # new data exactly where `kind` changes
        assert (before != after) == ("kind" in step["changed"])
    assert len(set(creations)) == 1 + sum("kind" in s["changed"] for s in steps)
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []


def test_a_run_that_fails_verification_is_repeated(tmp_path: Path) -> None:
    path, out = study(tmp_path), tmp_path / "out"
    (tmp_path / "wrong").touch()
    result = run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    assert result.returncode == 0, result.stderr
    invalid = json.loads((out / "runs" / "r001.attempt1" / "manifest.json").read_text())
    assert not invalid["valid"]
    assert "hooks.verify ended with status 1: wrong level" in invalid["reason"]
    repeated = manifests(out)["r001"]
    assert repeated["attempt"] == 2
    assert "hooks.verify" not in (repeated["reason"] or "")
    # the state after the invalid run is unknown
    assert manifests(out)["r002"]["actions"] == ["redeploy", "reformat", "restart", "remount"]


def test_a_failed_hook_ends_the_campaign_with_its_message(tmp_path: Path) -> None:
    path, out = study(tmp_path), tmp_path / "out"
    path.write_text(
        path.read_text().replace("echo remount >>", "echo no such device >&2; exit 7; echo")
    )
    result = run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    assert result.returncode == 1
    assert "hooks.remount ended with status 7: no such device" in result.stderr
    assert (tmp_path / "log").read_text().splitlines()[-1] == "undo"


def test_nodes_are_reused_unless_an_action_requires_new_nodes(tmp_path: Path) -> None:
    path, out = study(tmp_path, cpus='cpus: "{jobs}",'), tmp_path / "out"
    text = path.read_text().replace("{study_dir}/log", "/dev/null")
    path.write_text(text.replace("{study_dir}/wrong", "/nothing/here"))
    steps = planned(tmp_path, path)
    # a busy host may make each short run invalid
    run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    starts = {run_id: m["place"]["put_up"] for run_id, m in manifests(out).items()}
    # a change of `jobs` alone is applied to running nodes
    assert starts == {s["run_id"]: "up" if s["actions"] else "set" for s in steps}
    assert set(starts.values()) == {"up", "set"}


def test_undo_after_a_kill_runs_the_undo_hook(tmp_path: Path) -> None:
    path, out = study(tmp_path), tmp_path / "out"
    command = "touch {study_dir}/begun; sleep 60; echo born $(cat {data}/born)"
    path.write_text(path.read_text().replace("echo born $(cat {data}/born)", command))
    state = {"PENSTOCK_STATE": str(tmp_path / "state"), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    environment = {**os.environ, **state}
    child = commands.popen(
        [*PENSTOCK, "run", str(path), "-o", str(out)], env=environment, stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "begun").exists():
        assert child.poll() is None
        time.sleep(0.05)
    child.kill()
    child.wait()
    assert (tmp_path / "log").read_text().splitlines()[-1].startswith("apply")
    result = run(tmp_path, "undo", "--json")
    assert result.returncode == 0, result.stdout
    undone = [u for u in json.loads(result.stdout)["undone"] if u["kind"] == "command"]
    assert [(u["target"], u["outcome"]) for u in undone] == [("hooks.undo of changes", "undone")]
    assert (tmp_path / "log").read_text().splitlines()[-1] == "undo"
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []
    # a second undo has nothing to do
    assert run(tmp_path, "undo").stdout == "Nothing to undo.\n"
