#!/usr/bin/env python3
"""Two identical systems on this machine: share of the studies that report a difference.

Each study runs two equal treatments in complete shuffled passes by `penstock run`, and tests the effect at 5
%. Of ten studies of 20 runs, the number that may report a difference is limited by chance (99 % binomial
bound of one in twenty). For comparison, the same runs are analysed as if the first half had been one system
and the second half the other, which shows the effect of the machine on runs that are not interleaved. Planted
failure: a system that takes 20 % longer, which must be reported. Exit status 1 if either fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from scipy.stats import binom, ttest_ind

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record

#: work of the planted system relative to the other
SLOWER = 1.2
#: workload of a run: pages read from a file in the page cache, timed by the program
PROGRAM = """
import mmap, os, sys, time
slow = float(sys.argv[1]) if sys.argv[2] == "b" else 1.0
path = sys.argv[3]
if not os.path.exists(path):
    with open(path, "wb") as file:
        file.write(os.urandom(4 << 20))
file = os.open(path, os.O_RDONLY)
began = time.perf_counter()
for _ in range(round(int(sys.argv[4]) * slow)):
    for at in range(0, 4 << 20, 4096):
        os.pread(file, 4096, at)
print("took %.6f" % (time.perf_counter() - began))
"""


def study_text(place: Path, slower: float, replicates: int, seed: int, passes: int) -> str:
    """The study: two systems, of which `b` does `slower` times the work."""
    return f"""penstock: 1
name: identical
question: Do they differ?
factors: {{system: {{levels: [a, b]}}}}
design: {{kind: full, replicates: {replicates}, seed: {seed}}}
platform: {{nodes: [{{name: n}}]}}
workload:
  command: {sys.executable} {place}/work.py {slower} {{system}} {place}/file {passes}
  timeout: 60s
responses: {{took: {{from: {{regex: 'took ([0-9.]+)'}}, unit: s, better: lower}}}}
observers: {{monitor: null}}
settle: {{drop_caches: false}}
"""


def measured(slower: float, replicates: int, seed: int, passes: int) -> tuple[float, float]:
    """p-values of the difference: of penstock, and of the first half of the runs against the second."""
    with tempfile.TemporaryDirectory(prefix="penstock-identical-") as name:
        place = Path(name)
        (place / "work.py").write_text(PROGRAM)
        (place / "identical.study.yaml").write_text(
            study_text(place, slower, replicates, seed, passes)
        )
        argv = [sys.executable, "-c", "from penstock.cli import main; main()", "run"]
        argv += [str(place / "identical.study.yaml"), "-o", str(place / "out"), "--json"]
        ended = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env={**os.environ, "PENSTOCK_STATE": str(place / "state")},
        )
        if ended.returncode:
            raise SystemExit(f"penstock run ended with {ended.returncode}: {ended.stderr[-2000:]}")
        effects = pd.read_parquet(place / "out" / "effects.parquet").set_index("term")
        runs = pd.read_parquet(place / "out" / "runs.parquet").sort_values("run_order")
    took = runs.loc[runs["valid"], "took"].to_numpy(float)
    half = len(took) // 2
    return float(effects.loc["system", "p_value"]), float(
        ttest_ind(took[:half], took[half:]).pvalue
    )


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--quick", action="store_true", help="3 studies of 8 runs each")
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--passes", type=int, default=40, help="reads of the file by each run")
    record.option(parser)
    args = parser.parse_args()
    studies, replicates = (3, 4) if args.quick else (args.studies, 20)
    p_values = [measured(1.0, replicates, seed, args.passes) for seed in range(1, studies + 1)]
    significant = sum(p < 0.05 for p, _ in p_values)
    halves = sum(p < 0.05 for _, p in p_values)
    limit = int(binom.ppf(0.99, studies, 0.05))
    slow, _ = measured(SLOWER, max(replicates, 8), 1, args.passes)
    rows: list[record.Row] = []
    for engine, count in (
        ("penstock, shuffled passes", significant),
        ("first half against second", halves),
    ):
        low, high = _bounds(count, studies)
        rows.append(
            {
                "case": f"two identical systems, {replicates} runs each",
                "engine": engine,
                "metric": "studies that tell them apart",
                "value": 100 * count / studies,
                "unit": "%",
                "low": low,
                "high": high,
                "spread": record.INTERVAL,
                "n": studies,
            }
        )
    rows[0] |= {
        "bar": f"at most {limit} of {studies}",
        "verdict": record.MET if significant <= limit else record.MISSED,
    }
    planted = {f"a system that takes {100 * (SLOWER - 1):.0f} % longer": slow < 0.05}
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                f"{row['case']:40} {row['engine']:28} {row['value']:5.3g} {row['unit']} "
                f"({row['low']:.3g} to {row['high']:.3g}, n = {row['n']}) {row.get('verdict', '')}"
            )
    print(f"planted: {'found' if slow < 0.05 else 'NOT found'} (p = {slow:.2g})", file=sys.stderr)
    record.keep(
        args.record, rows, planted, "effects table of each study, at 5 %; runs by penstock run."
    )
    return 0 if significant <= limit and slow < 0.05 else 1


def _bounds(hits: int, total: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    interval = binomtest(hits, total).proportion_ci(method="exact")
    return 100 * interval.low, 100 * interval.high


if __name__ == "__main__":
    raise SystemExit(main())
