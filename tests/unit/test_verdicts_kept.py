"""Stored verdicts: complete evidence in columns, and bundles of earlier versions."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.pattern import cases
from bench.trace_classifier import PATHS
from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import Bundle
from penstock.archive.traces.verdicts import patterns_as_now, verdicts_of
from penstock.errors import BadInput
from penstock.observe.trace.capture.counts import COUNTER, read_counts
from penstock.observe.trace.layers.device_order import with_reasons
from penstock.observe.trace.verdicts.patterns import Row, patterns_table
from tests.examples.trace_page import events, write_bundle

_native: Any = importlib.import_module("penstock._native")


def row_of(verdict: dict[str, Any], number: int, **fields: Any) -> Row:
    row = {"file_id": number, "direction": "read", "basis": "calls", "phase": None}
    return row | {"calls": 7, "time_ns": 11, "both": None} | verdict | fields


def classified(case: cases.Case, path: str) -> dict[str, Any]:
    offsets, sizes = (np.ascontiguousarray(v, np.int64) for v in (case.offsets, case.sizes))
    tids = None if case.tids is None else np.ascontiguousarray(case.tids, np.uint32)
    verdict: dict[str, Any] = json.loads(_native.classify(offsets, sizes, tids, path))
    return verdict


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def all_kinds(tmp_path: Path) -> list[Row]:
    """Verdicts of every class, by each path of the classifier, of a device, and of mode count."""
    rows = []
    for path in PATHS:
        for case in cases.grid((5003,), (4096,), 1):
            rows.append(row_of(classified(case, path), len(rows) + 1))
    device = [
        row_of(classified(c, "exact"), 1, basis="device") for c in cases.guards(1, 5003, 65536)
    ]
    rows += with_reasons(device, rows[:1])
    np.array([(9, 0, 5, 1, 400, 300)], COUNTER).tofile(tmp_path / "counts")
    return rows + [row | {"both": None} for row in read_counts(tmp_path / "counts")]


def test_all_evidence_is_stored(tmp_path: Path) -> None:
    rows = all_kinds(tmp_path)
    pq.write_table(patterns_table(rows, {}), tmp_path / "patterns.parquet")
    stored = verdicts_of(pq.read_table(tmp_path / "patterns.parquet"))
    overall = [verdict for verdict in stored if verdict.tid is None]
    assert len(overall) == len(rows)
    keys: set[str] = set()
    for row, verdict in zip(rows, overall, strict=True):
        assert verdict.evidence == without_nulls(row["together"]["evidence"])
        assert (verdict.calls, verdict.time_ns) == (row["calls"], row["time_ns"])
        keys |= verdict.evidence.keys()
    assert keys == {field.name for field in patterns_table([], {}).schema.field("evidence").type}


def as_before(table: pa.Table) -> pa.Table:
    """The table as earlier versions wrote it."""
    texts = [
        json.dumps(v.facts) if v.tid is None else json.dumps(v.evidence) for v in verdicts_of(table)
    ]
    at = table.column_names.index("evidence")
    return table.set_column(at, "evidence", pa.array(texts)).drop_columns(["calls", "time_ns"])


def test_bundles_of_earlier_versions_have_the_same_verdicts(tmp_path: Path) -> None:
    now = write_bundle(tmp_path / "now", events(5000))
    before = write_bundle(tmp_path / "before", events(5000))
    table = Bundle.open(now).table("patterns")
    old = as_before(table)
    assert pa.types.is_string(old["evidence"].type)
    pq.write_table(old, before / "patterns.parquet")
    runs = TracedRun(now), TracedRun(before)
    assert runs[0].verdicts
    assert runs[0].verdicts == runs[1].verdicts
    assert runs[0].findings == runs[1].findings


@pytest.mark.parametrize("text", ["{", "[1]", '{"time_ns": "long"}'])
def test_invalid_evidence_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"patterns\.parquet: "):
        patterns_as_now(pa.table({"file_id": [1], "evidence": [text]}))


def test_tables_in_memory_give_the_results_of_their_bundle(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", events(20_000, depth=20))
    stored = TracedRun(bundle)
    names = [path.stem for path in bundle.glob("*.parquet")]
    read = TracedRun({name: stored.table(name) for name in names}, stored.manifest)
    assert stored.findings
    assert read.findings == stored.findings
    assert read.verdicts == stored.verdicts
    without_events = TracedRun(
        {name: stored.table(name) for name in ("files", "patterns")}, stored.manifest
    )
    assert without_events.verdicts == stored.verdicts
    assert not without_events.has("io_events")
