"""Time from the call of `penstock trace -- COMMAND` to the first instruction of COMMAND, by phase.

Every round starts each mode once, in random order, with warm caches and an already recorded cost of tracing.
The command prints its time. The borders of the phases are records of the undo journal: the plans of the
daemon, of the run's control group and of the spool. Planted: a start whose interpreter sleeps a second before
it runs the verb; it must miss the goal. Exit status 1 if the goal is missed or the plant is not detected.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.observe.trace import MODES
from penstock.observe.trace.capture.overhead import Cost, RunCost

#: limit of the time until the command runs [s]
GOAL_S = 1.0
TOTAL = "until the command runs"
#: phase and the planned change that ends it: its kind, and a part of its target
BORDERS = (
    ("imports of the verb", "process", "penstock-tracer"),
    ("imports of libraries, while the daemon starts", "cgroup", "penstock-trace-"),
    ("control group, file of marks, wait for the programs", "directory", "/trace-"),
)
LAST = "spool, arming and start of the command"
PLANTED = "a start with a sleep of a second"
SLEEP = "import time\ntime.sleep(1.0)\n"
COMMAND = ("date", "+%s%N")


def phases(records: Sequence[Mapping[str, Any]], began_ns: int, runs_ns: int) -> dict[str, float]:
    """Seconds of each phase, and in total, from records of the journal and the times of call and command.

    Raises ValueError if the journal lacks a border, or has one out of order.
    """
    plans = [
        entry for entry in records if entry["event"] == "plan" and entry["realtime_ns"] >= began_ns
    ]
    ends = []
    for phase, kind, target in BORDERS:
        times = [
            entry["realtime_ns"]
            for entry in plans
            if entry["kind"] == kind and target in str(entry["target"])
        ]
        if not times:
            raise ValueError(f"found no {kind} {target} in the journal, the end of: {phase}")
        ends.append(times[0])
    borders = [began_ns, *ends, runs_ns]
    if borders != sorted(borders):
        raise ValueError(f"the journal's plans are out of order: {borders}")
    names = [*(phase for phase, _, _ in BORDERS), LAST]
    lengths = [(b - a) / 1e9 for a, b in itertools.pairwise(borders)]
    return {**dict(zip(names, lengths, strict=True)), TOTAL: (runs_ns - began_ns) / 1e9}


def prepare(place: Path) -> None:
    """Create a state with a recorded cost of tracing, so that no trace measures it, and the plant."""
    (place / "state").mkdir(mode=0o700)
    nothing = RunCost(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    cost = asdict(Cost(nothing, nothing, 1, "none: for a bench"))
    costs = {f"{os.uname().release} {mode}": cost for mode in MODES}
    (place / "state" / "trace-cost.json").write_text(json.dumps(costs))
    (place / "slow").mkdir()
    (place / "slow" / "sitecustomize.py").write_text(SLEEP)


def start(place: Path, mode: str, slow: bool = False) -> dict[str, float]:
    """Trace the command once; return its phases [s]."""
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(place / "state"),
        "PENSTOCK_RUNTIME": str(place / "run"),
    }
    if slow:
        environment["PYTHONPATH"] = str(place / "slow")
    journal = place / "state" / "journal.jsonl"
    journal.unlink(missing_ok=True)  # a large one is emptied at the end of a trace
    tracing = [sys.executable, "-m", "penstock", "trace", "--mode", mode, "--no-live", "--"]
    began_ns = time.time_ns()
    done = subprocess.run(
        [*tracing, *COMMAND], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    return phases(records, began_ns, int(done.stdout.splitlines()[0]))


def rows_of(mode: str, starts: Sequence[Mapping[str, float]]) -> list[record.Row]:
    """A row for the total, with the goal, and one for each phase."""
    rows = []
    for metric in (TOTAL, *(phase for phase, _, _ in BORDERS), LAST):
        values = [start[metric] for start in starts]
        row = record.row("start of a traced command", f"mode {mode}", metric, values, "s")
        rows.append(record.at_most(row, GOAL_S) if metric == TOTAL else row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    chosen = parser.parse_args()
    starts: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="penstock-trace-start-") as name:
        place = Path(name)
        prepare(place)
        start(place, MODES[0])  # warms the caches
        for _ in range(3 if chosen.quick else chosen.rounds):
            for mode in random.sample(MODES, len(MODES)):
                starts[mode].append(start(place, mode))
        slow = start(place, MODES[0], slow=True)
    rows = [row for mode, measured in starts.items() for row in rows_of(mode, measured)]
    planted = {PLANTED: slow[TOTAL] > GOAL_S}
    status = record.report(rows, planted, as_json=chosen.json)
    record.keep(chosen.record, rows, planted)
    return status


if __name__ == "__main__":
    sys.exit(main())
