"""TCP and HTTP servers with a bounded number of connections."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import h11

from penstock.errors import BadInput, PenstockError
from penstock.host.network.sock_diag import owners
from penstock.parts.monitoring.collectors.collector import setting
from penstock.parts.monitoring.usage.swift_bandwidth import accounts_of, are_ours
from penstock.routes.byte_budget import FullError, Room, Share
from penstock.routes.connections import discard, most_connections

#: longest pause within a request [s]
PATIENCE_S = 20.0
#: maximum size of the body of a request [bytes]
MOST_BODY = 32 << 20

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Callable[[], None]], Awaitable[None]]


@dataclass(frozen=True)
class ListenAddress:
    """Address of a server, and what it requires of its clients: a token, an account, or nothing.

    `own_users`: only root and the user of this process may send, by the kernel's record of the socket.
    """

    host: str
    port: int
    token: str | None
    own_users: bool = False

    @classmethod
    def of(
        cls, name: str, settings: Mapping[str, Any], port: int, *, tokens: bool
    ) -> ListenAddress:
        """From the settings `host` (default: loopback), `port`, `token` and `open`.

        Without a token or `open: true`, other users of this host may not send on loopback, and another
        interface is BadInput.
        """
        host = setting(name, settings, "host", str, "127.0.0.1")
        number = setting(name, settings, "port", int, port)
        token = setting(name, settings, "token", str, None) if tokens else None
        if not 0 <= number < 1 << 16:
            raise BadInput(f"{name}: found port {number}; expected 0 to 65535")
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = host == "localhost"
        opened = setting(name, settings, "open", bool, False)
        if not loopback and not token and not opened:
            required = (
                "a token, or open: true" if tokens else "open: true, as everyone may then send"
            )
            raise BadInput(f"{name}: found host {host}, which others reach; expected {required}")
        return cls(host, number, token, loopback and not token and not opened)


class Listener:
    """A TCP server whose connections are bounded in number and in total memory."""

    def __init__(self, address: ListenAddress, handle: Handle) -> None:
        #: memory of the data being received
        self.room = Room()
        self._most = most_connections()
        self._listen_address, self._handle = address, handle
        self._open: OrderedDict[asyncio.StreamWriter, asyncio.Task[None] | None] = OrderedDict()
        self._server: asyncio.Server | None = None
        #: connections closed in favour of new ones; connections of other users of this host
        self.dropped = self.foreign = 0

    @property
    def address(self) -> tuple[str, int]:
        """Address on which it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        """PenstockError if it cannot listen on the port."""
        try:
            self._server = await asyncio.start_server(
                self._serve,
                self._listen_address.host,
                self._listen_address.port,
                limit=1 << 18,
                backlog=1024,
            )
        except (OSError, OverflowError) as error:
            raise PenstockError(
                f"{self._listen_address.host}:{self._listen_address.port}: {error}"
            ) from None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._open.values() if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def comes_from_others(self, writer: asyncio.StreamWriter, certain: bool) -> bool:
        """True for a connection of another user and, with `certain`, of an unknown one.

        The user of a sender that has closed its end is unknown.
        """
        if not self._listen_address.own_users:
            return False
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        if None in ends:
            return certain
        (address, port), (our_address, our_port) = (end[:2] for end in ends)
        uids = owners((address, port), (our_address, our_port))
        if uids is None:
            uids = await asyncio.to_thread(accounts_of, address, port, our_port)
        others = not are_ours(uids) if uids else certain
        self.foreign += others
        return others

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(self._open) >= self._most:
            silent, _ = self._open.popitem(last=False)
            silent.transport.abort()
            self.dropped += 1
        self._open[writer] = asyncio.current_task()

        def heard() -> None:
            if writer in self._open:
                self._open.move_to_end(writer)

        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await self._handle(reader, writer, heard)
        finally:
            self._open.pop(writer, None)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()


async def exactly(reader: asyncio.StreamReader, size: int, share: Share) -> bytes:
    """Read exactly `size` bytes, charged to `share` as they arrive. FullError if the budget is used up."""
    read = bytearray()
    while len(read) < size:
        piece = await reader.readexactly(min(1 << 16, size - len(read)))
        share.grow(len(piece))
        read += piece
    return bytes(read)


@dataclass(frozen=True)
class Request:
    """An HTTP request; names of headers in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    #: memory charged to the listener until the answer
    share: Share

    @property
    def pushes(self) -> bool:
        """True for a request that stores data."""
        return self.method in ("POST", "PUT") and bool(self.body)


@dataclass(frozen=True)
class Answer:
    """Status, body and headers; with `head_only`, the body is not sent."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    head_only: bool = False


class _RefusedError(Exception):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer


_OF_OTHERS = (
    "found another user of this host; expected that of the collector, or a token in its settings"
)


class HttpListener(Listener):
    """HTTP/1.1 on bounded connections, with bounded bodies.

    `refused` is called with the reason and the error for each pushed body that is not passed to `answer`.
    """

    def __init__(
        self,
        address: ListenAddress,
        answer: Callable[[Request], Awaitable[Answer]],
        refused: Callable[[str, str], None],
    ) -> None:
        super().__init__(address, self._talk)
        self._answer, self._refused = answer, refused

    async def _talk(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Callable[[], None],
    ) -> None:
        talk = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
        others = await self.comes_from_others(writer, certain=True)
        while True:
            with self.room.share() as share:
                answer = await self._answered(talk, reader, writer, heard, share, others)
            if answer is None or talk.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return
            headers = [("content-length", str(len(answer.body))), *answer.headers]
            if answer.status == 204:
                headers = list(answer.headers)
            unread = talk.their_state is not h11.DONE
            if unread:
                headers.append(("connection", "close"))
            sent = talk.send(h11.Response(status_code=answer.status, headers=headers)) or b""
            if answer.status != 204 and not answer.head_only:
                sent += talk.send(h11.Data(data=answer.body)) or b""
            sent += talk.send(h11.EndOfMessage()) or b""
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                await writer.drain()
            states: list[Any] = [talk.our_state, talk.their_state]
            if states != [h11.DONE, h11.DONE]:
                if unread:
                    await discard(_rest(reader, writer))
                return
            talk.start_next_cycle()

    async def _answered(
        self,
        talk: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Callable[[], None],
        share: Share,
        others: bool,
    ) -> Answer | None:
        """Answer to the next request; None if there is none."""
        try:
            request = await self._request(talk, reader, writer, heard, share)
            if request is None:
                return None
            answer = await self._answer_to(request, others)
            return replace(answer, head_only=request.method == "HEAD")
        except h11.RemoteProtocolError as error:
            return Answer(error.error_status_hint, b"")
        except TimeoutError:
            return None
        except FullError:
            self._refused("no room", "found no room for a body with those of other connections")
            body = b'{"error":"found no room for a body just now; expected it a little later"}\n'
            return Answer(503, body, (("retry-after", "1"),))
        except _RefusedError as refused:
            return refused.answer

    async def _answer_to(self, request: Request, others: bool) -> Answer:
        """Answer to a request, if its client may send it."""
        if not self._may(request):
            if request.pushes:
                presented = "another token" if "authorization" in request.headers else "no token"
                self._refused("unauthorized", f"found {presented}; expected that of the receiver")
            return Answer(401, b'{"error":"expected the token"}\n')
        if others and request.path != "/ping":
            if request.pushes:
                self._refused("unauthorized", _OF_OTHERS)
            return Answer(401, json.dumps({"error": _OF_OTHERS}).encode() + b"\n")
        return await self._answer(request)

    def _broke_off(self, head: h11.Request | None) -> None:
        if head is not None and head.method in (b"POST", b"PUT"):
            self._refused("broke off", "found a request that broke off before its end")

    def _may(self, request: Request) -> bool:
        """True if a request has the token, as `Authorization: Token …` or `Bearer …`."""
        token = self._listen_address.token
        if token is None or request.path == "/ping":
            return True
        presented = request.headers.get("authorization", "").partition(" ")[2].strip()
        return hmac.compare_digest(presented.encode(), token.encode())

    async def _request(
        self,
        talk: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        heard: Callable[[], None],
        share: Share,
    ) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        while True:
            try:
                event = talk.next_event()
            except h11.RemoteProtocolError:
                self._broke_off(head)
                raise
            if event is h11.NEED_DATA:
                if talk.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    writer.write(talk.send(go_on) or b"")
                waits = PATIENCE_S if head is not None or talk.trailing_data[0] else 3600.0
                try:
                    async with asyncio.timeout(waits):
                        data = await reader.read(1 << 18)
                except (OSError, asyncio.CancelledError):
                    self._broke_off(head)
                    raise
                heard()
                talk.receive_data(data)
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MOST_BODY:
                    self._refused("too long", f"found a body of more than {MOST_BODY} bytes")
                    error_body = b'{"error":"expected a body of at most %d bytes"}\n' % MOST_BODY
                    raise _RefusedError(Answer(413, error_body))
                share.grow(len(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers}
                method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
                try:
                    parts = urlsplit(target)
                except ValueError:
                    error_body = b'{"error":"found a target that is no URL"}\n'
                    raise _RefusedError(Answer(400, error_body)) from None
                return Request(method, parts.path, parts.query, headers, bytes(body), share)
            else:
                return None


async def _rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[int]:
    """End the response; sizes of the parts that still arrive [bytes]."""
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
        while data := await reader.read(1 << 18):
            yield len(data)
