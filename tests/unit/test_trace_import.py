"""Traces of other tools become bundles: their contents, their gaps, and malformed files."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.traces.trace_export import export
from penstock.errors import BadInput
from penstock.observe.trace.capture.events import EVENT, NUMBERS
from penstock.observe.trace.recordings.bundle import write_recording
from penstock.observe.trace.recordings.importers import import_trace
from penstock.observe.trace.recordings.recording import Recording
from penstock.observe.trace.recordings.summary import as_document, show
from penstock.parts.interchange import trace_readers
from tests.examples.trace import event, random_rows, write_bundle

# from linux/blktrace_api.h: categories in the upper half of `action`, the action in the lower
READ, WRITE, QUEUE, ISSUE, COMPLETE, NOTIFY = 1, 2, 1 << 4, 1 << 6, 1 << 7, 1 << 10
SDA = 8 << 20


def record(
    sequence: int,
    time: int,
    sector: int,
    size: int,
    action: int,
    pid: int = 0,
    cpu: int = 0,
    payload: bytes = b"",
    order: str = "<",
    magic: int = 0x65617407,
) -> bytes:
    head = struct.pack(
        order + "IIQQIIIIIHH",
        *(magic, sequence, time, sector, size, action, pid, SDA, cpu, 0, len(payload)),
    )
    return head + payload


def blktrace(folder: Path, n: int, order: str = "<") -> list[dict[str, int]]:
    """Two processors' files of n requests: queued by pid 70, issued by a worker, completed on another CPU."""
    rng = random.Random(5)
    parts: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}
    sequence = [0, 0]

    def put(cpu: int, time: int, *fields: Any, **options: Any) -> None:
        sequence[cpu] += 1
        parts[cpu].append(
            (time, record(sequence[cpu], time, *fields, cpu=cpu, order=order, **options))
        )

    note = (NOTIFY << 16) | 0
    put(0, 0, 0, 0, note, pid=70, payload=b"reader\0\0")
    requests = []
    for i in range(n):
        time = 1000 + 50_000 * i
        direction = WRITE if rng.random() < 0.3 else READ
        sector, size = rng.randrange(0, 1 << 20) * 8, 4096 * rng.randint(1, 4)
        put(i % 2, time, sector, size, (QUEUE | direction) << 16 | 1, pid=70)
        put(0, time + 500, sector, size, (ISSUE | direction) << 16 | 7, pid=9)
        put(1, time + 20_000 + i, sector, size, (COMPLETE | direction) << 16 | 8)
        requests.append(
            {
                "t_ns": time + 500,
                "offset_bytes": sector * 512,
                "size_bytes": size,
                "latency_ns": 19_500 + i,
                "write": int(direction == WRITE),
            }
        )
    for cpu, records in parts.items():
        records.sort(key=lambda pair: pair[0])
        (folder / f"sda.blktrace.{cpu}").write_bytes(b"".join(data for _, data in records))
    return requests


@pytest.mark.parametrize("order", ["<", ">"])
def test_blktrace_requests_in_order_of_issue(tmp_path: Path, order: str) -> None:
    expected = blktrace(tmp_path, 211, order)
    trace = import_trace([tmp_path / "sda"], tmp_path / "b")
    assert (trace.counts["seen"], trace.counts["kept"], trace.counts["lost"]) == (211, 211, 0)
    bundle = Bundle.open(tmp_path / "b")
    events = bundle.table("io_events").to_pylist()
    requests_read = [
        {name: row[name] for name in ("t_ns", "offset_bytes", "size_bytes", "latency_ns")}
        | {"write": int(row["op"] == "device_write")}
        for row in events
    ]
    assert requests_read == expected
    assert {row["tid"] for row in events} == {
        70
    }  # the process that queued it, not the worker that issued it
    assert bundle.table("threads")["program"].to_pylist() == ["reader"]
    assert bundle.table("files")["path"].to_pylist() == ["device 8:0"]
    requests = bundle.table("device_requests").to_pylist()
    assert [r["wait_ns"] for r in requests] == [500] * 211
    assert [r["done_ns"] - r["t_ns"] for r in requests] == [20_000 + i for i in range(211)]
    assert pc.unique(bundle.table("patterns")["basis"]).to_pylist() == ["device"]
    assert "page cache let through" in bundle.manifest["closing"]
    assert len(bundle.manifest["source"]["not_known"]) == 3


def test_a_name_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    blktrace(tmp_path, 40)
    for file in tmp_path.glob("sda.blktrace.*"):
        file.rename(tmp_path / file.name.replace("sda", "run[1]"))
    (tmp_path / "run1.blktrace.0").write_bytes(b"of another run")
    assert [p.name for p in trace_readers.blktrace.parts(tmp_path / "run[1]")] == [
        "run[1].blktrace.0",
        "run[1].blktrace.1",
    ]


@pytest.mark.skipif(shutil.which("blkparse") is None, reason="blktrace is not installed")
def test_blktrace_agrees_with_blkparse(tmp_path: Path) -> None:
    blktrace(tmp_path, 101)
    result = subprocess.run(
        ["blkparse", "-i", "sda", "-f", "%a %d %S %n %T %t\n", "-d", "dump"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    issued = re.findall(r"^\s*D (\w+) (\d+) (\d+) (\d+) (\d+)$", result.stdout, re.M)
    assert len(issued) == 101
    # blkparse counts from the first request, which was queued 500 ns before its issue, in its dump as well
    expected = [
        (int(sector) * 512, int(n) * 512, int(s) * 10**9 + int(ns), "W" in direction)
        for direction, sector, n, s, ns in issued
    ]
    for number, source in enumerate(("sda", "dump")):
        import_trace([tmp_path / source], tmp_path / f"b{number}")
        rows = Bundle.open(tmp_path / f"b{number}").table("io_events").to_pylist()
        t0 = rows[0]["t_ns"] - 500
        actual = [
            (r["offset_bytes"], r["size_bytes"], r["t_ns"] - t0, r["direction"] == "write")
            for r in rows
        ]
        assert actual == expected


def test_blktrace_without_issues_uses_queue_times(tmp_path: Path) -> None:
    records = [record(n, n * 1000, 8 * n, 4096, (QUEUE | READ) << 16 | 1) for n in range(1, 41)]
    (tmp_path / "dm.blktrace.0").write_bytes(b"".join(records))
    trace = import_trace([tmp_path / "dm"], tmp_path / "b")
    assert trace.verdicts[0]["together"]["class"] == "consecutive"
    assert any("queued (Q)" in line for line in trace.source["about"])
    assert any("40 requests have no completion" in line for line in trace.source["about"])


def test_the_empty_file_of_an_idle_processor_is_skipped(tmp_path: Path) -> None:
    blktrace(tmp_path, 40)
    (tmp_path / "sda.blktrace.2").write_bytes(b"")
    files = sorted(tmp_path.glob("sda.blktrace.*"))
    for number, sources in enumerate(([tmp_path / "sda"], files)):
        trace = import_trace(sources, tmp_path / f"b{number}")
        assert trace.counts["kept"] == 40
        assert "sda.blktrace.2: empty, skipped" in trace.source["about"]
    with pytest.raises(BadInput, match="found an empty file"):
        import_trace([tmp_path / "sda.blktrace.2"], tmp_path / "c")


def test_the_missing_file_of_a_processor_is_noted(tmp_path: Path) -> None:
    blktrace(tmp_path, 40)
    (tmp_path / "sda.blktrace.1").rename(tmp_path / "sda.blktrace.3")
    (tmp_path / "sda.blktrace.2").write_bytes(b"")
    note = "without the files of 1 processors (the first is 1), whose requests are missing"
    trace = import_trace([tmp_path / "sda"], tmp_path / "b")
    assert f"sda: {note}" in trace.source["about"]
    blktrace(tmp_path, 40)
    (tmp_path / "sda.blktrace.3").unlink()
    trace = import_trace([tmp_path / "sda"], tmp_path / "c")
    assert not [line for line in trace.source["about"] if "processors" in line]
    trace = import_trace([tmp_path / "sda.blktrace.1"], tmp_path / "d")
    assert any("(the first is 0)" in line for line in trace.source["about"])


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    """Fails if the requests of the file count twice."""
    blktrace(tmp_path, 40)
    with pytest.raises(BadInput, match=r"sda\.blktrace\.1: found it several times; expected each"):
        import_trace([tmp_path / "sda", tmp_path / "sda.blktrace.1"], tmp_path / "b")


REQUEUE, SPLIT = 6, 13


def requests_of(folder: Path, *records: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """Import these records and 40 ordinary requests at far offsets; return the requests of the records."""
    rest = [
        record(
            900 + 3 * n + i,
            10**9 + n * 1000 + 10 * i,
            10**6 + 8 * n,
            4096,
            (category | READ) << 16 | action,
        )
        for n in range(40)
        for i, (category, action) in enumerate(((QUEUE, 1), (ISSUE, 7), (COMPLETE, 8)))
    ]
    (folder / "sda.blktrace.0").write_bytes(b"".join([*records, *rest]))
    trace = import_trace([folder / "sda"], folder / "b")
    table = Bundle.open(folder / "b").table("device_requests").to_pylist()
    return trace, [row for row in table if row["t_ns"] < 10**9]


def test_a_requeued_request_counts_once_from_its_last_issue(tmp_path: Path) -> None:
    trace, rows = requests_of(
        tmp_path,
        record(1, 1000, 80, 4096, (QUEUE | READ) << 16 | 1, pid=70),
        record(2, 2000, 80, 4096, (ISSUE | READ) << 16 | 7, pid=9),
        record(3, 3000, 80, 4096, (READ | 1 << 5) << 16 | REQUEUE),
        record(4, 5000, 80, 4096, (ISSUE | READ) << 16 | 7, pid=9),
        record(5, 9000, 80, 4096, (COMPLETE | READ) << 16 | 8),
    )
    assert trace.counts == {"seen": 41, "kept": 41, "filtered": 0, "lost": 0}
    (row,) = rows
    assert (row["t_ns"], row["wait_ns"], row["done_ns"]) == (1000, 4000, 9000)
    assert any("1 requests were handed back" in line for line in trace.source["about"])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_request_that_is_completed_in_parts_ends_with_the_last(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    parts = [(80, 4096), (88, 4096), (96, 8192)]
    completions = [
        record(3 + n, 4000 + 1000 * n, *parts[part], (COMPLETE | READ) << 16 | 8)
        for n, part in enumerate(order)
    ]
    trace, rows = requests_of(
        tmp_path,
        record(1, 1000, 80, 16384, (QUEUE | READ) << 16 | 1, pid=70),
        record(2, 2000, 80, 16384, (ISSUE | READ) << 16 | 7, pid=9),
        *completions,
    )
    assert trace.counts["kept"] == 41
    (row,) = rows
    assert (row["t_ns"], row["done_ns"], row["size_bytes"]) == (1000, 6000, 16384)


def test_parts_of_a_split_request_have_its_queue_time(tmp_path: Path) -> None:
    trace, rows = requests_of(
        tmp_path,
        record(1, 1000, 80, 12288, (QUEUE | READ) << 16 | 1, pid=70),
        record(2, 1100, 80, 12288, READ << 16 | SPLIT, pid=70, payload=struct.pack(">Q", 88)),
        record(3, 2000, 80, 4096, (ISSUE | READ) << 16 | 7, pid=9),
        record(4, 2500, 88, 8192, (ISSUE | READ) << 16 | 7, pid=9),
        record(5, 4000, 80, 4096, (COMPLETE | READ) << 16 | 8),
        record(6, 7000, 88, 8192, (COMPLETE | READ) << 16 | 8),
    )
    assert trace.counts["kept"] == 42
    assert [(r["t_ns"], r["wait_ns"], r["done_ns"]) for r in rows] == [
        (1000, 1000, 4000),
        (1000, 1500, 7000),
    ]


def test_a_split_request_of_a_device_that_remaps_ends_with_its_last_part(tmp_path: Path) -> None:
    records = [record(n, 10 * n, 800 + 8 * n, 4096, (QUEUE | READ) << 16 | 1) for n in range(3, 43)]
    records[:0] = [
        record(1, 5, 80, 8192, (QUEUE | READ) << 16 | 1),
        record(2, 6, 80, 4096, READ << 16 | SPLIT, payload=struct.pack(">Q", 88)),
    ]
    records += [
        record(50, 1000, 80, 4096, (COMPLETE | READ) << 16 | 8),
        record(51, 3000, 88, 4096, (COMPLETE | READ) << 16 | 8),
    ]
    (tmp_path / "dm.blktrace.0").write_bytes(b"".join(records))
    import_trace([tmp_path / "dm"], tmp_path / "b")
    first = Bundle.open(tmp_path / "b").table("device_requests").to_pylist()[0]
    assert (first["t_ns"], first["done_ns"]) == (5, 3000)


def test_blktrace_passthrough_commands_are_filtered(tmp_path: Path) -> None:
    passed = 1 << 9
    records = [
        record(3 * n + i, n * 1000 + 10 * i, 8 * n, 4096, (direction | READ) << 16 | action_code)
        for n in range(1, 41)
        for i, (direction, action_code) in enumerate(((QUEUE, 1), (ISSUE, 7), (COMPLETE, 8)))
    ]
    # inquiries as of smartctl: no offset, 512 bytes
    for n, direction in enumerate((READ, WRITE, READ)):
        for action_code, category in ((7, ISSUE), (8, COMPLETE)):
            action = (direction | passed | category) << 16 | action_code
            records.append(record(500 + n, 90_000 + 10 * n, 0, 512, action))
    (tmp_path / "sda.blktrace.0").write_bytes(b"".join(records))
    trace = import_trace([tmp_path / "sda"], tmp_path / "b")
    assert trace.counts == {"seen": 43, "kept": 40, "filtered": 3, "lost": 0}
    assert [row["direction"] for row in trace.verdicts] == ["read"]
    assert trace.verdicts[0]["together"]["class"] == "consecutive"


DXT = """# darshan log version: 3.41
# exe: ./app
# DXT, file_id: 111, file_name: /scratch/out file.dat
# DXT, rank: 0, hostname: n1
# DXT, write_count: 2, read_count: 1
# DXT, mnt_pt: /, fs_type: ext4
# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)
 X_POSIX       0  write        0               0          4096      0.0010      0.0020
 X_POSIX       0  write        1            4096          4096      0.0020      0.0025  [OST: 3]
 X_POSIX       0   read        0               0           512      0.0040      0.0041

# DXT, file_id: 111, file_name: /scratch/out file.dat
# DXT, rank: 3, hostname: n2
# DXT, write_count: 1, read_count: 0
# DXT, mnt_pt: /, fs_type: ext4
# Module    Rank  Wt/Rd  Segment          Offset       Length    Start(s)      End(s)
 X_POSIX       3  write        0            8192          4096      0.0015      0.0022
# DXT, file_id: 222, file_name: /scratch/shared
# DXT, rank: -1, hostname: n2
# DXT, write_count: 0, read_count: 1
 X_MPIIO      -1   read        0               0          4096      0.0100      0.0110
"""


def test_darshan_times_before_the_start_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(DXT.replace("0.0010 ", "-0.0004 "))
    trace = import_trace([tmp_path / "log.txt"], tmp_path / "b")
    rows = Bundle.open(tmp_path / "b").table("io_events").to_pylist()
    assert [r["t_ns"] for r in rows] == [0, 1_900_000, 2_400_000, 4_400_000]
    assert rows[0]["latency_ns"] == 2_400_000
    assert any("0.0004 s before the start of the job" in line for line in trace.source["about"])


DARSHAN_PARSER = """# darshan log version: 3.41
# exe: ./app

#<module>\t<rank>\t<record id>\t<counter>\t<value>\t<file name>\t<mount pt>\t<fs type>
POSIX\t-1\t14734109647742566553\tPOSIX_OPENS\t4\t/tmp/x\t/\text4
"""


def test_darshan_segments_become_events(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(DXT)
    trace = import_trace([tmp_path / "log.txt"], tmp_path / "b")
    assert (trace.counts["seen"], trace.counts["kept"], trace.counts["filtered"]) == (5, 4, 1)
    rows = Bundle.open(tmp_path / "b").table("io_events").to_pylist()
    calls = [
        (r["t_ns"], r["direction"], r["offset_bytes"], r["done_bytes"], r["latency_ns"], r["tid"])
        for r in rows
    ]
    assert calls == [
        (1_000_000, "write", 0, 4096, 1_000_000, 1),
        (1_500_000, "write", 8192, 4096, 700_000, 4),
        (2_000_000, "write", 4096, 4096, 500_000, 1),
        (4_000_000, "read", 0, 512, 100_000, 1),
    ]
    bundle = Bundle.open(tmp_path / "b")
    assert bundle.table("files")["path"].to_pylist()[0] == "/scratch/out file.dat"
    assert bundle.table("threads")["program"].to_pylist() == ["rank 0", "rank 3"]


def test_an_incomplete_log_of_darshan_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = (
        "\n# *WARNING*: The DXT_POSIX module contains incomplete data!\n#    This happens when a\n"
    )
    (tmp_path / "log.txt").write_text(DXT.replace("\n", warning, 1))
    trace = import_trace([tmp_path / "log.txt"], tmp_path / "b")
    note = "module DXT_POSIX: incomplete, since Darshan ran out of memory for it"
    assert any(note in line for line in trace.source["about"])
    show(trace)
    assert note in " ".join(capsys.readouterr().out.split())


def test_several_logs_of_darshan_are_refused(tmp_path: Path) -> None:
    """Every log begins at 0 and has its own rank 0, so that they cannot be joined."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(DXT)
    with pytest.raises(BadInput, match=r"b\.txt: found a second log; expected one"):
        import_trace([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_segments_of_mpi_io_without_offsets_are_filtered(tmp_path: Path) -> None:
    """Version 1 of the MPI-IO module prints -1 for an unknown offset."""
    text = DXT.replace(
        "X_MPIIO      -1   read        0               0          4096", "X_MPIIO -1 read 0 -1 -1"
    )
    assert " -1 -1 " in text
    (tmp_path / "log.txt").write_text(text)
    trace = import_trace([tmp_path / "log.txt"], tmp_path / "b")
    assert (trace.counts["seen"], trace.counts["kept"], trace.counts["filtered"]) == (5, 4, 1)
    (tmp_path / "bad.txt").write_text(DXT.replace("8192          4096", "-1            4096"))
    with pytest.raises(BadInput, match=r"bad.txt:\d+: .*not negative"):
        import_trace([tmp_path / "bad.txt"], tmp_path / "c")


def test_an_exported_log_can_be_imported(tmp_path: Path) -> None:
    rows = random_rows(307)
    write_bundle(tmp_path / "t", rows, paths={1: "/a", 2: "/b"})
    written = export(tmp_path / "t", "fio", tmp_path / "o")
    logs = [tmp_path / "o" / thread["log"] for thread in written["threads"]]
    trace = import_trace(logs, tmp_path / "b")
    imported = Bundle.open(tmp_path / "b").table("io_events").to_pylist()
    for number, thread in enumerate(written["threads"], 1):
        own = [r for r in imported if r["tid"] == number and r["direction"] in ("read", "write")]
        expected = [
            (r["offset_bytes"], r["done_bytes"], r["direction"])
            for r in rows
            if r["tid"] == thread["tid"] and r["done_bytes"] > 0
        ]
        assert [(r["offset_bytes"], r["done_bytes"], r["direction"]) for r in own] == expected
    assert trace.counts["kept"] == written["events"]


def test_iolog_version_2_has_only_wait_times(tmp_path: Path) -> None:
    text = (
        "fio version 2 iolog\n/x add\n/x open\n/x read 0 4096\n/x wait 2500 0\n/x write 8192 512\n"
    )
    (tmp_path / "log").write_text(text + "/x trim 0 512\n/x close\n")
    trace = import_trace([tmp_path / "log"], tmp_path / "b")
    rows = Bundle.open(tmp_path / "b").table("io_events").to_pylist()
    assert [(r["t_ns"], r["op"], r["offset_bytes"], r["size_bytes"]) for r in rows] == [
        (0, "pread64", 0, 4096),
        (2_500_000, "pwrite64", 8192, 512),
    ]
    assert trace.counts == {"seen": 3, "kept": 2, "filtered": 1, "lost": 0}
    assert "the source has no times of them" in trace.closing


HEAD = "fio version 3 iolog\n"


def test_other_actions_of_fio_are_filtered(tmp_path: Path) -> None:
    """fio 3.33 --sync_file_range=write:2 --write_iolog, and syncfs of later versions."""
    text = f"{HEAD}32 x add\n221 x open\n225 x write 0 4096\n251 x sync_file_range 4096 0\n"
    (tmp_path / "log").write_text(f"{text}260 x syncfs 0 0\n263 x write 8192 4096\n")
    trace = import_trace([tmp_path / "log"], tmp_path / "b")
    assert trace.counts == {"seen": 4, "kept": 2, "filtered": 2, "lost": 0}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty", b"", "found an empty file at its beginning; expected blktrace"),
        ("text", b"hello world", "found 'hello world' at its beginning"),
        ("v4", b"fio version 4 iolog\n", ":1: found .fio version 4 iolog.; expected"),
        ("words", (HEAD + "5 f read 0\n").encode(), ":2: found .5 f read 0.; expected FILE ACTION"),
        ("time", (HEAD + "x f read 0 1\n").encode(), ":2: .*begins with microseconds"),
        ("back", (HEAD + "9 f read 0 1\n5 f read 0 1\n").encode(), ":3: .*not before the last"),
        ("wait", (HEAD + "9 f wait 9 0\n").encode(), ":2: .*no `wait` in version 3"),
        ("huge", (HEAD + "9 f read 0 4294967296\n").encode(), ":2: .*below 2 GiB"),
        ("far", (HEAD + "9 f read 9223372036854775807 9\n").encode(), ":2: .*below 2\\^63"),
        ("late", (HEAD + "99999999999999999 f read 0 1\n").encode(), ":2: .*times below 2\\^63 ns"),
        (
            "waits",
            b"fio version 2 iolog\n" + b"f wait 18446744073709551615 0\n" * 2,
            ":3: .*times below 2\\^63 ns",
        ),
        ("torn", (HEAD + "5 f read 0 4096\n6 f read 4096 40").encode(), ":3: .*an end of the line"),
        (
            "dxtcounters",
            DARSHAN_PARSER.encode(),
            "found the text of darshan-parser; expected the text",
        ),
        ("dxttwice", DXT.encode() * 2, "found a second log in the file"),
        ("dxttorn", DXT[: DXT.index("110\n") + 2].encode(), ":21: .*an end of the line"),
        ("none", HEAD.encode(), "has no reads or writes"),
        ("dxtcut", DXT[:396].encode(), "expected MODULE RANK"),
        (
            "dxtshort",
            DXT[: DXT.index(" X_POSIX       0   read")].encode(),
            "1 segments of .* missing",
        ),
        ("dxtbad", DXT.replace("8192 ", "-8192").encode(), ":17: found .*not negative"),
        (
            "dxtmodule",
            DXT.replace(" X_POSIX       3", " X_STDIO       3").encode(),
            ":17: .*expected the module X_POSIX or X_MPIIO",
        ),
        (
            "dxtrank",
            DXT.replace(" X_POSIX       3", " X_POSIX      -1").encode(),
            ":17: .*expected a rank that is not negative",
        ),
        (
            "blkcut",
            record(1, 5, 0, 4096, (QUEUE | READ) << 16 | 1)[:30],
            "found 30 bytes of a record",
        ),
        ("blkold", record(1, 5, 0, 8, 65, magic=0x65617405), "found version 5; expected 7"),
        (
            "blkodd",
            record(1, 5, 0, 8, (QUEUE | READ) << 16 | 1) + b"\0" * 48,
            "at byte 48: found 0x00000000",
        ),
        (
            "blklate",
            record(1, 1 << 63, 0, 8, (QUEUE | READ) << 16 | 1),
            "found the time 9223372036",
        ),
        ("blkpdu", record(1, 5, 0, 8, 1 << 26, payload=b"abcdefgh")[:-3], "found 5 bytes after"),
    ],
)
def test_a_malformed_trace_is_one_clear_error(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput) as caught:
        import_trace([tmp_path / name], tmp_path / "b")
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_truncated_traces_never_crash(tmp_path: Path) -> None:
    blktrace(tmp_path, 5)
    content = (tmp_path / "sda.blktrace.1").read_bytes()
    path = tmp_path / "cut"
    for n in range(0, len(content), 7):
        path.write_bytes(content[:n])
        output = tmp_path / f"b{n}"
        try:
            import_trace([path], output)
        except BadInput:
            assert not output.exists()
        else:
            assert n % 48 == 0


def test_kinds_are_not_mixed_and_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(HEAD + "1 f read 0 512\n")
    (tmp_path / "d").write_text(DXT)
    with pytest.raises(BadInput, match="several kinds"):
        import_trace([tmp_path / "a", tmp_path / "d"], tmp_path / "b")
    with pytest.raises(BadInput, match="no such file"):
        import_trace([tmp_path / "none"], tmp_path / "b")
    import_trace([tmp_path / "a"], tmp_path / "b")
    with pytest.raises(BadInput, match="exists already"):
        import_trace([tmp_path / "a"], tmp_path / "b")


def test_an_imported_trace_can_be_exported(tmp_path: Path) -> None:
    blktrace(tmp_path, 53)
    import_trace([tmp_path / "sda"], tmp_path / "b")
    for form in ("perfetto", "paraver", "jsonl"):
        assert export(tmp_path / "b", form, tmp_path / f"o.{form}")["events"] == 53
    lines = (tmp_path / "o.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["path"] == "device 8:0"


def test_a_missing_request_breaks_the_sequence(tmp_path: Path) -> None:
    rows = [event(1000 * n, offset_bytes=4096 * n) for n in range(40)]
    write_bundle(tmp_path / "t", rows)
    export(tmp_path / "t", "fio", tmp_path / "o")
    log = tmp_path / "o" / "thread-1.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:9] + lines[10:]))
    trace = import_trace([log], tmp_path / "b")
    assert trace.counts["kept"] == 39
    assert trace.verdicts[0]["together"]["consecutive_share"] < 1


def test_flushes_of_a_disk_count_in_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = np.zeros(200, EVENT)
    records["t_ns"] = np.arange(200) * 5_000_000
    records["op"] = np.tile([NUMBERS["device_write"], NUMBERS["device_flush"]], 100)
    records["latency_ns"] = np.tile([100_000, 4_000_000], 100)
    records["size_bytes"] = records["done_bytes"] = np.tile([4096, 0], 100)
    records["file_id"] = 1
    (tmp_path / "spool").write_bytes(records.tobytes())
    files = [{"file_id": 1, "path": "/d/x"}]
    counts = {"seen": 200, "kept": 200, "filtered": 0, "lost": 0}
    recording = Recording(tmp_path / "spool", files, [], counts, "device", {"format": "disk log"})
    trace = write_recording(None, recording, 1_000_000_000)
    assert trace.closing.startswith(
        "Most time goes to 100 flushes of /d/x, 4 ms each; requests take 41 %"
    )
    (entry,) = as_document(trace)["flushes"]
    assert entry == {"path": "/d/x", "flushes": 100, "time_ns": 400_000_000}
    show(trace)
    flush = next(line for line in capsys.readouterr().out.splitlines() if " flush " in line)
    assert flush.split() == ["/d/x", "flush", "100", "400", "ms", "4", "ms", "each"]


@pytest.mark.parametrize("size", [-1, 1 << 31, 3 << 30])
def test_calls_of_impossible_sizes_are_refused(tmp_path: Path, size: int) -> None:
    call = {"t_ns": 1, "op": "pread64", "file": "/d/x"}
    Recording.of_calls(tmp_path, [{**call, "size_bytes": (1 << 31) - 1}], {"format": "mine"})
    with pytest.raises(BadInput, match=r"/d/x: found .* bytes; expected 0 to 2,147,483,647"):
        Recording.of_calls(tmp_path, [{**call, "size_bytes": size}], {"format": "mine"})
