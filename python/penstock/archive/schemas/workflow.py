"""A workflow that was run on a store."""

from __future__ import annotations

from penstock.archive.schemas.table import TableSchema, columns

TABLES = (
    TableSchema(
        "workflow_tasks",
        "OUT/<repetition>/",
        "a task of a workflow that was run on a store",
        ("task",),
        columns("""
            task | text | | its name in the workload
            stage | text | | tasks of one stage are summed up together
            host | text | | the node that ran it
            ready_s | f64 | s | when nothing kept it any more, from when the first task was ready
            sent_s | f64 | s | when its hints were set and it was handed to the node
            start_s | f64 | s | when its process began
            end_s | f64 | s | when its process ended, and the store had its output
            attempt | i64 | | number of this attempt, from 1
            queue_s | f64 | s | from the end of its predecessors to a free slot
            decision_s | f64 | s | its share of the scheduler's time
            tag_s | f64 | s | the store's calls that applied the hints of its output
            dispatch_s | f64 | s | from the decision to the fork on its node, without `tag_s`
            launch_s | f64 | s | from the fork to the start of its program, or of its first operation
            report_s | f64 | s | from its end to the runner's notice of it; null if another command noticed
            locate_s | f64 | s | the store's calls that located its output
        """),
    ),
    TableSchema(
        "workflow_operations",
        "OUT/<repetition>/",
        "an operation of such a task",
        ("task", "number"),
        columns("""
            task | text | | its task
            number | i64 | | its number in the task, from 0
            op | text | | open, read, write, compute
            file | text | | the file, null of computing
            offset_bytes | i64 | B | from where
            size_bytes | i64 | B | how much
            start_s | f64 | s | from when the first task was ready
            end_s | f64 | s | what was written is with the store then
        """),
    ),
)
