"""Metrics from kube-burner's local indexer: a JSON array (or JSON Lines) of documents.

The format is described in kube-burner's documentation, "Metrics collection": `metricName`, `timestamp`,
`labels`, `value`; latency measurements and job summaries are documents with several numbers. Latencies are in
milliseconds, those of services (`svcLatency…`) in nanoseconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from penstock.errors import BadInput, printable
from penstock.workload.metrics import (
    Readings,
    contradictory,
    json_documents,
    samples,
    text_of,
    unknown_units,
    unrepeated,
)

WHAT = "kube-burner's metrics (JSON with `metricName`)"
#: Go's zero time is that of an object without the event
_NO_TIMES = (None, "0001-01-01T00:00:00Z")
#: numbers that identify the subject of a document
_NO_VALUES = {"jobIteration", "replica", "connectionidx", "value"}
_NAMES = ("nodeName", "node", "instance", "podName", "pod", "namespace", "device", "quantileName")
#: names of the object of a latency measurement, beside those
_OBJECTS = (
    "service netpol k8sJobName pvcName dvName vsName vmName vmiName vmimName name containerName "
    "routeAdvertisementName"
).split()
_OF_LATENCY = re.compile(r"Latency(Quantiles)?(Measurement|Summary)(-.*)?$")
_LATENCY = re.compile(
    r"(Latency(_v\d+)?|^(P\d+|min|max|avg|ready|minReady|ipAssigned))$", re.IGNORECASE
)
_OF_A_JOB = {"elapsedTime": "s", "elapsedTimeNoGC": "s", "achievedQps": "1/s"}


class Entity(NamedTuple):
    """Names of a document's subject, without and with all labels."""

    short: str
    full: str


def matches(path: Path, head: bytes) -> bool:
    """True for JSON with the keys common to all documents."""
    return head.lstrip()[:1] in (b"[", b"{") and b'"metricName"' in head and b'"timestamp"' in head


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """All values; the entity is built from the labels. Documents without a value (alerts) are skipped."""
    parts = json_documents(text_of(path), path, WHAT)
    documents = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    rows: list[tuple[Any, ...]] = []
    skipped: list[str] = []
    untimed = 0
    for number, document in enumerate(documents, 1):
        if isinstance(document, dict) and document.get("timestamp") in _NO_TIMES:
            untimed += 1
            continue
        try:
            document_rows = list(_rows(document))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise BadInput(f"{path}: document {number}: found {error!r}; expected {WHAT}") from None
        rows += document_rows
        if not document_rows:
            skipped.append(str(document["metricName"]))
    notes = []
    if skipped:
        names = ", ".join(printable(name) for name in list(dict.fromkeys(skipped))[:5])
        notes.append(f"{len(skipped)} documents without a number were skipped: {names}")
    if untimed:
        notes.append(f"{untimed} documents without a time were skipped")
    notes += unknown_units(str(row[3]) for row in rows if not row[4])
    frame = unrepeated(samples(_distinct(rows)), notes)
    notes += contradictory(frame)
    return Readings(frame, facts={"documents": len(documents)}, notes=notes)


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    metric = str(document["metricName"])
    stamp = pd.Timestamp(document["timestamp"])
    if stamp.tzinfo is None:
        raise ValueError(f"the time {document['timestamp']} without a zone")
    at = int(stamp.tz_convert("UTC").as_unit("ns").value)
    labels = document.get("labels") or {}
    values = {**labels, **{k: v for k, v in document.items() if isinstance(v, str)}}
    own = [document[n] for n in _OBJECTS if isinstance(document.get(n), str)]
    names = " ".join([*(str(values[n]) for n in _NAMES if n in values), *own])
    others = {**({"jobName": document["jobName"]} if "jobName" in document else {}), **labels}
    entity = Entity(
        names or "cluster",
        " ".join(
            [names, *(f"{k}={v}" for k, v in sorted(others.items()) if k not in _NAMES)]
        ).strip(),
    )
    if _is_number(document.get("value")):
        # result of a query: the document has no unit
        yield at, "kube-burner", entity, metric, "", float(document["value"]), False
        return
    for name, value in document.items():
        if name not in _NO_VALUES and _is_number(value):
            unit = _unit(metric, name)
            yield at, "kube-burner", entity, f"{metric}.{name}", unit, float(value), False


def _distinct(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with entities as texts: the short one, unless two series of its metric would have the same."""
    short = {(row[0], row[2].short, row[3]): row[2].full for row in rows}
    several = {row[3] for row in rows if short[row[0], row[2].short, row[3]] != row[2].full}
    return [
        (*row[:2], row[2].full if row[3] in several else row[2].short, *row[3:]) for row in rows
    ]


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _unit(metric: str, name: str) -> str:
    """Unit of a number of a document; empty if unknown."""
    if metric == "jobSummary":
        return _OF_A_JOB.get(name, "")
    if _OF_LATENCY.search(metric) and _LATENCY.search(name):
        return "ns" if metric.startswith("svcLatency") else "ms"
    return ""
