"""Bandwidth of a device now and over the last minutes, as object stores report it to schedulers.

The form is that of IOStack's monitor of object servers: `insta`, and mean, minimum and maximum over the last
k minutes; `cov` is the share of the window for which there are samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock.archive.series import Series
from penstock.errors import BadInput

#: minutes
WINDOWS = (1, 2, 3, 5)
MOST_MINUTES = 24 * 60


def bwinfo(
    series: Series,
    now_s: float | None = None,
    windows: Iterable[int] = WINDOWS,
    step_s: float = 1.0,
) -> dict[str, float | None]:
    """Statistics of a series of rates over windows (now - 60 k, now], k minutes each.

    A sample is stamped at its end and stands for the `step_s` before. `now_s` is the time of the last
    sample unless given. Samples that are not there count in `cov` (0 to 1) alone; of a window without any,
    the others are None. `insta` is the sample of the last `step_s`, None where there is none. Values have
    the unit of the series.
    """
    whole = np.isfinite(series.y)
    at, rate = series.x[whole], series.y[whole]
    if now_s is None:
        now_s = float(at[-1]) if len(at) else 0.0
    found: dict[str, float | None] = {}
    latest = rate[(at > now_s - step_s) & (at <= now_s)]
    found["insta"] = float(latest[-1]) if len(latest) else None
    for minutes in windows:
        if not 1 <= minutes <= MOST_MINUTES:
            raise BadInput(f"found a window of {minutes} minutes; expected 1 to {MOST_MINUTES}")
        inside = rate[(at > now_s - 60 * minutes) & (at <= now_s)]
        there = len(inside) > 0
        found[f"mean{minutes}min"] = float(inside.mean()) if there else None
        found[f"min{minutes}min"] = float(inside.min()) if there else None
        found[f"max{minutes}min"] = float(inside.max()) if there else None
        due = math.floor(60 * minutes / step_s)
        found[f"cov{minutes}min"] = min(1.0, len(inside) / due)
    return found


def as_json(devices: Mapping[str, Mapping[str, Any]]) -> str:
    """The statistics of devices as JSON, by their names."""
    return json.dumps(devices, sort_keys=True, allow_nan=False)
