"""Series of the buckets of a histogram: their order, and quantiles of their counts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.archive.series.histogram import lower_edges, quantiles
from penstock.archive.series.series import Array, Series, at_times
from penstock.errors import BadInput, printable

#: a bucket in an entity: `vda le=0.000131072` of samples, `vda 0.000131072` of labels
_BUCKET = re.compile(r"(?:(?P<of>.*)\s)?(?:le=)?(?P<le>\+Inf|[0-9]+(?:\.[0-9]+)?(?:e-[0-9]+)?)")


def by_bucket(series: Sequence[Series]) -> list[Series]:
    """Sort by entity and bucket, longest first; unchanged if not all are buckets."""
    matches = [_BUCKET.fullmatch(s.node) for s in series]
    edges = [(m["of"] or "", float(m["le"])) for m in matches if m]
    try:
        lower_edges(np.array([le for _, le in edges]))
    except BadInput:
        return list(series)
    if len(edges) < len(series):
        return list(series)
    order = sorted(
        range(len(series)), key=lambda i: (series[i].quantity, edges[i][0], -edges[i][1])
    )
    return [series[i] for i in order]


def quantile_series(group: Sequence[Series], q: float, window_s: float | None) -> list[Series]:
    """A quantile over time from the buckets in `group`, one series for each entity.

    At each point, of the counts in the last `window_s` (default: since the previous point). Buckets are
    counters, or, with the unit 1/s, their rates. Raises BadInput for a series that is not a bucket.
    """
    if not 0 <= q <= 1:
        raise BadInput(f"found {q:g}; expected a quantile from 0 to 1")
    if window_s is not None and not (math.isfinite(window_s) and window_s > 0):
        raise BadInput(f"found {window_s:g} s; expected more than 0")
    by_node: dict[str, dict[float, list[Series]]] = {}
    for series in group:
        match = _BUCKET.fullmatch(series.node)
        if match is None:
            raise BadInput(
                f"found {printable(series.name)}; expected buckets such as block_latency_read_requests"
            )
        by_node.setdefault(match["of"] or "", {}).setdefault(float(match["le"]), []).append(series)
    return [_quantile(node, of, q, window_s) for node, of in by_node.items()]


def _quantile(
    node: str, buckets: dict[float, list[Series]], q: float, window_s: float | None
) -> Series:
    le_s = np.array(sorted(buckets))
    every = [s for of_bucket in buckets.values() for s in of_bucket]
    x = np.unique(np.concatenate([s.x for s in every]))
    if len(x) < 2:
        return replace(every[0], x=x[:0], y=x[:0], unit="s", node=node)
    if every[0].unit.endswith("/s"):  # rates start at the second reading
        x = np.concatenate([[x[0] - float(np.median(np.diff(x)))], x])
    counted = np.vstack([np.sum([_counted(s, x) for s in buckets[le]], axis=0) for le in le_s])
    if window_s is None:
        before = np.arange(len(x) - 1)
    else:
        # tolerance of half a nanosecond: times are seconds, rounded
        before = np.searchsorted(x, x[1:] - window_s + 5e-10, side="right") - 1
        before = np.clip(before, 0, np.arange(len(x) - 1))
    counts = counted[:, 1:] - counted[:, before]
    y = quantiles(np.maximum(counts, 0.0), le_s, q)
    # a counter decreased: the count is unknown
    y[(counts < 0).any(axis=0)] = np.nan
    return replace(every[0], x=x[1:], y=y, unit="s", node=node)


def _counted(series: Series, x: Array) -> Array:
    """Requests of a bucket up to each time; none before its first appearance."""
    if series.unit.endswith("/s"):
        rate = np.nan_to_num(at_times(series, x, "exact"))
        return np.cumsum(rate * np.diff(x, prepend=x[0]))
    return np.nan_to_num(at_times(series, x, "last"))
