"""A server of metrics that counts seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.parts.monitoring.experiments.points import points
from penstock.parts.monitoring.servers.reader import Kept


class ToyServer:
    """Return a point for each step."""

    def __init__(self, url: str, settings: Mapping[str, Any]) -> None:
        """No connection is opened."""

    def read(self, query: str, start_ns: int, end_ns: int, step_ns: int) -> Kept:
        """The number of each step."""
        times = np.arange(start_ns, end_ns + 1, step_ns)
        table = points(metric=[query] * len(times), utc_ns=times, float=np.arange(len(times)))
        return Kept(table, query, 1)
