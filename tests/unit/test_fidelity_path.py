"""What stands beside a disk's own log: the way that was taken off arrivals, the tracer, fio."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.analyse.fidelity.fidelity import certificate, is_valid
from penstock.analyse.fidelity.fidelity_path import vague
from penstock.analyse.fidelity.fio_witness import confirm_fio
from penstock.analyse.fidelity.second_source import doubts
from tests.unit.test_fidelity import closed_loop, constant_profile, row


def way(base_ns: float, per_byte_ns: float = 0.0) -> dict[str, dict[str, float]]:
    one = {"base_ns": base_ns, "per_byte_ns": per_byte_ns}
    return {"read": one, "write": one}


@pytest.mark.parametrize(("after_us", "holds"), [(30, True), (39, True), (41, False), (84, False)])
def test_a_way_that_changed_by_a_twentieth_of_the_service_time_is_doubted(
    after_us: int, holds: bool
) -> None:
    log = closed_loop(2000, 1, 200_000)
    log = log.set_column(
        log.column_names.index("compensation_ns"), "compensation_ns", [np.full(2000, 30_000)]
    )
    log = log.set_column(log.column_names.index("t_ns"), "t_ns", [log["t_ns"].to_numpy() + 30_000])
    found = certificate(log, {"path_after": way(after_us * 1e3)}, constant_profile(200e-6)).overall
    assert is_valid(found)[0] is holds, is_valid(found)[1]
    path = row(found, "path")
    assert (path["asked"], path["delivered"]) == (30_000, after_us * 1000)
    if not holds:
        assert f"took 30 us before the run and {after_us} us after" in is_valid(found)[1]
        assert set(found["verdict"].to_pylist()) == {"host-saturated"}


@pytest.mark.parametrize("when", ["compensation", "path_after"])
@pytest.mark.parametrize(("high_us", "holds"), [(49, True), (51, False)])
def test_a_way_that_is_not_known_within_a_twentieth_voids_a_run(
    when: str, high_us: int, holds: bool
) -> None:
    known = {"base_ns": 0.0, "per_byte_ns": 0.0, "low_ns": 30e3, "high_ns": 30e3}
    ways = {"read": {**known, "high_ns": high_us * 1e3}, "write": {**known, "high_ns": 900e3}}
    found = certificate(
        closed_loop(2000, 1, 200_000), {when: ways}, constant_profile(200e-6)
    ).overall
    assert is_valid(found)[0] is holds, is_valid(found)[1]
    if not holds:
        assert "the path of reads through the kernel takes 30 to 51 us" in is_valid(found)[1]
        assert "± 5 % of their mean, 200 us" in is_valid(found)[1]


def test_a_way_that_is_not_known_well_is_told_with_how_much_slower_would_do() -> None:
    known = {"base_ns": 50_000.0, "per_byte_ns": 0.0, "low_ns": 48_000.0, "high_ns": 52_000.0}
    wide = {**known, "low_ns": 30_000.0, "high_ns": 90_000.0}
    assert vague({"read": known, "write": known}, {"read": 2e5, "write": 2e5}) == []
    (found,) = vague({"read": known, "write": wide}, {"read": 2e5, "write": 2e5})
    assert "of writes through the kernel takes 30 to 90 us" in found.message
    assert "± 15 % of their mean, 200 us" in found.message
    assert found.too_vague == pytest.approx(3)
    assert vague({"read": known, "write": wide}, {"read": 2e5, "write": 2e6}) == []


def told(traced: float, disk: float, n: int = 100) -> dict[str, Any]:
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


def test_a_witness_that_saw_another_time_is_told_the_worst_first() -> None:
    assert doubts([told(200e3, 205e3), told(200e3, 260e3, n=10)], "traced") == []
    assert doubts([told(200e3, 250e3), told(180e3, 250e3)], "traced") == [
        "mean time of reads is 180 us by the tracer and 250 us by the disk's log (limit 5 %)"
    ]


@pytest.mark.parametrize(("ramp", "metrics"), [("0", ["bytes", "ops", "time"]), ("5", ["time"])])
def test_what_fio_did_in_its_ramp_is_not_missed(ramp: str, metrics: list[str]) -> None:
    job = {
        "job options": {"ramp_time": ramp},
        "read": {"io_bytes": 4096, "total_ios": 1, "clat_ns": {"mean": 1.0}},
    }
    served = {"read": {"bytes": 8192.0, "ops": 2.0, "time_ns": 1.0}}
    found = confirm_fio({"jobs": [job]}, served, direct=True)
    assert found["metric"].to_pylist() == metrics


@pytest.mark.parametrize(("p99_ns", "agrees"), [(1.1e6, True), (1.2e6, False)])
def test_a_tail_that_fio_saw_longer_is_told_and_voids_no_run(p99_ns: float, agrees: bool) -> None:
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
