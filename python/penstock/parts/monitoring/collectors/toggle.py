"""Switch a collector off and on while an experiment runs.

Each part of the experiment has a new collector without state of the previous one: its batches are numbered
consecutively, and the points due are added up.
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


def write_switch(
    source: str, sink: Sink, kind: Literal["disabled", "enabled"], utc_ns: int
) -> None:
    """Store the event that a collector was switched off or on."""
    event = Event(kind, utc_ns, detail="switched by hand" if kind == "disabled" else "")
    sink.write(Batch(source, sink.next_number(source), points(metric=[]), (), [event]))


def joined(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """Sum of the receipts of two parts, as returned by `Receipt.document`."""
    result = dict(before or {})
    for key, value in after.items():
        old = result.get(key)
        if old is None:
            result[key] = value
        elif isinstance(value, Mapping):
            result[key] = {k: old.get(k, 0) + value.get(k, 0) for k in {**old, **value}}
        else:  # numbers, and lists of error messages
            result[key] = old + value
    return result


class Part:
    """Sink of a collector from switching on to switching off; `before`: the previous part."""

    def __init__(self, source: str, sink: Sink, before: Part | None = None) -> None:
        self._source, self._sink = source, sink
        self._continued = before is not None
        #: True if another part may follow: the collector is switched off, and does not end
        self.goes_on = False
        #: number of its first batch
        self._first = 0 if before is None else sink.next_number(source)
        self._before: Mapping[tuple[str, str], Account] = {} if before is None else before.accounts
        #: last account by series, counted from the start of the experiment
        self.accounts: dict[tuple[str, str], Account] = dict(self._before)

    def write(self, batch: Batch) -> Accepted:
        """As `points.Sink.write`."""
        if batch.source != self._source:
            return self._sink.write(batch)
        accounts = [self._added(a) for a in batch.accounts]
        events = [e for e in map(self._adjusted, batch.events) if e is not None]
        number = self._first + batch.number
        accepted = self._sink.write(replace(batch, number=number, accounts=accounts, events=events))
        self.accounts |= {(a.metric, a.labels): a for a in accounts}
        return accepted

    def next_number(self, source: str) -> int:
        """As `points.Sink.next_number`."""
        number = self._sink.next_number(source)
        return number - self._first if source == self._source else number

    def _adjusted(self, event: Event) -> Event | None:
        """Event of a part as one of the experiment: switching off is not an end, switching on not a start."""
        if event.kind == "starting" and self._continued:
            return replace(event, kind="disabled")
        return None if event.kind == "ending" and self.goes_on else event

    def _added(self, account: Account) -> Account:
        before = self._before.get((account.metric, account.labels))
        if before is None:
            return account
        counts = (account.expected, before.expected)
        expected = None if None in counts else sum(n for n in counts if n is not None)
        return replace(
            account, since_ns=before.since_ns, expected=expected, late=account.late + before.late
        )
