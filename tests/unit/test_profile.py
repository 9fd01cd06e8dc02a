"""Storage profiles: reading, errors with lines, time scale, and limits of the host."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.profile import (
    StorageProfile,
    check_honourable,
    likeness,
    load_profile,
    nearest_honest_time_scale,
    ready_names,
    scaled,
    too_fast_when_loaded,
)

READY = [
    "cloud-burst-ssd",
    "cloud-provisioned-ssd",
    "cloud-throughput-hdd",
    "hdd-7200",
    "hdd-7200-seek",
    "network-volume",
    "nvme",
    "px02ssf020",
    "px05smb040",
    "rate-20mib",
    "sata-ssd",
    "service-5ms",
]
MIB = 1 << 20


def test_built_in_profiles_have_sources() -> None:
    assert ready_names() == READY
    for name in READY:
        values = load_profile(name).to_dict()
        assert values["name"] == name
        assert values["source"]
        assert values["time_scale"] == 1.0


def test_profiles_for_tests_match_their_names() -> None:
    rate, service = load_profile("rate-20mib"), load_profile("service-5ms")
    for op in ("read", "write"):
        for sequential in (True, False):
            moments = rate.moments(op, sequential, MIB)
            assert moments.capacity_iops == pytest.approx(20.0)
            assert service.moments(op, sequential, MIB).mean == pytest.approx(0.005)
    assert rate.to_dict()["interface_rate_bps"] == 20 * MIB
    assert rate.servers == service.servers == 1
    assert service.moments("flush", False, 0).mean == 0


def test_disk_shapes() -> None:
    hdd = load_profile("hdd-7200")
    random = hdd.moments("read", False, 4096)
    # command + published mean seek + half a rotation + transfer
    assert random.mean == pytest.approx(0.0001 + 0.0074 + 0.00833 / 2 + 4096 / 2e8, rel=0.01)
    assert random.p99 < 0.0001 + 0.0137 + 0.00833
    assert hdd.moments("read", True, MIB).capacity_iops * MIB == pytest.approx(2e8, rel=0.03)
    arm = load_profile("hdd-7200-seek").moments("read", False, 4096)
    assert arm.mean == pytest.approx(0.0001 + 0.012 + 0.00833 / 2 + 4096 / 7e7, rel=1e-3)
    assert arm.p99 < 0.0001 + 0.020 + 0.00833 + 4096 / 7e7
    ssd = load_profile("sata-ssd")
    small = [ssd.moments("read", s, 4096).mean for s in (True, False)]
    large = [ssd.moments("read", s, 1 << 17).mean for s in (True, False)]
    assert small[1] / small[0] >= 2.0
    assert large[1] / large[0] == pytest.approx(1.0, abs=0.1)


def test_time_scale_multiplies_times() -> None:
    for name in READY:
        original = load_profile(name)
        slowed = scaled(original, 4)
        assert slowed.time_scale == 4
        assert scaled(slowed, 2).time_scale == 8
        for op in ("read", "write"):
            for size in (4096, MIB):
                a, b = original.moments(op, False, size), slowed.moments(op, False, size)
                assert b.mean == pytest.approx(4 * a.mean)
                assert b.p99 == pytest.approx(4 * a.p99)
                assert b.capacity_iops == pytest.approx(a.capacity_iops / 4)
    with pytest.raises(BadInput, match="time_scale -1"):
        scaled(load_profile("nvme"), -1)


@pytest.mark.parametrize(
    ("old", "new", "line_holds", "found"),
    [
        ('"servers": 1', '"servers": 0', "servers", "servers is 0"),
        ('"servers": 1', '"severs": 1', "severs", "unknown field"),
        ('"value_s": 0.0001', '"value_s": -0.0001', "value_s", "value_s is -0.0001"),
        ('"rate_bps": 70000000.0', '"rate_bps": 0', "rate_bps", "rate_bps is 0"),
        ('"cylinders": 100000', '"cylinders": 1', "cylinders", "cylinders is 1"),
        ('"longest_s": 0.02', '"longest_s": 0.2', "average_s", "average_s is 0.012"),
        ('"name": "hdd-7200-seek",', '"name": "hdd"', "description", "expected `,` or `}`"),
    ],
)
def test_errors_have_a_line(
    tmp_path: Path, old: str, new: str, line_holds: str, found: str
) -> None:
    text = json.dumps(load_profile("hdd-7200-seek").to_dict(), indent=2)
    assert old in text
    file = tmp_path / "mine.json"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(BadInput) as error:
        load_profile("mine.json", tmp_path)
    (mistake,) = error.value.mistakes
    assert mistake.file == str(file)
    assert found in mistake.found
    assert line_holds in file.read_text().splitlines()[mistake.line - 1]


def test_unknown_profile_lists_the_built_in_ones() -> None:
    with pytest.raises(BadInput, match=r"neither a file nor one of cloud-burst-ssd, .*hdd-7200"):
        load_profile("floppy")


@dataclass(frozen=True)
class _Host:
    service_floor_ns: float = 150_000
    read_bps: float = 600 * MIB
    write_bps: float = 400 * MIB
    iops: float = 30_000
    loop_service_ns: float = 150_000
    loaded_iops: float = 30_000
    flushed_iops: float = 15_000

    def of(self, profile: StorageProfile) -> _Host:
        return self


def test_too_fast_profile_suggests_a_time_scale() -> None:
    host, ssd = _Host(), load_profile("sata-ssd")
    with pytest.raises(BadInput) as error:
        check_honourable(ssd, host)
    nearest = nearest_honest_time_scale(ssd, host)
    assert f"nearest sustainable time_scale is {nearest:g}" in str(error.value)
    check_honourable(scaled(ssd, nearest), host)
    with pytest.raises(BadInput):
        check_honourable(scaled(ssd, nearest / 2), host)
    # the result does not depend on the current time_scale
    assert nearest_honest_time_scale(scaled(ssd, 2), host) == nearest
    check_honourable(load_profile("service-5ms"), host)
    check_honourable(load_profile("rate-20mib"), host)


def test_limit_for_busy_programs_is_reported() -> None:
    host, ssd = _Host(loaded_iops=10_000), load_profile("sata-ssd")
    fast = nearest_honest_time_scale(ssd, _Host())
    check_honourable(scaled(ssd, fast), host)  # the idle host is fast enough
    nearest = nearest_honest_time_scale(ssd, host)
    assert nearest > fast
    message = too_fast_when_loaded(scaled(ssd, fast), host)
    assert f"at time_scale {fast:g} is accurate only for programs that request less" in message
    assert "busy programs get 10,000/s" in message
    assert f"at time_scale {nearest:g} every program gets" in message
    assert too_fast_when_loaded(scaled(ssd, nearest), host) == ""
    assert too_fast_when_loaded(scaled(ssd, nearest / 2), host) != ""


@pytest.mark.parametrize("name", ["hdd-7200", "hdd-7200-seek"])
def test_rewrites_without_a_write_cache_wait_a_rotation(name: str) -> None:
    """7200 rpm: at most 120 rewrites/s that each wait for the medium."""
    service = load_profile(name)
    rewrite = service.moments("write", True, 8192).mean + service.moments("flush", False, 0).mean
    assert 100 <= 1 / rewrite <= 120


def test_flush_rate_of_the_host_limits_the_time_scale() -> None:
    ssd = load_profile("px05smb040")
    eager, host = _Host(flushed_iops=1e9), _Host(flushed_iops=1_000)
    nearest = nearest_honest_time_scale(ssd, host)
    assert nearest > nearest_honest_time_scale(ssd, eager)
    message = too_fast_when_loaded(scaled(ssd, nearest_honest_time_scale(ssd, eager)), host)
    assert "random writes/s with a flush after each, programs get 1,000/s" in message
    assert too_fast_when_loaded(scaled(ssd, nearest), host) == ""
    # a flush without duration does not limit a program
    limited = load_profile("rate-20mib")
    assert nearest_honest_time_scale(limited, host) == nearest_honest_time_scale(limited, eager)
    check_honourable(scaled(ssd, nearest_honest_time_scale(ssd, eager)), host)


def test_likeness_detects_five_percent() -> None:
    hdd = load_profile("hdd-7200")
    assert all(r["ks"] == 0 and r["mean_ratio"] == 1 for r in likeness(hdd, hdd))
    slower = likeness(hdd, scaled(hdd, 1.05))
    assert all(r["mean_ratio"] == pytest.approx(1.05) and r["ks"] > 0.01 for r in slower)


def test_profile_survives_conversion_to_dict() -> None:
    for name in READY:
        profile = load_profile(name)
        assert StorageProfile.from_dict(profile.to_dict()) == profile
