"""The comparison of real stores with their models, on recorded measurements."""

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
def test_recorded_runs_are_predicted_again(engine: str) -> None:
    seen, compared = read_recorded(ROOT / "studies" / "stores" / f"{engine}.json.gz")
    assert seen.engine == engine
    assert len(compared) >= 40
    selected = [c for c in compared if c.scenario.file_mib == 4 and c.scenario.nodes == 4]
    platform = predicted(engine, seen, selected)
    assert set(selected[0].predicted) == {*models(engine), OCCURRED}
    assert planted(selected, platform)
    rows = {row["metric"]: row for row in rows_of(selected, DEFAULT)}
    # rows on the half-width of a calibrated interval, and on its coverage
    assert "half of that interval, of the prediction" in rows
    assert rows["inside of the 90 % interval, calibrated on other patterns"]["value"]
    of_one = list(scenario_rows(selected[0].case(DEFAULT), engine, selected[0].predicted))
    assert [row["metric"] for row in of_one] == [
        "measured",
        *["predicted"] * len(models(engine)),
        "predicted",
    ]


def test_a_scenario_that_was_not_measured_fails_the_comparison() -> None:
    """A model that is exact in every scenario; one scenario has no runs."""
    _, compared = read_recorded(ROOT / "studies" / "stores" / "moosefs.json.gz")
    small = [c for c in compared if c.scenario in scenarios(True)]
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
    once = replace(small[0], measured_s=small[0].measured_s[:1])  # one run counts as none
    assert status(claims_of([once, *small[1:]])) == 3
    assert status(evaluated([], [], True)[1]) == 3


def test_few_and_uneven_times_give_service_times_nevertheless() -> None:
    """An interval of four times, one of them long, extends below zero."""
    seen, _ = read_recorded(ROOT / "studies" / "stores" / "moosefs.json.gz")
    uneven = {
        key: [1e-4, 1e-4, 1e-4, 10 * values[0]] for key, values in seen.trials.seconds.items()
    }
    seen.trials.seconds = uneven
    assert any(m.low < 0 for m in seen.trials.means().values())
    services = identified(cluster("moosefs", []), replace(seen))
    assert services.services.read.overhead_s >= 0
    assert services.cautions


def test_every_engine_compared_has_a_model() -> None:
    for engine in ENGINES:
        assert {DEFAULT, "published"} <= set(models(engine))
