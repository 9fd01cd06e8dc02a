"""Prediction from Python: functions of `penstock` and `penstock.api`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.analyse.statistics.calibration import pairs_for
from penstock.api import PathLike
from penstock.parts.prediction.exploration.calibrated import calibration_of
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.request import hinted, plan_of, question_of
from penstock.parts.prediction.exploration.run import Exploration, Settings, check
from penstock.parts.prediction.exploration.run import explore as explored
from penstock.parts.prediction.exploration.simulate import Simulated
from penstock.parts.prediction.exploration.space.refused import without_refused
from penstock.parts.prediction.exploration.space.space import make_space, parse_axis
from penstock.parts.prediction.exploration.space.space_file import SpaceFile
from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.predict import predict as predicted
from penstock.parts.prediction.workloads.engine_hints import supported
from penstock.parts.prediction.workloads.read import read_workload
from penstock.platform.engine import require_supported
from penstock.platform.hosts import load_platform


def predict_workflow(
    workflow: PathLike, platform: PathLike, overrides: Sequence[str] = (), **options: Any
) -> Prediction:
    """Predict a workflow on a platform; `overrides` such as `hosts.nodes.count=14`.

    `options`: `seeds`, `level`, `detail`, `threads` and others of `queue_network.predict.predict`. BadInput
    for overrides that the engine of the platform's store refuses; what else it refuses is left out with a
    note.
    """
    where = load_platform(Path(platform), list(overrides))
    require_supported(where)
    return predicted(*supported(read_workload(workflow), where), **options)


def explore(
    workflow: PathLike,
    platform: PathLike,
    vary: Sequence[str],
    *,
    objective: str | None = None,
    constraints: Sequence[str] = (),
    out: PathLike | None = None,
    seeds: int = 20,
    budget: int | None = None,
    calibration: PathLike | None = None,
) -> Exploration:
    """The best configuration: `vary` such as `hosts.app.count=2..18`, as `penstock explore --vary`.

    `calibration` is a file of measured pairs; there is no default file.
    """
    space = make_space([parse_axis(text) for text in vary])
    question = question_of(space, SpaceFile(()), constraints, objective)
    where = load_platform(Path(platform), [])
    space = without_refused(space, where)
    work, where = supported(read_workload(workflow), where)
    evaluator = Simulated(work, where, space, 0, hinted(work, where, space))
    settings = Settings(budget=budget, most_seeds=seeds)
    calibrated = None
    if calibration is not None:
        calibrated = calibration_of(pairs_for(Path(calibration), where.name), settings.level)
    silent = _Silent()
    record = Record(space, evaluator, Path(out) if out is not None else None, silent.advanced)
    check(question, settings, space, evaluator)
    record.open(plan_of(work, where, space), resume=False)
    try:
        return explored(record, question, settings, silent, calibrated)
    finally:
        record.close()


class _Silent:
    """Progress without output."""

    def stage(self, what: str, total: int | None) -> None:
        """Start a stage."""

    def advanced(self, n: int) -> None:
        """Advance by n."""
