"""Part of the live stream that a user's token may read: experiments, no data of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class View:
    """Filter of one client's events: experiments that `reader` may read (None: all), or `only` one of them.

    `only` is a user, name and repeat. `allowed` returns True while the token is valid; it may block.
    """

    reader: str | None
    only: tuple[str, str, int] | None
    allowed: Callable[[], bool]

    def of(self, name: str, value: Any) -> Any:
        """An event's value as this client may read it; None if the event is hidden."""
        if name != "experiments":
            return None
        return [
            _without_detail(row) if "trouble" in row else row
            for row in value
            if self._is_shown(row)
        ]

    def _is_shown(self, row: Mapping[str, Any]) -> bool:
        if "trouble" in row:
            return True
        if self.only is not None and (row["user"], row["name"], row["repeat"]) != self.only:
            return False
        return self.reader is None or row["user"] == self.reader or row["shared"] is True


def _without_detail(row: Mapping[str, Any]) -> dict[str, Any]:
    """An error row without the server's error message."""
    return {"name": row["name"], "trouble": "the catalogue is unavailable"}
