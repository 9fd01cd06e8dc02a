"""Closed forms of time and energy of deduplication against direct evaluation and published figures."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.parts.dedup.controller import conflict, energy, model
from penstock.parts.dedup.controller.energy import TESTBEDS, PowerModel
from penstock.parts.dedup.controller.utility import Utility
from penstock.parts.dedup.record import WriteRecord
from penstock.platform.power import Power

RATIOS = st.floats(0.02, 2.0)
SHARES = st.floats(0.0, 1.0)


def costs(r: float, z: float, power: PowerModel | None = None) -> list[tuple[float, float, float]]:
    """Costs of a write of 1 byte that takes 1 s to send: without and with deduplication."""
    power = power or TESTBEDS["new"].power
    off, on = model.predict_off(1, 1.0), model.predict_on(1, 1.0, r, z)
    return [
        (off.time_s, off.space_bytes, power.extra_j(0, 1)),
        (on.time_s, on.space_bytes, power.extra_j(r, 1 - z)),
    ]


def crossing(r: float, utility: Utility, power: PowerModel | None = None) -> float:
    """Similarity from which deduplication has the larger utility, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        z = (low + high) / 2
        off, on = utility.values(costs(r, z, power), 0)
        low, high = (low, z) if on > off else (z, high)
    return high


@pytest.mark.parametrize(
    ("r", "equal", "relative"),
    [(0.16, 0.0768, 2.6316), (0.40, 0.1802, 2.0), (0.50, 0.2192, 1.8182), (0.60, 0.2560, 1.6667)],
)
def test_break_evens_of_time_and_of_equal_weights(r: float, equal: float, relative: float) -> None:
    assert model.break_even_time(r) == pytest.approx(r)
    assert crossing(r, Utility()) == pytest.approx(r)
    assert model.break_even_equal_weights(r) == pytest.approx(equal, abs=5e-5)
    assert crossing(r, Utility((-0.5, -0.5, 0.0))) == pytest.approx(equal, abs=5e-5)
    assert model.relative_utility(r, 0.7) == pytest.approx(relative, abs=5e-5)


@settings(max_examples=50)
@given(RATIOS, SHARES)
def test_the_predicted_times_are_the_closed_form(r: float, z: float) -> None:
    off, on = (cost[0] for cost in costs(r, z))
    assert on / off == pytest.approx(1 + r - z)
    assert model.relative_time(r, z) == pytest.approx(1 + r - z)


@settings(max_examples=50)
@given(RATIOS, SHARES, SHARES)
def test_the_break_even_with_overlap_is_where_times_are_equal(r: float, w: float, z: float) -> None:
    even = model.break_even_time(r, w)
    on = model.relative_time(r, z, w)
    if z > even + 1e-9:
        assert on <= 1 + 1e-9
    if z < even - 1e-9:
        assert on > 1 - 1e-9


@pytest.mark.parametrize(("w", "even"), [(0.0, 0.5), (0.5, 0.25), (1.0, 0.0)])
def test_overlap_moves_the_break_even(w: float, even: float) -> None:
    assert model.break_even_time(0.5, w) == pytest.approx(even)


@pytest.mark.parametrize(("r", "share"), [(0.5, 0.025), (0.6, 0.03), (1.0, 0.05)])
def test_probing_takes_a_known_share(r: float, share: float) -> None:
    assert model.probing_overhead(r, 0.0, 5, 95) == pytest.approx(share)


def test_a_sample_of_a_hundred_chunks_is_within_a_tenth() -> None:
    assert model.half_width(0.5, 100) == pytest.approx(0.098)


def test_the_hash_time_comes_from_two_identical_versions() -> None:
    first = WriteRecord("f", 0, 0.9, 0.3, 0.6, 1000, 0, 1, 0, "fixed:1000")
    second = WriteRecord("f", 1, 0.31, 0.3, 0.0, 1000, 1000, 1, 1, "fixed:1000")
    assert model.hash_time([first, second]) == pytest.approx(0.31 / 1000)
    with pytest.raises(BadInput, match="found 0 of 1000 bytes similar"):
        model.hash_time([first, first])
    with pytest.raises(BadInput, match="found 1; expected 2"):
        model.hash_time([first])


@pytest.mark.parametrize(("name", "published"), [("new", 0.2139), ("old", 0.1809)])
def test_the_energy_break_even_is_the_published_one(name: str, published: float) -> None:
    bed = TESTBEDS[name]
    assert energy.break_even(bed.power, bed.r) == pytest.approx(published, abs=2e-4)
    assert crossing(bed.r, Utility((0.0, 0.0, -1.0)), bed.power) == pytest.approx(
        published, abs=2e-4
    )


def test_break_evens_with_energy_in_the_utility() -> None:
    third = -1 / 3
    for weights, even in (
        ((-1.0, 0.0, 0.0), 0.4000),
        ((0.0, 0.0, -1.0), 0.2139),
        ((third, third, third), 0.1926),
    ):
        assert crossing(0.40, Utility(weights)) == pytest.approx(even, abs=1e-4)


@settings(max_examples=50)
@given(RATIOS, SHARES, st.integers(1, 3))
def test_energy_is_that_of_phases(r: float, z: float, replicas: int) -> None:
    power = PowerModel(86, 290, 276.7, 1 + replicas)
    on, off = power.extra_j(r, 1 - z), power.extra_j(0, 1)
    assert on / off == pytest.approx(energy.relative_energy(power, r, z))
    assert (on < off) == (z > energy.break_even(power, r)) or math.isclose(on, off)


@settings(max_examples=50)
@given(SHARES, SHARES)
def test_the_penalty_is_the_largest_between_two_break_evens(true: float, modelled: float) -> None:
    assume(modelled - true < 1)
    losses = [0.0]
    for step in range(101):
        z = modelled + (true - modelled) * step / 100
        on = 1 + true - z
        # off is selected below the break-even of the model, and deduplication from it on
        losses.append((1 / on if modelled > true else on) - 1)
    assert energy.wrong_decision(true, modelled) == pytest.approx(max(losses), abs=1e-9)
    assert energy.wrong_decision(0, 1) == math.inf


@pytest.mark.parametrize(("name", "points", "within"), [("new", 22, 2), ("old", 6, 2)])
def test_the_conflict_between_time_and_energy(name: str, points: int, within: int) -> None:
    bed = TESTBEDS[name]
    result = conflict.conflict(bed.measured_power, bed.r)
    assert 100 * result.width == pytest.approx(points, abs=within)
    low, high = result.interval
    worst = max(
        1 / energy.relative_energy(bed.measured_power, bed.r, low + (high - low) * i / 1000) - 1
        for i in range(1001)
    )
    assert result.energy_loss == pytest.approx(worst)
    text = "\n".join(conflict.lines(result))
    assert f"({round(100 * result.width)} points): off is faster, on takes less energy" in text


def test_a_reversed_conflict_and_none() -> None:
    result = conflict.conflict(PowerModel(50, 400, 100), 0.1)
    assert result.energy > result.time
    assert "on is faster, off takes less energy" in "\n".join(conflict.lines(result))
    same = conflict.conflict(PowerModel(50, 250, 150), 0.3)
    assert conflict.lines(same)[-1].startswith("no conflict")


def test_powers_come_from_a_host_of_a_platform() -> None:
    host = Power(idle_w=86, app_w=204, storage_w=120, network_w=70.7, peak_w=290)
    assert energy.power_model(host) == PowerModel(86, 290, 276.7, 2)
    assert energy.power_model(host, replicas=2).senders == 3
    with pytest.raises(BadInput, match="expected the power of an idle machine below both"):
        PowerModel(100, 90, 120)
