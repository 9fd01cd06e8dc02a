"""Compare the layers under traced calls with the known accesses of the program."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import shlex
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import Bundle
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.trace.capture import session
from penstock.observe.trace.capture.tracer import Tracer
from penstock.observe.trace.layers.files import extents_table
from penstock.observe.trace.layers.tables import Layers, LayersResult, served_under
from penstock.observe.trace.show.summary import as_document
from penstock.state import state_dir
from tests.integration.tracing import NEEDS_TRACER, known_cost
from tests.support import commands
from tests.support.memory import locked_in_memory

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

MIB = 1 << 20
READ_BYTES = 64 * MIB

FINCORE = ["fincore", "--noheadings", "--output", "PAGES"]
READ_TWICE = """
import mmap, os, sys
path, size, direct = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'direct'
fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
page = mmap.mmap(-1, 65536)
for _ in range(1 if direct else 2):
    for offset in range(0, size, 65536):
        assert os.preadv(fd, [page], offset) == 65536
"""

DIRTY = """
import os, sys, time
directory = sys.argv[1]
for name, mib in (('large', 75), ('small', 25)):
    if os.fork() == 0:
        fd = os.open(f'{directory}/{name}', os.O_WRONLY | os.O_CREAT)
        for _ in range(mib):
            os.write(fd, bytes(1 << 20))
        os._exit(0)
os.wait(), os.wait()
open(f'{directory}/dirtied', 'w').close()
while not os.path.exists(f'{directory}/written'):
    time.sleep(0.02)
"""


#: read one file directly in large pieces to its end, then another through the page cache
BEYOND_THE_END = """
import mmap, os, sys
one = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
two = os.open(sys.argv[2], os.O_RDONLY)
os.posix_fadvise(two, 0, 0, os.POSIX_FADV_DONTNEED)
page = mmap.mmap(-1, 1 << 20)
while os.readv(one, [page]):
    pass
while os.read(two, 4096):
    pass
"""


class TracedCommand:
    """A command that ran under tracer and layers."""

    def __init__(self, work: Path, *argv: str | Path, drop_every: int = 0) -> None:
        journal = Journal(work / "journal.jsonl")
        bundle = Bundle.create(
            work / "T", {"command": [str(argument) for argument in argv], "run_id": "r001"}
        )
        with (
            Tracer(journal, state_dir(), "trace") as tracer,
            Layers(journal, work, drop_every=drop_every) as layers,
            create_run_cgroup("layers", None, journal) as group,
        ):
            tracer.arm(group)
            layers.arm(group.cgroup_id)
            finished = launch([str(argument) for argument in argv], group, stdout=None, stdin=None)
            layers.halt()
            result = tracer.disarm(bundle)
            assert result.events_path is not None
            self.events_path = result.events_path
            self.files = result.tables["files"]
            self.layers: LayersResult = layers.disarm(self.files, result.events_path)
        assert finished.exit_status == 0
        assert not journal.open_entries()

    def number(self, path: Path) -> int:
        """Id of a file."""
        rows = self.files.to_pylist()
        return int(next(row["file_id"] for row in rows if row["path"] == str(path)))

    def frame(self, table: str, path: Path | None = None) -> pd.DataFrame:
        """A table of the layers, or its rows of one file."""
        frame: pd.DataFrame = self.layers.tables[table].to_pandas()
        return frame if path is None else frame[frame["file_id"] == self.number(path)]

    def use(self, path: Path) -> pd.DataFrame:
        """`cache_use` of the reads of one file, in order."""
        events = pq.read_table(self.events_path).to_pandas()
        events = events[(events["file_id"] == self.number(path)) & (events["direction"] == "read")]
        return events.merge(self.frame("cache_use"), on="seq").sort_values("t_ns")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    block = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(READ_BYTES // MIB):
            file.write(block)
        os.fsync(file.fileno())
    return path


def conserved(stats: dict[str, Any], largest: int = MIB) -> bool:
    """True if requests were recorded, with the bytes that the devices counted, within 1 %.

    Each request without a traced completion explains a difference of the `largest` request.
    """
    rows = [row for row in stats["conservation"] if row["device_bytes"] >= MIB]
    differences = [row["difference_share"] * row["device_bytes"] for row in rows]
    allowed = [row["device_bytes"] * 0.01 + row["unseen_requests"] * largest for row in rows]
    assert all(abs(d) <= limit for d, limit in zip(differences, allowed, strict=True)), stats
    return bool(rows)


def unseen_bytes(stats: dict[str, Any]) -> int:
    """Bytes that devices read without a traced completion."""
    reads = [row for row in stats["conservation"] if row["direction"] == "read"]
    return sum(max(row["device_bytes"] - row["seen_bytes"], 0) for row in reads)


def test_cold_and_warm_reads(target: Path, tmp_path: Path) -> None:
    half = READ_BYTES // 65536
    for attempt in range(5):
        (tmp_path / str(attempt)).mkdir()
        run = TracedCommand(
            *(tmp_path / str(attempt), sys.executable, "-c"),
            *(READ_TWICE, target, str(READ_BYTES), "cached"),
        )
        use = run.use(target)
        assert len(use) == 2 * half
        cold, warm = use.iloc[:half], use.iloc[half:]
        # tests in parallel drop the caches of the host
        if warm["pages_hit"].sum() == READ_BYTES // 4096:
            break
    assert cold["pages_hit"].sum() == 0
    assert (cold["pages_missed"] + cold["pages_readahead"]).sum() == READ_BYTES // 4096
    assert warm["pages_hit"].sum() == READ_BYTES // 4096
    assert warm["requests"].sum() == 0
    assert cold["device_ns"].sum() > 0
    requests = run.frame("device_requests", target)
    assert requests["size_bytes"].sum() >= READ_BYTES - unseen_bytes(run.layers.receipt)
    assert set(requests["join"]) == {"exact"}
    assert conserved(run.layers.receipt)
    of_file = run.number(target)
    tables = run.layers.tables | {"files": run.files}
    served = served_under(tables, run.events_path, run.layers.receipt)
    row = next(row for row in served if row.file_id == of_file)
    assert row.sufficient
    assert row.share["cached"] == 0.5
    assert row.share["device"] + row.share["ahead"] == pytest.approx(0.5)


def test_direct_reads_are_joined_exactly(target: Path, tmp_path: Path) -> None:
    run = TracedCommand(
        tmp_path, sys.executable, "-c", READ_TWICE, target, str(READ_BYTES), "direct"
    )
    use = run.use(target)
    assert len(use) == READ_BYTES // 65536
    # some kernels do not report completions that interrupt certain tasks; they count as lost
    lost = run.layers.receipt["lost"]
    assert lost <= len(use) // 4
    exact = use[use["join"] == "exact"]
    assert len(exact) >= len(use) - lost
    assert (exact["requests"] >= 1).all()
    assert (exact["device_ns"] > 0).all()
    requests = run.frame("device_requests", target)
    assert set(requests["join"]) == {"exact"}
    assert requests["offset_bytes"].is_unique
    assert requests["size_bytes"].sum() >= READ_BYTES - lost * 65536
    assert conserved(run.layers.receipt, 65536)


@pytest.mark.parametrize("hole", [False, True])
def test_a_short_direct_read_does_not_claim_requests_of_other_files(
    tmp_path: Path, hole: bool
) -> None:
    direct_path, cached_path = tmp_path / "one", tmp_path / "two"
    for path, size in ((direct_path, 3 * MIB + MIB // 2 + 512), (cached_path, MIB)):
        with path.open("wb") as file:
            file.write(os.urandom(size))
            if hole and path == direct_path:
                file.truncate(8 * MIB)
            os.fsync(file.fileno())
    run = TracedCommand(tmp_path, sys.executable, "-c", BEYOND_THE_END, direct_path, cached_path)
    direct, cached = (
        run.frame("device_requests", direct_path),
        run.frame("device_requests", cached_path),
    )
    unseen = unseen_bytes(run.layers.receipt)
    assert set(cached["source"]) == {"page cache"}
    assert MIB - unseen <= cached["size_bytes"].sum() <= MIB
    written = 3 * MIB + MIB // 2 + 4096  # the last block is read completely
    assert set(direct["source"]) == {"direct"}
    assert written - unseen <= direct["size_bytes"].sum() <= written


def test_a_planted_loss_is_counted(target: Path, tmp_path: Path) -> None:
    argv = (sys.executable, "-c", READ_TWICE, target, str(READ_BYTES), "direct")
    run = TracedCommand(tmp_path, *argv, drop_every=10)
    stats = run.layers.receipt
    assert stats["seen"] >= (READ_BYTES - unseen_bytes(stats)) // 65536
    assert stats["lost"] >= stats["seen"] // 10
    assert stats["seen"] == stats["kept"] + stats["lost"]
    assert "none" in set(run.use(target)["join"])


def test_a_loss_in_the_layers_is_reported(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = partial(Layers, drop_every=10)
    monkeypatch.setattr("penstock.observe.trace.layers.tables.Layers", lossy)
    argv = [sys.executable, "-c", READ_TWICE, str(target), str(READ_BYTES), "direct"]
    options = session.Session("trace", 1 << 24, 0, tmp_path / "T", quiet=True, layers=True)
    traced = session.trace_command(argv, options)
    lost = traced.result.receipt["layers"]["lost"]
    assert lost > 0
    document = as_document(traced)
    assert document["lost_below"] == lost
    assert f"{lost:,} of " in document["incomplete_below"]
    assert document["incomplete_below"] in document["closing"]
    assert traced.bundle is not None
    # the summary reuses the findings of the page
    assert "findings" in vars(traced.opened())
    manifest = Bundle.open(traced.bundle).manifest
    assert manifest["losses"] == {"trace": 0, "layers": lost}
    assert "were lost: misses may count as hits" in manifest["reason"]
    assert "trace-lost" in {finding.code for finding in TracedRun(traced.bundle).findings}


def _sync_when(directory: Path) -> Callable[[], None]:
    """Function that makes the kernel's threads write the directory once all of it is dirty."""

    def work() -> None:
        until = time.monotonic() + 60
        while not (directory / "dirtied").exists() and time.monotonic() < until:
            time.sleep(0.02)
        fd = os.open(directory, os.O_RDONLY)
        ctypes.CDLL(None).syncfs(fd)
        os.close(fd)
        (directory / "written").touch()

    return work


def test_write_back_is_charged_to_the_process_that_made_pages_dirty(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    syncer = threading.Thread(target=_sync_when(directory))
    syncer.start()
    run = TracedCommand(tmp_path, sys.executable, "-c", DIRTY, directory)
    syncer.join()
    table = run.frame("writeback")
    by_pid = table.groupby("pid")["bytes_written"].sum().sort_values()
    by_pid = by_pid[by_pid > MIB]
    assert len(by_pid) == 2
    assert by_pid.iloc[1] / by_pid.sum() == pytest.approx(0.75, abs=0.02)
    large = run.frame("writeback", directory / "large")
    assert large["bytes_written"].sum() == pytest.approx(75 * MIB, rel=0.02)
    assert large["bytes_dirtied"].sum() == pytest.approx(75 * MIB, rel=0.02)
    requests = run.frame("device_requests", directory / "large")
    assert set(requests["op"]) == {"write"}
    assert set(requests["pid"]) == set(large["pid"])
    assert conserved(run.layers.receipt)


def _resident_pages(path: Path) -> int:
    fincore = subprocess.run([*FINCORE, path], check=True, capture_output=True, text=True)
    return int(fincore.stdout)


def test_residency_at_start_and_end(target: Path, tmp_path: Path) -> None:
    """Values lie between those of fincore before and after, as the kernel may evict pages."""
    reader = [sys.executable, "-c", READ_TWICE, target, str(READ_BYTES), "cached"]
    count = f"{shlex.join(FINCORE)} {shlex.quote(str(target))}"
    script = f'{count} > "$0/begin" && "$@" && {count} > "$0/end"'
    before = _resident_pages(target)
    run = TracedCommand(tmp_path, "sh", "-c", script, tmp_path, *reader)
    after = _resident_pages(target)
    begin, end = (int((tmp_path / name).read_text()) for name in ("begin", "end"))
    table = run.frame("residency", target).set_index("moment")
    assert begin <= table["resident_pages"]["start"] <= before <= READ_BYTES // 4096
    assert after <= table["resident_pages"]["end"] <= end
    assert table["pages"]["end"] == READ_BYTES // 4096
    assert after > READ_BYTES // 8192  # the program reads all of it


_COLLAPSE_RANGE = 8


def _row_of(path: Path) -> pa.Table:
    return pa.Table.from_pylist(
        [{"file_id": 1, "path": str(path), "inode": path.stat().st_ino, "size_bytes": 0}]
    )


def test_contiguous_and_fragmented_files(tmp_path: Path) -> None:
    contiguous_path, fragmented_path = tmp_path / "whole", tmp_path / "pieces"
    for path, size in ((contiguous_path, 32 * MIB), (fragmented_path, 8 * MIB)):
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            file.write(bytes(size))
            os.fsync(file.fileno())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    with fragmented_path.open("r+b") as file:
        for block in range(1, 8 * MIB // 8192):  # remove every second block
            if libc.fallocate(file.fileno(), _COLLAPSE_RANGE, block * 4096, 4096):
                pytest.skip("the file system of the temporary directory cannot collapse ranges")
    contiguous = extents_table(_row_of(contiguous_path)).to_pylist()[0]
    fragmented = extents_table(_row_of(fragmented_path)).to_pylist()[0]
    assert contiguous["contiguous_share"] >= 0.99
    assert contiguous["mapped_bytes"] == 32 * MIB
    assert fragmented["contiguous_share"] < 0.5
    assert fragmented["count"] > 900


def test_extents_agree_with_fibmap(tmp_path: Path) -> None:
    """FIBMAP, the older ioctl, reports each block: an independent source."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(bytes(4 * MIB))
        os.fsync(file.fileno())
        blocks = []
        for number in range(1024):
            answer = fcntl.ioctl(file.fileno(), 1, struct.pack("i", number))
            blocks.append(struct.unpack("i", answer)[0])
    adjacent = sum(b == a + 1 for a, b in itertools.pairwise(blocks))
    row = extents_table(_row_of(path)).to_pylist()[0]
    assert row["contiguous_share"] == pytest.approx(adjacent / 1023)


def test_the_order_at_the_device_differs_by_readahead(target: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "T"
    reader = "import os, sys\nfd = os.open(sys.argv[1], 0)\nos.posix_fadvise(fd, 0, 0, 4)\n"
    reader += "while os.read(fd, 4096): pass\n"
    penstock = Path(sys.executable).with_name("penstock")
    argv = [penstock, "trace", "-m", "trace", "-o", bundle, "--"]
    commands.run([*argv, sys.executable, "-c", reader, target], check=True, capture_output=True)
    table = pq.read_table(bundle / "patterns.parquet").to_pandas()
    table = table[(table["path"] == str(target)) & table["tid"].isna()].set_index("basis")
    assert table.loc["calls", "class"] == "consecutive"
    evidence = table.loc["device", "evidence"]
    assert table.loc["device", "class"] != "random"
    closing = json.loads((bundle / "manifest.json").read_text())["closing"]
    (served,) = TracedRun(bundle).served_on(int(table.loc["calls", "file_id"]), "read", "calls")
    waited = "of them waited for the device)" in closing
    assert waited == (served.sufficient and served.waiting > 0), closing
    assert evidence["size_ratio"] > 2
    assert evidence.get("reason") == "readahead" or table.loc["device", "requests"] < 32


#: read a complete file in 64 KiB pieces, scattered or in order, a number of times
READ_ALL = """
import os, random, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
places = list(range(0, os.fstat(fd).st_size, 65536))
if sys.argv[2] == 'scattered':
    random.Random(3).shuffle(places)
for place in places * int(sys.argv[3]):
    assert len(os.pread(fd, 65536, place)) == 65536
"""


@pytest.mark.parametrize("order", ["in-order", "scattered"])
@pytest.mark.parametrize("kind", ["in memory", "a hole"])
def test_reads_without_device_get_no_findings_about_a_device(
    target: Path, tmp_path: Path, kind: str, order: str
) -> None:
    path = target
    if kind == "a hole":
        path = tmp_path / "sparse"
        with path.open("wb") as file:
            file.truncate(READ_BYTES)
    bundle = tmp_path / "T"
    penstock = Path(sys.executable).with_name("penstock")
    argv = [penstock, "trace", "-m", "trace", "-o", bundle, "--", sys.executable, "-c", READ_ALL]
    with locked_in_memory(path) if kind == "in memory" else contextlib.nullcontext():
        commands.run([*argv, path, order, "3"], check=True, capture_output=True)
    findings = [f for f in TracedRun(bundle).findings if str(path) in f.statement]
    codes = {f.code for f in findings}
    assert not codes & {"trace-random-reads", "trace-rereads", "trace-low-concurrency"}
    closing = json.loads((bundle / "manifest.json").read_text())["closing"]
    assert "lower-latency disk" not in closing
    assert "only more bandwidth" not in closing
