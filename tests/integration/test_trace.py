"""Compare traces with the counts and logs of fio, and check the handling of failures."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.tracing import (
    NEEDS_TRACER,
    balanced,
    known_cost,
    loaded_programs,
    of_file,
    penstock,
    programs_of,
    trace,
    within,
)
from tests.support import commands

REQUESTS = 10007  # a prime number, which shows lost, doubled and rounded counts

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER
needs_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traced") / "file"
    path.write_bytes(os.urandom(1 << 20) * 64)
    # load fio's libraries into the page cache, so that no run waits for them
    if shutil.which("fio"):
        commands.run(["fio", "--version"], check=True, capture_output=True)
    return path


def fio(target: Path, rw: str, engine: str, *options: str) -> list[str]:
    return [
        *("fio", "--name=job", f"--filename={target}", "--size=64m", "--bs=4k"),
        *(f"--rw={rw}", f"--ioengine={engine}", f"--number_ios={REQUESTS}", *options),
        *("--output-format=json", "--output=/dev/stderr", "--invalidate=0"),
    ]


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Any, Path]]:
    """Trace and file of fio by pattern and engine."""
    directory = tmp_path_factory.mktemp("reads")
    traces = {}
    for mode, engines in (("pattern", ["psync"]), ("trace", ["sync", "pvsync", "pvsync2"])):
        files = {
            (rw, engine): directory / f"{rw}-{engine}"
            for rw, engine in itertools.product(("read", "randread"), engines)
        }
        for path in files.values():
            path.touch()
            os.truncate(path, 64 << 20)
        fio_commands = [shlex.join(fio(path, *job)) for job, path in files.items()]
        document = trace("sh", "-c", " && ".join(fio_commands), options=("--mode", mode))
        traces |= {job: (document, path) for job, path in files.items()}
    return traces


@needs_fio
@pytest.mark.parametrize("engine", ["sync", "psync", "pvsync", "pvsync2"])
@pytest.mark.parametrize("rw", ["read", "randread"])
def test_every_read_of_fio_is_traced(
    reads: dict[tuple[str, str], tuple[Any, Path]], rw: str, engine: str
) -> None:
    document, target = reads[rw, engine]
    row = of_file(document, target)
    assert row["reads"] == REQUESTS
    assert row["read_bytes"] == REQUESTS * 4096
    assert row["writes"] == 0
    assert row["write_pattern"] is None
    assert document["lost_events"] == 0
    assert balanced(document)
    expected = {"read": {"consecutive", "sequential"}, "randread": {"random"}}[rw]
    assert row["read_pattern"] in expected
    assert str(target.parent) in document["closing"]


@needs_fio
@pytest.mark.parametrize(("engine", "mode"), [("sync", "trace"), ("pvsync2", "pattern")])
def test_reads_of_four_threads(target: Path, engine: str, mode: str) -> None:
    threads = ("--thread", "--numjobs=4", "--group_reporting")
    document = trace(*fio(target, "read", engine, *threads), options=("--mode", mode))
    row = of_file(document, target)
    assert row["reads"] == 4 * REQUESTS
    assert document["lost_events"] == 0
    assert row["read_pattern"] in {"consecutive", "sequential", "interleaved"}
    assert row["read_evidence"]["threads"] == {"consecutive": 4}


@needs_fio
def test_bytes_and_offsets_equal_the_log_of_fio(target: Path, tmp_path: Path) -> None:
    log, bundle = tmp_path / "iolog", tmp_path / "T"
    command = fio(target, "randrw", "psync", f"--write_iolog={log}")
    trace(*command, options=("--mode", "trace", "-o", bundle))
    lines = [line.split() for line in log.read_text().splitlines()]
    logged = [
        (fields[-3], int(fields[-2]), int(fields[-1]))
        for fields in lines
        if fields[-3] in {"read", "write"}
    ]
    events = pq.read_table(bundle / "io_events.parquet")
    files = pq.read_table(bundle / "files.parquet").to_pylist()
    number = next(row["file_id"] for row in files if row["path"] == str(target))
    traced = [
        (row["direction"], row["offset_bytes"], row["done_bytes"])
        for row in events.to_pylist()
        if row["file_id"] == number and row["direction"] in {"read", "write"}
    ]
    assert len(logged) == REQUESTS
    assert traced == logged  # one thread, so the order is equal too


@needs_fio
def test_a_planted_drop_is_reported(target: Path) -> None:
    document = trace(
        *fio(target, "read", "psync"), options=("--mode", "trace", "--drop-every", "100")
    )
    row = of_file(document, target)
    # each processor counts separately
    assert document["lost_events"] >= 10
    assert REQUESTS - document["lost_events"] <= row["reads"] < REQUESTS
    assert balanced(document)
    assert "lost" in document["closing"]


@needs_fio
def test_a_stopped_reader_reports_its_lost_events(target: Path, tmp_path: Path) -> None:
    from penstock.host.cgroups.cgroup import create_run_cgroup
    from penstock.host.journal.journal import Journal
    from penstock.host.processes.launch import launch
    from penstock.observe.trace.capture.tracer import Tracer
    from penstock.state import state_dir

    journal = Journal(tmp_path / "journal")
    with (
        Tracer(journal, state_dir(), "trace", ring_bytes=1 << 20) as tracer,
        create_run_cgroup("trace-test", None, journal) as group,
    ):
        tracer.arm(group)
        os.kill(tracer.pid, signal.SIGSTOP)
        try:
            finished = launch(
                fio(target, "read", "psync", "--loops=8"), group, stderr=tmp_path / "said"
            )
        finally:
            os.kill(tracer.pid, signal.SIGCONT)
        result = tracer.disarm()
    output = (tmp_path / "said").read_text()
    requests = json.loads(output[output.index("{") :])["jobs"][0]["read"]["total_ios"]
    stats = result.receipt
    assert finished.exit_status == 0
    assert stats["lost"] > 0
    assert stats["seen"] == stats["kept"] + stats["filtered"] + stats["lost"]
    assert stats["seen"] >= requests >= REQUESTS
    assert result.events == stats["kept"]
    assert "lost" in result.closing
    slots = stats["ring_bytes"] // 48
    assert stats["kept"] <= slots  # one ring per CPU, which the stopped reader did not empty


SCRIPT = """
import os, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDWR)
os.lseek(fd, 8192, os.SEEK_SET)
os.read(fd, 100)                         # 8192, 100
twin = os.dup(fd)
os.read(twin, 50)                        # 8292, 50
if os.fork() == 0:
    os.read(fd, 7)                       # 8342, 7, by the child
    os._exit(0)
os.wait()
os.read(fd, 3)                           # 8349, 3
os.preadv(fd, [bytearray(10), bytearray(20)], 5)
size = os.fstat(fd).st_size
os.pread(fd, 1000, size - 10)            # short
os.pread(fd, 1000, size + 10)            # nothing
log = os.open(path + '.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(log, b'x' * 11)
os.write(log, b'y' * 13)                 # 11, 13
os.pwrite(log, b'z' * 5, 0)              # appended all the same: 24, 5
reads, writes = os.pipe()
os.write(writes, b'12345')               # not a file: filtered
os.read(reads, 5)
try:
    os.read(9999, 1)                     # no descriptor: filtered
except OSError:
    pass
try:
    os.read(log, 1)                      # not open for reading: an error on a file
except OSError:
    pass
"""


def test_offsets_of_all_ways_to_set_the_position(tmp_path: Path) -> None:
    path, bundle = tmp_path / "file", tmp_path / "T"
    path.write_bytes(bytes(100_000))
    trace(sys.executable, "-c", SCRIPT, path, options=("--mode", "trace", "-o", bundle))
    files = {r["path"]: r["file_id"] for r in pq.read_table(bundle / "files.parquet").to_pylist()}
    events = pq.read_table(bundle / "io_events.parquet").to_pylist()
    rows = [row for row in events if row["direction"] in {"read", "write"}]

    def columns_of(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return [tuple(r[c] for c in columns) for r in rows if r["file_id"] == files[name]]

    assert columns_of(str(path), "offset_bytes", "size_bytes", "done_bytes", "errno") == [
        (8192, 100, 100, 0),
        (8292, 50, 50, 0),
        (8342, 7, 7, 0),
        (8349, 3, 3, 0),
        (5, 30, 30, 0),
        (99_990, 1000, 10, 0),
        (100_010, 1000, 0, 0),
    ]
    ops = [op for (op,) in columns_of(str(path), "op")]
    assert ops[:4] == ["read"] * 4
    assert ops[4] in {"preadv", "preadv2"}  # depends on the C library
    assert ops[5:] == ["pread64"] * 2
    assert columns_of(str(path) + ".log", "op", "offset_bytes", "done_bytes", "errno") == [
        ("write", 0, 11, 0),
        ("write", 11, 13, 0),
        ("pwrite64", 24, 5, 0),
        ("read", 24, 0, 9),
    ]
    assert len({r["pid"] for r in rows if r["file_id"] == files[str(path)]}) == 2
    assert all(row["latency_ns"] > 0 for row in rows if row["op"] != "fault_around")


def test_files_with_unusual_or_equal_names_are_distinguished(tmp_path: Path) -> None:
    names = ["a/x.db", "b/x.db", "n\new'line\".db", "l" * 200, "d/" * 100 + "deep"]
    raw = os.fsencode(tmp_path) + b"/\xff\xfe"
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(name, "utf-8"))
    with open(raw, "wb") as odd:
        odd.write(b"odd")
    gone = tmp_path / "gone"
    script = (
        "import os, sys\n"
        "for p in sys.argv[1:]: os.read(os.open(p, os.O_RDONLY), 10)\n"
        f"f = os.open({str(gone)!r}, os.O_RDWR | os.O_CREAT); os.unlink({str(gone)!r})\n"
        "os.write(f, b'still')\n"
    )
    command = [sys.executable, "-c", script, *(tmp_path / name for name in names), raw]
    document = trace(*command, options=("--mode", "trace"))
    for name in names:
        assert of_file(document, tmp_path / name)["reads"] == 1
    assert of_file(document, gone)["written_bytes"] == 5
    assert any(row["path"] == f"{tmp_path}/\\udcff\\udcfe" for row in document["files"])


#: link files without a name: by the path of their descriptor (see open(2)), and by the empty path
LINKED = """
import ctypes, os
linkat = ctypes.CDLL(None, use_errno=True).linkat
for old, flags, name in ((b"/proc/self/fd/%d", 0x400, b"by-name"), (b"/dev/fd/%d", 0x400, b"by-device"),
                         (b"/proc/thread-self/fd/%d", 0x400, b"by-thread"), (b"", 0x1000, b"by-number")):
    file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(file, b"x" * 1000)
    where = -100 if old else file
    assert linkat(where, old % file if old else old, -100, name, flags) == 0, ctypes.get_errno()
    os.pread(file, 1000, 0)
    os.close(file)
"""


def test_a_linked_file_without_a_name_gets_the_name_of_its_link(tmp_path: Path) -> None:
    bundle = tmp_path / "T"
    arguments = ("trace", "--json", "-m", "trace", "-o", bundle, "--", sys.executable, "-c", LINKED)
    penstock(*arguments, cwd=tmp_path)
    names = pq.read_table(bundle / "file_names.parquet").to_pylist()
    events = pq.read_table(bundle / "io_events.parquet").to_pylist()
    for name in ("by-name", "by-device", "by-thread", "by-number"):
        (linked,) = (r for r in names if r["path"] == f"{tmp_path}/{name}")
        assert linked["kind"] == "link"
        ops = [e["op"] for e in events if e["file_id"] == linked["file_id"]]
        assert {"write", "link", "pread64"} <= set(ops), ops


def test_only_the_command_is_traced(target: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"while True: open({str(target)!r}, 'rb').read(4096)"]
    ) as bystander:
        try:
            document = trace(sys.executable, "-c", "pass", options=("--mode", "trace"))
        finally:
            bystander.kill()
    assert str(target) not in {row["path"] for row in document["files"]}
    assert document["seen"] > 0


def test_exit_status_and_output_equal_those_of_the_command(tmp_path: Path) -> None:
    bundle = tmp_path / "T"
    result = penstock(
        *("trace", "--json", "-o", bundle, "--"),
        *("sh", "-c", "echo said; exit 7"),
        status=7,
    )
    assert json.loads(result.stdout)["exit_status"] == 7
    assert "said" in result.stderr
    assert (bundle / "stdout.txt").read_text() == "said\n"
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["schema"] == "penstock/bundle/1"
    assert manifest["receipts"]["trace"]["lost"] == 0
    assert penstock("trace", "--", "sh", "-c", "kill -9 $$", status=137)


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    assert "no such command" in penstock("trace", "--", "no-such-program", status=127).stderr
    plain = tmp_path / "plain"
    plain.write_text("")
    assert "not executable" in penstock("trace", "--", plain, status=126).stderr
    assert "expected" in penstock("trace", "--mode", "wrong", "--", "true", status=2).stderr
    assert penstock("trace", status=2).stderr
    assert "exists already" in penstock("trace", "-o", plain, "--", "true", status=2).stderr


@pytest.mark.skipif(
    shutil.which("bpftool", path="/usr/sbin:/usr/bin") is None, reason="bpftool is not installed"
)
def test_a_killed_tracer_leaves_nothing_loaded(tmp_path: Path) -> None:
    from penstock.host.cgroups.cgroup import create_run_cgroup
    from penstock.host.journal.journal import Journal
    from penstock.observe.trace.capture.tracer import Tracer
    from penstock.state import state_dir

    journal = Journal(tmp_path / "journal")
    with create_run_cgroup("trace-test", None, journal) as group:
        tracer = Tracer(journal, state_dir(), "trace")
        tracer.arm(group)
        programs = programs_of(tracer.pid) & loaded_programs()
        assert len(programs) > 2
        os.kill(tracer.pid, signal.SIGKILL)
        assert within(60, lambda: not programs & loaded_programs())
        tracer.stop()


@needs_fio
def test_random_reads_are_drawn_as_one_point_per_request(tmp_path: Path) -> None:
    requests = 140 * 2**20 // 4096
    data = tmp_path / "data"
    data.write_bytes(bytes(140 << 20))
    bundle = tmp_path / "bundle"
    argv = ["fio", "--name=job", f"--filename={data}", "--size=140m", "--bs=4k", "--rw=randread"]
    penstock("trace", "--mode", "trace", "-o", bundle, "--", *argv, "--output=/dev/null")
    text = (bundle / "report.html").read_text()
    assert f"Shown {requests:,} of {requests:,} requests, each as one mark" in text
    head = next(
        json.loads(h)
        for h in re.findall(r'id="head-\w+">(.*?)</script>', text)
        if json.loads(h)["counts"] == [requests, 0, 0]
    )
    assert head["form"] == "points"
    patterns = pq.read_table(bundle / "patterns.parquet").to_pylist()
    verdicts = [r for r in patterns if r["path"] == str(data) and r["tid"] is None]
    assert [r["class"] for r in verdicts if r["basis"] == "calls"] == ["random"]
    figure = tmp_path / "x.svg"
    penstock("plot", bundle, "offsets", "-o", figure)
    assert figure.stat().st_size > 0
