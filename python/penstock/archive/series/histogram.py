"""Histograms of block latency: the edges of their buckets, and quantiles of what was counted in them.

A bucket is named by the longest time in it, in seconds (`le`). From 1.024 µs to 68.7 s an octave has eight,
so none is wider than an eighth of its lower end, and no quantile farther than that from the value of its
rank.
Buckets that were never met are not told; those that are count for themselves, not for all below, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.errors import BadInput

Array = npt.NDArray[np.float64]

FIRST_NS, LAST_NS = 1 << 10, 1 << 36
PARTS = 8
#: the widest bucket beside its lower end
WIDTH = 1 / PARTS


def lower_edges(le_s: Array) -> Array:
    """The lower end of each bucket [s], that of the last where `le_s` is infinite.

    Raises BadInput for what is no edge of these histograms.
    """
    finite = np.isfinite(le_s)
    ns = np.rint(np.where(finite, le_s, 0.0) * 1e9)
    # the octave of the longest time of the bucket, less the one ns by which it is not the next one's
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
    """The quantile of each column of `counts` (buckets by times), in seconds; NaN where nothing was counted.

    `le_s` ascends. Linear within the bucket; of the last bucket, which has no end, its beginning.
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
