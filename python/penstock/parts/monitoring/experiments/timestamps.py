"""How experiments and moments are written: `NAME#2`, `1512056178.25`, `2026-01-02T03:04Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.errors import BadInput, printable

MOST_NAME = 200
_NS = 10**9
#: what an i64 of ns since 1970 can hold, and so every table and format here [s]
_FIRST_S, _LAST_S = -9_000_000_000, 9_000_000_000
_REPEAT = re.compile(r"(.+)#([1-9][0-9]{0,8})", re.DOTALL)
_FRACTION = re.compile(r"(.*T[0-9:]+)[.,]([0-9]{1,9})(.*)", re.DOTALL)


def name_and_repeat(text: str) -> tuple[str, int | None]:
    """`x#3` is the third experiment called `x`, a bare `x` the latest. BadInput for what is no name."""
    found = _REPEAT.fullmatch(text)
    name, repeat = (found[1], int(found[2])) if found else (text, None)
    if not 0 < len(name) <= MOST_NAME or not name.isprintable() or name != name.strip():
        raise BadInput(
            f"found name {printable(name[:80])!r}; expected 1 to {MOST_NAME} printable characters, none of "
            "them a space at an end"
        )
    return name, repeat


def moment_ns(said: Any) -> int:
    """A moment [ns since 1970-01-01 UTC], exactly as it was said.

    Seconds since 1970 with up to nine decimals (number or text), or ISO 8601 with an offset or `Z`: no
    answer depends on the time zone of who reads it. Raises BadInput for all else, a truth value among it,
    and for a moment that 64 bits of nanoseconds do not hold.
    """
    expected = "expected seconds since 1970 with at most 9 decimals, or ISO 8601 with its offset"
    if isinstance(said, str) and "T" in said:
        return _iso_ns(said, expected)
    try:
        if isinstance(said, bool):
            raise InvalidOperation
        seconds = Decimal(repr(said) if isinstance(said, float) else str(said).strip())
        if not seconds.is_finite() or not _FIRST_S < seconds < _LAST_S:
            raise InvalidOperation
        exact = seconds * _NS
        if exact != exact.to_integral_value():
            raise InvalidOperation
    except (ArithmeticError, ValueError):
        raise BadInput(f"found time {_shown(said)}; {expected}") from None
    return int(exact)


def _iso_ns(said: str, expected: str) -> int:
    fraction = _FRACTION.fullmatch(said)
    plain, rest = (
        (fraction[1] + fraction[3], fraction[2].ljust(9, "0")) if fraction else (said, "0")
    )
    try:
        found = datetime.fromisoformat(plain)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput(f"found time {_shown(said)}; {expected}")
    try:
        whole = found - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        whole = None
    seconds = None if whole is None else whole.days * 86_400 + whole.seconds
    if seconds is None or not _FIRST_S < seconds < _LAST_S:
        raise BadInput(f"found time {_shown(said)}; expected one from 1684-10-20 to 2255-03-14")
    return seconds * _NS + int(rest)


def _shown(said: Any) -> str:
    """What was given, cut, and readable on a terminal; an integer of a million digits is not written out."""
    huge = isinstance(said, int) and said.bit_length() > 256
    return "an integer of more than 77 digits" if huge else repr(printable(str(said)[:80]))


def seconds_text(ns: int) -> str:
    """Nanoseconds as seconds in shortest exact form."""
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    text = f"{sign}{whole // _NS}.{whole % _NS:09d}"
    return text.rstrip("0").rstrip(".")


def iso_text(ns: int) -> str:
    """Nanoseconds since 1970 as ISO 8601 in UTC."""
    whole, rest = divmod(ns, _NS)
    day = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{day}{fraction}Z"
