"""The comparison of real stores with their models, on what was measured before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.parts.stores.calibration.seed import identified
from studies.claims import Claim, Result, status
from studies.prediction_study.evaluation import Predicted, scenario_rows
from studies.stores import (
    DEFAULT,
    ENGINES,
    OCCURRED,
    ROOT,
    Compared,
    cluster,
    cost,
    evaluated,
    models,
    planted,
    predicted,
    read_recorded,
    rows_of,
    scenarios,
)


@pytest.mark.parametrize("engine", ["moosefs", "cephfs"])
def test_what_was_measured_is_predicted_again(engine: str) -> None:
    seen, found = read_recorded(ROOT / "studies" / "stores" / f"{engine}.json.gz")
    assert seen.engine == engine
    assert len(found) >= 40
    some = [c for c in found if c.scenario.file_mib == 4 and c.scenario.nodes == 4]
    platform = predicted(engine, seen, some)
    assert set(some[0].predicted) == {*models(engine), OCCURRED}
    assert planted(some, platform)
    rows = {row["metric"]: row for row in rows_of(some, DEFAULT)}
    # of the half-width of a calibrated interval, and of what lies in it
    assert "half of that interval, of the prediction" in rows
    assert rows["inside of the 90 % interval, calibrated on other patterns"]["value"]
    of_one = list(scenario_rows(some[0].case(DEFAULT), engine, some[0].predicted))
    assert [row["metric"] for row in of_one] == [
        "measured",
        *["predicted"] * len(models(engine)),
        "predicted",
    ]


def test_a_scenario_that_was_not_measured_fails_the_comparison() -> None:
    """A model that is right in every scenario, and one of its scenarios without runs."""
    _, found = read_recorded(ROOT / "studies" / "stores" / "moosefs.json.gz")
    small = [c for c in found if c.scenario in scenarios(True)]
    assert len(small) == 4
    for c in small:
        c.predicted = {DEFAULT: Predicted(c.mean_s, 0.76 * c.mean_s, 1.24 * c.mean_s, "ok")}
        c.cpu_s = c.cpu_plain_s = 1e-4

    def claims_of(runs: list[Compared]) -> list[Claim]:
        rows = [*rows_of(runs, DEFAULT), *cost(runs)]
        marked, claims = evaluated(rows, runs, True)
        assert len(marked) == len(rows)
        return claims

    complete = claims_of(small)
    assert {c.result for c in complete} == {Result.MET}
    assert len(complete) == 10
    for absent in small:
        claims = claims_of([c for c in small if c is not absent])
        assert {c.result for c in claims} == {Result.NOT_MEASURED}
        assert {c.missing for c in claims} == {(str(absent.scenario),)}
        assert status(claims) == 3
    once = replace(small[0], measured_s=small[0].measured_s[:1])  # one run is none
    assert status(claims_of([once, *small[1:]])) == 3
    assert status(evaluated([], [], True)[1]) == 3


def test_few_and_uneven_times_give_service_times_nevertheless() -> None:
    """An interval of four times, one of them long, reaches below nothing."""
    seen, _ = read_recorded(ROOT / "studies" / "stores" / "moosefs.json.gz")
    uneven = {
        key: [1e-4, 1e-4, 1e-4, 10 * values[0]] for key, values in seen.trials.seconds.items()
    }
    seen.trials.seconds = uneven
    assert any(m.low < 0 for m in seen.trials.means().values())
    made = identified(cluster("moosefs", []), replace(seen))
    assert made.services.read.overhead_s >= 0
    assert made.cautions


def test_every_engine_compared_has_a_model() -> None:
    for engine in ENGINES:
        assert {DEFAULT, "published"} <= set(models(engine))
