"""Tables of a job's tasks and stages, common to the readers of Spark's and Hadoop's logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from penstock.workload.execution_waves import stragglers
from penstock.workload.metrics import samples

MOST_TASKS = 20_000_000
_INTEGERS = (
    "utc_finish_ns",
    "run_ms",
    "cpu_ns",
    "gc_ms",
    "read_bytes",
    "written_bytes",
    "shuffle_read_bytes",
    "shuffle_written_bytes",
    "spilled_bytes",
)
_TASK_COLUMNS = [
    *("stage_id", "stage_attempt", "task_id", "task_index", "task_attempt", "executor", "host"),
    *("utc_launch_ns", "utc_finish_ns", "state", "reason"),
    *_INTEGERS[1:],
]
_STAGE_COLUMNS = [
    *("stage_id", "stage_attempt", "name", "tasks", "slots", "waves", "utc_start_ns", "utc_end_ns"),
    *("failed", "killed", "stragglers", "p50_s", "p95_s", "p99_s", "most_s", "reason"),
]


def milliseconds(value: Any) -> int:
    """Time in ms since 1970. ValueError if int64 nanoseconds overflow."""
    at = int(value)
    if not 0 <= at < np.iinfo(np.int64).max // 1_000_000:
        raise ValueError(f"the time {at}")
    return at


def task_table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Table `spark_tasks` of these attempts, with the times of successful ones that end after they begin."""
    tasks = _exact(rows, _TASK_COLUMNS, _INTEGERS)
    took_s = (tasks["utc_finish_ns"] - tasks["utc_launch_ns"]).astype("Float64") / 1e9
    tasks["time_s"] = took_s.where((tasks["state"] == "success") & (took_s >= 0)).astype(float)
    return tasks


def task_notes(tasks: pd.DataFrame) -> list[str]:
    """A note on tasks that end before they begin, if any."""
    backward = int((tasks["utc_finish_ns"] < tasks["utc_launch_ns"]).sum())
    return (
        [f"{backward} tasks end before they begin: their times are not known"] if backward else []
    )


def stage_table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The table `spark_stages`."""
    return _exact(rows, _STAGE_COLUMNS, ("utc_start_ns", "utc_end_ns"))


def _exact(
    rows: Iterable[dict[str, Any]], columns: list[str], integers: Iterable[str]
) -> pd.DataFrame:
    """A table with nullable integers: conversion through floats would round times to 256 ns."""
    listed = list(rows)
    frame = pd.DataFrame(listed, columns=columns)
    for column in integers:
        frame[column] = pd.array([row.get(column) for row in listed], dtype="Int64")
    return frame


def counted(attempts: pd.DataFrame) -> dict[str, Any]:
    """Numbers of failed, killed and straggling attempts, and quantiles of the times of the others."""
    done = attempts[attempts["state"] == "success"]["time_s"].dropna().to_numpy(float)
    return {
        "failed": int((attempts["state"] == "failed").sum()),
        "killed": int((attempts["state"] == "killed").sum()),
        "stragglers": stragglers(done.tolist()),
        **{
            name: float(np.quantile(done, q)) if len(done) else np.nan
            for name, q in (("p50_s", 0.5), ("p95_s", 0.95), ("p99_s", 0.99), ("most_s", 1.0))
        },
    }


def not_succeeded(tasks: pd.DataFrame) -> dict[str, int]:
    """Number of failed or killed attempts, by reason."""
    bad = tasks[tasks["state"].isin(["failed", "killed"])]
    named = (bad["state"] + " " + bad["reason"]).sort_values()
    return {str(what): int(n) for what, n in named.value_counts(sort=False).items()}


def running_tasks(tasks: pd.DataFrame, source: str) -> pd.DataFrame:
    """Number of running tasks at each change, in total and per executor."""
    parts = []
    for name, own_tasks in [("all", tasks), *tasks.groupby("executor")]:
        begun = own_tasks["utc_launch_ns"].to_numpy(np.int64)
        ended = own_tasks["utc_finish_ns"].dropna().to_numpy(np.int64)
        at = np.concatenate([begun, ended])
        step = np.concatenate([np.ones(len(begun)), -np.ones(len(ended))])
        order = np.argsort(at, kind="stable")
        times, last = np.unique(at[order][::-1], return_index=True)
        count = np.cumsum(step[order])[len(at) - 1 - last]
        parts.append(
            pd.DataFrame({"utc_ns": times, "value": count}).assign(
                source=source,
                entity=str(name),
                metric="running_tasks",
                unit="tasks",
                cumulative=False,
            )
        )
    return samples(pd.concat(parts, ignore_index=True))
