"""Sampled and pushed data: readings, series of experiments, marks, alerts."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import BUNDLE, RUN_KEY, TableSchema, columns

TABLES = (
    TableSchema(
        "samples",
        BUNDLE,
        "one reading of one metric",
        (*RUN_KEY, "t_ns", "source", "entity", "metric"),
        columns("""
            t_ns | i64 | ns | when it was read, CLOCK_MONOTONIC
            source | text | | `cpu`, `memory`, `disk`, `block_latency`, `filesystem`, `emulated_disk`, `network`, `psi`, `cgroup`, `process`, `file`, `command`, `sampler`
            entity | text | | what it is about: a core, a device, a disk, a mount point, a link, a group; of a node's link `NODE INTERFACE`, of a bucket `DEVICE le=SECONDS`, of a process `pid=PID comm=NAME`, of the sampler's own `source=NAME`
            metric | text | | name of the metric
            unit | text | | its unit
            value | f64 | (`unit`) | the reading
            cumulative | bool | | a counter since some start, not a level
        """),
    ),
    TableSchema(
        "utilisation",
        BUNDLE,
        "how busy something was between two readings",
        (*RUN_KEY, "t_ns", "kind", "entity", "metric"),
        columns("""
            t_ns | i64 | ns | end of the interval, CLOCK_MONOTONIC
            kind | text | | `cpu`, `disk`, `block_latency`, `network`, `emulated_disk`, `cgroup_cpu`
            entity | text | | what it is about
            metric | text | | which of its utilisations; of processors `busy`, `stolen` by other machines, `waited_for` by some task; of groups `busy` and `cores` used; of block latency `OP_p50`, `OP_p99`, `OP_mean`, `OP_queue_p99`, `OP_queue_mean`
            unit | text | | unit of the value, mostly %
            value | f64 | (`unit`) | the value, null where a counter went back
            reset | bool | | a counter went back in the interval
        """),
        open_columns="further marks of the monitor",
    ),
    TableSchema(
        "alerts",
        BUNDLE,
        "samples in a row in which what an alert rule of the study asks held, of one entity",
        (*RUN_KEY, "rule", "entity", "since_ns"),
        columns("""
            rule | text | | the rule as it was written
            action | text | | `note` or `abort`
            metric | text | | what it looks at: kind and metric of `utilisation`, or source and metric of `samples`
            entity | text | | which one of them
            since_ns | i64 | ns | the first sample that held (CLOCK_MONOTONIC)
            fired_ns | i64 | ns | the first one after the time that the rule asks for
            until_ns | i64 | ns | the last that held
            worst | f64 | the rule's | the value farthest beyond the threshold
            threshold | f64 | the rule's | what the values are compared with
            unit | text | | unit of both
            aborted | bool | | whether it ended the run
        """),
    ),
    TableSchema(
        "series",
        BUNDLE,
        "a series that an experiment, or the collectors of a run, recorded, with what came of it and what did not",
        (*RUN_KEY, "series_id"),
        columns("""
            series_id | i64 | | number in `points`, from 0
            source | text | | the collector that it came from
            metric | text | | what is measured
            labels | text | | of what, as JSON of texts, sorted by name
            kind | text | | `time` or `sequence` (indexed 0, 1, 2, …, and never joined by time)
            type | text | | of its values: `float`, `integer`, `text` or `boolean`
            unit | text | | of its values, empty for none
            interval_ns | i64 | ns | how often a point was due, null where that is irregular
            interval_from | text | | `told` by who sent it, `inferred` from the median spacing of ten points or more, or empty
            produced | i64 | | points that the program made, null where nobody counted
            received | i64 | | points that came: `stored`, `outside`, `without_value` and `duplicate` together
            stored | i64 | | points in `points` whose time is within the experiment
            expected | i64 | | points that should have come, null where that cannot be known
            late | i64 | | points that were taken or sent after their time
            duplicate | i64 | | points of a time or index that another replaced
            without_value | i64 | | points that came without a value (NaN, infinities, staleness markers): none of them is in `points`, and nothing is missing at their times
            outside | i64 | | points in `points` whose time is before the experiment's begin or after its end
            outside_by_ns | i64 | ns | about how far these are from the experiment, above 0 after it, where its collector did not poll them around it: their clock is another one
            refused | i64 | | points of its source, of whichever series, that were none
            lost | i64 | | points that are missing in the gaps, not counting where it was switched off
            gaps | i64 | | holes of the series, in `gaps`
            longest_gap_ns | i64 | ns | the longest of them, not counting where it was switched off
            resets | i64 | | times that a counter went back
            restarts | i64 | | times that the target began anew
            verdict | text | | `complete` (at least 99 %, no gap over 5 intervals), `unknown` (nobody told how many there should be), `partial` or `unusable`
            rules | i64 | | version of the rules of the verdict; tables without it: 1
        """),
    ),
    TableSchema(
        "points",
        BUNDLE,
        "one value of such a series, in the order of the series and of time or index",
        (*RUN_KEY, "series_id", "utc_ns", "index"),
        columns("""
            series_id | i64 | | the series, in `series`
            utc_ns | i64 | ns | since 1970-01-01 UTC, as its source stamped it; null where a sequence has no times
            index | i64 | | place in the sequence, null in a series of times
            float | f64 | | the value, where it is a number with decimals
            integer | i64 | | the value, where it is an integer
            text | text | | the value, where it is a text
            boolean | bool | | the value, where it is true or false
        """),
    ),
    TableSchema(
        "gaps",
        BUNDLE,
        "a stretch of a series, or of all series of a source, that differs from the rest",
        (*RUN_KEY, "source", "series_id", "kind", "start_utc_ns", "start_index"),
        columns("""
            source | text | | the collector
            series_id | i64 | | the series, null for all of the source
            kind | text | | `lost` (points are missing), `disabled` (it was switched off), `reset` (a counter went back), `restart` (the target, or the collector, began anew), `batches` (batches are missing), `starting` (the collector had not begun), `ending` (it was stopped), `stale` (its sender said that it ended), `refused` (points that were none), `refused-messages` (messages of which nothing was read)
            start_utc_ns | i64 | ns | from when, since 1970-01-01 UTC; null in a sequence
            end_utc_ns | i64 | ns | until when
            start_index | i64 | | the first that is missing of a sequence or of the batches
            end_index | i64 | | the last
            missing | i64 | | how many points, or batches, are missing; how many points or messages were refused
            detail | text | | what the collector said
        """),
    ),
    TableSchema(
        "derived",
        BUNDLE,
        "one value of a series that was computed from others, `penstock monitor derive`",
        (*RUN_KEY, "metric", "labels", "utc_ns"),
        columns("""
            metric | text | | what it is called
            labels | text | | of what, as JSON of texts
            unit | text | | of its values, empty for none
            expression | text | | what it was computed with
            utc_ns | i64 | ns | since 1970-01-01 UTC
            value | f64 | | the value
        """),
    ),
    TableSchema(
        "marks",
        BUNDLE,
        "a phase or a note of an experiment",
        (*RUN_KEY, "number"),
        columns("""
            number | i64 | | in the order of their beginnings, from 0
            kind | text | | `phase` or `note`
            name | text | | of a phase with those around it, as `load/warm-up`; of a note its words
            start_utc_ns | i64 | ns | when, since 1970-01-01 UTC
            end_utc_ns | i64 | ns | when a phase ended
        """),
    ),
)
