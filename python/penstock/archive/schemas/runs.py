"""Runs of a study, their attempts, and the course of each."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import BUNDLE, RUN_KEY, TableSchema, columns

TABLES = (
    TableSchema(
        "clocks",
        BUNDLE,
        "the clocks of the host at the start and at the end of a run, read together",
        (*RUN_KEY, "point"),
        columns("""
            point | text | | `start` or `end`
            monotonic_ns | i64 | ns | CLOCK_MONOTONIC, the time of every `t_ns`
            realtime_ns | i64 | ns | CLOCK_REALTIME, since 1970-01-01 UTC
            boottime_ns | i64 | ns | CLOCK_BOOTTIME
            offset_ns | i64 | ns | this host's monotonic clock minus the conductor's
            offset_bound_ns | i64 | ns | how far the readings of the row may be apart
        """),
    ),
    TableSchema(
        "phases",
        BUNDLE,
        "one phase of a run, as the conductor timed it or the program marked it",
        (*RUN_KEY, "phase_id"),
        columns("""
            phase_id | text | | `change` (what changes of factors make necessary), `prepare`, `attach` (disks and control group), `hooks` (the study's own commands before a run), `settle`, `rest` (declared idle time), `arm` (observers), `workload`, `disarm`, `detach`, `collect`; in a trace `workload` is the whole, and each line that the program writes to $PENSTOCK_MARKS begins a phase of that name
            start_ns | i64 | ns | when it began, CLOCK_MONOTONIC
            end_ns | i64 | ns | when it ended
        """),
    ),
    TableSchema(
        "runs",
        "OUT/runs.parquet",
        "one planned run that was made; its last attempt",
        ("study_id", "run_id"),
        columns("""
            study_id | text | | the study
            treatment_id | text | | the treatment
            run_id | text | | the run
            attempt | i64 | | the attempt that the row is about
            run_order | i64 | | place in the order of the plan, from 1
            standard_order | i64 | | place of the treatment in standard order, from 1
            replicate | i64 | | which repetition of the treatment, from 1
            block_id | i64 | | block (round) of the plan
            stage | i64 | | part of the study: 1, or from 2 on what was added to it
            state | text | | `finished`, `failed`, `timed-out`, `aborted`
            valid | bool | | the analysis uses it
            validity | text | | `valid`; `degraded`: used, with a bound on what the host and the request path changed; `invalid`
            delay_share | f64 | | of a degraded run: largest share of its time by which they may have delayed it
            others_cpus | f64 | | of a degraded run, and of one without emulated disks: processors that other programs used meanwhile
            reason | text | | why it is degraded or invalid, empty if valid
            start_realtime_ns | i64 | ns | when the run began, since 1970-01-01 UTC
            wall_s | f64 | s | how long the workload ran
            host_id | text | | the host that made it
        """),
        open_columns="one text column per factor (name of the level) and one f64 column per response, in the "
        "response's unit; of a study with degraded runs also `RESPONSE:low` and `RESPONSE:high`, between which the "
        "undisturbed value lies (null: no bound, not used for this response)",
    ),
    TableSchema(
        "attempts",
        "OUT/attempts.parquet",
        "one attempt at a run, those that were made again included",
        ("study_id", "run_id", "attempt"),
        columns("""
            study_id | text | | the study
            treatment_id | text | | the treatment
            run_id | text | | the run
            attempt | i64 | | from 1
            state | text | | `finished`, `failed`, `timed-out`, `aborted`
            valid | bool | | it may be used
            validity | text | | `valid`, `degraded` or `invalid`, as in `runs`
            reason | text | | why it is degraded or invalid
            start_realtime_ns | i64 | ns | when it began, since 1970-01-01 UTC
            wall_s | f64 | s | how long the workload ran
        """),
    ),
    TableSchema(
        "ledger",
        "OUT/ledger.parquet",
        "one valid run of a study that went on: what it was for and what it bought",
        ("run_id",),
        columns("""
            run_id | text | | the run
            stage | i64 | | part of the study: 1, or from 2 on what was added to it
            purpose | text | | `screen`, `augment`, `replicates`, `optimise` or `confirm`
            why | text | | why it was made
            seconds | f64 | s | how long its workload ran
            value | f64 | response's | the first response
            best_so_far | f64 | response's | the best of this and earlier runs
            spent_alpha | f64 | | alpha spent at the look before its stage
            screening_ended | text | | why screening ended before its stage: the rule and what it saw; empty otherwise
        """),
    ),
)
