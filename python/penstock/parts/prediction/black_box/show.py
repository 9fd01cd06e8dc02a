"""Output of the model: the tree as text and JSON; tables of points and errors."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.parts.prediction.black_box.comparison import sentence
from penstock.parts.prediction.black_box.estimator import Nodes
from penstock.parts.prediction.black_box.features import matrix, remaining
from penstock.parts.prediction.black_box.model import LEVEL, BlackBoxModel, guarantee
from penstock.parts.prediction.black_box.space import DIMENSIONS
from penstock.text import percentage, tenths

_WIDTH = 100


def shown_rate(bps: float) -> str:
    """A throughput in MB/s (powers of 1000), three significant digits."""
    mb = bps / 1e6
    return f"{mb:.0f} MB/s" if mb >= 100 else f"{mb:.3g} MB/s"


def tree_of(model: BlackBoxModel) -> dict[str, Any]:
    """The CART as nested values: all nodes have `throughput_bps` and `n` (measured points), branches also
    `if` and `then`, `else_if` and `else`."""
    x = matrix(model.columns, model.points).astype(np.float32)
    return _node(model, 0, x)


def _node(model: BlackBoxModel, number: int, x: Any) -> dict[str, Any]:
    tree: Nodes = model.learners["tree"].tree_
    here: dict[str, Any] = {"throughput_bps": float(np.exp(tree.value[number])), "n": len(x)}
    if tree.left[number] < 0:
        return here
    column = int(tree.feature[number])
    feature, threshold = model.columns[column], float(tree.threshold[number])
    low, high = feature.split(threshold, remaining(model.space, feature))
    below = x[:, column] <= threshold
    return here | {
        "dimension": feature.dimension,
        "value": feature.value,
        "threshold": threshold if feature.value is None else None,
        "if": low,
        "then": _node(model, int(tree.left[number]), x[below]),
        "else_if": high,
        "else": _node(model, int(tree.right[number]), x[~below]),
    }


def tree_lines(model: BlackBoxModel) -> list[str]:
    """The CART as text: one line per condition, the leaf at the end of the last; at most 100 columns."""
    rows: list[tuple[str, str]] = []

    def walk(node: Mapping[str, Any], before: str) -> None:
        for condition, below in (("if", "then"), ("else_if", "else")):
            child = node[below]
            leaf = "if" not in child
            first = below == "then"
            text = before + ("├ " if first else "└ ") + node[condition]
            points = f"{child['n']} measured"
            rows.append(
                (text, f"{shown_rate(child['throughput_bps']):>10}  {points}" if leaf else "")
            )
            if not leaf:
                walk(child, before + ("│ " if first else "  "))

    root = tree_of(model)
    if "if" not in root:
        return [f"everywhere {shown_rate(root['throughput_bps'])}"]
    walk(root, "")
    width = min(_WIDTH - 24, max(len(text) for text, leaf in rows if leaf) + 2)
    return [f"{text:<{width}}{leaf}".rstrip() for text, leaf in rows]


def summary_lines(model: BlackBoxModel) -> list[str]:
    """Summary of the model in a few lines of at most 100 columns."""
    lines = [
        f"{len(model.points)} points, throughput of one client from "
        f"{shown_rate(float(model.throughput_bps.min()))} to "
        f"{shown_rate(float(model.throughput_bps.max()))}",
        "cross-validated error, mean (median): "
        + ", ".join(
            f"{kind} {percentage(one.mean)} ({percentage(one.median)})"
            for kind, one in model.errors.items()
        ),
        f"in use: {model.chosen}",
        sentence(model.errors, model.chosen),
        f"{percentage(LEVEL)} interval, typically {_widths(model)}",
        guarantee(model),
    ]
    if model.overlap is not None:
        lines.append(
            f"computing overlaps with reading by {percentage(model.overlap.overlap)} "
            f"({model.overlap.runs} scans that computed, worst {tenths(model.overlap.worst_error)} off)"
        )
    return [part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ")]


def _widths(model: BlackBoxModel) -> str:
    low, high = model.interval(model.points)
    if not np.all(np.isfinite(high)):
        return "unbounded: insufficient calibration"
    middle = model.throughput(model.points)
    return f"÷ {np.median(middle / low):.2f} to × {np.median(high / middle):.2f}"


def points_csv(model: BlackBoxModel) -> str:
    """Measured points with the predictions of all learners [bytes/s], as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*DIMENSIONS, "throughput_bps", *(f"{kind}_bps" for kind in model.learners)])
    predicted = [model.throughput(model.points, kind) for kind in model.learners]
    for point, *rates in zip(model.points, model.throughput_bps, *predicted, strict=True):
        writer.writerow([*vars(point).values(), *(f"{r:.6g}" for r in rates)])
    return text.getvalue()
