"""A runtime of nodes: the spawner process starts them, and a file lists their names."""

from __future__ import annotations

from pathlib import Path

from penstock.host.journal.journal import Journal
from penstock.host.nodes.spawner import Birth, Spawner


class ToyRuntime:
    """Like `namespaces`, with a list of the started nodes."""

    all_groups = False

    def __init__(self, home: Path, journal: Journal, run: str, spawner: Spawner) -> None:
        self._spawner = spawner
        self._list = home / "toys"

    @staticmethod
    def missing() -> str:
        """Empty: the runtime has no requirements."""
        return ""

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Start the nodes."""
        with self._list.open("a") as out:
            out.writelines(f"{name}\n" for name in births)
        return self._spawner.make(births)

    def forget(self, name: str) -> None:
        """Do nothing: there is no state on the host."""

    def forget_all(self) -> None:
        """Do nothing: the list is removed with the cluster's directory."""
