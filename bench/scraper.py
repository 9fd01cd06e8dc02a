"""Missed scrapes of 1,000 targets every second, 100 ten times a second, and 100 every second.

Targets are ports of a separate process, each with 50 metrics that increase; the scraper is in another process
and stores its points on disk. The bench counts due scrapes that were not made, and the scraper's processor
time. Planted failures: a target that answers after two and a half intervals, whose misses must be counted,
and one that answers with an HTML page, which must fail each time. Exit status 1 if a goal is missed or a
planted failure is not detected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.collectors.scrape import Scraper
from penstock.parts.monitoring.experiments.spool import Spool

METRICS = 50
#: targets, interval [s], largest number of cores or no goal
CASES = ((1000, 1.0, None), (100, 0.1, None), (100, 1.0, 0.3))
SLOW = 2.5


class Exporter(asyncio.Protocol):
    """A target: answers GET with its counters."""

    def __init__(self, wait_s: float = 0.0, kind: str = "text/plain; version=0.0.4") -> None:
        self._wait_s, self._kind, self._count = wait_s, kind, 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self._wait_s, self._answer)

    def _answer(self) -> None:
        self._count += 1
        rows = [f'disk_bytes_total{{device="sd{n}"}} {self._count + n}' for n in range(METRICS)]
        body = "\n".join(rows).encode() + b"\n"
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {self._kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        if not self._transport.is_closing():
            self._transport.write(head.encode() + body)


async def export(number: int, interval_s: float) -> None:
    """Run in the targets' process: print their ports, the planted ones last."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Exporter, "127.0.0.1", 0) for _ in range(number)]
    slow = SLOW * interval_s
    servers.append(await loop.create_server(lambda: Exporter(slow), "127.0.0.1", 0))
    page = "text/html; charset=utf-8"
    servers.append(await loop.create_server(lambda: Exporter(kind=page), "127.0.0.1", 0))
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def collect(ports: list[int], interval_s: float, seconds: float) -> dict[str, Any]:
    """Run in the scraper's process."""
    targets = [f"http://127.0.0.1:{port}/metrics" for port in ports]
    settings = {"targets": targets, "interval_s": interval_s, "timeout_s": 10.0}
    with tempfile.TemporaryDirectory(prefix="penstock-scraper-") as scratch:
        sink = Spool.create(Path(scratch) / "spool")
        scraper = Scraper("scraper", settings)
        began, cpu_s = time.monotonic(), time.process_time()
        with Collecting({"scraper": scraper}, sink):
            time.sleep(seconds)
            regular, (slow, page) = scraper.targets[:-2], scraper.targets[-2:]
            due = sum(t.due for t in regular)
            cores = (time.process_time() - cpu_s) / (time.monotonic() - began)
        stored = sum(batch.points.num_rows for batch in sink.batches())
    return {
        "due": due,
        "missed": sum(t.missed for t in regular),
        "failed": sum(t.failed for t in regular),
        "late": sum(t.late for t in regular),
        "told": scraper.intake.receipt.errors,
        "cores": cores,
        "slow": [slow.due, slow.missed],
        "page": [page.due, page.failed],
        "stored": stored,
        "receipt": scraper.intake.receipt.stored,
    }


def run_case(number: int, interval_s: float, seconds: float) -> dict[str, Any]:
    """Run a case in two processes."""
    me = [sys.executable, __file__]
    with subprocess.Popen(
        [*me, "--export", f"{number},{interval_s}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as exporter:
        assert exporter.stdout is not None
        ports = exporter.stdout.readline()
        argv = [*me, "--collect", f"{interval_s},{seconds}"]
        result = subprocess.run(argv, input=ports, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(result.stderr)
        assert exporter.stdin is not None
        exporter.stdin.close()
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 s of each case instead of 60")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--export", help=argparse.SUPPRESS)
    parser.add_argument("--collect", help=argparse.SUPPRESS)
    record.option(parser)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    if arguments.export:
        number, interval = arguments.export.split(",")
        asyncio.run(export(int(number), float(interval)))
        return 0
    if arguments.collect:
        interval, lasts = arguments.collect.split(",")
        print(json.dumps(collect(json.loads(sys.stdin.readline()), float(interval), float(lasts))))
        return 0
    seconds = 10.0 if arguments.quick else 60.0
    rows, planted = [], {}
    for number, interval_s, limit in CASES:
        case = f"{number} targets every {interval_s:g} s"
        figures = run_case(number, interval_s, seconds)
        for message in figures["told"]:
            if "HTML" not in message:
                print(f"{case}: {message}", file=sys.stderr)
        lost = figures["missed"] + figures["failed"]
        lost_row = record.row(
            case, "penstock", f"missed or failed of {figures['due']}", [lost], "scrapes"
        )
        rows.append(record.at_most(lost_row, 0))
        rows.append(record.row(case, "penstock", "late by half an interval", [figures["late"]], ""))
        cores = record.row(case, "penstock", "processor time", [figures["cores"]], "cores")
        rows.append(record.at_most(cores, limit) if limit is not None else cores)
        due, missed = figures["slow"]
        # the slow target can answer every third scrape
        planted[f"{case}: one that answers too late is missed"] = missed >= due // 2 > 0
        page_due, failed = figures["page"]
        planted[f"{case}: one that shows HTML fails"] = 0 < page_due - 1 <= failed <= page_due
        planted[f"{case}: all that was taken is in the store"] = (
            figures["stored"] == figures["receipt"] >= figures["due"] * METRICS * 0.9
        )
    status = record.report(rows, planted, as_json=arguments.json)
    record.keep(arguments.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
