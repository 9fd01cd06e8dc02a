"""Runtimes that make virtual nodes: a row of `penstock.plugins.NODE_RUNTIMES` each."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.errors import BadInput
from penstock.host.journal.journal import Journal
from penstock.host.nodes.spawner import Birth, Spawner
from penstock.plugins import NODE_RUNTIMES


class NodeRuntime(Protocol):
    """Makes the nodes of one cluster; `all_groups`: it enters a group of each node in every hierarchy of
    control groups, and says itself which devices a node may use."""

    all_groups: bool

    def __init__(self, home: Path, journal: Journal, run: str, spawner: Spawner) -> None:
        """`home`: the cluster's directory; `run`: whose changes of the host these are, in the journal."""

    @staticmethod
    def missing() -> str:
        """The part that the host lacks for it, as text; empty if nothing."""

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Gives each node its first process, which waits for ever: its pid or, in words, what went wrong."""

    def forget(self, name: str) -> None:
        """The node's processes are gone: so goes what was made of the host for them, if anything was."""

    def forget_all(self) -> None:
        """All nodes are gone."""


def runtime_of(requested: str) -> str:
    """The name of the requested runtime; for `auto` the first that lacks nothing here.

    BadInput for one that is none, or that lacks something.
    """
    if requested != "auto":
        if what := NODE_RUNTIMES.load(requested).missing():
            others = " or ".join(name for name in NODE_RUNTIMES if name != requested)
            raise BadInput(f"runtime {requested}: {what}; expected runtime: {others}")
        return requested
    lacking: dict[str, str] = {}
    for name in NODE_RUNTIMES:
        lacking[name] = NODE_RUNTIMES.load(name).missing()
        if not lacking[name]:
            return name
    raise BadInput("; ".join(f"runtime {name}: {what}" for name, what in lacking.items()))
