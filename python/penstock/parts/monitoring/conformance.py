"""Conformance of receivers: points sent are stored, refused with a reason, or outside of the experiment.

    def send(receiver):
        post(receiver.address, …)
        return Ledger([Sent("disk_busy", {"dev": "sda"}, now_ns), …])

    check_receiver(InfluxReceiver, {"port": 0}, send)

For every series, points sent = `stored` + `outside` + `without_value` + `duplicate` + points that had to be
refused; refused points and messages are counted by reason. This also applies to collectors that poll: then
`send` serves the points.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.parts.monitoring.collectors.collector import Collector, Receipt
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.experiments.points import canonical_labels
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.experiments.spool import Spool
from penstock.scratch import Scratch

#: reasons of points without a value, which are also counted in their series
NO_VALUE = ("not finite", "stale")
_NAME = "it"


@dataclass(frozen=True)
class Sent:
    """A sent point; `has_value`: it has a valid value.

    `refused`: expected reason of refusal; empty for a point that must be accepted. Points outside of the
    experiment, and points followed by one of the same time, must be accepted.
    """

    metric: str
    labels: Mapping[str, str]
    utc_ns: int
    refused: str = ""
    has_value: bool = True


@dataclass
class Ledger:
    """Sent points, and numbers of messages to be refused completely, by reason."""

    points: Sequence[Sent] = ()
    messages: Mapping[str, int] = field(default_factory=dict)


def check_receiver(
    make: Callable[[str, Mapping[str, Any]], Collector],
    settings: Mapping[str, Any],
    send: Callable[[Any], Ledger],
) -> Recorded:
    """Run a receiver from start to stop with an experiment's spool; returns the recorded tables.

    Raises AssertionError if the counts do not balance.
    """
    with Scratch("receiver") as folder:
        spool = Spool.create(folder / "spool")
        start_ns = time.time_ns()
        collector = make(_NAME, settings)
        with Collecting({_NAME: collector}, spool.hold(_NAME)) as collecting:
            ledger = send(collector)
        end_ns = time.time_ns()
        tables = recorded(spool.batches(), start_ns, end_ns)
    check_balance(ledger, tables, collecting.receipts[_NAME], (start_ns, end_ns))
    return tables


def check_balance(
    ledger: Ledger, tables: Recorded, receipt: Receipt, window: tuple[int, int]
) -> None:
    """Compare recorded tables and receipt with the points sent. Raises AssertionError if they differ."""
    rows = {(r["metric"], r["labels"]): r for r in tables.series.to_pylist()}
    accepted: dict[tuple[str, str], list[Sent]] = {}
    for point in ledger.points:
        if not point.refused:
            name = point.metric, canonical_labels(point.labels)
            accepted.setdefault(name, []).append(point)
    for name, points in accepted.items():
        assert name in rows, f"{name}: {len(points)} points were sent, and the series is missing"
    for name, row in rows.items():
        _check_series(str(name), accepted.get(name, []), row, tables, window)
    _check_refused(ledger, tables, receipt, sum(r["without_value"] for r in rows.values()))


def _check_series(
    name: str,
    sent: Sequence[Sent],
    row: Mapping[str, Any],
    tables: Recorded,
    window: tuple[int, int],
) -> None:
    parts = {k: row[k] for k in ("stored", "outside", "without_value", "duplicate")}
    assert sum(parts.values()) == row["received"], f"{name}: {parts} of {row['received']} received"
    assert row["received"] == len(sent), f"{name}: {len(sent)} points were sent; found {parts}"
    last = {
        point.utc_ns: point.has_value for point in sent
    }  # of equal times, the last point counts
    low, high = window
    expected = {
        "stored": sum(v for t, v in last.items() if low <= t <= high),
        "outside": sum(v for t, v in last.items() if not low <= t <= high),
        "without_value": sum(not v for v in last.values()),
        "duplicate": len(sent) - len(last),
    }
    assert parts == expected, f"{name}: found {parts}; expected {expected}"
    series = np.asarray(tables.points["series_id"].combine_chunks(), np.int64)
    count = int((series == row["series_id"]).sum())
    assert count == parts["stored"] + parts["outside"], f"{name}: {count} rows of points, {parts}"


def _check_refused(ledger: Ledger, tables: Recorded, receipt: Receipt, without_value: int) -> None:
    refused = Counter(point.refused for point in ledger.points if point.refused)
    reported = Counter({reason: n for reason, n in receipt.refused.items() if n})
    valueless = sum(reported.pop(reason, 0) for reason in NO_VALUE)
    assert reported == refused, f"refused: found {dict(reported)}; expected {dict(refused)}"
    assert valueless >= without_value, f"{valueless} without a value, {without_value} in series"
    messages = Counter(dict(ledger.messages))
    reported_messages = receipt.refused_messages
    assert reported_messages == messages, (
        f"messages: found {dict(reported_messages)}; expected {dict(messages)}"
    )
    parts = receipt.stored + receipt.refused.total()
    assert receipt.received == parts, f"received {receipt.received}, stored and refused {parts}"
    gaps: dict[str, Counter[str]] = {"refused": Counter(), "refused-messages": Counter()}
    for gap in tables.gaps.to_pylist():
        if gap["kind"] in gaps:
            gaps[gap["kind"]][gap["detail"].partition(": ")[0]] += gap["missing"]
    lost = Counter(
        {reason: n for reason, n in receipt.refused.items() if n and reason != "duplicate"}
    )
    assert gaps["refused"] == lost, f"in gaps: found {gaps['refused']}; expected {lost}"
    assert gaps["refused-messages"] == messages, f"in gaps: found {gaps['refused-messages']}"
