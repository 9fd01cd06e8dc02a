"""Findings over traced runs: each fires on its case and stays silent on a harmless variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.traces.trace_findings import CODES
from penstock.analyse.traces.traced_run import TracedRun
from penstock.errors import BadInput
from penstock.observe.trace.capture.salvage import what_layers_miss
from tests.examples.trace import event, write_bundle

SECOND = 1_000_000_000
MIB = 1 << 20


class Trace:
    """A traced run of one file; a test sets the fields that it needs."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir()
        self.receipt: dict[str, Any] = {"seen": 1000, "kept": 1000, "lost": 0, "mode": "trace"}
        self.file_bytes = 64 * MIB
        self.patterns: list[dict[str, Any]] = []
        self.events: list[pa.Table] = []
        self.use: list[dict[str, Any]] = []

    def verdict(
        self,
        kind: str,
        *,
        calls: int = 1000,
        mean_ns: float = 100_000,
        size: float = 4096,
        direction: str = "read",
        basis: str = "calls",
    ) -> Trace:
        evidence = json.dumps({"calls": calls, "time_ns": round(calls * mean_ns)})
        self.patterns.append(
            {
                "file_id": 1,
                "path": "/data/t",
                "direction": direction,
                "tid": None,
                "class": kind,
                "requests": calls,
                "bytes": int(calls * size),
                "basis": basis,
                "median_size_bytes": float(size),
                "evidence": evidence,
                "phase_id": None,
            }
        )
        return self

    def calls(
        self,
        offsets: Any,
        *,
        size: int = 4096,
        done: int | None = None,
        latency_ns: int = 100_000,
        direction: str = "read",
        flags: int = 0,
        at_once: int = 1,
        served: tuple[int, int, int, int, int] | None = None,
    ) -> Trace:
        """`served`: pages in memory, read ahead and missed, requests, device time [ns] of each call."""
        count = len(offsets)
        first = sum(map(len, self.events))
        names = ("pages_hit", "pages_readahead", "pages_missed", "requests", "device_ns")
        if served is not None:
            row = dict(zip(names, served, strict=True))
            self.use += [{"seq": first + n} | row for n in range(count)]
        times = np.arange(count) // at_once * latency_ns
        self.events.append(
            pa.table(
                {
                    "seq": pa.array(np.arange(first, first + count)),
                    "t_ns": pa.array(times),
                    "op": pa.array(["pread64" if direction == "read" else direction] * count),
                    "direction": pa.array([direction] * count),
                    "file_id": pa.array(np.ones(count, np.int64)),
                    "offset_bytes": pa.array(np.asarray(offsets, np.int64)),
                    "size_bytes": pa.array(np.full(count, size, np.int64)),
                    "done_bytes": pa.array(
                        np.full(count, size if done is None else done, np.int64)
                    ),
                    "latency_ns": pa.array(np.full(count, latency_ns, np.int64)),
                    "flags": pa.array(np.full(count, flags, np.int64)),
                }
            )
        )
        return self

    def extents(self, share: float) -> Trace:
        row = {"file_id": 1, "count": 500, "contiguous_share": share}
        pq.write_table(pa.Table.from_pylist([row]), self.path / "extents.parquet")
        return self

    def codes(self, wall_s: float = 0.2) -> set[str]:
        manifest = {
            "receipts": {"trace": self.receipt},
            "times": {"start_ns": 0, "end_ns": round(wall_s * SECOND)},
        }
        (self.path / "manifest.json").write_text(json.dumps(manifest))
        files = [{"file_id": 1, "path": "/data/t", "size_bytes": self.file_bytes}]
        pq.write_table(pa.Table.from_pylist(files), self.path / "files.parquet")
        if self.patterns:
            pq.write_table(pa.Table.from_pylist(self.patterns), self.path / "patterns.parquet")
        if self.events:
            pq.write_table(pa.concat_tables(self.events), self.path / "io_events.parquet")
        if self.use:
            pq.write_table(pa.Table.from_pylist(self.use), self.path / "cache_use.parquet")
        result = TracedRun(self.path).findings
        assert {f.code for f in result} <= set(CODES)
        assert all(f.statement and f.severity in {"info", "warning"} for f in result)
        return {f.code for f in result}


@pytest.fixture
def traced(tmp_path: Path) -> Trace:
    return Trace(tmp_path / "T")


def test_random_reads_that_wait(traced: Trace) -> None:
    assert "trace-random-reads" in traced.verdict("random").codes()


@pytest.mark.parametrize(
    ("verdict", "wall_s"),
    [
        ({"kind": "consecutive"}, 0.2),
        ({"kind": "random", "mean_ns": 900}, 0.001),  # from the page cache
        ({"kind": "random", "calls": 50}, 0.005),  # too few
        ({"kind": "random"}, 60.0),  # too little of the run
        ({"kind": "random", "direction": "write"}, 0.2),
    ],
)
def test_random_reads_guards(traced: Trace, verdict: dict[str, Any], wall_s: float) -> None:
    assert "trace-random-reads" not in traced.verdict(**verdict).codes(wall_s)


@pytest.mark.parametrize(
    ("basis", "below", "fires"),
    [
        (
            "faults",
            "consecutive",
            False,
        ),  # the kernel reads around each fault, and the whole file in order
        ("faults", "random", True),
        ("faults", None, True),  # without a trace of the device
        ("calls", "consecutive", True),
    ],
)
def test_scattered_faults_are_judged_by_the_requests_at_the_device(
    traced: Trace, basis: str, below: str | None, fires: bool
) -> None:
    traced.verdict("random", basis=basis)
    if below is not None:
        traced.verdict(below, basis="device")
    assert ("trace-random-reads" in traced.codes()) == fires


def test_small_requests_in_order(traced: Trace) -> None:
    traced.verdict("consecutive", size=100, calls=10_000, mean_ns=1_000)
    codes = traced.codes(wall_s=0.02)
    assert "trace-small-requests" in codes
    assert "trace-cached" in codes


@pytest.mark.parametrize("kind", ["random", "consecutive"])
def test_small_requests_guards(traced: Trace, kind: str) -> None:
    """Scattered requests cannot be merged, and large ones need not be."""
    size = 100 if kind == "random" else 65536
    traced.verdict(kind, size=size, calls=10_000, mean_ns=1_000)
    assert "trace-small-requests" not in traced.codes(wall_s=0.02)


def test_reads_and_writes_of_one_file_are_one_file(traced: Trace) -> None:
    for direction in ("read", "write"):
        traced.verdict("consecutive", size=100, calls=600, mean_ns=1_000, direction=direction)
    assert "trace-small-requests" in traced.codes(wall_s=0.01)
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-small-requests"]
    assert finding.statement.startswith("/data/t: 1,200 reads and writes of 100 B")
    assert finding.evidence["patterns"] == {"file_id": [1]}


def test_calls_and_faults_of_one_file_are_one_file(traced: Trace) -> None:
    for basis in ("calls", "faults"):
        traced.verdict("random", calls=60, basis=basis)
    assert "trace-random-reads" in traced.codes(wall_s=0.1)
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-random-reads"]
    assert finding.statement.startswith("/data/t: 120 reads in scattered order")
    assert (finding.evidence["files"], finding.evidence["patterns"]) == (1, {"file_id": [1]})


def test_cached_is_not_reported_if_one_file_waits(traced: Trace) -> None:
    traced.verdict("random", calls=100, mean_ns=1e6).verdict(
        "consecutive", calls=100_000, mean_ns=500, direction="write"
    )
    assert "trace-cached" not in traced.codes()


def test_little_io(traced: Trace) -> None:
    assert traced.verdict("random").codes(wall_s=10.0) == {"trace-not-io-bound"}


@pytest.mark.parametrize(
    ("offset", "size", "done", "flags", "fires"),
    [
        (512, 4096, 4096, 1, True),
        (0, 1000, 1000, 1, True),
        (0, 4096, 100, 1, False),  # the short end of a file
        (0, 4096, 4096, 1, False),
        (512, 4096, 4096, 0, False),  # through the page cache
    ],
)
def test_unaligned_direct(
    traced: Trace, offset: int, size: int, done: int, flags: int, fires: bool
) -> None:
    offsets = np.arange(1000) * 8192 + offset
    traced.calls(offsets, size=size, done=done, flags=flags)
    assert ("trace-unaligned-direct" in traced.codes()) == fires


def test_a_few_unaligned_requests_are_ignored(traced: Trace) -> None:
    offsets = np.arange(1000) * 4096
    offsets[:10] += 512
    assert "trace-unaligned-direct" not in traced.calls(offsets, flags=1).codes()


@pytest.mark.parametrize(("times", "mean_ns", "fires"), [(4, 100_000, True), (1, 100_000, False)])
def test_rereads(traced: Trace, times: int, mean_ns: int, fires: bool) -> None:
    offsets = np.tile(np.arange(1000) * 4096, times)
    traced.verdict("sequential", calls=len(offsets), mean_ns=mean_ns).calls(offsets)
    assert ("trace-rereads" in traced.codes()) == fires


@pytest.mark.parametrize(
    "cycle", [[4096, 4096, MIB], [512] * 8 + [MIB], [100, 60_000], [4096, 12_288]]
)
@pytest.mark.parametrize(("times", "fires"), [(1, False), (3, True)])
def test_rereads_where_sizes_are_mixed(
    traced: Trace, cycle: list[int], times: int, fires: bool
) -> None:
    sizes = np.tile(cycle, 400)
    starts = np.cumsum(sizes) - sizes
    traced.verdict("consecutive", calls=len(sizes) * times)
    for size in sorted(set(cycle)):
        traced.calls(np.tile(starts[sizes == size], times), size=size)
    assert ("trace-rereads" in traced.codes()) == fires


def test_rereads_by_calls_and_by_faults_are_reported_once(traced: Trace) -> None:
    traced.verdict("sequential", calls=2000).verdict("sequential", calls=2000, basis="faults")
    traced.calls(np.tile(np.arange(1000) * 4096, 4)).codes()
    assert [f.code for f in TracedRun(traced.path).findings].count("trace-rereads") == 1


def test_rereads_of_parts_that_overlap(traced: Trace) -> None:
    traced.verdict("random", calls=1000)
    traced.calls(np.random.default_rng(1).integers(0, 10_000, 1000) * 4096, size=MIB)
    assert "trace-rereads" in traced.codes()


def test_rereads_from_the_cache_are_ignored(traced: Trace) -> None:
    offsets = np.tile(np.arange(1000) * 4096, 4)
    traced.verdict("sequential", calls=4000, mean_ns=900).calls(offsets, latency_ns=900)
    assert "trace-rereads" not in traced.codes(wall_s=0.005)


@pytest.mark.parametrize(
    ("flushes", "writes", "flush_ns", "fires"),
    [
        (200, 200, 500_000, True),
        (200, 20_000, 500_000, False),  # many writes to each
        (20, 20, 5_000_000, False),  # few
        (200, 200, 5_000, False),  # they cost little
    ],
)
def test_flushes(traced: Trace, flushes: int, writes: int, flush_ns: int, fires: bool) -> None:
    traced.verdict("consecutive", direction="write", calls=writes, mean_ns=1000)
    traced.calls(np.zeros(flushes), size=0, direction="sync", latency_ns=flush_ns)
    assert ("trace-fsync-storm" in traced.codes()) == fires


def test_flushes_after_writes_that_were_calls_and_faults(traced: Trace) -> None:
    traced.verdict("consecutive", direction="write", calls=20_000, mean_ns=1000)
    traced.verdict("consecutive", direction="write", calls=100, mean_ns=1000, basis="faults")
    traced.calls(np.zeros(200), size=0, direction="sync", latency_ns=500_000)
    assert "trace-fsync-storm" not in traced.codes()


def test_flushes_from_the_sums_that_need_no_events(traced: Trace) -> None:
    row = {"file_id": 1, "op": "fdatasync", "calls": 200, "errors": 0, "time_ns": 100_000_000}
    pq.write_table(pa.Table.from_pylist([row]), traced.path / "operations.parquet")
    assert traced.codes() == {"trace-fsync-storm"}
    assert "trace-fsync-storm" not in traced.codes(wall_s=10.0)


@pytest.mark.parametrize(
    ("kind", "at_once", "fires"),
    [("random", 1, True), ("random", 8, False), ("consecutive", 1, False)],
)
def test_low_concurrency(traced: Trace, kind: str, at_once: int, fires: bool) -> None:
    traced.verdict(kind, calls=1000).calls(np.arange(1000) * 4096, at_once=at_once)
    assert ("trace-low-concurrency" in traced.codes(wall_s=0.11)) == fires


@pytest.mark.parametrize(
    ("above", "below", "requests", "fires"),
    [
        ("consecutive", "random", 1000, True),
        ("consecutive", "sequential", 1000, False),
        ("random", "random", 1000, False),
        ("consecutive", "random", 10, False),
    ],
)
def test_disorder_at_the_device(
    traced: Trace, above: str, below: str, requests: int, fires: bool
) -> None:
    traced.verdict(above).verdict(below, calls=requests, basis="device")
    assert ("trace-device-disorder" in traced.codes()) == fires


@pytest.mark.parametrize(
    ("share", "kind", "nbytes", "fires"),
    [
        (0.1, "consecutive", 64 * MIB, True),
        (0.999, "consecutive", 64 * MIB, False),
        (0.1, "random", 64 * MIB, False),
        (0.1, "consecutive", MIB, False),
    ],
)
def test_fragmented(traced: Trace, share: float, kind: str, nbytes: int, fires: bool) -> None:
    traced.file_bytes = nbytes
    assert ("trace-fragmented" in traced.verdict(kind).extents(share).codes()) == fires


def test_losses_and_overhead_are_reported(traced: Trace) -> None:
    traced.receipt |= {"lost": 10, "added_share": 0.2}
    codes = traced.codes()
    assert {"trace-lost", "trace-overhead"} <= codes


@pytest.mark.parametrize(
    ("share", "paired", "fires"),
    [
        (0.004, {"share": 2.29, "low": 1.9, "high": 2.6, "pairs": 8, "verdict": "above"}, True),
        (0.2, {"share": 0.002, "low": 0.0, "high": 0.004, "pairs": 8, "verdict": "within"}, False),
        (0.2, {"share": 0.002, "low": -1.0, "high": 1.0, "pairs": 2, "verdict": "undecided"}, True),
    ],
)
def test_decisive_paired_runs_override_the_estimate(
    traced: Trace, share: float, paired: dict[str, Any], fires: bool
) -> None:
    traced.receipt |= {"added_share": share, "paired": paired}
    assert ("trace-overhead" in traced.codes()) == fires


def test_losses_below_the_calls_are_reported(traced: Trace) -> None:
    layers: dict[str, Any] = {"seen": 100, "lost": 0, "missing": {}}
    traced.receipt["layers"] = layers
    assert traced.codes() == set()
    layers["lost"] = 7
    (finding,) = TracedRun(traced.path).findings if traced.codes() else ()
    assert (finding.code, finding.severity) == ("trace-lost", "warning")
    assert "7 of 100" in finding.statement
    layers |= {"lost": 0, "missing": {"block_io_start": "time in the queue"}}
    (finding,) = TracedRun(traced.path).findings if traced.codes() else ()
    assert finding.severity == "info"
    layers["missing"] = {"mm_filemap_add_to_page_cache": "page-cache misses"}
    (finding,) = TracedRun(traced.path).findings if traced.codes() else ()
    assert finding.severity == "warning"
    assert "counts as a hit" in finding.statement
    layers["missing"] = {"block_bio_complete": ""}  # nothing depends on it
    assert traced.codes() == set()


def test_the_summary_names_events_that_the_kernel_lacks() -> None:
    assert what_layers_miss({"seen": 9, "lost": 0, "missing": {"block_bio_complete": ""}}) == ""
    summary = what_layers_miss(
        {"seen": 9, "lost": 2, "missing": {"mm_filemap_add_to_page_cache": "page-cache misses"}}
    )
    assert "2 of 9 records" in summary
    assert "Below the calls, this kernel does not report: page-cache misses." in summary
    assert summary.endswith("counts as a hit of the page cache.")


def test_an_empty_trace_has_no_findings(traced: Trace) -> None:
    assert traced.codes() == set()


@pytest.mark.parametrize("content", ["nothing", "not JSON", "not Parquet"])
def test_foreign_directories(tmp_path: Path, content: str) -> None:
    if content != "nothing":
        (tmp_path / "manifest.json").write_text("{" if content == "not JSON" else "{}")
    if content == "not Parquet":
        (tmp_path / "patterns.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInput, match="expected"):
        assert TracedRun(tmp_path).findings


#: sources of a call of 64 KiB
CACHED, MISSED = (16, 0, 0, 0, 0), (0, 0, 16, 1, 90_000)
HOLE, AHEAD = (0, 0, 16, 0, 0), (0, 16, 0, 0, 0)


@pytest.mark.parametrize(
    ("served", "fires"), [(CACHED, False), (AHEAD, False), (HOLE, False), (MISSED, True)]
)
@pytest.mark.parametrize("latency_ns", [5_000, 400_000])
def test_random_reads_wait_by_their_page_cache_misses_at_any_latency(
    traced: Trace, served: tuple[int, int, int, int, int], fires: bool, latency_ns: int
) -> None:
    traced.verdict("random", size=65536, mean_ns=latency_ns)
    traced.calls(np.arange(1000) * 65536, size=65536, latency_ns=latency_ns, served=served)
    codes = traced.codes(wall_s=latency_ns * 2e-6)
    assert ("trace-random-reads" in codes) == fires
    assert ("trace-cached" in codes) == (served is CACHED)


def test_only_waiting_reads_count_as_waiting(traced: Trace) -> None:
    traced.verdict("random", calls=1200, mean_ns=100_000)
    traced.calls(np.arange(1000) * 4096, served=CACHED)
    traced.calls(np.arange(200) * 4096, served=MISSED).codes()
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-random-reads"]
    assert "1,200 reads of 4 KiB in random order, 200 of them wait 100 µs each" in finding.statement
    assert "10 % of the run" in finding.statement
    assert "inferred" not in finding.statement


def test_without_a_table_of_the_page_cache_waiting_is_inferred(traced: Trace) -> None:
    traced.receipt["mode"] = "pattern"
    traced.verdict("random").codes()
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-random-reads"]
    assert "inferred from that time: `-m trace -o` records" in finding.statement
    # the time of a copy of that size is no wait
    traced.patterns.clear()
    assert traced.verdict("random", size=MIB, mean_ns=400_000).codes() == {"trace-cached"}


def test_rereads_are_repeated_reads_of_the_device(traced: Trace) -> None:
    offsets = np.tile(np.arange(128) * MIB, 3)
    traced.verdict("consecutive", calls=384, size=MIB, mean_ns=400_000)
    traced.calls(offsets, size=MIB, latency_ns=400_000, served=(256, 0, 0, 0, 0))
    requests = [
        {"op": "read", "file_id": 1, "file": "/data/t", "offset_bytes": n * MIB, "size_bytes": MIB}
        for n in range(128)
    ]
    for times, fires in ((1, False), (3, True)):
        table = pa.Table.from_pylist(requests * times)
        pq.write_table(table, traced.path / "device_requests.parquet")
        assert ("trace-rereads" in traced.codes()) == fires
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-rereads"]
    assert "devices read 384 MiB of about 128 MiB: each byte 3.0 times" in finding.statement


def flushed(traced: Trace, calls: int, ns: int) -> None:
    row = {"file_id": 1, "op": "fdatasync", "calls": calls, "errors": 0, "time_ns": calls * ns}
    pq.write_table(pa.Table.from_pylist([row]), traced.path / "operations.parquet")


def test_flushes_are_no_time_of_the_page_cache(traced: Trace) -> None:
    traced.verdict("consecutive", direction="write", calls=2000, size=100, mean_ns=1500)
    flushed(traced, 200, 130_000)
    assert traced.codes(wall_s=0.06) == {"trace-flush-bound", "trace-small-requests"}
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-flush-bound"]
    assert (
        "/data/t: 200 flushes to the device of 130 µs each take 43 % of the run"
        in finding.statement
    )
    flushed(traced, 200, 1_000)
    assert "trace-cached" in traced.codes(wall_s=0.03)


def test_flushes_of_several_files_add_up(traced: Trace) -> None:
    rows = [
        {"file_id": n, "op": "fdatasync", "calls": 77, "errors": 0, "time_ns": 30_000_000}
        for n in (1, 2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), traced.path / "operations.parquet")
    assert "trace-flush-bound" in traced.codes()  # 15 % each
    (finding,) = [f for f in TracedRun(traced.path).findings if f.code == "trace-flush-bound"]
    assert "and 1 more: 154 flushes" in finding.statement


def test_missing_times_do_not_count_as_small(traced: Trace) -> None:
    """Mode count records no times; findings about little I/O time must not fire."""
    traced.receipt["mode"] = "count"
    assert traced.verdict("counted", calls=1_000_000, mean_ns=0).codes(10.0) == set()


@pytest.mark.parametrize("defect", [{"in_flight": 1}, {"lost": 500}, {"incomplete": "it died"}])
def test_an_incomplete_trace_is_not_reported_as_little_io(
    traced: Trace, defect: dict[str, Any]
) -> None:
    traced.receipt |= defect
    assert "trace-not-io-bound" not in traced.verdict("random").codes(wall_s=10.0)


def test_opening_and_naming_are_calls_on_files_too(traced: Trace) -> None:
    row = {"file_id": 1, "op": "open", "calls": 10_000, "errors": 0, "time_ns": 5 * SECOND}
    pq.write_table(pa.Table.from_pylist([row]), traced.path / "operations.parquet")
    assert traced.verdict("random", mean_ns=900).codes(wall_s=10.0) == set()


def test_incomplete_lower_layers_are_reported(traced: Trace) -> None:
    traced.receipt["layers"] = {"seen": 0, "lost": 0, "missing": {}, "incomplete": "it ended early"}
    traced.verdict("random").calls(np.arange(1000) * 4096, served=CACHED)
    codes = traced.codes()
    assert "trace-lost" in codes
    assert "trace-cached" not in codes  # an incomplete trace does not prove that nothing was missed


def test_disorder_is_reported_only_if_the_device_matters(traced: Trace) -> None:
    traced.verdict("consecutive").verdict("random", calls=200, basis="device")
    traced.calls(np.arange(1000) * 4096, served=CACHED)
    assert "trace-device-disorder" not in traced.codes()


@pytest.mark.parametrize(("each_ns", "fires"), [(1_000, False), (10_000_000, True)])
def test_disorder_of_requests_without_time_is_ignored(
    traced: Trace, each_ns: int, fires: bool
) -> None:
    traced.verdict("consecutive", direction="write")
    traced.verdict("random", calls=200, direction="write", basis="device")
    at = np.arange(200) * 1000
    requests = {
        "t_ns": at,
        "done_ns": at + each_ns,
        "file_id": np.ones(200, int),
        "op": ["write"] * 200,
        "offset_bytes": (np.arange(200) * 7919 % 200) << 16,
        "size_bytes": np.full(200, 8192),
    }
    pq.write_table(pa.table(requests), traced.path / "device_requests.parquet")
    assert ("trace-device-disorder" in traced.codes()) == fires


@pytest.mark.parametrize(("step", "fires"), [(4096, False), (8192, False), (3 << 20, True)])
def test_a_log_whose_last_page_is_written_again_is_in_order(
    traced: Trace, step: int, fires: bool
) -> None:
    traced.verdict("consecutive", direction="write")
    traced.verdict("irregular", calls=200, direction="write", basis="device")
    at = np.arange(200)
    requests = {
        "t_ns": at * 1000,
        "file_id": np.ones(200, int),
        "op": ["write"] * 200,
        "offset_bytes": (at * step) % (64 << 20),
        "size_bytes": np.full(200, 8192),
    }
    pq.write_table(pa.table(requests), traced.path / "device_requests.parquet")
    assert ("trace-device-disorder" in traced.codes()) == fires


def test_flushes_of_a_recreated_path_are_a_storm(tmp_path: Path) -> None:
    paths = {1: "/d/t.db"} | dict.fromkeys(range(2, 72), "/d/t.db-journal")
    rows = []
    for n in range(2, 72):
        at = 20_000_000 * n
        rows += [event(at + k, "pwrite64", file_id=n, latency_ns=5_000) for k in range(4)]
        rows += [event(at + 9, "fdatasync", file_id=n, latency_ns=9_000_000, size_bytes=0)] * 2
    verdicts = [
        {"file_id": n, "direction": "write", "class": "insufficient", "requests": 4, "bytes": 4096}
        | {
            "path": paths[n],
            "tid": None,
            "evidence": '{"calls": 4, "time_ns": 20000}',
            "median_size_bytes": 4096.0,
        }
        for n in range(2, 72)
    ]
    bundle = write_bundle(tmp_path / "t", rows, paths=paths, patterns=verdicts)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["times"] = {"start_ns": 0, "end_ns": 2 * SECOND}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    (storm,) = [f for f in TracedRun(bundle).findings if f.code.startswith("trace-f")]
    assert storm.code == "trace-fsync-storm"
    assert storm.statement.startswith(
        "/d/t.db-journal × 70 files: 140 flushes to the device, one after every "
        "2.0 writes, of 9 ms each: 63 % of the run"
    )


@pytest.mark.parametrize("writes", [1, 10, 60, 1000])
def test_expensive_flushes_are_reported_with_any_number_of_writes(
    tmp_path: Path, writes: int
) -> None:
    """Flushes take 42 % of the run, and the page cache absorbs the writes."""
    rows = []
    for n in range(150):
        at = 20_000_000 * n
        rows.append(event(at, "fdatasync", latency_ns=8_400_000, size_bytes=0))
        rows += [event(at + k, "pwrite64", latency_ns=14_200) for k in range(writes)]
    calls = 150 * writes
    evidence = json.dumps({"calls": calls, "time_ns": calls * 14_200})
    verdict = {"file_id": 1, "direction": "write", "class": "consecutive", "requests": calls}
    verdict |= {
        "path": "/data/x",
        "bytes": calls * 100,
        "tid": None,
        "evidence": evidence,
        "median_size_bytes": 100.0,
    }
    bundle = write_bundle(tmp_path / "t", rows, patterns=[verdict])
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["times"] = {"start_ns": 0, "end_ns": 3 * SECOND}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    by_code = {f.code: f for f in TracedRun(bundle).findings}
    flush_finding = by_code.get("trace-fsync-storm") or by_code["trace-flush-bound"]
    assert "42 % of the run" in flush_finding.statement
    # only the writes, if they take most of the time
    times_ns = [f.evidence["time_ns"] for code, f in by_code.items() if code == "trace-cached"]
    assert times_ns == [calls * 14_200] * (writes == 1000)
