"""Run order: complete passes, and orders that share settings of factors that are costly to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: choices in a study file; `orders.py` resolves `auto`
AUTO, INTERLEAVED, RANDOM, STANDARD = "auto", "interleaved", "random", "standard"
#: complete passes, each in blocks (`design.block_size`)
BLOCKS = "blocks"
SPLIT_PLOT, SPLIT_PLOT_RANDOM, STRIP_PLOT = "split-plot", "split-plot-random", "strip-plot"
#: orders that share settings over several runs
RESTRICTED = (SPLIT_PLOT, SPLIT_PLOT_RANDOM, STRIP_PLOT)

ORDER_WHY = {
    INTERLEAVED: "Randomised interleaved trials: each replicate is a complete pass over all treatments in "
    "a new random order, so drift of the host affects all treatments alike. The pass is the block of the "
    "model.",
    BLOCKS: "Randomised blocks: each replicate is a complete pass over all treatments, divided into blocks "
    "of {size} runs. The blocks of a pass are in random order, and so are the runs of a block, so changes of "
    "the host from block to block affect only the difference between blocks. The block is that of the model.",
    RANDOM: "Completely randomised: all runs of all replicates in one random order, without blocks.",
    STANDARD: "Standard order, not shuffled: drift of the host during the study can look like an effect of "
    "the factors that change most slowly.",
    SPLIT_PLOT: "Split-plot: in each pass every setting of {hard} (a whole plot) occurs once, in random "
    "order, with its treatments in random order within it. The pass is the block of the model. Effects of "
    "{hard} are tested against the variation of whole plots, all others against that of runs within one.",
    SPLIT_PLOT_RANDOM: "Split-plot: the settings of {hard} (whole plots) of all replicates are in one random "
    "order, the treatments of each in random order within it, without blocks. Effects of {hard} are tested "
    "against the variation of whole plots, all others against that of runs within one.",
    STRIP_PLOT: "Strip-plot: in each pass every setting of {hard} and every setting of {strips} is set up "
    "once, each in random order, and all runs of the pass share them. The pass is the block of the model. "
    "This requires that the settings of {strips} can exist at the same time, as prepared data can. Effects "
    "of either are tested against the variation of its settings, all others against that of runs.",
}


@dataclass(frozen=True)
class Place:
    """One run in running order: replicate from 1, treatment from 0, numbers of the shared settings from 1
    (0: not shared); `block` from 1 if passes are cut into blocks, else 0."""

    replicate: int
    treatment: int
    whole_plot: int = 0
    strip: int = 0
    block: int = 0


def places_in_blocks(blocks: Sequence[NDArray[np.integer[Any]]], seed: int) -> list[Place]:
    """Runs of passes in running order; `blocks`: for each pass, the block of each treatment, from 0.

    Random permutations are keyed as in `run_order`: order of treatments, then of blocks.
    """
    in_order: list[Place] = []
    before = 0
    for replicate, block in enumerate(blocks, start=1):
        several = int(block.max()) + 1
        rank = _generator(seed, replicate, 0).permutation(several)
        shuffled = _generator(seed, replicate).permutation(len(block))
        for treatment in sorted((int(i) for i in shuffled), key=lambda i: int(rank[block[i]])):
            number = before + int(rank[block[treatment]]) + 1
            in_order.append(Place(replicate, treatment, block=number))
        before += several
    return in_order


def run_order(treatments: int, replicates: int, seed: int, order: str) -> list[tuple[int, int]]:
    """(replicate from 1, treatment from 0) in running order.

    The shuffle of one replicate is NumPy's PCG64 permutation keyed by (seed, replicate) alone, so that
    additional replicates do not change earlier ones.
    """
    pairs: list[tuple[int, int]] = []
    for replicate in range(1, replicates + 1):
        places = np.arange(treatments)
        if order == INTERLEAVED:
            places = _generator(seed, replicate).permutation(treatments)
        pairs += [(replicate, int(i)) for i in places]
    if order == RANDOM:
        pairs = [pairs[i] for i in _generator(seed, 0).permutation(len(pairs))]
    return pairs


def places(
    levels: NDArray[np.integer[Any]],
    replicates: int,
    seed: int,
    order: str,
    hard: Sequence[int] = (),
    strips: Sequence[int] = (),
) -> list[Place]:
    """The runs of a matrix of level numbers (treatments × factors) in running order.

    `hard`: columns of the factors whose settings are whole plots (the rows of a strip-plot); `strips`:
    those of its columns. Random permutations are keyed as in `run_order`.
    """
    if order not in RESTRICTED:
        return [Place(*pair) for pair in run_order(len(levels), replicates, seed, order)]
    row = _settings(levels, hard)
    column = _settings(levels, strips)
    plots: list[tuple[int, int]] = []
    for replicate in range(1, replicates + 1):
        shuffled = _generator(seed, replicate).permutation(int(row.max()) + 1)
        plots += [(replicate, int(setting)) for setting in shuffled]
    if order == SPLIT_PLOT_RANDOM:
        plots = [plots[i] for i in _generator(seed, 0).permutation(len(plots))]
    in_order = []
    columns = int(column.max()) + 1
    for number, (replicate, setting) in enumerate(plots, start=1):
        shuffle = _generator(seed, replicate, setting + 1).permutation
        inside = [int(i) for i in shuffle(np.flatnonzero(row == setting))]
        if order == STRIP_PLOT:
            rank = _generator(seed, replicate, 0).permutation(columns)
            inside.sort(key=lambda i: int(rank[column[i]]))
        for treatment in inside:
            strip = 0
            if order == STRIP_PLOT:
                strip = (replicate - 1) * columns + int(column[treatment]) + 1
            in_order.append(Place(replicate, treatment, number, strip))
    return in_order


def _settings(levels: NDArray[np.integer[Any]], columns: Sequence[int]) -> NDArray[np.integer[Any]]:
    """Number of each treatment's setting of some factors."""
    if not len(columns):
        return np.zeros(len(levels), dtype=np.int64)
    numbers = np.unique(levels[:, list(columns)], axis=0, return_inverse=True)[1]
    return np.asarray(numbers.reshape(-1))


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed & 0xFFFFFFFF, seed >> 32, *key]))
