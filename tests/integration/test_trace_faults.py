"""Mapped files: compare traced faults with the list of pages of the program."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from bench.coverage.recording import Recording, record
from penstock.host.journal.journal import Journal
from penstock.observe.trace.capture.tracer import Tracer
from penstock.state import state_dir
from tests.integration.tracing import (
    NEEDS_TRACER,
    Running,
    known_cost,
    started_trace,
    trace,
    within,
)
from tests.support import commands
from tests.support.memory import locked_in_memory

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

PAGE = 4096
FILE_BYTES = 64 << 20
PAGES = FILE_BYTES // PAGE
TOUCHED = 1009

#: Two processes map one file; each reads random pages, then writes every seventh page.
TWO_PROCESSES = """
import json, mmap, os, random, sys
path, told, pages = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(path, os.O_RDWR)
children = []
for seed in (1, 2):
    child = os.fork()
    if child:
        children.append(child)
        continue
    mapped = mmap.mmap(fd, 0)
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    touched = random.Random(seed).sample(range(len(mapped) // 4096), pages)
    for page in touched:
        mapped[page * 4096 + 77]
    written = list(range(0, len(mapped) // 4096, 7))
    for page in written:
        mapped[page * 4096 + 4095] = seed
    with open(f'{told}.{seed}', 'w') as out:
        json.dump({'pid': os.getpid(), 'read': touched, 'written': written}, out)
    os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""


def traced(bundle: Path, *command: str | Path) -> Any:
    """Trace a command into a bundle and return the JSON document."""
    return trace(*command, options=("-m", "trace", "-o", bundle))


@pytest.fixture(scope="module")
def tracer(known_cost: None) -> Iterator[Tracer]:
    """A tracer for all tests, which each test arms."""
    with Tracer(Journal(), state_dir(), "trace") as tracer:
        yield tracer


def recorded(tracer: Tracer, work: Path, *command: str | Path) -> Recording:
    """Record a command with a tracer."""
    recording = record([str(argument) for argument in command], tracer, Journal(), work)
    assert recording.exit_status == 0
    return recording


def events_of(recording: Recording, path: Path) -> pd.DataFrame:
    """The events of one file."""
    events = recording.events.to_pandas()
    return events[events["file_id"] == recording.files[str(path)]]


def pages_of(events: pd.DataFrame, *ops: str) -> set[int]:
    """Page numbers of the events with these operations."""
    chosen = events[events["op"].isin(ops)]
    ranges = zip(chosen["offset_bytes"] // PAGE, chosen["size_bytes"] // PAGE, strict=True)
    return {page for first, count in ranges for page in range(first, first + count)}


def differences(events: pd.DataFrame, account: dict[str, Any]) -> list[str]:
    """Differences between the events of one process and its own record."""
    of_process = events[events["pid"] == account["pid"]]
    errors = []
    if pages_of(of_process, "fault_write") != set(account["written"]):
        errors.append("written pages")
    if not pages_of(of_process, "fault_read") <= set(account["read"]):
        errors.append("pages that were not read")
    faulted = pages_of(
        of_process, "fault_read", "fault_around", "fault_write", "fault_around_write"
    )
    if not set(account["read"]) <= faulted:
        errors.append("pages that were read and not seen")
    if set(of_process[~of_process["op"].str.startswith("fault_around")]["size_bytes"]) - {PAGE}:
        errors.append("sizes")
    if (of_process[~of_process["op"].str.startswith("fault_around")]["latency_ns"] <= 0).any():
        errors.append("latencies")
    return errors


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "mapped"
    path.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
    return path


@pytest.mark.parametrize("drop_every", [0, 50])
def test_faults_of_two_processes_on_one_file(
    tracer: Tracer, target: Path, tmp_path: Path, drop_every: int
) -> None:
    prefix = tmp_path / "told"
    argv = (sys.executable, "-c", TWO_PROCESSES, target, prefix, str(TOUCHED))
    if drop_every:
        with Tracer(Journal(), state_dir(), "trace", drop_every=drop_every) as dropping:
            recording = recorded(dropping, tmp_path, *argv)
    else:
        recording = recorded(tracer, tmp_path, *argv)
    events = events_of(recording, target)
    accounts = [json.loads(Path(f"{prefix}.{seed}").read_text()) for seed in (1, 2)]
    errors = [differences(events, account) for account in accounts]
    if drop_every:
        assert recording.receipt["lost"] > 0
        assert ["written pages" in errors_of_process for errors_of_process in errors] == [
            True,
            True,
        ]
    else:
        assert recording.receipt["lost"] == 0
        assert errors == [[], []]
        coverage = recording.tables["mapped"].to_pandas()
        of_processes = coverage[coverage["pid"].isin([account["pid"] for account in accounts])]
        of_processes = of_processes[of_processes["file_id"] == events["file_id"].iloc[0]]
        assert len(of_processes) == 2
        assert (of_processes["coverage"] >= 0.99).all()
        assert (
            of_processes["pages_present"] >= len(set(accounts[0]["read"] + accounts[0]["written"]))
        ).all()


PRIVATE = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
copy = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE)
copy.madvise(mmap.MADV_RANDOM)
for page in range(0, 1000, 10):
    copy[page * 4096] = 7
for page in range(0, 1000, 10):     # the copies: the file has nothing to do with them
    copy[page * 4096 + 1] = 7
"""


def test_a_private_copy_is_a_read_of_the_file_and_waits_for_the_device(
    tracer: Tracer, target: Path, tmp_path: Path
) -> None:
    recording = recorded(tracer, tmp_path, sys.executable, "-c", PRIVATE, target)
    events = events_of(recording, target)
    assert "fault_write" not in set(events["op"])
    copied = events[events["op"] == "fault_read"]
    assert sorted(copied["offset_bytes"] // PAGE) == list(range(0, 1000, 10))
    assert set(copied["flags"] & 4) == {4}
    assert (copied["flags"] & 1).sum() >= 95  # of pages that were not in the page cache
    assert (copied["latency_ns"] > 0).all()


PATTERNS = ["read", "write", "randread", "randwrite", "rw", "randrw"]


def pages_of_fio(log: Path, direction: str) -> set[int]:
    """Pages that were read, or written, by the log of fio."""
    rows = [line.split() for line in log.read_text().splitlines()]
    return {int(line[-2]) // PAGE for line in rows if line[-3] == direction}


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
@pytest.mark.parametrize("rw", PATTERNS)
def test_pages_of_fios_mmap_engine(tracer: Tracer, target: Path, tmp_path: Path, rw: str) -> None:
    log = tmp_path / "iolog"
    os.truncate(target, 16 << 20)
    recording = recorded(
        tracer,
        tmp_path,
        *("fio", "--name=job", f"--filename={target}", "--size=16m", "--bs=4k", f"--rw={rw}"),
        *("--ioengine=mmap", "--number_ios=2003", f"--write_iolog={log}", "--output=/dev/null"),
    )
    events = events_of(recording, target)
    faulted = pages_of(events, "fault_read", "fault_around", "fault_write", "fault_around_write")
    read, written = pages_of_fio(log, "read"), pages_of_fio(log, "write")
    assert len(read | written) > 0
    assert read | written <= faulted
    if (events["flags"] & 2).any():  # a write makes a huge page dirty completely
        assert written <= pages_of(events, "fault_write")
    else:
        assert written == pages_of(events, "fault_write")
    if not written:
        assert "fault_write" not in set(events["op"])


#: Map a file, touch all its pages and print a line; touch them again after a line on stdin.
EARLIER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
mapped[::4096]
print("touched", flush=True)
sys.stdin.readline()
mapped[::4096]
print("again", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("mode", ["trace", "pattern"])
def test_earlier_mappings_are_reported(target: Path, tmp_path: Path, mode: str) -> None:
    os.truncate(target, 4 << 20)
    with locked_in_memory(target), Running(EARLIER, target) as program:
        options = ("-m", mode, "-p", str(program.pid), "-o", tmp_path / "T")
        tracing = started_trace(*options)
        time.sleep(0.3)
        program.go()
        assert program.said() == "again"
        tracing.send_signal(signal.SIGINT)
        output, _ = tracing.communicate(timeout=60)
    closing = json.loads(output)["closing"]
    assert "already mapped" in closing
    assert "4 MiB" in closing
    assert "neither read nor wrote" not in closing
    if mode == "trace":
        files = pq.read_table(tmp_path / "T" / "files.parquet").to_pylist()
        number = next(row["file_id"] for row in files if row["path"] == str(target))
        rows = pq.read_table(tmp_path / "T" / "mapped.parquet").to_pylist()
        (row,) = [row for row in rows if row["file_id"] == number]
        assert row["pages_present"] == 1024
        assert row["pages_before"] == 1024
        assert row["coverage"] == 0


#: Map a file and read its pages in random order.
IN_ORDER = """
import mmap, os, random, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
pages = list(range(len(mapped) // 4096))
random.Random(1).shuffle(pages)
for page in pages:
    mapped[page * 4096]
"""


@pytest.mark.parametrize("mode", ["trace", "pattern"])
def test_a_page_mapped_by_fault_around_counts_once(target: Path, tmp_path: Path, mode: str) -> None:
    arguments = ["trace", "--json", "-m", mode, "--", sys.executable, "-c", IN_ORDER, str(target)]
    result = commands.run(
        [Path(sys.executable).with_name("penstock"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (row,) = [r for r in json.loads(result.stdout)["files"] if r["path"] == str(target)]
    assert row["read_bytes"] == FILE_BYTES
    assert row["read_evidence"]["basis"] == "faults (lower bound)"


WRITER = """
import json, mmap, os, random, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, bytes(8 << 20))
mapped = mmap.mmap(fd, 0)
mapped.madvise(mmap.MADV_NOHUGEPAGE)     # a huge page is one write of 2 MiB
for page in random.Random(1).sample(range(2048), 500):
    mapped[page * 4096] = 7
"""


def test_pages_mapped_around_a_write_are_writes(tracer: Tracer, tmp_path: Path) -> None:
    target = tmp_path / "written"
    recording = recorded(tracer, tmp_path, sys.executable, "-c", WRITER, target)
    events = events_of(recording, target)
    written = set(random.Random(1).sample(range(2048), 500))
    assert pages_of(events, "fault_write") <= written
    assert written <= pages_of(events, "fault_write", "fault_around_write")
    assert not written & pages_of(events, "fault_read", "fault_around")


TWO_NAMES = """
import os, sys
first, second = sys.argv[1:]
for name in (first, second, first, second):
    fd = os.open(name, os.O_RDONLY)
    os.pread(fd, 100, 0)
    os.close(fd)
"""


def test_both_names_of_a_file_are_recorded(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(bytes(4096))
    second.hardlink_to(first)
    document = traced(tmp_path / "T", sys.executable, "-c", TWO_NAMES, first, second)
    names = pq.read_table(tmp_path / "T" / "file_names.parquet").to_pylist()
    paths = [row["path"] for row in names if row["path"] in {str(first), str(second)}]
    assert sorted(paths) == [str(first), str(second)]
    (row,) = [row for row in document["files"] if row["path"] == str(first)]
    assert row["names"] == [str(second)]
    assert row["reads"] == 4


def test_undo_removes_the_partial_bundle_of_a_killed_trace(tmp_path: Path) -> None:
    penstock = Path(sys.executable).with_name("penstock")
    argv = [penstock, "trace", "-m", "trace", "-o", tmp_path / "T", "--", "sleep", "60"]
    with commands.popen(argv) as tracing:
        draft = tmp_path / ".T.partial"
        assert within(60, lambda: (draft / "stdout.txt").exists())
        tracing.kill()
    assert draft.exists()
    commands.run([penstock, "undo"], check=True, capture_output=True, timeout=60)
    assert not draft.exists()
