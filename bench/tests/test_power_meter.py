"""The emulated power meter measures the published break-even similarities."""

from __future__ import annotations

import pytest

from bench.controller import power_meter as meter
from penstock.errors import BadInput
from penstock.parts.dedup.controller import energy
from penstock.parts.dedup.controller.energy import TESTBEDS


@pytest.mark.parametrize(
    ("name", "measured", "penalty"), [("new", 0.18, 0.035), ("old", 0.10, 0.088)]
)
def test_emulated_meters_measure_the_published_break_even(
    name: str, measured: float, penalty: float
) -> None:
    bed = TESTBEDS[name]
    evens = [
        meter.measured_break_even(bed.measured_power, bed.r, 2.3, seed) for seed in range(0, 16, 2)
    ]
    assert all(abs(even - measured) <= 0.02 for even in evens)
    assert all(abs(energy.break_even(bed.measured_power, bed.r) - even) <= 0.02 for even in evens)
    modelled = energy.break_even(bed.power, bed.r)
    assert energy.wrong_decision(measured, modelled) == pytest.approx(penalty, abs=1e-3)
    assert energy.wrong_decision(measured, modelled) < 0.10


def test_a_short_batch_is_flagged() -> None:
    bed = TESTBEDS["new"]
    meters = [meter.Meter(1.0), meter.Meter(1.0)]
    assert meter.metered(bed.power, [(0.1, 0.3)] * 24, meters).short
    full = meter.metered(bed.power, [(0.4, 1.0)] * 50, meters)
    assert not full.short
    assert full.extra_j_per_write == pytest.approx(bed.power.extra_j(0.4, 1.0), rel=0.02)
    with pytest.raises(BadInput, match="expected a period of the meter"):
        meter.metered(bed.power, [(0.1, 0.3)], meters)


def test_a_meter_averages_each_second() -> None:
    outlet = meter.Meter(1.01)
    assert outlet.readings([(0.5, 100.0), (0.75, 200.0), (1.0, 100.0)]) == [152.0, 126.0]
