"""Figures of a measured workflow: times of the stages beside their prediction, and the tasks of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from penstock.parts.prediction import quantities
from penstock.parts.prediction.report.prediction_figures import task_bars
from penstock.parts.stores.workflow.result import Result
from penstock.report import style
from penstock.text import signed

#: name of the row of complete runs
TOTAL = "complete run"
#: stages of a figure or a table, those with the longest times
MOST_STAGES = 24


@dataclass(frozen=True)
class Timed:
    """Times of runs or of one of their stages [s], and the prediction for a single run, if any."""

    name: str
    measured_s: Sequence[float]
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None

    @property
    def off(self) -> float | None:
        """Relative error of the prediction."""
        mean = fmean(self.measured_s)
        return None if self.predicted_s is None or not mean else self.predicted_s / mean - 1


def timed(result: Result) -> list[Timed]:
    """The complete run, then its stages in the order of their starts."""
    prediction = result.prediction
    if prediction is None:
        return [
            Timed(TOTAL, result.makespans_s),
            *(Timed(name, values) for name, values in result.stages().items()),
        ]
    ends = prediction.interval.ends()
    predicted = {
        s["name"]: (s["end_s"] - s["start_s"], s.get("lasts_low_s"), s.get("lasts_high_s"))
        for s in prediction.stages
    }
    return [
        Timed(TOTAL, result.makespans_s, prediction.makespan_s, ends["low"], ends["high"]),
        *(
            Timed(name, values, *predicted.get(name, (None, None, None)))
            for name, values in result.stages().items()
        ),
    ]


def longest(rows: Sequence[Timed]) -> list[Timed]:
    """The complete run and the longest stages, in their order."""
    total, *stages = rows
    by_time = sorted(stages, key=lambda row: -fmean(row.measured_s))[:MOST_STAGES]
    return [total, *(row for row in stages if row in by_time)]


def times(panels: Mapping[str, Sequence[Timed]], width: float) -> Figure:
    """Measured times of each run above the predicted time and its range; a panel per store."""
    counts = [len(rows) for rows in panels.values()]
    small = style.narrow(width)
    pitch = 0.5 if small else 0.36
    fig = style.figure(width, 0.9 + sum(pitch * n + 0.3 for n in counts))
    axes = fig.subplots(len(panels), sharex=True, squeeze=False, height_ratios=counts)[:, 0]
    for one, (name, rows) in zip(axes, panels.items(), strict=True):
        for y, row in enumerate(rows):
            _row(fig, one, y, row)
        style.row_names(one, [row.name for row in rows], 9 if small else None, 7)
        one.set_ylim(len(rows) - 0.45, -0.7 if small else -0.55)
        one.axhline(0.5, color=style.GRID, linewidth=0.7)
        one.tick_params(axis="y", length=0)
        style.grid(one, "x")
        if len(panels) > 1:
            one.set_title(name)
    shown = [x for rows in panels.values() for row in rows for x in _seconds(row)]
    if style.wants_log(shown):
        style.log_axis(axes[-1].xaxis)
    else:
        axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel("time (s)")
    predicted = any(row.predicted_s is not None for rows in panels.values() for row in rows)
    if predicted:
        _beside(axes[0], "error of\nprediction", y=1.0, va="bottom")
    fig.legend(handles=_handles(predicted), loc="outside upper left", ncols=2 if small else 3)
    return fig


def _row(fig: Figure, axes: Axes, y: int, row: Timed) -> None:
    """One row: a dot per run, the predicted range and time below, the error to the right."""
    at = [y if row.predicted_s is None else y - 0.13] * len(row.measured_s)
    runs = axes.scatter(row.measured_s, at, s=22, color=style.ORANGE, linewidths=0, zorder=3)
    style.tips(
        fig,
        runs,
        [f"{row.name}, run {n}: {quantities.seconds(s)}" for n, s in enumerate(row.measured_s)],
    )
    if row.predicted_s is None:
        return
    low, high = (row.predicted_s if end is None else end for end in (row.low_s, row.high_s))
    axes.plot([low, high], [y + 0.15] * 2, color=style.BLUE, linewidth=4, alpha=0.45, zorder=2)
    mark = axes.scatter(
        [row.predicted_s], [y + 0.15], s=26, marker="D", color=style.BLUE, linewidths=0, zorder=3
    )
    tip = f"{row.name}: predicted {quantities.seconds(row.predicted_s)}"
    style.tips(fig, mark, [f"{tip} ({quantities.seconds_range(low, high, ' to ')})"])
    if row.off is not None:
        _beside(axes, signed(row.off), y, va="center")


def _beside(axes: Axes, text: str, y: float, va: str) -> None:
    """A text to the right of the frame, at a row, or above it."""
    axes.annotate(
        text,
        (1, y),
        xycoords=("axes fraction", "data" if va == "center" else "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        va=va,
        fontsize=7.5,
        color=style.MUTED,
    )


def _handles(predicted: bool) -> list[Line2D]:
    measured = Line2D([], [], color=style.ORANGE, marker="o", linestyle="", label="measured run")
    if not predicted:
        return [measured]
    return [
        measured,
        Line2D([], [], color=style.BLUE, marker="D", linestyle="", label="predicted"),
        Line2D([], [], color=style.BLUE, linewidth=4, alpha=0.45, label="range of single runs"),
    ]


def _seconds(row: Timed) -> list[float]:
    """All times of a row."""
    predicted = (row.predicted_s, row.low_s, row.high_s)
    return [*row.measured_s, *(s for s in predicted if s is not None)]


def middle_run(result: Result) -> int:
    """Number of the run with the median makespan."""
    order = sorted(range(len(result.runs)), key=lambda n: result.runs[n].makespan_s)
    return order[(len(order) - 1) // 2]


def timeline(result: Result, end_s: float, width: float) -> Figure:
    """Every task of the run with the median makespan on its node; the axis ends at `end_s`."""
    run = result.runs[middle_run(result)]
    tasks = [
        {
            "name": row["task"],
            "stage": row["stage"],
            "host": row["host"],
            "start_s": row["sent_s"],
            "end_s": row["end_s"],
        }
        for row in run.tasks.to_pylist()
    ]
    if not tasks:
        raise style.NotDrawn("the workflow has no tasks")
    stage_s = dict.fromkeys(run.spans(), 0.0)
    for task in tasks:
        stage_s[task["stage"]] += task["end_s"] - task["start_s"]
    hosts = sorted({task["host"] for task in tasks}, key=_numbers_in)
    return task_bars(tasks, stage_s, hosts, end_s, width)


def _numbers_in(name: str) -> list[tuple[str, int]]:
    """Key of an order in which node-2 comes before node-10."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]
