"""Anonymised traces: each component of a path becomes a keyed hash.

Equal components have equal hashes, so that directories, renames and common suffixes remain visible; without
the key, guesses cannot be verified (HMAC-SHA-256, RFC 2104).
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from penstock.errors import BadInput
from penstock.observe.trace.capture.tracer import TraceResult

_KEY_BYTES = 16
_DIGITS = 12
_TEXT = ("path", "file", "program")
_HEX = "path_hex"


class Anonymizer:
    """Hashes with the key in a file. Raises BadInput if it is unreadable or has fewer than 16 bytes."""

    def __init__(self, key_file: Path):
        try:
            self._key = key_file.read_bytes().strip()
        except OSError as error:
            raise BadInput(f"--anonymize: {key_file}: {error.strerror}; expected a file") from error
        if len(self._key) < _KEY_BYTES:
            raise BadInput(
                f"--anonymize: {key_file}: found a key of {len(self._key)} bytes; expected at least "
                f"{_KEY_BYTES} (openssl rand -hex 32)"
            )

    def component(self, name: bytes) -> bytes:
        """One name, without its slashes."""
        return hmac.digest(self._key, name, hashlib.sha256).hex()[:_DIGITS].encode()

    def path(self, path: bytes) -> bytes:
        """All components of a path."""
        return b"/".join(self.component(part) if part else b"" for part in path.split(b"/"))

    def text(self, path: str | None) -> str | None:
        """Hash all components of a path in text form."""
        return path and self.path(path.encode("utf-8", "surrogatepass")).decode()

    def table(self, table: pa.Table) -> pa.Table:
        """A table with its columns of names hashed."""
        for name in (*_TEXT, _HEX):
            if name not in table.column_names:
                continue
            values = table.column(name).to_pylist()
            if name == _HEX:
                values = [v and self.path(bytes.fromhex(v)).hex() for v in values]
            else:
                values = [self.text(v) for v in values]
            at = table.column_names.index(name)
            field = table.schema.field(name)
            table = table.set_column(at, field, pa.array(values, field.type))
        return table

    def sentence(self, text: str, paths: Mapping[int, str | None]) -> str:
        """A sentence with hashed paths."""
        for path in sorted((p for p in paths.values() if p), key=len, reverse=True):
            text = text.replace(path, self.text(path) or "")
        return text

    def result(self, result: TraceResult) -> TraceResult:
        """Result of a traced run without names."""
        files = result.tables["files"]
        paths = dict(
            zip(files.column("file_id").to_pylist(), files.column("path").to_pylist(), strict=True)
        )
        return dataclasses.replace(
            result,
            tables={name: self.table(table) for name, table in result.tables.items()},
            closing=self.sentence(result.closing, paths),
        )
