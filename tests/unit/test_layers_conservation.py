"""Bytes of recorded requests compared with the counters of the devices."""

from __future__ import annotations

import pytest

from penstock.observe.trace.layers.tables import conservation

MIB = 1 << 20


def _counters(*mib: int) -> list[dict[str, dict[str, tuple[int, int]]]]:
    return [{"sdx": {"read": (value, value * MIB), "write": (0, 0)}} for value in mib]


def _row(mib: int, *readings: int) -> dict[str, object]:
    requests = [{"major": 0, "minor": 0, "op": 0, "requests": mib, "bytes": mib * MIB}]
    rows = conservation(requests, _counters(*readings), {})
    return next((row for row in rows if row["disk_id"] == "sdx"), {})


@pytest.fixture(autouse=True)
def _name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock.observe.trace.layers.tables.disk_name", lambda major, minor: "sdx"
    )


@pytest.mark.parametrize("seen", [64, 66, 70])
def test_requests_that_complete_at_the_start_or_end_are_not_missing(seen: int) -> None:
    row = _row(seen, 10, 12, 76, 80)
    assert row["device_bytes"] == 64 * MIB
    assert row["device_bytes_max"] == 70 * MIB
    assert row["difference_share"] == 0


@pytest.mark.parametrize(("seen", "share"), [(32, -0.5), (102, 0.5)])
def test_requests_beyond_the_readings_are_a_difference(seen: int, share: float) -> None:
    assert _row(seen, 10, 12, 76, 80)["difference_share"] == share


@pytest.mark.parametrize(("seen", "unseen"), [(60, 4), (64, 0), (70, 0)])
def test_requests_that_only_the_device_counted_are_unseen(seen: int, unseen: int) -> None:
    assert _row(seen, 10, 12, 76, 80)["unseen_requests"] == unseen


def test_an_idle_device_has_no_row() -> None:
    assert conservation([], _counters(10, 10, 10, 10), {}) == []


def test_device_that_appears_during_recording_starts_at_zero() -> None:
    requests = [{"major": 0, "minor": 0, "op": 0, "requests": 5, "bytes": 5 * MIB}]
    counters = [{}, {}, *_counters(5, 5)]
    rows = conservation(requests, counters, {})
    assert [row["device_bytes"] for row in rows] == [5 * MIB]
