"""Simulated intervals of effects: coverage, and false differences between equal treatments.

Each case simulates studies with known true values in the order of the planner, and evaluates them by the code
of `penstock analyse`. The coverage of nominal 95 % intervals must lie within 93 to 97 %, by the 99 % binomial
bounds of the share; two identical systems are one of the cases. If all treatments are identical, at most 5 %
of the answers may name a difference (by the same bounds). Planted failures, all of which must be detected:
all runs of one system before those of the other while the host drifts, a split-plot analysed without its
strata, and terms tested individually. The bench also reports the time to analyse 100,000 runs of ten factors.
Exit status 1 if a case fails or a planted failure is not detected.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.analyse.findings.answer import answering
from penstock.analyse.findings.effect_findings import costs
from penstock.analyse.findings.effect_findings import effects as of_effects
from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.identical import names_difference
from penstock.analyse.statistics.effects import effects
from penstock.analyse.treatments.means import ranking
from penstock.analyse.treatments.recommend import best
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.study.load import read_study

Draws = np.random.Generator
#: values of a study's runs in running order
Noise = Callable[[Draws, Plan], "np.ndarray[Any, np.dtype[np.float64]]"]
COVER = (0.93, 0.97)
FALSE = 0.05


def plan_of(factors: dict[str, str], design: str) -> Plan:
    """The plan of a study with these factors and this design."""
    factor_lines = "\n".join(f"  {name}: {text}" for name, text in factors.items())
    placeholders = " ".join(f"{{{name}}}" for name in factors)
    return make_plan(
        read_study(
            f"""penstock: 1
name: simulated
question: Which?
factors:
{factor_lines}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}', expected: 60s}}
responses: {{y: {{from: wall_s, unit: s, better: lower}}}}
""".encode(),
            Path("simulated.study.yaml"),
        )
    )


def runs_of(plan: Plan) -> pd.DataFrame:
    """The runs table without its response."""
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "run_order": r.run_order,
                "replicate": r.replicate,
                "treatment_id": r.treatment_id,
                **r.levels,
                "valid": True,
            }
            for r in plan.rows
        ]
    )


@dataclass(frozen=True)
class Case:
    """Studies of one kind: plan, noise, evaluated terms; `lost` runs of each study."""

    name: str
    plan: Plan
    noise: Noise
    terms: tuple[str, ...]
    lost: int = 0
    #: the order of a plan without retained settings
    blind: bool = False
    #: all runs of one system, then all of the other, without blocks
    sequential: bool = False


def normal(draws: Draws, plan: Plan) -> Any:
    return draws.normal(0, 1, len(plan.rows))


def skewed(draws: Draws, plan: Plan) -> Any:
    """Log-normal with a skewness of 4."""
    return (draws.lognormal(0, 0.8, len(plan.rows)) - np.exp(0.32)) / 1.3


def unequal(draws: Draws, plan: Plan) -> Any:
    """Three times the spread at one level of the first factor."""
    first = plan.factors[0].name
    return draws.normal(0, 1, len(plan.rows)) * [
        3.0 if r.coded[first] > 0 else 1.0 for r in plan.rows
    ]


def by_block(draws: Draws, plan: Plan) -> Any:
    """A shift of three standard deviations of each block."""
    shift = draws.normal(0, 3, plan.replicates + 1)
    return draws.normal(0, 1, len(plan.rows)) + shift[[r.replicate for r in plan.rows]]


def by_half(draws: Draws, plan: Plan) -> Any:
    """A shift of three standard deviations of each half of a pass, independent of the blocks."""
    half = len({r.treatment_id for r in plan.rows}) // 2
    shift = draws.normal(0, 3, len(plan.rows) // half)
    return (
        draws.normal(0, 1, len(plan.rows)) + shift[[(r.run_order - 1) // half for r in plan.rows]]
    )


def by_setting(draws: Draws, plan: Plan) -> Any:
    """Noise with a component per retained setting, of twice the standard deviation of a run."""
    noise = draws.normal(0, 1, len(plan.rows))
    for name in ("whole_plot", "strip"):
        number = np.array([getattr(r, name) for r in plan.rows])
        noise = noise + np.where(number > 0, draws.normal(0, 2, int(number.max()) + 1)[number], 0.0)
    return noise


def drifting(draws: Draws, plan: Plan) -> Any:
    """A random walk of 0.6 per run, with noise of 1."""
    n = len(plan.rows)
    return draws.normal(0, 1, n) + np.cumsum(draws.normal(0, 0.6, n))


LEVELS = "{levels: [a, b]}"
DEAR = "{levels: [a, b], change: redeploy}"
THREE = {"A": LEVELS, "B": LEVELS, "C": LEVELS}
SPLIT = {"W": DEAR, "S": LEVELS, "T": LEVELS}
STRIPS = {
    "W": "{levels: [a, b], change_cost: 100s, change: redeploy}",
    "S": "{levels: [a, b], change: reformat}",
}


def cases() -> list[Case]:
    """All simulated cases."""
    full = plan_of(THREE, "{kind: full, replicates: 4}")
    halves = plan_of(THREE, "{kind: full, replicates: 4, block_size: 4}")
    systems = plan_of({"system": LEVELS}, "{kind: full, replicates: 20}")
    split = plan_of(SPLIT, "{kind: full, replicates: 6, order: split-plot}")
    free = plan_of(SPLIT, "{kind: full, replicates: 4, order: split-plot-random}")
    strips = plan_of(STRIPS, "{kind: full, replicates: 8, order: strip-plot}")
    mains = ("A", "B", "C", "A:B")
    return [
        Case("normal", full, normal, mains),
        Case("skewed", full, skewed, mains),
        Case("unequal spread", full, unequal, mains),
        Case("blocks", full, by_block, mains),
        Case("blocks of half a pass", halves, by_half, mains),
        Case("blocks of half a pass, 4 runs lost", halves, by_half, mains, lost=4),
        Case("blocks, 4 runs lost", full, by_block, mains, lost=4),
        Case("split-plot in blocks, whole-plot factor", split, by_setting, ("W",)),
        Case("split-plot in blocks, other factors", split, by_setting, ("S", "W:S")),
        Case("split-plot, whole-plot factor", free, by_setting, ("W",)),
        Case("split-plot, 5 runs lost, whole-plot factor", free, by_setting, ("W",), lost=5),
        Case("split-plot, 5 runs lost, other factors", free, by_setting, ("S", "W:S"), lost=5),
        Case("strip-plot, both settings", strips, by_setting, ("W", "S")),
        Case("two identical systems, randomised rounds, drift", systems, drifting, ("system",)),
    ]


def planted() -> list[Case]:
    """Wrong analyses, as planted failures."""
    systems = plan_of({"system": LEVELS}, "{kind: full, replicates: 20}")
    split = plan_of(SPLIT, "{kind: full, replicates: 4, order: split-plot-random}")
    return [
        Case(
            "two identical systems, one after the other, drift",
            systems,
            drifting,
            ("system",),
            sequential=True,
        ),
        Case(
            "split-plot without its strata, whole-plot factor",
            split,
            by_setting,
            ("W",),
            blind=True,
        ),
    ]


def outside(case: Case, studies: int, seed: int) -> tuple[int, int]:
    """Number of intervals of a term that exclude the true value, and their total. The true value is 0 or a
    planted effect. It is added to every study, so that intervals do not merely cover 0.
    """
    plan, runs = case.plan, runs_of(case.plan)
    if case.sequential:
        name = plan.factors[0].name
        rows = sorted(plan.rows, key=lambda r: (r.coded[name], r.run_order))
        plan = dataclasses.replace(plan, order="standard").with_runs(rows)
        runs = runs_of(plan)
    analysed = plan
    if case.blind:
        analysed = plan.with_runs([dataclasses.replace(r, whole_plot=0) for r in plan.rows])
    truth = {term: 0.7 * (i + 1) for i, term in enumerate(case.terms)}
    base = np.zeros(len(runs))
    for term, q in truth.items():
        base += q * np.prod([[r.coded[n] for n in term.split(":")] for r in plan.rows], axis=1)
    missed = total = 0
    for study in range(studies):
        draws = np.random.default_rng([seed, study])
        run_table = runs.assign(y=10 + base + case.noise(draws, plan))
        if case.lost:
            run_table.loc[draws.choice(len(run_table), case.lost, replace=False), "valid"] = False
        table = effects(run_table, analysed, "y").set_index("term")
        for term, q in truth.items():
            low, high = float(table.loc[term, "ci_low"]), float(table.loc[term, "ci_high"])
            if np.isfinite(low):
                total += 1
                missed += not low <= q <= high
    return missed, total


def ends(hits: int, total: int, level: float = 0.99) -> tuple[float, float]:
    """Clopper-Pearson interval of a share."""
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, hits, total - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, total - hits)) if hits < total else 1.0
    return low, high


def judge(case: Case, studies: int, seed: int) -> record.Row:
    """The row of a case: coverage with its bounds and verdict."""
    missed, total = outside(case, studies, seed)
    low, high = ends(total - missed, total)
    holds = high >= COVER[0] and low <= COVER[1]
    return {
        "case": case.name,
        "engine": "penstock",
        "metric": "95 % intervals that hold the truth",
        "value": round(100 * (1 - missed / total), 2),
        "unit": "%",
        "low": round(100 * low, 2),
        "high": round(100 * high, 2),
        "spread": "99 % interval",
        "n": total,
        "bar": "93 to 97 %",
        "verdict": record.MET if holds else record.MISSED,
    }


QUESTION = "Does A cost anything?"


def identical() -> list[tuple[str, Plan, Noise]]:
    """Designs with identical treatments, and the variation of their runs (in twentieths of the value)."""
    six = dict.fromkeys("ABCDEF", LEVELS)
    three = plan_of(THREE, "{kind: full, replicates: 3}")
    four = plan_of({**THREE, "D": LEVELS}, "{kind: full, replicates: 2}")
    part = plan_of(six, "{kind: {fraction: 2}, replicates: 2}")
    mixed = plan_of({"A": "{levels: [a, b, c]}", "B": LEVELS}, "{kind: full, replicates: 3}")
    halves = plan_of(THREE, "{kind: full, replicates: 3, block_size: 4}")
    screen = plan_of(six, "{kind: {plackett-burman: {}}, replicates: 2}")
    split = plan_of(SPLIT, "{kind: full, replicates: 4, order: split-plot}")
    systems = plan_of({"A": LEVELS}, "{kind: full, replicates: 20}")
    return [
        ("2^3, 3 replicates", three, normal),
        ("2^4, 2 replicates", four, normal),
        ("2^(6-2), 2 replicates", part, normal),
        ("3 x 2, 3 replicates", mixed, normal),
        ("2^3 in blocks of 4 that shift, 3 replicates", halves, by_half),
        ("Plackett-Burman of 12, 2 replicates", screen, normal),
        ("split-plot whose settings vary, 4 replicates", split, by_setting),
        ("two systems, 20 passes", systems, normal),
    ]


def names_a_difference(outcome: Outcome) -> bool:
    """True if the answer names a difference, or calls a treatment worse."""
    findings = [*costs(outcome), *best(outcome), *of_effects(outcome)]
    worse = ranking(outcome, outcome.responses[0]).of("worse")
    return bool(worse) or any(names_difference(outcome, f) for f in answering(outcome, findings))


def false_answers(plan: Plan, noise: Noise, studies: int, seed: int) -> tuple[int, int]:
    """Count studies with identical treatments whose answer names a difference, and those with a term below
    5 % in a single test.
    """
    runs, names = runs_of(plan), [f.name for f in plan.factors]
    document = plan.to_json()
    naming = single = 0
    study = {"question": QUESTION, "responses": {"y": {"unit": "s", "better": "lower"}}}
    for number in range(studies):
        draws = np.random.default_rng([seed, number])
        run_table = runs.assign(y=100 * np.exp(0.05 * noise(draws, plan)))
        table = effects(run_table, plan, "y")
        outcome = Outcome(Path("simulated"), document, study, run_table, table, None, None)
        naming += names_a_difference(outcome)
        single += bool(
            (table["p_value"][table["term"].str.split(":").str[0].isin(names)] < 0.05).any()
        )
    return naming, single


def answers_row(name: str, naming: int, studies: int) -> record.Row:
    """The row of a design with identical treatments."""
    low, high = ends(naming, studies)
    return {
        "case": f"what the answer says of identical treatments: {name}",
        "engine": "penstock",
        "metric": "answers that name a difference",
        "value": round(100 * naming / studies, 2),
        "unit": "%",
        "low": round(100 * low, 2),
        "high": round(100 * high, 2),
        "spread": "99 % interval",
        "n": studies,
        "bar": "at most 5 %",
        "verdict": record.MET if low <= FALSE else record.MISSED,
    }


def timed(runs: int, factors: int) -> record.Row:
    """Time to compute the effects of N runs [s]."""
    names = {f"F{i}": LEVELS for i in range(factors)}
    plan = plan_of(names, f"{{kind: full, replicates: {max(1, runs >> factors)}}}")
    run_table = runs_of(plan).assign(y=np.random.default_rng(1).normal(10, 1, len(plan.rows)))
    began = time.perf_counter()
    effects(run_table, plan, "y")
    time_row = record.row(
        f"{len(plan.rows):,} runs of {factors} factors", "penstock", "time of the analysis",
        [time.perf_counter() - began], "s",
    )  # fmt: skip
    return record.at_most(time_row, 5.0)


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 studies of each, not 2,000")
    parser.add_argument("--studies", type=int, default=0, help="studies of each case")
    parser.add_argument("--seed", type=int, default=20261125)
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    studies = arguments.studies or (200 if arguments.quick else 2000)
    rows = []
    for case in cases():
        rows.append(judge(case, studies, arguments.seed))
        print(f"{rows[-1]['case']}: {rows[-1]['value']} % ({rows[-1]['verdict']})", file=sys.stderr)
    detected: dict[str, bool | None] = {}
    for name, plan, noise in identical():
        naming, single = false_answers(plan, noise, studies, arguments.seed)
        rows.append(answers_row(name, naming, studies))
        print(f"{rows[-1]['case']}: {rows[-1]['value']} % ({rows[-1]['verdict']})", file=sys.stderr)
        if len(plan.factors) > 2:
            failure = f"each term by itself, {name}: {100 * single / studies:.1f} % name one"
            detected[failure] = ends(single, studies)[0] > FALSE
    for case in planted():
        missed, total = outside(case, max(200, studies // 4), arguments.seed)
        detected[f"{case.name}: {100 * missed / total:.1f} % wrong"] = (
            ends(missed, total)[0] > FALSE
        )
    rows.append(timed(100_000, 10))
    record.keep(arguments.record, rows, detected)
    if arguments.json:
        print(json.dumps({"rows": rows, "planted": detected}, ensure_ascii=False))
    else:
        for row in rows:
            print(f"{row['case']:72} {row['value']:8.4g} {row['unit']:2} {row['verdict']}")
        for failure, was_detected in detected.items():
            print(f"planted: {failure}: {'found' if was_detected else 'NOT FOUND'}")
    return int(any(r["verdict"] == record.MISSED for r in rows) or not all(detected.values()))


if __name__ == "__main__":
    sys.exit(main())
