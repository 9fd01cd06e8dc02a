"""Phases of a start, computed from the journal, and their verdict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import trace_start
from bench.trace_start import BORDERS, LAST, TOTAL, phases

STEP_NS = 100_000_000


def plan(number: int, kind: str, target: str) -> dict[str, Any]:
    return {"event": "plan", "kind": kind, "target": target, "realtime_ns": number * STEP_NS}


#: plans of an earlier start, then of one that is called at step 10
RECORDS = [
    plan(1, "process", "penstock-tracer"),
    plan(2, "cgroup", "penstock-trace-aa"),
    plan(3, "directory", "/state/spool/trace-aa"),
    {"event": "undone", "id": "aa"},
    plan(12, "process", "penstock-tracer"),
    plan(15, "cgroup", "penstock-trace-bb"),
    plan(16, "directory", "/run-passable/marks-bb"),
    plan(17, "directory", "/state/spool/trace-bb"),
]


def test_phases_of_a_start_begin_at_its_call() -> None:
    lengths = phases(RECORDS, 10 * STEP_NS, 18 * STEP_NS)
    assert lengths == pytest.approx(
        {
            "imports of the verb": 0.2,
            "imports of libraries, while the daemon starts": 0.3,
            "control group, file of marks, wait for the programs": 0.2,
            LAST: 0.1,
            TOTAL: 0.8,
        }
    )


@pytest.mark.parametrize("number", [4, 5, 7])
def test_a_missing_border_is_an_error(number: int) -> None:
    records = [entry for at, entry in enumerate(RECORDS) if at != number]
    with pytest.raises(ValueError, match="found no"):
        phases(records, 10 * STEP_NS, 18 * STEP_NS)


def test_borders_out_of_order_are_an_error() -> None:
    with pytest.raises(ValueError, match="out of order"):
        phases(RECORDS, 10 * STEP_NS, 16 * STEP_NS)


@pytest.mark.parametrize(
    ("total_s", "planted_s", "status"), [(0.9, 1.9, 0), (1.1, 2.1, 1), (0.9, 0.9, 1)]
)
def test_a_slow_start_and_a_plant_that_is_not_seen_are_printed(
    total_s: float,
    planted_s: float,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start(place: Path, mode: str, slow: bool = False) -> dict[str, float]:
        lengths = dict.fromkeys([*(phase for phase, _, _ in BORDERS), LAST], 0.0)
        return {**lengths, TOTAL: planted_s if slow else total_s}

    monkeypatch.setattr(trace_start, "start", start)
    monkeypatch.setattr(sys, "argv", ["trace_start.py", "--quick"])
    assert trace_start.main() == status
    output = capsys.readouterr().out
    assert ("missed" in output) == (total_s > 1.0)
    assert ("NOT FOUND" in output) == (planted_s < 1.0)
