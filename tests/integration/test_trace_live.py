"""Output of a running trace, and cleaning up after its kill."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.host.journal.journal import Journal
from tests.integration.tracing import (
    NEEDS_TRACER,
    balanced,
    loaded_programs,
    penstock,
    programs_of,
    with_known_cost,
    within,
)
from tests.support import commands

pytestmark = NEEDS_TRACER

#: read 4 KiB pieces of a file for some seconds, in order or not, and print their number
READER = """
import os, random, sys, time
path, seconds, order = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
pieces, i = os.fstat(fd).st_size // 4096, 0
until = time.monotonic() + float(seconds)
while time.monotonic() < until:
    for _ in range(20):
        os.pread(fd, 4096, 4096 * (random.randrange(pieces) if order == 'random' else i % pieces))
        i += 1
    time.sleep(0.001)
print('read', i)
"""
COMMAND = Path(sys.executable).with_name("penstock")
COUNTS = re.compile(
    r"penstock: ([\d.]+) s: seen (\d+), kept (\d+), lost (\d+); (\d+) calls/s, (\S+ \S+)/s"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(32 << 20))
    return path


@pytest.mark.timed
@pytest.mark.parametrize(
    ("mode", "order", "options"),
    [("pattern", "random", ()), ("trace", "consecutive", ("--drop-every", "100"))],
)
def test_live_lines_have_rates_and_a_class(
    file: Path, mode: str, order: str, options: tuple[str, ...]
) -> None:
    """Lines go to stderr only, no count exceeds the final one, and a planted loss is reported."""
    tracing = subprocess.Popen(
        [
            *(COMMAND, "trace", "--json", "--live", "-m", mode, *options),
            *("--", sys.executable, "-c", READER, file, "3.1", order),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracing.stderr is not None
    lines = []
    while not (line := tracing.stderr.readline()).startswith("read "):
        assert line, lines
        lines.append(line)
    # the command has just printed its last line: all other lines came before
    verdicts = [line for line in lines if "so far, after" in line]
    assert len(verdicts) == 1, lines
    assert file.name in verdicts[0]
    assert f"read: {order}" in verdicts[0]
    counts = [match for line in lines if (match := COUNTS.match(line))]
    assert len(counts) >= 2, lines
    assert f"read {order}" in lines[-1]
    seen = [int(match[2]) for match in counts]
    assert seen == sorted(seen)
    assert int(counts[-1][5]) > 0
    output, last_lines = tracing.communicate(timeout=60)
    document = json.loads(output)
    assert balanced(document)
    assert document["seen"] >= seen[-1] > 1000
    assert document["kept"] >= int(counts[-1][3])
    assert document["lost_events"] >= int(counts[-1][4])
    assert (int(counts[-1][4]) > 0) == bool(options)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", "".join(lines) + last_lines)


def test_without_a_terminal_there_are_no_live_lines(file: Path) -> None:
    result = penstock("trace", "--", sys.executable, "-c", READER, file, "1.2", "random")
    assert result.stderr == ""


@pytest.mark.timed
def test_on_a_terminal_one_line_is_redrawn_and_cleared(file: Path) -> None:
    argv = [str(COMMAND), "trace", "--", sys.executable, "-c", READER, str(file), "1.2", "random"]
    text = on_terminal(argv)
    assert text.count("\r\x1b[K") >= 2
    assert "so far, after" in text
    # cleared before the summary, which has no such marks
    assert "calls/s" not in text.rsplit("\r\x1b[K", 1)[1]
    assert "closing" not in text
    assert "calls/s" not in on_terminal([*argv[:2], "--no-live", *argv[2:]])


def test_a_silent_tracer_does_not_disturb_the_trace(file: Path, tmp_path: Path) -> None:
    """Planted: the live display uses a socket that does not exist."""
    script = (
        "import dataclasses, sys; from pathlib import Path\n"
        "from penstock.observe.trace.capture.tracer import Tracer\n"
        "beside = Tracer.beside\n"
        "def astray(self):\n"
        "    source = beside(self)\n"
        "    source.daemon.socket_path = Path('/nowhere')\n"
        "    return source\n"
        "Tracer.beside = astray\n"
        "from penstock.cli import main\n"
        "sys.exit(main())\n"
    )
    result = commands.run(
        [
            *(sys.executable, "-c", script, "trace", "--json", "--live", "--"),
            *(sys.executable, "-c", READER, file, "1.2", "random"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert balanced(json.loads(result.stdout))
    assert "seen" not in result.stderr


def on_terminal(argv: list[str]) -> str:
    """Run a command on a terminal and return its output."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    text = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # closed by the last writer
            break
        if not chunk:
            break
        text += chunk
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert status == 0, text
    return text.decode()


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """State and runtime directories for one test."""
    state, runtime = tmp_path / "state", tmp_path / "run"
    monkeypatch.setenv("PENSTOCK_STATE", str(with_known_cost(state)))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(runtime))
    return state, runtime


@pytest.mark.skipif(
    shutil.which("bpftool", path="/usr/sbin:/usr/bin") is None, reason="bpftool is not installed"
)
def test_undo_after_a_kill_under_load(file: Path, own_state: tuple[Path, Path]) -> None:
    """Kill command and daemons under load: BPF programs disappear, `undo` removes the rest."""
    state, runtime = own_state
    rng = random.Random(7)
    for longest_s, options in (
        (0.3, ["-m", "trace", "--layers"]),
        (1.0, ["-m", "pattern"]),
        (1.6, ["-m", "trace", "--live"]),
    ):
        tracing = subprocess.Popen(
            [COMMAND, "trace", *options, "--", sys.executable, "-c", READER, file, "60", "random"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert within(60, lambda: any((state / "spool").glob("trace-*/events")))
            time.sleep(rng.uniform(0.0, longest_s))
            daemons = children(tracing.pid, "penstock-")
            programs = {
                number for pid in daemons for number in programs_of(pid)
            } & loaded_programs()
            assert len(programs) > 2
        finally:
            for pid in (tracing.pid, *children(tracing.pid, "penstock-")):
                with contextlib.suppress(ProcessLookupError):  # daemons end with their owner
                    os.kill(pid, signal.SIGKILL)
            tracing.wait()
        assert within(60, lambda programs=programs: not programs & loaded_programs())
        groups = groups_in(state)
        assert groups
        assert all(group.is_dir() for group in groups)
        # the kill leaves something for undo
        assert leftovers(state, runtime)
        penstock("undo")
        assert leftovers(state, runtime) == []
        assert not [group for group in groups if group.exists()]


def leftovers(state: Path, runtime: Path) -> list[str]:
    """Spools, files of the runtime directory, and open changes of the journal."""
    files = [*(state / "spool").iterdir(), *runtime.iterdir()]
    changes = Journal(state / "journal.jsonl").open_entries()
    return [*map(str, files), *(f"{entry.kind} {entry.target}" for entry in changes)]


def groups_in(state: Path) -> list[Path]:
    """Control groups of open changes in the journal."""
    changes = Journal(state / "journal.jsonl").open_entries()
    return [Path(path) for entry in changes if entry.kind == "cgroup" for path in entry.new or ()]


def children(pid: int, prefix: str) -> set[int]:
    """Children of a process whose command name has a prefix."""
    pids = set()
    for task in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = task.read_text().rpartition(")")
        except OSError:
            continue
        number, _, command = head.partition(" (")
        if int(tail.split()[1]) == pid and command.startswith(prefix):
            pids.add(int(number))
    return pids
