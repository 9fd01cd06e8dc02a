"""Trace bundles written from the published table formats alone, for the tests of pages and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.observe.trace.capture.events import DIRECTIONS, EVENT, NUMBERS
from penstock.observe.trace.verdicts.patterns import judge_events, patterns_table
from tests.examples.trace import write_tables

START_NS = 5_000_000_000


def events(
    n: int, *, files: int = 2, seed: int = 1, span_bytes: int = 1 << 30, depth: int = 1
) -> np.ndarray[Any, Any]:
    """Random reads mixed with sequential writes; one call in a hundred is to file `files`, and some fail."""
    rng = np.random.default_rng(seed)
    rows = np.zeros(n, EVENT)
    write = rng.random(n) < 0.3
    rows["t_ns"] = START_NS + 1000 + np.arange(n) * 100_000
    rows["latency_ns"] = (rng.lognormal(11, 0.5, n) * depth).astype(np.uint64)
    rows["op"] = np.where(write, NUMBERS["pwrite64"], NUMBERS["pread64"])
    rows["offset_bytes"] = np.where(
        write, np.cumsum(write) * 8192, rng.integers(0, span_bytes // 4096, n) * 4096
    )
    rows["size_bytes"] = np.where(write, 8192, 4096)
    rows["done_bytes"] = rows["size_bytes"]
    rows["done_bytes"][::997] = -5
    rows["op"][::1009] = NUMBERS["fsync"]
    rows["file_id"] = np.where(rng.random(n) < 0.01, files, 1)
    rows["pid"] = rows["tid"] = 4711
    return rows


def events_table(rows: np.ndarray[Any, Any]) -> pa.Table:
    """Table `io_events` of the events."""
    names = {number: name for name, number in NUMBERS.items()}
    done_bytes = rows["done_bytes"].astype(np.int64)
    columns = {
        "t_ns": rows["t_ns"].astype(np.int64),
        "seq": np.arange(len(rows), dtype=np.uint64),
        "op": pa.array([names[op] for op in rows["op"].tolist()]).dictionary_encode(),
        "direction": pa.array(np.array(DIRECTIONS)[rows["op"] // 32]).dictionary_encode(),
        "file_id": rows["file_id"].astype(np.int64),
        "offset_bytes": rows["offset_bytes"].astype(np.int64),
        "size_bytes": rows["size_bytes"].astype(np.int64),
        "done_bytes": np.maximum(done_bytes, 0),
        "errno": np.maximum(-done_bytes, 0),
        "latency_ns": rows["latency_ns"].astype(np.int64),
        "pid": rows["pid"].astype(np.int64),
        "tid": rows["tid"].astype(np.int64),
        "cgroup_id": np.full(len(rows), 77, np.uint64),
        "flags": rows["flags"].astype(np.int64),
    }
    return pa.table(columns)


def write_bundle(
    path: Path,
    rows: np.ndarray[Any, Any],
    *,
    names: dict[int, str] | None = None,
    receipt: dict[str, Any] | None = None,
    phases: tuple[tuple[str, int, int], ...] = (),
    command: tuple[str, ...] = ("program", "--with", "words"),
) -> Path:
    """Write a bundle of the events in the format of the tracer; return its path."""
    names = names or {}
    end_ns = int(rows["t_ns"].max()) + 10_000_000
    count = len(rows)
    ids = sorted({int(i) for i in np.unique(rows["file_id"])})
    paths = {i: names.get(i, f"/data/file{i}") for i in ids}
    files = [
        {
            "file_id": i,
            "dev_major": 254,
            "dev_minor": 0,
            "inode": 100 + i,
            "generation": 0,
            "path": paths[i],
            "size_bytes": 1 << 30,
            "disk_id": None,
        }
        for i in ids
    ]
    data_rows = rows[rows["op"] < NUMBERS["fsync"]]
    spans = [("workload", START_NS, end_ns), *phases]
    trace_receipt = {"mode": "trace", "seen": count, "kept": count, "filtered": 0, "lost": 0}
    tables = {
        "files": files,
        "io_events": events_table(rows),
        "patterns": patterns_table(judge_events(data_rows), paths),
        "phases": [{"phase_id": p, "start_ns": s, "end_ns": e} for p, s, e in spans],
    }
    return write_tables(
        path,
        tables,
        list(command),
        exit_status=0,
        closing="100 % of read time: 4 KiB random reads.",
        receipts={"trace": trace_receipt | (receipt or {})},
        times={"start_ns": START_NS, "end_ns": end_ns},
    )


def manifest(path: Path) -> Any:
    """Read the bundle's manifest."""
    return json.loads((path / "manifest.json").read_text())
