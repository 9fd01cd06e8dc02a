"""Counters that went back, and targets that began anew, as the points of a source tell them.

A counter is what its collector told to be one (`Account.counter`), and what is called `…_total`. A target
began anew where its `process_start_time_seconds` changed: by more than the second that a host's clock may
move it by, or together with a counter that went back.
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
#: what a start may seem to move by where none was [s]
_MOVES_S = 1.5


@dataclass(frozen=True)
class Restart:
    """A target that began anew between two points of its start; `instance` of the label, if there is one."""

    event: Event
    instance: str | None

    def is_of(self, labels: str) -> bool:
        """Whether a series with these labels is of that target."""
        return self.instance is None or _instance(labels) == self.instance


def is_counter(metric: str, account: Account | None) -> bool:
    """Whether a series only grows."""
    return metric.endswith("_total") or (account is not None and account.counter)


def falls(
    kept: pa.Table,
    places: Ints,
    edges: Ints,
    names: Sequence[Name],
    accounts: Mapping[Name, Account],
    told: Sequence[Event],
) -> tuple[list[Event], list[Restart]]:
    """Resets, and restarts of targets, in points sorted by series and time.

    `edges`: where each series begins. Those of `told` are left out: a collector that saw one told it itself.
    """
    counters = [c for c, n in enumerate(names) if is_counter(n[0], accounts.get(n))]
    starts = [c for c, n in enumerate(names) if n[0] == STARTED]
    if not counters and not starts:
        return [], []
    values = _numbers(kept)
    known = {(e.metric, e.labels, e.utc_ns) for e in told if e.kind == "reset"}
    resets: list[Event] = []
    fell: list[tuple[str | None, int, int]] = []
    for code in counters:
        metric, labels = names[code]
        for before, at in _changes(values, edges, code, down=True):
            fell.append((_instance(labels), int(places[before]), int(places[at])))
            if (metric, labels, int(places[at])) not in known:
                said = f"from {values[before]:.15g} to {values[at]:.15g}"
                resets.append(Event("reset", int(places[at]), None, metric, labels, said))
    restarts: list[Restart] = []
    for code in starts:
        metric, labels = names[code]
        of = _instance(labels)
        for before, at in _changes(values, edges, code, down=False):
            low, high = int(places[before]), int(places[at])
            seen = any(i == of and a < high and low < b for i, a, b in fell)
            if seen or abs(values[at] - values[before]) > _MOVES_S:
                said = f"{STARTED} from {values[before]:.15g} to {values[at]:.15g}"
                event = Event("restart", high, None, metric, labels, said)
                restarts.append(Restart(event, of))
    return resets, restarts


def _changes(
    values: npt.NDArray[np.float64], edges: Ints, code: int, down: bool
) -> list[tuple[int, int]]:
    """Where a series fell, or changed, and the value before; what is no number is left out."""
    low, high = int(edges[code]), int(edges[code + 1])
    at = low + np.flatnonzero(np.isfinite(values[low:high]))
    step = np.diff(values[at])
    found = np.flatnonzero(step < 0 if down else step != 0)
    return [(int(at[i]), int(at[i + 1])) for i in found]


def _numbers(kept: pa.Table) -> npt.NDArray[np.float64]:
    whole = pc.coalesce(kept["float"], pc.cast(kept["integer"], pa.float64(), safe=False))
    return np.asarray(pc.fill_null(whole, float("nan")).to_numpy(), np.float64)


def _instance(labels: str) -> str | None:
    found = json.loads(labels).get("instance")
    return None if found is None else str(found)
