"""HDFS 3.4: a name node on the first manager, a data node on every storage node. It cannot be mounted.

Neither of its mounts is available (fuse-dfs is not packaged, its NFS gateway needs an NFS client in the
kernel). Files are accessed over HTTP (`webhdfs.py`), and by programs of the node through `hdfs dfs`. Chunks
are blocks. `tools/hadoop.sh` downloads Hadoop's classes.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.parts.stores.engines.engine import Site, verdict
from penstock.parts.stores.engines.hdfs_files import HdfsFiles, of, request
from penstock.parts.stores.files import Files
from penstock.parts.stores.hints import chunk_bytes
from penstock.spec.store import PREFIX, Extent, Support, refused
from penstock.spec.store_engines import CAPABILITIES, HDFS_SIZES

HTTP_PORT = 9870
#: time limit for the start of the daemons, five Java programs on few processors [s]
_STARTS_WITHIN_S = 150.0
#: path of a node's configuration, and of the program for its users
_CONFIGURED, _PROGRAM = "/etc/penstock-hdfs", "/usr/local/bin/hdfs"
_MAINS = {
    "name": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "data": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "dfs": "org.apache.hadoop.fs.FsShell",
}
#: no second-tier compiler and one GC thread: many small JVMs share the processors
_JVM = (
    *(
        "-Xmx192m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Xshare:auto",
    ),
    *(f"--add-opens=java.base/java.{p}=ALL-UNNAMED" for p in ("lang", "util", "nio", "net")),
)
_LOG = """log4j.rootLogger=INFO,err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
_SHELL = """#!/bin/sh
[ "$1" = dfs ] || {{ echo "hdfs: found '$1'; expected dfs, which is all there is here" >&2; exit 2; }}
shift
exec {line} "$@"
"""
_CAPABILITIES = CAPABILITIES["hdfs"]


class HDFS:
    """Java daemons in the nodes; files over HTTP."""

    name = "hdfs"
    privileges: tuple[str, ...] = ()
    server_privileges: tuple[str, ...] = ()

    def missing(self) -> str:
        """Java, or Hadoop's classes from `tools/hadoop.sh`."""
        if shutil.which("java") is None:
            return "no java here; `apt-get install openjdk-17-jre-headless`"
        if not (library() / "complete").exists():
            return f"no Hadoop in {library()}; `tools/hadoop.sh` fetches it"
        return ""

    def support(self) -> Mapping[str, Support]:
        """The declared support, and `mount`."""
        return _CAPABILITIES.support

    def refusal(self, site: Site) -> str:
        """Refuse values that its file system does not support."""
        return _CAPABILITIES.refusal(site.spec.parameters, site.circumstances())

    def up(self, site: Site) -> None:
        """Start all daemons in parallel, and wait until the name node lists every data node."""
        manager = site.managers[0]
        site.state["name"] = f"{manager.name}:{HTTP_PORT}"
        at = _home(site, manager, "name")
        own = {"dfs.namenode.name.dir": f"file://{at}/files"}
        self._configure(site, manager, f"{at}/conf", own)
        argv = _java(f"{at}/conf", _MAINS["name"], "-format", "-force", "-nonInteractive")
        site.run(manager, argv, what="making the file system")
        self._start(site, manager, at, "name")
        for node in site.storage:
            at = _home(site, node, "data")
            own = {
                "dfs.datanode.data.dir": f"file://{at}/blocks",
                "dfs.datanode.hostname": node.name,
                **{
                    f"dfs.datanode.{what}address": f"{node.name}:{port}"
                    for what, port in (("", 9866), ("http.", 9864), ("ipc.", 9867))
                },
            }
            self._configure(site, node, f"{at}/conf", own)
            self._start(site, node, at, "data")
        expected = len(site.storage)
        site.wait(
            lambda: len(self._live(site)) == expected,
            f"not all of {expected} data nodes have come to the name node",
            _STARTS_WITHIN_S,
            every_s=1.0,
        )

    def _configure(
        self, site: Site, node: RunningNode, at: str, own: Mapping[str, str] | None = None
    ) -> None:
        parameters, manager = site.spec.parameters, site.managers[0].name
        chunk = site.chunk_bytes
        values = {
            "fs.defaultFS": f"hdfs://{manager}:8020",
            "hadoop.tmp.dir": "/tmp/penstock-hdfs",
            "dfs.blocksize": str(chunk),
            "dfs.replication": str(parameters.get("replicas", 1)),
            "dfs.permissions.enabled": "false",
            "dfs.namenode.http-address": site.state["name"],
            "dfs.namenode.fs-limits.min-block-size": str(HDFS_SIZES.least_bytes),
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.redundancy.interval.seconds": "1s",
            # a data node counts as dead 12 s after its last heartbeat, not after ten minutes
            "dfs.heartbeat.interval": "1s",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            "dfs.client.use.datanode.hostname": "true",
            "dfs.datanode.synconclose": "true",
            **(own or {}),
        }
        if "prefetch" in parameters:
            values["dfs.datanode.readahead.bytes"] = str(int(parameters["prefetch"]) * chunk)
        rows = "".join(
            f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>\n"
            for k, v in values.items()
        )
        for part in ("core", "hdfs"):  # each overrides the defaults of its component
            site.write(node, f"{at}/{part}-site.xml", f"<configuration>\n{rows}</configuration>\n")
        site.write(node, f"{at}/log4j.properties", _LOG)
        pages = [
            f"{at}/webapps/{page}" for page in ("hdfs", "datanode")
        ]  # their web pages are not packaged
        site.run(node, ["mkdir", "-p", *pages], what=self.name)

    @staticmethod
    def _start(site: Site, node: RunningNode, at: str, kind: str) -> None:
        script = 'at=$1; shift; "$@" > "$at/log" 2>&1 < /dev/null & echo $! > "$at/pid"'
        argv = ["/bin/sh", "-c", script, "sh", at, *_java(f"{at}/conf", _MAINS[kind])]
        site.run(node, argv, what=f"its {kind} node")

    def _live(self, site: Site) -> dict[str, dict[str, int]]:
        """By node: used and total bytes of the live data nodes of the name node."""
        arguments = ["bean", "Hadoop:service=NameNode,name=NameNodeInfo"]
        try:
            answer = request(site, site.managers[0], *arguments)
        except PenstockError:  # not listening yet
            return {}
        nodes = json.loads((answer or {}).get("LiveNodes", "{}"))
        return {
            key.rpartition(":")[0]: {
                "used_bytes": int(one["usedSpace"]),
                "total_bytes": int(one["capacity"]),
            }
            for key, one in nodes.items()
        }

    def mount(self, site: Site, node: RunningNode) -> None:
        """Install `hdfs dfs …` in the node; there is no mount."""
        self._configure(site, node, _CONFIGURED)
        line = " ".join(_java(_CONFIGURED, _MAINS["dfs"]))
        lib = f"{library()}/lib/*"
        script = _SHELL.format(line=line.replace(lib, f"'{lib}'"))
        site.write(node, _PROGRAM, script)
        site.run(node, ["chmod", "755", _PROGRAM], what=self.name)

    def unmount(self, site: Site, node: RunningNode) -> None:
        """Remove it."""
        site.run(node, ["rm", "-rf", _PROGRAM, _CONFIGURED], what=self.name)

    def files(self, site: Site, node: RunningNode) -> Files:
        """Over HTTP."""
        return HdfsFiles(site, node)

    def tag(
        self, site: Site, node: RunningNode, path: str, key: str, value: Any, *, empty: bool
    ) -> Support:
        """Copies change at any time; a block size only by recreating the empty file; groups affect the
        writer."""
        here = HdfsFiles(site, node)
        kind = here.kind(path)
        if kind is not None and kind[0] == "directory" and key in _CAPABILITIES.support:
            return refused("a directory's files are laid out as the store has it; tag each")
        scattered = key == "DP" and value.kind == "scatter"
        chunk_bytes = self._chunk(site, here, path) if scattered else site.chunk_bytes
        support = verdict(_CAPABILITIES, key, value, site.circumstances(node, chunk_bytes))
        if support.how == "refused":
            return support
        if key == "Replication":
            arguments = ["ask", "PUT", of(site, path), "SETREPLICATION", f"replication={value}"]
            request(site, node, *arguments)
            return support
        if not empty:
            return refused("written data are not moved")
        if key == "ChunkSize" or scattered:
            size = value if key == "ChunkSize" else value.chunks * chunk_bytes
            request(site, node, "remade", of(site, path), str(size), here.writer)
        elif value.kind == "collocation":
            groups: dict[str, str] = site.state.setdefault("groups", {})
            nodes = [n.name for n in site.storage]
            groups.setdefault(value.group, nodes[len(groups) % len(nodes)])
        return support

    @staticmethod
    def _chunk(site: Site, here: HdfsFiles, path: str) -> int:
        """Chunk size of the file [bytes]: its tag's, or the store's."""
        tag = here.attributes(path).get(f"{PREFIX}ChunkSize")
        return chunk_bytes(tag, site.chunk_bytes)

    def locate(self, site: Site, node: RunningNode, path: str) -> list[Extent]:
        """According to the name node (GETFILEBLOCKLOCATIONS)."""
        blocks = request(site, node, "blocks", of(site, path))
        return [Extent(o, n, tuple(hosts)) for o, n, hosts in blocks or () if n]

    def status(self, site: Site) -> dict[str, Any]:
        """Live data nodes of the name node, with their space."""
        live = self._live(site)
        up = {n.name: n.name in live and n.state == "running" for n in site.storage}
        return {
            "servers": [
                {"node": name, "up": is_up, **live.get(name, {})} for name, is_up in up.items()
            ]
        }

    def down(self, site: Site) -> None:
        """Stop the data nodes, then the name node."""
        script = 'kill "$(cat "$1/pid")"'
        for node, kind in (*((n, "data") for n in site.storage), (site.managers[0], "name")):
            if node.state == "running":
                argv = ["/bin/sh", "-c", script, "sh", _home(site, node, kind)]
                site.run(node, argv, what="stopping")


def library() -> Path:
    """Directory in which `tools/hadoop.sh` installs Hadoop: `lib`, and `complete` after a full
    installation."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "hadoop"


def _java(conf: str, *arguments: str) -> list[str]:
    return ["java", *_JVM, "-cp", f"{conf}:{library()}/lib/*", *arguments]


def _home(site: Site, node: RunningNode, kind: str) -> str:
    return f"{site.data(node)}/hdfs-{kind}"
