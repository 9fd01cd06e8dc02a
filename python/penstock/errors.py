"""Errors, and the exit status of each (see the command-line reference)."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: characters that terminals interpret: controls except line feed and tab, line separators, bidirectional
#: controls; and surrogates, which cannot be encoded
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """The text with terminal control characters escaped; line breaks stay.

    Escapes are those of JSON also from U+007F on, where JSON itself needs none.
    """
    return _CONTROLS.sub(_escape, text)


def _escape(control: re.Match[str]) -> str:
    number = ord(control[0])
    return f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}"


def printable(text: str) -> str:
    """The text with escapes for control and direction characters, which could imitate other text."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class PenstockError(Exception):
    """A failure that is not due to the user's input. Exit status 1."""

    exit_status = 1

    def __str__(self) -> str:
        """The message, with characters that UTF-8 cannot encode as escapes."""
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class Refused(PenstockError):  # noqa: N818 - reads as what it is
    """A request that the current state forbids: a node is frozen, a daemon refuses. Exit status 1."""


class Away(PenstockError):  # noqa: N818 - reads as what it is
    """A service that is temporarily unavailable, such as a database whose server is down. Retry later."""


class Upstream(PenstockError):  # noqa: N818 - reads as what it is
    """A server outside penstock replied with an error. Exit status 1."""


class NoAnswer(Upstream):
    """A server that is unreachable or does not reply; further requests would fail, too."""


@dataclass(frozen=True)
class Mistake:
    """One error in an input file."""

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
    """Invalid input. Exit status 2; nothing was changed."""

    exit_status = 2

    def __init__(self, message: str | None = None, mistakes: list[Mistake] | None = None) -> None:
        self.mistakes = mistakes or []
        super().__init__(message or "\n".join(str(m) for m in self.mistakes))
