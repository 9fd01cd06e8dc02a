"""The published scenarios beside the model: every treatment predicted, every published shape judged.

`studies/published.py [NAME…] [--sensitivity] [--json]` predicts the treatments of
`studies/published-NAME.study.yaml` (all of them without a name) in this process and prints the published
numbers beside ours; exit status 3 if a shape does not hold. Numbers that should be near a published one are
judged too, but alter no status: what the texts leave open is assumed. `penstock run
studies/published-NAME.study.yaml` makes the same runs with a report. With `--sensitivity` each assumed
value of the platform, and of BLAST's workload, goes to its lower and its upper end, and all is judged
again: what rests on an assumption? At the end a store whose local files come slower than the network's is
planted, which must turn a shape of `reduce`: status 1 if it does not.

BLAST's computing time was set so that the published split, 14 + 5, is the fastest: that split is an input.
The chunk size, the distance between fastest and slowest, and the costs are what is then predicted.

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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
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
        "medium takes 4.5 s ± 22 % (default store)",
        "4.5 s",
        lambda rows: seconds(rows, "medium", "dss"),
        lambda rows: within(seconds(rows, "medium", "dss"), 4.5, 0.22),
        False,
    ),
    Claim(
        "reduce",
        "L1258",
        "large takes 39 s ± 22 % (default store)",
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
        "the fastest split (an input: the computing time was set by it)",
        "14 + 5",
        lambda rows: f"{best(rows)[0]} + {19 - int(best(rows)[0])}",
        lambda rows: best(rows)[0] == "14",
    ),
    Claim(
        "blast",
        "L1173",
        "the fastest chunk size (the smallest of three)",
        "256 KiB",
        lambda rows: best(rows)[1],
        lambda rows: best(rows)[1] == "256KiB",
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


def predicted(
    name: str, more: Sequence[str] = (), seeds: int = scenario.SEEDS, words: Sequence[str] = ()
) -> Rows:
    """Every treatment's prediction; `more` are further values of the platform, `words` of the scenario."""
    tasks = [(key, [*arguments, *words], more, seeds) for key, arguments in treatments(name)]
    # not forked: a copy of a process that has threads may wait for a lock that none of them holds any more
    with ProcessPoolExecutor(mp_context=get_context("forkserver")) as pool:
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


#: what is assumed of BLAST's workload: option of the scenario, ends
BLAST_ASSUMED = {
    "seconds that a query computes (0.35)": ("--compute", ("0.175", "0.525")),
    "bytes of the database (1000 MiB)": ("--database-bytes", (f"{500 << 20}", f"{2000 << 20}")),
    "bytes of a look-up (64 KiB)": ("--lookup-bytes", (f"{16 << 10}", f"{1 << 20}")),
}


def sensitivity(name: str, seeds: int = 9) -> list[dict[str, Any]]:
    """The claims again with each assumed value at its lower and its upper end."""
    given = scenario.parsed(treatments(name)[0][1])
    platform = load_platform(given.platform)
    ends: list[tuple[str, str, list[str], list[str]]] = [
        (value.path, str(end), [f"{value.path}={end}"], [])
        for value in platform.assumed
        for end in (value.low, value.high)
    ]
    if given.kind == "blast-split":
        ends += [
            (assumed, end, [], [option, end])
            for assumed, (option, both) in BLAST_ASSUMED.items()
            for end in both
        ]
    found = []
    for assumed, end, more, words in ends:
        turned = {"study": name, "assumed": assumed, "at": end}
        try:
            rows = predicted(name, more, seeds, words)
        except PenstockError as error:
            found.append({**turned, "cannot": str(error)})
            continue
        found += [{**claim, **turned} for claim in judged(name, rows)]
    return found


def planted() -> bool:
    """Whether a loopback slower than the network, which makes local files a mistake, turns a shape."""
    rows = predicted("reduce", ["network.loopback=5 MB/s"], seeds=3)
    return any(not one["holds"] for one in judged("reduce", rows) if one["kind"] == "shape")


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
    options.add_argument("--quick", action="store_true", help="three seeds instead of 39")
    options.add_argument("--json", action="store_true", help="rows as one object")
    record.option(options)
    given = options.parse_args()
    unknown = set(given.names) - set(NAMES)
    if unknown:
        options.error(f"no scenario {', '.join(sorted(unknown))}; expected {', '.join(NAMES)}")
    rows, turned = [], []
    for name in given.names or NAMES:
        print(f"published: {name}", file=sys.stderr)
        rows += judged(name, predicted(name, seeds=3 if given.quick else scenario.SEEDS))
        if given.sensitivity:
            turned += sensitivity(name, seeds=3 if given.quick else 9)
    found = planted()
    if given.json:
        print(json.dumps({"claims": rows, "sensitivity": turned}))
    else:
        _show(rows)
        if given.sensitivity:
            _show_sensitivity(rows, turned)
    print(f"planted, a slow loopback: {'found' if found else 'NOT FOUND'}", file=sys.stderr)
    kept = [_kept(row) for row in rows] + _kept_sensitivity(rows, turned)
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    record.keep(given.record, kept, {"a loopback slower than the network": found}, about)
    if not found:
        return 1
    return 0 if all(row["holds"] for row in rows if row["kind"] == "shape") else 3


def _kept(row: dict[str, Any]) -> record.Row:
    says = f"{row['claim']}{'' if row['kind'] == 'shape' else ' (a number)'}"
    return record.claim(row["study"], says, _number(row["ours"]), row["published"], row["holds"])


def _kept_sensitivity(rows: list[dict[str, Any]], turned: list[dict[str, Any]]) -> list[record.Row]:
    """For each end of each assumed value, what turns there."""
    held = {(r["study"], r["claim"]): r["holds"] for r in rows}
    ends: dict[tuple[str, str, str], list[str]] = {}
    for row in turned:
        said = ends.setdefault((row["study"], row["assumed"], row["at"]), [])
        if "cannot" in row:
            said.append(f"cannot be predicted: {row['cannot']}")
        elif row["holds"] != held[row["study"], row["claim"]]:
            now = "holds" if row["holds"] else "does not hold"
            said.append(f"{row['claim']}: {_number(row['ours'])}, {now}")
    return [
        record.claim(study, f"{assumed} = {at}", "; ".join(said) or "nothing turns", "", None)
        for (study, assumed, at), said in ends.items()
    ]


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
