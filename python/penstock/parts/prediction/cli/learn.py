"""penstock learn: end-to-end measurements of a storage, and a model of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.shared.options import QUIET, refuse_others
from penstock.errors import BadInput
from penstock.spec.units import parse_duration
from penstock.terminal import say
from penstock.text import percentage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.parts.prediction.black_box.model import BlackBoxModel
    from penstock.parts.prediction.black_box.space import Space
    from penstock.parts.prediction.black_box.tasks import TaskTime
    from penstock.parts.prediction.learning.learn import Wanted

    #: names of points that were not measured, with the reason
    Skipped = tuple[tuple[str, str], ...]

#: parameters that apply to a model of an earlier run
_OF_MODELS = {"place", "model", "depth", "leaves", "predict", "programs", "as_json", "quiet"}
_KIND, _LEAVES = "tree", 24
_TREE_LEAVES = typer.Option(
    None, "--leaves", min=2, max=500, help="Leaves of the tree (default: 24)."
)
_MODEL = typer.Option(
    None,
    "--model",
    help="Model that predicts: tree, neighbours or boosted (default: tree; of MODEL: its own).",
)


def command(
    context: typer.Context,
    place: Path = typer.Argument(
        ...,
        metavar="DIR|PLATFORM|MODEL",
        help="A directory on the storage, nodes of a platform file, or a model for a prediction.",
    ),
    dimension: list[str] = typer.Option(
        [],
        "--dimension",
        help="NAME=value,… of operation, pattern, access, clients, request, size, nodes or storage.",
    ),
    mount: list[str] = typer.Option(
        [], "--mount", help="NAME=DIR: another storage of this host, for --dimension storage=…."
    ),
    space: Path | None = typer.Option(None, "--space", help="File with the dimensions' values."),
    points: int | None = typer.Option(None, "--points", min=8, help="Largest number of points."),
    budget: str | None = typer.Option(None, "--budget", help="Time for all points (default 4min)."),
    cell: str | None = typer.Option(None, "--cell", help="Longest time of a point (default 1.5s)."),
    adaptive: bool = typer.Option(
        False, ("--adaptive"), help="Choose points in rounds, where the model is least certain."
    ),
    subsample: bool = typer.Option(
        False, "--subsample", help="Explore first, and omit values that make no difference."
    ),
    model: str | None = _MODEL,
    depth: int | None = typer.Option(None, "--depth", min=1, help="Levels of the tree."),
    leaves: int | None = _TREE_LEAVES,
    seed: int = typer.Option(1, "--seed", min=0, help="Seed of the choice of points."),
    output: Path | None = typer.Option(
        None, "-o", "--out", "--output", help="Directory of the results (default: ./learn-NAME)."
    ),
    predict: list[str] = typer.Option(
        [], "--predict", help="A task to predict, such as 'scan size=1GiB cpu=2s'; repeatable."
    ),
    programs: Path | None = typer.Option(
        None,
        "--programs",
        help="Measured runs of programs, to calibrate intervals: CSV with program, task, time.",
    ),
    quick: bool = typer.Option(False, "--quick", help="A coarse grid, about half a minute."),
    resume: bool = typer.Option(
        False, "--resume", help="Continue in -o; nothing is measured again."
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
    quiet: bool = QUIET,
) -> None:
    """Measure the throughput of DIR's storage, train a model of it, and predict the time of tasks.

    Given a MODEL (the model.json of an earlier run), nothing is measured. Given a PLATFORM (a .yaml file),
    its nodes and stores are started.
    """
    _check(model or _KIND, depth, leaves or _LEAVES, predict, programs)
    if place.is_file() and place.suffix not in (".yaml", ".yml"):
        refuse_others(context, _OF_MODELS, "none of them with a model, as nothing is measured")
        stored = _stored(place, model, depth, leaves)
        _show(stored, None, (), _predicted(stored, predict, programs), as_json=as_json)
        return
    from penstock.parts.prediction.learning import learn
    from penstock.parts.prediction.learning.deployment import Ground

    cell_s = _duration("--cell", cell, 0.6 if quick else 1.5)
    default_s = math.inf if points else 32.0 if quick else 240.0
    budget_s = _duration("--budget", budget, default_s)
    request = learn.Wanted(
        ground=Ground(place, _mounts(mount)),
        space=_space(place, space, dimension, quick),
        points=learn.points_in(budget_s, cell_s, points),
        cell_s=cell_s,
        adaptive=adaptive,
        subsample=subsample,
        kind=model or _KIND,
        depth=depth,
        leaves=leaves or _LEAVES,
        seed=seed,
    )
    out = output or _default_output(place)
    learnt, skipped = _measured(request, out, resume=resume, quiet=quiet)
    _show(learnt, out, skipped, _predicted(learnt, predict, programs), as_json=as_json)


def _check(
    kind: str, depth: int | None, leaves: int, tasks: list[str], programs: Path | None
) -> None:
    """Raise BadInput for invalid options of the learner and of predictions, before a measurement."""
    from penstock.parts.prediction.black_box.model import learner
    from penstock.parts.prediction.black_box.predict import parse_task

    learner(kind, depth, leaves)
    for text in tasks:
        parse_task(text)
    if programs is not None and not programs.is_file():
        raise BadInput(f"--programs {programs}: found no file; expected measured runs")


def _default_output(place: Path) -> Path:
    name = place.resolve().stem if place.is_file() else place.resolve().name
    return Path(f"learn-{name or 'root'}")


def _measured(
    request: Wanted, out: Path, *, resume: bool, quiet: bool
) -> tuple[BlackBoxModel, Skipped]:
    """The model of new measurements, and the points left out; ends the command if interrupted."""
    from penstock.parts.prediction.learning.learn import learn

    report: Callable[[str], None] = (lambda _: None) if quiet else say
    result = learn(request, out, resume=resume, quiet=quiet, say=report)
    if result.interrupted or result.model is None:
        raise typer.Exit(130)
    for name, reason in result.skipped:
        say(f"left out: {name}: {reason}")
    return result.model, result.skipped


def _predicted(
    model: BlackBoxModel, tasks: list[str], programs: Path | None
) -> list[tuple[str, TaskTime]]:
    """Texts and predictions of tasks, calibrated by measured programs if there are any."""
    from penstock.parts.prediction.black_box.predict import parse_task, task_time
    from penstock.parts.prediction.black_box.programs import over_programs, read_programs, scores
    from penstock.parts.prediction.learning.processor_time import with_processor_time

    def predict(text: str) -> TaskTime:
        kind, options = parse_task(text)
        return task_time(model, kind, **with_processor_time(options))

    score_of = scores(read_programs(programs, predict)) if programs is not None else {}
    return [(text, over_programs(predict(text), score_of)) for text in tasks]


def _stored(path: Path, kind: str | None, depth: int | None, leaves: int | None) -> BlackBoxModel:
    """The model of a file, retrained if options of the learner are given."""
    from penstock.parts.prediction.black_box.model import load_model, retrained

    model = load_model(path)
    if kind in (None, model.chosen) and depth is None and leaves is None:
        return model
    return retrained(
        model,
        chosen=kind or model.chosen,
        depth=depth,
        leaves=_LEAVES if leaves is None else leaves,
    )


def _space(place: Path, file: Path | None, dimensions: list[str], quick: bool) -> Space:
    """The points to choose from. Raises BadInput, also for a place that is no directory."""
    from penstock.parts.prediction.black_box import space as spaces

    if place.exists() and not (place.is_dir() or place.is_file()):
        raise BadInput(f"{place}: found neither a directory nor a file; expected DIR or MODEL")
    space = spaces.read_space(file) if file else spaces.QUICK if quick else spaces.DEFAULT
    return spaces.with_dimensions(space, dimensions)


def _mounts(texts: list[str]) -> dict[str, Path]:
    """Directories of further storages, by name. BadInput for an invalid one."""
    from penstock.parts.prediction.black_box.space import LOCAL, value_of

    mounts: dict[str, Path] = {}
    for text in texts:
        name, _, path = text.partition("=")
        try:
            if value_of("storage", name) == LOCAL or not path or name in mounts:
                raise ValueError("NAME=DIR, each name once and not local")
        except ValueError as error:
            raise BadInput(f"--mount {text}: found {name!r}; expected {error}") from None
        mounts[name] = Path(path)
    return mounts


def _duration(option: str, text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        seconds = parse_duration(text)
        if seconds <= 0:
            raise ValueError("a duration above 0, such as 5min")
    except ValueError as error:
        raise BadInput(f"{option}: found {text!r}; expected {error}") from None
    return seconds


def _plain(
    model: BlackBoxModel,
    out: Path | None,
    skipped: Skipped,
    predictions: list[tuple[str, TaskTime]],
) -> Mapping[str, object]:
    from penstock.parts.prediction.black_box.comparison import best_of
    from penstock.parts.prediction.black_box.model import guarantee
    from penstock.parts.prediction.black_box.show import tree_of

    return {
        "storage": model.storage,
        "out": str(out) if out is not None else None,
        "points": len(model.points),
        "left_out": [{"point": name, "reason": reason} for name, reason in skipped],
        "errors": {name: one.to_dict() for name, one in model.errors.items()},
        "best": best_of(model.errors),
        "model": model.chosen,
        "tree": tree_of(model),
        "interval": guarantee(model),
        "overlap": vars(model.overlap) if model.overlap else None,
        "predictions": [{"task": text, **time.to_dict()} for text, time in predictions],
    }


def _show(
    model: BlackBoxModel,
    out: Path | None,
    skipped: Skipped,
    predictions: list[tuple[str, TaskTime]],
    *,
    as_json: bool,
) -> None:
    """Print the result. Text about a stored model with predictions is that of the predictions alone."""
    from penstock.parts.prediction.black_box.show import summary_lines, tree_lines

    if as_json:
        print(json.dumps(_plain(model, out, skipped, predictions)))
        return
    if out is not None or not predictions:
        print("\n".join([*tree_lines(model), "", *summary_lines(model)]))
    for text, time in predictions:
        high = f"{time.high:.4g} s" if math.isfinite(time.high) else "unbounded"
        bound = " at least (computing left out)" if time.bound == "lower" else ""
        print(
            f"{text}: {time.time_s:.4g} s{bound}, "
            f"{percentage(time.level)} interval {time.low:.4g} s to {high}"
        )
        for source in time.covers:
            print(f"  in the interval: {source}")
        for note in time.notes:
            print(f"  beyond the grid: {note}")
    if out is not None:
        print(f"{out}/model.json, summary.txt, tree.txt, tree.json, tree.svg, points.csv")
