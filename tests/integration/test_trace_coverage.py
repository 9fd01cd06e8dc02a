"""Compare traces of every family of file operations with the records of the program."""

from __future__ import annotations

import collections
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.coverage.fio import (
    ENGINES,
    OTHERS,
    REQUESTS,
    Cell,
    installed,
    latencies,
    receipt_faults,
    run_cell,
    run_fio,
)
from bench.coverage.recording import Recording, record
from penstock.host.journal.journal import Journal
from penstock.observe.trace.capture.tracer import Tracer
from penstock.state import state_dir
from tests.integration.tracing import NEEDS_TRACER, known_cost
from tests.support import commands

SOURCE = Path(__file__).with_name("odd_calls.c")

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")

Row = dict[str, Any]


@pytest.fixture(scope="module")
def journal() -> Journal:
    return Journal()


@pytest.fixture(scope="module")
def tracer(journal: Journal) -> Iterator[Tracer]:
    with Tracer(journal, state_dir(), "trace") as tracer:
        yield tracer


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("coverage")


@pytest.fixture(scope="module")
def odd_calls(work: Path) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program = work / "odd_calls"
    commands.run(["cc", "-O1", "-pthread", "-w", "-o", program, SOURCE], check=True)
    return program


@pytest.fixture
def target(work: Path) -> Path:
    path = work / "odd"
    path.write_bytes(bytes(200_000))
    return path


def file_events(
    recording: Recording, path: Path, *columns: str, meta: bool = False
) -> list[tuple[Any, ...]]:
    assert recording.exit_status == 0
    assert receipt_faults(recording.receipt) == []
    rows = recording.of_file(path)
    return [tuple(row[c] for c in columns) for row in rows if meta or row["direction"] != "meta"]


QUICK = [
    Cell("sync", "rw", False, 4),
    Cell("psync", "randwrite", True, 1),
    Cell("vsync", "read", False, 1),
    Cell("pvsync2", "randrw", True, 4),
    Cell("posixaio", "randrw", False, 1),
    Cell("libaio", "randread", True, 4),
    Cell("libaio", "rw", False, 1),
    Cell("io_uring", "randrw", True, 4),
    Cell("io_uring", "write", False, 1),
    Cell("splice", "randrw", False, 1),
    Cell("ftruncate", "randwrite", False, 1),
    Cell("falloc", "randrw", False, 1),
]


@needs_fio
@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_traces_agree_with_fio(cell: Cell, tracer: Tracer, journal: Journal, work: Path) -> None:
    if cell.engine not in installed():
        pytest.skip(f"this fio has no {cell.engine}")
    assert run_cell(cell, tracer, journal, work) == []


@needs_fio
@pytest.mark.parametrize("mode", ["pattern", "count"])
@pytest.mark.parametrize("engine", ["libaio", "io_uring", "splice"])
def test_counters_without_events_agree(engine: str, mode: str, work: Path) -> None:
    target = work / "target"
    target.write_bytes(bytes(4 << 20))
    fio = ["fio", "--name=job", f"--filename={target}", "--bs=4k", "--rw=randrw", "--iodepth=8"]
    fio += [f"--ioengine={engine}", "--number_ios=503", "--output-format=json", "--invalidate=0"]
    output = work / "told.json"
    argv = [sys.executable, "-m", "penstock", "trace", "--mode", mode, "--json", "--", *fio]
    result = commands.run([*argv, f"--output={output}"], capture_output=True, text=True, check=True)
    (row,) = (r for r in json.loads(result.stdout)["files"] if r["path"] == str(target))
    job = json.loads(output.read_text())["jobs"][0]
    assert (row["reads"], row["writes"]) == (job["read"]["total_ios"], job["write"]["total_ios"])


@needs_fio
def test_every_engine_of_fio_is_compared_or_excluded() -> None:
    assert [name for name in installed() if name not in ENGINES and name not in OTHERS] == []


@needs_fio
def test_the_comparison_reports_a_dropped_event(journal: Journal, work: Path) -> None:
    # three counters are separate: one of each processor, and one of interrupts
    with Tracer(journal, state_dir(), "trace", drop_every=50) as dropping:
        differences = run_cell(Cell("libaio", "randrw", False, 1), dropping, journal, work)
    assert any("offsets" in line for line in differences), differences
    assert any("events lost" in line for line in differences), differences


def test_fixed_buffers_and_registered_files(
    odd_calls: Path, target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    recording = record([str(odd_calls), "fixed", str(target)], tracer, journal, work)
    expected = [("uring_read_fixed", 4096 * i, 1000, 1000, 0, 64) for i in range(37)]
    columns = ("op", "offset_bytes", "size_bytes", "done_bytes", "errno", "flags")
    assert file_events(recording, target, *columns) == expected


def test_reads_of_the_kernel_poller_belong_to_the_owner_of_the_ring(
    odd_calls: Path, target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    recording = record([str(odd_calls), "polled", str(target)], tracer, journal, work)
    assert file_events(recording, target, "op", "offset_bytes", "done_bytes") == [
        ("uring_read", 1024 * i, 512) for i in range(41)
    ]
    opened = [row for row in recording.of_file(target) if row["op"] == "open"]
    assert {(r["pid"], r["tid"]) for r in recording.of_file(target)} == {
        (opened[0]["pid"], opened[0]["tid"])
    }


def test_linked_cancelled_and_positioned_requests(
    odd_calls: Path, target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    recording = record([str(odd_calls), "linked", str(target)], tracer, journal, work)
    columns = ("op", "offset_bytes", "size_bytes", "done_bytes", "errno")
    assert file_events(recording, target, *columns) == [
        ("uring_write", 0, 4096, 4096, 0),
        ("uring_fsync", 0, 0, 0, 0),
        ("uring_readv", 512, 2048, 2048, 0),
        ("uring_read", 4096, 4096, 0, 14),
        ("uring_read", 8192, 4096, 0, 125),
        ("uring_read", 5000, 100, 100, 0),
        ("uring_read", 5100, 100, 100, 0),
        ("uring_read", 199_700, 1000, 300, 0),
    ]


def test_a_splice_in_a_worker_belongs_to_its_submitter(
    odd_calls: Path, target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    recording = record([str(odd_calls), "spliced", str(target)], tracer, journal, work)
    assert file_events(recording, target, "op", "offset_bytes", "done_bytes") == [
        ("splice_in", 10_000, 5000)
    ]
    assert len({(row["pid"], row["tid"]) for row in recording.of_file(target)}) == 1


def test_flags_of_single_calls_and_a_bad_pointer(
    odd_calls: Path, target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    recording = record([str(odd_calls), "flagged", str(target)], tracer, journal, work)
    assert file_events(recording, target, "op", "offset_bytes", "done_bytes", "errno", "flags") == [
        ("pread64", 0, 4096, 0, 0),
        ("preadv2", 0, 4096, 0, 8 | 32),
        ("pwritev2", 4096, 4096, 0, 4 | 8),
        ("pwritev2", 200_000, 4096, 0, 2 | 8),
        ("pread64", 8192, 0, 14, 0),
    ]
    assert all(row["latency_ns"] > 0 for row in recording.of_file(target))


def test_eight_threads_on_one_descriptor(
    odd_calls: Path, target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    recording = record([str(odd_calls), "threads", str(target)], tracer, journal, work)
    # a fault may be lost while another thread changes the mappings (faults.h); no call may be
    sources = recording.receipt["per_probe"]
    assert {name for name, counts in sources.items() if counts["lost"]} <= {"faults"}
    lost = [f"{sources.get('faults', {}).get('lost_unresolved', 0)} events lost"]
    assert receipt_faults(recording.receipt) in ([], lost)
    number = recording.files[str(target)]
    events = recording.events
    reads = events.filter(events["file_id"].to_numpy() == number).to_pandas()
    reads = reads[reads["op"] == "pread64"]
    counts = [125_000] * 7 + [125_003]
    assert sorted(reads.groupby("tid").size()) == counts
    for _, reads_of_thread in reads.groupby("tid"):
        assert (
            reads_of_thread["offset_bytes"].to_numpy()
            == [64 * (i & 1023) for i in range(len(reads_of_thread))]
        ).all()


COPIES = """
import ctypes, os, sys
source, copy = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[1] + ".copy", os.O_RDWR | os.O_CREAT)
for _ in range(128):
    os.sendfile(copy, source, None, 65536)
os.copy_file_range(source, copy, 8 << 20, 0, 8 << 20)
libc = ctypes.CDLL(None)
os.fsync(copy)
os.fdatasync(copy)
libc.sync_file_range(copy, ctypes.c_long(4096), ctypes.c_long(12288), 7)
libc.syncfs(copy)
os.sync()
"""


def test_copies_inside_the_kernel_and_durability(
    tracer: Tracer, journal: Journal, work: Path
) -> None:
    source = work / "source"
    source.write_bytes(bytes(8 << 20))
    recording = record([sys.executable, "-c", COPIES, str(source)], tracer, journal, work)
    columns = ("op", "offset_bytes", "done_bytes")
    halves = [(65536 * i, 65536) for i in range(128)]
    reads = file_events(recording, source, *columns)
    assert [row for row in reads if row[0] == "sendfile_in"] == [
        ("sendfile_in", *h) for h in halves
    ]
    assert sum(row[2] for row in reads if row[0] == "copy_in") == 8 << 20
    copy = Path(f"{source}.copy")
    writes = file_events(recording, copy, *columns)
    assert [row for row in writes if row[0] == "sendfile_out"] == [
        ("sendfile_out", *h) for h in halves
    ]
    copied = [row for row in writes if row[0] == "copy_out"]
    assert copied[0][1] == 8 << 20
    assert sum(row[2] for row in copied) == 8 << 20
    synced = [row for row in recording.of_file(copy) if row["direction"] == "sync"]
    assert [(r["op"], r["offset_bytes"], r["size_bytes"], r["errno"]) for r in synced] == [
        ("fsync", 0, 0, 0),
        ("fdatasync", 0, 0, 0),
        ("sync_file_range", 4096, 12288, 0),
        ("syncfs", 0, 0, 0),
    ]
    assert all(row["latency_ns"] > 0 for row in synced)
    sums = {(r["file_id"], r["op"]): r for r in recording.tables["operations"].to_pylist()}
    assert sums[recording.files[str(copy)], "fsync"]["calls"] == 1
    assert sums[0, "sync"]["calls"] == 1


NAMED = """
import os, sys
for n in range(3):
    file = os.open(f"{sys.argv[1]}/{n}", os.O_WRONLY | os.O_CREAT)
    os.write(file, b"x" * 100)
    os.fsync(file)
    directory = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(directory)
    os.fdatasync(directory)
    os.close(directory)
    os.close(file)
"""


def test_a_flushed_directory_has_a_row(tracer: Tracer, journal: Journal, work: Path) -> None:
    """A program flushes the directory of a new file: the path of the row ends with a slash."""
    directory = work / "folder"
    directory.mkdir(exist_ok=True)
    recording = record([sys.executable, "-c", NAMED, str(directory)], tracer, journal, work)
    number = recording.files[f"{directory}/"]
    assert str(directory) not in recording.files
    sums = {(r["file_id"], r["op"]): r for r in recording.tables["operations"].to_pylist()}
    assert sums[number, "fsync"]["calls"] == 3
    assert sums[number, "fdatasync"]["calls"] == 3
    assert sums[number, "fsync"]["time_ns"] > 0
    flushed = [row for row in recording.events.to_pylist() if row["file_id"] == number]
    assert [row["op"] for row in flushed] == ["fsync", "fdatasync"] * 3
    assert receipt_faults(recording.receipt) == []


SHARED = """
import os, sys
log = open(sys.argv[2], "w")
fd = os.open(sys.argv[1], os.O_RDWR)
twin = os.dup(fd)
def step(what, at, count):
    log.write(f"{what} {at} {count}\\n"); log.flush()
position = 0
for turn in range(101):
    if turn % 7 == 3:
        position = (turn * 7919) % 100_000
        os.lseek(twin, position, os.SEEK_SET)
    if turn % 3 == 0:
        child = os.fork()
        if child == 0:
            os.read(fd, 100 + turn)
            os._exit(0)
        os.waitpid(child, 0)
        step("read", position, 100 + turn)
    elif turn % 3 == 1:
        os.write(twin, bytes(50 + turn))
        step("write", position, 50 + turn)
    else:
        os.read(fd, 100 + turn)
        step("read", position, 100 + turn)
    position = os.lseek(fd, 0, os.SEEK_CUR)
"""

#: the first byte of a record names its process, so that the file shows the offsets of each process
APPENDERS = """
import os, sys
pids = []
for who in range(2):
    pid = os.fork()
    if pid == 0:
        fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
        for turn in range(1009):
            os.write(fd, b"%d %06d|" % (who, turn))
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
"""


def test_position_shared_by_dup_and_fork(
    target: Path, tracer: Tracer, journal: Journal, work: Path
) -> None:
    log = work / "reference"
    argv = [sys.executable, "-c", SHARED, str(target), str(log)]
    recording = record(argv, tracer, journal, work)
    lines = (line.split() for line in log.read_text().splitlines())
    expected = [(op, int(offset), int(count)) for op, offset, count in lines]
    assert len(expected) == 101
    assert file_events(recording, target, "op", "offset_bytes", "done_bytes") == expected


def test_two_processes_append(tracer: Tracer, journal: Journal, work: Path) -> None:
    path = work / "appended"
    path.write_bytes(b"")
    recording = record([sys.executable, "-c", APPENDERS, str(path)], tracer, journal, work)
    text = path.read_bytes()
    written_at: dict[bytes, list[int]] = collections.defaultdict(list)
    for start in range(0, len(text), 9):
        written_at[text[start : start + 1]].append(start)
    rows = file_events(recording, path, "pid", "offset_bytes", "done_bytes", "flags")
    assert len(rows) == 2 * 1009
    traced_at: dict[int, list[int]] = collections.defaultdict(list)
    for pid, offset, done_bytes, flags in rows:
        assert done_bytes == 9
        assert flags & 2
        traced_at[pid].append(offset)
    assert sorted(traced_at.values()) == sorted(written_at.values())


NAMES = """
import os, sys
os.chdir(sys.argv[1])
fd = os.open("a.db", os.O_RDWR | os.O_CREAT); os.write(fd, b"1")
os.rename("a.db", "b.db"); os.link("b.db", "sub/c.db"); os.unlink("b.db")
again = os.open("a.db", os.O_RDWR | os.O_CREAT); os.write(again, b"2")
os.rename("a.db", sys.argv[1] + "/sub/c.db")
os.rename("sub", "moved"); os.unlink(b"moved/c.db"); os.pwrite(again, b"3", 1)
try:
    os.unlink("moved/c.db")
except OSError:
    pass
"""


def test_renamed_linked_and_deleted_files_are_distinguished(
    tracer: Tracer, journal: Journal, work: Path
) -> None:
    directory = work / "names"
    (directory / "sub").mkdir(parents=True)
    recording = record([sys.executable, "-c", NAMES, str(directory)], tracer, journal, work)
    rows = recording.tables["file_names"].to_pylist()
    inside = [row for row in rows if row["path"] and row["path"].startswith(str(directory))]
    first, second = list(dict.fromkeys(row["file_id"] for row in inside))
    history = [
        (row["file_id"], row["kind"], row["path"].removeprefix(f"{directory}/")) for row in inside
    ]
    assert history == [
        (first, "first", "a.db"),
        (first, "rename", "b.db"),
        (first, "link", "sub/c.db"),
        (first, "unlink", "b.db"),
        (second, "first", "a.db"),
        (first, "unlink", "sub/c.db"),
        (second, "rename", "sub/c.db"),
        (second, "rename", "moved/c.db"),
        (second, "unlink", "moved/c.db"),
    ]
    of_second = [row for row in recording.events.to_pylist() if row["file_id"] == second]
    assert [(row["op"], row["errno"]) for row in of_second] == [
        ("create", 0),
        ("write", 0),
        ("rename", 0),
        ("unlink", 0),
        ("pwrite64", 0),
    ]


@needs_fio
@pytest.mark.parametrize("engine", ["libaio", "io_uring"])
def test_latency_is_from_submission_to_completion(
    engine: str, tracer: Tracer, journal: Journal, work: Path
) -> None:
    """A traced request starts later and ends earlier than in fio, so it is shorter on average."""
    run = run_fio(Cell(engine, "randread", True, 1), tracer, journal, work)
    latencies_ns = latencies(run)
    assert len(latencies_ns) == REQUESTS
    assert min(latencies_ns) > 0
    assert sum(latencies_ns) / len(latencies_ns) <= run.report["jobs"][0]["read"]["lat_ns"]["mean"]
