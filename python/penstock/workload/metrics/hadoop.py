"""Hadoop's job history (`.jhist`): a file, or a directory of one job with a restarted master.

Truncated and growing files are supported. The formats are Avro's JSON encoding, which names the type of a
body and of an optional value, and plain JSON without these. Hadoop writes it if
`mapreduce.jobhistory.jhist.format` is `json`; the binary form is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.errors import BadInput
from penstock.workload.execution_waves import waves
from penstock.workload.metrics import Readings
from penstock.workload.metrics.compressed import placed
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

WHAT = "a job history of Hadoop (a file, or a directory of one job's)"
_MS = 1_000_000
_KINDS = ("map", "reduce")
_ATTEMPT = re.compile(r"attempt_\d+_\d+_([mr])_(\d+)_(\d+)")
_TIME = re.compile(r"^\W*\[\d{4}-[^\]]*\]\s*")
#: maximum length of a reason
_REASON = 120
_ENDS = {"FINISHED": "success", "FAILED": "failed", "KILLED": "killed"}
_JOB_ENDS = ("JOB_FINISHED", "JOB_FAILED", "JOB_KILLED", "JOB_ERROR")
#: column → counters in its sum; of file systems, all except the node's local files
_COUNTERS = {
    "gc_ms": ("GC_TIME_MILLIS",),
    "shuffle_read_bytes": ("REDUCE_SHUFFLE_BYTES",),
    "shuffle_written_bytes": ("MAP_OUTPUT_MATERIALIZED_BYTES",),
}


def matches(path: Path, head: bytes) -> bool:
    """True for a history file, by the line before its schema or its first event, or a directory of them."""
    if path.is_dir():
        return bool(_parts(path))
    return (
        head.startswith((b"Avro-Json\n", b"Avro-Binary\n"))
        or re.match(rb'\s*\{\s*"type"\s*:\s*"(AM_STARTED|JOB_SUBMITTED)"', head) is not None
    )


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Tables `spark_tasks` and `spark_stages` (stage 0 maps, 1 reduces), running tasks, and the job as facts.

    `options`: `slots` is the number of concurrent tasks; by default the maximum observed, by stage. An
    incomplete history (in progress, or truncated) is read to its end, with a note.
    """
    slots = options.get("slots")
    if slots is not None and (not isinstance(slots, int) or isinstance(slots, bool) or slots < 1):
        raise BadInput(f"{path}: found slots {slots!r}; expected an integer, 1 or more")
    job = _Job(path)
    for place, line in _lines(path, job):
        job.take(place, line)
    return job.readings(slots)


def _parts(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix == ".jhist" and p.is_file())


def _lines(path: Path, job: _Job) -> Iterator[tuple[str, bytes]]:
    parts = _parts(path) if path.is_dir() else [path]
    for part, number, line in placed(parts, "a job history", job.notes):
        if number == 1:
            job.end_part()
            if line == b"Avro-Binary":
                raise BadInput(
                    f"{part}: found Avro's binary form; expected JSON "
                    "(mapreduce.jobhistory.jhist.format: json)"
                )
        if line.strip() and line != b"Avro-Json":
            yield f"{part}:{number}", line


class _Job:
    """State of one job from its events; a restarted master repeats attempts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.job = ""
        self.name = ""
        self.submitted_ms: int | None = None
        self.launched_ms: int | None = None
        self.ended_ms: int | None = None
        self.state = ""
        self.totals = dict.fromkeys(_KINDS, 0)
        self.tasks: dict[str, dict[str, Any]] = {}
        self.not_launched = 0
        self._cut = ""

    def end_part(self) -> None:
        """End of a file: it may be truncated if its master died."""
        if self._cut:
            self.notes.append(f"{self._cut} is cut: its master died")
        self._cut = ""

    def take(self, place: str, line: bytes) -> None:
        """Process one line. BadInput for an invalid event, unless it is the last of its file."""
        if self._cut:
            raise BadInput(f"{self._cut}: found no JSON; expected an event of Hadoop")
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            self._cut = place
            return
        try:
            if event.get("type") == "record":  # the schema
                return
            kind, body = str(event["type"]), event["event"]
            if len(body) == 1:
                (body,) = body.values()  # keyed by its type
            self._event(kind, body)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BadInput(
                f"{place}: found an event with {error!r}; expected one of Hadoop"
            ) from None
        if len(self.tasks) > MOST_TASKS:
            raise BadInput(f"{place}: found more than {MOST_TASKS} tasks; expected that at most")

    def _event(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "JOB_SUBMITTED":
            job = str(body["jobid"])
            if self.job not in ("", job):
                raise ValueError(f"{job} after {self.job}")
            self.job, self.name = job, str(body["jobName"])
            self.submitted_ms = _time(body["submitTime"])
        elif kind == "JOB_INITED":
            self.launched_ms = _time(body["launchTime"])
            self.totals = {k: int(body[f"total{k.capitalize()}s"]) for k in _KINDS}
        elif kind in _JOB_ENDS:
            self.ended_ms = _time(body["finishTime"])
            self.state = str(body.get("jobStatus", "SUCCEEDED"))
        elif kind.endswith("_ATTEMPT_STARTED") and kind.startswith(("MAP", "REDUCE")):
            self._started(body)
        elif "_ATTEMPT_" in kind and kind.startswith(("MAP", "REDUCE")):
            self._ended(_ENDS[kind.rpartition("_")[2]], body)

    def _started(self, body: Mapping[str, Any]) -> None:
        attempt = str(body["attemptId"])
        match = _ATTEMPT.fullmatch(attempt)
        if match is None:
            raise ValueError(attempt)
        host = str(body["trackerName"])
        self.tasks[attempt] = {
            "stage_id": 0 if match[1] == "m" else 1,
            "stage_attempt": 0,
            "task_id": self.tasks.get(attempt, {}).get("task_id", len(self.tasks)),
            "task_index": int(match[2]),
            "task_attempt": int(match[3]),
            "executor": host,
            "host": host,
            "utc_launch_ns": _time(body["startTime"]) * _MS,
            "state": "running",
            "reason": "",
        }

    def _ended(self, state: str, body: Mapping[str, Any]) -> None:
        row = self.tasks.get(str(body["attemptId"]))
        if row is None:  # killed before its launch
            self.not_launched += 1
            return
        row["state"] = state
        row["utc_finish_ns"] = _time(body["finishTime"]) * _MS
        if state != "success":
            reason = _TIME.sub("", str(_plain(body.get("error")) or state).strip())
            row["reason"] = (reason.splitlines() or [state])[0][:_REASON]
            return
        counts: dict[str, int] = {}
        for group in (_plain(body.get("counters")) or {}).get("groups", ()):
            for one in group["counts"]:
                counts[str(one["name"])] = int(one["value"])
        row["cpu_ns"] = counts.get("CPU_MILLISECONDS", 0) * _MS
        for column, names in _COUNTERS.items():
            row[column] = sum(counts.get(name, 0) for name in names)
        for column, end in (("read_bytes", "_BYTES_READ"), ("written_bytes", "_BYTES_WRITTEN")):
            row[column] = sum(
                n for name, n in counts.items() if name.endswith(end) and name != f"FILE{end}"
            )

    def readings(self, slots: int | None) -> Readings:
        """Tables, samples and facts of the job."""
        if self._cut:
            self.notes.append(f"{self._cut} is cut: the history is still written, or lost its end")
        if self.ended_ms is None:
            self.notes.append("the job has not ended in this history")
        if self.not_launched:
            self.notes.append(f"{self.not_launched} attempts ended before they were launched")
        tasks = task_table(self.tasks.values())
        self.notes += task_notes(tasks)
        running = running_tasks(tasks, "hadoop")
        stages = stage_table(self._stages(tasks, slots))
        if slots is None and len(tasks):
            self.notes.append(
                "a history does not say how many tasks could run at a time: as many as did at most (slots)"
            )
        return Readings(
            running,
            {"spark_tasks": tasks, "spark_stages": stages},
            {"hadoop": self._facts(tasks, stages)},
            self.notes,
        )

    def _stages(self, tasks: pd.DataFrame, slots: int | None) -> Iterator[dict[str, Any]]:
        for number, kind in enumerate(_KINDS):
            stage_tasks = tasks[tasks["stage_id"] == number]
            total = max(self.totals[kind], stage_tasks["task_index"].nunique())
            if not total:
                continue
            free = slots or (
                int(running_tasks(stage_tasks, "hadoop")["value"].max()) if len(stage_tasks) else 0
            )
            complete = len(stage_tasks) and not stage_tasks["utc_finish_ns"].isna().any()
            yield {
                "stage_id": number,
                "stage_attempt": 0,
                "name": kind,
                "tasks": total,
                "slots": free,
                "waves": waves(total, free) if free else 0,
                "utc_start_ns": stage_tasks["utc_launch_ns"].min() if len(stage_tasks) else None,
                "utc_end_ns": stage_tasks["utc_finish_ns"].max() if complete else None,
                **counted(stage_tasks),
                "reason": "",
            }

    def _facts(self, tasks: pd.DataFrame, stages: pd.DataFrame) -> dict[str, Any]:
        start, end = self.submitted_ms, self.ended_ms
        last = tasks["utc_finish_ns"].max()
        running = int((tasks["state"] == "running").sum())
        return {
            "application": self.name,
            "job": self.job,
            "state": self.state,
            "complete": start is not None and end is not None and not running and not self._cut,
            "run_time_s": (end - start) / 1e3 if start is not None and end is not None else None,
            "post_job_s": (end * _MS - int(last)) / 1e9
            if end is not None and not pd.isna(last)
            else None,
            "jobs": 1 if self.job else 0,
            "tasks": int((tasks["state"] == "success").sum()),
            "not_succeeded": not_succeeded(tasks),
            "running": running,
            "waves": int(stages["waves"].sum()),
        }


def _plain(value: Any) -> Any:
    """An optional value without its type name."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, inner),) = value.items()
        if name in ("string", "int", "long", "null") or str(name).startswith("org.apache."):
            return inner
    return value


def _time(value: Any) -> int:
    """Milliseconds since 1970 of a value that may have a type name."""
    return milliseconds(_plain(value))
