"""Figures of measured and published results show every value, and can be drawn without some of the runs."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from studies.common.published_figures import (
    Cells,
    Point,
    Rate,
    cell_means,
    comparison_figure,
    effect_sizes,
    rate_ratios,
    save,
)

STUDIES = Path(__file__).parents[1]
sys.path.insert(0, str(STUDIES))

import nfs_wan  # noqa: E402
import ssd_patterns  # noqa: E402


def marks(axes: Axes, label: str) -> list[float]:
    """Values of the series with this label."""
    (line,) = [series for series in axes.get_lines() if series.get_label() == label]
    return [float(y) for y in np.asarray(line.get_ydata())]


def test_published_and_measured_values_are_in_one_panel() -> None:
    points = [Point("a", [90, 80], {"disk": [97.0]}), Point("b", [30], {"simulator": [58.0]})]
    (axes,) = comparison_figure({"accuracy": points}, "%").axes
    assert marks(axes, "published") == [90, 80, 30]
    assert (marks(axes, "disk"), marks(axes, "simulator")) == ([97], [58])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b"]


def test_the_rates_of_both_drives_are_plotted_unchanged() -> None:
    def rate(drive: str, ahead: str, pattern: str, block: str, jobs: int) -> float | None:
        return None if pattern == "write" else 100.0

    figure = ssd_patterns.rates_figure({"disk": rate})
    first, second = figure.axes
    assert marks(first, "published") == [43.2, 172, 31, 148, 88.2, 312, 64, 292]
    assert marks(first, "disk") == [100] * 6
    assert marks(second, "published")[-3:] == [432, 950, 964]


def test_ratios_have_the_line_at_130_percent_and_hollow_marks_of_slow_devices() -> None:
    rates = [
        Rate("fuse", "read", 1e6, 1.01),
        Rate("fuse", "read", 64e6, 0.4, bound=True),
        Rate("cgroup1", "buffered write", 1e6, 6.8),
        Rate("fuse", "read", float("nan"), 1.0),
    ]
    cgroup1, fuse = rate_ratios(rates).axes
    assert marks(fuse, "read") == [101]
    assert marks(cgroup1, "buffered write") == pytest.approx([680])
    plotted = [line for line in fuse.get_lines() if len(np.asarray(line.get_ydata()))]
    hollow = [line for line in plotted if line.get_markerfacecolor() == "none"]
    assert [float(np.asarray(line.get_ydata())[0]) for line in hollow] == [40]
    assert 130 in [float(np.asarray(line.get_ydata())[0]) for line in plotted]


def runs() -> pd.DataFrame:
    """Five runs of each cell of the published design at two latencies, and one that is not valid."""
    levels = (("NFSv3", "NFSv4"), ("tmpfs", "ext4"), ("sync", "async"), ("64kB", "1MB"),
              ("500kB", "25MB"), ("local", "remote"))  # fmt: skip
    noise = np.random.default_rng(3)
    rows = [
        {**dict(zip(nfs_wan.LETTERS.values(), cell, strict=True)), "replicate": number, "valid": True,
         "write": 20.0 if cell[5] == "local" else 2.0, "read": 30 + noise.random()}
        for cell in itertools.product(*levels)
        for number in range(1, 6)
    ]  # fmt: skip
    rows[0] |= {"write": 1e6, "valid": False}
    return pd.DataFrame(rows)


def test_cells_of_the_nfs_study_have_a_panel_a_line_and_their_valid_runs(tmp_path: Path) -> None:
    of = Cells("write", "MB/s", {"local": "0.027", "middle": "6.87", "remote": "13.9"}, "ms",
               "latency", ("storage", "size"), ("version", "io"), {"mode": "sync"})  # fmt: skip
    figure: Figure = cell_means(runs(), of)
    assert len(figure.axes) == 4
    assert {axes.get_title() for axes in figure.axes} == {
        "ext4 25MB", "ext4 500kB", "tmpfs 25MB", "tmpfs 500kB",
    }  # fmt: skip
    for axes in figure.axes:
        assert marks(axes, "NFSv3 64kB") == [20, 2]
    nfs_wan.write_figures({"full": runs()}, tmp_path)
    assert {f"nfs-wan-{name}.svg" for name in ("read", "sync-write", "async-write")} <= {
        file.name for file in tmp_path.iterdir()
    }
    assert (tmp_path / "nfs-wan-effects-full.svg").exists()
    assert cell_means(runs().assign(valid=False), of).axes


def test_published_effects_are_marked() -> None:
    (axes,) = effect_sizes({"write": {"E": 0.3, "A": -0.5, "CF": 0.1}}, "EBCF").axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["A", "E", "CF"]
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[0] == colours[2] != colours[1]


def test_a_figure_is_written_as_svg(tmp_path: Path) -> None:
    save(comparison_figure({"one": [Point("a", [1.23456])]}, "%"), tmp_path / "new" / "a.svg")
    assert "<svg" in (tmp_path / "new" / "a.svg").read_text()
