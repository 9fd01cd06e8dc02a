"""Measurements of a store's service times as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from penstock.host.network.loopback import Measured as Interval
from penstock.parts.prediction.queue_network.identify import Measured
from penstock.parts.stores.calibration.seed import Measurements
from penstock.parts.stores.calibration.trials import Trials
from penstock.parts.stores.calibration.window import DelayedReads


def measurement_values(seen: Measurements) -> dict[str, Any]:
    """Measurements as JSON values."""
    trials = asdict(seen.trials)
    trials["seconds"] = [[*key, values] for key, values in seen.trials.seconds.items()]
    return {**asdict(seen), "trials": trials}


def measurements_of(values: Mapping[str, Any]) -> Measurements:
    """The measurements of such values."""
    trials = Trials(**values["trials"])
    rows: Any = trials.seconds
    trials.seconds = {Measured(*key): seconds for *key, seconds in rows}
    rest: dict[str, Any] = {
        key: Interval(**value) if isinstance(value, dict) else value
        for key, value in values.items()
        if key not in ("trials", "delayed")
    }
    delayed = values.get("delayed")
    if isinstance(delayed, dict):
        delayed = DelayedReads(**delayed)
    return Measurements(trials=trials, delayed=delayed, **rest)
