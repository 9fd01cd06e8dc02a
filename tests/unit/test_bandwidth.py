"""Bandwidth windows: statistics of a known ramp, and partly covered windows."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock.archive.series.series import Series
from penstock.errors import BadInput
from penstock.observe.sampler.samples import SAMPLES_SCHEMA
from penstock.observe.sampler.utilisation import utilisation
from penstock.parts.monitoring.usage.bandwidth import as_json, bwinfo, devices_of
from penstock.parts.monitoring.usage.usage import uses_of_tables


def ramp(low: int = 1, high: int = 360) -> Series:
    times = np.arange(float(low), high + 1)
    return Series("sda", times, times.copy(), "MB/s")


def test_a_ramp_of_six_minutes() -> None:
    windows = bwinfo(ramp())
    assert windows["insta"] == 360
    assert [windows[f"mean{k}min"] for k in (1, 2, 3, 5)] == [330.5, 300.5, 270.5, 210.5]
    assert [windows[f"min{k}min"] for k in (1, 2, 3, 5)] == [301, 241, 181, 61]
    assert [windows[f"max{k}min"] for k in (1, 2, 3, 5)] == [360] * 4
    assert [windows[f"cov{k}min"] for k in (1, 2, 3, 5)] == [1] * 4


def test_missing_values_reduce_the_coverage() -> None:
    series = ramp(331)
    series.y[-1] = np.nan
    windows_of_ramp = bwinfo(series, now_s=360.0, windows=[1, 2])
    assert windows_of_ramp["insta"] is None
    assert windows_of_ramp["mean1min"] == np.arange(331, 360).mean()
    assert windows_of_ramp["cov1min"] == 29 / 60
    assert windows_of_ramp["cov2min"] == 29 / 120
    nothing = bwinfo(series, now_s=1000.0, windows=[1])
    assert nothing == {
        "insta": None,
        "mean1min": None,
        "min1min": None,
        "max1min": None,
        "cov1min": 0.0,
    }
    assert json.loads(as_json({"sda": nothing}))["sda"]["mean1min"] is None
    with pytest.raises(BadInput, match="window of 0 minutes"):
        bwinfo(series, windows=[0])


def test_a_sample_may_be_longer_than_a_window() -> None:
    """Fails with a division by the 0 samples that are due in a minute."""
    times = np.arange(120.0, 721.0, 120.0)
    series = Series("sda", times, times / 120, "MB/s")
    windows = bwinfo(series, windows=[1, 2, 5], step_s=120.0)
    assert [windows[f"mean{k}min"] for k in (1, 2, 5)] == [6.0, 6.0, 5.0]
    assert [windows[f"cov{k}min"] for k in (1, 2, 5)] == [1.0, 1.0, 1.0]


def test_windows_of_a_sampled_disk_agree_with_transferred_bytes() -> None:
    """Known counters of a disk, sampled slightly early or late, for ten seconds.

    Fails if rates refer to the nominal interval, one direction is missing, or a unit is wrong.
    """
    random = np.random.default_rng(3)
    at_ns = 10**9 * np.arange(11) + np.append(0, random.integers(-10_000_000, 10_000_000, 10))
    read, written = random.integers(1_000_000, 400_000_000, (2, 10))
    rows = [
        (int(t), "disk", "vda", metric, "B", 5e9 + float(moved), True)
        for metric, bytes_ in (
            *(("read_bytes", read), ("written_bytes", written)),
            ("io_time", 0 * read),  # a disk needs it
        )
        for t, moved in zip(at_ns, np.append(0, np.cumsum(bytes_)), strict=True)
    ]
    frame = pd.DataFrame(sorted(rows), columns=SAMPLES_SCHEMA.names)
    samples = pa.Table.from_pandas(frame, schema=SAMPLES_SCHEMA, preserve_index=False)
    rates = utilisation(samples, hz=100, link_bps={})
    (series,) = devices_of(uses_of_tables({"utilisation": rates}, "host")).values()
    windows = bwinfo(series, windows=[1])
    moved = (read + written) / (np.diff(at_ns) / 1e9)
    assert windows["mean1min"] * 10 == pytest.approx((read + written).sum(), rel=0.02)
    assert windows["min1min"] == pytest.approx(moved.min(), rel=0.02)
    assert windows["max1min"] == pytest.approx(moved.max(), rel=0.02)
    assert windows["insta"] == pytest.approx(moved[-1], rel=0.02)
