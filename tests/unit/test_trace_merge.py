"""Traces of two hosts with different clocks as one, without a kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.errors import BadInput
from penstock.host.probe.clock_offset import Offset
from penstock.observe.trace.capture.events import ENCODINGS, EVENT, SCHEMA, SpoolReader
from penstock.observe.trace.capture.events import write_events as write
from penstock.observe.trace.recordings import merge
from penstock.observe.trace.recordings.bundle import write_recording
from penstock.observe.trace.recordings.merge import HostTrace, merge_samples, merge_traces
from tests.unit.test_trace_tables import calls

_native = pytest.importorskip("penstock._native")

#: control groups: node 0, node 1, and one of no node
GROUPS = {0: 5001, 1: 5002, 2: 6000}


def trace(folder: Path, host: str, events: np.ndarray, offset: Offset) -> HostTrace:
    """Trace of nodes `HOST-0` and `HOST-1`, whose slots are 0 and 1; times are those of the host."""
    spool = folder / f"{host}.events"
    events.tofile(spool)
    names = {n: f"/disks/data/f{n}" for n in sorted(set(events["file_id"].tolist()))}
    with Bundle.create(folder / host, {"run_id": "r001"}) as bundle:
        with bundle.table_writer("io_events", SCHEMA, ENCODINGS) as writer:
            write(SpoolReader(spool, GROUPS, _native.Judge()), writer)
        files = [{"file_id": n, "path": path, "inode": 100 + n} for n, path in names.items()]
        bundle.write_table("files", pa.Table.from_pylist(files, TABLES["files"].arrow))
        threads = [
            {"tid": tid, "pid": tid, "program": "writer", "first_ns": 10, "started_ns": None}
            for tid in sorted(set(events["tid"].tolist()))
        ]
        bundle.write_table("threads", pa.Table.from_pylist(threads, TABLES["threads"].arrow))
        bundle.manifest["receipts"] = {"trace": {"seen": len(events) + 3, "kept": len(events)}}
        bundle.manifest["losses"] = {"trace": 3}
    return HostTrace(host, folder / host, offset, {5001: f"{host}-0", 5002: f"{host}-1"})


def merged(folder: Path, *traces: HostTrace) -> TracedRun:
    (folder / "work").mkdir()
    with Bundle.create(folder / "all", {"run_id": "r001"}) as bundle:
        write_recording(bundle, merge_traces(traces, folder / "work"))
    return TracedRun(folder / "all")


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_events_are_in_the_order_of_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Two hosts take turns; the clock of one is 3 s ahead, that of the other 1 s behind."""
    monkeypatch.setattr(merge, "_CHUNK", chunk)
    times = 10_000_000_000 + 1000 * np.arange(202)
    offsets = Offset(3_000_000_000, 40_000, 8), Offset(-1_000_000_000, 10_000, 8)
    parts = [
        trace(
            tmp_path,
            host,
            calls(101, "pwrite64", t_ns=times[number::2] + offset.offset_ns),
            offset,
        )
        for number, (host, offset) in enumerate(zip(("left", "right"), offsets, strict=True))
    ]
    run = merged(tmp_path, *parts)
    events = run.table("io_events", ["t_ns", "file_id", "tid"]).to_pydict()
    assert events["t_ns"] == times.tolist()
    assert events["file_id"] == [1, 2] * 101
    assert len(set(events["tid"])) == 2
    assert {row.path: row.kind for row in run.overall_verdicts} == {
        "left-0:/disks/data/f1": "consecutive",
        "right-0:/disks/data/f1": "consecutive",
    }
    within = "order of events on two hosts within 0.05 ms of each other"
    assert run.manifest["source"]["not_known"][0] == within
    assert run.manifest["losses"] == {"trace": 6}


def test_files_and_threads_have_their_nodes(tmp_path: Path) -> None:
    """File 2 belongs to both nodes of its host; the last event belongs to no node."""
    events = calls(6, "pwrite64", t_ns=1000 * np.arange(1, 7))
    events["file_id"] = [1, 2, 2, 3, 3, 4]
    events["cgroup_slot"] = [0, 0, 1, 1, 1, 2]
    events["tid"] = events["pid"] = [7, 7, 8, 8, 8, 9]
    events["done_bytes"][3] = -28
    clock = Offset(0, 0, 8)
    right_events = calls(1, "pwrite64", t_ns=5000)
    run = merged(
        tmp_path,
        trace(tmp_path, "left", events, clock),
        trace(tmp_path, "right", right_events, clock),
    )
    files = {row["path"]: row for row in run.table("files").to_pylist()}
    assert {path: (row["host_id"], row["node_id"]) for path, row in files.items()} == {
        "left-0:/disks/data/f1": ("left", "left-0"),
        "left:/disks/data/f2": ("left", ""),
        "left-1:/disks/data/f3": ("left", "left-1"),
        "right-0:/disks/data/f1": ("right", "right-0"),
    }
    assert [(row["tid"] & 0xFFFF, row["node_id"]) for row in run.table("threads").to_pylist()] == [
        (7, "left-0"),
        (8, "left-1"),
        (7, "right-0"),
    ]
    written = run.table("io_events", ["file_id", "errno", "done_bytes"]).to_pylist()
    assert [row["errno"] for row in written] == [0, 0, 0, 28, 0, 0]
    assert {row["file_id"] for row in written} == {row["file_id"] for row in files.values()}
    receipt = run.manifest["receipts"]["trace"]
    assert [receipt[name] for name in ("seen", "kept", "filtered", "lost")] == [13, 6, 1, 6]


def test_samples_of_all_hosts_have_one_clock(tmp_path: Path) -> None:
    """Entities of hosts have the host's name as a prefix; those of nodes are unique in the cluster."""
    parts = []
    for number, host in enumerate(("left", "right")):
        clock = Offset(10**9 * (1 - 3 * number), 0, 8)
        part = trace(tmp_path, host, calls(1), clock)
        rows = [
            {"t_ns": 100 + number + clock.offset_ns, "source": s, "entity": e, "value": 1.0}
            for s, e in (("cpu", "all"), ("cgroup", f"{host}-0"), ("network", f"{host}-1 e0"))
        ]
        part_bundle = Bundle.open(part.bundle)
        part_bundle.write_table("samples", pa.Table.from_pylist(rows, TABLES["samples"].arrow))
        parts.append(part)
    merged_rows = merge_samples(parts, "samples").to_pylist()
    assert [(r["t_ns"], r["host_id"], r["entity"]) for r in merged_rows] == [
        (100, "left", "left:all"),
        (100, "left", "left-0"),
        (100, "left", "left-1 e0"),
        (101, "right", "right:all"),
        (101, "right", "right-0"),
        (101, "right", "right-1 e0"),
    ]


def test_events_outside_the_run_are_filtered(tmp_path: Path) -> None:
    """Times of the run are in the time base; the clock of the host is 1 s ahead."""
    ahead = 1_000_000_000
    part = trace(
        tmp_path,
        "left",
        calls(5, "pwrite64", t_ns=ahead + 1000 * np.arange(1, 6)),
        Offset(ahead, 0, 8),
    )
    recording = merge_traces([part], tmp_path, (2000, 4000))
    assert np.fromfile(recording.spool, EVENT)["t_ns"].tolist() == [2000, 3000, 4000]
    assert (recording.counts["kept"], recording.counts["filtered"]) == (3, 2)


def test_a_trace_without_events_is_refused(tmp_path: Path) -> None:
    with Bundle.create(tmp_path / "counts", {}) as bundle:
        bundle.manifest["receipts"] = {}
    with pytest.raises(BadInput, match="only counts"):
        merge_traces([HostTrace("a", tmp_path / "counts", Offset(0, 0, 8), {1: "n"})], tmp_path)


def test_an_offset_covers_the_drift_between_two_measurements() -> None:
    first, later = Offset(1000, 100, 8), Offset(1600, 50, 8)
    between = first.until(later)
    assert between == Offset(1275, 375, 16)
    for offset in (first, later):
        assert abs(between.offset_ns - offset.offset_ns) + offset.bound_ns <= between.bound_ns
