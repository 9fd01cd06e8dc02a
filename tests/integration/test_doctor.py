"""penstock doctor and penstock undo as commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.doctor import _table
from penstock.emulate.cluster.capacity import refuse_too_fast
from penstock.emulate.disks import measure_floor
from penstock.emulate.disks.measure_floor import host_floor
from penstock.errors import BadInput
from penstock.host.journal.directories import make_directory
from penstock.host.journal.journal import Journal
from penstock.host.nodes.isolation import DOES_NOT_ISOLATE, ISOLATES
from penstock.host.probe.probe import PROBES, Feature, probe_host
from penstock.profile import load_profile
from tests.integration.known_host import with_known_host
from tests.support import commands as command_lines

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PENSTOCK_STATE": str(with_known_host(tmp_path / "state")),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }


def penstock(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return command_lines.run([*PENSTOCK, *argv], env=environment, capture_output=True, text=True)


def test_doctor_reports_features_and_remedies(environment: dict[str, str]) -> None:
    result = penstock(environment, "doctor", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    names = {f["name"] for f in report["features"]}
    assert {
        "root",
        "fuse",
        "layout",
        "memory",
        "tp_btf",
        "psi",
        "io_uring",
        "netem",
        "fio",
    } <= names
    for feature in report["features"]:
        assert feature["verdict"] in ("supported", "unsupported", "unknown")
        if feature["verdict"] == "unsupported":
            assert feature["remedy"], f"{feature['name']} is missing and has no remedy"
    assert (report["floors"] is None) == bool(report["floors_unknown_because"])
    if report["floors"]:
        rings = report["floors"].pop("io_uring")
        for floors in filter(None, (report["floors"], rings)):
            values = floors.items() - {"busy_share": 0.0, "io_uring": None}.items()
            assert all(value > 0 for _, value in values)
    assert report["host"]["kernel"] == os.uname().release
    assert report["nodes"] == {"isolates": ISOLATES, "does_not_isolate": DOES_NOT_ISOLATE}
    assert not Journal(Path(environment["PENSTOCK_STATE"]) / "journal.jsonl").open_entries()


def test_a_probe_that_fails_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.host.probe import probe as module

    def _broken(_: Journal) -> list[Feature]:
        raise OSError("no luck")

    monkeypatch.setattr(module, "PROBES", (_broken, PROBES[0]))
    features = probe_host(Journal(tmp_path / "j"))
    assert (features[0].name, features[0].verdict, features[0].detail) == (
        "broken",
        "unknown",
        "no luck",
    )
    assert any(f.name == "root" for f in features)


def test_the_table_is_complete_and_fits_the_terminal() -> None:
    detail = " ".join(f"word{n}" for n in range(60))
    feature = Feature("g", "netem", "unsupported", detail, "load sch_netem", "delay")
    lines = _table([feature])
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert detail in text
    assert "-> load sch_netem" in text


def test_undo_of_nothing_and_of_entries_of_a_dead_owner(
    environment: dict[str, str], tmp_path: Path
) -> None:
    assert penstock(environment, "undo").stdout == "Nothing to undo.\n"
    journal = Journal(tmp_path / "state" / "journal.jsonl")
    make_directory(tmp_path / "left behind", journal)
    assert penstock(environment, "undo").stdout == "Nothing to undo.\n"  # the owner is alive
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    lines[0]["owner_start"] = 1
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = penstock(environment, "undo", "--json")
    (undone,) = json.loads(result.stdout)["undone"]
    assert (undone["kind"], undone["outcome"]) == ("directory", "undone")
    assert not (tmp_path / "left behind").exists()
    assert json.loads(penstock(environment, "undo", "--json").stdout)["undone"] == []


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: loads BPF programs")
def test_bpf_trials_agree_with_bpftool() -> None:
    from penstock.host.probe.bpf_trial import trials

    outcomes = trials()
    assert set(outcomes) == {"tp_btf", "raw_tp", "tracepoint", "fentry"}
    if not Path("/sys/kernel/btf/vmlinux").exists():
        assert outcomes["tp_btf"][0] == "unsupported"
        return
    bpftool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if bpftool is None:
        pytest.skip("no bpftool to compare with")
    output = command_lines.run(
        [bpftool, "feature", "probe", "kernel"], capture_output=True, text=True
    )
    for hook, kind in (("raw_tp", "raw_tracepoint"), ("tracepoint", "tracepoint")):
        if f"program_type {kind} is available" in output.stdout:
            assert outcomes[hook][0] == "supported", hook


def test_type_numbers_are_those_of_bpftool() -> None:
    from penstock.host.probe.bpf_trial import _type_ids

    bpftool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin")
    btf = Path("/sys/kernel/btf/vmlinux")
    if bpftool is None or not btf.exists():
        pytest.skip("needs bpftool and kernel BTF")
    ids = _type_ids({("vfs_read", 12), ("task_struct", 4), ("no_such_type", 4)})
    dump = command_lines.run(
        [bpftool, "btf", "dump", "file", str(btf)], capture_output=True, text=True
    ).stdout
    assert set(ids) == {"vfs_read", "task_struct"}
    assert f"\n[{ids['vfs_read']}] FUNC 'vfs_read' " in dump
    assert f"\n[{ids['task_struct']}] STRUCT 'task_struct' " in dump


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting in tests needs root")
def test_a_floor_measured_on_a_busy_host_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(with_known_host(tmp_path / "state")))
    # this test needs no precise measurement
    monkeypatch.setattr(measure_floor, "_LOOP_S", 0.03)
    monkeypatch.setattr(measure_floor, "_LOOPS", 1)
    journal = Journal(tmp_path / "journal.jsonl")
    path = tmp_path / "state" / "host-floor.json"
    first = host_floor(journal)
    slow = {"service_floor_ns": 1e9, "iops": 1.0, "busy_share": 0.0}
    busy = {**json.loads(path.read_text()), **slow}
    path.write_text(json.dumps(busy))
    assert host_floor(journal).iops == 1.0
    with pytest.raises(BadInput, match="nearest sustainable time_scale"):
        refuse_too_fast([load_profile("nvme")], journal)
    again = host_floor(journal)
    assert again.iops > 1.0
    assert again.read_bps >= first.read_bps
    path.write_text(json.dumps(busy))
    refuse_too_fast([load_profile("hdd-7200").scaled(100)], journal)
