"""Spark's event log: a file, or the directory of a rolled one; compressed, truncated, or growing.

A line of the log is an event of the scheduler, one or two per task, not an I/O operation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.errors import BadInput
from penstock.workload.execution_waves import Executor, slots_at, waves
from penstock.workload.metrics import Readings, unrepeated
from penstock.workload.metrics.compressed import LZF, Lines, placed
from penstock.workload.metrics.tasks import (
    MOST_TASKS,
    counted,
    milliseconds,
    not_succeeded,
    running_tasks,
    stage_table,
    task_notes,
    task_table,
)

WHAT = "an event log of Spark (a file, or a directory eventlog_v2_…)"
#: a part of a rolled log, and a compacted one that replaces all parts up to it
_ROLLED = re.compile(r"^events_(\d+)_(?!.*\.compact\.inprogress$).*?(\.compact)?$")
#: slots of Spark in local mode, whose log may have no executor
_LOCAL = re.compile(r"^local(?:\[(\d+|\*)(?:,\s*\d+)?\])?$")
_MS = 1_000_000
#: processed events; only the first words of others are examined
_READ = {
    b"ApplicationStart",
    b"ApplicationEnd",
    b"EnvironmentUpdate",
    b"ExecutorAdded",
    b"ExecutorRemoved",
    b"ResourceProfileAdded",
    b"JobStart",
    b"JobEnd",
    b"StageSubmitted",
    b"StageCompleted",
    b"TaskStart",
    b"TaskEnd",
}
_EVENT = re.compile(rb'^\s*\{\s*"Event"\s*:\s*"SparkListener(\w+)"')


def matches(path: Path, head: bytes) -> bool:
    """True for an event log, compressed or not, by its first event, and for a rolled log, by its file
    names."""
    if path.is_dir():
        return any(_ROLLED.match(p.name) for p in path.iterdir())
    if head.startswith(LZF) and path.suffix == ".lzf":
        return True
    if head.startswith((b"LZ4Block", b"\x82SNAPPY\0", b"\x28\xb5\x2f\xfd", b"\x1f\x8b")):
        try:
            first = next(iter(Lines(path)), b"")
        except (BadInput, OSError):
            return False
        return _EVENT.match(first) is not None
    return _EVENT.match(head) is not None


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Tables `spark_tasks` and `spark_stages`, running tasks over time, and the run as facts.

    An incomplete log (in progress, or truncated) is read to its end, with a note.
    """
    log = _Log(path)
    for line in _lines(path, log):
        log.take(line)
    return log.readings()


def _lines(path: Path, log: _Log) -> Iterator[bytes]:
    parts = _parts(path, log.notes) if path.is_dir() else [path]
    for part, number, line in placed(parts, "an event log", log.notes):
        log.place = f"{part}:{number}"
        yield line


def _parts(path: Path, notes: list[str]) -> list[Path]:
    """Parts of a rolled log in order, from its last compacted one, which includes the earlier ones.

    Replaced parts may still exist: Spark deletes them later.
    """
    numbered = [(m, p) for p in path.iterdir() if (m := _ROLLED.match(p.name))]
    files = sorted((int(m[1]), m[2] is not None, p) for m, p in numbered)
    compact = max((i for i, (_, is_compact, _) in enumerate(files) if is_compact), default=None)
    used = files if compact is None else files[compact:]
    numbers = [number for number, _, _ in used]
    first = 1 if compact is None else numbers[0]
    if numbers and numbers != list(range(first, numbers[-1] + 1)):
        notes.append(f"parts of the rolled log are missing: found {numbers}")
    if compact is not None:
        notes.append(
            f"compacted up to part {first}: Spark omits the tasks of jobs that had ended before"
        )
    return [part for _, _, part in used]


class _Log:
    """State of one application from its events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = str(path)
        self.notes: list[str] = []
        self.name = ""
        self.start_ms: int | None = None
        self.end_ms: int | None = None
        self.job_ends_ms: list[int] = []
        self.jobs: set[int] = set()
        self.task_cpus = 1
        #: cores of a task by resource profile, other than that of the application
        self.profile_cpus: dict[int, int] = {}
        #: cores of Spark in local mode, 0 if unknown
        self.local_cores = 0
        self.executors: dict[str, Executor] = {}
        self.stages: dict[tuple[int, int], dict[str, Any]] = {}
        self.tasks: list[dict[str, Any]] = []
        self.running: dict[int, dict[str, Any]] = {}
        #: attempts that Spark repeated since their output was lost
        self.resubmitted = 0
        self._cut = ""

    def take(self, line: bytes) -> None:
        """Process one line of the log. BadInput for an invalid event, unless it is the last."""
        if self._cut:
            raise BadInput(f"{self._cut}: found no JSON; expected an event of Spark")
        named = _EVENT.match(line)
        if named is not None and named.group(1) not in _READ:
            return
        if not line.strip():
            return
        try:
            event = json.loads(line)
            kind = event["Event"]
        except (ValueError, KeyError, TypeError, RecursionError):
            self._cut = self.place  # an error if more lines follow, else a growing log
            return
        take = getattr(self, f"_{str(kind).removeprefix('SparkListener')}", None)
        if take is None:
            return
        try:
            take(event)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadInput(
                f"{self.place}: found {kind} with {error!r}; expected one of Spark"
            ) from None

    def _ApplicationStart(self, event: dict[str, Any]) -> None:  # noqa: N802 - named after the event
        start_ms = milliseconds(event["Timestamp"])
        if self.start_ms not in (None, start_ms):
            raise ValueError("the start of a second application")
        self.name, self.start_ms = str(event["App Name"]), start_ms

    def _ApplicationEnd(self, event: dict[str, Any]) -> None:  # noqa: N802
        self.end_ms = milliseconds(event["Timestamp"])

    def _EnvironmentUpdate(self, event: dict[str, Any]) -> None:  # noqa: N802
        properties = event.get("Spark Properties") or {}
        self.task_cpus = max(1, int(properties.get("spark.task.cpus", 1)))
        local = _LOCAL.match(str(properties.get("spark.master", "")))
        if local is not None and local[1] != "*":
            self.local_cores = int(local[1] or 1)

    def _ExecutorAdded(self, event: dict[str, Any]) -> None:  # noqa: N802
        name = str(event["Executor ID"])
        info = event["Executor Info"]
        begin_ns = milliseconds(event["Timestamp"]) * _MS
        profile = int(info.get("Resource Profile Id", 0))
        self.executors[name] = Executor(name, int(info["Total Cores"]), begin_ns, None, profile)

    def _ExecutorRemoved(self, event: dict[str, Any]) -> None:  # noqa: N802
        gone = self.executors.get(str(event["Executor ID"]))
        if gone is not None:
            at = milliseconds(event["Timestamp"]) * _MS
            self.executors[gone.name] = replace(gone, end_ns=at)

    def _ResourceProfileAdded(self, event: dict[str, Any]) -> None:  # noqa: N802
        cpus = (event.get("Task Resource Requests") or {}).get("cpus") or {}
        if "Amount" in cpus:
            profile = int(event["Resource Profile Id"])
            self.profile_cpus[profile] = max(1, math.ceil(float(cpus["Amount"])))

    def _JobStart(self, event: dict[str, Any]) -> None:  # noqa: N802
        self.jobs.add(int(event["Job ID"]))

    def _JobEnd(self, event: dict[str, Any]) -> None:  # noqa: N802
        self.job_ends_ms.append(milliseconds(event["Completion Time"]))

    def _StageSubmitted(self, event: dict[str, Any]) -> None:  # noqa: N802
        info = event["Stage Info"]
        stage = self._stage(int(info["Stage ID"]), int(info.get("Stage Attempt ID", 0)))
        stage["name"], stage["tasks"] = str(info["Stage Name"]), int(info["Number of Tasks"])
        stage["start_ms"] = _optional(info.get("Submission Time"))
        stage["profile"] = int(info.get("Resource Profile Id", 0))

    def _StageCompleted(self, event: dict[str, Any]) -> None:  # noqa: N802
        self._StageSubmitted(event)
        info = event["Stage Info"]
        stage = self._stage(int(info["Stage ID"]), int(info.get("Stage Attempt ID", 0)))
        stage["end_ms"] = _optional(info.get("Completion Time"))
        stage["reason"] = str(info.get("Failure Reason") or "")

    def _stage(self, stage: int, attempt: int) -> dict[str, Any]:
        return self.stages.setdefault(
            (stage, attempt),
            {"name": "", "tasks": 0, "start_ms": None, "end_ms": None, "reason": "", "profile": 0},
        )

    def _TaskStart(self, event: dict[str, Any]) -> None:  # noqa: N802
        row = self._task(event)
        self.running[row["task_id"]] = row

    def _TaskEnd(self, event: dict[str, Any]) -> None:  # noqa: N802
        row = self._task(event)
        reason = str(event["Task End Reason"]["Reason"])
        if reason == "Resubmitted":
            # an ended attempt, with its own times, whose output was lost with its executor
            self.resubmitted += 1
            return
        self.running.pop(row["task_id"], None)
        killed = bool(event["Task Info"].get("Killed")) or reason == "TaskKilled"
        row["state"] = "success" if reason == "Success" else "killed" if killed else "failed"
        row["reason"] = "" if reason == "Success" else reason
        row["utc_finish_ns"] = milliseconds(event["Task Info"]["Finish Time"]) * _MS
        metrics = event.get("Task Metrics") or {}
        read, written = metrics.get("Input Metrics") or {}, metrics.get("Output Metrics") or {}
        fetched = metrics.get("Shuffle Read Metrics") or {}
        row["run_ms"] = int(metrics.get("Executor Run Time", 0))
        row["cpu_ns"] = int(metrics.get("Executor CPU Time", 0))
        row["gc_ms"] = int(metrics.get("JVM GC Time", 0))
        row["read_bytes"] = int(read.get("Bytes Read", 0))
        row["written_bytes"] = int(written.get("Bytes Written", 0))
        row["shuffle_read_bytes"] = sum(
            int(fetched.get(k, 0)) for k in ("Remote Bytes Read", "Local Bytes Read")
        )
        shuffled = metrics.get("Shuffle Write Metrics") or {}
        row["shuffle_written_bytes"] = int(shuffled.get("Shuffle Bytes Written", 0))
        row["spilled_bytes"] = int(metrics.get("Disk Bytes Spilled", 0))
        self.tasks.append(row)
        if len(self.tasks) > MOST_TASKS:
            raise BadInput(
                f"{self.place}: found more than {MOST_TASKS} tasks; expected that at most"
            )

    def _task(self, event: dict[str, Any]) -> dict[str, Any]:
        # Spark 1.0 does not number attempts
        info = event["Task Info"]
        return {
            "stage_id": int(event["Stage ID"]),
            "stage_attempt": int(event.get("Stage Attempt ID", 0)),
            "task_id": int(info["Task ID"]),
            "task_index": int(info["Index"]),
            "task_attempt": int(info.get("Attempt", 0)),
            "executor": str(info["Executor ID"]),
            "host": str(info["Host"]),
            "utc_launch_ns": milliseconds(info["Launch Time"]) * _MS,
            "state": "running",
            "reason": "",
        }

    def readings(self) -> Readings:
        """Tables, samples and facts of the log."""
        if self._cut:
            self.notes.append(f"{self._cut} is cut: the log is still written, or lost its end")
        if self.end_ms is None:
            self.notes.append("the application has not ended in this log")
        tasks = task_table([*self.tasks, *self.running.values()])
        tasks = unrepeated(tasks, self.notes, "ends of tasks that the log repeats count once")
        self.notes += task_notes(tasks)
        if self.resubmitted:
            self.notes.append(
                f"{self.resubmitted} tasks that had succeeded were repeated: their output was lost with an "
                "executor"
            )
        stages = self._stage_rows(tasks)
        facts = self._facts(tasks, stages)
        return Readings(
            running_tasks(tasks, "spark"),
            {"spark_tasks": tasks, "spark_stages": stages},
            {"spark": facts},
            self.notes,
        )

    def _stage_rows(self, tasks: pd.DataFrame) -> pd.DataFrame:
        rows = []
        by_stage = dict(list(tasks.groupby(["stage_id", "stage_attempt"])))
        notes: set[str] = set()
        for (stage_id, attempt), stage in sorted(self.stages.items()):
            stage_tasks = by_stage.get((stage_id, attempt), tasks.iloc[:0])
            start_ms = stage["start_ms"]
            start_ns = start_ms * _MS if start_ms is not None else None
            executors, cpus = self._executors_of(stage["profile"])
            slots = slots_at(executors, start_ns, cpus) if start_ns is not None else 0
            if not slots and len(stage_tasks):
                slots, why = self._slots_of(stage_tasks, executors, cpus)
                notes.add(why)
            rows.append(
                {
                    "stage_id": stage_id,
                    "stage_attempt": attempt,
                    "name": stage["name"],
                    "tasks": stage["tasks"],
                    "slots": slots,
                    "waves": waves(stage["tasks"], slots) if slots else 0,
                    "utc_start_ns": start_ns,
                    "utc_end_ns": stage["end_ms"] * _MS if stage["end_ms"] is not None else None,
                    **counted(stage_tasks),
                    "reason": stage["reason"],
                }
            )
        self.notes += sorted(notes)
        return stage_table(rows)

    def _executors_of(self, profile: int) -> tuple[list[Executor], int]:
        """Executors of a resource profile, and the cores of a task on them."""
        executors = [e for e in self.executors.values() if e.profile == profile]
        return executors, self.profile_cpus.get(profile, self.task_cpus)

    def _slots_of(
        self, stage_tasks: pd.DataFrame, executors: list[Executor], cpus: int
    ) -> tuple[int, str]:
        """Slots of a stage that was submitted without an executor, and a note on them."""
        late = slots_at(executors, int(stage_tasks["utc_launch_ns"].max()), cpus)
        if late:
            return late, (
                "no executor was there when a stage was submitted: its slots are those at its last launch"
            )
        if self.local_cores and not executors:
            return max(1, self.local_cores // cpus), (
                "the log names no executor: slots are those of spark.master"
            )
        most = int(running_tasks(stage_tasks, "spark")["value"].max())
        return most, (
            "the log names no executor for a stage: as many slots as tasks that ran at a time, at most"
        )

    def _facts(self, tasks: pd.DataFrame, stages: pd.DataFrame) -> dict[str, Any]:
        start, end = self.start_ms, self.end_ms
        ended = start is not None and end is not None
        return {
            "application": self.name,
            "complete": ended and not self.running and not self._cut,
            "run_time_s": (end - start) / 1e3 if start is not None and end is not None else None,
            "post_job_s": (end - max(self.job_ends_ms)) / 1e3
            if end is not None and self.job_ends_ms
            else None,
            "jobs": len(self.jobs),
            "tasks": int((tasks["state"] == "success").sum()),
            "not_succeeded": not_succeeded(tasks),
            "running": len(self.running),
            "waves": int(stages["waves"].sum()),
            "task_cpus": self.task_cpus,
        }


def _optional(value: Any) -> int | None:
    """Milliseconds since 1970, if there is a value."""
    return None if value is None else milliseconds(value)
