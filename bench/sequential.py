#!/usr/bin/env python3
"""The best of 256 treatments by 64 runs: a sequential study beside other ways to search.

A full 2^8 design of a real program was run twice (`bench/sequential/inserts.study.yaml`, recorded in
`inserts.csv`); each way asks this table for runs, and gets one of the values recorded of the treatment. Rows
are of case, engine, metric, value, unit, low, high, n: regret is how much slower the treatment chosen is than
the best one, by the means of all recorded runs; the 95 % interval of the share of seeds with a regret of at
most 5 % is exact (Clopper & Pearson). A sequential study that looks for the worst is planted, and must not be
found good. Exit status 1 if it is, or if the sequential study misses the bar.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record

HERE = Path(__file__).parent / "sequential"
BUDGET = 64
REGRET = 0.05
#: a treatment as levels in the order of the factors
Treatment = tuple[str, ...]


class Table:
    """Recorded runs of a full design: what a treatment took, each time it was run [s]."""

    def __init__(self, path: Path) -> None:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        self.names = rows[0][:-1]
        self.values: dict[Treatment, list[float]] = {}
        for row in rows[1:]:
            self.values.setdefault(tuple(row[:-1]), []).append(float(row[-1]))
        self.means = {t: statistics.fmean(v) for t, v in self.values.items()}
        self.best = min(self.means.values())
        self.levels = [
            list(dict.fromkeys(t[i] for t in self.values)) for i in range(len(self.names))
        ]

    def regret(self, chosen: Treatment) -> float:
        """How much slower than the best a treatment is on average."""
        return self.means[chosen] / self.best - 1


class Asked:
    """The table as an experiment: each run of a treatment gives one of its recorded values."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table, self.drawn, self.runs = table, np.random.default_rng(seed), 0
        self._left: dict[Treatment, list[float]] = {}

    def run(self, treatment: Treatment) -> float:
        """One more run."""
        self.runs += 1
        left = self._left.get(treatment)
        if not left:
            left = list(self.table.values[treatment])
            self.drawn.shuffle(left)
            self._left[treatment] = left
        return left.pop()


def sequential(
    asked: Asked, seed: int, search: str = "gaussian-process", better: str = "lower"
) -> Treatment:
    """A sequential study, by the code that `penstock run` uses."""
    from penstock.analyse.adaptive import next_stage
    from penstock.design.plan import make_plan
    from penstock.design.stages import with_stages
    from penstock.study.load import read_study

    names = asked.table.names
    factors = "\n".join(
        f"  {n}: {{levels: {json.dumps(v)}}}"
        for n, v in zip(names, asked.table.levels, strict=True)
    )
    text = f"""penstock: 1
name: recorded
question: Which is best?
factors:
{factors}
design:
  kind: {{fraction: 4}}
  replicates: 2
  seed: {seed}
  sequential: {{runs: {BUDGET}, search: {search}, search_runs: 20, confirm: 3}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {" ".join(f"{{{n}}}" for n in names)}'}}
responses: {{took: {{from: wall_s, unit: s, better: {better}}}}}
"""
    study = read_study(text.encode(), Path("recorded.study.yaml"))
    first = make_plan(study)
    stages, took = [], {}
    while True:
        plan = with_stages(first, study, stages)
        for row in plan.rows:
            if row.run_id not in took:
                took[row.run_id] = asked.run(tuple(row.levels[n] for n in names))
        runs = pd.DataFrame(
            [
                {
                    "run_id": r.run_id,
                    "replicate": r.replicate,
                    **r.levels,
                    "took": took[r.run_id],
                    "valid": True,
                }
                for r in plan.rows
            ]
        )
        stage = next_stage(plan, study, runs)
        if stage is None:
            break
        stages.append(stage)
    pair = [tuple(t[n] for n in names) for t in stages[-1].treatments]
    means = [
        statistics.fmean(
            took[r.run_id]
            for r in plan.rows
            if r.stage == len(stages) + 1 and tuple(r.levels[n] for n in names) == t
        )
        for t in pair
    ]
    return pair[int(np.argmin(means) if better == "lower" else np.argmax(means))]


def one_factor_at_a_time(asked: Asked, seed: int) -> Treatment:
    """From the first levels on, each factor is changed in turn and kept where that is faster, twice each."""
    order = np.random.default_rng(seed)
    now = [v[0] for v in asked.table.levels]
    took = [asked.run(tuple(now)) for _ in range(2)]
    while asked.runs + 2 <= BUDGET:
        for j in order.permutation(len(now)):
            if asked.runs + 2 > BUDGET:
                break
            other = list(now)
            other[j] = next(v for v in asked.table.levels[j] if v != now[j])
            seen = [asked.run(tuple(other)) for _ in range(2)]
            if statistics.fmean(seen) < statistics.fmean(took):
                now, took = other, seen
    return tuple(now)


def at_random(asked: Asked, seed: int) -> Treatment:
    """The best of treatments drawn at random, each run once."""
    every = sorted(asked.table.values)
    chosen = np.random.default_rng(seed).choice(len(every), BUDGET, replace=False)
    return min((asked.run(every[i]), every[i]) for i in chosen)[1]


def optuna_alone(asked: Asked, seed: int) -> Treatment:
    """Optuna's default sampler over all runs."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def tried(trial: optuna.Trial) -> float:
        return asked.run(
            tuple(
                trial.suggest_categorical(n, v)
                for n, v in zip(asked.table.names, asked.table.levels, strict=True)
            )
        )

    study.optimize(tried, n_trials=BUDGET)
    return tuple(study.best_params[n] for n in asked.table.names)


def full(asked: Asked, seed: int) -> Treatment:
    """Every treatment once, in a drawn order."""
    every = sorted(asked.table.values)
    order = np.random.default_rng(seed).permutation(len(every))
    return min((asked.run(every[i]), every[i]) for i in order)[1]


ENGINES: dict[str, Callable[[Asked, int], Treatment]] = {
    "penstock": sequential,
    "one factor at a time": one_factor_at_a_time,
    "random": at_random,
    "optuna": optuna_alone,
    "full": full,
}


def measured(
    table: Table, engine: str, choose: Callable[[Asked, int], Treatment], seeds: int
) -> tuple[list[record.Row], bool]:
    """The rows of one way to search, and whether it keeps the bar."""
    from scipy.stats import binomtest

    regrets, runs = [], []
    for seed in range(1, seeds + 1):
        asked = Asked(table, 1000 + seed)
        regrets.append(table.regret(choose(asked, seed)))
        runs.append(asked.runs)
        if sys.stderr.isatty():
            print(f"\r{engine}: {seed} of {seeds}", end="", file=sys.stderr)
    good = sum(r <= REGRET for r in regrets)
    interval = binomtest(good, seeds).proportion_ci(method="exact")
    share = {
        "case": "inserts",
        "engine": engine,
        "metric": f"seeds with a regret of at most {100 * REGRET:.0f} %",
        "value": 100 * good / seeds,
        "unit": "%",
        "low": 100 * interval.low,
        "high": 100 * interval.high,
        "n": seeds,
        "spread": record.INTERVAL,
    }
    rows = [
        record.row("inserts", engine, "regret", [100 * r for r in regrets], "%"),
        record.row("inserts", engine, "runs", runs, "runs"),
        share,
    ]
    within = max(runs) <= len(table.values) // 4 and statistics.median(regrets) <= REGRET
    if engine == "penstock":
        rows[0] = record.at_most(rows[0], 100 * REGRET)
        rows[1] = record.at_most(rows[1], len(table.values) // 4)
    return rows, within


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--quick", action="store_true", help="10 seeds")
    parser.add_argument("--seeds", type=int, default=100)
    record.option(parser)
    args = parser.parse_args()
    seeds = 10 if args.quick else args.seeds
    table = Table(HERE / "inserts.csv")
    rows: list[record.Row] = []
    kept = True
    for engine, choose in ENGINES.items():
        made, within = measured(table, engine, choose, seeds)
        rows += made
        kept = kept and (within or engine != "penstock")
    _, blind = measured(
        table, "planted", lambda a, s: sequential(a, s, better="higher"), min(seeds, 10)
    )
    planted = {"a study that looks for the worst treatment": not blind}
    if args.json:
        print(json.dumps(rows))
    else:
        for one in rows:
            print(
                f"{one['engine']:22} {one['metric']:36} {one['value']:8.3g} {one['unit']:5} "
                f"({one['low']:.3g} to {one['high']:.3g}, n = {one['n']}) {one.get('verdict', '')}"
            )
    print(f"planted: {'found' if not blind else 'NOT found'}", file=sys.stderr)
    record.keep(
        args.record,
        rows,
        planted,
        f"{len(table.values)} treatments; runs of one treatment are drawn from those recorded of it.",
    )
    return 0 if kept and not blind else 1


if __name__ == "__main__":
    raise SystemExit(main())
