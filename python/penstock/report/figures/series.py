"""Figures over requests and over time: offsets with verdicts, utilisation, fidelity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.analyse.outcome import Outcome
from penstock.report import style
from penstock.report.figures import marks
from penstock.report.figures.tables import has_run_table, run_table
from penstock.report.style import NotDrawn

#: maximum number of points per panel, including all extremes
POINTS_PER_PANEL = 1800
PANELS = 6
#: minimum number of panels, once every combination of verdicts is included
FEWEST_PANELS = 3
#: minimum number of samples of a time series
FEWEST_SAMPLES = 4


def selected_runs(outcome: Outcome, table: str, n: int = PANELS) -> list[str]:
    """Representative runs: first one per combination of verdicts, then the least frequent levels."""
    key = f"selected {table} {n}"
    if key not in outcome.memory:
        outcome.memory[key] = _selected(outcome, table, n)
    return list(outcome.memory[key])


def _selected(outcome: Outcome, table: str, n: int) -> list[str]:
    candidates = [r for r in outcome.run_ids if has_run_table(outcome, r, table)]
    valid = (
        set(outcome.measured["run_id"].astype(str)) if len(outcome.measured) else set(candidates)
    )
    candidates = [r for r in candidates if r in valid] or candidates
    chosen: list[str] = []
    seen: dict[str, int] = {}
    verdicts_seen: set[str] = set()
    treatments: set[str] = set()
    classes = {r: " ".join(v for _, v in verdicts(outcome, r)) for r in candidates}
    levels = {r: outcome.levels(r) for r in candidates}
    while candidates and len(chosen) < n:
        best = min(
            candidates,
            key=lambda r: (
                str(levels[r]) in treatments,
                classes[r] in verdicts_seen,
                sum(seen.get(f"{f}={v}", 0) for f, v in levels[r].items()),
                r,
            ),
        )
        if str(levels[best]) in treatments and chosen:
            break
        if len(chosen) >= FEWEST_PANELS and classes[best] in verdicts_seen:
            break
        candidates.remove(best)
        chosen.append(best)
        treatments.add(str(levels[best]))
        verdicts_seen.add(classes[best])
        for f, v in levels[best].items():
            seen[f"{f}={v}"] = seen.get(f"{f}={v}", 0) + 1
    rank = {f.name: f.levels for f in outcome.factors}
    return sorted(chosen, key=lambda r: [rank[f].index(v) for f, v in levels[r].items()])


def verdicts(outcome: Outcome, run_id: str) -> list[tuple[str, str]]:
    """(direction, class) of the run's busiest file in each direction, if it has a verdict."""
    key = f"verdicts {run_id}"
    if key not in outcome.memory:
        outcome.memory[key] = _verdicts(outcome, run_id)
    return list(outcome.memory[key])


def _verdicts(outcome: Outcome, run_id: str) -> list[tuple[str, str]]:
    verdicts_of_run = []
    for row in busiest(outcome, run_id):
        k = row.get("k")
        streams = f"({int(k)})" if k is not None and math.isfinite(k) and k > 1 else ""
        if row["class"] != "insufficient":
            verdicts_of_run.append((str(row["direction"]), f"{row['class']}{streams}"))
    return sorted(verdicts_of_run)


def busiest(outcome: Outcome, run_id: str) -> list[dict[str, Any]]:
    """For each direction, the verdict (of all threads together) on the file with the most requests."""
    table = run_table(outcome, run_id, "patterns", ["path", "k", "tid", "sentence", "confidence"])
    if table is None or table.empty:
        return []
    of_all_threads = table[table["tid"].isna()] if "tid" in table else table
    of_all_threads = of_all_threads if len(of_all_threads) else table
    of_all_threads = of_all_threads.sort_values("requests", ascending=False, kind="stable")
    rows = of_all_threads.groupby("direction", observed=True).head(1).to_dict("records")
    return [{str(k): v for k, v in row.items()} for row in rows]


def offsets(outcome: Outcome, width: float, run_ids: list[str] | None = None) -> Figure:
    """Offset against request number of each selected run's busiest file, with its verdict as the title."""
    chosen = run_ids or selected_runs(outcome, "io_events")
    if not chosen:
        if any(has_run_table(outcome, run_id, "patterns") for run_id in outcome.run_ids):
            raise NotDrawn(
                "only verdicts on patterns were recorded (`mode: pattern`); `trace: {mode: trace}` under "
                "`observers` also records offsets"
            )
        raise NotDrawn(
            "the study was not traced; `trace: {mode: trace}` under `observers` records offsets"
        )
    columns = 1 if style.narrow(width) else min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    fig = style.figure(width, (1.95 if style.narrow(width) else 2.5) * rows + 0.3)
    grid = fig.subplots(rows, columns, squeeze=False)
    shown_reads = shown_writes = False
    for index, run_id in enumerate(chosen):
        axes = grid[index // columns][index % columns]
        table = run_table(outcome, run_id, "io_events", ["op"])
        if table is not None:
            moves = table["direction"].astype(str).isin(("read", "write"))
            if "op" in table:
                moves &= ~table["op"].astype(str).str.startswith("fault_around")
            table = table[moves]
        if table is None or table.empty:
            axes.text(
                0.5, 0.5, "no event", transform=axes.transAxes, ha="center", color=style.MUTED
            )
            axes.set_title(panel_title(outcome, run_id, width / columns), fontsize=9)
            continue
        counts = table["file_id"].value_counts()
        of_file = table[table["file_id"] == counts.index[0]]
        of_file = of_file.sort_values("t_ns", kind="stable")
        y = of_file["offset_bytes"].to_numpy(float)
        x = np.arange(1, len(y) + 1, dtype=float)
        write = (of_file["direction"].astype(str) == "write").to_numpy()
        most = POINTS_PER_PANEL // (2 if style.narrow(width) else 1)
        drawn = marks.requests(axes, x, y, write, most)
        shown_reads, shown_writes = shown_reads or not write.all(), shown_writes or write.any()
        top = max(1.0, float(y.max()))
        axes.set_xlim(-0.02 * len(y), 1.02 * len(y))
        axes.set_ylim(-0.04 * top, 1.04 * top)
        unit = marks.byte_axis(axes.yaxis, 0, top, 5)
        judged = ", ".join(f"{d}s {c}" for d, c in verdicts(outcome, run_id)) or "not evaluated"
        axes.set_title(style.wrapped(judged, width / columns - 0.5, 9), fontsize=9)
        label = panel_title(outcome, run_id, width / columns)
        note = f"{run_id}: {label}\nshown {drawn:,} of {len(y):,}"
        axes.set_xlabel(f"request number\n{note}", fontsize=8)
        axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_ylabel(f"offset ({unit})" if index % columns == 0 else unit)
        style.grid(axes)
    style.hide_spare(grid, len(chosen))
    marks.legend(fig, shown_reads, shown_writes)
    return fig


def begin(outcome: Outcome, run_id: str, axes: Any, otherwise_ns: float) -> float:
    """Begin of the run's workload [ns], or `otherwise_ns`; its phase is shaded from 0 on [s]."""
    phases = run_table(outcome, run_id, "phases")
    if phases is None or not (phases["phase_id"] == "workload").any():
        return otherwise_ns
    phase = phases[phases["phase_id"] == "workload"].iloc[0]
    t0 = float(phase["start_ns"])
    axes.axvspan(0, (float(phase["end_ns"]) - t0) / 1e9, color=style.GRID, alpha=0.45, lw=0)
    return t0


def panel_title(outcome: Outcome, run_id: str, inches: float) -> str:
    """The run's levels in lines that fit a panel of that width; its name if it has none."""
    return style.wrapped(outcome.phrase(outcome.levels(run_id)) or run_id, inches - 0.4, 8, False)


_KINDS = (
    ("cpu", "processors of the host"),
    ("emulated_disk", "emulated disk"),
    ("cgroup_cpu", "processors, the run's group"),
    ("disk", "device of the host"),
)


def utilisation(outcome: Outcome, width: float, run_ids: list[str] | None = None) -> Figure:
    """Utilisation in percent over each selected run; the workload phase is shaded."""
    chosen = run_ids or selected_runs(outcome, "utilisation")
    if not chosen:
        raise NotDrawn("the study was not monitored")
    if not run_ids:
        chosen = [r for r in chosen if _samples(outcome, r) >= FEWEST_SAMPLES]
    if not chosen:
        raise NotDrawn("the runs were too short for the monitor's interval")
    columns = 1 if style.narrow(width) else min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    fig = style.figure(width, 2.15 * rows + 0.45)
    grid = fig.subplots(rows, columns, squeeze=False, sharey=True)
    drawn: dict[str, Any] = {}
    for index, run_id in enumerate(chosen):
        axes = grid[index // columns][index % columns]
        table = run_table(outcome, run_id, "utilisation")
        if table is None:
            raise NotDrawn(f"{run_id} has no readable table utilisation")
        t0 = begin(outcome, run_id, axes, float(table["t_ns"].min()) if len(table) else 0.0)
        for series, (kind, name) in zip(style.SERIES, _KINDS, strict=False):
            rows_of = percent_of(table, kind)
            if rows_of.empty:
                continue
            handle = axes.plot(
                (rows_of["t_ns"] - t0) / 1e9,
                rows_of["value"],
                color=series.colour,
                linestyle=series.line,
                marker=series.mark if len(rows_of) < 25 else "",
                markersize=3.2,
                label=name,
            )
            drawn.setdefault(name, handle[0])
        axes.set_title(
            panel_title(outcome, run_id, width / columns), fontsize=8, fontweight="normal"
        )
        axes.set_xlabel(f"time (s), {run_id}", fontsize=8)
        if index % columns == 0:
            axes.set_ylabel("utilisation (%)")
        style.grid(axes)
    grid[0][0].set_ylim(-3, max(104, min(grid[0][0].get_ylim()[1], 210)))
    style.hide_spare(grid, len(chosen))
    if not drawn:
        raise NotDrawn("the utilisation tables hold no value")
    fig.legend(
        drawn.values(), drawn.keys(), loc="outside upper left", ncols=1 if columns == 1 else 4
    )
    return fig


def _samples(outcome: Outcome, run_id: str) -> int:
    table = run_table(outcome, run_id, "utilisation")
    return 0 if table is None else int(table["t_ns"].nunique())


def percent_of(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The kind's utilisation in percent over time: its first entity's main metric, sorted by time."""
    of_kind = table[(table["kind"].astype(str) == kind) & table["value"].notna()]
    if "unit" in of_kind and (of_kind["unit"].astype(str) == "%").any():
        of_kind = of_kind[of_kind["unit"].astype(str) == "%"]
    if of_kind.empty:
        return of_kind
    metrics = list(of_kind["metric"].astype(str).drop_duplicates())
    named = [m for m in metrics if m in (kind, "utilisation", "busy", "all", f"{kind}_percent")]
    of_kind = of_kind[of_kind["metric"].astype(str) == (named or metrics)[0]]
    peaks = of_kind.groupby(of_kind["entity"].astype(str))["value"].sum()
    entity = str(peaks.idxmax()) if kind != "cpu" else str(of_kind["entity"].astype(str).iloc[0])
    return of_kind[of_kind["entity"].astype(str) == entity].sort_values("t_ns")


def fidelity(outcome: Outcome, width: float) -> Figure:
    """Delivered over specified value for every metric, run and disk, with the certificate's limits.

    Metrics without a specified value (the share of late replies) have a panel with their limit below.
    """
    table = outcome.fidelity
    if table is None or table.empty:
        raise NotDrawn("no emulated disk was evaluated")
    ratio = table["ratio"].astype(float)
    compared = table[np.isfinite(ratio)].assign(_x=ratio)
    limited = table[~np.isfinite(ratio)]
    if "limit" in table:
        limit = limited["limit"].astype(float)
        limited = limited.assign(_x=limited["delivered"].astype(float) / limit)
        limited = limited[np.isfinite(limited["_x"])]
    else:
        limited = limited.iloc[:0].assign(_x=[])
    panels = [p for p in (compared, limited) if len(p)]
    if not panels:
        raise NotDrawn("no certificate has both a requested and a delivered value")
    counts = [p["metric"].nunique() for p in panels]
    fig = style.figure(width, 0.6 + 0.5 * len(panels) + 0.27 * sum(counts))
    grid = fig.subplots(len(panels), 1, squeeze=False, height_ratios=[c + 0.3 for c in counts])
    gap = "\n" if style.narrow(width) else " "
    seen: dict[str, Any] = {}
    for (axes,), rows in zip(grid, panels, strict=True):
        is_ratio = rows is compared
        _strip(fig, axes, rows, is_ratio, seen)
        axes.set_xlabel(
            f"delivered ÷ requested{gap}(1 = as requested; grey: within limits)"
            if is_ratio
            else f"share of its limit{gap}(below 1 is allowed)"
        )
    fig.legend(
        seen.values(), seen.keys(), loc="outside upper left", ncols=1 if style.narrow(width) else 2
    )
    return fig


def _strip(
    fig: Figure, axes: Any, table: pd.DataFrame, is_ratio: bool, seen: dict[str, Any]
) -> None:
    """One row of dots per metric; `_x` is the drawn value."""
    metrics = list(table["metric"].astype(str).drop_duplicates())
    off = table["verdict"].astype(str).isin(["host-saturated", "not-honoured"])
    values = table["_x"].astype(float)
    log = float(values.min()) > 0 and float(values.max() / values.min()) > 2.5
    for y, metric in enumerate(metrics):
        of_metric = table["metric"].astype(str) == metric
        band = 0.01 if "rate" in metric else 0.15
        if "limit" in table and table.loc[of_metric, "limit"].notna().any():
            band = float(table.loc[of_metric, "limit"].max())
        if is_ratio and metric != "lateness":
            axes.fill_betweenx(
                [y - 0.38, y + 0.38], 1 - band, 1 + band, color=style.GRID, linewidth=0
            )
        for use, series, label in (
            (of_metric & ~off, style.SERIES[0], "honoured, demand-bound, or too short to evaluate"),
            (of_metric & off, style.SERIES[1], "not honoured"),
        ):
            rows = table[use]
            if rows.empty:
                continue
            # jitter by row number, so that equal tables give equal figures
            jitter = ((np.arange(len(rows)) * 0.618034) % 1 - 0.5) * 0.5
            dots = axes.scatter(
                rows["_x"],
                y + jitter,
                s=22,
                marker=series.mark,
                color=series.colour,
                alpha=0.8,
                linewidths=0.5,
            )
            seen.setdefault(label, dots)
            unit = "of what was requested" if is_ratio else "of its limit"
            style.tips(
                fig,
                dots,
                [
                    f"{r['run_id']} {r['disk_id']} {metric}: {r['_x']:.3f} {unit} "
                    f"({r['verdict']}, n = {r['n']:,})"
                    for r in rows.to_dict("records")
                ],
            )
    if log and is_ratio:
        style.log_axis(axes.xaxis)
    axes.axvline(1, color=style.MUTED, linewidth=0.8)
    if not is_ratio:
        axes.set_xlim(left=0)
    axes.set_yticks(range(len(metrics)), [m.replace("_", " ") for m in metrics])
    axes.set_ylim(len(metrics) - 0.5, -0.5)
    style.grid(axes, "x")
