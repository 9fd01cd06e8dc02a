"""The published case at its smallest: WiredTiger's records in key order, before and after a rewriting."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.tracing import known_cost
from tests.support import commands

STUDIES = Path(__file__).parents[2] / "studies"
RECORDS = 6000

__all__ = ["known_cost"]  # a fixture
pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: tracing"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(
        not Path("/usr/include/wiredtiger.h").exists(), reason="needs libwiredtiger-dev"
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program, by the study's own set-up step."""
    where = tmp_path_factory.mktemp("programs")
    commands.run([STUDIES / "storage-layout" / "build.sh", where], check=True)
    return where / "records"


def said(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


def loaded(program: Path, home: Path, shuffled: int) -> Path:
    home.mkdir()
    words: list[Any] = [program, "load", home, RECORDS, shuffled]
    commands.run([str(w) for w in words], check=True, capture_output=True)
    return home


def traced_scan(program: Path, home: Path, table: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What the tracer says of the reads of the table's file in one scan, and what the scan says itself."""
    tracer = [sys.executable, "-m", "penstock", "trace", "--mode", "trace", "--json", "--"]
    words = [*tracer, str(program), "scan", str(home), table]
    done = commands.run(words, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["lost_events"] == 0
    (row,) = (f for f in document["files"] if (f["path"] or "").endswith(f"/{table}.wt"))
    return row, said(done.stderr)


Scan = tuple[Path, dict[str, Any], dict[str, str]]


@pytest.fixture(scope="module")
def scans(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Scan]:
    """By the percentage of records out of order: the database, and `traced_scan` of its table."""
    where = tmp_path_factory.mktemp("databases")
    homes = {percent: loaded(program, where / str(percent), percent) for percent in (0, 5, 25, 100)}
    return {
        percent: (home, *traced_scan(program, home, "loaded")) for percent, home in homes.items()
    }


def test_random_before_consecutive_after_the_same_contents(
    program: Path, scans: dict[int, Scan]
) -> None:
    home, before, first = scans[100]
    words = [str(program), "rewrite", str(home), "loaded", "rewritten"]
    rewriting = commands.run(words, check=True, capture_output=True, text=True)
    after, second = traced_scan(program, home, "rewritten")
    assert before["read_pattern"] == "random"
    assert before["read_evidence"]["consecutive_share"] <= 0.05
    assert after["read_pattern"] == "consecutive"
    assert after["read_evidence"]["consecutive_share"] >= 0.95
    # the leaves are read once each, whole
    assert 0.8 <= before["read_bytes"] / before["size_bytes"] <= 1.2
    assert first["records"] == second["records"] == str(RECORDS)
    assert first["checksum"] == second["checksum"] == said(rewriting.stdout)["checksum"]


def test_records_that_came_in_key_order_are_not_called_random(scans: dict[int, Scan]) -> None:
    """Planted failure of the case: without disorder there is nothing to find."""
    _, found, _ = scans[0]
    assert found["read_pattern"] not in ("random", "insufficient")
    assert found["read_evidence"]["consecutive_share"] >= 0.7


def test_disorder_lowers_the_consecutive_share(scans: dict[int, Scan]) -> None:
    values = [row["read_evidence"]["consecutive_share"] for _, row, _ in scans.values()]
    assert values == sorted(values, reverse=True)
    assert values[0] > 10 * max(values[-1], 0.001)
