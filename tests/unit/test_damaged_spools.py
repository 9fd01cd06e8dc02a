"""Spools that a crash or a fault has damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.emulate.disks.request_log import DISK_REQUEST_DTYPE, read_disk_log
from penstock.errors import PenstockError
from penstock.observe.sampler.samples import SAMPLE_DTYPE, read_samples
from penstock.observe.trace.capture.counts import COUNTER, read_counts
from penstock.observe.trace.layers.join import RECORD, join


def spool(path: Path, form: np.dtype[Any], **columns: Any) -> Path:
    rows = np.zeros(3, form)
    for name, values in columns.items():
        rows[name] = values
    path.write_bytes(rows.tobytes())
    return path


@pytest.mark.parametrize(
    "columns",
    [
        {"calls": [1, 0, 1]},
        {"calls": 1, "direction": [0, 1, 2]},
    ],
)
def test_invalid_counts_are_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match=r"s: record [12] is damaged"):
        read_counts(spool(tmp_path / "s", COUNTER, **columns))


def test_undamaged_counts_are_read(tmp_path: Path) -> None:
    rows = read_counts(spool(tmp_path / "s", COUNTER, calls=2, direction=[0, 1, 0], asked_bytes=8))
    assert [(row["direction"], row["calls"]) for row in rows] == [
        ("read", 2),
        ("write", 2),
        ("read", 2),
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("op", 3), ("t_ns", 1 << 63), ("offset_bytes", 1 << 63), ("visit", 1 << 31)]
)
def test_invalid_requests_are_refused(tmp_path: Path, name: str, value: int) -> None:
    log = spool(tmp_path / "s", DISK_REQUEST_DTYPE, **{name: [0, value, 0]})
    with pytest.raises(PenstockError, match="s: record 1 is damaged"):
        read_disk_log(log)


def test_large_file_numbers_use_no_memory(tmp_path: Path) -> None:
    log = spool(tmp_path / "s", DISK_REQUEST_DTYPE, file_id=[0, 1 << 31, 7])
    lines = [{"file_id": 0, "path": "a"}, {"file_id": 1 << 31, "path": "b"}, {"file_id": 1e999}]
    Path(f"{log}.files").write_text("\n".join([*map(json.dumps, lines), "[" * 100_000]))
    assert read_disk_log(log)["file"].to_pylist() == ["a", "b", None]


@pytest.mark.parametrize("line", ["5", "[]", '{"series": 0, "source": "cpu"}'])
def test_invalid_names_of_series_are_refused(tmp_path: Path, line: str) -> None:
    samples = spool(tmp_path / "s", SAMPLE_DTYPE)
    Path(f"{samples}.series").write_text(line + "\n")
    with pytest.raises(PenstockError, match="line 1 names no series"):
        read_samples(samples)


@pytest.mark.parametrize(
    "columns",
    [{"size_bytes": 1 << 48}, {"size_bytes": (1 << 64) - 1}, {"offset_bytes": (1 << 63) - 1}],
)
def test_a_request_larger_than_memory_is_refused(columns: dict[str, int]) -> None:
    rows = np.zeros(2, RECORD)
    rows["kind"], rows["size_bytes"] = 3, 4096
    for name, value in columns.items():
        rows[name][1] = value
    columns_of_files = {name: pa.array([1]) for name in ("file_id", "dev_major", "dev_minor")}
    columns_of_files |= {name: pa.array([1], pa.uint64()) for name in ("inode", "generation")}
    with pytest.raises(PenstockError, match="record 1 is damaged"):
        join(rows, pa.table({**columns_of_files, "path": pa.array(["/a"])}), None)
