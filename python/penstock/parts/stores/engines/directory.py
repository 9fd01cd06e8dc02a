"""A plain directory that all client nodes see: no server, no network; what the others are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.host.nodes.namespaces import bind_into
from penstock.parts.stores.engines.engine import Site
from penstock.spec.store import PARAMETERS, Extent, Support, emulated, refused

_WHY = "one directory of one host knows no chunks, copies or nodes"
_HINTS = ("Replication", "ChunkSize", "StripeWidth", "CacheSize", "deduplication")
_SUPPORT: dict[str, Support] = dict.fromkeys((*PARAMETERS, *_HINTS), refused(_WHY)) | {
    f"DP {kind}": refused(_WHY) for kind in ("local", "collocation", "scatter", "host")
}
_SUPPORT["setfattr"] = emulated("tags are looked at when a file is opened (store up --watch)")


class Directory:
    """On the first disk of the first storage node, or among the cluster's files where it has none."""

    name = "directory"
    privileges: tuple[str, ...] = ()
    server_privileges: tuple[str, ...] = ()

    def missing(self) -> str:
        """Nothing."""
        return ""

    def support(self) -> Mapping[str, Support]:
        """Tags are kept and given back, and change nothing."""
        return _SUPPORT

    def refusal(self, site: Site) -> str:
        """Any nodes will do."""
        return ""

    def up(self, site: Site) -> None:
        """There is no server, only the directory."""
        disk = next(iter(site.storage[0].disks.values()), None)
        shared = (disk.at if disk is not None else site.home) / "store"
        shared.mkdir(mode=0o755)
        site.state["shared"] = str(shared)

    def mount(self, site: Site, node: RunningNode) -> None:
        """Bound into the node, where it goes with the node."""
        bind_into(node.pid, [(site.state["shared"], site.mount)])

    def unmount(self, site: Site, node: RunningNode) -> None:
        """It goes with the node."""

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Every hint is refused."""
        return refused(_WHY)

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """All of it with the node whose disk it is."""
        inside = Path(path).relative_to(site.mount)
        size = (Path(site.state["shared"]) / inside).stat().st_size
        return [Extent(0, size, (site.storage[0].name,))] if size else []

    def status(self, site: Site) -> dict[str, Any]:
        """The node whose disk it is."""
        node = site.storage[0]
        return {"servers": [{"node": node.name, "up": node.state == "running"}]}

    def down(self, site: Site) -> None:
        """Its files go with the cluster."""
