"""Rows of PostgreSQL's statistics views with a time, from one or many calls of `psql --csv`.

psql --csv -c 'select now() as time, * from pg_stat_database' >> stat.csv
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.archive.series import delimited
from penstock.errors import BadInput, printable
from penstock.workload.metrics import Readings, complete_lines, samples, text_of, unrepeated

WHAT = "rows of a view pg_stat_… with `now() as time`, by `psql --csv` (PostgreSQL 10 to 18)"
#: a view → columns common to all versions and unique to it; the first match applies
_VIEWS = {
    "pg_stat_statements": ("userid", "dbid", "queryid", "calls", "rows"),
    "pg_stat_database_conflicts": ("datname", "confl_tablespace", "confl_lock"),
    "pg_stat_database": ("datname", "numbackends", "xact_commit", "blks_hit"),
    "pg_stat_bgwriter": ("buffers_clean", "maxwritten_clean", "buffers_alloc"),
    "pg_stat_checkpointer": (
        "num_timed",
        "num_requested",
        "restartpoints_timed",
        "buffers_written",
    ),
    "pg_stat_archiver": ("archived_count", "failed_count", "last_archived_wal"),
    "pg_stat_wal": ("wal_records", "wal_fpi", "wal_bytes", "wal_buffers_full"),
    "pg_stat_io": ("backend_type", "object", "context", "reads", "writes"),
    "pg_stat_slru": ("name", "blks_zeroed", "blks_hit", "truncates"),
    "pg_stat_functions": ("funcid", "funcname", "calls", "self_time"),
    "pg_stat_subscription_stats": ("subid", "subname", "apply_error_count"),
    "pg_stat_tables": ("relname", "seq_scan", "seq_tup_read", "n_tup_ins"),
    "pg_statio_tables": ("relname", "heap_blks_read", "heap_blks_hit"),
    "pg_stat_indexes": ("relname", "indexrelname", "idx_scan", "idx_tup_read"),
    "pg_statio_indexes": ("relname", "indexrelname", "idx_blks_read", "idx_blks_hit"),
    "pg_statio_sequences": ("relname", "blks_read", "blks_hit"),
}
#: views of states and of log addresses, whose numbers are not statistics
_NO_STATISTICS = {
    "pg_stat_activity": ("pid", "query", "state", "wait_event"),
    "pg_stat_replication": ("pid", "application_name", "sent_lsn"),
    "pg_stat_wal_receiver": ("pid", "received_tli"),
    "pg_stat_progress_…": ("pid", "phase"),
}
#: gauges, not counters
_LEVELS = re.compile(
    r"^(numbackends|n_live_tup|n_dead_tup|n_mod_since_analyze|n_ins_since_vacuum|op_bytes|"
    r"parallel_workers_(to_launch|launched)_now|(mean|min|max|stddev)_.*_time|(mean|min|max|stddev)_time)$"
)
_ID = re.compile(r"(^|_)(datid|relid|indexrelid|oid|funcid|userid|dbid|queryid|subid)$")
_NAMES = (
    "schemaname",
    "datname",
    "relname",
    "indexrelname",
    "funcname",
    "subname",
    "name",
    "backend_type",
    "object",
    "context",
    "userid",
    "dbid",
    "queryid",
)


def matches(path: Path, head: bytes) -> bool:
    """True if the header row is that of a view, preceded by a time."""
    columns = _columns(head)
    return (
        columns[:1] == ["time"]
        and (_view(columns, _VIEWS) or _view(columns, _NO_STATISTICS)) is not None
    )


def _columns(head: bytes) -> list[str]:
    return delimited.header_row(io.BytesIO(head), delimited.separator_of(head))


def _view(columns: list[str], views: Mapping[str, tuple[str, ...]]) -> str | None:
    return next((v for v, required in views.items() if set(required) <= set(columns)), None)


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Numbers of all rows; entities are databases, tables, indexes."""
    text = text_of(path)
    header = text.split("\n", 1)[0].rstrip("\r")
    separator = delimited.separator_of(text[:65536].encode())
    columns = _columns(header.encode())
    view = _view(columns, _VIEWS)
    if other := None if view else _view(columns, _NO_STATISTICS):
        raise BadInput(f"{path}:1: found {other}, which has no statistics; expected {WHAT}")
    if view is None or "time" not in columns:
        raise BadInput(f"{path}:1: found {printable(header[:80])!r}; expected {WHAT}")
    lines, notes = complete_lines(text)
    body = "\n".join(line for line in lines if line and line != header)
    names = [c for c in columns if c in _NAMES or _is_id(c)]
    try:
        frame = pd.read_csv(
            io.StringIO(body),
            names=columns,
            header=None,
            sep=separator,
            # ids beyond 2^53 next to a missing one would be rounded, a table called `null` missing
            dtype=dict.fromkeys(names, str),
            keep_default_na=False,
            na_values=[""],
        )
        at = pd.to_datetime(frame["time"], utc=True, format="ISO8601")
        utc_ns = at.astype("datetime64[ns, UTC]").astype("int64")
    except (ValueError, pd.errors.ParserError) as error:
        raise BadInput(f"{path}: found {str(error).splitlines()[0]}; expected {WHAT}") from None
    if frame.empty:
        raise BadInput(f"{path}: found a header without rows; expected {WHAT}")
    if not frame["time"].astype(str).str.contains(r"(?:[+-]\d\d(?::?\d\d)?|Z)$").all():
        raise BadInput(f"{path}: found a time without a zone; expected `now() as time`")
    frame = unrepeated(
        frame.assign(time=utc_ns), notes, "rows that the file has several times were read once"
    )
    entity = _entities(frame)
    clear = _identified(frame, entity, notes)
    parts = []
    for column in columns:
        if column in ("time", *names):
            continue
        values = pd.to_numeric(frame[column], errors="coerce")
        if values.notna().any() and not pd.api.types.is_bool_dtype(frame[column]):
            part = pd.DataFrame({"utc_ns": frame["time"], "value": values}).assign(
                source=view,
                entity=entity,
                metric=column,
                unit=_unit(column),
                cumulative=_LEVELS.match(column) is None,
            )
            parts.append(part[part["value"].notna() & clear])
    if not parts:
        raise BadInput(f"{path}: found no numbers; expected {WHAT}")
    merged = pd.concat(parts, ignore_index=True)
    return Readings(
        samples(merged), facts={"view": view, "readings": int(at.nunique())}, notes=notes
    )


def _is_id(column: str) -> bool:
    return column == "toplevel" or _ID.search(column) is not None


def _entities(frame: pd.DataFrame) -> pd.Series[Any]:
    """Names of each row; with its ids if they are those of several objects.

    Overloaded functions share a name, tables of several databases may, and a statement is counted apart at
    the top level and within functions. An object that was created anew keeps its name.
    """
    names = _joined(frame, [c for c in _NAMES if c in frame])
    ids = [c for c in map(str, frame) if _is_id(c) and c not in _NAMES]
    if not ids:
        return names
    own = _joined(frame, ids)
    at_a_time = own.groupby([frame["time"], names]).transform("nunique")
    changes = own.ne(own.groupby(names).shift()).groupby(names).transform("sum")
    shared = names[(at_a_time > 1) | (changes > own.groupby(names).transform("nunique"))]
    return names.where(~names.isin(shared), names + " " + own)


def _joined(frame: pd.DataFrame, columns: list[str]) -> pd.Series[Any]:
    if not columns:
        return pd.Series("server", index=frame.index)
    return frame[columns].fillna("").agg(".".join, axis=1).str.strip(".")


def _identified(frame: pd.DataFrame, entity: pd.Series[Any], notes: list[str]) -> pd.Series[Any]:
    """True for rows of one object at a time; the others are noted. Statements of other users have no id."""
    unclear = frame.assign(_entity=entity).duplicated(["time", "_entity"], keep=False)
    if unclear.any():
        notes.append(
            f"{int(unclear.sum())} rows with the time and names of other rows were skipped"
        )
    return ~unclear


def _unit(column: str) -> str:
    """Unit of a column of the views listed: milliseconds, bytes, or a count."""
    if column.endswith("_time"):
        return "ms"
    return "B" if column.endswith("bytes") else "1"
