"""What tracing adds to a 4 KiB cached read: penstock and its peers, interleaved in one run.

Every round runs each engine once, in random order; differences are taken within a round. The base of
penstock's figures is an empty program on the same hooks (mode count has none at the entry), of the
others the untraced program. `fentry body` is what runs on fentry and fexit, safe against interruption,
put on tracepoints. CPU time is that of the traced process. `bystander` is a process outside the traced
group while tracing is armed. Peers: strace, perf trace, bpftrace, the kernel's own events.
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

from penstock.host.cgroup import create_run_cgroup
from penstock.host.daemon import start_daemon
from penstock.host.journal import Journal
from penstock.host.launch import launch
from penstock.host.mounts import mounts_at, unmount

CASE = "4 KiB cached pread"
#: our engines: configuration of the daemon, whether the program is in the traced group, and the base
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
}
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

    def words(self, operations: int) -> list[str]:
        return [str(self.program), str(self.file), str(operations)]

    def run(self, engine: str) -> Figures:
        if engine in OURS:
            return self.run_ours(engine)
        if engine == "strace":
            line = ["strace", "-f", "-e", "trace=pread64", "-o", "/dev/null"]
            return self.figures(subprocess_output([*line, *self.words(STRACE_OPERATIONS)]))
        if engine == "perf trace":
            line = ["perf", "trace", "-e", "pread64", "-o", "/dev/null", "--"]
            return self.figures(subprocess_output([*line, *self.words(self.operations)]))
        if engine == "ftrace events":
            with ftrace_instance():
                line = ["sh", "-c", f'echo $$ > {INSTANCE}/set_event_pid; exec "$@"', "sh"]
                return self.figures(subprocess_output([*line, *self.words(self.operations)]))
        script = BPFTRACE[engine]
        answer = self.directory / "answer"
        answer.unlink(missing_ok=True)
        inner = " ".join([*self.words(self.operations), str(answer)])
        subprocess_output(["bpftrace", "-e", script, "-c", inner])
        return self.figures(answer.read_text())

    def run_ours(self, engine: str) -> Figures:
        answer = self.directory / "answer"
        config, inside, _ = OURS[engine]
        with contextlib.ExitStack() as stack:
            # a bystander runs in a group of its own, like the one that is traced
            group = stack.enter_context(create_run_cgroup("bench", None, self.journal))
            other = stack.enter_context(create_run_cgroup("beside", None, self.journal))
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
            launch(self.words(self.operations), group if inside else other, stdout=answer)
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


def subprocess_output(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout


@contextlib.contextmanager
def tracefs(journal: Journal) -> Iterator[None]:
    """bpftrace needs it; mounted for the bench, taken away if it was not there."""
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
        rows.append({**row, "low": low, "high": high, "n": len(values)})

    for engine, figures in results.items():
        base = OURS[engine][2] if engine in OURS else "none"
        for which, name in enumerate(METRICS):
            if not base or engine.startswith("empty"):
                row(engine, f"{name}_ns_per_operation", [f[which] for f in figures], "ns")
            if base:
                pairs = zip(figures, results[base], strict=True)
                added = [mine[which] - other[which] for mine, other in pairs]
                row(engine, f"added_{name}_ns_above_{base.replace(' ', '_')}", added, "ns")
        if base:
            pairs = zip(figures, results[base], strict=True)
            ratios = [mine[2] / other[2] for mine, other in pairs]
            row(engine, f"p99.9_latency_over_{base.replace(' ', '_')}", ratios, "", 3)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--operations", type=int, default=400_000)
    parser.add_argument("--ours-only", action="store_true", help="without strace and bpftrace")
    asked = parser.parse_args()
    engines = list(OURS)
    if not asked.ours_only:
        engines += [name for name, program in PEERS.items() if shutil.which(program)]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        bench = Bench(Path(name), asked.operations)
        results: dict[str, list[Figures]] = {engine: [] for engine in engines}
        with contextlib.ExitStack() as stack:
            if not asked.ours_only:
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
            for number in range(asked.rounds):
                for engine in random.sample(engines, len(engines)):
                    results[engine].append(bench.run(engine))
                print(f"round {number + 1} of {asked.rounds}", file=sys.stderr)
    rows = rows_of(results)
    if asked.json:
        print(json.dumps({"rows": rows, "lost": bench.lost, "kept": bench.kept}))
        return 0
    for r in rows:
        print(
            f"{r['engine']:<21} {r['metric']:<35} {r['value']:>8} {r['unit']:2} "
            f"[{r['low']}, {r['high']}]  n={r['n']}"
        )
    for mode in bench.lost:
        share = bench.tracer_cpu_ns[mode] / max(bench.kept[mode], 1)
        print(
            f"{mode}: lost {bench.lost[mode]} of {bench.kept[mode]}, reader {share:.1f} ns CPU each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
