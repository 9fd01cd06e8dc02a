"""HTTP/1.1 as a scraper needs it: one GET after the other, on a connection that is kept for the next."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass

from penstock.parts.monitoring.collectors.collector import FailedError

#: what one answer may have in its head, and in its body [bytes]
MOST_HEAD = 64 << 10
MOST_SHOWN = 16 << 20
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?$")


@dataclass(frozen=True)
class Shown:
    """What a target answered; its kind is the content type, in small letters.

    `bounded`: its length was told, so that it is known to be all of it.
    """

    status: int
    kind: str
    body: bytes
    bounded: bool = True


class Talk(asyncio.Protocol):
    """A connection. `ask` gives the answer; what comes unasked, or is no HTTP, ends it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waits: asyncio.Future[Shown] | None = None
        self._begin()

    @classmethod
    async def to(cls, host: str, port: int, tls: ssl.SSLContext | None = None) -> Talk:
        """OSError where nobody listens there, or, with `tls`, somebody else."""
        _, made = await asyncio.get_running_loop().create_connection(cls, host, port, ssl=tls)
        return made

    @property
    def usable(self) -> bool:
        """Whether another question may be asked."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, question: bytes) -> Shown:
        """EOFError where the connection ends before the answer begins, FailedError where it is no answer."""
        if not self.usable:
            raise EOFError
        assert self._transport is not None
        self._begin()
        self._waits = asyncio.get_running_loop().create_future()
        self._transport.write(question)
        return await self._waits

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        self._got = bytearray()
        self._status = self._at = self._size = 0
        self._kind = ""
        #: bytes of the body, or -1: chunks, -2: all up to the end
        self._length: int | None = None
        self._chunks: list[bytes] = []
        self._goes_on = True

    # ------------------------------------------------------------ as asyncio calls it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._waits is None or self._waits.done():
            self.close()
            return
        self._got += data
        try:
            if self._length is None:
                self._head()
            if self._length is not None and self._whole():
                self._done()
        except FailedError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._length == -2 and exc is None:
            self._chunks = [bytes(self._got)]
            self._done()
            return
        begun = bool(self._got)
        self._fail(FailedError("found a connection that was closed") if begun else EOFError())

    # ------------------------------------------------------------ an answer

    def _head(self) -> None:
        end = self._got.find(b"\r\n\r\n")
        if end < 0 or end > MOST_HEAD:
            if len(self._got) > MOST_HEAD:
                raise FailedError(f"found a head of more than {MOST_HEAD} bytes")
            if not b"HTTP/1.".startswith(self._got[:7]):
                raise FailedError("found no HTTP/1.1")
            return
        first, *rest = bytes(self._got[:end]).split(b"\r\n")
        status = _STATUS.match(first)
        if status is None:
            raise FailedError("found no HTTP/1.1")
        self._status = int(status.group(1))
        del self._got[: end + 4]
        if self._status < 200:
            self._head()
            return
        headers: dict[bytes, bytes] = {}
        for line in rest:
            name, colon, value = line.partition(b":")
            if not colon or not name:
                raise FailedError("found a header other than `name: value`")
            headers[name.lower()] = value.strip().lower()
        self._kind = headers.get(b"content-type", b"").decode("latin-1")
        self._goes_on = first.startswith(b"HTTP/1.1") and b"close" not in headers.get(
            b"connection", b""
        )
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise FailedError("found a body in a coding that was not asked for")
        if self._status in (204, 304):
            self._length = 0
        elif coding is not None:
            if coding != b"chunked":
                raise FailedError(f"found transfer-encoding {coding[:40]!r}; expected chunked")
            self._length = -1
        elif length is None:
            self._length = -2
        elif not length.isdigit() or len(length) > 12:
            raise FailedError("found a content-length that is no number")
        else:
            self._length = int(length)
        self._bounded(self._length)

    def _whole(self) -> bool:
        assert self._length is not None
        if self._length == -1:
            return self._chunked()
        self._bounded(len(self._got))
        if self._length < 0 or len(self._got) < self._length:
            return False
        self._chunks = [bytes(self._got[: self._length])]
        self._at = self._length
        return True

    def _chunked(self) -> bool:
        while True:
            end = self._got.find(b"\r\n", self._at, self._at + 1024)
            if end < 0:
                if len(self._got) > self._at + 1024:
                    raise FailedError("found a chunk without its size")
                return False
            words = bytes(self._got[self._at : end]).partition(b";")[0].strip()
            try:
                size = int(words, 16) if len(words) <= 8 and words.isalnum() else -1
            except ValueError:
                size = -1
            if size < 0:
                raise FailedError("found a chunk without its size")
            self._bounded(self._size + size)
            if size == 0:
                # what may stand behind the last chunk is not read, nor the connection used again
                self._goes_on &= self._got[end:] == b"\r\n\r\n"
                self._at = len(self._got)
                return self._got.find(b"\r\n", end + 2) >= 0
            if len(self._got) < end + 2 + size + 2:
                return False
            self._chunks.append(bytes(self._got[end + 2 : end + 2 + size]))
            self._size += size
            self._at = end + 2 + size + 2
            if self._at > 1 << 18:
                del self._got[: self._at]
                self._at = 0

    def _bounded(self, size: int) -> None:
        if size > MOST_SHOWN:
            raise FailedError(f"found more than {MOST_SHOWN} bytes")

    def _done(self) -> None:
        waits, self._waits = self._waits, None
        bounded = self._length != -2
        goes_on = self._goes_on and bounded and len(self._got) == self._at
        self._length = None
        if not goes_on:
            self.close()
        if waits is not None and not waits.done():
            waits.set_result(Shown(self._status, self._kind, b"".join(self._chunks), bounded))

    def _fail(self, error: Exception) -> None:
        waits, self._waits = self._waits, None
        self._length = None
        self.close()
        if waits is not None and not waits.done():
            waits.set_exception(error)
