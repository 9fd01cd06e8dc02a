"""A runtime of nodes: the small process that forks makes them, and a line is kept of each."""

from __future__ import annotations

from pathlib import Path

from penstock.host.journal.journal import Journal
from penstock.host.nodes.spawner import Birth, Spawner


class ToyRuntime:
    """As `namespaces`, with a list of whom it made."""

    all_groups = False

    def __init__(self, home: Path, journal: Journal, run: str, spawner: Spawner) -> None:
        self._spawner = spawner
        self._list = home / "toys"

    @staticmethod
    def missing() -> str:
        """It needs nothing of its own."""
        return ""

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Makes them."""
        with self._list.open("a") as out:
            out.writelines(f"{name}\n" for name in births)
        return self._spawner.make(births)

    def forget(self, name: str) -> None:
        """Nothing was made of the host."""

    def forget_all(self) -> None:
        """The list goes with the cluster's directory."""
