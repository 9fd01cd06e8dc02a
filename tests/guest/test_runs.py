"""Runs in a guest: its channel, its end, and the published NFS study at its quick size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.parts.guests.guest import MOST_OUTPUT_BYTES, Guest
from penstock.spec.guest import GuestDisk, GuestSpec
from tests.guest import machine

ROOT = Path(__file__).parents[2]
#: what the NFS study carries in, and Debian's package of it
NFS = machine.missing() or [
    p for p in ("mount.nfs", "rpc.nfsd", "rpcbind") if not any(
        (Path(d) / p).exists() for d in ("/sbin", "/usr/sbin")
    )
]  # fmt: skip
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups"),
    pytest.mark.skipif(bool(machine.missing()), reason=f"the guest needs {machine.missing()}"),
]


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    environment.pop("PENSTOCK_ARCHIVE", None)
    return environment


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


@pytest.mark.skipif(bool(NFS), reason=f"the study needs {NFS} (Debian: nfs-kernel-server)")
def test_the_eight_runs_of_the_published_nfs_study(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    line = [sys.executable, ROOT / "studies" / "nfs_wan.py", "--quick", "--json", "-o", tmp_path]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 3, done.stderr + done.stdout
    said = json.loads(done.stdout)
    assert said["runs"]["eight"]["valid"] == 8
    assert all(said["planted"].values())
    results = {c["of"]: c["result"] for c in said["claims"]}
    assert results.pop("point 11") == "met"
    assert set(results.values()) == {"not measured"}  # eight runs say nothing of the full design
    out = tmp_path / "nfs-wan-eight-quick"
    runs = pd.read_parquet(out / "runs.parquet").set_index("run_id")
    trips = {}
    for run_id, row in runs.iterrows():
        place = out / "runs" / str(run_id)
        told = json.loads((place / "stdout.txt").read_text())
        assert told["write"] == pytest.approx(row["write"], rel=1e-3)
        trip_ms = float((place / "hook-verify.txt").read_text())
        trips.setdefault(row["latency"], []).append(trip_ms)
    # netem: twice the one-way delay at the least, which a link without it would not reach
    assert min(trips["remote"]) >= 2 * 13.9
    assert max(trips["local"]) < 13.9
    # a run that the host spoilt is repeated, and keeps its place in the order no longer
    attempts = [p for p in ("r001.attempt1", "r001") if (out / "runs" / p).exists()]
    first = json.loads((out / "runs" / attempts[0] / "manifest.json").read_text())
    assert first["actions"] == ["redeploy", "reformat", "restart", "remount"]
    assert first["place"]["guest"]["kernel"]
    second = json.loads((out / "runs" / "r002" / "manifest.json").read_text())
    assert second["actions"] == []  # no factor asks for more than its levels
