"""A kind of response: number of occurrences of a word."""

from __future__ import annotations

from penstock.errors import PenstockError

WHAT = "A word."


def expected(word: str) -> str:
    """Return the expected value, or an empty text for a valid one."""
    return "" if len(word.split()) == 1 else "one word"


def number(word: str, text: str, where: str) -> float:
    """Number of occurrences; PenstockError if there is none."""
    count = text.split().count(word)
    if not count:
        raise PenstockError(f"{where} never says {word}")
    return float(count)
