"""Findings over what was just traced, whether or not a bundle is kept."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from penstock.analyse.finding import Finding
from penstock.analyse.trace_findings import findings_of
from penstock.observe.trace.capture.session import Traced

_ASKED = ("patterns", "files", "operations")


def findings_over(traced: Traced) -> list[Finding]:
    """From the bundle if there is one, else from the small tables (what needs every event is not said)."""
    if traced.bundle is not None:
        return findings_of(traced.bundle)
    with tempfile.TemporaryDirectory(prefix="penstock-") as work:
        place = Path(work)
        for name in _ASKED:
            if name in traced.result.tables:
                pq.write_table(traced.result.tables[name], place / f"{name}.parquet")
        manifest = {
            "receipts": {"trace": traced.result.receipt},
            "times": {"start_ns": traced.start_ns, "end_ns": traced.end_ns},
        }
        (place / "manifest.json").write_text(json.dumps(manifest, default=str))
        return findings_of(place)
