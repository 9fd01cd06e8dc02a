"""A kind of response: how often a word is said."""

from __future__ import annotations

from penstock.errors import PenstockError

WHAT = "A word."


def expected(word: str) -> str:
    """One word."""
    return "" if len(word.split()) == 1 else "one word"


def number(word: str, text: str, where: str) -> float:
    """How often; PenstockError if never."""
    found = text.split().count(word)
    if not found:
        raise PenstockError(f"{where} never says {word}")
    return float(found)
