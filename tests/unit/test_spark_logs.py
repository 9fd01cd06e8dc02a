"""Spark's logs: rolled and compacted logs, and logs without executors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.workload import metrics

AT = 1_700_000_000_000


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"Event": f"SparkListener{kind}", **fields}, separators=(",", ":"))


def task(kind: str, number: int, launch: int, finish: int = 0) -> str:
    info = {
        "Task ID": number,
        "Index": number,
        "Attempt": 0,
        "Launch Time": AT + launch,
        "Finish Time": AT + finish if finish else 0,
        "Executor ID": "driver",
        "Host": "localhost",
    }
    fields: dict[str, Any] = {"Stage ID": 0, "Stage Attempt ID": 0, "Task Info": info}
    if kind == "TaskEnd":
        fields |= {"Task End Reason": {"Reason": "Success"}, "Task Metrics": {}}
    return event(kind, **fields)


def begin(executors: int = 1, tasks: int = 8, master: str = "local[4]") -> list[str]:
    stage = {
        "Stage ID": 0,
        "Stage Attempt ID": 0,
        "Stage Name": "foreach",
        "Number of Tasks": tasks,
        "Submission Time": AT + 100,
    }
    added = [
        event(
            "ExecutorAdded",
            Timestamp=AT,
            **{"Executor ID": "driver", "Executor Info": {"Host": "h", "Total Cores": 8}},
        )
    ]
    return [
        event("EnvironmentUpdate", **{"Spark Properties": {"spark.master": master}}),
        event("ApplicationStart", **{"App Name": "shell", "Timestamp": AT}),
        *added[:executors],
        event("JobStart", **{"Job ID": 0}),
        event("StageSubmitted", **{"Stage Info": stage}),
    ]


def pair(number: int, launch: int = 110) -> list[str]:
    return [task("TaskStart", number, launch), task("TaskEnd", number, launch, launch + 1000)]


END = [
    event("JobEnd", **{"Job ID": 0, "Completion Time": AT + 2120}),
    event("ApplicationEnd", Timestamp=AT + 2200),
]


def write(path: Path, *lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for part in lines for line in part))


def rolled(tmp_path: Path) -> Path:
    """Three parts with 4, 4 and no tasks; a compact part repeats the first two."""
    log = tmp_path / "eventlog_v2_app-1"
    log.mkdir()
    (log / "appstatus_app-1").touch()
    (log / ".events_1_app-1.crc").write_bytes(b"crc\0")
    first = [line for n in range(4) for line in pair(n)]
    second = [line for n in range(4, 8) for line in pair(n)]
    write(log / "events_1_app-1", begin(), first)
    write(log / "events_2_app-1", second)
    write(log / "events_2_app-1.compact", begin(), first, second)
    write(log / "events_3_app-1", END)
    return log


def test_a_compact_part_replaces_earlier_parts(tmp_path: Path) -> None:
    log = rolled(tmp_path)
    readings = metrics.read(log)
    assert metrics.reader_of(log) == "spark"
    assert readings.facts["spark"]["tasks"] == len(readings.tables["spark_tasks"]) == 8
    assert readings.facts["spark"]["jobs"] == 1
    assert readings.facts["spark"]["complete"]
    assert [note for note in readings.notes if "missing" in note] == []
    assert "compacted up to part 2" in readings.notes[0]
    # Spark deletes compacted parts
    (log / "events_1_app-1").unlink()
    (log / "events_2_app-1").unlink()
    assert metrics.read(log).facts == readings.facts
    # the next compaction, and an unfinished one
    write(log / "events_4_app-1.compact.inprogress", begin())
    (log / "events_3_app-1").rename(log / "events_3_app-1.compact")
    write(log / "events_3_app-1.compact", begin(), pair(0), END)
    assert metrics.read(log).facts["spark"]["tasks"] == 1


def test_missing_parts_after_a_compact_part_are_noted(tmp_path: Path) -> None:
    log = rolled(tmp_path)
    (log / "events_3_app-1").rename(log / "events_4_app-1")
    assert "parts of the rolled log are missing: found [2, 4]" in metrics.read(log).notes


@pytest.mark.parametrize(
    ("master", "slots", "waves", "expected_note"),
    [
        ("local[4]", 4, 2, "slots are those of spark.master"),
        ("local[3, 2]", 3, 3, "slots are those of spark.master"),
        ("local", 1, 8, "slots are those of spark.master"),
        # at most 2 tasks ran at a time
        ("local[*]", 2, 4, "tasks that ran at a time"),
        ("yarn", 2, 4, "tasks that ran at a time"),
    ],
)
def test_a_log_without_executors(
    master: str, slots: int, waves: int, expected_note: str, tmp_path: Path
) -> None:
    tasks = [line for n in range(8) for line in pair(n, 110 + 1000 * (n // 2))]
    write(tmp_path / "log", begin(0, master=master), tasks, END)
    readings = metrics.read(tmp_path / "log")
    stage = readings.tables["spark_stages"].iloc[0]
    assert (stage["slots"], stage["waves"]) == (slots, waves)
    assert any(expected_note in note for note in readings.notes)


def test_lzf_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "log.lzf").write_bytes(b"ZV\x01\0\x10\0\x20abc")
    with pytest.raises(BadInput, match="found LZF compression"):
        metrics.read(tmp_path / "log.lzf")


def test_repeated_events_count_once(tmp_path: Path) -> None:
    write(tmp_path / "log", begin(), pair(0), pair(0), pair(1), begin()[-2:-1], END)
    readings = metrics.read(tmp_path / "log")
    assert (readings.facts["spark"]["tasks"], readings.facts["spark"]["jobs"]) == (2, 1)
    assert "1 ends of tasks that the log repeats count once" in readings.notes
    assert readings.samples["value"].max() == 2


def test_resubmitted_tasks_are_not_further_attempts(tmp_path: Path) -> None:
    """Spark repeats the end of a task whose shuffle output was lost, then runs it again."""
    lost = task("TaskEnd", 0, 110, 1110).replace('"Success"', '"Resubmitted"')
    write(tmp_path / "log", begin(), pair(0), [lost], pair(8, 1200), END)
    readings = metrics.read(tmp_path / "log")
    assert (readings.facts["spark"]["tasks"], readings.facts["spark"]["not_succeeded"]) == (2, {})
    assert readings.samples["value"].max() == 1
    assert any("1 tasks that had succeeded were repeated" in note for note in readings.notes)


def test_logs_of_two_applications_are_refused(tmp_path: Path) -> None:
    later = [line.replace(str(AT), str(AT + 9000)) for line in begin()]
    write(tmp_path / "log", begin(), pair(0), END, later, pair(0), END)
    with pytest.raises(BadInput, match=r"log:11: found .*the start of a second application"):
        metrics.read(tmp_path / "log")


def test_a_log_reformatted_by_another_program_is_read(tmp_path: Path) -> None:
    spaced = [json.dumps(json.loads(line)) for line in [*begin(), *pair(0), *END]]
    write(tmp_path / "log", spaced)
    assert metrics.reader_of(tmp_path / "log") == "spark"
    assert metrics.read(tmp_path / "log").facts["spark"]["tasks"] == 1


def test_tasks_that_end_before_they_begin_have_no_time(tmp_path: Path) -> None:
    write(tmp_path / "log", begin(), pair(0), [task("TaskEnd", 1, 500, 400)], END)
    readings = metrics.read(tmp_path / "log")
    assert readings.tables["spark_tasks"]["time_s"].tolist()[0] == 1.0
    assert readings.tables["spark_stages"]["p50_s"].tolist() == [1.0]
    assert "1 tasks end before they begin: their times are not known" in readings.notes


def test_a_time_beyond_the_range_of_nanoseconds_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "log", begin(), [task("TaskStart", 0, 10**18)], END)
    with pytest.raises(BadInput, match=r"log:6: found .*the time 1000001700000000000"):
        metrics.read(tmp_path / "log")


def test_slots_of_a_resource_profile(tmp_path: Path) -> None:
    """Tasks of the profile need 2 cores, and run on its executors only."""
    profile = {
        "Resource Profile Id": 1,
        "Task Resource Requests": {"cpus": {"Resource Name": "cpus", "Amount": 2.0}},
    }
    executor = {"Host": "h", "Total Cores": 6, "Resource Profile Id": 1}
    lines = begin()
    lines[-1] = lines[-1].replace('"Stage ID":0,', '"Stage ID":0,"Resource Profile Id":1,')
    added = event("ExecutorAdded", Timestamp=AT, **{"Executor ID": "1", "Executor Info": executor})
    write(tmp_path / "log", [event("ResourceProfileAdded", **profile), added], lines, pair(0), END)
    stage = metrics.read(tmp_path / "log", "spark").tables["spark_stages"].iloc[0]
    assert (stage["slots"], stage["waves"]) == (3, 3)


def test_a_log_of_spark_1_0_without_attempts(tmp_path: Path) -> None:
    lines = [
        line.replace('"Attempt":0,', "").replace('"Stage Attempt ID":0,', "")
        for line in [*begin(0), *pair(0), *END]
    ]
    assert not any("Attempt" in line for line in lines)
    write(tmp_path / "log", lines)
    tasks = metrics.read(tmp_path / "log").tables["spark_tasks"]
    assert tasks[["stage_attempt", "task_attempt"]].to_numpy().tolist() == [[0, 0]]
