"""`python -m tests.fuzz`: every target with its share of the inputs; a table; status 1 where one failed.

`--replay TARGET FILE` feeds one kept input again, in this process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.fuzz.drive import Driver, Outcome, Target, table
from tests.fuzz.targets import all_targets


def shares(targets: list[Target], inputs: int) -> dict[str, int]:
    """How many inputs each target gets, so that they take about as long and are `inputs` together."""
    weights = {t.name: 1 / t.cost for t in targets}
    whole = sum(weights.values())
    given = {name: int(inputs * weight / whole) + 1 for name, weight in weights.items()}
    return given


def fuzz(driver: Driver, targets: list[Target], inputs: int) -> list[Outcome]:
    """Runs the targets one after the other."""
    outcomes = []
    for name, count in shares(targets, inputs).items():
        (target,) = (t for t in targets if t.name == name)
        outcomes.append(driver.run(target, count))
        one = outcomes[-1]
        print(f"{name}: {one.inputs:,} inputs in {one.wall_s:.1f} s", file=sys.stderr, flush=True)
        for failure in one.failures:
            last = failure.what.strip().splitlines()[-1]
            print(f"  failed: {last}\n  kept: {failure.kept}", file=sys.stderr, flush=True)
    return outcomes


def replay(target: Target, path: Path) -> None:
    """Feeds one kept input; what it raises is raised."""
    data = path.read_bytes()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place, target.opened(Path(place)) as feed:
        try:
            feed(data)
        except target.documented as error:
            print(f"answered as documented: {type(error).__name__}: {error}")
        else:
            print("taken")


def main() -> int:
    """The status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all draws (default: %(default)s)")
    parser.add_argument("--only", nargs="+", help="these targets, that many inputs together")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="where failing inputs are kept")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "FILE"), help="feed one kept input again")
    asked = parser.parse_args()
    targets = all_targets()
    names = [t.name for t in targets]
    for name in (asked.only or []) + (asked.replay or [])[:1]:
        if name not in names:
            parser.error(f"found {name!r}; expected one of {', '.join(names)}")
    if asked.replay:
        (target,) = (t for t in targets if t.name == asked.replay[0])
        replay(target, Path(asked.replay[1]))
        return 0
    chosen = [t for t in targets if asked.only is None or t.name in asked.only]
    driver = Driver(asked.keep, asked.seed, processes=os.cpu_count() or 1)
    outcomes = fuzz(driver, chosen, asked.inputs)
    print(table(outcomes))
    failed = any(one.failures for one in outcomes)
    if failed:
        print(f"replay one: {sys.executable} -m tests.fuzz --replay TARGET {asked.keep}/FILE")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
