"""A torrent of 100 peers: an exporter of ten lines, scraped each second over a separate network.

`studies/monitored_swarm.py` starts 102 nodes with two interfaces each: a tracker, opentracker, a seeder (50
KB/s) and 100 peers (300 KB/s) with transmission-daemon; one joins every 0.8 s and fetches 5,000,000 bytes.
`penstock serve` scrapes `studies/monitored/exporter.py` in each over the second network. Then pairs of swarms
with and without monitoring. `--quick`: 10 peers, 700,000 bytes, one pair. Needs root, transmission-daemon,
transmission-cli and opentracker. The published case is that of MonEx (Saif and others, 2019): 100 series up
to 1.0, later peers need less time.

Planted failures, each of which must be reported: a series that decreases, one that ends early, lost scrapes,
a packet of monitoring on the network of the peers. Exit status 1 if a line is missed, something failed, or a
planted failure is not detected.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from penstock.emulate.cluster.cluster import Cluster, RunningNode
from penstock.host.network.netns import inside

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

from monitored import lines, offsets, power, swarm  # noqa: E402
from monitored.server import Server, dies_with_us, until  # noqa: E402
from monitored.wire import Packets  # noqa: E402

from bench import record  # noqa: E402

SCRIPTS = HERE / "monitored"
PORT, TRACKER = 9100, 6969
SEEDER_BPS, PEER_BPS = 50_000, 300_000
#: credit of a link's token bucket, and frames in flight when it is read [bytes]
BURST = 2 * 1514
METRIC = "torrent_done_percent"
ABOUT = (
    "Completion is when transmission-daemon runs its script for it; download time is from when a peer was "
    "started. The seeder's rate alone makes 100 s the least that a copy takes."
)


@dataclass(frozen=True)
class Size:
    """Number of peers, and other sizes."""

    peers: int
    size_bytes: int
    join_s: float
    pairs: int

    @property
    def patience_s(self) -> float:
        """Time limit of a swarm."""
        return 60 + self.peers * self.join_s + 4 * self.size_bytes / SEEDER_BPS


FULL, QUICK = Size(100, 5_000_000, 0.8, 5), Size(10, 700_000, 1.5, 1)


def platform(size: Size) -> dict[str, object]:
    """A platform file: nodes with an interface for the torrent and one for monitoring."""

    def group(name: str, count: int, **limit: str) -> dict[str, object]:
        interfaces = [{"network": "net", **limit}, {"network": "monitoring"}]
        return {"group": name, "count": count, "interfaces": interfaces}

    return {
        "penstock_platform": 1,
        "name": "swarm",
        "hosts": [
            # not behind the seeder's link: a peer that fails to reach the tracker retries only after minutes
            group("tracker", 1),
            group("seeder", 1, out=f"{SEEDER_BPS // 1000} kB/s"),
            group("peer", size.peers, out=f"{PEER_BPS // 1000} kB/s"),
        ],
        "network": {},
        "networks": [{"name": "monitoring", "host": True}],
    }


class Swarm:
    """One download by all peers; their processes are stopped at the end of a `with`."""

    def __init__(self, cluster: Cluster, torrent: Path, size: Size) -> None:
        self.cluster, self.torrent, self.size = cluster, torrent, size
        self.tracker, self.seeder = cluster.nodes["tracker-0"], cluster.nodes["seeder-0"]
        self.peers = [cluster.nodes[f"peer-{n}"] for n in range(size.peers)]
        self.joined: dict[str, float] = {}
        self.done: dict[str, float] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def place(self, node: RunningNode) -> Path:
        """/tmp/swarm of a node, as seen by this host."""
        return self.cluster.home / "nodes" / node.name / "tmp" / "swarm"

    def laid_out(self, node: RunningNode) -> None:
        """Give a node its client's settings, the torrent and the scripts."""
        place = self.place(node)
        if place.exists():
            shutil.rmtree(place)
        for part in ("client", "files", "torrents"):
            (place / part).mkdir(parents=True)
        settings = {
            "bind-address-ipv4": node.addresses["net"],
            "rpc-bind-address": "127.0.0.1",
            "download-dir": "/tmp/swarm/files",
            "watch-dir": "/tmp/swarm/torrents",
            "watch-dir-enabled": True,
            "script-torrent-done-enabled": True,
            "script-torrent-done-filename": "/tmp/swarm/done.sh",
            **dict.fromkeys(("dht-enabled", "lpd-enabled", "utp-enabled"), False),
            **dict.fromkeys(("port-forwarding-enabled", "rpc-whitelist-enabled"), False),
        }
        (place / "client" / "settings.json").write_text(json.dumps(settings))
        shutil.copy(self.torrent, place / "torrents")
        for name in ("exporter.py", "join.sh", "done.sh"):
            shutil.copy(SCRIPTS / name, place)

    def _start(self, node: RunningNode, argv: list[str]) -> None:
        null = subprocess.DEVNULL
        self._processes.append(
            subprocess.Popen(
                node.enter(argv, cwd="/tmp/swarm"),
                stdin=null, stdout=null, stderr=null, start_new_session=True,
                preexec_fn=dies_with_us,
            )
        )  # fmt: skip

    def __enter__(self) -> Swarm:
        try:
            place = self.place(self.tracker)
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.torrent.with_suffix(".hash"), place)
            address = self.tracker.addresses["net"]
            tracker = ["opentracker", "-i", address, "-p", str(TRACKER), "-P", str(TRACKER)]
            argv = [*tracker, "-w", f"/tmp/swarm/{self.torrent.stem}.hash"]
            self._start(self.tracker, argv)
            self.laid_out(self.seeder)
            shutil.copy(self.torrent.with_suffix(".bin"), self.place(self.seeder) / "files")
            self._start(self.seeder, ["/tmp/swarm/join.sh", "-"])
            for peer in self.peers:
                self.laid_out(peer)
            time.sleep(3)  # the seeder checks its file, and registers with the tracker
        except BaseException:
            self.__exit__()
            raise
        return self

    def run(self, monitored: bool) -> None:
        """Let peers join at intervals, and wait until all are complete."""
        begin = time.monotonic()
        for number, peer in enumerate(self.peers):
            time.sleep(max(0.0, begin + number * self.size.join_s - time.monotonic()))
            self.joined[peer.name] = time.time()
            address = peer.addresses["monitoring"] if monitored else "-"
            self._start(peer, ["/tmp/swarm/join.sh", address])
        until(self._all_done, self.size.patience_s, f"{len(self.done)} peers are complete")

    def _all_done(self) -> bool:
        for peer in self.peers:
            file = self.place(peer) / "done"
            if peer.name not in self.done and file.exists():
                self.done[peer.name] = float(file.read_text())
        return len(self.done) == len(self.peers)

    @property
    def took_s(self) -> pd.DataFrame:
        """Times at which each peer joined and was complete, since the first one joined [s]."""
        first = min(self.joined.values())
        frame = pd.DataFrame({"joined": self.joined, "done": self.done}) - first
        return frame.assign(took=frame["done"] - frame["joined"])

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def torrent_of(out: Path, cluster: Cluster, size: Size) -> Path:
    """Create the file and its torrent."""
    file, torrent = out / "file.bin", out / "file.torrent"
    file.write_bytes(np.random.default_rng(5).bytes(size.size_bytes))
    address = cluster.nodes["tracker-0"].addresses["net"]
    announce = f"http://{address}:{TRACKER}/announce"
    argv = ["transmission-create", "-s", "32", "-t", announce, "-o", str(torrent), str(file)]
    subprocess.run(argv, check=True, capture_output=True)
    shown = subprocess.run(
        ["transmission-show", str(torrent)], check=True, capture_output=True, text=True
    ).stdout
    (info_hash,) = (
        line.split()[-1] for line in shown.splitlines() if line.strip().startswith("Hash:")
    )
    (out / "file.hash").write_text(f"{info_hash}\n")
    return torrent


class OnData:
    """Packets of monitoring's port on the peers' interfaces of the torrent."""

    def __init__(self, nodes: list[RunningNode]) -> None:
        self._counters = [inside(node.pid, lambda: Packets("e0", PORT)) for node in nodes]

    def count(self) -> int:
        """Packets so far."""
        return sum(counter.count() for counter in self._counters)

    def close(self) -> None:
        """Close the sockets."""
        for counter in self._counters:
            counter.close()


def watched(
    out: Path, cluster: Cluster, torrent: Path, size: Size
) -> tuple[list[record.Row], dict[str, bool], pd.Series]:
    """A monitored swarm: lines, planted failures, completion times of the peers."""
    peers = [cluster.nodes[f"peer-{n}"] for n in range(size.peers)]
    targets = [
        {"url": f"http://{peer.addresses['monitoring']}:{PORT}/metrics", "instance": peer.name}
        for peer in peers
    ]
    pull = {"type": "scrape", "targets": targets, "interval_s": 1, "timeout_s": 1}
    config = {"collectors": {"peers": pull}}
    counters = OnData(peers)
    try:
        with Server(out / "monitoring", config) as server, Swarm(cluster, torrent, size) as running:
            server.penstock("monitor", "start", "swarm")
            began, used_s = time.monotonic(), server.processor_s
            running.run(True)
            time.sleep(2.5)  # until the last scrapes of all peers
            share = (server.processor_s - used_s) / (time.monotonic() - began)
            server.penstock("monitor", "stop", "swarm")
            end_ns = server.experiment("swarm")["end_ns"]
            progress = server.frame("swarm", METRIC, labels=["instance"])
            figure(server, out)
            on_data = counters.count()
            program = f"import socket; socket.socket().connect_ex(('{peers[1].addresses['net']}', {PORT}))"
            peers[0].run(["python3", "-c", program])
            planted_packets = counters.count() - on_data
    finally:
        counters.close()
    frame = running.took_s
    frame.to_csv(out / "peers.csv")
    rows = swarm_lines(frame, progress, end_ns, size)
    code = [
        line for line in (SCRIPTS / "exporter.py").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]  # fmt: skip
    rows += [
        lines.line(
            "data network", "packets of monitoring", on_data, "", on_data == 0, "0"
        ),
        lines.line("collector", "of a core", share, "", share <= 0.3, "at most 0.3"),
        lines.line("exporter", "lines", len(code), "", len(code) <= 10, "at most 10"),
    ]  # fmt: skip
    down, early, lost = progress.copy(), progress.copy(), progress.copy()
    row = down.iloc[:, 0].last_valid_index()
    down.loc[row, down.columns[0]] = 50.0
    early.loc[early.iloc[:, 0] == 100, early.columns[0]] = np.nan
    lost.loc[lost.iloc[:, 0].dropna().index[-8:-3], lost.columns[0]] = np.nan
    planted = {
        "a series that goes down": bool(swarm.incomplete(down)),
        "a series that ends early": bool(swarm.incomplete(early)),
        "scrapes that are lost": bool(swarm.missing(lost, end_ns)),
        "monitoring on the network of the peers": planted_packets > 0,
    }
    return rows, planted, frame["done"]


def swarm_lines(
    frame: pd.DataFrame, progress: pd.DataFrame, end_ns: int, size: Size
) -> list[record.Row]:
    """Lines of one swarm."""
    complete = size.peers - len(swarm.incomplete(progress))
    complete -= size.peers - len(progress.columns)
    floor_s = swarm.earliest_s(size.size_bytes, SEEDER_BPS, BURST)
    done = frame["done"]
    spread = (done.max() - done.min()) / done.max()
    r = offsets.correlation(frame["joined"], frame["took"])
    wrong_counts = swarm.missing(progress, end_ns)
    return [
        record.share("series", "", "monotone, to 100 %", complete, size.peers),
        lines.line(
            "completion", "of the first", done.min(), "s", done.min() >= floor_s,
            f"not before {floor_s:.2f} s",
        ),
        lines.line(
            "completion", "spread over the last", 100 * spread, "%", spread <= 0.3, "at most 30 %"
        ),
        record.row("completion", "", "of all peers", list(done), "s"),
        lines.interval(
            "peers", "r of joining and download time", r, "", size.peers, "below -0.8", r[0] < -0.8
        ),
        record.share(
            "scrapes", "", "series with as many as expected, one more or less",
            size.peers - len(wrong_counts), size.peers,
        ),
    ]  # fmt: skip


def figure(server: Server, out: Path) -> None:
    """Completeness of each peer over time."""
    address = f"{server.url}/exp/swarm/data?metric={METRIC}&type=duration"
    plot = ["plot", address, "lines", "--partial", "-o", out / "swarm.svg"]
    server.penstock(*plot)
    server.penstock("plot", out / "swarm.json", "-o", out / "swarm.png")


def compared(
    cluster: Cluster, torrent: Path, size: Size, first: pd.Series, out: Path
) -> record.Row:
    """Pairs with and without monitoring: difference of the median completion time."""
    on, off = [float(first.median())], []
    for pair in range(size.pairs):
        with Swarm(cluster, torrent, size) as plain:
            plain.run(False)
        off.append(float(plain.took_s["done"].median()))
        if pair + 1 < size.pairs:
            _, _, done = watched(out / f"pair-{pair + 1}", cluster, torrent, size)
            on.append(float(done.median()))
    slowdown = power.slowdown(on, off)
    interval_row = lines.interval(
        "pairs of swarms", "median completion, with monitoring", slowdown, "%", size.pairs, "", True
    )
    ends = (abs(slowdown[1]), abs(slowdown[2]))
    verdict = record.MET if max(ends) < 2 else record.UNDECIDED
    if slowdown[1] > 2 or slowdown[2] < -2:
        verdict = record.MISSED
    return {**interval_row, "bar": "differs less than 2 %", "verdict": verdict}


def study(out: Path, quick: bool) -> tuple[list[record.Row], dict[str, bool]]:
    """All lines, and whether planted failures were detected."""
    size = QUICK if quick else FULL
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    file = out / "platform.json"
    file.write_text(json.dumps(platform(size), indent=1) + "\n")
    began = time.monotonic()
    with Cluster.of_platform(file) as cluster:
        print(f"{len(cluster.nodes)} nodes up in {time.monotonic() - began:.1f} s", file=sys.stderr)
        torrent = torrent_of(out, cluster, size)
        rows, planted, done = watched(out, cluster, torrent, size)
        rows.append(compared(cluster, torrent, size, done, out))
    return rows, planted


if __name__ == "__main__":
    sys.exit(
        lines.program("monitored-swarm", __doc__, ABOUT, "10 peers, 700,000 bytes, one pair", study)
    )
