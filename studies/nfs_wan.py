"""NFS over a wide-area network: the published 2^6 design, its fraction of eight runs, and the aliases of the
eight.

`studies/nfs_wan.py` makes the runs of `studies/nfs-wan.study.yaml` in a small virtual machine, whose kernel
has an NFS server, an NFS client and netem: the published fraction of eight, executed separately (x 5), the
sixteen by foldover, interleaved (x 5), the full design (64 treatments x 5), and cells at the middle latency
(x 5). It prints twelve claims with their evidence and result. Existing runs are not repeated. `--quick`: the
eight treatments once, with small files; claims that need more are not measured. `--virtual`: runs nothing and
prints what follows from the plans alone; every claim is then not measured.

Two claims say "in every cell". Their relaxed criterion, that no cell contradicts them beyond chance, is
evaluated as well. The guest's processor is software (QEMU TCG): its times are not those of a machine. It
answers a ping within about a millisecond, where the published network took 0.054 ms. The link's latencies and
the limit of the disk are as specified, and each run measures its round trip first.

After section 6 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems (2020). Exit status 3
if a claim is not met or not measured, 1 if something failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy import stats

from penstock.analyse.sequential.fraction import fraction_of
from penstock.analyse.statistics.effects import effects
from penstock.design.additions.two_levels import make_step, questions
from penstock.design.generators import defining_relation, members, parse_generator
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, coded_matrix
from penstock.errors import PenstockError
from penstock.report import style
from penstock.study.load import load_study

HERE = Path(__file__).resolve().parent
STUDY = HERE / "nfs-wan.study.yaml"
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE.parent))

from disks import finish  # noqa: E402

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Finding, Result, claim, met_if, valid_runs  # noqa: E402
from studies.common.published_figures import (  # noqa: E402
    Cells,
    cell_means,
    effect_sizes,
    save,
)

RESPONSES = ("write", "read")
#: the letters of the published tables
LETTERS = dict(zip("ABCDEF", ("version", "storage", "mode", "io", "size", "latency"), strict=True))
#: D = AB, E = AC, F = BC
EIGHT = ("io = version*storage", "size = version*mode", "latency = storage*mode")
#: E = BCD, F = ACD: the eight and their foldover
SIXTEEN = ("size = storage*mode*io", "latency = version*mode*io")
#: a small version that gives a result within minutes
SMALL = "factors.size.levels={500kB: 524288, 5MB: 5242880}"
#: cells of small writes at the middle latency, and three more that separate the other factors
CELLS = [
    dict(zip(LETTERS.values(), (v, "tmpfs", m, "64kB", "25MB", at), strict=True))
    for v in ("NFSv3", "NFSv4")
    for m in ("sync", "async")
    for at in ("local", "middle")
]
CELLS += [
    {**CELLS[0], "storage": "ext4"}, {**CELLS[0], "io": "1MB"}, {**CELLS[0], "size": "500kB"},
]  # fmt: skip
TWO = "factors.latency.levels={local: 0.027, middle: 6.87}"
MIDDLE = "factors.latency.levels={local: 0.027, middle: 6.87, remote: 13.9}"
#: probability that a cell contradicts an order by chance, over all cells of a claim
ALPHA = 0.05
NEAR = 1e-9
#: coefficients of a simulated world without noise (specification of the published case)
TRUTH = {"": 150.0, "E": 40.0, "B": 30.0, "C": -25.0, "F": 20.0, "CF": -12.0, "BF": -8.0, "BCF": 6.0,
         "D": -2.0, "A": 1.5}  # fmt: skip

#: the largest main effects of the published study
PUBLISHED_TOP = "EBCF"
MEASURED_AT_ALL_LATENCIES = 960


def designed(kind: Sequence[str]) -> list[str]:
    """Overrides that select these generators; none: the full design."""
    if not kind:
        return []
    return [f"design.kind={{fraction: {len(kind)}}}", f"design.generators=[{', '.join(kind)}]"]


@functools.cache
def plan_of(*overrides: str) -> Plan:
    """The plan of the study with other values."""
    return make_plan(load_study(STUDY, list(overrides)))


def named(word: str) -> str:
    """`CF` as `mode:latency`, the term of an effects table."""
    return ":".join(LETTERS[letter] for letter in word)


def lettered(term: str) -> str:
    """`mode:latency` as `CF`."""
    letters = {name: letter for letter, name in LETTERS.items()}
    return "".join(letters[name] for name in term.split(":"))


# ---------------------------------------------------------------- runs


def runs(
    name: str, out: Path, kind: Sequence[str], quick: bool, more: Sequence[str] = ()
) -> pd.DataFrame:
    """Runs of one design; missing runs are executed."""
    place = out / f"nfs-wan-{name}{'-quick' if quick else ''}"
    overrides = [*designed(kind), *(["design.replicates=1", SMALL] if quick else []), *more]
    finish(
        STUDY,
        place,
        [argument for override in overrides for argument in ("--set", override)],
        quiet=True,
    )
    table = pd.read_parquet(place / "runs.parquet")
    trips = [place / "runs" / str(run_id) / "hook-verify.txt" for run_id in table["run_id"]]
    return table.assign(round_trip_ms=[round_trip_ms(path) for path in trips])


def round_trip_ms(file: Path) -> float:
    """Shortest of five round trips, as `verify.sh` printed it; NaN of a run that failed before."""
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return math.nan


# ---------------------------------------------------------------- the claims


def planned_runs() -> dict[str, list[int]]:
    """Rows and runs of each design, of this study and published, from the plans alone, without runs."""
    grid = plan_of(MIDDLE, "design.replicates=1")
    planned = [
        len(grid.rows),
        len(grid.rows) * 5 * len(RESPONSES),
        len(plan_of().rows),
        len(plan_of(*designed(EIGHT)).rows),
        len(plan_of(*designed(SIXTEEN)).rows),
    ]
    return {"here": planned, "published": [96, MEASURED_AT_ALL_LATENCIES, 320, 40, 80]}


def label(levels: Mapping[str, Any]) -> str:
    """Name of a treatment: its levels in the order of the letters."""
    return " ".join(str(levels[name]) for name in LETTERS.values())


def valid_of(table: pd.DataFrame | None) -> list[str]:
    """Treatment of each valid run."""
    if table is None:
        return []
    return [label(row) for row in table[table["valid"].eq(True)].to_dict("records")]


def needed(
    table: pd.DataFrame | None, *overrides: str, name: str = "", **only: str
) -> dict[str, int]:
    """Valid runs of each treatment of a design, or of those at some levels; `name` is their prefix."""
    rows = [row.levels for row in plan_of("design.replicates=1", *overrides).rows]
    chosen = [r for r in rows if all(str(r[factor]) == level for factor, level in only.items())]
    runs = valid_runs([label(levels) for levels in chosen], valid_of(table))
    return {f"{name} {treatment}".strip(): count for treatment, count in runs.items()}


def number_of_runs(measured: Mapping[str, pd.DataFrame]) -> Claim:
    """1: valid runs of each cell and design, executed."""
    full, middle = measured.get("full"), measured.get("middle")
    rows = [row.levels for row in plan_of(MIDDLE, "design.replicates=1").rows]
    needs = valid_runs(map(label, rows), [*valid_of(full), *valid_of(middle)])
    parts = {
        **needed(measured.get("eight"), *designed(EIGHT), name="eight:"),
        **needed(measured.get("sixteen"), *designed(SIXTEEN), name="sixteen:"),
    }

    def evaluate() -> Finding:
        measurements = sum(min(runs, 5) for runs in needs.values()) * len(RESPONSES)
        evidence = f"{measurements} measurements of {len(needs)} cells"
        complete = all(runs >= 5 for runs in (*needs.values(), *parts.values()))
        return met_if(complete and measurements == MEASURED_AT_ALL_LATENCIES, evidence)

    return claim(
        "point 1",
        "96 cells x 5 runs x 2 responses = 960 measurements; eight x 5, sixteen x 5",
        {**needs, **parts},
        evaluate,
        published="960",
    )


def cells(table: pd.DataFrame) -> dict[tuple[str, ...], pd.DataFrame]:
    """The valid runs of each treatment, by its levels in the order of the letters."""
    valid = table[table["valid"].eq(True)]
    return {tuple(map(str, k)): g for k, g in valid.groupby(list(LETTERS.values()), observed=True)}


def pairs(table: pd.DataFrame, factor: str, low: str, high: str, **only: str) -> list[Any]:
    """Cells that differ in one factor alone: (the others' levels, runs at `low`, runs at `high`)."""
    names = list(LETTERS.values())
    at = names.index(factor)
    by_levels = cells(table)
    matches = []
    for levels, runs_low in by_levels.items():
        high_levels = (*levels[:at], high, *levels[at + 1 :])
        fits = all(levels[names.index(n)] == v for n, v in only.items())
        if levels[at] == low and fits and high_levels in by_levels:
            matches.append((levels, runs_low, by_levels[high_levels]))
    return matches


def contradicts(less: pd.Series[float], more: pd.Series[float], tests: int) -> bool:
    """True if `less` is above `more` beyond chance: Welch's test of logarithms, Bonferroni over `tests`."""
    a, b = np.log(less.to_numpy(float)), np.log(more.to_numpy(float))
    if min(len(a), len(b)) < 2 or np.ptp(a) + np.ptp(b) < NEAR:
        return bool(a.mean() > b.mean() + NEAR)
    test = stats.ttest_ind(a, b, equal_var=False, alternative="greater")
    return bool(test.pvalue < ALPHA / tests)


def in_order(cell_pairs: Sequence[Any], responses: Sequence[str] = RESPONSES) -> Finding:
    """Second cell of each pair at least as fast, by the means; relaxed: not slower beyond chance."""
    tests = len(cell_pairs) * len(responses)
    above = sum(more[r].mean() >= less[r].mean() for _, less, more in cell_pairs for r in responses)
    contradicting = [
        f"{r} {' '.join(levels)}"
        for levels, less, more in cell_pairs
        for r in responses
        if contradicts(less[r], more[r], tests)
    ]
    evidence = (
        f"{above} of {tests} means in order; {len(contradicting)} contradict it beyond chance"
    )
    evidence += "".join(f"; {cell}" for cell in contradicting[:3])
    return met_if(bool(above == tests), evidence, relaxed=not contradicting)


def ordered(
    number: int, wording: str, needs: Mapping[str, int], cell_pairs: Sequence[Any]
) -> Claim:
    """2, 5: an order in every cell, evaluated as worded and relaxed."""
    return claim(
        f"point {number}",
        wording,
        needs,
        lambda: in_order(cell_pairs),
        criterion="means, in every cell",
        relaxed="no cell contradicts it beyond chance",
    )


def falls(table: pd.DataFrame) -> Finding:
    """3: synchronous writing is slower with latency, in every cell."""
    matches = pairs(table, "latency", "remote", "local", mode="sync")
    ratios = [more["write"].mean() / less["write"].mean() for _, less, more in matches]
    slower = sum(ratio > 1 for ratio in ratios)
    evidence = f"{slower} of {len(ratios)} cells, by {min(ratios):.2g} to {max(ratios):.2g} times"
    return met_if(slower == len(ratios), evidence)


def at_middle_latency(table: pd.DataFrame | None) -> Claim:
    """4: small synchronous writes at the middle latency, which the two-level design does not have."""
    where = {"io": "64kB", "storage": "tmpfs", "size": "25MB"}
    required = [label(c) for c in CELLS if all(c[k] == v for k, v in where.items())]

    def evaluate() -> Finding:
        assert table is not None
        local = pairs(table, "latency", "middle", "local", mode="sync", **where)
        free = pairs(table, "mode", "sync", "async", latency="middle", **where)
        slower, faster = (
            [more["write"].mean() / less["write"].mean() for _, less, more in matches]
            for matches in (local, free)
        )
        evidence = f"{min(slower):.3g} and {min(faster):.3g} at the least"
        return met_if(min(slower) >= 5 and min(faster) >= 5, evidence)

    return claim(
        "point 4",
        "64 kB at 6.87 ms, tmpfs, large file: sync local over sync, and async over sync, at least 5",
        valid_runs(required, valid_of(table)),
        evaluate,
    )


Effects = Mapping[str, pd.DataFrame]


def weaker(full: Effects) -> Finding:
    """6: the version matters less than the latency."""
    evidence, holds = [], True
    for response, table in full.items():
        a, f = (abs(table.loc[LETTERS[x], "coefficient"]) for x in "AF")
        evidence.append(f"{response} {a:.3g} and {f:.3g}")
        holds = holds and bool(a < f)
    return met_if(holds, "; ".join(evidence))


def complete(needs: Mapping[str, int], replicates: int) -> Finding:
    """7: every cell has five valid runs, hence an interval."""
    enough = sum(runs >= replicates for runs in needs.values())
    evidence = f"{enough} of {len(needs)} cells with {replicates} valid runs"
    return met_if(enough == len(needs), evidence)


def identity(table: pd.DataFrame, plan: Plan, spoilt: bool = False) -> Finding:
    """8: coefficients of the eight rows are signed sums of those of the full design over the coset."""
    worst = 0.0
    for response in [r for r in (*RESPONSES, "y") if r in table]:
        sums_table = fraction_of(table, plan, response, 3, EIGHT)
        scale = float(sums_table["full"].abs().max())
        sums = sums_table["coset_sum"] + (0.001 * scale if spoilt else 0.0)
        worst = max(worst, float((sums_table["fraction"] - sums).abs().max()) / scale)
    return met_if(worst <= NEAR, f"{worst:.2g} of the largest")


def top(table: pd.DataFrame, count: int = 4) -> list[str]:
    """Letters of the `count` largest main effects, in order of size."""
    largest = table.loc[list(LETTERS.values()), "coefficient"].abs().sort_values(ascending=False)
    return [lettered(str(name)) for name in largest.index[:count]]


def same_top(full: Effects, eight: Effects, flagged: set[str]) -> Finding:
    """9: the four largest main effects agree; relaxed: those that differ were reported as aliased."""
    evidence, same, explained = [], True, True
    for response in full:
        full_top, eight_top = top(full[response]), top(eight[response])
        differ = set(full_top) ^ set(eight_top)
        same, explained = same and not differ, explained and differ <= flagged
        evidence.append(f"{response} {''.join(eight_top)}, full design {''.join(full_top)}")
    return met_if(same, "; ".join(evidence), relaxed=explained)


def published_top(full: Effects) -> Finding:
    """12: the four largest main effects of the published study are the four largest of this one."""
    largest = {response: top(table) for response, table in full.items()}
    evidence = "; ".join(f"{response} {''.join(letters)}" for response, letters in largest.items())
    return met_if(all(set(x) == set(PUBLISHED_TOP) for x in largest.values()), evidence)


def coset_of(word: str, generators: Sequence[str]) -> dict[str, int]:
    """Terms of a contrast with their signs; words in letters."""
    names = list(LETTERS.values())
    relation = defining_relation(parse_generator(g, names).relation for g in generators)
    mask = sum(1 << "ABCDEF".index(letter) for letter in word)
    signs = {}
    for member, sign in relation.items():
        signs["".join("ABCDEF"[i] for i in members(mask ^ member))] = sign
    return signs


def cleared(full: Effects, sixteen: Effects) -> Finding:
    """10: BF, CF and BCF of sixteen runs, compared with the full design's coset sums."""
    evidence, holds = [], True
    for response, table in full.items():
        for word in ("BF", "CF", "BCF"):
            coset = coset_of(word, SIXTEEN)
            estimate = next(
                sixteen[response].loc[named(w)]
                for w in coset
                if w and named(w) in sixteen[response].index
            )
            total = sum(s * table.loc[named(w), "coefficient"] for w, s in coset.items())
            half = math.sqrt(
                sum(((table.loc[named(w), "ci_high"] - table.loc[named(w), "ci_low"]) / 2) ** 2
                    for w in coset)
            )  # fmt: skip
            q = float(estimate["coefficient"])
            overlap = estimate["ci_low"] <= total + half and total - half <= estimate["ci_high"]
            sure = abs(total) > half and (estimate["ci_low"] > 0 or estimate["ci_high"] < 0)
            holds = holds and bool(overlap) and not (sure and q * total < 0)
            evidence.append(f"{response} {word} {q:.3g} and {total:.3g}")
    return met_if(holds, "; ".join(evidence))


def warned(plan: Plan) -> Finding:
    """11: the plan reports the effects that the eight runs cannot distinguish."""
    aliases = {a.term: {t.lstrip("+-") for t in a.with_terms} for a in plan.aliases}
    shown = [
        named("CF") in aliases[LETTERS["B"]],
        named("BF") in aliases[LETTERS["C"]],
        named("BCF") in aliases["mean"],
        any("two-factor" in c or "interaction" in c for c in plan.cautions),
    ]
    wider = plan.power["half_width_q_sigma"] / plan_of().power["half_width_q_sigma"]
    unblocked = plan.power["width_against_full_random"]
    holds = all(shown) and abs(wider - 2.942) < 5e-4 and abs(unblocked - 2.926) < 5e-4
    evidence = (
        f"{sum(shown)} of 4; intervals {wider:.3f} times as wide, {unblocked:.3f} without blocks"
    )
    return met_if(holds, evidence)


# ---------------------------------------------------------------- aliases of the eight runs


def without_noise(plan: Plan, **flipped: float) -> pd.DataFrame:
    """Runs of a world with known coefficients, some of which may be replaced."""
    truth = {**TRUTH, **flipped}
    rows = []
    for row in plan.rows:
        signs = {letter: row.coded[name] for letter, name in LETTERS.items()}
        y = sum(q * math.prod(signs[x] for x in word) for word, q in truth.items())
        about = {"run_id": row.run_id, "replicate": row.replicate, "run_order": row.run_order}
        rows.append({**row.levels, **about, "valid": True, "y": y, "block": row.block})
    return pd.DataFrame(rows)


def confused() -> list[dict[str, Any]]:
    """Result of each design for the important terms, whose true values are known."""
    by_design: dict[str, dict[str, float]] = {}
    for name, kind in (("64 runs", ()), ("8 runs", EIGHT), ("16 by foldover", SIXTEEN)):
        plan = plan_of(*designed(kind), "design.replicates=2")
        table = without_noise(plan)
        coefficients = effects(table, plan, "y").set_index("term")["coefficient"]
        letters = set(LETTERS.values())
        estimates = {
            str(t): float(v) for t, v in coefficients.items() if set(str(t).split(":")) <= letters
        }
        by_design[name] = {lettered(term): value for term, value in estimates.items()}
        by_design[name][""] = float(table["y"].mean())
    rows = []
    for word in ("", "B", "C", "E", "F", "BF", "CF", "BCF"):
        row: dict[str, Any] = {"term": word or "mean", "truth": TRUTH.get(word, 0.0)}
        for name, kind in (("64 runs", ()), ("8 runs", EIGHT), ("16 by foldover", SIXTEEN)):
            # a term without its own column is part of that of a shorter one
            coset = coset_of(word, kind) if kind else {word: 1}
            row[name] = next(
                (s * by_design[name][w] for w, s in coset.items() if w in by_design[name]), None
            )
        rows.append(row)
    return rows


def folded() -> bool:
    """True if the sixteen are the eight and their foldover, by the step of `--augment foldover`."""
    names = list(LETTERS.values())
    eight = coded_matrix(plan_of(*designed(EIGHT)))
    step = make_step("foldover", eight, [1] * len(eight), questions(eight, []), names)
    both = {tuple(map(int, row)) for row in np.vstack([eight, step.rows])}
    return both == {tuple(map(int, row)) for row in coded_matrix(plan_of(*designed(SIXTEEN)))}


def compared(full: Effects, part: Effects, cost: float) -> list[dict[str, Any]]:
    """Two designs of one study: sets of the largest effects, rank correlation, intervals, cost."""
    rows = []
    mains = list(LETTERS.values())
    for response in full:
        full_rows, part_rows = full[response].loc[mains], part[response].loc[mains]
        overlap = (full_rows["ci_low"] <= part_rows["ci_high"]) & (
            part_rows["ci_low"] <= full_rows["ci_high"]
        )
        tau = stats.kendalltau(
            full_rows["coefficient"].abs(), part_rows["coefficient"].abs()
        ).statistic
        rows.append({
            "response": response,
            **{
                f"top {m} alike": set(top(full[response], m)) == set(top(part[response], m))
                for m in (1, 2, 4)
            },
            "Kendall's tau": float(tau),
            "intervals that overlap": f"{int(overlap.sum())} of {len(mains)}",
            "runs, of the full design": cost,
        })  # fmt: skip
    return rows


# ---------------------------------------------------------------- the command


def tables(runs_: pd.DataFrame, kind: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Effects of each response on logarithms, by term."""
    plan = plan_of(*designed(kind))
    return {r: effects(runs_, plan, r, scale="log").set_index("term") for r in RESPONSES}


def planted(plan: Plan) -> dict[str, bool]:
    """Failures planted in a world without noise: true if detected."""
    world = without_noise(plan)
    turned = world.assign(write=world["y"], read=world["y"].where(world["storage"] == "tmpfs", 1e4))
    reversed_order = in_order(pairs(turned, "storage", "ext4", "tmpfs"), ["read"])
    return {
        "a coset sum off by a thousandth": (
            identity(world, plan).result is Result.MET
            and identity(world, plan, spoilt=True).result is Result.NOT_MET
        ),
        "reading from ext4 above tmpfs": (
            reversed_order.result is Result.NOT_MET and reversed_order.relaxed is Result.NOT_MET
        ),
        "a plan of sixteen that says nothing of CF on B": (
            warned(plan_of(*designed(SIXTEEN))).result is Result.NOT_MET
        ),
    }


def main() -> int:
    """Run, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--virtual", action="store_true", help="plans and known numbers alone")
    parser.add_argument("--figures", type=Path, help="directory of the SVG files (default OUT)")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    measured: dict[str, pd.DataFrame] = {}
    try:
        if not arguments.virtual:
            measured["eight"] = runs("eight", arguments.out, EIGHT, arguments.quick)
        if not arguments.virtual and not arguments.quick:
            measured["sixteen"] = runs("sixteen", arguments.out, SIXTEEN, False)
            table = json.dumps({"table": {"rows": CELLS}})
            middle_only = [TWO, f"design.kind={table}"]
            measured["middle"] = runs("middle", arguments.out, (), False, middle_only)
            measured["full"] = runs("full", arguments.out, (), False)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    claims = claims_of(measured, arguments.quick)
    details = described(measured)
    write_figures(measured, arguments.figures or arguments.out)
    if arguments.json:
        print(json.dumps({"claims": checks.as_json(claims), **details}, indent=1))
    else:
        checks.show(claims)
        show(details)
    about = " ".join((__doc__ or "").split("\n\n")[3].split())
    record.keep(arguments.record, record_rows(claims, details), details["planted"], about)
    status = checks.finish("nfs-wan", claims, details["planted"])
    return status if details["folded"] else 1


def write_figures(measured: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Figures in the form of the published 6.2 to 6.6, for the existing runs."""
    if not measured:
        return
    # small sizes are those of --quick, where the eight alone are run
    cells_of = [measured[name] for name in ("full", "middle") if name in measured]
    table = pd.concat(cells_of or list(measured.values()))
    common = Cells(
        response="read",
        unit="MB/s",
        along={"local": "0.027", "middle": "6.87", "remote": "13.9"},
        along_label="latency (ms)",
        factor="latency",
        across=("storage", "size"),
        lines=("version", "io"),
    )
    with style.look():
        for name, response, mode in (
            ("read", "read", "sync"), ("sync-write", "write", "sync"), ("async-write", "write", "async"),
        ):  # fmt: skip
            of = replace(common, response=response, only={"mode": mode})
            save(cell_means(table, of), folder / f"nfs-wan-{name}.svg")
        for design, by_response in complete_tables(measured).items():
            sizes = {response: lettered_effects(table) for response, table in by_response.items()}
            save(effect_sizes(sizes, PUBLISHED_TOP), folder / f"nfs-wan-effects-{design}.svg")


def lettered_effects(table: pd.DataFrame) -> dict[str, float]:
    """Coefficients by term in letters."""
    names = set(LETTERS.values())
    return {
        lettered(str(term)): float(value)
        for term, value in table["coefficient"].items()
        if set(str(term).split(":")) <= names
    }


def complete_tables(measured: Mapping[str, pd.DataFrame]) -> dict[str, Effects]:
    """Effects of each design that has a valid run of every treatment; none without the full design."""
    if "full" not in measured:
        return {}
    return {
        name: tables(measured[name], kind)
        for name, kind in (("full", ()), ("eight", EIGHT), ("sixteen", SIXTEEN))
        if name in measured and all(needed(measured[name], *designed(kind)).values())
    }


def claims_of(measured: Mapping[str, pd.DataFrame], quick: bool) -> list[Claim]:
    """The claims on the executed runs."""
    plan, small = plan_of(), plan_of(*designed(EIGHT))
    full = measured.get("full")
    table = (
        full if full is not None else pd.DataFrame(columns=[*LETTERS.values(), *RESPONSES, "valid"])
    )
    effects_of = complete_tables(measured)
    flagged = {
        lettered(a.term) for a in small.aliases if a.with_terms and a.term in LETTERS.values()
    }
    of_full = needed(full, name="full:")
    sizes = [SMALL] if quick else []
    of_eight = needed(measured.get("eight"), *designed(EIGHT), *sizes, name="eight:")
    of_sixteen = needed(measured.get("sixteen"), *designed(SIXTEEN), name="sixteen:")
    remote = needed(full, name="full:", latency="remote")
    return [
        number_of_runs(measured),
        ordered(
            2, "tmpfs is at least as fast as ext4, in every cell", of_full,
            pairs(table, "storage", "ext4", "tmpfs"),
        ),
        claim(
            "point 3", "synchronous writing falls with latency, in every cell",
            needed(full, name="full:", mode="sync"), lambda: falls(table),
        ),
        at_middle_latency(measured.get("middle")),
        ordered(
            5, "1 MB is at least as fast as 64 kB at 13.9 ms, in every cell", remote,
            pairs(table, "io", "64kB", "1MB", latency="remote"),
        ),
        claim(
            "point 6", "|q| of version below |q| of latency, for both responses", of_full,
            lambda: weaker(effects_of["full"]),
        ),
        claim("point 7", "every cell has five valid runs", of_full, lambda: complete(of_full, 5)),
        claim(
            "point 8", "fraction's coefficient = coset sum, largest difference", of_full,
            lambda: identity(table, plan), criterion=f"at most {NEAR:g}",
        ),
        claim(
            "point 9",
            "the four largest main effects of an independent fraction are those of the full design",
            {**of_full, **of_eight},
            lambda: same_top(effects_of["full"], effects_of["eight"], flagged),
            relaxed="or reported as aliased beforehand",
        ),
        claim(
            "point 10", "sixteen's BF, CF, BCF agree with the full design's coset sums",
            {**of_full, **of_sixteen},
            lambda: cleared(effects_of["full"], effects_of["sixteen"]),
            criterion="95 % intervals overlap, signs alike where both exclude 0",
        ),
        claim(
            "point 11",
            "the plan of the executed eight reports CF on B, BF on C, BCF on the mean, and the width",
            of_eight, lambda: warned(small), criterion="4; 2.942, 2.926 without blocks",
        ),
        claim(
            "point 12", "the four largest main effects are those of the published study", of_full,
            lambda: published_top(effects_of["full"]), published=PUBLISHED_TOP,
        ),
    ]  # fmt: skip


def described(measured: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Additional results: conclusions from the plans, comparisons of designs, and the runs."""
    plan = plan_of()
    effects_of = complete_tables(measured)
    named_runs = {
        name: {
            "runs": len(t),
            "valid": int(t["valid"].eq(True).sum()),
            **{r: [float(t[r].min()), float(t[r].max())] for r in RESPONSES},
            "round_trip_ms": {
                str(level): [float(trips.min()), float(trips.max())]
                for level, trips in t.groupby("latency", observed=True)["round_trip_ms"]
            }
            if "round_trip_ms" in t
            else {},
        }
        for name, t in measured.items()
    }
    parts = {name: effects_of[name] for name in ("eight", "sixteen") if name in effects_of}
    eight = warned(plan_of(*designed(EIGHT)))
    return {
        "planned": {**planned_runs(), "warned": eight.evidence, "as_expected": eight.result},
        "confused": confused(),
        "folded": folded(),
        "compared": {
            name: compared(effects_of["full"], part, len(measured[name]) / len(plan.rows))
            for name, part in parts.items()
            if "full" in effects_of
        },
        "runs": named_runs,
        "planted": planted(plan),
    }


def record_rows(claims: Sequence[Claim], details: Mapping[str, Any]) -> list[record.Row]:
    """Rows to record."""
    rows = checks.rows(claims, quoted=True)
    for row in details["confused"]:
        for design in ("64 runs", "8 runs", "16 by foldover"):
            case = f"{row['term']}, true {row['truth']:g}"
            rows.append(record.claim(design, case, f"{row[design]:g}", "", None))
    return rows


def show(details: dict[str, Any]) -> None:
    """Conclusions from the plans, aliases of the eight runs, and the runs."""
    console = Console(width=100, highlight=False)
    planned = details["planned"]
    console.print("\nFollows from the plans; nothing is run for it:")
    for source in ("here", "published"):
        console.print(f"  cells, measurements, runs of the designs, {source}: {planned[source]}")
    console.print(f"  warnings of the plan of eight: {planned['warned']}")
    console.print("\nWhere the truth is known (no noise), coefficients that each design gives:")
    rows = details["confused"]
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{v:g}" if isinstance(v, float) else str(v or "-") for v in row.values()))
    console.print(table)
    for name, compared_rows in details["compared"].items():
        for row in compared_rows:
            plain = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}
            console.print(f"{name} beside 64: {', '.join(f'{k} {v}' for k, v in plain.items())}")
    for name, row in details["runs"].items():
        console.print(
            f"{name}: {row['valid']} of {row['runs']} runs valid; MB/s written {row['write'][0]:.3g} to "
            f"{row['write'][1]:.3g}, read {row['read'][0]:.3g} to {row['read'][1]:.3g}; round trips "
            + ", ".join(f"{k} {a:.3g} to {b:.3g} ms" for k, (a, b) in row["round_trip_ms"].items())
        )
    for failure, detected in details["planted"].items():
        console.print(f"planted: {failure}: {'reported' if detected else 'NOT reported'}")


if __name__ == "__main__":
    sys.exit(main())
