"""Answers on a busy host: identical treatments, and commits with known times.

Busy loops occupy 0, 50 and 100 % of each processor while two kinds of studies run on emulated disks with
constant service times:

- equal: two identical treatments. One campaign of many passes is divided into studies of `--replicates`
  passes, each analysed on its own. A study that calls one treatment worse is a false difference.
- commits: a program reads and writes records of 4 KiB, with or without a flush after each batch, in batches
  of 1 and 10. The true time of a treatment is the sum of its service times.

    python bench/answers_under_load.py [--quick] [--equal N] [--commits N] [--shares 0,50,100]

Exit status 1 if more than 5 % of the equal studies have a false difference (and the Wilson interval excludes
5 %), if less than 95 % of the commits studies have the true factors in their intervals (likewise), or if one
of them calls a faster treatment worse. Planted failures: one of two equal treatments is slower by half, which
the studies must report; the true factors of the commits are too large by half, which the intervals must
exclude.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record
from bench.degraded import occupied, wilson
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.scale import usual_scale
from penstock.analyse.treatments.means import ranking
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.study.load import load_study

READ_S, WRITE_S, FLUSH_S = 0.002, 0.001, 0.018
RECORDS, EQUAL_RECORDS = 60, 20
#: deviation of a disk that is still accepted
TOLERANCE = 0.02
#: factor of the planted failures
PLANTED = 1.5
PROGRAM = """
import mmap, os, sys, time
path, records, sync, batch = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "always", int(sys.argv[4])
page, pages = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096 * batch)
data = os.open(path, os.O_RDWR | os.O_DIRECT)
began = time.monotonic()
for i in range(records):
    os.preadv(data, [page], (i * 613 % 1024) * 4096)
    if i % batch == batch - 1:
        os.pwritev(data, [pages], 4096 * (1024 + i))
        if sync:
            os.fdatasync(data)
print(f"y: {time.monotonic() - began:.6f}")
"""
STUDY = """
penstock: 1
name: {name}
question: {question}
factors:
{factors}
design: {{kind: full, replicates: {replicates}, seed: {seed}}}
platform:
  nodes:
    - name: node1
      disks: [{{name: data, profile: ./disk.json, size: 16MiB}}]
workload:
  prepare: dd if=/dev/zero of={{data}}/file bs=1M count=8
  mutates: contents
  command: {python} {program} {{data}}/file {records} {arguments}
  expected: 2s
  timeout: 120s
responses:
  y: {{from: {{regex: 'y: ([0-9.]+)'}}, unit: s, better: lower}}
"""
EQUAL = {"question": "Does the name matter?", "responses": {"y": {"unit": "s", "better": "lower"}}}


@dataclass
class Counted:
    """Counts over the studies under one occupation."""

    runs: int = 0
    degraded: int = 0
    invalid: int = 0
    studies: int = 0
    false: int = 0
    detected: int = 0
    covered: int = 0
    wrong: int = 0
    #: the planted failures: reported differences, covered true factors
    planted_named: int = 0
    planted_covered: int = 0


def constant(seconds: float) -> dict[str, object]:
    """A constant service time of a profile."""
    return {"overhead": {"kind": "constant", "value_s": seconds}}


def profile() -> dict[str, object]:
    """A disk with constant service times."""
    each = {op: {"sequential": constant(s), "random": constant(s)}
            for op, s in (("read", READ_S), ("write", WRITE_S))}  # fmt: skip
    source = [{"what": "all", "where": "chosen: true times are known"}]
    base = {"schema": "penstock/storage-profile/1", "name": "disk", "description": "Constants."}
    return {**base, "source": source, "time_scale": 1.0, "servers": 1, **each,
            "flush": constant(FLUSH_S)}  # fmt: skip


def true_s(sync: str, batch: int) -> float:
    """Service time of a run [s]."""
    commit = WRITE_S + (FLUSH_S if sync == "always" else 0)
    return RECORDS * READ_S + RECORDS // batch * commit


def written(place: Path, **parts: object) -> Path:
    """Write the study file, its program and its disk to a directory."""
    (place / "program.py").write_text(PROGRAM)
    (place / "disk.json").write_text(json.dumps(profile()))
    file = place / "load.study.yaml"
    text = STUDY.format(python=sys.executable, program=place / "program.py", **parts)
    file.write_text(text)
    return file


def run(file: Path, share: float, cpus: int) -> Path:
    """Run a study under an occupation; return its results."""
    out = file.parent / "out"
    command = [sys.executable, "-m", "penstock", "run", str(file), "-o", str(out), "--quiet"]
    with occupied(share, cpus):
        subprocess.run(
            [*command, "--keep-going", "--no-report"], check=False, stdout=subprocess.DEVNULL
        )
    return out


def equal(place: Path, share: float, studies: int, replicates: int, cpus: int) -> Counted:
    """Studies of equal treatments, taken from one campaign."""
    parts = {"name": "equal", "question": EQUAL["question"], "records": EQUAL_RECORDS, "seed": 1,
             "factors": "  label: {levels: [one, two]}", "arguments": "never 10 {label}"}  # fmt: skip
    plan = make_plan(load_study(written(place, replicates=replicates, **parts), [], False))
    out = run(written(place, replicates=studies * replicates, **parts), share, cpus)
    rows = pd.DataFrame(
        {"run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate}
        for r in plan.rows
    )
    counted = Counted()
    runs = pd.read_parquet(out / "runs.parquet")
    counted.runs, counted.invalid = len(runs), int((~runs["valid"]).sum())
    counted.degraded = int(runs["validity"].eq("degraded").sum())
    columns = ["treatment_id", "label", "valid", "validity", "state"]
    columns += [c for c in ("y", "y:low", "y:high") if c in runs]
    for number in range(studies):
        first = number * replicates
        part = runs[runs["replicate"].between(first + 1, first + replicates)]
        part = part.assign(replicate=part["replicate"] - first)
        part = rows.merge(part[["replicate", *columns]], on=["treatment_id", "replicate"])
        part = part[part["valid"]]
        if part["treatment_id"].nunique() < 2 or len(part) < 4:
            continue
        counted.studies += 1
        counted.false += is_different(part, plan)
        slower = part["label"].eq("two")
        part.loc[slower, columns[5:]] *= PLANTED
        counted.planted_named += is_different(part, plan)
    return counted


def is_different(part: pd.DataFrame, plan: Plan) -> bool:
    """True if the analysis of a study of two treatments reports a difference."""
    table = effects(part, plan, "y", scale=usual_scale(part, "y"))
    outcome = Outcome(Path("/nowhere"), plan.to_json(), EQUAL, part, table, None, None)
    ranked = ranking(outcome, outcome.responses[0])
    return ranked.apart(*ranked.treatments[:2])


def commits(
    place: Path, share: float, seed: int, replicates: int, cpus: int, counted: Counted
) -> None:
    """Add one study of commits with and without flushes."""
    file = written(
        place, name="commits", question="How much does synchronising cost?", records=RECORDS,
        factors="  sync: {levels: [never, always]}\n  batch: {levels: [1, 10]}",
        arguments="{sync} {batch}", replicates=replicates, seed=seed,
    )  # fmt: skip
    out = run(file, share, cpus)
    runs = pd.read_parquet(out / "runs.parquet")
    counted.runs += len(runs)
    counted.invalid += int((~runs["valid"]).sum())
    counted.degraded += int(runs["validity"].eq("degraded").sum())
    counted.studies += 1
    if not (out / "means.parquet").exists():
        return
    means = pd.read_parquet(out / "means.parquet")
    means = means[means["kind"].eq("treatment")]
    best = true_s("never", 10)
    covered, detected = len(means) == 4, False
    planted = covered
    for row in means.to_dict("records"):
        level = json.loads(row["levels"])
        true = true_s(level["sync"], int(level["batch"])) / best
        if true == 1:
            counted.wrong += row["verdict"] == "worse"
            continue
        low, high = row["times_best_low"], row["times_best_high"]
        low, high = low * (1 - TOLERANCE), high * (1 + TOLERANCE)
        covered &= math.isfinite(low) and low <= true <= high
        planted &= math.isfinite(low) and low <= true * PLANTED <= high
        if level == {"sync": "always", "batch": "1"}:
            detected = row["verdict"] == "worse"
    counted.covered += covered
    counted.planted_covered += planted
    counted.detected += detected


def main() -> int:
    """Run the studies and print two lines per occupation."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="few studies at 0 and 100 %%")
    options.add_argument("--equal", type=int, default=200, help="equal studies of each occupation")
    options.add_argument("--commits", type=int, default=20, help="commits studies of each")
    options.add_argument("--replicates", type=int, default=2)
    options.add_argument("--shares", default="0,50,100")
    record.option(options)
    arguments = options.parse_args()
    shares = [0.0, 100.0] if arguments.quick else [float(s) for s in arguments.shares.split(",")]
    equals, studies = (10, 1) if arguments.quick else (arguments.equal, arguments.commits)
    cpus, failed = len(os.sched_getaffinity(0)), False
    rows: list[record.Row] = []
    named, covers, total = 0, 0, [0, 0]
    for share in shares:
        case = f"{share:g} % occupied"
        if equals:
            with tempfile.TemporaryDirectory() as place:
                same = equal(Path(place), share / 100, equals, arguments.replicates, cpus)
            named, total[0] = named + same.planted_named, total[0] + same.studies
            low, high = wilson(same.false, same.studies)
            failed |= low > 0.05
            print(
                f"{case}, equal: {same.runs} runs ({same.degraded} degraded, {same.invalid} invalid); "
                f"{same.false} false differences in {same.studies} studies "
                f"(95 % interval {100 * low:.1f}-{100 * high:.1f} %)",
                flush=True,
            )
            right = same.studies - same.false
            rows.append(
                record.share(
                    case, "", "equal studies without a difference", right, same.studies, 0.95
                )
            )
        counted = Counted()
        for number in range(studies):
            with tempfile.TemporaryDirectory() as place:
                commits(Path(place), share / 100, number + 1, arguments.replicates, cpus, counted)
        if studies:
            covers, total[1] = covers + counted.planted_covered, total[1] + counted.studies
            low, high = wilson(counted.covered, counted.studies)
            failed |= high < 0.95 or counted.wrong > 0
            print(
                f"{case}, commits: {counted.runs} runs ({counted.degraded} degraded, "
                f"{counted.invalid} invalid); {counted.studies} studies: {counted.detected} detect the cost "
                f"of commits, {counted.covered} have all true factors in their intervals "
                f"(95 % interval {100 * low:.0f}-{100 * high:.0f} %), {counted.wrong} wrong conclusions",
                flush=True,
            )
            for metric, hits in (
                ("detect the cost", counted.detected),
                ("cover true factors", counted.covered),
            ):
                rows.append(
                    record.share(
                        case, "", f"commits studies that {metric}", hits, counted.studies, 0.95
                    )
                )
    planted = {
        "one of two equal treatments is slower by half": named >= 0.8 * total[0],
        "true factors of commits are too large by half": covers <= 0.05 * total[1],
    }
    print(
        f"planted: {named} of {total[0]} name a difference, {covers} of {total[1]} cover wrong factors"
    )
    record.keep(arguments.record, rows, planted)
    return int(failed or not all(planted.values()))


if __name__ == "__main__":
    sys.exit(main())
