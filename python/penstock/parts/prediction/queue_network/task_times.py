"""Predicted duration of each task of a workload, with the interval of one single run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from penstock.analyse.statistics.prediction_intervals import DRAWS, LEVEL, order_statistics
from penstock.parts.prediction.queue_network.predict import NOMINAL
from penstock.parts.prediction.queue_network.simulate import Simulator
from penstock.parts.prediction.queue_network.uncertainty import sampled, uncertain_values
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import Platform

Row = dict[str, Any]


def task_times(
    workload: Workload,
    platform: Platform,
    *,
    seeds: int = DRAWS,
    level: float = LEVEL,
    threads: int = 0,
    done: Callable[[int], None] | None = None,
) -> list[Row]:
    """Per task `name`, `predicted_s`, `low_s` and `high_s` (None: unbounded).

    A task lasts from its start on a host, launching included, to its end. Seeds and sampled platforms are
    those of `predict`, at most 39: the mean is over the runs at the platform's own values, the interval over
    the sampled ones.
    """
    simulator = Simulator(workload, threads, done)
    listed = list(range(1, min(seeds, DRAWS) + 1))
    network = platform.lower()
    uncertain = bool(uncertain_values(platform))
    fields = ("error", "events", "tasks")
    outcomes = simulator.runs(network, listed[:NOMINAL] if uncertain else listed, fields)
    own = drawn = [_lasts(o) for o in outcomes]
    if uncertain:
        draws = sampled(platform, len(listed))
        drawn = [_lasts(o) for o in simulator.drawn(draws, listed, fields)]
    return [_row(task.name, own, drawn, level) for task in workload.tasks]


def _lasts(outcome: Row) -> dict[str, float]:
    if outcome.get("error"):
        return {}
    return {t["name"]: float(t["end_s"]) - float(t["start_s"]) for t in outcome["tasks"]}


def _row(
    name: str, own: Sequence[dict[str, float]], drawn: Sequence[dict[str, float]], level: float
) -> Row:
    ends = order_statistics([of.get(name, math.inf) for of in drawn], level).ends()
    mean = fmean(of.get(name, math.inf) for of in own)
    return {"name": name, "predicted_s": mean, "low_s": ends["low"], "high_s": ends["high"]}
