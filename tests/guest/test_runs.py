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


def test_a_command_has_its_status_its_outputs_and_its_words(guest: Guest) -> None:
    told = guest.run('cat hello; echo "$A" >&2; exit 7', 60, {"A": "it's a 'b' \"c\" $d"})
    assert (told.status, told.stdout) == (7, b"from outside\n")
    assert told.stderr == b"it's a 'b' \"c\" $d\n"
    assert guest.run("grep -c '^virtio_blk ' /proc/modules", 60).stdout == b"1\n"


def test_outputs_are_bounded_and_a_command_without_end_is_ended(guest: Guest) -> None:
    told = guest.run("head -c 3000000 /dev/zero", 60)
    assert (told.status, len(told.stdout)) == (0, MOST_OUTPUT_BYTES)
    told = guest.run("echo begun; sleep 600", 3)
    assert told.timed_out
    assert told.stdout == b"begun\n"
    assert guest.run("pidof sleep", 60).status == 1  # a shell that was ended leaves none behind
    assert guest.run("echo next", 60).stdout == b"next\n"


def test_a_disk_is_as_slow_as_it_was_asked_to_be(guest: Guest) -> None:
    # 8 MB at 4 MB/s: that it takes its time is what QEMU's limit does; without one it takes a tenth of that
    line = "mkfs.ext4 -q -F /dev/vdb && sync; a=${EPOCHREALTIME/./}; "
    line += (
        "dd if=/dev/vdb of=/dev/null bs=1M count=16 2>/dev/null; echo $((${EPOCHREALTIME/./} - a))"
    )
    took_s = int(guest.run(line, 120).stdout) / 1e6
    assert took_s >= 0.7 * 16 * (1 << 20) / 4e6


def test_a_guest_that_dies_says_so(place: Path, guest: Guest) -> None:
    journal = Journal(place / "other")
    other = Guest(GuestSpec(memory_bytes=256 << 20), journal)
    try:
        with pytest.raises(PenstockError, match="the guest has died"):
            other.run("echo o > /proc/sysrq-trigger; sleep 60", 60)
    finally:
        other.stop()
    assert journal.open_entries() == []
    assert guest.alive  # only that one


def test_a_program_that_this_host_lacks_is_named(place: Path) -> None:
    with pytest.raises(PenstockError, match="no-such-program"):
        Guest(GuestSpec(programs=("no-such-program",)), Journal(place / "none"))
