"""What a trace tells while it runs, and what is left when it is killed. Needs root and BPF."""

from __future__ import annotations

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

#: reads 4 KiB pieces of a file for some seconds, in order or not, and says how many when it ends
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
def test_lines_with_rates_and_a_class_come_before_the_end(
    file: Path, mode: str, order: str, options: tuple[str, ...]
) -> None:
    """Nothing of them is on stdout, no total is beyond the receipt's, and a planted loss is told."""
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
    # the command has just said its last word: all of these came before
    verdicts = [line for line in lines if "so far, after" in line]
    assert len(verdicts) == 1, lines
    assert file.name in verdicts[0]
    assert f"read: {order}" in verdicts[0]
    told = [found for line in lines if (found := COUNTS.match(line))]
    assert len(told) >= 2, lines
    assert f"read {order}" in lines[-1]
    seen = [int(found[2]) for found in told]
    assert seen == sorted(seen)
    assert int(told[-1][5]) > 0
    out, rest = tracing.communicate(timeout=60)
    document = json.loads(out)
    assert balanced(document)
    assert document["seen"] >= seen[-1] > 1000
    assert document["kept"] >= int(told[-1][3])
    assert document["lost_events"] >= int(told[-1][4])
    assert (int(told[-1][4]) > 0) == bool(options)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", "".join(lines) + rest)


def test_without_a_terminal_nothing_is_told(file: Path) -> None:
    done = penstock("trace", "--", sys.executable, "-c", READER, file, "1.2", "random")
    assert done.stderr == ""


@pytest.mark.timed
def test_on_a_terminal_it_is_one_line_drawn_again_and_cleared(file: Path) -> None:
    words = [str(COMMAND), "trace", "--", sys.executable, "-c", READER, str(file), "1.2", "random"]
    text = on_terminal(words)
    assert text.count("\r\x1b[K") >= 2
    assert "so far, after" in text
    # cleared before the summary, which has no such marks
    assert "calls/s" not in text.rsplit("\r\x1b[K", 1)[1]
    assert "closing" not in text
    assert "calls/s" not in on_terminal([*words[:2], "--no-live", *words[2:]])


def test_a_tracer_that_does_not_answer_disturbs_nothing(file: Path, tmp_path: Path) -> None:
    """Planted: the live part asks at a socket that is not there."""
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
    done = commands.run(
        [
            *(sys.executable, "-c", script, "trace", "--json", "--live", "--"),
            *(sys.executable, "-c", READER, file, "1.2", "random"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert balanced(json.loads(done.stdout))
    assert "seen" not in done.stderr


def on_terminal(words: list[str]) -> str:
    """What a command writes to a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    text = b""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # closed by the last one to write
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
    """State and runtime directories of this test alone."""
    state, runtime = tmp_path / "state", tmp_path / "run"
    monkeypatch.setenv("PENSTOCK_STATE", str(with_known_cost(state)))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(runtime))
    return state, runtime


@pytest.mark.skipif(
    shutil.which("bpftool", path="/usr/sbin:/usr/bin") is None, reason="bpftool is not installed"
)
def test_what_a_kill_leaves_is_put_right(file: Path, own_state: tuple[Path, Path]) -> None:
    """Command line and daemons killed at some moment under load: programs go, `undo` does the rest."""
    state, runtime = own_state
    moments = random.Random(7)
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
            assert within(30, lambda: any((state / "spool").glob("trace-*/events")))
            time.sleep(moments.uniform(0.0, longest_s))
            daemons = children(tracing.pid, "penstock-")
            mine = {number for pid in daemons for number in programs_of(pid)} & loaded_programs()
            assert len(mine) > 2
        finally:
            for pid in (tracing.pid, *children(tracing.pid, "penstock-")):
                os.kill(pid, signal.SIGKILL)
            tracing.wait()
        assert within(20, lambda mine=mine: not mine & loaded_programs())
        groups = groups_in(state)
        assert groups
        assert all(group.is_dir() for group in groups)
        # there is something to be put right, which the check below would report
        assert left_behind(state, runtime)
        penstock("undo")
        assert left_behind(state, runtime) == []
        assert not [group for group in groups if group.exists()]


def left_behind(state: Path, runtime: Path) -> list[str]:
    """Spools, files of the runtime directory, and changes of the host that the journal still holds."""
    files = [*(state / "spool").iterdir(), *runtime.iterdir()]
    changes = Journal(state / "journal.jsonl").open_entries()
    return [*map(str, files), *(f"{entry.kind} {entry.target}" for entry in changes)]


def groups_in(state: Path) -> list[Path]:
    """Control groups that the journal holds."""
    changes = Journal(state / "journal.jsonl").open_entries()
    return [Path(path) for entry in changes if entry.kind == "cgroup" for path in entry.new or ()]


def children(pid: int, name: str) -> set[int]:
    """Children of a process whose command name begins so."""
    found = set()
    for task in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = task.read_text().rpartition(")")
        except OSError:
            continue
        number, _, command = head.partition(" (")
        if int(tail.split()[1]) == pid and command.startswith(name):
            found.add(int(number))
    return found
