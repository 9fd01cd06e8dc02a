"""One run on disk: `manifest.json`, Parquet tables, logs. A bundle with its final name is complete.

    with Bundle.create(path, manifest) as bundle:      # written to a hidden name in the same directory
        bundle.write_table("io_events", table)         # key columns, units and meanings are added
        bundle.manifest["valid"] = True
    # synced and renamed to `path` here; removed if the block raised

Only the rename gives a bundle its name, so a killed conductor leaves no partial bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.schemas import described
from penstock.archive.schemas.table import BUNDLE_KEYS, BUNDLE_SCHEMA
from penstock.errors import PenstockError
from penstock.version import version
from penstock.writing import sync

#: rows per row group of a Parquet file
ROW_GROUP_ROWS = 1_000_000

_DEFAULTS: dict[str, Any] = {
    "study_id": "",
    "treatment_id": "",
    "run_id": "",
    "attempt": 1,
    "levels": {},
    "state": "finished",
    "valid": True,
    "reason": "",
    "losses": {},
    "receipts": {},
    "responses": {},
}


def read_accesses(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Rows of a table `io_events` in which bytes were read or written: calls, requests, faults.

    Excludes flushes, renames and the like, and ranges that were only mapped around a fault.
    """
    own = pq.read_schema(path).names
    requested = columns if columns is not None else own
    table = pq.read_table(
        path, columns=list(dict.fromkeys([*requested, *({"op", "direction"} & set(own))]))
    )
    if "direction" in table.column_names:
        moves = pc.is_in(table["direction"].cast(pa.string()), pa.array(["read", "write"]))
        table = table.filter(moves)
    if "op" in table.column_names:
        around = pc.starts_with(table["op"].cast(pa.string()), "fault_around")
        table = table.filter(pc.invert(around))
    return table.select(requested)


class Bundle:
    """One run's directory; `create` writes a new one, `open` reads an existing one."""

    def __init__(
        self, path: Path, manifest: dict[str, Any], final_path: Path | None = None
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._final_path = final_path

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        manifest: dict[str, Any] | None = None,
        *,
        replacing: bool = False,
    ) -> Bundle:
        """Create a bundle; `path` is its final name.

        With `replacing` the name may exist now and must be free at the end. Raises PenstockError if the name
        exists.
        """
        final = Path(path).absolute()
        if os.path.lexists(final) and not replacing:
            raise PenstockError(f"{final} exists already; expected a path that does not")
        working = partial_path(final)
        if working.exists():
            shutil.rmtree(working)
        working.mkdir(parents=True)
        versions = {
            "penstock": version(),
            "python": platform.python_version(),
            "kernel": platform.release(),
        }
        fields = manifest or {}
        full = {
            "schema": BUNDLE_SCHEMA,
            **_DEFAULTS,
            **fields,
            "versions": {**versions, **fields.get("versions", {})},
        }
        if isinstance(full.get("command"), list):
            full["command"] = plain_argv(full["command"])
        return cls(working, full, final)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """A complete bundle. Raises PenstockError without one of a supported schema."""
        place = Path(path)
        try:
            manifest = json.loads((place / "manifest.json").read_text())
        except (OSError, ValueError) as error:
            raise PenstockError(f"{place} is not a bundle: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("schema") != BUNDLE_SCHEMA:
            raise PenstockError(f"{place}/manifest.json is not of schema {BUNDLE_SCHEMA}")
        return cls(place, manifest)

    @property
    def tables(self) -> list[str]:
        return sorted(p.stem for p in self.path.glob("*.parquet"))

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """One of its tables. Raises PenstockError for an unknown name."""
        path = self.path / f"{name}.parquet"
        if not path.exists():
            raise PenstockError(f"{self.path} has no table {name!r}, only {', '.join(self.tables)}")
        return pq.read_table(path, columns=columns)

    def accesses(self, columns: list[str] | None = None) -> pa.Table:
        """Rows of `io_events` in which bytes were read or written, see `read_accesses`."""
        self.table("io_events", [])
        return read_accesses(self.path / "io_events.parquet", columns)

    def write_table(self, name: str, table: pa.Table, node_id: str | None = None) -> Path:
        """Write a table, key columns first, with units and meanings; returns its path.

        Existing key columns are not changed.
        """
        own = table.column_names
        values = {"host_id": self.manifest.get("host", {}).get("host_id", ""), **self.manifest}
        values["node_id"] = node_id if node_id is not None else self.manifest.get("node_id", "")
        names, columns = [], []
        for key in BUNDLE_KEYS:
            if key.name not in own:
                names.append(key.name)
                columns.append(_constant(values.get(key.name), key.arrow, table.num_rows))
        keyed = pa.table([*columns, *table.columns], schema=_joined(names, columns, table.schema))
        path = self.path / f"{name}.parquet"
        write_parquet(path, described(name, keyed))
        return path

    @contextlib.contextmanager
    def table_writer(
        self, name: str, schema: pa.Schema, encodings: dict[str, str] | None = None
    ) -> Iterator[TableWriter]:
        """TableWriter for a table larger than memory; the file gets its name at the end of the block.

        `schema` excludes key columns; `encodings` has the Parquet encoding of some columns, the others are
        dictionaries if that is shorter. If the block raises, the file is removed.
        """
        values = {"host_id": self.manifest.get("host", {}).get("host_id", ""), **self.manifest}
        path = self.path / f"{name}.parquet"
        draft = path.with_name(f".{path.name}.partial")
        try:
            with TableWriter(draft, name, schema, values, encodings or {}) as writer:
                yield writer
            os.replace(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()

    def finish(self, name: str = "") -> Path:
        """Write the manifest, sync, and rename the bundle to its name, or to another one in the same
        directory."""
        if self._final_path is None:
            return self.path
        if name:
            self._final_path = self._final_path.with_name(name)
        (self.path / "manifest.json").write_text(self._text())
        sync(self.path / "manifest.json")
        sync(self.path)
        os.rename(self.path, self._final_path)
        sync(self._final_path.parent)
        self.path, self._final_path = self._final_path, None
        return self.path

    def amend(self) -> None:
        """Rewrite the manifest of a complete bundle atomically, and sync it."""
        draft = self.path / ".manifest.json.partial"
        draft.write_text(self._text())
        sync(draft)
        os.replace(draft, self.path / "manifest.json")
        sync(self.path)

    def _text(self) -> str:
        return json.dumps(self.manifest, indent=1, default=_plain) + "\n"

    def discard(self) -> None:
        """Remove an incomplete bundle."""
        if self._final_path is not None:
            shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()


class TableWriter:
    """Writes a table in parts to one Parquet file (zstd, row groups of at most 1 M rows)."""

    def __init__(
        self,
        path: Path,
        name: str,
        schema: pa.Schema,
        values: dict[str, Any],
        encodings: dict[str, str],
    ) -> None:
        self._name, self._schema = name, schema
        self._values = values
        keyed = self._keyed(schema.empty_table())
        self._writer = pq.ParquetWriter(
            path,
            keyed.schema,
            compression="zstd",
            use_dictionary=[c for c in keyed.column_names if c not in encodings],
            column_encoding=encodings or None,
        )

    def write(self, table: pa.Table) -> None:
        """Append rows, with the key columns in front."""
        self._writer.write_table(self._keyed(table), row_group_size=ROW_GROUP_ROWS)

    def _keyed(self, table: pa.Table) -> pa.Table:
        keys = [k for k in BUNDLE_KEYS if k.name not in self._schema.names]
        columns = [_constant(self._values.get(k.name), k.arrow, table.num_rows) for k in keys]
        names = [k.name for k in keys]
        schema = _joined(names, columns, self._schema)
        return described(self._name, pa.table([*columns, *table.columns], schema=schema))

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def plain_argv(argv: list[Any]) -> list[str]:
    """Arguments of a command as valid UTF-8, other bytes as `\\udcXX`."""
    return [str(word).encode("utf-8", "backslashreplace").decode() for word in argv]


def command_line(manifest: Mapping[str, Any]) -> str:
    """The command of a bundle as one line: arguments of a trace, or the text of a study's run."""
    command = manifest.get("command") or ""
    return command.strip() if isinstance(command, str) else shlex.join(map(str, command))


def partial_path(final: Path) -> Path:
    """Path of a bundle until it is complete."""
    return final.with_name(f".{final.name}.partial")


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet (zstd, row groups of at most 1 M rows), atomically."""
    draft = path.with_name(f".{path.name}.partial")
    try:
        pq.write_table(table, draft, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        os.replace(draft, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def directory_bytes(path: Path) -> int:
    """Total size of the files under `path` [bytes]."""
    total = 0
    for top, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(top, name)).st_blocks * 512
    return total


def _constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """A constant array of `rows` elements; text as a dictionary of one entry."""
    if not pa.types.is_string(kind):
        return pa.repeat(pa.scalar(int(value if value is not None else 1), kind), rows)
    indices = pa.repeat(pa.scalar(0, pa.int32()), rows)
    return pa.DictionaryArray.from_arrays(indices, pa.array([value or ""], pa.string()))


def _joined(names: list[str], columns: list[pa.Array], rest: pa.Schema) -> pa.Schema:
    own = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    return pa.schema([*own, *rest], metadata=rest.metadata)


def _plain(value: Any) -> Any:
    """JSON value of other types in a manifest: paths, numpy scalars."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a manifest cannot hold {type(value).__name__}")
