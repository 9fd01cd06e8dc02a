"""The tree of a learned storage as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from penstock.parts.prediction.black_box.model import BlackBoxModel
from penstock.parts.prediction.black_box.show import tree_of
from penstock.report import render, style
from penstock.text import tenths


def figure(model: BlackBoxModel) -> bytes:
    """The CART from left to right, a bar per leaf; SVG."""
    with style.look():
        return render.published(_drawn(model), "svg")


def _drawn(model: BlackBoxModel) -> Any:
    leaves: list[tuple[str, float]] = []
    root = tree_of(model)
    depth = _depth(root)
    total = _leaves(root)
    fig = Figure(figsize=(10.5, max(2.2, 0.3 * total + 0.8)), layout="constrained")
    ax, bars = fig.subplots(1, 2, sharey=True, width_ratios=[max(2, 1.1 * depth), 2])

    def place(node: Mapping[str, Any], level: int) -> float:
        if "if" not in node:
            leaves.append(("", node["throughput_bps"] / 1e6))
            y = float(len(leaves) - 1)
            ax.plot([level, depth], [y, y], color=style.GRID, lw=0.8, zorder=1)
            return y
        ys = [place(node[k], level + 1) for k in ("then", "else")]
        ax.plot([level, level], ys, color=style.MUTED, lw=1, zorder=2)
        for y, text in zip(ys, (node["if"], node["else_if"]), strict=True):
            ax.plot([level, level + 1], [y, y], color=style.MUTED, lw=1, zorder=2)
            ax.text(level + 0.04, y - 0.12, text, fontsize=6.2, color=style.INK, va="bottom")
        return float(np.mean(ys))

    place(root, 0)
    bars.barh(range(len(leaves)), [x for _, x in leaves], color=style.BLUE, height=0.6)
    for y, (_, rate) in enumerate(leaves):
        bars.annotate(f" {rate:.3g}", (rate, y), fontsize=7, va="center", color=style.INK)
    style.log_axis(bars.xaxis)
    bars.set_xlabel("throughput of one client [MB/s]")
    bars.margins(x=0.25)
    ax.set_xlim(-0.05, depth)
    ax.set_ylim(len(leaves) - 0.4, -0.8)
    ax.set_axis_off()
    errors = ", ".join(f"{kind} {tenths(one.mean)}" for kind, one in model.errors.items())
    ax.set_title(f"CART of {len(model.points)} points. Cross-validated error: {errors}")
    return fig


def _depth(node: Mapping[str, Any]) -> int:
    return 0 if "if" not in node else 1 + max(_depth(node["then"]), _depth(node["else"]))


def _leaves(node: Mapping[str, Any]) -> int:
    return 1 if "if" not in node else _leaves(node["then"]) + _leaves(node["else"])
