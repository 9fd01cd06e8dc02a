"""Scope of a trace: processes, control groups, files, directories, devices and phases."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli import _build
from penstock.errors import BadInput
from penstock.host.cgroups.cgroup import create_run_cgroup, hierarchies
from penstock.host.journal.journal import Journal
from penstock.observe.trace.capture.scope import find_group
from tests.integration.tracing import (
    NEEDS_TRACER,
    Running,
    balanced,
    calls_by_path,
    events,
    known_cost,
    of_file,
    penstock,
    started_trace,
    trace,
)
from tests.support import commands

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

#: open the files, then after a line on stdin read each file a number of times
READER = """
import os, sys
files = [(os.open(p, os.O_RDONLY), int(n)) for p, n in zip(sys.argv[1::2], sys.argv[2::2])]
print('ready'); sys.stdin.readline()
for fd, times in files:
    for i in range(times):
        os.pread(fd, 512, 512 * i)
print('done'); sys.stdin.readline()
"""

#: three children and a thread of the parent, each of which writes its own file a number of times
FAMILY = """
import os, sys, threading
def write(name, times):
    fd = os.open(os.path.join(sys.argv[1], name), os.O_WRONLY | os.O_CREAT)
    for i in range(times):
        os.pwrite(fd, b'x' * 100, 100 * i)
print('ready'); sys.stdin.readline()
for number in (1, 2, 3):
    if os.fork() == 0:
        if number == 3:
            if os.fork() == 0:
                write('grandchild', 11)
                os._exit(0)
            os.wait()
        if number == 2:
            os.execvp('dd', ['dd', 'if=/dev/zero', f'of={sys.argv[1]}/executed', 'bs=10', 'count=13',
                             'status=none'])
        write(f'child{number}', 7)
        os._exit(0)
thread = threading.Thread(target=write, args=('thread', 5))
thread.start(); thread.join()
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
print('done'); sys.stdin.readline()
"""


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    for name in ("a.wt", "b.wt", "c.db"):
        (tmp_path / name).write_bytes(bytes(65536))
    return tmp_path


def stop_trace(tracing: subprocess.Popen[str]) -> Any:
    tracing.send_signal(signal.SIGINT)
    output, errors = tracing.communicate(timeout=60)
    assert tracing.returncode == 0, errors
    document = json.loads(output)
    assert balanced(document)
    return document


def test_other_processes_are_not_traced(ground: Path) -> None:
    """While the command reads 101 times, a process reads 10100 times and a thread reads always."""
    script = "import os,sys\nf=os.open(sys.argv[1],0)\nfor i in range(int(sys.argv[2])): os.pread(f,512,0)\n"
    stop = threading.Event()

    def disturb() -> None:
        with open(ground / "c.db", "rb", buffering=0) as file:
            while not stop.is_set():
                file.read(512)
                file.seek(0)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        bystander = subprocess.Popen([sys.executable, "-c", script, ground / "b.wt", "10100"])
        document = trace(
            sys.executable, "-c", script, ground / "a.wt", "101", options=("-m", "trace")
        )
        assert bystander.wait() == 0
    finally:
        stop.set()
        disturber.join()
    paths = calls_by_path(document)
    assert paths[str(ground / "a.wt")] == 101
    assert str(ground / "b.wt") not in paths
    assert str(ground / "c.db") not in paths
    assert document["lost_events"] == 0


@pytest.mark.parametrize("mode", ["trace", "pattern"])
def test_process_tree(ground: Path, mode: str) -> None:
    with Running(READER, ground / "a.wt", "10") as stranger, Running(FAMILY, ground) as family:
        tracing = started_trace("-m", mode, "-p", str(family.pid))
        stranger.go()
        assert stranger.said() == "done"
        family.go()
        assert family.said() == "done"
        document = stop_trace(tracing)
    expected = {"child1": 7, "child3": 7, "grandchild": 11, "executed": 13, "thread": 5}
    counts = calls_by_path(document)
    in_ground = {Path(path).name: n for path, n in counts.items() if Path(path).parent == ground}
    assert in_ground == expected


def test_a_running_tree_is_traced_until_its_end(ground: Path) -> None:
    """The child starts before the trace; the trace ends with the last process."""
    script = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {READER!r}, {str(ground / "a.wt")!r}, '17'],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print('ready'); sys.stdin.readline()
child.stdin.write(b'go\\n'); child.stdin.flush()
child.stdout.readline()
child.stdin.write(b'end\\n'); child.stdin.close()
child.wait()
print('done')
"""
    with Running(script) as family:
        tracing = started_trace("-m", "trace", "-p", str(family.pid))
        family.go()
        assert family.said() == "done"
        output, errors = tracing.communicate(timeout=120)
    assert tracing.returncode == 0, errors
    assert of_file(json.loads(output), ground / "a.wt")["reads"] == 17


def test_a_trace_ends_despite_a_zombie_child(ground: Path) -> None:
    """A process that ended before the trace does not count as running (else the test times out)."""
    script = """
import os, sys
child = os.fork()
if child == 0:
    os._exit(0)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print('ready'); sys.stdin.readline()
os.close(os.open(sys.argv[1], os.O_RDONLY))
print('done')
"""
    with Running(script, ground / "a.wt") as family:
        tracing = started_trace("-m", "count", "-p", str(family.pid))
        family.go()
        assert family.said() == "done"
        _, errors = tracing.communicate(timeout=60)
    assert tracing.returncode == 0, errors


def test_a_process_that_ended_cannot_be_traced(ground: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        result = CliRunner().invoke(_build(), ["trace", "-p", str(child)])
        assert isinstance(result.exception, BadInput)
        assert "has ended and waits for its parent" in str(result.exception)
    finally:
        os.waitpid(child, 0)


@pytest.fixture
def group_directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Path]]:
    with create_run_cgroup("scope-test", None, Journal(tmp_path / "journal")) as group:
        yield group.paths


@pytest.mark.parametrize("controller", ["unified", "pids"])
def test_a_control_group_includes_its_subgroups(
    ground: Path, group_directory: dict[str, Path], controller: str
) -> None:
    if controller == "pids" and "pids" not in hierarchies().v1:
        pytest.skip("kernel: no v1 hierarchy with pids")
    outer = group_directory[controller]
    inner = outer / "inner"
    inner.mkdir()
    with (
        Running(READER, ground / "a.wt", "23") as member,
        Running(READER, ground / "b.wt", "29") as deeper,
        Running(READER, ground / "c.db", "31") as stranger,
    ):
        (outer / "cgroup.procs").write_text(str(member.pid))
        (inner / "cgroup.procs").write_text(str(deeper.pid))
        # find a container by a part of the name of its group, or by one of its processes
        if controller == "unified":
            assert find_group(outer.name.rsplit("-", 1)[-1]).directory == outer
            assert find_group(str(member.pid)).directory == outer
        tracing = started_trace("-m", "trace", "--cgroup", outer)
        for program in (stranger, member, deeper):
            program.go()
            assert program.said() == "done"
        document = stop_trace(tracing)
    counts = {
        Path(p).name: n for p, n in calls_by_path(document).items() if Path(p).parent == ground
    }
    assert counts == {"a.wt": 23, "b.wt": 29}


def command_with_files(root: Path) -> tuple[list[str], dict[str, int]]:
    """A command that creates directories and files, and its number of writes to each file."""
    names = ["db/x.wt", "db/x.db", "db/deep/er/y.wt", "db/z.wtx", "other/x.wt", "x.wt", "db/.wt"]
    counts = {name: 3 + 2 * number for number, name in enumerate(names)}
    script = (
        "import os, sys\n"
        f"for name, times in {counts!r}.items():\n"
        f"    path = os.path.join({str(root)!r}, name)\n"
        "    os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "    fd = os.open(path, os.O_RDWR | os.O_CREAT)\n"
        "    for i in range(times): os.pwrite(fd, b'x' * 100, 100 * i)\n"
        "    os.pread(fd, 100, 0)\n"
    )
    return [sys.executable, "-c", script], counts


@pytest.mark.parametrize(("mode", "existing"), [("trace", False), ("pattern", True)])
def test_filter_by_directory_and_ending(tmp_path: Path, mode: str, existing: bool) -> None:
    if existing:
        (tmp_path / "db" / "deep").mkdir(parents=True)
    command, counts = command_with_files(tmp_path)
    options = ("-m", mode, "--dir", tmp_path / "db", "--ext", ".wt")
    document = trace(*command, options=options)
    expected = {"db/x.wt", "db/deep/er/y.wt", "db/.wt"}
    counts_by_file = {
        str(Path(row["path"]).relative_to(tmp_path)): (row["reads"], row["writes"])
        for row in document["files"]
    }
    assert counts_by_file == {name: (1, counts[name]) for name in expected}
    assert balanced(document)
    assert document["filtered"] >= sum(counts.values()) - sum(counts[n] for n in expected)


def test_filter_by_file_and_inode(ground: Path) -> None:
    """Filter by --file (existing, later, by a hard link) and --inode; kinds combine by AND."""
    os.link(ground / "a.wt", ground / "link")
    status = (ground / "b.wt").stat()
    inode = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}:{status.st_ino}"
    new = ground / "new"
    script = (
        "import os, sys\n"
        "for i, p in enumerate(sys.argv[1:]):\n"
        "    fd = os.open(p, os.O_RDWR | os.O_CREAT)\n"
        "    for _ in range(i + 1): os.pwrite(fd, b'x' * 10, 0)\n"
        "    os.pread(fd, 10, 0)\n"
    )
    paths = [ground / name for name in ("link", "b.wt", "c.db", "new")]
    command = (sys.executable, "-c", script, *paths)

    def counts(*options: str | Path) -> dict[str, tuple[int, int]]:
        document = trace(*command, options=("-m", "trace", *options))
        assert balanced(document)
        new.unlink()
        return {Path(r["path"]).name: (r["reads"], r["writes"]) for r in document["files"]}

    by_path = counts("--file", ground / "a.wt", "--file", new)
    assert by_path == {"link": (1, 1), "new": (1, 4)}
    assert counts("--inode", inode) == {"b.wt": (1, 2)}
    assert counts("--inode", f"{status.st_dev}:{status.st_ino}", "--only", "read") == {
        "b.wt": (1, 0)
    }
    assert counts("--inode", inode, "--file", new) == {}
    assert counts("--file", new, "--dir", ground, "--only", "write") == {"new": (0, 4)}


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_filters_apply_to_completions_of_libaio(ground: Path) -> None:
    """Completions come in interrupts: filter another file, and one direction of the file."""
    fio = ("fio", "--name=j", f"--filename={ground / 'b.wt'}", "--size=64k", "--ioengine=libaio")
    fio += ("--direct=1", "--bs=4k", "--iodepth=4", "--fsync=16", "--output=/dev/null")
    excluded = trace(
        *(*fio, "--rw=randwrite", "--loops=8"),
        options=("-m", "trace", "--file", ground / "a.wt", "-o", ground / "T"),
    )
    assert excluded["files"] == []
    assert pq.read_table(ground / "T" / "io_events.parquet").num_rows == 0
    assert pq.read_table(ground / "T" / "operations.parquet").num_rows == 0
    assert excluded["filtered"] >= 128
    assert balanced(excluded)
    options = ("-m", "trace", "--no-layers", "--file", ground / "b.wt", "--only", "read")
    mixed = trace(*fio, "--rw=randrw", "--loops=8", options=options)
    row = of_file(mixed, ground / "b.wt")
    assert row["reads"] > 0
    assert row["writes"] == 0
    assert row["reads"] + mixed["filtered"] >= 128
    assert balanced(mixed)


#: access by pread, write, fsync, direct reads and libaio
ON_A_DEVICE = """
import mmap, os, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for i in range(7):
    os.pread(fd, 512, 4096 * i)
os.lseek(fd, 8192, 0)
for _ in range(3):
    os.write(fd, bytes(4096))
os.fsync(fd)
direct = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
for i in range(5):
    os.preadv(direct, [mmap.mmap(-1, 4096)], 4096 * i)
os.close(direct)
os.close(fd)
fio = ['fio', '--name=j', '--filename=' + sys.argv[1], '--size=64k', '--bs=4k', '--ioengine=libaio']
subprocess.run([*fio, '--direct=1', '--rw=read', '--output=/dev/null'], check=True)
"""


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[Path]:
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(1 << 20))
    result = commands.run(["losetup", "-f", "--show", backing], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"no loop device: {result.stderr.strip()}")
    yield Path(result.stdout.strip())
    commands.run(["losetup", "-d", result.stdout.strip()], check=True)


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
@pytest.mark.parametrize("mode", ["trace", "pattern", "count"])
def test_a_block_device_is_recorded_like_a_file(
    tmp_path: Path, loop_device: Path, mode: str
) -> None:
    options: tuple[str | Path, ...] = ("-m", mode, "--file", loop_device, "-o", tmp_path / "T")
    document = trace(sys.executable, "-c", ON_A_DEVICE, loop_device, options=options)
    row = of_file(document, loop_device)
    assert (row["reads"], row["writes"]) == (7 + 5 + 16, 3)
    assert (row["read_bytes"], row["written_bytes"]) == (7 * 512 + 21 * 4096, 3 * 4096)
    assert document["lost_events"] == 0
    assert balanced(document)
    (file,) = pq.read_table(tmp_path / "T" / "files.parquet").to_pylist()
    assert file["size_bytes"] == 1 << 20
    if mode == "trace":
        rows = [row for row in events(tmp_path / "T") if row["path"] == str(loop_device)]
        by_op = Counter(row["op"] for row in rows)
        assert by_op["aio_pread"] == 16
        assert by_op["fsync"] == 1
        assert [r["offset_bytes"] for r in rows if r["op"] == "write"] == [8192, 12288, 16384]


def test_trace_of_all_processes_of_the_host(ground: Path) -> None:
    """Without command or process: accesses of all processes except the tracer."""
    with (
        Running(READER, ground / "a.wt", "19") as first,
        Running(READER, ground / "a.wt", "7") as second,
    ):
        tracing = started_trace("-m", "trace", "--dir", ground, "-o", ground / "T")
        for program in (first, second):
            program.go()
            assert program.said() == "done"
        document = stop_trace(tracing)
    assert of_file(document, ground / "a.wt")["reads"] == 26
    pids = {row["pid"] for row in events(ground / "T")}
    assert pids == {first.pid, second.pid}


def test_a_bind_mount_hides_no_directory(ground: Path) -> None:
    """A filter by one name of a bind mount matches files opened by the other name."""
    (ground / "real").mkdir()
    (ground / "real" / "f").write_bytes(bytes(4096))
    (ground / "view").mkdir()
    script = (
        f"mount --bind {ground}/real {ground}/view && head -c 100 {ground}/view/f >/dev/null "
        f"&& head -c 100 {ground}/a.wt > /dev/null"
    )
    for name in ("real", "view"):
        document = trace(
            *("unshare", "-m", "sh", "-c", script),
            options=("-m", "trace", "--dir", ground / name, "--file", ground / "real" / "f"),
        )
        inodes = [row["inode"] for row in document["files"]]
        assert inodes == [(ground / "real" / "f").stat().st_ino]


def test_files_opened_before_the_trace_and_threads_have_names(ground: Path) -> None:
    """Attach after the program opened its files, one of which has been renamed."""
    with Running(READER, ground / "a.wt", "5", ground / "b.wt", "6") as program:
        (ground / "b.wt").rename(ground / "moved.wt")
        tracing = started_trace("-m", "trace", "-p", str(program.pid), "-o", ground / "T")
        program.go()
        assert program.said() == "done"
        document = stop_trace(tracing)
    counts = calls_by_path(document)
    assert counts[str(ground / "a.wt")] == 5
    assert counts[str(ground / "moved.wt")] == 6
    threads = pq.read_table(ground / "T" / "threads.parquet").to_pylist()
    comm = Path(sys.executable).name[:15]
    assert [(t["tid"], t["pid"], t["program"]) for t in threads] == [
        (program.pid, program.pid, comm)
    ]
    assert threads[0]["first_ns"] <= min(row["t_ns"] for row in events(ground / "T"))


def test_threads_change_their_program_by_exec(tmp_path: Path) -> None:
    script = "head -c 1 /etc/passwd; exec tail -c 1 /etc/passwd"
    trace("sh", "-c", script, options=("-m", "trace", "-o", tmp_path / "T"))
    threads = pq.read_table(tmp_path / "T" / "threads.parquet").to_pylist()
    programs = Counter(thread["program"] for thread in threads)
    assert programs["head"] == 1
    assert programs["tail"] == 1
    of_shell = [t["tid"] for t in threads if t["program"] in {"sh", "tail"}]
    assert len(of_shell) == 2
    assert len(set(of_shell)) == 1


def test_phases_by_marks_of_the_command(ground: Path) -> None:
    """A phase starts at the write of its mark; an event belongs to the phase of its start."""
    bundle = ground / "T"
    script = (
        'echo load > "$PENSTOCK_MARKS"; head -c 100 a.wt > /dev/null; '
        'printf "run one\\n" > "$PENSTOCK_MARKS"; head -c 100 b.wt > /dev/null; '
        'echo load >> "$PENSTOCK_MARKS"; head -c 100 c.db > /dev/null'
    )
    document = json.loads(
        penstock(
            *("trace", "--json", "-m", "trace", "--dir", ground, "-o", bundle),
            *("--", "sh", "-c", script),
            cwd=ground,
        ).stdout
    )
    phases = pq.read_table(bundle / "phases.parquet").to_pylist()
    assert [p["phase_id"] for p in phases] == ["workload", "start", "load", "run one", "load#2"]
    for before, after in itertools.pairwise(phases[1:]):
        assert before["end_ns"] == after["start_ns"]
    rows = events(bundle)
    phases_of = {
        Path(row["path"]).name: [
            p["phase_id"] for p in phases[1:] if p["start_ns"] <= row["t_ns"] < p["end_ns"]
        ]
        for row in rows
    }
    assert phases_of == {"a.wt": ["load"], "b.wt": ["run one"], "c.db": ["load#2"]}
    assert balanced(document)


def test_a_flood_of_marks_is_limited_and_reported(ground: Path) -> None:
    """The file stays empty, and the trace keeps the first 4096 marks."""
    bundle = ground / "T"
    flood = (
        "import os\n"
        "path = os.environ['PENSTOCK_MARKS']\n"
        "sink = os.open(path, os.O_WRONLY | os.O_APPEND)\n"
        "for number in range(20000): os.write(sink, b'flood\\n')\n"
        "print('size', os.stat(path).st_size)\n"
    )
    result = penstock(
        *("trace", "-m", "trace", "--dir", ground, "-o", bundle),
        *("--", sys.executable, "-S", "-c", flood),
        cwd=ground,
    )
    assert "size 0" in result.stdout
    assert "15,904 lines written to $PENSTOCK_MARKS" in result.stdout + result.stderr
    assert pq.read_table(bundle / "phases.parquet").num_rows == 4096 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-p", "1", "--", "true"), "leave out the command"),
        (("-p", "4194304"), "expected a process that is running"),
        (("--only", "both", "--", "true"), "expected read or write"),
        (("--inode", "12", "--", "true"), "MAJOR:MINOR:INODE"),
        (("--cgroup", "/etc"), "in no hierarchy"),
        (("--cgroup", "no-such-container-here"), "no control group is named after"),
        (("--file", "/etc", "--", "true"), "use --dir"),
        (("--dir", "/etc/passwd", "--", "true"), "use --file"),
        (("--ext", "a/b", "--", "true"), "expected 1 to 24 bytes"),
        (
            ("--dir", "/" + "n" * 200 + "/" + "m" * 100, "--", "true"),
            "at most 256",
        ),
        (("--seconds", "1", "--", "true"), "leave out the command"),
    ],
)
def test_contradictory_arguments_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(_build(), ["trace", *arguments])
    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)


def test_an_unknown_required_feature_stops_the_trace_before_its_start(tmp_path: Path) -> None:
    created, bundle = tmp_path / "made", tmp_path / "T"
    arguments = ("trace", "--require", "telepathy", "-o", bundle, "--", "touch", created)
    assert "no feature telepathy" in penstock(*arguments, status=2).stderr
    assert not created.exists()
    assert not list(tmp_path.glob("*T*"))


def test_an_interrupt_ends_the_command_and_leaves_a_report(ground: Path) -> None:
    """The signal ends the command; its child, which ignores it, is counted and killed."""
    bundle = ground / "T"
    # wait until the child ignores interrupts, which takes a while on a busy host
    script = (
        "(trap '' INT; : > deaf; exec sleep 60) & head -c 100 a.wt > /dev/null; "
        "while [ ! -e deaf ]; do sleep 0.05; done; "
        "trap 'exit 5' INT; echo ready >&2; while :; do sleep 0.1; done"
    )
    tracing = commands.popen(
        [
            *(Path(sys.executable).with_name("penstock"), "trace", "--json", "-m", "trace"),
            *("-o", bundle, "--", "sh", "-c", script),
        ],
        cwd=ground,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracing.stderr is not None
    while "ready" not in (line := tracing.stderr.readline()):
        assert line, "the command ended before it was ready"
    tracing.send_signal(signal.SIGINT)
    output, _ = tracing.communicate(timeout=60)
    document = json.loads(output)
    assert tracing.returncode == document["exit_status"] == 5
    assert document["interrupted"] == "SIGINT"
    assert document["outlived"] == 1
    assert of_file(document, ground / "a.wt")["reads"] == 1
    assert balanced(document)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["interrupted"] == "SIGINT"
    assert events(bundle)


#: the signal arrives when the tracer is armed, before the command exists
INTERRUPTED_EARLY = """
import os, signal, sys
from penstock import cli
from penstock.observe.trace.capture import session
launch = session.launch
def launch_late(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return launch(*arguments, **options)
session.launch = launch_late
sys.argv[1:] = ["trace", "--json", "-m", "trace", "--no-layers", "--", "sleep", "300"]
cli.main()
"""


def test_an_interrupt_before_the_command_begins_ends_it(ground: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_EARLY],
        cwd=ground,
        capture_output=True,
        text=True,
        timeout=120,
    )
    document = json.loads(result.stdout)
    assert (document["interrupted"], document["exit_status"]) == ("SIGINT", 130), result.stderr
