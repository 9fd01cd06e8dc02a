"""The published scenarios beside the model: every treatment predicted, every published shape judged.

`studies/published.py [NAME…] [--sensitivity] [--json]` predicts the treatments of
`studies/published-NAME.study.yaml` (all of them without a name) in this process and prints the published
numbers beside ours; exit status 3 if a shape does not hold. Numbers that should be near a published one are
judged too, but alter no status: what the texts leave open is assumed. `penstock run
studies/published-NAME.study.yaml` makes the same runs with a report. With `--sensitivity` each assumed value
of the platform goes to its lower and its upper end, and all is judged again: what rests on an assumption?

Line numbers are those of the thesis text that the scenarios come from (L. B. Costa, 2014), as in the studies.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.design.plan import make_plan
from penstock.errors import PenstockError
from penstock.platform.hosts import load_platform
from penstock.study.load import load_study
from penstock.study.resolve import example_command, resolve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "published"))

import scenario  # noqa: E402

Key = tuple[str, ...]
Rows = dict[Key, dict[str, Any]]


@dataclass(frozen=True)
class Claim:
    """A published statement: `ours` computes our number, `holds` whether the shape is the same (or, if not a
    `shape`, whether the number is near)."""

    study: str
    line: str
    says: str
    published: str
    ours: Callable[[Rows], float | str]
    holds: Callable[[Rows], bool]
    shape: bool = True


def seconds(rows: Rows, *key: str) -> float:
    """Makespan of a treatment."""
    return float(rows[key]["makespan_s"])


def ratio(first: Sequence[str], second: Sequence[str]) -> Callable[[Rows], float]:
    """Makespan of one treatment over that of another."""
    return lambda rows: seconds(rows, *first) / seconds(rows, *second)


def joules(rows: Rows, *key: str) -> float:
    """Energy of a treatment."""
    return float(rows[key]["energy_j"])


def best(rows: Rows) -> Key:
    """The fastest treatment."""
    return min(rows, key=lambda k: seconds(rows, *k))


def worst(rows: Rows) -> float:
    """Slowest over fastest."""
    return max(seconds(rows, *k) for k in rows) / seconds(rows, *best(rows))


def cost(rows: Rows, *key: str) -> float:
    """Price of a treatment: node-hours at one euro."""
    return float(rows[key]["cost"]["amount"])


def cheapest(rows: Rows, nodes: str) -> Key:
    """The cheapest split of so many machines."""
    return min((k for k in rows if k[0] == nodes), key=lambda k: cost(rows, *k))


def flat(rows: Rows, size: str, stripe: str) -> float:
    """Largest over smallest makespan of a broadcast over 1, 2 and 4 replicas."""
    times = [seconds(rows, size, r, stripe) for r in ("1", "2", "4")]
    return max(times) / min(times)


def within(value: float, published: float, share: float) -> bool:
    """Whether a number is within a share of the published one."""
    return abs(value / published - 1) <= share


def montage_cheap(rows: Rows) -> tuple[float, float]:
    """The fastest allocation at most a quarter as dear as the fastest of all: times slower, times cheaper."""
    price = {k: float(k[0]) * seconds(rows, *k) for k in rows if k[1] == "dss"}
    fastest = min(price, key=lambda k: seconds(rows, *k))
    cheap = [k for k in price if price[k] * 4 <= price[fastest]]
    if not cheap:
        return float("inf"), float("nan")
    chosen = min(cheap, key=lambda k: seconds(rows, *k))
    return seconds(rows, *chosen) / seconds(rows, *fastest), price[fastest] / price[chosen]


def dvfs(rows: Rows, application: str) -> float:
    """Energy at the lowest over that at the highest frequency, less one."""
    return joules(rows, application, "1.2GHz") / joules(rows, application, "2.3GHz") - 1


SIZES = ("small", "medium", "large")
PATTERNS = ("pipeline", "reduce", "broadcast")

CLAIMS = [
    *(
        Claim(
            "pipeline",
            "L1092-1094",
            f"a store that keeps files local is faster ({size})",
            "faster",
            ratio((size, "dss"), (size, "woss")),
            lambda rows, size=size: seconds(rows, size, "woss") < seconds(rows, size, "dss"),
        )
        for size in SIZES
    ),
    *(
        Claim(
            "reduce",
            "L1106-1112",
            f"collecting the parts where they are reduced is faster ({size})",
            "faster",
            ratio((size, "dss"), (size, "woss")),
            lambda rows, size=size: seconds(rows, size, "woss") < seconds(rows, size, "dss"),
        )
        for size in ("medium", "large")
    ),
    Claim(
        "reduce",
        "L1090",
        "small: the configurations are nearly alike (seconds between them)",
        "inside the interval",
        lambda rows: seconds(rows, "small", "dss") - seconds(rows, "small", "woss"),
        lambda rows: abs(seconds(rows, "small", "dss") - seconds(rows, "small", "woss")) < 0.5,
    ),
    Claim(
        "reduce",
        "L1253",
        "medium takes 4.5 s (default store)",
        "4.5 s",
        lambda rows: seconds(rows, "medium", "dss"),
        lambda rows: within(seconds(rows, "medium", "dss"), 4.5, 0.22),
        False,
    ),
    Claim(
        "reduce",
        "L1258",
        "large takes 39 s (default store)",
        "39 s",
        lambda rows: seconds(rows, "large", "dss"),
        lambda rows: within(seconds(rows, "large", "dss"), 39, 0.22),
        False,
    ),
    *(
        Claim(
            "broadcast",
            "L1119-1124",
            f"striped over all, replicas make no difference ({size})",
            "flat, 1-3 %",
            lambda rows, size=size: flat(rows, size, "all"),
            lambda rows, size=size: flat(rows, size, "all") <= 1.05,
        )
        for size in ("medium", "large")
    ),
    *(
        Claim(
            "broadcast",
            "L1119-1124",
            f"on a stripe of one machine they do ({size})",
            "not flat",
            lambda rows, size=size: flat(rows, size, "one"),
            lambda rows, size=size: flat(rows, size, "one") > 1.2,
        )
        for size in ("medium", "large")
    ),
    *(
        Claim(
            "scale",
            "L1126-1140",
            f"local files stay faster on {nodes} machines",
            "faster",
            ratio((nodes, "dss"), (nodes, "woss")),
            lambda rows, nodes=nodes: seconds(rows, nodes, "woss") < seconds(rows, nodes, "dss"),
        )
        for nodes in ("25", "50", "100")
    ),
    Claim(
        "blast",
        "L1173",
        "the fastest of all splits and chunk sizes",
        "14 + 5, 256 KiB",
        lambda rows: f"{best(rows)[0]} + {19 - int(best(rows)[0])}, {best(rows)[1]}",
        lambda rows: best(rows) == ("14", "256KiB"),
    ),
    Claim(
        "blast",
        "L1171",
        "slowest over fastest",
        "10",
        worst,
        lambda rows: 7 <= worst(rows) <= 15,
    ),
    Claim(
        "blast-cost",
        "L1189",
        "the cheapest split of 11 machines",
        "8 + 2",
        lambda rows: f"{10 - int(cheapest(rows, '11')[1])} + {cheapest(rows, '11')[1]}",
        lambda rows: cheapest(rows, "11")[1] == "2",
    ),
    Claim(
        "blast-cost",
        "L1189",
        "20 machines are faster than 11 (both at their cheapest)",
        "almost 2",
        lambda rows: seconds(rows, *cheapest(rows, "11")) / seconds(rows, *cheapest(rows, "20")),
        lambda rows: within(
            seconds(rows, *cheapest(rows, "11")) / seconds(rows, *cheapest(rows, "20")), 1.9, 0.15
        ),
    ),
    Claim(
        "blast-cost",
        "L1189",
        "and cost more, %",
        "2 %",
        lambda rows: (
            100 * (cost(rows, *cheapest(rows, "20")) / cost(rows, *cheapest(rows, "11")) - 1)
        ),
        lambda rows: cost(rows, *cheapest(rows, "20")) / cost(rows, *cheapest(rows, "11")) < 1.1,
    ),
    Claim(
        "montage",
        "L1219-1222",
        "time on 15 machines over time on 100 (little gain after 15)",
        "small",
        ratio(("15", "dss"), ("100", "dss")),
        lambda rows: seconds(rows, "15", "dss") / seconds(rows, "100", "dss") < 1.5,
    ),
    Claim(
        "montage",
        "L1219-1222",
        "time on 75 machines over time on 100 (none after 75)",
        "virtually none",
        ratio(("75", "dss"), ("100", "dss")),
        lambda rows: seconds(rows, "75", "dss") / seconds(rows, "100", "dss") < 1.03,
    ),
    Claim(
        "montage",
        "L1230-1234",
        "an allocation four times cheaper than the fastest is slower by, %",
        "20 %",
        lambda rows: 100 * (montage_cheap(rows)[0] - 1),
        lambda rows: montage_cheap(rows)[0] < 1.4,
    ),
    *(
        Claim(
            "energy",
            "L1352-1360",
            f"the store that knows the pattern saves energy ({pattern}), %",
            "saves",
            lambda rows, p=pattern: 100 * (1 - joules(rows, p, "woss") / joules(rows, p, "dss")),
            lambda rows, p=pattern: joules(rows, p, "woss") < joules(rows, p, "dss"),
        )
        for pattern in ("pipeline", "reduce")
    ),
    Claim(
        "dvfs",
        "L1406",
        "BLAST at the lowest frequency takes more energy, %",
        "85.5 % (96.5 % predicted)",
        lambda rows: 100 * dvfs(rows, "blast"),
        lambda rows: dvfs(rows, "blast") > 0,
    ),
    Claim(
        "dvfs",
        "L1406",
        "BLAST: within 11 points of the measured 85.5 %",
        "85.5 %",
        lambda rows: 100 * dvfs(rows, "blast"),
        lambda rows: abs(dvfs(rows, "blast") - 0.855) <= 0.11,
        False,
    ),
    Claim(
        "dvfs",
        "L1406",
        "the pipeline takes less, %",
        "17 % (11 % predicted)",
        lambda rows: -100 * dvfs(rows, "pipeline"),
        lambda rows: dvfs(rows, "pipeline") < 0,
    ),
    Claim(
        "dvfs",
        "L1406",
        "pipeline: within 11 points of the measured 17 %",
        "17 %",
        lambda rows: -100 * dvfs(rows, "pipeline"),
        lambda rows: abs(-dvfs(rows, "pipeline") - 0.17) <= 0.11,
        False,
    ),
]

NAMES = tuple(dict.fromkeys(claim.study for claim in CLAIMS))


def treatments(name: str) -> list[tuple[Key, list[str]]]:
    """Level names and the scenario's arguments of every treatment of a study."""
    study = load_study(HERE / f"published-{name}.study.yaml")
    found: dict[Key, list[str]] = {}
    for row in make_plan(study).rows:
        command = shlex.split(example_command(resolve(study, row.levels)))
        key = tuple(str(level) for level in row.levels.values())
        found[key] = command[command.index(str(HERE / "published" / "scenario.py")) + 1 :]
    return list(found.items())


def _one(task: tuple[Key, list[str], Sequence[str], int]) -> tuple[Key, dict[str, Any]]:
    key, arguments, more, seeds = task
    return key, scenario.prediction(arguments, more, seeds)


def predicted(name: str, more: Sequence[str] = (), seeds: int = scenario.SEEDS) -> Rows:
    """Every treatment's prediction; `more` are further values of the platform."""
    tasks = [(key, arguments, more, seeds) for key, arguments in treatments(name)]
    with ProcessPoolExecutor() as pool:
        return dict(pool.map(_one, tasks))


def judged(name: str, rows: Rows) -> list[dict[str, Any]]:
    """The claims on a study, with our number and whether the shape holds."""
    return [
        {
            "study": name,
            "line": claim.line,
            "claim": claim.says,
            "published": claim.published,
            "ours": claim.ours(rows),
            "kind": "shape" if claim.shape else "number",
            "holds": bool(claim.holds(rows)),
        }
        for claim in CLAIMS
        if claim.study == name
    ]


def sensitivity(name: str, seeds: int = 9) -> list[dict[str, Any]]:
    """The claims again with each assumed value of the platform at its lower and its upper end."""
    arguments = treatments(name)[0][1]
    platform = load_platform(scenario.parser().parse_args(arguments).platform)
    found = []
    for value in platform.assumed:
        for end in (value.low, value.high):
            try:
                rows = predicted(name, [f"{value.path}={end}"], seeds)
            except PenstockError as error:
                found.append(
                    {"study": name, "assumed": value.path, "at": str(end), "cannot": str(error)}
                )
                continue
            for claim in judged(name, rows):
                found.append({**claim, "assumed": value.path, "at": str(end)})
    return found


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = {**row, "ours": _number(row["ours"]), "holds": "yes" if row["holds"] else "NO"}
        table.add_row(*(str(cells[column]) for column in rows[0]))
    Console(width=100, highlight=False).print(table)


def main() -> int:
    """Exit status: 0 all shapes hold, 3 one does not."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    options.add_argument(
        "--sensitivity", action="store_true", help="at the ends of what is assumed"
    )
    options.add_argument("--json", action="store_true", help="rows as one object")
    given = options.parse_args()
    unknown = set(given.names) - set(NAMES)
    if unknown:
        options.error(f"no scenario {', '.join(sorted(unknown))}; expected {', '.join(NAMES)}")
    rows, turned = [], []
    for name in given.names or NAMES:
        print(f"published: {name}", file=sys.stderr)
        rows += judged(name, predicted(name))
        if given.sensitivity:
            turned += sensitivity(name)
    if given.json:
        print(json.dumps({"claims": rows, "sensitivity": turned}))
    else:
        _show(rows)
        if given.sensitivity:
            _show_sensitivity(rows, turned)
    return 0 if all(row["holds"] for row in rows if row["kind"] == "shape") else 3


def _show_sensitivity(rows: list[dict[str, Any]], turned: list[dict[str, Any]]) -> None:
    held = {(r["study"], r["claim"]): r["holds"] for r in rows}
    print(f"\n{len(turned)} judgements at the ends of the assumed values. Those that turn:")
    for row in turned:
        if "cannot" in row:
            print(f"  {row['study']}, {row['assumed']} = {row['at']}: {row['cannot']}")
        elif row["holds"] != held[(row["study"], row["claim"])]:
            now = "holds" if row["holds"] else "does not hold"
            print(
                f"  {row['study']}, {row['assumed']} = {row['at']}: {row['claim']}: "
                f"{_number(row['ours'])}, {now}"
            )


if __name__ == "__main__":
    sys.exit(main())
