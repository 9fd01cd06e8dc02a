"""A trace bundle's table `patterns` made again from its other tables: `penstock analyse BUNDLE`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.observe.trace.capture.hot_set import COUNTERS
from penstock.observe.trace.layers.device_order import judge_device, with_reasons
from penstock.observe.trace.verdicts.patterns import Row, patterns_table
from penstock.observe.trace.verdicts.rejudge import judge_bundle, phases_of


def patterns_again(bundle: Path, threads: int = 2) -> tuple[pa.Table, list[Row]]:
    """Table `patterns` and its rows for whole files: calls, faults, and the device's order where it is known.

    What another source recorded keeps that source's basis. Raises BadInput if the bundle has no events that
    can be read.
    """
    rows = judge_bundle(bundle, threads)
    basis = _basis_of_source(bundle)
    if basis is not None:
        for row in rows:
            row["basis"] = basis
    files = pq.read_table(bundle / "files.parquet", columns=["file_id", "path"]).to_pylist()
    paths = {row["file_id"]: row["path"] for row in files}
    if basis != "device" and (bundle / "device_requests.parquet").exists():
        requests = pq.read_table(bundle / "device_requests.parquet")
        rows += with_reasons(judge_device(requests, _by_ending(requests, paths)), rows)
    names = [name for name, _, _ in phases_of(bundle)]
    whole = [row for row in rows if row["phase"] is None]
    made = patterns_table(rows, paths, names)
    return pa.concat_tables([made, _of_counters(bundle, made.schema)]), whole


def _basis_of_source(bundle: Path) -> str | None:
    """Of an imported trace or a disk's log: whether its events are calls or the device's requests."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        source = json.loads((bundle / "manifest.json").read_text()).get("source")
        return None if source is None else source.get("basis")
    return None


def _of_counters(bundle: Path, schema: pa.Schema) -> pa.Table:
    """Verdicts on files that were not chosen (`--hot`) stand: what they rest on is not in `io_events`."""
    path = bundle / "patterns.parquet"
    if not path.exists() or not (bundle / "decisions.parquet").exists():
        return schema.empty_table()
    before = pq.read_table(path)
    counted = before.filter(pc.equal(pc.cast(before["basis"], pa.string()), COUNTERS))
    for field in schema:  # not in bundles of earlier versions
        if field.name not in counted.column_names:
            counted = counted.append_column(field, pa.nulls(counted.num_rows, field.type))
    return counted.select(schema.names).cast(schema)


def _by_ending(requests: pa.Table, paths: dict[int, str | None]) -> dict[str, int]:
    """Numbers of files that a disk's log names relative to its mount: whose path alone ends so."""
    if "file" not in requests.column_names:
        return {}
    found = {}
    for name in requests["file"].cast(pa.string()).unique().drop_null().to_pylist():
        fitting = [
            number for number, path in paths.items() if path and f"/{path}".endswith(f"/{name}")
        ]
        if len(fitting) == 1:
            found[name] = fitting[0]
    return found
