"""Spools of penstock's daemons."""

from __future__ import annotations

import contextlib
import importlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.emulate.disks.request_log import DISK_REQUEST_DTYPE, read_disk_log
from penstock.errors import PenstockError
from penstock.observe.sampler.alerts import Evaluator
from penstock.observe.sampler.samples import SAMPLE_DTYPE, read_samples
from penstock.observe.sampler.spool_reader import Follower
from penstock.observe.trace.capture.counts import COUNTER, read_counts
from penstock.observe.trace.capture.events import EVENT, SpoolReader
from penstock.observe.trace.layers.join import RECORD, join
from penstock.observe.trace.verdicts.patterns import judge_spool
from penstock.spec.alert import parse_rule
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target

_native: Any = importlib.import_module("penstock._native")


def _records(dtype: np.dtype[Any], count: int = 8, **columns: Any) -> bytes:
    rows = np.zeros(count, dtype)
    for name in rows.dtype.names or ():
        if rows.dtype[name].kind in "iuf":
            rows[name] = np.arange(count) % 3 + 1
    for name, values in columns.items():
        rows[name] = values
    return rows.tobytes()


def _spool_reader(read: Callable[[Path], object], *sidecars: str) -> Any:
    """The input is the spool and, after a line of eight stars, its sidecar files."""

    @contextlib.contextmanager
    def context(directory: Path) -> Iterator[Feed]:
        spool = directory / "spool"

        def feed(data: bytes) -> None:
            records, _, names = data.partition(b"********\n")
            spool.write_bytes(records)
            for suffix in sidecars:
                Path(f"{spool}{suffix}").write_bytes(names)
            read(spool)

        yield feed

    return context


def _follow(spool: Path) -> None:
    rules = [parse_rule("disk_busy > 90% for 1s"), parse_rule("memory_free > 1 B")]
    Evaluator(rules, 1_000_000_000).feed(Follower(spool).look())


def _events(spool: Path) -> None:
    judge = _native.Judge([])
    for part in SpoolReader(spool, {0: 1, 1: 2}, judge, [(1, 1, 1)]).tables():
        part.validate(full=True)
    json.loads(judge.verdicts())


_EVENTS = _records(
    EVENT,
    t_ns=1000 * np.arange(8),
    op=[0, 1, 33, 32, 64, 14, 96, 46],
    offset_bytes=4096 * np.arange(8),
    size_bytes=4096,
    done_bytes=[4096, 4096, -5, 0, 0, 4096, 1, 2],
    flags=[0, 1, 64, 16, 0, 0, 8, 4],
    cgroup_slot=[0, 0, 1, 0, 2, 0, 0, 0],
)

#: as in `penstock_probe::layout::Stream`
_SIZE_CLASSES = 32


def _epoch(samples: int, kind: int) -> bytes:
    head = struct.pack("<20I", 1, 7, 7, kind, 30, 0, 0, 29, 20, 5, 28, 1, 25, 1, 2, 3, 4, 9, 3, 12)
    sums = struct.pack(
        "<5Q6I2q", 50, 122880, 1000, 9000, 500, 5, 512, 4096, samples, 9, 0, 0, 1 << 20
    )
    classes = struct.pack(f"<{_SIZE_CLASSES}I", *[1] * _SIZE_CLASSES)
    rest = struct.pack("<6q4I", 4096, 8192, -4096, 0, 8, 16, 1, 0, 0, 0)
    return head + sums + classes + rest + struct.pack(f"<{samples}I", *range(samples))


_SERIES = b"".join(
    json.dumps(
        {
            "series": n,
            "source": "cpu",
            "entity": "0",
            "metric": "m",
            "unit": "s",
            "cumulative": True,
        }
    ).encode()
    + b"\n"
    for n in range(4)
)

_NAMES = b'{"file_id": 0, "path": "a"}\n{"file_id": 2, "path": "b"}\n'

_FILES = pa.table(
    {
        "file_id": pa.array([1, 2]),
        "dev_major": pa.array([8, 8]),
        "dev_minor": pa.array([0, 1]),
        "inode": pa.array([1, 2], pa.uint64()),
        "generation": pa.array([1, 1], pa.uint64()),
        "path": pa.array(["/a", "/b"]),
        "size_bytes": pa.array([1 << 20, 0]),
        "disk_id": pa.array([None, "d"]),
        "unlinked": pa.array([False, True]),
        "resident_pages": pa.array([1, 2]),
    }
)


def _layers(spool: Path) -> None:
    count = spool.stat().st_size // RECORD.itemsize
    join(np.fromfile(spool, RECORD, count=count), _FILES, None)


def targets() -> list[Target]:
    """Return the targets of this family."""
    spools = [
        ("spool-events", [_EVENTS], _spool_reader(_events), ()),
        (
            "spool-epochs",
            [_epoch(n, kind) + _epoch(0, 1) for n in (0, 5) for kind in range(4)],
            _spool_reader(judge_spool),
            (),
        ),
        (
            "spool-counts",
            [_records(COUNTER, direction=[0, 1] * 4)],
            _spool_reader(read_counts),
            (PenstockError,),
        ),
        (
            "spool-samples",
            [_records(SAMPLE_DTYPE) + b"********\n" + _SERIES],
            _spool_reader(read_samples, ".series"),
            (PenstockError,),
        ),
        (
            "spool-followed",
            [_records(SAMPLE_DTYPE) + b"********\n" + _SERIES],
            _spool_reader(_follow, ".series"),
            (PenstockError,),
        ),
        (
            "spool-requests",
            [_records(DISK_REQUEST_DTYPE, op=[0, 1, 2, 0] * 2) + b"********\n" + _NAMES],
            _spool_reader(read_disk_log, ".files"),
            (PenstockError,),
        ),
        (
            "spool-layers",
            [_records(RECORD, kind=[1, 2, 3, 1] * 2)],
            _spool_reader(_layers),
            (PenstockError,),
        ),
    ]
    return [
        Target(name, of.of_bytes(*data), context, errors, 100.0 if name == "spool-layers" else 4.0)
        for name, data, context, errors in spools
    ]
