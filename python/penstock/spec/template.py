"""Templates: text with `{name}`; literal braces are doubled. In a shell command line a value is one word."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


class LoneBrace(ValueError):  # noqa: N818 - reads as what it is
    """A `{` or `}` that is neither part of a name nor doubled."""


def names_in(text: str) -> list[str]:
    """Names in `text`, in order, without duplicates; LoneBrace for an unpaired brace."""
    names: dict[str, None] = {}
    for match in _PIECE.finditer(text):
        if match.group(1) is not None:
            names.setdefault(match.group(1).strip())
        elif match.group() in "{}":
            raise LoneBrace(match.group())
    return list(names)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace every `{name}` in `text`; KeyError for a name without a value, LoneBrace as above."""

    def one(match: re.Match[str]) -> str:
        if match.group(1) is not None:
            return values[match.group(1).strip()]
        if match.group() in "{}":
            raise LoneBrace(match.group())
        return match.group()[0]

    return _PIECE.sub(one, text)


class _Line:
    """State of a shell line before a value: open quotes and brackets.

    By POSIX.1-2017, Shell Command Language, 2.2, 2.3 and 2.6.3. Here-documents are treated as plain text.
    """

    def __init__(self) -> None:
        self._open = [""]  # innermost last: a quote, `, ( or the # of a comment
        self._before = " "

    def read(self, text: str) -> None:
        """Process literal text of the line."""
        place = 0
        while place < len(text):
            c = text[place]
            if c == "\\" and self._open[-1] not in ("'", "#"):
                place += 1
            else:
                self._turn(c)
            self._before = c
            place += 1

    def _turn(self, c: str) -> None:
        """Update the open quotes and brackets by one character."""
        inside = self._open[-1]
        if c == {"#": "\n", "(": ")"}.get(inside, inside):
            self._open.pop()
        elif inside in ("'", "#"):
            return
        elif (
            c == "`"
            or (c == "(" and self._before == "$")
            or (inside != '"' and (c in "'\"(" or (c == "#" and self._before in " \t\n;&|(")))
        ):
            self._open.append(c)

    def word(self, value: str) -> str:
        """Quote `value` for this position, so that it is neither split nor interpreted."""
        self._before = "x"
        if self._open[-1] == "#":
            return value.replace("\n", " ")
        if self._open[-1] == "'":
            word = value.replace("'", "'\\''")
        elif self._open[-1] == '"':
            word = re.sub(r'([\\"$`])', r"\\\1", value)
        else:
            word = shlex.quote(value) if value else ""
        for _ in range(self._open.count("`")):
            word = re.sub(r"([\\$`])", r"\\\1", word)
        return word


def fill_line(text: str, values: Mapping[str, str], plain: frozenset[str] = frozenset()) -> str:
    """Like `fill`, for a shell command line: each value is quoted for its position in the line.

    `plain` are the names whose values are inserted unquoted.
    """
    line = _Line()
    done: list[str] = []
    end = 0
    for match in _PIECE.finditer(text):
        done.append(text[end : match.start()])
        line.read(done[-1])
        end = match.end()
        name = match.group(1)
        if name is None:
            done.append(fill(match.group(), {}))
            line.read(done[-1])
        else:
            value = values[name.strip()]
            done.append(value if name.strip() in plain else line.word(value))
    return "".join([*done, text[end:]])


@dataclass(frozen=True)
class Filling:
    """Values by name. `plain` names are inserted unquoted: they are several words."""

    values: Mapping[str, str]
    plain: frozenset[str] = frozenset()

    def line(self, text: str) -> str:
        """Fill a shell command line, see `fill_line`."""
        return fill_line(text, self.values, self.plain)

    def text(self, text: str) -> str:
        """Fill a text outside of the shell, see `fill`."""
        return fill(text, self.values)

    def texts(self, texts: Mapping[str, str]) -> dict[str, str]:
        """`text` of every value."""
        return {name: self.text(text) for name, text in texts.items()}


def doubled(text: str) -> str:
    """A template whose result is `text`."""
    return text.replace("{", "{{").replace("}", "}}")


def name_alone(text: str) -> str:
    """Name in a template without other text, such as `{fault}`; else empty."""
    match = _PIECE.fullmatch(text.strip())
    return (match.group(1) or "").strip() if match else ""


def filled_in(value: Any, values: Mapping[str, Any]) -> Any:
    """Fill every template in plain values (mappings, lists, texts); raises as `fill` does.

    A template without other text is replaced by its value, which may be a mapping or list.
    """
    if isinstance(value, dict):
        return {k: filled_in(v, values) for k, v in value.items()}
    if isinstance(value, list):
        return [filled_in(v, values) for v in value]
    if not isinstance(value, str):
        return value
    alone = values.get(name_alone(value))
    return copy.deepcopy(alone) if isinstance(alone, dict | list) else fill(value, values)
