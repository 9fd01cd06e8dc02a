"""Recorded measurements of a store are unchanged."""

from __future__ import annotations

import json

import pytest

from penstock.host.network.loopback import Measured as Interval
from penstock.parts.prediction.queue_network.identify import Measured
from penstock.parts.stores.calibration.seed import Measurements
from penstock.parts.stores.calibration.trials import Trials
from penstock.parts.stores.calibration.window import DelayedReads
from studies.common.measurements import measurement_values, measurements_of


@pytest.mark.parametrize(
    "delayed", [None, "no relay", DelayedReads(0.1, 8, 2**18, [0.25], [0.5, 0.75])]
)
def test_a_record_has_all_measurements(delayed: DelayedReads | str | None) -> None:
    rate = Interval(1.0, 0.5, 1.5, 3, False)
    seconds = {Measured("write", 65536, clients=3): [0.5], Measured("read", 1024, True): [0.25]}
    trials = Trials(seconds, [0.1], [0.2], [0.3], 3, ["round 2: busy"], {"a": [10, 2]})
    seen = Measurements("moosefs", trials, rate, rate, rate, delayed)
    assert measurements_of(json.loads(json.dumps(measurement_values(seen)))) == seen
