"""Recorded runs of workflows on shared stores compared with several models; support of hints by engine.

`compare`: access patterns of Costa 2014 were run as real processes on MooseFS and CephFS, with service times
measured on three of the nodes. They are predicted by the model in several ways: as it was published (links
first come first served, whole chunks placed at random), with links that flows share, with chunks dealt out
evenly, streamed through network and storage block by block, and with the actual placement of the store.
Service times are identified under the same model each time. No scenario was used for seeding or calibration,
but the model was developed with these runs: `studies/predictions.py` measures others.

    python studies/stores.py compare [--engine moosefs] [--from FILE] [--quick] [--record]
    python studies/stores.py matrix [ENGINE …]     every cell on nodes, written into docs/stores.md

Goals: those of `studies/predictions.py`. Planted: a storage service a hundred times as long must be detected
by the comparison. `--quick`: four scenarios. Exit status 3 if a goal of the default model is not met or not
measured (a scenario without valid runs), 1 if something failed or the plant is not detected.
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from penstock.errors import PenstockError  # noqa: E402
from penstock.parts.prediction.queue_network.predict import predict, predict_many  # noqa: E402
from penstock.parts.prediction.workloads.workflow import Workload  # noqa: E402
from penstock.parts.stores.calibration.seed import Measurements, identified  # noqa: E402
from penstock.parts.stores.conformance import Shown, conform  # noqa: E402
from penstock.parts.stores.files import Unmounted  # noqa: E402
from penstock.parts.stores.workflow.run import store_of  # noqa: E402
from penstock.platform.hosts import Platform, load_platform  # noqa: E402
from penstock.plugins import STORE_ENGINES  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim  # noqa: E402
from studies.common.measurements import measurements_of  # noqa: E402
from studies.prediction_study import evaluation  # noqa: E402
from studies.prediction_study.evaluation import WORST, Case, Predicted, predicted_by  # noqa: E402
from studies.prediction_study.scenarios import SLOW, Scenario  # noqa: E402

CLUSTER = ROOT / "studies" / "stores" / "cluster.platform.yaml"
PAGE = ROOT / "docs" / "stores.md"
RECORDED = ROOT / "studies" / "stores"
PATTERNS = ("pipeline", "reduce", "broadcast", "scatter", "gather")
#: rate of the slow link, half of that of the others [B/s]
SLOW_BPS = 6.25e6
DEFAULT = "streamed"
#: the default with the actual placement of the store
OCCURRED = "streamed, places that occurred"
#: a file of some MiB then has a chunk for every node
FOR_TRIALS = {"cephfs": ["store.chunk=128KiB"]}


@dataclass(frozen=True)
class Engine:
    """Settings of an engine in this study, and the layout of its files for a model. `changes`: those of the
    cluster's file; `whole`: its own chunks; `streamed`: the unit that passes network and storage block by
    block, and the number of nodes of a file; `dealt`: the choice of places.
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
    # the hash of a name determines the place of objects; a client's own cache is as small as possible,
    # because the workflow's rule is that nothing is read from the writer's cache
    "cephfs": Engine(
        ("store.chunk=256KiB", "preprocess.cache=0B"),
        {"store.chunk": "256KiB", "store.stripe": "all"},
        {"store.chunk": "256KiB", "store.stripe": "all"},
        "random",
    ),
    # a file is on one node, determined by the hash of its name
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


def changes_of(scenario: Scenario) -> list[str]:
    """Changes of the cluster's file."""
    changes = [f"hosts.node.count={scenario.nodes}"]
    if scenario.slow_link:
        rate = f"{{network: {{bandwidth: {SLOW_BPS / 1e6:g} MB/s}}}}"
        changes.append(f"hosts.node.except={{{SLOW}: {rate}}}")
    return changes


@dataclass
class Compared:
    """Runs of a scenario, and the prediction of each way of the model. `busy`: share of the host's processors
    in each run; `places`: location of the files, as for `predict --placement`; `dropped`: runs in which
    the host was too busy.
    """

    scenario: Scenario
    measured_s: list[float]
    busy: list[float]
    places: list[dict[str, Any]]
    stages: list[Any]
    operations: list[Any]
    dropped: int = 0
    predicted: dict[str, Predicted] = field(default_factory=dict)
    cpu_s: float = 0.0
    #: as in `explore`: with the platform's own values, without an interval
    cpu_plain_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.measured_s)

    def case(self, model: str) -> Case:
        """The runs with the prediction of one way of the model."""
        return Case(self.scenario, tuple(self.measured_s), self.predicted[model])


def scenarios(quick: bool) -> list[Scenario]:
    """All 44 scenarios; quick: four."""
    if quick:
        return [Scenario(p, 4, 4, h) for p in ("pipeline", "reduce") for h in (False, True)]
    regular = [
        Scenario(*values) for values in itertools.product(PATTERNS, (4, 16), (4, 6), (False, True))
    ]
    slow = itertools.product(("pipeline", "reduce"), (16,), (4,), (False, True))
    return [*regular, *(Scenario(*values, slow_link=True) for values in slow)]


def cluster(engine: str, changes: Sequence[str]) -> Platform:
    """The cluster with a store of this engine."""
    overrides = [f"store.engine={engine}", *ENGINES[engine].changes, *changes]
    return load_platform(CLUSTER, overrides, predicted=False)


def predicted(engine: str, seen: Measurements, compared: Sequence[Compared]) -> Platform:
    """Predictions of every scenario by each way of the model, with service times identified under the same
    model.
    """
    seeded = {
        name: seeded_under(engine, seen, seeded_model)
        for name, seeded_model in models(engine).items()
    }
    for name, platform in {**seeded, OCCURRED: seeded[DEFAULT]}.items():
        for comparison in compared:
            scenario = comparison.scenario
            changes = {"scheduler.kind": scenario.scheduler}
            changed = platform(changes_of(scenario)).with_values(changes)
            begin = time.process_time()
            if name == OCCURRED:
                results = [
                    _predicted(scenario.workload(), changed, placement)
                    for placement in comparison.places
                ]
            else:
                results = [_predicted(scenario.workload(), changed)]
            if name == DEFAULT:
                comparison.cpu_s = time.process_time() - begin
                begin = time.process_time()
                predict_many(scenario.workload(), [changed], threads=1)
                comparison.cpu_plain_s = time.process_time() - begin
            comparison.predicted[name] = Predicted(
                statistics.fmean(p.mean_s for p in results),
                statistics.fmean(p.low_s for p in results),
                statistics.fmean(p.high for p in results),
                results[0].verdict,
            )
    for comparison in compared:
        errors = ", ".join(f"{m}: {comparison.case(m).error:+.0%}" for m in comparison.predicted)
        print(f"{comparison.scenario}: {comparison.mean_s:.2f} s; {errors}", flush=True)
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
) -> Predicted:
    at = None if placed is None else json.dumps(placed)
    return predicted_by(predict(workload, platform, explained=False, placement=at))


def read_recorded(file: Path) -> tuple[Measurements, list[Compared]]:
    """Recorded measurements and runs."""
    raw = file.read_bytes()
    facts = json.loads(gzip.decompress(raw) if file.suffix == ".gz" else raw)
    runs = [Compared(**{**c, "scenario": Scenario(**c["scenario"])}) for c in facts["scenarios"]]
    enough = [c for c in runs if len(c.measured_s) > 1]
    return measurements_of(facts["seen"]), enough


def rows_of(compared: Sequence[Compared], model: str) -> Iterator[record.Row]:
    """Rows of one way of the model, with the goals."""
    return evaluation.rows([c.case(model) for c in compared], model)


def valid_scenarios(compared: Sequence[Compared], quick: bool) -> dict[str, int]:
    """Runs of each scenario of the comparison; fewer than two count as none."""
    runs = (str(c.scenario) for c in compared if len(c.measured_s) > 1)
    return checks.valid_runs(map(str, scenarios(quick)), runs)


def evaluated(
    rows: Sequence[record.Row], compared: Sequence[Compared], quick: bool
) -> tuple[list[record.Row], list[Claim]]:
    """Rows with the verdicts of their claims, and the claims of the default model."""
    marked, claims = evaluation.evaluated(rows, valid_scenarios(compared, quick))
    return marked, [claim for claim in claims if claim.wording.split(":")[0] == DEFAULT]


def cost(compared: Sequence[Compared]) -> Iterator[record.Row]:
    """Processor time of a prediction, relative to that of the run on this host and to its node time."""
    for prediction, plain in (("a prediction", False), ("one without interval", True)):
        for resource, spent in (
            ("processor seconds of this host", "busy"),
            ("node seconds that a run holds", "held"),
        ):
            ratios = []
            for c in compared:
                share = statistics.fmean(c.busy) * (os.cpu_count() or 1)
                each = share if spent == "busy" else c.scenario.nodes + 1
                cpu_s = c.cpu_plain_s if plain else c.cpu_s
                ratios.append(each * c.mean_s / max(cpu_s, 1e-4))
            metric = f"{resource}, over processor seconds of {prediction}"
            row = record.row("scenarios", DEFAULT, metric, ratios, "1")
            yield record.at_least(row, 2000) if spent == "held" else row


def planted(compared: Sequence[Compared], platform: Platform) -> bool:
    """True if a hundredfold storage service is detected: scenarios are then off by more than the worst."""
    slow = platform.with_values(
        {
            "hosts.node.storage.write": {"overhead": "50 ms", "per_byte": "100 ms/MiB"},
            "hosts.node.storage.read": {"overhead": "50 ms", "per_byte": "100 ms/MiB"},
        }
    )
    sample = [c for c in compared if not c.scenario.slow_link][:4]
    detected = 0
    for c in sample:
        changed = slow.with_values({"hosts.node.count": c.scenario.nodes})
        detected += _predicted(c.scenario.workload(), changed).mean_s / c.mean_s - 1 > WORST
    return detected == len(sample)


def matrix(engines: Sequence[str]) -> str:
    """Each engine on its own nodes, every cell tested; a table in Markdown."""
    columns: dict[str, dict[str, str]] = {}
    own_tests: dict[str, dict[str, str]] = {}
    for engine in engines:
        missing = STORE_ENGINES.load(engine)().missing()
        if missing:
            print(f"{engine}: not run: {missing}", file=sys.stderr)
            continue
        store_engine = STORE_ENGINES.load(engine)()
        if isinstance(store_engine, Unmounted):
            own_tests[engine] = {k: s.how for k, s in store_engine.support().items()}
            continue
        changes = [
            f"store.engine={engine}",
            "network.bandwidth=1 Gbit/s",
            *FOR_TRIALS.get(engine, []),
        ]
        nodes = load_platform(CLUSTER, changes, predicted=False)
        with store_of(nodes, engine) as store:
            cells = {}
            for outcome in conform(store, partial(_heard, engine)):
                text = outcome.support.how if outcome.support.why else "yes"
                cells[outcome.cell] = text if outcome.holds else f"**{text}, not so**"
            columns[engine] = cells
    names = list(dict.fromkeys(cell for cells in columns.values() for cell in cells))
    for engine, hints in own_tests.items():
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
    """Key by which an engine reports its support of a cell's hint."""
    key, _, value = cell.partition("=")
    return f"DP {value.split()[0]}" if key == "DP" else key


def _heard(engine: str, shown: Shown) -> None:
    print(f"{engine}: {shown}", file=sys.stderr, flush=True)


def write_matrix(table: str) -> None:
    """Write the table to its place on the page."""
    text = PAGE.read_text("utf-8")
    begin = "<!-- matrix: python studies/stores.py matrix -->\n"
    end = "<!-- end of matrix -->\n"
    pattern = re.compile(re.escape(begin) + r"(.*?" + re.escape(end) + r")?", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text, count=1), "utf-8")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    compare_parser = verbs.add_parser("compare")
    compare_parser.add_argument("--engine", choices=list(ENGINES), default="moosefs")
    compare_parser.add_argument("--quick", action="store_true", help="four scenarios")
    compare_parser.add_argument("--json", action="store_true")
    compare_parser.add_argument("--from", type=Path, dest="source", help="file of recorded runs")
    record.option(compare_parser)
    cells = verbs.add_parser("matrix")
    cells.add_argument("engines", nargs="*", default=[e for e in STORE_ENGINES if e != "toy"])
    options = parser.parse_args()
    if options.verb == "matrix":
        write_matrix(matrix(options.engines))
        return 0
    try:
        seen, compared = read_recorded(options.source or RECORDED / f"{options.engine}.json.gz")
        if options.quick:
            compared = [c for c in compared if c.scenario in scenarios(True)]
        platform = predicted(seen.engine, seen, compared)
    except PenstockError as error:
        print(f"stores: {error}", file=sys.stderr)
        return 1
    detected = bool(compared) and planted(compared, platform)
    quoted = ("published", DEFAULT, OCCURRED)
    rows = [
        row | {"quoted": model in quoted}
        for model in (*models(seen.engine), OCCURRED)
        for row in (rows_of(compared, model) if compared else ())
    ]
    rows += [row | {"quoted": True} for row in (cost(compared) if compared else ())]
    rows, claims = evaluated(rows, compared, options.quick)
    rows += [
        row
        for c in compared
        for row in evaluation.scenario_rows(c.case(DEFAULT), seen.engine, c.predicted)
    ]
    plants = {"a storage service a hundred times as long": detected}
    about = f"Engine {seen.engine}. Seeded on three nodes; no scenario was used for it."
    record.keep(options.record, rows, plants, about)
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            if row.get("quoted"):
                goal = f"({row['bar']}: {row['verdict']})" if "bar" in row else ""
                label = f"{row['engine']}: {row['metric']}" if row["engine"] else row["metric"]
                print(f"{label}: {row['value']} {goal}")
    return checks.finish("stores", claims, plants)


if __name__ == "__main__":
    sys.exit(main())
