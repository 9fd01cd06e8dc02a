"""Histograms of block latency: edges of their buckets, and quantiles of their counts.

A bucket's name is its upper edge in seconds (`le`). From 1.024 µs to 68.7 s an octave has eight buckets, so
the width of each, and the error of a quantile, is at most an eighth of its lower edge. Empty buckets are not
reported; counts are not cumulative.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.errors import BadInput

Array = npt.NDArray[np.float64]

FIRST_NS, LAST_NS = 1 << 10, 1 << 36
PARTS = 8
#: width of the widest bucket relative to its lower edge
WIDTH = 1 / PARTS


def lower_edges(le_s: Array) -> Array:
    """Lower edge of each bucket [s], that of the last if `le_s` is infinite.

    Raises BadInput for an invalid edge.
    """
    finite = np.isfinite(le_s)
    ns = np.rint(np.where(finite, le_s, 0.0) * 1e9)
    # octave of the bucket's longest time, minus 1 ns to stay below the next bucket
    octave = np.frexp(np.maximum(ns - 1, 1))[1] - 1
    width = np.where(ns == FIRST_NS, ns, 2.0**octave / PARTS)
    right = (np.abs(ns - le_s * 1e9) < 1e-3) & (ns >= FIRST_NS) & (ns <= LAST_NS)
    right &= (ns == FIRST_NS) | (np.mod(ns, width) == 0)
    wrong = np.flatnonzero(finite & ~right)
    if len(wrong):
        raise BadInput(
            f"found a bucket up to {le_s[wrong[0]]:g} s; expected edges of block_latency, eight an octave"
        )
    return np.where(finite, (ns - width) / 1e9, LAST_NS / 1e9)


def quantiles(counts: Array, le_s: Array, q: float) -> Array:
    """Quantile of each column of `counts` (buckets by times), in seconds; NaN for empty columns.

    `le_s` ascends. Interpolates linearly within the bucket; in the unbounded last bucket, its lower edge.
    """
    lower = lower_edges(le_s)
    upper = np.where(np.isfinite(le_s), le_s, lower)
    up_to = np.cumsum(counts, axis=0)
    total = up_to[-1]
    rank = q * total
    at = np.argmax((up_to >= rank) & (counts > 0), axis=0)
    columns = np.arange(counts.shape[1])
    inside = counts[at, columns]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip((rank - (up_to[at, columns] - inside)) / inside, 0.0, 1.0)
    return np.where(total > 0, lower[at] + share * (upper[at] - lower[at]), np.nan)
