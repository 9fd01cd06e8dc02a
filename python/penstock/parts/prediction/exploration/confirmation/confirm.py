"""Measured runs of an exploration's first configurations, beside their predictions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.exploration.confirmation.confirmed import Confirmation, Confirmed
from penstock.parts.prediction.exploration.record import candidate_id
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.exploration.score import METRICS
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.writing import write_atomic

#: measured runs in the directory of an exploration, one JSON object per line
RUNS = "measured_runs.jsonl"

#: is called with the makespan of each run [s], and with True if the host was saturated meanwhile
Measured = Callable[[float, bool], None]
#: measures a candidate a number of times
Measure = Callable[[Candidate, int, Measured], None]


class MeasuredRuns:
    """Runs by configuration, in a file of the exploration's directory: completed runs survive.

    A run is its makespan [s], and True if the host was saturated.
    """

    def __init__(self, directory: Path | None) -> None:
        self._path = None if directory is None else directory / RUNS
        self._runs: dict[str, list[tuple[float, bool]]] = {}
        if self._path is not None and self._path.is_file():
            text = self._path.read_text(encoding="utf-8")
            complete, newline, _ = text.rpartition("\n")
            for line in complete.splitlines():
                run = json.loads(line)
                self.of(run["candidate_id"]).append((run["makespan_s"], run["saturated"]))
            if complete + newline != text:  # a line cut off by a crash
                write_atomic(self._path, complete + newline)

    def of(self, name: str) -> list[tuple[float, bool]]:
        """The runs of a configuration."""
        return self._runs.setdefault(name, [])

    def add(self, name: str, makespan_s: float, saturated: bool) -> None:
        """Add a run, and write it at once."""
        self.of(name).append((makespan_s, saturated))
        if self._path is None:
            return
        run = {"candidate_id": name, "makespan_s": makespan_s, "saturated": saturated}
        line = json.dumps(run)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError as error:
            raise BadInput(f"cannot write {self._path}: {error.strerror}") from None


def first_configurations(exploration: Exploration, number: int) -> list[Candidate]:
    """The best by the comparison, then the front, then the others by the main metric."""
    if exploration.selection is None:
        return []
    means, metric = exploration.means, exploration.main_metric
    rest = [c for c in exploration.admissible if means.exact(c)]
    rest.sort(key=lambda c: means.of(c)[metric])
    compared = [c.candidate for c in exploration.selection.contenders if math.isfinite(c.mean)]
    return list(dict.fromkeys([*compared, *exploration.front, *rest]))[:number]


def confirm(
    exploration: Exploration,
    candidates: Sequence[Candidate],
    repeat: int,
    measure: Measure,
    runs: MeasuredRuns,
) -> Confirmation:
    """Measure the candidates that have fewer than `repeat` runs. Ctrl-C ends it with the runs until then.

    A configuration that fails has its error; if all fail, the first error is raised.
    """
    rows, errors, stopped = list[Confirmed](), list[PenstockError](), False
    for candidate in candidates:
        name, reason = candidate_id(exploration.space, candidate), ""

        def add(makespan_s: float, saturated: bool, name: str = name) -> None:
            runs.add(name, makespan_s, saturated)

        missing = repeat - len(runs.of(name))
        if missing > 0 and not stopped:
            try:
                measure(candidate, missing, add)
            except PenstockError as error:
                reason = str(error)
                errors.append(error)
            except KeyboardInterrupt:
                stopped = True
        rows.append(_row(exploration, candidate, runs.of(name)[:repeat], reason))
    if errors and not any(row.makespans_s for row in rows):
        raise errors[0]
    objective = exploration.question.objective
    name = "time" if objective is None else objective.name
    return Confirmation(tuple(rows), repeat, exploration.settings.level, name, stopped)


def _row(
    exploration: Exploration, candidate: Candidate, runs: Sequence[tuple[float, bool]], error: str
) -> Confirmed:
    makespans_s = tuple(makespan_s for makespan_s, _ in runs)
    saturated = sum(saturated for _, saturated in runs)
    mean = exploration.means.of(candidate)
    predicted_s = mean["makespan_s"]
    ends = _one_run(exploration, candidate, predicted_s)
    objective = exploration.question.objective

    def loss(factor: float) -> float:
        """Loss if time, cost and energy are this much larger."""
        if objective is None:
            return predicted_s * factor
        scaled = {m: mean[m] * factor for m in METRICS}
        return objective.loss(mean | scaled | exploration.record.magnitudes(candidate))

    measured = fmean(makespans_s) / predicted_s if makespans_s else math.nan
    losses = loss(1.0), loss(measured)
    return Confirmed(candidate, predicted_s, *ends, makespans_s, *losses, error, saturated)


def _one_run(
    exploration: Exploration, candidate: Candidate, predicted_s: float
) -> tuple[float | None, float | None]:
    """Interval of one run: calibrated by measured runs, else that of the full prediction."""
    calibrated = exploration.calibration and exploration.calibration.ends(predicted_s)
    if calibrated:
        return calibrated
    interval = exploration.record.evaluator.judge(candidate).get("interval")
    return (None, None) if interval is None else (interval["low"], interval["high"])
