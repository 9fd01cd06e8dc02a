"""Two traced runs side by side: files matched, ratios right, and nothing made of chance."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.analyse.traces.trace_compare import Comparison, Run, compare_runs, match_files
from penstock.errors import BadInput
from tests.examples.trace import Row, event, write_bundle
from tests.support import commands


def reads(n: int, mean_ns: float, seed: int, *, random: bool = False, **more: Any) -> list[Row]:
    draw = np.random.default_rng(seed)
    latencies = draw.exponential(mean_ns, n).astype(int).tolist()
    offsets = (draw.permutation(n) if random else np.arange(n)) * 4096
    return [
        event(10_000_000 * i, offset_bytes=int(offsets[i]), latency_ns=latencies[i], **more)
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
    found = compared(tmp_path / "a", tmp_path / "b")
    (row,) = found.differences
    assert row.matters
    assert row.a is not None
    assert row.b is not None
    assert (row.a["class"], row.b["class"]) == ("consecutive", "random")
    assert row.ratios["requests"].value == pytest.approx(2.5)
    mean = row.ratios["mean"]
    assert mean.low < 3 < mean.high
    assert mean.differs
    assert row.ratios["p99"].low < 3 < row.ratios["p99"].high
    assert "consecutive in A and random in B" in found.closing
    assert "800 requests against 2000" in found.closing


def test_two_equal_runs_have_nothing_that_matters(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        write_bundle(
            tmp_path / name, reads(1500, 50_000, seed), patterns=verdict("consecutive", 1500)
        )
    found = compared(tmp_path / "a", tmp_path / "b")
    assert not any(row.matters for row in found.differences)
    assert "no file differs by more than chance" in found.closing
    # planted: the same runs with one a fifth slower
    write_bundle(tmp_path / "c", reads(1500, 62_000, 3), patterns=verdict("consecutive", 1500))
    assert compared(tmp_path / "a", tmp_path / "c").differences[0].matters


def test_intervals_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    from penstock.analyse.traces.trace_compare import ratios_of

    draw = np.random.default_rng(11)
    inside = 0
    for _ in range(200):
        a, b = draw.exponential(1.0, 300), draw.exponential(2.0, 300)
        ratio = ratios_of(a, b, draw)["mean"]
        inside += ratio.low <= 2.0 <= ratio.high
    assert 178 <= inside <= 199  # 95 % of 200, within three standard deviations


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
    found = {(x, y): by for x, y, by in match_files(Run(a), Run(b))}
    assert found[1, 9] == "path"
    assert found[2, 8] == "identity"
    assert found[3, 7] == "name"
    assert found[4, 6] == "role"
    assert found[5, None] == "only in A"


def test_the_class_is_that_of_the_calls_whatever_else_was_judged(tmp_path: Path) -> None:
    def judged(*bases: tuple[str, str]) -> list[Row]:
        return [row | {"basis": b} for b, kind in bases for row in verdict(kind, 800)]

    rows = judged(("faults", "strided"), ("calls", "consecutive"), ("device", "random"))
    write_bundle(tmp_path / "a", reads(800, 50_000, 1), patterns=rows)
    rows = judged(("device", "random"), ("counters", "hot-set"), ("faults", "strided"))
    write_bundle(tmp_path / "b", reads(800, 50_000, 1), patterns=rows)
    (row,) = compared(tmp_path / "a", tmp_path / "b").differences
    assert row.a is not None
    assert row.b is not None
    assert (row.a["class"], row.b["class"]) == ("consecutive", "hot-set")


def test_counts_alone_compare_too(tmp_path: Path) -> None:
    for name, n in (("a", 100), ("b", 400)):
        rows = verdict("random", n)
        for row in rows:
            row["evidence"] = json.dumps({"time_ns": n * 10**6})
        path = write_bundle(tmp_path / name, reads(3, 1, 1), patterns=rows)
        (path / "io_events.parquet").unlink()
    found = compared(tmp_path / "a", tmp_path / "b")
    assert found.differences[0].ratios["time_ns"].value == 4
    assert "mean" not in found.differences[0].ratios
    assert found.differences[0].matters


def test_command_line(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", reads(200, 50_000, 1), patterns=verdict("consecutive", 200))
    write_bundle(tmp_path / "b", reads(100, 90_000, 2), paths={1: "/data/\x1b[31mred"})
    tool = Path(sys.executable).with_name("penstock")
    told = commands.run([tool, "compare", tmp_path / "a", tmp_path / "b"], capture_output=True)
    assert told.returncode == 0, told.stderr
    assert b"\x1b" not in told.stdout
    assert max(len(line) for line in told.stdout.decode().splitlines()) <= 100
    done = commands.run(
        [tool, "compare", tmp_path / "a", tmp_path / "b", "--json"], capture_output=True
    )
    document = json.loads(done.stdout)
    assert 0 < document["distance"]["distance"] < 1
    assert document["differences"][0]["matched_by"] == "role"


def test_what_is_no_trace_is_bad_input(tmp_path: Path) -> None:
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
    found = compared(tmp_path / "a", tmp_path / "b")
    assert found.differences[0].direction == "sync"
    assert "most of it: flushes of /data/x, 76.5 ms against 48.3 ms" in found.closing
    assert "153 requests against 69" in found.closing


def test_a_gain_is_not_explained_by_what_got_slower(tmp_path: Path) -> None:
    paths = {1: "/d/x", 2: "/d/y", 3: "/d/z"}
    for name, means in (("a", (900_000, 100_000, 900_000)), ("b", (600_000, 500_000, 600_000))):
        rows = [r for n, ns in enumerate(means, 1) for r in reads(300, ns, n, file_id=n)]
        patterns = [v for n in paths for v in verdict("consecutive", 300, n)]
        write_bundle(tmp_path / name, rows, paths=paths, patterns=patterns)
    found = compared(tmp_path / "a", tmp_path / "b")
    assert found.differences[0].path == "/d/y"  # the largest change, for the worse
    assert "reads of /d/y" not in found.closing


def test_a_path_is_one_row_however_often_its_file_is_made_again(tmp_path: Path) -> None:
    for name, made in (("a", 50), ("b", 20)):
        paths = {1: "/d/t.db"} | dict.fromkeys(range(2, made + 2), "/d/t.db-journal")
        rows = reads(200, 50_000, 1) + [
            event(10_000_000 * n + 1, op, file_id=n, latency_ns=900_000)
            for n in range(2, made + 2)
            for op in ("pwrite64", "fdatasync")
        ]
        patterns = [v for n in paths for v in verdict("consecutive", 200, n)]
        write_bundle(tmp_path / name, rows, paths=paths, patterns=patterns)
    found = compared(tmp_path / "a", tmp_path / "b")
    rows_of = {(row.path, row.direction): row for row in found.differences}
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


def test_what_differs_in_its_number_alone_can_be_written_as_json(tmp_path: Path) -> None:
    write_bundle(tmp_path / "a", reads(100, 50_000, 1), patterns=verdict("consecutive", 100))
    write_bundle(tmp_path / "b", reads(900, 50_000, 2), patterns=verdict("consecutive", 900))
    told = json.loads(json.dumps(compared(tmp_path / "a", tmp_path / "b").document()))
    assert [row["matters"] for row in told["differences"]] == [True]


def gated(a: Path, b: Path, *gates: str) -> Any:
    line = [sys.executable, "-m", "penstock", "compare", str(a), str(b)]
    for gate in gates:
        line += ["--fail-on", gate]
    done = commands.run([*line, "--json"], capture_output=True, text=True)
    document = json.loads(done.stdout)
    return (
        done.returncode,
        [(g["gate"], g["failed"]) for g in document.get("gates", [])],
        done.stdout + done.stderr,
    )


def test_gates_on_requests_bytes_and_flushes(tmp_path: Path) -> None:
    """A commit that flushes three times where it flushed once is what a gate is for."""
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
    # from none to some is more than any share
    assert gated(a, b, "writes > 1000%")[0] == 0
    status, _, said = gated(a, b, "flushes@*.sst > 5%")
    assert status == 2
    assert "'*.sst'" in said
