"""Power meters with simulated sysfs trees: packages, platform, sensors and wrapping counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.host.probe.meter import find_meter, power_sensors, rapl_zones
from penstock.parts.monitoring.collectors import meters
from penstock.parts.monitoring.collectors.meters import PowerMeters
from penstock.testing import MemorySink, check_collector

RANGE = 262_143_328_850


def put(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
    return file


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two packages, a subzone, the platform, and three sensors, one of them broken."""
    for zone, name, energy in (
        ("intel-rapl:0", "package-0", 7), ("intel-rapl:0:0", "core", 1), ("intel-rapl:1", "package-1", 9),
        ("intel-rapl:2", "psys", 20),
    ):  # fmt: skip
        put(tmp_path, f"class/powercap/{zone}/name", name)
        put(tmp_path, f"class/powercap/{zone}/energy_uj", str(energy))
        put(tmp_path, f"class/powercap/{zone}/max_energy_range_uj", str(RANGE))
    put(tmp_path, "class/hwmon/hwmon0/name", "power_meter")
    put(tmp_path, "class/hwmon/hwmon0/power1_average", "151000000")
    put(tmp_path, "class/hwmon/hwmon1/name", "amdgpu")
    put(tmp_path, "class/hwmon/hwmon1/power1_average", "31000000")
    put(tmp_path, "class/hwmon/hwmon1/power1_input", "30000000")
    put(tmp_path, "class/hwmon/hwmon1/power2_input", "n/a")
    put(tmp_path, "class/hwmon/hwmon2/name", "coretemp")
    return tmp_path


def test_zones_and_sensors_of_a_tree(sysfs: Path) -> None:
    zones, unreadable = rapl_zones(sysfs)
    assert [zone.name for zone in zones] == ["package-0", "package-1", "psys"]
    assert unreadable == ""
    assert [(s.name, s.power.name) for s in power_sensors(sysfs)] == [
        ("hwmon0 power_meter power1", "power1_average"),
        ("hwmon1 amdgpu power1", "power1_input"),
    ]


def test_platform_is_not_added_to_its_packages(sysfs: Path) -> None:
    meter, _ = find_meter(sysfs)
    assert meter is not None
    assert [path.parent.name for path, _ in meter.counters] == ["intel-rapl:0", "intel-rapl:1"]


def test_power_is_energy_over_time_with_wrapping_counters(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10**9]
    monkeypatch.setattr(meters.time, "monotonic_ns", lambda: now[0])
    poller = PowerMeters("power", {"sys": str(sysfs)})
    poller._zones, poller._sensors = rapl_zones(sysfs)[0], power_sensors(sysfs)
    sensed = [("hwmon_power_watts", 151.0), ("hwmon_power_watts", 30.0)]
    assert [(name, watts) for (name, _), watts in poller._values()] == sensed
    now[0] += 2 * 10**9
    for zone, energy in (("0", 7 + 90_000_000), ("1", RANGE - 1_000_000), ("2", 20 + 400_000_000)):
        put(sysfs, f"class/powercap/intel-rapl:{zone}/energy_uj", str(energy))
    values = {labels: (name, watts) for (name, labels), watts in poller._values()}
    assert values['{"zone":"package-0"}'] == ("rapl_power_watts", pytest.approx(45))
    assert values['{"zone":"psys"}'] == ("platform_power_watts", pytest.approx(200))
    now[0] += 10**9
    put(sysfs, "class/powercap/intel-rapl:1/energy_uj", "79000000")
    values = {labels: (name, watts) for (name, labels), watts in poller._values()}
    assert values['{"zone":"package-1"}'] == ("rapl_power_watts", pytest.approx(80))


def test_collector_follows_its_protocol(sysfs: Path) -> None:
    sink: MemorySink = check_collector(PowerMeters, {"sys": str(sysfs), "interval_s": 0.1}, least=4)
    rows = sink.rows()
    assert {(r["metric"], r["unit"]) for r in rows} == {
        ("rapl_power_watts", "W"), ("platform_power_watts", "W"), ("hwmon_power_watts", "W"),
    }  # fmt: skip
    # constant counters mean no power
    assert {r["float"] for r in rows if r["metric"] == "rapl_power_watts"} == {0.0}


def test_missing_meter_and_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PenstockError, match="found no RAPL and no hwmon power sensor; expected one"
    ):
        check_collector(PowerMeters, {"sys": str(tmp_path)})
    for settings in ({"interval_s": 61}, {"interval_s": 0}, {"root": "/"}, {"sys": 3}):
        with pytest.raises(BadInput):
            PowerMeters("power", settings)
