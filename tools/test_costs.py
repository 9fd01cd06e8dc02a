"""Processor time of the test files: join the files that test runs wrote with `--costs`, record them, compare.

    tools/test_costs.py show FILE ...      files by processor time, most expensive first
    tools/test_costs.py record FILE ...    write tests/costs.json
    tools/test_costs.py compare FILE ...   name each file that became more expensive by half; exit 1 at twice

Machines differ in speed: `compare` divides by the median ratio of all files first. A file has grown if it
is more than GROWTH times as expensive as recorded, and by more than SLACK_S seconds. One busy machine can do
that; more than LIMIT times fails.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

RECORD = Path(__file__).parents[1] / "tests/costs.json"
GROWTH, LIMIT = 1.5, 2.0
SLACK_S = 10.0
#: files cheaper than this are not used to determine the machine's speed
LEAST_S = 2.0

Costs = dict[str, dict[str, float]]


def joined(paths: list[Path]) -> Costs:
    """Costs of all runs by test file; a file that ran in two of them has the sum."""
    total: Costs = {}
    for path in paths:
        for name, row in json.loads(path.read_text())["files"].items():
            sums = total.setdefault(name, dict.fromkeys(row, 0))
            for key, value in row.items():
                sums[key] = round(sums[key] + value, 2)
    return total


def grown(costs: Costs, recorded: Costs, times: float = GROWTH) -> list[str]:
    """One line for each test file whose cost grew by more than a factor."""
    common = [name for name in costs if name in recorded]
    ratios = [
        costs[n]["cpu_s"] / recorded[n]["cpu_s"] for n in common if recorded[n]["cpu_s"] >= LEAST_S
    ]
    speed = statistics.median(ratios) if ratios else 1.0
    lines = []
    for name in common:
        expected = recorded[name]["cpu_s"] * speed
        if costs[name]["cpu_s"] > max(expected * times, expected + SLACK_S):
            lines.append(
                f"{name}: {costs[name]['cpu_s']:.0f} s of processor time; expected about {expected:.0f} s"
            )
    return lines


def main(verb: str, *names: str) -> int:
    """Run one of the three verbs and return the exit status."""
    costs = joined([Path(name) for name in names])
    recorded: Costs = json.loads(RECORD.read_text())["files"] if RECORD.exists() else {}
    if verb == "record":
        updated = recorded | costs
        RECORD.write_text(json.dumps({"files": dict(sorted(updated.items()))}, indent=1) + "\n")
    elif verb == "show":
        for name, row in sorted(costs.items(), key=lambda pair: -pair[1]["cpu_s"]):
            print(f"{row['cpu_s']:8.1f} s {row['wall_s']:8.1f} s {row['tests']:5.0f} {name}")
    elif verb == "compare":
        total = {key: sum(row[key] for row in costs.values()) for key in ("tests", "cpu_s")}
        print(f"{total['tests']:.0f} tests took {total['cpu_s']:.0f} s of processor time")
        lines = grown(costs, recorded)
        print("\n".join(lines), end="\n" if lines else "")
        return int(bool(grown(costs, recorded, LIMIT)))
    else:
        sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
