"""Bytes of bodies that are held at once: so many for all that come, and no more."""

from __future__ import annotations

from types import TracebackType
from typing import Self

#: of all bodies together [bytes]
MOST_HELD = 128 << 20
#: of each, so much counts for nothing: what is small finds room whatever others send [bytes]
FREE = 64 << 10


class FullError(Exception):
    """There is no room for more; there may be a little later."""


class Room:
    """What all that is under way may hold together; for one event loop."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self.most = most
        #: bytes that are held
        self.held = 0

    def share(self) -> Share:
        """Of one request, from its first byte until it is answered."""
        return Share(self)


class Share:
    """What one request holds of a room, until it is left."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._room.held -= _counted(self._size)
        self._size = 0

    def expect(self, size: int) -> None:
        """FullError where there is no room just now for so many bytes in all."""
        self._more(size - self._size)

    def grow(self, size: int) -> None:
        """Holds so many bytes more. FullError where there is no room for them."""
        self._room.held += self._more(size)
        self._size += size

    def _more(self, size: int) -> int:
        """What of so many bytes more counts."""
        more = _counted(self._size + size) - _counted(self._size)
        if more > 0 and self._room.held + more > self._room.most:
            raise FullError
        return more


def _counted(size: int) -> int:
    return max(0, size - FREE)
