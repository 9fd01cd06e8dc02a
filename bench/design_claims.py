"""Simulated claims about effects per kind of design: false effects, coverage, reported aliases.

Each kind of design (regular, irregular, split-plot, sequential, response surface) is simulated with normal,
outlying (4 % of the runs are far off), drifting and heteroscedastic noise, and evaluated by the code of
`penstock analyse`. If no factor has an effect, at most 5 % of the studies may report a significant effect,
over all terms and, in a sequential study, over all looks. 95 % intervals of planted effects must cover 93 to
97 %. If interactions are planted that the design does not estimate, each effect that is significant because
of them must have its interaction named. All claims are tested by 99 % bounds of the share.

Planted failures: effects without replicates whose outlying runs are ignored, looks of a sequential study at 5
% each, a split-plot without its strata, and aliases from equal columns alone. Exit status 1 if a share is
outside of its bounds or a failure is not detected.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.effect_intervals import COVER, DEAR, FALSE, LEVELS, ends, runs_of
from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.adaptive import active_at, next_stage
from penstock.analyse.sequential.aliased import Open
from penstock.analyse.statistics import effect_table
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.significance import is_sure
from penstock.design.additions.stages import with_stages
from penstock.design.generators import term_of
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.spec.study import Study
from penstock.study.load import read_study

Draws = np.random.Generator
Values = "np.ndarray[Any, np.dtype[np.float64]]"
Noise = Callable[[Draws, Plan], Any]
NUMBERS = "{levels: [1, 2, 3]}"


def study_of(factors: dict[str, str], design: str) -> Study:
    """A study with these factors and this design."""
    factor_lines = "\n".join(f"  {name}: {text}" for name, text in factors.items())
    placeholders = " ".join(f"{{{name}}}" for name in factors)
    text = f"""penstock: 1
name: simulated
question: Which factor matters?
factors:
{factor_lines}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}', expected: 60s}}
responses: {{y: {{from: wall_s, unit: s, better: lower, scale: linear}}}}
"""
    return read_study(text.encode(), Path("simulated.study.yaml"))


def two(names: str) -> dict[str, str]:
    """Factors of two levels."""
    return {n: f"{{levels: [{n.lower()}0, {n.lower()}1]}}" for n in names}


def normal(draws: Draws, plan: Plan) -> Any:
    return draws.normal(0, 1, len(plan.rows))


def outlying(draws: Draws, plan: Plan) -> Any:
    """One run of 25 is 30 standard deviations slower."""
    n = len(plan.rows)
    return draws.normal(0, 1, n) + np.where(draws.random(n) < 0.04, 30.0, 0.0)


def drifting(draws: Draws, plan: Plan) -> Any:
    """A random walk of half a standard deviation per run."""
    n = len(plan.rows)
    return draws.normal(0, 1, n) + np.cumsum(draws.normal(0, 0.5, n))


def unequal(draws: Draws, plan: Plan) -> Any:
    """Three times the spread at the last level of the first factor."""
    first = plan.factors[0]
    last = first.levels[-1].name
    wide = np.array([r.levels[first.name] == last for r in plan.rows])
    return draws.normal(0, 1, len(plan.rows)) * np.where(wide, 3.0, 1.0)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "outlying": outlying,
    "drifting": drifting,
    "heteroscedastic": unequal,
}


def of_settings(draws: Draws, plan: Plan, noise: Noise) -> Any:
    """Noise with a component per retained setting, of twice the standard deviation of a run."""
    errors = noise(draws, plan)
    number = np.array([r.whole_plot for r in plan.rows])
    if number.any():
        errors = errors + draws.normal(0, 2, int(number.max()) + 1)[number]
    return errors


@dataclass(frozen=True)
class Simulated:
    """A simulated study: its factors and its design."""

    name: str
    factors: dict[str, str]
    design: str

    @cached_property
    def plan(self) -> Plan:
        """The study's plan; for an optimal design this takes seconds."""
        return make_plan(study_of(self.factors, self.design))


@dataclass(frozen=True)
class Kind(Simulated):
    """A kind of design, and `covered`, the terms whose intervals are tested. None without pure error: Lenth's
    intervals are as wide as all effects are large.
    """

    covered: tuple[str, ...] = ()


def kinds() -> list[Kind]:
    """The simulated kinds of designs."""
    split = {"W": DEAR, "S": LEVELS, "T": LEVELS}
    forbid = "forbidden: [{A: a1, B: b1}]"
    return [
        Kind("regular, 2^4 without replicates", two("ABCD"), "{kind: full, replicates: 1}"),
        Kind(
            "regular, 2^3, 3 replicates",
            two("ABC"),
            "{kind: full, replicates: 3}",
            ("A", "A:B"),
        ),
        Kind(
            "regular, 2^(6-2), 2 replicates",
            two("ABCDEF"),
            "{kind: {fraction: 2}, replicates: 2}",
            ("A", "F"),
        ),
        Kind(
            "irregular, Plackett-Burman of 12, 2 replicates",
            two("ABCDEF"),
            "{kind: plackett-burman, replicates: 2}",
            ("A", "F"),
        ),
        Kind(
            "irregular, D-optimal with a forbidden combination, 3 replicates",
            two("ABCDEF"),
            f"{{kind: d-optimal, replicates: 3, {forbid}}}",
            ("A", "F"),
        ),
        Kind(
            "irregular, definitive screening, 2 replicates",
            dict.fromkeys("ABCD", NUMBERS),
            "{kind: definitive-screening, replicates: 2}",
            ("A", "D"),
        ),
        Kind(
            "split-plot, 4 replicates",
            split,
            "{kind: full, replicates: 4, order: split-plot}",
            ("S", "W:S"),
        ),
        Kind(
            "response surface, central composite, 3 replicates",
            dict.fromkeys("AB", NUMBERS),
            "{kind: central-composite, replicates: 3}",
            ("A:B",),
        ),
    ]


def table_of(plan: Plan, runs: pd.DataFrame, y: Any) -> pd.DataFrame:
    """The effects of factors."""
    table = effects(runs.assign(y=y), plan, "y")
    names = {f.name for f in plan.factors}
    return table[table["term"].map(lambda t: set(str(t).split(":")) <= names)]


def false_effects(kind: Kind, noise: Noise, studies: int, seed: int, *, blind: bool = False) -> int:
    """Number of studies without effects that report a significant one; `blind`: without strata."""
    plan = kind.plan
    runs = runs_of(plan)
    analysed = plan
    if blind:
        analysed = plan.with_runs([dataclasses.replace(r, whole_plot=0) for r in plan.rows])
    false_reports = 0
    for number in range(studies):
        draws = np.random.default_rng([seed, number])
        y = 100 + of_settings(draws, plan, noise)
        false_reports += bool(is_sure(table_of(analysed, runs, y)).any())
    return false_reports


def coverage(kind: Kind, noise: Noise, studies: int, seed: int) -> tuple[int, int]:
    """Number of intervals of planted effects that contain the true value, and their total."""
    plan = kind.plan
    runs = runs_of(plan)
    truth = {term: 0.7 * (i + 1) for i, term in enumerate(kind.covered)}
    levels = {f.name: [v.name for v in f.levels] for f in plan.factors}

    def coded(row: Any, name: str) -> float:
        names = levels[name]
        return 2 * names.index(row.levels[name]) / (len(names) - 1) - 1

    base = np.array(
        [
            sum(q * np.prod([coded(r, n) for n in term.split(":")]) for term, q in truth.items())
            for r in plan.rows
        ]
    )
    covered = total = 0
    for number in range(studies):
        draws = np.random.default_rng([seed, 1, number])
        table = table_of(plan, runs, 100 + base + of_settings(draws, plan, noise)).set_index("term")
        for term, q in truth.items():
            low, high = float(table.loc[term, "ci_low"]), float(table.loc[term, "ci_high"])
            if np.isfinite(low):
                total += 1
                covered += low <= q <= high
    return covered, total


@dataclass(frozen=True)
class Hidden(Simulated):
    """A design with a planted interaction that it does not estimate: `mains`, `hidden`."""

    mains: tuple[str, ...]
    hidden: str


def hidden() -> list[Hidden]:
    """Planted interactions: with the effects of their factors, and without any."""
    many, seven = two("ABCDEFGHIJK"), two("ABCDEFG")
    pb = "{kind: plackett-burman, replicates: 2}"
    fraction = "{kind: {fraction: 4}, replicates: 2}"
    forbid = "{purpose: screen, replicates: 3, forbidden: [{A: a1, B: b1}, {C: c1, D: d1, E: e1}]}"
    mixed = {"A": LEVELS, **dict.fromkeys("BCD", "{levels: [p, q, r]}")}
    return [
        Hidden("Plackett-Burman of 12", many, pb, ("A", "B"), "A:B"),
        Hidden("2^(7-4), with its factors", seven, fraction, ("A", "B"), "A:B"),
        Hidden("2^(7-4), without its factors", seven, fraction, ("G",), "A:B"),
        Hidden("D-optimal, without its factors", seven, forbid, ("F",), "C:D"),
        Hidden(
            "orthogonal array L18",
            mixed,
            "{kind: orthogonal-array, replicates: 2}",
            ("B", "C"),
            "B:C",
        ),
    ]


def unnamed(case: Hidden, studies: int, seed: int) -> tuple[int, int]:
    """Number of studies that do not name the planted interaction, or not for an effect that it causes; and
    their total.
    """
    plan = case.plan
    runs = runs_of(plan)
    missed = 0
    document: dict[str, Any] = {"responses": {"y": {"unit": "s", "better": "lower"}}}
    levels = {f.name: [v.name for v in f.levels] for f in plan.factors}

    def high(row: Any, name: str) -> float:
        return 1.0 if row.levels[name] == levels[name][-1] else -1.0

    base = np.array(
        [
            sum(4 * high(r, m) for m in case.mains)
            + 6 * np.prod([high(r, n) for n in case.hidden.split(":")])
            for r in plan.rows
        ]
    )
    for number in range(studies):
        draws = np.random.default_rng([seed, 2, number])
        table_of_runs = runs.assign(y=100 + base + draws.normal(0, 1, len(runs)))
        table = effects(table_of_runs, plan, "y")
        outcome = Outcome(
            Path("simulated"), plan.to_json(), document, table_of_runs, table, None, None
        )
        open_results = Open(outcome, plan, "y", None)
        rivals_of = {
            term_of(q.term, open_results.names): {
                term_of(w, open_results.names) for w in (*q.plausible, *q.other)
            }
            for q in open_results.open_questions
        }
        false = [t for t in open_results.active if t not in (*case.mains, case.hidden)]
        named = case.hidden in open_results.active or any(
            case.hidden in rivals for rivals in rivals_of.values()
        )
        missed += not (named and all(case.hidden in rivals_of.get(t, set()) for t in false))
    return missed, studies


def sequential(studies: int, seed: int, *, each: bool = False) -> int:
    """Number of sequential studies without effects that report one at a look or in the final analysis;
    `each`: at 5 % at every look.
    """
    study = study_of(
        two("ABCDE"),
        "{kind: {fraction: 2}, replicates: 2, sequential: {runs: 120, search_runs: 0, confirm: 2}}",
    )
    names = list("ABCDE")
    false_reports = 0
    for number in range(studies):
        draws = np.random.default_rng([seed, 3, number])
        plan, stages, false = make_plan(study), [], False
        values: dict[str, float] = {}
        while True:
            for row in plan.rows:
                values.setdefault(row.run_id, 100 + float(draws.normal()))
            runs = runs_of(plan).assign(y=[values[r.run_id] for r in plan.rows])
            analysed = (
                dataclasses.replace(
                    plan, sequential=None, stages=[s | {"spent": 0.0} for s in plan.stages]
                )
                if each
                else plan
            )
            table = effects(runs, analysed, "y")
            false = false or bool(active_at(table, names, FALSE))
            stage = next_stage(plan, study, runs)
            if stage is None or stage.purpose != "augment":
                break
            stages.append(stage)
            plan = with_stages(make_plan(study), study, stages)
        false_reports += false
    return false_reports


def share_row(case: str, metric: str, hits: int, total: int, bar: str, holds: bool) -> record.Row:
    """A share with its 99 % bounds."""
    low, high = ends(hits, total)
    return {
        "case": case,
        "engine": "penstock",
        "metric": metric,
        "value": round(100 * hits / total, 2),
        "unit": "%",
        "low": round(100 * low, 2),
        "high": round(100 * high, 2),
        "spread": "99 % interval",
        "n": total,
        "bar": bar,
        "verdict": record.MET if holds else record.MISSED,
    }


def false_row(case: str, hits: int, total: int) -> record.Row:
    """The row of false effects."""
    holds = ends(hits, total)[0] <= FALSE
    return share_row(case, "studies with a false effect", hits, total, "at most 5 %", holds)


def cover_row(case: str, hits: int, total: int) -> record.Row:
    """The row of coverage."""
    low, high = ends(hits, total)
    holds = high >= COVER[0] and low <= COVER[1]
    return share_row(case, "95 % intervals that hold the truth", hits, total, "93 to 97 %", holds)


def planted(studies: int, seed: int) -> dict[str, bool | None]:
    """Planted failures, and whether the bounds detect them."""
    all_kinds = kinds()
    detected: dict[str, bool | None] = {}
    with mock.patch.object(effect_table, "few_runs", return_value=None):
        hits = false_effects(all_kinds[0], outlying, studies, seed)
    failure = "outlying runs not looked for in an unreplicated 2^4"
    detected[f"{failure}: {100 * hits / studies:.1f} % false"] = ends(hits, studies)[0] > FALSE
    split = next(k for k in all_kinds if k.name.startswith("split-plot"))
    fewer = studies // 4  # one in four reports a false effect
    hits = false_effects(split, normal, fewer, seed, blind=True)
    failure = "a split-plot without its strata"
    detected[f"{failure}: {100 * hits / fewer:.1f} % false"] = ends(hits, fewer)[0] > FALSE
    hits = sequential(studies, seed, each=True)
    failure = "looks of a sequential study at 5 % each"
    detected[f"{failure}: {100 * hits / studies:.1f} % false"] = ends(hits, studies)[0] > FALSE
    with mock.patch.object(Open, "_partly_aliased", return_value=[]):
        missed, total = unnamed(hidden()[0], max(5, studies // 40), seed)
    failure = "aliases told by equal columns alone"
    detected[f"{failure}: {missed} of {total} not named"] = missed > 0
    return detected


def main() -> int:
    """Run all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100 studies of each, not 1,000")
    parser.add_argument("--studies", type=int, default=0, help="studies of each case")
    parser.add_argument("--seed", type=int, default=20261127)
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    studies = arguments.studies or (100 if arguments.quick else 1000)
    rows: list[record.Row] = []

    def add(row: record.Row) -> None:
        rows.append(row)
        print(
            f"{row['case']}: {row['metric']} {row['value']} % ({row['verdict']})", file=sys.stderr
        )

    for kind in kinds():
        for name, noise in NOISES.items():
            case = f"{kind.name}; {name} noise"
            add(false_row(case, false_effects(kind, noise, studies, arguments.seed), studies))
            if kind.covered:
                covered, total = coverage(kind, noise, studies, arguments.seed)
                add(cover_row(case, covered, total))
    looks = max(50, studies // 4)
    add(
        false_row(
            "sequential, screening and its analysis", sequential(looks, arguments.seed), looks
        )
    )
    for hidden_case in hidden():
        missed, total = unnamed(hidden_case, max(10, studies // 20), arguments.seed)
        metric = "studies that do not name it"
        case = f"an interaction without an estimate, {hidden_case.name}"
        add(share_row(case, metric, missed, total, "at most 1 %", ends(missed, total)[0] <= 0.01))
    failures = planted(max(200, studies // 2), arguments.seed)
    record.keep(arguments.record, rows, failures)
    if arguments.json:
        print(json.dumps({"rows": rows, "planted": failures}, ensure_ascii=False))
    else:
        for row in rows:
            bounds = f"({row['low']:.3g} to {row['high']:.3g})"
            print(
                f"{row['case']:66} {row['metric']:34} {row['value']:6.3g} % {bounds:16} {row['verdict']}"
            )
        for failure, detected in failures.items():
            print(f"planted: {failure}: {'found' if detected else 'NOT FOUND'}")
    return int(any(r["verdict"] == record.MISSED for r in rows) or not all(failures.values()))


if __name__ == "__main__":
    sys.exit(main())
