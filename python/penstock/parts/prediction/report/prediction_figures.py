"""Figures of a prediction: timeline of tasks, utilisation of stations, stages, sensitivity.

Each is a function of a `Prediction` and a width in inches; `style.NotDrawn` names the missing data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from penstock.parts.prediction import quantities
from penstock.parts.prediction.prediction import Prediction, Row
from penstock.parts.prediction.queue_network.perfetto import slots_of
from penstock.report import style
from penstock.report.style import NotDrawn
from penstock.text import signed

#: stages with their own colour; the others share one
COLOURED = len(style.SERIES)
#: above this number of tasks the timeline is a bitmap in the figure, without hover texts
MOST_MARKS = 4000
#: maximum columns in the table of stations; more hosts share them
MOST_COLUMNS = 96

_SHORT = {
    "slots": "computing",
    "client": "client",
    "storage": "storage",
    "net_in": "in-queue",
    "net_out": "out-queue",
    "loopback": "loopback",
    "manager": "manager",
    "fabric": "network core",
}
_PARTS = (
    ("launch_s", "launch", style.MUTED),
    ("compute_s", "compute", style.GREEN),
    ("manager_s", "manager", style.PURPLE),
    ("read_s", "read", style.BLUE),
    ("write_s", "write", style.ORANGE),
)


def timeline(prediction: Prediction, width: float) -> Figure:
    """`task_bars` of one simulated run."""
    if not prediction.tasks:
        raise NotDrawn("the prediction was made without its tasks (--detail)")
    seconds = {s["name"]: s["tasks"] * s["task_mean_s"] for s in prediction.stages}
    hosts = [h["name"] for h in prediction.hosts]
    return task_bars(prediction.tasks, seconds, hosts, prediction.makespan_s, width)


def task_bars(
    tasks: Sequence[Row],
    stage_s: Mapping[str, float],
    hosts: Sequence[str],
    end_s: float,
    width: float,
) -> Figure:
    """Every task as a bar on its host (a row per slot) over time, coloured by stage; the critical path has
    dark outlines.

    Tasks have `name`, `stage`, `host`, `start_s`, `end_s`. `stage_s`: task time by stage, in the order of the
    run; `hosts`: their order.
    """
    slots = slots_of(tasks)
    rows = _rows(hosts, tasks, slots)
    small = style.narrow(width)
    height = min(9.5, max(1.9, 1.15 + (0.2 if len(rows) <= 40 else 6.5 / len(rows)) * len(rows)))
    fig = style.figure(width, height)
    axes = fig.subplots()
    colours = _coloured(stage_s)
    many = len(tasks) > MOST_MARKS
    shapes = [_bar(t, rows[t["host"], s], len(rows)) for t, s in zip(tasks, slots, strict=True)]
    groups: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        groups.setdefault(colours.get(task["stage"], style.GRID), []).append(i)
    for colour, members in groups.items():
        for critical in (False, True):
            own = [i for i in members if bool(tasks[i].get("critical")) == critical]
            if own:
                bars = _bars([shapes[i] for i in own], colour, critical, len(rows))
                bars.set_rasterized(many)
                axes.add_collection(bars)
                if not many:
                    style.tips(fig, bars, [_task_text(tasks[i]) for i in own])
    axes.set_xlim(0, end_s * 1.01 or 1)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _host_ticks(axes, rows, height)
    axes.set_xlabel("time (s)")
    style.grid(axes, "x")
    handles = [Patch(color=c, label=name) for name, c in colours.items()]
    rest = len(stage_s) - len(colours)
    if rest > 0:
        others = "1 other stage" if rest == 1 else f"{rest} other stages"
        handles.append(Patch(color=style.GRID, label=others))
    if any(task.get("critical") for task in tasks):
        handles.append(Patch(facecolor="none", edgecolor=style.INK, label="critical path"))
    fig.legend(
        handles=handles,
        loc="outside upper left",
        ncols=2 if small else 5,
        handlelength=1.3,
        handleheight=0.9,
    )
    return fig


def _coloured(stage_s: Mapping[str, float]) -> dict[str, str]:
    """Stage → colour: the stages with most task time get their own, in the order of the run."""
    heavy = sorted(stage_s, key=lambda name: -stage_s[name])[:COLOURED]
    order = [name for name in stage_s if name in heavy]
    return {name: style.SERIES[i].colour for i, name in enumerate(order)}


def _rows(
    hosts: Sequence[str], tasks: Sequence[Row], slots: Sequence[int]
) -> dict[tuple[str, int], int]:
    """(host, slot) → row, in the order of `hosts`; only those with a task."""
    used = {(t["host"], s) for t, s in zip(tasks, slots, strict=True)}
    order = {name: i for i, name in enumerate(hosts)}
    ordered = sorted(used, key=lambda u: (order.get(u[0], len(order)), u[0], u[1]))
    return {place: i for i, place in enumerate(ordered)}


def _bar(task: Row, y: int, rows: int) -> list[tuple[float, float]]:
    """Corners of a task's bar."""
    half = (0.76 if rows <= 60 else 0.94) / 2
    begin_s, end_s = task["start_s"], task["end_s"]
    return [(begin_s, y - half), (end_s, y - half), (end_s, y + half), (begin_s, y + half)]


def _bars(
    shapes: Sequence[Sequence[tuple[float, float]]], colour: str, critical: bool, rows: int
) -> PolyCollection:
    return PolyCollection(
        shapes,
        facecolors=colour,
        edgecolors=style.INK if critical else style.PAPER,
        linewidths=1.1 if critical else 0.25 if rows <= 60 else 0.0,
        zorder=4 if critical else 2,
    )


def _task_text(task: Row) -> str:
    parts = [f"{name} {quantities.seconds(task[key])}" for key, name, _ in _PARTS if task.get(key)]
    took = quantities.seconds(task["end_s"] - task["start_s"])
    path = ", on the critical path" if task.get("critical") else ""
    begun = quantities.seconds(task["start_s"])
    text = f"{task['name']} ({task['stage']}) on {task['host']}: {took} from {begun}{path}"
    return ". ".join(filter(None, (text, ", ".join(parts))))


def _host_ticks(axes: Any, rows: dict[tuple[str, int], int], height: float) -> None:
    """A label per host, or per N hosts if space is limited."""
    first: dict[str, list[int]] = {}
    for (host, _), y in rows.items():
        first.setdefault(host, []).append(y)
    room = max(4, int((height - 1.1) / 0.14))
    step = math.ceil(len(first) / room)
    shown = list(first.items())[::step]
    axes.set_yticks([sum(ys) / len(ys) for _, ys in shown], [name for name, _ in shown])
    axes.tick_params(axis="y", length=0, labelsize=7.5)


def utilisation(prediction: Prediction, width: float) -> Figure:
    """Utilisation of every station: a column per host (or several), a row per kind, darker is busier."""
    # a core without limit only delays: it is never busy
    used = [s for s in prediction.stations if s["kind"] != "fabric" or s["utilisation"] > 0]
    kinds = [k for k in _SHORT if any(s["kind"] == k for s in used)]
    hosts = [h["name"] for h in prediction.hosts]
    hosts += sorted({s["host"] for s in prediction.stations} - set(hosts) - {""})
    if not kinds or not hosts:
        raise NotDrawn("no station served a request")
    small = style.narrow(width)
    most = MOST_COLUMNS // (2 if small else 1)
    per = math.ceil(len(hosts) / most)
    columns = [hosts[i : i + per] for i in range(0, len(hosts), per)]
    place = {h: i for i, column in enumerate(columns) for h in column}
    best: dict[tuple[str, int], Row] = {}
    for row in used:
        spread = range(len(columns)) if row["kind"] == "fabric" else [place[row["host"]]]
        for x in spread:
            key = (row["kind"], x)
            if key not in best or row["utilisation"] > best[key]["utilisation"]:
                best[key] = row
    fig = style.figure(width, 1.0 + 0.34 * len(kinds) + (0.35 if len(columns) <= 24 else 0))
    axes = fig.subplots()
    worst = prediction.bottleneck
    for (kind, x), row in sorted(best.items(), key=lambda item: (item[0][0], item[0][1])):
        y = kinds.index(kind)
        share = min(1.0, row["utilisation"])
        marked = worst is not None and row["name"] == worst.station
        cell = axes.bar(
            x,
            0.9,
            bottom=y - 0.45,
            width=0.94 if len(columns) <= 40 else 1.0,
            color=style.BLUE,
            alpha=0.06 + 0.94 * share,
            linewidth=0,
        )
        more = f" (busiest of {per} hosts)" if per > 1 else ""
        tip = (
            f"{row['name']}: {quantities.share(row['utilisation'])} busy, mean wait "
            f"{quantities.seconds(row['wait_mean_s'])}, "
            f"mean queue {quantities.digits(row['queue_mean'])}{more}"
        )
        style.tips(fig, cell[0], [tip])
        if marked:
            axes.bar(
                x,
                0.9,
                bottom=y - 0.45,
                width=0.94,
                color="none",
                edgecolor=style.ORANGE,
                linewidth=2,
            )
        if len(columns) <= (5 if small else 12):
            colour = style.PAPER if share > 0.55 else style.INK
            label = quantities.share(row["utilisation"])
            axes.text(x, y, label, ha="center", va="center", fontsize=7.5, color=colour)
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.set_yticks(range(len(kinds)), [_SHORT[k] for k in kinds])
    axes.tick_params(axis="both", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    room = 12 if small else 24
    step = math.ceil(len(columns) / room)
    axes.set_xticks(
        range(0, len(columns), step), [column[0] for column in columns[::step]], rotation=90
    )
    axes.tick_params(axis="x", labelsize=7)
    return fig


def stages(prediction: Prediction, width: float) -> Figure:
    """Time of a mean task of each stage, by activity."""
    rows = [s for s in prediction.stages if s["tasks"]]
    if not rows:
        raise NotDrawn("no task ran")
    small = style.narrow(width)
    fig = style.figure(width, 1.2 + 0.3 * len(rows))
    axes = fig.subplots()
    for y, row in enumerate(rows):
        offset = 0.0
        for key, name, colour in _PARTS:
            value = float(row.get(key) or 0.0) / row["tasks"]
            if value <= 0:
                continue
            bar = axes.barh(y, value, left=offset, height=0.66, color=colour, linewidth=0)
            style.tips(
                fig, bar[0], [f"{row['name']}: {name} {quantities.seconds(value)} of a mean task"]
            )
            offset += value
        rest = float(row["task_mean_s"]) - offset
        if rest > 1e-3 * float(row["task_mean_s"]):
            bar = axes.barh(y, rest, left=offset, height=0.66, color=style.GRID, linewidth=0)
            style.tips(
                fig, bar[0], [f"{row['name']}: other {quantities.seconds(rest)} of a mean task"]
            )
        axes.annotate(
            f"{row['tasks']:,.0f} × {quantities.seconds(row['task_mean_s'])}",
            (max(offset, float(row["task_mean_s"])), y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.MUTED,
        )
    axes.set_yticks(range(len(rows)), [str(r["name"]) for r in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.3 if small else 0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel("mean time of a task (s)")
    style.grid(axes, "x")
    handles = [Patch(color=colour, label=name) for _, name, colour in _PARTS]
    fig.legend(
        handles=handles,
        loc="outside upper left",
        ncols=3 if small else 5,
        handlelength=1.3,
        handleheight=0.9,
    )
    return fig


def tornado(prediction: Prediction, width: float) -> Figure:
    """Change of the makespan with one uncertain value at the ends of its range."""
    rows = [r for r in prediction.sensitivity or [] if r["swing_s"] > 0][:14]
    if not rows:
        raise NotDrawn("no assumed value moves the makespan")
    small = style.narrow(width)
    fig = style.figure(width, 1.15 + (0.46 if small else 0.3) * len(rows))
    axes = fig.subplots()
    for y, row in enumerate(rows):
        for key, text, colour in (
            ("change_low", row["low"], style.BLUE),
            ("change_high", row["high"], style.ORANGE),
        ):
            if row[key] is None:
                continue
            change = float(row[key])
            bar = axes.barh(
                y, 100 * change, height=0.36 if small else 0.62, color=colour, linewidth=0
            )
            style.tips(fig, bar[0], [f"{row['path']} at {text}: makespan {signed(change)}"])
    axes.axvline(0, color=style.INK, linewidth=0.9)
    style.row_names(axes, [str(r["path"]) for r in rows], 12 if small else None, 6.5, va="center")
    if not small:
        axes.tick_params(axis="y", labelsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.7)
    axes.margins(x=0.06)
    axes.set_xlabel("change of the makespan (%)")
    style.grid(axes, "x")
    handles = [
        Patch(color=style.BLUE, label="at its low end"),
        Patch(color=style.ORANGE, label="at its high end"),
    ]
    fig.legend(handles=handles, loc="outside upper left", ncols=2, handlelength=1.3)
    return fig


#: figures by name, in the order of the page
FIGURES: dict[str, Callable[[Prediction, float], Figure]] = {
    "timeline": timeline,
    "utilisation": utilisation,
    "stages": stages,
    "sensitivity": tornado,
}


def draw(prediction: Prediction, name: str, width: float) -> Figure:
    """Draw one figure with final layout; raises `style.NotDrawn`."""
    with style.look():
        return style.settled(FIGURES[name](prediction, width))
