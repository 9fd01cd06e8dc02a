"""Emulated disks on this host: mounts, fio, and a planted failure for each check."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock import _native as native
from penstock.analyse.fidelity.fidelity import is_valid
from penstock.analyse.fidelity.fidelity_log import columns, schedule
from penstock.emulate.disks.request_log import read_disk_log
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts, mounts_at
from penstock.host.storage.residency import drop_file_cache
from penstock.profile.load import load_profile
from tests.integration.disk_bench import HOST, Bench, flat, one_bench  # noqa: F401 - a fixture

pytestmark = HOST
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
MIB = 1 << 20


def fio(**options: Any) -> dict[str, Any]:
    arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
    result = subprocess.run(
        ["fio", "--name=t", "--output-format=json", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]


def first_valid(attempt, tries: int = 3):
    """Result and certificate of the first attempt with a valid certificate.

    Skips if other load of the host made all attempts invalid.
    """
    reason = ""
    for _ in range(tries):
        result, certificate = attempt()
        valid, reason = is_valid(certificate)
        if valid:
            return result, certificate
        verdicts = set(certificate["verdict"].to_pylist())
        assert verdicts <= {"host-saturated", "too-short"}, reason
    pytest.skip(f"busy host: {reason}")


def metric(certificate: pa.Table, name: str) -> dict[str, Any]:
    return next(r for r in certificate.to_pylist() if r["metric"] == name)


# The file system


def test_names_attributes_and_data_pass_through(bench: Bench):
    bench.up(flat(0.0))
    m, b = bench.mount, bench.backing
    (m / "a").write_bytes(b"one")
    os.chmod(m / "a", 0o640)
    os.chown(m / "a", 12345, 54321)
    os.utime(m / "a", ns=(1_000_000_000_123_456_789, 2_000_000_000_987_654_321))
    status = os.stat(b / "a")
    assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o640, 12345, 54321)
    assert (status.st_atime_ns, status.st_mtime_ns) == (
        1_000_000_000_123_456_789,
        2_000_000_000_987_654_321,
    )
    os.link(m / "a", m / "hard")
    os.symlink("a", m / "soft")
    os.mkdir(m / "dir")
    os.rename(m / "a", m / "dir" / "b")
    assert sorted(os.listdir(m)) == ["dir", "hard", "soft"]
    assert os.readlink(m / "soft") == "a"
    assert (m / "dir" / "b").read_bytes() == b"one"
    assert os.stat(m / "hard").st_nlink == 2
    os.truncate(m / "hard", 1)
    assert (b / "dir" / "b").read_bytes() == b"o"
    os.setxattr(m / "hard", "user.k", b"v")
    assert os.listxattr(m / "hard") == ["user.k"]
    assert os.getxattr(b / "hard", "user.k") == b"v"
    os.mkfifo(m / "pipe")
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(m / "dir")
    shutil.rmtree(m / "dir")
    assert sorted(os.listdir(b)) == ["hard", "pipe", "soft"]
    assert os.statvfs(m).f_blocks == os.statvfs(b).f_blocks


def test_times_before_1970_pass_through(bench: Bench):
    bench.up(flat(0.0))
    (bench.mount / "f").write_bytes(b"")
    early = (-1_500_000_000, -2_999_999_999)
    os.utime(bench.mount / "f", ns=early)
    status = os.stat(bench.backing / "f")
    assert (status.st_atime_ns, status.st_mtime_ns) == early


def test_an_unlinked_open_file_remains_usable(bench: Bench):
    bench.up(flat(0.0))
    with open(bench.mount / "gone", "w+b", buffering=0) as file:
        file.write(b"x" * 100_000)
        os.unlink(bench.mount / "gone")
        os.fsync(file.fileno())
        assert not (bench.backing / "gone").exists()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert os.pread(file.fileno(), 200_000, 0) == b"x" * 100_000
        os.ftruncate(file.fileno(), 10)
        assert os.fstat(file.fileno()).st_size == 10


def test_files_belong_to_their_creators(bench: Bench):
    with (
        tempfile.TemporaryDirectory() as directory
    ):  # other users cannot traverse pytest's directories
        os.chmod(directory, 0o755)
        mount = Path(directory)
        bench.server.add("open", mount, bench.backing, flat(0.0))
        try:
            _create_as_nobody(mount, bench.backing)
        finally:
            bench.server.remove("open")


def test_files_have_setuid_and_setgid_as_on_a_local_file_system(bench: Bench):
    bench.up(flat(0.0))
    m, b = bench.mount, bench.backing
    umask = os.umask(0)
    try:
        os.close(os.open(m / "created", os.O_CREAT | os.O_WRONLY, 0o6751))
        os.mknod(m / "made", 0o104755)
    finally:
        os.umask(umask)
    assert [os.stat(b / name).st_mode for name in ("created", "made")] == [0o106751, 0o104755]
    os.truncate(m / "created", 1)
    assert os.stat(m / "created").st_mode == 0o106751  # root may
    # another user's truncation removes setuid and setgid
    script = "import os; os.setgid(7); os.setuid(7); os.ftruncate({fd}, 0)"
    os.chmod(m / "created", 0o6777)
    fd = os.open(m / "created", os.O_WRONLY)
    subprocess.run(
        [sys.executable, "-c", script.format(fd=fd)], check=True, pass_fds=[fd], timeout=60
    )
    os.close(fd)
    assert os.stat(m / "created").st_mode == os.stat(b / "created").st_mode == 0o100777


def _create_as_nobody(mount: Path, backing: Path) -> None:
    os.chmod(mount, 0o777)
    script = (
        f"import os; m={str(mount)!r}; open(m+'/f','w').write('x'); os.mkdir(m+'/d');"
        "open(m+'/d/g','w').write('y'); print(open(m+'/f').read())"
    )
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    subprocess.run(["/usr/bin/python3", "-c", script], check=True, cwd="/", **nobody)
    owners = {(os.stat(p).st_uid, os.stat(p).st_gid) for p in backing.rglob("*")}
    assert owners == {(65534, 65534)}
    os.chmod(mount / "f", 0o600)
    os.chown(mount / "f", 0, 0)
    refused = subprocess.run(
        ["/usr/bin/python3", "-c", f"open({str(mount / 'f')!r})"], cwd="/",
        capture_output=True, text=True, **nobody,
    )  # fmt: skip
    assert "Permission denied" in refused.stderr


def test_rename_without_replacing_and_exchanging(bench: Bench):
    bench.up(flat(0.0))
    (bench.mount / "a").write_text("a")
    (bench.mount / "b").write_text("b")
    libc = ctypes.CDLL(None, use_errno=True)
    names = [os.fsencode(bench.mount / n) for n in "ab"]
    assert libc.renameat2(-100, names[0], -100, names[1], 1) == -1
    assert ctypes.get_errno() == 17
    assert libc.renameat2(-100, names[0], -100, names[1], 2) == 0
    assert (bench.mount / "a").read_text() == "b"


def test_mapped_buffered_and_direct_see_one_file(bench: Bench):
    bench.up(flat(0.0))
    path = bench.mount / "f"
    with open(path, "w+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, MIB)
        with mmap.mmap(file.fileno(), MIB) as mapped:
            mapped[5000:5005] = b"hello"
            mapped.flush()
        assert os.pread(file.fileno(), 5, 5000) == b"hello"
    page = mmap.mmap(-1, 4096)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        assert os.preadv(direct, [page], 4096) == 4096
        assert page[904:909] == b"hello"
        page[:5] = b"12345"
        assert os.pwritev(direct, [page], 0) == 4096
    finally:
        os.close(direct)
    assert path.read_bytes()[:5] == b"12345"
    with open(path, "r+b", buffering=0) as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 0


def test_a_tree_copied_through_the_mount_is_the_same(bench: Bench):
    bench.up(flat(0.0))
    source = Path(native.__file__).parent / "host"
    shutil.copytree(source, bench.mount / "copy", symlinks=True)
    result = subprocess.run(["diff", "-r", source, bench.backing / "copy"], capture_output=True)
    assert result.returncode == 0, result.stdout[:500]


# Counters, log and control


def union_ns(log: pd.DataFrame) -> float:
    """Time with at least one request at the device; a request arrives before the server reads it."""
    arrival = log["t_ns"] - log["compensation_ns"]
    earlier = log["done_ns"].cummax().shift(fill_value=0)
    return float((log["done_ns"] - arrival.clip(lower=earlier)).clip(lower=0).sum())


def test_requests_are_counted_and_logged_one_by_one(bench: Bench):
    profile = flat(0.001)
    bench.up(profile)
    path = bench.file("f", 4 * MIB)
    prime = 211
    page = mmap.mmap(-1, 4096)
    with bench.logged(profile) as run:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        for i in range(prime):
            os.preadv(fd, [page], 4096 * ((i * 97) % 1024))
        for i in range(7):
            os.pwritev(fd, [page], 4096 * i)
        os.fsync(fd)
        os.close(fd)
    stats, table = run["stats"], run["requests"]
    assert (stats["reads"], stats["writes"], stats["flushes"]) == (prime, 7, 1)
    assert (stats["read_bytes"], stats["written_bytes"]) == (prime * 4096, 7 * 4096)
    assert stats["read_service_ns"] == prime * 1_000_000
    assert stats["lost_records"] == 0
    frame = table.to_pandas()
    assert stats["busy_ns"] == pytest.approx(union_ns(frame), rel=0.01)
    assert stats["busy_ns"] >= 0.97 * (prime + 7 + 1) * 1_000_000
    assert frame["op"].value_counts().to_dict() == {"read": prime, "write": 7, "flush": 1}
    assert set(frame["file"].astype(str)) == {"f"}
    reads = frame[frame["op"] == "read"]
    assert list(reads["offset_bytes"]) == [4096 * ((i * 97) % 1024) for i in range(prime)]
    expected = [native.disk_device_offset("f", o) for o in reads["offset_bytes"]]
    assert list(reads["device_offset_bytes"]) == expected
    assert (frame["done_ns"] >= frame["due_ns"]).all()


def test_the_simulator_samples_the_same_service_times(bench: Bench):
    overhead = {"overhead": {"kind": "lognormal", "mean_s": 0.001, "sigma": 0.6}}
    both = {"sequential": overhead, "random": overhead}
    profile = flat(0.0, read=both, write=both)
    bench.up(profile, seed=11)
    path = bench.file("some file", MIB)
    page = mmap.mmap(-1, 4096)
    with bench.logged(profile) as run:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for i in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5):
            os.preadv(fd, [page], 4096 * i)
        os.close(fd)
    offsets = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], np.uint64) * 4096
    n = len(offsets)
    device = np.array([native.disk_device_offset("some file", int(o)) for o in offsets], np.uint64)
    simulated = native.station_serve(
        profile, 11, np.arange(n, dtype=np.uint64) * 10**9, np.zeros(n, np.uint8), device,
        np.full(n, 4096, np.uint64),
    )  # fmt: skip
    service_ns = np.frombuffer(simulated["service_ns"], np.uint64)
    assert run["requests"]["service_ns"].to_pylist() == service_ns.tolist()
    assert len(set(service_ns.tolist())) > 5


def test_reads_past_the_end_of_a_file_cost_only_its_bytes(bench: Bench):
    """The kernel requests complete pages and reads ahead; a limit counts only bytes of the file."""
    profile = flat(0.0005, limits={"read_bps": 100_000.0})
    bench.up(profile)
    sizes = [100 + 41 * i for i in range(20)] + [10_000]
    paths = [bench.file(f"f{i}", size) for i, size in enumerate(sizes)]
    with bench.logged(profile) as run:
        assert [len(path.read_bytes()) for path in paths] == sizes
    assert sum(run["requests"]["size_bytes"].to_pylist()) == sum(sizes)
    logged = columns(run["requests"], 0.0)
    simulated = schedule(logged, profile, run["stats"]["seed"])
    assert np.abs(simulated.done - logged.due).max() < 1000
    assert simulated.took.sum() < 1.2e9 * sum(sizes) / 100_000


def test_the_statistics_page_and_the_socket_agree(bench: Bench):
    bench.up(flat(0.0))
    (bench.mount / "f").write_bytes(b"x" * 70_000)
    subprocess.run(["sync", "-f", bench.mount], check=True)
    page = np.fromfile(bench.server.disks["d"].stats_file, "<u8")
    stats = bench.server.stats("d")
    assert page[0].tobytes() == b"PKDISK01"
    assert page[1] % 2 == 0
    assert (page[4], page[7]) == (stats["writes"], stats["written_bytes"])
    assert stats["written_bytes"] >= 70_000


def test_the_log_is_switched_and_a_torn_tail_dropped(bench: Bench, tmp_path: Path):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    first, second = tmp_path / "one", tmp_path / "two"
    bench.server.log("d", first)
    path.read_bytes()
    bench.server.log("d", second)
    drop_file_cache(path)
    path.read_bytes()
    bench.server.log("d", None)
    drop_file_cache(path)
    path.read_bytes()
    first_log, second_log = read_disk_log(first), read_disk_log(second)
    assert sum(first_log["size_bytes"].to_pylist()) == MIB
    assert sum(second_log["size_bytes"].to_pylist()) == MIB
    with open(second, "ab") as log:
        log.write(b"\1" * 79)
    assert read_disk_log(second).num_rows == second_log.num_rows


def test_the_profile_of_a_disk_in_use_is_changed(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    page = mmap.mmap(-1, 4096)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    bench.server.set("d", flat(0.02))
    bench.server.reset("d")
    start = time.monotonic()
    os.preadv(fd, [page], 0)
    assert time.monotonic() - start >= 0.0195
    os.close(fd)
    assert bench.server.stats("d")["read_service_ns"] == 20_000_000


def test_unsuitable_directories_are_refused(bench: Bench):
    with pytest.raises(BadInput, match="does not exist"):
        bench.server.add("d", bench.base / "nowhere", bench.backing, flat(0.0))
    (bench.base / "file").write_text("")
    with pytest.raises(BadInput, match="not a directory"):
        bench.server.add("d", bench.base / "file", bench.backing, flat(0.0))
    with pytest.raises(PenstockError, match="would hide it"):
        bench.server.add("d", bench.backing, bench.backing, flat(0.0))
    bench.up(flat(0.0))
    with pytest.raises(PenstockError, match="already"):
        bench.server.add("e", bench.mount, bench.backing, flat(0.0))
    with pytest.raises(PenstockError, match="no disk"):
        bench.server.stats("nosuch")


# Stops and failures


def test_a_busy_disk_is_unmounted_lazily(bench: Bench):
    bench.up(flat(0.0))
    with open(bench.mount / "f", "w+b", buffering=0) as file:
        file.write(b"abc")
        bench.server.remove("d")
        assert not mounts_at(bench.mount)
        assert os.pread(file.fileno(), 3, 0) == b"abc"
    assert (bench.backing / "f").read_bytes() == b"abc"


def test_sigterm_unmounts(bench: Bench):
    bench.up(flat(0.0))
    os.kill(bench.server.daemon.pid, 15)
    deadline = time.monotonic() + 60
    while mounts_at(bench.mount) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not mounts_at(bench.mount)


def test_the_owners_death_unmounts(tmp_path: Path):
    for name in ("mount", "backing"):
        (tmp_path / name).mkdir()
    script = f"""
import os
from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
server = DiskServer(Journal({str(tmp_path / "journal")!r}), {str(tmp_path / "state")!r})
server.add("d", {str(tmp_path / "mount")!r}, {str(tmp_path / "backing")!r}, {flat(0.0)!r})
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    deadline = time.monotonic() + 60
    while mounts_at(tmp_path / "mount") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not mounts_at(tmp_path / "mount")
    undo(Journal(tmp_path / "journal"))


def test_undo_finds_the_mount_of_a_killed_server(tmp_path: Path):
    for name in ("mount", "backing"):
        (tmp_path / name).mkdir()
    script = f"""
import os, signal
from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
server = DiskServer(Journal({str(tmp_path / "journal")!r}), {str(tmp_path / "state")!r})
server.add("d", {str(tmp_path / "mount")!r}, {str(tmp_path / "backing")!r}, {flat(0.0)!r})
os.kill(server.daemon.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    remaining = [m for m in mounts() if m.point == str(tmp_path / "mount")]
    assert [m.source.partition(":")[0] for m in remaining] == ["penstock"]
    undo(Journal(tmp_path / "journal"))
    assert not mounts_at(tmp_path / "mount")


# Speed


@pytest.mark.timed
@needs_fio
@pytest.mark.parametrize("case", ["read", "direct write", "buffered write"])
def test_twenty_mib_per_second(bench: Bench, case: str):
    profile = load_profile("rate-20mib").json
    bench.up(profile)
    path = bench.file("f", 60 * MIB)

    def attempt():
        drop_file_cache(path)
        options: dict[str, Any] = {"filename": path, "size": "60m", "bs": "128k"}
        if case == "read":
            options |= {"rw": "read"}
        elif case == "direct write":
            options |= {"rw": "write", "direct": 1, "bs": "64k", "ioengine": "psync"}
        else:
            options |= {"rw": "write", "end_fsync": 1}
        with bench.logged(profile) as run:
            job = fio(**options)
        log = run["requests"].to_pandas()
        span_s = (log.done_ns.max() - (log.t_ns - log.compensation_ns).min()) * 1e-9
        return (job, log.size_bytes.sum() / span_s), run["certificate"]

    (job, overall_bps), certificate = first_valid(attempt)
    rate = metric(certificate, "rate")
    # from the first request to the last answer, including pauses of the client
    assert overall_bps == pytest.approx(20 * MIB, rel=0.01)
    assert rate["ratio"] == pytest.approx(1.0, abs=0.01)
    direction = job["read" if case == "read" else "write"]
    assert direction["io_bytes"] == 60 * MIB


@pytest.mark.timed
@needs_fio
@pytest.mark.parametrize("depth", [1, 8])
def test_five_milliseconds(bench: Bench, depth: int):
    profile = load_profile("service-5ms").json
    bench.up(profile)
    path = bench.file("f", 16 * MIB)

    def attempt():
        with bench.logged(profile) as run:
            job = fio(
                filename=path, size="16m", bs="4k", rw="randread", direct=1, ioengine="libaio",
                iodepth=depth, runtime=3, time_based=1,
            )  # fmt: skip
        return job, run["certificate"]

    job, certificate = first_valid(attempt)
    percentiles = job["read"]["clat_ns"]["percentile"]
    # One server, a closed loop of `depth` clients: each waits for the others.
    assert percentiles["50.000000"] == pytest.approx(depth * 5e6, rel=0.15)
    assert metric(certificate, "rate")["asked"] == pytest.approx(4096 / 0.005, rel=1e-3)
    assert metric(certificate, "time")["ratio"] == pytest.approx(1.0, abs=0.03)


@pytest.mark.timed
@pytest.mark.parametrize("slow_by", [0.05])
def test_a_planted_slow_disk_is_detected(bench: Bench, slow_by: float):
    profile = flat(0.003)
    bench.up(profile, plant={"slow_by": slow_by})
    path = bench.file("f", MIB)
    page = mmap.mmap(-1, 4096)
    with bench.logged(profile) as run:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for i in range(400):
            os.preadv(fd, [page], 4096 * ((i * 37) % 256))
        os.close(fd)
    valid, reason = is_valid(run["certificate"])
    assert not valid
    assert "rate is −" in reason
    assert metric(run["certificate"], "rate")["ratio"] < 1 / (1 + slow_by) + 0.002
    # The counters have the sampled service times, without the planted delay.
    assert run["stats"]["read_service_ns"] == 400 * 3_000_000


@pytest.mark.timed
def test_an_overloaded_host_makes_the_run_invalid(bench: Bench):
    profile = flat(0.001)
    bench.up(profile)
    path = bench.file("f", MIB)
    page = mmap.mmap(-1, 4096)
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        with bench.logged(profile) as run:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            for i in range(700):
                os.preadv(fd, [page], 4096 * ((i * 37) % 256))
            os.close(fd)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    valid, reason = is_valid(run["certificate"])
    assert not valid
    assert "outside the run" in reason
    assert metric(run["certificate"], "rate")["verdict"] == "host-saturated"
    assert set(run["certificate"]["verdict"].to_pylist()) == {"host-saturated"}


@pytest.mark.timed
def test_processors_stay_awake_while_requests_come_and_no_longer(bench: Bench) -> None:
    """An open descriptor of the server keeps the processors awake; the kernel drops it with the process."""
    interface = Path("/dev/cpu_dma_latency")
    if not interface.exists():
        pytest.skip("kernel: no PM QoS interface")

    def awake() -> bool:
        fds = Path(f"/proc/{bench.server.daemon.pid}/fd").iterdir()
        return any(os.readlink(fd) == str(interface) for fd in fds)

    bench.up(flat(1e-3), calibrate=False)
    path = bench.file("f", 1 << 20)
    assert not awake()
    with open(path, "rb", buffering=0) as file:
        file.read(4096)
    assert awake()
    assert bench.server.stats("d")["kept_awake"] is True
    deadline = time.monotonic() + 30
    while awake() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not awake()
    with open(path, "rb", buffering=0) as file:
        file.seek(512 << 10)
        file.read(4096)
    assert awake()
