"""What of the live stream a user's token opens: the experiments that they may read, nothing of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class View:
    """What one watcher is shown: experiments of `sees` and shared ones (None: all), or only `one` of them.

    `one`: its user, name and repeat. `allowed` says whether the token is still worth something; it may block.
    """

    sees: str | None
    one: tuple[str, str, int] | None
    allowed: Callable[[], bool]

    def of(self, name: str, value: Any) -> Any:
        """An event's value as this watcher is told it; None for one that is not for them."""
        if name != "experiments":
            return None
        return [_told(row) if "trouble" in row else row for row in value if self._is_shown(row)]

    def _is_shown(self, row: dict[str, Any]) -> bool:
        if "trouble" in row:
            return True
        if self.one is not None and (row["user"], row["name"], row["repeat"]) != self.one:
            return False
        return self.sees is None or row["user"] == self.sees or row["shared"] is True


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """Of what is wrong with the server not more than that."""
    return {"name": row["name"], "trouble": "it does not answer just now"}
