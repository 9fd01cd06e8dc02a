"""A plain directory shared by all client nodes: no server, no network; the baseline of comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.host.nodes.namespaces import bind_into
from penstock.parts.stores.engines.engine import Site, verdict
from penstock.spec.store import Extent, Support
from penstock.spec.store_engines import CAPABILITIES

_CAPABILITIES = CAPABILITIES["directory"]


class Directory:
    """On the first disk of the first storage node, or in the cluster's directory without one."""

    name = "directory"
    privileges: tuple[str, ...] = ()
    server_privileges: tuple[str, ...] = ()

    def missing(self) -> str:
        return ""

    def support(self) -> Mapping[str, Support]:
        """Tags are stored and returned, without effect."""
        return _CAPABILITIES.support

    def refusal(self, site: Site) -> str:
        """Accepts any nodes."""
        return ""

    def up(self, site: Site) -> None:
        """Create the directory; there are no servers."""
        disk = next(iter(site.storage[0].disks.values()), None)
        shared = (disk.at if disk is not None else site.home) / "store"
        shared.mkdir(mode=0o755)
        site.state["shared"] = str(shared)

    def mount(self, site: Site, node: RunningNode) -> None:
        """Bind-mount into the node; it ends with the node."""
        bind_into(node.pid, [(site.state["shared"], site.mount)])

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Nothing to do: the mount ends with the node."""

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Refuse every hint."""
        return verdict(_CAPABILITIES, key, value, site.circumstances(node))

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """One extent, on the node that owns the disk."""
        _, size = site.request(node, "kind", path)
        return [Extent(0, size, (site.storage[0].name,))] if size else []

    def status(self, site: Site) -> dict[str, Any]:
        """The node that owns the disk."""
        node = site.storage[0]
        return {"servers": [{"node": node.name, "up": node.state == "running"}]}

    def down(self, site: Site) -> None:
        """Nothing to do: the files are removed with the cluster."""
