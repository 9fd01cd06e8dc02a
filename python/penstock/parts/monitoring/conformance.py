"""Conformance of receivers: what was sent is stored, refused by reason, or outside of the experiment.

    def send(receiver):
        post(receiver.address, …)
        return Ledger([Sent("disk_busy", {"dev": "sda"}, now_ns), …])

    check_receiver(InfluxReceiver, {"port": 0}, send)

For every series, points that were sent = `stored` + `outside` + `without_value` + `duplicate` + those that
had to be refused; over all, those that were refused are counted by their reasons, and so are messages. It
holds for whatever takes points, also for what polls them: then `send` shows them.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.parts.monitoring.collectors.collector import Collector, Receipt
from penstock.parts.monitoring.collectors.runner import Collecting
from penstock.parts.monitoring.experiments.points import canonical_labels
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.experiments.spool import Spool

#: reasons of points that came without a value: they are of their series, and counted there, too
NO_VALUE = ("not finite", "stale")
_NAME = "it"


@dataclass(frozen=True)
class Sent:
    """A point as it was sent; `has_value` where its value is one.

    `refused`: the reason for which it has to be refused, empty where it has to be taken: also outside of the
    experiment, and where another of its time comes later.
    """

    metric: str
    labels: Mapping[str, str]
    utc_ns: int
    refused: str = ""
    has_value: bool = True


@dataclass
class Ledger:
    """What was sent: points, and messages that had to be refused as a whole, by reason."""

    points: Sequence[Sent] = ()
    messages: Mapping[str, int] = field(default_factory=dict)


def check_receiver(
    make: Callable[[str, Mapping[str, Any]], Collector],
    settings: Mapping[str, Any],
    send: Callable[[Any], Ledger],
) -> Recorded:
    """A receiver from its start to its end, with an experiment's spool; gives what it recorded.

    AssertionError where the account does not balance.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-receiver-") as place:
        spool = Spool.create(Path(place) / "spool")
        start_ns = time.time_ns()
        collector = make(_NAME, settings)
        with Collecting({_NAME: collector}, spool.hold(_NAME)) as collecting:
            ledger = send(collector)
        end_ns = time.time_ns()
        made = recorded(spool.batches(), start_ns, end_ns)
    check_balance(ledger, made, collecting.receipts[_NAME], (start_ns, end_ns))
    return made


def check_balance(
    ledger: Ledger, made: Recorded, receipt: Receipt, window: tuple[int, int]
) -> None:
    """Holds what was recorded, and the receipt, against what was sent. AssertionError where they differ."""
    rows = {(r["metric"], r["labels"]): r for r in made.series.to_pylist()}
    taken: dict[tuple[str, str], list[Sent]] = {}
    for point in ledger.points:
        if not point.refused:
            name = point.metric, canonical_labels(point.labels)
            taken.setdefault(name, []).append(point)
    for name, points in taken.items():
        assert name in rows, f"{name}: {len(points)} points were sent, and there is no such series"
    for name, row in rows.items():
        _check_series(str(name), taken.get(name, []), row, made, window)
    _check_refused(ledger, made, receipt, sum(r["without_value"] for r in rows.values()))


def _check_series(
    name: str,
    sent: Sequence[Sent],
    row: Mapping[str, Any],
    made: Recorded,
    window: tuple[int, int],
) -> None:
    parts = {k: row[k] for k in ("stored", "outside", "without_value", "duplicate")}
    assert sum(parts.values()) == row["received"], f"{name}: {parts} of {row['received']} received"
    assert row["received"] == len(sent), f"{name}: {len(sent)} points were sent, there are {parts}"
    last = {point.utc_ns: point.has_value for point in sent}  # the last of a time counts
    low, high = window
    expected = {
        "stored": sum(v for t, v in last.items() if low <= t <= high),
        "outside": sum(v for t, v in last.items() if not low <= t <= high),
        "without_value": sum(not v for v in last.values()),
        "duplicate": len(sent) - len(last),
    }
    assert parts == expected, f"{name}: found {parts}; expected {expected}"
    series = np.asarray(made.points["series_id"].combine_chunks(), np.int64)
    there = int((series == row["series_id"]).sum())
    assert there == parts["stored"] + parts["outside"], f"{name}: {there} rows of points, {parts}"


def _check_refused(ledger: Ledger, made: Recorded, receipt: Receipt, without_value: int) -> None:
    refused = Counter(point.refused for point in ledger.points if point.refused)
    said = Counter({why: n for why, n in receipt.refused.items() if n})
    of_no_value = sum(said.pop(why, 0) for why in NO_VALUE)
    assert said == refused, f"refused: found {dict(said)}; expected {dict(refused)}"
    assert of_no_value >= without_value, f"{of_no_value} without a value, {without_value} in series"
    messages = Counter(dict(ledger.messages))
    told = receipt.refused_messages
    assert told == messages, f"messages: found {dict(told)}; expected {dict(messages)}"
    parts = receipt.stored + receipt.refused.total()
    assert receipt.received == parts, f"received {receipt.received}, stored and refused {parts}"
    gaps: dict[str, Counter[str]] = {"refused": Counter(), "refused-messages": Counter()}
    for gap in made.gaps.to_pylist():
        if gap["kind"] in gaps:
            gaps[gap["kind"]][gap["detail"].partition(": ")[0]] += gap["missing"]
    stored = Counter({w: n for w, n in receipt.refused.items() if n and w != "duplicate"})
    assert gaps["refused"] == stored, f"in gaps: found {gaps['refused']}; expected {stored}"
    assert gaps["refused-messages"] == messages, f"in gaps: found {gaps['refused-messages']}"
