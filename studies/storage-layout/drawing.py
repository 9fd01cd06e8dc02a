"""Figures of the storage-layout studies: offsets before and after, and time by disorder."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from layout_claims import by_load, disks_of
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, MaxNLocator
from steps import Step, by_replicate, reads

from penstock.archive.bundle import Bundle
from penstock.report import style

#: reads plotted per panel; the lowest and highest of each section are among them
MOST = 1000
TITLES = {"scan-loaded": "as loaded", "scan-rewritten": "rewritten"}
WORDS = {"hard-disk": "hard disk", "flash": "flash drive"}


def chosen(offset: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Indices of at most about MOST values: extremes of every section and evenly spaced others."""
    n = len(offset)
    if n <= MOST:
        return np.arange(n)
    edges = np.linspace(0, n, MOST // 4 + 1).astype(np.int64)
    low = [a + int(np.argmin(offset[a:b])) for a, b in pairwise(edges)]
    high = [a + int(np.argmax(offset[a:b])) for a, b in pairwise(edges)]
    even = np.linspace(0, n - 1, MOST // 2).astype(np.int64)
    return np.unique(np.concatenate([low, high, even]))


def dots(axes: Any, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
    """Dots as one outline of very short lines with round ends: a tenth of the size of markers in SVG."""
    ends = np.repeat(np.column_stack([x, y]).astype(float), 2, axis=0)
    ends[1::2, 0] += 1e-4 * float(np.max(x))
    codes = np.tile([Outline.MOVETO, Outline.LINETO], len(x))
    line = PathPatch(Outline(ends, codes), fill=False, edgecolor=style.BLUE, linewidth=1.6)
    line.set_capstyle("round")
    axes.add_artist(line)
    axes.set_xlim(-0.02 * float(np.max(x)), 1.02 * float(np.max(x)))
    axes.set_ylim(-0.04 * float(np.max(y)), 1.04 * float(np.max(y)))


def offsets(out: Path, steps: list[Step]) -> Figure:
    """Offset against request number; a row per disk, before on the left and after on the right."""
    disks = disks_of(steps)
    fig = style.figure(style.WIDE_INCHES, 2.3 * len(disks) + 0.2)
    grid = fig.subplots(len(disks), 2, squeeze=False, sharey="row")
    for row, disk in enumerate(disks):
        for column, step in enumerate(TITLES):
            by_number = by_replicate(steps, disk=disk, step=step)
            axes = grid[row][column]
            if not by_number:
                axes.text(0.5, 0.5, "no valid run", transform=axes.transAxes, ha="center")
                continue
            run = by_number[min(by_number)]
            table_reads = reads(Bundle.open(out / "runs" / run.run_id), run.table)
            y = table_reads["offset_bytes"].to_numpy(float) / 2**20
            plotted = chosen(y)
            dots(axes, plotted + 1, y[plotted])
            axes.set_title(f"{WORDS[disk]}, {TITLES[step]}: {run.verdict}, {run.time_s:.3g} s")
            axes.set_xlabel(
                f"request number (shown {len(plotted):,} of {len(y):,} reads)", fontsize=8
            )
            axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            if column == 0:
                axes.set_ylabel("offset in the table's file (MiB)")
            style.grid(axes)
    return fig


def disorder(steps: list[Step]) -> Figure:
    """Time of the scan by the share of its consecutive reads, a panel per disk."""
    disks = disks_of(steps)
    fig = style.figure(style.WIDE_INCHES, 2.7)
    for axes, disk in zip(fig.subplots(1, len(disks), squeeze=False)[0], disks, strict=True):
        loads = by_load(steps, disk)
        x = loads["consecutive_share"]
        spread = [loads["time_s"] - loads["low_s"], loads["high_s"] - loads["time_s"]]
        axes.errorbar(x, loads["time_s"], yerr=spread, fmt="o", ms=4, color=style.BLUE, lw=1)
        for row in loads.to_dict("records"):
            at = (row["consecutive_share"], row["time_s"])
            axes.annotate(
                f"{row['shuffled']:.0f}",
                at,
                textcoords="offset points",
                xytext=(5, 3),
                fontsize=7.5,
                color=style.MUTED,
            )
        axes.set_title(WORDS[disk])
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("share of reads that start where the last one ended")
        axes.set_ylabel("time of the scan (s)")
        style.grid(axes)
    return fig
