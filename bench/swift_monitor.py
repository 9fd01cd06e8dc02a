"""Cost of the filter for Swift's object servers: client requests with and without it.

    bench/swift_monitor.py [--json] [--quick]

Starts a Swift of four devices (`studies/swift/saio.py`; Debian's packages). One client puts and gets objects
of 4 KiB and of 1 MiB. In one cluster the filter is switched off and on from block to block, in an alternating
order. There are two arms without the filter, so that their difference shows the error of the comparison
(A/A). For each pair of adjacent blocks the ratio of times is computed, over the pairs the median with its 95
% interval by order statistics. The goal is at most 2 % more time; an interval that contains the limit is
undecided. Planted failure: 10 ms of work in each request of the object servers, which must exceed the goal.
Exit status 1 if it does not or something failed, 3 if the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from bench.trace_device_bound import Interval, interval  # noqa: E402
from studies.swift.saio import Client, Swift, SwiftError, running  # noqa: E402

LIMIT = 2.0
SIZES = {"4 KiB": 4096, "1 MiB": 1 << 20}
ARMS = ("off", "off again", "on", "planted")
#: objects per block
OBJECTS = {"4 KiB": 16, "1 MiB": 6}
#: longer than the interval at which the filter reads its switch
SETTLE_S = 0.3
#: planted failure: 10 ms of work per request, as of a filter that costs too much
PLANTED = """

import time as _time


class _Slow(Bandwidth):
    def __call__(self, environ, start_response):
        if os.path.exists({mark!r}):
            until = _time.perf_counter() + 0.010
            while _time.perf_counter() < until:
                pass
        return super().__call__(environ, start_response)


def filter_factory(global_conf, **local_conf):
    conf = dict(global_conf, **local_conf)
    return lambda app: _Slow(app, conf)
"""


def turned(number: int) -> list[str]:
    """The arms of a round: another one first in each, forwards and backwards in turn."""
    at = number // 2 % len(ARMS)
    order = [*ARMS[at:], *ARMS[:at]]
    return order if number % 2 == 0 else order[::-1]


def set_to(arm: str, off: Path, planted: Path) -> None:
    """Switch the filter and the planted failure; wait until every object server has seen it."""
    for path, active in ((off, arm.startswith("off")), (planted, arm == "planted")):
        if active:
            path.touch()
        else:
            path.unlink(missing_ok=True)
    time.sleep(SETTLE_S)


def block(client: Client, size: str, content: bytes) -> float:
    """Time of a block of puts and gets [s]."""
    began = time.perf_counter()
    for number in range(OBJECTS[size]):
        client.put("bench", f"{size}-{number}", content)
        client.get("bench", f"{size}-{number}")
    return time.perf_counter() - began


def measured(swift: Swift, off: Path, planted: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """By size: additional time of each pair of arms [%], and the medians of blocks [s]."""
    client = swift.client()
    client.make("bench")
    by_size = {}
    for size, length in SIZES.items():
        content = os.urandom(length)
        block(client, size, content)  # all connections open, all directories created
        took: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            for arm in turned(number):
                set_to(arm, off, planted)
                took[arm].append(block(client, size, content))
        by_size[size] = {
            "block_s": {arm: statistics.median(values) for arm, values in took.items()},
            **{
                arm: interval(
                    [100 * (a / b - 1) for a, b in zip(took[arm], took["off"], strict=True)]
                )
                for arm in ARMS[1:]
            },
        }
    return by_size


def rows_of(by_size: dict[str, dict[str, Any]], rounds: int) -> list[record.Row]:
    """One row per size and arm."""
    rows = []
    for size, figures in by_size.items():
        for arm in ARMS[1:]:
            share: Interval = figures[arm]
            row: record.Row = {
                "case": f"put and get of {size}",
                "engine": {"on": "filter on", "off again": "off (A/A)"}.get(arm, "planted: 10 ms"),
                "metric": "time more than without",
                "value": share.value,
                "unit": "%",
                "low": share.low,
                "high": share.high,
                "n": rounds,
                "spread": record.INTERVAL,
            }
            rows.append(record.at_most(row, LIMIT) if arm == "on" else row)
    return rows


def main() -> int:
    """Exit status: 0 within the goal or undecided, 1 something failed, 3 missed."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="8 rounds instead of 60")
    options.add_argument("--rounds", type=int, help="number of rounds of all arms")
    options.add_argument("--json", action="store_true", help="the rows as one object")
    record.option(options)
    arguments = options.parse_args()
    rounds = arguments.rounds or (8 if arguments.quick else 60)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-swift-") as place:
            off, planted = Path(place) / "off", Path(place) / "planted"
            code = PLANTED.format(mark=str(planted))
            settings: dict[str, Any] = {"options": {"off_while": str(off)}, "more_code": code}
            with running(Path(place) / "saio", middleware=True, **settings) as swift:
                by_size = measured(swift, off, planted, rounds)
    except SwiftError as error:
        print(f"swift_monitor: {error}", file=sys.stderr)
        return 1
    rows = rows_of(by_size, rounds)
    detected = all(figures["planted"].low > LIMIT for figures in by_size.values())
    if arguments.json:
        seconds = {size: figures["block_s"] for size, figures in by_size.items()}
        print(json.dumps({"rows": rows, "block_s": seconds, "planted_found": detected}))
    else:
        table = Table("case", "filter", "time more, %", "95 % interval", "", box=None)
        for row in rows:
            span = f"{row['low']:.2f} to {row['high']:.2f}"
            cells = (
                row["case"],
                row["engine"],
                f"{row['value']:.2f}",
                span,
                row.get("verdict", ""),
            )
            table.add_row(*cells)
        Console(width=110, highlight=False).print(table)
    record.keep(arguments.record, rows, {"10 ms of work at every request": detected})
    if not detected:
        print("swift_monitor: planted work: NOT FOUND", file=sys.stderr)
        return 1
    return 3 if any(row.get("verdict") == record.MISSED for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
