"""Errors of a model from half of the points, on storages with every point measured.

`python -m tests.unit.blackbox_halves` prints them for the recorded grids of
tests/golden/blackbox-grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from penstock.parts.prediction.black_box.features import features, matrix
from penstock.parts.prediction.black_box.model import learner
from penstock.parts.prediction.black_box.plan import next_round
from penstock.parts.prediction.black_box.space import DIMENSIONS, Point, Space
from penstock.parts.prediction.black_box.surrogate import completed

RECORDED = Path(__file__).parents[1] / "golden" / "blackbox-grid" / "points.parquet"
#: (space, measured, pool, total, seed) → next points; none when there are enough
Choice = Callable[..., list[Point]]


@dataclass(frozen=True)
class Halves:
    """Mean errors over seeds: the complete pool, half of it chosen, half at random."""

    grid: float
    chosen: float
    random: float


def halves(
    kind: str,
    space: Space,
    truth: Mapping[Point, float],
    choose: Choice,
    seeds: Sequence[int] = (1, 2, 3),
) -> Halves:
    """Errors with the published complete pool (three quarters), and with half of it."""
    grid, columns = space.grid(), features(space)

    def error(points: list[Point], rates: Sequence[float], held_out: list[Point]) -> float:
        model = learner(kind).fit(matrix(columns, points), np.asarray(rates))
        actual = np.array([truth[p] for p in held_out])
        return float(np.mean(np.abs(model.predict(matrix(columns, held_out)) / actual - 1)))

    rows = []
    for seed in seeds:
        order = [grid[i] for i in np.random.default_rng(seed).permutation(len(grid))]
        held_out, pool = order[: len(grid) // 4], order[len(grid) // 4 :]
        half = len(pool) // 2
        measured: dict[Point, float] = {}
        while new := choose(space, measured, pool, half, seed):
            measured.update((p, truth[p]) for p in new)
        assert len(measured) == half
        points, rates = completed(space, list(measured), list(measured.values()))
        at_random = pool[:half]
        rows.append(
            (
                error(pool, [truth[p] for p in pool], held_out),
                error(points, rates.tolist(), held_out),
                error(at_random, [truth[p] for p in at_random], held_out),
            )
        )
    return Halves(*np.mean(rows, axis=0))


def recorded() -> dict[str, tuple[Space, dict[Point, float]]]:
    """Disks → their space, and measured bytes/s of one client at each of its points."""
    by_disk = {}
    for disk, rows in pd.read_parquet(RECORDED).groupby("disk"):
        names = [d for d in DIMENSIONS if d in rows]  # recorded before nodes were a dimension
        points = [Point(**row) for row in rows[names].to_dict("records")]
        space = Space.from_dict({d: list(dict.fromkeys(rows[d])) for d in names})
        by_disk[str(disk)] = (space, dict(zip(points, rows["throughput_bps"], strict=True)))
    return by_disk


if __name__ == "__main__":
    for disk, (space, truth) in recorded().items():
        for kind in ("tree", "boosted"):
            row = halves(kind, space, truth, next_round)
            text = (
                f"all {row.grid:.1%}, half chosen {row.chosen:.1%}, half at random {row.random:.1%}"
            )
            print(f"{disk} ({len(truth)} points), {kind}: {text}")
