"""Highest rate of reads that tracing sustains, with every read accounted for.

A program reads one cached byte as often as possible on every CPU; its own count is the truth. Without
tracing, and in each mode, rows have: operations per second, lost events, events in no count (`unaccounted`:
must be 0), the reader's CPU, the bytes that it writes and its largest memory. `--stop` stops the reader for 5
s with a ring of 8 MiB: then events must be lost, and every loss counted. Planted failures: a record in a
million is dropped, which must be counted as lost; reads of an untraced program are added to the truth, which
must be unaccounted. Exit status 1 if one of the two is not detected, or if a real event is unaccounted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import start_daemon
from penstock.host.processes.launch import launch

CASE = "1-byte cached pread on every CPU"
MIB = 1 << 20


def argv_of(place: Path, seconds: float, answer: str = "answer") -> list[str]:
    """Command line of the program."""
    threads = os.cpu_count() or 1
    program, file = place / "read_rate", place / "file"
    return [str(program), str(file), str(seconds), str(threads), str(place / answer)]


def untraced(seconds: float, place: Path) -> list[record.Row]:
    """The same program without the tracer."""
    with create_run_cgroup("rate", None, Journal()) as group:
        done = launch(argv_of(place, seconds), group)
    rate = int((place / "answer").read_text()) / done.wall_s
    return [record.row(CASE, "untraced", "operations_per_s", [rate], "1/s")]


def measure(
    mode: str,
    seconds: float,
    place: Path,
    ring_mib: int = 64,
    stop_s: float = 0,
    drop_every: int = 0,
    untraced_reads: bool = False,
) -> list[record.Row]:
    """Rows of one mode; with `untraced_reads`, the truth includes reads that are not traced."""
    journal, spool = Journal(), place / "spool"
    config = {"mode": mode, "ring_bytes": ring_mib * MIB, "drop_every": drop_every}
    with (
        create_run_cgroup("rate", None, journal) as group,
        start_daemon("tracer", config, journal) as daemon,
    ):
        daemon.call("arm", cgroup_id=group.cgroup_id, spool=str(spool), files=str(place / "files"))
        if stop_s:
            threading.Thread(target=hold, args=(daemon.pid, stop_s), daemon=True).start()
        with most_memory(daemon.pid) as resident:
            result = launch(argv_of(place, seconds), group)
            if untraced_reads:
                subprocess.run(argv_of(place, 0.1, "beside"), check=True)
            receipt = daemon.call("disarm", timeout_s=300)
    truth = int((place / "answer").read_text())
    truth += int((place / "beside").read_text()) if untraced_reads else 0
    stored, lost = receipt["kept"], receipt["lost"]
    # other calls of the program than its reads (start, output) are fewer than a thousand
    other_calls = stored + lost - truth
    figures = {
        "operations_per_s": (truth / result.wall_s, "1/s"),
        "operations": (truth, ""),
        "lost": (lost, ""),
        "unaccounted": (0 if 0 <= other_calls < 1000 else other_calls, ""),
        "unbalanced": (receipt["seen"] - stored - lost - receipt["filtered"], ""),
        "missing_in_spool": (stored - receipt["spooled"] if mode == "trace" else 0, ""),
        "reader_cpu_per_event": (receipt["cpu_ns"] / max(stored, 1), "ns"),
        "written_per_s": (spool.stat().st_size / result.wall_s, "B/s"),
        "reader_peak_resident": (max(resident), "B"),
    }
    engine = f"penstock {mode}" + (f", reader held for {stop_s:g} s" if stop_s else "")
    spool.unlink()
    rows = [record.row(CASE, engine, m, [round(v, 1)], unit) for m, (v, unit) in figures.items()]
    must_be_zero = {"unaccounted", "unbalanced", "missing_in_spool"} | (
        set() if stop_s else {"lost"}
    )
    return [_none(row) if row["metric"] in must_be_zero else row for row in rows]


def _none(row: record.Row) -> record.Row:
    """The number must be 0."""
    return {**row, "bar": "0", "verdict": record.MISSED if row["value"] else record.MET}


def hold(pid: int, seconds: float) -> None:
    """Stop the reader for a while."""
    time.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def most_memory(pid: int) -> Iterator[list[int]]:
    """Largest memory of a process, sampled ten times a second; the rings belong to the kernel."""
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        status = Path(f"/proc/{pid}/status").read_text()
        seen.append(int(status.split("RssAnon:")[1].split()[0]) * 1024)

    def watch() -> None:
        while not ended.wait(0.1):
            look()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
        look()
    finally:
        ended.set()
        watching.join()


def value_of(rows: list[record.Row], metric: str) -> float:
    """Value of a metric in the rows of one mode."""
    return float(next(row["value"] for row in rows if row["metric"] == metric))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="3 s instead")
    parser.add_argument("--stop", action="store_true", help="hold the reader for 5 s")
    record.option(parser)
    arguments = parser.parse_args()
    seconds = 3 if arguments.quick else arguments.seconds
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        place = Path(name)
        (place / "file").write_bytes(os.urandom(4 * MIB))
        source = Path(__file__).with_name("read_rate.c")
        program = place / "read_rate"
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
        rows = untraced(seconds, place)
        if arguments.stop:
            rows += measure("trace", max(seconds, 7), place, 8, 5.0)
        else:
            for mode in ("count", "pattern", "trace"):
                rows += measure(mode, seconds, place)
        dropped = measure("trace", 3, place, drop_every=1_000_000)
        with_untraced = measure("trace", 1, place, untraced_reads=True)
    planted = {
        "a record in a million dropped": value_of(dropped, "lost") > 0
        and value_of(dropped, "unaccounted") == 0,
        "reads that are not traced": value_of(with_untraced, "unaccounted") != 0,
    }
    if arguments.json:
        print(json.dumps({"rows": rows}))
    for row in rows if not arguments.json else ():
        print(f"{row['engine']:<40} {row['metric']:<22} {row['value']:>16,} {row['unit']}")
    for failure, detected in planted.items():
        print(f"planted, {failure}: {'found' if detected else 'NOT FOUND'}", file=sys.stderr)
    record.keep(arguments.record, rows, planted)
    uncounted = any(r.get("verdict") == record.MISSED for r in rows if r["metric"] != "lost")
    nothing_lost = arguments.stop and not any(r["value"] for r in rows if r["metric"] == "lost")
    return int(uncounted or nothing_lost or not all(planted.values()))


if __name__ == "__main__":
    sys.exit(main())
