"""Cost curves as one figure: CPU time by data, hosts, tasks, and nodes with constant data per node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PANELS = {
    "cost against MB per node: ": "MB per node and stage (reduce, 20 nodes)",
    "cost against hosts, same data: ": "hosts, same data",
    "cost against tasks: ": "tasks (pipeline, 1 MiB files)",
    "weak scaling, ": "nodes, same data per node",
}


def points(
    rows: list[dict[str, Any]], start: str
) -> dict[str, list[tuple[float, float, float, float]]]:
    """Points by name of the line: x, then median, smallest and largest CPU seconds, in order of x."""
    by_line: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in rows:
        if row["metric"] != "CPU time" or not row["case"].startswith(start):
            continue
        parts = row["case"].removeprefix(start).split(", ")
        name = ", ".join([*parts[1:], row["engine"].removeprefix("penstock, ")])
        x = float(parts[0].split()[0])
        by_line.setdefault(name, []).append((x, row["value"], row["low"], row["high"]))
    return {name: sorted(line_points) for name, line_points in by_line.items()}


def draw(rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write `simulator-cost.svg` and `.png` to `folder`; nothing if no row belongs to a curve."""
    panels = {title: points(rows, start) for start, title in PANELS.items()}
    panels = {title: lines for title, lines in panels.items() if lines}
    if not panels:
        return []
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 3.6), constrained_layout=True, squeeze=False
    )
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for name, line_points in lines.items():
            x, y, low, high = (list(column) for column in zip(*line_points, strict=True))
            axis.plot(x, y, marker="o", markersize=3, label=name)
            axis.fill_between(x, low, high, alpha=0.2)
        axis.set_xlabel(title)
        axis.set_ylabel("CPU time of one simulation [s]")
        if not title.startswith("nodes"):
            axis.set_xscale("log")
            axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"simulator-cost.{kind}" for kind in ("svg", "png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    plt.close(figure)
    return paths
