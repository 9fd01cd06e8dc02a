"""What tracing adds to a 4 KiB cached read: penstock beside strace and bpftrace, interleaved in one run.

Every round runs each engine once, in random order; differences are taken within a round. The base of
penstock's figures is an empty program on the same hooks, of the others the untraced program. CPU time is that
of the traced process. `bystander` is a process outside the traced group while tracing is armed.
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
OURS = ("none", "empty", "bystander", "pattern", "trace")
BPFTRACE = {
    "bpftrace count": "tracepoint:syscalls:sys_exit_pread64 /pid == cpid/ { @ = count(); }",
    "bpftrace printf": 'tracepoint:syscalls:sys_exit_pread64 /pid == cpid/ { printf("%d\\n", args->ret); }',
}
STRACE_OPERATIONS = 10_000


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
        self.lost = {"pattern": 0, "trace": 0}
        self.kept = dict(self.lost)
        self.tracer_cpu_ns = dict(self.lost)

    def words(self, operations: int) -> list[str]:
        return [str(self.program), str(self.file), str(operations)]

    def run(self, engine: str) -> tuple[float, float]:
        if engine in OURS:
            return self.run_ours(engine)
        if engine == "strace":
            line = ["strace", "-f", "-e", "trace=pread64", "-o", "/dev/null"]
            return self.figures(subprocess_output([*line, *self.words(STRACE_OPERATIONS)]))
        script = BPFTRACE[engine]
        answer = self.directory / "answer"
        answer.unlink(missing_ok=True)
        inner = " ".join([*self.words(self.operations), str(answer)])
        subprocess_output(["bpftrace", "-e", script, "-c", inner])
        return self.figures(answer.read_text())

    def run_ours(self, engine: str) -> tuple[float, float]:
        answer = self.directory / "answer"
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(create_run_cgroup("bench", None, self.journal))
            daemon = None
            if engine != "none":
                mode = "trace" if engine == "bystander" else engine
                daemon = stack.enter_context(start_daemon("tracer", {"mode": mode}, self.journal))
                if engine != "empty":
                    daemon.call(
                        "arm",
                        cgroup_id=group.cgroup_id,
                        spool=str(self.directory / "spool"),
                        files=str(self.directory / "files"),
                    )
            inside = None if engine == "bystander" else group
            launch(self.words(self.operations), inside, stdout=answer)
            if daemon is not None and engine in self.lost:
                receipt = daemon.call("disarm")
                self.lost[engine] += receipt["lost"]
                self.kept[engine] += receipt["kept"]
                self.tracer_cpu_ns[engine] += receipt["cpu_ns"]
        return self.figures(answer.read_text())

    @staticmethod
    def figures(text: str) -> tuple[float, float]:
        cpu, wall = text.split()[-2:]
        return float(cpu), float(wall)


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


def rows_of(results: dict[str, list[tuple[float, float]]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def row(engine: str, metric: str, values: list[float]) -> None:
        value, low, high = interval(values)
        rows.append(
            {
                "case": CASE,
                "engine": engine,
                "metric": metric,
                "value": round(value, 1),
                "unit": "ns",
                "low": round(low, 1),
                "high": round(high, 1),
                "n": len(values),
            }
        )

    for which, name in enumerate(("cpu", "wall")):
        for base in ("none", "empty"):
            row(base, f"{name}_ns_per_operation", [pair[which] for pair in results[base]])
        for engine, pairs in results.items():
            if engine == "none":
                continue
            base = "none" if engine == "empty" or engine not in OURS else "empty"
            differences = [
                mine[which] - other[which] for mine, other in zip(pairs, results[base], strict=True)
            ]
            row(engine, f"added_{name}_ns_above_{base}", differences)
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
        engines += [name for name in ("strace", *BPFTRACE) if shutil.which(name.split()[0])]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        bench = Bench(Path(name), asked.operations)
        results: dict[str, list[tuple[float, float]]] = {engine: [] for engine in engines}
        with contextlib.ExitStack() as stack:
            if any(engine in BPFTRACE for engine in engines):
                stack.enter_context(tracefs(bench.journal))
            for engine in engines:
                bench.run(engine)  # a warm-up, not counted
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
            f"{r['engine']:<16} {r['metric']:<30} {r['value']:>9} ns  [{r['low']}, {r['high']}]  n={r['n']}"
        )
    for mode in bench.lost:
        share = bench.tracer_cpu_ns[mode] / max(bench.kept[mode], 1)
        print(
            f"{mode}: lost {bench.lost[mode]} of {bench.kept[mode]}, reader {share:.1f} ns CPU each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
