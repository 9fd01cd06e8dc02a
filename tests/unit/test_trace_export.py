"""Exports are read by independent readers, without code of the writers; row counts are equal."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.archive.traces.trace_export import export
from penstock.errors import BadInput
from tests.examples.trace import NUMBERS, START_NS, WAYS, event, random_rows, write_bundle
from tests.unit.perfetto_reader import PerfettoTrace

N = 1009  # a prime
ODD = 'a "b"\\\n\t€ \x7f end'


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    return write_bundle(folder / "t", random_rows(N), paths={1: "/data/x", 2: ODD}, lost=3)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return random_rows(N)


def slices_of(trace: PerfettoTrace) -> list[dict[str, Any]]:
    return [s for s in trace.slices if s["category"] in ("read", "write", "sync", "meta")]


def test_perfetto_has_every_event(bundle: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    written = export(bundle, "perfetto", tmp_path / "o.pftrace")
    trace = PerfettoTrace((tmp_path / "o.pftrace").read_bytes())
    actual = sorted(
        (s["begin"], s["name"], s["offset_bytes"], s["size_bytes"], s["end"] - s["begin"])
        for s in slices_of(trace)
    )
    expected = sorted(
        (r["t_ns"], r["op"], r["offset_bytes"], r["size_bytes"], r["latency_ns"]) for r in rows
    )
    assert actual == expected
    assert written["events"] == N
    assert trace.clocks == {3: START_NS, 1: 1_700_000_000 * 10**9, 6: START_NS + 7}
    assert {s["file"] for s in slices_of(trace)} == {b"/data/x", ODD.encode()}


def test_perfetto_threads_under_processes_and_requests_on_lanes(
    bundle: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    export(bundle, "perfetto", tmp_path / "o.pftrace")
    trace = PerfettoTrace((tmp_path / "o.pftrace").read_bytes())
    kinds = {number: track["kind"] for number, track in trace.tracks.items()}
    for track in trace.tracks.values():
        if track["kind"] == "thread":
            assert trace.tracks[track["parent"]]["pid"] == track["pid"]
    lanes: dict[int, list[tuple[int, int]]] = {}
    for s in slices_of(trace):
        if s["name"] == "aio_pread":
            assert kinds[s["track"]] == "track"
            lanes.setdefault(s["track"], []).append((s["begin"], s["end"]))
        else:
            assert kinds[s["track"]] == "thread"
    for spans in lanes.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    names = {track["name"] for track in trace.tracks.values() if track["kind"] == "counter"}
    assert names == {"read throughput", "write throughput", "operations under way"}
    # the sum of operations in progress times bin length equals the time spent, apart from rounding
    (under_way,) = (n for n, t in trace.tracks.items() if t["name"] == "operations under way")
    samples = sorted((t, v) for track, t, v in trace.counters if track == under_way)
    spent = sum(v * (b - t) for (t, v), (b, _) in itertools.pairwise(samples))
    assert spent == pytest.approx(sum(r["latency_ns"] for r in rows), rel=1e-9)


def test_perfetto_marks_losses(bundle: Path, tmp_path: Path) -> None:
    export(bundle, "perfetto", tmp_path / "o.pftrace")
    trace = PerfettoTrace((tmp_path / "o.pftrace").read_bytes())
    (mark,) = [s for s in trace.slices if s["category"] == "loss"]
    assert mark["name"] == "3 events lost"
    assert mark["events"] == 3


def test_the_reader_detects_unknown_fields(bundle: Path, tmp_path: Path) -> None:
    """Planted: a packet with a field of number 1999."""
    export(bundle, "perfetto", tmp_path / "o.pftrace")
    planted = (tmp_path / "o.pftrace").read_bytes() + b"\x0a\x03\xf8\x7c\x01"
    with pytest.raises(AssertionError, match=r"TracePacket\.1999"):
        PerfettoTrace(planted)


def test_perfetto_parts_are_independent_and_complete(bundle: Path, tmp_path: Path) -> None:
    written = export(bundle, "perfetto", tmp_path / "o.pftrace", part_bytes=20_000)
    assert len(written["parts"]) > 3
    total = 0
    for name in written["parts"]:
        path = tmp_path / name
        assert path.stat().st_size < 30_000
        total += len(slices_of(PerfettoTrace(path.read_bytes())))
    assert total == N


def test_perfetto_flows_lead_from_a_call_to_its_request(tmp_path: Path) -> None:
    def request(t_ns: int, tid: int, **columns: Any) -> dict[str, Any]:
        t = START_NS + t_ns
        row = {"t_ns": t, "done_ns": t + 100, "op": "read", "disk_id": "d"}
        return row | {"offset_bytes": 0, "size_bytes": 4096, "tid": tid} | columns

    rows = [event(0, tid=1, pid=1), event(50_000, tid=1, pid=1), event(60_000, tid=2, pid=1)]
    requests = [
        request(5_000, 1),  # within the first call
        request(20_000, 1),  # between calls: of no call
        request(52_000, 1),
        request(53_000, 1, done_ns=START_NS + 90_000),
        request(62_000, 3),  # of a thread without calls
    ]
    path = write_bundle(tmp_path / "t", rows, requests=requests)
    written = export(path, "perfetto", tmp_path / "o.pftrace")
    assert (written["requests"], written["flows"]) == (5, 3)
    trace = PerfettoTrace((tmp_path / "o.pftrace").read_bytes())
    calls = {s["begin"] - START_NS: s["flows"] for s in slices_of(trace)}
    device = [s for s in trace.slices if s["category"] == "device"]
    target = {flow: s["begin"] - START_NS for s in device for flow in s["flows"]}
    assert {t: [target[f] for f in flows] for t, flows in calls.items()} == {
        0: [5_000],
        50_000: [52_000, 53_000],
        60_000: [],
    }


class Prv:
    """A reader of .prv from the format's description (header, then records of kinds 1, 2 and 3)."""

    HEADER = re.compile(
        r"#Paraver \((\d\d)/(\d\d)/(\d\d) at (\d\d):(\d\d)\):(\d+)(_ns)?:(\d+)\(([\d,]+)\):(\d+):(.+)"
    )

    def __init__(self, path: Path):
        lines = path.read_text().splitlines()
        header = self.HEADER.fullmatch(lines[0])
        assert header, lines[0]
        self.end, self.unit = int(header[6]), header[7]
        self.tasks = [
            tuple(int(n) for n in task.split(":"))
            for task in re.search(r"\((.*)\)", header[11])[1].split(",")  # type: ignore[index]
        ]
        assert int(header[11].split("(")[0]) == len(self.tasks)
        self.events: list[tuple[int, int, int, dict[int, int]]] = []
        self.states = []
        last = 0
        for line in lines[1:]:
            kind, _cpu, appl, task, thread, *rest = (int(n) for n in line.split(":"))
            assert appl == 1
            assert 1 <= thread <= self.tasks[task - 1][0]
            assert last <= rest[0] <= self.end
            last = rest[0]
            if kind == 1:
                begin, end, state = rest
                assert begin <= end <= self.end
                self.states.append((task, thread, begin, end, state))
            else:
                assert kind == 2
                assert len(rest) % 2 == 1
                self.events.append(
                    (task, thread, rest[0], dict(zip(rest[1::2], rest[2::2], strict=True)))
                )


def test_paraver(bundle: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    written = export(bundle, "paraver", tmp_path / "o.prv")
    prv = Prv(tmp_path / "o.prv")
    assert prv.unit == "_ns"
    assert prv.end == max(r["t_ns"] + r["latency_ns"] for r in rows) - START_NS
    assert len(prv.events) == N == written["events"]
    pcf = (tmp_path / "o.pcf").read_text()
    types = {name: int(n) for n, name in re.findall(r"EVENT_TYPE\n\d+\s+(\d+)\s+(.+)", pcf)}
    values = dict(re.findall(r"^(\d+) {6}([a-z_0-9]+)$", pcf, re.M))
    actual = sorted(
        (
            t,
            values[str(e[types["I/O operation"]])],
            e[types["Offset (bytes)"]],
            e[types["Latency (ns)"]],
        )
        for _, _, t, e in prv.events
    )
    assert actual == sorted(
        (r["t_ns"] - START_NS, r["op"], r["offset_bytes"], r["latency_ns"]) for r in rows
    )
    for task, thread in {(s[0], s[1]) for s in prv.states}:
        own = sorted(s[2:4] for s in prv.states if s[:2] == (task, thread))
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(own))
    row = (tmp_path / "o.row").read_text()
    for level, size in re.findall(r"LEVEL (\w+) SIZE (\d+)", row):
        block = row.split(f"LEVEL {level} SIZE {size}\n")[1].split("\n\n")[0].splitlines()
        assert len(block) == int(size), level
    assert sum(n for n, _ in prv.tasks) == 3


def test_paraver_refuses_rows_out_of_order(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "t", [event(9000), event(100)])
    with pytest.raises(Exception, match="out of order"):
        export(path, "paraver", tmp_path / "o.prv")
    assert not list(tmp_path.glob("o.*"))


def test_json_and_jsonl(bundle: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    export(bundle, "json", tmp_path / "o.json")
    export(bundle, "jsonl", tmp_path / "o.jsonl")
    document = json.loads((tmp_path / "o.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert document["events"] == lines
    assert document["events_lost"] == 3
    assert len(lines) == N
    paths = {1: "/data/x", 2: ODD}
    for line, row in zip(lines, rows, strict=True):
        assert line.pop("path") == paths[row["file_id"]]
        assert line == row


def test_a_dropped_event_is_detected(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = write_bundle(tmp_path / "t", rows[:500] + rows[501:], paths={1: "/data/x", 2: ODD})
    export(path, "jsonl", tmp_path / "o.jsonl")
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) != N


def test_fio_logs_have_each_thread_in_its_order(
    bundle: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    written = export(bundle, "fio", tmp_path / "o")
    replayed = 0
    for thread in written["threads"]:
        lines = (tmp_path / "o" / thread["log"]).read_text().splitlines()
        assert lines[0] == "fio version 3 iolog"
        added: set[str] = set()
        calls, last = [], 0
        for line in lines[1:]:
            us, name, action, *numbers = line.split(" ")
            assert last <= int(us)
            last = int(us)
            assert action != "wait"
            if action == "add":
                added.add(name)
            elif not numbers:
                assert action in ("open", "close")
            else:
                assert name in added
                calls.append((int(us), name, action, *map(int, numbers)))
        expected = [
            (
                (r["t_ns"] - START_NS) // 1000,
                f"file-{r['file_id']:06}",
                "sync" if r["op"] == "fsync" else WAYS[r["op"]],
                r["offset_bytes"],
                r["done_bytes"],
            )
            for r in rows
            if r["tid"] == thread["tid"] and r["errno"] == 0 and r["op"] != "open"
        ]
        assert calls == expected
        replayed += len(calls)
    assert replayed + sum(written["skipped"].values()) == N


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_fio_reads_its_logs(tmp_path: Path) -> None:
    rows = [event(1000 * n, "pread64", offset_bytes=4096 * (n * 7 % 101)) for n in range(101)]
    rows += [
        event(200_000 + 1000 * n, "write", tid=101, offset_bytes=512 * n, size_bytes=512)
        for n in range(53)
    ]
    rows += [event(300_000, "fsync", tid=101, size_bytes=0)]
    path = write_bundle(tmp_path / "t", rows)
    export(path, "fio", tmp_path / "o")
    for job in ("files.fio", "job.fio"):
        subprocess.run(["fio", job], cwd=tmp_path / "o", check=True, capture_output=True)
    result = subprocess.run(
        ["fio", "replay.fio", "--output-format=json"],
        cwd=tmp_path / "o",
        check=True,
        capture_output=True,
    )
    jobs = json.loads(result.stdout)["jobs"]
    assert [(j["read"]["total_ios"], j["write"]["total_ios"], j["error"]) for j in jobs] == [
        (101, 0, 0),
        (0, 53, 0),
    ]


def test_fio_job_matches_the_events(tmp_path: Path) -> None:
    rows = [event(10_000 * n, "pread64" if n % 4 else "write", size_bytes=4096 if n % 2 else 8192)
            for n in range(400)]  # fmt: skip
    verdict = {"file_id": 1, "direction": "read", "tid": None, "class": "random", "evidence": "{}"}
    path = write_bundle(tmp_path / "t", rows, patterns=[verdict])
    export(path, "fio", tmp_path / "o")
    job = dict(
        line.split("=", 1)
        for line in (tmp_path / "o" / "job.fio").read_text().splitlines()
        if "=" in line and not line.startswith(";")
    )
    assert job["rw"] == "randrw"
    assert job["rwmixread"] == "75"
    assert job["bssplit"] == "4096/67:8192/33,8192/100"
    assert job["random_distribution"] == "random"
    assert (job["iodepth"], job["numjobs"]) == ("1", "1")
    seconds = 399 * 10_000 / 1e9
    read_bytes = 200 * 4096 + 100 * 8192
    assert job["rate"] == f"{int(read_bytes / seconds)},{int(100 * 8192 / seconds)}"


def test_fio_job_has_the_order_of_the_calls_not_that_of_the_device(tmp_path: Path) -> None:
    rows = [event(10_000 * n, offset_bytes=4096 * n) for n in range(100)]
    verdict = {"file_id": 1, "direction": "read", "tid": None, "evidence": "{}"}
    calls = verdict | {"basis": "calls", "class": "consecutive"}
    device = verdict | {"basis": "device", "class": "random"}
    path = write_bundle(tmp_path / "t", rows, patterns=[calls, device])
    export(path, "fio", tmp_path / "o")
    assert "rw=read" in (tmp_path / "o" / "job.fio").read_text().splitlines()


def test_missing_and_damaged_bundles_are_bad_input(tmp_path: Path, bundle: Path) -> None:
    with pytest.raises(BadInput, match="not a bundle"):
        export(tmp_path, "json", tmp_path / "o")
    with pytest.raises(BadInput, match="found format 'xml'"):
        export(bundle, "xml", tmp_path / "o")
    broken = tmp_path / "broken"
    shutil.copytree(bundle, broken)
    data = (broken / "io_events.parquet").read_bytes()
    (broken / "io_events.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadInput, match=r"io_events\.parquet: cannot be read"):
        export(broken, "json", tmp_path / "o")
    (broken / "io_events.parquet").unlink()
    with pytest.raises(BadInput, match="--mode trace"):
        export(broken, "json", tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_operations_have_numbers() -> None:
    assert len(NUMBERS) == len(set(NUMBERS.values())) > 40


@pytest.mark.parametrize("form", ["json", "jsonl", "perfetto", "paraver", "fio"])
def test_a_command_with_an_argument_that_is_not_utf_8(
    bundle: Path, tmp_path: Path, form: str
) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(bundle, odd)
    manifest = json.loads((odd / "manifest.json").read_text())
    manifest["command"] = ["cat", "/data/\udcff"]
    (odd / "manifest.json").write_text(json.dumps(manifest))
    assert export(odd, form, tmp_path / "out")["events"] > 0


def _log(writes: int, flush: str, every: int, files: int = 1) -> list[dict[str, Any]]:
    """Writes of 4 KiB with a flush after every `every`; the path is recreated `files` − 1 times."""
    rows = []
    for n in range(writes):
        file_id = 1 + n * files // writes
        rows.append(event(100_000 * n, "pwrite64", offset_bytes=4096 * n, file_id=file_id))
        if n % every == every - 1:
            rows.append(event(100_000 * n + 50_000, flush, file_id=file_id, size_bytes=0))
    return rows


def _options(job: Path) -> dict[str, str]:
    lines = [line for line in job.read_text().splitlines() if "=" in line and line[0] != ";"]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(("flush", "every"), [("fsync", 1), ("fdatasync", 10), ("aio_fsync", 4)])
def test_fio_job_flushes_as_often_as_the_program(tmp_path: Path, flush: str, every: int) -> None:
    option = {"aio_fsync": "fsync"}.get(flush, flush)
    export(write_bundle(tmp_path / "t", _log(200, flush, every)), "fio", tmp_path / "o")
    job = _options(tmp_path / "o" / "job.fio")
    assert job[option] == str(every)
    assert {"fsync", "fdatasync", "sync"} & set(job) == {option}
    if shutil.which("fio"):
        argv = ["fio", "job.fio", "--output-format=json"]
        result = subprocess.run(argv, cwd=tmp_path / "o", check=True, capture_output=True)
        (job_report,) = json.loads(result.stdout)["jobs"]
        assert job_report["write"]["total_ios"] == 200
        if option == "fsync":  # fio counts no fdatasync
            assert abs(job_report["sync"]["total_ios"] - 200 / every) <= 1


def test_fio_job_syncs_only_synchronous_writes(tmp_path: Path) -> None:
    rows = [event(100_000 * n, "pwrite64", offset_bytes=4096 * n, flags=4) for n in range(50)]
    export(write_bundle(tmp_path / "s", rows), "fio", tmp_path / "o")
    assert _options(tmp_path / "o" / "job.fio")["sync"] == "1"
    # planted: the same writes without the flag, and a failed flush
    failed = [event(9_000_000, "fsync", errno=5, size_bytes=0)]
    rows = [row | {"flags": 0} for row in rows] + failed
    export(write_bundle(tmp_path / "n", rows), "fio", tmp_path / "p")
    assert not {"fsync", "fdatasync", "sync"} & set(_options(tmp_path / "p" / "job.fio"))


def test_fio_job_has_one_job_per_path(tmp_path: Path) -> None:
    paths = dict.fromkeys(range(1, 51), "/d/t.db-journal")
    path = write_bundle(tmp_path / "t", _log(200, "fsync", 2, files=50), paths=paths)
    export(path, "fio", tmp_path / "o")
    text = (tmp_path / "o" / "job.fio").read_text()
    assert text.count("[file-") == 1
    assert "its path was made 50 times" in text
    assert _options(tmp_path / "o" / "job.fio")["io_size"] == str(200 * 4096)
    # the calls stay separate for each file
    assert (tmp_path / "o" / "files.fio").read_text().count("[file-") == 50
