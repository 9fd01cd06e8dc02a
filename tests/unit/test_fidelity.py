"""Fidelity certificates of constructed request logs."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from penstock import _native as native
from penstock.analyse.fidelity.fidelity import RULES, certificate, confirm, is_valid

MS = 1_000_000


def constant_profile(service_s: float, servers: int = 1) -> str:
    overhead = {"overhead": {"kind": "constant", "value_s": service_s}}
    both = {"sequential": overhead, "random": overhead}
    return json.dumps(
        {
            "schema": "penstock/storage-profile/1",
            "name": "constant",
            "servers": servers,
            "read": both,
            "write": both,
        }
    )


def lognormal_profile() -> str:
    overhead = {"overhead": {"kind": "lognormal", "mean_s": 0.002, "sigma": 0.5}}
    both = {"sequential": overhead, "random": overhead}
    return json.dumps(
        {
            "schema": "penstock/storage-profile/1",
            "name": "lognormal",
            "servers": 1,
            "read": both,
            "write": both,
        }
    )


def closed_loop(n: int, depth: int, service_ns: float, slow: float = 0.0, think_ns: int = 0):
    """Log of `depth` clients on one constant server that takes `1 + slow` times its reported time."""
    arrival = np.zeros(n, np.int64)
    done = np.zeros(n, np.int64)
    wait = np.zeros(n, np.int64)
    free = 0.0
    for i in range(n):
        arrival[i] = 1000 * MS + i if i < depth else done[i - depth] + think_ns
        start = max(free, float(arrival[i]))
        free = start + service_ns * (1 + slow)
        done[i] = round(free)
        wait[i] = round((start - arrival[i]) / (1 + slow))
    return log_table(arrival, done, done, np.full(n, int(service_ns)), wait)


def log_table(t, due, done, service, wait, size: int = 4096, op: str = "read") -> pa.Table:
    n = len(t)
    return pa.table(
        {
            "t_ns": t,
            "due_ns": due,
            "done_ns": done,
            "service_ns": service,
            "wait_ns": wait,
            "compensation_ns": np.zeros(n, np.int64),
            "op": pa.array([op] * n).dictionary_encode(),
            "device_offset_bytes": np.arange(n, dtype=np.int64) * 1_000_003 * 4096,
            "offset_bytes": np.arange(n, dtype=np.int64) * 1_000_003 * 4096,
            "size_bytes": np.full(n, size),
            "file": ["f"] * n,
        }
    )


def row(table: pa.Table, metric: str) -> dict:
    return next(r for r in table.to_pylist() if r["metric"] == metric)


@pytest.mark.parametrize("depth", [1, 8, 64])
def test_exact_disk_is_honoured_at_any_depth(depth):
    table = certificate(closed_loop(2000, depth, 5 * MS), {}, constant_profile(0.005)).overall
    assert set(table["verdict"].to_pylist()) == {"honoured"}
    assert row(table, "rate")["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert row(table, "rate")["asked"] == pytest.approx(4096 / 0.005, rel=1e-6)
    assert is_valid(table) == (True, "")


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("slow", [0.05, -0.05])
def test_disk_five_percent_off_is_not_honoured(depth, slow):
    log = closed_loop(1000, depth, 5 * MS, slow=slow)
    table = certificate(log, {}, constant_profile(0.005)).overall
    assert set(table["verdict"].to_pylist()) == {"not-honoured"}
    valid, reason = is_valid(table)
    assert not valid
    assert "time is" in reason


def test_burst_served_five_percent_too_slowly_is_invalid():
    n = 400
    arrival = np.full(n, 1000 * MS) + np.arange(n)
    done = 1000 * MS + (np.arange(n) + 1) * int(5 * MS * 1.05)
    wait = np.arange(n) * 5 * MS
    log = log_table(arrival, done, done, np.full(n, 5 * MS), wait)
    table = certificate(log, {}, constant_profile(0.005)).overall
    assert row(table, "rate")["ratio"] == pytest.approx(1 / 1.05, rel=1e-3)
    assert not is_valid(table)[0]


def test_think_time_is_demand_bound():
    table = certificate(
        closed_loop(600, 1, 5 * MS, think_ns=20 * MS), {}, constant_profile(0.005)
    ).overall
    assert row(table, "rate")["verdict"] == "demand-bound"
    assert row(table, "rate")["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert is_valid(table)[0]


def straggler_runs(log: pa.Table, late_ns: np.ndarray) -> pa.Table:
    """Log of a client that waits for each reply; reply i is `late_ns[i]` later than due."""
    frame = log.to_pandas()
    before = np.concatenate([[0], np.cumsum(late_ns)[:-1]])
    for name in ("t_ns", "due_ns"):
        frame[name] += before
    frame["done_ns"] = frame["due_ns"] + late_ns
    return pa.Table.from_pandas(frame, preserve_index=False)


def waits(log: pa.Table, *, share: float = 1.0, metric: str = "waited_ns") -> pa.Table:
    """Host waits that explain this share of the log's lateness, in windows of 100 ms."""
    due, done = log["due_ns"].to_numpy(), log["done_ns"].to_numpy()
    first = int(due.min()) // (100 * MS)
    cell = due // (100 * MS) - first
    taken = np.bincount(cell, weights=share * (done - due)).astype(np.int64)
    nothing = np.zeros_like(taken)
    columns = {
        name: taken if name == metric else nothing
        for name in ("waited_ns", "stolen_ns", "pressure_ns", "overslept_ns")
    }
    ends = (first + 1 + np.arange(len(taken))) * 100 * MS
    table = pa.table({"t_ns": ends, "window_ns": nothing + 100 * MS, **columns})
    return table.filter(pa.array(taken > 0.2 * MS))


def verdicts(log: pa.Table, profile: str, host_waits: pa.Table | None) -> set[str]:
    return set(certificate(log, {}, profile, host_waits=host_waits).overall["verdict"].to_pylist())


@pytest.mark.parametrize(
    ("metric", "share", "verdict"),
    [
        ("waited_ns", 1.0, "host-saturated"),
        ("stolen_ns", 1.0, "host-saturated"),
        ("overslept_ns", 0.7, "host-saturated"),
        ("overslept_ns", 0.3, "not-honoured"),
        ("pressure_ns", 1.0, "not-honoured"),  # tasks of the run wait as well
    ],
)
def test_lateness_is_not_honoured_unless_the_host_explains_it(metric, share, verdict):
    late = np.random.default_rng(1).exponential(2 * MS, 1000).astype(np.int64)
    log = straggler_runs(closed_loop(1000, 1, 5 * MS), late)
    host_waits = waits(log, share=share, metric=metric)
    assert host_waits.num_rows > 50
    table = certificate(log, {}, constant_profile(0.005), host_waits=host_waits).overall
    assert set(table["verdict"].to_pylist()) == {verdict}
    assert "replies were late" in is_valid(table)[1]
    assert verdicts(log, constant_profile(0.005), None) == {"not-honoured"}
    assert set(table["rules"].to_pylist()) == {RULES}


@pytest.mark.parametrize("depth", [1, 8])
def test_disk_blocked_once_a_second_is_not_honoured(depth):
    """A lock is held for 30 ms once a second and delays the requests that are due meanwhile."""
    log = closed_loop(4000, depth, 5 * MS).to_pandas()
    lock_end_ns = log["due_ns"] // (1000 * MS) * 1000 * MS + 30 * MS
    log["done_ns"] = np.maximum(log["due_ns"], lock_end_ns)
    table = pa.Table.from_pandas(log, preserve_index=False)
    overall = certificate(table, {}, constant_profile(0.005)).overall
    assert row(overall, "overdue")["delivered"] == pytest.approx(0.03, rel=0.2)
    assert set(overall["verdict"].to_pylist()) == {"not-honoured"}
    of_host = waits(table)
    assert verdicts(table, constant_profile(0.005), of_host) <= {"host-saturated", "honoured"}
    every_other = of_host.take(np.arange(0, of_host.num_rows, 2))
    assert verdicts(table, constant_profile(0.005), every_other) == {"not-honoured"}


def test_host_waits_at_another_time_explain_nothing():
    late = np.where(np.arange(1000) < 500, 0, 2 * MS)
    log = straggler_runs(closed_loop(1000, 1, 5 * MS), late)
    moved = waits(log).to_pandas()
    moved["t_ns"] -= 2400 * MS
    before = pa.Table.from_pandas(moved, preserve_index=False)
    assert verdicts(log, constant_profile(0.005), before) == {"not-honoured"}


@pytest.mark.parametrize(("writes", "valid"), [(5, True), (200, False)])
def test_direction_of_few_requests_is_not_evaluated(writes, valid):
    """Reads take 5 ms as specified; writes take 20 % more for no reason of the host."""
    reads = closed_loop(1000, 1, 5 * MS).to_pandas()
    slow = closed_loop(writes, 1, 5 * MS, slow=0.2).to_pandas().assign(op="write")
    for name in ("t_ns", "due_ns", "done_ns"):
        slow[name] += int(reads["done_ns"].max()) - 1000 * MS
    both = pd.concat([reads, slow], ignore_index=True)
    both["op"] = both["op"].astype("category")
    overall = certificate(
        pa.Table.from_pandas(both, preserve_index=False), {}, constant_profile(0.005)
    ).overall
    assert ("rate_write" in is_valid(overall)[1]) == (not valid)
    assert row(overall, "rate_write")["ratio"] == pytest.approx(1 / 1.2, rel=0.01)


def test_small_lateness_is_tolerated_and_server_wait_is_shared():
    """A tenth of the replies is 0.3 ms late: 0.6 % in all. No quantile exceeds its tolerance."""
    late = np.where(np.arange(2000) % 10 == 0, 300_000, 0)
    table = straggler_runs(closed_loop(2000, 1, 5 * MS), late)
    stats = {"server_wait_ns": 2000 * 300_000}
    alone = certificate(table, stats, constant_profile(0.005)).overall
    assert row(alone, "lateness")["delivered"] == pytest.approx(0.1)
    assert "waited 300 us" in is_valid(alone)[1]
    shared = certificate(table, {**stats, "server_requests": 4000}, constant_profile(0.005)).overall
    assert is_valid(shared) == (True, "")
    later = table.to_pandas()
    later["done_ns"] += np.where(late > 0, 300_000, 0)
    twice_as_late = certificate(pa.Table.from_pandas(later), {}, constant_profile(0.005)).overall
    assert "replies were late" in is_valid(twice_as_late)[1]


def test_late_tail_is_the_host_s_and_slow_service_is_the_disk_s():
    """Two of 100 replies are 2 ms late: too few for total lateness, enough to change p99."""
    late = np.where(np.arange(2000) % 50 == 0, 2 * MS, 0)
    log = straggler_runs(closed_loop(2000, 1, 5 * MS), late)
    of_host = waits(log)
    overall = certificate(log, {}, constant_profile(0.005), host_waits=of_host).overall
    assert row(overall, "p99_read")["ratio"] == pytest.approx(1.4, abs=0.01)
    assert set(overall["verdict"].to_pylist()) == {"host-saturated"}
    assert "p99_read" in is_valid(overall)[1]
    slow = log.set_column(log.column_names.index("due_ns"), "due_ns", log["done_ns"])
    assert verdicts(slow, constant_profile(0.005), of_host) == {"not-honoured"}


def test_quantile_at_a_gap_tolerates_one_late_reply():
    """Pairs of requests at one server take 1 ms and 2 ms; no latency lies between."""
    n = 1000
    arrival = 1000 * MS + np.arange(n) // 2 * 20 * MS
    wait = np.where(np.arange(n) % 2 == 0, 0, MS)
    due = arrival + wait + MS
    done = due.copy()
    done[50] += MS
    log = log_table(arrival, due, done, np.full(n, MS), wait)
    overall = certificate(log, {}, constant_profile(0.001)).overall
    assert row(overall, "p50_read")["ratio"] > 1.3
    assert is_valid(overall)[0], is_valid(overall)
    late = log_table(arrival, due, arrival + 2 * (due - arrival), np.full(n, MS), wait)
    assert "p50_read" in is_valid(certificate(late, {}, constant_profile(0.001)).overall)[1]


@pytest.mark.parametrize(
    ("metric", "value", "message"),
    [
        ("busy", 99.0, "processors were 99 % busy"),
        ("busy", 80.0, ""),
        ("stolen", 6.0, "6 % of the processors' time went to other machines"),
        ("stolen", 4.0, ""),
        ("waited_for", 30.0, "tasks waited for a processor 30 % of the time"),
        ("waited_for", 15.0, ""),
    ],
)
def test_host_saturation_is_reported(metric: str, value: float, message: str):
    log = closed_loop(1000, 1, 5 * MS).to_pandas()
    log["done_ns"] += 2 * MS
    t = np.arange(log["t_ns"].min(), log["done_ns"].max(), 1000 * MS)
    row = {"kind": "cpu", "entity": "cpu", "metric": metric, "unit": "%", "value": value}
    busy = pa.table({"t_ns": t, **{name: [value] * len(t) for name, value in row.items()}})
    table = certificate(
        pa.Table.from_pandas(log), {}, constant_profile(0.005), utilisation=busy
    ).overall
    assert message in is_valid(table)[1]
    assert message or "processor" not in is_valid(table)[1]


def test_calibrated_lateness_is_tolerated():
    log = closed_loop(1000, 1, 5 * MS).to_pandas()
    log["done_ns"] += 40_000
    stats = {"compensation": {"lateness_ns": 40_000.0}}
    table = certificate(pa.Table.from_pandas(log), stats, constant_profile(0.005)).overall
    assert row(table, "time")["ratio"] == pytest.approx(1.0, abs=1e-6)


def test_p99_needs_enough_requests():
    few = certificate(closed_loop(300, 1, 5 * MS), {}, constant_profile(0.005)).overall
    assert row(few, "p50_read")["verdict"] == "honoured"
    assert row(few, "p99_read")["verdict"] == "too-short"
    many = certificate(closed_loop(1001, 1, 5 * MS), {}, constant_profile(0.005)).overall
    assert row(many, "p99_read")["verdict"] == "honoured"


def test_quantiles_are_compared_with_the_sampled_service_times():
    n = 3000
    profile = lognormal_profile()
    offsets = np.arange(n, dtype=np.uint64) * 1_000_003 * 4096
    arrival = (np.arange(n, dtype=np.uint64) + 1) * 200 * MS
    served = native.station_serve(
        profile, 7, arrival, np.zeros(n, np.uint8), offsets, np.full(n, 4096, np.uint64)
    )
    service = np.frombuffer(served["service_ns"], np.uint64).astype(np.int64)
    assert service.std() > 0.2 * service.mean()
    t = arrival.astype(np.int64)
    exact = log_table(t, t + service, t + service, service, np.zeros(n, np.int64))
    table = certificate(exact, {"seed": 7}, profile).overall
    assert row(table, "p99_read")["ratio"] == pytest.approx(1.0, abs=1e-9)
    # The mean is right and the shape is wrong: only the quantiles differ.
    flat = t + int(service.mean())
    table = certificate(
        log_table(t, flat, flat, service, np.zeros(n, np.int64)), {"seed": 7}, profile
    ).overall
    assert row(table, "rate")["ratio"] == pytest.approx(1.0, abs=1e-3)
    assert not is_valid(table)[0]
    assert "p99_read" in is_valid(table)[1]


def test_short_run_is_too_short():
    table = certificate(closed_loop(10, 1, 5 * MS), {}, constant_profile(0.005)).overall
    assert set(table["verdict"].to_pylist()) == {"too-short"}


def test_missing_log_records_invalidate_the_run():
    table = certificate(
        closed_loop(1000, 1, 5 * MS), {"lost_records": 3}, constant_profile(0.005)
    ).overall
    assert is_valid(table)[1].endswith("3 requests are missing from the log")


def test_no_requests_is_valid():
    empty = closed_loop(10, 1, 5 * MS).slice(0, 0)
    assert is_valid(certificate(empty, {}, constant_profile(0.005), disk_id="d").overall)[0]


def events(scale_time: float = 1.0, drop: int = 0) -> pa.Table:
    log = closed_loop(1000, 1, 5 * MS).to_pandas()
    return pa.table(
        {
            "path": log["file"][drop:],
            "direction": ["read"] * (len(log) - drop),
            "done_bytes": log["size_bytes"][drop:],
            "latency_ns": ((log["done_ns"] - log["t_ns"]) * scale_time).astype("int64")[drop:],
        }
    )


def test_tracer_confirms_the_log():
    log = closed_loop(1000, 1, 5 * MS)
    assert all(confirm(events(), log, direct=True)["agrees"].to_pylist())
    assert len(confirm(events(), log, direct=False)) == 1
    slower = confirm(events(scale_time=1.1), log, direct=True).to_pylist()
    assert [r["agrees"] for r in slower if r["metric"] == "time"] == [False]
    missing = confirm(events(drop=100), log, direct=True).to_pylist()
    assert [r["agrees"] for r in missing if r["metric"] == "bytes"] == [False]


@pytest.mark.parametrize(
    ("busy_s", "run_s", "valid"),
    [
        (19.8, 0.1, False),  # other processes use both processors
        (19.8, 18.5, True),  # the run uses both
        (15.0, 0.1, True),  # other processes leave processor time free
        (19.8, None, False),  # CPU time of the run is unknown
    ],
)
def test_host_used_by_other_processes(busy_s, run_s, valid):
    stats = {"host_cpu_ns": 20e9, "host_busy_ns": busy_s * 1e9, "server_cpu_ns": 0.2e9}
    run_cpu_ns = None if run_s is None else int(run_s * 1e9)
    log = closed_loop(2000, 1, 5 * MS)
    table = certificate(log, stats, constant_profile(0.005), run_cpu_ns=run_cpu_ns).overall
    assert is_valid(table)[0] is valid
    if not valid:
        assert set(table["verdict"].to_pylist()) == {"host-saturated"}
        assert "outside the run" in is_valid(table)[1]
