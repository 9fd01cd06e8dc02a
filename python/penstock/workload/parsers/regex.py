"""A number found in a text by a regular expression with one group; the last match counts."""

from __future__ import annotations

import re

from penstock.errors import PenstockError

WHAT = "Regular expression with one group; the last match counts."


def expected(pattern: str) -> str:
    """What is expected instead of a pattern that is none; empty for one that is."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return f"a regular expression ({error})"
    one = "a regular expression with exactly one group ( ), which holds the number"
    return "" if groups == 1 else one


def number(pattern: str, text: str, where: str) -> float:
    """The number in the group of the last match; PenstockError if nothing matches or it is no number."""
    found = re.findall(pattern, text, flags=re.MULTILINE)
    if not found:
        raise PenstockError(f"nothing in {where} matches {pattern!r}")
    try:
        return float(str(found[-1]).replace(",", ""))
    except ValueError:
        raise PenstockError(f"{found[-1]!r} in {where} is not a number") from None
