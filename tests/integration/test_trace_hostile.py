"""What a trace must bear: too many files, and what befalls the tracer. Needs root and BPF."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.host.cgroup import create_run_cgroup
from penstock.host.journal import Journal
from penstock.host.launch import launch
from penstock.host.state import state_dir
from penstock.observe.trace.tracer import Tracer, TraceResult
from tests.integration.tracing import NEEDS_TRACER

pytestmark = NEEDS_TRACER

#: each file read in an order of its own, by two threads, and one byte written to it
MANY_FILES = """
import os, random, sys, threading
where, files = sys.argv[1], int(sys.argv[2])
def work(thread):
    draws = random.Random(thread)
    for number in range(files):
        fd = os.open(f"{where}/{number}", os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"x", 65535)
        for i in range(100):
            place = i if number % 2 else draws.randrange(128)
            os.pread(fd, 512, 512 * place)
        os.close(fd)
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""


def traced(work: Path, words: list[str], **how: Any) -> TraceResult:
    """What mode pattern makes of a command."""
    journal = Journal(work / "journal")
    with (
        Tracer(journal, state_dir(), "pattern", **how) as tracer,
        create_run_cgroup("hostile", None, journal) as group,
    ):
        tracer.arm(group)
        assert launch(words, group).exit_status == 0
        return tracer.disarm()


@pytest.mark.parametrize("streams", [0, 40])
def test_more_sequences_than_the_kernel_counts(tmp_path: Path, streams: int) -> None:
    """Nothing is lost, and the verdicts are the same whether a sequence was counted there or call by call."""
    data = tmp_path / "data"
    data.mkdir()
    command = [sys.executable, "-c", MANY_FILES, str(data), "60"]
    result = traced(tmp_path, command, streams=streams)
    receipt = result.receipt
    assert receipt["lost"] == 0
    assert receipt["seen"] == receipt["kept"] + receipt["filtered"]
    assert (receipt["spooled"] > 60 * 100) == bool(streams)
    rows = result.tables["patterns"].to_pylist()
    own = [row for row in rows if (row["path"] or "").startswith(f"{data}/")]
    reads = {
        (int(os.path.basename(row["path"])), row["tid"]): row
        for row in own
        if row["direction"] == "read"
    }
    threads = {tid for _, tid in reads} - {None}
    assert len(threads) == 2
    for number in range(60):
        assert reads[number, None]["requests"] == 200
        assert reads[number, None]["bytes"] == 200 * 512
        for tid in threads:
            row = reads[number, tid]
            assert row["requests"] == 100
            assert (row["class"] == "consecutive") == bool(number % 2), row["sentence"]
    writes = [row for row in own if row["direction"] == "write" and row["tid"] is None]
    assert sum(row["requests"] for row in writes) == 120
    epochs = result.tables["epochs"].to_pylist()
    numbers = {row["file_id"] for row in own}
    assert sum(row["requests"] for row in epochs if row["file_id"] in numbers) == 60 * 202
