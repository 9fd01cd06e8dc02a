"""Counter resets and target restarts, detected from the points of a source.

Counters are series that their collector declares as such (`Account.counter`), and metrics named `…_total`. A
target has restarted if its `process_start_time_seconds` changed by more than the second by which a host's
clock may shift it, or together with a counter reset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.parts.monitoring.experiments.points import Account, Event

Ints = npt.NDArray[np.int64]
#: metric, labels
Name = tuple[str, str]
STARTED = "process_start_time_seconds"
#: largest shift of a start time without a restart [s]
_MOVES_S = 1.5


@dataclass(frozen=True)
class Restart:
    """Restart of a target between two points of its start time; `instance`: its label, if there is one."""

    event: Event
    instance: str | None

    def is_of(self, labels: str) -> bool:
        """True if a series with these labels is of that target."""
        return self.instance is None or _instance(labels) == self.instance


def is_counter(metric: str, account: Account | None) -> bool:
    """True if a series only grows, except at resets."""
    return metric.endswith("_total") or (account is not None and account.counter)


def falls(
    points: pa.Table,
    places: Ints,
    edges: Ints,
    names: Sequence[Name],
    accounts: Mapping[Name, Account],
    events: Sequence[Event],
) -> tuple[list[Event], list[Restart]]:
    """Resets, and restarts of targets, in points sorted by series and time.

    `edges`: first row of each series. Resets among `events` are omitted: their collector reported them.
    """
    counters = [c for c, n in enumerate(names) if is_counter(n[0], accounts.get(n))]
    starts = [c for c, n in enumerate(names) if n[0] == STARTED]
    if not counters and not starts:
        return [], []
    values = _numbers(points)
    reported = {(e.metric, e.labels, e.utc_ns) for e in events if e.kind == "reset"}
    resets: list[Event] = []
    fell: list[tuple[str | None, int, int]] = []
    for code in counters:
        metric, labels = names[code]
        for before, at in _changes(values, edges, code, down=True):
            fell.append((_instance(labels), int(places[before]), int(places[at])))
            if (metric, labels, int(places[at])) not in reported:
                detail = f"from {values[before]:.15g} to {values[at]:.15g}"
                resets.append(Event("reset", int(places[at]), None, metric, labels, detail))
    restarts: list[Restart] = []
    for code in starts:
        metric, labels = names[code]
        of = _instance(labels)
        for before, at in _changes(values, edges, code, down=False):
            low, high = int(places[before]), int(places[at])
            seen = any(i == of and a < high and low < b for i, a, b in fell)
            if seen or abs(values[at] - values[before]) > _MOVES_S:
                detail = f"{STARTED} from {values[before]:.15g} to {values[at]:.15g}"
                event = Event("restart", high, None, metric, labels, detail)
                restarts.append(Restart(event, of))
    return resets, restarts


def _changes(
    values: npt.NDArray[np.float64], edges: Ints, code: int, down: bool
) -> list[tuple[int, int]]:
    """Rows before and at each decrease, or change, of a series; values that are not finite are skipped."""
    low, high = int(edges[code]), int(edges[code + 1])
    at = low + np.flatnonzero(np.isfinite(values[low:high]))
    step = np.diff(values[at])
    rows = np.flatnonzero(step < 0 if down else step != 0)
    return [(int(at[i]), int(at[i + 1])) for i in rows]


def _numbers(points: pa.Table) -> npt.NDArray[np.float64]:
    numbers = pc.coalesce(points["float"], pc.cast(points["integer"], pa.float64(), safe=False))
    return np.asarray(pc.fill_null(numbers, float("nan")).to_numpy(), np.float64)


def _instance(labels: str) -> str | None:
    instance = json.loads(labels).get("instance")
    return None if instance is None else str(instance)
