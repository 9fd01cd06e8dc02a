"""What eight runs of the published NFS study confuse, where the truth is known, and its planted failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

STUDIES = Path(__file__).parents[2] / "studies"
sys.path.insert(0, str(STUDIES))

import nfs_wan  # noqa: E402


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    line = [sys.executable, STUDIES / "nfs_wan.py", "--virtual", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_points_without_runs_are_not_run_and_never_met(said: dict[str, Any]) -> None:
    verdicts = {p["number"]: p["verdict"] for p in said["points"]}
    assert list(verdicts) == list(range(1, 12))
    assert {n for n, v in verdicts.items() if v == "met"} == {1, 11}
    assert {v for n, v in verdicts.items() if n not in (1, 11)} == {"not run"}


def test_the_eight_say_what_the_published_case_says_they_say(said: dict[str, Any]) -> None:
    # coefficients by hand: B + CF, C + BF and mean + BCF; a wrong sign of a generator breaks all three
    eight = {row["term"]: row["8 runs"] for row in said["confused"]}
    assert eight["mean"] == pytest.approx(156)
    assert eight["B"] == eight["CF"] == pytest.approx(30 - 12)
    assert eight["C"] == eight["BF"] == pytest.approx(-25 - 8)
    assert eight["E"] == pytest.approx(40)
    for row in said["confused"]:  # sixteen by foldover and the full design give the truth
        assert row["64 runs"] == pytest.approx(row["truth"])
        assert row["16 by foldover"] == pytest.approx(row["truth"])
    assert said["folded"]


def test_planted_failures_are_reported(said: dict[str, Any]) -> None:
    assert len(said["planted"]) == 3
    assert all(said["planted"].values())


def noisy(plan: Any, name: str, spread: float) -> pd.DataFrame:
    """Runs of a world in which latency and synchronicity matter, ratios being what adds up."""
    rng = np.random.default_rng(5)
    table = nfs_wan.without_noise(plan)
    sign = {n: np.where(table[n] == f.levels[1].name, 1.0, -1.0) for n, f in
            zip(nfs_wan.LETTERS.values(), plan.factors, strict=True)}  # fmt: skip
    log = 2.0 - 1.0 * sign["latency"] + 0.5 * sign["mode"] - 0.2 * sign["storage"]
    log += 0.6 * sign["size"] + 0.3 * sign["io"] + 0.2 * sign["mode"] * sign["latency"]
    for response in nfs_wan.RESPONSES:
        table[response] = np.exp(log + rng.normal(0, spread, len(table)))
    return table


def judged(**changed: Any) -> dict[int, dict[str, Any]]:
    measured = {
        name: noisy(nfs_wan.plan_of(*nfs_wan.designed(kind)), name, 0.05)
        for name, kind in (("full", ()), ("eight", nfs_wan.EIGHT), ("sixteen", nfs_wan.SIXTEEN))
    }
    for name, change in changed.items():
        measured[name] = change(measured[name])
    found = nfs_wan.judged(measured, quick=False)
    assert {c["response"] for c in found["compared"]["eight"]} == set(nfs_wan.RESPONSES)
    return {p["number"]: p for p in found["points"]}


def test_a_world_as_published_meets_all_points_that_were_run() -> None:
    points = judged()
    assert {n for n, p in points.items() if p["verdict"] == "not run"} == {4}
    assert [p for p in points.values() if p["verdict"] == "missed"] == []


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (2, lambda t: t.assign(read=t["read"].where(t["storage"] == "tmpfs", 10 * t["read"]))),
        (3, lambda t: t.assign(write=t["write"].where(t["latency"] == "local", 1e3))),
        (5, lambda t: t.assign(read=t["read"].where(t["io"] == "64kB", 0.1 * t["read"]))),
        (6, lambda t: t.assign(write=t["write"].where(t["version"] == "NFSv3", 1e6))),
        (7, lambda t: t.assign(valid=t["run_id"] != "r001")),
        (10, lambda t: t.assign(write=1 / t["write"])),
    ],
)
def test_a_world_that_is_otherwise_misses_its_point(number: int, change: Any) -> None:
    assert judged(full=change)[number]["verdict"] == "missed"
