"""Rows of a dashboard of one run besides the usage of its hosts, in the form of `usage.py`.

Phases, rates and latencies that the program reported, completeness of the series, offsets of clocks,
certificates of emulated disks, and the cost of observation.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.host.probe.clock_offset import CLOCK, CLOCK_BOUND
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.points import numbers_of
from penstock.parts.monitoring.experiments.recorded import Recorded, labels_of
from penstock.parts.monitoring.usage.dashboards import OF_RUN
from penstock.parts.monitoring.usage.process_usage import of_processes
from penstock.parts.monitoring.usage.usage import COLUMNS, HOST_LABELS, is_of_host
from penstock.spec.units import parse_unit

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
#: unit of a rate by its other spellings
_SPELLINGS = {
    "KB/s": "kB/s",
    "kiB/s": "KiB/s",
    "op/s": "ops/s",
    "io/s": "ops/s",
    "tx/s": "ops/s",
}
#: metrics in seconds that are latencies, not elapsed or processor time
_LATENCY = re.compile(r"(?i)lat|delay|wait|duration|response|rtt|(^|_)p\d\d")
#: labels that name a host, and a part of it
_PLACE_LABELS = (*HOST_LABELS, "entity")
#: metrics of collectors and the sampler about themselves
_OWN = ("scrape_", "sampler_", "cassandra_success", CLOCK, CLOCK_BOUND)

#: (kind, entity, metric, unit, times, values)
_Stretch = tuple[str, str, str, str, Any, Any]


def run_uses(experiment: Experiment, recorded: Recorded, bundle: Bundle | None) -> pd.DataFrame:
    """Rows of kinds `phase`, `program`, `process`, `recorded`, `clock`, `certificate` and `observer`."""
    end_ns = experiment.end_ns if experiment.end_ns is not None else time.time_ns()
    span = np.array([experiment.start_ns, end_ns], np.int64)
    parts: list[_Stretch] = []
    for number, phase in enumerate(experiment.phases, 1):
        lasts = np.array([phase.start_ns, phase.end_ns or end_ns], np.int64)
        parts.append(("phase", phase.name, "lasts", "", lasts, np.full(2, float(number))))
    parts += _of_series(recorded)
    parts += of_processes(recorded)
    shares = dict(_completeness(recorded))
    if bundle is not None:
        parts += _of_bundle(bundle, shares, span)
    for source, share in shares.items():
        parts.append(("recorded", source, "share", "%", span, np.full(2, share)))
    frames = [
        pd.DataFrame({"utc_ns": at, "value": value}).assign(
            host=OF_RUN, kind=kind, entity=entity, metric=metric, unit=unit
        )
        for kind, entity, metric, unit, at, value in parts
    ]
    combined = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    return combined.reindex(columns=COLUMNS)


def _of_series(recorded: Recorded) -> Iterator[_Stretch]:
    """Metrics that a program reported, and the clocks of the senders."""
    rows = recorded.series.to_pylist()
    names = [_who(row) for row in rows]
    short = Counter(names)
    equal = Counter((row["metric"], row["labels"]) for row in rows)
    for row, who in zip(rows, names, strict=True):
        labels = labels_of(row["labels"])
        metric, unit = str(row["metric"]), str(row["unit"])
        clock = metric == CLOCK
        quantity = ("clock", "offset", "ms", 1e3) if clock else _program(metric, unit)
        if quantity is None or row["kind"] != "time" or row["type"] not in ("float", "integer"):
            continue
        if not clock and (metric.startswith(_OWN) or is_of_host(metric, labels, row["source"])):
            continue
        kind, name, to, factor = quantity
        points = recorded.points.filter(pc.equal(recorded.points["series_id"], row["series_id"]))
        value = np.asarray(numbers_of(points), float) * factor
        others: list[str] = []
        if short[who] > 1:  # series that differ in other labels, or in their source
            others += [v for k, v in labels.items() if k not in _PLACE_LABELS and v]
            others += [f"({row['source']})"] if equal[metric, row["labels"]] > 1 else []
        entity = labels.get("source", "") if clock else " ".join([*who, *others])
        at = points["utc_ns"].to_numpy(zero_copy_only=False)
        yield kind, entity, name, to, at, np.abs(value) if clock else value


def _who(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Metric, host and entity of a row of `series`."""
    labels = labels_of(row["labels"])
    return (str(row["metric"]), *(labels[k] for k in _PLACE_LABELS if labels.get(k)))


def _program(metric: str, unit: str) -> tuple[str, str, str, float] | None:
    """Kind, metric and unit of a program's metric, and the factor to that unit."""
    with contextlib.suppress(ValueError):
        rate = parse_unit(_SPELLINGS.get(unit, unit))
        if rate.dimension == "size/time":
            return "program", "throughput", "B/s", rate.factor
        if rate.dimension == "1/time" and "/" in unit:
            return "program", "operations", "1/s", rate.factor
    if unit in _SECONDS and _LATENCY.search(metric):
        return "program", "latency", "s", _SECONDS[unit]
    return None


def _completeness(recorded: Recorded) -> Iterator[tuple[str, float]]:
    """Share of the expected points that were stored, by source [%]."""
    rows = (
        recorded.series.select(["source", "stored", "without_value", "expected"])
        .to_pandas()
        .dropna()
    )
    rows["stored"] += rows["without_value"]
    for source, group in rows.groupby("source", observed=True):
        expected = float(group["expected"].sum())
        if expected > 0:
            yield str(source), min(100.0, 100.0 * float(group["stored"].sum()) / expected)


def _of_bundle(bundle: Bundle, shares: dict[str, float], span: Any) -> Iterator[_Stretch]:
    """Observers' receipts, clocks and certificates of a run of a study. Adds to `shares`."""
    receipts = bundle.manifest.get("receipts")
    wall_ns = max(1, int(span[1] - span[0]))
    for name, receipt in receipts.items() if isinstance(receipts, Mapping) else ():
        if not isinstance(receipt, Mapping):
            continue
        samples, expected = receipt.get("samples"), receipt.get("expected")
        if isinstance(samples, int) and isinstance(expected, int) and expected > 0:
            shares[str(name)] = min(100.0, 100.0 * samples / expected)
        if isinstance(used := receipt.get("cpu_ns"), int):
            yield "observer", str(name), "cpu", "%", span, np.full(2, 100.0 * used / wall_ns)
    # the clock of an experiment's recorder is not compared with another
    if "clocks" in bundle.tables and "experiment" not in bundle.manifest:
        clocks = bundle.table("clocks", ["realtime_ns", "offset_ns"]).to_pandas().dropna()
        offset_ms = clocks["offset_ns"].abs().to_numpy(float) / 1e6
        yield "clock", "host", "offset", "ms", clocks["realtime_ns"].to_numpy(np.int64), offset_ms
    if "fidelity" in bundle.tables:
        rows = bundle.table("fidelity", ["disk_id", "valid"]).to_pandas()
        for disk, group in rows.groupby("disk_id", observed=True):
            valid = float(not group["valid"].eq(False).any())  # a null is no verdict
            yield "certificate", str(disk), "valid", "", span, np.full(2, valid)
