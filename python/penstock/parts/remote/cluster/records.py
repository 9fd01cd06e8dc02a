"""Records of the clusters on several hosts, in the state directory here."""

from __future__ import annotations

from pathlib import Path

from penstock.state import state_dir


def place(name: str) -> Path:
    """Directory of a cluster: its record, and the output of the workers of its hosts."""
    return state_dir() / "remote-clusters" / name


def record(name: str) -> Path:
    """File with the hosts of a cluster, and the host of each node."""
    return place(name) / "cluster.json"


def names() -> list[str]:
    """Clusters with a record."""
    return sorted(path.parent.name for path in place("").glob("*/cluster.json"))
