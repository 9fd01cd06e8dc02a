"""Receivers of points pushed over HTTP: InfluxDB's line protocol (`/write`, answers as of InfluxDB 1.x) and
Prometheus remote write 1.0 and 2.0 (`/api/v1/write`).

A request is answered after its points are stored, and with 2xx only if none was refused. A sender that
numbers its batches (`X-Penstock-Batch: SOURCE NUMBER`) may send one again: it changes nothing. Settings:
`port`, `host`, `token`, `open`, `in_order` (true), `interval_s` (interval between points of each series).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
import zlib
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qs

import cramjam

from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.collectors.collector import (
    Intake,
    Read,
    Receipt,
    declared_interval_ns,
    only,
    setting,
)
from penstock.parts.monitoring.collectors.columns import no_unit, unit_of
from penstock.parts.monitoring.collectors.listeners import (
    MOST_BODY,
    Answer,
    HttpListener,
    ListenAddress,
    Request,
)
from penstock.parts.monitoring.collectors.merging import Together
from penstock.parts.monitoring.experiments.points import NO_LOSS, Closed, Held, Sink

#: unit of timestamps by the parameter `precision` [ns]
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
#: media type of remote write, and methods of `PointReader` by the parameter `proto`
PROTOBUF = "application/x-protobuf"
MESSAGES = {
    "prometheus.writerequest": "remote_write",
    "io.prometheus.write.v2.request": "remote_write2",
}
#: gzip allows several members, one after another
MOST_MEMBERS = 100
#: default content types of HTTP clients, which declare nothing
_SAYS_NOTHING = ("", "application/x-www-form-urlencoded", "application/octet-stream")


class _Push:
    """Base of the two receivers."""

    port = 0
    #: see `Collector`
    listens = True
    units = staticmethod(no_unit)
    #: see `Intake`
    begin_late = False

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("host", "port", "token", "open", "in_order", "interval_s"))
        self.name = name
        self._listen_address = ListenAddress.of(name, settings, self.port, tokens=True)
        self._in_order = setting(name, settings, "in_order", bool, True)
        self._interval_ns = declared_interval_ns(name, settings)
        self._listener: HttpListener | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Address on which it listens."""
        assert self._listener is not None
        return self._listener.address

    @staticmethod
    def of_run(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a run: a free port, and a token of its own."""
        own = {"port": 0, **settings}
        return own if own.get("open") else {"token": secrets.token_urlsafe(24), **own}

    def reached(self) -> dict[str, str]:
        """URL and token for a command's environment."""
        host, port = self.address
        name = f"[{host}]" if ":" in host else host
        token = {} if self._listen_address.token is None else {"TOKEN": self._listen_address.token}
        return {"": f"http://{name}:{port}", **token}

    async def start(self, sink: Sink) -> None:
        self.intake = Intake(
            self.name,
            sink,
            in_order=self._in_order,
            unit=self.units,
            interval_ns=self._interval_ns,
            begin_late=self.begin_late,
        )
        self._together = Together(self.intake)
        self._listener = HttpListener(self._listen_address, self.answer, self.intake.refuse_message)
        await self._listener.start()

    async def stop(self) -> Receipt:
        assert self._listener is not None
        await self._listener.stop()
        await self._together.stop()
        with contextlib.suppress(Closed):
            await asyncio.to_thread(self.intake.write_pending)
        if self._listener.dropped:
            self.intake.receipt.counted["connections dropped"] = self._listener.dropped
        if self._listener.foreign:
            self.intake.receipt.counted["from other users"] = self._listener.foreign
        return self.intake.receipt

    async def answer(self, request: Request) -> Answer:
        raise NotImplementedError

    def _refuse(self, request: Request, status: int, reason: str, detail: str) -> Answer:
        """Count a message that is refused unread; returns the answer to it."""
        if request.pushes:
            self.intake.refuse_message(reason, detail)
        return _error(status, detail)

    async def _read(self, request: Request, protocol: str, *arguments: Any) -> Read | Answer:
        """Result of a message, or the answer if nothing could be stored."""
        try:
            numbered = request.headers.get("x-penstock-batch")
            if numbered is None:
                return await self._together.read(protocol, *arguments)
            source, _, number = numbered.rpartition(" ")
            if not source or not number.isascii() or not number.isdigit() or len(number) > 18:
                detail = "found a header X-Penstock-Batch other than SOURCE NUMBER"
                return self._refuse(request, 400, "malformed", detail)
            intake = self.intake.read_numbered
            return await asyncio.to_thread(intake, source, int(number), protocol, *arguments)
        except ValueError as error:  # counted where it was read
            return _error(400, f"found {error}")
        except BadInput as error:
            return self._refuse(request, 400, "malformed", str(error))
        except Closed as error:  # its points were counted
            return _error(410, str(error))
        except Held as error:
            return self._refuse(request, 409, "a collector's name", str(error))
        except PenstockError as error:
            self.intake.receipt.counted["not stored at first"] += 1
            return _error(503, str(error))


class InfluxReceiver(_Push):
    """Receives line protocol and answers as InfluxDB 1.x."""

    port = 8086

    async def answer(self, request: Request) -> Answer:
        query = parse_qs(request.query)
        version = (("x-influxdb-version", "1.8-penstock"),)
        if request.path == "/ping":
            return Answer(204, headers=version)
        if request.path == "/query":
            # some clients create their database first
            body = b'{"results":[{"statement_id":0}]}\n'
            return Answer(200, body, (("content-type", "application/json"), *version))
        if request.path not in ("/write", "/api/v2/write"):
            detail = f"found {request.path[:100]}; expected /write"
            return self._refuse(request, 404, "another path", detail)
        if request.method != "POST":
            detail = f"found {request.method[:20]}; expected POST"
            return self._refuse(request, 405, "another method", detail)
        precision = query.get("precision", [""])[0]
        if precision not in PRECISIONS:
            detail = f"found precision {precision[:20]!r}; expected n, u, ms, s, m or h"
            return self._refuse(request, 400, "malformed", detail)
        try:
            body = _inflated(request)
        except BadInput as error:
            return self._refuse(request, 400, "malformed", str(error))
        if not body.strip():
            return Answer(204, headers=version)
        result = await self._read(
            request, "line_protocol", body, time.time_ns(), PRECISIONS[precision]
        )
        if isinstance(result, Answer):
            return result
        # duplicates are no error of a sender that retries; InfluxDB has no NaN
        refusals = _refusals(result, {"duplicate"})
        if refusals:
            return _error(
                400, f"partial write: {_listed(refusals)} dropped={sum(refusals.values())}"
            )
        return Answer(204, headers=version)


class RemoteWriteReceiver(_Push):
    """Receives remote write 1.0 and 2.0, by content type; answers have the number of written samples.

    Native histograms are refused and counted; exemplars are counted.
    """

    port = 9201
    units = staticmethod(unit_of)
    begin_late = True

    async def answer(self, request: Request) -> Answer:
        if request.path not in ("/api/v1/write", "/write"):
            detail = f"found {request.path[:100]}; expected /api/v1/write"
            return self._refuse(request, 404, "another path", detail)
        if request.method != "POST":
            detail = f"found {request.method[:20]}; expected POST"
            return self._refuse(request, 405, "another method", detail)
        try:
            protocol = _protocol(request)
        except BadInput as error:
            return self._refuse(request, 415, "unsupported", str(error))
        try:
            message = unsnapped(request.body)
            request.share.grow(len(message))
        except BadInput as error:
            return self._refuse(request, 400, "malformed", str(error))
        result = await self._read(request, protocol, message)
        if isinstance(result, Answer):
            return result
        written = tuple(
            (f"x-prometheus-remote-write-{of}-written", str(number))
            for of, number in (("samples", result.written), ("histograms", 0), ("exemplars", 0))
        )
        # a staleness marker has no value and is no error
        refusals = _refusals(result, NO_LOSS)
        if refusals:
            refused = _error(400, f"refused points: {_listed(refusals)}")
            return Answer(400, refused.body, (*refused.headers, *written))
        return Answer(204, headers=written)


def _protocol(request: Request) -> str:
    """Method of `PointReader` for a body. BadInput for another content type or encoding."""
    declared = request.headers.get("content-type", "")
    media, *parameters = (part.strip().lower() for part in declared.split(";"))
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "snappy"):
        raise BadInput(f"found content-encoding {coding[:40]!r}; expected snappy")
    if media in _SAYS_NOTHING:
        return MESSAGES["prometheus.writerequest"]
    messages = [p.partition("=")[2].strip('" ') for p in parameters if p.startswith("proto=")]
    message = messages[0] if messages else "prometheus.writerequest"
    if media != PROTOBUF or message not in MESSAGES:
        raise BadInput(
            f"found content type {declared[:100]!r}; expected {PROTOBUF} with proto=prometheus.WriteRequest "
            "or proto=io.prometheus.write.v2.Request"
        )
    return MESSAGES[message]


def _refusals(result: Read, forgiven: Collection[str]) -> dict[str, int]:
    return {reason: n for reason, n in result.refused.items() if reason not in forgiven and n}


def _listed(refusals: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(refusals.items()))


def unsnapped(body: bytes) -> bytes:
    """Decompress a body in snappy's raw format. BadInput if it is invalid or too long."""
    try:
        if not body or cramjam.snappy.decompress_raw_len(body) > MOST_BODY:
            raise BadInput(f"found a body of none or more than {MOST_BODY} bytes out of snappy")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise BadInput(f"found {error}; expected snappy's raw format") from None


def snapped(message: bytes) -> bytes:
    """Compress a body in snappy's raw format."""
    return bytes(cramjam.snappy.compress_raw(message))


def _inflated(request: Request) -> bytes:
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return request.body
    if coding not in ("gzip", "x-gzip"):
        raise BadInput(f"found content-encoding {coding[:20]!r}; expected gzip or none")
    body, rest = b"", request.body
    for _ in range(MOST_MEMBERS):
        if not rest:
            break
        opened = zlib.decompressobj(wbits=31)
        try:
            body += opened.decompress(rest, MOST_BODY + 1 - len(body))
        except zlib.error as error:
            raise BadInput(f"found {error}; expected a body in gzip") from None
        if len(body) > MOST_BODY or not opened.eof:
            raise BadInput(f"found more than {MOST_BODY} bytes in gzip, or no end of it")
        rest = opened.unused_data
    if rest:
        raise BadInput(f"found more than {MOST_MEMBERS} members in gzip")
    request.share.grow(len(body))
    return body


def _error(status: int, detail: str) -> Answer:
    body = json.dumps({"error": detail}).encode() + b"\n"
    # clients retry after a pause
    later = (("retry-after", "1"),) if status == 503 else ()
    return Answer(status, body, (("content-type", "application/json"), *later))
