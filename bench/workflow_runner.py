"""Runner of workflows: overhead per task, resuming after kill -9, dead storage nodes, instances of WfCommons.

A MooseFS on 8 nodes runs 1,000 short programs. Then a small workflow of programs is killed at 20 points and
resumed: no completed task may start twice, and all results must be correct. Then storage nodes are killed,
with two copies of each chunk and with one. Planted failure: the entry of a completed task is removed from a
journal, which makes it start twice.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow.parquet as pq

from bench import record
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo

Row = dict[str, Any]
MOST_OVERHEAD_MS = 20.0
PATIENCE_S = 900.0
NAME = "bench-wf"
WIDTH = 4
PLATFORM = """
penstock_platform: 1
name: {name}
hosts:
  - {{group: head, count: 1, roles: [manager], manager: {{service: 0.5ms}}}}
  - group: node
    count: {nodes}
    roles: [storage, client]
    storage: {{read: 1ms, write: 1ms}}
    disks: [{{name: store, limits: {{read: 400MB/s, write: 400MB/s}}}}]
network: {{bandwidth: 1 Gbit/s, loopback: 1 GB/s, subnet: 10.92.0.0/24}}
store: {{engine: moosefs, replicas: {copies}}}
"""


class Ground:
    """A directory with its own state, and a running store."""

    def __init__(self, directory: Path, nodes: int, copies: int) -> None:
        self.where = directory
        own = {
            "PENSTOCK_STATE": str(directory / "state"),
            "PENSTOCK_RUNTIME": str(directory / "run"),
        }
        self.environment = {**os.environ, **own}
        platform = PLATFORM.format(name=NAME, nodes=nodes, copies=copies)
        (directory / "p.yaml").write_text(platform)
        self.penstock("store", "up", "-p", "p.yaml")

    def begin(self, *argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "penstock", *argv],
            env=self.environment,
            cwd=self.where,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def penstock(self, *argv: str) -> str:
        child = self.begin(*argv)
        text, _ = child.communicate(timeout=PATIENCE_S)
        if child.returncode:
            raise SystemExit(f"{' '.join(argv)}: status {child.returncode}: {text}")
        return text

    def workflow(self, name: str, tasks: list[Row], files: list[Row]) -> list[str]:
        values = {"schema": "penstock/workload/1", "name": name, "files": files, "tasks": tasks}
        (self.where / f"{name}.json").write_text(json.dumps(values))
        return ["workflow", "run", f"{name}.json", "-p", "p.yaml", "--no-predict", "-o", name]

    def place(self, out: str) -> Path:
        """Directory of a run in the store, as a node sees it."""
        rows = [json.loads(line) for line in journal_lines(self.where / out)]
        name = next(row["head"]["directory"] for row in rows if "head" in row)
        return Path(f"/proc/{processes('node-0')[0][0]}/root/store/{name}")

    def starts(self, out: str) -> dict[str, int]:
        """By task: number of its starts."""
        return {p.name[4:]: len(p.read_text().split()) for p in self.place(out).glob("ran.*")}


def journal_lines(out: Path) -> list[str]:
    """Entries of a journal; none before it exists."""
    try:
        lines = (out / "journal.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line.startswith("{") and line.endswith("}")]


def processes(node: str) -> list[tuple[int, str]]:
    """Processes of a node: pid, and name of the command."""
    rows = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"penstock-{NAME}-{node}-" in (process / "cgroup").read_text():
                rows.append((int(process.name), (process / "comm").read_text().strip()))
        except OSError:
            continue
    return sorted(rows)


def task(name: str, script: str, reads: list[str], writes: str) -> Row:
    operations: list[Row] = [{"op": "read", "file": file, "size_bytes": 1} for file in reads]
    operations.append({"op": "write", "file": writes, "size_bytes": 1})
    command = {"program": "sh", "arguments": ["-c", script]}
    return {"name": name, "stage": name.split("-")[0], "operations": operations, "command": command}


def chain(pause_s: float) -> list[Row]:
    """Sort and compress files of words, and merge all; each start adds a line to a file."""
    count = f'echo x >> "ran.$PENSTOCK_TASK"; sleep {pause_s}; '
    tasks = []
    for i in range(WIDTH):
        tasks.append(
            task(f"sort-{i}", f"{count} sort words-{i} > sorted-{i}", [f"words-{i}"], f"sorted-{i}")
        )
        tasks.append(
            task(f"zip-{i}", f"{count} gzip -n -c sorted-{i} > {i}.gz", [f"sorted-{i}"], f"{i}.gz")
        )
    parts = [f"sorted-{i}" for i in range(WIDTH)]
    tasks.append(task("merge", f"{count} sort -m {' '.join(parts)} > all", parts, "all"))
    return tasks


def words(i: int) -> list[str]:
    return [str((i * 7919 + k * 104729) % 100003) for k in range(5000)]


def inputs(directory: Path) -> list[Row]:
    for i in range(WIDTH):
        (directory / f"words-{i}").write_text("\n".join(words(i)) + "\n")
    return [{"name": f"words-{i}", "size_bytes": 30000, "preloaded": True} for i in range(WIDTH)]


def faults_of(results: Path) -> list[str]:
    """Wrong results of the chain."""
    try:
        wrong = [
            f"{i}.gz"
            for i in range(WIDTH)
            if gzip.decompress((results / f"{i}.gz").read_bytes()).decode().split()
            != sorted(words(i))
        ]
        everything = sorted(text for i in range(WIDTH) for text in words(i))
        return wrong + (["all"] if (results / "all").read_text().split() != everything else [])
    except OSError as error:
        return [str(error)]


def on_ground(nodes: int, copies: int, act: Callable[[Ground], Any]) -> Any:
    """Start a store and return the result of `act` on it."""
    directory = Path(tempfile.mkdtemp(prefix="bw-", dir="/var/tmp"))
    try:
        return act(Ground(directory, nodes, copies))
    finally:
        undo(Journal(directory / "state" / "journal.jsonl"), own=True, everything=True)
        shutil.rmtree(directory, ignore_errors=True)


def overhead(ground: Ground, tasks: int) -> list[Row]:
    """Times of the runner for many short programs."""
    rows = [task(f"t-{i}", f"echo {i} > out-{i}", [], f"out-{i}") for i in range(tasks)]
    began = time.monotonic()
    ground.penstock(*ground.workflow("many", rows, []))
    took_s = time.monotonic() - began
    table = pq.read_table(ground.where / "many" / "0" / "workflow_tasks.parquet").to_pylist()
    case = f"{tasks:,} programs on 8 nodes, workqueue, no hints"
    parts = ("decision_s", "dispatch_s", "launch_s", "report_s")
    totals = [1e3 * sum(task_row[key] for key in parts) for task_row in table]
    mean = record.row(case, "moosefs", "overhead per task, mean", [statistics.fmean(totals)], "ms")
    rows = [record.at_most(mean, MOST_OVERHEAD_MS)]
    rows.append(record.row(case, "moosefs", "overhead per task", totals, "ms"))
    for key in parts:
        values = [1e3 * task_row[key] for task_row in table]
        rows.append(record.row(case, "moosefs", key.removesuffix("_s"), values, "ms"))
    makespan_s = max(task_row["end_s"] for task_row in table)
    rows.append(record.row(case, "moosefs", "all tasks", [makespan_s], "s"))
    rows.append(record.row(case, "moosefs", "the complete command", [took_s], "s"))
    return rows


def killed(ground: Ground, number: int, *, plant: bool = False) -> list[str]:
    """Faults after one kill at a random point, and resuming."""
    source, out = random.Random(number), f"kill-{number}{'-plant' if plant else ''}"
    child = ground.begin(*ground.workflow(out, chain(0.15), inputs(ground.where)))
    place, until = ground.where / out, time.monotonic() + PATIENCE_S
    # after the start of the run, after a number of entries, and a random time
    entries = 3 + WIDTH if plant else source.randrange(2, 2 * WIDTH + 3 + WIDTH)
    while len(journal_lines(place)) < entries and child.poll() is None:
        if time.monotonic() > until:
            return ["the run did not start"]
        time.sleep(0.002)
    time.sleep(source.uniform(0, 0.1))
    child.send_signal(signal.SIGKILL)
    child.wait()
    if plant:
        lines = journal_lines(place)
        removed = next(n for n, line in enumerate(lines) if '"task"' in line)
        (place / "journal.jsonl").write_text(
            "\n".join(lines[:removed] + lines[removed + 1 :]) + "\n"
        )
    resumed_run = ground.begin("workflow", "run", "--resume", out)
    text, _ = resumed_run.communicate(timeout=PATIENCE_S)
    if resumed_run.returncode:
        return [text]
    complete = [json.loads(line) for line in journal_lines(place) if '"task"' in line]
    repeated = [r["task"] for r in complete if [x["task"] for x in complete].count(r["task"]) > 1]
    starts = ground.starts(out)
    resumed = next(n for n, line in enumerate(journal_lines(place)) if '"resumed"' in line)
    before = [json.loads(r)["task"] for r in journal_lines(place)[:resumed] if '"task"' in r]
    twice = [f"{name} started {starts[name]} times" for name in before if starts[name] > 1]
    if plant:
        twice = [f"{name} started {n} times" for name, n in starts.items() if n > 1]
    shutil.rmtree(place / "logs", ignore_errors=True)
    return faults_of(place / "results") + twice + repeated


def with_death(ground: Ground, copies: int) -> list[str]:
    """Faults after the death of a storage node's server in the middle of a run."""
    child = ground.begin(*ground.workflow("death", chain(1.0), inputs(ground.where)))
    until = time.monotonic() + PATIENCE_S
    while not any('"task"' in line for line in journal_lines(ground.where / "death")):
        if time.monotonic() > until or child.poll() is not None:
            return ["the run did not start"]
        time.sleep(0.01)
    for pid, name in processes("node-2"):
        if name == "mfschunkserver":
            os.kill(pid, signal.SIGKILL)
    text, _ = child.communicate(timeout=PATIENCE_S)
    if copies > 1:
        return faults_of(ground.where / "death" / "results") if child.returncode == 0 else [text]
    faults = [] if child.returncode == 1 and "lost" in text else [text]
    text = ground.penstock("workflow", "run", "--resume", "death")
    return faults + faults_of(ground.where / "death" / "results")


def instances(ground: Ground, files: list[Path]) -> list[Row]:
    """Each instance is emulated."""
    rows = []
    for file in files:
        version = json.loads(file.read_text())["schemaVersion"]
        argv = ["workflow", "run", str(file.absolute()), "-p", "p.yaml", "--emulate", "--json"]
        child = ground.begin(*argv, "--no-predict")
        text, _ = child.communicate(timeout=PATIENCE_S)
        if child.returncode:
            print(text, file=sys.stderr)
        case = f"{file.stem}, WfFormat {version}"
        rows.append(record.share(case, "moosefs", "runs (--emulate)", int(not child.returncode), 1))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000, help="number of short programs")
    parser.add_argument("--kills", type=int, default=20, help="number of kill points")
    parser.add_argument("--quick", action="store_true", help="100 programs, two kill points")
    parser.add_argument("--instances", type=Path, nargs="*", default=[], help="files of WfCommons")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.kills = 100, 2
    rows: list[Row] = on_ground(8, 1, lambda ground: overhead(ground, options.tasks))

    def kills(ground: Ground) -> tuple[int, bool, list[Row]]:
        right = 0
        for number in range(options.kills):
            faults = killed(ground, number)
            right += not faults
            print(f"kill {number}: {'; '.join(faults[:5]) or 'right'}", file=sys.stderr, flush=True)
        return right, bool(killed(ground, 0, plant=True)), instances(ground, options.instances)

    right, seen, emulated = on_ground(4, 1, kills)
    case = "kill -9 of the runner, then --resume"
    metric = "no completed task twice, results right"
    rows.append(record.share(case, "moosefs", metric, right, options.kills))
    for copies, metric in (
        (2, "results right"),
        (1, "lost files named, created again by --resume"),
    ):
        faults = on_ground(4, copies, lambda ground, copies=copies: with_death(ground, copies))
        for fault in faults[:5]:
            print(f"{copies} copies: {fault}", file=sys.stderr)
        case = f"death of a storage node, {copies} {'copies' if copies > 1 else 'copy'}"
        rows.append(record.share(case, "moosefs", metric, int(not faults), 1))
    rows += emulated
    planted = {"an entry taken out of a journal": seen}
    status = record.report(rows, planted, as_json=options.json)
    record.keep(options.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
