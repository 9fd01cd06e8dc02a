"""penstock disk on the command line: options, refusals, output and cleanup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.analyse.fidelity import fidelity_path
from penstock.emulate.disks import persistent
from penstock.errors import BadInput
from penstock.host.journal.journal import Journal
from penstock.host.storage.mounts import mounts_at
from tests.integration.disk_bench import BOTH_TRANSPORTS, HOST, each_transport  # noqa: F401 - a fixture
from tests.integration.known_host import with_known_host
from tests.support import commands
from tests.support.waiting import until, wait_for_end
from tests.unit.test_speed import FLOOR, keep

pytestmark = [*HOST, BOTH_TRANSPORTS]


@dataclass
class Command:
    """penstock disk with a separate state directory and the directories of a disk."""

    base: Path
    environment: dict[str, str]

    def __call__(self, *argv: Any, status: int = 0) -> str:
        result = self.run(*argv)
        assert result.returncode == status, result.stderr
        return result.stdout if status == 0 else result.stderr

    def run(self, *argv: Any) -> subprocess.CompletedProcess[str]:
        return commands.run(
            [sys.executable, "-m", "penstock", "disk", *map(str, argv)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def failed(self, *argv: Any) -> str:
        """Output of a command that ends with status 1."""
        result = self.run(*argv)
        assert result.returncode == 1, result.stderr
        return result.stdout

    @property
    def mount(self) -> Path:
        return self.base / "m"

    def up(self, *options: Any, status: int = 0) -> str:
        directories = ("--backing", self.base / "b", "--mount", self.mount)
        return self("up", "none", *directories, *options, status=status)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Command]:
    for name in "bm":
        (tmp_path / name).mkdir()
    state = with_known_host(tmp_path / "state")
    variables = {"PENSTOCK_STATE": str(state), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    command = Command(tmp_path, {**os.environ, **variables})
    yield command
    if mounts_at(command.mount):
        command("down", command.mount)
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []
    assert not mounts_at(command.mount)


def test_up_set_status_events_down(disk: Command):
    disk.up(
        "--set", "limits.read=10MiB/s", "--set", "servers=2", "--size", "1GiB", "--owner", "77:88"
    )
    assert os.statvfs(disk.mount).f_blocks * 4096 == 1 << 30
    assert os.stat(disk.mount).st_uid == 77
    event = json.loads(disk("set", disk.mount, "limits.read=10MB/s", "slow.factor=10", "--json"))
    assert event["found"]["limits"] == {"read_bps": 10e6}  # not 10 MiB
    assert event["planned_ns"] <= event["applied_ns"] <= event["verified_ns"]
    disk("set", disk.mount, "limits.read=max", "slow=max", "bad_space.share=50%", "readahead=off")
    status = json.loads(disk("status", "--json"))["disks"][0]
    assert sorted(status["active"]) == ["bad_space", "readahead", "servers"]
    assert status["settings"]["bad_space"]["share"] == 0.5
    assert "bad_space" in disk("status")
    events = json.loads(disk("events", disk.mount, "--json"))["events"]
    assert [sorted(e["asked"]) for e in events] == [
        ["limits", "servers"],
        ["limits", "slow"],
        ["bad_space", "limits", "readahead", "slow"],
    ]
    table = disk("events", disk.mount)
    assert "limits.read_bps=10 MB/s" in table
    assert all(len(line) <= 100 for line in table.splitlines())


def test_unknown_and_impossible_disks_are_refused(disk: Command):
    assert "no disk of" in disk("set", disk.mount, "limits.read=1MB/s", status=2)
    assert "its unit" in disk.up("--set", "limits.read=1", "--size", "10GiB", status=2)
    assert "512MiB" in disk.up("--size", "10", status=2)
    assert not mounts_at(disk.mount)
    disk.up()
    assert "volatile" in disk("cut", disk.mount, status=1)


def test_a_disk_with_an_uncertain_request_path_is_refused(
    disk: Command, monkeypatch: pytest.MonkeyPatch
):
    for name in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
        monkeypatch.setenv(name, disk.environment[name])
    keep(disk.base / "state", FLOOR)
    persistent.up("service-5ms", disk.base / "b", disk.mount, time_scale=500)
    persistent.down(disk.mount)
    monkeypatch.setattr(fidelity_path, "PATH_LIMIT", 1e-7)
    with pytest.raises(
        BadInput, match=r"through the kernel takes .* its time_scale must be \d+ or more"
    ):
        persistent.up("service-5ms", disk.base / "b", disk.mount, time_scale=500)
    assert not mounts_at(disk.mount)
    assert not (disk.base / "run" / "standing-disks.json").exists()


def test_any_name_of_a_mount_point_is_usable_or_refused(disk: Command):
    mounts = [disk.base / "x" / "y", disk.base / "x-y", disk.base / "sp ace\nx\\040"]
    mounts.append(disk.base / Path(*["l" * 200] * 3))
    for number, mount in enumerate(mounts):
        mount.mkdir(parents=True)
        backing = disk.base / f"b{number}"
        backing.mkdir()
        disk("up", "none", "--backing", backing, "--mount", mount)
        (mount / "f").write_bytes(b"x" * (number + 1))
        assert (backing / "f").stat().st_size == number + 1
        disk("set", mount, "limits.read=1MB/s")
    status = json.loads(disk("status", "--json"))["disks"]
    assert sorted(d["mount"] for d in status) == sorted(map(str, mounts))
    assert all(d["settings"]["limits"] == {"read_bps": 1e6} for d in status)
    assert "is up at" in disk("up", "none", "--backing", disk.mount, "--mount", mounts[0], status=2)
    for mount in mounts:
        disk("down", mount)
    undecodable = Path(os.fsdecode(os.fsencode(disk.base) + b"/\xff"))
    undecodable.mkdir()
    for backing, mount in ((undecodable, disk.mount), (disk.base / "b", undecodable)):
        message = disk("up", "none", "--backing", backing, "--mount", mount, status=2)
        assert "which is not UTF-8; expected text" in message


def test_a_dry_run_shows_a_schedule_without_storing_it(disk: Command):
    disk.up()
    file = disk.base / "s.yaml"
    file.write_text(
        "- {at: 0s, limits.read: 5MB/s}\n- {at: 200ms, limits.read: max}\n"
        "- {at: 0s, phase: load, full: true}\n"
    )
    picture = disk.base / "s.svg"
    table = disk("schedule", disk.mount, file, "--dry-run", "--svg", picture)
    assert "limits.read_bps" in table
    assert picture.read_text().startswith("<svg")
    assert json.loads(disk("events", disk.mount, "--json"))["pending"] == []
    assert "3 changes planned" in disk("schedule", disk.mount, file)
    until(lambda: len(json.loads(disk("events", disk.mount, "--json"))["events"]) >= 2)
    assert "1 change waited" in disk("mark", disk.mount, "load")
    file.write_text("- {at: 1h, read_only: true}\n")
    assert "1 change planned" in disk("schedule", disk.mount, file)
    file.write_text("- {at: 1s, limits.read: 5MB/s}\n- {at: 1s, limits.read: 6MB/s}\n")
    assert "s.yaml:2:" in disk("schedule", disk.mount, file, status=2)


def test_a_power_cut_loses_files_that_were_not_flushed(disk: Command):
    disk.up("--volatile")
    (disk.mount / "lost").write_bytes(b"x" * 10_000)
    assert "1 names" in disk("cut", disk.mount)
    assert os.listdir(disk.mount) == []


def test_a_disk_with_a_dead_server_is_reported_with_a_remedy(disk: Command):
    disk.up()
    pid = json.loads((disk.base / "run" / "standing-disks.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)
    status = disk.failed("status")
    assert f"{disk.mount}: its server is gone (process {pid}" in status
    assert "penstock undo" in status
    assert json.loads(disk.failed("status", "--json")) == {
        "disks": [],
        "dead": [{"mount": str(disk.mount), "pid": pid}],
    }
    for argv in (("status",), ("down",), ("set", "slow.factor=2"), ("cut",)):
        message = disk(argv[0], disk.mount, *argv[1:], status=2)
        assert "is gone" in message
        assert "penstock undo" in message
    commands.run(
        [sys.executable, "-m", "penstock", "undo"], env=disk.environment, check=True, timeout=60
    )
    assert disk("status") == "No disk is up.\n"


def test_a_disk_that_another_program_unmounted_is_reported_with_a_remedy(disk: Command):
    disk.up()
    (disk.mount / "f").write_bytes(b"x")
    assert [d["mounted"] for d in json.loads(disk("status", "--json"))["disks"]] == [True]
    subprocess.run(["umount", disk.mount], check=True)
    status = disk.failed("status")
    assert f"{disk.mount}: another program has unmounted it" in status
    assert f"penstock disk down {disk.mount}" in status.replace("\n", " ")
    for argv in (("status",), ("set", "slow.factor=2"), ("events",), ("cut",)):
        message = disk(argv[0], disk.mount, *argv[1:], status=2)
        assert "has unmounted" in message
        assert "disk down" in message
    assert "has unmounted" in disk.up(status=2)
    disk("down", disk.mount)  # programs on the file system below do not use the disk
    assert disk("status") == "No disk is up.\n"
    disk.up()
    assert (disk.mount / "f").read_bytes() == b"x"


def test_a_disk_in_use_is_stopped_only_with_force(disk: Command):
    disk.up()
    wait = ["tail", "-f", "/dev/null"]
    inside = subprocess.Popen(wait, cwd=disk.mount)
    with open(disk.mount / "f", "w") as file:
        writer = subprocess.Popen(wait, stdout=file)
    mapped = [sys.executable, "-c", MAPPED, str(disk.mount / "f")]
    holder = subprocess.Popen(mapped, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"mapped\n"
    programs = [inside, writer, holder]
    try:
        message = disk("down", disk.mount, status=1)
        for program in programs:
            assert f"(process {program.pid})" in message
        assert "tail (process" in message
        assert "--force" in message
        assert mounts_at(disk.mount)
        for program in programs[1:]:
            program.kill()
            program.wait()
        message = disk("down", disk.mount, status=1)
        assert f"tail (process {inside.pid})" in message
        assert message.count("(process") == 1
        disk("down", disk.mount, "--force")
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert not mounts_at(disk.mount)


MAPPED = """
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
os.ftruncate(fd, 4096)
held = mmap.mmap(fd, 4096, mmap.MAP_SHARED)
os.close(fd)
print("mapped", flush=True)
time.sleep(60)
"""


def test_status_shows_only_active_changes(disk: Command):
    directories = ("--backing", disk.base / "b", "--mount", disk.mount)
    disk("up", "service-5ms", *directories, "--time-scale", "500")
    disk("set", disk.mount, "slow.factor=10", "limits.write_iops=100IOPS")
    (status,) = json.loads(disk("status", "--json"))["disks"]
    assert status["time_scale"] == 500
    assert status["active"] == ["limits.write_iops", "slow"]
    table = disk("status")
    assert "service-5ms at 1/500 speed" in table
    assert "limits.write_iops=100 IOPS, slow.factor=10" in table
    disk("set", disk.mount, "slow.factor=max", "limits.write_iops=max")
    assert json.loads(disk("status", "--json"))["disks"][0]["active"] == []
    assert "in force: nothing with a profile" in disk("events", disk.mount)
    assert "slow.factor" not in disk("status")
    disk("set", disk.mount, "credits={iops: {baseline: 100, burst: 3000, capacity: 1000}}")
    assert "1,000 requests of credit left" in disk("status")


def test_programs_and_files_with_undecodable_names_are_reported(disk: Command):
    disk.up()
    path = os.fsencode(disk.mount) + b"/a\x0c\xc2\x85\xff\nb"
    Path(os.fsdecode(path)).write_bytes(b"x")
    # prctl(2), PR_SET_NAME: a name that is not UTF-8 and clears the screen
    rename = f"import ctypes; ctypes.CDLL(None).prctl(15, {bytes([0xFF])!r} + b'\\x1b[2J', 0, 0, 0)"
    program = [sys.executable, "-c", f"{rename}\n{MAPPED}", path]
    holder = subprocess.Popen(program, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"mapped\n"
        message = disk("down", disk.mount, status=1)
        assert f"(process {holder.pid})" in message
        assert "\x1b" not in message
        assert "\\x1b[2J" in message
    finally:
        holder.kill()
        holder.wait()
    disk("down", disk.mount)
