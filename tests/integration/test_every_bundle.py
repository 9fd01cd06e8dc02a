"""Every verb that takes a trace or a run, on everything that penstock itself has just written."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import commands
from tests.unit.test_named_bundles import outcomes
from tests.unit.test_trace_broken_bundles import no_waiting, run  # noqa: F401

pytestmark = [
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(
        not Path("/sys/kernel/btf/vmlinux").exists(), reason="kernel: no type information"
    ),
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]

ROOT = Path(__file__).parents[2]
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
      disks: [{name: data, profile: network-volume, size: 16MiB}]
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
    """A directory with one of everything; a study's results are in `out`."""
    place = tmp_path_factory.mktemp("written")
    (place / "scratch").mkdir()
    program = place / "program.py"
    program.write_text(PROGRAM)
    text = STUDY.replace("PYTHON", sys.executable).replace("PROGRAM", str(program))
    (place / "commits.study.yaml").write_text(text)

    def penstock(*words: object, allowed: tuple[int, ...] = (0,)) -> None:
        tool = Path(sys.executable).with_name("penstock")
        line = [tool, *map(str, words)]
        done = commands.run(line, capture_output=True, text=True, timeout=100, cwd=place)
        assert done.returncode in allowed, (words, done.stderr)

    program_here = (sys.executable, program, place / "scratch", 20)
    for mode in ("trace", "count"):
        penstock("trace", "--mode", mode, "-o", place / mode, "--", *program_here)
    penstock("replay", place / "trace", "--on", place / "scratch", "-o", place / "replayed")
    penstock("export", place / "trace", "fio", "-o", place / "jobs")
    penstock("import", *(place / "jobs").glob("thread-*.log"), "-o", place / "imported")
    penstock("monitor", "run", "-o", place / "monitored", "--", "sleep", "0.1")
    # a host that is too busy for the disk makes no run valid: its traces are there all the same
    penstock("run", place / "commits.study.yaml", "-o", place / "out", allowed=(0, 1))
    # of these only the name of what they leave is looked at
    for verb, left in (("predicted", "prediction.json"), ("explored", "exploration.json")):
        (place / verb).mkdir()
        (place / verb / left).write_text("{}")
    shutil.copytree(ROOT / "tests/golden/access-patterns-archive", place / "older")
    return place


def penstock_verbs(made: Path, name: str, place: Path) -> dict[str, tuple[int | str, str]]:
    """Status and stderr of each verb: no traceback, and one line where it refuses."""
    found = outcomes(f"{made}/{name}", place)
    for verb, (status, said) in found.items():
        assert status in (0, 1, 2), (name, verb, said)
        if status == 2:
            lines = said.splitlines()
            assert (len(lines), lines[0][:10]) == (1, "penstock: "), (name, verb, said)
    return found


def refusals(found: dict[str, tuple[int | str, str]]) -> dict[str, str]:
    assert all(status in (0, 2) for status, _ in found.values()), found
    return {verb: said for verb, (status, said) in found.items() if status}


@pytest.mark.parametrize("name", ["trace", "replayed", "imported", "out:r001"])
def test_what_holds_single_calls_is_taken_by_every_verb(
    made: Path, tmp_path: Path, name: str
) -> None:
    assert refusals(penstock_verbs(made, name, tmp_path)) == {}


def test_what_holds_counts_is_taken_by_verbs_that_need_no_calls(made: Path, tmp_path: Path) -> None:
    found = penstock_verbs(made, "count", tmp_path)
    refused = refusals(found)
    assert set(refused) == {verb for verb in found if verb.startswith("calls")}
    assert all("--mode trace" in said for said in refused.values())


#: what holds no trace, the words that say so, and the verbs that take it all the same
NOT_TRACED = {
    "monitored": ("`penstock monitor` wrote it; nothing was traced", {"compare"}),
    "older:r001": ("the run was not traced", {"compare"}),
    "predicted": ("found what `penstock predict` wrote", set()),
    "explored": ("found what `penstock explore` wrote", set()),
}


@pytest.mark.parametrize("name", NOT_TRACED)
def test_what_was_not_traced_is_told_in_one_line(made: Path, tmp_path: Path, name: str) -> None:
    words, taken = NOT_TRACED[name]
    found = penstock_verbs(made, name, tmp_path)
    refused = refusals(found)
    assert set(found) - set(refused) == taken
    for verb, said in refused.items():
        # these two take much besides, and say what they found none of
        other = "calls: workload show", "calls: workload convert"
        assert words in said or (verb in other and "no traced operations" in said), (verb, said)
    if name != "older:r001":
        status, said = run("replay", made / name, "--on", made / "scratch")
        assert (status, said.count("\n"), words in said) == (2, 1, True), said


def test_a_study_s_results_are_looked_at_whole_or_one_is_asked_for(
    made: Path, tmp_path: Path
) -> None:
    found = penstock_verbs(made, "out", tmp_path)
    # a host that is too busy for the disk leaves nothing to analyse: status 1, and it says so
    status, said = found.pop("analyse")
    assert status == 0 or (status == 1 and "no valid run" in said), said
    assert (found["report"][0], found["serve"][0]) == (0, 0), found
    assert found["calls: plot in the terminal"][0] == 0, found
    # planted: a study that was not traced has no offsets to draw
    status, said = run("plot", made / "older", "offsets")
    assert (status, "the study was not traced" in said, said.count("\n")) == (2, True, 1), said
    # two studies are compared by the order of their treatments; of no valid run there is none
    status, said = found["compare"]
    few = "valid run" in said or "fewer than two treatments" in said
    assert status == 0 or (status in (1, 2) and few), said
    exports = [verb for verb in found if verb.startswith("calls: export")]
    assert exports
    for verb in exports:
        assert f"expected one of them: {made}/out:r001" in found[verb][1], found[verb]


def test_a_treatment_is_its_valid_runs_or_it_is_said_that_there_is_none(
    made: Path, tmp_path: Path
) -> None:
    refused = refusals(penstock_verbs(made, "out:t01", tmp_path))
    manifest = json.loads((made / "out" / "runs" / "r001" / "manifest.json").read_text())
    if refused:
        assert not manifest["valid"] or manifest["treatment_id"] != "t01"
    assert all("none valid" in said for said in refused.values()), refused


def test_runs_of_a_study_are_compared(made: Path) -> None:
    tool = Path(sys.executable).with_name("penstock")
    words = [tool, "compare", f"{made}/out:r001", f"{made}/out:r002", "--json"]
    told = json.loads(commands.run(words, capture_output=True, check=True).stdout)
    (row,) = [
        row
        for row in told["differences"]
        if (row["path"], row["direction"]) == ("node1.data/journal", "sync")
    ]
    assert sorted((row["a"]["requests"], row["b"]["requests"])) == [5, 40]
    assert sorted((row["a"]["files"], row["b"]["files"])) == [5, 40]
