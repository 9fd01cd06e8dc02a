"""Predictions of PostgreSQL's other treatments from the traces of one, evaluated on two campaigns.

`studies/postgres.py` runs `examples/postgres.study.yaml` (needs root and PostgreSQL, about five minutes) and
predicts transactions per second and a cold scan on disk × memory three times: the first campaign, with which
the model was developed (`tests/golden/postgres-archive`), from its own traces; a later one, from its own; and
the runs of the later one from the traces of the first. The result is the worst of the three. A campaign with
a treatment without a valid run is not measured. `--compare` evaluates existing results, `--keep` writes the
inputs of a prediction of the new campaign. `--quick`: one replicate. Planted failure: each disk with the
other's profile, which must fall below the goal. Exit status 3 if the goal is not met or not measured, 1 if
something failed or the planted failure is not detected.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from penstock.analyse.fidelity.validity import VALID
from penstock.archive.runs import validity_of
from penstock.errors import PenstockError
from penstock.study_prediction.predict import Score, predict_study, score

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "blackbox"))
sys.path.insert(0, str(HERE.parent))

from disks import run_study  # noqa: E402

from bench import record  # noqa: E402
from studies import claims as checks  # noqa: E402
from studies.claims import Claim  # noqa: E402

STUDY = HERE.parent / "examples" / "postgres.study.yaml"
GOLDEN = HERE.parent / "tests" / "golden"
FIRST, LATER = GOLDEN / "postgres-archive", GOLDEN / "postgres-later"
BAR = 0.85
LEVELS = re.compile(r"(?<=  disk:   {levels: )[^\n]+(?=}\n)")
SWAPPED = "{hdd-7200: sata-ssd, sata-ssd: hdd-7200}"
ABOUT = (
    "Transactions per second and a cold scan on disk × memory, from the traces of the treatment with most "
    "calls (`docs/adr/0006-replay-above-a-page-cache.md`). The model was made on the first campaign. In the "
    "later one no run on the solid-state drive was delivered as asked (replies were late), so that only the "
    "hard disk's treatments are judged."
)


def manifests(archive: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run's manifest."""
    for path in sorted((archive / "runs").glob("*/manifest.json")):
        yield path, json.loads(path.read_text())


@dataclass(frozen=True)
class Evaluation:
    """Treatment of the basis, quality of the other predictions, and 1 for each measured treatment, else 0."""

    basis: str
    score: Score
    measured: dict[str, int]


def evaluation(archive: Path, disks: str = "") -> Evaluation:
    """Quality of the predictions from an archive, which is not changed."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "archive"
        shutil.copytree(archive, copy)
        text = (copy / "study.yaml").read_text()
        (copy / "study.yaml").write_text(LEVELS.sub(disks, text) if disks else text)
        frame = predict_study(copy)
        factors = [f["name"] for f in json.loads((copy / "plan.json").read_text())["factors"]]
        measured = {
            " ".join([*(str(row[f]) for f in factors), row["response"]]): int(
                pd.notna(row["ratio"])
            )
            for row in frame[~frame["is_basis"]].to_dict("records")
        }
        return Evaluation(str(frame["basis_treatment"].iloc[0]), score(frame), measured)


def crossed(first: Path, second: Path, to: Path) -> None:
    """The traces of the first archive with the study and the other runs of the second."""
    shutil.copytree(first, to)
    for path in (second / "study.yaml", second / "hdd.json"):
        if path.exists():
            shutil.copy(path, to)
    for path, _ in manifests(to):
        if not (path.parent / "io_events.parquet").exists():
            shutil.copy(second / path.relative_to(to), path)


def cut(archive: Path, to: Path) -> None:
    """Inputs of a prediction of an archive: all responses, and the traces of the basis, as in `FIRST`."""
    basis = evaluation(archive).basis
    _, reference = next(manifests(FIRST))
    tables = {
        path.name: pq.read_schema(path).names
        for path in (FIRST / "runs" / "r001").glob("*.parquet")
    }
    samples = pq.read_table(FIRST / "runs" / "r001" / "samples.parquet")
    metrics = pc.unique(samples["metric"]), pc.unique(samples["source"])
    for path, manifest in manifests(archive):
        run = to / "runs" / path.parent.name
        run.mkdir(parents=True)
        fields = {key: manifest[key] for key in reference if key in manifest}
        (run / "manifest.json").write_text(json.dumps(fields, indent=1) + "\n")
        if manifest["treatment_id"] != basis:
            continue
        shutil.copy(path.parent / "stdout.txt", run)
        for name, columns in tables.items():
            table = pq.read_table(path.parent / name, columns=columns)
            if name == "samples.parquet":
                of_metrics, of_sources = (
                    pc.is_in(table[column], values)
                    for column, values in zip(("metric", "source"), metrics, strict=True)
                )
                table = table.filter(pc.and_(of_metrics, of_sources))
            pq.write_table(table, run / name, compression="zstd", compression_level=19)
    for name in ("study.yaml", "plan.json"):
        shutil.copy(archive / name, to)
    short, full = evaluation(to), evaluation(archive)
    equal = (short.basis, short.score.hits) == (full.basis, full.score.hits)
    if not equal or abs(short.score.worst - full.score.worst) > 0.005:
        raise PenstockError(f"{to}: its prediction differs from that of the complete archive")


#: evaluation of a campaign without a valid run
NO_RUN = Evaluation("", Score(0.15, 0, 0, math.nan), {"every treatment": 0})


def has_valid_run(archive: Path) -> bool:
    """True if a campaign has a valid run."""
    return any(validity_of(manifest) == VALID for _, manifest in manifests(archive))


def scores(second: Path) -> dict[str, Evaluation]:
    """The three evaluations."""
    with tempfile.TemporaryDirectory() as place:
        mixed = Path(place) / "crossed"
        crossed(FIRST, second, mixed)
        valid = has_valid_run(second)
        return {
            "first campaign, on which the model was made": evaluation(FIRST),
            "later campaign, from its own traces": evaluation(second) if valid else NO_RUN,
            "later campaign, from the traces of the first": evaluation(mixed) if valid else NO_RUN,
        }


def worst(evaluations: dict[str, Evaluation]) -> Evaluation:
    """The case with the smallest share within the limit. A case without a valid run comes first; of equal
    cases, the one with the fewest treatments.
    """

    def order(result: Evaluation) -> tuple[bool, float, int, float]:
        score = result.score
        return (score.treatments > 0, score.share, score.treatments, -score.worst)

    return min(evaluations.values(), key=order)


def _row(case: str, result: Evaluation) -> record.Row:
    return record.share(case, "", "within 15 %", result.score.hits, result.score.treatments, BAR)


def claims_of(evaluations: dict[str, Evaluation]) -> list[Claim]:
    """One claim per evaluation; each needs every treatment but the basis."""
    return [
        checks.of_row(_row(case, result), result.measured) for case, result in evaluations.items()
    ]


def record_rows(evaluations: dict[str, Evaluation]) -> list[record.Row]:
    """Two rows per evaluation, and the rows of the worst one."""
    rows = []
    cases = {**evaluations, "the worst of these": worst(evaluations)}
    for (case, result), claim in zip(cases.items(), claims_of(cases), strict=True):
        rows.append(checks.marked(_row(case, result), claim))
        if case in evaluations and result.score.treatments:
            farthest = {"case": case, "engine": "", "metric": "farthest off"}
            rows.append({**farthest, "value": 100 * result.score.worst, "unit": "%"})
    return rows


def main() -> int:
    """Exit status: 0 every goal is met, 1 something failed, 3 one is not met or not measured."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument(
        "-o", "--out", type=Path, help="default: out/postgres; with --compare the recorded archive"
    )
    options.add_argument("--quick", action="store_true", help="one replicate")
    options.add_argument(
        "--compare", action="store_true", help="evaluate existing results; measure nothing"
    )
    options.add_argument("--keep", type=Path, help="directory for the inputs of a prediction")
    options.add_argument("--json", action="store_true", help="the rows as one object")
    record.option(options)
    arguments = options.parse_args()
    measured = HERE.parent / "out" / "postgres"
    second: Path = (arguments.out or (LATER if arguments.compare else measured)).resolve()
    try:
        if not arguments.compare:
            overrides = ["--set", "design.replicates=1"] if arguments.quick else []
            run_study(STUDY, second, overrides)
        if arguments.keep:
            cut(second, arguments.keep)
        evaluations = scores(second)
        swapped = evaluation(second, SWAPPED) if has_valid_run(second) else None
        detected = None if swapped is None else swapped.score.share < BAR
    except PenstockError as error:
        print(f"postgres: {error}", file=sys.stderr)
        return 1
    rows = record_rows(evaluations)
    if arguments.json:
        print(json.dumps({"rows": rows}))
    else:
        table = Table("case", "what", "figure", box=None, pad_edge=False)
        for row in rows:
            value = row["value"]
            figure = value if isinstance(value, str) else f"{value:.0f}"
            table.add_row(
                row["case"], row["metric"], f"{figure} {row['unit']} {row.get('verdict', '')}"
            )
        Console(width=110, highlight=False).print(table)
    planted = {"each disk with the other's profile": detected}
    record.keep(arguments.record, rows, planted, ABOUT)
    return checks.finish("postgres", claims_of(evaluations), planted)


if __name__ == "__main__":
    sys.exit(main())
