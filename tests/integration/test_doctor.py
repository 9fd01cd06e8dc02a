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


def penstock(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return command_lines.run([*PENSTOCK, *words], env=environment, capture_output=True, text=True)


def test_doctor_says_what_and_what_to_do(environment: dict[str, str]) -> None:
    done = penstock(environment, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    names = {f["name"] for f in told["features"]}
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
    for feature in told["features"]:
        assert feature["verdict"] in ("supported", "unsupported", "unknown")
        if feature["verdict"] == "unsupported":
            assert feature["remedy"], f"{feature['name']} is missing and nobody says what to do"
    assert (told["floors"] is None) == bool(told["floors_unknown_because"])
    if told["floors"]:
        rings = told["floors"].pop("io_uring")
        for floors in filter(None, (told["floors"], rings)):
            measured = floors.items() - {"busy_share": 0.0, "io_uring": None}.items()
            assert all(value > 0 for _, value in measured)
    assert told["host"]["kernel"] == os.uname().release
    assert told["nodes"] == {"isolates": ISOLATES, "does_not_isolate": DOES_NOT_ISOLATE}
    assert not Journal(Path(environment["PENSTOCK_STATE"]) / "journal.jsonl").open_entries()


def test_a_probe_that_fails_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.host.probe import probe as module

    def _broken(_: Journal) -> list[Feature]:
        raise OSError("no luck")

    monkeypatch.setattr(module, "PROBES", (_broken, PROBES[0]))
    found = probe_host(Journal(tmp_path / "j"))
    assert (found[0].name, found[0].verdict, found[0].detail) == ("broken", "unknown", "no luck")
    assert any(f.name == "root" for f in found)


def test_the_table_fits_and_is_whole() -> None:
    words = " ".join(f"word{n}" for n in range(60))
    feature = Feature("g", "netem", "unsupported", words, "load sch_netem", "delay")
    lines = _table([feature])
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert words in text
    assert "-> load sch_netem" in text


def test_undo_of_nothing_and_of_a_dead_owner_s(environment: dict[str, str], tmp_path: Path) -> None:
    assert penstock(environment, "undo").stdout == "Nothing to undo.\n"
    journal = Journal(tmp_path / "state" / "journal.jsonl")
    make_directory(tmp_path / "left behind", journal)
    assert penstock(environment, "undo").stdout == "Nothing to undo.\n"  # we are alive
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    lines[0]["owner_start"] = 1
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = penstock(environment, "undo", "--json")
    (undone,) = json.loads(done.stdout)["undone"]
    assert (undone["kind"], undone["outcome"]) == ("directory", "undone")
    assert not (tmp_path / "left behind").exists()
    assert json.loads(penstock(environment, "undo", "--json").stdout)["undone"] == []


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: loads BPF programs")
def test_bpf_trials_agree_with_the_kernel_s_own_list() -> None:
    from penstock.host.probe.bpf_trial import trials

    found = trials()
    assert set(found) == {"tp_btf", "raw_tp", "tracepoint", "fentry"}
    if not Path("/sys/kernel/btf/vmlinux").exists():
        assert found["tp_btf"][0] == "unsupported"
        return
    bpftool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if bpftool is None:
        pytest.skip("no bpftool to compare with")
    told = command_lines.run(
        [bpftool, "feature", "probe", "kernel"], capture_output=True, text=True
    )
    for hook, kind in (("raw_tp", "raw_tracepoint"), ("tracepoint", "tracepoint")):
        if f"program_type {kind} is available" in told.stdout:
            assert found[hook][0] == "supported", hook


def test_type_numbers_are_those_of_bpftool() -> None:
    from penstock.host.probe.bpf_trial import _type_ids

    bpftool = shutil.which("bpftool", path="/usr/sbin:/usr/bin:/sbin:/bin")
    btf = Path("/sys/kernel/btf/vmlinux")
    if bpftool is None or not btf.exists():
        pytest.skip("needs bpftool and kernel BTF")
    found = _type_ids({("vfs_read", 12), ("task_struct", 4), ("no_such_type", 4)})
    told = command_lines.run(
        [bpftool, "btf", "dump", "file", str(btf)], capture_output=True, text=True
    ).stdout
    assert set(found) == {"vfs_read", "task_struct"}
    assert f"\n[{found['vfs_read']}] FUNC 'vfs_read' " in told
    assert f"\n[{found['task_struct']}] STRUCT 'task_struct' " in told


@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting in tests needs root")
def test_a_floor_of_a_busy_moment_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(with_known_host(tmp_path / "state")))
    # what is asked here is when it is measured, not how exactly
    monkeypatch.setattr(measure_floor, "_LOOP_S", 0.03)
    monkeypatch.setattr(measure_floor, "_LOOPS", 1)
    journal = Journal(tmp_path / "journal.jsonl")
    kept = tmp_path / "state" / "host-floor.json"
    first = host_floor(journal)
    slow = {"service_floor_ns": 1e9, "iops": 1.0, "busy_share": 0.0}
    busy = {**json.loads(kept.read_text()), **slow}
    kept.write_text(json.dumps(busy))
    assert host_floor(journal).iops == 1.0
    with pytest.raises(BadInput, match="nearest sustainable time_scale"):
        refuse_too_fast([load_profile("nvme")], journal)
    again = host_floor(journal)
    assert again.iops > 1.0
    assert again.read_bps >= first.read_bps
    kept.write_text(json.dumps(busy))
    refuse_too_fast([load_profile("hdd-7200").scaled(100)], journal)
