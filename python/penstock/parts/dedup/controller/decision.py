"""Decisions of the controller, as rows of a log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.spec.source import read_input
from penstock.writing import atomic_file, check_target

#: forms of a log, by the ending of its file
FORMS = (".jsonl", ".parquet")
_MOST_BYTES = 1 << 30
#: neither the target of a link, nor a device
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of state of one family, and the estimates on which it rests.

    `write` counts the family's writes from 1. `similarity`, `utility` and times (per byte) have an
    item for each of `configurations`, None where unknown. `next_probe` is the number of writes to the next
    probe, 0 without one.
    """

    at_s: float
    family: str
    write: int
    before: str
    after: str
    configuration: str
    reason: str
    configurations: tuple[str, ...]
    similarity: tuple[float | None, ...]
    utility: tuple[float | None, ...]
    send_s_per_byte: tuple[float | None, ...]
    hash_s_per_byte: tuple[float | None, ...]
    next_probe: int


_NAMES = [field.name for field in fields(Decision)]


class DecisionLog:
    """A log in JSON lines that grows with each decision; it is private to its user.

    Raises BadInput for a file that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.add(())

    def add(self, decisions: Iterable[Decision]) -> None:
        """Append decisions."""
        lines = "".join(json.dumps(asdict(decision)) + "\n" for decision in decisions)
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FLAGS, 0o600)
            try:
                os.write(handle, lines.encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise BadInput(
                f"log: found {self._path} ({error.strerror}); expected a file to write"
            ) from None


def write_decisions(decisions: Iterable[Decision], path: Path) -> None:
    """Write a log as JSON lines or Parquet; BadInput for another ending."""
    if path.suffix not in FORMS:
        raise BadInput(f"{path}: found '{path.suffix}'; expected {' or '.join(FORMS)}")
    check_target(path)
    rows = [asdict(decision) for decision in decisions]
    with atomic_file(path) as draft:
        if path.suffix == ".jsonl":
            draft.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        else:
            _write_parquet(rows, draft)


def _write_parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number, text, numbers = pa.float64(), pa.string(), pa.list_(pa.float64())
    types = dict.fromkeys(_NAMES, text) | {
        "at_s": number,
        "write": pa.int64(),
        "configurations": pa.list_(text),
        "similarity": numbers,
        "utility": numbers,
        "send_s_per_byte": numbers,
        "hash_s_per_byte": numbers,
        "next_probe": pa.int64(),
    }
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(list(types.items()))), path)


def read_decisions(path: Path) -> list[Decision]:
    """Read a log; BadInput for another file."""
    what = "a log of decisions"
    if path.suffix not in FORMS:
        raise BadInput(f"{path}: found '{path.suffix}'; expected {' or '.join(FORMS)}")
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows = pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise BadInput(f"{path}: found {str(error).splitlines()[0]}; expected {what}") from None
        return [_decision(row, str(path)) for row in rows]
    raw = read_input(path, what)
    if len(raw) > _MOST_BYTES:
        raise BadInput(f"{path}: found {len(raw):,} bytes; expected at most {_MOST_BYTES:,}")
    decisions = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise BadInput(f"{path}:{number}: found no JSON; expected {what}") from None
        decisions.append(_decision(row, f"{path}:{number}"))
    return decisions


def _decision(row: Any, where: str) -> Decision:
    if not isinstance(row, dict) or sorted(row) != sorted(_NAMES):
        raise BadInput(f"{where}: found other columns; expected {', '.join(_NAMES)}")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
    }
    return Decision(**values)
