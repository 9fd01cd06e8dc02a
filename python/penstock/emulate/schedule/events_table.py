"""The table `events`: changes during a run, their times, and the values read back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES

#: the table `events` (archive/schemas/disks.py) without the columns that a bundle adds
EVENTS_SCHEMA = TABLES["events"].arrow


def events_table(changes: Iterable[tuple[str, str, Mapping[str, Any]]]) -> pa.Table:
    """Rows of (resource, name, change), in order of time.

    A change has planned_ns, applied_ns, verified_ns, asked, found, error, cause (kind, text) and optionally
    active (names), as in the results of the disk server and the nodes' supervisor.
    """
    rows = sorted(changes, key=lambda row: int(row[2]["applied_ns"]))
    columns = [
        [resource for resource, _, _ in rows],
        [name for _, name, _ in rows],
        *([int(c[key]) for _, _, c in rows] for key in ("planned_ns", "applied_ns", "verified_ns")),
        *([_json(c.get(key)) for _, _, c in rows] for key in ("asked", "found")),
        [str(c.get("error") or "") for _, _, c in rows],
        [",".join(c.get("active") or ()) for _, _, c in rows],
        *([str(c["cause"][key]) for _, _, c in rows] for key in ("kind", "text")),
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, EVENTS_SCHEMA, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=EVENTS_SCHEMA)


def failed(table: pa.Table) -> list[str]:
    """A message for each failed change; such a run is invalid."""
    return [
        f"{row['name'] or row['resource']}: {row['asked']} failed: {row['error']}"
        for row in table.to_pylist()
        if row["error"]
    ]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
