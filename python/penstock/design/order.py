"""The order of the runs."""

from __future__ import annotations

import numpy as np

ORDER_WHY = {
    "interleaved": "Randomised interleaved trials: each replicate is a complete pass over all treatments in "
    "a fresh random order, so that drift of the host falls on all treatments alike; the pass is the block "
    "of the model.",
    "standard": "Standard order, not shuffled: whatever drifts on the host while the study runs can look "
    "like an effect of the slowest-changing factors.",
}


def run_order(treatments: int, replicates: int, seed: int, order: str) -> list[tuple[int, int]]:
    """(replicate from 1, treatment from 0) in running order.

    The shuffle of one replicate is NumPy's PCG64 permutation keyed by (seed, replicate) alone: replicates
    that are added later leave earlier ones as they were.
    """
    found: list[tuple[int, int]] = []
    for replicate in range(1, replicates + 1):
        places = np.arange(treatments)
        if order == "interleaved":
            generator = np.random.Generator(
                np.random.PCG64([seed & 0xFFFFFFFF, seed >> 32, replicate])
            )
            places = generator.permutation(treatments)
        found += [(replicate, int(i)) for i in places]
    return found
