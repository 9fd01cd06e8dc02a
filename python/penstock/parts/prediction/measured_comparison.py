"""Comparison of a prediction with measured runs: makespan, stages, tasks, and errors that cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev

from scipy.special import stdtrit

from penstock.analyse.statistics.calibration import Pair
from penstock.parts.prediction.measured_runs import MeasuredRun, Span
from penstock.parts.prediction.prediction import Prediction, Row

#: errors of stages cancel if their sum is less than this share of them …
CANCELS = 0.5
#: … and are reported from this share of the measured time
WORTH_TELLING = 0.05
#: relative error of a task's prediction that counts as accurate
WITHIN = 0.1


def beside(prediction: Prediction, runs: Sequence[MeasuredRun], tasks: Sequence[Row] = ()) -> Row:
    """Comparison of the prediction with measured runs, as in `penstock/prediction/1`; needs at least one run,
    each with a makespan.

    `tasks` as `task_times` returns them. Rows of stages and tasks are matched by name.
    """
    level = prediction.interval.level
    ends = prediction.interval.ends()
    run = {"name": prediction.workload, "predicted_s": prediction.makespan_s}
    makespan = _row(
        run | {"low_s": ends["low"], "high_s": ends["high"]},
        [r.makespan_s for r in runs if r.makespan_s is not None],
        level,
    )
    stages = [
        {
            "name": s["name"],
            "predicted_s": s["end_s"] - s["start_s"],
            "low_s": s.get("lasts_low_s"),
            "high_s": s.get("lasts_high_s"),
        }
        for s in prediction.stages
    ]
    of_stages = _matched(stages, [r.stages for r in runs], level)
    of_tasks = _matched(tasks, [r.tasks for r in runs], level)
    return {
        "measured_s": makespan["measured_s"],
        "measured_low_s": makespan["measured_low_s"],
        "measured_high_s": makespan["measured_high_s"],
        "level": level,
        "runs": len(runs),
        "inside_runs": makespan["inside_runs"],
        "inside": makespan["inside_runs"] == len(runs),
        "ratio": makespan["ratio"],
        "stages": of_stages,
        "tasks": of_tasks,
        "task_errors": task_errors(of_tasks),
        "cancelling": cancelling(of_stages),
        "overlap": _overlap(prediction),
        "unmatched": {
            "stages_not_predicted": _others([r.stages for r in runs], stages),
            "stages_not_measured": _missing(stages, of_stages) if of_stages else [],
            "tasks_not_predicted": _others([r.tasks for r in runs], tasks),
            "tasks_not_measured": _missing(tasks, of_tasks) if of_tasks else [],
        },
    }


def mean_interval(values: Sequence[float], level: float) -> tuple[float, float] | None:
    """Student's t interval of the mean, for times of at least 0; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    half = float(stdtrit(n - 1, (1 + level) / 2)) * stdev(values) / math.sqrt(n)
    low = fmean(values) - half
    return max(low, 0.0) if min(values) >= 0 else low, fmean(values) + half


def _row(predicted: Row, measured: Sequence[float], level: float) -> Row:
    """One quantity: prediction for a single run, and measurements of `measured` runs."""
    mean = fmean(measured)
    around = mean_interval(measured, level)
    low, high = predicted["low_s"], predicted["high_s"]
    least = 0.0 if low is None else low
    most = math.inf if high is None else high
    bounded = low is not None or high is not None
    return predicted | {
        "measured_s": mean,
        "measured_low_s": None if around is None else around[0],
        "measured_high_s": None if around is None else around[1],
        "runs": len(measured),
        "inside_runs": sum(least <= m <= most for m in measured) if bounded else None,
        "ratio": predicted["predicted_s"] / mean if mean > 0 else None,
        "error_s": predicted["predicted_s"] - mean,
    }


def _matched(rows: Sequence[Row], measured: Sequence[dict[str, Span]], level: float) -> list[Row]:
    matches = []
    for row in rows:
        values = [spans[row["name"]].lasts_s for spans in measured if row["name"] in spans]
        if values:
            matches.append(_row(row, values, level))
    return matches


def _others(measured: Sequence[dict[str, Span]], rows: Sequence[Row]) -> list[str]:
    names = {row["name"] for row in rows}
    return sorted({name for spans in measured for name in spans} - names)


def _missing(rows: Sequence[Row], matched: Sequence[Row]) -> list[str]:
    names = {row["name"] for row in matched}
    return [row["name"] for row in rows if row["name"] not in names]


def task_errors(rows: Sequence[Row]) -> Row | None:
    """Statistics of |1 − predicted / measured| of tasks: mean, share within 10 %, maximum; None without
    tasks."""
    errors = {r["name"]: abs(1 - r["ratio"]) for r in rows if r["ratio"] is not None}
    if not errors:
        return None
    worst = max(errors, key=lambda name: errors[name])
    return {
        "compared": len(errors),
        "mean": fmean(errors.values()),
        "within": WITHIN,
        "share_within": sum(e <= WITHIN for e in errors.values()) / len(errors),
        "worst": worst,
        "worst_error": errors[worst],
    }


def cancelling(stages: Sequence[Row]) -> Row | None:
    """Over- and underpredicted stages, if their sum conceals half of the errors or more.

    Errors within the measured mean's interval are ignored. `gross_s` is the sum of the absolute errors,
    `net_s` of the signed ones; None without relevant cancellation.
    """
    significant = [r for r in stages if not _by_chance(r)]
    over = [r for r in significant if r["error_s"] > 0]
    under = [r for r in significant if r["error_s"] < 0]
    gross = sum(abs(r["error_s"]) for r in significant)
    net = sum(r["error_s"] for r in significant)
    measured = sum(r["measured_s"] for r in stages)
    if not (over and under) or abs(net) > CANCELS * gross or gross < WORTH_TELLING * measured:
        return None
    return {
        "over": [r["name"] for r in sorted(over, key=lambda r: -r["error_s"])],
        "under": [r["name"] for r in sorted(under, key=lambda r: r["error_s"])],
        "over_s": sum(r["error_s"] for r in over),
        "under_s": -sum(r["error_s"] for r in under),
        "gross_s": gross,
        "net_s": net,
        "measured_s": measured,
    }


def _by_chance(row: Row) -> bool:
    low, high = row["measured_low_s"], row["measured_high_s"]
    return low is not None and low <= row["predicted_s"] <= high


def _overlap(prediction: Prediction) -> bool:
    """True if stages are predicted to run in parallel, so that the makespan is not their sum."""
    spans = sorted((s["start_s"], s["end_s"]) for s in prediction.stages)
    slack = 0.01 * prediction.makespan_s
    return any(b[0] < a[1] - slack for a, b in pairwise(spans))


def pair_of(prediction: Prediction, measured_s: float, source: str = "") -> Pair:
    """Pair of a prediction and the measured time of one run, with the simulated interval."""
    ends = prediction.interval.calibration or prediction.interval
    low, high = float(ends.low), float(ends.high)
    return Pair(
        workload=prediction.workload,
        platform=prediction.platform,
        predicted=prediction.makespan_s,
        measured=measured_s,
        low=low if math.isfinite(low) else None,
        high=high if math.isfinite(high) else None,
        source=source,
    )
