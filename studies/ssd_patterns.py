"""Flash drives and I/O patterns: the published table and its explanation, without the drives.

`studies/ssd_patterns.py` makes the runs of `studies/ssd-patterns*.study.yaml` on emulated disks forty times
slower than the drives, drives the same profiles through the simulator, and prints which of the published
shapes hold in each. What is there already is not measured again. `--quick`: one short replicate of the
corners; `--virtual`: the simulator alone. A drive without a page fetch is planted in the simulator: its
missing gap must be reported, or the status is 1. Needs root and fio for the disks.

The ready profiles of these drives were made from the published table: the 16 rates of one job and the 3 of
sixteen jobs are inputs, and that they are met says that disk and simulator play a profile alike. Nine
shapes follow from them. How far half of the table says the other half is judged apart, by profiles that are
fitted here: from the reads and writes in order those at random, and each cell from the seven others. It
alters no status.

After section 4.4 of A. Saif, Experimental Methods for the Evaluation of Big Data Systems (2020). Exit status
3 if a shape does not hold, 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from penstock import _native as native
from penstock.errors import PenstockError
from penstock.profile import load_profile
from penstock.profile.advice import judged
from penstock.profile.cells import Measurements
from penstock.profile.fit import profile_of
from penstock.profile.table import read_table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))

sys.path.insert(0, str(HERE.parent))

from disks import finish  # noqa: E402

from bench import record  # noqa: E402

SCALE = 40
#: MB/s of one job: (4 KiB, 28 KiB) by drive and pattern
PUBLISHED = {
    "px02ssf020": {"read": (43.2, 172.0), "randread": (31.0, 148.0),
                   "write": (88.2, 312.0), "randwrite": (64.0, 292.0)},
    "px05smb040": {"read": (136.0, 491.0), "randread": (40.1, 220.0),
                   "write": (123.0, 496.0), "randwrite": (99.2, 470.0)},
}  # fmt: skip
#: MB/s of sixteen jobs, read off a figure: by block
SIXTEEN = {"4k": 432.0, "28k": 950.0, "64k": 964.0}
BYTES = {"4k": 4096, "28k": 28 * 1024, "64k": 65536, "256k": 262144}
WITHIN = {"simulator": 0.10, "disk": 0.15}
HALVES_WITHIN = 0.10
QUICK = {
    "": ["factors.pattern={levels: [read, randread]}"],
    "-readahead": ["factors.size={levels: [4k, 64k]}"],
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """A published shape: what was found, what must hold, whether it does (None: not measured).

    `given`: the profile was made from this number.
    """

    engine: str
    shape: str
    found: float | None
    expected: str
    holds: bool | None
    given: bool = False


#: MB/s, unscaled, of (drive, ahead, pattern, block, jobs); None where it was not measured
Rate = Callable[[str, str, str, str, int], float | None]


def simulated(change: Callable[[dict[str, Any]], None] = lambda values: None) -> Rate:
    """Rates in virtual time, of the profiles as they are or changed."""

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
        wanted = {"pattern": pattern, "size": block}
        if jobs == 1 and ahead == "on" and block in ("4k", "28k"):
            source, wanted = table, wanted | {"drive": drive}
        elif drive == "px05smb040":
            source, wanted = ahead_table, wanted | {"ahead": ahead, "jobs": str(jobs)}
        else:
            return None
        chosen = source[source["valid"]]
        for name, value in wanted.items():
            chosen = chosen[chosen[name].astype(str) == value]
        return None if chosen.empty else float(chosen["bandwidth"].mean()) * SCALE

    return rate


def claims(engine: str, rate: Rate) -> list[Claim]:
    """The published shapes, one by one."""
    out = []
    for drive, rows in PUBLISHED.items():
        for pattern, row in rows.items():
            for block, published in zip(("4k", "28k"), row, strict=True):
                found = rate(drive, "on", pattern, block, 1)
                shape = f"{drive} {pattern} {block}: MB/s"
                limit = WITHIN[engine]
                holds = None if found is None else abs(found / published - 1) <= limit
                expected = f"{published:g} +-{limit:.0%}"
                out.append(Claim(engine, shape, found, expected, holds, given=True))

    def ratio(shape: str, ahead: str, block: str, jobs: int, low: float, high: float) -> None:
        ordered, random = (rate("px05smb040", ahead, p, block, jobs) for p in ("read", "randread"))
        found = ordered / random if ordered and random else None
        holds = None if found is None else low <= found <= high
        words = f">= {low:g}" if high > 1e6 else f"{low:g} to {high:g}"
        out.append(Claim(engine, shape, found, words, holds))

    ratio("ordered over random, 4k, one job", "on", "4k", 1, 2.0, 1e9)
    for block in ("4k", "28k", "64k"):
        ratio(f"ordered over random, {block}, 16 jobs", "on", block, 16, 0.9, 1.1)
    for block in ("64k", "256k"):
        ratio(f"ordered over random, {block}, one job", "on", block, 1, 0.9, 1.1)
    for block in ("4k", "28k"):
        ratio(f"ordered over random, {block}, read-ahead off", "off", block, 1, 0.9, 1.1)
    on, off = (rate("px05smb040", ahead, "read", "4k", 1) for ahead in ("on", "off"))
    slower = off / on if on and off else None
    out.append(
        Claim(engine, "a stream without read-ahead over one with it, 4k", slower, "< 0.9",
              None if slower is None else slower < 0.9)
    )  # fmt: skip
    for block, published in SIXTEEN.items():
        found = rate("px05smb040", "on", "randread", block, 16)
        holds = None if found is None else abs(found / published - 1) <= 0.15
        shape, expected = f"16 jobs, {block}: MB/s", f"{published:g} +-15 %"
        out.append(Claim(engine, shape, found, expected, holds, given=True))
    return out


def halves() -> list[Claim]:
    """Cells of the published table by profiles fitted from others: rate over that published."""
    out = []
    for drive in PUBLISHED:
        table = read_table(HERE / "tables" / f"{drive}.csv")
        ordered, random = (
            [c for c in table.fit.cells if c.sequential is kind] for kind in (True, False)
        )
        half = Measurements(ordered, table.fit.flush, "")
        rows = judged(profile_of(half, drive, []), half, random, one_by_one=False)[len(ordered) :]
        for words, found in (
            ("at random from those in order", rows),
            ("each from the seven others", judged(profile_of(table.fit, drive, []), table.fit, [])),
        ):
            for row in found:
                kind = "" if row.cell.sequential else "rand"
                size = f"{row.cell.block_bytes >> 10}k"
                shape = f"{drive} {kind}{row.cell.op} {size}, over the published"
                near = row.held_out is not None and abs(row.held_out - 1) <= HALVES_WITHIN
                expected = f"1 +-{HALVES_WITHIN:.0%}"
                out.append(Claim(words, shape, row.held_out, expected, near))
    return out


def runs(name: str, out: Path, quick: bool) -> pd.DataFrame:
    """The runs of one study, made if they are not there."""
    place = out / f"ssd-patterns{name}{'-quick' if quick else ''}"
    words = ["--quick", "--set", "design.replicates=1"] if quick else []
    words += [w for change in QUICK[name] for w in ("--set", change)] if quick else []
    finish(HERE / f"ssd-patterns{name}.study.yaml", place, words, quiet=True)
    return pd.read_parquet(place / "runs.parquet")


def without_fetch(values: dict[str, Any]) -> None:
    """The planted drive: pages come for nothing."""
    values["readahead"]["fetch"] = {"kind": "constant", "value_s": 0.0}


def main() -> int:
    """Runs, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--virtual", action="store_true", help="the simulator alone")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    arguments = parser.parse_args()
    found = claims("simulator", simulated())
    if not arguments.virtual:
        try:
            tables = [runs(name, arguments.out, arguments.quick) for name in ("", "-readahead")]
        except PenstockError as error:
            print(error, file=sys.stderr)
            return 1
        found += claims("disk", measured(*tables))
        for table in tables:
            left_out = int((~table["valid"]).sum())
            print(f"{left_out} of {len(table)} runs left out as not valid", file=sys.stderr)
    planted = [c.shape for c in claims("simulator", simulated(without_fetch)) if c.holds is False]
    broken = [c for c in found if c.holds is False]
    predicted = halves()
    if arguments.json:
        said = {"claims": found, "halves": predicted}
        plain = {name: [asdict(c) for c in some] for name, some in said.items()}
        print(json.dumps({**plain, "planted_found": planted}))
    else:
        show(found + predicted)
        print(f"planted drive without page fetch: {len(planted)} shapes reported")
    noticed = "ordered over random, 4k, one job" in planted
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    record.keep(arguments.record, kept(found, predicted), {"a drive without pages": noticed}, about)
    return 1 if not noticed else 3 if broken else 0


def kept(found: list[Claim], predicted: list[Claim]) -> list[record.Row]:
    """Totals that are quoted, and every claim."""
    rows = []
    for engine in dict.fromkeys(c.engine for c in found + predicted):
        for words, given in (("published numbers that the profile was made from", True),
                             ("shapes that follow from it", False)):  # fmt: skip
            mine = [c for c in found if c.engine == engine and c.given is given]
            mine = [c for c in mine if c.holds is not None]
            if mine:
                right = sum(bool(c.holds) for c in mine)
                rows.append(record.share(engine, "", words, right, len(mine)))
        mine = [c for c in predicted if c.engine == engine]
        if mine:
            right = sum(bool(c.holds) for c in mine)
            rows.append(record.share(engine, "", "cells predicted within 10 %", right, len(mine)))
            worst = max((c.found or 0 for c in mine), key=lambda x: max(x, 1 / x))
            rows.append(record.row(engine, "", "farthest, predicted over published", [worst], ""))
    rows = [{**row, "quoted": True} for row in rows]
    for c in found + predicted:
        ours = "not measured" if c.found is None else f"{c.found:.3g}"
        bar = "" if c.found is None else c.expected
        rows.append(record.claim(c.engine, c.shape, ours, bar, c.holds))
    return rows


def show(found: list[Claim]) -> None:
    """One line per claim."""
    table = Table("engine", "shape", "found", "expected", "holds")
    for c in found:
        value = "-" if c.found is None else f"{c.found:.3g}"
        holds = "not measured" if c.holds is None else "yes" if c.holds else "NO"
        table.add_row(c.engine, c.shape, value, c.expected, holds + (", given" if c.given else ""))
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
