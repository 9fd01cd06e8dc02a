"""Bandwidth of a device now and over the last minutes, as object stores report it to schedulers.

The form is that of IOStack's monitor of object servers: `insta`, and mean, minimum and maximum over the last
k minutes; `cov` is the share of the window for which there are samples. The statistics themselves stand in
`swift_bandwidth.py`, which runs inside of Swift.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock.archive.series import Series
from penstock.errors import BadInput
from penstock.observe.monitor.swift_bandwidth import WINDOWS, statistics

MOST_MINUTES = 24 * 60


def bwinfo(
    series: Series,
    now_s: float | None = None,
    windows: Iterable[int] = WINDOWS,
    step_s: float = 1.0,
) -> dict[str, float | None]:
    """Statistics of a series of rates, as `swift_bandwidth.statistics` defines them, in the series' unit.

    `now_s` is the time of the last sample unless given.
    """
    windows = tuple(windows)
    for minutes in windows:
        if not 1 <= minutes <= MOST_MINUTES:
            raise BadInput(f"found a window of {minutes} minutes; expected 1 to {MOST_MINUTES}")
    whole = np.isfinite(series.y)
    at, rate = series.x[whole], series.y[whole]
    if now_s is None:
        now_s = float(at[-1]) if len(at) else 0.0
    recent = at > now_s - 60 * max(windows, default=1)
    samples = list(zip(at[recent].tolist(), rate[recent].tolist(), strict=True))
    return statistics(samples, now_s, windows, step_s)


def as_json(devices: Mapping[str, Mapping[str, Any]]) -> str:
    """The statistics of devices as JSON, by their names."""
    return json.dumps(devices, sort_keys=True, allow_nan=False)
