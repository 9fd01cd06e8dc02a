"""Uncertain values of a platform, and platforms sampled from them."""

from __future__ import annotations

import numpy as np

from penstock.parts.prediction.queue_network.applies import Reason
from penstock.parts.prediction.queue_network.sensitivity import Uncertain
from penstock.platform.hosts import Platform
from penstock.platform.uncertain import amount

#: separates the platforms' random numbers from others of the same seed
STREAM = 0x706C6174
#: indices of draws, and the platform with their numbers
Drawn = tuple[list[int], Platform]


def uncertain_values(platform: Platform) -> list[Uncertain]:
    """Estimates with an interval and assumptions with a range, as numbers in base units and as text."""
    values = []
    for e in platform.estimates:
        if e.low < e.high:
            texts = [f"{x:.10g} {e.unit}".strip() for x in (e.value, e.low, e.high)]
            values.append(_uncertain(e.path, texts, e.note))
    for a in platform.assumed:
        one = _uncertain(a.path, [str(v) for v in (a.value, a.low, a.high)], a.note)
        if one.low < one.high:
            values.append(one)
    return values


def _uncertain(path: str, texts: list[str], note: str) -> Uncertain:
    value, low, high = (_number(t) for t in texts)
    return Uncertain(path, value, low, high, texts[0], texts[1], texts[2], note)


def _number(value: object) -> float:
    parsed = amount(value)
    return parsed.number * (parsed.unit.factor if parsed.unit is not None else 1.0)


def sampled(platform: Platform, draws: int) -> list[Drawn]:
    """The platform with every estimate and assumption sampled `draws` times; the i-th draw is always the
    same."""
    rngs = [np.random.default_rng([STREAM, i]) for i in range(draws)]
    return platform.sample(rngs, assumptions=True)


def measured_badly(platform: Platform) -> list[Reason]:
    """Reasons for caution from the measurement quality of the platform's values."""
    reasons = []
    rough = [e.path for e in platform.estimates if not e.converged]
    clamped = [e.path for e in platform.estimates if e.clamped]
    if rough:
        text = f"measured without reaching the requested precision: {', '.join(rough)}"
        reasons.append(Reason("unconverged", "caution", text))
    if clamped:
        text = f"the measurement was negative and was set to 0: {', '.join(clamped)}"
        reasons.append(Reason("clamped", "caution", text))
    return reasons
