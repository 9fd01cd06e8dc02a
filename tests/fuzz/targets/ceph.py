"""Answers of Ceph's daemons at their admin sockets, and their counters."""

from __future__ import annotations

import asyncio
import contextlib
import json

import numpy as np

from penstock.parts.monitoring.collectors.collector import FailedError
from penstock.parts.monitoring.collectors.products import admin_socket
from penstock.parts.monitoring.collectors.products.perf_counters import USUAL, Counters
from tests.fuzz import mutate as of
from tests.fuzz.drive import Target, plain

_SCHEMA = {
    "osd": {"op_w": {"type": 10, "units": "none"}, "op_w_latency": {"type": 5}},
    "librbd-1-rbd-disk": {"wr_bytes": {"type": 10}, "hist": {"type": 26}},
}
_DUMP = {
    "osd": {"op_w": 7, "op_w_latency": {"avgcount": 7, "sum": 0.5, "avgtime": 0.07}},
    "librbd-1-rbd-disk": {"wr_bytes": 4096},
}
_ANSWERS = [json.dumps(document).encode() for document in (_SCHEMA, _DUMP)]
_FRAMED = [len(answer).to_bytes(4, "big") + answer for answer in _ANSWERS]


def _answer(data: bytes) -> None:
    """An answer of an admin socket, and the end of its connection."""

    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        answer = await admin_socket.answer(reader)
        assert len(answer) <= len(data) - 4

    asyncio.run(read())


def _counters(data: bytes) -> None:
    """A fuzzed schema with a valid dump, a valid schema with a fuzzed dump, and both fuzzed."""
    for schema, dump in ((data, _ANSWERS[1]), (_ANSWERS[0], data), (data, data)):
        with contextlib.suppress(ValueError):
            for selection in (USUAL, ["all"]):
                samples, _ = Counters(schema, selection).read(dump)
                names = [text for s, _ in samples for text in (s.metric, s.entity)]
                assert all(text.isprintable() and len(text) <= 200 + 8 for text in names)
                assert all(np.isfinite(value) for _, value in samples)


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        plain("ceph-answer", of.of_bytes(*_FRAMED), _answer, FailedError, cost=5),
        plain("ceph-counters", of.of_json(_SCHEMA, _DUMP), _counters, cost=30),
    ]
