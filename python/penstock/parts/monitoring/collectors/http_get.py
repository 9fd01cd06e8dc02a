"""GET requests of a scraper over HTTP/1.1, one after another on one connection (h11)."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

import h11

from penstock.parts.monitoring.collectors.collector import FailedError

#: most bytes of a response's head, and of its body
MOST_HEAD = 64 << 10
MOST_BODY = 16 << 20
#: first bytes of a response
_HTTP = b"HTTP/1."
#: statuses whose responses have no body
_EMPTY = (204, 304)


@dataclass(frozen=True)
class Response:
    """A response; `content_type` in lower case.

    `bounded`: its head gives its length or announces chunks, so that the body is complete.
    """

    status: int
    content_type: str
    body: bytes
    bounded: bool = True


class HttpConnection(asyncio.Protocol):
    """A connection to a target. Data without a request, or other than HTTP, close it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEAD)
        self._pending: asyncio.Future[Response] | None = None
        self._start_response()

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> HttpConnection:
        """Connect. OSError if nothing listens there, or, with `tls`, if the certificate does not fit."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port, ssl=tls)
        return connection

    @property
    def reusable(self) -> bool:
        """True if another request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def get(self, request: h11.Request) -> Response:
        """Send a request and wait for its response.

        EOFError if the connection ends before the response begins, FailedError for other than HTTP/1.1.
        """
        if not self.reusable:
            raise EOFError
        assert self._transport is not None
        self._start_response()
        self._pending = asyncio.get_running_loop().create_future()
        message = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        self._transport.write(message)
        return await self._pending

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _start_response(self) -> None:
        self._first = b""
        self._status = 0
        self._content_type = ""
        self._bounded = True
        self._size = 0
        self._body: list[bytes] = []

    # ------------------------------------------------------------ calls of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._pending is None or self._pending.done():
            self.close()
            return
        # h11 waits for the end of the head, which another protocol does not send
        first = self._first + data[: len(_HTTP) - len(self._first)]
        if not _HTTP.startswith(first):
            self._fail(FailedError("found no HTTP/1.1"))
            return
        self._first = first
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pending is None:
            return
        if not self._first:
            self._fail(EOFError())
            return
        if exc is None:
            self._receive(b"")
        self._fail(FailedError("found a connection that was closed"))

    # ------------------------------------------------------------ a response

    def _receive(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while self._pending is not None:
                event = self._http.next_event()
                if isinstance(event, h11.Response):
                    self._read_head(event)
                elif isinstance(event, h11.Data):
                    self._add(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._complete()
                elif not isinstance(event, h11.InformationalResponse):
                    return
        except h11.RemoteProtocolError as error:
            if not data:
                self._fail(FailedError("found a connection that was closed"))
            elif error.error_status_hint == 431:
                self._fail(FailedError(f"found a head of more than {MOST_HEAD} bytes"))
            else:
                self._fail(FailedError(f"found no HTTP/1.1 ({str(error)[:200]})"))
        except FailedError as error:
            self._fail(error)

    def _read_head(self, head: h11.Response) -> None:
        """Refuse other statuses, a content coding, and a body that is too large."""
        if head.status_code > 599:
            raise FailedError(f"found no HTTP/1.1 (status {head.status_code})")
        headers = dict(head.headers)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise FailedError("found a body in a coding that was not requested")
        length = headers.get(b"content-length")
        if length is not None and int(length) > MOST_BODY:
            raise FailedError(f"found more than {MOST_BODY} bytes")
        self._status = head.status_code
        self._content_type = headers.get(b"content-type", b"").decode("latin-1").lower()
        self._bounded = (
            length is not None or b"transfer-encoding" in headers or head.status_code in _EMPTY
        )

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MOST_BODY:
            raise FailedError(f"found more than {MOST_BODY} bytes")
        self._body.append(data)

    def _complete(self) -> None:
        pending, self._pending = self._pending, None
        if (
            self._http.our_state is h11.DONE
            and self._http.their_state is h11.DONE
            and not self._http.trailing_data[0]
        ):
            self._http.start_next_cycle()
        else:
            self.close()
        if pending is not None and not pending.done():
            body = b"".join(self._body)
            pending.set_result(Response(self._status, self._content_type, body, self._bounded))

    def _fail(self, error: Exception) -> None:
        pending, self._pending = self._pending, None
        self.close()
        if pending is not None and not pending.done():
            pending.set_exception(error)
