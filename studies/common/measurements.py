"""Measurements of a store's service times as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from penstock.parts.prediction.queue_network.identify import Measured
from penstock.parts.stores.calibration.seed import Measurements
from penstock.parts.stores.calibration.trials import Trials


def measurement_values(seen: Measurements) -> dict[str, Any]:
    """Measurements as JSON values."""
    trials = asdict(seen.trials)
    trials["seconds"] = [[*key, values] for key, values in seen.trials.seconds.items()]
    return {**asdict(seen), "trials": trials}


def measurements_of(values: Mapping[str, Any]) -> Measurements:
    """The measurements of such values; absent ones have their defaults."""
    trials = Trials(**values["trials"])
    rows: Any = trials.seconds
    trials.seconds = {Measured(*key): seconds for *key, seconds in rows}
    types = get_type_hints(Measurements)
    rest = {k: TypeAdapter(types[k]).validate_python(v) for k, v in values.items() if k != "trials"}
    return Measurements(trials=trials, **rest)
