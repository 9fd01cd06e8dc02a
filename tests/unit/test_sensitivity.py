"""Sensitivity of the answer to uncertain values, and what to measure next."""

from __future__ import annotations

import math

import pytest

from penstock.parts.prediction.queue_network.explain import conflict
from penstock.parts.prediction.queue_network.sensitivity import (
    Uncertain,
    elasticity,
    how_to_measure,
    measure_next,
    sensitivity_rows,
)


def value(path: str, low: float = 0.5, high: float = 2.0) -> Uncertain:
    return Uncertain(path, 1.0, low, high, "1", str(low), str(high))


def test_rows_are_ranked_by_their_effect_on_the_makespan() -> None:
    rows = sensitivity_rows([value("a"), value("b"), value("c")], 10, [(9, 10), (5, 20), (10, 10)])
    assert [r["path"] for r in rows] == ["b", "a", "c"]
    assert rows[0]["swing_s"] == 15
    assert (rows[0]["change_low"], rows[0]["change_high"]) == (-0.5, 1.0)
    assert rows[0]["elasticity"] == pytest.approx(1)
    assert rows[2]["elasticity"] == 0


def test_both_ends_on_one_side_still_count_from_the_answer() -> None:
    (row,) = sensitivity_rows([value("a")], 10, [(12, 11)])
    assert row["swing_s"] == 2


def test_a_value_at_which_no_run_ends_comes_first_without_a_number() -> None:
    rows = sensitivity_rows([value("a"), value("b")], 10, [(1, 50), (math.inf, 10)])
    assert [r["path"] for r in rows] == ["b", "a"]
    assert rows[0]["makespan_low_s"] is rows[0]["change_low"] is rows[0]["elasticity"] is None
    assert rows[0]["swing_s"] == 0


@pytest.mark.parametrize(
    ("low", "high", "expected"), [(1, 4, 1), (2, 1, -0.5), (3, 3, 0), (0, 1, None)]
)
def test_elasticity(low: float, high: float, expected: float | None) -> None:
    actual = elasticity(1, 4, low, high)
    assert actual == (None if expected is None else pytest.approx(expected))
    assert elasticity(0, 1, 1, 2) is None


def test_the_value_that_narrows_the_interval_most_is_measured_next() -> None:
    rows = sensitivity_rows(
        [value("store.x"), value("network.bandwidth"), value("launch.overhead"), value("d")],
        10,
        [(5, 20), (8, 13), (9, 10.5), (9.9, 10)],
    )
    requested: list[str] = []

    def width(path: str) -> float:
        requested.append(path)
        return {"store.x": 7.0, "network.bandwidth": 4.0, "launch.overhead": 9.9}[path]

    choice = measure_next(rows, 10.0, width)
    assert requested == ["store.x", "network.bandwidth", "launch.overhead"]
    assert choice["path"] == "network.bandwidth"
    assert choice["narrows"] == pytest.approx(0.6)
    assert choice["width_if_known_s"] == pytest.approx(4)
    assert "iperf3" in choice["method"]


def test_values_with_random_differences_are_not_measured() -> None:
    rows = sensitivity_rows([value("a"), value("b")], 10, [(8, 10), (9, 10)], [1.5, 0.1])
    assert [r["chance_s"] for r in rows] == [1.5, 0.1]
    assert measure_next(rows, 10.0, lambda _: 5.0)["path"] == "b"
    assert measure_next(rows, 10.0, lambda _: 5.0, lambda path: path != "b")["path"] is None


def test_nothing_is_measured_without_a_gain() -> None:
    rows = sensitivity_rows([value("a")], 10, [(9.99, 10)])
    assert measure_next(rows, 10.0, lambda _: 9.8)["path"] is None
    assert measure_next([], 10.0, lambda _: 1.0)["path"] is None
    assert measure_next(rows, 0.0, lambda _: 1.0)["path"] is None


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("hosts.nodes.storage.write.per_byte", "penstock profile DIR on a host of nodes"),
        ("hosts.app.speed", "penstock trace -- CMD of one task on a host of app"),
        ("hosts.manager.manager.service.overhead", "files of 0 bytes"),
        ("hosts.nodes.network.bandwidth", "iperf3"),
        ("network.bandwidth", "iperf3"),
        ("network.loopback", "127.0.0.1"),
        ("launch.overhead", "empty tasks"),
        ("power.idle", "power meter"),
        ("preprocess.cache", "data sheet"),
    ],
)
def test_every_kind_of_value_has_its_method(path: str, method: str) -> None:
    assert method in how_to_measure(path)


def state(frequency: str, time: float, energy: float | None) -> dict[str, object]:
    return {"frequency": frequency, "makespan_s": time, "energy_j": energy, "cost": None}


def test_time_against_energy() -> None:
    trade_off = conflict(
        [state("1.2 GHz", 131, 81), state("1.8 GHz", 110, 90), state("2.3 GHz", 100, 100)]
    )
    assert trade_off["conflict"]
    assert (
        trade_off["statement"] == "1.2 GHz takes 19 % less energy and 31 % more time than 2.3 GHz"
    )
    without_conflict = conflict([state("1.2 GHz", 200, 160), state("2.3 GHz", 100, 100)])
    assert not without_conflict["conflict"]
    assert without_conflict["statement"].startswith("2.3 GHz is both the fastest")
    assert not conflict([state("1.2 GHz", 200, None)])["conflict"]
