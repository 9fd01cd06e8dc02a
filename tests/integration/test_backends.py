"""Back ends of emulated disks on this host: fuse, and throttled loop devices if there is blkio."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.backends import Backends, Place, UpDisk, image
from penstock.emulate.backends.choice import missing_here
from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.blockdev import device_of
from penstock.host.storage.mounts import mounts_at
from penstock.host.storage.residency import drop_file_cache
from penstock.plugins import DISK_BACKENDS
from penstock.profile.load import load_profile
from penstock.spec.cluster import DiskSpec, Limits

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting in tests needs root"),
]
MIB = 1 << 20
usable = [n for n, lacks in missing_here().items() if not lacks] if os.geteuid() == 0 else []
blkio = pytest.mark.skipif(
    "cgroup1" not in usable, reason="kernel: no blkio throttle or no loop devices"
)


class Bench:
    """Back ends, a control group and directories for disks."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.journal = Journal(base / "journal.jsonl")
        self.backends = Backends(self.journal, base / "state")
        self.group: RunCgroup = create_run_cgroup("backends", None, self.journal)

    def place(self, name: str, **options: Any) -> Place:
        for part in ("mount", "files"):
            (self.base / name / part).mkdir(parents=True, exist_ok=True)
        mount, files = (self.base / name / part for part in ("mount", "files"))
        return Place(f"n1.{name}", mount, files, self.group, **options)

    def up(self, spec: DiskSpec, **options: Any) -> UpDisk:
        return self.backends.up(spec, self.place(spec.name, **options))

    def inside(self, *argv: str) -> str:
        """Run a command in the group; return its output."""
        enter = "".join(f"echo $$ >{p} && " for p in self.group.enter_args())
        command = ["sh", "-c", enter + 'exec "$@"', "sh", *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.backends.stop()
    bench.group.remove()
    assert bench.journal.open_entries() == []
    assert not [m for m in tmp_path.glob("*/mount") if mounts_at(m)]


READ = """
import mmap, os, sys, time
fd, block, n = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), int(sys.argv[2]), int(sys.argv[3])
buffer = mmap.mmap(-1, block)
began = time.monotonic()
for k in range(n):
    assert os.preadv(fd, [buffer], k * block) == block
print(time.monotonic() - began)
"""


def read_duration_s(bench: Bench, path: Path, block: int, count: int) -> float:
    """Time of `count` sequential direct reads of `block` bytes by a process of the group [s]."""
    return float(bench.inside(sys.executable, "-S", "-c", READ, str(path), str(block), str(count)))


def write_file(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.write(os.urandom(size))
        os.fsync(file.fileno())
    return path


def events_of(up: UpDisk, count: int, since_ns: int = 0) -> list[dict[str, Any]]:
    """Scheduled events of a disk planned for `since_ns` or later, once there are `count`."""
    deadline = time.monotonic() + 60
    while len(events := [e for e in up.events() if e["planned_ns"] >= since_ns]) < count:
        assert time.monotonic() < deadline, events
        time.sleep(0.02)
    return events


def test_every_registered_name_is_a_back_end(bench: Bench) -> None:
    for name in DISK_BACKENDS:
        assert bench.backends.backend(name).name == name


def test_a_fuse_disk_has_the_service_times_of_its_profile(bench: Bench) -> None:
    profile = load_profile("service-5ms").to_dict()
    up = bench.up(DiskSpec("data", profile=profile, profile_name="service-5ms"))
    assert up.backend == "fuse"
    assert "service-5ms" in bench.backends.choices["n1.data"].reason
    (bench.base / "spool").mkdir()
    file = write_file(up.mount / "f", 8 * MIB)
    up.begin(bench.base / "spool")
    read_duration_s(bench, file, 4096, 20)
    requests = up.end()["device_requests"]
    assert requests.num_rows == 20
    assert (requests["service_ns"].to_numpy() == 5_000_000).all()
    assert up.stats()["reads"] == 20
    assert up.down()["reads"] == 20
    assert (bench.base / "data" / "files" / "f").stat().st_size == 8 * MIB


def test_limits_of_a_fuse_disk_are_independent_and_change_on_time(bench: Bench) -> None:
    up = bench.up(DiskSpec("data", limits=Limits(read_bps=4e6), size_bytes=256 * MIB))
    assert up.read_back() == Limits(read_bps=4e6)
    applied = up.set_limits({"write_bps": 2e6})
    assert not applied.error
    assert applied.planned_ns <= applied.applied_ns <= applied.verified_ns
    assert up.read_back() == Limits(read_bps=4e6, write_bps=2e6)
    up.set_limits({"read_bps": "max"})
    assert up.read_back() == Limits(write_bps=2e6)
    now = time.monotonic_ns()
    up.schedule([{"at_ns": now + 200_000_000, "patch": {"limits": {"write_bps": None}}}])
    (event,) = events_of(up, 1, since_ns=now + 200_000_000)
    assert event["applied_ns"] >= event["planned_ns"]
    assert up.read_back() == Limits()
    with pytest.raises(BadInput):
        up.set_limits({"write_bps": -1})
    with pytest.raises(PenstockError):
        up.patch({"slow": {"factor": -2}})
    assert up.read_back() == Limits()


def closest_duration_s(
    bench: Bench, file: Path, count: int, expected_s: float
) -> tuple[float, int]:
    """Duration closest to `expected_s` of at most three reads, and the number of reads."""
    times: list[float] = []
    while len(times) < 3 and not any(abs(t / expected_s - 1) <= 0.15 for t in times):
        times.append(read_duration_s(bench, file, 65536, count))
    return min(times, key=lambda t: abs(t - expected_s)), len(times)


@pytest.mark.timed
@blkio
def test_limits_of_v1_are_independent_and_delivered(bench: Bench) -> None:
    up = bench.up(DiskSpec("data", backend="cgroup1", io="direct", size_bytes=64 * MIB))
    file = write_file(up.mount / "f", 8 * MIB)
    assert up.read_back() == Limits()
    assert not up.set_limits({"read_bps": 4e6}).error
    assert up.read_back() == Limits(read_bps=4e6)
    applied = up.set_limits({"write_bps": 2e6})
    assert applied.found["limits"]["read_bps"] == 4_000_000
    assert up.read_back() == Limits(read_bps=4e6, write_bps=2e6)
    assert applied.planned_ns <= applied.applied_ns <= applied.verified_ns
    stats_before = up.stats()
    seconds, reads = closest_duration_s(bench, file, 92, 6_029_312 / 4e6)
    assert seconds == pytest.approx(6_029_312 / 4e6, rel=0.15)
    delivered = up.stats()["read_bytes"] - stats_before["read_bytes"]
    assert delivered == reads * 92 * 65536
    up.set_limits({"read_bps": "max"})
    assert up.read_back() == Limits(write_bps=2e6)
    assert read_duration_s(bench, file, 65536, 92) < 0.75
    # a limit is in force after another one was cleared
    up.set_limits({"read_bps": 8e6})
    seconds, _ = closest_duration_s(bench, file, 122, 122 * 65536 / 8e6)
    assert seconds == pytest.approx(122 * 65536 / 8e6, rel=0.15)


@pytest.mark.timed
@blkio
def test_cached_reads_do_not_reach_a_limited_device(bench: Bench) -> None:
    spec = DiskSpec("data", backend="cgroup1", io="direct", size_bytes=64 * MIB)
    up = bench.up(spec)
    file = write_file(up.mount / "f", 16 * MIB)
    program = "import sys, time; f = open(sys.argv[1], 'rb', buffering=0); b = bytearray(1 << 20)\n"
    program += "t = time.monotonic()\nwhile f.readinto(b): pass\nprint(16 / (time.monotonic() - t))"
    argv = (sys.executable, "-S", "-c", program, str(file))
    unlimited = max(float(bench.inside(*argv)) for _ in range(3))
    up.set_limits({"read_bps": 1e6})
    bytes_before = up.stats()["read_bytes"]
    assert max(float(bench.inside(*argv)) for _ in range(3)) > 0.5 * unlimited
    assert up.stats()["read_bytes"] == bytes_before
    # planted: reads without the cache reach the device
    drop_file_cache(file)
    up.set_limits({"read_bps": "max"})
    bench.inside(*argv)
    assert up.stats()["read_bytes"] > bytes_before


@pytest.mark.timed
@blkio
def test_limits_of_buffered_writes_are_refused_for_v1(bench: Bench) -> None:
    limits = Limits(write_bps=1e6)
    with pytest.raises(BadInput, match="write-back"):
        bench.up(DiskSpec("data", backend="cgroup1", limits=limits))
    assert not mounts_at(bench.base / "data" / "mount")
    unlimited = bench.up(DiskSpec("free", backend="cgroup1", size_bytes=32 * MIB))
    for change in ({"write_bps": 1e6}, {"read_bps": 1e6, "write_iops": 5}):
        with pytest.raises(BadInput, match="write-back"):
            unlimited.set_limits(change)
    with pytest.raises(BadInput, match="write-back"):
        unlimited.schedule([{"at_ns": 0, "patch": {"limits": {"write_bps": 1e6}}}])
    assert unlimited.read_back() == Limits()
    up = bench.up(
        DiskSpec(
            "data", backend="cgroup1", limits=limits, allow_unhonoured=True, size_bytes=64 * MIB
        )
    )
    assert bench.backends.choices["n1.data"].warnings
    (bench.base / "spool").mkdir()
    start = time.monotonic()
    bench.inside("dd", "if=/dev/zero", f"of={up.mount}/f", "bs=1M", "count=16", "status=none")
    file = os.open(up.mount / "f", os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    duration_s = time.monotonic() - start
    assert 100 * (16 * MIB / duration_s) / 1e6 > 130


@blkio
def test_counters_and_scheduled_changes_of_a_throttled_disk(bench: Bench) -> None:
    spec = DiskSpec("data", backend="cgroup1", io="direct", size_bytes=64 * MIB)
    up = bench.up(spec)
    file = write_file(up.mount / "f", 8 * MIB)
    up.set_limits({"read_bps": 4e6})
    (bench.base / "spool").mkdir()
    up.begin(bench.base / "spool")
    now = time.monotonic_ns()
    up.schedule(
        [
            {"at_ns": now + 300_000_000, "patch": {"limits": {"read_bps": 2e6}}},
            {"at_ns": now + 600_000_000, "patch": {"limits": {"read_bps": "max"}}},
        ]
    )
    read_duration_s(bench, file, 65536, 100)
    first, second = events_of(up, 2)
    assert first["found"]["limits"]["read_bps"] == 2_000_000
    assert second["found"]["limits"]["read_bps"] == "max"
    assert all(e["planned_ns"] <= e["applied_ns"] <= e["verified_ns"] for e in (first, second))
    # no kernel accepts this value
    up.schedule([{"at_ns": now, "patch": {"limits": {"read_bps": 2**80}}}])
    assert events_of(up, 3)[2]["error"]
    assert up.read_back() == Limits()
    table = up.end()["throttle_counters"].to_pylist()
    assert sum(r["bytes"] for r in table if r["direction"] == "read") == 100 * 65536
    with pytest.raises(BadInput, match="fuse"):
        up.patch({"slow": {"factor": 2}})


# Timed, as are two tests below: mount namespaces of parallel tests would hold copies of the mount.
@pytest.mark.timed
@blkio
def test_synced_data_survive_and_the_device_is_recorded(bench: Bench) -> None:
    spec = DiskSpec("data", backend="cgroup1", io="direct", size_bytes=32 * MIB, owner=(123, 456))
    up = bench.up(spec)
    write_file(up.mount / "f", 4096)
    status = up.mount.stat()
    assert (status.st_uid, status.st_gid) == (123, 456)
    facts = up.facts()
    assert facts["file_system"] == "ext4"
    assert facts["read_ahead_kib"] == 128
    assert {"kernel", "scheduler", "write_cache", "queue_depth", "mount_options"} <= set(facts)
    content = (up.mount / "f").read_bytes()
    # each path leads to the top device
    (bench.base / "link").symlink_to(up.mount)
    for path in (up.mount, up.mount / "f", bench.base / "link" / "f"):
        device = device_of(path)
        assert device.number == up.device
        assert device.below
        assert device.below[0].endswith("data.ext4")
    with pytest.raises(BadInput, match="expected a path on a block device"):
        device_of("/proc/self")
    up.down()
    second = bench.up(spec)
    assert (second.mount / "f").read_bytes() == content


@blkio
def test_limits_above_the_capability_of_the_device_are_reported(bench: Bench) -> None:
    small = DiskSpec(
        "a", backend="cgroup1", io="direct", size_bytes=32 * MIB, limits=Limits(read_bps=1e6)
    )
    first = bench.up(small)
    capability = first.facts()["capability_bps"]
    assert capability["read"] > 1e6
    assert not [n for n in first.facts()["notes"] if "device-bound" in n]
    huge = Limits(read_bps=4 * capability["read"])
    second = bench.up(
        DiskSpec("b", backend="cgroup1", io="direct", size_bytes=32 * MIB, limits=huge)
    )
    (note,) = [n for n in second.facts()["notes"] if "device-bound" in n]
    assert "read limits of 2 disks" in note
    assert f"does {capability['read'] / 1e6:.0f}" in note


@pytest.mark.timed
@blkio
def test_an_image_that_another_namespace_still_has_mounted_is_not_mounted_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_FREE_WITHIN_S", 0.3)
    spec = DiskSpec("data", backend="cgroup1", io="direct", size_bytes=32 * MIB)
    up = bench.up(spec)
    content = write_file(up.mount / "f", 4096).read_bytes()
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", "echo; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()  # the new namespace has copies of the mounts
    up.down()
    with pytest.raises(PenstockError, match="mounted twice"):
        bench.up(spec)
    holder.communicate(b"\n")
    monkeypatch.undo()
    second = bench.up(spec)
    assert (second.mount / "f").read_bytes() == content


@blkio
def test_files_of_the_directory_are_copied_to_the_disk_and_not_changed(bench: Bench) -> None:
    spec = DiskSpec("data", backend="cgroup1", io="direct", size_bytes=32 * MIB)
    files = bench.place("data").directory
    (files / "sub").mkdir()
    content = write_file(files / "sub" / "f", MIB).read_bytes()
    up = bench.up(spec)
    assert (up.mount / "sub" / "f").read_bytes() == content
    write_file(up.mount / "sub" / "f", 4096)
    up.down()
    assert (files / "sub" / "f").read_bytes() == content
    assert [p.name for p in files.parent.iterdir() if p.suffix == ".ext4"] == []
    write_file(files / "big", 40 * MIB)
    with pytest.raises(PenstockError, match="do not hold the files"):
        bench.up(spec)
    assert [p.name for p in files.parent.iterdir() if p.suffix == ".ext4"] == []


CRASH = """
import os, signal, sys
from pathlib import Path
from penstock.emulate.backends import Backends, Place
from penstock.spec.cluster import DiskSpec, Limits
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
import penstock.emulate.backends.image as image
base, stage = Path(sys.argv[1]), sys.argv[2]
journal = Journal(base / "journal.jsonl")
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if stage == "attached":
    image._mount = die
elif stage == "mounted":
    image._set = die
group = create_run_cgroup("crash", None, journal)
(base / "m").mkdir(); (base / "f").mkdir()
spec = DiskSpec("d", backend="cgroup1", io="direct", size_bytes=32 << 20)
up = Backends(journal, base / "state").up(spec, Place("d", base / "m", base / "f", group))
(up.mount / "synced").write_text("kept")
os.sync()
die()
"""


@pytest.mark.timed
@blkio
@pytest.mark.parametrize("stage", ["attached", "mounted", "up"])
def test_a_killed_owner_leaves_nothing_after_undo(tmp_path: Path, stage: str) -> None:
    result = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), stage])
    assert result.returncode == -9
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.open_entries()
    outcomes = undo(journal)
    assert all(o.outcome in ("undone", "gone") for o in outcomes), outcomes
    assert journal.open_entries() == []
    assert not mounts_at(tmp_path / "m")
    loops = list(Path("/sys/block").glob("loop*/loop/backing_file"))
    assert not [p for p in loops if str(tmp_path) in p.read_text()]
    assert not undo(journal)
    assert (tmp_path / "f" / "d.ext4").exists()
