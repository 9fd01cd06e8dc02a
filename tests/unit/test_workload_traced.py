"""Traced runs as workloads: bundles with hand-written events and known numbers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles
from penstock.errors import BadInput
from penstock.parts.prediction.queue_network.conditions import unmodelled
from penstock.parts.prediction.workloads.check import check_workload
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.read import read_workload
from penstock.parts.prediction.workloads.traced import replaced, traced_workload
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.workload.events import GROUP_COMMITS, MAPPED

native: Any = importlib.import_module("penstock._native")

MS = 1_000_000
#: start [ms], end [ms], process, file, direction, offset, bytes
Call = tuple[float, float, int, str, str, int, int]


def bundle(
    path: Path,
    calls: list[Call],
    sizes: dict[str, int] | None = None,
    *,
    start_ms: float = 0,
    real_ms: float = 0,
    lost: int = 0,
    cpu_ms: float | None = None,
    top: str = "/data/",
    renames: list[tuple[float, str, str, str]] | None = None,
    threads: list[tuple[int, int, float]] | None = None,
) -> Path:
    """A bundle of one run with these calls; files are below `top` unless their name begins with a slash.

    `a#2` is a second file of the path `a`. `renames`: time [ms], file, kind and new name; `threads`: thread,
    process and start [ms].
    """
    names = list(dict.fromkeys(call[3] for call in calls))
    rows = [
        {
            "t_ns": int(begin * MS),
            "seq": i,
            "op": direction,
            "direction": direction.removeprefix("fault_"),
            "file_id": names.index(file) + 1,
            "offset_bytes": offset,
            "size_bytes": size,
            "done_bytes": size,
            "errno": 0,
            "latency_ns": int((end - begin) * MS),
            "pid": process,
            "tid": process,
            "cgroup_id": 1,
            "flags": 0,
        }
        for i, (begin, end, process, file, direction, offset, size) in enumerate(calls)
    ]
    files = [
        {
            "file_id": i + 1,
            "dev_major": 1,
            "dev_minor": 1,
            "inode": i + 100,
            "generation": 0,
            "path": name if name.startswith("/") else top + name.partition("#")[0],
            "size_bytes": (sizes or {}).get(name, 0),
            "disk_id": None,
        }
        for i, name in enumerate(names)
    ]
    clock = {
        "point": "start",
        "monotonic_ns": 0,
        "realtime_ns": int(real_ms * MS),
        "boottime_ns": 0,
    }
    manifest = {
        "run_id": "r001",
        "losses": {"trace": lost},
        "times": {"start_ns": int(start_ms * MS)},
    }
    with Bundle.create(path, manifest) as writer:
        writer.write_table("io_events", pa.Table.from_pylist(rows))
        schema = pa.schema([("disk_id", pa.string())])
        table = pa.Table.from_pylist(files)
        table = table.set_column(
            table.column_names.index("disk_id"), schema.field(0), pa.nulls(len(files), pa.string())
        )
        writer.write_table("files", table)
        writer.write_table("clocks", pa.Table.from_pylist([clock]))
        if threads is not None:
            begun = [
                {"tid": tid, "pid": pid, "program": "x", "started_ns": int(at * MS)}
                for tid, pid, at in threads
            ]
            writer.write_table("threads", pa.Table.from_pylist(begun))
        if renames is not None:
            rows = [
                {"file_id": i + 1, "t_ns": 0, "kind": "first", "path": files[i]["path"]}
                for i in range(len(names))
            ] + [
                {
                    "file_id": names.index(name) + 1,
                    "t_ns": int(at * MS),
                    "kind": kind,
                    "path": top + new,
                }
                for at, name, kind, new in renames
            ]
            writer.write_table("file_names", pa.Table.from_pylist(rows))
        if cpu_ms is not None:
            samples = [
                {
                    "t_ns": t,
                    "source": "cgroup",
                    "entity": "run",
                    "metric": "cpu_time",
                    "unit": "us",
                    "value": v,
                    "cumulative": True,
                }
                for t, v in ((0, 5.0), (100 * MS, 5.0 + cpu_ms * 1000))
            ]
            writer.write_table("samples", pa.Table.from_pylist(samples))
    return path


def operations_of(workload: Workload, name: str) -> list[tuple[Any, ...]]:
    """Operations of a task in short form."""
    task = next(task for task in workload.tasks if task.name == name)
    return [
        ("compute", o.seconds)
        if o.op == "compute"
        else (o.op, o.file)
        if o.op == "open"
        else (o.op, o.file, o.offset_bytes, o.size_bytes)
        for o in task.operations
    ]


def check_both(workload: Workload) -> None:
    """Check the workload in Python and in Rust, and its round trip through JSON."""
    check_workload(workload)
    native.NetworkWorkload(workload.to_json())
    assert workload_from_dict(workload.to_dict()) == workload


#: 1 writes a; 2 reads a in two calls, thinks, and writes b
CHAIN: list[Call] = [
    (2, 3, 1, "a", "write", 0, 100),
    (5, 6, 1, "a", "write", 100, 100),
    (10, 11, 2, "a", "read", 0, 150),
    (13, 14, 2, "a", "read", 150, 50),
    (17, 18, 2, "b", "write", 0, 60),
]


def test_operations_thinking_launch_and_the_writer_before_the_reader(tmp_path: Path) -> None:
    workload = traced_workload([bundle(tmp_path / "T", CHAIN)])
    check_both(workload)
    # two calls of 100 bytes are one operation; the time before the first write is computing
    assert operations_of(workload, "p1") == [("compute", 0.002), ("write", "a", 0, 200)]
    assert operations_of(workload, "p2") == [
        ("open", "a"),
        ("read", "a", 0, 200),
        ("compute", 0.005),  # 2 ms between the reads, 3 ms before the write
        ("write", "b", 0, 60),
    ]
    assert [task.launch for task in workload.tasks] == [0.002, 0.004]
    assert [task.after for task in workload.tasks] == [(), ("p1",)]
    assert workload.dependencies == ((), (0,))
    assert [task.stage for task in workload.tasks] == ["level-0", "level-1"]
    assert not any(file.preloaded for file in workload.files)


#: one host on which storage and network take no time compared with milliseconds
FREE = {
    "schema": "penstock/network/1",
    "store": {"chunk_bytes": 1048576},
    "protocol": {"frame_bytes": 65536, "control_bytes": 1024},
    "scheduler": {"kind": "workqueue"},
    "hosts": [
        {
            "name": "h",
            "group": "all",
            "rack": 0,
            "network": {"out_bps": 1e15, "in_bps": 1e15, "loopback_bps": 1e15, "latency_s": 0},
            "client": {"slots": 8, "speed": 1.0},
            "storage": {"read": 0, "write": 0, "servers": 1, "capacity_bytes": None},
            "manager": {"service": 0, "servers": 1},
        }
    ],
}


def test_with_free_storage_a_run_takes_launch_and_compute_time(
    tmp_path: Path,
) -> None:
    path = bundle(tmp_path / "T", CHAIN)
    # the run took 18 ms, 5 ms of it in calls
    for order in ("files", "observed"):
        workload = traced_workload([path], order=order)
        outcome = json.loads(
            native.NetworkWorkload(workload.to_json()).simulate(json.dumps(FREE), 1)
        )
        assert outcome["makespan_s"] == pytest.approx(0.013, rel=1e-6)
        assert outcome["bytes"]["read"] == 200
        assert outcome["bytes"]["written"] == 260


#: a shell reads a line, runs 2 and 3 one after the other, and continues to read
SHELL: list[Call] = [
    (2, 3, 1, "script", "read", 0, 10),
    (5, 6, 2, "a", "write", 0, 100),
    (9, 10, 3, "a", "read", 0, 100),
    (12, 13, 3, "b", "write", 0, 100),
    (16, 17, 1, "script", "read", 10, 10),
]


def test_a_shell_waits_for_its_programs_and_takes_the_observed_time(
    tmp_path: Path,
) -> None:
    path = bundle(tmp_path / "T", SHELL, {"script": 20})
    workload = traced_workload([path], order="observed")
    check_both(workload)
    after = {task.name: task.after for task in workload.tasks}
    assert after == {"p1.1": (), "p2": ("p1.1",), "p3": ("p2",), "p1.2": ("p1.1", "p3")}
    assert operations_of(workload, "p1.2") == [
        ("compute", 0.003),  # the shell after the end of its last program
        ("open", "script"),
        ("read", "script", 10, 10),
    ]
    outcome = json.loads(native.NetworkWorkload(workload.to_json()).simulate(json.dumps(FREE), 1))
    assert outcome["makespan_s"] == pytest.approx(0.012, rel=1e-6)  # 17 ms, 5 of them in calls
    by_files = traced_workload([path])
    assert {task.name: task.after for task in by_files.tasks} == {"p1": (), "p2": (), "p3": ("p2",)}


def test_a_first_process_computes_while_others_work(tmp_path: Path) -> None:
    calls: list[Call] = [
        (0, 1, 1, "a", "write", 0, 10),  # starts 2 after this
        (4, 5, 1, "a", "write", 10, 10),
        (10, 11, 1, "a", "write", 20, 10),  # computes 5 ms while 2 is at work
        (20, 21, 1, "a", "write", 30, 10),  # 2 ended before, at 15
        (2, 3, 2, "b", "write", 0, 10),
        (14, 15, 2, "b", "write", 10, 10),
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls)])
    assert operations_of(workload, "p1") == [
        ("write", "a", 0, 10),
        ("compute", 0.005),
        ("write", "a", 10, 20),
        ("compute", 0.005),
        ("write", "a", 30, 10),
    ]
    assert operations_of(workload, "p2") == [("compute", 0.011), ("write", "b", 0, 20)]


def test_without_launch_times_the_platform_decides(tmp_path: Path) -> None:
    workload = traced_workload([bundle(tmp_path / "T", CHAIN)], launch=False)
    assert [task.launch for task in workload.tasks] == [None, None]


def test_a_pause_separates_operations(tmp_path: Path) -> None:
    calls: list[Call] = [
        (0, 1, 1, "a", "write", 0, 10),
        (11, 12, 1, "a", "write", 10, 10),
        (512, 513, 1, "a", "write", 20, 10),
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls)])
    assert operations_of(workload, "p1") == [
        ("compute", 0.01),
        ("write", "a", 0, 20),
        ("compute", 0.5),
        ("write", "a", 20, 10),
    ]


def test_an_input_is_preloaded_with_its_size(tmp_path: Path) -> None:
    calls: list[Call] = [(1, 2, 1, "in", "read", 10, 20)]
    workload = traced_workload([bundle(tmp_path / "T", calls, {"in": 500})])
    assert [(f.name, f.size_bytes, f.preloaded) for f in workload.files] == [("in", 500, True)]


def test_a_file_with_appends_only_is_preloaded(tmp_path: Path) -> None:
    calls: list[Call] = [(1, 2, 1, "log", "write", 1000, 20)]
    workload = traced_workload([bundle(tmp_path / "T", calls, {"log": 1020})])
    (file,) = workload.files
    assert (file.size_bytes, file.preloaded) == (1000, True)
    assert workload.file_sizes == {"log": 1020}


def test_files_of_the_system_cost_time_but_are_not_in_the_store(tmp_path: Path) -> None:
    calls: list[Call] = [
        (1, 2, 1, "/usr/lib/libc.so", "read", 0, 832),
        (4, 5, 1, "in", "read", 0, 20),
        (5, 6, 1, "/proc/self/stat", "read", 0, 9),
    ]
    path = bundle(tmp_path / "T", calls, {"in": 20})
    workload = traced_workload([path])
    assert operations_of(workload, "p1") == [
        ("compute", 0.003),  # 1 ms of its library call, 2 ms after it
        ("open", "in"),
        ("read", "in", 0, 20),
        ("compute", 0.001),
    ]
    assert any("2 files of the system" in note for note in workload.notes)
    everything = traced_workload([path], under=["/"])
    assert sum(o.size_bytes for o in everything.tasks[0].operations) == 832 + 20 + 9
    assert traced_workload([path], under=["/data"]).tasks == workload.tasks
    with pytest.raises(BadInput, match="no reads or writes of files below /elsewhere"):
        traced_workload([path], under=["/elsewhere"])


def test_random_reads_are_not_merged_and_every_byte_counts(tmp_path: Path) -> None:
    calls: list[Call] = [
        (i, i + 0.5, 1, "db", "read", (i * 7919) % 97 * 4096, 4096) for i in range(50)
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls, {"db": 97 * 4096})])
    reads = [o for o in workload.tasks[0].operations if o.op == "read"]
    assert len(reads) == 50
    assert sum(o.size_bytes for o in reads) == 50 * 4096
    check_both(workload)


def test_a_driver_is_split_where_it_reads_results(tmp_path: Path) -> None:
    calls: list[Call] = [
        (1, 2, 1, "script", "read", 0, 10),  # the driver, from 1 to 41
        (10, 11, 2, "part", "write", 0, 100),
        (20, 21, 3, "part", "read", 0, 100),
        (25, 26, 3, "result", "write", 0, 50),
        (40, 41, 1, "result", "read", 0, 50),
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls, {"script": 10})])
    check_both(workload)
    after = {task.name: task.after for task in workload.tasks}
    assert after == {"p1.1": (), "p2": (), "p3": ("p2",), "p1.2": ("p1.1", "p3")}
    # from 2 to 40 it waited, apart from times without other activity: 14 ms after the result existed
    assert operations_of(workload, "p1.2") == [
        ("compute", 0.014),
        ("open", "result"),
        ("read", "result", 0, 50),
    ]
    assert workload.tasks[-1].launch == 0.0


def test_a_file_read_while_it_is_written_has_its_earlier_contents(tmp_path: Path) -> None:
    calls: list[Call] = [
        (1, 2, 1, "log", "write", 0, 100),
        (3, 4, 2, "log", "read", 0, 100),
        (5, 6, 1, "log", "write", 100, 100),
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls)])
    check_both(workload)
    assert operations_of(workload, "p2") == [("open", "log@before"), ("read", "log@before", 0, 100)]
    assert workload.dependencies == ((), ())
    assert any("1 files are read while another task writes them" in n for n in workload.notes)


def test_written_read_and_written_again(tmp_path: Path) -> None:
    calls: list[Call] = [
        (1, 2, 1, "f", "write", 0, 100),
        (3, 4, 2, "f", "read", 0, 100),
        (5, 6, 3, "f", "write", 0, 100),
        (7, 8, 4, "f", "read", 0, 100),
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls)])
    check_both(workload)
    assert workload.tasks[1].after == ("p1",)
    assert set(workload.tasks[3].after) == {"p1", "p3"}


def test_an_input_that_a_later_task_changes(tmp_path: Path) -> None:
    calls: list[Call] = [
        (1, 2, 1, "f", "read", 0, 100),
        (3, 4, 2, "f", "read", 0, 100),
        (5, 6, 2, "f", "write", 0, 100),
        (7, 8, 3, "f", "read", 0, 100),
    ]
    workload = traced_workload([bundle(tmp_path / "T", calls, {"f": 100})])
    check_both(workload)
    assert [t.after for t in workload.tasks] == [(), ("p1",), ("p2",)]


def test_in_the_order_observed(tmp_path: Path) -> None:
    calls: list[Call] = [
        (0, 50, 9, "other", "write", 0, 1),
        (1, 2, 1, "a", "write", 0, 1),
        (3, 4, 2, "b", "write", 0, 1),
        (3.5, 6, 3, "c", "write", 0, 1),
        (7, 8, 4, "d", "write", 0, 1),
    ]
    path = bundle(tmp_path / "T", calls)
    assert all(not task.after for task in traced_workload([path]).tasks)
    ordered = traced_workload([path], order="observed")
    after = [task.after for task in ordered.tasks]
    assert after == [(), (), ("p2",), ("p2",), ("p3", "p4")]


def test_threads_or_the_complete_command_as_tasks(tmp_path: Path) -> None:
    path = bundle(tmp_path / "T", CHAIN)
    assert len(traced_workload([path], per="thread").tasks) == 2
    (task,) = traced_workload([path], per="command").tasks
    assert [o.op for o in task.operations] == [
        "compute",
        "write",
        "compute",
        "open",
        "read",
        "compute",
        "write",
    ]
    # the 4 ms from the last write to the first read are computing of the one task
    assert sum(float(o.seconds) for o in task.operations) == pytest.approx(0.011)  # type: ignore[arg-type]


def test_compute_time_adds_up_to_the_sampled_cpu_time(tmp_path: Path) -> None:
    path = bundle(tmp_path / "T", CHAIN, cpu_ms=14)
    gaps = traced_workload([path])
    assert any("0.014 s of processor time in 0.007 s between calls" in n for n in gaps.notes)
    cpu = traced_workload([path], compute="cpu")
    seconds = [float(o.seconds) for t in cpu.tasks for o in t.operations if o.op == "compute"]  # type: ignore[arg-type]
    assert seconds == pytest.approx([0.004, 0.01])
    with pytest.raises(BadInput, match="no processor time was sampled"):
        traced_workload([bundle(tmp_path / "U", CHAIN)], compute="cpu")


def test_several_bundles_are_one_workflow_on_one_clock(tmp_path: Path) -> None:
    first = bundle(tmp_path / "split", [(1, 2, 1, "part", "write", 0, 100)], real_ms=1000)
    second = bundle(tmp_path / "join", [(1, 2, 1, "part", "read", 0, 100)], real_ms=2000)
    for paths in ([first, second], [second, first]):  # their clocks decide the order
        workload = traced_workload(paths)
        check_both(workload)
        assert [task.stage for task in workload.tasks] == ["split", "join"]
        assert workload.tasks[1].after == ("split/p1",)
    named = traced_workload([first, second], names=["first", "second"])
    assert [task.name for task in named.tasks] == ["first/p1", "second/p1"]
    with pytest.raises(BadInput, match="1 stages for 2 bundles"):
        traced_workload([first, second], names=["first"])


def stages(tmp_path: Path, name: str, size: int, think_ms: float) -> list[Path]:
    """Bundles of a stage that writes `part` and of a stage that reads it."""
    calls: list[Call] = [
        (1, 2, 1, "part", "write", 0, size),
        (2 + think_ms, 3 + think_ms, 1, "more", "write", 0, 10),
    ]
    return [
        bundle(tmp_path / f"{name}-1", calls, real_ms=1000),
        bundle(
            tmp_path / f"{name}-2",
            [(1, 2, 1, "part", "read", 0, size)],
            {"part": size},
            real_ms=2000,
        ),
    ]


def test_a_stage_traced_again_replaces_the_old_one(tmp_path: Path) -> None:
    old = traced_workload(stages(tmp_path, "old", 100, 5), names=["make", "use"])
    faster = traced_workload(stages(tmp_path, "fast", 100, 2)[:1], names=["make"])
    new = replaced(old, faster)
    check_both(new)
    assert [task.stage for task in new.tasks] == ["make", "use"]
    assert ("compute", 0.002) in operations_of(new, "make/p1")
    assert new.dependencies == ((), (0,))
    assert new.tasks[1].operations == old.tasks[1].operations


def test_other_outputs_are_refused(tmp_path: Path) -> None:
    old = traced_workload(stages(tmp_path, "old", 100, 5), names=["make", "use"])
    larger = traced_workload(stages(tmp_path, "large", 101, 5)[:1], names=["make"])
    with pytest.raises(
        BadInput, match="'part' of the stages make was 100 bytes and is 101 bytes now"
    ):
        replaced(old, larger)
    with pytest.raises(BadInput, match="stage other is new; the workload has make, use"):
        replaced(old, traced_workload(stages(tmp_path, "o", 100, 5)[:1], names=["other"]))


def test_lost_events_are_reported(tmp_path: Path) -> None:
    workload = traced_workload([bundle(tmp_path / "T", CHAIN, lost=3)])
    assert any("3 events were lost" in note for note in workload.notes)


def test_mapped_files_are_noted_if_they_are_a_good_part_of_the_bytes(tmp_path: Path) -> None:
    calls: list[Call] = [
        (0, 1, 1, "data", "read", 0, 40_000),
        (2, 3, 1, "map", "fault_read", 0, 4096),
        (3, 4, 1, "/usr/lib/libc.so", "fault_read", 0, 1 << 20),
    ]
    workload = traced_workload([bundle(tmp_path / "few", calls)])
    assert not unmodelled(workload)
    calls.append((5, 6, 1, "map", "fault_read", 4096, 4096))
    workload = traced_workload([bundle(tmp_path / "many", calls)])
    assert unmodelled(workload) == {MAPPED: 1}


def test_flushes_of_threads_in_turn_are_a_group_commit(tmp_path: Path) -> None:
    def flushes(*syncs: tuple[float, int, str]) -> dict[str, int]:
        calls: list[Call] = [(0, 0.5, 1, "log", "write", 0, 4096)]
        calls += [(at, at + 0.1, thread, file, "sync", 0, 0) for at, thread, file in syncs]
        name = f"b{len(list(tmp_path.iterdir()))}"
        conditions = unmodelled(traced_workload([bundle(tmp_path / name, calls)]))
        return {kind: n for kind, n in conditions.items() if kind == GROUP_COMMITS}

    assert flushes((1, 1, "log"), (2, 2, "log"), (3, 1, "log")) == {GROUP_COMMITS: 3}
    # one thread after the other, and different files
    assert flushes((1, 1, "log"), (2, 1, "log"), (3, 2, "log"), (4, 2, "log")) == {}
    assert flushes((1, 1, "log"), (2, 2, "other"), (3, 1, "log")) == {}


def test_read_workload_takes_bundles_and_studies(tmp_path: Path) -> None:
    path = bundle(tmp_path / "out" / "runs" / "r001", CHAIN)
    assert len(bundles(tmp_path / "out")) == 1
    assert read_workload(path).tasks == read_workload(tmp_path / "out").tasks
    with pytest.raises(BadInput, match="found neither of them; expected a bundle"):
        read_workload(tmp_path)


def test_a_bundle_of_counters_only_is_refused(tmp_path: Path) -> None:
    with Bundle.create(tmp_path / "T", {"run_id": "r001"}) as writer:
        writer.write_table("patterns", pa.table({"file_id": pa.array([1], pa.int64())}))
    with pytest.raises(BadInput, match="trace with --mode trace"):
        traced_workload([tmp_path / "T"])


def test_a_broken_bundle_is_refused(tmp_path: Path) -> None:
    path = bundle(tmp_path / "T", CHAIN)
    (path / "io_events.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(BadInput, match="an incomplete bundle"):
        traced_workload([path])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "cpu"}, "a task per"),
        ({"order": "any"}, "order"),
        ({"pause_s": float("nan")}, "pause"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        traced_workload([bundle(tmp_path / "T", CHAIN)], **options)


def test_a_later_run_reads_the_last_file_of_a_path(tmp_path: Path) -> None:
    first = bundle(
        tmp_path / "first",
        [(2, 3, 1, "a", "write", 0, 10), (5, 6, 2, "a#2", "write", 0, 200)],
    )
    second = bundle(tmp_path / "second", [(2, 3, 9, "a", "read", 0, 200)], {"a": 200}, real_ms=100)
    workload = traced_workload([first, second], names=["first", "second"])
    check_both(workload)
    assert workload.file_sizes == {"a": 10, "a#2": 200}
    assert operations_of(workload, "second/p1") == [("open", "a#2"), ("read", "a#2", 0, 200)]
    assert workload.tasks[2].after == ("first/p2",)


def test_a_later_run_reads_a_renamed_file(tmp_path: Path) -> None:
    writes: list[Call] = [
        (2, 3, 1, "a.tmp", "write", 0, 10),
        (5, 6, 2, "a.tmp#2", "write", 0, 200),
        (7, 8, 3, "b", "write", 0, 7),
    ]
    renames = [
        (4.0, "a.tmp", "rename", "a"),
        (6.5, "a.tmp", "unlink", "a"),
        (6.5, "a.tmp#2", "rename", "a"),
        (8.5, "b", "unlink", "b"),
    ]
    first = bundle(tmp_path / "first", writes, renames=renames)
    reads: list[Call] = [(2, 3, 9, "a", "read", 0, 200), (4, 5, 9, "b", "read", 0, 7)]
    second = bundle(tmp_path / "second", reads, {"a": 200, "b": 7}, real_ms=100)
    # in whatever order the runs are named
    for paths, names in (([first, second], ["1", "2"]), ([second, first], ["2", "1"])):
        workload = traced_workload(paths, names=names)
        check_both(workload)
        reader = next(task for task in workload.tasks if task.stage == "2")
        assert reader.after == ("1/p2",)
        assert {f.name for f in workload.files if f.preloaded} == {"b#2"}


def test_a_process_number_that_is_used_again_is_another_task(tmp_path: Path) -> None:
    calls: list[Call] = [
        (2, 3, 7, "a", "write", 0, 10),
        (4, 5, 8, "x", "write", 0, 10),
        (6, 7, 7, "b", "write", 0, 10),
    ]
    once = [(7, 7, 0.5), (7, 7, 0.5), (8, 8, 0.0)]  # two programs of one process
    for threads, tasks in ((once, 2), ([*once, (7, 7, 5.5)], 3)):
        for per in ("process", "thread"):
            path = bundle(tmp_path / f"{tasks}-{per}", calls, threads=threads)
            workload = traced_workload([path], per=per)
            check_both(workload)
            assert len(workload.tasks) == tasks
    assert operations_of(workload, "p3") == [("write", "b", 0, 10)]
