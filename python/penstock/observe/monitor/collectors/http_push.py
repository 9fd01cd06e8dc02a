"""What is pushed over HTTP: InfluxDB's line protocol (`/write`, as InfluxDB 1.x answers) and Prometheus
remote write (`/api/v1/write`).

A request is answered once its points are kept. A sender that numbers its batches (`X-Penstock-Batch: SOURCE
NUMBER`) may send one again: it changes nothing. Settings: `port`, `host`, `token`, `open`, `in_order` (true),
`interval_s` (how often a point of each series is due).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

import cramjam

from penstock.errors import BadInput, PenstockError
from penstock.observe.monitor.collectors.collector import (
    NO_LOSS,
    Intake,
    Receipt,
    only,
    setting,
    told_interval_ns,
)
from penstock.observe.monitor.collectors.columns import no_unit, unit_of
from penstock.observe.monitor.collectors.listening import (
    MOST_BODY,
    Answer,
    Door,
    HttpListener,
    Request,
)
from penstock.observe.monitor.collectors.together import Together
from penstock.observe.monitor.points import Closed, Held, Sink

#: of `precision`, one unit [ns]
PRECISIONS = {
    "": 1,
    "n": 1,
    "ns": 1,
    "u": 1000,
    "us": 1000,
    "µ": 1000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
#: a point that is there already is no mistake of a sender that tries again
FORGIVEN = NO_LOSS


class _Push:
    """What the two have in common."""

    port = 0
    #: waits at a port for what comes
    listens = True
    units = staticmethod(no_unit)

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("host", "port", "token", "open", "in_order", "interval_s"))
        self.name = name
        self._door = Door.of(name, settings, self.port, tokens=True)
        self._in_order = setting(name, settings, "in_order", bool, True)
        self._interval_ns = told_interval_ns(name, settings)
        self._listener: HttpListener | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._listener is not None
        return self._listener.address

    @staticmethod
    def of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
        """In a run: at a free port, for who has a token that is the run's own."""
        own = {"port": 0, **settings}
        return own if own.get("open") else {"token": secrets.token_urlsafe(24), **own}

    def reached(self) -> dict[str, str]:
        """Where, and by which token, a command reaches it."""
        host, port = self.address
        name = f"[{host}]" if ":" in host else host
        token = {} if self._door.token is None else {"TOKEN": self._door.token}
        return {"": f"http://{name}:{port}", **token}

    async def start(self, sink: Sink) -> None:
        self.intake = Intake(
            self.name,
            sink,
            in_order=self._in_order,
            unit=self.units,
            interval_ns=self._interval_ns,
        )
        self._together = Together(self.intake)
        self._listener = HttpListener(self._door, self.answer, self._full)
        await self._listener.start()

    async def stop(self) -> Receipt:
        assert self._listener is not None
        await self._listener.stop()
        await self._together.stop()
        with contextlib.suppress(Closed):
            await asyncio.to_thread(self.intake.tell)
        if self._listener.dropped:
            self.intake.receipt.counted["connections dropped"] = self._listener.dropped
        if self._listener.foreign:
            self.intake.receipt.counted["from other users"] = self._listener.foreign
        return self.intake.receipt

    async def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    def _full(self) -> None:
        self.intake.refuse("no room", "found no room for a body beside those of others")

    async def _read(self, request: Request, protocol: str, *words: Any) -> dict[str, int] | Answer:
        """What was refused, or the answer where nothing could be kept."""
        try:
            numbered = request.headers.get("x-penstock-batch")
            if numbered is None:
                return await self._together.read(protocol, *words)
            source, _, number = numbered.rpartition(" ")
            if not source or not number.isascii() or not number.isdigit() or len(number) > 18:
                return _error(400, "found a header X-Penstock-Batch other than SOURCE NUMBER")
            intake = self.intake.read_numbered
            await asyncio.to_thread(intake, source, int(number), protocol, *words)
            return {}
        except ValueError as error:
            return _error(400, f"found {error}")
        except BadInput as error:
            return _error(400, str(error))
        except Closed as error:
            self.intake.refuse("after the end", "found points after the experiment's end")
            return _error(410, str(error))
        except Held as error:
            self.intake.refuse("a collector's name", str(error))
            return _error(409, str(error))
        except PenstockError as error:
            self.intake.receipt.counted["not kept at first"] += 1
            return _error(503, str(error))


class InfluxReceiver(_Push):
    """Takes line protocol, answers as InfluxDB 1.x does."""

    port = 8086

    async def answer(self, request: Request) -> Answer:
        asked = parse_qs(request.query)
        version = (("x-influxdb-version", "1.8-penstock"),)
        if request.path == "/ping":
            return Answer(204, headers=version)
        if request.path == "/query":
            # programs that make their database first
            body = b'{"results":[{"statement_id":0}]}\n'
            return Answer(200, body, (("content-type", "application/json"), *version))
        if request.path not in ("/write", "/api/v2/write"):
            return _error(404, f"found {request.path[:100]}; expected /write")
        if request.method != "POST":
            return _error(405, f"found {request.method[:20]}; expected POST")
        precision = asked.get("precision", [""])[0]
        if precision not in PRECISIONS:
            return _error(400, f"found precision {precision[:20]!r}; expected n, u, ms, s, m or h")
        try:
            body = _inflated(request)
        except BadInput as error:
            return _error(400, str(error))
        if not body.strip():
            return Answer(204, headers=version)
        found = await self._read(
            request, "line_protocol", body, time.time_ns(), PRECISIONS[precision]
        )
        if isinstance(found, Answer):
            return found
        wrong = {why: n for why, n in found.items() if why not in FORGIVEN}
        if wrong:
            reasons = ", ".join(f"{n} {why}" for why, n in sorted(wrong.items()))
            return _error(400, f"partial write: {reasons} dropped={sum(wrong.values())}")
        return Answer(204, headers=version)


class RemoteWriteReceiver(_Push):
    """Takes Prometheus remote write 1.0."""

    port = 9201
    units = staticmethod(unit_of)

    async def answer(self, request: Request) -> Answer:
        if request.path not in ("/api/v1/write", "/write"):
            return _error(404, f"found {request.path[:100]}; expected /api/v1/write")
        if request.method != "POST":
            return _error(405, f"found {request.method[:20]}; expected POST")
        try:
            message = unsnapped(request.body)
            request.share.grow(len(message))
        except BadInput as error:
            self.intake.refuse("malformed", str(error))
            return _error(400, str(error))
        found = await self._read(request, "remote_write", message)
        if isinstance(found, Answer):
            return found
        # a stale marker is no number and no mistake
        wrong = {why: n for why, n in found.items() if why not in (*FORGIVEN, "not finite")}
        if wrong:
            reasons = ", ".join(f"{n} {why}" for why, n in sorted(wrong.items()))
            return _error(400, f"refused points: {reasons}")
        return Answer(204)


def unsnapped(body: bytes) -> bytes:
    """A body out of snappy's raw format. BadInput where it is none, or would be too long."""
    try:
        if not body or cramjam.snappy.decompress_raw_len(body) > MOST_BODY:
            raise BadInput(f"found a body of none or more than {MOST_BODY} bytes out of snappy")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise BadInput(f"found {error}; expected snappy's raw format") from None


def snapped(message: bytes) -> bytes:
    """A body in snappy's raw format."""
    return bytes(cramjam.snappy.compress_raw(message))


def _inflated(request: Request) -> bytes:
    coding = request.headers.get("content-encoding", "identity")
    if coding == "identity":
        return request.body
    if coding != "gzip":
        raise BadInput(f"found content-encoding {coding[:20]!r}; expected gzip or none")
    opened = zlib.decompressobj(wbits=31)
    try:
        body = opened.decompress(request.body, MOST_BODY + 1)
    except zlib.error as error:
        raise BadInput(f"found {error}; expected a body in gzip") from None
    if len(body) > MOST_BODY or not opened.eof:
        raise BadInput(f"found more than {MOST_BODY} bytes in gzip, or no end of it")
    request.share.grow(len(body))
    return body


def _error(status: int, what: str) -> Answer:
    said = json.dumps({"error": what}).encode() + b"\n"
    # retried by those who wait a little
    later = (("retry-after", "1"),) if status == 503 else ()
    return Answer(status, said, (("content-type", "application/json"), *later))
