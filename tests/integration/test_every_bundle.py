"""Every verb that takes a trace or a run, on bundles just written by `run`, `trace`, `replay`, `monitor`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_named_bundles import outcomes, refused
from tests.unit.test_trace_broken_bundles import no_waiting  # noqa: F401

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here"),
    pytest.mark.skipif(
        not Path("/sys/kernel/btf/vmlinux").exists(), reason="the kernel has no type information"
    ),
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]

PROGRAM = """
import os, sys
for n in range(int(sys.argv[2])):
    journal = os.open(sys.argv[1] + "/journal", os.O_CREAT | os.O_RDWR)
    for k in range(8):
        os.write(journal, bytes(512))
    os.fdatasync(journal)
    os.close(journal)
    os.unlink(sys.argv[1] + "/journal")
data = os.open(sys.argv[1] + "/data", os.O_CREAT | os.O_RDWR)
os.write(data, bytes(1 << 20))
for k in range(200):
    os.pread(data, 4096, k * 4096)
"""
STUDY = """
penstock: 1
name: commits
question: Which number of commits?
factors:
  commits: {levels: [5, 40]}
design: {kind: full, replicates: 1, seed: 3}
platform:
  nodes:
    - name: node1
      disks: [{name: data, profile: hdd-7200, size: 16MiB}]
workload:
  command: PYTHON PROGRAM {data} {commits}
  timeout: 20s
responses:
  time: {from: wall_s, unit: s, better: lower}
observers:
  monitor: null
  trace: {mode: trace}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of bundles, and a study's results in `out`."""
    place = tmp_path_factory.mktemp("written")
    (place / "scratch").mkdir()
    program = place / "program.py"
    program.write_text(PROGRAM)
    text = STUDY.replace("PYTHON", sys.executable).replace("PROGRAM", str(program))
    (place / "commits.study.yaml").write_text(text)

    def penstock(*words: object, allowed: tuple[int, ...] = (0,)) -> None:
        tool = Path(sys.executable).with_name("penstock")
        line = [tool, *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=100)
        assert done.returncode in allowed, (words, done.stderr)

    program_here = (sys.executable, program, place / "scratch", 20)
    for mode in ("trace", "count"):
        penstock("trace", "--mode", mode, "-o", place / mode, "--", *program_here)
    penstock("replay", place / "trace", "--on", place / "scratch", "-o", place / "replayed")
    penstock("monitor", "run", "-o", place / "monitored", "--", "sleep", "0.1")
    # a host that is too busy for the disk makes no run valid: its traces are there all the same
    penstock("run", place / "commits.study.yaml", "-o", place / "out", allowed=(0, 1))
    penstock("replay", f"{place}/out:r001", "--on", place / "scratch", "--speed", "max")
    return place


@pytest.mark.parametrize("name", ["trace", "replayed", "out/runs/r001", "out:r002"])
def test_what_holds_single_calls_is_taken_by_every_verb(
    made: Path, tmp_path: Path, name: str
) -> None:
    assert refused(outcomes(f"{made}/{name}", tmp_path / "made")) == {}


def test_what_holds_counts_is_taken_by_verbs_that_need_no_calls(made: Path, tmp_path: Path) -> None:
    found = refused(outcomes(made / "count", tmp_path / "made"))
    assert all(verb.startswith("calls") for verb in found), found
    assert len(found) > 5


def test_what_was_not_traced_is_told_in_one_line(made: Path, tmp_path: Path) -> None:
    for verb, said in refused(outcomes(made / "monitored", tmp_path / "made")).items():
        assert "files.parquet: found no such file" in said or "traced" in said, (verb, said)


def test_runs_of_a_study_are_compared(made: Path) -> None:
    tool = Path(sys.executable).with_name("penstock")
    words = [tool, "compare", f"{made}/out:r001", f"{made}/out:r002", "--json"]
    told = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    (row,) = [
        row
        for row in told["differences"]
        if (row["path"], row["direction"]) == ("node1.data/journal", "sync")
    ]
    assert sorted((row["a"]["requests"], row["b"]["requests"])) == [5, 40]
    assert sorted((row["a"]["files"], row["b"]["files"])) == [5, 40]
