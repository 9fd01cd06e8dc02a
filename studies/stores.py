"""Workflows on real shared stores beside what is predicted of them, and what engines make of each hint.

`compare`: a store is put up on virtual nodes, its service times are found on three of them (`penstock
seed`), then access patterns of Costa 2014 are run as real processes, several times each, and predicted
from the seeded platform by the model in several ways: as it was published (links first come first served,
whole chunks placed at random), with links that flows share, with chunks dealt out evenly, streamed
through network and storage block by block, and with the places that the store really chose. Service times
are found under the same model each time. No scenario was used for seeding or calibration.

    python studies/stores.py compare [--engine moosefs] [--quick] [--keep FILE] [--record]
    python studies/stores.py compare --from studies/stores/moosefs.json.gz   predicts what --keep measured
    python studies/stores.py matrix [ENGINE …]     every cell on nodes, written into docs/stores.md

Goals: 85 % of scenarios within 10 %, none past 20 %, 90 % intervals that hold; configurations of one
workload ranked as measured (Kendall's tau at least 0.9), the one chosen within 5 % of the best. Planted:
a storage service a hundred times as long must be detected by the comparison. Exit status 3 if a goal of
the default model is not met or not measured (a scenario without valid runs), 1 if something failed or the
plant is not detected.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from penstock.analyse.statistics.prediction_intervals import LEVEL, calibrate, conformal_scores  # noqa: E402
from penstock.analyse.statistics.prediction_intervals import Interval as Interval90  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.host.cgroups.busy import busy_share, busy_ticks  # noqa: E402
from penstock.host.network.loopback import Measured as Interval  # noqa: E402
from penstock.parts.prediction.queue_network.identify import Measured  # noqa: E402
from penstock.parts.prediction.queue_network.predict import predict, predict_many  # noqa: E402
from penstock.parts.prediction.workloads.make import make_workload  # noqa: E402
from penstock.parts.prediction.workloads.workflow import Workload  # noqa: E402
from penstock.parts.stores.calibration.seed import Measurements, identified, measure_store  # noqa: E402
from penstock.parts.stores.calibration.trials import BUSIEST, Trials  # noqa: E402
from penstock.parts.stores.conformance import Shown, conform  # noqa: E402
from penstock.parts.stores.files import Unmounted  # noqa: E402
from penstock.parts.stores.store import Store  # noqa: E402
from penstock.parts.stores.workflow.execute import execute, placement  # noqa: E402
from penstock.parts.stores.workflow.run import measured_runs, store_of  # noqa: E402
from penstock.platform.hosts import Platform, load_platform  # noqa: E402
from penstock.plugins import STORE_ENGINES  # noqa: E402
from penstock.writing import write_atomic  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim  # noqa: E402

CLUSTER = ROOT / "studies" / "stores" / "cluster.platform.yaml"
PAGE = ROOT / "docs" / "stores.md"
PATTERNS = ("pipeline", "reduce", "broadcast", "scatter", "gather")
#: of the cluster's links [bit/s], and of the one that is slow [byte/s]
NOMINAL_BPS, SLOW_BPS = 100e6, 6.25e6
WITHIN, WORST, SHARE, TAU, REGRET = 0.10, 0.20, 0.85, 0.9, 0.05
DEFAULT = "streamed"
#: as the default, with the places that the store chose
OCCURRED = "streamed, places that occurred"
#: a file of some MiB has a chunk for every node then
FOR_TRIALS = {"cephfs": ["store.chunk=128KiB"]}


@dataclass(frozen=True)
class Engine:
    """How an engine is put up for this, and what its files look like to a model.

    `changes`: of the cluster's file; `whole`: its own chunks; `streamed`: the unit that passes network and
    storage block by block, and over how many nodes a file goes; `dealt`: how places are chosen.
    """

    changes: tuple[str, ...]
    whole: dict[str, Any]
    streamed: dict[str, Any]
    dealt: str


ENGINES = {
    # a file of less than 64 MiB is on one node, the emptiest
    "moosefs": Engine(
        (),
        {"store.chunk": "64MiB", "store.stripe": "all"},
        {"store.chunk": "256KiB", "store.stripe": 1},
        "balanced",
    ),
    # objects go where their names' hash says; a client's own cache is as small as it can be, for the
    # workflow's rule that nothing is read from what its writer keeps
    "cephfs": Engine(
        ("store.chunk=256KiB", "preprocess.cache=0B"),
        {"store.chunk": "256KiB", "store.stripe": "all"},
        {"store.chunk": "256KiB", "store.stripe": "all"},
        "random",
    ),
    # a file is on one node, where its name's hash says
    "glusterfs": Engine(
        (),
        {"store.chunk": "64MiB", "store.stripe": 1},
        {"store.chunk": "256KiB", "store.stripe": 1},
        "random",
    ),
}


def models(engine: str) -> dict[str, dict[str, Any]]:
    """The model in several ways: keys of the platform file."""
    of = ENGINES[engine]
    streamed = {**of.streamed, "protocol.frame": "16KiB", "store.placement": of.dealt}
    return {
        "published": {"network.sharing": "fifo", "store.placement": "random", **of.whole},
        "fair": {"network.sharing": "fair", "store.placement": "random", **of.whole},
        "fair, balanced": {"network.sharing": "fair", "store.placement": "balanced", **of.whole},
        DEFAULT: {"network.sharing": "fifo", **streamed},
        "streamed, fair": {"network.sharing": "fair", **streamed},
    }


@dataclass(frozen=True)
class Scenario:
    """A pattern with files of a size on so many nodes; with hints and tasks sent where data are, or not."""

    pattern: str
    file_mib: int
    nodes: int
    hints: bool
    slow_link: bool = False

    def __str__(self) -> str:
        words = f"{self.pattern} of {self.file_mib} MiB, {self.nodes} nodes"
        words += ", hints" if self.hints else ""
        return words + (", a link of half the rate" if self.slow_link else "")

    @property
    def workload(self) -> Workload:
        options = {"width": self.nodes, "file_bytes": self.file_mib * 2**20}
        workload = make_workload(
            self.pattern, "small", options | ({"optimised": True} if self.hints else {})
        )
        return replace(workload, origin=None)

    def changes(self, delivered: float = 1.0) -> list[str]:
        """Of the cluster's file; of links' nominal rates the share is `delivered` to programs."""
        found = [f"hosts.node.count={self.nodes}"]
        if self.slow_link:
            rate = f"{{network: {{bandwidth: {SLOW_BPS * delivered / 1e6:.5g} MB/s}}}}"
            found.append(f"hosts.node.except={{0: {rate}}}")
        return found


@dataclass
class Compared:
    """What a scenario took, and what each way of the model said: mean, low, high [s], verdict.

    `busy`: share of the host's processors in each run; `places`: where the files lay, as `predict
    --placement` takes it; `dropped`: runs in which the host was too busy.
    """

    scenario: Scenario
    measured_s: list[float]
    busy: list[float]
    places: list[dict[str, Any]]
    stages: list[Any]
    operations: list[Any]
    dropped: int = 0
    predicted: dict[str, tuple[float, float, float, str]] = field(default_factory=dict)
    cpu_s: float = 0.0
    #: as `explore` asks it: at the platform's own values, without an interval
    cpu_plain_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.measured_s)

    def off(self, model: str) -> float:
        """Predicted over measured, less one."""
        return self.predicted[model][0] / self.mean_s - 1


def scenarios(quick: bool) -> list[Scenario]:
    """Forty-four; quick: four."""
    if quick:
        return [Scenario(p, 4, 4, h) for p in ("pipeline", "reduce") for h in (False, True)]
    found = [Scenario(*one) for one in itertools.product(PATTERNS, (4, 16), (4, 6), (False, True))]
    slow = itertools.product(("pipeline", "reduce"), (16,), (4,), (False, True))
    return [*found, *(Scenario(*one, slow_link=True) for one in slow)]


def cluster(engine: str, changes: Sequence[str]) -> Platform:
    """The cluster with a store of this engine on it."""
    said = [f"store.engine={engine}", *ENGINES[engine].changes, *changes]
    return load_platform(CLUSTER, said, predicted=False)


def measured(
    engine: str, quick: bool, repeat: int, budget_s: float, file: Path | None = None
) -> tuple[Measurements, list[Compared]]:
    """Seeds, then runs every scenario, those of one cluster on one store that stays up.

    What `file` has already is not measured again; it gets each scenario as it ends.
    """
    found: list[Compared] = []
    if file is not None and file.exists():
        seen, found = read_kept(file)
    else:
        seen = measure_store(
            cluster(engine, []),
            budget_s=budget_s,
            note=lambda text: print(f"  {text}", file=sys.stderr),
        )
    done = {c.scenario for c in found}
    wanted = [s for s in scenarios(quick) if s not in done]
    for changes in dict.fromkeys(tuple(s.changes()) for s in wanted):
        nodes = cluster(engine, changes)
        with store_of(nodes, engine) as store:
            for one in (s for s in wanted if tuple(s.changes()) == changes):
                found.append(_run(one, store, nodes, repeat))
                if file is not None:
                    write_atomic(file, json.dumps(kept(seen, found)))
    return seen, [c for c in found if len(c.measured_s) > 1]


def _run(one: Scenario, store: Store, nodes: Platform, repeat: int) -> Compared:
    """Runs of a scenario; one in which the processors had no time left is made again, a few times."""
    clients = [h for h in nodes.hosts if "client" in h.roles]
    found = Compared(one, [], [], [], [], [])
    while len(found.measured_s) < repeat and found.dropped < repeat:
        before = busy_ticks()
        done = execute(
            one.workload,
            store,
            slots={h.name: h.slots for h in clients},
            groups={h.name: h.group for h in clients},
            by_data=one.hints,
        )
        busy = busy_share(before, busy_ticks())
        if busy > BUSIEST:
            found.dropped += 1
            continue
        found.measured_s.append(done.makespan_s)
        found.busy.append(busy)
        found.places.append(placement(done))
        found.stages += measured_runs([done])["runs"]
        found.operations.append(done.operations.to_pylist())
    times = ", ".join(f"{t:.2f}" for t in found.measured_s)
    print(f"  {one}: {times} s; {found.dropped} dropped", file=sys.stderr, flush=True)
    return found


def predicted(engine: str, seen: Measurements, found: Sequence[Compared]) -> Platform:
    """What each way of the model says of every scenario, its service times found under the same model."""
    seeded = {name: seeded_under(engine, seen, way) for name, way in models(engine).items()}
    for name, platform in {**seeded, OCCURRED: seeded[DEFAULT]}.items():
        for one in found:
            scenario = one.scenario
            changes = {"scheduler.kind": "data_location" if scenario.hints else "workqueue"}
            delivered = 8 * seen.network_bps.mean / NOMINAL_BPS
            changed = platform(scenario.changes(delivered)).with_values(changes)
            begin = time.process_time()
            if name == OCCURRED:
                says = [_predicted(scenario.workload, changed, at) for at in one.places]
            else:
                says = [_predicted(scenario.workload, changed)]
            if name == DEFAULT:
                one.cpu_s = time.process_time() - begin
                begin = time.process_time()
                predict_many(scenario.workload, [changed], threads=1)
                one.cpu_plain_s = time.process_time() - begin
            one.predicted[name] = (
                *(statistics.fmean(s[i] for s in says) for i in range(3)),
                says[0][3],
            )
    for one in found:
        words = ", ".join(f"{m}: {one.off(m):+.0%}" for m in one.predicted)
        print(f"{one.scenario}: {one.mean_s:.2f} s; {words}", flush=True)
    return seeded[DEFAULT]([])


def seeded_under(
    engine: str, seen: Measurements, values: dict[str, Any]
) -> Callable[[list[str]], Platform]:
    """The cluster's platform with the service times of a way of the model, for changes of its file."""
    nodes = cluster(engine, [])
    document = identified(nodes.with_values(values), seen).document
    text = Platform.from_dict(document).to_yaml()

    def changed(changes: list[str]) -> Platform:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "seeded.yaml"
            file.write_text(text)
            return load_platform(file, changes)

    return changed


def _predicted(
    workload: Workload, platform: Platform, placed: dict[str, Any] | None = None
) -> tuple[float, float, float, str]:
    at = None if placed is None else json.dumps(placed)
    found = predict(workload, platform, explained=False, placement=at)
    ends = found.interval.ends()
    return found.makespan_s, float(ends["low"]), float(ends["high"]), found.applies.verdict


def kept(seen: Measurements, found: Sequence[Compared]) -> dict[str, Any]:
    """All that was measured, as JSON values: `predicted` needs nothing else."""
    trials = asdict(seen.trials)
    trials["seconds"] = [[*key, values] for key, values in seen.trials.seconds.items()]
    runs = [asdict(c) for c in found]
    return {"seen": {**asdict(seen), "trials": trials}, "scenarios": runs}


def read_kept(file: Path) -> tuple[Measurements, list[Compared]]:
    """What `kept` gave."""
    raw = file.read_bytes()
    facts = json.loads(gzip.decompress(raw) if file.suffix == ".gz" else raw)
    seen = facts["seen"]
    trials = Trials(**seen["trials"])
    rows: Any = trials.seconds
    trials.seconds = {Measured(*key): values for *key, values in rows}
    rates = {k: Interval(**seen[k]) for k in ("network_bps", "loopback_bps", "latency_s")}
    runs = [Compared(**{**c, "scenario": Scenario(**c["scenario"])}) for c in facts["scenarios"]]
    enough = [c for c in runs if len(c.measured_s) > 1]
    return Measurements(seen["engine"], trials, **rates), enough


def judged(found: Sequence[Compared], model: str) -> Iterator[record.Row]:
    """Rows of one way of the model, with the goals."""
    offs = [abs(c.off(model)) for c in found]
    near = sum(o <= WITHIN for o in offs)
    yield record.share("scenarios", model, "predicted within 10 %", near, len(offs), SHARE)
    worst = max(found, key=lambda c: abs(c.off(model)))
    yield record.claim(
        "scenarios",
        f"{model}: farthest off",
        f"{worst.off(model):+.1%} ({worst.scenario})",
        "none past 20 %",
        abs(worst.off(model)) <= WORST,
    )
    inside = sum(
        low <= t <= high
        for c in found
        for _, low, high, _ in [c.predicted[model]]
        for t in c.measured_s
    )
    runs = sum(len(c.measured_s) for c in found)
    yield record.share("runs", model, "inside of the 90 % interval", inside, runs, 0.85)
    yield from _calibrated(found, model)
    yield from _ranked(found, model)


def valid_scenarios(found: Sequence[Compared], quick: bool) -> dict[str, int]:
    """Runs of each scenario of the comparison; fewer than two are none."""
    runs = (str(c.scenario) for c in found if len(c.measured_s) > 1)
    return checks.valid_runs(map(str, scenarios(quick)), runs)


def evaluated(
    rows: Sequence[record.Row], found: Sequence[Compared], quick: bool
) -> tuple[list[record.Row], list[Claim]]:
    """Rows with the verdicts of their claims, and the claims of the default model."""
    needs = valid_scenarios(found, quick)
    marked, claims = [], []
    for row in rows:
        if not row.get("verdict"):
            marked.append(row)
            continue
        one = checks.of_row(row, needs)
        marked.append(checks.marked(row, one))
        if DEFAULT in (row["engine"], row["metric"].split(":")[0]):
            claims.append(one)
    return marked, claims


def _calibrated(found: Sequence[Compared], model: str) -> Iterator[record.Row]:
    """Intervals that measured runs of the other patterns calibrate; none of a pattern's own runs does."""
    inside, widths = 0, []
    for pattern in dict.fromkeys(c.scenario.pattern for c in found):
        others = [
            (c.predicted[model], t)
            for c in found
            if c.scenario.pattern != pattern
            for t in c.measured_s
        ]
        if not others:
            return
        scores, around = conformal_scores(
            *zip(*((said[0], t) for said, t in others), strict=True),
            *zip(*(said[1:3] for said, _ in others), strict=True),
        )
        for c in found:
            if c.scenario.pattern != pattern:
                continue
            value, low, high, _ = c.predicted[model]
            made = calibrate(Interval90(low, high, LEVEL, LEVEL, 1, ""), value, scores, around)
            inside += sum(made.low <= t <= made.high for t in c.measured_s)
            widths.append(made.width / 2 / value)
    runs = sum(len(c.measured_s) for c in found)
    what = "inside of the 90 % interval, calibrated on other patterns"
    yield record.share("runs", model, what, inside, runs, 0.85)
    yield record.row("scenarios", model, "half of that interval, of the prediction", widths, "1")


def _ranked(found: Sequence[Compared], model: str) -> Iterator[record.Row]:
    """Configurations (nodes, hints) of one pattern and size: order, and what the choice costs."""
    taus, regrets = [], []
    groups: dict[tuple[str, int], list[Compared]] = {}
    for c in found:
        if not c.scenario.slow_link:
            groups.setdefault((c.scenario.pattern, c.scenario.file_mib), []).append(c)
    for group in groups.values():
        if len(group) < 2:
            continue
        said = [c.predicted[model][0] for c in group]
        seen = [c.mean_s for c in group]
        taus.append(float(kendalltau(said, seen).statistic))
        regrets.append(seen[said.index(min(said))] / min(seen) - 1)
    if taus:
        made = record.row("configurations of one workload", model, "Kendall's tau", taus, "1")
        yield record.at_least({**made, "value": statistics.fmean(taus)}, TAU)
        made = record.row(
            "configurations of one workload", model, "regret of the choice", regrets, "1"
        )
        yield record.at_most({**made, "value": max(regrets)}, REGRET)


def cost(found: Sequence[Compared]) -> Iterator[record.Row]:
    """Processor time of a prediction beside that of the run on this host, and beside the nodes it holds."""
    for prediction, plain in (("a prediction", False), ("one without interval", True)):
        for what, spent in (
            ("processor seconds of this host", "busy"),
            ("node seconds that a run holds", "held"),
        ):
            ratios = []
            for c in found:
                share = statistics.fmean(c.busy) * (os.cpu_count() or 1)
                each = share if spent == "busy" else c.scenario.nodes + 1
                took = c.cpu_plain_s if plain else c.cpu_s
                ratios.append(each * c.mean_s / max(took, 1e-4))
            said = f"{what}, over processor seconds of {prediction}"
            made = record.row("scenarios", DEFAULT, said, ratios, "1")
            yield record.at_least(made, 2000) if spent == "held" else made


def planted(found: Sequence[Compared], platform: Platform) -> bool:
    """Whether a storage service of a hundredfold is told: scenarios are then off by more than the worst."""
    slow = platform.with_values(
        {
            "hosts.node.storage.write": {"overhead": "50 ms", "per_byte": "100 ms/MiB"},
            "hosts.node.storage.read": {"overhead": "50 ms", "per_byte": "100 ms/MiB"},
        }
    )
    some = [c for c in found if not c.scenario.slow_link][:4]
    told = 0
    for c in some:
        changed = slow.with_values({"hosts.node.count": c.scenario.nodes})
        told += _predicted(c.scenario.workload, changed)[0] / c.mean_s - 1 > WORST
    return told == len(some)


def matrix(engines: Sequence[str]) -> str:
    """Each engine on nodes of its own, every cell tried; a table in Markdown."""
    columns: dict[str, dict[str, str]] = {}
    said: dict[str, dict[str, str]] = {}
    for engine in engines:
        lacking = STORE_ENGINES.load(engine)().missing()
        if lacking:
            print(f"{engine}: not run: {lacking}", file=sys.stderr)
            continue
        made_of = STORE_ENGINES.load(engine)()
        if isinstance(made_of, Unmounted):
            said[engine] = {k: s.how for k, s in made_of.support().items()}
            continue
        changes = [
            f"store.engine={engine}",
            "network.bandwidth=1 Gbit/s",
            *FOR_TRIALS.get(engine, []),
        ]
        nodes = load_platform(CLUSTER, changes, predicted=False)
        with store_of(nodes, engine) as store:
            cells = {}
            for shown in conform(store, partial(_heard, engine)):
                text = shown.support.how if shown.support.why else "yes"
                cells[shown.cell] = text if shown.holds else f"**{text}, not so**"
            columns[engine] = cells
    names = list(dict.fromkeys(cell for cells in columns.values() for cell in cells))
    for engine, hints in said.items():
        columns[f"{engine} (by its own tests)"] = {
            cell: hints[key] for cell in names if (key := _hint(cell)) in hints
        }
    head = f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n"
    rows = (
        f"| {name} | {' | '.join(cells.get(name, '') for cells in columns.values())} |\n"
        for name in names
    )
    return head + "".join(rows)


def _hint(cell: str) -> str:
    """The key by which an engine says how a cell's hint is met."""
    key, _, value = cell.partition("=")
    return f"DP {value.split()[0]}" if key == "DP" else key


def _heard(engine: str, shown: Shown) -> None:
    print(f"{engine}: {shown}", file=sys.stderr, flush=True)


def write_matrix(table: str) -> None:
    """Puts the table in its place on the page."""
    text = PAGE.read_text("utf-8")
    begin = "<!-- matrix: python studies/stores.py matrix -->\n"
    end = "<!-- end of matrix -->\n"
    pattern = re.compile(re.escape(begin) + r"(.*?" + re.escape(end) + r")?", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text, count=1), "utf-8")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    beside = verbs.add_parser("compare")
    beside.add_argument("--engine", choices=list(ENGINES), default="moosefs")
    beside.add_argument("--quick", action="store_true")
    beside.add_argument("--repeat", type=int, default=3)
    beside.add_argument("--budget", type=float, default=90.0, help="seconds of seeding")
    beside.add_argument("--json", action="store_true")
    beside.add_argument(
        "--keep", type=Path, help="a file for all that is measured; goes on with it"
    )
    beside.add_argument("--from", type=Path, dest="source", help="predict what --keep measured")
    record.option(beside)
    cells = verbs.add_parser("matrix")
    cells.add_argument("engines", nargs="*", default=[e for e in STORE_ENGINES if e != "toy"])
    options = parser.parse_args()
    if options.verb == "matrix":
        write_matrix(matrix(options.engines))
        return 0
    try:
        if options.source is not None:
            seen, found = read_kept(options.source)
        else:
            seen, found = measured(
                options.engine, options.quick, options.repeat, options.budget, options.keep
            )
        platform = predicted(seen.engine, seen, found)
    except PenstockError as error:
        print(f"stores: {error}", file=sys.stderr)
        return 1
    told = bool(found) and planted(found, platform)
    quoted = ("published", DEFAULT, OCCURRED)
    rows = [
        row | {"quoted": model in quoted}
        for model in (*models(seen.engine), OCCURRED)
        for row in (judged(found, model) if found else ())
    ]
    rows += [row | {"quoted": True} for row in (cost(found) if found else ())]
    rows, claims = evaluated(rows, found, options.quick)
    for c in found:
        rows.append(record.row(str(c.scenario), options.engine, "measured", c.measured_s, "s"))
        for model, (value, low, high, verdict) in c.predicted.items():
            one = record.row(str(c.scenario), model, "predicted", [value], "s")
            rows.append(
                one | {"low": low, "high": high, "spread": "90 % interval", "applies": verdict}
            )
    plants = {"a storage service a hundred times as long": told}
    about = f"Engine {options.engine}. Seeded on three nodes; no scenario was used for it."
    record.keep(options.record, rows, plants, about)
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            if row.get("quoted"):
                goal = f"({row['bar']}: {row['verdict']})" if "bar" in row else ""
                said = f"{row['engine']}: {row['metric']}" if row["engine"] else row["metric"]
                print(f"{said}: {row['value']} {goal}")
    return checks.finish("stores", claims, plants)


if __name__ == "__main__":
    sys.exit(main())
