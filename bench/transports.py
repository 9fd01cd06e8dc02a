"""The transports of the disk server compared: `/dev/fuse` and io_uring.

Three parts, in which every round runs each case over both transports in random order:

- ceilings: fio on a disk without service times, in tmpfs. Rate, median latency, processor time of the server
  per request.
- programs: 16 threads that each wait for a direct read of 4 KiB, or for a flushed write, on disks with
  constant service times and 16 servers; share of the specified rate.
- processors: the rate of the 16 threads with server and fio on one processor and on two, and the rates for 4
  and 16 by Amdahl's law with the resulting serial share.

`--libfuse PROGRAM` adds a pass-through server over io_uring to the ceilings: `example/passthrough_ll`, built
with libfuse 3.18 or later.

    python bench/transports.py [--quick] [--rounds N] [--libfuse PROGRAM]

Exit status 1 if 16 threads reach less than 1.8 times the rate of `/dev/fuse`, if large transfers are slower,
or if a read at depth 1 takes longer than libfuse's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record
from bench.disk_ceiling import PLANTED_S, PROFILE, cpu_s, fio, passed_through
from penstock import _native
from penstock.emulate.disks.server import DiskServer
from penstock.emulate.disks.transport import TRANSPORTS, locked, missing, offer, withdraw
from penstock.host.journal.journal import Journal

BYTES = 64 << 20
THREADS = 16
LIBFUSE = "libfuse"
ONE = "4 KiB random read, depth 1"
MANY = "4 KiB random read, 16 threads"
LARGE = ("1 MiB sequential read", "1 MiB sequential write")
_TOGETHER = {"bs": "4k", "ioengine": "psync", "numjobs": THREADS}
CASES: dict[str, dict[str, Any]] = {
    MANY: _TOGETHER | {"rw": "randread"},
    "4 KiB random write, 16 threads": _TOGETHER | {"rw": "randwrite"},
    ONE: {"rw": "randread", "bs": "4k", "ioengine": "psync"},
    "4 KiB random read, depth 64": {"rw": "randread", "bs": "4k", "ioengine": "io_uring", "iodepth": 64},
    LARGE[0]: {"rw": "read", "bs": "1m", "ioengine": "psync"},
    LARGE[1]: {"rw": "write", "bs": "1m", "ioengine": "psync"},
}  # fmt: skip
SERVICES_S = (100e-6, 150e-6, 200e-6, 300e-6)
LOOP_S = 0.15
LEAST_RATIO, LARGE_RATIO = 1.8, 1.0
#: numbers of processors, measured and extrapolated
PROCESSORS, LARGER = (1, 2), (4, 16)

Figures = dict[tuple[str, str, str], list[float]]


def ceilings(rounds: int, runtime_s: float, libfuse: Path | None = None) -> Figures:
    """Figures of fio by case, server (a transport, or `LIBFUSE`) and metric."""
    figures: Figures = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-transports-", dir="/dev/shm") as place,
        contextlib.ExitStack() as stack,
    ):
        base, journal = Path(place), Journal()
        server = stack.enter_context(DiskServer(journal, base / "state"))
        mounts: dict[str, tuple[Path, int]] = {}
        for name in (*TRANSPORTS, *([LIBFUSE] if libfuse else [])):
            mount, backing = base / f"{name}-mount", base / f"{name}-backing"
            mount.mkdir()
            backing.mkdir()
            (backing / "f").write_bytes(b"\1" * BYTES)
            if libfuse and name == LIBFUSE:
                with locked():  # a mount retains the transport that it was offered
                    entry = offer(journal)
                    try:
                        mounts[name] = stack.enter_context(
                            passed_through(libfuse, base, backing, "io_uring")
                        )
                    finally:
                        withdraw(entry, journal)
            else:
                server.add(name, mount, backing, PROFILE, calibrate=False, transport=name)
                mounts[name] = (mount, server.daemon.pid)
        for _ in range(rounds):
            turns = [(case, name) for case in CASES for name in mounts]
            random.shuffle(turns)
            for case, name in turns:
                mount, pid = mounts[name]
                before = cpu_s(pid)
                options = CASES[case] | {"group_reporting": 1, "thread": 1}
                job = fio(mount / "f", True, runtime_s, options, f"{BYTES}")
                used_s = cpu_s(pid) - before
                per_request = used_s / max(job["iops"] * runtime_s, 1) * 1e6
                small = options["bs"] == "4k"
                for metric, value in (
                    ("rate", job["iops"] if small else job["bps"]),
                    ("p50", job["p50_ns"] / 1e3),
                    ("server CPU per request", per_request),
                ):
                    figures.setdefault((case, name, metric), []).append(value)
    return figures


def processors(rounds: int, runtime_s: float) -> Figures:
    """Rate of 16 threads by number of processors and transport, with server and fio bound to these."""
    figures: Figures = {}
    every = sorted(os.sched_getaffinity(0))
    try:
        for _ in range(rounds):
            turns = [(n, name) for n in PROCESSORS if n <= len(every) for name in TRANSPORTS]
            random.shuffle(turns)
            for n, name in turns:
                os.sched_setaffinity(0, every[:n])  # server and fio inherit it
                rate = _rate(name, runtime_s)
                case = f"{MANY}, {n} processor{'s' * (n > 1)}"
                figures.setdefault((case, name, "rate"), []).append(rate)
    finally:
        os.sched_setaffinity(0, every)
    return figures


def _rate(transport: str, runtime_s: float) -> float:
    """Rate of 16 threads on a disk without service times of a new server [1/s]."""
    with tempfile.TemporaryDirectory(prefix="penstock-transports-", dir="/dev/shm") as place:
        mount, backing = Path(place) / "mount", Path(place) / "backing"
        mount.mkdir()
        backing.mkdir()
        (backing / "f").write_bytes(b"\1" * BYTES)
        with DiskServer(Journal(), Path(place) / "state") as server:
            server.add("d", mount, backing, PROFILE, calibrate=False, transport=transport)
            options = CASES[MANY] | {"group_reporting": 1, "thread": 1}
            return float(fio(mount / "f", True, runtime_s, options, f"{BYTES}")["iops"])


def serial_share(one_processor: float, two_processors: float) -> float:
    """Share of the work that only one processor at a time can do, from the rates with one and with two.

    Amdahl's law: rate(n) = rate(1) n / (1 + share (n - 1)).
    """
    return min(1.0, max(0.0, 2 * one_processor / two_processors - 1))


def planted(runtime_s: float) -> bool:
    """True if a disk of 60 us over io_uring is slower than one without service times over the device."""
    rates = {}
    with tempfile.TemporaryDirectory(prefix="penstock-transports-", dir="/dev/shm") as place:
        base = Path(place)
        for name in ("mount", "backing"):
            (base / name).mkdir()
        (base / "backing" / "f").write_bytes(b"\1" * BYTES)
        slow = {"overhead": {"kind": "constant", "value_s": PLANTED_S}}
        slow_read = {"sequential": slow, "random": slow}
        with DiskServer(Journal(), base / "state") as server:
            for name, profile in (("device", PROFILE), ("io_uring", PROFILE | {"read": slow_read})):
                server.add(
                    "d", base / "mount", base / "backing", profile, calibrate=False, transport=name
                )
                case = CASES[ONE]
                rates[name] = fio(base / "mount" / "f", True, runtime_s, case, f"{BYTES}")["iops"]
                server.remove("d")
    return rates["io_uring"] < 0.5 * rates["device"]


def programs(rounds: int) -> Figures:
    """Share of the specified rate by case and transport."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="penstock-transports-") as place:
        base = Path(place)
        mount, backing = base / "mount", base / "backing"
        mount.mkdir()
        backing.mkdir()
        (backing / "f").write_bytes(b"\1" * BYTES)
        own = [f"own-{n}" for n in range(THREADS)]
        for name in own:
            (backing / name).write_bytes(b"\1" * (1 << 20))
        with DiskServer(Journal(), base / "state") as server:
            for _ in range(rounds):
                turns = [(s, name) for s in SERVICES_S for name in TRANSPORTS]
                random.shuffle(turns)
                for service_s, name in turns:
                    constant = {"overhead": {"kind": "constant", "value_s": service_s}}
                    accesses = {"sequential": constant, "random": constant}
                    profile = PROFILE | {
                        "servers": THREADS,
                        "read": accesses,
                        "write": accesses,
                        "flush": constant,
                    }
                    server.add("d", mount, backing, profile, transport=name)
                    reads = _native.disk_closed_loop(mount / "f", BYTES, THREADS, LOOP_S)
                    writes = _native.disk_flushed_writes([mount / n for n in own], 1 << 20, LOOP_S)
                    server.remove("d")
                    for operation, done, takes_s in (
                        ("reads", reads, service_s),
                        ("flushed writes", writes, 2 * service_s),
                    ):
                        case = f"{operation}, 16 programs, {service_s * 1e6:.0f} us"
                        share = done / LOOP_S * takes_s / THREADS
                        figures.setdefault((case, name, "share of the promised rate"), []).append(
                            share
                        )
    return figures


def ratios(figures: Figures, case: str) -> list[float]:
    """Ratio of the rate over io_uring to that over the device, per round."""
    rings, device = (figures[case, name, "rate"] for name in ("io_uring", "device"))
    return [r / d for r, d in zip(rings, device, strict=True)]


def _extrapolated(scaling: Figures, transport: str) -> str:
    """Serial share of a transport, and its rates by Amdahl's law, as text."""
    rates = [values for (_, name, _), values in sorted(scaling.items()) if name == transport]
    if len(rates) < len(PROCESSORS):
        return f"{transport}: one processor only; no serial share"
    one_processor, two_processors = (statistics.median(values) for values in rates)
    share = serial_share(one_processor, two_processors)
    larger = (f"{n}: {one_processor * n / (1 + share * (n - 1)):,.0f}/s" for n in LARGER)
    return f"{transport}: serial share {share:.2f}; by Amdahl's law with {', '.join(larger)}"


def main() -> int:
    """Measure all parts and print a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two rounds of half a second")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--runtime", type=float, default=1.5, help="seconds per case and transport")
    parser.add_argument(
        "--libfuse", type=Path, metavar="PROGRAM", help="passthrough_ll over io_uring"
    )
    record.option(parser)
    arguments = parser.parse_args()
    if reason := missing():
        print(f"io_uring: {reason}", file=sys.stderr)
        return 1
    rounds, runtime_s = (2, 0.5) if arguments.quick else (arguments.rounds, arguments.runtime)
    figures = ceilings(rounds, runtime_s, arguments.libfuse) | programs(rounds)
    scaling = processors(rounds, runtime_s)
    figures |= scaling
    units = {"rate": "1/s", "p50": "us", "server CPU per request": "us"}
    rows = []
    for (case, name, metric), values in sorted(figures.items()):
        unit = "B/s" if metric == "rate" and case in LARGE else units.get(metric, "1")
        row = record.row(case, name, metric, values, unit)
        rows.append(row)
        spread = f"({row['low']:.3f}-{row['high']:.3f})"
        print(f"{case:35} {name:9} {metric:27} {row['value']:14.3f} {spread} {unit}")
    for name in TRANSPORTS:
        print(_extrapolated(scaling, name))
    failed = False
    for case, least in ((MANY, LEAST_RATIO), *((case, LARGE_RATIO) for case in LARGE)):
        row = record.row(case, "io_uring", "rate by that of device", ratios(figures, case), "1")
        row = record.at_least(row, least)
        rows.append(row)
        failed |= row["value"] < least
        times = f"{row['value']:.2f} times the rate of /dev/fuse"
        print(f"{case}: {times} ({row['bar']}: {row['verdict']})")
    if arguments.libfuse:
        pairs = zip(figures[ONE, "io_uring", "p50"], figures[ONE, LIBFUSE, "p50"], strict=True)
        latency = record.row(
            ONE, "io_uring", "p50 by that of libfuse", [o / t for o, t in pairs], "1"
        )
        rows.append(record.at_most(latency, 1.0))
        failed |= rows[-1]["value"] > 1.0
        print(f"{ONE}: {rows[-1]['value']:.2f} times libfuse's p50 ({rows[-1]['verdict']})")
    slower = planted(runtime_s)
    print(f"planted: a disk of 60 us: {'found' if slower else 'NOT FOUND'}")
    record.keep(arguments.record, rows, {"a disk of 60 us": slower})
    return int(failed or not slower)


if __name__ == "__main__":
    sys.exit(main())
