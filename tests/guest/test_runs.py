"""Runs in a guest: its channel and its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.parts.guests.guest import MOST_OUTPUT_BYTES, Guest
from penstock.spec.guest import GuestDisk, GuestSpec
from tests.guest import machine

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups"),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guest")


@pytest.fixture(scope="module")
def guest(place: Path) -> Iterator[Guest]:
    (place / "hello").write_text("from outside\n")
    journal = Journal(place / "journal")
    spec = GuestSpec(
        modules=("ext4", "crc32c_generic"), programs=("mkfs.ext4", "stat"), memory_bytes=512 << 20,
        disks=(GuestDisk(32 << 20, rate_bps=4_000_000),), files=(("hello", place / "hello"),),
    )  # fmt: skip
    up = Guest(spec, journal)
    assert up.cgroup is not None
    groups = up.cgroup.directories
    yield up
    up.stop()
    assert journal.open_entries() == []
    assert not any(g.exists() for g in groups)


def test_a_command_has_status_outputs_and_environment(guest: Guest) -> None:
    answer = guest.run('cat hello; echo "$A" >&2; exit 7', 60, {"A": "it's a 'b' \"c\" $d"})
    assert (answer.status, answer.stdout) == (7, b"from outside\n")
    assert answer.stderr == b"it's a 'b' \"c\" $d\n"
    assert guest.run("grep -c '^virtio_blk ' /proc/modules", 60).stdout == b"1\n"


def test_outputs_are_bounded_and_a_command_without_end_is_ended(guest: Guest) -> None:
    answer = guest.run("head -c 3000000 /dev/zero", 60)
    assert (answer.status, len(answer.stdout)) == (0, MOST_OUTPUT_BYTES)
    answer = guest.run("echo begun; sleep 600", 20)
    assert answer.timed_out
    assert answer.stdout == b"begun\n"
    assert guest.run("pidof sleep", 60).status == 1  # no process of a stopped shell is left
    assert guest.run("echo next", 60).stdout == b"next\n"


def test_a_disk_is_limited_to_the_requested_rate(guest: Guest) -> None:
    # 16 MiB at QEMU's limit of 4 MB/s; without the limit, a tenth of that time
    line = "mkfs.ext4 -q -F /dev/vdb && sync; a=${EPOCHREALTIME/./}; "
    line += (
        "dd if=/dev/vdb of=/dev/null bs=1M count=16 2>/dev/null; echo $((${EPOCHREALTIME/./} - a))"
    )
    took_s = int(guest.run(line, 120).stdout) / 1e6
    assert took_s >= 0.7 * 16 * (1 << 20) / 4e6


def test_a_dead_guest_is_reported(place: Path, guest: Guest) -> None:
    journal = Journal(place / "other")
    other = Guest(GuestSpec(memory_bytes=256 << 20), journal)
    try:
        with pytest.raises(PenstockError, match="the guest has died"):
            other.run("echo o > /proc/sysrq-trigger; sleep 60", 60)
    finally:
        other.stop()
    assert journal.open_entries() == []
    assert guest.alive  # only the other one died


def test_a_missing_program_is_named(place: Path) -> None:
    with pytest.raises(PenstockError, match="no-such-program"):
        Guest(GuestSpec(programs=("no-such-program",)), Journal(place / "none"))
