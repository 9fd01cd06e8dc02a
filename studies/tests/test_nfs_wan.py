"""Aliases of eight runs of the published NFS study with known effects, and its planted failures."""

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

from studies.claims import Claim, Result, result_text, status  # noqa: E402


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    line = [sys.executable, STUDIES / "nfs_wan.py", "--virtual", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3, done.stderr + done.stdout
    assert "12 claims: 12 not measured" in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_plans_do_not_count_as_runs(document: dict[str, Any]) -> None:
    assert {c["result"] for c in document["claims"]} == {"not measured"}
    assert all(c["missing"] for c in document["claims"])
    # conclusions from the plans are not claims
    assert document["planned"]["here"] == document["planned"]["published"] == [96, 960, 320, 40, 80]


def test_eight_runs_have_the_published_aliases(document: dict[str, Any]) -> None:
    # coefficients by hand: B + CF, C + BF and mean + BCF; a wrong sign of a generator breaks all three
    eight = {row["term"]: row["8 runs"] for row in document["confused"]}
    assert eight["mean"] == pytest.approx(156)
    assert eight["B"] == eight["CF"] == pytest.approx(30 - 12)
    assert eight["C"] == eight["BF"] == pytest.approx(-25 - 8)
    assert eight["E"] == pytest.approx(40)
    for row in document["confused"]:  # sixteen by foldover and the full design give the true values
        assert row["64 runs"] == pytest.approx(row["truth"])
        assert row["16 by foldover"] == pytest.approx(row["truth"])
    assert document["folded"]


def test_a_run_that_failed_before_its_round_trip_has_none(tmp_path: Path) -> None:
    (tmp_path / "valid").write_text("7.02\n")
    (tmp_path / "failed").write_text("ping: no route\n")
    assert nfs_wan.round_trip_ms(tmp_path / "valid") == 7.02
    assert np.isnan(nfs_wan.round_trip_ms(tmp_path / "failed"))
    assert np.isnan(nfs_wan.round_trip_ms(tmp_path / "absent"))


def test_planted_failures_are_reported(document: dict[str, Any]) -> None:
    assert len(document["planted"]) == 3
    assert all(document["planted"].values())


def noisy(plan: Any, name: str, spread: float) -> pd.DataFrame:
    """Simulated runs with effects of latency and mode, additive on logarithms."""
    rng = np.random.default_rng(5)
    table = nfs_wan.without_noise(plan)
    sign = {n: np.where(table[n] == f.levels[1].name, 1.0, -1.0) for n, f in
            zip(nfs_wan.LETTERS.values(), plan.factors, strict=True)}  # fmt: skip
    log = 2.0 - 1.0 * sign["latency"] + 0.5 * sign["mode"] - 0.2 * sign["storage"]
    log += 0.6 * sign["size"] + 0.3 * sign["io"] + 0.2 * sign["mode"] * sign["latency"]
    for response in nfs_wan.RESPONSES:
        table[response] = np.exp(log + rng.normal(0, spread, len(table)))
    return table


def worlds() -> dict[str, pd.DataFrame]:
    return {
        name: noisy(nfs_wan.plan_of(*nfs_wan.designed(kind)), name, 0.05)
        for name, kind in (("full", ()), ("eight", nfs_wan.EIGHT), ("sixteen", nfs_wan.SIXTEEN))
    }


def evaluated(measured: dict[str, pd.DataFrame]) -> dict[int, Claim]:
    claims = nfs_wan.claims_of(measured, quick=False)
    return {int(c.of.removeprefix("point ")): c for c in claims}


def points(**changed: Any) -> dict[int, Claim]:
    measured = worlds()
    for name, change in changed.items():
        measured[name] = change(measured[name])
    return evaluated(measured)


def test_effects_as_published_meet_the_measured_claims() -> None:
    result = {number: claim.result for number, claim in points().items()}
    # there are no runs at the middle latency, and the largest effects differ from the published ones
    assert {n for n, r in result.items() if r is Result.NOT_MEASURED} == {1, 4}
    assert {n for n, r in result.items() if r is Result.NOT_MET} <= {12}
    compared = nfs_wan.described(worlds())["compared"]
    assert {row["response"] for row in compared["eight"]} == set(nfs_wan.RESPONSES)


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
def test_contradicting_effects_do_not_meet_their_claim(number: int, change: Any) -> None:
    assert points(full=change)[number].result is Result.NOT_MET


def test_a_cell_that_is_a_little_out_of_order_meets_the_relaxed_criterion_only() -> None:
    def reversed_cell(table: pd.DataFrame) -> pd.DataFrame:
        cell = (table["version"] == "NFSv3") & (table["mode"] == "sync") & (table["io"] == "64kB")
        cell &= (table["size"] == "25MB") & (table["latency"] == "local")
        ext4, tmpfs = (cell & (table["storage"] == name) for name in ("ext4", "tmpfs"))
        means = table.loc[tmpfs, "read"].mean() / table.loc[ext4, "read"].mean()
        return table.assign(read=table["read"].where(~ext4, 1.005 * means * table["read"]))

    order = points(full=reversed_cell)[2]
    assert order.result is Result.NOT_MET
    assert order.relaxed is not None
    assert order.relaxed.result is Result.MET
    assert "no cell contradicts it beyond chance" in result_text(order)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("full", {2, 3, 5, 6, 7, 8, 9, 10, 12}),
        ("eight", {9, 11}),
        ("sixteen", {10}),
    ],
)
def test_a_removed_treatment_is_not_measured(name: str, numbers: set[int]) -> None:
    measured = worlds()
    table = measured[name]
    first = nfs_wan.label(table[(table["latency"] == "remote") & (table["mode"] == "sync")].iloc[0])
    removed = [nfs_wan.label(row) == first for row in table.to_dict("records")]
    measured[name] = table.assign(valid=~np.array(removed))
    claims = evaluated(measured)
    missing = {n for n, claim in claims.items() if claim.result is Result.NOT_MEASURED}
    assert missing == numbers | {1, 4}
    assert all(first in text for n in numbers for text in claims[n].missing)
    assert status(claims.values()) == 3
