#!/usr/bin/env python3
"""Overhead of the conductor per run: a study of `true` on an emulated disk, with both observers.

Prints (as JSON with `--json`) rows of case, engine, metric, value, unit, low, high, n: median, smallest and
largest run. Overhead is the time from the start of one run to the start of the next, minus workload,
preparation and declared rest; the goal is at most 0.5 s per run. Planted failure: a conductor that sleeps for
half a second in each run. Exit status 1 if it is not detected, or if the goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record

BAR_S = 0.5

STUDY = """
penstock: 1
name: conductor
question: What does the conductor itself take?
factors:
  first:  {{levels: [a, b]}}
  second: {{levels: [a, b]}}
design: {{kind: full, replicates: {replicates}, seed: 1}}
platform:
  nodes:
    - name: node1
      memory: 128MiB
      disks: [{{name: data, profile: rate-20mib, size: 16MiB}}]
workload:
  prepare: head -c 8M /dev/zero > {{data}}/file
  mutates: {mutates}
  command: true {{first}} {{second}} {{data}}
responses:
  wall: {{from: wall_s, unit: s, better: lower}}
observers:
  monitor: {{interval: 100ms}}
  trace: {{mode: trace}}
"""


OWN = "own time per run"


def measured(directory: Path, case: str, runs: int) -> list[record.Row]:
    """Rows of one case."""
    from penstock.archive.runs import bundles
    from penstock.campaign.conductor import USERS_PHASES
    from penstock.campaign.run import run_study

    study = directory / f"{case}.study.yaml"
    replicates = max(1, -(-runs // 4))
    mutates = str(case == "copied data").lower()
    study.write_text(STUDY.format(replicates=replicates, mutates=mutates))
    out = directory / f"out {case}"
    run_study(study, out, quiet=True)
    begins, users, phases = [], [], {}
    for bundle in bundles(out):
        table = bundle.table("phases").to_pylist()
        begins.append(table[0]["start_ns"])
        users.append(
            sum(p["end_ns"] - p["start_ns"] for p in table if p["phase_id"] in USERS_PHASES)
        )
        for p in table:
            if p["phase_id"] not in USERS_PHASES:
                took_s = (p["end_ns"] - p["start_ns"]) / 1e9
                phases.setdefault(p["phase_id"], []).append(took_s)
    steps = zip(begins, begins[1:], users[:-1], strict=False)
    own_s = [(after - before - user) / 1e9 for before, after, user in steps]
    rows = [record.at_most(record.row(case, "", OWN, own_s, "s"), BAR_S)]
    return rows + [record.row(case, "", f"of it {name}", t, "s") for name, t in phases.items()]


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """The planted failure: a conductor that sleeps before it collects."""
    from penstock.campaign.executor import HostExecutor

    collect = HostExecutor.collect

    def rested(self: HostExecutor, attempt: Any) -> Any:
        time.sleep(BAR_S)
        return collect(self, attempt)

    HostExecutor.collect = rested  # type: ignore[method-assign]
    try:
        yield
    finally:
        HostExecutor.collect = collect  # type: ignore[method-assign]


def main() -> int:
    """Exit status 1 if the median of a case exceeds the goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=12, help="runs per case (at least 10 for a spread)"
    )
    parser.add_argument("--quick", action="store_true", help="four runs per case")
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    record.option(parser)
    arguments = parser.parse_args()
    runs = 4 if arguments.quick else arguments.runs
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        os.environ["PENSTOCK_ARCHIVE"] = place  # the user's archive is not changed
        cases = ("shared data", "copied data")
        rows = [r for case in cases for r in measured(Path(place), case, runs)]
        with resting():
            planted = measured(Path(place), "planted rest of 0.5 s", 4)[0]
    detected = planted["verdict"] == record.MISSED
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{'case':12} {'metric':18} {'median':>9} {'low':>9} {'high':>9}  n")
        for r in rows:
            print(
                f"{r['case']:12} {r['metric']:18} {r['value']:7.3f} s {r['low']:7.3f} s "
                f"{r['high']:7.3f} s {r['n']:2d}"
            )
    met = all(r["verdict"] == record.MET for r in rows if r["metric"] == OWN)
    print(f"goal: {BAR_S} s per run: {'met' if met else 'missed'}", file=sys.stderr)
    outcome = "found" if detected else "NOT FOUND"
    print(f"planted rest of {BAR_S} s: {outcome} ({planted['value']:.3f} s)", file=sys.stderr)
    record.keep(arguments.record, rows, {"a conductor that rests for 0.5 s in each run": detected})
    return 0 if met and detected else 1


if __name__ == "__main__":
    sys.exit(main())
