"""Run `penstock trace` and read its results, for the tests of the tracer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.known_host import planted_cost
from tests.support import commands

#: marks of a module whose tests load programs into the kernel
NEEDS_TRACER = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(
        not Path("/sys/kernel/btf/vmlinux").exists(), reason="kernel: no type information"
    ),
]

Argument = str | Path | bytes


def penstock(
    *arguments: Argument, status: int = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command of penstock; fail with its stderr if the exit status differs."""
    result = commands.run(
        [Path(sys.executable).with_name("penstock"), *arguments],
        **{"capture_output": True, "text": True, "timeout": 120, **options},
    )
    assert result.returncode == status, result.stderr
    return result


def trace(*command: Argument, options: tuple[Argument, ...] = (), status: int = 0) -> Any:
    """JSON document of a traced command, or of the processes that the options name."""
    tail = ("--", *command) if command else ()
    return json.loads(penstock("trace", "--json", *options, *tail, status=status).stdout)


def loaded_programs() -> set[int]:
    """Ids of all BPF programs that are loaded on this host, including those of other tests."""
    listed = commands.run(
        ["bpftool", "--json", "prog", "list"], capture_output=True, text=True, check=True
    )
    return {row["id"] for row in json.loads(listed.stdout)}


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that a process has open."""
    texts = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the process may have closed it
            texts.append(path.read_text())
    lines = [line for text in texts for line in text.splitlines()]
    return {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}


def with_known_cost(state: Path) -> Path:
    """A state directory with a recorded cost of tracing, whose measurement takes seconds."""
    state.mkdir(exist_ok=True)
    (state / "trace-cost.json").write_text(planted_cost())
    return state


@pytest.fixture(autouse=True, scope="module")
def known_cost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a state directory with a recorded cost of tracing in all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        state = with_known_cost(tmp_path_factory.mktemp("known") / "state")
        patch.setenv("PENSTOCK_STATE", str(state))
        yield


def of_file(document: Any, path: Path) -> Any:
    """The row of one file."""
    matches = [row for row in document["files"] if row["path"] == str(path)]
    assert len(matches) == 1, [row["path"] for row in document["files"]]
    return matches[0]


def balanced(document: Any) -> bool:
    """True if every seen call was kept, filtered or lost."""
    parts = document["kept"] + document["filtered"] + document["lost_events"]
    return bool(document["seen"] == parts)


def events(bundle: Path) -> list[dict[str, Any]]:
    """Events of a bundle, each with the path of its file; None if the call only named a file."""
    files = {r["file_id"]: r["path"] for r in pq.read_table(bundle / "files.parquet").to_pylist()}
    rows = pq.read_table(bundle / "io_events.parquet").to_pylist()
    return [row | {"path": files.get(row["file_id"])} for row in rows]


def calls_by_path(document: Any) -> Counter[str]:
    """Number of reads and writes of every file."""
    return Counter({r["path"]: r["reads"] + r["writes"] for r in document["files"]})


class Running:
    """A program that waits for a line on stdin before its work, and prints a line after it."""

    def __init__(self, script: str, *arguments: Argument):
        self.process = subprocess.Popen(
            [sys.executable, "-uc", script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.said()

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self.process.pid

    def said(self) -> str:
        """Next line of the output of the program."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def go(self) -> None:
        """Let the program continue."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def started_trace(*options: Argument) -> subprocess.Popen[str]:
    """Start `penstock trace` of running processes and wait until it traces; SIGINT ends it."""
    tracing = commands.popen(
        [Path(sys.executable).with_name("penstock"), "trace", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracing.stderr is not None
    # notes come first, such as about a measurement of the cost of hooks; reading to the end would
    # hang, as the trace continues until SIGINT
    lines = []
    while "tracing until" not in (line := tracing.stderr.readline()):
        lines.append(line)
        assert line, f"it ended before it traced: {''.join(lines)}"
    return tracing


def within(seconds: float, done: Any) -> bool:
    """True if a condition becomes true within a time."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
