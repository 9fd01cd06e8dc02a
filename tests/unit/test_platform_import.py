"""Import of this host as a platform: facts of a simulated /sys, measurements and assumptions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import cli
from penstock.campaign.measurements import import_platform
from penstock.campaign.measurements.import_platform import frequencies_hz, import_host, links
from penstock.errors import BadInput
from penstock.host.network.loopback import Measured, interval, loopback_throughput
from penstock.host.probe import meter as meters
from penstock.host.probe.meter import Meter, find_meter, measure
from penstock.platform.hosts import load_platform


def put(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    return file


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    root = tmp_path / "sys"
    for name, speed, state in (
        ("eth0", "1000", "up"),
        ("ib0", "40000", "up"),
        ("off", "10000", "down"),
    ):
        put(root, f"class/net/{name}/speed", speed)
        put(root, f"class/net/{name}/operstate", state)
        put(root, f"class/net/{name}/mtu", "1500")
        put(root, f"class/net/{name}/device/vendor", "0x1")
    put(root, "class/net/lo/operstate", "unknown")
    put(root, "class/net/wifi/operstate", "up")
    put(root, "class/net/wifi/speed", "-1")
    put(root, "class/net/wifi/device/vendor", "0x1")
    put(root, "devices/system/cpu/cpu0/cpufreq/scaling_available_frequencies", "2300000 1200000")
    return root


def test_links_that_are_up_sorted_by_speed(sysfs: Path):
    up = links(sysfs)
    assert [(link.name, link.speed_bps) for link in up] == [
        ("ib0", 5e9),
        ("eth0", 125e6),
        ("wifi", None),
    ]
    assert up[0].mtu == 1500


def test_frequencies(sysfs: Path, tmp_path: Path):
    assert frequencies_hz(sysfs) == [1.2e9, 2.3e9]
    assert frequencies_hz(tmp_path / "none") == []
    (sysfs / "devices/system/cpu/cpu0/cpufreq/scaling_available_frequencies").unlink()
    put(sysfs, "devices/system/cpu/cpu0/cpufreq/cpuinfo_min_freq", "800000")
    put(sysfs, "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "4000000")
    assert frequencies_hz(sysfs) == [0.8e9, 4e9]


def test_interval_is_student_s():
    result = interval([9.0, 10.0, 11.0])
    assert result.mean == 10
    assert result.high - 10 == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert not result.converged
    assert interval([10.0, 10.1, 9.9, 10.0]).converged


def test_short_transfer_is_measured():
    result = loopback_throughput(budget_s=0.5, fewest=5)
    assert result.n >= 5
    assert result.low <= result.mean <= result.high
    assert result.mean > 1e6


def test_missing_power_meter_names_the_sources(tmp_path: Path):
    meter, why = find_meter(tmp_path)
    assert meter is None
    assert "RAPL" in why
    assert "hwmon" in why


class Clock:
    """Simulated clock that advances in `sleep`, and energy counter of a host that draws 20 W."""

    now = 0.0
    most = 5_000_000  # microjoules: the counter wraps every quarter of a second

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now

    def read_text(self) -> str:
        return f"{round(self.now * 20e6) % self.most}\n"


def test_wrapping_counters(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(meters, "time", clock)
    meter = Meter("planted", counters=((clock, clock.most),))  # type: ignore[arg-type]
    assert [meter.watts(0.2) for _ in range(6)] == pytest.approx([20.0] * 6)
    assert meter.watts(0.3) == pytest.approx(
        20 - 5 / 0.3
    )  # longer than one wrap, which cannot be detected


def test_only_top_level_rapl_zones_are_counted(tmp_path: Path):
    put(tmp_path, "class/powercap/intel-rapl:0/energy_uj", "7")
    put(tmp_path, "class/powercap/intel-rapl:0/max_energy_range_uj", "5000000")
    put(tmp_path, "class/powercap/intel-rapl:0:0/energy_uj", "0")
    meter, why = find_meter(tmp_path)
    assert meter is not None
    assert why == ""
    assert [(p.parent.name, most) for p, most in meter.counters] == [("intel-rapl:0", 5_000_000)]


def test_power_meter_measures_the_complete_host(tmp_path: Path):
    sensor = put(tmp_path, "class/hwmon/hwmon0/power1_input", "150000000")
    put(tmp_path, "class/hwmon/hwmon0/name", "power_meter")
    meter, _ = find_meter(tmp_path)
    assert meter == Meter("the host, by its power meter", sensor=sensor)
    idle, busy = measure(meter, repetitions=2, seconds=0.01)
    assert idle.mean == busy.mean == 150


def test_unmeasured_values_are_assumed(sysfs: Path, tmp_path: Path):
    platform = import_host(tmp_path, tmp_path, sys=sysfs, budget_s=0.2)
    document = platform.document
    assert document["network"]["bandwidth"] == "40 Gbit/s"
    assumed = {a.path for a in platform.assumed}
    group = document["hosts"][0]["group"]
    assert assumed == {
        "network.bandwidth",
        "network.latency",
        f"hosts.{group}.storage.time_scale",
        "store.chunk",
    }
    measured = {e.path: e for e in platform.estimates}
    assert set(measured) == {"network.loopback", "launch.overhead"}
    assert all(e.n and e.n > 1 and e.low <= e.value <= e.high for e in measured.values())
    assert document["facts"]["power_meter"].startswith("none: ")
    assert platform.power == {}


def test_a_host_without_loopback_is_imported(sysfs: Path, tmp_path: Path, monkeypatch):
    def broken(budget_s: float) -> Measured:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(import_platform, "loopback_throughput", broken)
    platform = import_host(tmp_path, tmp_path, sys=sysfs)
    notes = {a.path: a.note for a in platform.assumed}
    assert "Cannot assign" in notes["network.loopback"]


def test_power_is_measured_with_a_meter(sysfs: Path, tmp_path: Path, monkeypatch):
    put(sysfs, "class/hwmon/hwmon0/power1_input", "150000000")
    put(sysfs, "class/hwmon/hwmon0/name", "power_meter")
    both = Measured(80.0, 79.0, 81.0, 5, True), Measured(120.0, 119.0, 121.0, 5, True)
    monkeypatch.setattr(import_platform, "measure", lambda meter: both)
    platform = import_host(tmp_path, tmp_path, sys=sysfs, budget_s=0.2)
    (power,) = platform.power.values()
    assert power.idle_w == 80
    assert power.app_w == 40
    ranges = {a.path: (a.low, a.high) for a in platform.assumed}
    assert ranges["power.storage"] == ranges["power.network"] == ("80 W", "120 W")
    assert "power.states.0.speed" in ranges
    assert platform.with_values({"power.frequency": "1.2 GHz"}).hosts[0].speed == pytest.approx(
        0.5217
    )


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    """Exit status, stdout and stderr of `penstock platform …` in a directory."""

    def command(*arguments: str, cwd: Path) -> tuple[int, str, str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["penstock", "platform", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        return int(exited.value.code or 0), *capsys.readouterr()

    return command


def test_command_writes_a_valid_file(tmp_path: Path, run: Run):
    profile = {
        "schema": "penstock/storage-profile/1",
        "name": "mine",
        "servers": 1,
        "read": {
            k: {"overhead": {"kind": "constant", "value_s": 0.001}}
            for k in ("sequential", "random")
        },
    }
    (tmp_path / "fitted").mkdir()
    (tmp_path / "fitted/mine.json").write_text(json.dumps({**profile, "write": profile["read"]}))
    (tmp_path / "out").mkdir()
    arguments = ["import", "-o", "out/here.yaml", "--profile", "fitted/mine.json"]
    status, out, err = run(*arguments, cwd=tmp_path)
    assert status == 0, err
    assert out == ""
    assert "assumed, not measured" in err
    assert "power: " in err
    platform = load_platform(tmp_path / "out/here.yaml")
    assert platform.lower()["hosts"][0]["storage"]["profile"]["name"] == "mine"
    assert not any("time_scale" in a.path for a in platform.assumed)
    status, _, err = run("import", "-o", "out/here.yaml", cwd=tmp_path)
    assert status == 2
    assert "--force" in err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["here.yaml"]


def test_bad_input_writes_no_files(tmp_path: Path, run: Run):
    for arguments in (["nowhere"], ["--profile", "missing.json"], ["-o", "none/here.yaml"]):
        status, out, err = run("import", *arguments, cwd=tmp_path)
        assert status == 2, arguments
        assert err.startswith("penstock: ")
        assert out == ""
    with pytest.raises(BadInput, match="no directory"):
        import_host(tmp_path / "nowhere", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_show_and_check(tmp_path: Path, run: Run):
    example = Path(__file__).parents[2] / "examples/platforms/disks.yaml"
    status, out, _ = run("show", str(example), "--set", "hosts.apps.count=3", cwd=tmp_path)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 100
    assert "apps-0 … 2" in out
    assert "hdd-5 " in out
    as_json = json.loads(run("show", str(example), "--json", cwd=tmp_path)[1])
    assert as_json["network"] == load_platform(example).lower()
    assert as_json["price"]["hdd-0"]["per_hour"] == pytest.approx(0.16)
    assert run("check", str(example), cwd=tmp_path)[1].startswith(f"{example} is sound.")


def test_directory_without_space_is_refused():
    with pytest.raises(BadInput, match="/proc: found no free space"):
        import_host(Path("/proc"), Path())
