"""Fidelity certificates per second: changes during the run, counters, and confirmation by fio."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock import _native as native
from penstock.analyse.fidelity.fidelity import certificate, is_valid
from penstock.analyse.fidelity.fidelity_counters import fidelity_of_counters
from penstock.analyse.fidelity.fidelity_windows import active_at
from penstock.analyse.fidelity.fio_witness import confirm_fio
from penstock.emulate.disks.recorded import Recorded
from penstock.profile import load_profile

S, MS, MIB = 1_000_000_000, 1_000_000, 1 << 20


def profile_of(service_s: float, **more: Any) -> str:
    overhead = {"overhead": {"kind": "constant", "value_s": service_s}}
    both = {"sequential": overhead, "random": overhead}
    values = {"schema": "penstock/storage-profile/1", "name": "p", "servers": 1}
    return json.dumps({**values, "read": both, "write": both, **more})


def event(at_ns: int, error: str | None = None, **requested: Any) -> dict[str, Any]:
    return {
        "planned_ns": at_ns,
        "applied_ns": at_ns,
        "asked": requested,
        "found": requested,
        "error": error,
    }


def run(
    profile: str,
    seconds: float,
    events: list[dict[str, Any]] | None = None,
    *,
    op: int = 0,
    size: int = 4096,
    slowdown: Any = lambda t_ns: 1.0,
    follow: bool = True,
) -> pa.Table:
    """Log of one client on a device with the changes `events`, slower by the factor `slowdown`.

    The device ignores the changes if `follow` is false.
    """
    t, rows, applied = 1000 * S, [], events or []
    free = 0
    while t < 1000 * S + seconds * S:
        n = len(rows)
        changes = [
            (0, e["applied_ns"], json.dumps(e["asked"]))
            for e in applied
            if follow and e["applied_ns"] <= t
        ]
        # the idle device at t; `free` is the time of the next request under a limit
        station = native.station_serve(
            profile, 0, np.array([t], np.uint64), np.array([op], np.uint8),
            np.array([n << 21], np.uint64), np.array([size], np.uint64), changes,
        )  # fmt: skip
        service = int(np.frombuffer(station["service_ns"], np.uint64)[0])
        latency_ns = int(service * slowdown(t))
        rows.append((t, t + latency_ns, service))
        t = max(t + latency_ns, free)
    arrival, done, service = (np.array(c, np.int64) for c in zip(*rows, strict=True))
    n = len(rows)
    return pa.table(
        {
            "t_ns": arrival,
            "due_ns": done,
            "done_ns": done,
            "service_ns": service,
            "wait_ns": np.zeros(n, np.int64),
            "compensation_ns": np.zeros(n, np.int64),
            "op": pa.array(["read" if op == 0 else "write"] * n).dictionary_encode(),
            "device_offset_bytes": np.arange(n, dtype=np.int64) << 21,
            "size_bytes": np.full(n, size),
        }
    )


def test_each_second_has_a_row_with_its_active_changes():
    profile = profile_of(0.005)
    events = [event(1002 * S + 5, slow={"factor": 2}), event(1004 * S + 5, slow="max")]
    result = certificate(run(profile, 6, events), {}, profile, events=events, disk_id="d")
    rows = result.windows.to_pylist()
    assert [row["t_ns"] for row in rows] == [(1000 + i) * S for i in range(6)]
    assert {row["verdict"] for row in rows} == {"honoured"}
    # a change does not affect the request in service
    assert [row["ops"] for row in rows] == pytest.approx([200, 200, 100, 100, 200, 200], abs=1)
    assert [row["active"] for row in rows] == ["", "", *["slow.factor=2"] * 3, ""]
    assert [row["asked_p50_ns"] for row in rows][2:4] == [10 * MS, 10 * MS]
    assert is_valid(result.overall) == (True, "")


def test_ignored_change_fails_its_windows():
    profile = profile_of(0.005)
    events = [event(1002 * S, slow={"factor": 2})]
    result = certificate(run(profile, 4, events, follow=False), {}, profile, events=events)
    assert [r["verdict"] for r in result.windows.to_pylist()] != ["honoured"] * 4
    assert not is_valid(result.overall)[0]


def test_few_failed_windows_do_not_invalidate_the_run():
    profile = profile_of(0.005)
    slow = certificate(
        run(profile, 25, slowdown=lambda t: 1.3 if t < 1001 * S else 1.0), {}, profile
    )
    verdicts = slow.windows["verdict"].to_pylist()
    assert verdicts == ["not-honoured"] + ["honoured"] * 24
    assert slow.windows["reason"][0].as_py() == "rate is −23 % off"
    many = certificate(
        run(profile, 10, slowdown=lambda t: 1.3 if t < 1002 * S else 0.93), {}, profile
    )
    valid, reason = is_valid(many.overall)
    assert not valid
    assert "of 10 windows are off" in reason


def test_late_window_is_host_saturated_only_with_host_waits():
    """In the third second every reply is 2 ms late. The host took time then, or one second before."""
    profile = profile_of(0.005)
    log = run(profile, 5, slowdown=lambda t: 1.4 if t // S == 1002 else 1.0).to_pandas()
    log["due_ns"] = log["t_ns"] + 5 * MS
    table = pa.Table.from_pandas(log, preserve_index=False)
    for second, verdict in ((1002, "host-saturated"), (1001, "not-honoured")):
        ends = second * S + (1 + np.arange(10)) * 100 * MS
        waited, zeros = np.full(10, 30 * MS), np.zeros(10, np.int64)
        waits = pa.table(
            {"t_ns": ends, "window_ns": zeros + 100 * MS, "waited_ns": waited, "stolen_ns": zeros,
             "pressure_ns": zeros, "overslept_ns": zeros}
        )  # fmt: skip
        result = certificate(table, {}, profile, host_waits=waits)
        assert result.windows["verdict"].to_pylist()[1:4] == ["honoured", verdict, "honoured"]
        assert set(result.overall["verdict"].to_pylist()) == {verdict}
        assert "of 5 windows are off" in is_valid(result.overall)[1]


def test_failed_change_invalidates_the_run():
    profile = profile_of(0.005)
    events = [event(1001 * S, "no such key", colour=1)]
    valid, reason = is_valid(certificate(run(profile, 3), {}, profile, events=events).overall)
    assert not valid
    assert reason.endswith("a change failed: no such key")


def test_limit_near_the_device_rate_is_device_bound():
    profile = profile_of(0.005, limits={"read_iops": 230})
    log = run(profile_of(0.005), 3)
    log = log.set_column(2, "done_ns", log["due_ns"])
    result = certificate(log, {}, profile)
    assert set(result.windows["verdict"].to_pylist()) == {"device-bound"}
    far = certificate(log, {}, profile_of(0.005, limits={"read_iops": 1e5}))
    assert set(far.windows["verdict"].to_pylist()) == {"device-bound"}
    none = certificate(log, {}, profile_of(0.005))
    assert set(none.windows["verdict"].to_pylist()) == {"honoured"}


def test_active_changes_as_text():
    events = [
        event(10, limits={"read_bps": 2e6, "write_bps": 5}, readahead=False),
        event(20, limits={"read_bps": "max"}, cache=True, faults=[{"op": "read"}]),
        event(30, "failed", slow={"factor": 3}),
    ]
    first = "limits.read_bps=2e+06, limits.write_bps=5, readahead=off"
    assert active_at(events, 11, 19) == first
    assert active_at(events, 0, 5) == ""
    assert active_at(events, 21, 40) == "limits.write_bps=5, readahead=off, faults=1"
    assert active_at(events, 15, 25).startswith(first)


@pytest.mark.parametrize("direction", ["read", "write"])
def test_limited_station_is_honoured_unless_five_percent_off(direction: str):
    values = load_profile("service-5ms").to_dict()
    values["limits"] = {"read_iops": 100, "write_iops": 100}
    n = 600
    for slower, expected in ((1.0, True), (1.05, False)):
        arrival, done = np.zeros(n, np.int64), np.zeros(n, np.int64)
        for i in range(n):  # queue depth 4 at the rate of the limit, slowed
            arrival[i] = 1000 * S + i if i < 4 else done[i - 4]
            done[i] = 1000 * S + int((i + 1) * 10 * MS * slower)
        log = pa.table(
            {"t_ns": arrival, "due_ns": done, "done_ns": done,
             "service_ns": np.full(n, 5 * MS), "wait_ns": done - arrival - 5 * MS,
             "compensation_ns": np.zeros(n, np.int64),
             "op": pa.array([direction] * n).dictionary_encode(),
             "device_offset_bytes": np.arange(n, dtype=np.int64) << 21,
             "size_bytes": np.full(n, 4096)}
        )  # fmt: skip
        result = certificate(log, {}, json.dumps(values))
        assert is_valid(result.overall)[0] is expected, is_valid(result.overall)[1]


# Counters


def counters(ratios: list[float], limit: float | None = MIB, direction: str = "read") -> pa.Table:
    n = len(ratios)
    return pa.table(
        {
            "t_ns": (np.arange(n) + 1) * S,
            "window_ns": np.full(n, S),
            "disk_id": ["d"] * n,
            "direction": [direction] * n,
            "bytes": [int(r * MIB) for r in ratios],
            "ops": [int(r * 256) for r in ratios],
            "limit_bps": pa.array([limit] * n, pa.float64()),
            "limit_iops": pa.nulls(n, pa.float64()),
        }
    )


def busy(*percent: float, metric: str = "busy") -> pa.Table:
    """CPU utilisation that a monitor recorded in the middle of each window."""
    keys = {"kind": "cpu", "entity": "all", "metric": metric, "unit": "%"}
    return pa.Table.from_pylist(
        [{**keys, "t_ns": n * S + S // 2, "value": float(p)} for n, p in enumerate(percent)]
    )


@pytest.mark.parametrize(
    ("ratios", "options", "verdict", "valid"),
    [
        ([1.0, 1.02, 0.99, 1.0], {}, "honoured", True),
        ([1.07, 1.07, 1.06, 1.07], {}, "not-honoured", False),
        ([6.0, 1.0, 1.0, 1.0], {}, "burst", False),
        ([6.0, 5.0, 7.0], {}, "not-honoured", False),
        ([1.0, 1.0, 1.5, 1.5], {}, "not-honoured", False),
        ([0.4, 0.5, 0.4], {}, "demand-bound", True),
        ([0.1, 0.2, 0.1], {}, "too-short", False),
        ([0.4, 0.5, 0.4], {"capability": {"read": 0.45 * MIB}}, "device-bound", True),
        ([0.4, 0.5, 0.4], {"utilisation": busy(99, 99, 99)}, "host-saturated", False),
        ([0.4, 0.5, 0.4], {"utilisation": busy(99, 99, 20)}, "host-saturated", False),
        ([0.4, 0.5, 0.4], {"utilisation": busy(99, 20, 20)}, "demand-bound", True),
        ([0.94, 0.94, 0.94], {"utilisation": busy(99, 99, 20)}, "host-saturated", False),
        ([0.94, 0.94, 0.94], {"utilisation": busy(20, 20, 20)}, "not-honoured", False),
        ([0.4, 0.5, 0.4], {"utilisation": busy(9, 9, 9, metric="stolen")}, "host-saturated", False),
        ([1.0, 1.0], {"unsupported": {"read": "buffered"}}, "unsupported", False),
    ],
)
def test_verdicts_of_counters(ratios, options, verdict, valid):
    result = fidelity_of_counters(counters(ratios), disk_id="d", backend="cgroup2", **options)
    row = result.overall.to_pylist()[0]
    assert (row["verdict"], row["valid"]) == (verdict, valid), row["reason"]
    assert result.windows.num_rows == len(ratios)


def test_throttled_disk_on_a_busy_host_is_host_saturated():
    tables = {"throttle_counters": counters([0.4, 0.5, 0.4])}
    result = Recorded("d", "cgroup1", {}, tables).certificate(busy(99, 99, 99))
    assert result is not None
    assert result.overall.to_pylist()[0]["verdict"] == "host-saturated"


def test_counters_of_a_short_window_and_without_a_limit():
    table = counters([1.0]).to_pandas().assign(window_ns=300 * MS)
    short = fidelity_of_counters(table, disk_id="d", backend="cgroup1").overall.to_pylist()[0]
    assert (short["verdict"], short["valid"]) == ("too-short", False)
    free = fidelity_of_counters(counters([5.0, 5.0], None), disk_id="d", backend="cgroup1")
    assert free.overall.to_pylist()[0]["asked"] is None
    assert free.overall.to_pylist()[0]["valid"]


def test_readahead_counted_before_a_slow_limit_is_honoured():
    """Readahead of 128 KiB at 512 kB/s takes 0.25 s per request and is counted at submission."""
    table = counters([0.125, 0.625, 0.75, 0.5, 0.5, 0.375], 512e3).to_pandas()
    table["ops"] = [1, 5, 6, 4, 4, 3]
    row = fidelity_of_counters(table, disk_id="d", backend="cgroup1").overall.to_pylist()[0]
    assert (row["verdict"], row["valid"]) == ("honoured", True), row["reason"]
    table["ops"] *= 32  # small requests of the same bytes were completed in their window
    row = fidelity_of_counters(table, disk_id="d", backend="cgroup1").overall.to_pylist()[0]
    assert not row["valid"]


def test_changing_limit_is_checked_per_window():
    table = counters([1.0, 1.0, 3.0, 4.0, 4.0, 1.0]).to_pandas()
    table["limit_bps"] = [MIB, MIB, 4 * MIB, 4 * MIB, 4 * MIB, MIB]
    result = fidelity_of_counters(table, disk_id="d", backend="cgroup2")
    verdicts = result.windows["verdict"].to_pylist()
    assert verdicts == ["honoured", "honoured", "too-short", "honoured", "honoured", "too-short"]
    assert result.overall.to_pylist()[0]["verdict"] == "honoured"


@pytest.mark.parametrize(
    ("p50", "p99", "bursty"), [(0.05e6, 98e6, True), (4.0e6, 4.4e6, False), (4.0e6, 98e6, False)]
)
def test_bursty_shape(p50: float, p99: float, bursty: bool):
    quantiles = {"read": (p50, p99)}
    result = fidelity_of_counters(
        counters([1.0] * 4), disk_id="d", backend="cgroup1", latency_ns=quantiles
    )
    shape = next(r for r in result.overall.to_pylist() if r["metric"] == "shape_read")
    assert shape["asked"] == pytest.approx(1e9 / 256)
    assert shape["reason"].startswith("bursty") is bursty


# confirmation by fio's report


def test_fio_confirms_the_disk():
    job = {"read": {"io_bytes": 4096 * 100, "total_ios": 100, "clat_ns": {"mean": 5e6}}}
    own = {"read": {"bytes": 4096 * 100.0, "ops": 100.0, "time_ns": 5.1e6}}
    table = confirm_fio({"jobs": [job]}, own, direct=True)
    assert table["agrees"].to_pylist() == [True, True, True]
    own["read"]["bytes"] *= 1.06
    table = confirm_fio({"jobs": [job]}, own, direct=True)
    assert table["agrees"].to_pylist() == [False, True, True]
    assert confirm_fio({"jobs": [job]}, own, direct=False).num_rows == 0
