"""Changes and faults of emulated disks: delay and accuracy.

Rows of (case, engine, metric, value, unit, low, high, n, bar, verdict). Planted failures: a change 50 ms
late, a disk slower by 8 instead of 10, 49 % of the space bad instead of half. Exit status 1 if one of them is
not detected, 3 if a goal is missed; a busy host is reported as the reason.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
from penstock.host.storage.residency import drop_file_cache

BLOCK = 4096


def flat(service_s: float) -> dict[str, Any]:
    """A device of one server with the same service time for all operations."""
    cost = {"overhead": {"kind": "constant", "value_s": service_s}}
    accesses = {"sequential": cost, "random": cost}
    return {
        "schema": "penstock/storage-profile/1",
        "name": "flat",
        "servers": 1,
        "read": accesses,
        "write": accesses,
    }


class Bench:
    """A server with disks in a temporary directory."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.server = DiskServer(Journal(base / "journal.jsonl"), base / "state")
        self.rows: list[dict[str, Any]] = []

    def up(self, name: str, service_s: float = 0.0, **options: Any) -> Path:
        """Start a disk; return its mount."""
        for kind in "mb":
            (self.base / f"{kind}-{name}").mkdir(exist_ok=True)
        directories = (self.base / f"m-{name}", self.base / f"b-{name}")
        self.server.add(name, *directories, flat(service_s), **options)
        return directories[0]

    def row(
        self, case: str, metric: str, values: list[float], unit: str, bar: str, met: bool
    ) -> None:
        """Add a result."""
        verdict = record.MET if met else record.MISSED
        result = record.row(case, "", metric, values, unit)
        self.rows.append({**result, "bar": bar, "verdict": verdict})

    def punctual(self, disks: int, each: int, planted: bool = False) -> None:
        """Delay of scheduled changes of several disks."""
        names = [f"p{i}" for i in range(disks)]
        for name in names:
            self.up(name)
        start = time.monotonic_ns() + 200_000_000
        for number, name in enumerate(names):
            self.server.schedule(name, [
                {"at_ns": start + step * 20_000_000 + number * 1_000_003,
                 "patch": {"limits": {"read_bps": 1e6 + step}}}
                for step in range(each)
            ])  # fmt: skip
        if planted:
            late = time.monotonic_ns() - 50_000_000
            self.server.patch(names[0], {"servers": 2}, planned_ns=late)
        time.sleep(0.4 + each * 0.02)
        events = [e for name in names for e in self.server.events(name)["events"]]
        late_ms = [(e["applied_ns"] - e["planned_ns"]) / 1e6 for e in events]
        complete = len(events) >= disks * each and not any(e["error"] for e in events)
        case = f"{disks} disks, {each} changes each"
        self.row(case, "late", late_ms, "ms", "each <= 5 ms", complete and max(late_ms) <= 5)
        for name in names:
            self.server.remove(name)

    def all_at_once(self, disks: int) -> None:
        """One simultaneous change of many disks: time from the due time until it is in force on each."""
        names = [f"a{i}" for i in range(disks)]
        for name in names:
            self.up(name, calibrate=False)
        at = time.monotonic_ns() + 1_000_000_000
        for number, name in enumerate(names):
            patch = {"limits": {"write_bps": 1e6 + number}}
            self.server.schedule(name, [{"at_ns": at, "patch": patch}])
        time.sleep(1.8)
        events = [self.server.events(name)["events"] for name in names]
        spans = [(e[0]["verified_ns"] - at) / 1e6 for e in events if e]
        distinct = {e[0]["found"]["limits"]["write_bps"] for e in events if e}
        met = len(distinct) == disks and max(spans) <= 500
        self.row(f"{disks} disks at one time", "in force after", spans, "ms", "<= 500 ms", met)
        for name in names:
            self.server.remove(name)

    def slow(self, seconds: float, factor: float = 10) -> None:
        """Fail-slow by 10 and back: time of a request, measured by the program."""
        mount = self.up("s", 0.002)
        (self.base / "b-s" / "f").write_bytes(os.urandom(1 << 20))
        start = time.monotonic() + 0.1
        self.server.schedule("s", [
            {"at_ns": int((start + seconds) * 1e9), "patch": {"slow": {"factor": factor}}},
            {"at_ns": int((start + 2 * seconds) * 1e9), "patch": {"slow": None}},
        ])  # fmt: skip
        fd = os.open(mount / "f", os.O_RDONLY | os.O_DIRECT)
        page = mmap.mmap(-1, BLOCK)
        parts: list[list[float]] = [[], [], []]
        while (began := time.monotonic()) < start + 3 * seconds:
            os.preadv(fd, [page], 0)
            part_number, within = divmod(began - start, seconds)
            if began > start and 0.25 * seconds < within < 0.9 * seconds:
                parts[int(part_number)].append(time.monotonic() - began)
        os.close(fd)
        before, slow, after = (statistics.median(part) for part in parts)
        case, slower, recovered = "fail-slow, factor 10", slow / before, after / before
        self.row(case, "time, slow to whole", [slower], "1", "10 +-10 %", 9 <= slower <= 11)
        self.row(
            case, "time, after to whole", [recovered], "1", "1 +-5 %", 0.95 <= recovered <= 1.05
        )
        self.server.remove("s")

    def bad_space(self, size_bytes: int, share: float = 0.5) -> None:
        """Half of the space is bad: the same half after a remount, and when read backwards."""
        blocks = size_bytes // BLOCK
        patch = {"bad_space": {"share": share, "mode": "error", "seed": 7}}
        mount = self.up("b", patch=patch)
        with open(self.base / "b-b" / "f", "wb") as file:
            file.truncate(size_bytes)
        first = _failing(mount / "f", range(blocks))
        self.server.remove("b")
        self.up("b", patch=patch)
        second = _failing(mount / "f", range(blocks - 1, -1, -1))
        self.server.remove("b")
        case = f"half of {size_bytes >> 20} MiB bad"
        as_specified = len(first) == blocks // 2
        self.row(case, "failing blocks", [len(first)], "1", f"{blocks // 2} +-0", as_specified)
        self.row(case, "differing after remount", [len(first ^ second)], "1", "0", first == second)


def planted(bench: Bench) -> dict[str, bool | None]:
    """Plant each failure, and remove its rows; True for each failure that is detected."""
    failures: dict[str, Callable[[], None]] = {
        "a change 50 ms late": lambda: bench.punctual(2, 5, planted=True),
        "a device slow by 8 for 10": lambda: bench.slow(1.0, factor=8),
        "49 % of the space bad for half": lambda: bench.bad_space(16 << 20, share=0.49),
    }
    detected: dict[str, bool | None] = {}
    for failure, make in failures.items():
        before = len(bench.rows)
        make()
        detected[failure] = any(r["verdict"] == record.MISSED for r in bench.rows[before:])
        del bench.rows[before:]
    return detected


def _failing(path: Path, order: range) -> set[int]:
    drop_file_cache(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    failing = set()
    for block in order:
        try:
            os.preadv(fd, [page], block * BLOCK)
        except OSError:
            failing.add(block)
    os.close(fd)
    return failing


def main() -> int:
    """Run all cases and print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="smaller cases, about 10 s")
    record.option(parser)
    arguments = parser.parse_args()
    quick = arguments.quick
    with tempfile.TemporaryDirectory(prefix="penstock-changes-") as place:
        bench = Bench(Path(place))
        with bench.server:
            bench.punctual(10, 20 if quick else 100)
            bench.all_at_once(20 if quick else 100)
            bench.slow(1.0 if quick else 5.0)
            bench.bad_space((16 if quick else 256) << 20)
            detected = planted(bench)
    if arguments.json:
        print(json.dumps(bench.rows))
    else:
        for r in bench.rows:
            print(
                f"{r['case']:<30}{r['metric']:<26}{r['value']:>10.3f} {r['unit']:<3}"
                f"{r['low']:>10.3f} {r['high']:>10.3f} {r['n']:>6}  {r['bar']}: {r['verdict']}"
            )
    for failure, was_detected in detected.items():
        print(f"planted, {failure}: {'found' if was_detected else 'NOT FOUND'}", file=sys.stderr)
    record.keep(arguments.record, bench.rows, detected)
    missed = [r for r in bench.rows if r["verdict"] == record.MISSED]
    if missed and os.getloadavg()[0] > 2 * len(os.sched_getaffinity(0)):
        print(
            f"the host is busy (load {os.getloadavg()[0]:.1f}): the times are not valid",
            file=sys.stderr,
        )
    return 1 if not all(detected.values()) else 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
