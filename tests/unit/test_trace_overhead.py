"""Overhead in a receipt: by the kernel's account, by paired runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.observe.trace.capture import overhead
from penstock.observe.trace.capture.overhead import (
    Cost,
    Paired,
    RunCost,
    added_by_programs,
    estimate,
)

COST = Cost(RunCost(50, 40, 60, 30, 70, 0), RunCost(100, 80, 120, 40, 75, 0), 6, "planted")


def metering(**changed: Any) -> dict[str, Any]:
    groups = {
        "calls": {"time_ns": 170_000.0, "runs": 1_000.0, "own": 400.0, "accounted": 0.0},
        "others": {"time_ns": 75_000.0, "runs": 1_000.0, "own": 0.0, "accounted": 0.0},
    }
    return {"windows": 3, "on_ns": 10**7, "error_ns": 1_000.0, **groups, **changed}


def test_added_time_is_time_beyond_idle_runs_plus_hooks_of_targets() -> None:
    added = added_by_programs(metering(), COST)
    assert added is not None
    assert added.ns == pytest.approx(170_000 - 70 * 1_000 + 50 * 400)
    assert added.low == pytest.approx(100_000 + 40 * 400 - 1_960)
    assert added.high == pytest.approx(100_000 + 60 * 400 + 1_960)


def test_the_cost_of_the_account_itself_is_added() -> None:
    groups = metering()
    groups["calls"]["accounted"] = 100.0
    with_account, without = added_by_programs(groups, COST), added_by_programs(metering(), COST)
    assert with_account is not None
    assert without is not None
    assert with_account.ns - without.ns == pytest.approx(100 * 30)


def test_a_traced_loop_measures_time_outside_of_the_account() -> None:
    """Blocks of 500, 560, 620 and 900 ns: no programs, no target, accounted, the loop as target."""
    spans = {"off": 0, "armed": 1, "accounted": 2, "traced": 3}
    blocks = [
        (10**9 * place + 10**7 + 10**6 * number, ns)
        for place, ns in enumerate((500.0, 560.0, 620.0, 900.0))
        for number in range(50)
    ]
    span_of = {name: (10**9 * place, 10**9 * (place + 1)) for name, place in spans.items()}
    idle = {"metering": {"calls": {"time_ns": 7_000.0, "runs": 100.0}}}
    # the account has 150 ns for each of 100 runs for the loop; an idle run takes 70 of these as well
    loop = {"metering": {"calls": {"time_ns": 15_000.0, "runs": 100.0, "own": 100.0}}}
    round_ = overhead._Round(
        span_of["off"], span_of["armed"], span_of["accounted"], idle, span_of["traced"], loop
    )
    cost = overhead._run_cost({"calls": blocks}, [round_] * 6, "calls", 2)
    assert (cost.hook, cost.account, cost.idle) == (30, 30, 70)
    assert cost.left == pytest.approx(400 / 2 - 30 - 80)
    # the receipt of such a loop gives the 400 ns that paired runs show
    sums = metering(
        calls={"time_ns": 30_000.0, "runs": 200.0, "own": 200.0, "accounted": 0.0},
        others={"time_ns": 0.0, "runs": 0.0, "own": 0.0, "accounted": 0.0},
    )
    added = added_by_programs(sums, Cost(cost, COST.others, 6, "planted"))
    assert added is not None
    assert added.ns == pytest.approx(100 * 400)


def test_a_missing_group_of_programs_changes_the_estimate() -> None:
    zeros = {"time_ns": 0.0, "runs": 0.0, "own": 0.0, "accounted": 0.0}
    complete, planted = metering(), metering(calls=zeros)
    added_with_all, without = added_by_programs(complete, COST), added_by_programs(planted, COST)
    assert added_with_all is not None
    assert without is not None
    assert without.ns < added_with_all.ns / 2


def test_the_share_is_of_the_time_without_tracing() -> None:
    receipt = {"mode": "trace", "kept": 10, "lost": 0, "cpu_ns": 0, "metering": metering()}
    estimated = estimate(receipt, COST, 240_000)
    assert estimated["added_share"] == pytest.approx(1.0)  # 120 of 240 us
    assert estimate(receipt, COST, 240_000, 480_000)["added_share"] == pytest.approx(1 / 3)


def test_without_the_account_the_basis_has_the_reason() -> None:
    refused = metering(windows=0) | {"refused": "the kernel's account of BPF programs: EPERM"}
    receipt = {"mode": "count", "kept": 10, "lost": 0, "cpu_ns": 0, "metering": refused}
    estimated = estimate(receipt, COST, 10**9)
    assert estimated["added_ns"] == 1300
    assert "EPERM" in estimated["added_ns_basis"]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.9, 2.6, "above"),  # wide, but completely above the limit
        (0.001, 0.003, "within"),
        (-0.1, 0.004, "undecided"),  # wider than the limit
        (0.004, 0.02, "undecided"),
        (float("-inf"), float("inf"), "undecided"),
    ],
)
def test_paired_runs_are_judged_by_their_interval(low: float, high: float, verdict: str) -> None:
    assert Paired([], [], (low + high) / 2, low, high, 0.008).verdict == verdict


def test_the_loop_ends_with_its_parent_process(tmp_path: Path) -> None:
    """Fails if the loop outlives a killed parent."""
    (tmp_path / "file").write_bytes(bytes(1 << 19))
    program = """
import os, subprocess, sys
argv = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2], str(os.getpid())]
loop = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
print(loop.pid, flush=True)
loop.wait()
"""
    argv = [sys.executable, "-c", program, overhead._LOOP, str(tmp_path / "file")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        loop = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            with contextlib.suppress(ChildProcessError):
                parent.wait()
            ended, _, _ = select.select([loop], [], [], 60)
            assert ended
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(loop, signal.SIGKILL)
            os.close(loop)
