"""GlusterFS 10: a glusterd on every storage node, one volume over their bricks, clients by FUSE.

Chunks are shards (features.shard), copies are replica sets; the hash of their names places both. A file's
shard size is fixed at its creation, and a name that ends with `@VOLUME-dht:SET` is created in that replica
set. A file with its own layout is therefore created through a temporary second mount, whose shard translator
has another size, and renamed over the empty one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from xml.etree import ElementTree

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.engines.engine import Site, verdict
from penstock.parts.stores.engines.packages import missing
from penstock.parts.stores.hints import chunk_bytes
from penstock.spec.store import Extent, Support, refused
from penstock.spec.store_engines import CAPABILITIES, GLUSTER_SIZES

T = TypeVar("T")

#: of the shards of a file that is one chunk
LARGEST = GLUSTER_SIZES.most_bytes
VOLUME = "store"
_PROGRAMS = ("glusterd", "gluster", "glusterfs", "mount.glusterfs")
_PACKAGES = "glusterfs-server glusterfs-client"
#: second mount point on a client, for the creation of one file
_SECOND = "/run/penstock-glusterfs"
_CAPABILITIES = CAPABILITIES["glusterfs"]

#: queries a client for a file: path without links, identity, size, tag ChunkSize
_FACTS = """
import json, os, sys
path = os.path.realpath(sys.argv[1])
told = {n: os.getxattr(path, n).decode() for n in os.listxattr(path) if n == "user.penstock.ChunkSize"}
print(json.dumps({
    "path": path, "directory": os.path.isdir(path), "size": os.stat(path).st_size,
    "id": os.getxattr(path, "glusterfs.gfid.string").decode().rstrip("\\0"),
    "chunk": next(iter(told.values()), None),
}))
"""
#: queries a storage node for the parts of a file on its bricks, and its shard size; without link files
_PARTS = """
import json, os, stat, sys
name, *bricks = sys.argv[1:]
def real(path):
    try:
        return stat.S_IMODE(os.lstat(path).st_mode) != stat.S_ISVTX
    except OSError:
        return False
found = []
for brick in bricks:
    first = f"{brick}/.glusterfs/{name[:2]}/{name[2:4]}/{name}"
    block, parts = None, []
    if real(first):
        parts.append(0)
        try:
            said = os.getxattr(first, "trusted.glusterfs.shard.block-size")
            block = int.from_bytes(said[:8], "big")
        except OSError:
            pass
    shards = f"{brick}/.shard"
    for one in os.listdir(shards) if os.path.isdir(shards) else ():
        if one.startswith(name + ".") and real(f"{shards}/{one}"):
            parts.append(int(one.rpartition(".")[2]))
    found.append({"brick": brick, "block": block, "parts": parts})
print(json.dumps(found))
"""
#: creates a draft in a replica set through the second mount, and renames it over an empty file in the first
_LAY = """
import os, secrets, sys
first, second, below, where = sys.argv[1:]
path = os.path.join(first, below)
was = os.lstat(path)
draft = os.path.join(os.path.dirname(below), ".penstock-" + secrets.token_hex(6))
made = os.open(os.path.join(second, draft + where), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
os.close(made)
new = os.path.join(first, draft)
try:
    os.lstat(os.path.join(second, draft))
    for name in os.listxattr(path):
        if name.startswith("user."):
            os.setxattr(new, name, os.getxattr(path, name))
    os.chown(new, was.st_uid, was.st_gid)
    os.chmod(new, was.st_mode & 0o7777)
    if os.stat(path).st_size:
        sys.exit("it has been written to meanwhile")
    os.rename(new, path)
except BaseException:
    os.unlink(new)
    raise
"""


@dataclass(frozen=True)
class _Parts:
    """A file on the bricks: bytes of a chunk (0: a single chunk), nodes by chunk number, sets of the
    first."""

    chunk_bytes: int
    nodes: Mapping[int, tuple[str, ...]]
    sets: tuple[int, ...]


class GlusterFS:
    """Bricks on every storage node; no manager: clients hash names."""

    name = "glusterfs"
    privileges = ("SYS_ADMIN", "/dev/fuse")
    #: bricks store file metadata in attributes `trusted.*`
    server_privileges = ("SYS_ADMIN",)

    def missing(self) -> str:
        """Debian's packages."""
        return missing(_PROGRAMS, _PACKAGES)

    def support(self) -> Mapping[str, Support]:
        """Support of one volume; limits of a file are reported by `tag`."""
        return _CAPABILITIES.support

    def refusal(self, site: Site) -> str:
        """Refuse values that no volume supports."""
        return _CAPABILITIES.refusal(site.spec.parameters, site.circumstances())

    def up(self, site: Site) -> None:
        """Start a glusterd everywhere, in one pool, then the volume, and wait for each brick."""
        _in_each(site.storage, lambda node: self._start_server(site, node))
        first = site.storage[0]
        for node in site.storage[1:]:
            self._gluster(site, first, "peer", "probe", node.name)
        expected = len(site.storage)

        def joined(node: RunningNode) -> bool:
            return self._gluster(site, node, "pool", "list").count("Connected") == expected

        site.wait(
            lambda: all(_in_each(site.storage, joined)),
            f"not all of {expected} storage nodes have come together",
        )
        copies = site.spec.parameters.get("replicas", 1)
        site.state["copies"] = copies
        site.state["bricks"] = bricks = _bricks(site, copies)
        replication = ["replica", str(copies)] if copies > 1 else []
        self._gluster(
            site, first, "volume", "create", VOLUME, *replication, *map(":".join, bricks), "force"
        )
        options = [w for pair in self._options(site).items() for w in pair]
        self._gluster(site, first, "volume", "set", VOLUME, *options)
        self._gluster(site, first, "volume", "start", VOLUME)
        site.wait(
            lambda: sum(map(len, self._up(site).values())) == len(bricks),
            f"not all of {len(bricks)} bricks have come up",
        )

    def _start_server(self, site: Site, node: RunningNode) -> None:
        at = _home(site, node)
        site.write(node, f"{at}/glusterd.vol", _SERVER.format(at=at))
        argv = ["glusterd", "-f", f"{at}/glusterd.vol", "-p", f"{at}/glusterd.pid"]
        argv += ["--log-file", f"{at}/glusterd.log"]
        site.run(node, argv, what="its glusterd")

    @staticmethod
    def _options(site: Site) -> dict[str, str]:
        parameters = site.spec.parameters
        size = LARGEST if parameters.get("stripe") == 1 else site.chunk_bytes
        options = {"features.shard": "on", "features.shard-block-size": str(size)}
        if "cache" in parameters:
            cache = str(max(GLUSTER_SIZES.least_bytes, parameters["cache"]))
            options |= {"performance.io-cache": "on", "performance.cache-size": cache}
        return options

    @staticmethod
    def _gluster(site: Site, node: RunningNode, *arguments: str) -> str:
        """Output of a node's gluster(8)."""
        return site.run(node, ["gluster", "--mode=script", *arguments], what="the volume")

    def _up(self, site: Site) -> dict[str, set[str]]:
        """Running bricks by node, as reported by the first live storage node."""
        node = next((n for n in site.storage if n.state == "running"), None)
        if node is None:
            return {}
        output = self._gluster(site, node, "--xml", "volume", "status", VOLUME)
        bricks: dict[str, set[str]] = {}
        for one in ElementTree.fromstring(output).iter("node"):
            if one.findtext("status") == "1" and (one.findtext("path") or "").startswith("/"):
                bricks.setdefault(one.findtext("hostname") or "", set()).add(
                    one.findtext("path") or ""
                )
        return bricks

    def mount(self, site: Site, node: RunningNode) -> None:
        """With mount.glusterfs(8), until it is connected to every brick of the live nodes."""
        self._mount(site, node, site.mount)
        running = {n.name for n in site.storage if n.state == "running"}
        expected = sum(host in running for host, _ in site.state["bricks"])
        argv = ["/bin/sh", "-c", _JOINED, "sh", site.mount, VOLUME]
        site.wait(
            lambda: int(site.run(node, argv, what="its bricks")) >= expected,
            f"{node.name} is not joined with all of {expected} bricks",
        )

    def _mount(self, site: Site, node: RunningNode, at: str, *more: str) -> None:
        hosts = sorted((n.name for n in site.storage), key=lambda name: name != node.name)
        argv = ["glusterfs", "--volfile-id", VOLUME, *more]
        argv += [w for host in hosts for w in ("--volfile-server", host)]
        log = f"/var/log/penstock-glusterfs{at.replace('/', '-')}.log"
        site.run(node, ["mkdir", "-p", at], what="the mount point")
        site.run(node, [*argv, "--log-file", log, at], what="mounting the store")
        site.run(node, ["stat", "-f", at], what="mounting the store")

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Unmount; the bricks have all writes once umount(8) returns."""
        site.run(node, ["umount", site.mount], what="unmounting the store")

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Replace the empty file by one with another shard size or in its own set."""
        if key == "Replication":
            return verdict(_CAPABILITIES, key, value, site.circumstances(node))
        facts = self._facts(site, node, path)
        own = chunk_bytes(facts["chunk"], site.chunk_bytes)
        support = verdict(_CAPABILITIES, key, value, site.circumstances(node, own))
        if support.how == "refused":
            return support
        if facts["directory"]:
            return refused("a directory's files are laid out as the volume has it; tag each")
        if not empty:
            return refused("written data are not moved")
        chunk, number = self._layout(site, node, key, value, own)
        if number is None:
            number = self._parts(site, facts["id"]).sets[0]
        self._lay(site, node, facts["path"], chunk, number)
        parts = self._parts(site, self._facts(site, node, path)["id"])
        if parts.sets != (number,) or parts.chunk_bytes != chunk:
            return refused(f"{path} was created with another layout than requested")
        return support

    def _layout(
        self, site: Site, node: RunningNode, key: str, value: Any, own: int
    ) -> tuple[int, int | None]:
        """Bytes of a chunk and the set of the first (None: unchanged); `own`: bytes of the file's chunks."""
        if key == "StripeWidth":
            return LARGEST, None
        if key == "ChunkSize":
            return value, None
        if value.kind == "scatter":
            return value.chunks * own, None
        sets = _sets(site)
        if value.kind == "collocation":
            groups: dict[str, int] = site.state.setdefault("groups", {})
            return LARGEST, groups.setdefault(value.group, len(groups) % len(sets))
        host = node.name if value.kind == "local" else value.host
        return LARGEST, next(n for n, nodes in enumerate(sets) if host in nodes)

    def _lay(self, site: Site, node: RunningNode, path: str, chunk: int, number: int) -> None:
        kind = "replicate" if site.state["copies"] > 1 else "client"
        options = {
            f"{VOLUME}-shard.shard-block-size": chunk,
            f"{VOLUME}-dht.lookup-optimize": "off",
        }
        more = [w for k, v in options.items() for w in ("--xlator-option", f"{k}={v}")]
        below = path.removeprefix(f"{site.mount}/")
        where = f"@{VOLUME}-dht:{VOLUME}-{kind}-{number}"
        self._mount(site, node, _SECOND, *more)
        try:
            argv = [sys.executable, "-I", "-c", _LAY, site.mount, _SECOND, below, where]
            site.run(node, argv, what="laying out the file")
        finally:
            site.run(node, ["umount", _SECOND], what="laying out the file")

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """As reported by the bricks; holes are on no node."""
        facts = self._facts(site, node, path)
        size, parts = facts["size"], self._parts(site, facts["id"])
        step = parts.chunk_bytes or size
        return [
            Extent(start, min(step, size - start), parts.nodes.get(number, ()))
            for number, start in enumerate(range(0, size, step) if size else ())
        ]

    @staticmethod
    def _facts(site: Site, node: RunningNode, path: str) -> dict[str, Any]:
        argv = [sys.executable, "-I", "-c", _FACTS, path]
        return dict(json.loads(site.run(node, argv, what=path)))

    @staticmethod
    def _parts(site: Site, identity: str) -> _Parts:
        """The chunks of a file, from every live storage node."""
        bricks: list[list[str]] = site.state["bricks"]

        def ask(node: RunningNode) -> list[dict[str, Any]]:
            own_bricks = [brick for host, brick in bricks if host == node.name]
            argv = [sys.executable, "-I", "-c", _PARTS, identity, *own_bricks]
            return list(json.loads(site.run(node, argv, what="its bricks")))

        running = [n for n in site.storage if n.state == "running"]
        nodes: dict[int, list[str]] = {}
        chunk, sets = 0, set()
        for node, answers in zip(running, _in_each(running, ask), strict=True):
            for one in answers:
                for part in one["parts"]:
                    nodes.setdefault(part, []).append(node.name)
                if 0 in one["parts"]:
                    chunk = one["block"] or 0
                    place = bricks.index([node.name, one["brick"]])
                    sets.add(place // site.state["copies"])
        return _Parts(chunk, {k: tuple(v) for k, v in nodes.items()}, tuple(sorted(sets)))

    def status(self, site: Site) -> dict[str, Any]:
        """Nodes with running bricks."""
        up = self._up(site)
        return {"servers": [{"node": n.name, "up": bool(up.get(n.name))} for n in site.storage]}

    def down(self, site: Site) -> None:
        """Stop the volume, then each glusterd; bricks one by one if a dead node blocks the volume's stop."""
        running = [n for n in site.storage if n.state == "running"]
        all_run = len(running) == len(site.storage)
        if all_run:
            self._gluster(site, running[0], "volume", "stop", VOLUME, "force")

        def stop(node: RunningNode) -> None:
            arguments = ["sh", _home(site, node), "" if all_run else "bricks"]
            site.run(node, ["/bin/sh", "-c", _STOP, *arguments], what="stopping")

        _in_each(running, stop)


#: stops a glusterd ($1: its directory), its bricks ($2) and their self-heal daemon
_STOP = (
    'kill "$(cat "$1/glusterd.pid")" || exit; [ -n "$2" ] || exit 0; '
    "cat /run/gluster/vols/*/*.pid /run/gluster/glustershd/*.pid 2>/dev/null | xargs -r kill"
)
#: number of bricks connected to a mount ($1) of a volume ($2)
_JOINED = (
    'cat "$1"/.meta/graphs/active/"$2"-client-*/private 2>/dev/null | grep -c "connected = 1"; :'
)
_SERVER = """volume management
    type mgmt/glusterd
    option working-directory {at}/glusterd
    option transport-type socket
    option transport.socket.keepalive-time 10
    option transport.socket.keepalive-interval 2
    option ping-timeout 0
    option event-threads 1
    option max-port 60999
end-volume
"""


def _home(site: Site, node: RunningNode) -> str:
    return f"{site.data(node)}/glusterfs"


def _bricks(site: Site, copies: int) -> list[list[str]]:
    """Node and directory of every brick, grouped by replica set.

    If the nodes cannot be divided into sets, each node starts one and shares those of the preceding nodes.
    """
    nodes = site.storage
    divisible = len(nodes) % copies == 0
    starts = range(0, len(nodes), copies) if divisible else range(len(nodes))
    placed = []
    for start in starts:
        for copy in range(copies):
            node = nodes[(start + copy) % len(nodes)]
            placed.append([node.name, f"{_home(site, node)}/brick{'' if divisible else copy}"])
    return placed


def _sets(site: Site) -> list[tuple[str, ...]]:
    """The nodes of each replica set."""
    bricks, copies = site.state["bricks"], site.state["copies"]
    hosts = [host for host, _ in bricks]
    return [tuple(hosts[n : n + copies]) for n in range(0, len(hosts), copies)]


def _in_each(nodes: Sequence[RunningNode], act: Callable[[RunningNode], T]) -> list[T]:
    """Run a function on several nodes in parallel. PenstockError of the first failure."""
    if not nodes:
        raise PenstockError("no storage node runs")
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(act, nodes))
