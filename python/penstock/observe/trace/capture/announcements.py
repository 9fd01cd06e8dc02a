"""The daemon's JSON lines about files, names, threads and marks, read once as columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.errors import PenstockError

_INTEGERS = (
    "file_id dev_major dev_minor size_bytes t_ns resident_pages which tid pid errno of_file calls errors "
    "time_ns longest_ns first_ns"
).split()
_WORDS = ("inode", "generation", "flags")
_TEXTS = (
    "path_hex naming text_hex directory_hex operation program_hex mark_hex".split()
)  # bytes in hexadecimal digits, and names of operations

_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in _INTEGERS),
        *((name, pa.uint64()) for name in _WORDS),
        *((name, pa.string()) for name in _TEXTS),
        ("unlinked", pa.bool_()),
    ]
)
#: a line with the longest path, twice over, in hexadecimal digits is far shorter
_BLOCK_BYTES = 8 << 20


def announcements(source: Path | pa.Table) -> pa.Table:
    """A row per line, null in what the line does not say; a torn last line is left out.

    Given what it gave before, gives that. Raises PenstockError for what are no such lines.
    """
    if isinstance(source, pa.Table):
        return source
    text = source.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    if not text:
        return _SCHEMA.empty_table()
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
            pyarrow.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise PenstockError(f"{source}: {error}") from error
    return table.select(_SCHEMA.names)


def those_with(table: pa.Table, column: str) -> pa.Table:
    """The rows that say it."""
    return table.filter(pc.is_valid(table[column]))
