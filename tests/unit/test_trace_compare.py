"""Two traced runs side by side: matched files, correct ratios, no differences from chance."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.analyse.traces.trace_compare import Comparison, Run, compare_runs, match_files
from penstock.archive.traces.trace_tables import TraceTables
from penstock.errors import BadInput
from penstock.observe.trace.replay import distance_of
from tests.examples.trace import Row, event, write_bundle
from tests.support import commands


def reads(n: int, mean_ns: float, seed: int, *, random: bool = False, **columns: Any) -> list[Row]:
    rng = np.random.default_rng(seed)
    latencies = rng.exponential(mean_ns, n).astype(int).tolist()
    offsets = (rng.permutation(n) if random else np.arange(n)) * 4096
    return [
        event(10_000_000 * i, offset_bytes=int(offsets[i]), latency_ns=latencies[i], **columns)
        for i in range(n)
    ]


def verdict(kind: str, n: int, file_id: int = 1, direction: str = "read") -> list[Row]:
    row = {"file_id": file_id, "direction": direction, "class": kind, "requests": n, "bytes": n}
    return [row | {"tid": tid, "evidence": "{}", "k": None} for tid in (None, 100)]


def compared(a: Path, b: Path) -> Comparison:
    return compare_runs(Run(a), Run(b))


def test_a_slower_random_run_of_another_length(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", reads(800, 50_000, 1), patterns=verdict("consecutive", 800))
    write_bundle(
        tmp_path / "b", reads(2000, 150_000, 2, random=True), patterns=verdict("random", 2000)
    )
    comparison = compared(tmp_path / "a", tmp_path / "b")
    (row,) = comparison.differences
    assert row.matters
    assert row.a is not None
    assert row.b is not None
    assert (row.a["class"], row.b["class"]) == ("consecutive", "random")
    assert row.ratios["requests"].value == pytest.approx(2.5)
    mean = row.ratios["mean"]
    assert mean.low < 3 < mean.high
    assert mean.differs
    assert row.ratios["p99"].low < 3 < row.ratios["p99"].high
    assert "consecutive in A and random in B" in comparison.closing
    assert "800 requests against 2000" in comparison.closing


def test_equal_runs_have_no_significant_difference(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_bundle(
            tmp_path / name, reads(1500, 50_000, seed), patterns=verdict("consecutive", 1500)
        )
    comparison = compared(tmp_path / "a", tmp_path / "b")
    assert not any(row.matters for row in comparison.differences)
    assert "no file differs by more than chance" in comparison.closing
    # planted: one of the runs is a fifth slower
    write_bundle(tmp_path / "c", reads(1500, 62_000, 3), patterns=verdict("consecutive", 1500))
    assert compared(tmp_path / "a", tmp_path / "c").differences[0].matters


def test_intervals_of_ratios_have_their_coverage(tmp_path: Path) -> None:
    from penstock.analyse.traces.trace_compare import ratios_of

    rng = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        a, b = rng.exponential(1.0, 300), rng.exponential(2.0, 300)
        ratio = ratios_of(a, b, rng)["mean"]
        covered += ratio.low <= 2.0 <= ratio.high
    assert 178 <= covered <= 199  # 95 % of 200, within three standard deviations


def test_files_are_matched_by_path_identity_name_and_role(tmp_path: Path) -> None:
    def bundle(name: str, paths: dict[int, str], inodes: dict[int, int]) -> Path:
        rows = [r for n in paths for r in reads(40, 1000, n, file_id=n)]
        path = write_bundle(tmp_path / name, rows, paths=paths)
        import pyarrow as pa

        from penstock.archive.bundle import write_parquet

        files = [
            {"file_id": n, "path": p, "inode": inodes.get(n, 0), "dev_major": 8, "dev_minor": 0}
            for n, p in paths.items()
        ]
        write_parquet(path / "files.parquet", pa.Table.from_pylist(files))
        return path

    a = bundle("a", {1: "/d/x", 2: "/d/y", 3: "/tmp1/z", 4: "/d/old", 5: "/only"}, {2: 77})
    b = bundle("b", {9: "/d/x", 8: "/e/w", 7: "/tmp2/z", 6: "/d/new"}, {8: 77})
    matched_by = {(x, y): by for x, y, by in match_files(Run(a), Run(b))}
    assert matched_by[1, 9] == "path"
    assert matched_by[2, 8] == "identity"
    assert matched_by[3, 7] == "name"
    assert matched_by[4, 6] == "role"
    assert matched_by[5, None] == "only in A"


def test_the_class_of_the_calls_takes_precedence(tmp_path: Path) -> None:
    def patterns_of(*bases: tuple[str, str]) -> list[Row]:
        return [row | {"basis": b} for b, kind in bases for row in verdict(kind, 800)]

    rows = patterns_of(("faults", "strided"), ("calls", "consecutive"), ("device", "random"))
    write_bundle(tmp_path / "a", reads(800, 50_000, 1), patterns=rows)
    rows = patterns_of(("device", "random"), ("counters", "hot-set"), ("faults", "strided"))
    write_bundle(tmp_path / "b", reads(800, 50_000, 1), patterns=rows)
    (row,) = compared(tmp_path / "a", tmp_path / "b").differences
    assert row.a is not None
    assert row.b is not None
    assert (row.a["class"], row.b["class"]) == ("consecutive", "hot-set")


def test_ranges_mapped_around_faults_are_no_requests(tmp_path: Path) -> None:
    for name, around in (("a", False), ("b", True)):
        rows = []
        for row in reads(200, 50_000, 1, op="fault_read"):
            rows.append(row)
            if around:
                mapped = {"op": "fault_around", "size_bytes": 65536, "done_bytes": 65536}
                rows.append({**row, **mapped, "latency_ns": 0})
        write_bundle(tmp_path / name, rows, patterns=verdict("random", 200))
    (row,) = compared(tmp_path / "a", tmp_path / "b").differences
    assert row.a is not None
    assert row.a == row.b
    assert row.b["p50_ns"] > 0
    assert distance_of(TraceTables(tmp_path / "a"), TraceTables(tmp_path / "b")).mean == 0


def test_runs_without_events_are_compared_by_counts(tmp_path: Path) -> None:
    for name, n in (("a", 100), ("b", 400)):
        rows = verdict("random", n)
        for row in rows:
            row["evidence"] = json.dumps({"time_ns": n * 10**6})
        path = write_bundle(tmp_path / name, reads(3, 1, 1), patterns=rows)
        (path / "io_events.parquet").unlink()
    comparison = compared(tmp_path / "a", tmp_path / "b")
    assert comparison.differences[0].ratios["time_ns"].value == 4
    assert "mean" not in comparison.differences[0].ratios
    assert comparison.differences[0].matters


def test_command_line(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", reads(200, 50_000, 1), patterns=verdict("consecutive", 200))
    write_bundle(tmp_path / "b", reads(100, 90_000, 2), paths={1: "/data/\x1b[31mred"})
    tool = Path(sys.executable).with_name("penstock")
    plain = commands.run([tool, "compare", tmp_path / "a", tmp_path / "b"], capture_output=True)
    assert plain.returncode == 0, plain.stderr
    assert b"\x1b" not in plain.stdout
    assert max(len(line) for line in plain.stdout.decode().splitlines()) <= 100
    result = commands.run(
        [tool, "compare", tmp_path / "a", tmp_path / "b", "--json"], capture_output=True
    )
    document = json.loads(result.stdout)
    assert 0 < document["distance"]["distance"] < 1
    assert document["differences"][0]["matched_by"] == "role"


def test_a_directory_without_a_trace_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a bundle"):
        Run(tmp_path)
    path = write_bundle(tmp_path / "a", reads(10, 1, 1))
    data = (path / "io_events.parquet").read_bytes()
    (path / "io_events.parquet").write_bytes(data[:-20])
    with pytest.raises(BadInput, match="cannot be read"):
        Run(path)


def _flushed(n: int, ns: int, file_id: int = 1) -> list[Row]:
    return [
        event(10_000_000 * i + 5_000_000, "fdatasync", file_id=file_id, latency_ns=ns)
        for i in range(n)
    ]


def test_flushes_are_compared(tmp_path: Path) -> None:
    for name, count, ns in (("a", 153, 500_000), ("b", 69, 700_000)):
        rows = reads(200, 50_000, 1) + _flushed(count, ns)
        write_bundle(tmp_path / name, rows, patterns=verdict("consecutive", 200))
    comparison = compared(tmp_path / "a", tmp_path / "b")
    assert comparison.differences[0].direction == "sync"
    assert "most of it: flushes of /data/x, 76.5 ms against 48.3 ms" in comparison.closing
    assert "153 requests against 69" in comparison.closing


def test_a_gain_is_not_explained_by_slower_files(tmp_path: Path) -> None:
    paths = {1: "/d/x", 2: "/d/y", 3: "/d/z"}
    for name, means in (("a", (900_000, 100_000, 900_000)), ("b", (600_000, 500_000, 600_000))):
        rows = [r for n, ns in enumerate(means, 1) for r in reads(300, ns, n, file_id=n)]
        patterns = [v for n in paths for v in verdict("consecutive", 300, n)]
        write_bundle(tmp_path / name, rows, paths=paths, patterns=patterns)
    comparison = compared(tmp_path / "a", tmp_path / "b")
    assert comparison.differences[0].path == "/d/y"  # the largest change, for the worse
    assert "reads of /d/y" not in comparison.closing


def test_a_path_with_several_files_is_one_row(tmp_path: Path) -> None:
    for name, journals in (("a", 50), ("b", 20)):
        paths = {1: "/d/t.db"} | dict.fromkeys(range(2, journals + 2), "/d/t.db-journal")
        rows = reads(200, 50_000, 1) + [
            event(10_000_000 * n + 1, op, file_id=n, latency_ns=900_000)
            for n in range(2, journals + 2)
            for op in ("pwrite64", "fdatasync")
        ]
        patterns = [v for n in paths for v in verdict("consecutive", 200, n)]
        write_bundle(tmp_path / name, rows, paths=paths, patterns=patterns)
    comparison = compared(tmp_path / "a", tmp_path / "b")
    rows_of = {(row.path, row.direction): row for row in comparison.differences}
    assert set(rows_of) == {
        ("/d/t.db", "read"),
        ("/d/t.db-journal", "write"),
        ("/d/t.db-journal", "sync"),
    }
    row = rows_of["/d/t.db-journal", "write"]
    assert row.a is not None
    assert row.b is not None
    assert (row.a["files"], row.a["requests"], row.b["files"]) == (50, 50, 20)
    assert row.a["p50_ns"] == 900_000  # of all files of the path


def test_a_difference_in_counts_only_can_be_written_as_json(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", reads(100, 50_000, 1), patterns=verdict("consecutive", 100))
    write_bundle(tmp_path / "b", reads(900, 50_000, 2), patterns=verdict("consecutive", 900))
    document = json.loads(json.dumps(compared(tmp_path / "a", tmp_path / "b").document()))
    assert [row["matters"] for row in document["differences"]] == [True]


def gated(a: Path, b: Path, *gates: str) -> Any:
    argv = [sys.executable, "-m", "penstock", "compare", str(a), str(b)]
    for gate in gates:
        argv += ["--fail-on", gate]
    result = commands.run([*argv, "--json"], capture_output=True, text=True)
    document = json.loads(result.stdout)
    return (
        result.returncode,
        [(g["gate"], g["failed"]) for g in document.get("gates", [])],
        result.stdout + result.stderr,
    )


def test_gates_on_requests_bytes_and_flushes(tmp_path: Path) -> None:
    """Gates detect a commit that flushes three times as often."""
    paths = {1: "/d/main.db", 2: "/d/other.log"}
    for name, flushes in (("a", 100), ("b", 300)):
        rows = reads(400, 50_000, 1, file_id=1)
        rows += reads(flushes, 50_000, 2, file_id=1, op="fsync", direction="sync", done_bytes=0)
        rows += reads(100, 50_000, 3, file_id=2, op="fsync", direction="sync", done_bytes=0)
        patterns = verdict("consecutive", 400)
        write_bundle(tmp_path / name, rows, patterns=patterns, paths=paths)
    a, b = tmp_path / "a", tmp_path / "b"
    status, gates, _ = gated(a, b, "flushes > 5%", "reads > 5%", "bytes > 5%")
    assert (status, gates) == (
        3,
        [("flushes > 5%", True), ("reads > 5%", False), ("bytes > 5%", False)],
    )
    assert gated(a, b, "flushes@*.db > 150%", "flushes@/d/other.log > 0%")[:2] == (
        3,
        [("flushes@*.db > 150%", True), ("flushes@/d/other.log > 0%", False)],
    )
    assert gated(a, b, "flushes@*.db > 250%")[0] == 0
    assert gated(b, a, "flushes < -40%")[0] == 3
    # an increase from zero exceeds any share
    assert gated(a, b, "writes > 1000%")[0] == 0
    status, _, output = gated(a, b, "flushes@*.sst > 5%")
    assert status == 2
    assert "'*.sst'" in output
