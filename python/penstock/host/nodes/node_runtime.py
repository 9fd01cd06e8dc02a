"""Runtimes of virtual nodes: a row of `penstock.plugins.NODE_RUNTIMES` each."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from penstock.errors import BadInput
from penstock.host.journal.journal import Journal
from penstock.host.nodes.spawner import Birth, Spawner
from penstock.plugins import NODE_RUNTIMES


class NodeRuntime(Protocol):
    """Create the nodes of one cluster; `all_groups`: it enters a group of each node in every hierarchy of
    control groups, and controls the devices of a node itself."""

    all_groups: bool

    def __init__(self, home: Path, journal: Journal, run: str, spawner: Spawner) -> None:
        """`home`: the cluster's directory; `run`: the run that owns the changes of the host in the
        journal."""

    @staticmethod
    def missing() -> str:
        """Requirement that the host lacks, as text; empty if none."""

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Create each node's first process, which waits forever; returns its pid or an error message."""

    def forget(self, name: str) -> None:
        """Remove the host's resources of a node whose processes are gone."""

    def forget_all(self) -> None:
        """Remove the host's resources of all nodes."""


def runtime_of(requested: str) -> str:
    """Name of the requested runtime; for `auto` the first that works on this host.

    BadInput for one that is unknown or lacks a requirement.
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
