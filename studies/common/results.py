"""Files with the results of a study's parts."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from penstock.errors import BadInput
from penstock.writing import write_atomic

T = TypeVar("T")


def store_result(path: Path, adapter: TypeAdapter[T], result: T) -> None:
    """Write a result, and its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, adapter.dump_json(result).decode())


def read_result(path: Path, adapter: TypeAdapter[T], expected: str) -> T:
    """A stored result. Raises BadInput for another file; `expected`: the result's name for the message."""
    if not path.is_file():
        raise BadInput(f"{path}: found no file; expected {expected}")
    try:
        return adapter.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(str(step) for step in first["loc"])
        raise BadInput(f"{path}: {location}: found {first['msg']}; expected {expected}") from None


class RowFile:
    """Rows of results in a file that is only appended to: a killed program loses the incomplete last row.

    `kinds`: the dataclasses of rows. A file that ends with `.gz` is only read.
    """

    def __init__(self, path: Path, kinds: Sequence[type]) -> None:
        self.path = path
        self._adapters: dict[str, TypeAdapter[Any]] = {k.__name__: TypeAdapter(k) for k in kinds}

    def rows(self) -> list[Any]:
        """All complete rows; empty without a file. Raises BadInput for another file."""
        if not self.path.is_file():
            return []
        raw = self.path.read_bytes()
        text = gzip.decompress(raw) if self.path.suffix == ".gz" else raw
        complete = text[: text.rfind(b"\n") + 1].splitlines()
        return [self._row(line, number) for number, line in enumerate(complete, 1)]

    def _row(self, line: bytes, number: int) -> Any:
        try:
            ((kind, values),) = json.loads(line).items()
            return self._adapters[kind].validate_python(values)
        except (ValueError, KeyError, TypeError, AttributeError):
            expected = f"one of {', '.join(self._adapters)} in each line"
            raise BadInput(
                f"{self.path}: line {number}: found no row; expected {expected}"
            ) from None

    def append(self, row: Any) -> None:
        """Append a row, durably; an incomplete last row is removed first."""
        kind = type(row).__name__
        line = b'{"%s": %s}\n' % (kind.encode(), self._adapters[kind].dump_json(row))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
