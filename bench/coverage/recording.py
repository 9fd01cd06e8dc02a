"""A traced command, and its events as plain rows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.trace.capture.tracer import Tracer


@dataclass(frozen=True)
class Recording:
    """Table `io_events` in order of time; file_id by path; the small tables; the receipt; the exit status."""

    events: pa.Table
    files: dict[str, int]
    tables: dict[str, pa.Table]
    receipt: dict[str, Any]
    exit_status: int

    def of_file(self, path: Path) -> list[dict[str, Any]]:
        """The events on one file."""
        number = self.files.get(str(path))
        return [row for row in self.events.to_pylist() if row["file_id"] == number]


def record(argv: Sequence[str], tracer: Tracer, journal: Journal, work: Path) -> Recording:
    """Run the command in its own control group, traced from its first instruction on."""
    place = work / "bundle"
    shutil.rmtree(place, ignore_errors=True)
    bundle = Bundle.create(place, {"command": list(argv), "run_id": "r001"})
    try:
        with create_run_cgroup("coverage", None, journal) as group:
            tracer.arm(group)
            finished = launch(list(argv), group, stdin=None)
            result = tracer.disarm(bundle)
        events = bundle.table("io_events").sort_by([("t_ns", "ascending")])
    finally:
        bundle.discard()
    named = result.tables["files"]
    pairs = zip(named["path"].to_pylist(), named["file_id"].to_pylist(), strict=True)
    return Recording(events, dict(pairs), result.tables, result.receipt, finished.exit_status)
