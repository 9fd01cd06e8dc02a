"""Rates of the emulated disks by second: delivered and specified rates, and changes of the disks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from penstock.analyse.outcome import Outcome
from penstock.report import style
from penstock.report.figures import series
from penstock.report.figures.tables import run_table
from penstock.report.style import NotDrawn

#: maximum number of lines in a panel: those with the most bytes
LINES = 4
#: minimum number of seconds of a time series
FEWEST = 4
#: minimum number of requests of a window with a meaningful rate
FEWEST_REQUESTS = 5
_OFF = ("not-honoured", "host-saturated")
MB = 1e6


def delivered(outcome: Outcome, width: float, run_ids: list[str] | None = None) -> Figure:
    """Rate of each disk and direction during its busy time [MB/s] over the run, with marks for deviations.

    NotDrawn if no run has `fidelity_windows` of four or more seconds.
    """
    selected = run_ids or series.selected_runs(outcome, "fidelity_windows", 4)
    by_run = {run_id: _lines(outcome, run_id) for run_id in selected}
    chosen = [run_id for run_id, lines in by_run.items() if lines]
    if not chosen:
        raise NotDrawn(f"no run was longer than {FEWEST} s on an emulated disk")
    columns = 1 if style.narrow(width) else min(2, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    names = list(dict.fromkeys(name for run_id in chosen for name in by_run[run_id]))
    looks = dict(zip(names, style.distinct(len(names)), strict=True))
    fig = style.figure(width, 2.3 * rows + 0.3 + 0.17 * math.ceil(len(names) / 2))
    grid = fig.subplots(rows, columns, squeeze=False, sharey=True)
    every = pd.concat([line for run_id in chosen for line in by_run[run_id].values()])
    top = float(every[["asked_bps", "delivered_bps"]].to_numpy().max()) / MB
    log = style.wants_log(every["delivered_bps"])
    handles: dict[str, Any] = {}
    for index, run_id in enumerate(chosen):
        axes = grid[index // columns][index % columns]
        t0 = series.begin(outcome, run_id, axes, float(every["t_ns"].min()))
        for name, line in by_run[run_id].items():
            look = looks[name]
            t = (line["t_ns"] + line["window_ns"] / 2 - t0) / 1e9
            axes.plot(t, line["asked_bps"] / MB, color=look.colour, lw=4, alpha=0.25)
            drawn = axes.plot(
                t, line["delivered_bps"] / MB, color=look.colour, marker=look.mark, markersize=3
            )
            handles.setdefault(name, drawn[0])
            _mark_off(fig, axes, t, line, f"{run_id} {name}")
        for when in _changes(outcome, run_id):
            axes.axvline((when - t0) / 1e9, color=style.MUTED, lw=0.8, ls=":")
        axes.set_title(
            series.panel_title(outcome, run_id, width / columns), fontsize=8, fontweight="normal"
        )
        axes.set_xlabel(f"time (s), {run_id}", fontsize=8)
        if index % columns == 0:
            axes.set_ylabel("rate while busy (MB/s)")
        style.grid(axes)
    if log:
        style.log_axis(grid[0][0].yaxis)
        grid[0][0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    else:
        grid[0][0].set_ylim(0, 1.08 * top)
    style.hide_spare(grid, len(chosen))
    fig.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=1 if columns == 1 else 2
    )
    return fig


def _lines(outcome: Outcome, run_id: str) -> dict[str, pd.DataFrame]:
    """Windows with enough requests, for the disks and directions with the most bytes."""
    table = run_table(outcome, run_id, "fidelity_windows")
    if table is None or table.empty:
        return {}
    table = table[
        np.isfinite(table["delivered_bps"].astype(float)) & (table["ops"] >= FEWEST_REQUESTS)
    ]
    table = table[table["direction"].astype(str).isin(("read", "write"))]
    lines = []
    for (disk, direction), rows in table.groupby(["disk_id", "direction"], observed=True):
        if len(rows) >= FEWEST:
            lines.append((f"{disk}, {direction}s", rows.sort_values("t_ns")))
    lines.sort(key=lambda pair: -float(pair[1]["bytes"].sum()))
    return dict(sorted(lines[:LINES]))


def _mark_off(fig: Figure, axes: Any, t: pd.Series[Any], line: pd.DataFrame, what: str) -> None:
    """A ring around each second in which the disk missed its specification; its numbers as a hover text."""
    off = line["verdict"].astype(str).isin(_OFF)
    if not off.any():
        return
    windows = line[off]
    rings = axes.scatter(
        t[off],
        windows["delivered_bps"] / MB,
        s=46,
        facecolors="none",
        edgecolors=style.ORANGE,
        lw=1.2,
    )
    texts = [
        f"{what}: {row['delivered_bps'] / MB:.2f} of {row['asked_bps'] / MB:.2f} MB/s ({row['verdict']})"
        for row in windows.to_dict("records")
    ]
    style.tips(fig, rings, texts)


def _changes(outcome: Outcome, run_id: str) -> list[float]:
    """Times of disk changes [ns], one for changes within the same hundredth of a second."""
    events = run_table(outcome, run_id, "events")
    if events is None or events.empty:
        return []
    of_disks = events[events["resource"].astype(str) == "disk"] if "resource" in events else events
    times = sorted({round(float(t) / 1e7) for t in of_disks["applied_ns"].dropna()})
    return [1e7 * t for t in times]
