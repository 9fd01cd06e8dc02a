"""Statistics polled from a Cassandra 5.0 node equal the numbers of executed operations."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.testing import MemorySink
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "studies/storage-layout/cassandra"
LIBRARIES = ROOT / "out/cassandra"
NUMBER = "57"

pytestmark = [pytest.mark.host, pytest.mark.long]


@dataclass
class Node:
    """A node that writes and reads given numbers of rows."""

    process: subprocess.Popen[str]

    def run(self, writes: int, reads: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{writes} {reads}\n")
        self.process.stdin.flush()
        self.expect("done")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def signal(self, number: signal.Signals) -> None:
        """Signal Java, which is the child of the script."""
        script = self.process.pid
        children = Path(f"/proc/{script}/task/{script}/children").read_text().split()
        for child in map(int, children):
            os.kill(child, number)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    if absent := [p for p in ("mvn", "javac") if shutil.which(p) is None]:
        pytest.skip(f"not run: not installed: {', '.join(absent)} (maven, openjdk-17-jdk-headless)")
    subprocess.run([SCRIPTS / "get.sh", LIBRARIES], check=True, timeout=600)
    process = subprocess.Popen(
        [SCRIPTS / "node.sh", LIBRARIES, tmp_path, NUMBER],
        env={**os.environ, "MAIN": str(Path(__file__).with_name("CassandraRows.java"))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started = Node(process)
    try:
        started.expect("up")
        yield started
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def test_counters_equal_the_operations_and_a_stopped_node_is_reported(
    node: Node,
) -> None:
    # fails if a poll is lost, stored for another table, or if a hanging nodetool stops the poller
    sink = MemorySink()
    settings = {
        "type": "cassandra",
        "command": [str(SCRIPTS / "nodetool.sh"), str(LIBRARIES), NUMBER],
        "statistics": ["tablestats", "tpstats", "compactionstats", "proxyhistograms"],
        "keyspaces": ["bench"],
        "interval_s": 1,
        "timeout_s": 15,
    }

    def last(metric: str, entity: str) -> float | None:
        rows = [
            r
            for r in sink.rows()
            if (r["metric"], r["labels"]) == (f"cassandra_{metric}", f'{{"entity":"{entity}"}}')
        ]
        return float(str(rows[-1]["float"])) if rows else None

    node.run(4099, 1009)
    with Collecting(collectors_of({"db": settings}), sink) as collecting:
        until(lambda: last("request_latency_p50", "read") is not None, 120)
        assert last("local_write_count", "bench.t") == 4099
        assert last("local_read_count", "bench.t") == 1009
        assert (last("request_latency_p50", "read") or 0) > 0
        assert last("pending_compactions", "node") is not None
        assert (last("CompletedTasks", "MigrationStage") or 0) > 0

        node.run(2003, 0)
        until(lambda: last("local_write_count", "bench.t") == 6102, 120)
        assert last("local_read_count", "bench.t") == 1009

        node.signal(signal.SIGSTOP)
        try:
            errors = collecting.collectors["db"].intake.receipt.errors  # type: ignore[attr-defined]
            until(lambda: any("did not end in 15 s" in line for line in errors), 120)
        finally:
            node.signal(signal.SIGCONT)
        node.run(4001, 0)
        until(lambda: last("local_write_count", "bench.t") == 10103, 120)
    receipt = collecting.receipts["db"]
    success = [r["float"] for r in sink.rows() if r["metric"] == "cassandra_success"]
    assert success.count(0.0) == receipt.counted["failed"]
