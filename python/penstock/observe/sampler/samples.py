"""The sampler's spool as a table."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.errors import PenstockError

#: one value of one series; little-endian
SAMPLE_DTYPE = np.dtype([("t_ns", "<i8"), ("series", "<u8"), ("value", "<f8")])

_NAMED = {"series", "source", "entity", "metric", "unit", "cumulative"}

SAMPLES_SCHEMA = TABLES["samples"].arrow


def read_samples(spool: str | os.PathLike[str]) -> pa.Table:
    """The `samples` table of a spool and its `.series` file; an incomplete tail is dropped.

    Raises PenstockError for a series that is missing in the `.series` file, or if that file is damaged.
    """
    path = Path(spool)
    count = path.stat().st_size // SAMPLE_DTYPE.itemsize
    records = np.fromfile(path, dtype=SAMPLE_DTYPE, count=count)
    names = _series(Path(f"{path}.series"))
    if count and int(records["series"].max()) >= len(names):
        raise PenstockError(f"{path}.series does not name series {int(records['series'].max())}")
    which = pa.array(records["series"].astype(np.int32))

    def text(key: str) -> pa.Array:
        return pa.array([str(s[key]) for s in names], pa.string()).take(which)

    return pa.table(
        {
            "t_ns": pa.array(records["t_ns"]),
            "source": text("source"),
            "entity": text("entity"),
            "metric": text("metric"),
            "unit": text("unit"),
            "value": pa.array(records["value"]),
            "cumulative": pa.array([bool(s["cumulative"]) for s in names], pa.bool_()).take(which),
        },
        schema=SAMPLES_SCHEMA,
    )


def _series(path: Path) -> list[dict[str, object]]:
    names: list[dict[str, object]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            named = json.loads(line)
        except ValueError:
            continue  # empty, or incomplete after a crash
        if not isinstance(named, dict) or not named.keys() >= _NAMED:
            raise PenstockError(f"{path}: line {len(names) + 1} names no series")
        if named["series"] != len(names):
            raise PenstockError(f"{path}: series {named['series']} where {len(names)} was expected")
        names.append(named)
    return names
