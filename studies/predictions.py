"""Predictions of workflows on real shared stores, compared with runs of scenarios unknown to the model.

    python studies/predictions.py [--engine NAME …] [--only TEXT …] [--quick] [-o OUT] [--record]
    python studies/predictions.py --compare [-o OUT]     evaluates OUT, measures nothing

Access patterns of Costa 2014 run as real processes on MooseFS, CephFS and GlusterFS on virtual nodes, whose
links of 20 Mbit/s are the bottleneck; disks have 40 MB/s. For each engine: service times are measured
on three nodes, and once more with the slow disk; the default model predicts every scenario; then each runs
eight times in blocks of random order, after a run that does not count. The scenarios are those of
`studies/prediction_study/scenarios.json`, whose checksum is in OUT before anything is predicted.

A run is not valid if the host was saturated (processors busy, stolen, waited for, or used by others), a hint
was refused or a server died. It is repeated; a scenario has at most eight such runs. Faults are then made on
MooseFS, each in ten trials: a link at 80 %, a slow node, a slow disk, and a seeded time that is 20 % too
long. The comparison of runs with the model must name each of them, and nothing in 20 trials without a fault.

OUT has each row as soon as it is measured; the same command continues after an interruption. It prints the
remaining time. `--only`: scenarios whose name contains one of the texts, or `faults`. `--quick`: four
scenarios on MooseFS, two runs each, and a trial of each fault, in eight minutes; only shows that it works.
`--record` writes nothing unless every scenario has all of its valid runs. Planted: links of half the rate in
the model. Exit status 3 if a goal is not met or not measured, 1 if something failed or the plant is not
detected.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import record  # noqa: E402
from penstock.errors import BadInput, PenstockError  # noqa: E402
from penstock.plugins import STORE_ENGINES  # noqa: E402
from penstock.text import signed_percent  # noqa: E402
from penstock.writing import write_atomic  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim  # noqa: E402
from studies.common.options import options as shared_options  # noqa: E402
from studies.prediction_study import evaluation, faults, runs  # noqa: E402
from studies.prediction_study.evaluation import WORST, Case  # noqa: E402
from studies.prediction_study.runs import FULL, QUICK, Head, Part, Size  # noqa: E402
from studies.prediction_study.scenarios import (  # noqa: E402
    HERE,
    Scenario,
    Scenarios,
    checksum,
    chosen,
    frozen,
    frozen_text,
)
from studies.stores import ENGINES  # noqa: E402

FAULTS = "faults"
ALL = "all engines"
QUICK_SCENARIOS = {
    "moosefs": [Scenario(p, 1, 4, h) for p in ("pipeline", "reduce") for h in (False, True)]
}
PLANT = "links of half the rate in the model"


@dataclass
class Results:
    """Results by engine with the requested scenarios, and those of the faults."""

    size: Size
    scenarios: Scenarios
    parts: dict[str, Part] = field(default_factory=dict)
    faults: Part | None = None

    def cases(self, engine: str) -> list[Case]:
        """Scenarios of an engine, or of all, with a prediction and runs."""
        names = self.parts if engine == ALL else [engine]
        return [c for name in names for c in self.parts[name].cases(self.scenarios[name])]

    def counts(self, engine: str) -> dict[str, int]:
        """Number of valid runs of each scenario."""
        return {
            f"{name}: {scenario}": len(self.parts[name].valid(scenario))
            if name in self.parts
            else 0
            for name in (self.scenarios if engine == ALL else [engine])
            for scenario in self.scenarios[name]
        }

    def void(self) -> int:
        """Number of runs that are not valid."""
        parts = [*self.parts.values(), *([self.faults] if self.faults else [])]
        return sum(bool(run.reason) and run.number >= 0 for part in parts for run in part.runs)


def parser() -> argparse.ArgumentParser:
    """Options of the command."""
    options = shared_options(__doc__, "predictions", "four scenarios, two runs each")
    options.add_argument("--engine", action="append", choices=list(ENGINES), help="[all]")
    options.add_argument("--only", action="append", default=[], metavar="TEXT")
    return options


def freeze(out: Path, scenarios: Scenarios) -> None:
    """Write the complete list with its checksum into OUT. BadInput if that has another list."""
    file = out / "scenarios.json"
    if not file.is_file():
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(file, frozen_text(scenarios))
    elif frozen(file) != scenarios:
        expected = f"those with SHA-256 {checksum(scenarios)}; measure into another OUT"
        raise BadInput(f"{file}: found other scenarios; expected {expected}")


def file_of(out: Path, name: str) -> Path:
    """File of the results, which may be compressed if it was recorded."""
    compressed = out / f"{name}.jsonl.gz"
    return compressed if compressed.is_file() else out / f"{name}.jsonl"


def results(options: argparse.Namespace) -> Results:
    """Results of all requested parts: measured, or read from OUT."""
    size = QUICK if options.quick else FULL
    everything = QUICK_SCENARIOS if options.quick else frozen()
    out, sum_of_list = options.out.resolve(), checksum(everything)
    engines = [e for e in options.engine or everything if e in everything]
    measured = Results(size, chosen(everything, engines, options.only))
    freeze(out, everything)

    def part(name: str) -> Part:
        return Part.opened(file_of(out, name), Head(name, size.name, sum_of_list))

    for engine, scenarios in measured.scenarios.items():
        measured.parts[engine] = part(engine)
        lacking = STORE_ENGINES.load(engine)().missing()
        if lacking:
            print(f"{engine}: not measured: {lacking}", file=sys.stderr)
        elif scenarios and not options.compare:
            runs.measure(measured.parts[engine], scenarios, size)
    if faults.ENGINE in measured.parts and (not options.only or FAULTS in options.only):
        measured.faults = part(FAULTS)
        if not options.compare:
            measure_faults(measured, size)
    return measured


def measure_faults(measured: Results, size: Size) -> None:
    """Make the faults, with the service times of their engine."""
    assert measured.faults is not None
    of_engine = measured.parts[faults.ENGINE]
    if of_engine.seeds is None:
        of_engine.add(runs.seeded(faults.ENGINE, size.budget_s, slow_disk=True))
    if measured.faults.seeds is None and of_engine.seeds is not None:
        measured.faults.add(of_engine.seeds)
    faults.measure(measured.faults, size)


def rows_and_claims(measured: Results) -> tuple[list[record.Row], list[Claim]]:
    """Rows and claims of each engine, of all of them, and of the faults."""
    rows: list[record.Row] = []
    claims: list[Claim] = []
    names = [name for name, scenarios in measured.scenarios.items() if scenarios]
    for name in [*names, *([ALL] if len(names) > 1 else [])]:
        cases, needs = measured.cases(name), measured.counts(name)
        own = list(evaluation.rows(cases, name)) if cases else []
        if not own:
            claims.append(checks.claim(name, "predicted", needs, _never, least=measured.size.runs))
        marked, more_claims = evaluation.evaluated(own, needs, measured.size.runs)
        rows += [row | {"quoted": True} for row in marked]
        claims += more_claims
    if measured.faults is not None:
        suspected = faults.named(measured.faults, measured.size)
        more_claims = faults.claims_of(suspected, measured.size)
        rows += checks.rows(more_claims, quoted=True) + faults.rows_of(suspected)
        claims += more_claims
    for engine in measured.parts:
        for case in measured.cases(engine):
            rows += evaluation.scenario_rows(case, engine, {f"{engine}, predicted": case.predicted})
    return rows, claims


def _never() -> checks.Finding:
    raise AssertionError("a claim without cases needs no evaluation")


def planted(measured: Results) -> dict[str, bool | None]:
    """True if a model with slow links is far off; None without runs of these scenarios."""
    cases = [
        case
        for engine, part in measured.parts.items()
        for case in part.cases(measured.scenarios[engine], planted=True)
    ]
    return {PLANT: all(abs(c.error) > WORST for c in cases) if cases else None}


def keep(
    options: argparse.Namespace,
    measured: Results,
    rows: Sequence[record.Row],
    detected: Mapping[str, bool | None],
) -> None:
    """Record the results if `--record` was given and every scenario has all of its valid runs."""
    if options.record is None:
        return
    counts = measured.counts(ALL)
    lacking = [name for name, valid in counts.items() if valid < measured.size.runs]
    if lacking or measured.size is not FULL or options.only or options.engine:
        reason = f"{len(lacking)} scenarios lack valid runs" if lacking else "not the full size"
        print(f"predictions: not recorded: {reason}", file=sys.stderr)
        return
    about = (
        f"{len(counts)} scenarios, frozen before the first prediction: "
        f"SHA-256 {checksum(measured.scenarios)}. "
        f"{measured.void()} runs were not valid and were repeated."
    )
    record.keep(options.record, rows, detected, about)
    (HERE / "recorded").mkdir(exist_ok=True)
    for part in (*measured.parts.values(), *([measured.faults] if measured.faults else [])):
        text = gzip.compress(part.file.path.read_bytes(), mtime=0)
        (HERE / "recorded" / f"{part.head.engine}.jsonl.gz").write_bytes(text)


def show(measured: Results, rows: Sequence[record.Row]) -> None:
    """Print a line for each scenario, then the rows."""
    for engine in measured.parts:
        for c in measured.cases(engine):
            own = c.predicted
            interval = f"{own.low_s:.2f} to {own.high:.2f}"
            print(
                f"{engine}: {c.scenario}: {c.mean_s:.2f} s ({len(c.measured_s)} runs), predicted "
                f"{own.mean_s:.2f} s ({interval}; {own.verdict}): {signed_percent(c.error, 1)}"
            )
    for row in rows:
        if row.get("quoted"):
            goal = f" ({row['bar']}: {row['verdict']})" if row.get("verdict") else ""
            name = f"{row['engine']}: " if row["engine"] else ""
            print(f"{row['case']}: {name}{row['metric']}: {checks.figure(row)}{goal}")
    print(f"{measured.void()} runs were not valid")


def main() -> int:
    """Exit status: 0 every goal is met, 1 failure, 2 bad input, 3 a goal is not met or not measured."""
    options = parser().parse_args()
    try:
        measured = results(options)
        rows, claims = rows_and_claims(measured)
    except PenstockError as error:
        print(f"predictions: {error}", file=sys.stderr)
        return error.exit_status
    detected = planted(measured)
    if options.json:
        document = {"claims": checks.as_json(claims), "planted": detected, "rows": rows}
        print(json.dumps(document))
    else:
        show(measured, rows)
    keep(options, measured, rows, detected)
    return checks.finish("predictions", claims, detected)


if __name__ == "__main__":
    sys.exit(main())
