"""What a change of a factor does on this host: fresh data, fresh mounts, the study's own commands."""

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
#: a disk that is a directory of the study: nothing is certified
PLAIN = "directory: plain"
#: the data says when it was made, and the hooks when they ran
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


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    with_known_host(tmp_path / "state")
    environment = environment_in(tmp_path)
    return commands.run(
        [*PENSTOCK, *words], capture_output=True, text=True, env=environment, timeout=300, check=False
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
    shown = run(tmp_path, "plan", str(path), "--show", "--json")
    assert shown.returncode == 0, shown.stderr
    found: list[dict[str, Any]] = json.loads(shown.stdout)["sequence"]
    return found


def manifests(out: Path) -> dict[str, dict[str, Any]]:
    return {
        p.parent.name: json.loads(p.read_text()) for p in sorted(out.glob("runs/r*/manifest.json"))
    }


@pytest.mark.parametrize("disk", ["profile: sata-ssd, time_scale: 20", PLAIN])
def test_what_was_shown_is_what_is_done_and_data_is_made_anew_where_it_must(
    tmp_path: Path, disk: str
) -> None:
    path, out = study(tmp_path, disk=disk), tmp_path / "out"
    steps = planned(tmp_path, path)
    done = run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    # on an emulated disk a busy host leaves no valid run of such milliseconds
    assert done.returncode == 0 or disk != PLAIN, done.stderr
    found = manifests(out)
    assert [found[s["run_id"]]["actions"] for s in steps] == [s["actions"] for s in steps]
    log = []
    for step in steps:
        levels = found[step["run_id"]]["levels"]
        log += [*step["actions"], f"apply {levels['kind']} {levels['mount']} {levels['jobs']}"]
    assert (tmp_path / "log").read_text().splitlines() == [*log, "undo"]
    for manifest in found.values():
        (state,) = manifest["device_state"].values()
        assert "in_flight" in state
        if "profile" in disk:
            assert state.pop("transport") in TRANSPORTS
            assert state == {"in_flight": 0, "dirty_bytes": 0.0, "credits": {}}
    born = [(out / "runs" / s["run_id"] / "stdout.txt").read_text() for s in steps]
    for before, now, step in zip(born, born[1:], steps[1:], strict=False):
        # data that is shared where the factor changes, or made anew where it does not, breaks this
        assert (before != now) == ("kind" in step["changed"])
    assert len(set(born)) == 1 + sum("kind" in s["changed"] for s in steps)
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []


def test_a_run_whose_levels_were_not_there_is_made_again(tmp_path: Path) -> None:
    path, out = study(tmp_path), tmp_path / "out"
    (tmp_path / "wrong").touch()
    done = run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    assert done.returncode == 0, done.stderr
    spoilt = json.loads((out / "runs" / "r001.attempt1" / "manifest.json").read_text())
    assert not spoilt["valid"]
    assert "hooks.verify ended with status 1: wrong level" in spoilt["reason"]
    again = manifests(out)["r001"]
    assert again["attempt"] == 2
    assert "hooks.verify" not in (again["reason"] or "")
    # after it nobody knew what was up
    assert manifests(out)["r002"]["actions"] == ["redeploy", "reformat", "restart", "remount"]


def test_a_hook_that_fails_ends_the_campaign_with_its_words(tmp_path: Path) -> None:
    path, out = study(tmp_path), tmp_path / "out"
    path.write_text(
        path.read_text().replace("echo remount >>", "echo no such device >&2; exit 7; echo")
    )
    done = run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    assert done.returncode == 1
    assert "hooks.remount ended with status 7: no such device" in done.stderr
    assert (tmp_path / "log").read_text().splitlines()[-1] == "undo"


def test_nodes_are_kept_unless_an_action_asks_for_new_ones(tmp_path: Path) -> None:
    path, out = study(tmp_path, cpus='cpus: "{jobs}",'), tmp_path / "out"
    away = path.read_text().replace("{study_dir}/log", "/dev/null")
    path.write_text(away.replace("{study_dir}/wrong", "/nothing/here"))
    steps = planned(tmp_path, path)
    # valid or not: on a busy host no run of milliseconds is
    run(tmp_path, "run", str(path), "-o", str(out), "--no-report")
    put_up = {run_id: m["place"]["put_up"] for run_id, m in manifests(out).items()}
    # a change of jobs alone is set on the nodes that are up
    assert put_up == {s["run_id"]: "up" if s["actions"] else "set" for s in steps}
    assert set(put_up.values()) == {"up", "set"}


def test_what_hooks_did_before_a_kill_is_put_right_by_undo(tmp_path: Path) -> None:
    path, out = study(tmp_path), tmp_path / "out"
    waits = "touch {study_dir}/begun; sleep 60; echo born $(cat {data}/born)"
    path.write_text(path.read_text().replace("echo born $(cat {data}/born)", waits))
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
    back = run(tmp_path, "undo", "--json")
    assert back.returncode == 0, back.stdout
    undone = [u for u in json.loads(back.stdout)["undone"] if u["kind"] == "command"]
    assert [(u["target"], u["outcome"]) for u in undone] == [("hooks.undo of changes", "undone")]
    assert (tmp_path / "log").read_text().splitlines()[-1] == "undo"
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []
    # a campaign that was put right owes nothing more
    assert run(tmp_path, "undo").stdout == "Nothing to undo.\n"
