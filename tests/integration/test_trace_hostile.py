"""Traces under hostile conditions: too many files or requests, kills, and full disks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.bundle import Bundle
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.trace.capture.tracer import Tracer, TraceResult
from penstock.state import state_dir
from tests.integration.tracing import (
    NEEDS_TRACER,
    balanced,
    known_cost,
    of_file,
    trace,
    with_known_cost,
)
from tests.support import commands

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

#: two threads read each file in a different order, and write one byte to it
MANY_FILES = """
import os, random, sys, threading
where, files = sys.argv[1], int(sys.argv[2])
def work(thread):
    draws = random.Random(thread)
    for number in range(files):
        fd = os.open(f"{where}/{number}", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"x", 65535)
        for i in range(100):
            place = i if number % 2 else draws.randrange(128)
            os.pread(fd, 512, 512 * place)
        os.close(fd)
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""


def traced(work: Path, argv: list[str], **options: Any) -> TraceResult:
    """Trace a command in mode pattern."""
    journal = Journal(work / "journal")
    with (
        Tracer(journal, state_dir(), "pattern", **options) as tracer,
        create_run_cgroup("hostile", None, journal) as group,
    ):
        tracer.arm(group)
        assert launch(argv, group).exit_status == 0
        return tracer.disarm()


@pytest.mark.parametrize("streams", [0, 40])
def test_more_sequences_than_the_kernel_counts(tmp_path: Path, streams: int) -> None:
    """No call is lost; sequences counted in the kernel and call by call have equal verdicts."""
    data = tmp_path / "data"
    data.mkdir()
    command = [sys.executable, "-c", MANY_FILES, str(data), "60"]
    result = traced(tmp_path, command, streams=streams)
    stats = result.receipt
    assert stats["lost"] == 0
    assert stats["seen"] == stats["kept"] + stats["filtered"]
    assert (stats["spooled"] > 60 * 100) == bool(streams)
    rows = result.tables["patterns"].to_pylist()
    of_test = [row for row in rows if (row["path"] or "").startswith(f"{data}/")]
    reads = {
        (int(os.path.basename(row["path"])), row["tid"]): row
        for row in of_test
        if row["direction"] == "read"
    }
    threads = {tid for _, tid in reads} - {None}
    assert len(threads) == 2
    for number in range(60):
        assert reads[number, None]["requests"] == 200
        assert reads[number, None]["bytes"] == 200 * 512
        for tid in threads:
            row = reads[number, tid]
            assert row["requests"] == 100
            assert (row["class"] == "consecutive") == bool(number % 2), row["sentence"]
    writes = [row for row in of_test if row["direction"] == "write" and row["tid"] is None]
    assert sum(row["requests"] for row in writes) == 120
    epochs = result.tables["epochs"].to_pylist()
    numbers = {row["file_id"] for row in of_test}
    assert sum(row["requests"] for row in epochs if row["file_id"] in numbers) == 60 * 202


#: an event in the spool (crates/probe/src/layout.rs)
EVENT_BYTES = 48
#: read until the tracer has stored this number of bytes and no more come, kill the tracer of calls or of
#: layers (a child of the parent), read again; exit status 7
KILLER = """
import glob, os, signal, sys, time
path, victim, least_bytes = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
def read(times):
    for i in range(times):
        os.pread(fd, 512, 512 * (i % 64))
read(1000)
spools = glob.glob(os.environ["PENSTOCK_STATE"] + "/spool/trace-*/events")
before, until = -1, time.monotonic() + 60
while time.monotonic() < until:
    stored = sum(map(os.path.getsize, spools))
    if stored >= int(least_bytes) and stored == before:
        break
    before = stored
    time.sleep(0.5)
above = os.getppid()
for pid in open(f"/proc/{above}/task/{above}/children").read().split():
    if open(f"/proc/{pid}/comm").read().strip() == victim:
        os.kill(int(pid), signal.SIGKILL)
        break
else:
    sys.exit("nothing to kill")
read(1000)
sys.exit(7)
"""


#: a number of reads of 512 bytes in one io_submit, and their results
AT_ONCE = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd, count = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
context = ctypes.c_ulong()
assert libc.syscall(206, 8192, ctypes.byref(context)) == 0, ctypes.get_errno()
room = ctypes.create_string_buffer(512)
size = struct.calcsize("QIIHhIQQqQII")
asked = ctypes.create_string_buffer(size * count)
for i in range(count):
    fields = (0, 0, 0, 0, 0, fd, ctypes.addressof(room), 512, 512 * (i % 64), 0, 0, 0)
    struct.pack_into("QIIHhIQQqQII", asked, size * i, *fields)
begin = ctypes.addressof(asked)
pointers = (ctypes.c_ulong * count)(*range(begin, begin + size * count, size))
assert libc.syscall(209, context, ctypes.c_long(count), pointers) == count, ctypes.get_errno()
events = ctypes.create_string_buffer(32 * count)
many = ctypes.c_long(count)
assert libc.syscall(208, context, many, many, events, None) == count, ctypes.get_errno()
"""


@pytest.mark.parametrize("mode", ["trace", "pattern"])
def test_requests_beyond_the_limit_of_one_submission_are_counted_as_lost(
    target: Path, mode: str
) -> None:
    command = (sys.executable, "-c", AT_ONCE, target, "5000")
    document = trace(*command, options=("-m", mode, "--no-layers", "--file", target))
    assert of_file(document, target)["reads"] == 4096
    assert document["lost_events"] == 5000 - 4096
    assert balanced(document)


#: map the same page many times; stop the tracer before the end, so that its buffer stays full
MANY_MAPPINGS = """
import ctypes, mmap, os, signal, sys
path, count, tracer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(path, os.O_RDONLY)
if os.fork() == 0:
    for _ in range(count):
        place = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        ctypes.string_at(place, 1)
    os.kill(tracer, signal.SIGSTOP)
    os._exit(0)
os.wait()
os.kill(tracer, signal.SIGCONT)
"""


def test_lost_mappings_leave_the_coverage_unknown(target: Path, tmp_path: Path) -> None:
    state = with_known_cost(tmp_path / "state")
    journal = Journal(tmp_path / "journal")
    bundle = Bundle.create(tmp_path / "T", {"command": [], "run_id": "r001"})
    with (
        Tracer(journal, state, "trace") as tracer,
        create_run_cgroup("hostile", None, journal) as group,
    ):
        tracer.arm(group)
        argv = [sys.executable, "-c", MANY_MAPPINGS, str(target), "25000", str(tracer.pid)]
        assert launch(argv, group).exit_status == 0
        result = tracer.disarm(bundle)
    lost = result.receipt["presences_lost"]
    assert 0 < lost < 25000
    assert f"{lost:,} pieces were lost" in result.closing
    assert result.tables["mapped"]["coverage"].to_pylist()[0] is None


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.write_bytes(bytes(1 << 20))
    return path


@pytest.mark.parametrize("mode", ["trace", "pattern", "count"])
def test_a_killed_tracer_leaves_the_command_and_its_events(
    target: Path, tmp_path: Path, mode: str
) -> None:
    bundle = tmp_path / "T"
    stored_bytes = 1000 * EVENT_BYTES if mode == "trace" else 0
    command = (sys.executable, "-c", KILLER, target, "penstock-tracer", str(stored_bytes))
    document = trace(*command, options=("-m", mode, "--no-layers", "-o", bundle), status=7)
    assert document["exit_status"] == 7
    assert "is missing" in document["incomplete"]
    assert "is missing" in document["closing"]
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert "is missing" in manifest["reason"]
    if mode == "trace":
        row = of_file(document, target)
        assert row["reads"] == 1000
        (gap,) = manifest["receipts"]["trace"]["lost_intervals"]
        times = manifest["times"]
        assert times["start_ns"] < gap["start_ns"] < times["end_ns"] <= gap["end_ns"]
    assert "incomplete" in (bundle / "report.html").read_text()


def test_killed_layers_leave_the_trace(target: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "T"
    command = (sys.executable, "-c", KILLER, target, "penstock-layers", "0")
    document = trace(*command, options=("-m", "trace", "-o", bundle), status=7)
    assert of_file(document, target)["reads"] == 2000
    assert document["incomplete"] is None
    stats = json.loads((bundle / "manifest.json").read_text())["receipts"]["trace"]
    assert stats["layers"]["incomplete"]


READ = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
for i in range(int(sys.argv[2])):
    os.pread(fd, 512, 512 * (i % 64))
"""


#: run penstock with a small file system over a directory, with the contents of the directory
ON_TMPFS = """
import os, shutil, sys
from penstock.cli import main
from penstock.host.nodes import namespaces
size, place = sys.argv[1:3]
del sys.argv[1:3]
namespaces.unshare(namespaces.CLONE_NEWNS)
namespaces.mount("none", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
below = os.open(place, os.O_RDONLY)
namespaces.mount("none", place, "tmpfs", options=f"mode=700,size={size}")
shutil.copytree(f"/proc/self/fd/{below}/", place, dirs_exist_ok=True)
os.close(below)
main()
"""

#: run penstock with a limit of the file size
LIMITED = """
import resource, sys
from penstock.cli import main
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main()
"""


@pytest.mark.parametrize(
    ("limited", "reason"),
    [(True, "File too large"), (False, "No space left")],
    ids=["limit", "full"],
)
def test_a_full_spool_reports_lost_events_and_the_reason(
    target: Path, tmp_path: Path, limited: bool, reason: str
) -> None:
    """The command ends normally; the document counts unwritten events as lost."""
    directory = tmp_path / "state"
    directory.mkdir()
    with_known_cost(directory)
    prefix = (LIMITED, "3000000") if limited else (ON_TMPFS, "3m", directory)
    command = (sys.executable, "-c", READ, target, "200000")
    argv = [*commands.CODE, *prefix, "trace", "--json", "-m", "trace", "--", *command]
    environment = os.environ | {"PENSTOCK_STATE": str(directory)}
    result = commands.run(argv, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert balanced(document)
    assert reason in document["incomplete"]
    reads = of_file(document, target)["reads"]
    assert 10_000 < reads < 70_000
    assert reads + document["lost_events"] >= 200_000
    assert document["lost_events"] <= document["seen"] - reads


#: read pages in random order, none of them from memory
COLD = """
import os, random, sys
fd, count = os.open(sys.argv[1], os.O_RDONLY), int(sys.argv[2])
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
for page in random.Random(1).sample(range(count), count):
    os.pread(fd, 512, 4096 * page)
sys.exit(7)
"""


def test_layers_without_space_leave_the_trace(tmp_path: Path) -> None:
    """Layers need more bytes than calls: only the calls fit."""
    pages, cold = 6000, tmp_path / "cold"
    with cold.open("wb") as file:
        file.write(os.urandom(4096 * pages))
        os.fsync(file.fileno())
    state = with_known_cost(tmp_path / "state")
    command = (sys.executable, "-c", COLD, cold, str(pages))
    options = ("-m", "trace", "-o", tmp_path / "T", "--file", cold)
    argv = [*commands.CODE, LIMITED, "900000", "trace", "--json", *options, "--", *command]
    environment = os.environ | {"PENSTOCK_STATE": str(state)}
    result = commands.run(argv, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 7, result.stderr
    document = json.loads(result.stdout)
    assert of_file(document, cold)["reads"] == pages
    assert document["incomplete"] is None
    stats = json.loads((tmp_path / "T" / "manifest.json").read_text())["receipts"]["trace"]
    layers = stats["layers"]
    assert "File too large" in layers["incomplete"]
    assert layers["lost"] > 0
    assert layers["seen"] == layers["kept"] + layers["lost"]


def test_a_failed_write_of_the_bundle_loses_only_the_bundle(target: Path, tmp_path: Path) -> None:
    directory = tmp_path / "small"
    directory.mkdir()
    command = (sys.executable, "-c", READ, target, "2000")
    argv = [*commands.CODE, ON_TMPFS, "16k", directory]
    argv += ["trace", "--json", "-o", directory / "T", "--", *command]
    result = commands.run(argv, capture_output=True, text=True, timeout=120)
    assert result.returncode == 125, result.stderr
    assert [
        line for line in result.stderr.splitlines() if "no bundle: " in line and "No space" in line
    ]
    document = json.loads(result.stdout)
    assert document["bundle"] is None
    assert of_file(document, target)["reads"] == 2000


def test_no_space_for_the_output_loses_only_the_bundle(tmp_path: Path) -> None:
    directory, reached = tmp_path / "small", tmp_path / "reached"
    directory.mkdir()
    command = ("sh", "-c", 'head -c 1000000 /dev/zero && echo on > "$0" && exit 7', reached)
    argv = [
        *commands.CODE,
        ON_TMPFS,
        "256k",
        directory,
        "trace",
        "-o",
        directory / "T",
        "--",
        *command,
    ]
    result = commands.run(argv, capture_output=True, timeout=120)
    assert result.returncode == 7, result.stderr
    assert reached.exists()
    assert result.stdout.count(b"\0") == 1_000_000
    assert b"no bundle: stdout.txt: No space left" in result.stderr
