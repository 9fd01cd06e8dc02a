#!/usr/bin/env python3
"""`penstock check` on runs with known deviations: storage 15 % and 5 % slower, correct storage, three bugs.

First with simulated samples, then with the chunk store of tests/chunkstore. Its storage servers sleep a
controlled service time; its expected values are penstock's predictions, with service times identified by one
client. Goals: storage that is 15 % slower is flagged in 19 of 20 runs, 5 % in none, and at most one of 20
correct runs is not OK. Each of the three published bugs, planted in every run, is detected and named; fixing
them saves 30 % of the time of an emulated reduce and a tenth of its variance. Exit status 1 if a goal is
missed or a bug is not detected.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from tests.chunkstore import model, tables
from tests.chunkstore.recorder import Recorder
from tests.chunkstore.store import Load, Rows, Settings, up
from tests.chunkstore.suites import SUITES, Suite

#: slowdown of the storage, and minimum share of correct verdicts
SLOWER = {1.0: ("OK", 0.95), 1.05: ("OK", 1.0), 1.15: ("SLOW", 0.95)}
TRIALS = 15
#: spread between the trials of simulated samples
NOISE = (0.01, 0.02, 0.035)

#: no queue and hardly any network: the measurement is the service time plus the cost of the host
SERVICE = Settings(
    nodes=3, chunk_bytes=64 << 10, frame_bytes=64 << 10, rate_bps=400e6, storage_service_s=0.015
)
APART = Load(clients=3, chunks=3, apart=True)
WANTED = (("storage", "write", "server_time"),)

REDUCE = Settings(nodes=5, storage_service_s=0.005, manager_service_s=0.005, accept_s=0.002)
GATHER = Load(clients=5, chunks=5, width=5, gather=0)
BUGS = ("constant_shuffle", "coarse_lock", "short_backlog")


def verdicts_of(expected: Path, measured: Path) -> tuple[set[str], list[str]]:
    """Verdicts of a check, and the causes that it names."""
    from penstock.parts.conformity.comparison import evaluate_all
    from penstock.parts.conformity.diagnosis import causes, diagnose
    from penstock.parts.conformity.expectation import load_expectation
    from penstock.parts.conformity.measured_rows import read_measured

    expectation, table = load_expectation(expected), read_measured(measured)
    results = evaluate_all(expectation, table.trials(expectation), table.keys)
    steps = diagnose(expectation, table, results)
    return {result.verdict for result in results}, [cause.code for cause in causes(steps)]


def simulated_runs(runs: int) -> list[record.Row]:
    """Runs of gamma-distributed trials."""
    import numpy as np

    from penstock.parts.conformity.comparison import evaluate
    from penstock.parts.conformity.expected import Expected

    rng = np.random.default_rng(54)
    row = Expected("storage", "write", "server_time", 1.0)
    rows = []
    for noise in NOISE:
        for slower, (verdict, least) in SLOWER.items():
            samples = rng.gamma(1 / noise**2, slower * noise**2, (runs, TRIALS))
            correct = sum(
                evaluate(row, list(s), at_least=TRIALS).verdict == verdict for s in samples
            )
            case = f"drawn, spread {100 * noise:g} %, {_name(slower)}"
            rows.append(record.share(case, "", f"runs {verdict}", correct, runs, least))
    return rows


def _name(slower: float) -> str:
    return "as expected" if slower == 1 else f"{100 * (slower - 1):.0f} % slower"


def controlled(place: Path, runs: int) -> list[record.Row]:
    """Runs of the chunk store at three service times, compared with one prediction."""
    with up(SERVICE, place / "seed") as store:
        model.seed(store)
    seeded = model.identify(store.rows(), SERVICE)
    document = model.expected_document(seeded, APART, "service", WANTED, at_least=TRIALS)
    expected = model.write(document, place / "expected.yaml")
    predicted = document["rows"][0]["predicted"]
    result_rows = []
    for slower, (verdict, least) in SLOWER.items():
        settings = replace(SERVICE, storage_service_s=slower * SERVICE.storage_service_s)
        with up(settings, place / f"run{slower}") as store:
            for run in range(runs):
                store.run(APART, TRIALS, f"{run:02d}-")
        rows = store.rows()
        correct, ratios = 0, []
        for run in range(runs):
            run_rows = _only(rows, f"{run:02d}-")
            file = tables.write(run_rows, place / "measured.parquet")
            correct += verdicts_of(expected, file)[0] == {verdict}
            times = [
                r["ended"] - r["received"] for r in run_rows.records if r["module"] == "storage"
            ]
            ratios.append(statistics.fmean(times) / predicted)
        case = f"chunk store, {_name(slower)}"
        result_rows.append(record.share(case, "", f"runs {verdict}", correct, runs, least))
        result_rows.append(record.row(case, "", "service time over the prediction", ratios, "1"))
    return [*result_rows, recording(predicted)]


def _only(rows: Rows, begin: str) -> Rows:
    records = [r for r in rows.records if r["trial"].startswith(begin)]
    return Rows(records, {t: at for t, at in rows.trials.items() if t.startswith(begin)})


def bug(place: Path, suite: Suite) -> tuple[list[record.Row], bool]:
    """Rows of a store with and without the bug; true if exactly this bug is detected and named."""
    expected = suite.write_expected(suite.identify(place / "seed"), place / "expected.yaml")
    clean = verdicts_of(
        expected, suite.write_measured(place / "clean", place / "clean.parquet", bug=False)
    )
    spoilt = verdicts_of(
        expected, suite.write_measured(place / "bug", place / "bug.parquet", bug=True)
    )
    case = suite.bug.replace("_", " ")
    named = ", ".join(spoilt[1]) or "nothing"
    detected = spoilt[1] == [suite.code] and bool(spoilt[0] & {"SLOW", "UNSTABLE"})
    calm = clean == ({"OK"}, [])
    verdicts = "OK" if calm else f"{', '.join(sorted(clean[0]))} {', '.join(clean[1])}"
    rows = [
        record.claim(case, "without it", verdicts, "OK", calm),
        record.claim(
            case, "with it", f"{', '.join(sorted(spoilt[0]))}; {named}", suite.code, detected
        ),
    ]
    return rows, detected


def reduced(place: Path, trials: int) -> list[record.Row]:
    """Fixes of a reduce, one after the other, and the prediction."""
    seed = replace(REDUCE)
    with up(seed, place / "seed") as store:
        model.seed(store)
    seeded = model.identify(store.rows(), seed)
    took: dict[str, list[float]] = {}
    for fixed in range(len(BUGS) + 1):
        remaining_bugs = dict.fromkeys(BUGS[fixed:], True)
        name = f"without {', '.join(BUGS[:fixed])}".replace("_", " ") if fixed else "all three bugs"
        with up(replace(REDUCE, **remaining_bugs), place / f"fixed{fixed}") as store:
            store.run(GATHER, trials)
        took[name] = [end - begin for begin, end in store.trials.values()]
    predicted = [prediction.makespan_s for prediction in model.predict_trials(seeded, GATHER)]
    rows = [record.row("reduce", name, "makespan", values, "s") for name, values in took.items()]
    rows.append(record.row("reduce", "predicted", "makespan", predicted, "s"))
    first, *_, last = took.values()
    means = [statistics.fmean(values) for values in (*took.values(), predicted)]
    gain = 100 * (1 - statistics.fmean(last) / statistics.fmean(first))
    calmer = statistics.variance(first) / statistics.variance(last)
    rows.append(record.at_least(_single_row("reduce", "time gained by the fixes", gain, "%"), 30))
    rows.append(
        record.at_least(_single_row("reduce", "variance before over after", calmer, "1"), 10)
    )
    order = ", ".join(f"{mean:.2f} s" for mean in means)
    falls = all(a > b for a, b in itertools.pairwise(means[:-1]))
    rows.append(record.claim("reduce", "each fix gains", order, "falls", falls))
    rows.append(
        record.claim(
            "reduce", "the model, last, is below", order, "least", means[-1] < min(means[:-1])
        )
    )
    return rows


def recording(predicted_s: float) -> record.Row:
    """Cost of recording a write: one record of the client and one of the server per chunk."""
    recorder, calls = Recorder(Path(os.devnull)), 100_000
    row = {"module": "storage", "operation": "write", "node": "s0", "trial": "0", "begun": 1.0}
    begin_s = time.process_time()
    for _ in range(calls):
        recorder.record(**row, received=1.5, ended=2.0, bytes=1)
    cost_s = (time.process_time() - begin_s) / calls
    return record.at_most(
        _single_row("recording", "of a chunk's time", 200 * cost_s / predicted_s, "%"), 1
    )


def _single_row(case: str, metric: str, value: float, unit: str) -> record.Row:
    return record.row(case, "", metric, [value], unit)


def shown(rows: Sequence[record.Row]) -> None:
    for row in rows:
        value = row["value"] if isinstance(row["value"], str) else f"{row['value']:.4g}"
        bar = f"goal {row['bar']}: {row['verdict']}" if row.get("verdict") else ""
        name = f"{row['case']}{': ' * bool(row['engine'])}{row['engine']}"
        print(f"{name}: {row['metric']}: {value} {row['unit']} {bar}".rstrip())


def main() -> int:
    """Exit status 1 if a goal is missed or a planted bug is not detected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="five runs of each, no reduce")
    parser.add_argument("--json", action="store_true", help="one JSON array on stdout")
    record.option(parser)
    arguments = parser.parse_args()
    runs = 5 if arguments.quick else 20
    rows: list[dict[str, Any]] = simulated_runs(20)
    planted: dict[str, bool | None] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        place = Path(folder)
        rows += controlled(place, runs)
        slow = next(r for r in rows if r["case"] == "chunk store, 15 % slower")
        planted["storage servers that are 15 % slower"] = slow["verdict"] == record.MET
        for suite in SUITES:
            own = place / suite.bug
            own.mkdir()
            bug_rows, detected = bug(own, suite)
            rows += bug_rows
            planted[f"the bug {suite.bug.replace('_', ' ')}"] = detected
        if not arguments.quick:
            own = place / "reduce"
            own.mkdir()
            rows += reduced(own, 12)
    if arguments.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        shown(rows)
    for failure, was_detected in planted.items():
        print(f"planted: {failure}: {'found' if was_detected else 'NOT FOUND'}", file=sys.stderr)
    record.keep(arguments.record, rows, planted)
    met = all(row.get("verdict", record.MET) == record.MET for row in rows)
    return 0 if met and all(planted.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
