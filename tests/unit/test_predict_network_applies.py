"""Applicability of the model: each rule has a case that triggers it and one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.parts.prediction.queue_network.applies import (
    Applies,
    Conditions,
    ReadAhead,
    Reason,
    Used,
    judge,
)
from penstock.parts.prediction.queue_network.conditions import (
    concurrent_writers,
    history,
    profiled_range,
    small_operations,
)
from penstock.parts.prediction.queue_network.unequal import Rates
from penstock.parts.prediction.workloads.task import Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.profiles import read_profile
from penstock.profile.cells import Cell, Measurements
from penstock.profile.fit import fit_profile
from penstock.workload.events import GROUP_COMMITS, MAPPED

LATENCY = np.array([0.9e6, 1e6, 1.1e6])
ONCE = np.ones(3)
GOOD = Conditions(
    stations=[{"kind": "manager", "host": "m-0", "utilisation": 0.2}],
    stages=[{"name": "a", "tasks": 9, "task_mean_s": 30.0}],
    used=[Used("the chunk size on disk", 1 << 20, 1 << 16, 1 << 22, "B")],
    history={"sata-ssd": 1.1},
    stored={"s-0": (40.0, 100.0)},
    pairs=30,
    draws=39,
    least_draws=19,
)


def manager(share: float) -> list[dict[str, Any]]:
    return [{"kind": "manager", "host": "m-0", "utilisation": share}]


def test_small_operations_are_counted() -> None:
    sizes = [1024, 1024, 65536, 0]
    steps = [Operation("write", f"f{i}", 0, size) for i, size in enumerate(sizes)]
    steps += [Operation("open", "f0"), Operation("compute", seconds=1.0)]
    counts = small_operations(Workload("w", (), (Task("t", tuple(steps)),)))
    assert counts == (3, 4)
    assert judge(Conditions(small=(2, 4))).verdict == "ok"


def test_no_reason() -> None:
    assert judge(GOOD) == Applies("ok", ())


@pytest.mark.parametrize(
    ("change", "code", "verdict"),
    [
        ({"stations": manager(0.91)}, "manager-saturated", "outside"),
        ({"stations": manager(0.8)}, "manager-busy", "caution"),
        ({"stages": [{"tasks": 5, "task_mean_s": 1.9}]}, "short-tasks", "caution"),
        ({"small": (51, 100)}, "small-operations", "caution"),
        # small operations explain short tasks
        (
            {"small": (5000, 5000), "stages": [{"tasks": 3, "task_mean_s": 1.7}]},
            "small-operations",
            "caution",
        ),
        ({"used": [Used("chunk", 1 << 23, 1 << 16, 1 << 22, "B")]}, "beyond-measured", "caution"),
        ({"used": [Used("chunk", 1 << 25, 1 << 16, 1 << 22, "B")]}, "beyond-measured", "outside"),
        ({"used": [Used("chunk", 1 << 12, 1 << 16, 1 << 22, "B")]}, "beyond-measured", "outside"),
        ({"history": {"hdd-7200": 8.0}}, "history-dependent", "caution"),
        ({"unmodelled": {"fsync": 12, "unlink": 0}}, "unmodelled-operations", "caution"),
        ({"stored": {"s-0": (95.0, 100.0)}}, "capacity", "caution"),
        ({"stored": {"s-0": (101.0, 100.0)}}, "capacity", "outside"),
        ({"error": {"kind": "full", "message": "s-0 is full"}}, "failed", "outside"),
        (
            {"uniform": "all 40 files are as large as all others of their kind"},
            "uniform-sizes",
            "caution",
        ),
        ({"spread": [Rates("links", "sends", {"a": 100, "b": 89})]}, "unequal-links", "caution"),
        ({"spread": [Rates("storage", "reads", {"a": 9, "b": 8})]}, "unequal-storage", "caution"),
        ({"unmodelled": {MAPPED: 3}}, "decisive-operations", "outside"),
        ({"unmodelled": {GROUP_COMMITS: 40}}, "decisive-operations", "outside"),
        ({"writers": ("cephfs", 0.1)}, "concurrent-writers", "outside"),
        ({"read_ahead": ReadAhead("cephfs", 2, 1, 0.1)}, "read-ahead", "outside"),
        ({"saturated": (5, 10)}, "saturated-host", "outside"),
        ({"throttled": {"a": 0.1, "b": 0.5}}, "saturated-host", "outside"),
        ({"pairs": 5}, "few-pairs", "caution"),
        ({"pairs": 0, "own_calibration": True}, "few-pairs", "caution"),
        ({"pairs": 0}, "not-calibrated", "ok"),
        ({"predictions": 8}, "few-predictions", "ok"),
        ({"half_width": 0.201}, "wide-calibration", "caution"),
        ({"half_width": 0.334}, "wide-calibration", "outside"),
        ({"draws": 5}, "few-seeds", "caution"),
        ({"notes": ["no run times, so the tasks compute nothing"]}, "workload", "ok"),
        ({"platform": [Reason("unconverged", "caution", "x")]}, "unconverged", "caution"),
    ],
)
def test_each_rule(change: dict[str, Any], code: str, verdict: str) -> None:
    result = judge(replace(GOOD, **change))
    assert [r.code for r in result.reasons] == [code]
    assert result.verdict == verdict
    assert result.to_dict()["reasons"][0]["text"]


@pytest.mark.parametrize(
    "change",
    [
        {"stations": manager(0.7)},
        {"stages": [{"tasks": 5, "task_mean_s": 2.0}]},
        {"stages": [{"tasks": 4, "task_mean_s": 0.5}, {"tasks": 5, "task_mean_s": 3.0}]},
        {"used": [Used("chunk", 1 << 16, 1 << 16, 1 << 22, "B")]},
        {"history": {"nvme": 1.49}},
        {"unmodelled": {"fsync": 0}},
        {"stored": {"s-0": (90.0, 100.0)}},
        {"spread": [Rates("links", "sends", {"a": 100, "b": 90})]},
        {"writers": ("cephfs", 0.099)},
        {"writers": ("cephfs", 0.9), "half_width": 0.2},
        {"read_ahead": ReadAhead("cephfs", 2, 1, 0.099)},
        {"saturated": (4, 10)},
        {"throttled": {"a": 0.499}},
        {"pairs": 9},
        {"predictions": 9},
        {"half_width": 0.2},
        {"draws": 19},
    ],
)
def test_no_reason_at_the_limit(change: dict[str, Any]) -> None:
    assert judge(replace(GOOD, **change)).reasons == ()


def test_most_severe_reason_determines_the_verdict() -> None:
    result = judge(replace(GOOD, pairs=0, stations=manager(0.95), history={"hdd-7200": 8}))
    assert result.verdict == "outside"
    assert [r.severity for r in result.reasons] == ["outside", "caution", "note"]


def test_slow_hosts_are_sorted_by_rate() -> None:
    rates = {f"s-{i}": 100.0 for i in range(3)} | {f"t-{i}": 80.0 - i for i in range(6)}
    (reason,) = judge(replace(GOOD, spread=[Rates("links", "sends", rates)])).reasons
    assert "t-5, t-4, t-3, t-2 and 2 more send at 75 % to 80 % of what s-0 does" in reason.text


def test_history_dependence_of_devices() -> None:
    profiles = [read_profile(n, Path()) for n in ("hdd-7200", "sata-ssd", "nvme", "service-5ms")]
    ratios = history(profiles, 1 << 16)
    assert ratios["hdd-7200"] > 5
    assert ratios["service-5ms"] == pytest.approx(1)
    assert history(profiles, 1 << 26)["hdd-7200"] < ratios["hdd-7200"]


def test_range_of_a_fitted_profile() -> None:
    profile = read_profile("sata-ssd", Path())
    assert profiled_range([profile], 1e6) == []
    cells = [
        Cell(op, sequential, 4096 << 4 * i, 1, 1, 1000.0 / (i + 1), LATENCY * (i + 1), ONCE)
        for op in ("read", "write")
        for sequential in (True, False)
        for i in range(3)
    ]
    fitted = fit_profile(Measurements(cells, None, "fio"), "mine", profile["source"]).profile
    (used,) = profiled_range([fitted.to_dict()], 2 << 20)
    assert (used.low, used.high, used.value) == (4096, 1 << 20, 2 << 20)


def stage(start_s: float, end_s: float, *, tasks: int = 1, write_s: float = 1.0) -> dict[str, Any]:
    return {
        "start_s": start_s,
        "end_s": end_s,
        "tasks": tasks,
        "task_mean_s": (end_s - start_s),
        "write_s": write_s,
        "written_bytes": 1 << 20 if write_s else 0,
    }


def writers_of(stages: list[dict[str, Any]], clients: int = 2, **store: Any) -> Any:
    """Engine and share of concurrent writes, rounded."""
    declared: Any = {"engine": "cephfs"} | store
    platform: Any = SimpleNamespace(
        file=SimpleNamespace(store=SimpleNamespace(engine=declared["engine"])),
        plain={"store": declared},
    )
    network = {"hosts": [{"client": {"slots": 1}}] * clients + [{"client": None}]}
    result = concurrent_writers(platform, network, stages)
    return None if result is None else (result[0], round(result[1], 3))


def test_concurrent_writers_of_stages() -> None:
    assert writers_of([stage(0, 10, tasks=4, write_s=20)]) == ("cephfs", 0.5)
    assert writers_of([stage(0, 10, write_s=5), stage(10, 20, write_s=5)]) == ("cephfs", 0)
    assert writers_of([stage(0, 10, write_s=5), stage(9, 19, write_s=1)]) == ("cephfs", 0.3)
    reading = stage(0, 20, tasks=3, write_s=0)
    assert writers_of([reading, stage(0, 10, write_s=5)]) == ("cephfs", 0)
    # a short stage within a long one, then a third stage
    nested = [stage(0, 10, write_s=4), stage(2, 3, write_s=1), stage(10, 11, write_s=1)]
    assert writers_of(nested) == ("cephfs", round(5 / 12, 3))


def test_calibrated_concurrent_writes_are_predicted() -> None:
    stages = [stage(0, 10, tasks=4, write_s=20)]
    assert writers_of(stages, clients=1) is None
    assert writers_of(stages, engine="moosefs") is None
    assert writers_of(stages, write_contention="20ms") is None
    assert writers_of(stages, engine=None) is None
    assert writers_of(stages, engine="unknown") == ("unknown", 0.5)
