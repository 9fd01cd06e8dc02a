"""Bandwidth of a device now and over the last minutes, as object stores report it to schedulers.

The form is that of IOStack's monitor of object servers: `insta`, and mean, minimum and maximum over the last
k minutes; `cov` is the share of the window for which there are samples. The statistics are
computed by `swift_bandwidth.py`, which runs inside of Swift.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from penstock.archive.selection import select
from penstock.archive.series.read_series import of_selection
from penstock.archive.series.series import Series, median_step
from penstock.errors import BadInput
from penstock.parts.monitoring.usage.swift_bandwidth import WINDOWS, statistics

MOST_MINUTES = 24 * 60


def bwinfo(
    series: Series,
    now_s: float | None = None,
    windows: Iterable[int] = WINDOWS,
    step_s: float = 1.0,
) -> dict[str, float | None]:
    """Statistics of a series of rates, as `swift_bandwidth.statistics` defines them, in the series' unit.

    `now_s` defaults to the time of the last sample.
    """
    windows = tuple(windows)
    for minutes in windows:
        if not 1 <= minutes <= MOST_MINUTES:
            raise BadInput(f"found a window of {minutes} minutes; expected 1 to {MOST_MINUTES}")
    finite = np.isfinite(series.y)
    at, rate = series.x[finite], series.y[finite]
    if now_s is None:
        now_s = float(at[-1]) if len(at) else 0.0
    recent = at > now_s - 60 * max(windows, default=1)
    samples = list(zip(at[recent].tolist(), rate[recent].tolist(), strict=True))
    return statistics(samples, now_s, windows, step_s)


def as_json(devices: Mapping[str, Mapping[str, Any]]) -> str:
    """The statistics of devices as JSON, by their names."""
    return json.dumps(devices, sort_keys=True, allow_nan=False)


def devices_of(uses: pd.DataFrame) -> dict[str, Series]:
    """Bytes moved per second, read and written together, of every disk among rows of `usage.py` [B/s].

    The names are `DEVICE`, with several hosts `HOST DEVICE`; times in seconds since 1970.
    """
    moved = uses[
        uses["kind"].isin(["disk", "emulated_disk"])
        & uses["metric"].isin(["read_rate", "write_rate"])
    ]
    several = moved["host"].nunique() > 1
    devices = {}
    for (host, device), rows in moved.groupby(["host", "entity"], sort=True):
        # without one of them, as after a reset of its counter, the sum is unknown
        wide = rows.pivot_table(
            index="utc_ns", columns="metric", values="value", aggfunc="last", observed=True
        )
        total = wide.dropna().sum(axis=1)
        name = f"{host} {device}" if several else str(device)
        at = total.index.to_numpy(np.int64) / 1e9
        devices[name] = Series(name, at, total.to_numpy(float), "B/s", str(host), "bandwidth")
    return devices


def bandwidths(
    what: str | None,
    devices: Sequence[str],
    series: Sequence[str],
    windows: Sequence[int],
    watch_s: float,
) -> dict[str, dict[str, Any]]:
    """`bwinfo` of the disks of a bundle, of an experiment, or (None) of this host, sampled for `watch_s`.

    Rates in MB/s, and `unit`; with `series` those series of a bundle, in their own unit. BadInput if
    nothing matches.
    """
    by_name: dict[str, dict[str, Any]] = {}
    if series:
        for one in of_selection(select(str(what))).chosen(series).series:
            by_name[one.name] = {**_now(one, windows), "unit": one.unit}
        return by_name
    for name, one in devices_of(_uses(what, watch_s)).items():
        if not devices or any(fnmatch.fnmatchcase(name, g) for g in devices):
            by_name[name] = {**_now(replace(one, y=one.y / 1e6), windows), "unit": "MB/s"}
    if not by_name:
        suffix = f" called {' or '.join(devices)}" if devices else ""
        raise BadInput(f"{what or 'this host'}: found no disk{suffix}; expected a sampled one")
    return by_name


def _now(series: Series, windows: Sequence[int]) -> dict[str, float | None]:
    return bwinfo(series, windows=windows, step_s=median_step([series]))


def _uses(what: str | None, watch_s: float) -> pd.DataFrame:
    from penstock.parts.monitoring.usage.usage import uses_of, uses_of_tables

    if what is not None:
        return uses_of(what)
    from penstock.parts.monitoring.session import monitor_command

    done = monitor_command(["sleep", f"{watch_s:g}"], 1_000_000_000, None, quiet=True)
    return uses_of_tables(done.result.tables, "this host")
