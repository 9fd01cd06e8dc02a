"""Withheld predictions of recorded runs, and their reasons."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.conditions import read_ahead
from penstock.parts.prediction.queue_network.predict import predict_many
from penstock.parts.prediction.report.prediction_text import answer
from penstock.platform.hosts import Platform
from studies.prediction_study.scenarios import Scenario
from studies.stores import DEFAULT, ROOT, Compared, changes_of, models, read_recorded, seeded_under

SEEDS = 2


@cache
def recorded(engine: str) -> tuple[Platform, dict[Scenario, Compared]]:
    """The platform with the recorded service times, and the runs."""
    seen, compared = read_recorded(ROOT / "studies" / "stores" / f"{engine}.json.gz")
    platform = seeded_under(engine, seen, models(engine)[DEFAULT])([])
    return platform, {c.scenario: c for c in compared}


def predicted(engine: str, scenario: Scenario, **changes: str) -> Prediction:
    platform, _ = recorded(engine)
    values = dict(c.split("=") for c in changes_of(scenario))
    values |= {"scheduler.kind": scenario.scheduler}
    values |= {path.replace("__", "."): value for path, value in changes.items()}
    (prediction,) = predict_many(
        scenario.workload(), [platform.with_values(values)], SEEDS, threads=1
    )
    return prediction


def outside(prediction: Prediction) -> list[str]:
    return [r.code for r in prediction.applies.reasons if r.severity == "outside"]


@pytest.mark.parametrize("nodes", [4, 6])
def test_scattered_reads_of_cephfs_are_withheld(nodes: int) -> None:
    """The runs took longer by a third and more: the read-ahead did not fit into the clients' cache."""
    scenario = Scenario("scatter", 16, nodes, True)
    prediction = predicted("cephfs", scenario)
    assert recorded("cephfs")[1][scenario].mean_s > 1.3 * prediction.makespan_s
    assert outside(prediction)[0] == "read-ahead"
    assert answer(prediction).headline == (
        "Not predicted: clients of cephfs read 16 MiB ahead into a cache of 1 MiB and fetch them again "
        "(a real run took 2.2 times as long)."
    )
    large = predicted("cephfs", scenario, preprocess__cache="16MiB")
    assert "read-ahead" not in outside(large)


def test_reads_of_a_store_with_limited_read_ahead_are_predicted() -> None:
    """Clients read ahead at most half of their cache since the runs were recorded."""
    seen, _ = read_recorded(ROOT / "studies" / "stores" / "cephfs.json.gz")
    scenario = Scenario("scatter", 16, 4, True)
    for ahead, withheld in ((2**19, False), (2**21, True)):
        limited = replace(seen, read_ahead_bytes=ahead)
        platform = seeded_under("cephfs", limited, models("cephfs")[DEFAULT])([])
        reason = read_ahead(scenario.workload(), platform)
        assert (reason is not None) == withheld


def test_concurrent_writes_of_cephfs_are_withheld() -> None:
    for hints in (False, True):
        scenario = Scenario("pipeline", 4, 4, hints)
        prediction = predicted("cephfs", scenario)
        assert recorded("cephfs")[1][scenario].mean_s > prediction.makespan_s
        assert outside(prediction) == ["concurrent-writers"]
        assert answer(prediction).headline.startswith(
            "Not predicted: several clients write to cephfs"
        )


def test_concurrent_writes_of_moosefs_were_compared() -> None:
    for pattern in ("pipeline", "reduce", "scatter"):
        assert outside(predicted("moosefs", Scenario(pattern, 16, 4, True))) == []
