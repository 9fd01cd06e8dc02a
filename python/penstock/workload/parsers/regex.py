"""A number in a text, from a regular expression with one group; the last match counts."""

from __future__ import annotations

import re

from penstock import numerals
from penstock.errors import PenstockError, printable
from penstock.spec.units import Unit, parse_unit
from penstock.text import TIME_SPELLINGS

WHAT = "Regular expression with one group; the last match counts."


#: characters around a match that are checked for the rest of a number
_NEAR = 40
#: text directly before a number that makes it part of a longer one: digits, a sign
_BEFORE = re.compile(
    rf"(?:0[xX][\da-fA-F]*|[\d.,]*\d(?:[.,:dhm{numerals.GROUP_MARKS}]|[eE][+-]?)?|(?<![\w.)\]-])[-\u2212])\Z"
)
#: text directly behind a number: digits, an exponent, and further fields of a time
_BEHIND = re.compile(
    rf"[.,]?\d[\d.,]*(?:[eE][+-]?\d+)?|[eE][+-]?\d+|[{numerals.GROUP_MARKS}]\d{{3}}(?!\d)[\d.,]*"
    r"|[:dhm]\d[\d:.]*|[xX][\da-fA-F]+"
)
#: a unit with a prefix, directly behind a number: programs choose it by the size of the number
_SCALED = re.compile(
    r"(?:[kKMGTP]i?(?:[Bb](?:its?|ps|ytes)?|ops)?(?:/s)?|[mun\u00b5\u03bc]s)(?![A-Za-z\d])"
)

#: a unit behind a number, perhaps after a blank
_UNIT = re.compile(r"[ \t]?(%|[A-Za-z\u00b5\u03bc\u00b0]+(?:/[A-Za-z]+)?)(?![\w/%])")
#: other spellings of units that programs print, and their possible meanings
_SPELLINGS: dict[str, tuple[str, ...]] = {
    **{spelling: (unit,) for spelling, unit in TIME_SPELLINGS.items()},
    **dict.fromkeys("byte bytes Byte Bytes".split(), ("B",)),
    "bits": ("bit",),
    "KB": ("kB", "KiB"),
    "KBps": ("kB/s", "KiB/s"),
    "Kbits": ("kbit",),
    "Kbps": ("kbit/s",),
    "KBytes": ("kB", "KiB"),
    **{
        spelling: meanings
        for p in "MGT"
        for spelling, meanings in (
            (f"{p}Bps", (f"{p}B/s",)),
            (f"{p}bits", (f"{p}bit",)),
            (f"{p}bps", (f"{p}bit/s",)),
            # iperf's, 1024 units of the next smaller prefix
            (f"{p}Bytes", (f"{p}B", f"{p}iB")),
        )
    },
    "kbps": ("kbit/s",),
    **dict.fromkeys("op io tx".split(), ("1",)),
}
#: a prefix alone, or before a count of operations: 12.5 K, 12.5 Kops/s, 12.5 kIOPS
_PREFIXED = re.compile(
    r"([kKMGT])(?:i?ops?|IO(?:PS)?|OPS|[tqr]ps|[TQR]PS|reqs?|txns?|requests|queries|events|transactions)?"
)
#: dimensions of counts and their rates, and of those of bytes
_COUNTED = ("count", "1/time")
_BYTES = ("size", "size/time")

#: a study may give the decimal mark of the number
HAS_DECIMAL_MARK = True
#: `number` compares the unit behind the number with that of the response
CHECKS_UNIT = True


def expected(pattern: str) -> str:
    """Expected form of an invalid pattern; empty for a valid one."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return f"a regular expression ({error})"
    one = "a regular expression with exactly one group ( ), which matches the number"
    return "" if groups == 1 else one


def number(pattern: str, text: str, where: str, decimal: str = "", unit: str = "") -> float:
    """Number in the group of the last match; PenstockError without a match or for an invalid number.

    `decimal`: its decimal mark; by default that of the matches (`numerals`). `unit`: that of the response;
    the unit behind the number must not contradict it, unless the expression matches that unit.
    """
    matches = [m for m in re.finditer(pattern, text, flags=re.MULTILINE) if m[1] is not None]
    if not matches:
        raise PenstockError(f"nothing in {where} matches {pattern!r}")
    last = matches[-1]
    shown = printable(last[1][:60])
    if around := _cut_from(last):
        raise PenstockError(
            f"found {shown!r} in {where} to be a part of {printable(around)!r}; expected an expression that "
            "matches the number from its first character to its last, or names the text next to it"
        )
    if printed := _other_unit(last, unit):
        raise PenstockError(
            f"found {shown!r} in {where} with the unit {printable(printed)}; expected {unit}, or an "
            "expression that matches the unit too"
        )
    try:
        return numerals.number(last[1], decimal, [m[1] for m in matches])
    except ValueError as error:
        raise PenstockError(f"found {shown!r} in {where}; expected {error}") from None


def _cut_from(match: re.Match[str]) -> str:
    """The longer number of which the group is a part, such as 143,2 for 2, or 12.5k; empty if none.

    Text matched by the expression itself around the group is ignored.
    """
    text, (begin, end) = match.string, match.span(1)
    if not text[begin:end].strip():
        return ""
    before = _BEFORE.search(text[max(0, begin - _NEAR) : begin]) if begin == match.start() else None
    rest = text[end : end + _NEAR] if end == match.end() else ""
    behind = _BEHIND.match(rest) or _SCALED.match(rest)
    if before is None and behind is None:
        return ""
    return (before[0] if before else "") + text[begin:end] + (behind[0] if behind else "")


def _other_unit(match: re.Match[str], unit: str) -> str:
    """The unit directly behind the number, if it is another one of the same quantity; empty if not.

    Programs choose it by the size of the number: 950 MB/s, then 1.1 GB/s. Users state it in an expression
    that matches it.
    """
    behind = _UNIT.match(match.string, match.end(1)) if match.end(1) == match.end() else None
    if behind is None or not unit:
        return ""
    above, slash, below = behind[1].partition("/")
    printed = [
        parsed
        for first in _SPELLINGS.get(above, (above,))
        for second in _SPELLINGS.get(below, (below,))
        if (parsed := _unit_of(f"{first}{slash}{second}")) is not None
    ]
    declared = _unit_of(unit)
    if declared is None:
        return ""
    factors = {p.factor for p in printed if p.dimension == declared.dimension}
    if factors:
        return "" if declared.factor in factors else behind[1]
    prefixed = _PREFIXED.fullmatch(above)
    if prefixed is None:
        return ""
    counts = _COUNTED if prefixed[0] != prefixed[1] else (*_COUNTED, *_BYTES)
    stated = declared.dimension in _BYTES and unit[:1].upper() == prefixed[1].upper()
    return "" if stated or declared.dimension not in counts else behind[1]


def _unit_of(text: str) -> Unit | None:
    try:
        return parse_unit(text)
    except ValueError:
        return None
