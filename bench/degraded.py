"""Degraded runs on a busy host: coverage of their bounds, and of the interval of the true ratio.

A small program reads from an emulated disk that takes exactly 5 ms per request; in one of its two treatments
it computes between two reads. Busy loops occupy 0, 5, 20 and 50 % of the processors. The true time is that of
the disk plus the shortest computing time of many tries. Other work on the host also disturbs; the column
"others" shows it.

    python bench/degraded.py [--quick] [--studies N] [--shares 0,5,20,50]

Exit status 1 if less than 95 % of the undisturbed times of degraded runs lie within their bounds (and the
Wilson interval of the coverage excludes 95 %), or if a study calls the faster treatment slower.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from statsmodels.stats.proportion import proportion_confint

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record

READS, SERVICE_S, LOOPS = 200, 0.005, 40_000
#: one step of the program; `loops` is a global as in the program
COMPUTING = "x = 0\nfor _ in range(loops):\n    x += 1\n"
PROGRAM = """
import mmap, os, sys, time
path, reads, loops = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
page = mmap.mmap(-1, 4096)
file = os.open(path, os.O_RDONLY | os.O_DIRECT)
began = time.monotonic()
for i in range(reads):
    os.preadv(file, [page], (i * 613 % 2048) * 4096)
    x = 0
    for _ in range(loops):
        x += 1
print(f"y: {time.monotonic() - began:.6f}")
"""
STUDY = """
penstock: 1
name: degraded
question: Does computing slow the program?
factors:
  work: {{levels: {{none: "0", some: "{loops}"}}}}
design: {{kind: full, replicates: {replicates}, seed: {seed}}}
platform:
  nodes:
    - name: node1
      disks: [{{name: data, profile: service-5ms, size: 16MiB}}]
workload:
  prepare: dd if=/dev/zero of={{data}}/file bs=1M count=8
  mutates: false
  command: {python} {program} {{data}}/file {reads} {{work}}
  expected: 3s
  timeout: 120s
responses:
  y: {{from: {{regex: 'y: ([0-9.]+)'}}, unit: s, better: lower}}
"""
SPIN = """
import sys, time
share, period = float(sys.argv[1]), 0.04
while True:
    began = time.monotonic()
    while time.monotonic() - began < share * period:
        pass
    time.sleep((1 - share) * period)
"""


@dataclass
class Counted:
    """Counts over the studies of one occupation."""

    runs: dict[str, int] = field(default_factory=lambda: {"valid": 0, "degraded": 0, "invalid": 0})
    inside: int = 0
    #: without the bounds, as the planted failure
    inside_blind: int = 0
    shares: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    bias: list[float] = field(default_factory=list)
    studies: int = 0
    answered: int = 0
    covered: int = 0
    wrong: int = 0


def computing_s(tries: int = 400) -> float:
    """Shortest computing time of one step."""
    least = math.inf
    for _ in range(tries):
        began = time.monotonic()
        exec(COMPUTING, {"loops": LOOPS})
        least = min(least, time.monotonic() - began)
    return least


@contextlib.contextmanager
def occupied(share: float, cpus: int) -> Iterator[None]:
    """Busy loops on each processor for a share of the time."""
    spin = [sys.executable, "-c", SPIN, str(share)]
    loops = [subprocess.Popen(spin) for _ in range(cpus if share > 0 else 0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def study(place: Path, share: float, replicates: int, seed: int, cpus: int) -> Path:
    """Run a study under an occupation; return its results."""
    (place / "program.py").write_text(PROGRAM)
    text = STUDY.format(
        loops=LOOPS, replicates=replicates, seed=seed, python=sys.executable,
        program=place / "program.py", reads=READS,
    )  # fmt: skip
    (place / "degraded.study.yaml").write_text(text)
    out = place / "out"
    command = [sys.executable, "-m", "penstock", "run", str(place / "degraded.study.yaml")]
    command += ["-o", str(out), "--quiet", "--keep-going"]
    with occupied(share, cpus):
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return out


def count(out: Path, true: dict[str, float], counted: Counted) -> None:
    """Add the runs of a study and its answer."""
    counted.studies += 1
    runs = pd.read_parquet(out / "runs.parquet")
    for row in runs.to_dict("records"):
        counted.runs[row["validity"]] += 1
        counted.bias.append(row["y"] / true[row["work"]] - 1)
        if row["validity"] == "degraded":
            # deviation of a disk that is still accepted
            low, high = row["y:low"] * 0.98, row["y:high"] * 1.02
            counted.inside += low <= true[row["work"]] <= high
            counted.inside_blind += abs(row["y"] / true[row["work"]] - 1) <= 0.02
            counted.shares.append(row["delay_share"])
            counted.others.append(row["others_cpus"])
    with contextlib.suppress(FileNotFoundError):
        means = pd.read_parquet(out / "means.parquet")
        worst = means[means["kind"].eq("treatment")].sort_values("rank").iloc[-1]
        if not math.isfinite(worst["times_best_low"]):
            return
        level = json.loads(worst["levels"])["work"]
        counted.answered += 1
        ratio = true["some"] / true["none"]
        of_worst = ratio if level == "some" else 1 / ratio
        low, high = worst["times_best_low"], worst["times_best_high"]
        counted.covered += low * 0.98 <= of_worst <= high * 1.02
        counted.wrong += worst["verdict"] == "worse" and level == "none"


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    if of == 0:
        return 0.0, 1.0
    low, high = proportion_confint(hits, of, method="wilson")
    return float(low), float(high)


def main() -> int:
    """Run the studies and print a line per occupation."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="one study each of 0 and 50 %%")
    options.add_argument("--studies", type=int, default=3)
    options.add_argument("--replicates", type=int, default=3)
    options.add_argument("--shares", default="0,5,20,50")
    record.option(options)
    arguments = options.parse_args()
    shares = [0, 50] if arguments.quick else [float(s) for s in arguments.shares.split(",")]
    studies = 1 if arguments.quick else arguments.studies
    cpus = len(os.sched_getaffinity(0))
    true = {"none": READS * SERVICE_S, "some": READS * (SERVICE_S + computing_s())}
    print(f"true times: none {true['none']:.3f} s, some {true['some']:.3f} s; {cpus} processors")
    failed, blind, all_degraded = False, 0, 0
    rows: list[record.Row] = []
    for share in shares:
        counted = Counted()
        for number in range(studies):
            with tempfile.TemporaryDirectory() as place:
                out = study(Path(place), share / 100, arguments.replicates, number + 1, cpus)
                if (out / "runs.parquet").exists():
                    count(out, true, counted)
        low, high = wilson(counted.inside, counted.runs["degraded"])
        failed |= high < 0.95 or counted.wrong > 0
        validity = ", ".join(f"{n} {name}" for name, n in counted.runs.items())
        bias = pd.Series(counted.bias, dtype=float)
        share_of = pd.Series(counted.shares, dtype=float).median()
        others_cpus = pd.Series(counted.others, dtype=float).mean()
        print(
            f"{share:3.0f} % occupied, others used {others_cpus:.2f} processors: {validity}\n"
            f"  bias of all runs {100 * bias.median():+.1f} % (median), {100 * bias.max():+.1f} % (most)\n"
            f"  degraded runs: true time within the bound in {counted.inside} of {counted.runs['degraded']} "
            f"(95 % interval {100 * low:.0f}-{100 * high:.0f} %); bound {100 * share_of:.0f} % of time\n"
            f"  {counted.answered} of {counted.studies} studies answered: true ratio in the interval in "
            f"{counted.covered}, wrong conclusions {counted.wrong}",
            flush=True,
        )
        metric = "true time of degraded runs within the bound"
        case, of = f"{share:g} % occupied", counted.runs["degraded"]
        rows.append(record.share(case, "", metric, counted.inside, of, 0.95))
        blind += counted.inside_blind
        all_degraded += counted.runs["degraded"]
    planted = {"no bounds": all_degraded == 0 or blind < 0.95 * all_degraded}
    record.keep(arguments.record, rows, planted)
    return int(failed or not all(planted.values()))


if __name__ == "__main__":
    sys.exit(main())
