"""Limit of the bytes of request bodies in memory at once."""

from __future__ import annotations

from types import TracebackType
from typing import Self

#: limit of all bodies together [bytes]
MOST_BYTES = 128 << 20
#: first bytes of each body that do not count, so that small bodies are always accepted [bytes]
FREE = 64 << 10


class FullError(Exception):
    """The budget is exhausted; a later attempt may succeed."""


class Room:
    """Budget of all bodies being received; for one event loop."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        #: bytes in use
        self.used = 0

    def share(self) -> Share:
        """Share of one request, from its first byte until its response."""
        return Share(self)


class Share:
    """Bytes of one request, released on exit."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._room.used -= _counted(self._size)
        self._size = 0

    def expect(self, size: int) -> None:
        """Raises FullError if a body of `size` bytes in total is impossible at present."""
        self._more(size - self._size)

    def grow(self, size: int) -> None:
        """Reserve `size` more bytes. Raises FullError if the budget is exhausted."""
        self._room.used += self._more(size)
        self._size += size

    def _more(self, size: int) -> int:
        """The part of `size` more bytes that counts against the budget."""
        more = _counted(self._size + size) - _counted(self._size)
        if more > 0 and self._room.used + more > self._room.most:
            raise FullError
        return more


def _counted(size: int) -> int:
    return max(0, size - FREE)
