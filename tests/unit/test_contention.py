"""Causes of slow operations: each where it is planted, and none against the evidence."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from penstock.parts.conformity.comparison import evaluate_all
from penstock.parts.conformity.contention import balanced, second_mode
from penstock.parts.conformity.diagnosis import causes, diagnose
from penstock.parts.conformity.expected import Expectation, Expected, Ideal
from penstock.parts.conformity.measured_rows import Measured

WRITE = Expected("client", "write", "client_time", 0.1)
SERVER = Expected("storage", "write", "server_time", 0.02)
OPEN = Expected("client", "open", "client_time", 0.01)
MAKESPAN = Expected("workflow", "run", "makespan", 1.0)
TRIALS = range(15)

Row = dict[str, Any]


def rows(expected: Expected, values: Iterable[float], trial: int, **more: Any) -> list[Row]:
    module, operation, metric = expected.key
    return [
        {
            "module": module,
            "operation": operation,
            "metric": metric,
            "trial": str(trial),
            "value": float(value),
            "unit": "s",
            "node": "",
            "window": -1,
            **more,
        }
        for value in values
    ]


def codes(
    measured_rows: list[Row], *expected: Expected, ideal: dict[Any, Ideal] | None = None
) -> list[str]:
    expectation = Expectation("suite", expected, ideal=ideal)
    measured = Measured(pd.DataFrame(measured_rows), "rows")
    verdicts = evaluate_all(expectation, measured.trials(expectation))
    steps = diagnose(expectation, measured, verdicts)
    assert [step.name for step in steps] == [
        "homogeneity",
        "launch skew",
        "model self-tests",
        "end to end",
        "server per module",
        "client",
        "modality",
        "hot-spot timeline",
        "locks",
    ]
    return [cause.code for cause in causes(steps)]


def near(mean: float, trial: int, n: int = 20) -> np.ndarray[Any, Any]:
    """Values of which 99 % are within 3 % of the mean, different in each trial."""
    return mean * np.random.default_rng(trial).normal(1, 0.01, n)


def writes(slow: float = 1.0) -> list[Row]:
    return [r for t in TRIALS for r in rows(WRITE, near(0.1 * slow, t), t)]


def served(slow: float = 1.0) -> list[Row]:
    return [
        r
        for t in TRIALS
        for n in range(4)
        for r in rows(SERVER, near(0.02 * slow, 100 * n + t), t, node=f"s{n}")
    ]


# ---------------------------------------------------------------- retried connects


def delayed(delays_s: Iterable[float], share: float = 0.2) -> list[Row]:
    """Writes of which a share took longer, by each of these delays in turn."""
    next_delay = itertools.cycle(delays_s)
    delayed_writes = writes()
    for row in delayed_writes[:: round(1 / share)]:
        row["value"] += next(next_delay)
    return delayed_writes


def test_a_second_mode_at_whole_seconds_is_a_retried_connect() -> None:
    assert codes(delayed((1.01,)) + served(), WRITE, SERVER) == ["connect-retry"]
    assert codes(delayed((1.02, 3.05)) + served(), WRITE, SERVER) == ["connect-retry"]


def test_most_connects_may_be_delayed() -> None:
    assert codes(delayed((1.01,), 1.0)[1:] + writes()[:5] + served(), WRITE, SERVER) == [
        "connect-retry"
    ]


def test_delays_of_fractions_of_seconds_are_no_retries() -> None:
    assert codes(delayed((0.6, 1.4, 2.5)) + served(), WRITE, SERVER) == []
    assert codes(delayed((0.25,)) + served(), WRITE, SERVER) == []


def test_delays_with_a_slow_server_are_no_retries() -> None:
    assert "connect-retry" not in codes(delayed((1.01,)) + served(1.5), WRITE, SERVER)


def test_one_request_is_no_mode() -> None:
    assert second_mode(np.array([0.1] * 20 + [1.1])) is None
    mode = second_mode(np.array([0.1] * 20 + [1.1, 3.11]))
    assert mode is not None
    assert (mode.delayed, mode.of, mode.multiples) == (2, 22, [1, 3])


CONNECT = Expected("client", "open", "connect_time", 1e-4)


def connected(*extra_s: float) -> list[Row]:
    """Connects that take 0.1 ms; the first ones take longer by these times."""
    connects = [r for t in TRIALS for r in rows(CONNECT, near(1e-4, t), t)]
    for row, delay_s in zip(connects, extra_s, strict=False):
        row["value"] += delay_s
    return connects


def opened(*extra_s: float) -> list[Row]:
    opens = [r for t in TRIALS for r in rows(OPEN, near(0.01, t), t)]
    for row, delay_s in zip(opens[::10], itertools.cycle(extra_s), strict=False):
        row["value"] += delay_s
    return opens


def test_whole_seconds_with_normal_connects_are_no_retries() -> None:
    """Opens that wait 3 s for another reason, with normal times of their connects."""
    server = Expected("manager", "open", "server_time", 0.01)
    fast = [r for t in TRIALS for r in rows(server, near(0.01, t), t, node="m")]
    assert codes(opened(3.0) + fast + connected(), OPEN, server) == ["whole-second-delay"]
    slow = connected(*[1.0] * 5)
    assert codes(opened(1.0) + fast + slow, OPEN, server) == ["connect-retry"]


def test_whole_seconds_without_server_times_prove_nothing() -> None:
    assert codes(delayed((1.01,)), WRITE) == []


def test_a_larger_request_is_no_retried_connect() -> None:
    """One read in each run is five times as large: 1 s longer, but normal for each byte."""
    read = Expected("client", "read", "client_time", 0.3)
    makespan = Expected("workflow", "run", "makespan", 1.0)
    storage = Expected("storage", "read", "server_time", 0.02)
    per_mib = Expected("storage", "remote read", "transfer_time", 0.1)
    measured = [
        row
        for t in TRIALS
        for row in (
            *rows(read, [*near(0.26, t, 5), 1.26], t),
            *rows(makespan, [1.6 + 0.001 * t], t),
            *rows(storage, near(0.02, t, 6), t),
            *rows(per_mib, near(0.1, t, 6), t, node="s0"),
        )
    ]
    assert codes(measured, read, makespan, storage) == []


# ---------------------------------------------------------------- hot spots


def flying(
    in_flight: Iterable[Iterable[float]], nbytes: Iterable[float] = (1, 1, 1, 1)
) -> list[Row]:
    """Requests in flight by window and node, and the bytes of each node, in each trial."""
    flights: list[Row] = []
    windows = [list(window) for window in in_flight]
    for trial in TRIALS:
        for window, counts in enumerate(windows):
            for node, value in enumerate(counts):
                flight = Expected("storage", "write", "in_flight", 1.0)
                flights += rows(flight, [value], trial, node=f"s{node}", window=window, unit="1")
        for node, value in enumerate(nbytes):
            sent = Expected("storage", "write", "bytes", 1.0)
            flights += rows(sent, [value], trial, node=f"s{node}", unit="B")
    return flights


TOGETHER = [[4 if n == w else 0 for n in range(4)] for w in range(4)]
SPREAD = [[1, 2, 1, 0], [1, 1, 1, 1], [2, 1, 0, 1], [1, 0, 2, 1]]


def test_a_moving_maximum_with_equal_bytes_is_a_hot_spot() -> None:
    assert codes(writes(1.5) + flying(TOGETHER), WRITE) == ["hot-spot"]


def test_distributed_requests_are_no_hot_spot() -> None:
    assert codes(writes(1.5) + flying(SPREAD), WRITE) == []


def test_normal_times_have_no_cause() -> None:
    assert codes(writes() + flying(TOGETHER), WRITE) == []


def test_nodes_with_more_bytes_are_uneven_placement() -> None:
    one_node = [[4, 0, 0, 0]] * 4
    assert codes(writes(1.5) + flying(one_node, (10, 1, 1, 1)), WRITE) == ["uneven-placement"]


def test_expected_imbalance_is_declared_in_the_file() -> None:
    most = {("storage", "write"): Ideal(in_flight_max_over_mean=3.9)}
    assert codes(writes(1.5) + flying(TOGETHER), WRITE, ideal=most) == []
    least = {("storage", "write"): Ideal(in_flight_max_over_mean=1.1)}
    assert codes(writes(1.5) + flying(SPREAD), WRITE, ideal=least) == ["hot-spot"]


@pytest.mark.parametrize(("nodes", "requests"), [(2, 1), (2, 5), (3, 4), (4, 4), (5, 3)])
def test_the_balanced_network_by_enumeration(nodes: int, requests: int) -> None:
    ways = [
        way for way in itertools.product(range(requests + 1), repeat=nodes) if sum(way) == requests
    ]
    largest = sum(map(max, ways)) / len(ways)
    assert balanced(nodes, requests) == pytest.approx(largest * nodes / requests)


def test_the_limit_of_the_balanced_network() -> None:
    assert balanced(6, 200) == pytest.approx(balanced(6, 1000), rel=0.03)
    assert balanced(6, 200) > balanced(6, 1000)


# ---------------------------------------------------------------- locks


def calls(waiting: float) -> list[Row]:
    """Opens of a client, and at the manager, which waits for this share of its time."""
    opens = []
    for t in TRIALS:
        took = near(0.01 / (1 - waiting), t)
        manager = Expected("manager", "open", "server_time", 0.01)
        lock = Expected("manager", "open", "lock_wait", 0.01)
        opens += rows(OPEN, took, t) + rows(manager, took, t) + rows(lock, took * waiting, t)
    return opens


def test_a_lock_that_calls_wait_for_is_named() -> None:
    assert codes(calls(0.6), OPEN) == ["lock-contention"]
    assert codes(calls(0.15), OPEN) == []  # slow, but not because of the lock


def test_a_lock_wait_that_the_model_expects_is_no_cause() -> None:
    ideal = {("manager", "open"): Ideal(lock_wait_share=0.5)}
    assert codes(calls(0.6), OPEN, ideal=ideal) == []


def test_a_lock_of_another_operation_is_no_cause() -> None:
    assert codes(calls(0.6) + writes(1.5), WRITE) == []


# ---------------------------------------------------------------- nodes and launches


def test_an_uneven_node_is_the_first_cause() -> None:
    slow = served()
    for row in slow:
        row["value"] *= 1.5 if row["node"] == "s2" else 1.0
    assert codes(slow + writes(1.5), WRITE, SERVER) == ["uneven-nodes"]
    # also for a node that is faster
    fast = served()
    for row in fast:
        row["value"] *= 0.5 if row["node"] == "s1" else 1.0
    assert codes(fast, SERVER) == ["uneven-nodes"]


def test_a_node_with_a_queue_is_not_uneven() -> None:
    queued = served()
    for position, row in enumerate(queued):
        row["value"] *= 3.0 if row["node"] == "s2" and position % 5 else 1.0
    assert codes(queued + writes(1.5), WRITE) == []


def launched(skew: float, extra: float = 0.0) -> list[Row]:
    random = np.random.default_rng(5)
    launch = Expected("client", "launch", "launch_time", 1.0)
    launches = []
    for t in TRIALS:
        delays_s = random.uniform(0.1, skew, 4) if skew else np.zeros(4)
        launches += rows(launch, delays_s, t)
        launches += rows(MAKESPAN, [near(1.0, t)[0] + extra + delays_s.max()], t)
    return launches


def test_late_launches_are_not_blamed_on_storage() -> None:
    assert codes(launched(0.3), MAKESPAN) == ["launch-skew"]


def test_delays_beyond_the_launch_are_not_launch_skew() -> None:
    assert codes(launched(0.3, 0.3), MAKESPAN) == []
    assert codes(launched(0.0, 0.3), MAKESPAN) == []
