"""A JSON or YAML file of a workload: its values and their positions.

Instances of 10,000 tasks are tens of megabytes of JSON, so the JSON is read by the standard library's
decoder, and positions are located only for error messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path as FilePath
from typing import Any

from penstock.errors import BadInput, Mistake
from penstock.spec.source import Path, Position, Source, read_input, read_source

#: maximum number of reported mistakes
MOST_MISTAKES = 20

#: digits of an integer that fits a float
_MOST_DIGITS = 300

_BLANK = re.compile(r"[ \t\n\r]*")
_PLAIN = json.JSONDecoder()


@dataclass
class Document:
    """One file's values (`value`), their text, and the mistakes in them."""

    file: str
    value: Any
    text: str = ""
    source: Source | None = None
    mistakes: list[Mistake] = field(default_factory=list)

    def at(self, path: Sequence[str | int], *, key: bool = False) -> Position:
        """Position of the value at `path` (of its key with `key`), or of its nearest existing parent."""
        if self.source is not None:
            return self.source.at(path, key=key)
        if not self.text:
            return Position(self.file, 1, 1)
        return self._position(_locate(self.text, tuple(path), key))

    def mistake(
        self, path: Sequence[str | int], found: str, expected: str, *, key: bool = False
    ) -> None:
        """Record one mistake at `path`; raises BadInput at the maximum number."""
        self.mistakes.append(self.at(path, key=key).mistake(found, expected))
        if len(self.mistakes) >= MOST_MISTAKES:
            self.check()

    def check(self) -> None:
        """Raise BadInput with the recorded mistakes, in the order of the file."""
        if self.mistakes:
            raise BadInput(mistakes=sorted(self.mistakes, key=lambda m: (m.line, m.column)))

    def _position(self, offset: int) -> Position:
        line = self.text.count("\n", 0, offset) + 1
        return Position(self.file, line, offset - self.text.rfind("\n", 0, offset))


def read_document(path: FilePath) -> Document:
    """The values of a JSON or YAML file (YAML by its suffix, or by a start unlike JSON).

    Raises BadInput with line and column: missing file, not UTF-8, invalid JSON or YAML, a duplicate name in
    an object, NaN or Infinity (which JSON does not have).
    """
    return document_of(read_input(path, "a workload"), str(path))


def document_of(raw: bytes, file: str) -> Document:
    """Like `read_document`, from bytes; `file` is their name in mistakes."""
    yaml = file.endswith((".yaml", ".yml"))
    start = raw.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start:
        raise BadInput(mistakes=[Mistake(file, 1, 1, "an empty file", "a workload")])
    if yaml or start[:1] not in b"{[":
        source = _yaml_source(raw, file)
        return Document(file, source.value, source=source)
    return _json_document(raw, file)


def _yaml_source(raw: bytes, file: str) -> Source:
    try:
        source = read_source(raw, file)
    except BadInput as error:
        # adapt messages about study files to workloads
        long = "a workload; JSON if it is this long"
        replaced = {"values without end": long}
        mistakes = [replace(m, expected=replaced.get(m.found, m.expected)) for m in error.mistakes]
        raise BadInput(mistakes=mistakes) from None
    if source.mistakes:
        raise BadInput(mistakes=source.mistakes[:MOST_MISTAKES])
    return source


def _json_document(raw: bytes, file: str) -> Document:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        actual = f"the byte 0x{raw[error.start]:02x}"
        raise BadInput(mistakes=[Mistake(file, line, column, actual, "text in UTF-8")]) from None
    suspects: list[str] = []
    try:
        value = _decoder(suspects).decode(text)
    except json.JSONDecodeError as error:
        actual = f"text that is not JSON ({error.msg})"
        mistake = Mistake(file, error.lineno, error.colno, actual, "a JSON object")
        raise BadInput(mistakes=[mistake]) from None
    except RecursionError:
        mistake = Mistake(file, 1, 1, "values nested without end", "a workload")
        raise BadInput(mistakes=[mistake]) from None
    except _TooLongError as error:
        at = text.find(str(error))
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        actual = f"a number of {len(str(error))} digits"
        mistake = Mistake(file, line, column, actual, "a number that can be meant")
        raise BadInput(mistakes=[mistake]) from None
    document = Document(file, value, text=text)
    if suspects:
        _tell_suspects(document)
        document.check()
    return document


def _decoder(suspects: list[str]) -> json.JSONDecoder:
    """A decoder that records duplicate names and numbers that JSON does not have."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(members)
        if len(values) != len(members):
            suspects.append("name")
        return values

    def constant(name: str) -> float:
        suspects.append(name)
        return float(name.replace("Infinity", "inf"))

    return json.JSONDecoder(object_pairs_hook=pairs, parse_constant=constant, parse_int=_integer)


class _TooLongError(Exception):
    """An integer with more digits than any quantity."""


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise _TooLongError(text)
    return int(text)


def _tell_suspects(document: Document) -> None:
    """Record the positions of duplicate names and invalid numbers."""
    suspects: list[str] = []
    decoder = _decoder(suspects)
    ahead = [_skip(document.text, 0)]
    while ahead and len(document.mistakes) < MOST_MISTAKES - 1:
        start = ahead.pop()
        seen: dict[str, int] = {}
        inner = False
        for name, key_at, at in _members(document.text, start):
            if isinstance(name, str) and name in seen:
                first = document._position(seen[name]).line
                repeated = f"'{name}' a second time (first on line {first})"
                _note(document, key_at, repeated, "each name once")
            elif isinstance(name, str):
                seen[name] = key_at
            suspects.clear()
            value, _ = decoder.raw_decode(document.text, at)
            if suspects:
                inner = True
                if isinstance(value, dict | list):
                    ahead.append(at)
                else:
                    _note(document, at, suspects[0], "a number; JSON has no such value")
        if not inner and not document.mistakes and not seen:
            _note(document, start, "a number that is none", "a workload")


def _note(document: Document, offset: int, found: str, expected: str) -> None:
    p = document._position(offset)
    document.mistakes.append(p.mistake(found, expected))


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _members(text: str, start: int) -> Iterator[tuple[str | int, int, int]]:
    """Name (or index), offset of the name and offset of the value of each member of a container."""
    if text[start : start + 1] not in ("{", "["):
        return
    named = text[start] == "{"
    at = _skip(text, start + 1)
    index = 0
    while at < len(text) and text[at] not in "}]":
        key_at, name = at, index
        if named:
            name, at = scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        yield name, key_at, at
        _, at = _PLAIN.raw_decode(text, at)
        at = _skip(text, at)
        if at < len(text) and text[at] == ",":
            at = _skip(text, at + 1)
        index += 1


def _locate(text: str, path: Path, key: bool) -> int:
    """Offset of the value at `path` in a JSON text, or of its deepest existing parent."""
    at = _skip(text, 0)
    for depth, step in enumerate(path):
        for name, key_at, value_at in _members(text, at):
            if name == step:
                at = key_at if key and depth == len(path) - 1 else value_at
                break
        else:
            break
    return at


def shown(value: Any) -> str:
    """A value as text in a mistake."""
    if value is ...:
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
