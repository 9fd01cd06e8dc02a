"""Time of a version over that without deduplication, against its similarity: a panel for each ratio."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from penstock.report import style
from penstock.report.render import published
from studies.dedup_study.break_even import mean_time, rates
from studies.dedup_study.cells import AUTO, FIXED, OFF, SEQCDC
from studies.dedup_study.write_part import WriteResult

LABELS = {OFF: "off", FIXED: "fixed", SEQCDC: "seqcdc", AUTO: "auto"}
HEIGHT_INCHES = 2.9


def draw(result: WriteResult) -> Figure | None:
    """The figure; None without a measured ratio."""
    runs = [run for run in result.runs if run.cells]
    if not runs:
        return None
    figure = style.figure(style.WIDE_INCHES, HEIGHT_INCHES)
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axes, run in zip(panels, runs, strict=True):
        base = sum(mean_time(cell.of(OFF)) for cell in run.cells) / len(run.cells)
        z = [100 * cell.cell.similarity for cell in run.cells]
        for (name, label), series in zip(LABELS.items(), style.SERIES, strict=False):
            times = [mean_time(cell.of(name)) / base for cell in run.cells]
            axes.plot(
                z, times, color=series.colour, ls=series.line, marker=series.mark, ms=3, label=label
            )
        fixed = rates(run.cells, FIXED)
        title = run.case if fixed is None else f"{run.case}, measured {fixed.ratio:.2f}"
        axes.set_title(title, fontsize=8)
        axes.set_xlabel("similarity (%)")
        style.grid(axes)
    panels[0].set_ylabel("time of a version over off")
    panels[0].legend(loc="lower left", frameon=False, fontsize=8)
    return figure


def write_figure(result: WriteResult, directory: Path) -> None:
    """Write `dedup-time.svg`, if a ratio was measured."""
    with style.look():
        figure = draw(result)
        if figure is not None:
            (directory / "dedup-time.svg").write_bytes(published(figure, "svg"))
