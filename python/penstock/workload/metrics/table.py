"""CSV or Parquet with a column of times and one per series: MonEx's published data, our exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.archive.series import delimited, series_tables
from penstock.errors import BadInput
from penstock.workload.metrics import Readings, samples, simultaneous, unknown_units

WHAT = "CSV (or with tabs or semicolons) with a header row whose first column is a time"


def matches(path: Path, head: bytes) -> bool:
    """True if the first column of the header row has the name of a time."""
    if path.suffix == ".parquet":
        return head.startswith(b"PAR1")
    return series_tables.names_a_time(delimited.first_name(head))


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Numbers of all columns, without empty cells."""
    recorded = series_tables.of_file(path, options.get("time"))
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
            unit=s.unit,
            cumulative=False,
        )
        for s in recorded.series
    ]
    notes = (
        []
        if recorded.start_utc_ns is not None
        else ["times are those since the begin: no clock is known"]
    )
    column = recorded.axis_name + (f" ({recorded.axis_unit})" if recorded.axis_unit else "")
    if recorded.start_utc_ns is None and series_tables.seconds_per_unit(column) is None:
        notes.append(f"{recorded.axis_name} names no unit: read as seconds")
    notes += recorded.notes
    notes += unknown_units(s.name for s in recorded.series if not s.unit)
    if path.suffix != ".parquet":
        notes += delimited.strange_header(path)
    merged = pd.concat(parts, ignore_index=True)
    merged = merged[merged["value"].notna()]
    notes += simultaneous(merged)
    return Readings(samples(merged), notes=notes)
