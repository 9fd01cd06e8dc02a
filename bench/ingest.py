"""Points per second of one core by line protocol, including the disk, and 100 nodes of 200 metrics each.

Parsing alone is timed by the processor time of its thread. `into the store` sends over HTTP to a receiver in
a separate process, which stores points as an experiment does, on disk before it answers. Its rate is stored
points per second of that process's processor time, by points per message and number of connections. `penstock
serve` is the same in the server of experiments, from its start to the end of the last message. Each of the
nodes sends 200 metrics every second to that server over its own connection; with `--ceiling` also as fast as
it is answered, which gives the number of nodes that one server can take. Planted failures: five points that
are never sent, and an invalid line. Exit status 1 if a goal is missed, an acknowledged point is not in the
store, or a planted failure is not detected.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

from bench import record
from penstock.parts.monitoring.collectors.columns import table_of
from penstock.parts.monitoring.collectors.http_push import InfluxReceiver
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.experiments.spool import Spool

native: Any = importlib.import_module("penstock._native")
BEGIN_NS, SECOND_NS = 1_700_000_000_000_000_000, 1_000_000_000
NODES, METRICS, FIELDS = 100, 200, 5
LEAST_PER_CORE = 1e6
MOST_CORES = 1.0
#: points per message, and connections
BULK = ((1_000, 32), (5_000, 16), (20_000, 8), (200_000, 2))
#: the same for the server of experiments
THROUGH_SERVE = (20_000, 8)
#: smaller messages are reported without a goal
LEAST_BULK = 5_000
#: duration of the first node, whose first point is never sent [s]
LEFT_OUT = (1, 2, 3, 5, 7)


def lines_of(node: int, second: int, incomplete: bool = False) -> bytes:
    """Data of one node for one second: 200 metrics in lines of five."""
    stamp = BEGIN_NS + second * SECOND_NS
    lines = []
    for device in range(METRICS // FIELDS):
        fields = {
            "read_bytes": f"{second * 4096.5 + node}",
            "written_bytes": f"{second * 8192 + device}i",
            "busy": f"{(second * 7 + device) % 100 / 7:.4f}",
            "queue": f"{device}i",
            "wait_s": f"{second % 13 / 1000:.6f}",
        }
        if incomplete and device == 0:
            del fields["busy"]
        values = ",".join(f"{name}={value}" for name, value in fields.items())
        lines.append(f"disk,host=node-{node:03d},device=sd{device} {values} {stamp}\n")
    return "".join(lines).encode()


def reading(repeats: int) -> list[float]:
    """Points per second of processor time, once per repeat."""
    body = b"".join(lines_of(node, second) for second in range(25) for node in range(NODES))
    rates = []
    for _ in range(repeats + 1):
        reader = native.PointReader()
        began = time.thread_time()
        reader.line_protocol(body, 0, 1)
        table, _ = table_of(reader.take())
        rates.append(table.num_rows / (time.thread_time() - began))
        assert table.num_rows == 25 * NODES * METRICS
    return rates[1:]


@dataclass
class Served:
    """A receiver in another process, and its final report."""

    address: tuple[str, int]
    process: subprocess.Popen[str]
    report: dict[str, float] = field(default_factory=dict)

    def cpu_s(self) -> float:
        """Processor time of the receiver so far [s]."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(directory: Path) -> None:
    """Run in the receiver's process: store points in a spool until stdin ends."""
    sink = Spool.create(directory)
    receiver = InfluxReceiver("nodes", {"port": 0})
    with Collecting({"nodes": receiver}, sink):
        print(json.dumps(receiver.address), flush=True)
        sys.stdin.read()
    receipt = receiver.intake.receipt
    report = {
        "stored": receipt.stored,
        "refused": receipt.refused.total(),
        "batches": receipt.batches,
        "in_the_store": sum(batch.points.num_rows for batch in sink.batches()),
    }
    print(json.dumps(report), flush=True)


@contextmanager
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="penstock-ingest-") as scratch:
        argv = [sys.executable, __file__, "--serve", str(Path(scratch) / "spool")]
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            receiver = Served(tuple(json.loads(process.stdout.readline())), process)
            yield receiver
            process.stdin.close()
            receiver.report = json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            process.kill()
            process.wait()


@contextmanager
def by_penstock() -> Iterator[Served]:
    """`penstock serve` with a receiver in its configuration, and a running experiment."""
    with tempfile.TemporaryDirectory(prefix="penstock-ingest-") as scratch:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        config = Path(scratch) / "config.json"
        config.write_text(json.dumps({"collectors": {"nodes": {"type": "influxdb", "port": port}}}))
        names = ("PENSTOCK_ARCHIVE", "PENSTOCK_CATALOGUE")
        environment = {k: v for k, v in os.environ.items() if k not in names}
        environment |= {"PENSTOCK_STATE": scratch, "PENSTOCK_RUNTIME": f"{scratch}/run"}
        argv = [sys.executable, "-m", "penstock", "serve", "--port", "0", "--config", str(config)]
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            state = json.loads((Path(scratch) / "run" / f"serve-{process.pid}.json").read_text())
            headers = {"Authorization": f"Bearer {state['experiments_token']}"}
            with httpx.Client(base_url=url, headers=headers, timeout=600) as http_:
                http_.post("/exp/x").raise_for_status()
                receiver = Served(("127.0.0.1", port), process)
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    with contextlib.suppress(OSError), socket.create_connection(receiver.address):
                        break
                    time.sleep(0.05)
                yield receiver
                http_.put("/exp/x").raise_for_status()
                rows = http_.get("/api/v1/experiments/x/series").json()["series"]
                receiver.report = {
                    "in_the_store": sum(r["stored"] for r in rows),
                    "refused": max(
                        r["refused"] for r in rows
                    ),  # counted per source, and repeated in each series
                }
        finally:
            process.kill()
            process.wait()


def at_once(senders: int, send: Any) -> None:
    threads = [threading.Thread(target=send, args=(n,)) for n in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def posted(talk: http.client.HTTPConnection, body: bytes) -> int:
    talk.request("POST", "/write?db=bench", body)
    answer = talk.getresponse()
    answer.read()
    return answer.status


def into_the_store(
    points: int,
    connections: int,
    total: int,
    through: Callable[[], AbstractContextManager[Served]] = served,
) -> tuple[list[float], bool]:
    """Stored points per second of processor time, in each of five parts, and whether all are present."""
    each = max(1, total // 5 // (points * connections))
    nodes = min(
        25, points // METRICS
    )  # of each sender: at most as many series as a receiver accepts
    seconds = points // METRICS // nodes
    acknowledged = 0
    lock = threading.Lock()
    rates = []
    with through() as receiver:
        for part in range(6):

            def send(sender: int, part: int = part) -> None:
                nonlocal acknowledged
                talk = http.client.HTTPConnection(*receiver.address, timeout=600)
                for k in range(each):
                    begin = ((part * each + k) * connections + sender) * seconds
                    body = b"".join(
                        lines_of(sender * NODES + n, begin + s)
                        for s in range(seconds)
                        for n in range(nodes)
                    )
                    status = posted(talk, body)
                    assert status == 204, status
                    with lock:
                        acknowledged += points
                talk.close()

            before, cpu_s = acknowledged, receiver.cpu_s()
            at_once(connections, send)
            rates.append((acknowledged - before) / (receiver.cpu_s() - cpu_s))
    return rates[1:], receiver.report["in_the_store"] == acknowledged


@dataclass
class Nodes:
    """Results for the points of all nodes."""

    due: int
    report: dict[str, float]
    cores: float
    rate: float
    late_s: float


def nodes(seconds: int, paced: bool) -> Nodes:
    """Each node sends its data of every second to `penstock serve`: when they are due, or as fast as
    possible.
    """
    late = [0.0] * NODES
    with by_penstock() as receiver:
        began, cpu_s = time.monotonic(), receiver.cpu_s()

        def send(node: int) -> None:
            talk = http.client.HTTPConnection(*receiver.address, timeout=600)
            for second in range(seconds):
                body = lines_of(node, second, node == 0 and second in LEFT_OUT)
                body += b"no line\n" * (node == second == 1)
                if paced:
                    due = began + second + node / NODES
                    time.sleep(max(0.0, due - time.monotonic()))
                posted(talk, body)
                if paced:
                    late[node] = max(late[node], time.monotonic() - due)
            talk.close()

        at_once(NODES, send)
        took_s = time.monotonic() - began
        cores = (receiver.cpu_s() - cpu_s) / took_s
    rate = receiver.report["in_the_store"] / took_s
    return Nodes(seconds * NODES * METRICS, receiver.report, cores, rate, max(late))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the nodes for 20 s, a third of bulk")
    parser.add_argument("--seconds", type=int, help="time during which the nodes send (600)")
    parser.add_argument(
        "--ceiling", action="store_true", help="determine the largest number of nodes"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    record.option(parser)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve)
        return 0
    seconds = arguments.seconds or (20 if arguments.quick else 600)
    row = record.row("reading line protocol", "penstock", "points per core", reading(5), "1/s")
    rows = [record.at_least(row, LEAST_PER_CORE)]
    planted: dict[str, bool] = {}
    for points, connections in BULK:
        total = 3_000_000 if arguments.quick else 10_000_000
        rates, complete = into_the_store(points, connections, total * min(points, 5000) // 5000)
        case = f"into the store, {points} points a message over {connections} connections"
        rate_row = record.row(case, "penstock", "points per core", rates, "1/s")
        rows.append(record.at_least(rate_row, LEAST_PER_CORE) if points >= LEAST_BULK else rate_row)
        planted[f"{case}: all that was acknowledged is there"] = complete
    points, connections = THROUGH_SERVE
    rates, complete = into_the_store(
        points, connections, 2_000_000 if arguments.quick else 5_000_000, by_penstock
    )
    case = f"penstock serve, {points} points a message over {connections} connections"
    rate_row = record.row(case, "penstock", "points per core", rates, "1/s")
    rows.append(record.at_least(rate_row, LEAST_PER_CORE))
    planted[f"{case}: all that was acknowledged is there"] = complete
    for paced in (True, False) if arguments.ceiling else (True,):
        result = nodes(seconds if paced else min(seconds, 60), paced)
        manner = "each second" if paced else "as fast as they are answered"
        case = f"{NODES} nodes of {METRICS} metrics, {manner}"
        cores = record.row(case, "penstock", "processor time", [result.cores], "cores")
        rows.append(record.at_most(cores, MOST_CORES) if paced else cores)
        if paced:
            rows.append(record.row(case, "penstock", "answered after", [result.late_s], "s"))
        else:
            rows.append(record.row(case, "penstock", "points", [result.rate], "1/s"))
            most = result.rate / METRICS
            rows.append(record.row(case, "penstock", "nodes at 1 s", [most], ""))
        lost = result.due - int(result.report["in_the_store"])
        never_sent = sum(second < seconds for second in LEFT_OUT)
        planted[f"{manner}: {never_sent} points that are never sent, and no other"] = (
            lost == never_sent
        )
        planted[f"{manner}: a line that is none"] = result.report["refused"] == 1
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
