"""Figures of traces for publication and for the terminal: complete, with extremes, with equal axes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from typer.testing import CliRunner

from penstock.analyse.traces.traced_run import TracedRun
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.observe.trace.capture.events import NUMBERS
from penstock.report import render
from penstock.report.trace import plots
from penstock.report.trace.gather import totals_of
from penstock.report.trace.terminal import offsets_figure
from tests.examples.trace_page import START_NS, events, write_bundle
from tests.unit.test_trace_page import transfers


@pytest.fixture(scope="module")
def io_events() -> np.ndarray[Any, Any]:
    return events(30_000)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, io_events: np.ndarray[Any, Any]) -> Path:
    return write_bundle(tmp_path_factory.mktemp("plotted") / "bundle", io_events)


@pytest.mark.parametrize("kind", ["offsets", "offsets-time", "clock"])
def test_every_kind_is_plotted_with_units(bundle: Path, kind: str) -> None:
    fig = plots.plot(TracedRun(bundle), kind, 7.2)
    labels = " ".join(a.get_xlabel() + " " + a.get_ylabel() for a in fig.axes)
    assert "offset (GiB)" in labels or "offset (MiB)" in labels
    first, again = (render.published(plots.plot(TracedRun(bundle), kind, 7.2), "pdf") for _ in "ab")
    assert first == again
    assert first.startswith(b"%PDF")


def test_two_runs_have_equal_axes(bundle: Path, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "other", events(9_000, seed=2, span_bytes=1 << 32))
    fig = plots.plot(TracedRun(bundle), "before-after", 7.2, beside=TracedRun(other))
    for before, after in zip(fig.axes[::2], fig.axes[1::2], strict=True):
        assert before.get_xlim() == after.get_xlim()
        assert before.get_ylim() == after.get_ylim()
    with pytest.raises(BadInput, match="--beside"):
        plots.plot(TracedRun(bundle), "before-after", 7.2)


@pytest.mark.parametrize("most", [40_000, 2000])
def test_the_label_counts_shown_requests_and_extremes_are_kept(
    tmp_path: Path, io_events: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(plots, "MOST_MARKS", most)
    odd = io_events.copy()
    place = np.flatnonzero(
        (io_events["file_id"] == 1) & (io_events["done_bytes"] > 0) & (io_events["op"] < 32)
    )[99]
    odd["offset_bytes"][place] = 7 << 30
    fig = plots.plot(TracedRun(write_bundle(tmp_path / "bundle", odd)), "offsets", 7.2)
    label = re.search(r"shown ([\d,]+) of ([\d,]+)", fig.axes[0].get_xlabel())
    assert label is not None
    shown, total = (int(n.replace(",", "")) for n in label.groups())
    assert total == len(transfers(odd, 1))
    assert shown == total if most > total else shown <= 1.2 * most
    heights = [artist.get_path().vertices[:, 1].max() for artist in fig.axes[0].patches]
    assert max(heights) == 7 << 30


def test_busy_time_is_spread_over_the_bins_it_spans(
    bundle: Path, io_events: np.ndarray[Any, Any]
) -> None:
    shown = plots._shown(TracedRun(bundle), None)
    requests = transfers(io_events, 1)
    assert shown.clock.busy_ns.sum() == pytest.approx(float(requests["latency_ns"].sum()), rel=1e-6)
    assert shown.clock.bytes.sum() == requests["done_bytes"].sum()
    assert shown.clock.rows.sum() == len(requests)


def test_the_terminal_figure_has_every_cell_that_was_touched(tmp_path: Path) -> None:
    diagonal = events(4000, files=1)
    diagonal["op"] = 1  # pread64
    diagonal["done_bytes"] = 4096
    diagonal["offset_bytes"] = np.arange(4000) * 4096
    run = TracedRun(write_bundle(tmp_path / "bundle", diagonal))
    (file,) = totals_of(run)
    lines = offsets_figure(run, file, 40, 10, braille=False)
    rows = ["".join(text for text, style in line if style in ("read", "")) for line in lines[:10]]
    for row, line in enumerate(rows):  # a diagonal: only the cells from bottom left to top right
        assert {at for at, c in enumerate(line) if c == "."} == set(
            range(36 - 4 * row, 40 - 4 * row)
        )
    dots = offsets_figure(run, file, 40, 10)
    raised = sum(
        bin(ord(c) - 0x2800).count("1")
        for line in dots
        for t, style in line
        if style == "read"
        for c in t
    )
    assert raised == 80  # one dot per column of dots


def test_plot_on_the_command_line(bundle: Path, tmp_path: Path) -> None:
    run = CliRunner(env={"COLUMNS": "100", **os.environ})
    result = run.invoke(_build(), ["plot", str(bundle), "offsets"])
    assert result.exit_code == 0, result.output
    assert "shown" in result.output
    assert max(map(len, result.output.splitlines())) <= 100
    target = tmp_path / "x.svg"
    argv = ["plot", str(bundle), "clock", "-o", str(target), "--file", "file1"]
    assert run.invoke(_build(), argv).exit_code == 0
    assert target.read_bytes().startswith(b"<?xml")
    wrong = run.invoke(_build(), ["plot", str(bundle), "clock", "--file", "no"])
    assert isinstance(wrong.exception, BadInput)


def test_flushes_are_marked_on_the_axis(tmp_path: Path) -> None:
    table = events(2000, files=1)
    flushed = np.flatnonzero(table["op"] == NUMBERS["fsync"])
    assert len(flushed) == 2
    bundle = TracedRun(write_bundle(tmp_path / "b", table))
    for kind, seconds in (("offsets", False), ("offsets-time", True)):
        figure = plots.plot(bundle, kind, 7.0)
        (marked,) = [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
        at = [segment[0][0] for segment in marked.get_segments()]
        before = [int(((table["done_bytes"] > 0) & (table["op"] < 64))[:n].sum()) for n in flushed]
        times = (table["t_ns"][flushed].astype(np.int64) - START_NS) / 1e9
        assert at == pytest.approx(times.tolist() if seconds else before)
