"""The simulator's bench at its smallest size: equal inputs of the engines, and well-formed rows.

The tests compare results, counts and shapes, but no times.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.simulation import bars, simpy_model, vectors
from bench.simulation.cases import FRAMES, SIMPY, TRAINS, grid
from bench.simulation.measure import linear_r2
from bench.simulation.penstock_engine import Simulator, frames

Row = dict[str, Any]
BENCH = Path(__file__).parents[2] / "bench" / "simulator.py"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def rows(out: Path) -> list[Row]:
    line = [sys.executable, str(BENCH), "--quick", "--json", "--out", str(out)]
    run = subprocess.run(line, capture_output=True, text=True, cwd=out)
    assert run.returncode == 0, run.stderr
    parsed: list[Row] = json.loads(run.stdout)
    return parsed


def values(rows: list[Row], metric: str, engine: str) -> dict[str, float]:
    return {r["case"]: r["value"] for r in rows if (r["metric"], r["engine"]) == (metric, engine)}


def test_rows_are_complete_and_unique(rows: list[Row]) -> None:
    keys = {"case", "engine", "metric", "value", "unit", "low", "high", "n"}
    for row in rows:
        assert set(row) == keys
        assert all(math.isfinite(row[name]) for name in ("value", "low", "high"))
        assert row["low"] <= row["value"] <= row["high"]
    keys_of_rows = [(r["case"], r["engine"], r["metric"]) for r in rows]
    assert len(keys_of_rows) == len(set(keys_of_rows))


def test_published_figures_are_marked_as_published(rows: list[Row]) -> None:
    published = [r for r in rows if r["engine"].startswith("published")]
    assert {r["value"] for r in published if r["metric"] == "wall time"} == {0.041, 0.3, 37.0, 25.0}
    assert all("other hardware" in r["engine"] or "real run" in r["engine"] for r in published)


@pytest.mark.parametrize("vector", vectors.all_vectors(), ids=lambda v: v.name)
def test_simpy_and_penstock_give_the_closed_forms(vector: vectors.Vector) -> None:
    """SimPy's model is the same, so the results are comparable (spec §12)."""
    peer = simpy_model.simulate(vector.workload, vector.network)
    outcome = Simulator(vector.workload).simulate(frames(vector.network))
    assert peer.makespan_s == pytest.approx(vector.expected_s, rel=vector.relative)
    assert outcome["makespan_s"] == pytest.approx(vector.expected_s, rel=vector.relative)
    assert outcome["makespan_s"] == pytest.approx(peer.makespan_s, rel=1e-6)
    assert outcome["bytes"]["network"] == peer.network_bytes
    assert outcome["requests"] == peer.requests


def test_a_wrong_service_time_is_detected() -> None:
    """Planted: SimPy's model with storage 5 % slower deviates from the closed form."""
    vector = next(v for v in vectors.all_vectors() if v.name == "write, 200 ms disk")
    wrong = simpy_model.simulate(vector.workload, vectors.apart(1, 0.21))
    assert wrong.makespan_s != pytest.approx(vector.expected_s, rel=0.01)


def test_the_reduce_of_the_peers_has_one_makespan(rows: list[Row]) -> None:
    deviations = values(rows, "makespan beside frames", SIMPY)
    assert len(deviations) == 1
    assert all(abs(percent) < 1e-4 for percent in deviations.values())


def test_trains_are_within_2_percent_of_frames(rows: list[Row]) -> None:
    deviations = values(rows, "makespan beside frames", TRAINS)
    assert len(deviations) >= 8
    assert {case: percent for case, percent in deviations.items() if abs(percent) > 2} == {}


def test_trains_are_fewer_events(rows: list[Row]) -> None:
    each, merged = (values(rows, "events", engine) for engine in (FRAMES, TRAINS))
    assert each.keys() == merged.keys()
    assert all(merged[case] < each[case] for case in each if "WOSS" not in case)


def test_events_grow_with_the_nodes_in_a_line(rows: list[Row]) -> None:
    """Counts, not times; a quadratic growth must be distinguished from a linear one."""
    straight = values(rows, "R2 of events against nodes", FRAMES)
    assert set(straight) == {"weak scaling, DSS", "weak scaling, WOSS"}
    assert min(straight.values()) >= 0.99
    assert linear_r2([10, 20, 30, 40], [100, 400, 900, 1600]) < 0.99


def test_placement_near_the_data_makes_fewer_events(rows: list[Row]) -> None:
    """Costa 2014."""
    events = values(rows, "events", FRAMES)
    woss = [case for case in events if case.endswith("WOSS")]
    assert len(woss) >= 4
    assert all(events[case] < events[case.replace("WOSS", "DSS")] for case in woss)


def test_configurations_are_different(rows: list[Row]) -> None:
    assert len(set(grid(10_000))) == 10_000
    makespans = [r for r in rows if r["metric"] == "different makespans"]
    assert [r["value"] > 10 for r in makespans] == [True]


def test_the_figure_is_drawn(rows: list[Row], out: Path) -> None:
    assert rows
    assert (out / "simulator-cost.svg").stat().st_size > 5_000
    assert (out / "simulator-cost.png").stat().st_size > 5_000


def test_a_missed_goal_is_reported() -> None:
    """Planted: one event fewer than the goal, and a deviation of merged frames by 2.1 %."""
    row = {"case": "events, 50 hosts", "engine": FRAMES, "unit": "1/s"}
    row["metric"] = "events/s of CPU time"
    assert verdicts(row, 10e6, 10e6 - 1) == ["met", "missed"]
    deviation = {"case": "x", "engine": TRAINS, "metric": "makespan beside frames", "unit": "%"}
    assert verdicts(deviation, -1.9, -2.1) == ["met", "missed"]


def verdicts(row: Row, *values: float) -> list[str]:
    return [bars.with_verdicts([{**row, "value": value}])[0]["verdict"] for value in values]
