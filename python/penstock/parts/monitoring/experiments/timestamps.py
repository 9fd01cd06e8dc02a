"""Notation of experiments and moments: `NAME#2`, `1512056178.25`, `2026-01-02T03:04Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from penstock.errors import BadInput, printable

MOST_NAME = 200
_NS = 10**9
#: range of an i64 of ns since 1970, and so of every table and format here [s]
_FIRST_S, _LAST_S = -9_000_000_000, 9_000_000_000
_REPEAT = re.compile(r"(.+)#([1-9][0-9]{0,8})", re.DOTALL)
#: fraction of a second; a time without seconds has none
_FRACTION = re.compile(
    r"(.*T[0-9]{2}(?::[0-9]{2}:[0-9]{2}|[0-9]{4}))[.,]([0-9]{1,9})([^0-9.,].*)", re.DOTALL
)


def name_and_repeat(text: str) -> tuple[str, int | None]:
    """`x#3` is the third experiment called `x`, a bare `x` the latest. BadInput for an invalid name."""
    match = _REPEAT.fullmatch(text)
    name, repeat = (match[1], int(match[2])) if match else (text, None)
    if not 0 < len(name) <= MOST_NAME or not name.isprintable() or name != name.strip():
        raise BadInput(
            f"found name {printable(name[:80])!r}; expected 1 to {MOST_NAME} printable characters, none of "
            "them a space at an end"
        )
    return name, repeat


def moment_ns(value: Any) -> int:
    """A moment [ns since 1970-01-01 UTC], without rounding.

    Seconds since 1970 with up to nine decimals (number or text), or ISO 8601 with an offset or `Z`: the
    result never depends on the local time zone. Raises BadInput for other values, booleans included, and for
    a moment beyond 64 bits of nanoseconds.
    """
    expected = "expected seconds since 1970 with at most 9 decimals, or ISO 8601 with its offset"
    if isinstance(value, str) and "T" in value:
        return _iso_ns(value, expected)
    try:
        if isinstance(value, bool):
            raise InvalidOperation
        seconds = Decimal(repr(value) if isinstance(value, float) else str(value).strip())
        if not seconds.is_finite() or not _FIRST_S < seconds < _LAST_S:
            raise InvalidOperation
        exact = seconds * _NS
        if exact != exact.to_integral_value():
            raise InvalidOperation
    except (ArithmeticError, ValueError):
        raise BadInput(f"found time {_shown(value)}; {expected}") from None
    return int(exact)


def _iso_ns(text: str, expected: str) -> int:
    fraction = _FRACTION.fullmatch(text)
    plain, rest = (
        (fraction[1] + fraction[3], fraction[2].ljust(9, "0")) if fraction else (text, "0")
    )
    try:
        # it takes a fraction of a minute for one of a second, and drops digits of longer ones
        parsed = None if re.search("[.,]", plain) else datetime.fromisoformat(plain)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise BadInput(f"found time {_shown(text)}; {expected}")
    try:
        elapsed = parsed - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        elapsed = None
    seconds = None if elapsed is None else elapsed.days * 86_400 + elapsed.seconds
    if seconds is None or not _FIRST_S < seconds < _LAST_S:
        raise BadInput(f"found time {_shown(text)}; expected one from 1684-10-20 to 2255-03-14")
    return seconds * _NS + int(rest)


def _shown(value: Any) -> str:
    """A value, shortened and printable; integers of more than 77 digits are only described."""
    huge = isinstance(value, int) and value.bit_length() > 256
    return "an integer of more than 77 digits" if huge else repr(printable(str(value)[:80]))


def seconds_text(ns: int) -> str:
    """Nanoseconds as seconds in the shortest exact form."""
    sign, absolute = ("-", -ns) if ns < 0 else ("", ns)
    text = f"{sign}{absolute // _NS}.{absolute % _NS:09d}"
    return text.rstrip("0").rstrip(".")


def iso_text(ns: int) -> str:
    """Nanoseconds since 1970 as ISO 8601 in UTC."""
    seconds, rest = divmod(ns, _NS)
    day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{day}{fraction}Z"
