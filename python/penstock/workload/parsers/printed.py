"""Numbers that a program prints beside labels: each label once, in one locale, in the unit named there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from penstock import numerals
from penstock.errors import PenstockError, printable
from penstock.workload.measured import Measured

#: a number as any locale prints it
NUMBER = r"[+-]?[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?"
_ONE = "expected one (send what is not the result to /dev/null)"


def several(program: str, number: int) -> PenstockError:
    """The error of a text with several reports of a program, of which none is known to be the result."""
    return PenstockError(f"found {number} reports of {program}; {_ONE}")


class Printed:
    """The text of one report; `number` reads one of its numbers by the decimal mark that all of them show."""

    def __init__(self, program: str, text: str) -> None:
        self.program = program
        self.text = text
        self._others: list[str] = []

    def labelled(self, labels: Mapping[str, tuple[str, str]]) -> dict[str, Measured]:
        """The value of each label that is there: name → (pattern with the group `value`, unit).

        A group `unit` in a pattern gives the unit instead. PenstockError where a label stands there twice, or
        without a number.
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
        """Takes these numbers of the report, any of which may show the decimal mark of the others."""
        self._others = list(values)

    def number(self, value: str, name: str) -> float:
        """A number of the report; PenstockError where it is none, or has two meanings."""
        try:
            return numerals.number(value, "", self._others)
        except ValueError:
            shown = printable(value[:40])
            raise PenstockError(
                f"found {shown!r} as {name} of {self.program}; expected a number of one meaning (LC_ALL=C "
                "before the command makes it one)"
            ) from None
