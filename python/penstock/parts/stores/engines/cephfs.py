"""CephFS 16.2: monitor, manager daemon, metadata server, an OSD for each storage node, ceph-fuse in clients.

A file's layout divides it into objects (docs.ceph.com, File layouts); the CRUSH rule of its pool places them.
Copies and placements are therefore pools, created by the first hint that needs them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.parts.stores.engines.ceph_daemons import (
    ask,
    configure,
    environment,
    shell,
    start_monitor,
    start_osds,
    stop,
)
from penstock.parts.stores.engines.ceph_layout import (
    CHUNK,
    layout_of,
    located,
    root_layout,
    set_layout,
    spread,
    with_chunk,
    with_chunks_together,
)
from penstock.parts.stores.engines.ceph_pools import DATA, FILE_SYSTEM, METADATA, pool
from penstock.parts.stores.engines.engine import Site, address, verdict
from penstock.parts.stores.engines.packages import absent, missing
from penstock.spec.store import Extent, Support, refused
from penstock.spec.store_engines import CAPABILITIES, client_sizes

_PROGRAMS = ("ceph-mon", "ceph-mgr", "ceph-mds", "ceph-osd", "ceph-fuse", "crushtool")
_PACKAGES = "--no-install-recommends ceph-mon ceph-mgr ceph-mds ceph-osd ceph-common ceph-fuse python3-rados"
_RADOS = "/usr/lib/python3/dist-packages"
_CAPABILITIES = CAPABILITIES["cephfs"]

_UNMOUNT = """
pid=$(cat /run/penstock-ceph/client.admin.pid) && umount "$0" || exit 1
for turn in $(seq 500); do kill -0 "$pid" 2>/dev/null || exit 0; sleep 0.1; done
echo "ceph-fuse does not end"; exit 1
"""
_SIZES = (("used", "kb_used"), ("total", "kb"))


def client_options(parameters: Mapping[str, Any]) -> list[str]:
    """Cache and read-ahead of a mount."""
    assert _CAPABILITIES.client is not None
    chunk_bytes = parameters.get("chunk", CHUNK)
    cache, ahead = client_sizes(_CAPABILITIES.client, parameters, chunk_bytes)
    return [f"--client_oc_size={cache}", f"--client_readahead_max_bytes={ahead}"]


class CephFS:
    """Monitor, manager daemon and metadata server on the first manager; no processes or files on the host."""

    name = "cephfs"
    privileges = ("SYS_ADMIN", "/dev/fuse")
    server_privileges: tuple[str, ...] = ()

    def missing(self) -> str:
        """Debian's packages."""
        lacking = missing(_PROGRAMS, _PACKAGES)
        if not lacking and not any(Path(_RADOS).glob("rados*.so")):
            return absent("rados.so of Python", _PACKAGES)
        return lacking

    def support(self) -> Mapping[str, Support]:
        """According to the documentation of file layouts and pools."""
        return _CAPABILITIES.support

    def refusal(self, site: Site) -> str:
        """Refuse invalid sizes of a layout, and unsupported replication modes."""
        return _CAPABILITIES.refusal(site.spec.parameters, site.circumstances())

    def up(self, site: Site) -> None:
        """Start monitor, manager daemon, OSDs, pools, file system, metadata server."""
        manager = site.managers[0]
        site.state.update(fsid=str(uuid.uuid4()), monitor=address(manager))
        site.state.update(osds=[n.name for n in site.storage], rules=[], pools={})
        for node in {n.name: n for n in (*site.managers, *site.storage)}.values():
            configure(site, node)
        start_monitor(site)
        start_osds(site)
        everywhere = list(range(len(site.storage)))
        copies = site.spec.parameters.get("replicas", 1)
        # metadata survives the failure of any one node
        pool(site, None, everywhere, min(len(everywhere), max(2, copies)), METADATA)
        pool(site, None, everywhere, copies, DATA)
        both = {"metadata": METADATA, "data": DATA}
        ask(site, {"prefix": "fs new", "fs_name": FILE_SYSTEM, **both})
        shell(site, manager, "ceph-mds -i a", "the metadata server")
        site.wait(
            lambda: "up:active" in json.dumps(ask(site, {"prefix": "mds stat"})[0]),
            "the metadata server has not become active",
        )

    def mount(self, site: Site, node: RunningNode) -> None:
        """Mount with ceph-fuse; the first mount sets the root's layout."""
        configure(site, node)
        shell(site, node, 'mkdir -p "$0"', "the mount point", site.mount)
        options = client_options(site.spec.parameters)
        argv = ["ceph-fuse", site.mount, "--client_mountpoint=/", *options]
        site.run(node, argv, what="mounting the store", env=environment(site, node))
        if not site.state.get("prepared"):
            set_layout(site, node, site.mount, root_layout(site))
            site.state["prepared"] = True

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Unmount; the OSDs have all writes once ceph-fuse exits, some time after umount(8)."""
        shell(site, node, _UNMOUNT, "unmounting the store", site.mount)

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Change the layout: sizes or pool."""
        here = site.circumstances(node)
        declared = _CAPABILITIES.support.get(f"DP {value.kind}" if key == "DP" else key)
        if declared is None or declared.how == "refused":
            return verdict(_CAPABILITIES, key, value, here)
        if not empty:
            return refused("a layout is changed only while a file is empty")
        layout = layout_of(site, node, path)
        used = site.state["pools"][layout["pool"]]
        here = replace(
            here,
            copies=used["copies"],
            chunk_bytes=layout["stripe_unit"],
            placed=used["first"] is not None,
        )
        support = verdict(_CAPABILITIES, key, value, here)
        if support.how == "refused":
            return support
        if key == "ChunkSize":
            why = with_chunk(layout, value)
        elif key == "DP" and value.kind == "scatter":
            why = with_chunks_together(layout, value.chunks)
        else:
            why = self._with_pool(site, node, layout, key, value)
        if why:
            return refused(why)
        if not set_layout(site, node, path, layout):
            return refused("it has contained data, and a layout can only be changed before that")
        return support

    def _with_pool(
        self, site: Site, node: RunningNode, layout: dict[str, Any], key: str, value: Any
    ) -> str:
        """Put a layout into the pool of a hint. Returns the reason if there can be none."""
        names: list[str] = site.state["osds"]
        now = site.state["pools"][layout["pool"]]
        first, among, copies = now["first"], now["among"], now["copies"]
        if key == "Replication":
            copies = value
        elif key == "StripeWidth":
            if first is None:
                turn = site.state.get("turn", 0)
                site.state["turn"] = turn + 1
                among = sorted((turn + i) % len(names) for i in range(value))
                spread(layout)
        else:
            among = list(range(len(names)))
            groups: dict[str, int] = site.state.setdefault("groups", {})
            first = (
                groups.setdefault(value.group, len(groups) % len(names))
                if value.kind == "collocation"
                else names.index(node.name if value.kind == "local" else value.host)
            )
        if copies > len(among):
            return f"{copies} copies on {len(among)} storage nodes"
        layout["pool"] = pool(site, first, among, copies)
        return ""

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """Object by object; the monitor maps placement groups to OSDs."""
        return located(site, node, path)

    def status(self, site: Site) -> dict[str, Any]:
        """OSDs of the monitor's map, with their last reported space."""
        dump, space = ask(site, {"prefix": "osd dump"}, {"prefix": "osd df"}, mgr=(1,))
        up = {o["osd"]: bool(o["up"]) for o in dump["osds"]}
        sizes = {n["id"]: n for n in space["nodes"]}
        servers = []
        for number, name in enumerate(site.state["osds"]):
            one: dict[str, Any] = {"node": name, "up": up.get(number, False)}
            if sizes.get(number, {}).get("kb"):
                one |= {f"{k}_bytes": sizes[number][f] * 1024 for k, f in _SIZES}
            servers.append(one)
        return {"servers": servers}

    def down(self, site: Site) -> None:
        """Stop metadata server and OSDs, then manager daemon and monitor."""
        manager = site.managers[0]
        if manager.state == "running":
            stop(site, manager, "mds.a")
        numbers = {n: number for number, n in enumerate(site.state["osds"])}
        running = [n for n in site.storage if n.state == "running"]
        with ThreadPoolExecutor(max_workers=4) as at_once:
            list(at_once.map(lambda n: stop(site, n, f"osd.{numbers[n.name]}"), running))
        if manager.state == "running":
            stop(site, manager, "mgr.a", "mon.a")
