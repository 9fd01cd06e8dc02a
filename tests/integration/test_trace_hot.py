"""Which files a tracer that chooses keeps, against what the traced program is known to do."""

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

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

FILES, FIRST, REQUESTS = 1000, 120_000, 300_000
SIZE = 512

PROGRAM = f"""
import os, random, sys, time
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
            time.sleep(0.3)
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


def asked(requests: int) -> Counter[int]:
    """What the program does to each file in its first so many requests."""
    scope: dict[str, Any] = {"__name__": "order"}
    exec(PROGRAM.split("if len(")[0], scope)
    return Counter(scope["order"](5, REQUESTS)[:requests])


def why_wrong(kept: Iterable[int], counts: Counter[int], share: float = 0.9) -> str | None:
    """What is wrong with a set that should be the smallest one to cover a share; None if nothing is."""
    kept, total = set(kept), sum(counts.values())
    fewest, covered = 0, 0
    for _, count in counts.most_common():
        if covered >= share * total:
            break
        fewest, covered = fewest + 1, covered + count
    covers = sum(counts[file] for file in kept) / total
    if covers < share:
        return f"covers {covers:.3f} of the requests"
    if len(kept) > fewest + 1:
        return f"has {len(kept)} files; {fewest} are enough"
    return None


def decisions(rows: list[dict[str, Any]], paths: dict[int, str]) -> dict[int, list[dict[str, Any]]]:
    """By time, the rows of each decision, with the file's number in its name."""
    made: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        made.setdefault(row["t_ns"], []).append(
            row | {"file": int(Path(paths[row["file_id"]]).name)}
        )
    return made


def verdicts(result: TraceResult) -> dict[tuple[int, str], dict[str, Any]]:
    """By number in the file's name and basis: the verdict on its reads."""
    measures = ("class", "requests", "bytes", "consecutive_share", "forward_share", "confidence")
    return {
        (int(Path(row["path"]).name), row["basis"]): {name: row[name] for name in measures}
        for row in result.tables["patterns"].to_pylist()
        if row["tid"] is None and row["direction"] == "read" and row["phase_id"] is None
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that knows what tracing costs, so that no test measures it."""
    return with_known_cost(tmp_path)


def traced(program: str, ground: Path, state: Path, **how: Any) -> TraceResult:
    """What a program does to the files of a directory, which is its argument."""
    journal = Journal(state / "journal")
    scope = read_scope(directories=[ground]).for_programs()
    with (
        create_run_cgroup("hot", None, journal) as group,
        Tracer(journal, state, "trace", scope=scope, **how) as tracer,
    ):
        tracer.arm(group)
        words = [sys.executable, "-S", "-c", program, str(ground)]
        assert launch(words, group).exit_status == 0
        return tracer.disarm()


def balanced(receipt: dict[str, Any]) -> bool:
    """Nothing lost, and every call that was kept is an event or in a counter."""
    counted = receipt["hot"]["counted"] if receipt["hot"] else 0
    return bool(
        receipt["lost"] == 0
        and receipt["seen"] == receipt["kept"] + receipt["filtered"]
        and receipt["kept"] == receipt["spooled"] + counted
    )


def test_the_smallest_set_is_kept_and_judged_as_without_choice(ground: Path, state: Path) -> None:
    plain = traced(PROGRAM, ground, state)
    result = traced(PROGRAM, ground, state, hot={})
    hot = result.receipt["hot"]
    assert balanced(plain.receipt)
    assert balanced(result.receipt)

    # nothing is thinned: events and counters together are what the program did
    rows = file_rows(Traced([], 0, 0, 1, "trace", result, None))
    reads = {int(Path(row["path"]).name): row["reads"] for row in rows if row["reads"]}
    assert reads == dict(asked(REQUESTS))
    assert 0 < hot["counted"] < 0.15 * REQUESTS
    assert f"{hot['counted']} of {result.receipt['kept']}" in describe(result.receipt)

    paths = {row["file_id"]: row["path"] for row in result.tables["files"].to_pylist()}
    made = decisions(result.tables["decisions"].to_pylist(), paths)
    first = made[min(made)]
    window = sum(row["requests"] for row in first)
    assert 100_000 <= window <= REQUESTS
    counts = asked(window)
    assert {row["file"]: row["requests"] for row in first if row["requests"]} == dict(counts)
    kept = {row["file"] for row in first if row["kept"]}
    assert why_wrong(kept, counts) is None
    # planted: a set without its most used file, and one with two that are hardly used
    assert "covers" in (why_wrong(kept - {0}, counts) or "")
    assert "enough" in (why_wrong(kept | {998, 999}, counts) or "")

    before, after = verdicts(plain), verdicts(result)
    always = set.intersection(*({r["file"] for r in made[t] if r["kept"]} for t in made))
    assert len(always) > 20
    for file in always:
        assert after[file, "calls"] == before[file, "calls"]
        assert (file, "counters") not in after
    left = [file for file, basis in after if basis == "counters"]
    assert len(left) == hot["counted_files"] > 100
    for file in left:
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
    """Ends each turn when three choices were made in it: the last two go by nothing but this turn."""
    for turn in range(3):
        made = choices_in(spool)
        in_time.append(within(30, lambda made=made: choices_in(spool) >= made + 3))
        (ground / f"turn{turn}").touch()


def choices_in(spool: Path) -> int:
    text = "".join(path.read_text() for path in spool.rglob("*.decisions"))
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return len({json.loads(line)["t_ns"] for line in lines})


def test_the_choice_follows_the_program(ground: Path, state: Path) -> None:
    """Two files take turns with three quarters of the requests; half of them are to be covered.

    By the hooks that need most of the verifier: all that they read goes through helpers.
    """
    how = {"share": 0.5, "first_requests": 400, "first_s": 60.0, "every_s": 0.2}
    in_time: list[bool] = []
    conductor = threading.Thread(target=end_turns, args=(ground, state / "spool", in_time))
    conductor.start()
    try:
        result = traced(TURNS, ground, state, hot=how, hooks="raw_tp")
    finally:
        conductor.join()
    assert in_time == [True, True, True]
    receipt = result.receipt
    assert balanced(receipt)
    files = result.tables["files"].to_pylist()
    paths = {row["file_id"]: row["path"] for row in files}
    number = {path: file_id for file_id, path in paths.items()}
    ours = [number[str(ground / str(i))] for i in range(3)]
    rows = result.tables["decisions"].to_pylist()
    kept = {i: [r["kept"] for r in rows if r["file_id"] == ours[i]] for i in range(3)}
    assert receipt["hot"]["decisions"] >= 9
    # the second is met, but not used, before the first choice; each is told once when it is not used any more
    for i, ends in ((0, (True, True)), (1, (False, False))):
        assert (kept[i][0], kept[i][-1]) == ends
        assert set(kept[i]) == {True, False}
    bases = {r["basis"]: r["calls"] for r in result.verdicts if r["file_id"] == ours[0]}
    assert bases["calls"] > bases["counters"] > 0
    assert not any(kept[2])
    asked_of = {
        i: sum(r["calls"] for r in result.verdicts if r["file_id"] == ours[i]) for i in range(3)
    }
    logged = {i: sum(r["requests"] for r in rows if r["file_id"] == ours[i]) for i in range(3)}
    for i in range(3):  # all but what came after the last decision
        assert 0 < logged[i] <= asked_of[i]
    assert ours[2] in {r["file_id"] for r in result.verdicts if r["basis"] == "counters"}
    # planted: a choice by another share is not what is asked of one by 90 %
    last = max(r["t_ns"] for r in rows)
    window = Counter({r["file_id"]: r["requests"] for r in rows if r["t_ns"] == last})
    chosen_last = {r["file_id"] for r in rows if r["t_ns"] == last and r["kept"]}
    assert why_wrong(chosen_last, window, 0.5) is None
    assert "covers" in (why_wrong(chosen_last, window) or "")


def test_the_bundle_and_the_summary_say_what_was_left(ground: Path, tmp_path: Path) -> None:
    options = ("--mode", "trace", "--no-layers", "--dir", ground)
    # 50 files, and few requests more than a first choice takes
    busy = PROGRAM.replace(f"range({FILES})]\n    anywhere", "range(50)]\n    anywhere").replace(
        "enumerate(order", "enumerate(x % 50 for x in order"
    )
    busy = busy.replace(str(REQUESTS), str(FIRST + 10_000))
    told = trace(
        *(sys.executable, "-S", "-c", busy, ground),
        options=(*options, "--hot-bytes", "-o", tmp_path / "made"),
    )
    assert told["hot"]["by"] == "bytes"
    assert told["hot"]["decisions"] >= 1
    run = next((tmp_path / "made").rglob("patterns.parquet")).parent
    manifest = json.loads(next((tmp_path / "made").rglob("manifest.json")).read_text())
    assert manifest["receipts"]["trace"]["hot"] == told["hot"]
    events = pq.read_metadata(run / "io_events.parquet").num_rows
    assert events + told["hot"]["counted"] == told["kept"]
    # judged again, what rests on counters stands
    again, _ = rejudged_patterns(TraceTables(run))
    assert again.num_rows == pq.read_metadata(run / "patterns.parquet").num_rows
    assert "counters" in again["basis"].to_pylist()
    for wrong in (("--hot",), ("--mode", "trace", "--hot", "--hot-bytes")):
        penstock("trace", *wrong, "--", "true", status=2)
