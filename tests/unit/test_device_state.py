"""Devices at the start of a run: their state, reported faults, discarding of free space."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from penstock.analyse.fidelity.device_start import devices
from penstock.analyse.outcome import Outcome
from penstock.archive.receipts import device_faults
from penstock.campaign.preparation import device_state
from penstock.campaign.preparation.device_state import discard, of_devices
from penstock.emulate.disks.beginning import beginning
from penstock.errors import BadInput, PenstockError
from penstock.host.storage.blockdev import BlockDevice
from penstock.study.load import read_study

BUCKET = {"baseline": 100.0, "burst": 3000.0, "capacity": 5000.0}


def busy_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, counts: list[str]) -> list[float]:
    """A device with these contents of its `inflight`, one after the other; returns the pauses."""
    (tmp_path / "queue").mkdir()
    place = tmp_path / "inflight"
    place.write_text(counts.pop(0))
    monkeypatch.setattr(BlockDevice, "queue", property(lambda _: tmp_path / "queue"))
    monkeypatch.setattr(device_state, "device_of", lambda _: BlockDevice((8, 0), "sdz"))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if counts:
            place.write_text(counts.pop(0))

    # the clock of the module only: other threads keep theirs
    clock = SimpleNamespace(sleep=pause, monotonic=lambda: float(sum(pauses)))
    monkeypatch.setattr(device_state, "time", clock)
    return pauses


def test_the_start_waits_until_no_request_is_in_flight(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses = busy_device(monkeypatch, tmp_path, ["       3        4\n", " 0 1\n", " 0 0\n"])
    assert of_devices({"n.data": tmp_path}) == {"n.data": {"device": "sdz", "in_flight": 0}}
    assert len(pauses) == 2


def test_a_device_that_stays_busy_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses = busy_device(monkeypatch, tmp_path, [" 2 5\n"])
    assert of_devices({"n.data": tmp_path}) == {"n.data": {"device": "sdz", "in_flight": 7}}
    assert sum(pauses) == pytest.approx(device_state.QUIET_WITHIN_S, abs=0.02)


def test_a_device_with_several_disks_is_polled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses = busy_device(monkeypatch, tmp_path, [" 2 5\n"])
    numbers = {"a": (8, 0), "b": (8, 0), "c": (8, 16)}
    monkeypatch.setattr(
        device_state, "device_of", lambda p: BlockDevice(numbers[p.name], f"sd{numbers[p.name][1]}")
    )
    states = of_devices({f"n.{name}": Path("/mnt", name) for name in numbers})
    busy, second = ({"device": name, "in_flight": 7} for name in ("sd0", "sd16"))
    assert states == {"n.a": busy, "n.b": busy, "n.c": second}
    assert sum(pauses) == pytest.approx(2 * device_state.QUIET_WITHIN_S, abs=0.04)
    states["n.a"]["discarded_bytes"] = 4096
    assert states["n.b"] == busy


def test_an_unknown_state_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(path: Path) -> BlockDevice:
        raise BadInput(f"{path} is on tmpfs; expected a path on a block device")

    monkeypatch.setattr(device_state, "device_of", unknown)
    states = of_devices({"n.data": tmp_path})
    assert states == {"n.data": {"in_flight": None, "unknown": f"{tmp_path} is on tmpfs"}}
    assert device_faults(states) == []


def test_an_emulated_disk_reports_actual_and_declared_credits() -> None:
    stats = {"in_flight": 2, "levels": {"credits_iops": 2500.0, "credits_bytes": None}}
    profile = {"credits": {"iops": BUCKET | {"initial": 0.5}}}
    state = beginning(stats, profile, {})
    assert state == {"in_flight": 2, "dirty_bytes": 0.0, "credits": {"iops": [2500.0, 2500.0]}}
    # the changed settings are the declared ones now
    changed = beginning(stats, profile, {"credits": {"iops": BUCKET}})
    assert changed is not None
    assert changed["credits"] == {"iops": [2500.0, 5000.0]}
    assert beginning({"reads": 3}, {}, {}) is None  # a device of the kernel, under limits


@pytest.mark.parametrize(
    ("state", "faults"),
    [
        ({"in_flight": 0, "credits": {"iops": [5000.0, 5000.0]}}, []),
        ({"in_flight": 3, "credits": {}}, ["n.data: requests in flight at the start: 3, not 0"]),
        (
            {"in_flight": 1, "device": "sda"},
            ["n.data: requests in flight on sda at the start: 1, not 0"],
        ),
        (
            {"in_flight": 0, "credits": {"bytes": [4900.0, 5000.0]}},
            ["n.data: credits (bytes) at the start: 4900, not 5000 as stated"],
        ),
        ({}, []),
    ],
)
def test_faults_of_devices_not_at_rest(state: dict[str, Any], faults: list[str]) -> None:
    assert device_faults({"n.data": state}) == faults


def test_a_study_may_allow_requests_in_flight() -> None:
    assert device_faults({"n.data": {"in_flight": 3}}, at_most=3) == []
    assert device_faults({"n.data": {"in_flight": 4}}, at_most=3) == [
        "n.data: requests in flight at the start: 4, not 3"
    ]


def test_free_space_is_discarded_once_for_each_file_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[tuple[int, bytes]] = []

    def ioctl(fd: int, request: int, argument: bytes) -> bytes:
        requests.append((request, argument))
        return device_state._RANGE.pack(0, 4096, 0)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    for name in "ab":
        (tmp_path / name).mkdir()
    assert discard({"n.a": tmp_path / "a", "n.b": tmp_path / "b"}) == {"n.a": 4096, "n.b": 4096}
    # linux/fs.h: _IOWR('X', 121, struct fstrim_range), from 0 to the end
    assert requests == [(0xC0185879, b"\0" * 8 + b"\xff" * 8 + b"\0" * 8)]


def test_a_device_without_discard_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ioctl(*_: object) -> bytes:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(PenstockError, match=r"settle\.discard: .*discards nothing"):
        discard({"n.a": tmp_path})


def test_the_finding_names_the_runs(tmp_path: Path) -> None:
    states = {
        "r001": {"n.data": {"in_flight": 0, "credits": {}}},
        "r002": {"n.data": {"in_flight": 6, "device": "sda"}},
        "r003": {"n.data": {"in_flight": None, "unknown": "tmpfs"}},
    }
    for run_id, state in states.items():
        (tmp_path / "runs" / run_id).mkdir(parents=True)
        manifest = {"run_id": run_id, "device_state": state}
        (tmp_path / "runs" / run_id / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "plan.json").write_text("{}")
    pd.DataFrame({"run_id": list(states), "valid": True}).to_parquet(tmp_path / "runs.parquet")
    (finding,) = devices(Outcome.read(tmp_path))
    assert finding.code == "device-not-at-rest"
    assert "1 run of 3" in finding.statement
    assert "in r002 n.data: requests in flight on sda" in finding.statement
    assert finding.evidence["run_id"] == ["r002"]
    del states["r002"]
    (tmp_path / "runs" / "r002" / "manifest.json").write_text("{}")
    assert list(devices(Outcome.read(tmp_path))) == []


STUDY = """
penstock: 1
name: plain
question: Is it at rest?
factors:
  word: {levels: [one, two]}
design: {kind: full, replicates: 1, seed: 3}
platform:
  nodes: [{name: n, disks: [{name: data, DISK}]}]
workload: {command: 'echo {word} > {data}/file'}
responses: {time: {from: wall_s, unit: s, better: lower}}
settle: {discard: true, in_flight_at_most: 0}
"""


def test_settings_of_a_study(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    text = STUDY.replace("DISK", "directory: plain").encode()
    study = read_study(text, tmp_path / "plain.study.yaml")
    assert study.settle.discard
    assert study.settle.in_flight_at_most == 0
    emulated = STUDY.replace("DISK", "profile: rate-20mib, size: 32MiB").encode()
    with pytest.raises(BadInput, match="no disk with a directory"):
        read_study(emulated, tmp_path / "plain.study.yaml")
