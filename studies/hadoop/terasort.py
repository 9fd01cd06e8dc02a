"""TeraSort on HDFS, YARN and MapReduce as they are packaged.

    terasort.py generate MIB HEAD_DIRECTORY DIRECTORY…      input of that size, by TeraGen, on this host
    terasort.py daemon KIND NODE DISK HEAD [INDEX]          becomes a daemon: name, data, resources or tasks
    terasort.py run --out DIR --disk DISK HEAD NODE…        TeraSort and TeraValidate on daemons that are up

HEAD runs the name node and the resource manager, each NODE a data node (blocks on its DISK) and a
node manager (tasks' files there too). Heaps are of 192 MiB; the input has two copies, the output
one (TeraSort's own setting), there is one reduce task for every second NODE. DIR/terasort.json
gets the time, the tasks with node and times from Hadoop's own history, and the checksum; stdout
`seconds: …` and the same in short.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from configured import (
    HERE,
    MAINS,
    NAME_PORT,
    RESOURCES_PORT,
    configure,
    environment,
    java,
    library,
    of_daemon,
)

EXAMPLES = "org.apache.hadoop.examples.ExampleDriver"
SHELL = "org.apache.hadoop.fs.FsShell"
#: TeraGen's and TeraSort's records
RECORD_BYTES = 100
#: directory in each node, which has its own root
HOME = Path("/tmp/penstock-hadoop")
HISTORY = "/tmp/hadoop-yarn/staging/history/done_intermediate/*/*.jhist"


class Client:
    """Hadoop's programs, as a user runs them."""

    def __init__(self, home: Path, head: str, *, yarn: bool) -> None:
        self.home, self.head, self.lib = home, head, library()
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / "client.log"
        self.log.unlink(missing_ok=True)
        self.conf = self.configured("conf", yarn=yarn)

    def configured(self, name: str, *, yarn: bool) -> Path:
        """A configuration without the settings of single daemons."""
        return configure(self.home / name, self.home, self.head, {}, yarn=yarn, lib=self.lib)

    def run(self, *arguments: str, conf: Path | None = None) -> str:
        """stdout of a program; RuntimeError with the end of its log if it fails."""
        line = java(conf or self.conf, self.home, self.lib, *arguments)
        with open(self.log, "ab") as errors:
            result = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
            )
        if result.returncode != 0:
            lines = self.log.read_text("utf-8", "replace").splitlines()
            messages = "\n".join(line for line in lines[-60:] if "INFO" not in line)
            raise RuntimeError(
                f"{' '.join(arguments[:2])}: status {result.returncode}:\n{messages[-2000:]}"
            )
        return result.stdout.decode("utf-8", "replace")

    def wait(self, port: int, bean: str, key: str, count: int, *pids: int) -> None:
        """Wait until a daemon's counter reaches a number."""
        argv = [sys.executable, str(HERE / "live.py"), f"http://{self.head}:{port}", bean, key]
        argv += [str(count), "120", *map(str, pids)]
        if subprocess.run(argv).returncode:
            raise RuntimeError(f"Hadoop did not start: {key} is not {count}")

    def wait_for_data(self, count: int, *pids: int) -> None:
        """Wait until N data nodes have registered and their blocks are reported."""
        bean = "Hadoop:service=NameNode,name=FSNamesystemState"
        self.wait(NAME_PORT, bean, "NumLiveDataNodes", count, *pids)
        self.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", "wait")


def daemon(kind: str, node: str, disk: Path, head: str, index: int) -> None:
    """Become a daemon of this node; its configuration is also that of the node's containers."""
    HOME.mkdir(parents=True, exist_ok=True)
    lib = library()
    own = of_daemon(kind, node, disk, index, HOME)
    name = "conf" if kind == "tasks" else f"conf-{kind}"
    conf = configure(HOME / name, HOME, head, own, yarn=True, lib=lib)
    argv = java(conf, HOME, lib, MAINS[kind])
    os.execvpe(argv[0], argv, environment())


def generate(mib: int, head: Path, places: list[Path]) -> None:
    """Generate input of that size; TeraGen's checksum is stored next to the name node's files."""
    (head / "name").mkdir()
    for place in places:
        (place / "blocks").mkdir()
    with tempfile.TemporaryDirectory(prefix="hadoop-") as text:
        home, address = Path(text), "127.0.0.1"
        client = Client(home, address, yarn=False)
        parts = [("name", head, 0), *(("data", place, i + 1) for i, place in enumerate(places))]
        confs = [
            configure(
                home / f"conf-{kind}-{i}", home, address, of_daemon(kind, address, place, i, home),
                yarn=False, lib=client.lib,
            )
            for kind, place, i in parts
        ]  # fmt: skip
        client.run(MAINS["name"], "-format", "-force", "-nonInteractive", conf=confs[0])
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            for (kind, _, i), conf in zip(parts, confs, strict=True):
                with open(home / f"{kind}-{i}.log", "wb") as log:
                    argv = java(conf, home, client.lib, MAINS[kind])
                    process = subprocess.Popen(
                        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
                    )
                daemons.append(process)
            client.wait_for_data(len(places), *(process.pid for process in daemons))
            rows = (mib << 20) // RECORD_BYTES
            client.run(
                EXAMPLES, "teragen", f"-Dmapreduce.job.maps={2 * len(places)}", str(rows), "/in"
            )
        finally:
            for process in reversed(daemons):
                process.terminate()
            for process in daemons:
                process.wait()
        checksums = re.findall(r"CHECKSUM=(\d+)", client.log.read_text())
        if not checksums:
            raise RuntimeError("TeraGen printed no checksum")
    summary = {"rows": rows, "checksum": f"{int(checksums[-1]):x}"}
    (head / "generated.json").write_text(json.dumps(summary))


def history(file: Path) -> list[dict[str, Any]]:
    """Successful attempts in a job's history: kind, node, start and end [s since 1970]."""
    from penstock.workload.metrics import read

    tasks = read(file, "hadoop").tables["spark_tasks"]
    return [
        {
            "kind": ("map", "reduce")[task["stage_id"]],
            "node": task["host"],
            "begin_s": task["utc_launch_ns"] / 1e9,
            "end_s": task["utc_finish_ns"] / 1e9,
        }
        for task in tasks[tasks["state"] == "success"].to_dict("records")
    ]


def run(head: str, nodes: list[str], disk: Path, out: Path, speculative: bool) -> dict[str, Any]:
    """TeraSort and TeraValidate; RuntimeError if the output is not the sorted input."""
    generated = json.loads((disk / "generated.json").read_text())
    client = Client(HOME, head, yarn=True)
    client.wait_for_data(len(nodes))
    bean = "Hadoop:service=ResourceManager,name=ClusterMetrics"
    client.wait(RESOURCES_PORT, bean, "NumActiveNMs", len(nodes))
    backups = str(speculative).lower()
    began_ns = time.monotonic_ns()
    client.run(
        EXAMPLES,
        "terasort",
        f"-Dmapreduce.job.reduces={len(nodes) // 2}",
        f"-Dmapreduce.map.speculative={backups}",
        f"-Dmapreduce.reduce.speculative={backups}",
        "/in",
        "/out",
    )
    ended_ns = time.monotonic_ns()
    local = client.configured("conf-local", yarn=False)
    client.run(EXAMPLES, "teravalidate", "/out", "/report", conf=local)
    report = client.run(SHELL, "-cat", "/report/part-r-*")
    checksum = re.findall(r"checksum\s+(\w+)", report)
    if "error" in report or checksum[-1:] != [generated["checksum"]]:
        raise RuntimeError(f"TeraValidate: {report.strip()}; TeraGen's is {generated['checksum']}")
    (out / "job.jhist").write_text(client.run(SHELL, "-cat", HISTORY))
    tasks = history(out / "job.jhist")
    summary: dict[str, Any] = {"seconds": (ended_ns - began_ns) / 1e9}
    summary |= {"began_ns": began_ns, "ended_ns": ended_ns, "checksum": checksum[-1]}
    for kind in ("map", "reduce"):
        of_kind = [t for t in tasks if t["kind"] == kind]
        summary[f"last_{kind}"] = max(of_kind, key=lambda t: float(t["end_s"]))["node"]
    return {**summary, "tasks": tasks}


def main() -> int:
    """Exit status 1 with a reason if a step fails."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = options.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("generate")
    verb.add_argument("mib", type=int)
    verb.add_argument("head", type=Path)
    verb.add_argument("places", type=Path, nargs="+")
    verb = verbs.add_parser("daemon")
    verb.add_argument("kind", choices=list(MAINS))
    verb.add_argument("node")
    verb.add_argument("disk", type=Path)
    verb.add_argument("head")
    verb.add_argument("index", type=int, nargs="?", default=0)
    verb = verbs.add_parser("run")
    verb.add_argument("--out", type=Path, required=True)
    verb.add_argument("--disk", type=Path, required=True, help="disk of the head")
    verb.add_argument("--speculative", action="store_true", help="backup tasks (Hadoop's default)")
    verb.add_argument("head")
    verb.add_argument("nodes", nargs="+")
    arguments = options.parse_args()
    try:
        if arguments.verb == "generate":
            generate(arguments.mib, arguments.head, arguments.places)
        elif arguments.verb == "daemon":
            daemon(arguments.kind, arguments.node, arguments.disk, arguments.head, arguments.index)
        else:
            summary = run(
                arguments.head,
                arguments.nodes,
                arguments.disk,
                arguments.out,
                arguments.speculative,
            )
            (arguments.out / "terasort.json").write_text(json.dumps(summary))
            print(f"seconds: {summary['seconds']:.6f}")
            for key in ("last_map", "last_reduce", "checksum"):
                print(f"{key}: {summary[key]}")
    except RuntimeError as error:
        print(f"terasort: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
