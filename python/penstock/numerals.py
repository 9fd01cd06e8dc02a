"""Numbers in text with decimal points or commas and digit groups; ambiguous ones are refused.

`1,234.5`, `1.234,5`, `1 234,5`, `1'234.5` and `143,2` are unambiguous. `1,234` is not; its decimal mark must
be given. A single point is a decimal point, unless other numbers of the same text have decimal commas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MARKS = (".", ",")
#: a number with an exponent, as programs print it; excludes `nan` and `inf`
_PLAIN = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?")
#: separators of digit groups other than decimal marks and the blank: spaces, apostrophes, underscore
GROUP_MARKS = "\u00a0\u2009\u202f'\u2019_"
#: three digits after a single mark: thousands or a fraction
_OF_TWO_MEANINGS = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")


def decimal_mark(texts: Iterable[str]) -> str:
    """Decimal mark that the numbers determine; empty if none or both."""
    shown = {mark for mark in map(_mark, texts) if mark}
    return shown.pop() if len(shown) == 1 else ""


def is_ambiguous(text: str) -> bool:
    """True for a number such as 1.234 or 1,234, whose mark separates a fraction or thousands."""
    return _OF_TWO_MEANINGS.fullmatch(text) is not None


def number(text: str, mark: str = "", others: Iterable[str] = ()) -> float:
    """The number `text`, with the decimal mark `mark`, else with the one that it or `others` determine.

    ValueError, with the expected form, for malformed or ambiguous numbers.
    """
    stripped = text.strip()
    shown = mark or _mark(stripped) or decimal_mark(others)
    unclear = _OF_TWO_MEANINGS.fullmatch(stripped) is not None and not mark
    if unclear and (shown == "," if "." in stripped else not shown):
        raise ValueError("a number with one meaning; state it by `decimal: '.'` or `decimal: ','`")
    decimal = shown or "."
    separator = "," if decimal == "." else "."
    plain = _without_groups(stripped, separator)
    if separator in plain or plain.count(decimal) > 1:
        raise ValueError(f"a number with the decimal mark {decimal!r}")
    return plain_number(plain.replace(decimal, "."))


def plain_number(text: str) -> float:
    """A number as programs print it, with a decimal point and without groups of digits.

    ValueError for any other text, `nan` and `inf` included.
    """
    if not _PLAIN.fullmatch(text):
        raise ValueError("a number")
    return float(text)


def _mark(text: str) -> str:
    """Decimal mark that a number determines; empty if none."""
    text = text.strip()
    marks = [c for c in text if c in MARKS]
    if len(set(marks)) == 2:  # the last one is decimal, if it is unique
        return marks[-1] if marks.count(marks[-1]) == 1 else ""
    if len(marks) > 1:  # only digit groups
        return "." if marks[0] == "," else ","
    return marks[0] if marks and not _OF_TWO_MEANINGS.fullmatch(text) else ""


def _without_groups(text: str, separator: str) -> str:
    """The number without group separators; unchanged if they do not form groups of three."""
    for mark in (separator, " ", *GROUP_MARKS):
        if mark in text:
            grouped = rf"[+-]?\d{{1,3}}(?:{re.escape(mark)}\d{{3}})+(?:[.,]\d*)?(?:[eE][+-]?\d+)?"
            return text.replace(mark, "") if re.fullmatch(grouped, text) else text
    return text
