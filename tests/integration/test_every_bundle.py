"""Run every verb that accepts a trace or a run on every kind of bundle that penstock writes."""

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
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one bundle of each kind; the results of a study are in `out`."""
    directory = tmp_path_factory.mktemp("written")
    (directory / "scratch").mkdir()
    program = directory / "program.py"
    program.write_text(PROGRAM)
    text = STUDY.replace("PYTHON", sys.executable).replace("PROGRAM", str(program))
    (directory / "commits.study.yaml").write_text(text)

    def penstock(*argv: object, allowed: tuple[int, ...] = (0,)) -> None:
        tool = Path(sys.executable).with_name("penstock")
        command = [tool, *map(str, argv)]
        result = commands.run(command, capture_output=True, text=True, timeout=100, cwd=directory)
        assert result.returncode in allowed, (argv, result.stderr)

    workload = (sys.executable, program, directory / "scratch", 20)
    for mode in ("trace", "count"):
        penstock("trace", "--mode", mode, "-o", directory / mode, "--", *workload)
    penstock(
        "replay", directory / "trace", "--on", directory / "scratch", "-o", directory / "replayed"
    )
    penstock("export", directory / "trace", "fio", "-o", directory / "jobs")
    penstock("import", *(directory / "jobs").glob("thread-*.log"), "-o", directory / "imported")
    penstock("monitor", "run", "-o", directory / "monitored", "--", "sleep", "0.1")
    # on a busy host no run is valid; the traces exist nevertheless
    penstock("run", directory / "commits.study.yaml", "-o", directory / "out", allowed=(0, 1))
    # of these only the file names are read
    for verb, file in (("predicted", "prediction.json"), ("explored", "exploration.json")):
        (directory / verb).mkdir()
        (directory / verb / file).write_text("{}")
    shutil.copytree(ROOT / "tests/golden/access-patterns-archive", directory / "older")
    return directory


def results_of_verbs(bundles: Path, name: str, directory: Path) -> dict[str, tuple[int | str, str]]:
    """Status and stderr of each verb: no traceback, and one line with status 2."""
    results = outcomes(f"{bundles}/{name}", directory)
    for verb, (status, stderr) in results.items():
        assert status in (0, 1, 2), (name, verb, stderr)
        if status == 2:
            lines = stderr.splitlines()
            assert (len(lines), lines[0][:10]) == (1, "penstock: "), (name, verb, stderr)
    return results


def refusals(results: dict[str, tuple[int | str, str]]) -> dict[str, str]:
    assert all(status in (0, 2) for status, _ in results.values()), results
    return {verb: stderr for verb, (status, stderr) in results.items() if status}


@pytest.mark.parametrize("name", ["trace", "replayed", "imported", "out:r001"])
def test_every_verb_accepts_a_bundle_with_single_calls(
    bundles: Path, tmp_path: Path, name: str
) -> None:
    assert refusals(results_of_verbs(bundles, name, tmp_path)) == {}


def test_verbs_that_need_no_calls_accept_counts(bundles: Path, tmp_path: Path) -> None:
    results = results_of_verbs(bundles, "count", tmp_path)
    messages = refusals(results)
    assert set(messages) == {verb for verb in results if verb.startswith("calls")}
    assert all("--mode trace" in stderr for stderr in messages.values())


#: bundles without a trace: part of the message, and the verbs that accept them nevertheless
NOT_TRACED = {
    "monitored": ("`penstock monitor` wrote it; nothing was traced", {"compare"}),
    "older:r001": ("the run was not traced", {"compare"}),
    "predicted": ("found what `penstock predict` wrote", set()),
    "explored": ("found what `penstock explore` wrote", set()),
}


@pytest.mark.parametrize("name", NOT_TRACED)
def test_a_bundle_without_a_trace_is_refused_in_one_line(
    bundles: Path, tmp_path: Path, name: str
) -> None:
    reason, accepting = NOT_TRACED[name]
    results = results_of_verbs(bundles, name, tmp_path)
    messages = refusals(results)
    assert set(results) - set(messages) == accepting
    for verb, stderr in messages.items():
        # these two accept other input, too; their message names the missing operations
        general = "calls: workload show", "calls: workload convert"
        assert reason in stderr or (verb in general and "no traced operations" in stderr), (
            verb,
            stderr,
        )
    if name != "older:r001":
        status, stderr = run("replay", bundles / name, "--on", bundles / "scratch")
        assert (status, stderr.count("\n"), reason in stderr) == (2, 1, True), stderr


def test_verbs_accept_a_study_or_ask_for_one_run(bundles: Path, tmp_path: Path) -> None:
    results = results_of_verbs(bundles, "out", tmp_path)
    # on a busy host no run is valid: status 1 with a message
    status, stderr = results.pop("analyse")
    assert status == 0 or (status == 1 and "no valid run" in stderr), stderr
    assert (results["report"][0], results["serve"][0]) == (0, 0), results
    assert results["calls: plot in the terminal"][0] == 0, results
    # planted: a study without a trace has no offsets to plot
    status, stderr = run("plot", bundles / "older", "offsets")
    assert (status, "the study was not traced" in stderr, stderr.count("\n")) == (2, True, 1), (
        stderr
    )
    # studies are compared by the order of their treatments, which needs valid runs
    status, stderr = results["compare"]
    too_few_runs = "valid run" in stderr or "fewer than two treatments" in stderr
    assert status == 0 or (status in (1, 2) and too_few_runs), stderr
    exports = [verb for verb in results if verb.startswith("calls: export")]
    assert exports
    for verb in exports:
        assert f"expected one of them: {bundles}/out:r001" in results[verb][1], results[verb]


def test_a_treatment_is_refused_only_without_valid_runs(bundles: Path, tmp_path: Path) -> None:
    messages = refusals(results_of_verbs(bundles, "out:t01", tmp_path))
    manifests = [json.loads(p.read_text()) for p in bundles.glob("out/runs/r*/manifest.json")]
    (valid,) = [m["valid"] for m in manifests if m["treatment_id"] == "t01"]
    assert bool(messages) == (not valid), messages
    assert all("none valid" in stderr for stderr in messages.values()), messages


def test_runs_of_a_study_are_compared(bundles: Path) -> None:
    tool = Path(sys.executable).with_name("penstock")
    argv = [tool, "compare", f"{bundles}/out:r001", f"{bundles}/out:r002", "--json"]
    comparison = json.loads(commands.run(argv, capture_output=True, check=True).stdout)
    (row,) = [
        row
        for row in comparison["differences"]
        if (row["path"], row["direction"]) == ("node1.data/journal", "sync")
    ]
    assert sorted((row["a"]["requests"], row["b"]["requests"])) == [5, 40]
    assert sorted((row["a"]["files"], row["b"]["files"])) == [5, 40]
