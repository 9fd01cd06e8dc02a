"""Intervals calibrated by measured programs: conformal prediction in which a program, not a run, is a unit.

Runs of one program resemble each other, so only programs are exchangeable. The score of a program is the
largest distance of its runs outside of their intervals (Romano, Patterson, Candès 2019). With n programs, all
runs of a further program like these lie inside with a probability of at least k/(n+1), k the rank of the
score; so the highest level is n/(n+1). The units and the use of the largest score are ours.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.analyse.statistics.prediction_intervals import (
    Interval,
    calibrate,
    conformal_scores,
    exact,
    least_pairs,
)
from penstock.errors import BadInput
from penstock.parts.prediction.black_box.tasks import TaskTime
from penstock.spec.units import parse_duration
from penstock.text import percentage

_COLUMNS = ("program", "task", "time")


@dataclass(frozen=True)
class ProgramRun:
    """A measured run of a program: its predicted task, and its time [s]."""

    program: str
    predicted: TaskTime
    measured_s: float


def scores(runs: Sequence[ProgramRun]) -> dict[str, float]:
    """Program → largest distance of its runs outside of their intervals, as a share of the prediction;
    negative (down to −1) if all are inside."""
    largest: dict[str, float] = {}
    for run in runs:
        one = run.predicted
        (score,), _ = conformal_scores([one.time_s], [run.measured_s], [one.low], [one.high])
        largest[run.program] = max(score, largest.get(run.program, -1.0))
    return largest


def attainable(programs: int, level: float) -> float:
    """The level, or the highest that this number of programs can have."""
    if programs >= least_pairs(level):
        return level
    return (
        math.floor(1e6 * programs / (programs + 1)) / 1e6
    )  # rounded down: the rank is not above n


def over_programs(task: TaskTime, score_of: Mapping[str, float]) -> TaskTime:
    """The task with an interval calibrated by programs, at the attainable level.

    Unchanged without programs, with an unbounded interval, and for a lower bound.
    """
    of_programs = list(score_of.values())
    if not of_programs or task.bound != "none" or not math.isfinite(task.high):
        return task
    level = attainable(len(of_programs), float(exact(task.level)))
    interval = Interval(task.low, task.high, level, level, 0, "storage and computing")
    widened = calibrate(interval, task.time_s, of_programs, around_interval=True)
    low, high = min(widened.low, task.time_s), max(widened.high, task.time_s)
    covers = f"programs: all runs of a further program like the {len(of_programs)} measured"
    missing = least_pairs(task.level) - len(of_programs)
    if missing > 0:
        covers += f" ({missing} more are needed for {percentage(task.level)})"
    return replace(task, low=low, high=high, level=level, covers=(*task.covers, covers))


def read_programs(path: Path, predict: Callable[[str], TaskTime]) -> list[ProgramRun]:
    """Measured runs of a CSV file: `programs_of` its contents. BadInput."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        message = f"{path}: {error.strerror or error}; expected a CSV file of measured runs"
        raise BadInput(message) from None
    return programs_of(raw, str(path), predict)


def programs_of(raw: bytes, where: str, predict: Callable[[str], TaskTime]) -> list[ProgramRun]:
    """Measured runs of a CSV text with the columns program, task and time.

    `predict` predicts a task as written after `--predict`. BadInput with the line of a mistake.
    """
    try:
        rows = list(csv.reader(raw.decode("utf-8-sig").splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{where}: {error}; expected a CSV file of measured runs") from None
    names = tuple(rows[0]) if rows else ()
    if names != _COLUMNS:
        shown = ", ".join(names) or "nothing"
        raise BadInput(f"{where}:1: found the columns {shown}; expected {', '.join(_COLUMNS)}")
    runs = []
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        try:
            runs.append(_run(row, predict))
        except (ValueError, BadInput) as error:
            raise BadInput(f"{where}:{line}: {error}") from None
    if not runs:
        raise BadInput(f"{where}: found no run; expected at least one")
    return runs


def _run(row: list[str], predict: Callable[[str], TaskTime]) -> ProgramRun:
    if len(row) != len(_COLUMNS) or not row[0]:
        raise ValueError(f"found {', '.join(row) or 'nothing'}; expected {', '.join(_COLUMNS)}")
    program, task, time = row
    measured_s = parse_duration(time)
    if not (math.isfinite(measured_s) and measured_s > 0):
        raise ValueError(f"found the time {time}; expected a time above 0")
    predicted = predict(task)
    if predicted.bound != "none":
        raise ValueError(f"found {task!r}; expected a task with its processor time, such as cpu=2s")
    return ProgramRun(program, predicted, measured_s)
