"""Compare the modes pattern and trace on equal accesses; random reads of a published case."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.pattern import cases
from penstock.archive.traces.trace_tables import TraceTables
from penstock.observe.trace.verdicts.rejudge import judge_run
from tests.integration.tracing import NEEDS_TRACER, known_cost, trace
from tests.support import commands

__all__ = ["known_cost"]  # a fixture
pytestmark = NEEDS_TRACER

KIB = 1024
REQUESTS = 10_007
EPOCH_REQUESTS = 1024

READER = """
import os, sys, threading
import numpy as np
where, names = sys.argv[1], sys.argv[2:]
for name in names:
    offsets, tids = np.load(f"{where}/{name}.npy")
    descriptor = os.open(f"{where}/{name}.data", os.O_RDONLY)
    def work(own):
        for i, offset in enumerate(own):
            if i % 5 == 0:
                try:
                    turn.wait()  # side by side, not one after the other
                except threading.BrokenBarrierError:
                    pass
            os.pread(descriptor, 512, offset)
        turn.abort()
    parts = [offsets[tids == tid].tolist() for tid in np.unique(tids)]
    turn = threading.Barrier(len(parts))
    threads = [threading.Thread(target=work, args=(own,)) for own in parts[1:]]
    for thread in threads:
        thread.start()
    work(parts[0])
    for thread in threads:
        thread.join()
"""


def accesses() -> dict[str, tuple[str, int | None, int | None, np.ndarray, np.ndarray]]:
    """Sequences with their expected class, k and border, and their offsets and threads."""
    rng = np.random.default_rng(15)
    n, one_thread = REQUESTS, np.ones(REQUESTS)
    consecutive = cases.consecutive(n // 2, 512)
    mixed = np.concatenate([consecutive, cases.uniform(rng, n - n // 2, 512, 1 << 20)])
    # a tenth at other offsets, within the limit of a sparse file
    tenth = cases.consecutive(n, 512)
    scattered = rng.random(n) < 0.10
    tenth[scattered] = (1 << 36) + rng.integers(0, 1 << 20, scattered.sum()) * 512
    sequences: dict[str, tuple[str, int | None, int | None, np.ndarray, np.ndarray]] = {
        "consecutive": ("consecutive", None, None, cases.consecutive(n, 512), one_thread),
        "gaps": ("sequential", None, None, cases.gaps(rng, n, 512), one_thread),
        "reverse": ("reverse", None, None, cases.reverse(n, 512), one_thread),
        "stride": ("strided", None, None, cases.strided(n, (64 * KIB,)), one_thread),
        "zipf": ("hot-set", None, None, cases.zipf(rng, n, 4096, 2048, 1.2), one_thread),
        "uniform": ("random", None, None, cases.uniform(rng, n, 4096, 1 << 20), one_thread),
        "half": ("mixed", None, n // 2, mixed, one_thread),
        "tenth": ("irregular", None, None, tenth, one_thread),
    }
    for k in (2, 4, 8, 16):
        offsets, thread_of = cases.streams(rng, n, 512, k, "random")
        sequences[f"streams{k}"] = ("interleaved", k, None, offsets, one_thread)
        if k == 4:
            sequences["threads4"] = ("interleaved", None, None, offsets, thread_of + 1)
    return sequences


def test_pattern_and_trace_give_the_same_verdicts(tmp_path: Path) -> None:
    sequences = accesses()
    for name, (_, _, _, offsets, tids) in sequences.items():
        np.save(tmp_path / f"{name}.npy", np.array([offsets, tids], np.int64))
        with open(tmp_path / f"{name}.data", "wb") as file:
            file.truncate(int(offsets.max()) + 8192)
    command: list[str | Path] = [sys.executable, "-c", READER, tmp_path, *sequences]
    by_mode = {}
    for mode in ("trace", "pattern"):
        document = trace(*command, options=("--mode", mode))
        assert document["lost_events"] == 0
        paths = {Path(row["path"] or ""): row for row in document["files"]}
        by_mode[mode] = {p.stem: row for p, row in paths.items() if p.suffix == ".data"}
    for name, (kind, k, border, *_) in sequences.items():
        for mode, rows in by_mode.items():
            row = rows[name]
            evidence = row["read_evidence"]
            assert row["reads"] == REQUESTS, (name, mode)
            assert row["read_pattern"] == kind, (name, mode, evidence)
            if k is not None:
                assert evidence["k"] == k, (name, mode)
            if border is not None:
                (first,) = [p["first"] for p in evidence["evidence"]["phases"]][1:]
                tolerance = 0.01 * REQUESTS if mode == "trace" else EPOCH_REQUESTS
                assert abs(first - border) <= tolerance, (name, mode)
    strides = [rows["stride"]["read_evidence"]["evidence"] for rows in by_mode.values()]
    assert strides[0]["strides_bytes"] == strides[1]["strides_bytes"] == [64 * KIB]


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_random_reads_of_a_140_mb_file(tmp_path: Path) -> None:
    target, bundle = tmp_path / "file", tmp_path / "T"
    target.write_bytes(bytes(140_000_000))
    command: list[str | Path] = [
        *("fio", "--name=job", f"--filename={target}", "--size=140000000", "--bs=4k"),
        *("--rw=randread", "--ioengine=psync", "--invalidate=0", f"--output={tmp_path / 'said'}"),
        "--output-format=json",
    ]
    document = trace(*command, options=("--mode", "trace", "-o", bundle))
    total_ios = json.loads((tmp_path / "said").read_text())["jobs"][0]["read"]["total_ios"]
    row = next(row for row in document["files"] if row["path"] == str(target))
    assert row["reads"] == total_ios == 140_000_000 // 4096
    assert row["read_pattern"] == "random"
    (verdict,) = [
        r
        for r in pq.read_table(bundle / "patterns.parquet").to_pylist()
        # requests of pages that the kernel has evicted have the basis `device`
        if r["path"] == str(target) and r["tid"] is None and r["basis"] == "calls"
    ]
    assert (verdict["phase_id"], verdict["requests"]) == (None, total_ios)
    events = pq.read_table(bundle / "io_events.parquet", columns=["t_ns", "direction", "file_id"])
    times = events["t_ns"].to_numpy()
    assert (np.diff(times) >= 0).all()
    reads = np.array(events["direction"].to_pylist()) == "read"
    assert (reads & (events["file_id"].to_numpy() == verdict["file_id"])).sum() == total_ios
    reevaluated = {
        r["file_id"]: r for r in judge_run(TraceTables(bundle)) if r["direction"] == "read"
    }
    assert reevaluated[verdict["file_id"]]["together"]["class"] == "random"
    assert reevaluated[verdict["file_id"]]["time_ns"] == row["read_time_ns"]
    result = commands.run(
        [Path(sys.executable).with_name("penstock"), "analyse", "--json", bundle],
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts = [row for row in json.loads(result.stdout)["verdicts"] if row["path"] == str(target)]
    assert [(row["direction"], row["class"]) for row in verdicts if row["basis"] == "calls"] == [
        ("read", "random")
    ]
    assert (bundle / "io_events.parquet").stat().st_size / events.num_rows <= 12


def test_a_log_of_short_processes_is_consecutive_in_every_mode(tmp_path: Path) -> None:
    log = tmp_path / "log"
    record = "x" * 63
    script = f"for i in $(seq 211); do /bin/sh -c 'echo {record} >> {log}'; done"
    for mode in ("pattern", "trace"):
        log.unlink(missing_ok=True)
        document = trace("sh", "-c", script, options=("--mode", mode))
        (row,) = [row for row in document["files"] if row["path"] == str(log)]
        assert (row["writes"], row["written_bytes"]) == (211, 211 * 64), mode
        assert row["write_pattern"] == "consecutive", (mode, row["write_evidence"])
        assert row["write_evidence"]["confidence"] > 0.97
