"""What is to blame: each cause where it is planted, and not where its evidence says otherwise."""

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


def codes(made: list[Row], *expected: Expected, ideal: dict[Any, Ideal] | None = None) -> list[str]:
    asked = Expectation("suite", expected, ideal=ideal)
    measured = Measured(pd.DataFrame(made), "rows")
    judged = evaluate_all(asked, measured.trials(asked))
    steps = diagnose(asked, measured, judged)
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
    """Values of which 99 % are within 3 % of the mean, others in each trial."""
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


# ---------------------------------------------------------------- connects that are tried again


def delayed(by: Iterable[float], share: float = 0.2) -> list[Row]:
    """Writes of which a share took longer, by one of these in turn."""
    more = itertools.cycle(by)
    made = writes()
    for row in made[:: round(1 / share)]:
        row["value"] += next(more)
    return made


def test_a_second_mode_at_whole_seconds_is_a_connect_that_was_tried_again() -> None:
    assert codes(delayed((1.01,)) + served(), WRITE, SERVER) == ["connect-retry"]
    assert codes(delayed((1.02, 3.05)) + served(), WRITE, SERVER) == ["connect-retry"]


def test_most_connects_may_be_delayed() -> None:
    assert codes(delayed((1.01,), 1.0)[1:] + writes()[:5] + served(), WRITE, SERVER) == [
        "connect-retry"
    ]


def test_delays_of_no_whole_second_are_none() -> None:
    assert codes(delayed((0.6, 1.4, 2.5)) + served(), WRITE, SERVER) == []
    assert codes(delayed((0.25,)) + served(), WRITE, SERVER) == []


def test_nor_is_it_where_the_server_itself_is_slow() -> None:
    assert "connect-retry" not in codes(delayed((1.01,)) + served(1.5), WRITE, SERVER)


def test_one_request_is_no_mode() -> None:
    assert second_mode(np.array([0.1] * 20 + [1.1])) is None
    found = second_mode(np.array([0.1] * 20 + [1.1, 3.11]))
    assert found is not None
    assert (found.delayed, found.of, found.multiples) == (2, 22, [1, 3])


CONNECT = Expected("client", "open", "connect_time", 1e-4)


def connected(*later: float) -> list[Row]:
    """Connects that take 0.1 ms, of which some took longer."""
    made = [r for t in TRIALS for r in rows(CONNECT, near(1e-4, t), t)]
    for row, more in zip(made, later, strict=False):
        row["value"] += more
    return made


def opened(*later: float) -> list[Row]:
    made = [r for t in TRIALS for r in rows(OPEN, near(0.01, t), t)]
    for row, more in zip(made[::10], itertools.cycle(later), strict=False):
        row["value"] += more
    return made


def test_whole_seconds_are_no_connects_where_connects_are_normal() -> None:
    """Opens that wait 3 s for something else, beside the times of their connects."""
    server = Expected("manager", "open", "server_time", 0.01)
    fast = [r for t in TRIALS for r in rows(server, near(0.01, t), t, node="m")]
    assert codes(opened(3.0) + fast + connected(), OPEN, server) == ["whole-second-delay"]
    slow = connected(*[1.0] * 5)
    assert codes(opened(1.0) + fast + slow, OPEN, server) == ["connect-retry"]


def test_whole_seconds_say_nothing_where_no_server_was_measured() -> None:
    assert codes(delayed((1.01,)), WRITE) == []


def test_a_request_of_more_bytes_is_no_connect_that_was_tried_again() -> None:
    """Five reads of 2.5 MB and one five times as large in each run: 1 s longer, and as long for each byte."""
    read = Expected("client", "read", "client_time", 0.3)
    makespan = Expected("workflow", "run", "makespan", 1.0)
    storage = Expected("storage", "read", "server_time", 0.02)
    per_mib = Expected("storage", "remote read", "transfer_time", 0.1)
    made = [
        row
        for t in TRIALS
        for row in (
            *rows(read, [*near(0.26, t, 5), 1.26], t),
            *rows(makespan, [1.6 + 0.001 * t], t),
            *rows(storage, near(0.02, t, 6), t),
            *rows(per_mib, near(0.1, t, 6), t, node="s0"),
        )
    ]
    assert codes(made, read, makespan, storage) == []


# ---------------------------------------------------------------- hot spots


def flying(
    in_flight: Iterable[Iterable[float]], nbytes: Iterable[float] = (1, 1, 1, 1)
) -> list[Row]:
    """Requests under way by window and node, and the bytes of each node, in each trial."""
    made: list[Row] = []
    windows = [list(window) for window in in_flight]
    for trial in TRIALS:
        for window, at in enumerate(windows):
            for node, value in enumerate(at):
                flight = Expected("storage", "write", "in_flight", 1.0)
                made += rows(flight, [value], trial, node=f"s{node}", window=window, unit="1")
        for node, value in enumerate(nbytes):
            sent = Expected("storage", "write", "bytes", 1.0)
            made += rows(sent, [value], trial, node=f"s{node}", unit="B")
    return made


TOGETHER = [[4 if n == w else 0 for n in range(4)] for w in range(4)]
SPREAD = [[1, 2, 1, 0], [1, 1, 1, 1], [2, 1, 0, 1], [1, 0, 2, 1]]


def test_all_at_one_node_after_the_other_with_equal_bytes_is_a_hot_spot() -> None:
    assert codes(writes(1.5) + flying(TOGETHER), WRITE) == ["hot-spot"]


def test_requests_that_are_spread_are_none() -> None:
    assert codes(writes(1.5) + flying(SPREAD), WRITE) == []


def test_nothing_is_blamed_where_nothing_is_slow() -> None:
    assert codes(writes() + flying(TOGETHER), WRITE) == []


def test_nodes_with_more_bytes_are_another_fault() -> None:
    one = [[4, 0, 0, 0]] * 4
    assert codes(writes(1.5) + flying(one, (10, 1, 1, 1)), WRITE) == ["uneven-placement"]


def test_a_file_may_say_what_the_model_expects() -> None:
    most = {("storage", "write"): Ideal(in_flight_max_over_mean=3.9)}
    assert codes(writes(1.5) + flying(TOGETHER), WRITE, ideal=most) == []
    least = {("storage", "write"): Ideal(in_flight_max_over_mean=1.1)}
    assert codes(writes(1.5) + flying(SPREAD), WRITE, ideal=least) == ["hot-spot"]


@pytest.mark.parametrize(("nodes", "requests"), [(2, 1), (2, 5), (3, 4), (4, 4), (5, 3)])
def test_the_balanced_network_by_counting_every_way(nodes: int, requests: int) -> None:
    ways = [
        way for way in itertools.product(range(requests + 1), repeat=nodes) if sum(way) == requests
    ]
    largest = sum(map(max, ways)) / len(ways)
    assert balanced(nodes, requests) == pytest.approx(largest * nodes / requests)


def test_its_limit_is_met_from_below() -> None:
    assert balanced(6, 200) == pytest.approx(balanced(6, 1000), rel=0.03)
    assert balanced(6, 200) > balanced(6, 1000)


# ---------------------------------------------------------------- locks


def calls(waiting: float) -> list[Row]:
    """Opens by the client, and at the manager, which waits for so much of its time."""
    made = []
    for t in TRIALS:
        took = near(0.01 / (1 - waiting), t)
        manager = Expected("manager", "open", "server_time", 0.01)
        lock = Expected("manager", "open", "lock_wait", 0.01)
        made += rows(OPEN, took, t) + rows(manager, took, t) + rows(lock, took * waiting, t)
    return made


def test_a_lock_that_calls_wait_for_is_named() -> None:
    assert codes(calls(0.6), OPEN) == ["lock-contention"]
    assert codes(calls(0.15), OPEN) == []  # slow, but not by the lock


def test_a_lock_that_the_model_knows_is_not() -> None:
    known = {("manager", "open"): Ideal(lock_wait_share=0.5)}
    assert codes(calls(0.6), OPEN, ideal=known) == []


def test_a_lock_of_another_operation_is_not_to_blame() -> None:
    assert codes(calls(0.6) + writes(1.5), WRITE) == []


# ---------------------------------------------------------------- nodes and launches


def test_a_node_that_differs_is_named_before_all_else() -> None:
    made = served()
    for row in made:
        row["value"] *= 1.5 if row["node"] == "s2" else 1.0
    assert codes(made + writes(1.5), WRITE, SERVER) == ["uneven-nodes"]
    # a fast node is none the less
    fast = served()
    for row in fast:
        row["value"] *= 0.5 if row["node"] == "s1" else 1.0
    assert codes(fast, SERVER) == ["uneven-nodes"]


def test_a_node_at_which_requests_wait_for_one_another_is_none() -> None:
    made = served()
    for place, row in enumerate(made):
        row["value"] *= 3.0 if row["node"] == "s2" and place % 5 else 1.0
    assert codes(made + writes(1.5), WRITE) == []


def launched(skew: float, extra: float = 0.0) -> list[Row]:
    random = np.random.default_rng(5)
    launch = Expected("client", "launch", "launch_time", 1.0)
    made = []
    for t in TRIALS:
        late = random.uniform(0.1, skew, 4) if skew else np.zeros(4)
        made += rows(launch, late, t)
        made += rows(MAKESPAN, [near(1.0, t)[0] + extra + late.max()], t)
    return made


def test_programs_that_were_launched_late_are_not_blamed_on_storage() -> None:
    assert codes(launched(0.3), MAKESPAN) == ["launch-skew"]


def test_what_is_slow_beyond_the_launch_is_not_the_launch() -> None:
    assert codes(launched(0.3, 0.3), MAKESPAN) == []
    assert codes(launched(0.0, 0.3), MAKESPAN) == []
