"""Hadoop's configuration and command lines, for every daemon, container and client of a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAP = "-Xmx192m"
#: no second-tier compiler and one thread for garbage collection: many small JVMs share two processors
JVM = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xshare:auto "
    "--add-opens=java.base/java.lang=ALL-UNNAMED --add-opens=java.base/java.util=ALL-UNNAMED "
    "--add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/java.net=ALL-UNNAMED"
)
BLOCK_BYTES = 8 << 20
MAINS = {
    "name": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "data": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resources": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "tasks": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
#: ports at which the beans of the name node and the resource manager are read
NAME_PORT, RESOURCES_PORT = 9870, 8088

_SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}
_LOG = """log4j.rootLogger=INFO,err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def library() -> Path:
    """Directory of Hadoop's classes; fetched if they are missing (`tools/hadoop.sh`)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "hadoop"
    complete = cache / "complete"
    if complete.exists() and complete.read_text() == (HERE / "pom.xml").read_text():
        return cache / "lib"
    done = subprocess.run(
        [HERE.parent.parent / "tools" / "hadoop.sh"], check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(done.stdout.strip()) / "lib"


def of_daemon(kind: str, node: str, disk: Path, index: int, home: Path) -> dict[str, str]:
    """Settings of a single daemon; ports by `index`, so that several may share an address."""
    port = 9900 + 10 * index
    if kind == "name":
        return {"dfs.namenode.name.dir": f"file://{disk}/name"}
    if kind == "data":
        return {
            "dfs.datanode.data.dir": f"file://{disk}/blocks",
            "dfs.datanode.address": f"{node}:{port}",
            "dfs.datanode.http.address": f"{node}:{port + 1}",
            "dfs.datanode.ipc.address": f"{node}:{port + 2}",
            "dfs.datanode.hostname": node,
        }
    if kind == "tasks":
        return {
            "yarn.nodemanager.hostname": node,
            "yarn.nodemanager.address": f"{node}:{port + 3}",
            "yarn.nodemanager.localizer.address": f"{node}:{port + 4}",
            "yarn.nodemanager.webapp.address": f"{node}:{port + 5}",
            "yarn.nodemanager.local-dirs": f"{disk}/tasks",
            "yarn.nodemanager.log-dirs": f"{home}/logs",
        }
    return {}


def configure(
    conf: Path, home: Path, head: str, own: dict[str, str], *, yarn: bool, lib: Path
) -> Path:
    """Write a configuration directory. `head`: address of the name node and the resource manager; `home`:
    directory of temporary files and of the containers' configuration (`home`/conf).
    """
    for page in ("hdfs", "datanode"):  # their pages are in another archive
        (conf / "webapps" / page).mkdir(parents=True, exist_ok=True)
    path = f"{home}/conf,{lib}/*"
    child = f"{HEAP} {JVM}"
    values = {
        "fs.defaultFS": f"hdfs://{head}:8020",
        "hadoop.tmp.dir": f"{home}/tmp",
        "dfs.replication": "2",
        "dfs.blocksize": str(BLOCK_BYTES),
        "dfs.namenode.http-address": f"{head}:{NAME_PORT}",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.block-placement-policy.default.prefer-local-node": "false",
        "dfs.datanode.synconclose": "true",
        "dfs.permissions.enabled": "false",
        "yarn.resourcemanager.hostname": head,
        "yarn.nodemanager.aux-services": "mapreduce_shuffle",
        "yarn.nodemanager.resource.memory-mb": "1024",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.application.classpath": path,
        "yarn.app.mapreduce.am.resource.mb": "512",
        "yarn.app.mapreduce.am.command-opts": child,
        "mapreduce.application.classpath": path,
        "mapreduce.framework.name": "yarn" if yarn else "local",
        "mapreduce.shuffle.port": "0",
        "mapreduce.jobhistory.jhist.format": "json",
        "mapreduce.map.memory.mb": "512",
        "mapreduce.reduce.memory.mb": "512",
        "mapreduce.map.java.opts": child,
        "mapreduce.reduce.java.opts": child,
        "mapreduce.task.io.sort.mb": "32",
        "mapreduce.client.submit.file.replication": "1",
        "mapreduce.client.progressmonitor.pollinterval": "200",
        "mapreduce.client.completion.pollinterval": "200",
        **own,
    }
    # each of the four follows the defaults of its part, which override the others
    for part in ("core", "hdfs", "yarn", "mapred"):
        (conf / f"{part}-site.xml").write_text(_xml(values))
    (conf / "capacity-scheduler.xml").write_text(_xml(_SCHEDULER))
    (conf / "log4j.properties").write_text(_LOG)
    return conf


def _xml(values: dict[str, str]) -> str:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in values.items()
    )
    return f"<configuration>\n{rows}</configuration>\n"


def java(conf: Path, home: Path, lib: Path, *arguments: str) -> list[str]:
    """Command line of one of Hadoop's Java programs."""
    options = [HEAP, *JVM.split(), f"-Djava.io.tmpdir={home}"]
    return ["java", *options, "-cp", f"{conf}:{lib}/*", *arguments]


def environment() -> dict[str, str]:
    """Environment of Hadoop's processes: node managers start containers with JAVA_HOME."""
    program = shutil.which("java")
    if program is None:
        raise RuntimeError("java is missing (Debian: apt-get install openjdk-17-jre-headless)")
    return {**os.environ, "JAVA_HOME": str(Path(program).resolve().parent.parent)}
