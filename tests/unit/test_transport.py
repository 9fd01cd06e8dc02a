"""The transports of emulated disks: the choice, and restoration of the kernel's setting."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.emulate.disks import transport
from penstock.emulate.disks.floor import HostFloor
from penstock.emulate.disks.transport import DEVICE, IO_URING, VARIABLE, locked, offer, withdraw
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.profile import load_profile, nearest_honest_time_scale

SLOW = HostFloor(
    service_floor_ns=20e3,
    read_bps=2e9,
    write_bps=2e9,
    iops=100e3,
    loop_service_ns=60e3,
    loaded_iops=40e3,
    flushed_iops=10e3,
)
FAST = replace(SLOW, loaded_iops=80e3, flushed_iops=20e3, loop_service_ns=61e3)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "enable_uring"
    path.write_text("N\n")
    monkeypatch.setattr(transport, "SETTING", path)
    return path


def test_the_faster_transport_is_chosen_and_the_environment_overrides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    nvme, slow_disk = load_profile("nvme"), load_profile("hdd-7200")
    assert SLOW.transport(nvme) == DEVICE
    both = replace(SLOW, io_uring=FAST)
    assert both.transport(nvme) == both.transport(slow_disk) == IO_URING
    assert both.of(nvme) == FAST
    assert nearest_honest_time_scale(nvme, both) == nearest_honest_time_scale(nvme, FAST)
    assert replace(FAST, io_uring=SLOW).transport(nvme) == DEVICE
    # a transport with slower large requests is not chosen for a profile that they limit
    assert replace(SLOW, io_uring=replace(FAST, read_bps=1e8)).transport(nvme) == DEVICE
    monkeypatch.setenv(VARIABLE, DEVICE)
    assert both.transport(nvme) == DEVICE
    assert both.of(nvme) == both
    monkeypatch.setenv(VARIABLE, "rdma")
    with pytest.raises(BadInput, match=r"^\$PENSTOCK_TRANSPORT: found 'rdma'; expected device or"):
        both.transport(nvme)


def test_a_transport_that_the_kernel_lacks_is_refused(
    setting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(transport, "_NO_RINGS", setting.with_name("none"))
    assert transport.missing() == ""
    setting.with_name("none").write_text("2\n")
    assert "io_uring is disabled" in transport.missing()
    setting.unlink()
    with pytest.raises(BadInput, match=r"--transport: found io_uring, but this kernel has no FUSE"):
        transport.require(IO_URING)
    with pytest.raises(BadInput, match=r"--transport: found 'ring'; expected device or io_uring"):
        transport.require("ring")


def test_the_setting_is_restored(setting: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with locked():
        entry = offer(journal)
        assert setting.read_text() == "Y"
        assert [e.old for e in journal.open_entries()] == ["N"]
        assert offer(journal) is None
        withdraw(None, journal)
        assert setting.read_text() == "Y"
        withdraw(entry, journal)
    assert setting.read_text().strip() == "N"
    assert journal.open_entries() == []


def test_undo_restores_the_setting_of_a_killed_command(setting: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    offer(journal)
    undo(journal, own=True)
    assert setting.read_text().strip() == "N"
    assert journal.open_entries() == []


def test_a_refused_change_leaves_nothing(
    setting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, text: str) -> int:
        raise PermissionError(1, "Operation not permitted")

    journal = Journal(tmp_path / "journal")
    monkeypatch.setattr(transport.Path, "write_text", refused)
    with pytest.raises(PenstockError, match="enable_uring: Operation not permitted"):
        offer(journal)
    assert journal.open_entries() == []


def test_one_command_at_a_time_changes_the_setting(setting: Path) -> None:
    entered = threading.Event()

    def other() -> None:
        with locked():
            entered.set()

    with locked():
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.2)
    thread.join(60)
    assert entered.is_set()
