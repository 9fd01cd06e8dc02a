"""penstock predict: duration of a workflow on a platform; every treatment of a study from one trace."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.analyse.statistics.prediction_intervals import DRAWS, LEVEL, exact
from penstock.cli.shared.options import QUIET, SIZE_MODEL, other_options
from penstock.errors import BadInput
from penstock.terminal import table_of
from penstock.text import percentage
from penstock.writing import atomic_file, atomic_folder, check_target

if TYPE_CHECKING:
    from penstock.console import Console
    from penstock.parts.prediction.measured_runs import MeasuredRun
    from penstock.parts.prediction.prediction import Prediction
    from penstock.parts.prediction.report import prediction_text
    from penstock.study.disk_speeds import DiskSpeeds

_WIDTH = 100
_MOST_ROWS = 40
#: parameters that apply to a study
_OF_STUDIES = {"what", "basis", "threads", "as_json", "quiet"}


def command(
    context: typer.Context,
    what: Path = typer.Argument(
        ...,
        metavar="WORKFLOW|STUDY",
        help="With --platform, a workflow (penstock's own description, WfFormat, a traced run); "
        "without it, the directory of a finished study, or a study file.",
    ),
    platform: Path | None = typer.Option(None, "--platform", "-p", help="A platform file."),
    overrides: list[str] = typer.Option(
        [],
        "--set",
        help="Change a value of the platform, such as hosts.nodes.count=14; repeatable.",
    ),
    seeds: int = typer.Option(
        DRAWS, "--seeds", min=1, max=100_000, help="Number of simulated runs for the interval."
    ),
    level: float = typer.Option(LEVEL, "--level", help="Probability of the interval."),
    detail: bool = typer.Option(
        False, "--detail", help="Also print every task of one simulated run."
    ),
    explained: bool = typer.Option(
        True,
        ("--explain/--no-explain"),
        help="Print sensitivities, the next measurements to make, and frequencies.",
    ),
    size_model: str | None = SIZE_MODEL,
    calibration: Path | None = typer.Option(
        None,
        "--calibration",
        help="Measured pairs for the interval (default: the user's own store).",
    ),
    measured: list[str] = typer.Option(
        [],
        "--measured",
        metavar="TIME|FILE",
        help="Duration of a real run, such as 12.3s, or a file of runs with stages and tasks; repeatable. "
        "Stored with --calibration or in the user's own store.",
    ),
    placement: Path | None = typer.Option(
        None,
        "--placement",
        help="JSON file with the real location of files: FILE to a list of offset_bytes, "
        "length_bytes, hosts.",
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="Directory for prediction.json, the page, figures and trace."
    ),
    html: Path | None = typer.Option(None, "--html", help="Write the page to this file."),
    perfetto: Path | None = typer.Option(
        None, "--perfetto", help="Write one simulated run as a trace for ui.perfetto.dev."
    ),
    threads: int = typer.Option(
        0, ("--threads"), min=0, help="Number of threads; 0: all cores. Does not change results."
    ),
    basis: list[str] = typer.Option(
        [],
        "--basis",
        help="For a study: treatment whose traces are used (default: the one with most traces); "
        "repeatable: each treatment is predicted from the nearest.",
    ),
    as_json: bool = typer.Option(False, "--json", help="The prediction as one JSON object."),
    quiet: bool = QUIET,
) -> None:
    """Predict time, bottleneck, energy and cost of WORKFLOW on a platform, with intervals.

    Without --platform: predict every treatment of STUDY from the trace of one of them and the disk profiles.
    Of a study that was not run, only the disks are simulated: programs compute nothing between requests.
    """
    if platform is None:
        if (others := other_options(context, _OF_STUDIES)) and not _is_workflow(what):
            raise BadInput(f"{others} is for workflows; expected --platform PLATFORM with it")
        _study(what, basis, as_json)
        return
    if basis:
        raise BadInput("--basis is for studies; found --platform, which is for workflows")
    exact(level)
    for file in (html, perfetto):
        if file is not None:
            check_target(file)
    if output is not None and output.exists() and not output.is_dir():
        raise BadInput(f"{output}: found a file; expected a directory, or nothing yet")
    from penstock.analyse.statistics.calibration import default_store, pairs_for
    from penstock.parts.prediction.measured_runs import measured_runs
    from penstock.parts.prediction.queue_network.predict import predict
    from penstock.parts.prediction.queue_network.task_times import task_times
    from penstock.parts.prediction.report import prediction_text
    from penstock.parts.prediction.workloads.engine_hints import supported
    from penstock.parts.prediction.workloads.read import read_workload
    from penstock.parts.prediction.workloads.sizes import SizeModel
    from penstock.platform.engine import require_supported
    from penstock.platform.hosts import load_platform

    model = None if size_model is None else SizeModel.parse(size_model)
    where = load_platform(platform, overrides)
    require_supported(where)
    workload, where = supported(read_workload(what, size_model=model), where)
    runs = measured_runs(measured, workload)
    placed = None if placement is None else _placement(placement)
    pairs = pairs_for(calibration, where.name, missing_ok=bool(runs))
    files = output is not None or html is not None or perfetto is not None
    with _progress(quiet or as_json) as done:
        prediction = predict(
            workload,
            where,
            seeds=seeds,
            level=level,
            detail=detail or files,
            explained=explained,
            threads=threads,
            pairs=pairs,
            own_calibration=calibration is not None,
            done=done,
            placement=placed,
        )
        tasks = []
        if any(run.tasks for run in runs):
            tasks = task_times(
                workload, where, seeds=seeds, level=level, threads=threads, done=done
            )
    if runs:
        prediction = _keep(prediction, runs, tasks, calibration or default_store(), platform)
    shown = prediction if detail else replace(prediction, tasks=None, task_seed=None)
    text = json.dumps(prediction_text.document(shown), allow_nan=False)
    written = _write(prediction, text, output, html, perfetto)
    if as_json:
        print(text)
        return
    _answer(shown)
    for path in written:
        print(f"Wrote {path}.")


def _placement(path: Path) -> str:
    """Text of a placement, which the simulator validates."""
    from penstock.spec.source import read_input

    raw = read_input(path, "a placement, JSON")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start
        raise BadInput(f"{path}: byte {at} is not UTF-8; expected a placement, JSON") from None


def _keep(
    prediction: Prediction,
    runs: list[MeasuredRun],
    tasks: list[dict[str, Any]],
    store: Path,
    platform: Path,
) -> Prediction:
    """Add one of the measured runs to the store of pairs, with its a priori prediction.

    Repetitions of one prediction have the same error: more than one of them would count it several times.
    """
    from penstock.analyse.statistics.calibration import add_pairs
    from penstock.parts.prediction.measured_comparison import beside, pair_of

    first = runs[0].makespan_s or 0.0
    count = add_pairs(store, [pair_of(prediction, first, source=platform.name)])
    comparison = beside(prediction, runs, tasks) | {"pairs": count, "store": str(store)}
    return replace(prediction, measured=comparison)


def _write(
    prediction: Prediction, text: str, output: Path | None, html: Path | None, perfetto: Path | None
) -> list[Path]:
    from penstock.parts.prediction.queue_network.perfetto import write_trace
    from penstock.parts.prediction.report.prediction import write_figures, write_page

    written = []
    if output is not None:
        with atomic_folder(output) as draft:
            (draft / "prediction.json").write_text(text + "\n", encoding="utf-8")
            write_figures(prediction, draft / "figures")
            write_page(prediction, draft / "prediction.html")
            write_trace(prediction, draft / "trace.json")
        written += [output / n for n in ("prediction.json", "prediction.html", "trace.json")]
    if html is not None:
        with atomic_file(html) as draft:
            write_page(prediction, draft)
        written.append(html)
    if perfetto is not None:
        with atomic_file(perfetto) as draft:
            write_trace(prediction, draft)
        written.append(perfetto)
    return written


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Counter of simulations on a terminal's stderr; their total is unknown in advance."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress

    from penstock.console import Console, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulated runs", total=None)
        yield lambda n: bar.advance(task, n)


def _answer(p: Prediction) -> None:
    from penstock.console import Console
    from penstock.parts.prediction.report import prediction_text

    console = Console(width=_WIDTH)

    def say(text: str) -> None:
        print(textwrap.fill(text, _WIDTH, subsequent_indent="    " if text[:1] == " " else ""))

    print("\n".join([*prediction_text.answer(p).lines(_WIDTH), ""]))
    _table(console, prediction_text.stage_table(p))
    _table(console, prediction_text.station_table(p))
    say(prediction_text.bytes_sentence(p))
    if prediction_text.placement_sentence(p):
        say(prediction_text.placement_sentence(p))
    if p.frequencies is not None:
        print()
        _table(console, prediction_text.frequency_table(p))
        say(f"{p.frequencies['statement']}.")
    print()
    if p.sensitivity:
        _table(console, prediction_text.sensitivity_table(p, 6))
    say(
        {"ok": "The model applies.", "caution": "The model applies with caution:"}.get(
            p.applies.verdict, "The model does not apply; do not base a decision on this:"
        )
    )
    for reason in p.applies.reasons:
        say(f"  {reason.severity}: {reason.text}.")
    say(f"Interval: {p.interval.method}.")
    say(f"Simulated: {prediction_text.effort(p)}.")
    if p.measured is not None:
        _beside(console, say, p)


def _beside(console: Console, say: Callable[[str], None], p: Prediction) -> None:
    from penstock.parts.prediction.report import measured_text

    print()
    for table in measured_text.tables(p):
        print(f"{table.title}:")
        _table(console, table)
    for sentence in measured_text.sentences(p):
        say(sentence)


def _table(console: Console, table: prediction_text.Table) -> None:
    console.print(table_of(table.columns, table.rows[:_MOST_ROWS]))
    if len(table.rows) > _MOST_ROWS:
        print(f"... {len(table.rows) - _MOST_ROWS:,} further ones in --json")
    print()


def _study(study: Path, basis: list[str], as_json: bool) -> None:
    """Every treatment of a study, with its measurements if it was run."""
    from penstock.analyse.outcome import Outcome
    from penstock.campaign.speed import as_planned, speeds_of
    from penstock.design.plan import make_plan
    from penstock.design.planned import treatments_of
    from penstock.study.load import load_study
    from penstock.study.resolve import resolvable
    from penstock.study_prediction.predict import predict_plan, predict_study, score

    if study.is_dir():
        if not (study / "plan.json").is_file():
            raise BadInput(f"{study} has no plan.json; expected the results of a study")
        frame = predict_study(study, basis)
        speeds = Outcome.read(study).speeds
    elif _is_workflow(study):
        raise BadInput(f"{study}: found a workflow; expected --platform PLATFORM with it")
    elif study.is_file():
        if basis:
            expected = "the directory of a finished study, whose traces are used"
            raise BadInput(f"{study}: found a study file with --basis; expected {expected}")
        planned, _ = as_planned(load_study(study))
        frame = predict_plan(planned)
        speeds = speeds_of(planned, resolvable(planned, treatments_of(make_plan(planned))))
    else:
        raise BadInput(f"no study {study}")
    result = score(frame)
    if as_json:
        rows = json.loads(frame.to_json(orient="records"))
        reached = None if result.treatments == 0 else result.share
        summary = {"within": result.within, "treatments": result.treatments, "share": reached}
        print(json.dumps({"predictions": rows, "score": summary}))
        return
    _show(frame.to_dict("records"), result.treatments, speeds)
    if result.treatments:
        print(
            f"{result.hits} of {result.treatments} predictions within {percentage(result.within)} of what "
            f"was measured; the worst is {percentage(result.worst)} off. "
            f"Basis: {', '.join(sorted(frame['basis_treatment'].unique()))}."
        )


def _is_workflow(path: Path) -> bool:
    """True if the beginning of a file indicates a workflow and not a study."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return b"penstock/workload/" in head or b"schemaVersion" in head


def _show(rows: list[dict[object, object]], measured: int, speeds: DiskSpeeds) -> None:
    from penstock.console import Console
    from penstock.text import at_speed

    fixed = {"treatment_id", "response", "unit", "predicted", "ci_low", "ci_high", "source", "note"}
    fixed |= {"measured_mean", "measured_n", "ratio", "basis_treatment", "is_basis", "calibration"}
    factors = [str(k) for k in rows[0] if k not in fixed] if rows else []
    responses = sorted({f"{row['response']} in {row['unit']}" for row in rows})
    several = ["response"] if len(responses) > 1 else []
    columns = ["", *factors, *several, "#predicted", "#90 % from", "#to"]
    table = table_of([*columns, *(("#measured", "#ratio", "#") if measured else ())], ())
    for row in rows:
        cells = [str(row["treatment_id"])]
        cells += [at_speed(str(row[f]), speeds.label(f, str(row[f]))) for f in factors]
        cells += [str(row[name]) for name in several]
        cells += [_number(row[k]) for k in ("predicted", "ci_low", "ci_high")]
        if measured:
            cells += [_number(row["measured_mean"]), _number(row["ratio"])]
            cells.append("basis" if row["is_basis"] else "")
        table.add_row(*cells)
    Console(width=100).print(table)
    print("; ".join(filter(None, [f"Response: {', '.join(responses)}", speeds.common])) + ".")
    for note in sorted({str(row["note"]) for row in rows} - {""}):
        print(f"Note: {note}.")


def _number(value: object) -> str:
    """Four digits; a dash for unknown values."""
    return f"{value:.4g}" if isinstance(value, float) and value == value else "-"
