"""Bundles of traced runs with known rows, written without tracing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.observe.trace.capture.events import DIRECTIONS, FIRST_WRITE, NUMBERS

WAYS = {name: DIRECTIONS[number // FIRST_WRITE] for name, number in NUMBERS.items()}

START_NS = 5_000_000_000_000

Row = dict[str, Any]


def event(t_ns: int, op: str = "pread64", **values: Any) -> Row:
    """One row of `io_events`; `t_ns` from the start."""
    row: Row = {
        "t_ns": START_NS + t_ns,
        "op": op,
        "direction": WAYS[op],
        "file_id": 1,
        "offset_bytes": 0,
        "size_bytes": 4096,
        "errno": 0,
        "latency_ns": 10_000,
        "pid": 100,
        "tid": 100,
        "flags": 0,
    }
    row |= values
    row.setdefault("done_bytes", row["size_bytes"] if row["errno"] == 0 else 0)
    return row


def write_tables(
    path: Path,
    tables: Mapping[str, pa.Table | list[Row] | None],
    command: list[str],
    **manifest: Any,
) -> Path:
    """Write a finished bundle of the tables that are not None; return its path."""
    with Bundle.create(path, {"command": command, "run_id": "r001"}) as bundle:
        for name, rows in tables.items():
            if rows is not None:
                table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
                bundle.write_table(name, table)
        bundle.manifest.update(manifest)
    return path


def write_bundle(
    path: Path,
    rows: list[Row],
    *,
    paths: dict[int, str] | None = None,
    requests: list[Row] | None = None,
    patterns: list[Row] | None = None,
    lost: int = 0,
) -> Path:
    """Write a finished bundle of the events in their given order; return its path."""
    rows = [row | {"seq": n} for n, row in enumerate(rows)]
    names = paths or {1: "/data/x"}
    clock: Row = {"point": "start", "monotonic_ns": START_NS, "boottime_ns": START_NS + 7}
    clock |= {"realtime_ns": 1_700_000_000 * 10**9, "offset_ns": 0, "offset_bound_ns": 0}
    tables = {
        "io_events": rows,
        "files": [{"file_id": n, "path": name, "size_bytes": 1 << 20} for n, name in names.items()],
        "clocks": [clock],
        "device_requests": requests,
        "patterns": patterns,
    }
    times = {"start_ns": START_NS}
    return write_tables(path, tables, ["made", "up"], losses={"trace": lost}, times=times)


def random_rows(n: int, seed: int = 1) -> list[Row]:
    """Events of three threads of two processes on two files; only asynchronous ones overlap."""
    draw = np.random.default_rng(seed)
    ops = ["pread64", "write", "fsync", "aio_pread", "open"]
    free = {100: 0, 101: 0, 200: 0}
    rows = []
    now = 0
    for _ in range(n):
        tid = int(draw.choice([100, 101, 200]))
        op = str(draw.choice(ops))
        latency = int(draw.integers(1, 200_000))
        if op == "aio_pread":
            start = now
        else:
            start = max(now, free[tid])
            free[tid] = start + latency
        now = start + int(draw.integers(0, 50_000))
        size = int(draw.integers(1, 100)) * 512 if op in ("pread64", "write", "aio_pread") else 0
        failed = bool(draw.random() < 0.05)
        rows.append(
            event(
                start,
                op,
                tid=tid,
                pid=100 if tid < 200 else 200,
                file_id=int(draw.integers(1, 3)),
                offset_bytes=int(draw.integers(0, 1 << 40)) if size else 0,
                size_bytes=size,
                errno=5 if failed else 0,
                latency_ns=latency,
                flags=64 if op == "aio_pread" else 0,
            )
        )
    return sorted(rows, key=lambda row: row["t_ns"])
