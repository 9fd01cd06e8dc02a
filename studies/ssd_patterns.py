"""Flash drives and I/O patterns: the published table and its explanation, without the drives.

`studies/ssd_patterns.py` makes the runs of `studies/ssd-patterns*.study.yaml` on emulated disks forty times
slower than the drives, simulates the same profiles, and prints which of the published shapes both reproduce.
Existing runs are not repeated. `--quick`: one short replicate of the corners; shapes that need other cells
are not measured. `--virtual`: the simulator alone, and only its claims. Planted failure: a drive without a
page fetch in the simulator, whose missing gap must be reported. Needs root and fio for the disks.

The ready profiles of these drives were created from the published table: the 16 rates of one job and the 3 of
sixteen jobs are inputs, and meeting them shows that disk and simulator treat a profile alike. Nine shapes
follow from them. The prediction of one half of the table from the other is evaluated separately, with
profiles fitted here: random cells from sequential ones, and each cell from the seven others. It does not
change the exit status.

After section 4.4 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems (2020). Exit status
3 if a shape is not met or not measured, 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from penstock import _native as native
from penstock.errors import PenstockError
from penstock.profile import load_profile
from penstock.profile.advice import judged
from penstock.profile.cells import Measurements
from penstock.profile.fit import profile_of
from penstock.profile.table import read_table
from penstock.report import style

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))

sys.path.insert(0, str(HERE.parent))

from disks import finish  # noqa: E402

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim, Finding, Result, claim, met_if  # noqa: E402
from studies.common.published_figures import Point, comparison_figure, save  # noqa: E402

SCALE = 40
#: MB/s of one job: (4 KiB, 28 KiB) by drive and pattern
PUBLISHED = {
    "px02ssf020": {"read": (43.2, 172.0), "randread": (31.0, 148.0),
                   "write": (88.2, 312.0), "randwrite": (64.0, 292.0)},
    "px05smb040": {"read": (136.0, 491.0), "randread": (40.1, 220.0),
                   "write": (123.0, 496.0), "randwrite": (99.2, 470.0)},
}  # fmt: skip
#: MB/s of sixteen jobs, read from a figure: by block
SIXTEEN = {"4k": 432.0, "28k": 950.0, "64k": 964.0}
BYTES = {"4k": 4096, "28k": 28 * 1024, "64k": 65536, "256k": 262144}
WITHIN = {"simulator": 0.10, "disk": 0.15}
HALVES_WITHIN = 0.10
QUICK = {
    "": ["factors.pattern={levels: [read, randread]}"],
    "-readahead": ["factors.size={levels: [4k, 64k]}"],
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A claim and its number. `is_input`: the number is an input of the profile."""

    claim: Claim
    value: float | None
    is_input: bool = False


#: MB/s, unscaled, of (drive, ahead, pattern, block, jobs); None if it was not measured
Rate = Callable[[str, str, str, str, int], float | None]
#: arguments of a rate
Cell = tuple[str, str, str, str, int]


def simulated(change: Callable[[dict[str, Any]], None] = lambda values: None) -> Rate:
    """Rates in virtual time, of the profiles as published or changed."""

    def rate(drive: str, ahead: str, pattern: str, block: str, jobs: int) -> float:
        values = load_profile(drive).to_dict()
        change(values)
        op = pattern.removeprefix("rand")
        kind = "random" if pattern.startswith("rand") else "sequential"
        client = {"count": jobs, "pattern": {"kind": kind, "op": op, "block_bytes": BYTES[block],
                                             "file_bytes": 1 << 30}}  # fmt: skip
        spec = {"profile": values, "seed": 3, "operations": 3000, "clients": [client],
                "changes": [{"t_ns": 0, "patch": {"readahead": ahead == "on"}}]}  # fmt: skip
        outcome = json.loads(native.simulate_closed(json.dumps(spec)))
        return float(outcome[op]["rate_bps"]) / 1e6

    return rate


def measured(table: pd.DataFrame, ahead_table: pd.DataFrame) -> Rate:
    """Means of the valid runs of both studies."""

    def rate(drive: str, ahead: str, pattern: str, block: str, jobs: int) -> float | None:
        levels = {"pattern": pattern, "size": block}
        if jobs == 1 and ahead == "on" and block in ("4k", "28k"):
            source, levels = table, levels | {"drive": drive}
        elif drive == "px05smb040":
            source, levels = ahead_table, levels | {"ahead": ahead, "jobs": str(jobs)}
        else:
            return None
        chosen = source[source["valid"]]
        for name, value in levels.items():
            chosen = chosen[chosen[name].astype(str) == value]
        return None if chosen.empty else float(chosen["bandwidth"].mean()) * SCALE

    return rate


def _label(cell: Cell) -> str:
    drive, ahead, pattern, block, jobs = cell
    return f"{drive} {pattern} {block}, {jobs} jobs, read-ahead {ahead}"


def shape(
    of: tuple[str, Rate],
    wording: str,
    cells: Sequence[Cell],
    expected: str,
    limits: tuple[float, float],
    *,
    is_input: bool = False,
) -> Shape:
    """Rate of one cell, or its ratio to a second one, and the limits (both included)."""
    engine, rate = of
    rates = [rate(*cell) for cell in cells]
    needs = {_label(cell): int(bool(value)) for cell, value in zip(cells, rates, strict=True)}
    numbers = [value for value in rates if value]
    value = None
    if len(numbers) == len(rates):
        value = numbers[0] / numbers[1] if len(numbers) == 2 else numbers[0]

    def evaluate() -> Finding:
        assert value is not None
        return met_if(limits[0] <= value <= limits[1], f"{value:.3g}")

    return Shape(claim(engine, wording, needs, evaluate, criterion=expected), value, is_input)


def shapes(engine: str, rate: Rate) -> list[Shape]:
    """The published shapes, one by one."""
    of = (engine, rate)
    result = []

    def near(wording: str, cell: Cell, published: float, share: float) -> None:
        limits = (published * (1 - share), published * (1 + share))
        expected = f"{published:g} +-{share:.0%}"
        result.append(shape(of, wording, [cell], expected, limits, is_input=True))

    def ratio(wording: str, ahead: str, block: str, jobs: int, low: float, high: float) -> None:
        cells = [("px05smb040", ahead, pattern, block, jobs) for pattern in ("read", "randread")]
        expected = f">= {low:g}" if high > 1e6 else f"{low:g} to {high:g}"
        result.append(shape(of, wording, cells, expected, (low, high)))

    for drive, rows in PUBLISHED.items():
        for pattern, row in rows.items():
            for block, published in zip(("4k", "28k"), row, strict=True):
                cell = (drive, "on", pattern, block, 1)
                near(f"{drive} {pattern} {block}: MB/s", cell, published, WITHIN[engine])
    ratio("ordered over random, 4k, one job", "on", "4k", 1, 2.0, 1e9)
    for block in ("4k", "28k", "64k"):
        ratio(f"ordered over random, {block}, 16 jobs", "on", block, 16, 0.9, 1.1)
    for block in ("64k", "256k"):
        ratio(f"ordered over random, {block}, one job", "on", block, 1, 0.9, 1.1)
    for block in ("4k", "28k"):
        ratio(f"ordered over random, {block}, read-ahead off", "off", block, 1, 0.9, 1.1)
    cells = [("px05smb040", ahead, "read", "4k", 1) for ahead in ("off", "on")]
    wording = "a stream without read-ahead over one with it, 4k"
    result.append(shape(of, wording, cells, "< 0.9", (0.0, math.nextafter(0.9, 0.0))))
    for block, published in SIXTEEN.items():
        cell = ("px05smb040", "on", "randread", block, 16)
        near(f"16 jobs, {block}: MB/s", cell, published, 0.15)
    return result


def rates_figure(rates: dict[str, Rate]) -> Figure:
    """Published rates compared with those of each engine, a panel per drive; the last cells have 16 jobs."""
    panels: dict[str, list[Point]] = {}
    for drive, table in PUBLISHED.items():
        cells = [
            (f"{pattern} {block}", (drive, "on", pattern, block, 1), value)
            for pattern, row in table.items()
            for block, value in zip(("4k", "28k"), row, strict=True)
        ]
        if drive == "px05smb040":
            cells += [
                (f"randread {block} × 16", (drive, "on", "randread", block, 16), value)
                for block, value in SIXTEEN.items()
            ]
        panels[drive] = []
        for label, cell, value in cells:
            by_engine = {
                name: [result]
                for name, rate in rates.items()
                if (result := rate(*cell)) is not None
            }
            panels[drive].append(Point(label, [value], by_engine))
    return comparison_figure(panels, "rate (MB/s)", log=True)


def halves() -> list[Shape]:
    """Cells of the published table by profiles fitted to others: ratio to the published rate."""
    result = []
    for drive in PUBLISHED:
        table = read_table(HERE / "tables" / f"{drive}.csv")
        ordered, random = (
            [c for c in table.fit.cells if c.sequential is kind] for kind in (True, False)
        )
        half = Measurements(ordered, table.fit.flush, "")
        rows = judged(profile_of(half, drive, []), half, random, one_by_one=False)[len(ordered) :]
        for case, predicted in (
            ("at random from those in order", rows),
            ("each from the seven others", judged(profile_of(table.fit, drive, []), table.fit, [])),
        ):
            for row in predicted:
                kind = "" if row.cell.sequential else "rand"
                size = f"{row.cell.block_bytes >> 10}k"
                wording = f"{drive} {kind}{row.cell.op} {size}, over the published"
                value = row.held_out
                claim_ = claim(
                    case,
                    wording,
                    {wording: int(value is not None)},
                    lambda value=value: met_if(abs(value - 1) <= HALVES_WITHIN, f"{value:.3g}"),
                    criterion=f"1 +-{HALVES_WITHIN:.0%}",
                )
                result.append(Shape(claim_, value))
    return result


def runs(name: str, out: Path, quick: bool) -> pd.DataFrame:
    """Runs of one study; missing runs are executed."""
    place = out / f"ssd-patterns{name}{'-quick' if quick else ''}"
    arguments = ["--quick", "--set", "design.replicates=1"] if quick else []
    arguments += (
        [argument for change in QUICK[name] for argument in ("--set", change)] if quick else []
    )
    finish(HERE / f"ssd-patterns{name}.study.yaml", place, arguments, quiet=True)
    return pd.read_parquet(place / "runs.parquet")


def without_fetch(values: dict[str, Any]) -> None:
    """The planted drive: fetching a page takes no time."""
    values["readahead"]["fetch"] = {"kind": "constant", "value_s": 0.0}


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--virtual", action="store_true", help="the simulator alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figures", type=Path, help="directory of the SVG file (default OUT)")
    record.option(parser)
    arguments = parser.parse_args()
    rates = {"simulator": simulated()}
    evaluated = shapes("simulator", rates["simulator"])
    if not arguments.virtual:
        try:
            tables = [runs(name, arguments.out, arguments.quick) for name in ("", "-readahead")]
        except PenstockError as error:
            print(error, file=sys.stderr)
            return 1
        rates["disk"] = measured(*tables)
        evaluated += shapes("disk", rates["disk"])
        for table in tables:
            excluded = int((~table["valid"]).sum())
            print(f"{excluded} of {len(table)} runs are not valid, and excluded", file=sys.stderr)
    with style.look():
        save(rates_figure(rates), (arguments.figures or arguments.out) / "ssd-patterns.svg")
    changed = shapes("simulator", simulated(without_fetch))
    reported = [s.claim.wording for s in changed if s.claim.result is Result.NOT_MET]
    claims = [s.claim for s in evaluated]
    predicted = halves()
    if arguments.json:
        document = {
            "claims": checks.as_json(claims),
            "halves": checks.as_json(s.claim for s in predicted),
        }
        print(json.dumps({**document, "planted_found": reported}))
    else:
        checks.show([*claims, *(s.claim for s in predicted)])
        print(f"planted drive without page fetch: {len(reported)} shapes reported")
    planted = {"a drive without pages": "ordered over random, 4k, one job" in reported}
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    record.keep(arguments.record, record_rows(evaluated, predicted), planted, about)
    return checks.finish("ssd-patterns", claims, planted)


def record_rows(evaluated: list[Shape], predicted: list[Shape]) -> list[record.Row]:
    """Totals that the page shows, and every claim."""
    rows = []
    for engine in dict.fromkeys(s.claim.of for s in evaluated + predicted):
        for metric, is_input in (("published numbers that the profile was made from", True),
                             ("shapes that follow from it", False)):  # fmt: skip
            selected = [s for s in evaluated if s.claim.of == engine and s.is_input is is_input]
            if selected:
                rows.append(_share(engine, metric, selected))
        selected = [s for s in predicted if s.claim.of == engine]
        if selected:
            rows.append(_share(engine, "cells predicted within 10 %", selected))
            worst = max((s.value or 0 for s in selected), key=lambda x: max(x, 1 / x) if x else 0)
            rows.append(record.row(engine, "", "farthest, predicted over published", [worst], ""))
    rows = [{**row, "quoted": True} for row in rows]
    return rows + checks.rows(s.claim for s in evaluated + predicted)


def _share(engine: str, wording: str, subset: list[Shape]) -> record.Row:
    """Share of claims that are met; a claim that is not measured is not met."""
    right = sum(s.claim.result is Result.MET for s in subset)
    row = record.share(engine, "", wording, right, len(subset))
    absent = sum(s.claim.result is Result.NOT_MEASURED for s in subset)
    return {**row, "value": f"{row['value']}, {absent} not measured"} if absent else row


if __name__ == "__main__":
    sys.exit(main())
