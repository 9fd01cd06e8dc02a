"""Workloads of a seeding round, and the samples taken from their recorded times."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.parts.prediction.queue_network.identify import IN_TURN, Measured
from penstock.parts.prediction.workloads.check import check_workload
from penstock.parts.stores.calibration.distribution import empirical, quantiles, two_modes
from penstock.parts.stores.calibration.trials import SIZES, Trials, chains, operations, sizes
from penstock.parts.stores.workflow.running.executed import Executed

KIB, MIB = 2**10, 2**20


def run(tasks: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Executed:
    """A run with these rows."""
    return Executed(1.0, pa.Table.from_pylist(tasks), pa.Table.from_pylist(rows))


@pytest.mark.parametrize(("remote", "levels"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 4])])
def test_two_and_all_remote_clients_write_at_once(remote: int, levels: list[int]) -> None:
    names = [f"client-{i}" for i in range(remote)]
    workload = operations(["storage-0"], names)
    check_workload(workload)
    writers = Counter(t.name.rpartition(" ")[0] for t in workload.tasks if "." in t.name)
    sizes_ = (64 * KIB, 4 * MIB)
    assert writers == {f"remote.{n} write {size}": n for n in levels for size in sizes_}
    writes = [o.file for t in workload.tasks for o in t.operations if o.op == "write"]
    assert len(writes) == len(set(writes)), "each writer has its own files"
    # the tasks of a level begin at the same time, after the end of the previous level
    after = {t.name: t.after for t in workload.tasks}
    for n in levels:
        waits = {after[f"remote.{n} write {4 * MIB} {name}"] for name in names[:n]}
        assert waits == {tuple(f"remote.{n} write {64 * KIB} {name}" for name in names[:n])}


def test_concurrent_and_single_operations_are_separate() -> None:
    starts = [("remote write 1024", 1024), ("local write 1024", 1024)]
    starts += [(f"remote.3 write 65536 client-{i}", 65536) for i in range(3)] * IN_TURN
    rows = [
        {"task": task, "op": "write", "size_bytes": size, "start_s": 0.0, "end_s": 0.25 * i}
        for i, (task, size) in enumerate(starts)
    ]
    trials = Trials()
    trials.take(run([], rows))
    assert {key: len(values) for key, values in trials.seconds.items()} == {
        Measured("write", 1024): 1,
        Measured("write", 1024, True): 1,
        Measured("write", 65536, clients=3): 3 * IN_TURN,
    }
    assert trials.seconds[Measured("write", 1024, True)] == [0.25]


def test_hints_and_locations_are_timed_on_all_clients_at_once() -> None:
    workload = chains(["storage-0", "client-0"], ["storage-0"], hints=True)
    check_workload(workload)
    assert Counter(t.machine for t in workload.tasks) == {"storage-0": 6, "client-0": 6}
    placements = {f.name: f.hints.placement for f in workload.files if f.hints is not None}
    assert placements["storage-0.0"] == "local"
    assert placements["client-0.0"] == "collocate"

    def tasks(tag_s: float, locate_s: float) -> list[dict[str, Any]]:
        return [
            {"task": f"{node} {i}", "start_s": i + 0.25, "end_s": i + 1.0, "tag_s": tag_s + i}
            | {"locate_s": locate_s + i}
            for node in ("a", "b")
            for i in range(3)
        ]

    trials = Trials()
    trials.take_chains(run(tasks(0, 0), []), run(tasks(0.5, 0.125), []))
    assert trials.launches_s == [0.25] * 4
    # a task waits for the hints of its own output, and for the location of the previous output
    assert trials.tags_s == [1.5, 2.5] * 2
    assert trials.locates_s == [0.125, 1.125] * 2


def test_periods_of_limits_add_up_over_rounds() -> None:
    trials = Trials()
    trials.add_limits({"a": (100, 50), "b": (0, 0)}, {"a": (110, 54), "b": (0, 0)})
    trials.add_limits({"a": (200, 60), "b": (0, 0)}, {"a": (230, 66), "b": (0, 0)})
    assert trials.limited == {"a": [40, 10], "b": [0, 0]}
    assert trials.throttled == {"a": 0.25}


def test_one_chunk_is_among_the_sizes() -> None:
    assert sizes(256 * KIB) == (KIB, 64 * KIB, 256 * KIB, 4 * MIB)
    assert sizes(128 * MIB) == SIZES


def test_a_distribution_keeps_deviations_and_gets_a_mean() -> None:
    values = np.random.default_rng(3).exponential(4e-3, 400) + 3e-3
    pairs: Any = empirical(list(values), 5e-3)["quantiles"]
    at, times = np.array(pairs).T
    assert (at[0], at[-1]) == (0, 1)
    assert np.sum(np.diff(at) * (times[1:] + times[:-1]) / 2) == pytest.approx(5e-3, rel=1e-3)
    shifts = times - np.array(quantiles(list(values)))[:, 1]
    assert np.ptp(shifts[:-1]) < 1e-8, "all times have the same shift"
    cut: Any = empirical([1e-3, 9e-3], 1e-3)["quantiles"]
    assert min(t for _, t in cut) == 0.0


def test_two_modes_are_reported_and_one_with_a_tail_is_not() -> None:
    draws = np.random.default_rng(5)
    n = 60
    slow = draws.random(n) < 0.4
    modes = two_modes(list(np.where(slow, draws.normal(16, 1, n), draws.normal(2, 0.2, n)) / 1e3))
    assert modes is not None
    assert modes.first_s == pytest.approx(2e-3, rel=0.1)
    assert modes.second_s == pytest.approx(16e-3, rel=0.1)
    assert modes.share == pytest.approx(float(np.mean(slow)))
    for single in (
        draws.exponential(5e-3, n) + 1e-4,
        draws.lognormal(-5, 0.8, n),
        draws.uniform(1e-3, 2e-3, n),
        np.append(draws.normal(5e-3, 3e-4, n - 1), 0.5),
    ):
        assert two_modes(list(single)) is None
    assert two_modes([1e-3] * 20) is None
    assert two_modes([1e-3, 9e-3] * 5) is None, "too few times"
