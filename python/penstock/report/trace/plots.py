"""Figures of traced runs for publication: offsets, time series, comparison of two runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.analyse.traces.traced_run import MOST_FLUSHES, TracedRun
from penstock.errors import BadInput, printable
from penstock.report import style
from penstock.report.figures import marks
from penstock.report.style import NotDrawn
from penstock.report.trace.columns import KIND_MASK, SYNC, WRITE, batches
from penstock.report.trace.gather import Totals, totals_of

KINDS = ("offsets", "offsets-time", "clock", "before-after")
#: maximum number of marks in one panel, including all extremes
MOST_MARKS = 40_000
_BINS = 160


@dataclass
class Clock:
    """By bin of time: bytes of calls that ended, calls' time, and latencies in eighths of an octave."""

    from_ns: int
    width_ns: float
    bytes: np.ndarray[Any, Any]
    busy_ns: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]

    def quantile(self, way: int, share: float) -> np.ndarray[Any, Any]:
        """Quantile of the latency [ns] of the bin's calls; NaN for an empty bin."""
        below = np.cumsum(self.rows[way], axis=1)
        total = below[:, -1]
        row = (below < (share * total)[:, None]).sum(axis=1)
        return np.where(total > 0, 2 ** ((row + 0.5) / 8), np.nan)


@dataclass(frozen=True)
class Shown:
    """The drawn requests of one file, in order, of `total`."""

    label: str
    verdict: str
    total: int
    number: np.ndarray[Any, Any]
    t_ns: np.ndarray[Any, Any]
    offset: np.ndarray[Any, Any]
    end: np.ndarray[Any, Any]
    write: np.ndarray[Any, Any]
    flush_number: np.ndarray[Any, Any]
    flush_t_ns: np.ndarray[Any, Any]
    clock: Clock


def plot(
    run: TracedRun,
    kind: str,
    width: float,
    *,
    file: str | None = None,
    beside: TracedRun | None = None,
) -> Figure:
    """One figure, `width` inches wide; `file` is a path or the end of one (default: most time).

    With `beside` the same file of two runs in adjacent panels on equal axes. BadInput for an unknown kind
    or file, NotDrawn if no call was recorded.
    """
    if kind not in KINDS:
        raise BadInput(f"found figure {kind}; expected one of {', '.join(KINDS)}")
    if kind == "before-after" and beside is None:
        raise BadInput("before-after needs the second run: --beside BUNDLE")
    runs = [run] if beside is None else [run, beside]
    shown = [_shown(one, file) for one in runs]
    with style.look():
        return style.settled(_drawn(kind, shown, width))


def _drawn(kind: str, shown: list[Shown], width: float) -> Figure:
    panels = {
        "offsets": ["number"],
        "offsets-time": ["time"],
        "clock": ["time", "throughput", "latency", "depth"],
        "before-after": ["number", "time", "throughput"],
    }[kind]
    heights = [2.6 if p in ("number", "time") else 1.1 for p in panels]
    fig = style.figure(width, sum(heights) + 0.5 * len(panels))
    grid = fig.subplots(len(panels), len(shown), squeeze=False, height_ratios=heights)
    names = ["before", "after"] if kind == "before-after" else [""] * 2
    for column, run in enumerate(shown):
        for row, panel in enumerate(panels):
            axes = grid[row][column]
            if panel in ("number", "time"):
                _offsets(axes, panel, run, shown)
            else:
                _clock(axes, panel, run, shown)
            if column:
                axes.set_ylabel("")
            style.grid(axes)
        title = f"{names[column]}: {run.verdict}" if names[column] else run.verdict
        if len(shown) > 1 or style.narrow(width):
            title = title.replace(", ", ",\n")
        grid[0][column].set_title(title, fontsize=9)
    marks.legend(
        fig,
        any((~s.write).any() for s in shown),
        any(s.write.any() for s in shown),
        any(len(s.flush_number) for s in shown),
    )
    return fig


def _offsets(axes: Any, panel: str, run: Shown, shown: list[Shown]) -> None:
    x = run.number.astype(float) if panel == "number" else (run.t_ns - run.clock.from_ns) / 1e9
    flushed = run.flush_number if panel == "number" else run.flush_t_ns - run.clock.from_ns
    marks.flushes(axes, flushed.astype(float) if panel == "number" else flushed / 1e9)
    drawn = marks.requests(axes, x, run.offset.astype(float), run.write, MOST_MARKS)
    high = float(max(s.end.max() for s in shown))
    low = float(min(s.offset.min() for s in shown))
    low = 0.0 if low < 0.1 * high else low
    margin = 0.03 * max(high - low, 1)
    axes.set_ylim(low - margin, high + margin)
    unit = marks.byte_axis(axes.yaxis, low, high)
    axes.set_ylabel(f"offset ({unit})")
    if panel == "number":
        end = float(max(s.total for s in shown))
        name = "request number"
    else:
        end = max(_seconds(s) for s in shown)
        name = "time (s)"
    axes.set_xlim(-0.02 * end, 1.02 * end)
    axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
    axes.xaxis.set_major_locator(MaxNLocator(4 if len(shown) > 1 else 7))
    axes.set_xlabel(f"{name}\n{run.label}: shown {drawn:,} of {run.total:,}", fontsize=8)


def _seconds(run: Shown) -> float:
    return len(run.clock.busy_ns) * run.clock.width_ns / 1e9


def _clock(axes: Any, panel: str, run: Shown, shown: list[Shown]) -> None:
    clock = run.clock
    x = (np.arange(len(clock.busy_ns)) + 0.5) * clock.width_ns / 1e9
    axes.set_xlim(-0.02 * max(map(_seconds, shown)), 1.02 * max(map(_seconds, shown)))
    axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
    axes.xaxis.set_major_locator(MaxNLocator(4 if len(shown) > 1 else 7))
    axes.set_xlabel("time (s)", fontsize=8)
    ways = [w for w in (0, 1) if clock.rows[w].sum()]
    if panel == "throughput":
        top = max(float((s.clock.bytes / s.clock.width_ns).max()) * 1e9 for s in shown)
        for way in ways:
            series = style.SERIES[way]
            rate = clock.bytes[way] * 1e9 / clock.width_ns
            axes.step(x, rate, where="mid", color=series.colour, linestyle=series.line)
        axes.set_ylim(0, 1.08 * top)
        axes.set_ylabel(f"throughput\n({marks.byte_axis(axes.yaxis, 0, top, 4)}/s)", fontsize=8)
    elif panel == "latency":
        for way in ways:
            series = style.SERIES[way]
            axes.plot(x, clock.quantile(way, 0.5) / 1e6, color=series.colour, linestyle=series.line)
            tail = clock.quantile(way, 0.99) / 1e6
            axes.plot(x, tail, color=series.colour, linestyle=(0, (1, 1.5)), alpha=0.7)
        style.log_axis(axes.yaxis)
        axes.set_ylabel("latency (ms)\nmedian, 99 %", fontsize=8)
    else:
        axes.step(x, clock.busy_ns / clock.width_ns, where="mid", color=style.GREEN)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("calls in flight", fontsize=8)


def chosen_file(run: TracedRun, files: list[Totals], path: str | None) -> Totals:
    """The file of that path or end of a path, else the one with most time. BadInput, NotDrawn if none."""
    can = [f for f in files if sum(f["drawn"])]
    if not can:
        raise NotDrawn("no call moved bytes of a regular file")
    if path is None:
        return can[0]
    path = run.from_disk(path)
    named = [f for f in can if run.name(f["file_id"]) == path]
    named = named or [f for f in can if run.name(f["file_id"]).endswith(path)]
    if not named:
        names = ", ".join(printable(run.name(f["file_id"])) for f in can[:5])
        raise BadInput(f"--file: found no {printable(path)}; expected one of {names}")
    return named[0]


def _shown(run: TracedRun, path: str | None) -> Shown:
    if not run.has("io_events"):
        raise NotDrawn("only counters were stored: --mode trace records every call")
    file = chosen_file(run, totals_of(run), path)
    total = sum(file["drawn"][:2])
    workload = run.workload
    origin = min(file["first_ns"], workload.start_ns if workload else file["first_ns"])
    until = max(file["last_ns"], workload.end_ns if workload else file["last_ns"])
    width = max(1.0, (until - origin) / _BINS)
    clock = Clock(
        origin,
        width,
        np.zeros((2, _BINS)),
        np.zeros(_BINS),
        np.zeros((2, _BINS, 512), np.int64),
    )
    parts: list[tuple[np.ndarray[Any, Any], ...]] = []
    flushed: list[tuple[np.ndarray[Any, Any], ...]] = []
    before = 0
    for batch in batches(run):
        here = batch.drawn(file["file_id"]) & ((batch.kind & KIND_MASK) <= WRITE)
        sync = (batch.file_id == file["file_id"]) & ((batch.kind & KIND_MASK) == SYNC)
        flushed.append((before + np.cumsum(here)[sync], batch.t_ns[sync]))
        offset, t = batch.offset_bytes[here], batch.t_ns[here]
        done, latency = batch.done_bytes[here], batch.latency_ns[here]
        write = (batch.kind[here] & KIND_MASK) == WRITE
        _fill(clock, t, done, latency, write)
        number = before + np.arange(len(t))
        before += len(t)
        picked = [np.arange(0)]
        for use in (~write, write):
            members = np.flatnonzero(use)
            most = max(64, int(2 * MOST_MARKS * len(members) / max(total, 1)))
            picked.append(members[marks.keep_extremes(members, offset[members], most)])
        pick = np.sort(np.concatenate(picked))
        parts.append((number[pick], t[pick], offset[pick], (offset + done)[pick], write[pick]))
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)]
    number, t, offset, end, write = columns
    judged = [
        f"{r.direction}s {r.kind}" for r in run.verdicts_on(file["file_id"]) if r.basis != "device"
    ]
    name = printable(run.name(file["file_id"]))
    label = name if len(name) < 44 else "…" + name[-43:]
    verdicts_text = ", ".join(judged) or "not evaluated"
    every = max(1, -(-file["syncs"] // MOST_FLUSHES))
    flush_number, flush_t = (np.concatenate(c)[::every] for c in zip(*flushed, strict=True))
    return Shown(
        label,
        verdicts_text,
        total,
        number,
        t,
        offset,
        end,
        write.astype(bool),
        flush_number,
        flush_t,
        clock,
    )


def _fill(clock: Clock, t: Any, done: Any, latency: Any, write: Any) -> None:
    """Add a batch to the time series; a call's time is spread over the bins that it spans."""
    if not len(t):
        return
    bins, width = len(clock.busy_ns), clock.width_ns
    start = (t - clock.from_ns) / width
    end = (t + latency - clock.from_ns) / width
    way = write.astype(int)
    first = np.clip(start.astype(int), 0, bins - 1)
    last = np.clip(end.astype(int), 0, bins - 1)
    np.add.at(clock.bytes, (way, last), done)
    row = (np.log2(np.maximum(latency, 1)) * 8).astype(int).clip(0, 511)
    np.add.at(clock.rows, (way, first, row), 1)
    # overlap with every bin, as the difference of the cumulative time of all calls at its borders
    edges = np.arange(bins + 1)
    single = first == last
    busy = np.zeros(bins)
    np.add.at(busy, first[single], (end - start)[single])
    np.add.at(busy, first[~single], edges[first[~single] + 1] - start[~single])
    np.add.at(busy, last[~single], end[~single] - edges[last[~single]])
    spanning = np.zeros(bins + 2)
    np.add.at(spanning, first[~single] + 1, 1.0)
    np.add.at(spanning, last[~single], -1.0)
    clock.busy_ns += (busy + np.cumsum(spanning)[:bins]) * width
