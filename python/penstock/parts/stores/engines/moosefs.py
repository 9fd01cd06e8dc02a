"""MooseFS 3: a master, chunk servers, clients by FUSE. Chunks are at most 64 MiB, files are not striped.

Started according to its manual pages (mfsmaster.cfg(5), mfschunkserver.cfg(5), mfsmount(8)). Each chunk
server has its own label (mfsscadmin(1)), so that a storage class can name one node.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.engines.engine import Site, address, verdict
from penstock.parts.stores.engines.packages import missing
from penstock.spec.store import Extent, Support, refused
from penstock.spec.store_engines import CAPABILITIES

CHUNK = 64 * 2**20
#: a chunk server accepts no chunks with less free space (HDD_LEAVE_SPACE_DEFAULT)
_RESERVE = "64MiB"
_PROGRAMS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfsfileinfo", "mfscli")
_PACKAGES = "moosefs-master moosefs-chunkserver moosefs-client moosefs-cli"
_COPY = re.compile(r"copy \d+: ([0-9.]+):\d+ \(status:VALID\)")

_CAPABILITIES = CAPABILITIES["moosefs"]


class MooseFS:
    """One master on the first manager, a chunk server on every storage node."""

    name = "moosefs"
    privileges = ("SYS_ADMIN", "/dev/fuse")
    server_privileges: tuple[str, ...] = ()

    def missing(self) -> str:
        """Debian's packages."""
        return missing(_PROGRAMS, _PACKAGES)

    def support(self) -> Mapping[str, Support]:
        """According to its manual pages, verified by the conformance suite."""
        return _CAPABILITIES.support

    def refusal(self, site: Site) -> str:
        """Refuse unsupported values, and more nodes than labels, which are letters."""
        return _CAPABILITIES.refusal(site.spec.parameters, site.circumstances())

    def up(self, site: Site) -> None:
        """Start the master, then the chunk servers, and wait until the master lists all of them."""
        master = site.managers[0]
        at = _home(site, master, "master")
        site.state["master"] = address(master)
        site.write(master, f"{at}/exports", "* / rw,alldirs,admin,maproot=0:0\n")
        site.write(master, f"{at}/topology", "")
        listen = {f"MAT{who}_LISTEN_HOST": address(master) for who in ("OML", "OCS", "OCL")}
        places = {"EXPORTS_FILENAME": f"{at}/exports", "TOPOLOGY_FILENAME": f"{at}/topology"}
        site.write(master, f"{at}/master.cfg", _lines({**_own(at), **places, **listen}))
        site.run(
            master, ["cp", "/var/lib/mfs/metadata.mfs.empty", f"{at}/metadata.mfs"], what=self.name
        )
        site.run(master, ["mfsmaster", "-c", f"{at}/master.cfg", "start"], what="the master")
        for node, label in zip(site.storage, string.ascii_uppercase, strict=False):
            site.state.setdefault("labels", {})[node.name] = label
            self._start_server(site, node, label)
        expected = len(site.storage)
        site.wait(
            lambda: len(self._servers(site)) == expected,
            f"not all of {expected} chunk servers have come to the master",
        )
        for label in site.state["labels"].values():
            site.state.setdefault("classes", {})[label] = f"node_{label}"

    def _start_server(self, site: Site, node: RunningNode, label: str) -> None:
        at = _home(site, node, "server")
        site.write(node, f"{at}/hdd", f"{at}/chunks\n")
        site.run(node, ["mkdir", "-p", f"{at}/chunks"], what=self.name)
        values = {
            **_own(at),
            "HDD_CONF_FILENAME": f"{at}/hdd",
            "MASTER_HOST": site.state["master"],
            "CSSERV_LISTEN_HOST": address(node),
            "BIND_HOST": address(node),
            "HDD_LEAVE_SPACE_DEFAULT": _RESERVE,
            "LABELS": label,
        }
        site.write(node, f"{at}/server.cfg", _lines(values))
        site.run(
            node, ["mfschunkserver", "-c", f"{at}/server.cfg", "start"], what="its chunk server"
        )

    def mount(self, site: Site, node: RunningNode) -> None:
        """With mfsmount; the first mount creates a storage class for each node and sets the root's goal."""
        options = []
        parameters = site.spec.parameters
        if "cache" in parameters:
            options += ["-o", f"mfswritecachesize={max(16, parameters['cache'] // 2**20)}"]
        if "prefetch" in parameters:
            ahead = max(1, parameters["prefetch"] * CHUNK // 2**20)
            options += ["-o", f"mfsreadaheadsize={ahead}"]
        site.run(node, ["mkdir", "-p", site.mount], what="the mount point")
        argv = ["mfsmount", site.mount, "-H", site.state["master"], *options]
        site.run(node, argv, what="mounting the store")
        if not site.state.get("prepared"):
            for label, name in site.state["classes"].items():
                self._class(site, node, label, name)
            goal = str(parameters.get("replicas", 1))
            site.run(node, ["mfssetgoal", "-r", goal, site.mount], what="its number of copies")
            site.state["prepared"] = True

    def _class(self, site: Site, node: RunningNode, labels: str, name: str) -> None:
        argv = ["mfsscadmin", site.mount, "create", labels, name]
        site.run(node, argv, what=f"the storage class {name}")

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Unmount; the servers have all writes once umount(8) returns."""
        site.run(node, ["umount", site.mount], what="unmounting the store")

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """A goal for Replication, a storage class for a placement."""
        support = verdict(_CAPABILITIES, key, value, site.circumstances(node))
        if support.how == "refused":
            return support
        if key == "Replication":
            current = self._label(site, node, path)
            if current is not None and empty:
                self._set_class(site, node, path, current, value)
            else:
                site.ask(node, ["mfssetgoal", str(value), path], what=f"{value} copies")
            return support
        if value.kind == "scatter":
            return support
        if not empty:
            return refused("written data are not moved")
        if value.kind == "collocation":
            label = self._of_group(site, value.group)
        else:
            label = site.state["labels"][node.name if value.kind == "local" else value.host]
        self._set_class(site, node, path, label, self._goal(site, node, path))
        return support

    def _of_group(self, site: Site, group: str) -> str:
        """The node of a group; a new group gets the next node in turn."""
        groups: dict[str, str] = site.state.setdefault("groups", {})
        labels = list(site.state["labels"].values())
        return groups.setdefault(group, labels[len(groups) % len(labels)])

    def _set_class(self, site: Site, node: RunningNode, path: str, label: str, copies: int) -> None:
        """Storage class with one copy at a label, the others anywhere."""
        name = f"node_{label}" + (f"_{copies}" if copies > 1 else "")
        classes: dict[str, str] = site.state["classes"]
        if name not in classes.values():
            self._class(site, node, ",".join([label, *["*"] * (copies - 1)]), name)
            classes[f"{label}{copies}"] = name
        site.ask(node, ["mfssetsclass", name, path], what=f"the storage class {name}")

    def _class_of(self, site: Site, node: RunningNode, path: str) -> str:
        output = site.ask(node, ["mfsgetsclass", path], what="its storage class")
        return output.rpartition(":")[2].strip().strip("'")

    def _label(self, site: Site, node: RunningNode, path: str) -> str | None:
        match = re.fullmatch(r"node_([A-Z])(_\d+)?", self._class_of(site, node, path))
        return match[1] if match else None

    def _goal(self, site: Site, node: RunningNode, path: str) -> int:
        name = self._class_of(site, node, path)
        match = re.fullmatch(r"node_[A-Z]_(\d+)", name)
        return int(match[1] if match else name) if match or name.isdigit() else 1

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """According to mfsfileinfo(1), by chunks of 64 MiB."""
        _, size = site.request(node, "kind", path)
        output = site.ask(node, ["mfsfileinfo", path], what="its chunks")
        if size and "chunk 0" not in output:
            raise PenstockError(f"{path}: mfsfileinfo names no chunk of {size} bytes")
        parts = re.split(r"^\s*chunk \d+:", output, flags=re.MULTILINE)[1:]
        extents = []
        for number, part in enumerate(parts):
            start = number * CHUNK
            holders = tuple(site.node_of(a) for a in _COPY.findall(part))
            extents.append(Extent(start, min(CHUNK, size - start), holders))
        return [e for e in extents if e.length_bytes > 0]

    def status(self, site: Site) -> dict[str, Any]:
        """Servers connected to the master, with their space."""
        servers = self._servers(site)
        return {
            "servers": [
                {"node": n.name, "up": n.name in servers, **servers.get(n.name, {})}
                for n in site.storage
            ]
        }

    def _servers(self, site: Site) -> dict[str, dict[str, int]]:
        """By node: used and total bytes of the connected chunk servers."""
        argv = ["mfscli", "-n", "-s", "\t", "-H", site.state["master"], "-SCS"]
        output = site.run(site.managers[0], argv, what="its chunk servers")
        by_node = {}
        for line in output.splitlines():
            fields = line.split("\t")
            if fields[0].startswith("chunk servers") and len(fields) > 10 and fields[9] != "-":
                sizes = {"used_bytes": int(fields[9]), "total_bytes": int(fields[10])}
                by_node[site.node_of(fields[1])] = sizes
        return by_node

    def down(self, site: Site) -> None:
        """Stop the chunk servers, then the master, as their manuals require."""
        for node in site.storage:
            if node.state == "running":
                at = _home(site, node, "server")
                site.run(
                    node, ["mfschunkserver", "-c", f"{at}/server.cfg", "stop"], what="stopping"
                )
        master = site.managers[0]
        if master.state == "running":
            at = _home(site, master, "master")
            site.run(master, ["mfsmaster", "-c", f"{at}/master.cfg", "stop"], what="stopping")


def _home(site: Site, node: RunningNode, part: str) -> str:
    return f"{site.data(node)}/moosefs-{part}"


def _own(at: str) -> dict[str, str]:
    """Configuration of every daemon: its directory, and root as its user (the files of a node are root's)."""
    return {"DATA_PATH": at, "WORKING_USER": "root", "WORKING_GROUP": "root"}


def _lines(values: Mapping[str, str]) -> str:
    return "".join(f"{k}={v}\n" for k, v in values.items())
