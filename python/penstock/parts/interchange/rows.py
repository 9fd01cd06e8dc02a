"""Rows of this part in the tables of `penstock.plugins`."""

from __future__ import annotations

ROWS = {
    "trace-importers": {
        name: f"penstock.parts.interchange.trace_readers:{name}"
        for name in ("blktrace", "dxt", "iolog")
    },
    "trace-exporters": {
        name: f"penstock.parts.interchange.trace_formats:{name}" for name in ("perfetto", "paraver")
    },
    "archive-formats": {"tar.zst": "penstock.parts.interchange.share"},
    "platform-formats": {
        name: f"penstock.parts.interchange.from_{name}:read_{name}"
        for name in ("distem", "simgrid")
    },
}
