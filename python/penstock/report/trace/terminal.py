"""A file's offsets against request number as characters: braille if the terminal supports it, else ASCII."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.analyse.traces.traced_run import TracedRun
from penstock.report.trace.columns import KIND_MASK, WRITE, batches
from penstock.report.trace.gather import Totals
from penstock.text import size

#: bits of the dots of a braille character by row from the top, left and right
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_EMPTY = 0x2800


def offsets_figure(
    run: TracedRun, file: Totals, columns: int = 72, rows: int = 14, *, braille: bool = True
) -> list[list[tuple[str, str]]]:
    """Lines of (text, what) parts; `what` is `read`, `write`, `both`, `axis` or ``.

    `file`: totals of the drawn file (report.trace.gather). Reads are dots, cells with writes only are `×`,
    with both `▒`; in ASCII `.`, `x` and `#`.
    """
    drawn = sum(file["drawn"][:2])
    wide, tall = (columns * 2, rows * 4) if braille else (columns, rows)
    counts = np.zeros((2, wide, tall), np.int64)
    low, high = int(file["low"]), max(int(file["end"]), int(file["low"]) + 1)
    low = 0 if low < 0.1 * high else low
    before = 0
    for batch in batches(run):
        here = batch.drawn(file["file_id"]) & ((batch.kind & KIND_MASK) <= WRITE)
        n = int(here.sum())
        x = (before + np.arange(n)) * wide // max(drawn, 1)
        y = ((batch.offset_bytes[here] - low) * (tall / (high - low))).astype(np.int64)
        write = ((batch.kind[here] & KIND_MASK) == WRITE).astype(np.int64)
        cell = (write * wide + x.clip(0, wide - 1)) * tall + y.clip(0, tall - 1)
        counts += np.bincount(cell, minlength=counts.size).reshape(counts.shape)
        before += n
    return _lines(counts[:, :, ::-1] > 0, (low, high), drawn, columns, rows, braille)


def _lines(
    dots: np.ndarray[Any, Any],
    span: tuple[int, int],
    drawn: int,
    columns: int,
    rows: int,
    braille: bool,
) -> list[list[tuple[str, str]]]:
    labels = [size(span[1]), size(span[0])]
    margin = max(map(len, labels))
    lines: list[list[tuple[str, str]]] = []
    height, width = (4, 2) if braille else (1, 1)
    for row in range(rows):
        label = labels[0] if row == 0 else labels[1] if row == rows - 1 else ""
        line = [(f"{label:>{margin}} │" if braille else f"{label:>{margin}} |", "axis")]
        for column in range(columns):
            here = (
                slice(column * width, (column + 1) * width),
                slice(row * height, (row + 1) * height),
            )
            line.append(_character(dots[0][here].T, dots[1][here].T, braille))
        lines.append(_joined(line))
    corner, rule = ("└", "─") if braille else ("+", "-")
    lines.append([(" " * (margin + 1) + corner + rule * columns, "axis")])
    last = f"request {drawn:,}"
    lines.append([(" " * (margin + 2) + "0" + last.rjust(columns - 1), "axis")])
    return lines


def _character(
    reads: np.ndarray[Any, Any], writes: np.ndarray[Any, Any], braille: bool
) -> tuple[str, str]:
    if reads.any() and writes.any():
        return ("▒" if braille else "#", "both")
    if writes.any():
        return ("×" if braille else "x", "write")
    if not reads.any():
        return " ", ""
    return (chr(_EMPTY + int((_DOTS * reads).sum())) if braille else ".", "read")


def _joined(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Adjacent parts of one kind merged."""
    joined: list[tuple[str, str]] = []
    for text, what in parts:
        if joined and joined[-1][1] == what:
            joined[-1] = (joined[-1][0] + text, what)
        else:
            joined.append((text, what))
    return joined


_STYLES = {"read": "blue", "write": "dark_orange", "both": "magenta", "axis": "dim", "": ""}


def print_offsets(run: TracedRun, file: Totals, name: str, console: Any, rows: int = 12) -> None:
    """Print the figure on a Rich console, with a legend above it: dots are reads, × writes, ▒ both."""
    from rich.text import Text

    braille = (console.encoding or "").lower().startswith("utf")
    marks = "dots are reads, × writes, ▒ both" if braille else ". reads, x writes, # both"
    drawn = sum(file["drawn"][:2])
    console.print(Text(f"{name}: offset against request number; {marks}"))
    columns = max(20, min(console.width, 100) - 14)
    for line in offsets_figure(run, file, columns, rows, braille=braille):
        text = Text()
        for part, what in line:
            text.append(part, style=_STYLES[what])
        console.print(text, no_wrap=True, crop=True)
    console.print(Text(f"shown {drawn:,} of {drawn:,} requests, as counts per cell"), style="dim")
