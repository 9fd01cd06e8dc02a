"""Invalid batches in every protocol: each sent point is stored, refused, or outside of the experiment.

A model of a receiver (points in order, once, with a finite value) determines the reason under which each
point must be counted; the account of `penstock.parts.monitoring.conformance` must balance with it.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.parts.monitoring.collectors.collector import Intake
from penstock.parts.monitoring.conformance import Ledger, Sent, check_balance
from penstock.parts.monitoring.experiments.points import STALE_BITS
from penstock.parts.monitoring.experiments.recorded import recorded
from penstock.parts.monitoring.experiments.spool import Spool

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND
WINDOW = T0, T0 + 60 * SECOND
STALE = struct.unpack("<d", struct.pack("<Q", STALE_BITS))[0]
LABELS: list[dict[str, str]] = [{}, {"host": "a"}, {"host": "b", "dev": "sda"}, {"host": "ä"}]


@dataclass(frozen=True)
class Op:
    """A point: its series, seconds after the start, and value."""

    series: int
    at_s: int
    value: Any


@dataclass(frozen=True)
class Hostile:
    """An invalid point: the number of an entry of the protocol's `hostile`."""

    which: int


#: times within the experiment, and an hour before and after, a minute apart: duplicates and steps back occur
_times = st.sampled_from([0, 1, 2, 3, 4, 59, 60, 61, 3600, 3601, -1, -3600])
_values = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda v: v + 0.0),
    st.sampled_from([math.nan, STALE, math.inf, -math.inf, 0.0, 1.0]),
)
_op = st.builds(Op, st.integers(0, 3), _times, _values)
_message = st.lists(st.one_of(_op, _op, _op, st.builds(Hostile, st.integers(0, 50))), max_size=8)
_messages = st.lists(st.tuples(_message, st.booleans()), max_size=6)


@dataclass
class Model:
    """Expected treatment of points in order of arrival; `replaces`: a later value of a time replaces it."""

    replaces: bool
    in_text: bool
    newest: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    def sent(self, op: Op, utc_ns: int) -> Sent:
        value = struct.pack("<d", float(repr(op.value)) if self.in_text else op.value)
        at, before = self.newest.get(op.series, (-(1 << 62), b""))
        refused = ""
        if utc_ns < at:
            refused = "backwards"
        elif utc_ns == at:
            refused = "duplicate" if value == before else "" if self.replaces else "conflicting"
        if not refused:
            self.newest[op.series] = utc_ns, value
        return Sent("m", LABELS[op.series], utc_ns, refused, math.isfinite(op.value))


@dataclass(frozen=True)
class Protocol:
    """Encoding of points. `hostile`: invalid points, with the reasons under which they are counted.
    `breaks`: a truncated message is refused as a unit.
    """

    read: str
    encode: Callable[[Sequence[Any]], bytes]
    hostile: Sequence[tuple[Any, Sequence[str]]]
    arguments: tuple[Any, ...]
    replaces: bool
    breaks: bool


def _seconds(op: Op) -> int:
    return T0 // SECOND + op.at_s


def _text(value: float) -> str:
    return repr(float(value))


def _graphite(parts: Sequence[Any]) -> bytes:
    lines = []
    for part in parts:
        if isinstance(part, Op):
            tags = "".join(f";{k}={v}" for k, v in LABELS[part.series].items())
            part = f"m{tags} {_text(part.value)} {_seconds(part)}\n".encode()
        lines.append(part)
    return b"".join(lines)


def _line_protocol(parts: Sequence[Any]) -> bytes:
    lines = []
    for part in parts:
        if isinstance(part, Op):
            tags = "".join(f",{k}={v}" for k, v in LABELS[part.series].items())
            part = f"m{tags} value={_text(part.value)} {_seconds(part) * SECOND}\n".encode()
        lines.append(part)
    return b"".join(lines)


def _pickle(parts: Sequence[Any]) -> bytes:
    entries: list[Any] = []
    for part in parts:
        if isinstance(part, Op):
            tags = "".join(f";{k}={v}" for k, v in LABELS[part.series].items())
            value = part.value
            if value in (0.0, 1.0):  # as Carbon, a truth value is a number
                value = [False, True][int(value)] if part.at_s % 2 else int(value)
            part = (f"m{tags}", (_seconds(part), value))
        entries.append(part)
    return pickle.dumps(entries, _pickle_protocol(entries))


def _pickle_protocol(parts: Sequence[Any]) -> int:
    return len(parts) % 6


def _varint(n: int) -> bytes:
    out = b""
    while n >= 0x80:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _sample(op: Op) -> bytes:
    return b"\x09" + struct.pack("<d", op.value) + b"\x10" + _varint(_seconds(op) * 1000)


def _remote_write(parts: Sequence[Any]) -> bytes:
    message = b""
    for part in parts:
        if isinstance(part, Op):
            labels = {"__name__": "m", **LABELS[part.series]}
            pairs = ((_field(1, k.encode()), _field(2, v.encode())) for k, v in labels.items())
            part = b"".join(_field(1, k + v) for k, v in pairs) + _field(2, _sample(part))
        message += _field(1, part)
    return message + _field(3, b"metadata")


_NAME = _field(1, _field(1, b"__name__") + _field(2, b"m"))
_ONE = _field(2, _sample(Op(0, 0, 1.0)))


def _remote_write2(parts: Sequence[Any]) -> bytes:
    symbols = ["", "__name__", "m"]
    message = b""
    for part in parts:
        if isinstance(part, Op):
            refs = [1, 2]
            for text in (t for pair in LABELS[part.series].items() for t in pair):
                symbols += [text] if text not in symbols else []
                refs.append(symbols.index(text))
            part = _field(1, b"".join(map(_varint, refs))) + _field(2, _sample(part))
        message += _field(5, part)
    return b"".join(_field(4, s.encode()) for s in symbols) + message


def _exposition(parts: Sequence[Any]) -> bytes:
    lines = []
    for part in parts:
        if isinstance(part, Op):
            labels = ",".join(f'{k}="{v}"' for k, v in LABELS[part.series].items())
            part = f"m{{{labels}}} {_text(part.value)}\n".replace("inf", "Inf").encode()
        lines.append(part)
    return b"".join(lines) + b"# EOF\n"


_BAD = ("malformed",)
PROTOCOLS = [
    Protocol(
        "graphite",
        _graphite,
        [
            (b"a b c\n", _BAD),
            (b"m 1\n", _BAD),
            (b"m 1 2 3\n", _BAD),
            (b"\xff 1 1\n", _BAD),
            (b"m;t 1 1700000000\n", _BAD),
            (b"m True 1700000000\n", _BAD),
            (b"m 1 99999999999999\n", _BAD),
            (b"z" * 600 + b" 1 1700000000\n", ("too long",)),
            (b"\r\n", ()),
        ],
        (T0,),
        True,
        False,
    ),
    Protocol(
        "line_protocol",
        _line_protocol,
        [
            (b"m\n", _BAD),
            (b"m a=1,b=x,c=2 5\n", _BAD * 3),
            (b'm a="x, y",b=2,c=z\n', _BAD * 3),
            (b'm a=x,b="\nm value=1 5\n"\n', _BAD * 2),
            (b"m,t= a=1,b=2\n", _BAD * 2),
            (b"m a=1i,b=2u never\n", _BAD * 2),
            (b"m a=18446744073709551616u\n", _BAD),
            (b"m a=" + b"1" * 70_000 + b",b=1\n", ("too long",) * 2),
            (b"# a comment\n\n", ()),
        ],
        (T0, 1),
        True,
        False,
    ),
    Protocol(
        "pickle",
        _pickle,
        [
            (("m", (1, None)), _BAD),
            (("m", (1, {"a": 1})), _BAD),
            (("m", (1, Decimal("1.5"))), _BAD),
            (("m", (1, b"\xff")), _BAD),
            (("m", ("soon", 1)), _BAD),
            (("m", (None, 1)), _BAD),
            (("m", (1, [1])), _BAD),
            (("m", 1), _BAD),
            ((1, (2, 3)), _BAD),
            (None, _BAD),
            (("z" * 600, (1, 1)), ("too long",)),
        ],
        (T0,),
        True,
        True,
    ),
    Protocol(
        "remote_write",
        _remote_write,
        [
            (_NAME + _field(4, b"") * 2, ("native histogram",) * 2),
            (_ONE, _BAD),
            (_NAME + _NAME + _ONE + _ONE, _BAD * 2),
            (_NAME + _field(1, _field(1, b"a") + _field(2, b"\xff")) + _ONE, _BAD),
            (_NAME + _field(2, b"\x10" + _varint(1 << 62)), _BAD),
            (_NAME + _field(3, b"exemplar"), ()),
            (_field(1, _field(1, b"__name__") + _field(2, b"z" * 600)) + _ONE, ("too long",)),
        ],
        (),
        False,
        True,
    ),
    Protocol(
        "remote_write2",
        _remote_write2,
        [
            (_field(1, b"\x01\x02") + _field(3, b"") * 2, ("native histogram",) * 2),
            (_ONE, _BAD),
            (_field(1, b"\x01\x02\x02") + _ONE, _BAD),
            (_field(1, b"\x01\x7f") + _ONE + _ONE, _BAD * 2),
            (_field(1, b"\x01\x02\x01\x02") + _ONE, _BAD),
            (_field(1, b"\x01\x02") + _field(4, b"exemplar"), ()),
        ],
        (),
        False,
        True,
    ),
    Protocol(
        "exposition",
        _exposition,
        [
            (b"m{\n", _BAD),
            (b"m 1 2 3\n", _BAD),
            (b'm{a="1",a="2"} 1\n', _BAD),
            (b"1m 1\n", _BAD),
            (b"m x\n", _BAD),
            (b"# HELP m is\n\n", ()),
        ],
        (),
        False,
        True,
    ),
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.read)
@settings(max_examples=30)
@given(messages=_messages)
def test_each_point_is_stored_refused_or_outside(
    protocol: Protocol, messages: list[tuple[list[Any], bool]]
) -> None:
    in_text = protocol.read in ("graphite", "line_protocol", "exposition")
    model = Model(protocol.replaces, in_text)
    points: list[Sent] = []
    broken: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        spool = Spool.create(Path(place) / "spool")
        sink = spool.hold("it")
        stack.callback(sink.release)
        intake = Intake("it", sink)
        for number, (parts, breaks) in enumerate(messages):
            chosen = [
                protocol.hostile[p.which % len(protocol.hostile)] if isinstance(p, Hostile) else p
                for p in parts
            ]
            message = protocol.encode([p if isinstance(p, Op) else p[0] for p in chosen])
            # protocol 0 of pickle is text, in which all NaNs are equal
            model.in_text = in_text or (protocol.read == "pickle" and _pickle_protocol(chosen) == 0)
            arguments = protocol.arguments
            if protocol.read == "exposition":
                arguments = (T0 + number * SECOND, True, False, {})
            if breaks and protocol.breaks and message:
                # a truncated message and its repetition: nothing of the truncated one is stored
                with contextlib.suppress(ValueError):
                    intake.read(protocol.read, message[:-2], *arguments)
                    raise AssertionError(message)
                broken["malformed"] += 1
            for part in chosen:
                if isinstance(part, Op):
                    at_ns = _seconds(part) * SECOND
                    if protocol.read == "exposition":
                        at_ns = T0 + number * SECOND
                    points.append(model.sent(part, at_ns))
                else:
                    points += [Sent("?", {}, 0, reason) for reason in part[1]]
            intake.read(protocol.read, message, *arguments)
        intake.write_pending()
        account = recorded(spool.batches(), *WINDOW)
    check_balance(Ledger(points, broken), account, intake.receipt, WINDOW)
