"""A campaign of 40 runs with kills, failing runs and an outlier follows the policy of its study.

Conductor, processes and signals are real. The workload is a Python program with planted failures.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from penstock.archive.bundle import Bundle
from tests.integration.test_run import NOTHING, Ground, ground  # noqa: F401 - a fixture
from tests.support.waiting import until

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups"),
]

PROGRAM = """
import pathlib, random, sys, time
place, a, b, c = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
with open(place / "launches", "a") as file:
    file.write("x")
launch = (place / "launches").stat().st_size
if launch in {fails}:
    sys.exit("planted: no such table")
if launch in {hangs}:
    time.sleep(30)
value = 100 + 8 * a - 5 * b + 2 * a * c + random.Random(launch).gauss(0, 1)
print("y:", value + 60 * (launch in {far}))
"""
STUDY = """
penstock: 1
name: policy
question: What becomes of runs that go wrong?
factors:
  a: {levels: [-1, 1]}
  b: {levels: [-1, 1]}
  c: {levels: [-1, 1]}
design: {kind: full, replicates: 5, seed: 11}
platform: {nodes: [{name: n}]}
workload:
  command: sleep 0.1; python3 {study_dir}/work.py {study_dir} {a} {b} {c}
  timeout: 60s
responses: {y: {from: {regex: 'y: ([0-9.]+)'}, unit: s, better: lower}}
observers: {monitor: null}
settle: {drop_caches: false}
"""


def program(directory: Path, **launches: set[int]) -> None:
    planted = {"fails": set(), "hangs": set(), "far": set()} | launches
    (directory / "work.py").write_text(
        PROGRAM.replace("{fails}", repr(planted["fails"]))
        .replace("{hangs}", repr(planted["hangs"]))
        .replace("{far}", repr(planted["far"]))
    )


def await_launch(file: Path, number: int) -> None:
    """Wait until the program has been launched for the `number`-th time."""
    until(lambda: file.exists() and file.stat().st_size >= number, 120)


def planned(out: Path) -> list[str]:
    return [r["run_id"] for r in json.loads((out / "plan.json").read_text())["rows"]]


@pytest.mark.timeout(240)
def test_three_kills_leave_forty_runs_in_the_order_of_the_plan(ground: Ground) -> None:  # noqa: F811
    draws = random.Random(17)
    killed = sorted(draws.sample(range(3, 39), 3))
    # each kill adds a launch; the killed run waits for it
    launches = [number + kills for kills, number in enumerate(killed)]
    program(ground.where, hangs=set(launches))
    first_plan = None
    for number, launch in zip(killed, launches, strict=True):
        conductor = ground.start(STUDY, *(["--resume"] if first_plan else []))
        await_launch(ground.where / "launches", launch)
        os.kill(conductor.pid, signal.SIGKILL)
        conductor.communicate()
        first_plan = first_plan or planned(ground.out)
        # responses of finished runs are on disk already
        finished = list((ground.out / "runs").glob("r*/manifest.json"))
        assert len(finished) == number - 1
        time.sleep(0.2)
    result = ground.run(STUDY, "--resume", "--json")
    assert result.returncode == 0, result.stderr
    runs = pd.read_parquet(ground.out / "runs.parquet")
    assert len(runs) == 40
    assert runs["valid"].all()
    assert planned(ground.out) == first_plan  # a resumed campaign keeps its order
    assert runs.set_index("run_id")["run_order"].to_dict() == {
        r: i for i, r in enumerate(first_plan or [], start=1)
    }
    starts = [
        Bundle.open(ground.out / "runs" / r).manifest["times"]["start_ns"] for r in first_plan or []
    ]
    assert starts == sorted(starts)
    assert sorted(runs.loc[runs["attempt"] > 1, "run_id"]) == [f"r{n:03d}" for n in killed]
    assert runs["attempt"].max() == 2
    assert ground.leftovers() == NOTHING


@pytest.mark.timeout(240)
def test_what_goes_wrong_is_met_as_was_decided_before(ground: Ground) -> None:  # noqa: F811
    program(ground.where, fails={9, 10}, hangs={14}, far={30})
    text = STUDY.replace("timeout: 60s", "timeout: 10s")
    text += "retry: {failed: 1, timed_out: 1}\noutliers: {mads: 14.826, chance: 5%}\n"
    result = ground.run(text, "--json")
    assert result.returncode == 0, result.stderr
    attempts = pd.read_parquet(ground.out / "attempts.parquet")
    bad = attempts[~attempts["valid"]]
    assert sorted(bad["state"]) == ["failed", "failed", "timed-out"]
    assert bad["reason"].str.contains("planted: no such table|longer than 10 s").all()
    runs = pd.read_parquet(ground.out / "runs.parquet")
    assert len(runs) == 40
    assert runs["valid"].all()
    repeated = runs[runs["attempt"] == 2]
    assert sorted(repeated["run_id"]) == sorted(bad["run_id"])  # exactly these three
    # each run is repeated after its replicate and before the next one
    start_ns = {
        (m["run_id"], m["attempt"]): m["times"]["start_ns"]
        for m in (json.loads(p.read_text()) for p in (ground.out / "runs").glob("r*/manifest.json"))
    }
    for run in repeated.itertuples():
        repeated_ns = start_ns[(run.run_id, 2)]
        blocks = dict(zip(runs["run_id"], runs["replicate"], strict=True))
        first_ns = {r: t for (r, n), t in start_ns.items() if n == 1}
        assert all(t < repeated_ns for r, t in first_ns.items() if blocks[r] <= run.replicate)
        assert all(t > repeated_ns for r, t in first_ns.items() if blocks[r] > run.replicate)
    # the outlier is flagged and kept; the finding reports both analyses
    residuals = pd.read_parquet(ground.out / "residuals.parquet")
    (flagged,) = residuals[residuals["flag"] != ""]["run_id"]
    assert runs.set_index("run_id")["y"][flagged] > 140
    effects = pd.read_parquet(ground.out / "effects.parquet")
    assert (effects["n"] == 40).all()
    statements = {f["code"]: f["statement"] for f in json.loads(result.stdout)["findings"]}
    assert flagged in statements["outlier"]
    assert "in the data" in statements["outlier"]
    assert "without it" in statements["outlier"]


@pytest.mark.timeout(120)
def test_without_a_policy_failed_runs_are_not_repeated(ground: Ground) -> None:  # noqa: F811
    """Failed runs are repeated only if the study has a policy."""
    program(ground.where, fails={9})
    text = STUDY.replace("replicates: 5", "replicates: 2")
    result = ground.run(text, "--json")
    assert result.returncode == 0, result.stderr
    runs = pd.read_parquet(ground.out / "runs.parquet")
    assert (runs["attempt"] == 1).all()
    assert int((~runs["valid"]).sum()) == 1
