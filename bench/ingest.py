"""How many points a second one core takes in by line protocol, and 100 nodes of 200 metrics in one receiver.

Reading is timed by the processor time of its thread, in bulk, down to a table that a sink takes. Of the
nodes, each sends 200 metrics for every second of an experiment over a connection of its own, as fast as it
is answered; the receiver keeps them in memory: what a disk takes is not in it. Planted: five points that are
never sent, and a line that is none. Status 1 where the bar is missed or a plant is not found.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.observe.monitor.collectors.collector import table_of
from penstock.observe.monitor.collectors.http_push import InfluxReceiver
from penstock.observe.monitor.collectors.running import Collecting
from penstock.testing import MemorySink

native: Any = importlib.import_module("penstock._native")
BEGIN_NS, SECOND_NS = 1_700_000_000_000_000_000, 1_000_000_000
NODES, METRICS, FIELDS = 100, 200, 5
LEAST_PER_CORE = 1e6
#: seconds of the first node whose first point is never sent
LEFT_OUT = (1, 2, 3, 5, 7)


def lines_of(node: int, second: int, left_out: bool = False) -> bytes:
    """What one node sends for one second: 200 metrics in lines of five."""
    stamp = BEGIN_NS + second * SECOND_NS
    made = []
    for device in range(METRICS // FIELDS):
        fields = {
            "read_bytes": f"{second * 4096.5 + node}",
            "written_bytes": f"{second * 8192 + device}i",
            "busy": f"{(second * 7 + device) % 100 / 7:.4f}",
            "queue": f"{device}i",
            "wait_s": f"{second % 13 / 1000:.6f}",
        }
        if left_out and device == 0:
            del fields["busy"]
        told = ",".join(f"{name}={value}" for name, value in fields.items())
        made.append(f"disk,host=node-{node:03d},device=sd{device} {told} {stamp}\n")
    return "".join(made).encode()


def in_bulk(repeats: int) -> list[float]:
    """Points per second of processor time, once for each repeat."""
    body = b"".join(lines_of(node, second) for second in range(25) for node in range(NODES))
    rates = []
    for _ in range(repeats + 1):
        reader = native.PointReader()
        began = time.thread_time()
        table, _ = table_of(reader.line_protocol(body, 0, 1))
        rates.append(table.num_rows / (time.thread_time() - began))
        assert table.num_rows == 25 * NODES * METRICS
    return rates[1:]


def nodes(seconds: int) -> tuple[float, int, int]:
    """Points per second of the wall, those stored, and lines refused."""
    sink, receiver = MemorySink(), InfluxReceiver("nodes", {"port": 0})
    with Collecting({"nodes": receiver}, sink):

        def send(node: int) -> None:
            talk = http.client.HTTPConnection(*receiver.address, timeout=600)
            for second in range(seconds):
                left_out = node == 0 and second in LEFT_OUT
                body = lines_of(node, second, left_out) + (b"no line\n" * (node == second == 1))
                talk.request("POST", "/write?db=bench", body)
                talk.getresponse().read()
            talk.close()

        threads = [threading.Thread(target=send, args=(node,)) for node in range(NODES)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - began
    receipt = receiver.intake.receipt
    return receipt.stored / took_s, receipt.stored, receipt.refused.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="10 seconds of the nodes instead of 60"
    )
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    asked = parser.parse_args()
    seconds = 10 if asked.quick else 60
    bulk = record.row("line protocol in bulk", "penstock", "points per core", in_bulk(5), "1/s")
    rate, stored, refused = nodes(seconds)
    case = f"{NODES} nodes of {METRICS} metrics, {seconds} s"
    rows = [
        record.at_least(bulk, LEAST_PER_CORE),
        record.at_least(record.row(case, "penstock", "points", [rate], "1/s"), NODES * METRICS),
    ]
    due = seconds * NODES * METRICS
    planted = {
        "five points that are never sent": due - stored == len(LEFT_OUT),
        "a line that is none": refused == 1,
    }
    if asked.json:
        print(json.dumps({"rows": rows, "planted": planted}, indent=1))
    else:
        for row in rows:
            print(f"{row['case']}: {row['metric']} {row['value']:,.0f}/s ({row['verdict']})")
        for what, found in planted.items():
            print(f"planted: {what}: {'found' if found else 'NOT FOUND'}")
    record.keep(asked.record, rows, planted)
    missed = any(row["verdict"] == record.MISSED for row in rows)
    return int(missed or not all(planted.values()))


if __name__ == "__main__":
    sys.exit(main())
