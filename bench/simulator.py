#!/usr/bin/env python3
"""The simulator of the object store: its speed, its growth, and other simulators on the same scenario.

Prints (as JSON with `--json`) rows of case, engine, metric, value, unit, low, high, n: median, smallest and
largest of n rounds, in which all engines of a case take turns. `frames`: every frame is an event; `trains`:
frames are merged where that hardly changes the result. A rate is given per second of wall time and per second
of CPU time.

Other simulators on the same scenario: SimPy (the same model, frame by frame: same makespan), SimGrid (another
model: bandwidth shared fairly, chunks as flows, no frames; so makespans are near, not equal, and its rate is
in chunk requests only), and the published figures of another simulator on other, older hardware. Planted
failures: a simulator that does everything eight times, which must miss the goal for events, and a storage 5 %
slower than in the closed form. Exit status 1 if one is not detected, or a goal is missed (not evaluated with
--quick).

SimGrid is optional: apt-get install --no-install-recommends libsimgrid-dev g++
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.simulation import published
from bench.simulation.bars import with_verdicts
from bench.simulation.cases import CASES, FULL, NORMAL, QUICK, Scale, planted
from bench.simulation.figure import draw
from bench.simulation.measure import host_row


def measure(scale: Scale, only: list[str], out: Path) -> list[dict[str, Any]]:
    """Rows of the cases in `only` (all if empty); the figure is written to `out`."""
    rows = [host_row("at the start")]
    for name, case in CASES.items():
        if not only or name in only:
            rows += case(scale)
    rows += published.rows()
    rows.append(host_row("at the end"))
    cases = list(dict.fromkeys(r["case"] for r in rows))
    rows.sort(key=lambda r: cases.index(r["case"]))
    for path in draw(rows, out):
        print(f"figure: {path}", file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    last = ""
    for r in rows:
        if r["case"] != last:
            print(f"\n{r['case']}")
            last = r["case"]
        value, low, high = (f"{r[name]:.4g}" for name in ("value", "low", "high"))
        print(
            f"  {r['engine']:<25} {r['metric']:<28} {value:>9} {r['unit']:<4}"
            f"{low:>9} {high:>9} n={r['n']}"
        )


def main() -> int:
    """Exit status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small sizes, under half a minute")
    size.add_argument("--full", action="store_true", help="weak scaling in steps of 25 nodes")
    parser.add_argument("--only", action="append", choices=list(CASES), default=[], help="a case")
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    record.option(parser)
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory of the figure")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL if arguments.full else NORMAL
    rows = measure(scale, arguments.only, arguments.out)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        table(rows)
    detected = {
        failure: any(row.get("verdict") == record.MISSED for row in with_verdicts(planted_rows))
        for failure, planted_rows in planted().items()
    }
    for failure, seen in detected.items():
        print(f"planted, {failure}: {'found' if seen else 'NOT FOUND'}", file=sys.stderr)
    rows = rows if arguments.quick else with_verdicts(rows)
    for row in rows:
        if "bar" in row:
            result = f"{row['case']}, {row['engine']}: {row['metric']} {row['value']} {row['unit']}"
            print(f"{row['verdict']}: {result}, {row['bar']}", file=sys.stderr)
    record.keep(arguments.record, rows, detected)
    missed = any(row.get("verdict") == record.MISSED for row in rows)
    return 1 if missed or not all(detected.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
