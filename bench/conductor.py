#!/usr/bin/env python3
"""The conductor's own time per run: a study of `true`, on an emulated disk, with both observers on.

Prints (as JSON with `--json`) rows of case, engine, metric, value, unit, low, high, n: the median, smallest
and largest run. Own time is what lies between the beginning of one run and that of the next, less workload,
preparation and declared rest. The bar (DESIGN §8): at most 0.5 s per run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

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


def measured(where: Path, mutates: bool, runs: int) -> list[dict[str, Any]]:
    """Rows of one case."""
    from penstock.archive.runs import bundles
    from penstock.campaign.conductor import USERS_PHASES
    from penstock.campaign.run import run_study

    case = "copied data" if mutates else "shared data"
    study = where / f"conductor-{mutates}.study.yaml"
    replicates = max(1, -(-runs // 4))
    study.write_text(STUDY.format(replicates=replicates, mutates=str(mutates).lower()))
    out = where / f"out-{mutates}"
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
    rows = [row(case, "own time per run", own_s)]
    return rows + [row(case, f"of it {name}", took) for name, took in phases.items()]


def row(case: str, metric: str, values: list[float]) -> dict[str, Any]:
    """One row: median, smallest, largest."""
    return {
        "case": case,
        "engine": "penstock",
        "metric": metric,
        "value": statistics.median(values),
        "unit": "s",
        "low": min(values),
        "high": max(values),
        "n": len(values),
    }


def main() -> int:
    """Status 1 if the median of a case is above the bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=12, help="runs per case (at least 10 for a spread)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        os.environ["PENSTOCK_ARCHIVE"] = place  # the user's own archive is left as it is
        rows = [r for m in (False, True) for r in measured(Path(place), m, asked.runs)]
    if asked.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{'case':12} {'metric':18} {'median':>9} {'low':>9} {'high':>9}  n")
        for r in rows:
            print(
                f"{r['case']:12} {r['metric']:18} {r['value']:7.3f} s {r['low']:7.3f} s "
                f"{r['high']:7.3f} s {r['n']:2d}"
            )
    whole = [r for r in rows if r["metric"] == "own time per run"]
    kept = all(r["value"] <= BAR_S for r in whole)
    print(f"bar: {BAR_S} s per run: {'kept' if kept else 'not kept'}", file=sys.stderr)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
