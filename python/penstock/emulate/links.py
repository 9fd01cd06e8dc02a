"""The networks of a cluster as its supervisor drives them; brought up when the first node has a link."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

from penstock.emulate.spec import ClusterSpec, NodeSpec
from penstock.errors import BadInput
from penstock.host.journal import Journal


class Links:
    """Attaches nodes to the cluster's networks and changes their links."""

    def __init__(self, spec: ClusterSpec, journal: Journal) -> None:
        self._spec = spec
        self._journal = journal
        self._network: Any = None

    def up(self) -> None:
        """Puts the networks up if any node is on one. Raises BadInput, PenstockError."""
        if not any(node.links for node in self._spec.nodes):
            return
        if importlib.util.find_spec("penstock.emulate.network") is None:
            return
        from penstock.emulate.network import Network  # type: ignore[import-not-found,unused-ignore]

        self._network = Network.up(
            self._spec.networks, self._journal, nodes=self._spec.nodes, run=self._spec.name
        )

    def attach(self, node: NodeSpec, pid: int) -> dict[str, str]:
        """Gives the node whose first process is `pid` its links; addresses by network."""
        addresses: dict[str, str] = {}
        if self._network is not None:
            for link in node.links:
                addresses[link.network] = str(self._network.attach(node.name, pid, link).address)
        return addresses

    def set(self, node: str, network: str | None, patch: dict[str, Any]) -> dict[str, Any]:
        """Changes a link; gives the fields of `Applied` but the planned time."""
        if self._network is None:
            raise BadInput(f"node {node} is on no network")
        change = self._network.set_link(node, network, patch)
        return {
            "applied_ns": change.applied_ns,
            "verified_ns": change.verified_ns,
            "asked": change.asked,
            "found": change.found,
            "error": "",
        }

    def detached(self, node: str) -> None:
        """The node's namespace is gone, and its interfaces with it."""
        if self._network is not None:
            self._network.detach(node)

    def counters(self, node: str, network: str) -> dict[str, int] | None:
        """Packets and bytes of a link, None where it does not tell."""
        if self._network is None:
            return None
        with contextlib.suppress(Exception):
            return dict(self._network.counters(node, network))
        return None

    def down(self) -> None:
        """Takes the networks down."""
        if self._network is not None:
            self._network.down()
            self._network = None

