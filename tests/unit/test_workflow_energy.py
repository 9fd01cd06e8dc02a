"""Energy of a workflow that was run: what the emulated meter makes of readings."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.host.probe.meter import find_meter
from penstock.parts.stores.workflow.energy import Reading, busy

S = 1_000_000_000


def test_a_disk_and_a_link_are_busy_for_what_they_did() -> None:
    """Ten seconds; the disk worked for 2 of them, 30 MB went out and none came in at 10 MB/s."""
    readings = [Reading(0, 0, 0, 0), Reading(10 * S, 2 * S, 30e6, 0)]
    assert busy(readings, 0, 10 * S, 10e6, 10e6) == (pytest.approx(2.0), pytest.approx(3.0))


def test_only_what_lies_within_the_run_counts() -> None:
    """Before its begin, and after its end, all goes evenly between two readings."""
    readings = [Reading(0, 0, 0, 0), Reading(10 * S, 10 * S, 0, 0), Reading(20 * S, 10 * S, 0, 0)]
    assert busy(readings, 4 * S, 12 * S, None, None) == (pytest.approx(6.0), 0.0)
    assert busy(readings, 20 * S, 30 * S, None, None) == (0.0, 0.0)


def test_both_ways_at_once_are_not_counted_twice() -> None:
    readings = [Reading(0, 0, 0, 0), Reading(10 * S, 0, 50e6, 50e6)]
    assert busy(readings, 0, 10 * S, 10e6, 10e6)[1] == pytest.approx(7.5)
    full = [Reading(0, 0, 0, 0), Reading(10 * S, 0, 200e6, 200e6)]
    assert busy(full, 0, 10 * S, 10e6, 10e6)[1] == pytest.approx(10.0)


def test_counters_of_rapl_turn_over(tmp_path: Path) -> None:
    zone = tmp_path / "class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text("9000000\n")
    (zone / "max_energy_range_uj").write_text("10000000\n")
    meter, _ = find_meter(tmp_path)
    assert meter is not None
    before = meter.counts()
    (zone / "energy_uj").write_text("2000000\n")
    assert meter.joules(before, meter.counts()) == pytest.approx(3.0)
