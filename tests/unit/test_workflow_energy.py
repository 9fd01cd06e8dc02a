"""Energy of an executed workflow: results of the emulated meter from readings."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.host.probe.meter import find_meter
from penstock.parts.stores.workflow.energy import Reading, busy

S = 1_000_000_000


def test_busy_times_of_a_disk_and_a_link() -> None:
    """Ten seconds: 2 s of disk service, 30 MB sent and none received at 10 MB/s."""
    readings = [Reading(0, 0, 0, 0), Reading(10 * S, 2 * S, 30e6, 0)]
    assert busy(readings, 0, 10 * S, 10e6, 10e6) == (pytest.approx(2.0), pytest.approx(3.0))


def test_only_time_within_the_run_counts() -> None:
    """Between two readings, values at the begin and the end of a run are interpolated."""
    readings = [Reading(0, 0, 0, 0), Reading(10 * S, 10 * S, 0, 0), Reading(20 * S, 10 * S, 0, 0)]
    assert busy(readings, 4 * S, 12 * S, None, None) == (pytest.approx(6.0), 0.0)
    assert busy(readings, 20 * S, 30 * S, None, None) == (0.0, 0.0)


def test_simultaneous_directions_are_not_counted_twice() -> None:
    readings = [Reading(0, 0, 0, 0), Reading(10 * S, 0, 50e6, 50e6)]
    assert busy(readings, 0, 10 * S, 10e6, 10e6)[1] == pytest.approx(7.5)
    saturated = [Reading(0, 0, 0, 0), Reading(10 * S, 0, 200e6, 200e6)]
    assert busy(saturated, 0, 10 * S, 10e6, 10e6)[1] == pytest.approx(10.0)


def test_overflow_of_a_rapl_counter(tmp_path: Path) -> None:
    zone = tmp_path / "class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text("9000000\n")
    (zone / "max_energy_range_uj").write_text("10000000\n")
    meter, _ = find_meter(tmp_path)
    assert meter is not None
    before = meter.counts()
    (zone / "energy_uj").write_text("2000000\n")
    assert meter.joules(before, meter.counts()) == pytest.approx(3.0)
