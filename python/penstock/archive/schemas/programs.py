"""Reports of programs on themselves."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import BUNDLE, RUN_KEY, TableSchema, columns

TABLES = (
    TableSchema(
        "spark_tasks",
        BUNDLE,
        "one attempt at a task of a Spark application or a Hadoop job, by its own log",
        (*RUN_KEY, "task_id"),
        columns("""
            stage_id | i64 | | its stage
            stage_attempt | i64 | | which attempt at the stage, from 0
            task_id | i64 | | the attempt at the task, one number in the application
            task_index | i64 | | place of the task in its stage
            task_attempt | i64 | | which attempt at the task, from 0
            executor | text | | the executor that ran it
            host | text | | its host
            launch_ns | i64 | ns | when it was launched, CLOCK_MONOTONIC
            finish_ns | i64 | ns | when it ended; null while it ran
            state | text | | `success`, `failed`, `killed`, or `running` at the end of the log
            reason | text | | why it did not succeed
            run_ms | i64 | ms | in the executor, without fetching and deserialising it
            cpu_ns | i64 | ns | processor time of that
            gc_ms | i64 | ms | of collecting garbage
            read_bytes | i64 | B | from Hadoop's file systems or from cached blocks
            written_bytes | i64 | B | to such file systems
            shuffle_read_bytes | i64 | B | of other tasks' output, local and remote
            shuffle_written_bytes | i64 | B | for later tasks
            spilled_bytes | i64 | B | to disk, for want of memory
            time_s | f64 | s | from launch to end; null of what did not succeed
        """),
    ),
    TableSchema(
        "spark_stages",
        BUNDLE,
        "one attempt at a stage of a Spark application; of a Hadoop job stage 0 is its maps, 1 its reduces",
        (*RUN_KEY, "stage_id", "stage_attempt"),
        columns("""
            stage_id | i64 | | the stage
            stage_attempt | i64 | | which attempt, from 0
            name | text | | where in the program it comes from
            tasks | i64 | | tasks of it
            slots | i64 | | tasks that could run at a time: over the executors there when it was submitted (if none, at its last launch) their cores by those of a task
            waves | i64 | | tasks over slots, rounded up
            start_ns | i64 | ns | when it was submitted, CLOCK_MONOTONIC
            end_ns | i64 | ns | when it was complete; null if it was not
            failed | i64 | | attempts at tasks that failed
            killed | i64 | | attempts at tasks that were killed
            stragglers | i64 | | tasks longer than 1.5 times the median
            p50_s | f64 | s | median of the times of tasks that succeeded (linear, type 7)
            p95_s | f64 | s | 95th percentile
            p99_s | f64 | s | 99th percentile
            most_s | f64 | s | longest
            reason | text | | why it failed, empty if it did not
        """),
    ),
)
