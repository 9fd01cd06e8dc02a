"""kill -9 during experiments: every acknowledged point is present, and the gap is marked.

The line-protocol receiver, the scraper, the server of experiments, the sampler of a monitored command, and a
virtual node (its first process, and thus all of them) are killed in turn, each at a different moment. All but
the last two are restarted. Then the experiment is ended and its bundle read. Planted failure: acknowledged
points are removed from the store before the experiment ends. Exit status 1 if anything is lost or not marked,
or if the planted failure is not detected.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

from bench import record
from penstock.archive.bundle import Bundle
from penstock.archive.catalogue import Catalogue
from penstock.host.processes.servers import server_at
from penstock.parts.monitoring.collectors.http_push import InfluxReceiver
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.collectors.scrape import Scraper
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.timestamps import seconds_text

Faults = list[str]
#: interval of the points [s]
STEP_S = 0.02
#: largest age of data in the sampler's memory [s]: it writes every half second, perhaps a few steps late
HELD_BACK_S = 0.5 + 5 * STEP_S
#: time limit of a restart [s]
PATIENCE_S = 180.0


def store_in(home: Path) -> Experiments:
    (home / "experiments").mkdir(exist_ok=True)
    return Experiments(Catalogue(home / "archive.sqlite"), home / "experiments")


def hold(kind: str, home: Path, url: str) -> None:
    """The process that is killed: a collector that runs for the experiment `x`."""
    store = store_in(home)
    sink = store.sink(store.find("x", "ada"))
    if kind == "receiver":
        collector: Any = InfluxReceiver("it", {"port": 0})
    else:
        collector = Scraper("it", {"targets": [url], "interval_s": STEP_S})
    with Collecting({"it": collector}, sink):
        print(json.dumps(getattr(collector, "address", None)), flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def started(kind: str, home: Path, url: str = "") -> Iterator[tuple[subprocess.Popen[str], Any]]:
    argv = [sys.executable, __file__, "--hold", kind, str(home), url]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            if process.poll() is None and process.stdin is not None:
                process.stdin.close()
                process.wait(PATIENCE_S)


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("it did not come")
        time.sleep(0.02)


def values_of(store: Experiments, ended: Experiment, metric: str) -> Counter[float]:
    rows = store.recorded(ended, metric).points.to_pylist()
    return Counter(r["float"] if r["float"] is not None else r["integer"] for r in rows)


def restarts_of(ended: Experiment) -> int:
    return Bundle.open(ended.path).table("gaps").to_pandas()["kind"].eq("restart").sum()


def receiver(rng: random.Random, home: Path, plant: bool = False) -> Faults:
    """A sender of single points; a point without the answer 204 is sent again."""
    store = store_in(home)
    experiment = store.start("x", "ada")
    acknowledged = []

    def send(address: list[Any], until: Callable[[], bool]) -> None:
        with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=PATIENCE_S) as http:
            while not until():
                number = len(acknowledged)
                try:
                    answer = http.post("/write?db=x", content=f"m v={number} {time.time_ns()}\n")
                except httpx.HTTPError:
                    return
                if answer.status_code == 204:
                    acknowledged.append(number)

    with started("receiver", home) as (process, address):
        kill = threading.Timer(rng.uniform(0.0, 0.6), process.send_signal, [signal.SIGKILL])
        send(address, lambda: bool(acknowledged))
        kill.start()
        send(address, lambda: False)
        process.wait(PATIENCE_S)
    before = len(acknowledged)
    with started("receiver", home) as (_, address):
        send(address, lambda: len(acknowledged) >= before + 20)
    if plant:
        path = next(experiment.live.glob("*.batches"))
        os.truncate(path, path.stat().st_size // 2)
    stopped = store.stop(experiment)
    counts = values_of(store, stopped, "m_v")
    faults = [f"{n} was acknowledged and is gone" for n in acknowledged if not counts[n]]
    if not restarts_of(stopped):
        faults.append("the restart is not marked")
    return faults


class Counting(http.server.BaseHTTPRequestHandler):
    """A target that counts its requests."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_GET(self) -> None:
        type(self).count += 1
        body = f"asked_total {type(self).count}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, *_: Any) -> None: ...


def scraper(rng: random.Random, home: Path) -> Faults:
    """A scraper at 50 Hz, killed and restarted half a second later."""
    store = store_in(home)
    experiment = store.start("x", "ada")
    handler = type("Mine", (Counting,), {"count": 0})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
    try:
        with started("scraper", home, url) as (process, _):
            until(lambda: any(True for _ in store.sink(experiment).batches()))
            time.sleep(rng.uniform(0.0, 0.6))
            process.kill()
            process.wait(PATIENCE_S)
        stored = sum(1 for _ in store.sink(experiment).batches())
        time.sleep(0.5)
        with started("scraper", home, url):
            until(lambda: sum(1 for _ in store.sink(experiment).batches()) >= stored + 3)
        stopped = store.stop(experiment)
    finally:
        server.shutdown()
        server.server_close()
    faults = []
    rows = [r for r in store.recorded(stopped).series.to_pylist() if r["metric"] == "asked_total"]
    gaps = Bundle.open(stopped.path).table("gaps").to_pandas()
    lost = gaps[(gaps.kind == "lost") & (gaps.end_utc_ns - gaps.start_utc_ns > 0.4e9)]
    if not rows or rows[0]["stored"] + rows[0]["lost"] < rows[0]["expected"] * 0.9:
        faults.append(f"expected samples are not accounted for: {rows}")
    if not len(lost):
        faults.append("the gap of half a second is not marked")
    if not (gaps.kind == "restart").any():
        faults.append("the restart is not marked")
    if stopped.valid or not rows or rows[0]["verdict"] == "complete":
        faults.append("the experiment is reported as complete")
    return faults


def server(rng: random.Random, home: Path) -> Faults:
    """The server of experiments: marks and numbered batches, each sent until it is acknowledged."""
    environment = {**os.environ, "PENSTOCK_STATE": str(home)}
    program = "from penstock.cli import main; main()"
    step = round(STEP_S * 1e9)

    def begin() -> tuple[subprocess.Popen[str], str]:
        """Start a server on a free port; return it and the address that it prints when it is ready."""
        argv = [sys.executable, "-c", program, "serve", "--port", "0"]
        quiet = subprocess.DEVNULL
        child = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=quiet, text=True
        )
        assert child.stdout is not None
        return child, child.stdout.readline().partition("#")[0].strip()

    def headers(url: str) -> dict[str, str]:
        running = server_at(url)
        assert running is not None
        return {"Authorization": f"Bearer {running.experiments_token}"}

    at = time.time_ns()
    account = {"metric": "m", "interval_ns": step}
    acknowledged: list[int] = []

    def push(http_: httpx.Client, number: int, place: int) -> bool:
        batch = {"source": "s", "number": number, "metric": "m", "accounts": [account]}
        batch |= {"utc_ns": [at + place * step], "float": [float(place)]}
        with contextlib.suppress(httpx.HTTPError):
            answer = http_.post("/api/v1/experiments/x/points", json=batch)
            if answer.status_code == 201:
                acknowledged.append(place)
                return True
        return False

    process, url = begin()
    try:
        with httpx.Client(base_url=url, headers=headers(url), timeout=PATIENCE_S) as http_:
            http_.post("/exp/x", json={"utc_time": seconds_text(at)}).raise_for_status()
            number = int(push(http_, 0, 0))
            threading.Timer(rng.uniform(0.0, 0.5), process.kill).start()
            while push(http_, number, number):
                number += 1
        process.wait(PATIENCE_S)
        process, url = begin()
        with httpx.Client(base_url=url, headers=headers(url), timeout=PATIENCE_S) as http_:
            # the batch without acknowledgement may be present; 25 steps are never sent
            first = number + 1
            for more in range(30):
                push(http_, first + more, first + more + 25)
            end = at + (first + 25 + 30) * step
            http_.put("/exp/x", json={"utc_time": seconds_text(end)}).raise_for_status()
            series = http_.get("/api/v1/experiments/x/series").json()
            answer = http_.get("/exp/x/data", params={"metric": "m"})
    finally:
        process.kill()
        process.wait()
    stored = {int(float(row.split(",")[1])) for row in answer.text.splitlines()[1:]}
    faults = [f"{n} was acknowledged and is gone" for n in acknowledged if n not in stored]
    if not any(g["kind"] == "lost" and g["missing"] >= 24 for g in series["gaps"]):
        faults.append("the gap is not marked")
    return faults


def sampler(rng: random.Random, home: Path) -> Faults:
    """The sampler of a monitored command: the command continues, and the loss is reported."""
    environment = {**os.environ, "PENSTOCK_STATE": str(home)}
    program = "from penstock.cli import main; main()"
    run = [sys.executable, "-c", program, "monitor"]
    argv = [
        *run,
        "run",
        "-i",
        str(STEP_S),
        "--name",
        "x",
        "--",
        "sh",
        "-c",
        "echo up; sleep 2; exit 5",
    ]
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3 + rng.uniform(0.0, 0.8))
        for victim in samplers_of(process.pid):
            os.kill(victim, signal.SIGKILL)
        killed_s = time.time()
        _, output = process.communicate(timeout=PATIENCE_S)
    faults = []
    if process.returncode != 5:
        faults.append(f"status {process.returncode}: {output[-300:]}")
    if "the sampler was killed" not in output:
        faults.append(f"the kill is not reported: {output[-300:]!r}")
    listed = subprocess.run(
        [*run, "list", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    (experiment,) = json.loads(listed.stdout)["experiments"]
    if experiment["state"] != "ended":
        faults.append(f"its experiment is {experiment['state']}")
    get_argv = [*run, "get", "x", "-m", "sampler_lateness"]
    rows = subprocess.run(
        get_argv, env=environment, capture_output=True, text=True, check=False
    ).stdout
    times_s = [float(line.split(",")[0]) for line in rows.splitlines()[1:]]
    if not times_s:
        faults.append("the samples before the kill are missing")
    elif times_s[-1] < killed_s - HELD_BACK_S:
        faults.append(f"the last {killed_s - times_s[-1]:.2f} s before the kill are gone")
    return faults


def samplers_of(pid: int) -> list[int]:
    """Daemons that this process started."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            argv = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            if parent == pid and b"sampler" in argv:
                pids.append(int(entry.name))
    return pids


#: program in the node: counts its requests, sends ascending numbers, prints the acknowledged ones
IN_NODE = """
import http.client, http.server, itertools, sys, threading, time
class Mine(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count = 0
    def do_GET(self):
        Mine.count += 1
        body = b"asked_total %d\\n" % Mine.count
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("0.0.0.0", 9100), Mine)
threading.Thread(target=server.serve_forever, daemon=True).start()
talk = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
for n in itertools.count():
    talk.request("POST", "/write?db=x", "m v=%d %d\\n" % (n, time.time_ns()))
    answer = talk.getresponse()
    answer.read()
    if answer.status == 204:
        print(n, flush=True)
"""


def node(rng: random.Random, home: Path) -> Faults:
    """A virtual node whose first process is killed: its sent data are present, the rest is a gap."""
    from penstock.emulate.cluster.cluster import Cluster
    from penstock.host.journal.journal import Journal
    from penstock.spec.cluster import ClusterSpec, LinkSpec, NetworkSpec, NodeSpec

    names = {"PENSTOCK_STATE": str(home), "PENSTOCK_RUNTIME": str(home / "run")}
    before = {name: os.environ.get(name) for name in names}
    os.environ |= names
    spec = ClusterSpec(
        "kills", (NodeSpec("n", links=(LinkSpec(),)),), networks=(NetworkSpec(host=True),)
    )
    store = store_in(home)
    experiment = store.start("x", "ada")
    acknowledged: list[int] = []
    try:
        cluster = Cluster.up(spec, Journal(), outlive=False)
        try:
            victim = cluster.nodes["n"]
            influx = InfluxReceiver("sent", {"port": 0, "host": "0.0.0.0", "open": True})
            url = f"http://{victim.address}:9100/metrics"
            pull = Scraper("shown", {"targets": [url], "interval_s": STEP_S, "timeout_s": 0.2})
            with Collecting({"sent": influx, "shown": pull}, store.sink(experiment)):
                with socket.socket(type=socket.SOCK_DGRAM) as probe:
                    probe.connect((victim.address, 9100))
                    host = str(probe.getsockname()[0])
                argv = [sys.executable, "-c", IN_NODE, host, str(influx.address[1])]
                with subprocess.Popen(
                    victim.enter(argv), stdout=subprocess.PIPE, text=True
                ) as inside:
                    assert inside.stdout is not None
                    kill = threading.Timer(0.5 + rng.uniform(0.0, 0.6), os.kill, [victim.pid, 9])
                    for line in inside.stdout:
                        acknowledged.append(int(line))
                        if len(acknowledged) == 1:
                            kill.start()
                time.sleep(1.0)
        finally:
            cluster.down()
        stopped = store.stop(experiment)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    counts = values_of(store, stopped, "m_v")
    faults = [f"{n} was acknowledged and is gone" for n in acknowledged if not counts[n]]
    if not acknowledged:
        faults.append("the node sent nothing")
    rows = [r for r in store.recorded(stopped).series.to_pylist() if r["metric"] == "asked_total"]
    gaps = Bundle.open(stopped.path).table("gaps").to_pandas()
    lost = gaps[(gaps.kind == "lost") & (gaps.end_utc_ns - gaps.start_utc_ns > 0.4e9)]
    if not rows or not rows[0]["stored"]:
        faults.append("no scraped sample is present")
    elif rows[0]["verdict"] == "complete" or stopped.valid or not len(lost):
        faults.append(f"the gap after the kill is not marked: {rows}")
    failed = values_of(store, stopped, "scrape_success")
    if not failed[0.0]:
        faults.append("no scrape is recorded as failed")
    return faults


VICTIMS: dict[str, Callable[[random.Random, Path], Faults]] = {
    "receiver": receiver,
    "scraper": scraper,
    "server": server,
    "sampler": sampler,
    "node": node,
}
#: victims that only root can start
OF_ROOT = ("node",)


def killed(victim: str, seed: int) -> Faults:
    """Faults after one kill."""
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as home:
        return VICTIMS[victim](random.Random(seed), Path(home))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=50, help="number of kills, of all victims together"
    )
    parser.add_argument("--quick", action="store_true", help="one of each")
    parser.add_argument("--only", choices=VICTIMS, help="one victim alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hold", nargs=3, help=argparse.SUPPRESS)
    record.option(parser)
    arguments = parser.parse_args()
    if arguments.hold:
        hold(arguments.hold[0], Path(arguments.hold[1]), arguments.hold[2])
        return 0
    victims = [arguments.only] if arguments.only else list(VICTIMS)
    if os.geteuid() != 0 and set(victims) & set(OF_ROOT):
        victims = [v for v in victims if v not in OF_ROOT]
        print(f"not run because they need root: {', '.join(OF_ROOT)}", file=sys.stderr)
    kills = len(victims) if arguments.quick else arguments.kills
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for seed in range(kills):
        victim = victims[seed % len(victims)]
        faults = killed(victim, seed)
        total[victim] += 1
        passed[victim] += not faults
        for fault in faults[:5]:
            print(f"{victim}, seed {seed}: {fault}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as home:
        plant_faults = receiver(random.Random(0), Path(home), plant=True)
    planted = {
        "points that were acknowledged and taken out": any("is gone" in g for g in plant_faults)
    }
    rows = [
        record.share(
            f"kill -9 of the {v}", "penstock", "nothing lost, gap marked", passed[v], total[v]
        )
        for v in victims
        if total[v]
    ]
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
