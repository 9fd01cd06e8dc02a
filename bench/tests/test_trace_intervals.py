"""Coverage of the intervals that a trace prints (a short pass of bench/trace_intervals.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import trace_intervals
from bench.trace_intervals import Printed, log_of_short_processes, printed_intervals, simulate

ROWS = list(printed_intervals(quick=True))


@pytest.mark.parametrize("printed", ROWS, ids=[row.name for row in ROWS])
def test_an_interval_has_its_nominal_coverage(printed: Printed) -> None:
    coverage, narrowed = simulate(printed, 40, seed=5)
    assert coverage.trials >= 15
    assert not coverage.below(printed.nominal), coverage
    assert narrowed.covered <= coverage.covered


def test_intervals_of_half_the_width_are_detected() -> None:
    """Intervals whose level can be missed, with enough draws for a significant result."""
    names = ("zipf exponent 0.8, 2048 blocks, 8 requests each, exact", "--calibrate, 15 pairs")
    rows = [row for row in ROWS if row.name.startswith(names)]
    assert len(rows) == 3
    for row in rows:
        coverage, narrowed = simulate(row, 150, seed=6)
        assert not coverage.below(row.nominal)
        assert narrowed.below(row.nominal), row.name


def test_a_log_in_any_order_is_detected() -> None:
    wrong = Printed("any order", 0.9999, log_of_short_processes(planted=True))
    assert simulate(wrong, 50, seed=7)[0].below(0.9999)


def test_latencies_in_clusters_count_as_fewer() -> None:
    from penstock.analyse.traces.trace_compare import ratios_of

    draws = np.random.default_rng(3)
    once = draws.exponential(1.0, 400)
    again = np.repeat(once[:100], 4)  # each value four times in a row: a hundred values
    alone = ratios_of(once, draws.exponential(2.0, 4000), draws)["mean"]
    clustered = ratios_of(again, draws.exponential(2.0, 4000), draws)["mean"]
    assert clustered.high / clustered.low > (alone.high / alone.low) ** 1.3


def test_the_command_prints_intervals_that_are_too_narrow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = Printed("short", 0.95, lambda draws: (0.0, 0.5, float(draws.random() < 0.5), 0.8), 300)
    monkeypatch.setattr(trace_intervals, "printed_intervals", lambda quick: [short])
    monkeypatch.setattr(sys, "argv", ["trace_intervals.py"])
    assert trace_intervals.main() == 1
    assert "TOO NARROW" in capsys.readouterr().out
