"""Choice of the hot files by the tracer, compared with the known requests of the program."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.archive.traces.trace_tables import TraceTables
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.trace.capture.hot_set import describe
from penstock.observe.trace.capture.scope import read_scope
from penstock.observe.trace.capture.session import Traced
from penstock.observe.trace.capture.tracer import Tracer, TraceResult
from penstock.observe.trace.show.summary import file_rows
from penstock.observe.trace.verdicts.rejudge import rejudged_patterns
from tests.integration.tracing import (
    NEEDS_TRACER,
    known_cost,
    penstock,
    trace,
    with_known_cost,
    within,
)
from tests.support.files import files_below

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

FILES, FIRST, REQUESTS = 1000, 120_000, 300_000
SIZE = 512

#: arguments: directory of the files, and state directory of a tracer whose first choice it waits for
PROGRAM = f"""
import glob, os, random, sys, time
def chosen():
    logs = glob.glob(f"{{sys.argv[2]}}/spool/**/*.decisions", recursive=True)
    return any(os.path.getsize(log) for log in logs)
def order(seed, n):
    weights = [1 / (rank + 1) ** 1.2 for rank in range({FILES})]
    return random.Random(seed).choices(range({FILES}), weights, k=n)
if len(sys.argv) > 1:
    open_files = [os.open(f"{{sys.argv[1]}}/{{i}}", os.O_RDONLY) for i in range({FILES})]
    anywhere, done = random.Random(3), [0] * {FILES}
    for n, i in enumerate(order(5, {REQUESTS})):
        place = done[i] if i % 2 else anywhere.randrange(512)
        done[i] += 1
        os.pread(open_files[i], {SIZE}, place % 512 * {SIZE})
        if n == {FIRST}:
            until = time.monotonic() + 60
            while len(sys.argv) > 2 and not chosen() and time.monotonic() < until:
                time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    directory = tmp_path_factory.mktemp("many")
    for number in range(FILES):
        (directory / str(number)).touch()
        os.truncate(directory / str(number), 512 * SIZE)
    return directory


def expected_counts(requests: int) -> Counter[int]:
    """Requests of the program per file, among its first `requests` requests."""
    scope: dict[str, Any] = {"__name__": "order"}
    exec(PROGRAM.split("if len(")[0], scope)
    return Counter(scope["order"](5, REQUESTS)[:requests])


def problem_of(files: Iterable[int], counts: Counter[int], share: float = 0.9) -> str | None:
    """Reason why a set of files is not the smallest set that covers a share; None if it is."""
    files, total = set(files), sum(counts.values())
    fewest, covered = 0, 0
    for _, count in counts.most_common():
        if covered >= share * total:
            break
        fewest, covered = fewest + 1, covered + count
    covered_share = sum(counts[file] for file in files) / total
    if covered_share < share:
        return f"covers {covered_share:.3f} of the requests"
    if len(files) > fewest + 1:
        return f"has {len(files)} files; {fewest} are enough"
    return None


def decisions(rows: list[dict[str, Any]], paths: dict[int, str]) -> dict[int, list[dict[str, Any]]]:
    """Rows of each decision by time, with the number in the name of the file."""
    by_time: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_time.setdefault(row["t_ns"], []).append(
            row | {"file": int(Path(paths[row["file_id"]]).name)}
        )
    return by_time


def verdicts(result: TraceResult) -> dict[tuple[int, str], dict[str, Any]]:
    """Verdict on the reads of each file, by the number in its name and by basis."""
    measures = ("class", "requests", "bytes", "consecutive_share", "forward_share", "confidence")
    return {
        (int(Path(row["path"]).name), row["basis"]): {name: row[name] for name in measures}
        for row in result.tables["patterns"].to_pylist()
        if row["tid"] is None and row["direction"] == "read" and row["phase_id"] is None
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a recorded cost of tracing, so that no test measures it."""
    return with_known_cost(tmp_path)


def traced(program: str, ground: Path, state: Path, **options: Any) -> TraceResult:
    """Trace the accesses of a program to the files of a directory, which is its first argument."""
    journal = Journal(state / "journal")
    scope = read_scope(directories=[ground]).for_programs()
    with (
        create_run_cgroup("hot", None, journal) as group,
        Tracer(journal, state, "trace", scope=scope, **options) as tracer,
    ):
        tracer.arm(group)
        argv = [sys.executable, "-S", "-c", program, str(ground)]
        argv += [str(state)] if "hot" in options else []
        assert launch(argv, group).exit_status == 0
        return tracer.disarm()


def balanced(stats: dict[str, Any]) -> bool:
    """True if no call was lost and every kept call is an event or in a counter."""
    counted = stats["hot"]["counted"] if stats["hot"] else 0
    return bool(
        stats["lost"] == 0
        and stats["seen"] == stats["kept"] + stats["filtered"]
        and stats["kept"] == stats["spooled"] + counted
    )


def test_the_smallest_set_is_chosen_and_its_verdicts_stay_equal(ground: Path, state: Path) -> None:
    plain = traced(PROGRAM, ground, state)
    # the first choice is by the number of requests, however slow the program is
    result = traced(PROGRAM, ground, state, hot={"first_s": 600.0})
    hot = result.receipt["hot"]
    assert balanced(plain.receipt)
    assert balanced(result.receipt)

    # no call is missing: events and counters add up to the requests of the program
    rows = file_rows(Traced([], 0, 0, 1, "trace", result, None))
    reads = {int(Path(row["path"]).name): row["reads"] for row in rows if row["reads"]}
    assert reads == dict(expected_counts(REQUESTS))
    assert 0 < hot["counted"] < 0.15 * REQUESTS
    assert f"{hot['counted']} of {result.receipt['kept']}" in describe(result.receipt)

    paths = {row["file_id"]: row["path"] for row in result.tables["files"].to_pylist()}
    by_time = decisions(result.tables["decisions"].to_pylist(), paths)
    first = by_time[min(by_time)]
    window = sum(row["requests"] for row in first)
    assert 100_000 <= window <= REQUESTS
    counts = expected_counts(window)
    assert {row["file"]: row["requests"] for row in first if row["requests"]} == dict(counts)
    chosen = {row["file"] for row in first if row["kept"]}
    assert problem_of(chosen, counts) is None
    # planted: a set without its most used file, and one with two rarely used files
    assert "covers" in (problem_of(chosen - {0}, counts) or "")
    assert "enough" in (problem_of(chosen | {998, 999}, counts) or "")

    before, after = verdicts(plain), verdicts(result)
    always = set.intersection(*({r["file"] for r in by_time[t] if r["kept"]} for t in by_time))
    assert len(always) > 20
    for file in always:
        assert after[file, "calls"] == before[file, "calls"]
        assert (file, "counters") not in after
    counted_files = [file for file, basis in after if basis == "counters"]
    assert len(counted_files) == hot["counted_files"] > 100
    for file in counted_files:
        verdict = after[file, "counters"]
        if verdict["requests"] < 32:
            assert verdict["class"] == "insufficient"
        elif file % 2:
            assert verdict["class"] == "consecutive", file
        else:
            assert verdict["class"] in ("random", "irregular", "hot-set"), file


TURNS = """
import os, sys, time
open_files = [os.open(f"{sys.argv[1]}/{i}", os.O_RDONLY) for i in range(3)]
for turn, busy in enumerate((0, 1, 0)):
    while not os.path.exists(f"{sys.argv[1]}/turn{turn}"):
        for n in range(40):
            os.pread(open_files[busy if n % 4 else 2], 512, 512 * n)
        time.sleep(0.001)
    os.pread(open_files[2], 512, 1 << 20)
"""


def end_turns(ground: Path, spool: Path, in_time: list[bool]) -> None:
    """End each turn after three choices: the last two are based on requests of this turn only."""
    try:
        for turn in range(3):
            before = count_choices(spool)
            in_time.append(within(60, lambda before=before: count_choices(spool) >= before + 3))
            (ground / f"turn{turn}").touch()
    finally:
        for turn in range(3):  # the program runs until it has seen all
            (ground / f"turn{turn}").touch()


def count_choices(spool: Path) -> int:
    files = (path for path, _ in files_below(spool) if path.suffix == ".decisions")
    text = "".join(path.read_text() for path in files)
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return len({json.loads(line)["t_ns"] for line in lines})


def test_the_choice_follows_the_program(ground: Path, state: Path) -> None:
    """Two files get three quarters of the requests in turn; the choice covers half of all requests.

    Raw tracepoints are the hardest hooks for the verifier: all their reads go through helpers.
    """
    hot = {"share": 0.5, "first_requests": 400, "first_s": 60.0, "every_s": 0.2}
    in_time: list[bool] = []
    conductor = threading.Thread(target=end_turns, args=(ground, state / "spool", in_time))
    conductor.start()
    try:
        result = traced(TURNS, ground, state, hot=hot, hooks="raw_tp")
    finally:
        conductor.join()
    assert in_time == [True, True, True]
    stats = result.receipt
    assert balanced(stats)
    files = result.tables["files"].to_pylist()
    paths = {row["file_id"]: row["path"] for row in files}
    id_of = {path: file_id for file_id, path in paths.items()}
    file_ids = [id_of[str(ground / str(i))] for i in range(3)]
    rows = result.tables["decisions"].to_pylist()
    choices = {i: [r["kept"] for r in rows if r["file_id"] == file_ids[i]] for i in range(3)}
    assert stats["hot"]["decisions"] >= 9
    # file 1 is opened, but not read, before the first choice; a row reports when a file is dropped
    for i, first_and_last in ((0, (True, True)), (1, (False, False))):
        assert (choices[i][0], choices[i][-1]) == first_and_last
        assert set(choices[i]) == {True, False}
    bases = {r["basis"]: r["calls"] for r in result.verdicts if r["file_id"] == file_ids[0]}
    assert bases["calls"] > bases["counters"] > 0
    assert not any(choices[2])
    calls = {
        i: sum(r["calls"] for r in result.verdicts if r["file_id"] == file_ids[i]) for i in range(3)
    }
    logged = {i: sum(r["requests"] for r in rows if r["file_id"] == file_ids[i]) for i in range(3)}
    for i in range(3):  # requests after the last decision are not logged
        assert 0 < logged[i] <= calls[i]
    assert file_ids[2] in {r["file_id"] for r in result.verdicts if r["basis"] == "counters"}
    # planted: a choice for another share does not satisfy 90 %
    last = max(r["t_ns"] for r in rows)
    window = Counter({r["file_id"]: r["requests"] for r in rows if r["t_ns"] == last})
    chosen_last = {r["file_id"] for r in rows if r["t_ns"] == last and r["kept"]}
    assert problem_of(chosen_last, window, 0.5) is None
    assert "covers" in (problem_of(chosen_last, window) or "")


def test_bundle_and_summary_report_counted_calls(ground: Path, tmp_path: Path) -> None:
    options = ("--mode", "trace", "--no-layers", "--dir", ground)
    # 50 files, and slightly more requests than before the first choice
    program = PROGRAM.replace(f"range({FILES})]\n    anywhere", "range(50)]\n    anywhere").replace(
        "enumerate(order", "enumerate(x % 50 for x in order"
    )
    program = program.replace(str(REQUESTS), str(FIRST + 10_000))
    document = trace(
        *(sys.executable, "-S", "-c", program, ground, os.environ["PENSTOCK_STATE"]),
        options=(*options, "--hot-bytes", "-o", tmp_path / "made"),
    )
    assert document["hot"]["by"] == "bytes"
    assert document["hot"]["decisions"] >= 1
    run = next((tmp_path / "made").rglob("patterns.parquet")).parent
    manifest = json.loads(next((tmp_path / "made").rglob("manifest.json")).read_text())
    assert manifest["receipts"]["trace"]["hot"] == document["hot"]
    events = pq.read_metadata(run / "io_events.parquet").num_rows
    assert events + document["hot"]["counted"] == document["kept"]
    # a reevaluation keeps the verdicts that are based on counters
    reevaluated, _ = rejudged_patterns(TraceTables(run))
    assert reevaluated.num_rows == pq.read_metadata(run / "patterns.parquet").num_rows
    assert "counters" in reevaluated["basis"].to_pylist()
    for arguments in (("--hot",), ("--mode", "trace", "--hot", "--hot-bytes")):
        penstock("trace", *arguments, "--", "true", status=2)
