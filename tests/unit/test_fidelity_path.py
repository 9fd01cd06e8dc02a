"""Second sources for a disk's log: path times subtracted from arrivals, the tracer and fio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.analyse.fidelity.fidelity import certificate, is_valid
from penstock.analyse.fidelity.fidelity_path import vague
from penstock.analyse.fidelity.fio_witness import confirm_fio
from penstock.analyse.fidelity.second_source import doubts
from tests.unit.test_fidelity import closed_loop, constant_profile, row


def path_times(base_ns: float, per_byte_ns: float = 0.0) -> dict[str, dict[str, float]]:
    times = {"base_ns": base_ns, "per_byte_ns": per_byte_ns}
    return {"read": times, "write": times}


@pytest.mark.parametrize(("after_us", "holds"), [(30, True), (39, True), (41, False), (84, False)])
def test_change_of_path_time_above_5_percent_of_service_is_invalid(
    after_us: int, holds: bool
) -> None:
    log = closed_loop(2000, 1, 200_000)
    log = log.set_column(
        log.column_names.index("compensation_ns"), "compensation_ns", [np.full(2000, 30_000)]
    )
    log = log.set_column(log.column_names.index("t_ns"), "t_ns", [log["t_ns"].to_numpy() + 30_000])
    overall = certificate(
        log, {"path_after": path_times(after_us * 1e3)}, constant_profile(200e-6)
    ).overall
    assert is_valid(overall)[0] is holds, is_valid(overall)[1]
    path = row(overall, "path")
    assert (path["asked"], path["delivered"]) == (30_000, after_us * 1000)
    if not holds:
        assert f"took 30 us before the run and {after_us} us after" in is_valid(overall)[1]
        assert set(overall["verdict"].to_pylist()) == {"host-saturated"}


@pytest.mark.parametrize("key", ["compensation", "path_after"])
@pytest.mark.parametrize(("high_us", "holds"), [(49, True), (51, False)])
def test_uncertain_path_time_above_5_percent_is_invalid(
    key: str, high_us: int, holds: bool
) -> None:
    exact = {"base_ns": 0.0, "per_byte_ns": 0.0, "low_ns": 30e3, "high_ns": 30e3}
    by_operation = {
        "read": {**exact, "high_ns": high_us * 1e3},
        "write": {**exact, "high_ns": 900e3},
    }
    overall = certificate(
        closed_loop(2000, 1, 200_000), {key: by_operation}, constant_profile(200e-6)
    ).overall
    assert is_valid(overall)[0] is holds, is_valid(overall)[1]
    if not holds:
        assert "the path of reads through the kernel takes 30 to 51 us" in is_valid(overall)[1]
        assert "± 5 % of their mean, 200 us" in is_valid(overall)[1]


def test_message_of_an_uncertain_path_time() -> None:
    narrow = {"base_ns": 50_000.0, "per_byte_ns": 0.0, "low_ns": 48_000.0, "high_ns": 52_000.0}
    wide = {**narrow, "low_ns": 30_000.0, "high_ns": 90_000.0}
    assert vague({"read": narrow, "write": narrow}, {"read": 2e5, "write": 2e5}) == []
    (doubt,) = vague({"read": narrow, "write": wide}, {"read": 2e5, "write": 2e5})
    assert "of writes through the kernel takes 30 to 90 us" in doubt.message
    assert "± 15 % of their mean, 200 us" in doubt.message
    assert doubt.too_vague == pytest.approx(3)
    assert vague({"read": narrow, "write": wide}, {"read": 2e5, "write": 2e6}) == []


def time_row(traced: float, disk: float, n: int = 100) -> dict[str, Any]:
    return {
        "direction": "read",
        "metric": "time",
        "traced": traced,
        "disk": disk,
        "ratio": disk / traced,
        "unit": "ns",
        "n": n,
        "agrees": abs(disk / traced - 1) <= 0.05,
    }


def test_largest_difference_of_the_tracer_is_reported() -> None:
    assert doubts([time_row(200e3, 205e3), time_row(200e3, 260e3, n=10)], "traced") == []
    assert doubts([time_row(200e3, 250e3), time_row(180e3, 250e3)], "traced") == [
        "mean time of reads is 180 us by the tracer and 250 us by the disk's log (limit 5 %)"
    ]


@pytest.mark.parametrize(("ramp", "metrics"), [("0", ["bytes", "ops", "time"]), ("5", ["time"])])
def test_counts_are_not_compared_with_a_ramp(ramp: str, metrics: list[str]) -> None:
    job = {
        "job options": {"ramp_time": ramp},
        "read": {"io_bytes": 4096, "total_ios": 1, "clat_ns": {"mean": 1.0}},
    }
    served = {"read": {"bytes": 8192.0, "ops": 2.0, "time_ns": 1.0}}
    table = confirm_fio({"jobs": [job]}, served, direct=True)
    assert table["metric"].to_pylist() == metrics


@pytest.mark.parametrize(("p99_ns", "agrees"), [(1.1e6, True), (1.2e6, False)])
def test_longer_tail_of_fio_is_reported_but_valid(p99_ns: float, agrees: bool) -> None:
    clat = {"mean": 5e5, "percentile": {"99.000000": p99_ns}}
    job = {"read": {"io_bytes": 600 * 4096, "total_ios": 600, "clat_ns": clat}}
    served = {"read": {"bytes": 600 * 4096.0, "ops": 600.0, "time_ns": 5e5, "p99_ns": 1e6}}
    rows = confirm_fio({"jobs": [job]}, served, direct=True).to_pylist()
    (tail,) = (r for r in rows if r["metric"] == "p99")
    assert tail["agrees"] is agrees
    assert doubts(rows, "fio") == []
    job["read"]["total_ios"] = 400
    few = confirm_fio({"jobs": [job]}, served, direct=True)
    assert "p99" not in few["metric"].to_pylist()
