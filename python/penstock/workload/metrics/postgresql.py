"""Rows of PostgreSQL's statistics views with a time, as `psql --csv` prints them, once or again and again.

psql --csv -c 'select now() as time, * from pg_stat_database' >> stat.csv
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.errors import BadInput
from penstock.workload.metrics import Readings, samples, text_of

WHAT = "rows of a view pg_stat_… with `now() as time`, by `psql --csv`"
#: columns by which a view is known → its name
_VIEWS = {
    ("datname", "blks_hit"): "pg_stat_database",
    ("buffers_checkpoint",): "pg_stat_bgwriter",
    ("relname", "seq_scan"): "pg_stat_tables",
    ("relname", "heap_blks_read"): "pg_statio_tables",
    ("indexrelname", "idx_scan"): "pg_stat_indexes",
    ("wal_records", "wal_fpi"): "pg_stat_wal",
    ("backend_type", "context", "object"): "pg_stat_io",
    ("num_timed", "restartpoints_timed"): "pg_stat_checkpointer",
}
#: what is a level, not a counter
_LEVELS = re.compile(
    r"^(numbackends|n_live_tup|n_dead_tup|n_mod_since_analyze|n_ins_since_vacuum|op_bytes)$"
)
_ID = re.compile(r"(^|_)(datid|relid|indexrelid|oid)$")
_NAMES = ("schemaname", "datname", "relname", "indexrelname", "backend_type", "object", "context")


def matches(path: Path, head: bytes) -> bool:
    """Whether the header row is that of a view, with a time before it."""
    columns = head.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    return columns[0] == "time" and _view(columns) is not None


def _view(columns: list[str]) -> str | None:
    return next((v for known, v in _VIEWS.items() if set(known) <= set(columns)), None)


def read(path: Path, words: Mapping[str, Any]) -> Readings:
    """Every number of each row; entities are databases, tables, indexes."""
    text = text_of(path)
    header = text.split("\n", 1)[0].rstrip("\r")
    columns = header.split(",")
    view = _view(columns)
    if view is None or "time" not in columns:
        raise BadInput(f"{path}:1: found {header[:80]!r}; expected {WHAT}")
    body = "\n".join(line for line in text.splitlines() if line and line != header)
    try:
        frame = pd.read_csv(io.StringIO(body), names=columns, header=None)
        at = pd.to_datetime(frame["time"], utc=True, format="ISO8601")
    except (ValueError, pd.errors.ParserError) as error:
        raise BadInput(f"{path}: found {str(error).splitlines()[0]}; expected {WHAT}") from None
    named = [c for c in _NAMES if c in frame]
    entity = (
        frame[named].fillna("").astype(str).agg(".".join, axis=1).str.strip(".")
        if named
        else "server"
    )
    parts = []
    for column in columns:
        if column in ("time", *named) or _ID.search(column):
            continue
        values = pd.to_numeric(frame[column], errors="coerce")
        if values.notna().any() and not pd.api.types.is_bool_dtype(frame[column]):
            part = pd.DataFrame(
                {"utc_ns": at.astype("datetime64[ns, UTC]").astype("int64"), "value": values}
            )
            part = part.assign(
                source=view,
                entity=entity,
                metric=column,
                unit=_unit(column),
                cumulative=_LEVELS.match(column) is None,
            )
            parts.append(part[part["value"].notna()])
    if not parts:
        raise BadInput(f"{path}: found no numbers; expected {WHAT}")
    whole = pd.concat(parts, ignore_index=True)
    return Readings(
        samples(whole[["utc_ns", "source", "entity", "metric", "unit", "value", "cumulative"]]),
        facts={"view": view, "readings": int(at.nunique())},
    )


def _unit(column: str) -> str:
    if column.endswith("_time"):
        return "ms"
    return "B" if column.endswith("bytes") else "1"
