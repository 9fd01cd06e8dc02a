"""SQL queries of tables, in a DuckDB without access to other files."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from penstock.errors import BadInput
from penstock.scratch import Scratch

_CLOSE = (
    "SET memory_limit = '1GB'; SET threads = 2; SET python_enable_replacements = false; "
    "SET enable_external_access = false; SET lock_configuration = true"
)


class Database:
    """Parquet files and Arrow tables by their names in queries.

    Queries contain no external text: values are parameters (`?`). Data beyond 1 GB spill to a temporary
    directory. Raises BadInput for a file that is not readable as Parquet.
    """

    def __init__(self, tables: Mapping[str, Path | pa.Table]) -> None:
        base, scratch = duckdb.connect(":memory:"), Scratch("sql")
        files: dict[str, int] = {}
        weakref.finalize(self, _close, base, scratch, files)
        self._base = base
        self._columns: dict[str, set[str]] = {}
        for name, table in tables.items():
            if isinstance(table, Path):
                try:
                    files[name] = os.open(table, os.O_RDONLY)
                except OSError as error:
                    raise BadInput(f"{table}: {error.strerror}; expected Parquet") from error
        # by descriptor: DuckDB would interpret a path as a pattern, and its directories as columns
        paths = {name: f"/proc/self/fd/{file}" for name, file in files.items()}
        base.execute("SET temp_directory = ?", [f"{scratch.path}/spill"])
        base.execute("SET allowed_paths = ?", [list(paths.values())])
        base.execute(_CLOSE)
        for name, table in tables.items():
            if isinstance(table, Path):
                try:
                    relation = base.read_parquet(paths[name], hive_partitioning=False)
                except duckdb.Error as error:
                    reason = str(error).splitlines()[0].replace(paths[name], table.name)
                    raise BadInput(
                        f"{table}: cannot be read: {reason}; expected Parquet"
                    ) from error
                relation.create_view(name)
                self._columns[name] = set(relation.columns)
            else:
                base.register(name, table)
                self._columns[name] = set(table.column_names)

    @property
    def columns(self) -> dict[str, set[str]]:
        """Names of the columns of each table."""
        return self._columns

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query. Raises duckdb.Error."""
        answer = self._base.execute(sql, values)
        names = [column[0] for column in answer.description or ()]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def arrays(self, sql: str, values: Sequence[Any] = ()) -> Mapping[str, Any]:
        """The columns of a query as NumPy arrays. Raises duckdb.Error."""
        return self._base.execute(sql, values).fetchnumpy()

    def rows(self, table: str, first: int, most: int) -> list[dict[str, Any]]:
        """At most `most` rows of a table from row `first` on, in file order."""
        relation = self._base.view(table).limit(most, offset=first)
        return [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]


def _close(base: duckdb.DuckDBPyConnection, scratch: Scratch, files: Mapping[str, int]) -> None:
    base.close()
    for file in files.values():
        os.close(file)
    scratch.close()
