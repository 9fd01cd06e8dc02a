"""Networks of a cluster in its supervisor; started when the first node has a link."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.emulate.failure import Failure
from penstock.emulate.network import Network
from penstock.emulate.network.patch import each_way, patched
from penstock.emulate.network.routing import with_routers
from penstock.emulate.network.support import check_offered
from penstock.emulate.network.traffic_shape import as_patch, shapes_of
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal, Values
from penstock.spec.cluster import ClusterSpec, LinkSpec, NetworkSpec, NodeSpec


class Links:
    """Attach nodes to the cluster's networks and change their links."""

    def __init__(self, spec: ClusterSpec, journal: Journal) -> None:
        self._spec = spec
        self._journal = journal
        self._network: Network | None = None
        #: (node, network) → address; a restarted node gets the same addresses
        self._addresses: dict[tuple[str, str], str] = {}
        #: links of stopped nodes, with changes since the stop
        self._stopped: dict[str, dict[str, LinkSpec]] = {}
        #: makes attaching and stopping of nodes atomic for changes
        self._lock = threading.RLock()

    def up(self) -> None:
        """Start the networks that nodes use. Raises BadInput, PenstockError."""
        used = {link.network for node in self._spec.nodes for link in node.links}
        reached = {n.links[0].network for n in self._spec.nodes if n.ssh and n.links}
        specs = [_reached(n, reached) for n in with_routers(self._spec.networks, used)]
        if specs:
            self._network = Network.up(
                specs,
                self._journal,
                nodes=self._spec.nodes,
                events=self._spec.events,
                run=self._spec.name,
            )

    def attach(self, node: NodeSpec, pid: int) -> dict[str, str]:
        """Create the links of the node whose first process is `pid`; returns addresses by network."""
        with self._lock:
            return self._attach(node, pid)

    def _attach(self, node: NodeSpec, pid: int) -> dict[str, str]:
        addresses: dict[str, str] = {}
        if self._network is not None:
            for link in node.links:
                key = (node.name, link.network)
                had = self._addresses.get(key)
                spec = self._stopped.get(node.name, {}).get(link.network, link)
                spec = replace(spec, address=had) if had else spec
                addresses[link.network] = str(self._network.attach(node.name, pid, spec).address)
                self._addresses[key] = addresses[link.network]
            self._network.route(node.name)
            self._stopped.pop(node.name, None)
        return addresses

    def altering(
        self, node: str, network: str | None, patch: dict[str, Any]
    ) -> list[tuple[Entry, Values]]:
        """Values that a patch of a link changes, for the journal."""
        if self._network is None:
            return []
        before: dict[str, Any] = {}
        with contextlib.suppress(BadInput):  # for a stopped node
            before = self._network.requested(node, network)
        return [(self._network.entry, {f"link {node} {network or ''}".strip(): (before, patch)})]

    def set(
        self, changes: Sequence[tuple[str, str | None, dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Change links, all checked before the first; returns the fields of `Applied` of each.

        Changes of a stopped node apply when it restarts.
        """
        with self._lock:
            return self._set(changes)

    def _set(
        self, changes: Sequence[tuple[str, str | None, dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        if self._network is None:
            raise BadInput(f"node {changes[0][0]} is on no network")
        planned_ns = time.monotonic_ns()
        stopped = {n: self._patched(*c) for n, c in enumerate(changes) if c[0] in self._stopped}
        live = [c for n, c in enumerate(changes) if n not in stopped]
        results = iter(self._network.set_links(live) if live else ())
        answers = []
        for number, (node, _, patch) in enumerate(changes):
            if number in stopped:
                link = stopped[number]
                self._stopped[node][link.network] = link
                actual = as_patch(shapes_of(link))
                now = time.monotonic_ns()
                times = {"planned_ns": planned_ns, "applied_ns": now, "verified_ns": now}
                ways = each_way(patch, self._network_spec(link.network))
                read = {k: actual[k] for k in ways}
                answers.append({**times, "asked": ways, "found": read, "error": ""})
            else:
                change = next(results)
                answers.append(
                    {
                        "planned_ns": change.planned_ns,
                        "applied_ns": change.applied_ns,
                        "verified_ns": change.verified_ns,
                        "asked": change.requested,
                        "found": change.actual,
                        "error": "",
                    }
                )
        return answers

    def _patched(self, node: str, network: str | None, patch: dict[str, Any]) -> LinkSpec:
        of_node = self._stopped[node]
        if network is None and len(of_node) == 1:
            network = next(iter(of_node))
        if network not in of_node:
            names = ", ".join(of_node) or "none"
            raise BadInput(f"node {node}: found network {network!r}; expected {names}")
        spec = self._network_spec(network)
        link = patched(of_node[network], each_way(patch, spec))
        check_offered(spec, link)
        return link

    def _network_spec(self, network: str | None) -> NetworkSpec:
        return next(n for n in self._spec.networks if n.name == network)

    def detached(self, node: str) -> None:
        """Forget the interfaces of a stopped node, but not their settings."""
        if self._network is None:
            return
        with self._lock:
            if node not in self._stopped:
                self._stopped[node] = self._as_it_is(node)
            self._network.detach(node)

    def _as_it_is(self, node: str) -> dict[str, LinkSpec]:
        assert self._network is not None
        spec = next(n for n in self._spec.nodes if n.name == node)
        links = {}
        for link in spec.links:
            links[link.network] = link
            with contextlib.suppress(BadInput):  # one that was never attached
                links[link.network] = patched(link, self._network.requested(node, link.network))
        return links

    def counters(self, node: str, network: str) -> dict[str, int] | None:
        """Packets and bytes of a link; None if unavailable."""
        if self._network is not None:
            with contextlib.suppress(PenstockError, OSError):
                return self._network.counters(node, network)
        return None

    def status(self, node: str, network: str) -> dict[str, Any] | None:
        """Counters of a link and its requested values (`asked`, the keys of a patch).

        For a stopped node, the values that it will have when it restarts.
        """
        if (stopped := self._stopped.get(node, {}).get(network)) is not None:
            return {"asked": as_patch(shapes_of(stopped))}
        seen = self.counters(node, network)
        if seen is None or self._network is None:
            return seen
        return {**seen, "asked": self._network.requested(node, network)}

    def failures(self, lives: Callable[[str], bool]) -> list[Failure]:
        """Failed carriers of the networks' frames, and failed links of nodes that `lives` is true of."""
        return [] if self._network is None else self._network.failures(lives)

    def describe(self) -> list[dict[str, Any]]:
        """Networks that are up."""
        return [] if self._network is None else self._network.describe()

    def set_delays(self, network: str, delays: dict[tuple[str, str], float]) -> None:
        """Change one-way delays of pairs of nodes [s]."""
        if self._network is None:
            raise BadInput("the cluster has no network")
        rows = [[*pair, delay_s] for pair, delay_s in delays.items()]
        self._journal.alter([(self._network.entry, {f"delays {network}": (None, rows)})])
        self._network.set_delays(network, delays)

    def down(self) -> None:
        """Stop the networks."""
        if self._network is not None:
            self._network.down()
            self._network = None


def _reached(network: NetworkSpec, reached: set[str]) -> NetworkSpec:
    """The network, including the host if it must log in to nodes there."""
    return replace(network, host=True) if network.name in reached else network
