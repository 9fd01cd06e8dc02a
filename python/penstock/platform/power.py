"""Power and price of a host."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.platform.draws import above_zero, parse_power, parse_price
from penstock.platform.file import PowerFile, PriceFile, StateFile
from penstock.spec.power import Power
from penstock.spec.units import parse_frequency, parse_share

__all__ = ["Power", "Price", "chosen_state", "power_of", "price_of"]


@dataclass(frozen=True)
class Price:
    """Price of one host per hour."""

    per_hour: float
    currency: str
    started_hours: bool = False

    def cost(self, elapsed_s: float) -> float:
        """Cost of one host for `elapsed_s`, in `currency`."""
        hours = elapsed_s / 3600
        return self.per_hour * (math.ceil(hours - 1e-12) if self.started_hours else hours)


def chosen_state(power: PowerFile) -> StateFile | None:
    """State selected by `frequency`; None without a selection. KeyError for an unknown frequency."""
    if power.frequency is None:
        return None
    hz = parse_frequency(power.frequency)
    for state in power.states:
        if math.isclose(parse_frequency(state.frequency), hz, rel_tol=1e-9):
            return state
    raise KeyError(power.frequency)


def power_of(power: PowerFile) -> Power:
    """Power in the selected state. KeyError without idle power or for an unknown frequency."""
    state = chosen_state(power)

    def watts(name: str) -> float | None:
        text = getattr(state, name, None) if state is not None else None
        text = text if text is not None else getattr(power, name)
        return None if text is None else parse_power(text)

    idle = watts("idle")
    if idle is None:
        raise KeyError("idle")
    above = {}
    for name in ("app", "storage", "network"):
        value = watts(name)
        above[f"{name}_w"] = 0.0 if value is None else above_zero(value - idle)
    share = power.proportional
    return Power(
        idle_w=idle,
        **above,
        peak_w=watts("peak"),
        cap=power.cap,
        proportional=float(share) if isinstance(share, bool) else parse_share(share),
        frequency_hz=parse_frequency(power.frequency) if power.frequency else None,
    )


def price_of(price: PriceFile) -> Price:
    """Price per hour."""
    per_second, currency = parse_price(price.per_host)
    return Price(per_second * 3600, currency, price.started_hours)
