"""Metrics that kube-burner's local indexer left: a JSON array (or JSON Lines) of documents.

The form is that of kube-burner's documentation, "Metrics collection": `metricName`, `timestamp`, `labels`,
`value`; of latency measurements, documents with several numbers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.errors import BadInput
from penstock.workload.metrics import Readings, samples, text_of

WHAT = "kube-burner's metrics (JSON with `metricName`)"
_NO_VALUES = {
    "timestamp",
    "labels",
    "uuid",
    "query",
    "metricName",
    "jobName",
    "jobConfig",
    "metadata",
    "value",
}
_NAMES = ("nodeName", "node", "instance", "podName", "pod", "namespace", "device", "quantileName")


def matches(path: Path, head: bytes) -> bool:
    """Whether it is one, by the names of its keys."""
    return head.lstrip()[:1] in (b"[", b"{") and b'"metricName"' in head and b'"timestamp"' in head


def read(path: Path, words: Mapping[str, Any]) -> Readings:
    """Every value; the entity is what its labels name."""
    text = text_of(path)
    try:
        documents = json.loads(text) if text.lstrip().startswith("[") else _lines(text)
        rows = [row for document in documents for row in _rows(document)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path}: found {error!r}; expected {WHAT}") from None
    return Readings(samples(rows), facts={"documents": len(documents)})


def _lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    at = int(pd.Timestamp(document["timestamp"]).tz_convert("UTC").as_unit("ns").value)
    labels = document.get("labels") or {}
    known = {**labels, **{k: v for k, v in document.items() if isinstance(v, str)}}
    entity = " ".join(str(known[n]) for n in _NAMES if n in known) or "cluster"
    metric = str(document["metricName"])
    if isinstance(document.get("value"), int | float):
        yield at, "kube-burner", entity, metric, "1", float(document["value"]), False
        return
    for name, value in document.items():
        if (
            name not in _NO_VALUES
            and isinstance(value, int | float)
            and not isinstance(value, bool)
        ):
            unit = (
                "ms"
                if name.lower().endswith("latency") or name in ("P99", "P95", "P50", "avg", "max")
                else "1"
            )
            yield at, "kube-burner", entity, f"{metric}.{name}", unit, float(value), False
