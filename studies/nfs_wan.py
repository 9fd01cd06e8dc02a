"""NFS over a wide-area network: the published 2^6 beside its eight runs, and what the eight confuse.

`studies/nfs_wan.py` makes the runs of `studies/nfs-wan.study.yaml` in a small virtual machine, whose kernel
has an NFS server, an NFS client and netem: the published fraction of eight, run for itself (x 5), the sixteen
by foldover, interleaved (x 5), the full design (64 treatments x 5), and cells at the middle latency (x 5). It
prints eleven points, each with what was found, what must hold, and a verdict. What is there already is not
measured again. `--quick`: the eight treatments once, with small files; points that need more are `not run`.
`--virtual`: nothing is run, plans and known numbers alone.

The guest's processor is software (QEMU TCG): its times are not those of a machine. It answers a ping within
about a millisecond, where the published network took 0.054 ms; the link's latencies and the limit of the disk
are what they are said to be, and each run measures its round trip first.

After section 6 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems (2020). Exit status 3
if a point is missed, 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy import stats

from penstock.analyse.sequential.fraction import fraction_of
from penstock.analyse.statistics.effects import effects
from penstock.design.augment import make_step, questions
from penstock.design.generators import defining_relation, members, parse_generator
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, coded_matrix
from penstock.errors import PenstockError
from penstock.study.load import load_study

HERE = Path(__file__).resolve().parent
STUDY = HERE / "nfs-wan.study.yaml"
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE.parent))

from disks import finish  # noqa: E402

from bench import record  # noqa: E402

RESPONSES = ("write", "read")
#: the letters of the published tables
LETTERS = dict(zip("ABCDEF", ("version", "storage", "mode", "io", "size", "latency"), strict=True))
#: D = AB, E = AC, F = BC
EIGHT = ("io = version*storage", "size = version*mode", "latency = storage*mode")
#: E = BCD, F = ACD: the eight and their foldover
SIXTEEN = ("size = storage*mode*io", "latency = version*mode*io")
#: the same in small, for a machine that is to answer in minutes
SMALL = "factors.size.levels={500kB: 524288, 5MB: 5242880}"
#: cells of small writes at the middle latency, and three more that tell the other factors apart
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
#: by how much a cell may contradict an order by chance, over all cells of a point
ALPHA = 0.05
NEAR = 1e-9
#: the coefficients of a world without noise (specification of the published case)
TRUTH = {"": 150.0, "E": 40.0, "B": 30.0, "C": -25.0, "F": 20.0, "CF": -12.0, "BF": -8.0, "BCF": 6.0,
         "D": -2.0, "A": 1.5}  # fmt: skip

MET, MISSED, NOT_RUN = "met", "missed", "not run"


@dataclass(frozen=True)
class Point:
    """One of the eleven: what was found, what must hold, and the verdict."""

    number: int
    says: str
    found: str
    expected: str
    verdict: str


def designed(kind: Sequence[str]) -> list[str]:
    """The overrides that make the study one of these generators; none: the full design."""
    if not kind:
        return []
    return [f"design.kind={{fraction: {len(kind)}}}", f"design.generators=[{', '.join(kind)}]"]


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
    """The runs of one design, made if they are not there."""
    place = out / f"nfs-wan-{name}{'-quick' if quick else ''}"
    said = [*designed(kind), *(["design.replicates=1", SMALL] if quick else []), *more]
    finish(STUDY, place, [w for one in said for w in ("--set", one)], quiet=True)
    table = pd.read_parquet(place / "runs.parquet")
    # what `verify.sh` printed: the shortest of five round trips
    trips = [place / "runs" / str(run_id) / "hook-verify.txt" for run_id in table["run_id"]]
    return table.assign(round_trip_ms=[float(path.read_text()) for path in trips])


# ---------------------------------------------------------------- the points


def counts() -> Point:
    """1: rows and runs of each design."""
    grid = plan_of(MIDDLE, "design.replicates=1")
    found = [
        len(grid.rows),
        len(grid.rows) * 5 * len(RESPONSES),
        len(plan_of().rows),
        len(plan_of(*designed(EIGHT)).rows),
        len(plan_of(*designed(SIXTEEN)).rows),
    ]
    expected = [96, 960, 320, 40, 80]
    return Point(
        1, "rows, measurements, runs of the designs", ", ".join(map(str, found)),
        ", ".join(map(str, expected)), MET if found == expected else MISSED,
    )  # fmt: skip


def cells(table: pd.DataFrame) -> dict[tuple[str, ...], pd.DataFrame]:
    """The valid runs of each treatment, by its levels in the order of the letters."""
    valid = table[table["valid"].eq(True)]
    return {tuple(map(str, k)): g for k, g in valid.groupby(list(LETTERS.values()), observed=True)}


def pairs(table: pd.DataFrame, factor: str, low: str, high: str, **only: str) -> list[Any]:
    """Cells that differ in one factor alone: (the others' levels, runs at `low`, runs at `high`)."""
    names = list(LETTERS.values())
    at = names.index(factor)
    by_levels = cells(table)
    found = []
    for levels, mine in by_levels.items():
        other = (*levels[:at], high, *levels[at + 1 :])
        fits = all(levels[names.index(n)] == v for n, v in only.items())
        if levels[at] == low and fits and other in by_levels:
            found.append((levels, mine, by_levels[other]))
    return found


def contradicts(less: pd.Series[float], more: pd.Series[float], tests: int) -> bool:
    """Whether `less` is above `more` beyond chance (Welch's test of logarithms, Bonferroni over `tests`)."""
    a, b = np.log(less.to_numpy(float)), np.log(more.to_numpy(float))
    if min(len(a), len(b)) < 2 or np.ptp(a) + np.ptp(b) < NEAR:
        return bool(a.mean() > b.mean() + NEAR)
    found = stats.ttest_ind(a, b, equal_var=False, alternative="greater")
    return bool(found.pvalue < ALPHA / tests)


def ordered(number: int, says: str, found: list[Any], asked: Sequence[str] = RESPONSES) -> Point:
    """In every pair the second cell is at least as fast: none contradicts it beyond chance."""
    tests = len(found) * len(asked)
    if not tests:
        return Point(number, says, "", "in every cell", NOT_RUN)
    above = sum(more[r].mean() >= less[r].mean() for _, less, more in found for r in asked)
    wrong = [
        f"{r} {' '.join(levels)}"
        for levels, less, more in found
        for r in asked
        if contradicts(less[r], more[r], tests)
    ]
    told = f"{above} of {tests} means in order; {len(wrong)} contradict it beyond chance"
    return Point(
        number, says, told + "".join(f"; {w}" for w in wrong[:3]),
        "no cell contradicts it", MISSED if wrong else MET,
    )  # fmt: skip


def falls(table: pd.DataFrame) -> Point:
    """3: synchronous writing is slower with latency, in every cell."""
    found = pairs(table, "latency", "remote", "local", mode="sync")
    says = "synchronous writing falls with latency"
    if not found:
        return Point(3, says, "", "in every cell", NOT_RUN)
    right = [more["write"].mean() > less["write"].mean() for _, less, more in found]
    ratios = [more["write"].mean() / less["write"].mean() for _, less, more in found]
    return Point(
        3, says, f"{sum(right)} of {len(right)} cells, by {min(ratios):.2g} to {max(ratios):.2g} times",
        "in every cell", MET if all(right) else MISSED,
    )  # fmt: skip


def middle(table: pd.DataFrame | None) -> Point:
    """4: small synchronous writes at the middle latency, which the two-level design does not have."""
    says = "64 kB at 6.87 ms: sync local over sync; tmpfs, large file: async over sync"
    expected = "each at least 5"
    if table is None:
        return Point(4, says, "", expected, NOT_RUN)
    where = {"io": "64kB", "storage": "tmpfs", "size": "25MB"}
    local = pairs(table, "latency", "middle", "local", mode="sync", **where)
    free = pairs(table, "mode", "sync", "async", latency="middle", **where)
    if not local or not free:
        return Point(4, says, "", expected, NOT_RUN)
    slower = [more["write"].mean() / less["write"].mean() for _, less, more in local]
    faster = [more["write"].mean() / less["write"].mean() for _, less, more in free]
    good = min(slower) >= 5 and min(faster) >= 5
    return Point(
        4, says, f"{min(slower):.3g} and {min(faster):.3g} at the least", expected,
        MET if good else MISSED,
    )  # fmt: skip


def weaker(full: dict[str, pd.DataFrame] | None) -> Point:
    """6: the version matters less than the latency."""
    says, expected = "|q| of version below |q| of latency", "for both responses"
    if full is None:
        return Point(6, says, "", expected, NOT_RUN)
    told, good = [], True
    for response, table in full.items():
        a, f = (abs(table.loc[LETTERS[x], "coefficient"]) for x in "AF")
        told.append(f"{response} {a:.3g} and {f:.3g}")
        good = good and a < f
    return Point(6, says, "; ".join(told), expected, MET if good else MISSED)


def complete(table: pd.DataFrame, replicates: int) -> Point:
    """7: every cell has five valid runs, hence an interval."""
    sizes = [len(g) for g in cells(table).values()]
    missing = 64 - len(sizes)
    good = missing == 0 and min(sizes) >= replicates
    told = f"{sum(s >= replicates for s in sizes)} of 64 cells with {replicates} valid runs"
    return Point(7, "every cell has its runs", told, "64", MET if good else MISSED)


def identity(table: pd.DataFrame | None, plan: Plan, spoilt: bool = False) -> Point:
    """8: the eight rows of the full design say the signed sum of its coefficients over the coset."""
    says, expected = "fraction's coefficient = coset sum, largest difference", f"at most {NEAR:g}"
    if table is None:
        return Point(8, says, "", expected, NOT_RUN)
    worst = 0.0
    for response in [r for r in (*RESPONSES, "y") if r in table]:
        found = fraction_of(table, plan, response, 3, EIGHT)
        scale = float(found["full"].abs().max())
        sums = found["coset_sum"] + (0.001 * scale if spoilt else 0.0)
        worst = max(worst, float((found["fraction"] - sums).abs().max()) / scale)
    return Point(8, says, f"{worst:.2g} of the largest", expected, MET if worst <= NEAR else MISSED)


def top(table: pd.DataFrame, count: int = 4) -> list[str]:
    """The main effects by size, the first `count`, in letters."""
    mine = table.loc[list(LETTERS.values()), "coefficient"].abs().sort_values(ascending=False)
    return [lettered(str(name)) for name in mine.index[:count]]


def same_top(
    full: dict[str, pd.DataFrame] | None, eight: dict[str, pd.DataFrame] | None, flagged: set[str]
) -> Point:
    """9: four largest main effects alike, or each that differs was said to be aliased beforehand."""
    says = "the four largest of an independent fraction"
    expected = "those of the full design, or flagged before"
    if full is None or eight is None:
        return Point(9, says, "", expected, NOT_RUN)
    told, good = [], True
    for response in full:
        ours, theirs = top(full[response]), top(eight[response])
        differ = set(ours) ^ set(theirs)
        good = good and differ <= flagged
        told.append(f"{response} {''.join(theirs)} beside {''.join(ours)}")
    return Point(9, says, "; ".join(told), expected, MET if good else MISSED)


def coset_of(word: str, generators: Sequence[str]) -> dict[str, int]:
    """Terms that a contrast holds, with their signs; words in letters."""
    names = list(LETTERS.values())
    relation = defining_relation(parse_generator(g, names).relation for g in generators)
    mine = sum(1 << "ABCDEF".index(letter) for letter in word)
    found = {}
    for other, sign in relation.items():
        found["".join("ABCDEF"[i] for i in members(mine ^ other))] = sign
    return found


def cleared(full: dict[str, pd.DataFrame] | None, sixteen: dict[str, pd.DataFrame] | None) -> Point:
    """10: what sixteen runs say of BF, CF and BCF, beside the full design's coset sums."""
    says = "sixteen's BF, CF, BCF beside the full design's coset sums"
    expected = "95 % intervals overlap, signs alike where both leave 0"
    if full is None or sixteen is None:
        return Point(10, says, "", expected, NOT_RUN)
    told, good = [], True
    for response, table in full.items():
        for word in ("BF", "CF", "BCF"):
            coset = coset_of(word, SIXTEEN)
            theirs = next(
                sixteen[response].loc[named(w)]
                for w in coset
                if w and named(w) in sixteen[response].index
            )
            total = sum(s * table.loc[named(w), "coefficient"] for w, s in coset.items())
            half = math.sqrt(
                sum(((table.loc[named(w), "ci_high"] - table.loc[named(w), "ci_low"]) / 2) ** 2
                    for w in coset)
            )  # fmt: skip
            q = float(theirs["coefficient"])
            overlap = theirs["ci_low"] <= total + half and total - half <= theirs["ci_high"]
            sure = abs(total) > half and (theirs["ci_low"] > 0 or theirs["ci_high"] < 0)
            good = good and bool(overlap) and not (sure and q * total < 0)
            told.append(f"{response} {word} {q:.3g} and {total:.3g}")
    return Point(10, says, "; ".join(told), expected, MET if good else MISSED)


def warned(plan: Plan) -> Point:
    """11: what the eight runs cannot tell stands in their plan."""
    aliases = {a.term: {t.lstrip("+-") for t in a.with_terms} for a in plan.aliases}
    shown = [
        named("CF") in aliases[LETTERS["B"]],
        named("BF") in aliases[LETTERS["C"]],
        named("BCF") in aliases["mean"],
        any("two-factor" in c or "interaction" in c for c in plan.cautions),
    ]
    wider = plan.power["half_width_q_sigma"] / plan_of().power["half_width_q_sigma"]
    unblocked = plan.power["width_against_full_random"]
    good = all(shown) and abs(wider - 2.942) < 5e-4 and abs(unblocked - 2.926) < 5e-4
    return Point(
        11, "the plan says CF on B, BF on C, BCF on the mean, and the width",
        f"{sum(shown)} of 4 said; intervals {wider:.3f} times as wide, {unblocked:.3f} without blocks",
        "4; 2.942, 2.926 without blocks",
        MET if good else MISSED,
    )  # fmt: skip


# ---------------------------------------------------------------- what the eight runs confuse


def without_noise(plan: Plan, **flipped: float) -> pd.DataFrame:
    """Runs of a world whose coefficients are known, some of them others."""
    truth = {**TRUTH, **flipped}
    rows = []
    for row in plan.rows:
        signs = {letter: row.coded[name] for letter, name in LETTERS.items()}
        y = sum(q * math.prod(signs[x] for x in word) for word, q in truth.items())
        about = {"run_id": row.run_id, "replicate": row.replicate, "run_order": row.run_order}
        rows.append({**row.levels, **about, "valid": True, "y": y, "block": row.block})
    return pd.DataFrame(rows)


def confused() -> list[dict[str, Any]]:
    """What each design says of the terms that matter, where the truth is known."""
    found: dict[str, dict[str, float]] = {}
    for name, kind in (("64 runs", ()), ("8 runs", EIGHT), ("16 by foldover", SIXTEEN)):
        plan = plan_of(*designed(kind), "design.replicates=2")
        table = without_noise(plan)
        said = effects(table, plan, "y").set_index("term")["coefficient"]
        known = set(LETTERS.values())
        mine = {str(t): float(v) for t, v in said.items() if set(str(t).split(":")) <= known}
        found[name] = {lettered(term): value for term, value in mine.items()}
        found[name][""] = float(table["y"].mean())
    rows = []
    for word in ("", "B", "C", "E", "F", "BF", "CF", "BCF"):
        row: dict[str, Any] = {"term": word or "mean", "truth": TRUTH.get(word, 0.0)}
        for name, kind in (("64 runs", ()), ("8 runs", EIGHT), ("16 by foldover", SIXTEEN)):
            # a term that is no column of its own stands in that of a shorter one
            coset = coset_of(word, kind) if kind else {word: 1}
            row[name] = next(
                (s * found[name][w] for w, s in coset.items() if w in found[name]), None
            )
        rows.append(row)
    return rows


def folded() -> bool:
    """Whether the sixteen are the eight and their foldover, by the step that `--augment foldover` makes."""
    names = list(LETTERS.values())
    eight = coded_matrix(plan_of(*designed(EIGHT)))
    step = make_step("foldover", eight, [1] * len(eight), questions(eight, []), names)
    both = {tuple(map(int, row)) for row in np.vstack([eight, step.rows])}
    return both == {tuple(map(int, row)) for row in coded_matrix(plan_of(*designed(SIXTEEN)))}


def compared(
    full: dict[str, pd.DataFrame], part: dict[str, pd.DataFrame], cost: float
) -> list[dict[str, Any]]:
    """Two designs of one study: sets of the largest, rank correlation, intervals, cost."""
    rows = []
    mains = list(LETTERS.values())
    for response in full:
        ours, theirs = full[response].loc[mains], part[response].loc[mains]
        overlap = (ours["ci_low"] <= theirs["ci_high"]) & (theirs["ci_low"] <= ours["ci_high"])
        tau = stats.kendalltau(ours["coefficient"].abs(), theirs["coefficient"].abs()).statistic
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


def tables(runs_: pd.DataFrame | None, kind: Sequence[str]) -> dict[str, pd.DataFrame] | None:
    """Effects of each response on logarithms, by term."""
    if runs_ is None:
        return None
    plan = plan_of(*designed(kind))
    return {r: effects(runs_, plan, r, scale="log").set_index("term") for r in RESPONSES}


def planted(plan: Plan) -> dict[str, bool]:
    """Failures made on purpose, and whether they are reported."""
    world = without_noise(plan)
    turned = world.assign(write=world["y"], read=world["y"].where(world["storage"] == "tmpfs", 1e4))
    return {
        "a coset sum off by a thousandth": (
            identity(world, plan).verdict == MET
            and identity(world, plan, spoilt=True).verdict == MISSED
        ),
        "reading from ext4 above tmpfs": (
            ordered(2, "", pairs(turned, "storage", "ext4", "tmpfs"), ["read"]).verdict == MISSED
        ),
        "a plan of sixteen that says nothing of CF on B": (
            warned(plan_of(*designed(SIXTEEN))).verdict == MISSED
        ),
    }


def main() -> int:
    """Runs, judges, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--virtual", action="store_true", help="plans and known numbers alone")
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
            told = [TWO, f"design.kind={table}"]
            measured["middle"] = runs("middle", arguments.out, (), False, told)
            measured["full"] = runs("full", arguments.out, (), False)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    said = judged(measured, arguments.quick)
    if arguments.json:
        print(json.dumps(said, indent=1))
    else:
        show(said)
    wrong = [p for p in said["points"] if p["verdict"] == MISSED]
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    record.keep(arguments.record, kept(said), said["planted"], about)
    if not all(said["planted"].values()) or not said["folded"]:
        return 1
    return 3 if wrong else 0


def judged(measured: dict[str, pd.DataFrame], quick: bool) -> dict[str, Any]:
    """All that is said of what was measured."""
    plan, small = plan_of(), plan_of(*designed(EIGHT))
    full, eight, sixteen = (measured.get(n) for n in ("full", "eight", "sixteen"))
    by_full, by_sixteen = tables(full, ()), tables(sixteen, SIXTEEN)
    by_eight = tables(eight, EIGHT) if not quick else None
    flagged = {
        lettered(a.term) for a in small.aliases if a.with_terms and a.term in LETTERS.values()
    }
    empty = pd.DataFrame(columns=[*LETTERS.values(), *RESPONSES, "valid"])
    whole = full if full is not None else empty
    points = [
        counts(),
        ordered(2, "tmpfs at least as fast as ext4", pairs(whole, "storage", "ext4", "tmpfs")),
        falls(whole),
        middle(measured.get("middle")),
        ordered(
            5, "1 MB at least as fast as 64 kB at 13.9 ms",
            pairs(whole, "io", "64kB", "1MB", latency="remote"),
        ),
        weaker(by_full),
        complete(whole, 5) if full is not None else Point(7, "every cell has its runs", "", "64", NOT_RUN),
        identity(full, plan),
        same_top(by_full, by_eight, flagged),
        cleared(by_full, by_sixteen),
        warned(small),
    ]  # fmt: skip
    named_runs = {
        name: {
            "runs": len(t),
            "valid": int(t["valid"].eq(True).sum()),
            **{r: [float(t[r].min()), float(t[r].max())] for r in RESPONSES},
            "round_trip_ms": {
                str(level): [float(mine.min()), float(mine.max())]
                for level, mine in t.groupby("latency", observed=True)["round_trip_ms"]
            }
            if "round_trip_ms" in t
            else {},
        }
        for name, t in measured.items()
    }
    parts = {"eight": by_eight, "sixteen": by_sixteen}
    return {
        "points": [asdict(p) for p in points],
        "confused": confused(),
        "folded": folded(),
        "compared": {
            name: compared(by_full, part, len(measured[name]) / len(plan.rows))
            for name, part in parts.items()
            if by_full is not None and part is not None
        },
        "runs": named_runs,
        "planted": planted(plan),
    }


def kept(said: dict[str, Any]) -> list[record.Row]:
    """The rows that are recorded."""
    holds = {MET: True, MISSED: False, NOT_RUN: None}
    rows = []
    for p in said["points"]:
        found, holding = p["found"] or NOT_RUN, holds[p["verdict"]]
        made = record.claim(f"point {p['number']}", p["says"], found, p["expected"], holding)
        rows.append({**made, "quoted": True})
    for row in said["confused"]:
        for design in ("64 runs", "8 runs", "16 by foldover"):
            words = f"{row['term']}, true {row['truth']:g}"
            rows.append(record.claim(design, words, f"{row[design]:g}", "", None))
    return rows


def show(said: dict[str, Any]) -> None:
    """The points, and what the eight runs confuse."""
    console = Console(width=100, highlight=False)
    table = Table("", "point", "found", "expected", "verdict", box=None, pad_edge=False)
    for p in said["points"]:
        table.add_row(str(p["number"]), p["says"], p["found"] or "-", p["expected"], p["verdict"])
    console.print(table)
    console.print("\nWhere the truth is known (no noise), coefficients that each design gives:")
    rows = said["confused"]
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{v:g}" if isinstance(v, float) else str(v or "-") for v in row.values()))
    console.print(table)
    for name, found in said["compared"].items():
        for row in found:
            plain = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}
            console.print(f"{name} beside 64: {', '.join(f'{k} {v}' for k, v in plain.items())}")
    for name, row in said["runs"].items():
        console.print(
            f"{name}: {row['valid']} of {row['runs']} runs valid; MB/s written {row['write'][0]:.3g} to "
            f"{row['write'][1]:.3g}, read {row['read'][0]:.3g} to {row['read'][1]:.3g}; round trips "
            + ", ".join(f"{k} {a:.3g} to {b:.3g} ms" for k, (a, b) in row["round_trip_ms"].items())
        )
    for what, found in said["planted"].items():
        console.print(f"planted: {what}: {'reported' if found else 'NOT reported'}")


if __name__ == "__main__":
    sys.exit(main())
