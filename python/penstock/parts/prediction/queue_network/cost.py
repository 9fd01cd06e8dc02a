"""Cost of a run: hosts × time × price."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.analyse.statistics.prediction_intervals import Interval
from penstock.errors import BadInput
from penstock.platform.power import Price


@dataclass(frozen=True)
class Cost:
    """Cost of one run of `hours`; `started_hours`: (some) hosts are billed by the started hour."""

    amount: float
    currency: str
    hosts: int
    hours: float
    started_hours: bool
    interval: Interval | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/prediction/1`."""
        return {
            "amount": self.amount,
            "interval": None if self.interval is None else self.interval.ends(),
            "currency": self.currency,
            "hosts": self.hosts,
            "hours": self.hours,
            "started_hours": self.started_hours,
        }


def run_cost(makespan_s: float, prices: Mapping[str, Price]) -> Cost | None:
    """Cost of every priced host (prices by host name) for the makespan; None without a price.

    Every host with a price is billed, including the manager and idle ones. Raises BadInput for prices in
    several currencies.
    """
    if not prices:
        return None
    currencies = sorted({p.currency for p in prices.values()})
    if len(currencies) > 1:
        raise BadInput(f"price: found {' and '.join(currencies)}; expected one currency")
    amount = math.fsum(p.cost(makespan_s) for p in prices.values())
    started = any(p.started_hours for p in prices.values())
    return Cost(amount, currencies[0], len(prices), makespan_s / 3600, started)
