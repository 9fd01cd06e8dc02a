"""Bandwidth windows: the statistics of a known ramp, and windows that are covered in part."""

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
    at = np.arange(float(low), high + 1)
    return Series("sda", at, at.copy(), "MB/s")


def test_a_ramp_of_six_minutes() -> None:
    found = bwinfo(ramp())
    assert found["insta"] == 360
    assert [found[f"mean{k}min"] for k in (1, 2, 3, 5)] == [330.5, 300.5, 270.5, 210.5]
    assert [found[f"min{k}min"] for k in (1, 2, 3, 5)] == [301, 241, 181, 61]
    assert [found[f"max{k}min"] for k in (1, 2, 3, 5)] == [360] * 4
    assert [found[f"cov{k}min"] for k in (1, 2, 3, 5)] == [1] * 4


def test_what_is_missing_is_no_zero_but_less_coverage() -> None:
    series = ramp(331)
    series.y[-1] = np.nan
    found = bwinfo(series, now_s=360.0, windows=[1, 2])
    assert found["insta"] is None
    assert found["mean1min"] == np.arange(331, 360).mean()
    assert found["cov1min"] == 29 / 60
    assert found["cov2min"] == 29 / 120
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


def test_windows_of_a_sampled_disk_agree_with_what_was_transferred() -> None:
    """Counters of a disk whose bytes are known, sampled a little early or late, for ten seconds.

    Breaks where rates are of the nominal interval, where one direction is left out, or a unit is mistaken.
    """
    draw = np.random.default_rng(3)
    at_ns = 10**9 * np.arange(11) + np.append(0, draw.integers(-10_000_000, 10_000_000, 10))
    read, written = draw.integers(1_000_000, 400_000_000, (2, 10))
    rows = [
        (int(t), "disk", "vda", metric, "B", 5e9 + float(moved), True)
        for metric, bytes_ in (
            *(("read_bytes", read), ("written_bytes", written)),
            ("io_time", 0 * read),  # without it no disk is known
        )
        for t, moved in zip(at_ns, np.append(0, np.cumsum(bytes_)), strict=True)
    ]
    frame = pd.DataFrame(sorted(rows), columns=SAMPLES_SCHEMA.names)
    samples = pa.Table.from_pandas(frame, schema=SAMPLES_SCHEMA, preserve_index=False)
    rates = utilisation(samples, hz=100, link_bps={})
    (series,) = devices_of(uses_of_tables({"utilisation": rates}, "host")).values()
    found = bwinfo(series, windows=[1])
    moved = (read + written) / (np.diff(at_ns) / 1e9)
    assert found["mean1min"] * 10 == pytest.approx((read + written).sum(), rel=0.02)
    assert found["min1min"] == pytest.approx(moved.min(), rel=0.02)
    assert found["max1min"] == pytest.approx(moved.max(), rel=0.02)
    assert found["insta"] == pytest.approx(moved[-1], rel=0.02)
