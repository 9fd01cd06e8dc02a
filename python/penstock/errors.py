"""What can go wrong, and the exit status each of it gets (see the command-line reference)."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: characters that a terminal acts upon instead of showing them: controls but line feed and tab, separators of
#: lines, changes of direction; and halves of surrogate pairs, which cannot be written
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """The text with every character that a terminal would act upon as an escape; lines stay lines.

    Escapes are those of JSON from U+007F on, where JSON itself leaves characters as they are.
    """
    return _CONTROLS.sub(_escape, text)


def _escape(control: re.Match[str]) -> str:
    number = ord(control[0])
    return f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}"


def printable(text: str) -> str:
    """The text with control and direction characters as escapes: a name in it can pretend nothing."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class PenstockError(Exception):
    """Something failed that is not the user's input. Exit status 1."""

    exit_status = 1

    def __str__(self) -> str:
        """What can be written as UTF-8, whatever text is quoted in it."""
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class Refused(PenstockError):  # noqa: N818 - reads as what it is
    """What was asked cannot be done as things stand: a node is frozen, a daemon will not. Exit status 1."""


class Away(PenstockError):  # noqa: N818 - reads as what it is
    """What is needed is not there just now, as a database whose server is down: to be tried again."""


class Upstream(PenstockError):  # noqa: N818 - reads as what it is
    """A server of others that had to be asked did not answer as it should. Exit status 1."""


class NoAnswer(Upstream):
    """It cannot be reached, or says nothing: another question to it would fare no better."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file the user wrote."""

    file: str
    line: int
    column: int
    found: str
    expected: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}:{self.column}: found {self.found}; expected {self.expected}"
        )


class BadInput(PenstockError):  # noqa: N818 - reads as what it is
    """What the user gave cannot be used. Exit status 2; nothing was changed."""

    exit_status = 2

    def __init__(self, message: str | None = None, mistakes: list[Mistake] | None = None) -> None:
        self.mistakes = mistakes or []
        super().__init__(message or "\n".join(str(m) for m in self.mistakes))
