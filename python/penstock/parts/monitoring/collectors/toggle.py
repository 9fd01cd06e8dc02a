"""A collector that is switched off and on again while an experiment runs.

Each time it is on it is a new one, that knows nothing of the one before: its batches are numbered on, and
what was due is added to what had been due before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from penstock.parts.monitoring.experiments.points import (
    Accepted,
    Account,
    Batch,
    Event,
    Sink,
    points,
)


def tell(source: str, sink: Sink, kind: Literal["disabled", "enabled"], utc_ns: int) -> None:
    """Keeps it in the experiment that a collector was switched off or on."""
    event = Event(kind, utc_ns, detail="switched by hand" if kind == "disabled" else "")
    sink.write(Batch(source, sink.next_number(source), points(metric=[]), (), [event]))


def joined(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of two parts together, both as `Receipt.document` gives them."""
    made = dict(before or {})
    for key, value in after.items():
        old = made.get(key)
        if old is None:
            made[key] = value
        elif isinstance(value, Mapping):
            made[key] = {k: old.get(k, 0) + value.get(k, 0) for k in {**old, **value}}
        else:  # numbers, and lists of what was told
            made[key] = old + value
    return made


class Part:
    """The sink of a collector from when it is switched on until it is off, after the part `before`."""

    def __init__(self, source: str, sink: Sink, before: Part | None = None) -> None:
        self._source, self._sink = source, sink
        self._again = before is not None
        #: whether another part may follow: the collector is being switched off, not ending
        self.goes_on = False
        #: of its batches, the number of the first
        self._first = 0 if before is None else sink.next_number(source)
        self._before: Mapping[tuple[str, str], Account] = {} if before is None else before.accounts
        #: the newest of each series, counted from the experiment's begin
        self.accounts: dict[tuple[str, str], Account] = dict(self._before)

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`."""
        if batch.source != self._source:
            return self._sink.write(batch)
        accounts = [self._added(a) for a in batch.accounts]
        events = [e for e in map(self._of_whole, batch.events) if e is not None]
        number = self._first + batch.number
        done = self._sink.write(replace(batch, number=number, accounts=accounts, events=events))
        self.accounts |= {(a.metric, a.labels): a for a in accounts}
        return done

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        found = self._sink.next_number(source)
        return found - self._first if source == self._source else found

    def _of_whole(self, event: Event) -> Event | None:
        """What a part tells as the whole has it: being off is neither its end nor its beginning."""
        if event.kind == "starting" and self._again:
            return replace(event, kind="disabled")
        return None if event.kind == "ending" and self.goes_on else event

    def _added(self, account: Account) -> Account:
        before = self._before.get((account.metric, account.labels))
        if before is None:
            return account
        both = (account.expected, before.expected)
        expected = None if None in both else sum(n for n in both if n is not None)
        return replace(
            account, since_ns=before.since_ns, expected=expected, late=account.late + before.late
        )
