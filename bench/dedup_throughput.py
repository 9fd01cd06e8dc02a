"""Throughput of the hashes and chunkers of `penstock dedup`, on one core from memory.

By processor time. All are measured in turn, repeatedly, of 64 MiB of random bytes; hashes in pieces of
64 KiB, chunkers with that average. Planted: a version with one byte inserted at its beginning, of which
fixed chunks find less than 1 % and content-defined ones at least 95 %; and one of which 30 % of the
aligned chunks are overwritten, of which fixed chunks find 70 %, plus or minus 1. Exit status 1 if a goal
is missed or a plant is not detected.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.parts.dedup.measure import AVERAGE_BYTES, CHUNKERS, compare
from penstock.parts.dedup.options import HASHES, native
from penstock.parts.dedup.versions import VersionPlan, write_versions

MIB = 1 << 20
SIZE_BYTES = 64 * MIB
PLANTED_BYTES = 256 * MIB
GOALS_BPS = {"blake3": 1.5e9, CHUNKERS[1]: 5e9}


def rates(repeats: int) -> dict[str, list[float]]:
    """Bytes per second of each, once per repeat, all in turn."""
    names = [*HASHES, "xxh3", *CHUNKERS]
    measured: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            # the first of two passes warms up
            measured[name].append(native.dedup_throughput(name, SIZE_BYTES, AVERAGE_BYTES, 2)[1])
    return measured


def similarities(directory: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Similar shares by chunker, of a version with an inserted byte and of one with overwritten chunks."""
    plan = VersionPlan(PLANTED_BYTES, 2, (0.7, 0.7), chunk_bytes=AVERAGE_BYTES)
    old, new = (version.path for version in write_versions(plan, directory))
    inserted = directory / "inserted"
    with open(old, "rb") as source, open(inserted, "wb") as target:
        target.write(b"x")
        while block := source.read(4 * MIB):
            target.write(block)
    names = (f"fixed:{AVERAGE_BYTES}", *CHUNKERS)
    return (
        {name: compare(old, inserted, name).share for name in names},
        {name: compare(old, new, name).share for name in names},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three repeats")
    parser.add_argument("--json", action="store_true")
    record.option(parser)
    args = parser.parse_args()
    if args.quick:
        args.repeats = 3
    rows = []
    for name, values in rates(args.repeats).items():
        kind = "chunks" if name in CHUNKERS else "hash"
        row = record.row(kind, name, "throughput", [value / 1e9 for value in values], "GB/s")
        goal = GOALS_BPS.get(name)
        rows.append(row if goal is None else record.at_least(row, goal / 1e9))
    with tempfile.TemporaryDirectory(prefix="penstock-dedup-") as scratch:
        inserted, overwritten = similarities(Path(scratch))
    for case, shares in (("inserted byte", inserted), ("30 % overwritten", overwritten)):
        rows += [
            record.row(case, name, "similar", [100 * share], "%") for name, share in shares.items()
        ]
    fixed = f"fixed:{AVERAGE_BYTES}"
    planted = {
        "an inserted byte hides fixed chunks": inserted[fixed] < 0.01,
        "an inserted byte hides few content-defined chunks": all(
            inserted[name] >= 0.95 for name in CHUNKERS
        ),
        "30 % of the chunks are overwritten": abs(overwritten[fixed] - 0.7) <= 0.01,
    }
    about = "One thread; the data are larger than the caches, random, and the same for all."
    record.keep(args.record, rows, planted, about)
    return record.report(rows, planted, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
