"""Reduced published case: WiredTiger records in key order, before and after a rewrite."""

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
    """The program, compiled by the set-up step of the study."""
    directory = tmp_path_factory.mktemp("programs")
    commands.run([STUDIES / "storage-layout" / "build.sh", directory], check=True)
    return directory / "records"


def fields(output: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


def load_database(program: Path, home: Path, shuffled: int) -> Path:
    home.mkdir()
    argv: list[Any] = [program, "load", home, RECORDS, shuffled]
    commands.run([str(argument) for argument in argv], check=True, capture_output=True)
    return home


def traced_scan(program: Path, home: Path, table: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The tracer's row of the table's file during a scan, and the output fields of the scan."""
    tracer = [sys.executable, "-m", "penstock", "trace", "--mode", "trace", "--json", "--"]
    argv = [*tracer, str(program), "scan", str(home), table]
    result = commands.run(argv, capture_output=True, text=True, check=True)
    document = json.loads(result.stdout)
    assert document["lost_events"] == 0
    (row,) = (f for f in document["files"] if (f["path"] or "").endswith(f"/{table}.wt"))
    return row, fields(result.stderr)


Scan = tuple[Path, dict[str, Any], dict[str, str]]


@pytest.fixture(scope="module")
def scans(program: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Scan]:
    """Database and `traced_scan` of its table, by the percentage of records out of order."""
    directory = tmp_path_factory.mktemp("databases")
    homes = {
        percent: load_database(program, directory / str(percent), percent)
        for percent in (0, 5, 25, 100)
    }
    return {
        percent: (home, *traced_scan(program, home, "loaded")) for percent, home in homes.items()
    }


def test_a_rewrite_makes_reads_consecutive_and_keeps_the_contents(
    program: Path, scans: dict[int, Scan]
) -> None:
    home, before, first = scans[100]
    argv = [str(program), "rewrite", str(home), "loaded", "rewritten"]
    rewrite = commands.run(argv, check=True, capture_output=True, text=True)
    after, second = traced_scan(program, home, "rewritten")
    assert before["read_pattern"] == "random"
    assert before["read_evidence"]["consecutive_share"] <= 0.05
    assert after["read_pattern"] == "consecutive"
    assert after["read_evidence"]["consecutive_share"] >= 0.95
    # each leaf is read once, completely
    assert 0.8 <= before["read_bytes"] / before["size_bytes"] <= 1.2
    assert first["records"] == second["records"] == str(RECORDS)
    assert first["checksum"] == second["checksum"] == fields(rewrite.stdout)["checksum"]


def test_reads_of_records_in_key_order_are_not_random(scans: dict[int, Scan]) -> None:
    """Planted failure of the case: records in order are no defect."""
    _, row, _ = scans[0]
    assert row["read_pattern"] not in ("random", "insufficient")
    assert row["read_evidence"]["consecutive_share"] >= 0.7


def test_disorder_lowers_the_consecutive_share(scans: dict[int, Scan]) -> None:
    values = [row["read_evidence"]["consecutive_share"] for _, row, _ in scans.values()]
    assert values == sorted(values, reverse=True)
    assert values[0] > 10 * max(values[-1], 0.001)
