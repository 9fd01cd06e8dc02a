"""Energy and cost of a run: values of the equations, peak, proportional hosts."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.queue_network.cost import run_cost
from penstock.parts.prediction.queue_network.energy import host_energy, run_energy
from penstock.platform.file import PowerFile
from penstock.platform.power import Power, Price, power_of


def levels(idle: float, app: float, storage: float, network: float, **more: Any) -> Power:
    """Power model of a platform file from metered powers of the complete host in each state."""
    names = {"idle": idle, "app": app, "storage": storage, "network": network}
    return power_of(PowerFile.model_validate({k: f"{v} W" for k, v in names.items()} | more))


#: table 3.5 of the source
TB11 = levels(91.6, 125.2, 129.1, 127.7, peak="225.3 W", cap=True)


def nodes(
    n: int, app: float = 20, storage: float = 10, network: float = 15
) -> list[dict[str, Any]]:
    times = {"app_s": app, "storage_s": storage, "network_s": network}
    return [{"name": f"n{i}", **times} for i in range(n)]


def test_vector() -> None:
    rows = nodes(10)
    energy = run_energy(60, rows, {r["name"]: TB11 for r in rows})
    assert energy.hosts[0].total_j == pytest.approx(7_084.5, rel=1e-6)
    assert energy.total_j == pytest.approx(70_845, rel=1e-6)
    by_state = energy.by_state()
    assert by_state["idle"] == pytest.approx(10 * 91.6 * 60)
    assert by_state["app"] == pytest.approx(10 * 33.6 * 20)
    assert by_state["capped"] == 0


def test_powers_above_idle_are_not_total_powers() -> None:
    """Planted fault: powers of the complete host, read as powers above idle, miss the value."""
    above_idle = Power(91.6, 125.2, 129.1, 127.7)
    assert host_energy("n", above_idle, 60, 20, 10, 15).total_j != pytest.approx(7_084.5, rel=0.1)


def test_the_manager_is_omitted_by_default() -> None:
    rows = [*nodes(2), {"name": "manager", "app_s": 0.0, "storage_s": 0.0, "network_s": 1.0}]
    powers = {r["name"]: TB11 for r in rows}
    without = run_energy(60, rows, {k: v for k, v in powers.items() if k != "manager"})
    assert without.total_j == pytest.approx(2 * 7_084.5)
    assert without.omitted == ("manager",)
    with_it = run_energy(60, rows, powers)
    assert with_it.total_j - without.total_j == pytest.approx(91.6 * 60 + 36.1)


def test_peak_caps_overlapping_states() -> None:
    power = levels(100, 200, 150, 120, peak="210 W", cap=True)
    # computing, storing and sending at the same time would draw 270 W
    energy = host_energy("n", power, 10, 10, 10, 10)
    assert energy.total_j == pytest.approx(2100)
    assert energy.capped_j == pytest.approx(-600)
    assert host_energy("n", power, 10, 10, 0, 0).capped_j == 0
    free = levels(100, 200, 150, 120, peak="210 W")
    assert host_energy("n", free, 10, 10, 10, 10).total_j == pytest.approx(2700)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, 91.6 * 60), (1.0, 91.6 * 45), (0.6, 91.6 * (45 + 0.4 * 15))],
)
def test_proportional_hosts_draw_idle_power_while_they_work(share: float, expected: float) -> None:
    power = levels(91.6, 125.2, 129.1, 127.7, proportional=f"{100 * share:g}%")
    assert host_energy("n", power, 60, 20, 10, 15).idle_j == pytest.approx(expected)


def test_slower_computes_longer() -> None:
    """Effects of DVFS: at the lowest frequency, computing takes more energy and I/O takes less."""
    low = levels(80, 100, 100, 100)
    high = levels(91.6, 125.2, 129.1, 127.7)

    def blast(speed: float, power: Power) -> float:
        t = 100 / speed
        return host_energy("n", power, t, 0.95 * t, 2, 3).total_j

    def pipeline(_speed: float, power: Power) -> float:
        return host_energy("n", power, 60, 0, 30, 45).total_j

    assert blast(1.2 / 2.3, low) > 1.3 * blast(1, high)
    assert pipeline(1.2 / 2.3, low) < pipeline(1, high)


def test_cost_is_hosts_times_time_times_price() -> None:
    prices = {f"n{i}": Price(0.10, "EUR") for i in range(20)} | {"m": Price(0.40, "EUR")}
    cost = run_cost(1800, prices)
    assert cost is not None
    assert cost.amount == pytest.approx(0.5 * (2.0 + 0.4))
    assert (cost.hosts, cost.currency) == (21, "EUR")
    assert run_cost(1800, {}) is None


@pytest.mark.parametrize(("seconds", "hours"), [(1.0, 1), (3600.0, 1), (3600.1, 2), (7200.0, 2)])
def test_started_hours_are_paid_in_full(seconds: float, hours: int) -> None:
    cost = run_cost(seconds, {"n": Price(2.0, "USD", started_hours=True)})
    assert cost is not None
    assert cost.amount == pytest.approx(2.0 * hours)


def test_two_currencies_are_refused() -> None:
    with pytest.raises(BadInput, match="EUR and USD"):
        run_cost(1, {"a": Price(1, "EUR"), "b": Price(1, "USD")})
