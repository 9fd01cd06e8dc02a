"""Reused thread ids, and reads and writes in one order: both modes agree."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.tracing import NEEDS_TRACER, balanced, of_file, trace, with_known_cost

pytestmark = NEEDS_TRACER

#: successive children, which share two process ids; each appends to the log
REUSE = """
import os, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
first = None
for number in range(int(sys.argv[2])):
    if first is not None:
        # the next process gets the number after this one: that of an earlier child
        with open('/proc/sys/kernel/ns_last_pid', 'w') as last:
            last.write(str(first - 1 + number % 2))
    child = os.fork()
    if child == 0:
        os.write(log, b'x' * 64)
        os._exit(0)
    first = first or child
    os.waitpid(child, 0)
"""

#: read or write each page in turn: together the accesses are consecutive
IN_TURNS = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for i in range(2000):
    if i % 3:
        os.pread(fd, 4096, 4096 * i)
    else:
        os.pwrite(fd, b'x' * 4096, 4096 * i)
"""


@pytest.fixture(autouse=True)
def known_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(with_known_cost(tmp_path / "state")))


@pytest.mark.parametrize("mode", ["pattern", "trace"])
def test_threads_with_one_id_are_distinguished(tmp_path: Path, mode: str) -> None:
    """A hundred processes with two process ids append 64 bytes each: consecutive."""
    log = tmp_path / "log"
    document = trace(
        *(sys.executable, "-S", "-c", REUSE, log, "100"),
        options=("-m", mode, "-o", tmp_path / "T"),
    )
    row = of_file(document, log)
    assert row["writes"] == 100
    assert row["write_pattern"] == "consecutive"
    assert row["write_evidence"]["consecutive_share"] == 1
    assert balanced(document)
    threads = pq.read_table(tmp_path / "T" / "threads.parquet").to_pylist()
    started = {(t["tid"], t["started_ns"]) for t in threads}
    if len({t["tid"] for t in threads}) < 90:  # another process may have taken the id
        assert len(started) > 90
    rows = pq.read_table(tmp_path / "T" / "patterns.parquet").to_pylist()
    of_log = [r for r in rows if r["path"] == str(log) and r["tid"] is not None]
    assert sum(r["requests"] for r in of_log) == 100
    assert len(of_log) > 90
    assert len({(r["tid"], r["started_ns"]) for r in of_log}) == len(of_log)


def test_joint_verdicts_of_reads_and_writes_agree_in_both_modes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(4096 * 2000))
    verdicts = {}
    for mode in ("pattern", "trace"):
        document = trace(sys.executable, "-S", "-c", IN_TURNS, data, options=("-m", mode))
        row = of_file(document, data)
        assert (row["reads"], row["writes"]) == (1333, 667)
        verdicts[mode] = row["joint_pattern"], row["joint_evidence"]["requests"]
        assert balanced(document)
    assert verdicts["pattern"] == verdicts["trace"] == ("consecutive", 2000)
