"""Bandwidth windows: the statistics of a known ramp, and windows that are covered in part."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.archive.series import Series
from penstock.errors import BadInput
from penstock.observe.monitor.bandwidth import as_json, bwinfo


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
