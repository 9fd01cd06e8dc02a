"""Energy of an executed workflow: results of the emulated meter from readings."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.host.probe.meter import Meter, find_meter
from penstock.parts.stores.workflow import energy
from penstock.parts.stores.workflow.energy import Reading, Readings, busy, host_energy_of, metered

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


def test_counters_that_overflow_several_times_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter:
        """60 % of the range of 10 J from one read to the next."""

        reads = 0

        def read_text(self) -> str:
            self.reads += 1
            return f"{6_000_000 * self.reads % 10_000_000}\n"

    counter: Any = Counter()
    meter = Meter("packages", counters=((counter, 10_000_000),))
    monkeypatch.setattr(energy, "find_meter", lambda: (meter, ""))
    monkeypatch.setattr(energy, "_EVERY_S", 0.001)
    cluster: Any = SimpleNamespace(status=list)
    with metered(cluster) as readings:
        while counter.reads < 10:
            time.sleep(0.001)
    assert readings.host_scope == "packages"
    assert readings.host[-1][1] == pytest.approx(6.0 * (counter.reads - 1))


def test_a_meter_that_becomes_unreadable_has_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "energy_uj"
    path.write_text("5\n")
    meter = Meter("packages", counters=((path, 10_000_000),))
    monkeypatch.setattr(energy, "find_meter", lambda: (meter, ""))
    cluster: Any = SimpleNamespace(status=list)
    with metered(cluster) as readings:
        path.unlink()
    assert readings.host == []


def test_energy_of_the_host_is_that_of_the_tasks_only() -> None:
    """10 W for 5 s of copies, then 100 W for 10 s of tasks, then 10 W."""
    readings = Readings(
        host=[(0, 0.0), (5 * S, 50.0), (15 * S, 1050.0), (20 * S, 1100.0)], host_scope="packages"
    )
    run: Any = SimpleNamespace(begin_ns=5 * S, makespan_s=10.0)
    assert host_energy_of(run, readings) == ("packages", pytest.approx(1000.0))
    assert host_energy_of(run, Readings()) is None
