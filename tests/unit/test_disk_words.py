"""Changes of a disk as assignments: exact units, and refusal of invalid values."""

from __future__ import annotations

import pytest

from penstock.errors import BadInput
from penstock.platform.disk_keys import patch_of


def test_units_are_exact():
    assignments = ["limits.read=10MB/s", "limits.write=10MiB/s", "limits.read_iops=500 IOPS"]
    assert patch_of(assignments) == {
        "limits": {"read_bps": 10_000_000.0, "write_bps": 10_485_760.0, "read_iops": 500.0}
    }
    assert patch_of(["limits.read=80Mbit/s"])["limits"]["read_bps"] == 10e6
    for text in ("500/s", "500 ops/s", "500 1/s", "30000/min", "0.5/ms"):
        assert patch_of([f"limits.write_iops={text}"])["limits"]["write_iops"] == 500


def test_features_and_their_reset():
    assert patch_of(
        ["slow.stall.period=2s", "slow.stall.length=200ms", "bad_space.share=50%", "cache=off"]
    ) == {
        "slow": {"stall": {"period_s": 2.0, "length_s": 0.2}, "factor": 1.0},
        "bad_space": {"share": 0.5, "mode": "error"},
        "cache": False,
    }
    assert patch_of(["slow=max", "bad_space=max", "limits.read=max", "servers=max"]) == {
        "slow": None,
        "bad_space": None,
        "limits": {"read_bps": None},
        "servers": None,
    }
    assert patch_of(["faults=[{op: read, probability: 1%, from: 4KiB, error: ETIMEDOUT}]"]) == {
        "faults": [
            {"op": "read", "error": "ETIMEDOUT", "mode": "error", "from": 4096, "probability": 0.01}
        ]
    }


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["limits.read=10"], "with its unit"),
        (["limits.read=-10MB/s"], "MB/s"),
        (["limits.read=10MiB"], "bandwidth with a unit of its kind"),
        (["limits.read=10B/s"], "from 1 kB/s"),
        (["limits.read_iops=500"], "500 IOPS"),
        (["limits.read_iops=500/MB"], "500 IOPS"),
        (["limits.read_iops=nan/s"], "500 IOPS"),
        (["limits.speed=10MB/s"], "one of limits.read"),
        (["slow.factor=nan"], "above 0"),
        (["read_only=maybe"], "true or false"),
        (["bad_space.seed=1"], "bad_space.share"),
        (["bad_space.share=130%"], "at most 100%"),
        (["faults=[{op: reed}]"], "a list of rules"),
        (["limits.read=max", "limits.read=1MB/s"], "twice"),
        (["limits=max", "limits.read=1MB/s"], "found it with limits=max"),
        (["read_only"], "key=value"),
    ],
)
def test_invalid_assignments_are_refused(assignments: list[str], message: str):
    with pytest.raises(BadInput) as refused:
        patch_of(assignments)
    assert message in str(refused.value)
