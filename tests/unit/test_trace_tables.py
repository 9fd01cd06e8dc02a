"""From spool records to tables, verdicts and the closing sentence, without a kernel."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.analyse.traces.served import SOURCES, Served
from penstock.archive.bundle import Bundle
from penstock.observe.trace.capture.events import (
    ENCODINGS,
    EVENT,
    NUMBERS,
    SCHEMA,
    SpoolReader,
    files_table,
    write_events,
)
from penstock.observe.trace.show.closing_sentence import Below, closing_sentence, of_paths
from penstock.observe.trace.verdicts.patterns import (
    judge_events,
    patterns_table,
    sentence,
    verdicts,
)
from penstock.text import size as size_in_words


def calls(n: int, op: str = "pread64", **columns: object) -> np.ndarray:
    events = np.zeros(n, EVENT)
    events["t_ns"] = np.arange(n) * 1000
    events["op"] = NUMBERS[op]
    events["size_bytes"] = events["done_bytes"] = 4096
    events["offset_bytes"] = np.arange(n) * 4096
    events["latency_ns"] = 500
    events["file_id"], events["tid"], events["pid"] = 1, 7, 7
    for name, values in columns.items():
        events[name] = values
    return events


def in_bundle(
    directory: Path, events: np.ndarray, cgroups: dict[int, int], torn: bytes = b""
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of `io_events` and verdicts, written through a spool file."""
    spool = directory / "spool.events"
    spool.write_bytes(events.tobytes() + torn)
    classifier = importlib.import_module("penstock._native").Judge()
    reader = SpoolReader(spool, cgroups, classifier)
    assert reader.events == len(events)
    with (
        Bundle.create(directory / "T", {"run_id": "r001"}) as bundle,
        bundle.table_writer("io_events", SCHEMA, ENCODINGS) as writer,
    ):
        assert write_events(reader, writer) == len(events)
    table = pq.read_table(directory / "T" / "io_events.parquet")
    assert table.schema.field("t_ns").metadata[b"unit"] == b"ns"
    return table.to_pylist(), verdicts(classifier)


def test_spool_is_sorted_and_a_torn_tail_dropped(tmp_path: Path) -> None:
    assert EVENT.itemsize == 48
    events = calls(100)
    rows, (row,) = in_bundle(tmp_path, events[::-1], {0: 77}, b"torn")
    assert [r["t_ns"] for r in rows] == events["t_ns"].tolist()
    assert [r["offset_bytes"] for r in rows] == events["offset_bytes"].tolist()
    assert row["together"]["class"] == "consecutive"
    assert rows[0]["run_id"] == "r001"


def test_events_table_separates_bytes_from_errors(tmp_path: Path) -> None:
    events = calls(3, done_bytes=[4096, 0, -5], cgroup_slot=[0, 1, 9])
    table, (row,) = in_bundle(tmp_path, events, {0: 77, 1: 78})
    assert [row["done_bytes"] for row in table] == [4096, 0, 0]
    assert [row["errno"] for row in table] == [0, 0, 5]
    assert [row["seq"] for row in table] == [0, 1, 2]
    assert [row["cgroup_id"] for row in table] == [77, 78, 78]
    assert {row["op"] for row in table} == {"pread64"}
    assert {row["direction"] for row in table} == {"read"}
    assert (row["calls"], row["errors"], row["done_bytes"]) == (3, 1, 4096)


def test_faults_are_classified_separately_with_fault_around_merged() -> None:
    pages = np.arange(200)
    reads = calls(200, "fault_read", offset_bytes=pages * 65536)
    around = calls(200, "fault_around", offset_bytes=pages * 65536)
    around["size_bytes"] = around["done_bytes"] = 65536
    private = calls(200, "fault_write", flags=4)
    both = np.concatenate([calls(100), np.ravel([reads, around], order="F"), private])
    rows = {(r["direction"], r["basis"]): r for r in judge_events(both)}
    assert set(rows) == {("read", "calls"), ("read", "faults"), ("write", "faults")}
    faults = rows["read", "faults"]
    assert faults["calls"] == 400
    assert faults["together"]["requests"] == 200
    assert faults["together"]["class"] == "consecutive"
    assert rows["write", "faults"]["together"]["requests"] == 0  # private copies
    sync = judge_events(calls(50, "fsync"))
    assert sync == []


def test_files_without_a_name_keep_their_identity(tmp_path: Path) -> None:
    unnamed = {"file_id": 2, "dev_major": 254, "dev_minor": 1, "inode": 5, "generation": 6}
    named = unnamed | {"file_id": 1, "path_hex": b"/a\xff/b".hex(), "size_bytes": 9}
    repeated = unnamed | {"file_id": 1}
    path = tmp_path / "files"
    path.write_text("".join(json.dumps(r) + "\n" for r in (named, unnamed, repeated)) + '{"torn')
    rows = files_table(path, {(254, 1): "data"}).to_pylist()
    assert [(r["file_id"], r["path"]) for r in rows] == [(1, "/a\\udcff/b"), (2, None)]
    assert {r["disk_id"] for r in rows} == {"data"}
    assert rows[0]["size_bytes"] == 9


def test_reads_and_writes_are_classified_separately() -> None:
    reads = calls(100)
    writes = calls(100, "pwrite64", offset_bytes=np.arange(100)[::-1] * 4096)
    both = np.concatenate([reads, writes])
    both = both[np.argsort(both["t_ns"], kind="stable")]
    rows = {row["direction"]: row for row in judge_events(both)}
    assert rows["read"]["together"]["class"] == "consecutive"
    assert rows["write"]["together"]["class"] == "reverse"
    assert rows["read"]["done_bytes"] == 100 * 4096
    table = patterns_table(list(rows.values()), {1: "/data"}).to_pylist()
    assert [(r["direction"], r["tid"]) for r in table] == [
        ("read", None),
        ("read", 7),
        ("write", None),
        ("write", 7),
    ]
    assert all(r["path"] == "/data" for r in table)


def test_failed_and_empty_calls_count_but_are_not_classified() -> None:
    events = calls(102)
    events["done_bytes"][50] = -5
    events["done_bytes"][101] = 0
    (row,) = judge_events(events)
    assert (row["calls"], row["errors"]) == (102, 1)
    assert row["together"]["requests"] == 100
    assert judge_events(calls(0)) == []


@pytest.mark.parametrize(
    ("latency_ns", "wall_ns", "advice"),
    [
        (500, 10**5, "page cache"),
        (500, 10**10, "not what it waits for"),
        (10**6, 10**8, "ask for more per call"),
    ],
)
def test_closing_gives_advice(latency_ns: int, wall_ns: int, advice: str) -> None:
    rows = judge_events(calls(100, latency_ns=latency_ns))
    summary = closing_sentence(rows, {1: "/data"}, wall_ns)
    assert "100 % of read time: 4 KiB consecutive reads on /data" in summary
    assert advice in summary
    assert "lost" not in summary
    assert "3 events were lost" in closing_sentence(rows, {1: "/data"}, wall_ns, lost=3)


def test_closing_names_the_file_with_most_time() -> None:
    slow = calls(50, file_id=2, latency_ns=9_000_000, offset_bytes=np.arange(50) * 7919 % 50 * 4096)
    summary = closing_sentence(
        judge_events(np.concatenate([calls(1000), slow])), {1: "/fast", 2: "/slow"}, 10**9
    )
    assert "on /slow" in summary


def test_sizes_in_words() -> None:
    assert [size_in_words(n) for n in (0, 153, 4096, 28 * 1024, 3 << 30)] == [
        "0 B",
        "153 B",
        "4 KiB",
        "28 KiB",
        "3 GiB",
    ]


def test_closing_names_flushes_where_they_take_the_time() -> None:
    flushes = {"file_id": 1, "direction": "sync", "calls": 100, "time_ns": 90_000_000}
    summary = closing_sentence([flushes], {1: "/data/log"}, 100_000_000)
    assert "100 flushes of /data/log, 900 µs each" in summary
    assert "90 % of the run" in summary
    assert "groups" in summary
    assert "not what it waits for" in closing_sentence([flushes], {}, 100_000_000_000)


def _served(source: str, calls: int, ns: int) -> Served:
    def only(n: int) -> dict[str, int]:
        return dict.fromkeys(SOURCES, 0) | {source: n}

    pages = dict.fromkeys(("hit", "ahead", "missed"), 0)
    return Served(1, "read", "calls", only(calls), only(ns), pages, 0)


@pytest.mark.parametrize(
    ("source", "explanation"),
    [
        ("cached", "the page cache serves them"),
        ("ahead", "the kernel has read ahead what they ask for"),
        ("filled", "no device served most of it"),
        ("device", "(100 % of them waited for the device)"),
    ],
)
def test_closing_explains_by_the_source_of_the_data(source: str, explanation: str) -> None:
    rows = judge_events(calls(100, latency_ns=400_000))
    served = _served(source, 100, 40_000_000)
    summary = closing_sentence(rows, {1: "/data"}, 10**8, below=Below(served))
    assert explanation in summary
    assert ("waited for the device" in summary) == (source == "device")
    assert "judging by their time" not in summary


def test_closing_without_layers_is_marked_as_inferred() -> None:
    rows = judge_events(calls(100, latency_ns=900))
    summary = closing_sentence(rows, {1: "/data"}, 10**6)
    assert "judging by their time, the page cache serves them" in summary
    for row in rows:
        row["basis"] = "device"  # the page cache served none of these requests
    assert "page cache" not in closing_sentence(rows, {1: "/data"}, 10**6)


def test_closing_mentions_flushes_of_cached_files() -> None:
    rows = judge_events(calls(100, latency_ns=900))
    flushes = [
        {"file_id": n, "direction": "sync", "calls": 40, "time_ns": 80_000} for n in (1, 2, 3)
    ]
    summary = closing_sentence([*rows, *flushes], {1: "/data"}, 10**6)
    assert "not a faster disk" not in summary
    assert "flushes take 24 % of the run" in summary


def test_closing_counts_opening_and_naming() -> None:
    rows = judge_events(calls(100, latency_ns=900))
    summary = closing_sentence(rows, {1: "/data"}, 10**8, others_ns=50_000_000)
    assert "not what it waits for" not in summary
    assert "open and other calls on names take 50 %" in summary


def test_files_of_one_path_are_merged() -> None:
    def row(file_id: int, direction: str, calls: int, **columns: Any) -> dict[str, Any]:
        return {
            "file_id": file_id,
            "direction": direction,
            "calls": calls,
            "time_ns": 10**6,
        } | columns

    verdict = {"class": "consecutive", "k": None, "median_size_bytes": 4096}
    journals = dict.fromkeys(range(2, 52), "/d/t.db-journal")
    paths: dict[int, str | None] = {1: "/d/t.db", **journals, 60: None, 61: None}
    rows = [row(1, "sync", 5, time_ns=6 * 10**6)]
    written = {"done_bytes": 100, "basis": "calls", "together": verdict, "time_ns": 10_000}
    rows += [row(n, "write", n, **written) for n in journals]
    rows += [row(n, "sync", 2) for n in (*journals, 60, 61)]
    merged = {(r["file_id"], r["direction"]): r for r in of_paths(rows, paths)}
    assert len(merged) == 5  # files without a path are not merged
    write = merged[51, "write"]
    assert (write["files"], write["calls"], write["done_bytes"]) == (50, sum(journals), 5000)
    assert (merged[2, "sync"]["files"], merged[2, "sync"]["time_ns"]) == (50, 50 * 10**6)
    again = of_paths(merged.values(), paths)
    assert {(r["file_id"], r["direction"]): r for r in again} == merged
    summary = closing_sentence(rows, paths, 200 * 10**6)
    assert "100 flushes of /d/t.db-journal × 50 files, 500 µs each" in summary


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        (1, "1 request is too few to classify (32 are needed)"),
        (2, "2 requests are too few to classify (32 are needed)"),
    ],
)
def test_too_few_requests_are_counted_in_the_singular_and_plural(
    requests: int, expected: str
) -> None:
    assert sentence({"class": "insufficient", "requests": requests}) == expected
