"""Labelled numbers in the output of a program: unique labels, one locale, with the unit of the label."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

from penstock import numerals
from penstock.errors import PenstockError, printable
from penstock.workload.measured import Measured

#: a number in any locale
NUMBER = r"[+-]?[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?"
_ONE = "expected one (send what is not the result to /dev/null)"


def several(program: str, number: int) -> PenstockError:
    """Error for several reports of a program without a known result among them."""
    return PenstockError(f"found {number} reports of {program}; {_ONE}")


def complete_lines(text: str) -> str:
    """The text without a last line that has no end: its number may lack digits."""
    return text[: text.rfind("\n") + 1]


def check_version(
    text: str, pattern: re.Pattern[str], supported: Container[str], names: str
) -> None:
    """PenstockError if the group of a match of `pattern`, a version, is not a supported one."""
    for match in pattern.finditer(text):
        if match[1] not in supported:
            raise PenstockError(f"found a report of {printable(match[0])}; expected {names}")


class Printed:
    """Text of one report; `number` parses its numbers with their common decimal mark."""

    def __init__(self, program: str, text: str) -> None:
        self.program = program
        self.text = text
        self._others: list[str] = []

    def labelled(self, labels: Mapping[str, tuple[str, str]]) -> dict[str, Measured]:
        """Value of each label in the text: name → (pattern with the group `value`, unit).

        A group `unit` in a pattern overrides the unit. PenstockError for a duplicate label or one without a
        number.
        """
        texts: dict[str, tuple[str, str]] = {}
        for name, (pattern, unit) in labels.items():
            matches = list(re.finditer(pattern, self.text, flags=re.MULTILINE))
            if len(matches) > 1:
                raise several(self.program, len(matches))
            if matches:
                printed_unit = matches[0].groupdict().get("unit") or unit
                texts[name] = (matches[0]["value"], printed_unit)
        self.learn(value for value, _ in texts.values())
        return {
            name: Measured(self.number(value, name), unit) for name, (value, unit) in texts.items()
        }

    def learn(self, values: Iterable[str]) -> None:
        """Register numbers of the report, each of which may reveal the decimal mark."""
        self._others = list(values)

    def number(self, value: str, name: str) -> float:
        """A number of the report; PenstockError for an invalid or ambiguous one."""
        try:
            return numerals.number(value, "", self._others)
        except ValueError:
            shown = printable(value[:40])
            raise PenstockError(
                f"found {shown!r} as {name} of {self.program}; expected a number of one meaning (LC_ALL=C "
                "before the command makes it one)"
            ) from None
