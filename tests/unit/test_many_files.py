"""Traces of very many files: their common sentence, and the work of the report page."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.traces.served import Served
from penstock.analyse.traces.trace_losses import losses
from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.schemas import TABLES
from penstock.observe.trace.layers.coverage import SeenPages
from penstock.observe.trace.show.closing_sentence import Below, closing_sentence
from penstock.observe.trace.verdicts.patterns import judge_events, patterns_table
from penstock.report.trace import sections
from penstock.report.trace.gather import gather
from tests.unit.test_trace_tables import calls

#: a loader with four processes that reads many files
FILES = 400
WALL_NS = 50 * 10**6


def once_each(files: int, op: str = "read") -> list[dict[str, Any]]:
    """Verdicts on files of 10,000 bytes, each read (or written) by one call of 290 µs."""
    events = np.concatenate([calls(1, op, latency_ns=290_000) for _ in range(files)])
    events["file_id"] = np.arange(1, files + 1)
    events["t_ns"] = 10**9 + np.arange(files) * 1000
    events["size_bytes"] = events["done_bytes"] = 10_000
    return judge_events(events)


def paths(files: int) -> dict[int, str | None]:
    return {number: f"/data/set/{number // 100}/{number}.jpg" for number in range(1, files + 1)}


def test_many_small_files_share_a_sentence() -> None:
    sentence = closing_sentence(
        once_each(FILES), paths(FILES), WALL_NS, sizes=dict.fromkeys(paths(FILES), 10_000)
    )
    assert sentence.startswith(
        "Reads of 400 small files below /data/set take the time of 2.32 threads: "
    )
    assert "9.77 KiB and 290 µs each, read once" in sentence
    assert (
        "pack the files (one archive or larger records), or read ahead with more processes"
        in sentence
    )
    assert ".jpg" not in sentence
    assert "ask for more per call" not in sentence


def test_files_that_grow_or_are_read_in_part_are_not_read_once_or_often() -> None:
    every = paths(FILES)
    some = dict.fromkeys(range(1, 21), 0)
    written = once_each(FILES, "write")
    for row in written:
        row["time_ns"] //= 10
    for rows, sizes in (
        (once_each(FILES) + written, dict.fromkeys(every, 0)),  # created, then read
        (once_each(FILES) + written, dict.fromkeys(every, 2_000)),  # appended to, then read
        (once_each(FILES), dict.fromkeys(every, 0)),  # of procfs
        (once_each(FILES), dict.fromkeys(every, 10_000) | some),
        (once_each(FILES), dict.fromkeys(every, 1_000_000)),  # only their first bytes
    ):
        sentence = closing_sentence(rows, every, WALL_NS, sizes=sizes)
        assert sentence.startswith("Reads of 400 small files")
        assert ", read " not in sentence.partition(";")[0], sentence


def test_shares_of_the_run_are_at_most_100_percent() -> None:
    rows = once_each(FILES)
    for wall_ns in (10**6, 10**7, 10**9):
        sentence = closing_sentence(rows, paths(FILES), wall_ns)
        shares = [int(word) for word, unit in itertools.pairwise(sentence.split()) if unit == "%"]
        assert all(share <= 100 for share in shares), sentence


def test_cached_small_files() -> None:
    sources = dict.fromkeys(("cached", "ahead", "device", "missed", "filled", "untold"), 0)
    served = Served(
        1, "read", "calls", sources | {"cached": 400}, sources | {"cached": 10**8}, {}, 0
    )
    sentence = closing_sentence(once_each(FILES), paths(FILES), WALL_NS, below=Below(served))
    assert "it is their number that costs" in sentence
    assert "read ahead" not in sentence


def test_written_and_flushed_files_share_a_sentence() -> None:
    sentence = closing_sentence(once_each(FILES, "write"), paths(FILES), WALL_NS)
    assert sentence.startswith("Writes of 400 small files below /data/set")
    flushes = [
        {"file_id": n, "direction": "sync", "calls": 1, "time_ns": 10**6} for n in paths(FILES)
    ]
    sentence = closing_sentence([*once_each(FILES, "write"), *flushes], paths(FILES), WALL_NS)
    assert sentence.startswith("Flushes of 400 files below /data/set")


def test_file_with_most_of_the_time_is_named() -> None:
    rows = [*once_each(FILES), *judge_events(calls(1000, latency_ns=10**6))]
    rows[-1]["file_id"] = FILES + 1
    sentence = closing_sentence(rows, paths(FILES) | {FILES + 1: "/data/big"}, 2 * 10**9)
    assert "/data/big" in sentence
    assert "small files" not in sentence


def bundle(path: Path, files: int) -> TracedRun:
    """Bundle of a run that reads each file once, with cache use of the calls."""
    path.mkdir()
    rows, names = once_each(files), paths(files)
    number = np.arange(files)
    code = pa.array(np.zeros(files, np.int8))
    events = {
        "t_ns": 10**9 + number * 20_000,
        "seq": number.astype(np.uint64),
        "op": pa.DictionaryArray.from_arrays(code, pa.array(["read"])),
        "direction": pa.DictionaryArray.from_arrays(code, pa.array(["read"])),
        "file_id": number + 1,
        "latency_ns": np.full(files, 290_000),
        **dict.fromkeys(("offset_bytes", "errno", "flags"), np.zeros(files, np.int64)),
        **dict.fromkeys(("size_bytes", "done_bytes"), np.full(files, 10_000)),
        **dict.fromkeys(("pid", "tid"), 100 + number % 4),
    }
    use = {
        "seq": number.astype(np.uint64),
        **dict.fromkeys(("pages_hit", "pages_readahead"), np.zeros(files, np.int64)),
        **dict.fromkeys(("pages_missed", "requests"), np.ones(files, np.int64)),
        "device_ns": np.full(files, 250_000),
        "join": pa.array(["exact"] * files),
    }
    listed = [{"file_id": n, "path": p, "size_bytes": 10_000} for n, p in names.items()]
    end_ns = 10**9 + files * 20_000
    tables = {
        "io_events": pa.table(events),
        "cache_use": pa.table(use),
        "files": pa.Table.from_pylist(listed, TABLES["files"].arrow),
        "patterns": patterns_table(rows, names),
    }
    for name, table in tables.items():
        pq.write_table(table, path / f"{name}.parquet")
    receipt = {"mode": "trace", "seen": files, "kept": files, "filtered": 0, "lost": 0}
    times = {"start_ns": 10**9, "end_ns": end_ns}
    manifest = {"command": ["loader"], "receipts": {"trace": receipt}, "times": times}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return TracedRun(path)


def test_finding_of_many_small_files(tmp_path: Path) -> None:
    findings = {f.code: f for f in bundle(tmp_path / "T", FILES).findings}
    many = findings["trace-many-files"]
    assert many.severity == "warning"
    assert many.evidence["files"] == FILES
    assert "take the time of " in many.statement
    assert "trace-many-files" not in {f.code for f in bundle(tmp_path / "few", 50).findings}


def work(run: TracedRun, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count calls of per-file and per-row functions while the page is generated."""
    counts: dict[str, int] = {}

    def count_calls(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, wrapper)

    with monkeypatch.context() as patch:
        monkeypatch = patch
        for name in ("served_on", "served", "waits", "files_of_path", "name", "verdicts_on"):
            count_calls(TracedRun, name)
        count_calls(type(run.all_served), "__getitem__")
        sections.files(run, gather(run))
        assert run.findings
    return counts


def test_work_of_the_page_is_linear_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four times as many files cost at most four times the work, not sixteen times."""
    few = work(bundle(tmp_path / "few", 1000), monkeypatch)
    many = work(bundle(tmp_path / "many", 4000), monkeypatch)
    assert few.keys() == many.keys()
    for name, count in many.items():
        assert count <= 4 * few[name] + 100, (name, few[name], count)
    # names and sentences exist only for displayed rows
    assert many["name"] <= 2 * sections.MOST_FILES


def test_pages_of_faults_by_process() -> None:
    rng = np.random.default_rng(7)
    n = 3000
    events = pa.table(
        {
            "file_id": rng.integers(1, 40, n),
            "pid": rng.integers(100, 140, n),
            "offset_bytes": 4096 * rng.integers(0, 50, n),
            "size_bytes": 4096 * rng.integers(1, 4, n),
        }
    )
    seen = SeenPages(events)
    rows = events.to_pylist()
    for file_id, pid in [(1, 100), (7, 133), (39, 139), (50, 1)]:
        pages = {
            row["offset_bytes"] // 4096 + step
            for row in rows
            if (row["file_id"], row["pid"]) == (file_id, pid)
            for step in range(row["size_bytes"] // 4096)
        }
        assert seen.of(file_id, pid).tolist() == sorted(pages)
    assert SeenPages(events.slice(0, 0)).of(1, 100).tolist() == []


@pytest.mark.parametrize(
    ("mode", "counts", "more", "remedy", "absent"),
    [
        ("trace", {"lost_ring_full": 5}, {}, "--ring-size", "counters"),
        ("pattern", {"lost_ring_full": 5}, {}, "--mode count", "--ring-size"),
        ("count", {"lost_no_memory": 5}, {}, "--mode pattern", "--ring-size"),
        ("trace", {"lost_unresolved": 5}, {}, "Nothing helps", "--ring-size"),
        (
            *("trace", {}, {"lost_unspooled": 5, "spool_failure": "/run: No space left"}),
            *("No space left", "--ring-size"),
        ),
        ("trace", {"lost_planted": 5}, {}, "--drop-every", "--ring-size"),
    ],
)
def test_remedy_of_lost_events(
    mode: str, counts: dict[str, int], more: dict[str, Any], remedy: str, absent: str
) -> None:
    receipt = {"mode": mode, "seen": 100, "lost": 5, "per_probe": {"calls": counts}, **more}
    (finding,) = [
        f
        for f in TracedRun({}, {"receipts": {"trace": receipt}}).findings
        if f.code == "trace-lost"
    ]
    assert remedy in str(finding.what_to_do)
    assert absent not in str(finding.what_to_do)
    assert sum(losses(receipt).values()) == 5
