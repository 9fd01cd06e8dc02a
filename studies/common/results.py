"""Files with the results of a study's parts."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

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
        where = ".".join(str(step) for step in first["loc"])
        raise BadInput(f"{path}: {where}: found {first['msg']}; expected {expected}") from None
