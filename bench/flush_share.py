"""Share of flushes in the time of a run, by `penstock trace` and by strace.

A SQLite loader (journal mode x synchronous), PostgreSQL (synchronous_commit) and RocksDB (sync) run on an
emulated 7200 rpm drive under `penstock trace -- strace -f -c -w`, so that both see the same flushes. The
share is the time of flushes in all threads, divided by the wall time of the run. A case passes if the median
share is within 2 points of strace's, and the findings of the trace mention flushes exactly if they take a
fifth of the run or more. Planted failure: flushes of directories are ignored, as by a tracer of files only.
Exit status 1 if a case fails or the planted failure is not detected.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record
from penstock.analyse.traces.traced_run import TracedRun
from penstock.emulate.disks.server import DiskServer
from penstock.host.journal.journal import Journal
from penstock.profile import load_profile

ROOT = Path(__file__).resolve().parents[1]
LIMIT_POINTS, MENTIONED_SHARE = 2.0, 0.2
FLUSHES = ("fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync")
MENTION_FLUSHES = ("trace-fsync-storm", "trace-flush-bound")
LOADER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
db.execute(f"PRAGMA synchronous = {sys.argv[3]}")
db.execute("CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b TEXT)")
for first in range(int(sys.argv[4])):
    with db:
        db.executemany("INSERT INTO t (b) VALUES (?)", (("x" * 200,) for _ in range(50)))
"""
PGBENCH = """
. "$1/examples/postgres/server.sh"
pg_start "$2/pg"
PGOPTIONS="-c synchronous_commit=$3" as "$bin/pgbench" -h "$sockets" -U postgres -n -c 1 -t "$4" postgres
"""


@dataclass(frozen=True)
class Case:
    """A program by its arguments, in which `{at}` is the disk; `anew`: directories that are empty at each
    start.
    """

    name: str
    argv: tuple[str, ...]
    anew: str = ""


def sqlite(journal: str, synchronous: str, transactions: int) -> Case:
    """The loader, with N transactions."""
    argv = (sys.executable, "-c", LOADER, "{at}/db/t.db", journal, synchronous, str(transactions))
    return Case(f"SQLite, {journal}, synchronous {synchronous}", argv, "db")


def postgres(commit: str, transactions: int) -> Case:
    """pgbench's own transactions with one client; the server starts and stops in the run."""
    argv = ("bash", "-ceu", PGBENCH, "pgbench", str(ROOT), "{at}", commit, str(transactions))
    return Case(f"PostgreSQL, synchronous_commit {commit}", argv)


def rocks(sync: int, entries: int) -> Case:
    """db_bench, with N entries."""
    job = ("--benchmarks=fillrandom", f"--num={entries}", f"--sync={sync}", "--threads=1")
    return Case(f"RocksDB, sync {sync}", ("db_bench", "--db={at}/rocks", *job), "rocks")


def cases(quick: bool) -> list[Case]:
    """All cases, or one per program."""
    divisor = 3 if quick else 1
    chosen = [sqlite("DELETE", "FULL", 60 // divisor), sqlite("WAL", "OFF", 3000 // divisor)]
    if not quick:
        chosen += [
            sqlite("WAL", "FULL", 120),
            sqlite("DELETE", "OFF", 1500),
            sqlite("WAL", "NORMAL", 1500),
        ]
    if list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        chosen += [postgres("on", 300 // divisor)] + ([] if quick else [postgres("off", 3000)])
    if shutil.which("db_bench"):
        chosen += [rocks(1, 400 // divisor)] + ([] if quick else [rocks(0, 50_000)])
    return chosen


@dataclass(frozen=True)
class Shares:
    """Time of flushes divided by the wall time of a run: by strace, by the trace, by the trace without
    directories; `correct` if the findings of the trace are.
    """

    strace: float
    trace: float
    of_files: float
    correct: bool


def by_strace(summary: Path) -> float:
    """Seconds of all flushes that `strace -c -w` counted."""
    lines = re.findall(r"^\s*[\d.]+\s+([\d.]+)\s+\d+\s+\d+.*\s(\w+)$", summary.read_text(), re.M)
    return sum(float(seconds) for seconds, call in lines if call in FLUSHES)


def once(argv: Sequence[str], work: Path) -> Shares:
    """One run, observed by both."""
    bundle, strace_summary = work / "bundle", work / "strace"
    shutil.rmtree(bundle, ignore_errors=True)
    counts = ["strace", "-f", "--seccomp-bpf", "-c", "-w", "-e", f"trace={','.join(FLUSHES)}"]
    traced = [sys.executable, "-m", "penstock", "trace", "-o", str(bundle), "--"]
    subprocess.run(
        [*traced, *counts, "-o", str(strace_summary), *argv], check=True, capture_output=True
    )
    wall_s = json.loads((bundle / "manifest.json").read_text())["responses"]["wall_s"]["value"]
    files = pq.read_table(bundle / "files.parquet").to_pylist()
    paths = {r["file_id"]: r["path"] or "" for r in files}
    rows = pq.read_table(bundle / "operations.parquet").to_pylist()
    flushed = [(paths.get(r["file_id"], ""), r["time_ns"]) for r in rows if r["op"] in FLUSHES]
    all_share = sum(ns for _, ns in flushed) / 1e9 / wall_s
    of_files = sum(ns for path, ns in flushed if not path.endswith("/")) / 1e9 / wall_s
    mentions = any(f.code in MENTION_FLUSHES for f in TracedRun(bundle).findings)
    return Shares(
        by_strace(strace_summary) / wall_s,
        all_share,
        of_files,
        mentions == (all_share >= MENTIONED_SHARE),
    )


def measured(case: Case, mount: Path, work: Path, rounds: int) -> list[Shares]:
    """All runs of a case."""
    argv = [argument.replace("{at}", str(mount)) for argument in case.argv]
    shares = []
    for _ in range(rounds):
        if case.anew:
            shutil.rmtree(mount / case.anew, ignore_errors=True)
            (mount / case.anew).mkdir()
        os.sync()
        shares.append(once(argv, work))
    return shares


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one case of each program, one run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    record.option(parser)
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    rows: list[record.Row] = []
    met, case_count, planted = 0, 0, 0.0
    with tempfile.TemporaryDirectory(prefix="penstock-flushes-") as place:
        base = Path(place)
        base.chmod(0o755)  # the user postgres needs access
        for name in ("backing", "mount"):
            (base / name).mkdir(mode=0o755)
        chosen = [c for c in cases(arguments.quick) if arguments.only in c.name]
        if any(c.name.startswith("PostgreSQL") for c in chosen):
            prepare = ROOT / "examples" / "postgres" / "prepare.sh"
            subprocess.run(
                [str(prepare), str(base / "backing"), "1", "1"], check=True, capture_output=True
            )
        with DiskServer(Journal(), base / "state") as server:
            server.add("flushes", base / "mount", base / "backing", load_profile("hdd-7200"))
            for case in chosen:
                runs = measured(case, base / "mount", base, rounds)
                by_trace, by_files, counted = (
                    100 * statistics.median(values)
                    for values in zip(*((r.trace, r.of_files, r.strace) for r in runs), strict=True)
                )
                correct = sum(r.correct for r in runs)
                holds = abs(by_trace - counted) <= LIMIT_POINTS and correct == len(runs)
                planted = max(planted, counted - by_files)
                met, case_count = met + holds, case_count + 1
                print(
                    f"{case.name}: {by_trace:.1f} % by the trace, {counted:.1f} % by strace, "
                    f"{correct} of {len(runs)} findings correct{'' if holds else '  MISSED'}",
                    flush=True,
                )
                for name, values in (
                    ("trace", [r.trace for r in runs]),
                    ("strace", [r.strace for r in runs]),
                ):
                    shares = [100 * value for value in values]
                    rows.append(record.row(case.name, name, "flushes", shares, "%"))
    detected = planted > LIMIT_POINTS
    print(
        f"without flushes of directories: {planted:.1f} points off, {'found' if detected else 'NOT FOUND'}"
    )
    total_row = record.share(
        "runs",
        "",
        f"flushes within {LIMIT_POINTS:g} points of strace, told where they matter",
        met,
        case_count,
    )
    record.keep(
        arguments.record,
        [{**total_row, "quoted": True}, *rows],
        {"flushes of directories left out": detected},
    )
    return 0 if met == case_count and detected else 1


if __name__ == "__main__":
    sys.exit(main())
