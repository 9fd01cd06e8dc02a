"""A traced pipeline of real programs as a workload."""

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

#: sizes are not multiples of a block; dd copies by read and write, which the tracer records
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


def penstock(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    result = commands.run(
        [Path(sys.executable).with_name("penstock"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == status, result.stderr
    return result


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the traced script and its bundle T."""
    path = tmp_path_factory.mktemp("pipeline")
    (path / "run.sh").write_text(f"cd {path}\n{SCRIPT}")
    penstock("trace", "--mode", "trace", "-o", path / "T", "--", "sh", path / "run.sh")
    return path


def workload_of(directory: Path, *options: str) -> Any:
    out = directory / "w.json"
    penstock("workload", "trace", directory / "T", "-o", out, *options)
    return json.loads(out.read_text())


def bytes_by_file(task: Any, op: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for operation in task["operations"]:
        if operation["op"] == op:
            sizes[operation["file"]] = sizes.get(operation["file"], 0) + operation["size_bytes"]
    return sizes


def test_files_and_bytes_of_every_task_are_exact(directory: Path) -> None:
    workload = workload_of(directory)
    tasks = {
        frozenset(bytes_by_file(t, "write")): (bytes_by_file(t, "read"), bytes_by_file(t, "write"))
        for t in workload["tasks"]
    }
    assert tasks[frozenset({"a"})] == ({}, {"a": A})
    assert tasks[frozenset({"b"})] == ({}, {"b": B})
    assert tasks[frozenset({"ab"})] == ({}, {"ab": A + B})  # from a pipe
    assert tasks[frozenset({"left"})] == ({"ab": LEFT}, {"left": LEFT})
    assert tasks[frozenset({"right"})] == ({"ab": A + B - LEFT}, {"right": A + B - LEFT})
    reads, writes = tasks[frozenset({"final"})]
    assert reads == {"left": LEFT, "right": A + B - LEFT}
    # sort -z ends every line with a zero; the input is only zeros, so sort adds nothing
    assert writes == {"final": (directory / "final").stat().st_size} == {"final": A + B}
    readers = [bytes_by_file(t, "read") for t in workload["tasks"] if not bytes_by_file(t, "write")]
    assert {"a": A, "b": B} in readers  # cat, into the pipe
    assert {"run.sh": (directory / "run.sh").stat().st_size} in readers


def test_the_graph_follows_from_the_files(directory: Path) -> None:
    workload = workload_of(directory)
    writer = {name: t["name"] for t in workload["tasks"] for name in bytes_by_file(t, "write")}
    for task in workload["tasks"]:
        expected = {writer[name] for name in bytes_by_file(task, "read") if name in writer}
        assert set(task.get("after", [])) == expected, task["name"]
    assert {f["name"] for f in workload["files"] if f.get("preloaded")} == {"run.sh"}


def test_a_traced_workload_can_be_simulated_and_shown(directory: Path) -> None:
    import importlib

    native: Any = importlib.import_module("penstock._native")
    native.NetworkWorkload(json.dumps(workload_of(directory, "--order", "observed")))
    summary = json.loads(penstock("workload", "show", directory / "T", "--json").stdout)
    assert summary["bytes"]["written"] == 4 * (A + B)  # a and b, ab, left and right, final
    # a pipe is not a file: the program that writes ab has no predecessor
    assert [level["level"] for level in summary["levels"]] == [0, 1, 2]


def test_a_planted_loss_is_reported(directory: Path) -> None:
    bundle = directory / "lossy"
    penstock(
        *("trace", "--mode", "trace", "--drop-every", "50", "-o", bundle),
        *("--", "sh", directory / "run.sh"),
    )
    result = penstock(
        "workload", "trace", bundle, "-o", directory / "lossy.json", "--per", "command"
    )
    assert "events were lost; bytes and times are too small" in result.stderr
    workload = json.loads((directory / "lossy.json").read_text())
    assert sum(bytes_by_file(workload["tasks"][0], "write").values()) < 4 * (A + B)
