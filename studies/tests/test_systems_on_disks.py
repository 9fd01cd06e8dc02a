"""The independent source for real systems: when the tracer's and the disk's bytes must agree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import systems_on_disks
from studies.claims import Result, status

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies" / "systems"))

from witnessed import Seen, distinct_bytes

MIB = 1 << 20


def seen(direction: str, calls: float, places: float, disk: float, size: float = 8) -> Seen:
    """One file, in MiB."""
    return Seen("f", direction, *(int(x * MIB) for x in (calls, places, disk, size)))


def test_ranges_that_overlap_are_counted_once() -> None:
    offset, size = np.array([100, 0, 50, 300]), np.array([50, 60, 20, 1])
    every = np.zeros(400, bool)
    for first, length in zip(offset, size, strict=True):
        every[first : first + length] = True
    assert distinct_bytes(offset, size) == every.sum()


@pytest.mark.parametrize(
    ("file", "direct", "agrees"),
    [
        (seen("read", calls=20, places=8, disk=20), True, True),
        (seen("read", calls=20, places=8, disk=19), True, True),
        (seen("read", calls=20, places=8, disk=18), True, False),
        (seen("read", calls=20, places=8, disk=8), False, True),
        (seen("read", calls=20, places=8, disk=7), False, False),
        (seen("read", calls=20, places=8, disk=20), False, False),
        (seen("read", calls=3, places=2, disk=5), False, None),
        (seen("write", calls=6, places=4, disk=5), False, True),
        (seen("write", calls=6, places=4, disk=3.5), False, False),
        (seen("write", calls=6, places=4, disk=7), False, False),
        (seen("write", calls=6, places=4, disk=5), True, False),
        (seen("write", calls=0, places=0, disk=5), True, False),
    ],
)
def test_agreement_of_the_two_sources(file: Seen, direct: bool, agrees: bool | None) -> None:
    assert file.agrees(direct) is agrees


def rows() -> list[dict[str, Any]]:
    """One valid run of each system on each disk; its two sources agree."""
    return [
        {"system": system, "disk": disk, "certificate": True, "ended_well": True,
         "ratios": [1.0, 1.01], "apart": [], "confirmed": True}
        for system in ("postgres", "rocksdb", "hdfs") for disk in ("hard-disk", "flash")
    ]  # fmt: skip


def test_every_system_on_every_disk_is_a_claim() -> None:
    claims = systems_on_disks.claims_of(rows())
    assert len(claims) == 6
    assert status(claims) == 0
    differing = [{**row, "apart": ["f (read)"], "confirmed": False} for row in rows()]
    assert {c.result for c in systems_on_disks.claims_of(differing)} == {Result.NOT_MET}


@pytest.mark.parametrize("change", [{"certificate": False}, {"ended_well": False}, None])
def test_a_treatment_without_a_valid_run_is_not_measured(change: dict[str, Any] | None) -> None:
    first, *rest = rows()
    claims = systems_on_disks.claims_of([*rest, {**first, **change}] if change else rest)
    missing = [c for c in claims if c.result is Result.NOT_MEASURED]
    assert [c.missing for c in missing] == [("postgres hard-disk",)]
    assert status(claims) == 3


def test_a_study_without_runs_is_not_measured(tmp_path: Path) -> None:
    claims = systems_on_disks.claims_of(systems_on_disks.evaluate_runs(tmp_path))
    assert {c.result for c in claims} == {Result.NOT_MEASURED}
    assert status(claims) == 3
