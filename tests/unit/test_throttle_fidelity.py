"""Certificates of throttled disks from the kernel's counters, with rates made up to be right and wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.analyse.throttled import throttle_fidelity
from penstock.emulate.backends.counters import as_table

SECOND = 1_000_000_000


def windows(amounts: Sequence[float], limit: float | None = 4e6, **more: Any) -> Any:
    rows = [
        {
            "t_ns": (k + 1) * SECOND,
            "window_ns": SECOND,
            "disk_id": "d",
            "direction": "read",
            "bytes": int(amount),
            "ops": int(amount // 65536),
            "limit_bps": limit,
            "limit_iops": None,
            **more,
        }
        for k, amount in enumerate(amounts)
    ]
    return as_table(rows)


@pytest.mark.parametrize(
    ("amounts", "verdict"),
    [
        ([0, 2e6, 4e6, 4e6, 4.05e6, 1e6], "honoured"),
        ([0, 2e6, 3.5e6, 3.5e6, 3.5e6, 1e6], "demand-bound"),
        ([6e6, 6e6, 4e6, 4e6, 4e6, 4e6], "burst"),
        ([6e6], "not-honoured"),
        ([5e6, 0, 0], "burst"),
        ([2e6, 1e6], "too-short"),
        ([2e6, 6e6, 6e6, 6e6, 6e6], "not-honoured"),
        # planted: 10 % above the limit, steadily
        ([2e6, 4.4e6, 4.4e6, 4.4e6, 2e6], "not-honoured"),
        ([0, 0], "demand-bound"),
    ],
)
def test_rates_against_their_limit(amounts: list[float], verdict: str) -> None:
    (row,) = throttle_fidelity(windows(amounts)).to_pylist()
    assert row["verdict"] == verdict, row
    assert row["valid"] == (verdict in ("honoured", "demand-bound", "device-bound"))
    assert row["metric"] == "rate_read"


def test_ea_08_a_limit_above_the_capability_is_the_device_s() -> None:
    table = windows([1e6, 3e6, 3e6, 3e6, 1e6], limit=12e6)
    (row,) = throttle_fidelity(table, capability_bps={"read": 3e6}).to_pylist()
    assert (row["verdict"], row["valid"]) == ("device-bound", True)
    assert "3.0 MB/s" in row["reason"]
    (row,) = throttle_fidelity(table, capability_bps={"read": 20e6}).to_pylist()
    assert row["verdict"] == "demand-bound"


def test_a_direction_without_a_limit_has_no_row() -> None:
    assert throttle_fidelity(windows([1e6, 2e6], limit=None)).num_rows == 0


def test_operations_are_judged_by_their_own_limit() -> None:
    table = windows([0, 65536 * 50, 65536 * 100, 65536 * 100, 65536 * 40], limit=None)
    table = table.set_column(7, "limit_iops", [[100.0] * 5])
    (row,) = throttle_fidelity(table).to_pylist()
    assert (row["metric"], row["verdict"], row["unit"]) == ("iops_read", "honoured", "1/s")
