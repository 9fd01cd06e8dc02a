"""CSV or Parquet with a column of times and one for each series: MonEx's published data, our exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.archive import series
from penstock.errors import BadInput
from penstock.workload.metrics import Readings, samples

WHAT = "CSV with a header row whose first column is a time"


def matches(path: Path, head: bytes) -> bool:
    """Whether the first column of the header row looks like a time."""
    if path.suffix == ".parquet":
        return head.startswith(b"PAR1")
    first = head.split(b"\n", 1)[0].decode("utf-8-sig", "replace").split(",")
    return len(first) > 1 and series.names_a_time(first[0].strip().strip('"'))


def read(path: Path, words: Mapping[str, Any]) -> Readings:
    """Every number of every column, empty cells left out."""
    recorded = series.of_file(path, words.get("time"))
    if recorded.axis != "time":
        raise BadInput(
            f"{path}: found values over {recorded.axis_name}; expected times (`penstock plot` draws these)"
        )
    start = recorded.start_utc_ns or 0
    parts = [
        pd.DataFrame({"utc_ns": start + (s.x * 1e9).round().astype("int64"), "value": s.y}).assign(
            source="csv",
            entity=s.node or "all",
            metric=s.quantity or s.name,
            unit=s.unit or "1",
            cumulative=False,
        )
        for s in recorded.series
    ]
    notes = (
        []
        if recorded.start_utc_ns is not None
        else ["times are those since the begin: no clock is known"]
    )
    if path.suffix != ".parquet":
        notes += series.strange_header(path)
    whole = pd.concat(parts, ignore_index=True)
    whole = whole[["utc_ns", "source", "entity", "metric", "unit", "value", "cumulative"]]
    return Readings(samples(whole[whole["value"].notna()]), notes=notes)
