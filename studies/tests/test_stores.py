"""The comparison of real stores with their models, on what was measured before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.parts.stores.calibration.seed import identified
from studies.stores import (
    DEFAULT,
    ENGINES,
    OCCURRED,
    ROOT,
    cluster,
    judged,
    models,
    planted,
    predicted,
    read_kept,
)


@pytest.mark.parametrize("engine", ["moosefs", "cephfs"])
def test_what_was_measured_is_predicted_again(engine: str) -> None:
    seen, found = read_kept(ROOT / "studies" / "stores" / f"{engine}.json.gz")
    assert seen.engine == engine
    assert len(found) >= 40
    some = [c for c in found if c.scenario.file_mib == 4 and c.scenario.nodes == 4]
    platform = predicted(engine, seen, some)
    assert set(some[0].predicted) == {*models(engine), OCCURRED}
    assert planted(some, platform)
    rows = {row["metric"]: row for row in judged(some, DEFAULT)}
    # of the half-width of a calibrated interval, and of what lies in it
    assert "half of that interval, of the prediction" in rows
    assert rows["inside of the 90 % interval, calibrated on other patterns"]["value"]


def test_few_and_uneven_times_give_service_times_nevertheless() -> None:
    """An interval of four times, one of them long, reaches below nothing."""
    seen, _ = read_kept(ROOT / "studies" / "stores" / "moosefs.json.gz")
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
