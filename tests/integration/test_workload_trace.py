"""A real traced pipeline of programs as a workload. Needs root and BPF."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.tracing import known_cost
from tests.support import commands

__all__ = ["known_cost"]  # a fixture
pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(
        not Path("/sys/kernel/btf/vmlinux").exists(), reason="kernel: no type information"
    ),
]

#: bytes are no multiples of any block; dd copies by read and write, which is what the tracer sees
SCRIPT = """set -e
dd if=/dev/zero of=a bs=10007 count=101 status=none
dd if=/dev/zero of=b bs=5003 count=50 status=none
cat a b | dd of=ab bs=7919 iflag=fullblock status=none
dd if=ab of=left bs=4096 count=100 status=none
dd if=ab of=right bs=4096 skip=100 status=none
sort -z left right -o final
"""
A, B = 10007 * 101, 5003 * 50
LEFT = 4096 * 100


def penstock(*words: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = commands.run(
        [Path(sys.executable).with_name("penstock"), *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the script was traced into the bundle T."""
    path = tmp_path_factory.mktemp("pipeline")
    (path / "run.sh").write_text(f"cd {path}\n{SCRIPT}")
    penstock("trace", "--mode", "trace", "-o", path / "T", "--", "sh", path / "run.sh")
    return path


def described(place: Path, *more: str) -> Any:
    out = place / "w.json"
    penstock("workload", "trace", place / "T", "-o", out, *more)
    return json.loads(out.read_text())


def moved(task: Any, op: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for o in task["operations"]:
        if o["op"] == op:
            found[o["file"]] = found.get(o["file"], 0) + o["size_bytes"]
    return found


def test_files_and_bytes_of_every_task_are_exact(place: Path) -> None:
    workload = described(place)
    tasks = {
        frozenset(moved(t, "write")): (moved(t, "read"), moved(t, "write"))
        for t in workload["tasks"]
    }
    assert tasks[frozenset({"a"})] == ({}, {"a": A})
    assert tasks[frozenset({"b"})] == ({}, {"b": B})
    assert tasks[frozenset({"ab"})] == ({}, {"ab": A + B})  # from a pipe
    assert tasks[frozenset({"left"})] == ({"ab": LEFT}, {"left": LEFT})
    assert tasks[frozenset({"right"})] == ({"ab": A + B - LEFT}, {"right": A + B - LEFT})
    reads, writes = tasks[frozenset({"final"})]
    assert reads == {"left": LEFT, "right": A + B - LEFT}
    # sort -z ends every line with a zero: nothing but zeros comes in, so nothing is added
    assert writes == {"final": (place / "final").stat().st_size} == {"final": A + B}
    readers = [moved(t, "read") for t in workload["tasks"] if not moved(t, "write")]
    assert {"a": A, "b": B} in readers  # cat, into the pipe
    assert {"run.sh": (place / "run.sh").stat().st_size} in readers


def test_the_graph_is_that_of_the_files(place: Path) -> None:
    workload = described(place)
    writer = {name: t["name"] for t in workload["tasks"] for name in moved(t, "write")}
    for task in workload["tasks"]:
        expected = {writer[name] for name in moved(task, "read") if name in writer}
        assert set(task.get("after", [])) == expected, task["name"]
    assert {f["name"] for f in workload["files"] if f.get("preloaded")} == {"run.sh"}


def test_what_was_traced_can_be_simulated_and_shown(place: Path) -> None:
    import importlib

    native: Any = importlib.import_module("penstock._native")
    native.NetworkWorkload(json.dumps(described(place, "--order", "observed")))
    shown = json.loads(penstock("workload", "show", place / "T", "--json").stdout)
    assert shown["bytes"]["written"] == 4 * (A + B)  # a and b, ab, left and right, final
    # what a pipe carries is no file: the program that writes ab waits for no one
    assert [level["level"] for level in shown["levels"]] == [0, 1, 2]


def test_a_planted_loss_is_told(place: Path) -> None:
    bundle = place / "lossy"
    penstock(
        *("trace", "--mode", "trace", "--drop-every", "50", "-o", bundle),
        *("--", "sh", place / "run.sh"),
    )
    done = penstock("workload", "trace", bundle, "-o", place / "lossy.json", "--per", "command")
    assert "events were lost; bytes and times are too small" in done.stderr
    workload = json.loads((place / "lossy.json").read_text())
    assert sum(moved(workload["tasks"][0], "write").values()) < 4 * (A + B)
