"""Start the components of a deployment scenario on a node: HDFS, Spark and MinIO, unmodified.

    deployed.py make TEXTS MIB PARTS ROWS SEED DIR        makes the input in DIR, fetches missing programs
    deployed.py daemon KIND SCENARIO NODE DISK STORE      becomes a name, data, objects, master, worker, cold
    deployed.py count NODE OUT                            writes the counters of the node's links each second
    deployed.py run SCENARIO INPUT OUT FILES MIB          becomes `programs.py`: loads INPUT, runs all three

A daemon that a scenario does not use prints `not in this scenario` and waits. `cold` drops the data of a
node's disk from the page cache every second: this emulates data far larger than memory.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "hadoop"))

from configured import JVM, MAINS, configure, environment, java, library  # noqa: E402
from layout import (  # noqa: E402
    CORES,
    OBJECT_NODES,
    SCENARIOS,
    WIRE,
    WORKERS,
    Scenario,
    hosts_file,
    racks,
)

TOOLS = HERE.parent.parent / "tools"
HOME = Path("/tmp/penstock-scenarios")
MASTER_PORT, OBJECT_PORT = 7077, 9000
#: credentials of the object store, which exists only in this study's nodes
KEY, SECRET = "penstock", "penstock-scenario"
NOT_HERE = "not in this scenario"
#: heap of a worker's and the master's daemons
DAEMON_HEAP = "-Xmx128m"


def cache() -> Path:
    """Directory of fetched programs."""
    top = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return top / "penstock"


def spark_home() -> Path:
    """The directory of Spark within its virtual environment."""
    return next((cache() / "spark" / "lib").glob("python*/site-packages/pyspark"))


def fetch() -> None:
    """Fetch Hadoop, S3A, Spark and MinIO into the user's cache folder, if they are missing."""
    library()
    for line in (
        [TOOLS / "hadoop.sh", cache() / "s3a", HERE / "pom.xml"],
        [HERE.parent / "blackbox" / "spark.sh", cache() / "spark", "python3"],
        [TOOLS / "minio.sh", cache() / "minio"],
    ):
        subprocess.run([str(w) for w in line], check=True, stdout=subprocess.DEVNULL)


def java_options(scenario: Scenario, node: str) -> str:
    """Write the names of the nodes as seen from this one; return the options of Java that read them."""
    HOME.mkdir(parents=True, exist_ok=True)
    hosts = HOME / "hosts"
    hosts.write_text(hosts_file(scenario, node))
    return f"-Djdk.net.hosts.file={hosts}"


def configured(scenario: Scenario, name: str, own: dict[str, str]) -> Path:
    """A configuration directory of HDFS."""
    conf = HOME / name
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "racks").write_text(racks(scenario))
    properties = {
        "net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.TableMapping",
        "net.topology.table.file.name": str(conf / "racks"),
        "dfs.client.use.datanode.hostname": "true",
        "dfs.datanode.use.datanode.hostname": "true",
        "dfs.namenode.block-placement-policy.default.prefer-local-node": "true",
        **own,
    }
    return configure(conf, HOME, "head", properties, yarn=False, lib=library())


def daemon(kind: str, name: str, node: str, disk: Path, store: Path) -> None:
    """Become a daemon of this node."""
    scenario = SCENARIOS[name]
    os.environ["JAVA_TOOL_OPTIONS"] = java_options(scenario, node)
    if kind in ("master", "worker"):
        spark(kind, node)
    elif kind == "cold" and node in scenario.data and not scenario.volumes:
        keep_cold(disk)
    elif kind == "objects" and not scenario.data:
        program = str(cache() / "minio" / "minio")
        os.environ |= {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET}
        os.environ |= {"MINIO_CI_CD": "1", "HOME": str(HOME), "MINIO_BROWSER": "off"}
        places = [f"http://{WIRE[n]}:{OBJECT_PORT}{disk}/objects" for n in OBJECT_NODES]
        os.execv(program, [program, "server", "--address", f":{OBJECT_PORT}", *places])
    elif kind == "name" and scenario.data:
        conf = configured(scenario, "conf-name", {"dfs.namenode.name.dir": f"file://{disk}/name"})
        argv = java(conf, HOME, library(), MAINS["name"])
        form = [*argv, "-format", "-force", "-nonInteractive"]
        subprocess.run(form, check=True, env=environment())
        os.execvpe(argv[0], argv, environment())
    elif kind == "data" and node in scenario.data:
        place = store / node if scenario.volumes else disk
        (place / "blocks").mkdir(parents=True)
        own = {"dfs.datanode.data.dir": f"file://{place}/blocks", "dfs.datanode.hostname": node}
        own |= {
            f"dfs.datanode.{prefix}address": f"0.0.0.0:{port}"
            for prefix, port in (("", 9866), ("http.", 9864), ("ipc.", 9867))
        }
        argv = java(configured(scenario, "conf-data", own), HOME, library(), MAINS["data"])
        os.execvpe(argv[0], argv, environment())
    else:
        print(NOT_HERE, flush=True)
        signal.pause()


def spark(kind: str, node: str) -> None:
    """Become Spark's master or a worker."""
    home = spark_home()
    os.environ |= {"SPARK_HOME": str(home), "SPARK_LOCAL_HOSTNAME": node, **environment()}
    os.environ |= {"SPARK_LOCAL_DIRS": str(HOME / "shuffle"), "SPARK_WORKER_DIR": str(HOME)}
    os.environ["SPARK_SCALA_VERSION"] = "2.12"  # otherwise set by Spark's own scripts
    main = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
    argv = ["java", DAEMON_HEAP, *JVM.split(), "-cp", f"{home}/jars/*", main]
    argv += ["--host", node]
    if kind == "master":
        argv += ["--port", str(MASTER_PORT), "--webui-port", "8080"]
    else:
        argv += ["--cores", str(CORES), "--memory", "1g", f"spark://head:{MASTER_PORT}"]
    os.execvp(argv[0], argv)


def keep_cold(disk: Path) -> None:
    """Drop the files below `disk` from the page cache, every second."""
    print("keeping cold", flush=True)
    while True:
        for file in disk.rglob("*"):
            try:
                opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:  # the file was removed
                continue
            try:
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(opened)
        time.sleep(1)


def count(node: str, out: Path) -> None:
    """Write OUT/links-NODE.csv: bytes through each link of this node so far, at each second."""
    links = [link for _, link in socket.if_nameindex() if link != "lo"]
    below = Path("/sys/class/net")
    counters = {
        f"{link} {direction}": f"{link}/statistics/{direction}_bytes"
        for link in links
        for direction in ("rx", "tx")
    }
    with open(out / f"links-{node}.csv", "w") as file:
        print("time", *counters, sep=",", file=file, flush=True)
        print("counting", flush=True)
        due = time.monotonic()
        while True:
            counts = [(below / path).read_text().strip() for path in counters.values()]
            print(f"{time.time():.9f}", *counts, sep=",", file=file, flush=True)
            due += 1
            time.sleep(max(0.0, due - time.monotonic()))


def run(name: str, source: Path, out: Path, files: int, mib: int) -> None:
    """Become the program that loads the data and runs the three workloads, in Spark's own Python."""
    scenario = SCENARIOS[name]
    os.environ["JAVA_TOOL_OPTIONS"] = java_options(scenario, "head")
    os.environ |= {"SPARK_LOCAL_HOSTNAME": "head", **environment()}
    conf = configured(scenario, "conf-client", {"dfs.replication": str(len(WORKERS))})
    os.environ["HADOOP_CONF_DIR"] = str(conf)
    top = "hdfs://head:8020" if scenario.data else "s3a://scenario"
    endpoint = f"http://{WIRE[OBJECT_NODES[0]]}:{OBJECT_PORT}"
    argv = [str(cache() / "spark" / "bin" / "python"), str(HERE / "programs.py")]
    argv += [top, endpoint, KEY, SECRET, str(cache() / "s3a" / "lib"), str(HOME)]
    argv += [str(source), str(out), str(files), str(mib)]
    os.execv(argv[0], argv)


def main() -> int:
    """Run the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = options.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make")
    for number in ("texts", "mib", "parts", "rows", "seed"):
        verb.add_argument(number, type=int)
    verb.add_argument("place", type=Path)
    verb = verbs.add_parser("daemon")
    verb.add_argument("kind", choices=("name", "data", "objects", "master", "worker", "cold"))
    verb.add_argument("scenario", choices=list(SCENARIOS))
    verb.add_argument("node")
    verb.add_argument("disk", type=Path)
    verb.add_argument("store", type=Path)
    verb = verbs.add_parser("count")
    verb.add_argument("node")
    verb.add_argument("out", type=Path)
    verb = verbs.add_parser("run")
    verb.add_argument("scenario", choices=list(SCENARIOS))
    verb.add_argument("input", type=Path)
    verb.add_argument("out", type=Path)
    verb.add_argument("files", type=int)
    verb.add_argument("mib", type=int)
    arguments = options.parse_args()
    if arguments.verb == "make":
        from inputs import make_tables, make_texts

        fetch()
        make_texts(arguments.place / "texts", arguments.texts, arguments.mib << 20, arguments.seed)
        make_tables(arguments.place, arguments.parts, arguments.rows, arguments.seed)
    elif arguments.verb == "daemon":
        daemon(arguments.kind, arguments.scenario, arguments.node, arguments.disk, arguments.store)
    elif arguments.verb == "count":
        count(arguments.node, arguments.out)
    else:
        run(arguments.scenario, arguments.input, arguments.out, arguments.files, arguments.mib)
    return 0


if __name__ == "__main__":
    sys.exit(main())
