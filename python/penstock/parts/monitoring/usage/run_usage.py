"""What a dashboard of one run shows beside how busy its hosts were, in the form of `uses.py`.

Phases, what the program itself reported (rates, latencies), how complete the series are, how far clocks lay
apart, whether emulated disks did what was asked of them, and what observing took.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.host.probe.clock_offset import CLOCK, CLOCK_BOUND
from penstock.parts.monitoring.experiments.experiment import Experiment
from penstock.parts.monitoring.experiments.recorded import Recorded, labels_of
from penstock.parts.monitoring.usage.dashboards import OF_RUN
from penstock.parts.monitoring.usage.process_usage import of_processes
from penstock.parts.monitoring.usage.usage import COLUMNS, HOST_LABELS, is_of_host

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = re.compile(r"^([kKMG]?)(i?)B/s$")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3}
#: of what is in seconds, what is no time that has passed, nor one of a processor
_LATENCY = re.compile(r"(?i)lat|delay|wait|duration|response|rtt|(^|_)p\d\d")
#: what collectors and the sampler say of themselves
_OWN = ("scrape_", "sampler_", "cassandra_success", CLOCK, CLOCK_BOUND)

#: (kind, entity, metric, unit, times, values)
_Stretch = tuple[str, str, str, str, Any, Any]


def run_uses(found: Experiment, made: Recorded, bundle: Bundle | None) -> pd.DataFrame:
    """Rows of kinds `phase`, `program`, `process`, `recorded`, `clock`, `certificate` and `observer`."""
    end_ns = found.end_ns if found.end_ns is not None else time.time_ns()
    span = np.array([found.start_ns, end_ns], np.int64)
    parts: list[_Stretch] = []
    for number, phase in enumerate(found.phases, 1):
        lasts = np.array([phase.start_ns, phase.end_ns or end_ns], np.int64)
        parts.append(("phase", phase.name, "lasts", "", lasts, np.full(2, float(number))))
    parts += _of_series(made)
    parts += of_processes(made)
    shares = dict(_completeness(made))
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
    whole = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    return whole.reindex(columns=COLUMNS)


def _of_series(made: Recorded) -> Iterator[_Stretch]:
    """What a program reported, and the clocks of who sent it."""
    for row in made.series.to_pylist():
        labels = labels_of(row["labels"])
        metric, unit = str(row["metric"]), str(row["unit"])
        clock = metric == CLOCK
        known = ("clock", "offset", "ms", 1e3) if clock else _program(metric, unit)
        if known is None or row["kind"] != "time" or row["type"] not in ("float", "integer"):
            continue
        if not clock and (metric.startswith(_OWN) or is_of_host(metric, labels, row["source"])):
            continue
        kind, name, to, factor = known
        mine = made.points.filter(pc.equal(made.points["series_id"], row["series_id"]))
        value = pc.coalesce(mine["float"], pc.cast(mine["integer"], "float64"))
        value = value.to_numpy(zero_copy_only=False) * factor
        who = [labels[k] for k in (*HOST_LABELS, "entity") if labels.get(k)]
        entity = labels.get("source", "") if clock else " ".join([metric, *who])
        at = mine["utc_ns"].to_numpy(zero_copy_only=False)
        yield kind, entity, name, to, at, np.abs(value) if clock else value


def _program(metric: str, unit: str) -> tuple[str, str, str, float] | None:
    """Kind, metric and unit of what a program reported, and the factor to that unit."""
    if (bytes_of := _BYTES.match(unit)) is not None:
        factor = (1024.0 if bytes_of[2] else 1000.0) ** _POWERS[bytes_of[1]]
        return "program", "throughput", "B/s", factor
    if unit.endswith("/s"):
        return "program", "operations", "1/s", 1.0
    if unit in _SECONDS and _LATENCY.search(metric):
        return "program", "latency", "s", _SECONDS[unit]
    return None


def _completeness(made: Recorded) -> Iterator[tuple[str, float]]:
    """Of each source the share of the expected points that are there [%]."""
    rows = (
        made.series.select(["source", "stored", "without_value", "expected"]).to_pandas().dropna()
    )
    rows["stored"] += rows["without_value"]
    for source, mine in rows.groupby("source", observed=True):
        expected = float(mine["expected"].sum())
        if expected > 0:
            yield str(source), min(100.0, 100.0 * float(mine["stored"].sum()) / expected)


def _of_bundle(bundle: Bundle, shares: dict[str, float], span: Any) -> Iterator[_Stretch]:
    """Of a run of a study: its observers' receipts, clocks and certificates. Adds to the shares."""
    receipts = bundle.manifest.get("receipts")
    wall_ns = max(1, int(span[1] - span[0]))
    for name, receipt in receipts.items() if isinstance(receipts, Mapping) else ():
        if not isinstance(receipt, Mapping):
            continue
        made, expected = receipt.get("samples"), receipt.get("expected")
        if isinstance(made, int) and isinstance(expected, int) and expected > 0:
            shares[str(name)] = min(100.0, 100.0 * made / expected)
        if isinstance(used := receipt.get("cpu_ns"), int):
            yield "observer", str(name), "cpu", "%", span, np.full(2, 100.0 * used / wall_ns)
    # the clock of who recorded an experiment is compared with no other
    if "clocks" in bundle.tables and "experiment" not in bundle.manifest:
        clocks = bundle.table("clocks", ["realtime_ns", "offset_ns"]).to_pandas().dropna()
        offset_ms = clocks["offset_ns"].abs().to_numpy(float) / 1e6
        yield "clock", "host", "offset", "ms", clocks["realtime_ns"].to_numpy(np.int64), offset_ms
    if "fidelity" in bundle.tables:
        rows = bundle.table("fidelity", ["disk_id", "valid"]).to_pandas()
        for disk, mine in rows.groupby("disk_id", observed=True):
            valid = float(not mine["valid"].eq(False).any())  # a null is no verdict
            yield "certificate", str(disk), "valid", "", span, np.full(2, valid)
