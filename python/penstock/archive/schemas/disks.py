"""Requests, changes and counters of disks, and certificates of their fidelity."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import BUNDLE, RUN_KEY, TableSchema, columns

TABLES = (
    TableSchema(
        "device_requests",
        BUNDLE,
        "one request that a disk served: an emulated disk by its log, a block device by what was seen beneath the traced calls (one row for each file and range in it)",
        (*RUN_KEY, "disk_id", "t_ns"),
        columns("""
            t_ns | i64 | ns | arrival, CLOCK_MONOTONIC
            due_ns | i64 | ns | when the profile says it is answered
            done_ns | i64 | ns | when it was answered
            service_ns | i64 | ns | service time drawn from the profile
            wait_ns | i64 | ns | time in the queue of the station
            lateness_ns | i64 | ns | done minus due, never below 0
            compensation_ns | i64 | ns | the way through the kernel that was taken off the arrival
            op | text | | `read`, `write` or `flush`
            sequential | bool | | it begins where the one before ended
            offset_bytes | i64 | B | where in the file
            device_offset_bytes | i64 | B | where on the disk
            size_bytes | i64 | B | size
            visit | i64 | | how often this place was asked for before, keys the draw
            file | text | | path relative to the mount; of a block device's request the whole path
            disk_id | text | | the disk, or the block device's name
            file_id | i64 | | the file, in `files`; of block devices only, as all that follows; null: not known
            pid | i64 | | process that asked; of writes from the page cache the one that had made the pages dirty
            tid | i64 | | its thread
            cgroup_id | u64 | | its control group
            source | text | | how the file is known: `page cache`, `direct`, `file system` (its own blocks), `none`
            join | text | | `exact`, `inferred` (several writers; or the thread is known, the file is not), `none`
            error | i64 | | errno of a disk's answer, 0 for none
        """),
    ),
    TableSchema(
        "events",
        BUNDLE,
        "one change of what is emulated, by a schedule or on request, in the order in which they were made; what a node or disk began with comes first",
        (*RUN_KEY, "node_id", "resource", "name", "applied_ns"),
        columns("""
            resource | text | | what changed: `disk`, `network`, `cpu`, `memory`, `node`
            name | text | | which disk or network of the node; empty where it has but one
            planned_ns | i64 | ns | when it was to be made, CLOCK_MONOTONIC
            applied_ns | i64 | ns | from when on it was in force: requests of the disk that arrived later met it
            verified_ns | i64 | ns | when it was read back
            asked | text | | the patch, as JSON
            found | text | | the same keys as they were read back, as JSON
            error | text | | why it failed; empty if it did not
            active | text | | what was in force since, beside the profile: names with commas between
            cause | text | | why it was made: `begin`, it was so from the start; `request`; `time`; `phase`, the mark of one; `metric`, a counter of a disk; `log`, a line of one
            cause_text | text | | which phase; which counter, its value and the bound; the line, whole
        """),
    ),
    TableSchema(
        "disk_stats",
        BUNDLE,
        "a counter of one disk over the workload",
        (*RUN_KEY, "disk_id", "metric"),
        columns("""
            disk_id | text | | the disk
            metric | text | | name of the counter: reads, writes, flushes, read_bytes, busy_ns, late_count, …
            value | f64 | | its value at the end, all counters being 0 at the start
        """),
    ),
    TableSchema(
        "host_waits",
        BUNDLE,
        "a tenth of a second in which the host kept the server of a disk waiting; others are left out",
        (*RUN_KEY, "disk_id", "t_ns"),
        columns("""
            disk_id | text | | the disk
            t_ns | i64 | ns | end of the window, CLOCK_MONOTONIC
            window_ns | i64 | ns | its length
            waited_ns | i64 | ns | that the server's threads waited for a processor: all timers, and the longest-waiting reader
            stolen_ns | i64 | ns | taken from the host's processors by other machines
            pressure_ns | i64 | ns | in which some task of the host waited for a processor (PSI); 0 where the kernel keeps none
            overslept_ns | i64 | ns | by which sleeps of a thread that shares nothing with the disks were too long
        """),
    ),
    TableSchema(
        "throttle_counters",
        BUNDLE,
        "a second of a throttled disk (back ends cgroup1, cgroup2), by the kernel's counters of the node's group",
        (*RUN_KEY, "disk_id", "direction", "t_ns"),
        columns("""
            t_ns | i64 | ns | end of the window
            window_ns | i64 | ns | its length
            disk_id | text | | the disk
            direction | text | | `read` or `write`
            bytes | i64 | B | delivered in it (cgroup1: handed in)
            ops | i64 | | the same, requests
            limit_bps | f64 | B/s | limit at its end, as read back; null: none
            limit_iops | f64 | 1/s | the same, of requests
        """),
    ),
    TableSchema(
        "fidelity",
        BUNDLE + " and OUT/fidelity.parquet",
        "a figure of one disk in one run, requested and delivered",
        (*RUN_KEY, "disk_id", "metric"),
        columns("""
            disk_id | text | | the disk
            metric | text | | `rate`, `p50`, `p99`, `lateness`, `overdue`, …
            asked | f64 | (`unit`) | what the profile's draws say
            delivered | f64 | (`unit`) | what the disk did
            ratio | f64 | | delivered over asked
            unit | text | | unit of both
            n | i64 | | requests behind the numbers
            verdict | text | | `honoured`, `demand-bound`, `device-bound`, `burst`, `host-saturated`, `too-short`, `not-honoured`, `unsupported`
            valid | bool | | whether the run may be used
            reason | text | | why not
            limit | f64 | | largest departure from what was asked, as a share, at which it is honoured
            rules | i64 | | version of the rules by which it was judged; tables without it: 1
        """),
        open_columns="further limits and intervals of the certificate",
    ),
    TableSchema(
        "fidelity_windows",
        BUNDLE
        + " and OUT/fidelity_windows.parquet (runs evaluated again by later rules than their own)",
        "the certificate second by second and by direction; windows of few requests are joined",
        (*RUN_KEY, "disk_id", "t_ns", "direction"),
        columns("""
            disk_id | text | | the disk
            backend | text | | what served it
            t_ns | i64 | ns | begin of the window, CLOCK_MONOTONIC
            window_ns | i64 | ns | its length
            direction | text | | `read` or `write`
            asked_bps | f64 | B/s | rate that the profile's draws and the limits in force ask for
            delivered_bps | f64 | B/s | rate while the disk had something to do
            asked_iops | f64 | 1/s | the same in requests
            delivered_iops | f64 | 1/s | the same in requests
            ratio | f64 | | delivered over asked
            ops | i64 | | requests that arrived in it
            bytes | i64 | B | their bytes
            p50_ns | f64 | ns | time in the disk; null where the count does not allow it; so p95, p99
            p95_ns | f64 | ns | as above
            p99_ns | f64 | ns | as above
            asked_p50_ns | f64 | ns | as drawn, queueing included; so p95, p99
            asked_p95_ns | f64 | ns | as above
            asked_p99_ns | f64 | ns | as above
            late_share | f64 | | replies later than a twentieth of their time and 50 us
            active | text | | what was in force beside the profile: `limits.read_bps=2e+06, readahead=off`
            verdict | text | | as of `fidelity`
            reason | text | | why
        """),
    ),
    TableSchema(
        "confirmation",
        BUNDLE + " and OUT/confirmation.parquet",
        "a figure of one file on a disk, by the tracer and by the disk's log (direct I/O only)",
        (*RUN_KEY, "disk_id", "file", "direction", "metric"),
        columns("""
            disk_id | text | | the disk
            file | text | | path relative to the mount
            direction | text | | `read` or `write`
            metric | text | | `bytes`, or `time` (mean of one call)
            traced | f64 | (`unit`) | by the tracer
            disk | f64 | (`unit`) | by the disk
            ratio | f64 | | disk over traced
            unit | text | | unit of both
            n | i64 | | calls traced
            agrees | bool | | within 5 %
        """),
    ),
    TableSchema(
        "second_source",
        BUNDLE,
        "a figure of fio, with the one due from the disks of the run; through the page cache only where each operation was one request",
        (*RUN_KEY, "direction", "metric"),
        columns("""
            direction | text | | `read` or `write`
            metric | text | | `bytes`, `ops`, `time` (mean of one request), `p99` of 500 requests and more, or `synced` (mean of a write with its sync)
            fio | f64 | (`unit`) | by fio
            disk | f64 | (`unit`) | by the disks' logs; times are those that were due
            ratio | f64 | | disk over fio
            unit | text | | unit of both
            n | i64 | | requests that fio counted
            agrees | bool | | within 5 % (`p99`: 15 %, which voids no run); through the page cache not later than that
        """),
    ),
    TableSchema(
        "agreement",
        BUNDLE + " and OUT/agreement.parquet",
        "what program, tracer and disk say of the bytes of one file (where the program says anything)",
        (*RUN_KEY, "file", "direction", "by"),
        columns("""
            file | text | | path relative to the mount, `*` for all files of the disk
            direction | text | | `read` or `write`
            by | text | | the program's counter
            claimed_bytes | i64 | B | what the program says
            traced_bytes | i64 | B | what its system calls returned
            disk_bytes | i64 | B | what reached the disk
            traced_ratio | f64 | | traced over claimed
            disk_ratio | f64 | | disk over claimed
            agrees | bool | | all within 2 % of the claim
        """),
    ),
)
