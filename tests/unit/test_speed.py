"""Statements of `plan` and `doctor` about the speed of emulated disks on this host."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock.campaign.speed import what_run_says
from penstock.cli.doctor import _conclusion, measured, runs_here, time_scales
from penstock.design.plan import make_plan
from penstock.design.planned import treatments_of
from penstock.emulate.cluster.capacity import refuse_too_fast
from penstock.emulate.disks import measure_floor
from penstock.emulate.disks.floor import HostFloor
from penstock.host.probe.probe import Feature
from penstock.host.processes.processes import boot_id
from penstock.profile import load_profile
from penstock.study.load import load_study
from penstock.study.resolve import resolvable
from penstock.version import version

MIB = 1 << 20
FLOOR = HostFloor(
    150_000,
    600.0 * MIB,
    400.0 * MIB,
    iops=30_000,
    loop_service_ns=150_000,
    loaded_iops=5_000,
    flushed_iops=15_000,
)
STUDY = """
penstock: 1
name: pair
question: Which disk is faster?
factors:
  disk: {levels: [sata-ssd, service-5ms]}
platform:
  nodes: [{name: n, disks: [{name: d, profile: "{disk}", time_scale: SCALE}]}]
workload:
  command: echo {d}
responses:
  wall: {from: wall_s, unit: s, better: lower}
design: {kind: full}
"""


def warnings_of(directory: Path, scale: float) -> list[str]:
    path = directory / "s.study.yaml"
    path.write_text(STUDY.replace("SCALE", str(scale)))
    study = load_study(path)
    return what_run_says(resolvable(study, treatments_of(make_plan(study))))


def keep(directory: Path, floor: HostFloor) -> None:
    key = {"boot_id": boot_id(), "kernel": platform.release(), "penstock": version()}
    directory.mkdir(exist_ok=True)
    (directory / "host-floor.json").write_text(json.dumps({**key, **asdict(floor)}))


def test_a_plan_reports_what_run_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    (unknown,) = warnings_of(tmp_path, 1)
    assert "not known: penstock doctor measures it" in unknown
    keep(tmp_path / "state", FLOOR)
    (refused,) = warnings_of(tmp_path, 1)
    assert refused.startswith(
        "penstock run refuses this: profile sata-ssd at time_scale 1 is too fast"
    )
    sustainable = time_scales(FLOOR)["sata-ssd"]
    assert f"nearest sustainable time_scale is {sustainable:g}" in refused
    between = time_scales(HostFloor(**{**asdict(FLOOR), "loaded_iops": 30_000}))["sata-ssd"]
    assert between < sustainable
    (warned,) = warnings_of(tmp_path, between)
    assert f"at time_scale {between:g} is accurate only for programs that request less" in warned
    assert warnings_of(tmp_path, sustainable) == []


def test_floors_of_a_busy_host_cause_no_warning_and_are_remeasured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    busy = {"now": 0.9}
    slow = replace(FLOOR, loaded_iops=1_000)
    monkeypatch.setattr(measure_floor, "current_share", lambda: busy["now"])
    monkeypatch.setattr(measure_floor, "_measure", lambda *_: slow if busy["now"] > 0.5 else FLOOR)
    monkeypatch.setattr(measure_floor, "missing", lambda: "no io_uring")
    first = measure_floor.host_floor()
    assert first.loaded_iops == 1_000
    assert measured(first).startswith("best of 1 measurement since boot, the last on 20")
    second = measure_floor.host_floor(refresh=True)
    assert measured(second).startswith("best of 2 measurements ")
    assert second.measured_s > first.measured_s > 0
    fast = [load_profile("sata-ssd").scaled(25)]
    assert refuse_too_fast(fast) == []
    assert warnings_of(tmp_path, 25) == []
    busy["now"] = 0.1
    assert measure_floor.host_floor() == replace(FLOOR, busy_share=0.1)
    # and stored from then on
    busy["now"] = 0.9
    assert measure_floor.host_floor() == replace(FLOOR, busy_share=0.1)
    assert refuse_too_fast(fast) == []
    keep(tmp_path / "state", slow)
    (warned,) = refuse_too_fast(fast)
    assert [warned] == warnings_of(tmp_path, 25)


def test_a_floor_without_a_closed_loop_counts_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    keep(tmp_path / "state", FLOOR)
    floor_file = tmp_path / "state" / "host-floor.json"
    older = json.loads(floor_file.read_text())
    del older["loaded_iops"]
    floor_file.write_text(json.dumps(older))
    assert "not known" in warnings_of(tmp_path, 1)[0]


def test_the_conclusion_of_doctor() -> None:
    names = [
        "fuse",
        "memory",
        "root",
        "namespaces",
        "veth",
        "node limits",
        "tbf",
        "raw_tp",
        "calls",
    ]
    features = [Feature("g", name, "supported", "", "", "") for name in names]
    missing = [Feature("g", name, "unsupported", "", "", "") for name in ("netem", "tp_btf")]
    purposes = runs_here([*features, *missing])
    assert {purpose for purpose, available in purposes.items() if not available} == {
        "disks throttled by the kernel",
        "links with delay and loss",
    }
    lines = _conclusion([*features, *missing], FLOOR)
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert "Not here: disks throttled by the kernel, links with delay and loss." in text
    # without netem the relay delays and loses frames
    relay = Feature("nodes", "relay", "supported", "in user space", "", "")
    relayed = " ".join(" ".join(_conclusion([*features, *missing, relay], FLOOR)).split())
    assert "links with delay and loss, the tracer." in relayed.partition("Not here")[0]
    assert f"sata-ssd {time_scales(FLOOR)['sata-ssd']:g} times slower" in text
    assert "service-5ms" in text.partition(" as they are")[0]
