"""Figure of a log of decisions: similarity with its break-even, and the configuration, over the writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from penstock.errors import BadInput
from penstock.parts.dedup.controller.decision import Decision
from penstock.parts.dedup.controller.settings import OFF
from penstock.parts.dedup.controller.stream import STEADY_OFF, STEADY_ON
from penstock.report import render, style
from penstock.writing import atomic_file, check_target


def write_figure(decisions: Sequence[Decision], path: Path, family: str | None = None) -> None:
    """Write the figure of one family (by default the one with most decisions) as .svg, .pdf or .png."""
    extension = path.suffix.removeprefix(".")
    if extension not in ("svg", "pdf", "png"):
        raise BadInput(f"{path}: found '{path.suffix}'; expected .svg, .pdf or .png")
    check_target(path)
    chosen = select(decisions, family)
    with style.look():
        content = render.published(draw(chosen), extension)
    with atomic_file(path) as draft:
        draft.write_bytes(content)


def select(decisions: Sequence[Decision], family: str | None) -> list[Decision]:
    """Decisions of one family; BadInput if there are none."""
    counts: dict[str, int] = {}
    for decision in decisions:
        counts[decision.family] = counts.get(decision.family, 0) + 1
    if not counts:
        raise BadInput("found a log without decisions; expected one of at least one version")
    name = family if family is not None else max(counts, key=lambda key: counts[key])
    if name not in counts:
        families = ", ".join(sorted(counts)[:10])
        raise BadInput(f"--family: found '{name}'; expected one of {families}")
    return [decision for decision in decisions if decision.family == name]


def draw(decisions: Sequence[Decision], width: float = style.WIDE_INCHES) -> Figure:
    """The figure, in the style that is set."""
    fig = style.figure(width, 3.6)
    above, below = fig.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    names = decisions[-1].configurations
    dedup = [name for name in names if name != OFF]
    writes = [decision.write for decision in decisions]
    for name, series in zip(dedup, style.distinct(len(dedup)), strict=True):
        column = names.index(name)
        marks: dict[str, Any] = {"color": series.colour, "linewidth": 1.2}
        z = [_percent(decision.similarity[column]) for decision in decisions]
        above.plot(
            writes, z, marker=series.mark, markersize=4, drawstyle="steps-post",
            label=f"similarity, {name}", **marks,
        )  # fmt: skip
        ratio = [_percent(_break_even(decision, column)) for decision in decisions]
        above.plot(
            writes,
            ratio,
            linestyle=(0, (1, 1.5)),
            label=f"break-even of time, {name}",
            drawstyle="steps-post",
            **marks,
        )
    above.set_ylabel("share (%)")
    above.set_ylim(bottom=0)
    above.set_title(f"Decisions for {decisions[-1].family or 'all files'}")
    levels = [names.index(decision.configuration) for decision in decisions]
    below.plot(writes, levels, color=style.INK, drawstyle="steps-post")
    for state, colour, mark in ((STEADY_ON, style.GREEN, "s"), (STEADY_OFF, style.ORANGE, "X")):
        points = [
            (decision.write, names.index(decision.configuration))
            for decision in decisions
            if decision.after == state
        ]
        if points:
            x, y = zip(*points, strict=True)
            below.scatter(x, y, color=colour, marker=mark, s=22, label=state, zorder=3)
    below.set_yticks(range(len(names)), list(names))
    below.set_ylim(-0.5, len(names) - 0.5)
    below.set_xlabel("write")
    fig.legend(loc="outside lower center", ncols=4 if width > 5 else 2)
    for axes in (above, below):
        style.grid(axes)
    return fig


def _percent(share: float | None) -> float:
    return float("nan") if share is None else 100 * share


def _break_even(decision: Decision, column: int) -> float | None:
    """Similarity from which a configuration takes less time than off, without overlap."""
    if OFF not in decision.configurations:
        return None
    off = decision.send_s_per_byte[decision.configurations.index(OFF)]
    hashing, sending = decision.hash_s_per_byte[column], decision.send_s_per_byte[column]
    if hashing is None or off is None or not sending:
        return None
    return (hashing + sending - off) / sending
