#!/usr/bin/env python3
"""Links of virtual nodes: requested bandwidth, delay and loss, compared with those that programs in the nodes
measure.

Bandwidth is counted at the link over windows of a second. Round trips are those of successive small TCP
messages, compared with those of the bridge alone. `added` is the time of a relayed round trip beyond the
bridge's and the requested one. A limit that was respected but not reached on a busy host is reported as such.
Planted failures: links 8 % worse than requested, in bandwidth and in delay. Exit status 1 if either is not
detected, or if a real link is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.emulate.network import Network
from penstock.emulate.network.capabilities import offers
from penstock.host.journal.journal import Journal
from penstock.host.network.netns import inside
from penstock.spec.cluster import LinkSpec, NetworkSpec

#: accepted deviation of a bandwidth, and deviation of the planted links
TOLERANCE, PLANTED = 0.05, 0.08
#: accepted excess of a round trip [s]
LATE_S = 0.3e-3


@dataclass
class Row:
    case: str
    metric: str
    value: float
    unit: str
    low: float
    high: float
    n: int
    engine: str
    asked: float | None = None
    verdict: str = ""


def row(
    case: str, engine: str, metric: str, unit: str, seen: list[float], asked: float | None = None
) -> Row:
    middle = statistics.median(seen)
    return Row(case, metric, middle, unit, min(seen), max(seen), len(seen), engine, asked)


@contextlib.contextmanager
def two_nodes(engine: str) -> Iterator[tuple[Network, list[int], str]]:
    """Two namespaces on one network; returns their pids and the address of the second."""
    children = [subprocess.Popen(["unshare", "-n", "sleep", "600"]) for _ in range(2)]
    pids = [child.pid for child in children]
    own = os.stat("/proc/self/ns/net").st_ino
    try:
        while any(os.stat(f"/proc/{pid}/ns/net").st_ino == own for pid in pids):
            time.sleep(0.002)
        with Network.up([NetworkSpec(engine=engine)], Journal()) as network:  # type: ignore[arg-type]
            network.attach("a", pids[0])
            yield network, pids, network.attach("b", pids[1]).address
    finally:
        for child in children:
            child.kill()
            child.wait()


def connected(pids: list[int], address: str) -> tuple[socket.socket, socket.socket]:
    listening = inside(pids[1], lambda: socket.create_server((address, 0)))
    with listening:
        client = inside(pids[0], socket.socket)
        client.connect(listening.getsockname())
        server, _ = listening.accept()
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client, server


def bulk(
    pids: list[int], address: str, counted: Callable[[], int], windows: int, length_s: float
) -> list[float]:
    """Bytes per second at the link while one TCP connection sends as fast as possible."""
    client, server = connected(pids, address)

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                client.sendall(bytes(1 << 16))

    def receive() -> None:
        buffer = bytearray(1 << 20)
        with contextlib.suppress(OSError):
            while server.recv_into(buffer):
                pass

    threads = [threading.Thread(target=act) for act in (send, receive)]
    for thread in threads:
        thread.start()
    time.sleep(min(1.0, length_s))
    rates = []
    for _ in range(windows):
        start, before = time.monotonic(), counted()
        time.sleep(length_s)
        rates.append((counted() - before) / (time.monotonic() - start))
    for end in (client, server):
        end.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    client.close()
    server.close()
    return rates


_ECHO = """
import socket, sys
s = socket.create_server((sys.argv[1], 0)); print(s.getsockname()[1], flush=True)
c = s.accept()[0]; c.setsockopt(6, 1, 1)
while m := c.recv(64): c.sendall(m)
"""


def round_trips(pids: list[int], address: str, count: int) -> list[float]:
    """Times of small messages to another process and back [s]."""
    argv = ["nsenter", f"--net=/proc/{pids[1]}/ns/net", sys.executable, "-c", _ECHO, address]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        port = int(echo.stdout.readline())
        client = inside(pids[0], socket.socket)
        client.connect((address, port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(count):
            start = time.perf_counter()
            client.sendall(b"x")
            client.recv(64)
            times.append(time.perf_counter() - start)
            time.sleep(0.001)
        client.close()
    return times


def bandwidth(quick: bool, plant: float = 0.0) -> Iterator[Row]:
    windows, length_s = (2, 0.5) if quick else (5, 1.0)
    with two_nodes("auto") as (network, pids, address):
        for bit_s in (1e6, 20e6, 50e6, 1e9):
            for direction, node in (("out", "a"), ("in", "b")):
                key = f"{direction}_bps"
                network.set_link(node, None, {key: bit_s / 8 * (1 - plant)})

                def counted(node: str = node, direction: str = direction) -> int:
                    return network.passed(node)[direction] or 0

                rates = bulk(pids, address, counted, windows, length_s)
                network.set_link(node, None, {key: None})
                result = row(
                    f"{bit_s / 1e6:g} Mbit/s {direction}", "tbf", "rate", "Mbit/s",
                    [r * 8e-6 for r in rates], bit_s / 1e6,
                )  # fmt: skip
                low, high = (x * bit_s / 1e6 for x in (1 - TOLERANCE, 1 + TOLERANCE))
                if result.high > high:
                    result.verdict = "exceeded"
                elif result.high < low:
                    result.verdict = "not reached"
                else:
                    result.verdict = "honoured" if result.value >= low else "host-saturated"
                yield result


def ceiling(engine: str, quick: bool) -> Iterator[Row]:
    with two_nodes("relay" if engine == "relay" else "auto") as (network, pids, address):

        def counted() -> int:
            return network.counters("b")["in_bytes"]

        before, start = network.relay_stats(), time.monotonic()
        rates = bulk(pids, address, counted, 2 if quick else 5, 0.5)
        yield row("one TCP connection", engine, "ceiling", "Gbit/s", [r * 8e-9 for r in rates])
        after = network.relay_stats()
        if before is not None and after is not None:
            share = (after["cpu_ns"] - before["cpu_ns"]) / 1e9 / (time.monotonic() - start)
            yield row("one TCP connection", engine, "processors", "", [share])
            network.set_link(
                "a", None, {"loss": 1e-9}
            )  # a link with losses is relayed packet by packet
            before, start = network.relay_stats(), time.monotonic()
            rates = bulk(pids, address, counted, 2 if quick else 5, 0.5)
            yield row("packet by packet", engine, "ceiling", "Gbit/s", [r * 8e-9 for r in rates])
            after = network.relay_stats()
            if before is not None and after is not None:
                share = (after["cpu_ns"] - before["cpu_ns"]) / 1e9 / (time.monotonic() - start)
                yield row("packet by packet", engine, "processors", "", [share])


def delay(engine: str, quick: bool, plant: float = 0.0) -> Iterator[Row]:
    count = 60 if quick else 400
    with two_nodes("auto") as (network, pids, address):
        alone = round_trips(pids, address, count)
    base_s = statistics.median(alone)
    yield row("no delay", "bridge", "round trip p50", "us", [base_s * 1e6])
    with two_nodes(engine) as (network, pids, address):
        for ms in (0.0, 0.2, 1.0, 10.0, 50.0):
            requested_s = 2 * ms / 1e3
            link = {"delay": ms / 1e3 * (1 + plant), "in_delay": ms / 1e3 * (1 + plant)}
            network.set_link("a", None, link)
            if engine == "relay":
                network.relay_stats(reset=True)
            times = sorted(round_trips(pids, address, max(20, count if ms < 5 else count // 8)))
            p50, p99 = times[len(times) // 2], times[math.ceil(0.99 * len(times)) - 1]
            case = f"{ms:g} ms each way"
            result = row(
                case, engine, "round trip p50", "us", [p50 * 1e6], (base_s + requested_s) * 1e6
            )
            late = p50 - base_s - requested_s
            allowed = 0.01 * requested_s + LATE_S
            if times[0] < requested_s:
                result.verdict = "too fast"
            elif times[0] - requested_s > base_s + allowed:
                result.verdict = "too slow"
            else:
                result.verdict = "honoured" if late < allowed else "host-saturated"
            yield result
            yield row(case, engine, "round trip p99", "us", [p99 * 1e6])
            yield row(case, engine, "added", "us", [late * 1e6])
            stats = network.relay_stats() if engine == "relay" else None
            if stats is not None and stats["late"]["n"]:
                for which in ("p50", "p99", "max"):
                    ns = stats["late"][f"{which}_ns"]
                    yield row(case, engine, f"sent late {which}", "us", [ns / 1e3])


def change(quick: bool) -> Iterator[Row]:
    n = 20 if quick else 100
    children = [subprocess.Popen(["unshare", "-n", "sleep", "600"]) for _ in range(n)]
    try:
        time.sleep(0.5 + n / 100)
        start = time.perf_counter()
        with Network.up([NetworkSpec(engine="relay")], Journal()) as network:
            for number, child in enumerate(children):
                network.attach(f"n{number}", child.pid, LinkSpec(out_bps=1e6))
            yield row(f"{n} nodes", "relay", "up", "ms", [(time.perf_counter() - start) * 1e3])
            for parameter, patch in (("bandwidth", {"out_bps": 2e6}), ("delay", {"delay": 0.01})):
                start = time.perf_counter()
                done = network.set_links([(f"n{i}", None, patch) for i in range(n)])
                took = (time.perf_counter() - start) * 1e3
                result = row(f"{n} nodes", "relay", f"change of {parameter}", "ms", [took], 5.0 * n)
                result.verdict = "honoured" if took <= 500.0 and len(done) == n else "too slow"
                yield result
            start = time.perf_counter()
        yield row(f"{n} nodes", "relay", "down", "ms", [(time.perf_counter() - start) * 1e3])
    finally:
        for child in children:
            child.kill()
            child.wait()


def planted(engine: str) -> dict[str, bool | None]:
    """True if the worse links are detected: none is honoured, and one of them is reported as wrong."""
    rates = [r.verdict for r in bandwidth(True, PLANTED)]
    # below a few milliseconds the difference is smaller than the lateness of a program
    trips = delay(engine, True, PLANTED)
    late = [r.verdict for r in trips if r.verdict and (r.asked or 0) > 10_000]
    return {
        "bandwidths 8 % below": "honoured" not in rates and "not reached" in rates,
        "delays 8 % longer": "honoured" not in late and "too slow" in late,
    }


def record_row(r: Row) -> record.Row:
    """A row of the bench in the form of the results."""
    verdicts = {"honoured": record.MET, "host-saturated": record.UNDECIDED}
    fields = asdict(r)
    del fields["asked"], fields["verdict"]
    if not r.verdict:
        return fields
    return {
        **fields,
        "bar": f"{r.asked:,.6g} {r.unit}",
        "verdict": verdicts.get(r.verdict, record.MISSED),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--quick", action="store_true", help="shorter windows, fewer messages")
    record.option(parser)
    options = parser.parse_args()
    engine = "netem" if offers().netem else "relay"
    rows = list(bandwidth(options.quick))
    rows += delay(engine, options.quick)
    for which in ("bridge", "relay"):
        rows += ceiling(which, options.quick)
    rows += change(options.quick)
    detected = planted(engine)
    if options.json:
        print(json.dumps([asdict(r) for r in rows]))
    else:
        for r in rows:
            requested = f"asked {r.asked:g}" if r.asked is not None else ""
            value = f"{r.value:10.4g} {r.unit:7} [{r.low:.4g}, {r.high:.4g}]"
            print(f"{r.case:22} {r.engine:7} {r.metric:20} {value} {requested} {r.verdict}")
    wrong = [r for r in rows if r.verdict not in ("", "honoured", "host-saturated")]
    for r in wrong:
        print(f"{r.case}: {r.metric} {r.value:g} {r.unit}: {r.verdict}", file=sys.stderr)
    for failure, seen in detected.items():
        print(f"planted, {failure}: {'found' if seen else 'NOT FOUND'}", file=sys.stderr)
    record.keep(options.record, [record_row(r) for r in rows], detected)
    return 1 if wrong or not all(detected.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
