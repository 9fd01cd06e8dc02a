"""Accuracy of a fitted profile, and advice for a program's requests.

A fit is evaluated by cell: the simulated rate of the profile over the measured rate, once with the cell in
the fit, once with a fit to all others. Advice stays within the measured range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import BadInput
from penstock.profile.cells import Cell, Measurements
from penstock.profile.fit import profile_of, simulated_cell
from penstock.profile.model import StorageProfile
from penstock.text import size

#: deviation of a fitted rate above which it counts as inaccurate
OFF = 0.10
#: ratio up to which rates count as equal, and share of a limit at which it counts as reached
_ALIKE = 1.1
_REACHED = 0.9

#: the same limit for a fitted median or 99th percentile
TAIL_OFF = 0.15
OMITTED, NOT_FITTED = "left out of the fit", "not in the fit"


@dataclass(frozen=True)
class JudgedCell:
    """A cell with its fitted rate, with and without the cell in the fit, over the measured one.

    `fitted` is None if the cell is not in the fit, `held_out` if the other cells are insufficient; `p50` and
    `p99` (fitted over measured) if only rates are known.
    """

    cell: Cell
    fitted: float | None
    held_out: float | None
    p50: float | None = None
    p99: float | None = None

    def document(self) -> dict[str, Any]:
        c = self.cell
        return {
            "operation": c.op,
            "pattern": _pattern(c.sequential),
            "size_bytes": c.block_bytes,
            "jobs": c.streams,
            "depth": c.depth,
            "rate_bps": c.rate_bps,
            "fitted_ratio": self.fitted,
            "held_out_ratio": self.held_out,
        }


def judged(
    profile: StorageProfile, measured: Measurements, judge: list[Cell], one_by_one: bool = True
) -> list[JudgedCell]:
    """Each cell of the fit, with a fit that omits it, and then the cells that are not in the fit."""
    rows = []
    for n, cell in enumerate(measured.cells):
        held_out = None
        if one_by_one:
            rest = measured.cells[:n] + measured.cells[n + 1 :]
            held_out = _without(Measurements(rest, measured.flush, measured.fio_version), cell)
        rows.append(JudgedCell(cell, _ratio(profile, cell), held_out))
    return rows + [JudgedCell(cell, None, _ratio(profile, cell)) for cell in judge]


def _without(rest: Measurements, cell: Cell) -> float | None:
    like = [c for c in rest.cells if (c.op, c.sequential) == (cell.op, cell.sequential)]
    if not any(c.depth == 1 for c in like):
        return None
    try:
        return _ratio(profile_of(rest, "held-out", []), cell)
    except BadInput:
        return None


def _ratio(profile: StorageProfile, cell: Cell) -> float:
    return float(simulated_cell(profile, cell)["iops"]) / cell.rate_iops


def _pattern(sequential: bool) -> str:
    return "sequential" if sequential else "random"


def cell_text(cell: Cell) -> str:
    """`random reads of 4 KiB, 16 in flight`."""
    depth = f", {cell.depth} in flight" if cell.depth > 1 else ""
    return f"{_pattern(cell.sequential)} {cell.op}s of {size(cell.block_bytes)}{depth}"


def _apart(ratio: float) -> float:
    return max(ratio, 1 / max(ratio, 1e-9)) - 1


def not_to_be_used(rows: list[JudgedCell], off: float = OFF) -> list[str]:
    """Deviations of the fit: rates of cells by more than `off`, and times by more than TAIL_OFF."""
    deviations = []
    for row in rows:
        text = cell_text(row.cell)
        for ratio, limit, what in (
            (row.fitted, off, text),
            (row.p50, TAIL_OFF, f"the median time of {text}"),
            (row.p99, TAIL_OFF, f"the 99th percentile of {text}"),
        ):
            if ratio is not None and _apart(ratio) > limit:
                deviations.append(f"{what} (fitted {ratio:.2f} of what was measured)")
    return deviations


def verdict(rows: list[JudgedCell], off: float = OFF) -> str:
    """One sentence on the fit: its largest deviation, with each cell in the fit and without it."""

    def most(ratios: list[float]) -> float:
        return max(map(_apart, ratios), default=0.0)

    fitted = [row.fitted for row in rows if row.fitted is not None]
    sentence = (
        f"rates of the {len(fitted)} cells of the fit agree within {100 * most(fitted):.0f} %"
    )
    for name, times in (
        ("medians", [row.p50 for row in rows if row.p50 is not None]),
        ("99th percentiles", [row.p99 for row in rows if row.p99 is not None]),
    ):
        if times:
            near = sum(_apart(x) <= TAIL_OFF for x in times)
            sentence += f"; of {len(times)} {name} {near} are within {100 * TAIL_OFF:.0f} %"
            sentence += f", the worst is off by {100 * most(times):.0f} %"
    for text, ratios in (
        (OMITTED, [row.held_out for row in rows if row.fitted is not None]),
        (NOT_FITTED, [row.held_out for row in rows if row.fitted is None]),
    ):
        predicted = [x for x in ratios if x is not None]
        if predicted:
            near = sum(_apart(x) <= off for x in predicted)
            sentence += (
                f"; {text}, {near} of {len(predicted)} are predicted within {100 * off:.0f} %, "
                f"the worst is off by {100 * most(predicted):.0f} %"
            )
        if ratios and len(predicted) < len(ratios):
            sentence += f"; {len(ratios) - len(predicted)} cannot be predicted from the others"
    return sentence


def advice(profile: StorageProfile, cells: list[Cell]) -> list[str]:
    """Advice on sizes and depths, within those measured."""
    sentences = []
    for op in ("read", "write"):
        op_cells = [c for c in cells if c.op == op]
        if not op_cells:
            continue
        smallest, largest = (f(c.block_bytes for c in op_cells) for f in (min, max))
        sizes = _powers(smallest, largest)
        depths = _powers(1, max(c.depth for c in op_cells))
        jobs = any(c.streams > 1 for c in op_cells)

        def rate(
            sequential: bool, nbytes: int, depth: int, op: str = op, jobs: bool = jobs
        ) -> float:
            one = np.ones(1)
            cell = Cell(op, sequential, nbytes, depth, depth if jobs else 1, 1.0, one, one)
            return float(simulated_cell(profile, cell)["iops"]) * nbytes

        if {c.sequential for c in op_cells} == {True, False}:
            sentences.append(_of_order(op, sizes, depths, rate))
        sentences.append(_of_limit(op, sizes, depths, rate, all(c.sequential for c in op_cells)))
    return sentences


_Rate = Callable[[bool, int, int], float]


def _powers(first: int, last: int) -> list[int]:
    """`first`, the powers of two up to `last`, and `last`."""
    between = [1 << n for n in range(63) if first < 1 << n < last]
    return sorted({first, *between, last})


def _from(values: list[int], holds: Callable[[int], bool]) -> int | None:
    """First value from which the condition holds for all later ones, None if it does not for the last."""
    first = None
    for value in reversed(values):
        if not holds(value):
            break
        first = value
    return first


def _of_order(op: str, sizes: list[int], depths: list[int], rate: _Rate) -> str:
    def gap(nbytes: int, depth: int) -> float:
        return rate(True, nbytes, depth) / rate(False, nbytes, depth)

    least = sizes[0]
    if max(gap(n, 1) for n in sizes) <= _ALIKE:
        return f"{op}s at random are as fast as in order, whatever their size"
    by_size = _from(sizes, lambda n: gap(n, 1) <= _ALIKE)
    slower = f"{gap(least, 1):.1f} times slower than in order at {size(least)}"
    sentence = f"{op}s at random, one at a time: {slower}"
    if by_size is None:
        sentence += f", still {gap(sizes[-1], 1):.1f} times at {size(sizes[-1])}"
    else:
        sentence += f", as fast from {size(by_size)} on"
    if len(depths) > 1:
        by_depth = _from(depths, lambda d: gap(least, d) <= _ALIKE)
        if by_depth is None:
            sentence += f"; with {depths[-1]} in flight still {gap(least, depths[-1]):.1f} times"
        else:
            sentence += f"; with {by_depth} in flight as fast at {size(least)}, too"
    return sentence


def _of_limit(op: str, sizes: list[int], depths: list[int], rate: _Rate, ordered: bool) -> str:
    most = max(rate(ordered, n, depths[-1]) for n in (sizes[0], sizes[-1]))
    kind = _pattern(ordered)
    sentence = f"{kind} {op}s reach 90 % of {most / 1e6:.0f} MB/s, the most in what was measured,"
    ways = []
    for depth in sorted({1, depths[-1]}):
        enough = _from(sizes, lambda n, d=depth: rate(ordered, n, d) >= _REACHED * most)  # type: ignore[misc]
        many = "one at a time" if depth == 1 else f"with {depth} in flight"
        where = f"from {size(enough)} on" if enough else "at no size"
        if enough == sizes[-1]:
            where = f"only at {size(enough)}, the largest"
        ways.append(f"{many} {where}")
    if len(depths) > 1:
        deep = _from(depths, lambda d: rate(ordered, sizes[-1], d) >= _REACHED * most)
        if deep and deep > 1:
            ways.append(f"at {size(sizes[-1])} with {deep} in flight or more")
    return f"{sentence} {', '.join(ways)}"
