"""Paths of a study's run are shown relative to the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.analyse.traces.traced_run import TracedRun

RUN = {"run_id": "r005", "disks": {"node1.data": {}, "node1.log": {}}}
STAGE = "/run/penstock-passable/ca044/r005"


def run_with(folder: Path, manifest: dict[str, object]) -> TracedRun:
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return TracedRun(folder)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{STAGE}/node1.data/o.db-wal", "node1.data/o.db-wal"),
        (f"{STAGE}/node1.log", "node1.log"),
        (f"{STAGE}/node1.data/", "node1.data/"),
        ("/usr/lib/libc.so.6", "/usr/lib/libc.so.6"),
        (f"{STAGE}/node1.database/x", f"{STAGE}/node1.database/x"),  # not a disk of the run
        ("/srv/r006/node1.data/x", "/srv/r006/node1.data/x"),  # another run
        (
            f"404 flushes of {STAGE}/node1.data/o.db-wal, 1 ms each, and of /var/x",
            "404 flushes of node1.data/o.db-wal, 1 ms each, and of /var/x",
        ),
    ],
)
def test_paths_begin_with_the_disk(tmp_path: Path, text: str, shown: str) -> None:
    assert run_with(tmp_path, RUN).from_disk(text) == shown


def test_trace_without_a_study_keeps_its_paths(tmp_path: Path) -> None:
    path = f"{STAGE}/node1.data/o.db"
    assert run_with(tmp_path, {}).from_disk(path) == path
