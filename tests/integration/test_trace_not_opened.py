"""Failed calls that name files: events have the requested path."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq

from tests.integration.tracing import NEEDS_TRACER, balanced, events, known_cost, trace

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER
NOT_OPENED = """
import os, sys
os.chdir(sys.argv[1])
folder = os.open("sub", os.O_RDONLY)
for name, where in (("none", None), ("none", folder), (sys.argv[1] + "/later", None), ("sub", None)):
    try:
        os.open(name, os.O_RDWR, dir_fd=where)
    except OSError:
        pass
os.close(os.open("later", os.O_CREAT | os.O_RDWR))
"""


def test_failed_opens_have_their_path(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    bundle = tmp_path / "T"
    options = ("--mode", "trace", "-o", bundle)
    assert balanced(trace(sys.executable, "-c", NOT_OPENED, tmp_path, options=options))
    rows = [row for row in events(bundle) if (row["path"] or "").startswith(f"{tmp_path}/")]
    assert [(row["op"], row["errno"], row["path"]) for row in rows if row["op"] != "close"] == [
        ("open", 2, f"{tmp_path}/none"),
        ("open", 2, f"{tmp_path}/sub/none"),
        ("open", 2, f"{tmp_path}/later"),
        ("open", 21, f"{tmp_path}/sub"),
        ("create", 0, f"{tmp_path}/later"),
    ]
    files = pq.read_table(bundle / "files.parquet").to_pylist()
    inodes = {row["path"]: row["inode"] for row in files}
    assert inodes[f"{tmp_path}/none"] is None
    assert inodes[f"{tmp_path}/later"] == (tmp_path / "later").stat().st_ino
    # every failed open of the run has a path, including those of the interpreter
    failed = [row for row in events(bundle) if row["op"] == "open" and row["errno"]]
    assert len(failed) >= 4
    assert all(row["path"] for row in failed)
    assert len(files) == len({row["file_id"] for row in files})
