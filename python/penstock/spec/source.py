"""YAML text of a study: plain values, and the line and column of each."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner

from penstock.errors import BadInput, Mistake

Path = tuple[str | int, ...]
#: limits for aliases, which can refer to themselves or multiply
_DEEPEST, _MOST = 50, 100_000
#: digits of an integer: more than any quantity has, and fast to parse
_MOST_DIGITS = 300
_INT = re.compile(r"[-+]?(0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")


@dataclass(frozen=True)
class Position:
    """A position in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def mistake(self, found: str, expected: str) -> Mistake:
        """An error at this position."""
        return Mistake(self.file, self.line, self.column, found, expected)

    def bad_input(self, found: str, expected: str) -> BadInput:
        """BadInput with this error only."""
        return BadInput(mistakes=[self.mistake(found, expected)])


@dataclass
class Source:
    """A study's text as plain values (`value`) with the position of every key and value."""

    file: str
    value: Any
    keys: dict[Path, Position] = field(default_factory=dict)
    values: dict[Path, Position] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    ends: dict[Path, int] = field(default_factory=dict)

    def at(self, path: Sequence[str | int], *, key: bool = False) -> Position:
        """Position of the value at `path` (of its key with `key`), or of its nearest existing parent."""
        where = tuple(path)
        while where:
            for table in (self.keys, self.values) if key else (self.values, self.keys):
                if where in table:
                    return table[where]
            where, key = where[:-1], True
        return self.values.get((), Position(self.file, 1, 1))

    def mistake(
        self, path: Sequence[str | int], found: str, expected: str, *, key: bool = False
    ) -> None:
        """Record one mistake at `path`."""
        self.mistakes.append(self.at(path, key=key).mistake(found, expected))

    def mistake_in(self, path: Path, needle: str, found: str, expected: str) -> None:
        """Record one mistake at the first `needle` within the text at `path`."""
        start = self.at(path)
        if start.file == self.file:
            for line in range(start.line, self.ends.get(path, start.line) + 1):
                text = self.lines[line - 1] if line <= len(self.lines) else ""
                column = text.find(needle, start.column - 1 if line == start.line else 0)
                if column >= 0:
                    mistake = Mistake(self.file, line, column + 1, found, expected)
                    self.mistakes.append(mistake)
                    return
        self.mistake(path, found, expected)


def read_input(path: FilePath, what: str) -> bytes:
    """Content of a file named by the user; BadInput, with `what` as expected, if unreadable.

    Devices are refused: /dev/zero has no end.
    """
    try:
        if stat.S_ISCHR(path.stat().st_mode) or stat.S_ISBLK(path.stat().st_mode):
            raise BadInput(f"{path}: found a device; expected {what}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{path}: {reason}; expected {what}") from None


def separator_of(table: str) -> str:
    """Separator of a CSV table: a tab or a semicolon if its first line has one and no comma, else a comma."""
    head = table.partition("\n")[0]
    return next((s for s in "\t;" if s in head and "," not in head), ",")


def read_source(
    raw: bytes, file: str, what: str = "a study; `penstock init -- CMD` writes one"
) -> Source:
    """Values and positions of a YAML text; BadInput if it is not UTF-8, not YAML, or empty.

    `what` is the expected content of an empty text.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        actual = f"the byte 0x{raw[error.start]:02x}"
        raise _bad(file, line, column, actual, "text in UTF-8") from None
    try:
        root = _yaml().compose(text)
    except MarkedYAMLError as error:
        raise _invalid(error, text, file) from None
    except RecursionError:
        raise _bad(file, 1, 1, "values nested without end", what) from None
    except (YAMLError, ValueError) as error:
        actual = f"text that is not YAML ({' '.join(str(error).split())[:120]})"
        raise _bad(file, 1, 1, actual, "a YAML mapping") from None
    if root is None:
        raise _bad(file, 1, 1, "an empty file", what)
    source = Source(file, None, lines=text.splitlines())
    source.value = _plain(root, (), source)
    return source


def read_value(text: str) -> Any:
    """Plain value of one YAML text, as after `--set key=`; BadInput for invalid YAML."""
    if not text.strip():
        return ""
    try:
        source = read_source(text.encode("utf-8", "surrogateescape"), f"--set …={text}")
    except BadInput as error:
        example = "a value, such as 14, 256KiB or [1, 2]"
        raise BadInput(mistakes=[replace(m, expected=example) for m in error.mistakes]) from None
    if source.mistakes:
        raise BadInput(mistakes=source.mistakes)
    return source.value


def dump(document: dict[str, Any]) -> str:
    """A YAML text of plain values; reading it gives the same values."""
    from io import StringIO

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 100
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


class _Scanner(Scanner):
    """Limits the depth of nested brackets, for which the library takes quadratic time."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803
        if len(self.flow_context) > 2 * _DEEPEST:
            raise RecursionError
        super().fetch_flow_collection_start(TokenClass, to_push)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _Scanner
    yaml.allow_duplicate_keys = True  # duplicates are reported later, with both positions
    return yaml


def _bad(file: str, line: int, column: int, found: str, expected: str) -> BadInput:
    return BadInput(mistakes=[Mistake(file, line, column, found, expected)])


def _invalid(error: MarkedYAMLError, text: str, file: str) -> BadInput:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    lines = text.splitlines()
    shown = lines[line] if line < len(lines) else ""
    if "\t" in shown[: column + 1] or "'\\t'" in str(error.problem):
        return _bad(file, line + 1, column + 1, "a tab", "blanks; YAML is not indented by tabs")
    problem = " ".join(str(error.problem or error.context or "no YAML").split())
    return _bad(file, line + 1, column + 1, f"text that is not YAML ({problem})", "a YAML mapping")


def _plain(node: Node, path: Path, source: Source) -> Any:
    mark = node.start_mark
    source.values[path] = Position(source.file, mark.line + 1, mark.column + 1)
    if len(path) > _DEEPEST or len(source.values) > _MOST:
        most = f"at most {_DEEPEST} levels and {_MOST:,} values"
        raise _bad(source.file, mark.line + 1, mark.column + 1, "values without end", most)
    source.ends[path] = node.end_mark.line + 1
    if isinstance(node, MappingNode):
        return _mapping(node, path, source)
    if isinstance(node, SequenceNode):
        return [_plain(child, (*path, i), source) for i, child in enumerate(node.value)]
    return _scalar(node, path, source)


def _mapping(node: MappingNode, path: Path, source: Source) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key_node, value_node in node.value:
        mark = key_node.start_mark
        here = Position(source.file, mark.line + 1, mark.column + 1)
        if not isinstance(key_node, ScalarNode):
            source.mistakes.append(here.mistake("a key that is not a name", "a name"))
            continue
        key = str(key_node.value)
        if key in entries:
            first = source.keys[(*path, key)].line
            actual = f"'{key}' a second time (first on line {first})"
            source.mistakes.append(here.mistake(actual, "each name once"))
            continue
        source.keys[(*path, key)] = here
        entries[key] = _plain(value_node, (*path, key), source)
    return entries


def _scalar(node: Node, path: Path, source: Source) -> Any:
    text, kind = str(node.value), str(node.tag).rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int" and _INT.fullmatch(text):
        if len(text) > _MOST_DIGITS:
            source.mistake(path, f"a number of {len(text)} digits", "a number that can be meant")
            return 0
        return int(text.replace("_", ""), 0 if text.lstrip("+-")[:2] in ("0o", "0x") else 10)
    if kind == "float":
        special = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
        return float(special.get(text.lower(), text.replace("_", "")))
    if kind not in ("str", "int", "timestamp"):
        source.mistake(path, f"the YAML tag {node.tag}", "a plain value")
    return text
