"""Disk and power of a store of three shards: index builds, exporters on the nodes, one poll of a power unit.

`studies/monitored_shards.py` runs `studies/monitored/shards-monitored.sh`, which is `shards.sh` with two more
lines: index builds on three PostgreSQL servers, each a node with a disk limited to 40 MB/s, between two idle
periods of 20 s. `penstock serve` scrapes node exporters in the nodes each second and polls a SIMULATED power
distribution unit (penstock.parts.monitoring.simulated_pdu: no power is measured) for three outlets in one
GETBULK. Then pairs of the two scripts, one after the other, show the slowdown of the builds. `--quick`:
shorter idle periods and builds, two pairs. Needs root, PostgreSQL and prometheus-node-exporter. The published
case is that of MonEx (Saif and others, 2019): three shards of MongoDB.

Planted failures, each of which must be reported: a third line in the script, late power values, one request
per outlet, a figure with one changed value. Exit status 3 if a goal is missed, undecided or not measured, 1
if something failed or a planted failure is not detected.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd

from penstock.emulate.cluster.cluster import Cluster, RunningNode
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import hierarchies
from penstock.parts.monitoring.simulated_pdu import OUTLET

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from monitored import lines, offsets, power  # noqa: E402
from monitored import server as served  # noqa: E402
from monitored.server import Server, dies_with_us, until  # noqa: E402
from monitored.wire import Packets  # noqa: E402

from bench import record  # noqa: E402

SCRIPTS = HERE / "monitored"
SHARDS = 3
PORT = 9100
DISK, POWER = "node_disk_io_time_seconds_total", "simulated_power_watts"
ABOUT = (
    "Power is that of a simulated unit: 120 W, 0.33 W for each percent that the disk was busy in the second "
    "before, and a normal deviate of 1 W. The disks are loop devices over emulated disks of 40 MB/s. "
    "r has no causal meaning here."
)


@dataclass(frozen=True)
class Size:
    """Idle seconds, records of half a kilobyte, builds of their index; pairs of runs, and their builds."""

    idle_s: int
    records: int
    builds: int
    pairs: int
    pair_builds: int


FULL, QUICK = Size(20, 200_000, 12, 6, 5), Size(6, 40_000, 3, 2, 1)


@contextlib.contextmanager
def shards(out: Path, size: Size) -> Iterator[list[RunningNode]]:
    """Three nodes with a database each; its disk is a loop device over an emulated disk of 40 MB/s."""
    limits = {"read": "40 MB/s", "write": "40 MB/s"}
    slow = [{"name": f"d{n}", "backend": "fuse", "limits": limits} for n in range(SHARDS)]
    below = {
        "penstock_platform": 1,
        "name": "shard-disks",
        "hosts": [{"group": "disks", "count": 1, "disks": slow}],
    }
    with Cluster.of_platform(_written(out / "disks.json", below)) as disks:
        at = disks.nodes["disks-0"].disks
        kind = "cgroup2" if hierarchies().layout == "unified" else "cgroup1"
        overrides: dict[int, Any] = {
            n: {"disks": [{"name": "data", "backend": kind, "directory": str(at[f"d{n}"].at)}]}
            for n in range(SHARDS)
        }
        faces = [{"network": "net"}, {"network": "monitoring"}]
        group = {"group": "shard", "count": SHARDS, "interfaces": faces, "except": overrides}
        platform = {
            "penstock_platform": 1,
            "name": "shards",
            "hosts": [group],
            "network": {},
            "networks": [{"name": "monitoring", "host": True}],
        }
        with Cluster.of_platform(_written(out / "shards.json", platform)) as cluster:
            nodes = [cluster.nodes[f"shard-{n}"] for n in range(SHARDS)]
            commands = out / "commands"
            commands.mkdir()
            for node in nodes:
                for name in ("build.sh", "shard.sh"):
                    shutil.copy(SCRIPTS / name, node.disks["data"].at)
                program = commands / f"in-{node.name}"
                program.write_text(f'#!/bin/sh\nexec {shlex.join(node.enter([]))} "$@"\n')
                program.chmod(0o755)
            _at_once(nodes, ["/disks/data/shard.sh", str(size.records)])
            yield nodes


def _written(file: Path, content: Any) -> Path:
    file.write_text(json.dumps(content, indent=1) + "\n")
    return file


def _at_once(nodes: list[RunningNode], argv: list[str]) -> None:
    running = [
        subprocess.Popen(node.enter(argv), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for node in nodes
    ]
    for node, process in zip(nodes, running, strict=True):
        _, stderr = process.communicate(timeout=600)
        if process.returncode:
            raise PenstockError(f"{node.name}: {argv[0]}: {stderr.decode()[-1000:]}")


def device_of(node: RunningNode) -> str:
    """Name of its disk's block device."""
    major, minor = node.disks["data"].device
    return os.path.basename(os.readlink(f"/sys/dev/block/{major}:{minor}"))


def outlet(number: int) -> dict[str, Any]:
    """Settings of an outlet of the simulated unit."""
    return {
        "oid": ".".join(map(str, (*OUTLET, number))),
        "metric": POWER,
        "labels": {"node": f"shard-{number}", "simulated": "true"},
        "unit": "W",
        "scale": 0.1,
    }


class Monitoring:
    """Exporters in the nodes, the simulated unit, and a server that polls both."""

    def __init__(self, place: Path, nodes: list[RunningNode], *, each_alone: bool = False) -> None:
        self.processes: list[subprocess.Popen[str]] = []
        self.nodes = nodes
        targets = []
        for node in nodes:
            address = node.addresses["monitoring"]
            argv = ["prometheus-node-exporter", f"--web.listen-address={address}:{PORT}"]
            argv += ["--collector.disable-defaults", "--collector.diskstats"]
            argv += ["--collector.diskstats.device-exclude=^$", "--log.level=error"]
            self._start(node.enter(argv), subprocess.DEVNULL)
            targets.append({"url": f"http://{address}:{PORT}/metrics", "instance": node.name})
        devices = [option for node in nodes for option in ("--disk", device_of(node))]
        module = "penstock.parts.monitoring.simulated_pdu"
        self.pdu = self._start([sys.executable, "-m", module, *devices], subprocess.PIPE)
        assert self.pdu.stdout is not None
        self.pdu_port = int(json.loads(self.pdu.stdout.readline())["port"])
        outlets = [outlet(n) for n in range(SHARDS)]
        polled = {"type": "snmp", "host": "127.0.0.1", "port": self.pdu_port}
        outlet_groups = [[each_outlet] for each_outlet in outlets] if each_alone else [outlets]
        for target in targets:
            url = target["url"]
            until(lambda url=url: _answers(url), 30, f"{url} does not answer")  # type: ignore[misc]
        collectors: dict[str, Any] = {
            f"power{n}": {**polled, "outlets": group} for n, group in enumerate(outlet_groups)
        }
        collectors["disks"] = {"type": "scrape", "targets": targets}
        self.server = Server(place, {"collectors": collectors})

    def _start(self, argv: list[str], stdout: int) -> subprocess.Popen[str]:
        # a separate session: processes in a node end with the process that entered it
        self.processes.append(
            subprocess.Popen(
                argv,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                preexec_fn=dies_with_us,
            )
        )
        return self.processes[-1]

    def end(self) -> int:
        """Stop the server and all processes; return the number of requests that reached the unit."""
        self.server.end()
        os.killpg(self.pdu.pid, signal.SIGTERM)
        assert self.pdu.stdout is not None
        summary = self.pdu.stdout.readline()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            process.wait(30)
        return int(json.loads(summary)["requests"]) if summary else -1

    def __enter__(self) -> Monitoring:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def script(name: str, idle_s: int, builds: int, out: Path, server: Server | None) -> float:
    """Run one of the two scripts; return the duration of its builds [s]."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if server is not None:
        environment = {
            **server.environment,
            "PATH": environment["PATH"],
            "PENSTOCK_SERVER": server.url,
        }
    argv = [str(SCRIPTS / name), str(idle_s), str(builds), str(out / "commands")]
    result = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, timeout=3600)
    if result.returncode:
        raise PenstockError(f"{name} ended with status {result.returncode}")
    begin, end = map(float, result.stdout.split())
    return end - begin


class Live:
    """Age of the newest sample of a running experiment, each second [s]."""

    def __init__(self, server: Server) -> None:
        self.ages: list[float] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        address = f"{self._server.url}/exp/shards/data"
        began = None
        while not self._stop.wait(1.0):
            answer = httpx.get(
                address, params={"metric": POWER}, headers=self._server.headers, timeout=60
            )
            now = time.time()
            if not answer.is_success or answer.headers.get("X-Penstock-State") != "running":
                continue
            began = began or now
            rows = answer.text.splitlines()
            if now - began > 2 and len(rows) > 1:  # the first samples may not have arrived yet
                self.ages.append(now - float(rows[-1].partition(",")[0]))

    def end(self) -> list[float]:
        """All ages."""
        self._stop.set()
        self._thread.join()
        return self.ages


def joined(server: Server, nodes: list[RunningNode]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Disk [%] and power [W] of each node, at the times of the polls."""
    disk = server.frame("shards", DISK, labels=["instance", "device"])
    watts = server.frame("shards", POWER, labels=["node"])
    busy = pd.DataFrame(
        {
            node.name: power.busy_percent(
                disk[f"{node.name}_{device_of(node)}"].dropna(), watts.index
            )
            for node in nodes
        },
        index=watts.index,
    )
    return busy, watts[[node.name for node in nodes]]


def figure_table(busy: pd.DataFrame, watts: pd.DataFrame, start_ns: int) -> str:
    """CSV of both quantities: disk and power of each node by seconds since the start."""
    table = pd.DataFrame({"duration": (busy.index.astype("int64") - start_ns) / 1e9})
    for name in busy:
        table[f'disk{{node="{name}"}} (%)'] = busy[name].to_numpy()
    for name in watts:
        table[f'emulated power{{node="{name}"}} (W)'] = watts[name].to_numpy()
    return table.to_csv(index=False, float_format="%.9g", lineterminator="\n")


def redrawn(out: Path, table: str) -> tuple[bool, bool]:
    """True if the figure has the same bytes when drawn again, and other bytes with one changed value."""
    (out / "shards.csv").write_text(table)
    argv = [sys.executable, "-m", "penstock", "plot"]
    title = "Index builds on three shards (power is emulated)"
    first = [*argv, "shards.csv", "multi-y", "-o", "shards.pdf", "--title", title]
    served.run(first, cwd=out, check=True, capture_output=True)
    served.run([*argv, "shards.json", "-o", "shards.png"], cwd=out, check=True, capture_output=True)
    equal = []
    for case in ("elsewhere", "changed"):
        place = out / case
        place.mkdir()
        for name in ("shards.json", "shards.data.csv"):
            shutil.copy(out / name, place)
        if case == "changed":
            data = (place / "shards.data.csv").read_text().splitlines()
            row = data[len(data) // 2].split(",")
            row[-1] = "99"
            data[len(data) // 2] = ",".join(row)
            (place / "shards.data.csv").write_text("\n".join(data) + "\n")
        environment = {**os.environ, "TZ": "Asia/Kolkata", "HOME": str(place)}
        redraw = [*argv, "shards.json", "-o", "again.pdf"]
        # in a separate process, so that no state of this process affects the figure
        run = subprocess.run if case == "elsewhere" else served.run
        result = run(redraw, cwd=place, env=environment, capture_output=True)
        same = (
            result.returncode == 0
            and (place / "again.pdf").read_bytes() == (out / "shards.pdf").read_bytes()
        )
        equal.append(same)
    return equal[0], equal[1]


def watched(
    out: Path, nodes: list[RunningNode], size: Size
) -> tuple[list[record.Row], dict[str, bool]]:
    """The monitored script once, and its records."""
    with Monitoring(out / "monitoring", nodes) as monitoring:
        server = monitoring.server
        live = Live(server)
        with Packets("lo", monitoring.pdu_port) as packets:
            began_ns = time.time_ns()
            try:
                load_s = script("shards-monitored.sh", size.idle_s, size.builds, out, server)
            finally:
                ages = live.end()
            packet_count = packets.count()
        experiment = server.experiment("shards")
        busy, watts = joined(server, nodes)
        recorded = server.series("shards")
        again = server.frame("shards", DISK)
    start_ns, end_ns = experiment["start_ns"], experiment["end_ns"]
    times = np.concatenate([t.index.astype("int64").to_numpy() for t in (watts, again)])
    outside = int(((times < start_ns) | (times > end_ns)).sum())
    polls = max(r["expected"] for r in recorded if r["metric"] == POWER)
    same, changed = redrawn(out, figure_table(busy, watts, start_ns))
    plain, monitored = (
        (SCRIPTS / f"{name}.sh").read_text() for name in ("shards", "shards-monitored")
    )
    differ = power.added_lines(plain, monitored)
    third = power.added_lines(plain, monitored + "sync\n")
    case = "script"
    rows = [
        lines.line(case, "lines that differ", len(differ), "", len(differ) == 2, "exactly 2"),
        lines.line(
            "simulated unit", "packets for each poll of three outlets", packet_count / polls, "",
            abs(packet_count / polls - 2) <= 2 / polls, "2: a GETBULK and its answer",
        ),
        {
            **record.row("live view", "", "age of the newest sample", ages or [np.nan], "s"),
            "bar": "at most 2 s", "verdict": _fresh(ages),
        },
        lines.line(
            "start mark", "after the script's begin", (start_ns - began_ns) / 1e9, "s",
            0 <= start_ns - began_ns < 30e9, "there, after it",
        ),
        lines.line("all rows", "outside of start and end", outside, "", outside == 0, "0"),
    ]  # fmt: skip
    late = []
    for name in watts:
        pair = pd.DataFrame({"busy": busy[name], "power": watts[name]}).dropna()
        r = offsets.correlation(pair["busy"], pair["power"])
        rows.append(
            lines.interval(
                name,
                "r of disk and simulated power",
                r,
                "",
                len(pair),
                "at least 0.95",
                r[0] >= 0.95,
            )
        )
        lag = max(1, size.idle_s)
        late.append(offsets.correlation(pair["busy"][lag:], pair["power"][:-lag])[0] < 0.95)
    rows += [
        record.row("load", "", "length of the builds", [load_s], "s"),
        record.claim(
            "figure", "2 quantities of 3 nodes, given again elsewhere",
            "the same bytes" if same else "other bytes", "byte for byte", same,
        ),
    ]  # fmt: skip
    planted = {
        "a third line in the script": len(third) != 2,
        "power that comes late": all(late),
        "a figure with another value": not changed,
    }
    return rows, planted


def _fresh(ages: list[float]) -> str:
    if not ages:
        return record.NOT_MEASURED
    return record.MET if max(ages) <= 2 else record.MISSED


def planted_requests(out: Path, nodes: list[RunningNode]) -> bool:
    """True if a poller with one request per outlet is detected by its packets."""
    with Monitoring(out / "each-alone", nodes, each_alone=True) as monitoring:
        with Packets("lo", monitoring.pdu_port) as packets:
            monitoring.server.penstock("monitor", "start", "shards")
            time.sleep(4)
            monitoring.server.penstock("monitor", "stop", "shards")
            packet_count = packets.count()
        recorded = monitoring.server.series("shards")
        polls = max(r["expected"] for r in recorded if r["metric"] == POWER)
    return abs(packet_count / polls - 2) > 2 / polls


def compared(out: Path, nodes: list[RunningNode], size: Size) -> record.Row:
    """Pairs of runs with and without monitoring, in alternating order: slowdown of the builds."""
    on, off = [], []
    for pair in range(size.pairs):
        for monitored in (True, False) if pair % 2 else (False, True):
            if monitored:
                with Monitoring(out / f"pair-{pair}", nodes) as monitoring:
                    server = monitoring.server
                    took_s = script("shards-monitored.sh", 0, size.pair_builds, out, server)
                on.append(took_s)
            else:
                off.append(script("shards.sh", 0, size.pair_builds, out, None))
    value, low, high = power.slowdown(on, off)
    row = lines.interval(
        "pairs of runs", "slower with monitoring", (value, low, high), "%", size.pairs, "", True
    )
    return record.at_most(row, 2)


def study(out: Path, quick: bool) -> tuple[list[record.Row], dict[str, bool]]:
    """All lines, and whether planted failures were detected."""
    size = QUICK if quick else FULL
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    with shards(out, size) as nodes:
        rows, planted = watched(out, nodes, size)
        planted["an outlet for each request"] = planted_requests(out, nodes)
        rows.append(compared(out, nodes, size))
    return rows, planted


if __name__ == "__main__":
    sys.exit(lines.program("monitored-shards", __doc__, ABOUT, "shorter, two pairs", study))
