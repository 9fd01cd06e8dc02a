"""Every table that penstock writes: its columns, their units, their meaning, and its key.

The only place where tables are described, a file for each family of them: the metadata in the Parquet files
and docs/formats.md come from here. Types are Arrow's; text columns may be dictionary-encoded in a file.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.archive.schemas import (
    analysis,
    disks,
    monitor,
    prediction,
    programs,
    runs,
    trace,
    workflow,
)
from penstock.archive.schemas.table import BUNDLE_KEYS, BUNDLE_SCHEMA

#: in the order of docs/formats.md
_FAMILIES = (runs, trace, disks, monitor, programs, analysis, prediction, workflow)

#: every table by name
TABLES = {table.name: table for family in _FAMILIES for table in family.TABLES}


def described(name: str, table: pa.Table) -> pa.Table:
    """The table with unit and meaning of each column, and of itself, in its Arrow metadata."""
    schema = TABLES.get(name)
    if schema is None:
        return table
    by_name = {c.name: c for c in (*BUNDLE_KEYS, *schema.columns)}
    fields = []
    for field in table.schema:
        column = by_name.get(field.name)
        notes = {"unit": column.unit, "meaning": column.meaning} if column else None
        fields.append(field.with_metadata({**(field.metadata or {}), **notes}) if notes else field)
    about = {
        "penstock.table": schema.name,
        "penstock.row": schema.row,
        "penstock.key": ",".join(schema.key),
        "penstock.schema": BUNDLE_SCHEMA,
    }
    return table.cast(pa.schema(fields, metadata={**(table.schema.metadata or {}), **about}))
