"""Responses from the trace of a run, and the settings of the tracer in a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.campaign.evidence.observation import RunObservation
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Study
from penstock.study.load import read_study
from penstock.workload.responses import measure

STUDY = """penstock: 1
name: order
question: Which?
factors: {size: {levels: [1, 2]}}
platform: {nodes: [{name: n, disks: [DISK]}]}
workload: {command: "true {size}"}
responses:
  it: {from: FROM, unit: "UNIT", better: lower}
observers: {trace: TRACE}
"""
DIRECTORY = "{name: data, directory: /srv}"
EMULATED = "{name: data, profile: sata-ssd}"


def study(
    source: str, unit: str = "%", tracer: str = "{mode: trace}", disk: str = DIRECTORY
) -> Study:
    text = STUDY.replace("FROM", source).replace("UNIT", unit).replace("DISK", disk)
    return read_study(text.replace("TRACE", tracer).encode(), Path("/a/order.study.yaml"))


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = TABLES[name].arrow
    return pa.Table.from_pylist(
        [{**dict.fromkeys(schema.names), **row} for row in rows], schema=schema
    )


def pattern(file_id: int, requests: int, share: float | None, **columns: Any) -> dict[str, Any]:
    row = {"file_id": file_id, "direction": "read", "basis": "calls", "consecutive_share": share}
    sums = {"bytes": 4096 * requests, "calls": requests + 1, "time_ns": 1000 * (requests + 1)}
    return row | {"requests": requests} | sums | columns


#: latencies of the reads of a.wt [ns]
LATENCIES = np.arange(1, 102) * 1000


@pytest.fixture
def run(tmp_path: Path) -> Bundle:
    """Reads of two tables and a library; writes, faults, device requests, one thread and one phase of the
    first table; flushes that take 0.5 s of a run of 2 s."""
    bundle = Bundle.create(tmp_path / "r001", {"run_id": "r001"})
    names = {1: "/mnt/r001/data/a.wt", 2: "/mnt/r001/data/b.wt", 3: "/lib/libc.so"}
    files = [{"file_id": number, "path": path} for number, path in names.items()]
    bundle.write_table("files", table("files", files))
    rows = [
        pattern(1, 300, 1.0),
        pattern(2, 100, 0.2),
        pattern(3, 1, None),
        pattern(1, 300, 0.5, tid=7),
        pattern(1, 300, 0.5, phase_id="load"),
        pattern(1, 10, 0.0, direction="write"),
        pattern(1, 20, 0.4, basis="faults"),
        pattern(1, 40, 0.3, basis="device"),
    ]
    bundle.write_table("patterns", table("patterns", rows))
    calls = [
        {"file_id": 1, "op": "fdatasync", "calls": 4, "time_ns": 400_000_000},
        {"file_id": 2, "op": "fsync", "calls": 1, "time_ns": 100_000_000},
        {"file_id": 2, "op": "open", "calls": 9, "time_ns": 900_000_000},
    ]
    bundle.write_table("operations", table("operations", calls))
    events = [
        {"seq": n, "file_id": 1, "direction": "read", "op": "pread64", "latency_ns": int(ns)}
        for n, ns in enumerate(LATENCIES)
    ]
    events += [
        {"seq": 200, "file_id": 1, "direction": "write", "op": "pwrite64", "latency_ns": 10**9},
        {"seq": 201, "file_id": 1, "direction": "read", "op": "fault_read", "latency_ns": 7000},
        {"seq": 202, "file_id": 2, "direction": "read", "op": "pread64", "latency_ns": 10**9},
    ]
    bundle.write_table("io_events", table("io_events", events))
    return bundle


def value(bundle: Bundle | None, source: str, unit: str, disk: str = DIRECTORY) -> float:
    tracer = "{mode: trace, layers: true}"
    (response,) = study(source, unit, tracer, disk).responses
    return measure([response], "none", Path(), "", "", 2.0, bundle)[response.name].value


@pytest.mark.parametrize(
    ("source", "unit", "expected"),
    [
        ("{trace: requests, direction: read}", "1", 401),
        ("{trace: requests}", "1", 411),
        ("{trace: requests, file: '*.wt', direction: read}", "requests", 400),
        ("{trace: bytes, file: a.wt, direction: write}", "KiB", 40),
        # (300 · 1 + 100 · 0.2) / 400
        ("{trace: consecutive_share, direction: read}", "%", 80),
        ("{trace: consecutive_share, file: b.wt}", "%", 20),
        ("{trace: consecutive_share, file: '/mnt/*/a.wt', basis: faults}", "%", 40),
        ("{trace: consecutive_share, basis: device}", "%", 30),
        ("{trace: time, file: b.wt}", "us", 101),
        ("{trace: mean_latency, file: '*.wt', direction: read}", "us", 1),
        ("{trace: p50_latency, file: a.wt, direction: read}", "us", 51),
        ("{trace: p99_latency, file: a.wt, direction: read}", "us", 100),
        ("{trace: p99_latency, file: a.wt, basis: faults}", "us", 7),
        ("{trace: p99_latency, file: a.wt, direction: write}", "s", 1),
        ("{trace: flushes}", "1", 5),
        ("{trace: flushes, file: a.wt}", "1", 4),
        ("{trace: flush_share}", "%", 25),
    ],
)
def test_measures_of_a_trace(run: Bundle, source: str, unit: str, expected: float) -> None:
    assert value(run, source, unit) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{trace: requests, file: c.wt}", "found no traced file that matches c.wt"),
        # brackets are part of a name
        (r"{trace: requests, file: '[ab].wt'}", r"found no traced file that matches \[ab\].wt"),
        ("{trace: consecutive_share, file: b.wt, direction: write}", "found no write request"),
        ("{trace: p99_latency, file: b.wt, direction: write}", "found no write request"),
    ],
)
def test_a_missing_file_or_request_is_an_error(run: Bundle, source: str, message: str) -> None:
    unit = "s" if "latency" in source else "1" if "requests" in source else "%"
    with pytest.raises(PenstockError, match=f"response it: {message}"):
        value(run, source, unit)


def test_a_run_without_a_trace_has_no_such_response(tmp_path: Path) -> None:
    for bundle in (None, Bundle.create(tmp_path / "r001", {})):
        with pytest.raises(PenstockError, match=r"response it: found no.* expected"):
            value(bundle, "{trace: flushes}", "1")


@pytest.mark.parametrize("column", ["tid", "requests", "consecutive_share"])
def test_a_table_of_another_form_is_an_error(run: Bundle, column: str) -> None:
    (run.path / "patterns.parquet").unlink()
    run.write_table("patterns", table("patterns", [pattern(1, 300, 1.0)]).drop_columns([column]))
    with pytest.raises(PenstockError, match="found a table of the run that is not as penstock"):
        value(run, "{trace: consecutive_share}", "%")


def test_a_percentile_of_counted_calls_is_an_error(run: Bundle) -> None:
    rows = [pattern(1, 300, 1.0), pattern(1, 50, 0.5, basis="counters")]
    run.write_table("patterns", table("patterns", rows))
    assert value(run, "{trace: requests}", "1") == 350
    with pytest.raises(PenstockError, match="found calls without a record of their own"):
        value(run, "{trace: p99_latency}", "s")


@pytest.mark.parametrize(
    ("source", "unit", "tracer", "found"),
    [
        ("{trace: speed}", "%", "{}", "'speed'"),
        ("{trace: flushes}", "s", "{}", "the unit 's'"),
        ("{trace: flushes}", "1", "null", "a response of the trace without a tracer"),
        ("{trace: p99_latency}", "s", "{mode: pattern}", "a percentile without mode trace"),
        ("{trace: p99_latency}", "s", "{hot: bytes}", "a percentile with hot"),
        ("{trace: bytes, basis: device}", "B", "{}", "requests of devices without layers"),
        ("{trace: time, basis: device}", "s", "{layers: true}", "the basis 'device'"),
        ("{trace: flushes, direction: read}", "1", "{}", "a direction of flushes"),
        ("{trace: flushes, direction: both}", "1", "{}", "'both'"),
        ("wall_s", "s", "{mode: pattern, hot: bytes}", "hot without mode trace"),
        ("wall_s", "s", "{endings: [a/b]}", "'a/b'"),
    ],
)
def test_mistakes_are_reported_before_a_run(
    source: str, unit: str, tracer: str, found: str
) -> None:
    with pytest.raises(BadInput) as caught:
        study(source, unit, tracer)
    assert any(found in mistake.found for mistake in caught.value.mistakes), caught.value.mistakes


def test_layers_need_disks_that_are_directories() -> None:
    assert study("wall_s", "s", "{layers: true}").observers.trace is not None
    with pytest.raises(BadInput, match="layers with emulated disks"):
        study("wall_s", "s", "{layers: true}", EMULATED)


def test_settings_of_the_tracer() -> None:
    tracer = study(
        "wall_s",
        "s",
        "{files: [t.db], directories: [/srv], endings: [.wt], only: read, hot: bytes}",
    ).observers.trace
    assert tracer is not None
    assert (tracer.files, tracer.directories) == ((Path("/a/t.db"),), (Path("/srv"),))
    assert (tracer.endings, tracer.only, tracer.hot) == ((".wt",), "read", "bytes")
    assert tracer.filtered
    plain = study("wall_s", "s").observers.trace
    assert plain is not None
    assert not plain.filtered


def test_a_filtered_trace_is_not_compared_with_a_disk(run: Bundle) -> None:
    observation = RunObservation(events_path=run.path / "io_events.parquet")
    events = observation.events(["file_id"])
    assert events is not None
    assert events.num_rows == len(LATENCIES) + 3
    observation.manifest = {"filters": {"only": "read"}}
    assert observation.events(["file_id"]) is None
