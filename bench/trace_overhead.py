"""Overhead of tracing on a 4 KiB cached read: penstock and other tools, interleaved in one run.

Every round runs each engine once, in random order; differences are taken within a round. penstock's figures
are relative to an empty program on the same hooks (mode count has none at the entry), those of other tools to
the untraced program. `fentry body` is the program of fentry and fexit, which is safe against interruption, on
tracepoints. CPU time is that of the traced process. `bystander` is a process outside the traced group during
tracing. Other tools: strace, perf trace, bpftrace, the kernel's own events. Planted failure: `20 calls more`,
reads with 20 system calls each, which must exceed the limit of tracing.

Then storms of forks, execs, threads, opens, mappings and renames in mode trace: added processor time per
operation, from runs with and without tracing in turns, and the receipts of the traced runs. The receipt must
be within 20 % of the measured value; if the interval of the measurement is wider, the row is `undecided`. A
receipt without one group of programs must be detected as wrong. Exit status 1 if a goal is missed or a
planted failure is not detected.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import start_daemon
from penstock.host.processes.launch import launch
from penstock.host.storage.mounts import mounts_at, unmount
from penstock.observe.trace.capture.overhead import added_by_programs, cost_of
from penstock.state import state_dir

CASE = "4 KiB cached pread"
#: penstock's engines: configuration of the daemon, true if the program is in the traced group, the reference
OURS: dict[str, tuple[dict[str, object] | None, bool, str]] = {
    "none": (None, True, ""),
    "empty": ({"mode": "empty"}, True, "none"),
    "empty exit": ({"mode": "empty", "exits_only": True}, True, "none"),
    "count": ({"mode": "count"}, True, "empty exit"),
    "pattern": ({"mode": "pattern"}, True, "empty"),
    "trace": ({"mode": "trace"}, True, "empty"),
    "pattern, fentry body": ({"mode": "pattern", "interruptible": True}, True, "empty"),
    "trace, fentry body": ({"mode": "trace", "interruptible": True}, True, "empty"),
    "bystander": ({"mode": "trace"}, False, "empty"),
    "20 calls more": (None, True, "none"),
}
#: engine → limit of the added time [ns of processor time]
GOALS = {
    "pattern": 70.0,
    "trace": 150.0,
    "pattern, fentry body": 70.0,
    "trace, fentry body": 150.0,
    "bystander": 30.0,
}
#: minimum number of rounds for a 95 % interval by order statistics
FEWEST = 6
MODES = ("count", "pattern", "trace")
BPFTRACE = {
    "bpftrace count": "tracepoint:syscalls:sys_exit_pread64 /pid == cpid/ { @ = count(); }",
    "bpftrace printf": 'tracepoint:syscalls:sys_exit_pread64 /pid == cpid/ { printf("%d\\n", args->ret); }',
}
PEERS = {
    "strace": "strace",
    "perf trace": "perf",
    "ftrace events": "mount",
    **dict.fromkeys(BPFTRACE, "bpftrace"),
}
STRACE_OPERATIONS = 10_000
METRICS = ("cpu", "wall")
Figures = tuple[float, float, float]
#: kind of storm (storms.c) and number of operations of a run of about a quarter of a second
STORMS = {
    "fork": 2000,
    "exec": 300,
    "thread": 16000,
    "open": 150000,
    "mmap": 16000,
    "rename": 16000,
}
#: largest accepted ratio of a receipt to the measured value
LIKE = 1.2
#: programs missing in the planted receipt: those of faults, forks and exits
PLANTED = "others"
INSTANCE = Path("/sys/kernel/tracing/instances/penstock-bench")


class Bench:
    def __init__(self, directory: Path, operations: int):
        self.directory = directory
        self.operations = operations
        self.journal = Journal()
        self.file = directory / "cached"
        self.file.write_bytes(os.urandom(4 << 20))
        self.program = directory / "cached_read"
        source = Path(__file__).with_name("cached_read.c")
        subprocess.run(["cc", "-O2", "-o", self.program, source], check=True)
        self.lost = dict.fromkeys(MODES, 0)
        self.kept = dict(self.lost)
        self.tracer_cpu_ns = dict(self.lost)

    def argv(self, operations: int, calls: int = 0) -> list[str]:
        trailing = ["-", str(calls)] if calls else []
        return [str(self.program), str(self.file), str(operations), *trailing]

    def run(self, engine: str) -> Figures:
        if engine in OURS:
            return self.run_ours(engine)
        if engine == "strace":
            line = ["strace", "-f", "-e", "trace=pread64", "-o", "/dev/null"]
            return self.figures(subprocess_output([*line, *self.argv(STRACE_OPERATIONS)]))
        if engine == "perf trace":
            line = ["perf", "trace", "-e", "pread64", "-o", "/dev/null", "--"]
            return self.figures(subprocess_output([*line, *self.argv(self.operations)]))
        if engine == "ftrace events":
            with ftrace_instance():
                line = ["sh", "-c", f'echo $$ > {INSTANCE}/set_event_pid; exec "$@"', "sh"]
                return self.figures(subprocess_output([*line, *self.argv(self.operations)]))
        script = BPFTRACE[engine]
        answer = self.directory / "answer"
        answer.unlink(missing_ok=True)
        inner = " ".join([*self.argv(self.operations), str(answer)])
        subprocess_output(["bpftrace", "-e", script, "-c", inner])
        return self.figures(answer.read_text())

    def run_ours(self, engine: str) -> Figures:
        answer = self.directory / "answer"
        config, inside, _ = OURS[engine]
        with contextlib.ExitStack() as stack:
            # a bystander runs in a separate group, as the traced program does
            group = stack.enter_context(create_run_cgroup("bench", None, self.journal))
            bystander = stack.enter_context(create_run_cgroup("beside", None, self.journal))
            daemon = None
            if config is not None:
                daemon = stack.enter_context(start_daemon("tracer", dict(config), self.journal))
                if config["mode"] != "empty":
                    daemon.call(
                        "arm",
                        cgroup_id=group.cgroup_id,
                        spool=str(self.directory / "spool"),
                        files=str(self.directory / "files"),
                    )
            calls = 20 if engine == "20 calls more" else 0
            argv = self.argv(self.operations, calls)
            launch(argv, group if inside else bystander, stdout=answer)
            if daemon is not None and engine in MODES:
                receipt = daemon.call("disarm")
                self.lost[engine] += receipt["lost"]
                self.kept[engine] += receipt["kept"]
                self.tracer_cpu_ns[engine] += receipt["cpu_ns"]
        return self.figures(answer.read_text())

    @staticmethod
    def figures(text: str) -> Figures:
        cpu, wall, late = map(float, text.split()[-3:])
        return cpu, wall, late


class Storms:
    """Runs with and without tracing in turns: processor time per operation [ns], and the receipts."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.journal = Journal()
        self.program = directory / "storms"
        source = Path(__file__).with_name("storms.c")
        subprocess.run(["cc", "-O2", "-pthread", "-o", self.program, source], check=True)
        self.cost = cost_of("trace", self.journal, state_dir(), again=True)
        self.added: dict[str, list[float]] = {kind: [] for kind in STORMS}
        self.without: dict[str, list[float]] = {kind: [] for kind in STORMS}
        self.reported: dict[str, list[float]] = {kind: [] for kind in STORMS}
        self.planted: dict[str, list[float]] = {kind: [] for kind in STORMS}
        self.lost = 0

    def round(self, first_traced: bool) -> None:
        on = self.traced() if first_traced else {}
        off = {kind: self.run(kind) for kind in STORMS}
        on = on or self.traced()
        for kind, count in STORMS.items():
            cpu_ns, receipt = on[kind]
            self.without[kind].append(off[kind])
            self.added[kind].append(cpu_ns - off[kind])
            self.reported[kind].append(self.by_receipt(receipt) / count)
            self.planted[kind].append(self.by_receipt(without_group(receipt)) / count)
            self.lost += receipt["lost"]

    def by_receipt(self, receipt: dict[str, Any]) -> float:
        added = added_by_programs(receipt["metering"], self.cost)
        if added is None:
            raise SystemExit(f"the kernel gave no account: {receipt['metering']['refused']}")
        return added.ns

    def traced(self) -> dict[str, tuple[float, dict[str, Any]]]:
        by_kind = {}
        with start_daemon("tracer", {"mode": "trace"}, self.journal) as daemon:
            for kind in STORMS:
                with create_run_cgroup("bench", None, self.journal) as group:
                    spool, names = (str(self.directory / name) for name in ("spool", "files"))
                    daemon.call("arm", cgroup_id=group.cgroup_id, spool=spool, files=names)
                    cpu_ns = self.run(kind, group)
                    by_kind[kind] = cpu_ns, daemon.call("disarm")
        return by_kind

    def run(self, kind: str, group: RunCgroup | None = None) -> float:
        with contextlib.ExitStack() as stack:
            if group is None:
                group = stack.enter_context(create_run_cgroup("bench", None, self.journal))
            answer, place = self.directory / "answer", self.directory / "place"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            launch([str(self.program), str(place), kind, str(STORMS[kind])], group, stdout=answer)
            return float(answer.read_text().split()[0])

    def rows(self) -> list[dict[str, object]]:
        rows = []
        for kind in STORMS:
            measured = interval(self.added[kind])
            reported = interval(self.reported[kind])
            planted = interval(self.planted[kind])
            for metric, figures in [
                ("cpu_ns_per_operation", interval(self.without[kind])),
                ("added_cpu_ns", measured),
                ("added_ns_by_receipt", reported),
                ("added_ns_by_planted_receipt", planted),
            ]:
                value, low, high = (round(x, 1) for x in figures)
                row = {"case": f"{kind} storm", "engine": "trace", "metric": metric}
                row |= {"value": value, "unit": "ns", "low": low, "high": high}
                rows.append({**row, "n": len(self.added[kind])})
            ratio = reported[0] / measured[0] if measured[0] > 0 else float("nan")
            row = {"case": f"{kind} storm", "engine": "trace", "metric": "receipt_over_measured"}
            row |= {
                "value": round(ratio, 3),
                "unit": "",
                "low": round(reported[0] / measured[2], 3),
            }
            row |= {
                "high": round(reported[0] / max(measured[1], 1e-9), 3),
                "n": len(self.added[kind]),
            }
            verdict = {
                "verdict": agreement(reported[0], measured),
                "planted": agreement(planted[0], measured),
            }
            rows.append({**row, **verdict})
        return rows


def without_group(receipt: dict[str, Any]) -> dict[str, Any]:
    """The planted failure: a receipt without one group of programs."""
    none = dict.fromkeys(receipt["metering"][PLANTED], 0)
    return receipt | {"metering": receipt["metering"] | {PLANTED: none}}


def agreement(reported: float, measured: tuple[float, float, float]) -> str:
    """Agreement of a receipt with the measurement; `undecided` if the interval of the measurement is too
    wide.
    """
    value, low, high = measured
    if low <= 0 or high / low > LIKE * LIKE:
        outside = reported * LIKE < low or reported > high * LIKE
        return "failed" if outside else "undecided"
    return "passed" if value / LIKE <= reported <= value * LIKE else "failed"


@contextlib.contextmanager
def ftrace_instance() -> Iterator[None]:
    """The kernel's own recording of pread64, of the processes written to set_event_pid."""
    INSTANCE.mkdir()
    try:
        for name in ("sys_enter_pread64", "sys_exit_pread64"):
            (INSTANCE / "events" / "syscalls" / name / "enable").write_text("1")
        yield
    finally:
        INSTANCE.rmdir()


def subprocess_output(argv: list[str]) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    return result.stdout


@contextlib.contextmanager
def tracefs(journal: Journal) -> Iterator[None]:
    """bpftrace needs it; mounted for the bench, and unmounted afterwards if it was not mounted before."""
    point = "/sys/kernel/tracing"
    if mounts_at(point):
        yield
        return
    entry = journal.plan("tracefs", point)
    subprocess.run(["mount", "-t", "tracefs", "tracefs", point], check=True)
    journal.done(entry)
    try:
        yield
    finally:
        unmount(point)
        journal.undone(entry)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval by order statistics (exact, Conover 1999, section 3.2)."""
    from scipy.stats import binom

    ordered = sorted(values)
    n = len(ordered)
    low = max(int(binom.ppf(0.025, n, 0.5)) - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[n - 1 - low]


def rows_of(results: dict[str, list[Figures]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def row(engine: str, metric: str, values: list[float], unit: str, digits: int = 1) -> None:
        value, low, high = (round(x, digits) for x in interval(values))
        row = {"case": CASE, "engine": engine, "metric": metric, "value": value, "unit": unit}
        rows.append(with_goal({**row, "low": low, "high": high, "n": len(values)}))

    for engine, figures in results.items():
        base = OURS[engine][2] if engine in OURS else "none"
        for which, name in enumerate(METRICS):
            if not base or engine.startswith("empty"):
                row(engine, f"{name}_ns_per_operation", [f[which] for f in figures], "ns")
            if base:
                pairs = zip(figures, results[base], strict=True)
                added = [traced[which] - reference[which] for traced, reference in pairs]
                row(engine, f"added_{name}_ns_above_{base.replace(' ', '_')}", added, "ns")
        if base:
            pairs = zip(figures, results[base], strict=True)
            ratios = [traced[2] / reference[2] for traced, reference in pairs]
            row(engine, f"p99.9_latency_over_{base.replace(' ', '_')}", ratios, "", 3)
    return rows


def with_goal(row: dict[str, Any]) -> dict[str, Any]:
    """Add the goal to a row that has one and enough rounds for an interval; mark quoted rows."""
    row = {**row, "quoted": row["engine"] in OURS and "added_cpu" in row["metric"]}
    if row["n"] < FEWEST:
        return row
    row["spread"] = record.INTERVAL
    judges = row["quoted"] and row["engine"] in GOALS
    return record.at_most(row, GOALS[row["engine"]]) if judges else row


def reads(options: argparse.Namespace) -> tuple[list[dict[str, object]], Bench]:
    """Cached reads by every engine, in random order in every round."""
    engines = list(OURS)
    if not options.ours_only:
        engines += [name for name, program in PEERS.items() if shutil.which(program)]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        bench = Bench(Path(name), options.operations)
        results: dict[str, list[Figures]] = {engine: [] for engine in engines}
        with contextlib.ExitStack() as stack:
            if not options.ours_only:
                stack.enter_context(tracefs(bench.journal))
            for engine in list(engines):
                try:
                    bench.run(engine)  # a warm-up, not counted
                except (OSError, subprocess.CalledProcessError) as error:
                    if engine in OURS:
                        raise
                    print(f"{engine}: not run: {error}", file=sys.stderr)
                    engines.remove(engine)
                    del results[engine]
            for number in range(options.rounds):
                for engine in random.sample(engines, len(engines)):
                    results[engine].append(bench.run(engine))
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    return rows_of(results), bench


def storms(rounds: int) -> tuple[list[dict[str, object]], Storms]:
    """Storms with and without tracing; the order alternates from round to round."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        bench = Storms(Path(name))
        for number in range(rounds):
            bench.round(number % 2 == 1)
            print(f"storms, round {number + 1} of {rounds}", file=sys.stderr)
    return bench.rows(), bench


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--operations", type=int, default=400_000)
    parser.add_argument("--ours-only", action="store_true", help="without strace and bpftrace")
    parser.add_argument("--part", choices=["reads", "storms"], help="only this part")
    parser.add_argument(
        "--quick", action="store_true", help="three short rounds of penstock's engines, reads only"
    )
    record.option(parser)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.operations, arguments.ours_only = 3, 100_000, True
        arguments.part = arguments.part or "reads"
    planted: dict[str, bool | None] = {}
    rows: list[dict[str, object]] = []
    lost: dict[str, int] = {}
    kept: dict[str, int] = {}
    notes = []
    if arguments.part != "storms":
        rows, bench = reads(arguments)
        planted_rows = [
            r for r in rows if r["engine"] == "20 calls more" and "added_cpu" in r["metric"]
        ]
        planted["20 system calls beside each read"] = planted_rows[0]["low"] > GOALS["trace"]
        rows = [row for row in rows if row not in planted_rows]
        lost, kept = bench.lost, bench.kept
        for mode in MODES:
            share = bench.tracer_cpu_ns[mode] / max(kept[mode], 1)
            notes.append(
                f"{mode}: lost {lost[mode]} of {kept[mode]}, reader {share:.1f} ns CPU each"
            )
    verdicts: list[dict[str, object]] = []
    if arguments.part != "reads":
        more, stormy = storms(arguments.rounds)
        rows += more
        lost = lost | {"storms": stormy.lost}
        verdicts = [row for row in more if "verdict" in row]
    undetected = bool(verdicts) and not any(row["planted"] == "failed" for row in verdicts)
    if arguments.part != "reads":
        planted["a receipt without a group of programs"] = not undetected
    if undetected:
        notes.append("the planted receipt, without a group of programs, was not found wrong")
    if arguments.json:
        print(json.dumps({"rows": rows, "lost": lost, "kept": kept}))
    else:
        for r in rows:
            print(
                f"{r['case']:<18} {r['engine']:<21} {r['metric']:<35} {r['value']:>10} {r['unit']:2} "
                f"[{r['low']}, {r['high']}]  n={r['n']}  {r.get('verdict', '')}"
            )
    for line in notes:
        print(line, file=sys.stderr)
    for failure, seen in planted.items():
        print(f"planted, {failure}: {'found' if seen else 'NOT FOUND'}", file=sys.stderr)
    record.keep(arguments.record, [record_row(row) for row in rows], planted)
    missed = any(row.get("verdict") in ("failed", record.MISSED) for row in rows)
    return 1 if missed or not all(planted.values()) else 0


def record_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the verdicts of recorded results: storms use other words for them."""
    verdicts = {"passed": record.MET, "failed": record.MISSED}
    if "planted" not in row:
        return row
    verdict = verdicts.get(row["verdict"], row["verdict"])
    bar = f"within {100 * (LIKE - 1):.0f} %"
    return {**row, "verdict": verdict, "bar": bar, "quoted": True}


if __name__ == "__main__":
    sys.exit(main())
