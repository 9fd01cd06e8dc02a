"""Every table that penstock writes: its columns, their units, their meaning, and its key.

The only place where tables are described: the metadata in the Parquet files and docs/formats.md come from
here. Types are Arrow's; text columns may be dictionary-encoded in a file.
"""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

#: version of the layout of bundles and tables
BUNDLE_SCHEMA = "penstock/bundle/1"


def _struct(text: str = "", i64: str = "", f64: str = "", **others: pa.DataType) -> pa.DataType:
    fields = [(name, pa.string()) for name in text.split()]
    fields += [(name, pa.int64()) for name in i64.split()]
    fields += [(name, pa.float64()) for name in f64.split()]
    return pa.struct([*fields, *others.items()])


#: what the classifier (crates/pattern) rests a verdict on, why a device's order is another, what mode count has
EVIDENCE = _struct(
    text="basis reason of_calls",
    i64="epochs near_bytes darshan_consec darshan_seq asked_bytes",
    f64="main_stream_share held_by_threads_share largest_phase_share bytes_ratio size_ratio",
    chains=_struct(i64="count open_median", f64="held_share backward_share"),
    streams=pa.list_(_struct("kind", "requests size_bytes stride_bytes", "share")),
    strides_bytes=pa.list_(pa.int64()),
    spread=_struct(
        i64="block_bytes",
        f64="reaccess_share top_fifth_share top_fifth_low zipf_exponent zipf_half_width sampled_share",
    ),
    uniformity=_struct(i64="degrees_of_freedom", f64="chi_squared"),
    phases=pa.list_(
        _struct("class", "first end k start_ns end_ns", strides_bytes=pa.list_(pa.int64()))
    ),
)

_TYPES = {
    "text": pa.string(),
    "evidence": EVIDENCE,
    "i64": pa.int64(),
    "u64": pa.uint64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
}


@dataclass(frozen=True)
class Column:
    """One column: name, type ('text', 'i64', 'u64', 'f64', 'bool', 'evidence'), unit ('' for none), meaning."""

    name: str
    type: str
    unit: str
    meaning: str

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type in which penstock writes it when it makes the table itself."""
        return _TYPES[self.type]


@dataclass(frozen=True)
class TableSchema:
    """One table: where it lies, what a row is, its key columns and its columns.

    `open_columns` says in words which further columns a study adds, None where there are no others.
    """

    name: str
    place: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    open_columns: str | None = None

    def column(self, name: str) -> Column | None:
        """The column of that name, None if the table has none."""
        return next((c for c in self.columns if c.name == name), None)

    @property
    def arrow(self) -> pa.Schema:
        """The schema without the key columns that a bundle adds."""
        return pa.schema([(c.name, c.arrow) for c in self.columns])

    def arrow_with(self, types: Mapping[str, pa.DataType]) -> pa.Schema:
        """The same, with other types for columns that would be large in these."""
        return pa.schema([(c.name, types.get(c.name, c.arrow)) for c in self.columns])


#: columns that every table of a bundle begins with
BUNDLE_KEYS = (
    Column("study_id", "text", "", "the study: its name and 8 hexadecimal digits of its hash"),
    Column(
        "treatment_id",
        "text",
        "",
        "the combination of factor levels, t01, t02, … in standard order",
    ),
    Column("run_id", "text", "", "the planned run, r001, r002, … in the order of the plan"),
    Column("attempt", "i64", "", "1, or more where the run was made again"),
    Column("host_id", "text", "", "the host that made the run"),
    Column("node_id", "text", "", "the node of the platform that the row is about"),
)


def _columns(text: str) -> tuple[Column, ...]:
    """Columns from lines of `name | type | unit | meaning`."""
    rows = (line.split("|", 3) for line in text.strip().splitlines())
    return tuple(Column(*(cell.strip() for cell in row)) for row in rows)


_BUNDLE = "runs/<run_id>/"
_RUN_KEY = ("study_id", "run_id", "attempt")

_TABLES = (
    TableSchema(
        "clocks",
        _BUNDLE,
        "the clocks of the host at the start and at the end of a run, read together",
        (*_RUN_KEY, "point"),
        _columns("""
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
        _BUNDLE,
        "one phase of a run, as the conductor timed it or the program marked it",
        (*_RUN_KEY, "phase_id"),
        _columns("""
            phase_id | text | | `change` (what changes of factors make necessary), `prepare`, `attach` (disks and control group), `hooks` (the study's own commands before a run), `settle`, `rest` (declared idle time), `arm` (observers), `workload`, `disarm`, `detach`, `collect`; in a trace `workload` is the whole, and each line that the program writes to $PENSTOCK_MARKS begins a phase of that name
            start_ns | i64 | ns | when it began, CLOCK_MONOTONIC
            end_ns | i64 | ns | when it ended
        """),
    ),
    TableSchema(
        "io_events",
        _BUNDLE,
        "one operation on a regular file by a process of the run: a system call, an asynchronous request, a page fault",
        (*_RUN_KEY, "seq"),
        _columns("""
            t_ns | i64 | ns | when the call was entered, CLOCK_MONOTONIC
            seq | u64 | | order in which the events were recorded
            op | text | | the call: `read`, `pread64`, … `fsync`, … `open`, …; `fault_read`, `fault_write` of mapped files, `fault_around`, `fault_around_write` what the kernel mapped (and with a write dirtied) around them, whose `done_bytes` are of pages not mapped before, the asked one among them; halves of `sendfile`, `splice`, `copy` end in `_in` and `_out`; `device_read`, `device_write`, `device_flush` are requests of a device (imported, or from a disk's log)
            direction | text | | `read`, `write`, `sync` (durability) or `meta` (open, close, names, sizes)
            file_id | i64 | | the file, in `files`
            offset_bytes | i64 | B | where in the file
            size_bytes | i64 | B | asked for
            done_bytes | i64 | B | transferred; 0 if the call failed
            errno | i64 | | 0, or the error number
            latency_ns | i64 | ns | from entry to return; asynchronous: from submission to completion
            pid | i64 | | process
            tid | i64 | | thread
            cgroup_id | u64 | | control group of the thread
            flags | i64 | | bits: 1 direct, 2 append, 4 synchronous, 8 vectored, 16 at the position of the descriptor, 32 not to wait, 64 asynchronous, 128 its end is when it was fetched; of faults: 1 major, 2 huge page, 4 private copy
        """),
    ),
    TableSchema(
        "files",
        _BUNDLE,
        "one file that an event is about",
        (*_RUN_KEY, "file_id"),
        _columns("""
            file_id | i64 | | number of the file in this bundle
            dev_major | i64 | | device, major number
            dev_minor | i64 | | device, minor number
            inode | u64 | | inode number; null of a path that could not be opened
            generation | u64 | | inode generation, tells a reused inode number
            path | text | | path when it was first seen; a directory, which is here if it was flushed, ends with `/`
            size_bytes | i64 | B | size when it was first seen
            disk_id | text | | the emulated disk it lies on, null elsewhere
            resident_pages | i64 | | pages of it in the page cache when it was first seen
            unlinked | bool | | it had no name any more when it was first seen
        """),
    ),
    TableSchema(
        "threads",
        _BUNDLE,
        "one thread of the traced processes and one program that it ran",
        (*_RUN_KEY, "tid", "first_ns"),
        _columns("""
            tid | i64 | | thread
            pid | i64 | | its process
            program | text | | name of the program or thread (comm, at most 15 bytes)
            first_ns | i64 | ns | its first call seen, CLOCK_MONOTONIC
        """),
    ),
    TableSchema(
        "file_names",
        _BUNDLE,
        "one name that a file got or lost while it was traced",
        (*_RUN_KEY, "file_id", "t_ns", "kind", "path"),
        _columns("""
            file_id | i64 | | the file, in `files`
            t_ns | i64 | ns | when, CLOCK_MONOTONIC: of a first use when it was recorded, of a change when its call was entered
            kind | text | | `first`: the path at first use; `rename`, `link`: a name it got; `unlink`: a name it lost
            path | text | | the path; bytes that are not UTF-8 as `\\udcXX`
            path_hex | text | | its bytes in hexadecimal, where they are not UTF-8; else null
        """),
    ),
    TableSchema(
        "operations",
        _BUNDLE,
        "the operations of one kind, other than reads and writes, on one file",
        (*_RUN_KEY, "file_id", "op"),
        _columns("""
            file_id | i64 | | the file, in `files`; 0 where there is none (`sync`, a failed `open`) or the call gave only a name
            op | text | | the operation, as in `io_events`
            calls | i64 | | how many
            errors | i64 | | of these, failed
            time_ns | i64 | ns | from entry to return, all together
            longest_ns | i64 | ns | the longest
        """),
    ),
    TableSchema(
        "patterns",
        _BUNDLE,
        "the verdict on one file, direction and thread",
        (*_RUN_KEY, "file_id", "direction", "tid", "basis", "phase_id"),
        _columns("""
            file_id | i64 | | the file, in `files`
            path | text | | its path
            direction | text | | `read` or `write`
            tid | i64 | | thread, null for all threads together
            basis | text | | what was judged: `calls`; `faults` (page faults on a mapped file: a lower bound of its accesses); `counters` (calls that were counted, not recorded, because the file was not chosen, see `decisions`); `device` (requests as the device got them)
            phase_id | text | | the phase that was judged, in `phases`; null for the whole
            class | text | | `consecutive`, `sequential`, `interleaved`, `random`, `mixed`, `irregular`, `insufficient`, …
            k | i64 | | number of interleaved streams, null where it is not that
            requests | i64 | | requests judged
            bytes | i64 | B | bytes transferred by them
            confidence | f64 | | lower end of the 95 % interval of the share that decides
            consecutive_share | f64 | | share of requests that begin where the one before ended
            forward_share | f64 | | share that go forward
            sequential_share | f64 | | share that go forward by little, or on
            reverse_share | f64 | | share that go backward
            median_size_bytes | f64 | B | median request
            calls | i64 | | operations of all threads, those that failed or did nothing too; null for single threads
            time_ns | i64 | ns | from entry to return, all together
            evidence | evidence | | the counts behind the verdict, a structure whose fields are null where the class has none of them (bundles of earlier versions: JSON text, with `calls` and `time_ns` in it)
            sentence | text | | what it means, one sentence
            joint_class | text | | the class of reads and writes together; null for single threads, and where the file was only read or only written
            joint_k | i64 | | its number of interleaved streams, null where it is not that
            joint_confidence | f64 | | its confidence
            joint_sentence | text | | what it means
        """),
        open_columns="further measures of the classifier",
    ),
    TableSchema(
        "epochs",
        _BUNDLE,
        "counts of a stretch of up to 1,024 requests of one thread on one file in one direction (mode pattern; files not chosen)",
        (*_RUN_KEY, "file_id", "direction", "basis", "tid", "first_ns"),
        _columns("""
            file_id | i64 | | the file, in `files`
            direction | text | | `read` or `write`
            basis | text | | `calls` or `faults`
            tid | i64 | | thread
            pid | i64 | | process
            first_ns | i64 | ns | its first request, CLOCK_MONOTONIC
            last_ns | i64 | ns | its end; of the last epoch the last call whose latency was sampled
            requests | i64 | | requests that did something
            errors | i64 | | requests that failed
            done_bytes | i64 | B | transferred
            steps | i64 | | steps from one request to the next: one less than requests in the first epoch
            consecutive | i64 | | steps of 0: it begins where the one before ended
            near | i64 | | steps from 0 to 128 KiB or 8 times the size
            forward | i64 | | steps of 0 or more
            reverse | i64 | | it ends where the one before began
            higher | i64 | | it begins beyond where the one before began (Darshan's SEQ)
            cycle_1 | i64 | | distances from start to start equal to the one before
            cycle_2 | i64 | | equal to the one two before
            cycle_3 | i64 | | equal to the one three before
            cycle_4 | i64 | | equal to the one four before
            chained | i64 | | requests in chains of 8 or more, whatever came between
            chains | i64 | | chains that became that long
            open_sum | i64 | | chains open at once, summed over the requests
            lowest_bytes | i64 | B | lowest start
            highest_bytes | i64 | B | highest start
            least_size_bytes | i64 | B | smallest request
            most_size_bytes | i64 | B | largest request
            sampled_ns | i64 | ns | latency of the calls whose latency was sampled
        """),
    ),
    TableSchema(
        "decisions",
        _BUNDLE,
        "one file in one choice of those whose events are kept (`penstock trace --hot`): used since the last choice, or not any more",
        (*_RUN_KEY, "t_ns", "file_id"),
        _columns("""
            t_ns | i64 | ns | when it was decided, CLOCK_MONOTONIC
            window_ns | i64 | ns | how long the stretch was that it goes by: up to `t_ns`
            file_id | i64 | | the file, in `files`
            kept | bool | | its calls are in `io_events` until the next choice; else counted: `patterns` with basis `counters` (page faults and asynchronous requests are recorded all the same)
            share | f64 | | its part of all requests (or bytes) in the stretch
            requests | i64 | | its reads and writes in the stretch, recorded and counted
            bytes | i64 | B | transferred by them
            reason | text | | `in the smallest set` that covers the wanted share, `beyond the smallest set`, `not used` in the stretch
        """),
    ),
    TableSchema(
        "device_requests",
        _BUNDLE,
        "one request that a disk served: an emulated disk by its log, a block device by what was seen beneath the traced calls (one row for each file and range in it)",
        (*_RUN_KEY, "disk_id", "t_ns"),
        _columns("""
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
        _BUNDLE,
        "one change of what is emulated, by a schedule or on request, in the order in which they were made; what a node or disk began with comes first",
        (*_RUN_KEY, "node_id", "resource", "name", "applied_ns"),
        _columns("""
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
        "mapped",
        _BUNDLE,
        "what one process had mapped of one file when it, or the trace, ended (mappings undone earlier are not in it)",
        (*_RUN_KEY, "file_id", "pid"),
        _columns("""
            file_id | i64 | | the file, in `files`
            pid | i64 | | the process
            pages_before | i64 | | of those, pages already mapped when tracing began, which leave no fault, and not seen since
            pages_present | i64 | | pages in its page tables
            pages_seen | i64 | | of those, pages that its faults were about or mapped around
            coverage | f64 | | share of the present pages that were seen; null where `presences_lost` pieces are not known
        """),
    ),
    TableSchema(
        "cache_use",
        _BUNDLE,
        "what served one read or write of a regular file",
        (*_RUN_KEY, "seq"),
        _columns("""
            seq | u64 | | the operation, in `io_events`
            pages_hit | i64 | | pages that were in the page cache (0 for direct operations)
            pages_readahead | i64 | | pages that were there because an earlier read had them read ahead, used for the first time
            pages_missed | i64 | | pages that came in during the call
            requests | i64 | | requests to block devices that it began, or waited for
            device_ns | i64 | ns | part of its latency in which a request for what it asked was queued or served
            join | text | | `exact` by thread and time, `inferred` by page (it waited for another's request), `none`: no request found for what was missing
        """),
    ),
    TableSchema(
        "writeback",
        _BUNDLE,
        "what one process made dirty of one file, and what of it reached the device before the end",
        (*_RUN_KEY, "file_id", "pid", "cgroup_id"),
        _columns("""
            file_id | i64 | | the file, in `files`
            pid | i64 | | process that made the pages dirty
            cgroup_id | u64 | | its control group then
            bytes_dirtied | i64 | B | page-cache pages that became dirty, whole folios
            bytes_written | i64 | B | of its pages, written by whomever
        """),
    ),
    TableSchema(
        "residency",
        _BUNDLE,
        "how much of one file was in the page cache",
        (*_RUN_KEY, "file_id", "moment"),
        _columns("""
            file_id | i64 | | the file, in `files`
            moment | text | | `start`: when the run first met the file; `end`
            resident_pages | i64 | | pages in memory
            pages | i64 | | pages of the file
        """),
    ),
    TableSchema(
        "extents",
        _BUNDLE,
        "how one file lies on its device at the end of the run",
        (*_RUN_KEY, "file_id"),
        _columns("""
            file_id | i64 | | the file, in `files`
            count | i64 | | pieces; such as touch in file and device are one
            contiguous_share | f64 | | share of its 4 KiB blocks, but the first, that lie right behind the block before them
            mapped_bytes | i64 | B | bytes with a place on the device
            largest_bytes | i64 | B | largest piece
        """),
    ),
    TableSchema(
        "disk_stats",
        _BUNDLE,
        "a counter of one disk over the workload",
        (*_RUN_KEY, "disk_id", "metric"),
        _columns("""
            disk_id | text | | the disk
            metric | text | | name of the counter: reads, writes, flushes, read_bytes, busy_ns, late_count, …
            value | f64 | | its value at the end, all counters being 0 at the start
        """),
    ),
    TableSchema(
        "host_waits",
        _BUNDLE,
        "a tenth of a second in which the host kept the server of a disk waiting; others are left out",
        (*_RUN_KEY, "disk_id", "t_ns"),
        _columns("""
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
        _BUNDLE,
        "a second of a throttled disk (back ends cgroup1, cgroup2), by the kernel's counters of the node's group",
        (*_RUN_KEY, "disk_id", "direction", "t_ns"),
        _columns("""
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
        "samples",
        _BUNDLE,
        "one reading of one metric",
        (*_RUN_KEY, "t_ns", "source", "entity", "metric"),
        _columns("""
            t_ns | i64 | ns | when it was read, CLOCK_MONOTONIC
            source | text | | `cpu`, `memory`, `disk`, `block_latency`, `filesystem`, `emulated_disk`, `network`, `psi`, `cgroup`, `sampler`
            entity | text | | what it is about: a core, a device, a disk, a mount point, a link, a group; of a node's link `NODE INTERFACE`, of a bucket `DEVICE le=SECONDS`
            metric | text | | name of the metric
            unit | text | | its unit
            value | f64 | (`unit`) | the reading
            cumulative | bool | | a counter since some start, not a level
        """),
    ),
    TableSchema(
        "utilisation",
        _BUNDLE,
        "how busy something was between two readings",
        (*_RUN_KEY, "t_ns", "kind", "entity", "metric"),
        _columns("""
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
        "spark_tasks",
        _BUNDLE,
        "one attempt at a task of a Spark application or a Hadoop job, by its own log",
        (*_RUN_KEY, "task_id"),
        _columns("""
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
        _BUNDLE,
        "one attempt at a stage of a Spark application; of a Hadoop job stage 0 is its maps, 1 its reduces",
        (*_RUN_KEY, "stage_id", "stage_attempt"),
        _columns("""
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
    TableSchema(
        "fidelity",
        _BUNDLE + " and OUT/fidelity.parquet",
        "asked against delivered of one disk in one run",
        (*_RUN_KEY, "disk_id", "metric"),
        _columns("""
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
        _BUNDLE
        + " and OUT/fidelity_windows.parquet (runs judged again by later rules than their own)",
        "the certificate second by second and by direction; windows of few requests are joined",
        (*_RUN_KEY, "disk_id", "t_ns", "direction"),
        _columns("""
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
        _BUNDLE + " and OUT/confirmation.parquet",
        "what the tracer saw of one file on a disk, beside what the disk logged (direct I/O only)",
        (*_RUN_KEY, "disk_id", "file", "direction", "metric"),
        _columns("""
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
        _BUNDLE,
        "what fio itself counted, beside what the disks of the run were to do; through the page cache only where each operation was one request",
        (*_RUN_KEY, "direction", "metric"),
        _columns("""
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
        _BUNDLE + " and OUT/agreement.parquet",
        "what program, tracer and disk say of the bytes of one file (where the program says anything)",
        (*_RUN_KEY, "file", "direction", "by"),
        _columns("""
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
    TableSchema(
        "runs",
        "OUT/runs.parquet",
        "one planned run that was made; its last attempt",
        ("study_id", "run_id"),
        _columns("""
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
            valid | bool | | whether the analysis uses it
            reason | text | | why it does not, empty if valid
            start_realtime_ns | i64 | ns | when the run began, since 1970-01-01 UTC
            wall_s | f64 | s | how long the workload ran
            host_id | text | | the host that made it
        """),
        open_columns="one text column per factor (name of the level) and one f64 column per response, in the "
        "response's unit",
    ),
    TableSchema(
        "attempts",
        "OUT/attempts.parquet",
        "one attempt at a run, those that were made again included",
        ("study_id", "run_id", "attempt"),
        _columns("""
            study_id | text | | the study
            treatment_id | text | | the treatment
            run_id | text | | the run
            attempt | i64 | | from 1
            state | text | | `finished`, `failed`, `timed-out`, `aborted`
            valid | bool | | whether it may be used
            reason | text | | why not
            start_realtime_ns | i64 | ns | when it began, since 1970-01-01 UTC
            wall_s | f64 | s | how long the workload ran
        """),
    ),
    TableSchema(
        "ledger",
        "OUT/ledger.parquet",
        "one valid run of a study that went on: what it was for and what it bought",
        ("run_id",),
        _columns("""
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
    TableSchema(
        "effects",
        "OUT/effects.parquet",
        "one term of the model of one response",
        ("response", "term"),
        _columns("""
            response | text | | the response
            term | text | | a factor, an interaction (`disk:pattern`), a block term, or `residual`
            coefficient | f64 | response's | q: change per coded unit, on `scale`
            effect | f64 | response's | 2q: mean at the second level minus mean at the first, on `scale`
            ci_low | f64 | response's | 95 % Student-t interval of the coefficient, low end
            ci_high | f64 | response's | high end
            effect_ci_low | f64 | response's | 95 % interval of the effect, low end
            effect_ci_high | f64 | response's | high end
            variation_share | f64 | % | share of the total variation; null where a treatment has no valid run
            p_value | f64 | | two-sided, Student t
            aliases | text | | terms that this design cannot tell from it
            df | i64 | | degrees of freedom
            stratum | text | | what the term is judged by: `run`, or settings that were kept: `whole_plot`, `strip`
            df_error | f64 | | degrees of freedom of the error that the term is judged by
            p_holm | f64 | | p-value, all terms of the response judged together: after Holm; where all are by Lenth, of his simultaneous margin
            p_bh | f64 | | p-value by the false discovery rate (Benjamini & Hochberg)
            scale | text | | `linear`, or that of which coefficient, effect and intervals are: `log` (natural), `box-cox`, `rank`
            ratio | f64 | | second level over the first; of scale `log` only
            ratio_ci_low | f64 | | its 95 % interval, low end
            ratio_ci_high | f64 | | high end
            correlations | text | | the estimates that this one depends on most, with their correlation; of lost runs only
        """),
        open_columns="further statistics of the analysis: sums of squares (type III; `_1`, `_2`: types I and II), "
        "mean square, F, standard error, method, number of runs, variance of a stratum",
    ),
    TableSchema(
        "residuals",
        "OUT/residuals.parquet",
        "one run of the analysis of one response",
        ("response", "run_id"),
        _columns("""
            response | text | | the response
            run_id | text | | the run
            treatment_id | text | | the treatment
            run_order | i64 | | place in the order of the plan, from 1
            scale | text | | the scale of the fit, as in `effects`
            fitted | f64 | scale's | as the model has it
            residual | f64 | scale's | measured less fitted
            studentised | f64 | | externally studentised residual; null where the fit leaves it no freedom
            flag | text | | why the run lies far from others; it is analysed all the same
        """),
    ),
    TableSchema(
        "trends",
        "OUT/trends.parquet",
        "one orthogonal contrast of a quantitative factor of three levels or more",
        ("response", "factor", "contrast"),
        _columns("""
            response | text | | the response
            factor | text | | the factor
            contrast | text | | `linear`, `quadratic` (curvature), `cubic`, of the real values of the levels
            coefficient | f64 | scale's | change per unit of the contrast; of the linear one per unit of the factor
            effect | f64 | scale's | coefficient times the contrast's range
            effect_ci_low | f64 | scale's | 95 % interval of the effect, low end
            effect_ci_high | f64 | scale's | high end
            p_value | f64 | | two-sided, Student t
            df_error | f64 | | degrees of freedom of the error
            scale | text | | the scale of the fit, as in `effects`
        """),
    ),
    TableSchema(
        "surface",
        "OUT/surface.parquet",
        "one coefficient, or one test, of the surface of a response (studies that look for the best setting)",
        ("response", "term"),
        _columns("""
            response | text | | the response
            term | text | | `mean`, a factor, `a:b`, the square `a²`; or the test `pure error`, `lack of fit`, `curvature at the centre`
            coefficient | f64 | scale's | per coded unit: numbers run from −1 (lowest level) to +1 (highest)
            standard_error | f64 | scale's | its standard error
            ci_low | f64 | scale's | 95 % interval, low end
            ci_high | f64 | scale's | high end
            p_value | f64 | | Student t; of a test F
            df | i64 | | degrees of freedom
            sum_of_squares | f64 | scale's² | of a test
            df_error | f64 | | degrees of freedom of what it is judged by
            scale | text | | the scale of the fit, `linear`, `log` or `box-cox`
            power | f64 | | the Box-Cox power, of largest likelihood for this surface; null on other scales
        """),
    ),
    TableSchema(
        "optimum",
        "OUT/optimum.parquet",
        "one setting that stands out: of one response by its surface, or of all by desirability",
        ("response", "what"),
        _columns("""
            response | text | | the response, or `all responses`
            what | text | | `best` within the levels; `stationary`: the surface is level; `chosen`: largest desirability
            at | text | | JSON, factor: number or level
            nature | text | | of a stationary point: maximum, minimum, saddle or ridge, and the intervals of its numbers
            value | f64 | response's | predicted there; of `all responses` the desirability
            ci_low | f64 | response's | 95 % interval of the mean, low end
            ci_high | f64 | response's | high end
            run_low | f64 | response's | 95 % interval of one run, low end
            run_high | f64 | response's | high end
        """),
    ),
    TableSchema(
        "means",
        "OUT/means.parquet",
        "one treatment of one response by its valid runs, or one level of one factor over the combinations that all its levels have",
        ("response", "kind", "levels"),
        _columns("""
            response | text | | the response
            unit | text | | its unit
            kind | text | | `treatment` or `level`
            treatment_id | text | | the treatment; null of a level
            factor | text | | the factor of a level; null of a treatment
            levels | text | | JSON, factor: level
            rank | i64 | | 1 is the best
            mean | f64 | response's | of the runs; of a level: of the treatments' means
            ci_low | f64 | response's | 95 % Student-t interval of the mean, low end; null without replicates
            ci_high | f64 | response's | high end
            times_best | f64 | | how many times better the best is, 1 for the best; null where a value is not above 0
            times_best_low | f64 | | 95 % interval for all treatments together, low end; null of a level, and without replicates
            times_best_high | f64 | | high end
            n | i64 | | runs
            verdict | text | | `best`; `as-good`: not told from the best, and at most 5 % worse; `undecided`: not told from it; `worse`; empty of a level, and without replicates
        """),
    ),
    TableSchema(
        "predictions",
        "OUT/predictions.parquet",
        "one response of one treatment, predicted (never mixed with measured rows)",
        ("treatment_id", "response"),
        _columns("""
            treatment_id | text | | the treatment
            response | text | | the response
            predicted | f64 | response's | predicted mean
            ci_low | f64 | response's | interval, low end
            ci_high | f64 | response's | interval, high end
            measured_mean | f64 | response's | mean of the valid runs
            ratio | f64 | | predicted over measured
            source | text | | the model: `station` (operations of the command), `replay` (traced calls)
            basis_treatment | text | | the treatment whose trace it comes from
            calibration | text | | `calibrated` by the other treatments' residuals, or `insufficient calibration`
        """),
        open_columns="one text column per factor, and what the model adds",
    ),
    TableSchema(
        "calibration",
        "OUT/calibration.parquet",
        "one prediction that was measured as well: what calibrates further intervals",
        ("workload", "platform"),
        _columns("""
            workload | text | | the study and the response
            platform | text | | the treatment
            predicted | f64 | response's | predicted mean
            measured | f64 | response's | mean of the valid runs
            low | f64 | response's | simulated interval, low end, where it was kept
            high | f64 | response's | high end
            model | text | | what predicted: `station`, `replay`
            source | text | | the trace that it came from
            date | text | | the day, where it was kept
        """),
    ),
    TableSchema(
        "measured",
        "RUN of `penstock check EXPECTED RUN`, Parquet or CSV, made by the system that is checked",
        "one value measured of one operation of one module in one trial",
        ("module", "operation", "metric", "trial", "node", "window"),
        _columns("""
            module | text | | which part of the system: `client`, `storage`, `manager`, …
            operation | text | | what it did: `open`, `read`, `write`, …
            metric | text | | `client_time` of a request, `server_time` (reception to response), `transfer_time` (of a MiB that one node holds), `connect_time`, `lock_wait`, `launch_time`, `in_flight` (mean in a window), `bytes`, or any other; may be absent where one is expected
            trial | text | | which repetition; several rows of one are its requests, and count by their mean
            value | f64 | (`unit`) | measured
            unit | text | | unit of the value; absent or empty: that of the expected row, `s` of times
            node | text | | which node of the module, where there are several; may be absent
            window | i64 | | which window of the trial (of 100 ms, say) an `in_flight` is of; may be absent
        """),
    ),
    TableSchema(
        "evaluations",
        "DIR/evaluations.parquet of `penstock explore -o DIR`",
        "one configuration predicted once",
        ("candidate_id", "seed", "draw"),
        _columns("""
            candidate_id | text | | the configuration: c and its number in the space, the last axis varying fastest
            seed | i64 | | of the simulation, the same random numbers for every configuration
            draw | i64 | | 0: the platform's own values; else the number of the draw of what is not certain of it
            source | text | | the model, `queue`
            makespan_s | f64 | s | predicted
            cost | f64 | (currency) | of all hosts, in the platform's currency; null without prices
            energy_j | f64 | J | of all hosts that count; null without powers
            hosts | i64 | | how many the configuration takes
            network_bytes | i64 | B | sent between hosts
            requests | i64 | | chunk requests served
            events | i64 | | simulated
            bottleneck | text | | kind of station with most of the critical path
            error | text | | what ended the run early (a full store), empty if nothing did
        """),
        open_columns="one text column per axis (its level)",
    ),
    TableSchema(
        "workflow_tasks",
        "OUT/<repetition>/",
        "a task of a workflow that was run on a store",
        ("task",),
        _columns("""
            task | text | | its name in the workload
            stage | text | | tasks of one stage are summed up together
            host | text | | the node that ran it
            ready_s | f64 | s | when nothing kept it any more, from when the first task was ready
            sent_s | f64 | s | when its hints were set and it was handed to the node
            start_s | f64 | s | when its process began
            end_s | f64 | s | when its process ended
        """),
    ),
    TableSchema(
        "workflow_operations",
        "OUT/<repetition>/",
        "an operation of such a task",
        ("task", "number"),
        _columns("""
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
    TableSchema(
        "series",
        _BUNDLE,
        "a series that an experiment recorded, with what came of it and what did not",
        (*_RUN_KEY, "series_id"),
        _columns("""
            series_id | i64 | | number in `points`, from 0
            source | text | | the collector that it came from
            metric | text | | what is measured
            labels | text | | of what, as JSON of texts, sorted by name
            kind | text | | `time` or `sequence` (indexed 0, 1, 2, …, and never joined by time)
            type | text | | of its values: `float`, `integer`, `text` or `boolean`
            unit | text | | of its values, empty for none
            interval_ns | i64 | ns | how often a point was due, null where that is irregular
            produced | i64 | | points that the program made, null where nobody counted
            received | i64 | | points that came, also those that came twice
            stored | i64 | | points in `points`
            expected | i64 | | points that should have come, null where that cannot be known
            late | i64 | | points that were taken or sent after their time
            duplicate | i64 | | points of a time or index that another replaced
            lost | i64 | | points that are missing in the gaps, not counting where it was switched off
            gaps | i64 | | holes of the series, in `gaps`
            longest_gap_ns | i64 | ns | the longest of them, not counting where it was switched off
            resets | i64 | | times that a counter went back
            restarts | i64 | | times that the target began anew
            verdict | text | | `complete` (at least 99 %, no gap over 5 intervals), `partial` or `unusable`
        """),
    ),
    TableSchema(
        "points",
        _BUNDLE,
        "one value of a series of an experiment, in the order of the series and of time or index",
        (*_RUN_KEY, "series_id", "utc_ns", "index"),
        _columns("""
            series_id | i64 | | the series, in `series`
            utc_ns | i64 | ns | since 1970-01-01 UTC, as its source stamped it; null where a sequence has no times
            index | i64 | | place in the sequence, null in a series of times
            float | f64 | | the value, where it is a number with decimals
            integer | i64 | | the value, where it is a whole number
            text | text | | the value, where it is a text
            boolean | bool | | the value, where it is true or false
        """),
    ),
    TableSchema(
        "gaps",
        _BUNDLE,
        "a stretch of a series, or of all series of a source, that differs from the rest",
        (*_RUN_KEY, "source", "series_id", "kind", "start_utc_ns", "start_index"),
        _columns("""
            source | text | | the collector
            series_id | i64 | | the series, null for all of the source
            kind | text | | `lost` (points are missing), `disabled` (it was switched off), `reset` (a counter went back), `restart` (the target began anew), `batches` (batches are missing)
            start_utc_ns | i64 | ns | from when, since 1970-01-01 UTC; null in a sequence
            end_utc_ns | i64 | ns | until when
            start_index | i64 | | the first that is missing of a sequence or of the batches
            end_index | i64 | | the last
            missing | i64 | | how many points, or batches, are missing
            detail | text | | what the collector said
        """),
    ),
    TableSchema(
        "derived",
        _BUNDLE,
        "one value of a series that was computed from others, `penstock monitor derive`",
        (*_RUN_KEY, "metric", "labels", "utc_ns"),
        _columns("""
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
        _BUNDLE,
        "a phase or a note of an experiment",
        (*_RUN_KEY, "number"),
        _columns("""
            number | i64 | | in the order of their beginnings, from 0
            kind | text | | `phase` or `note`
            name | text | | of a phase with those around it, as `load/warm-up`; of a note its words
            start_utc_ns | i64 | ns | when, since 1970-01-01 UTC
            end_utc_ns | i64 | ns | when a phase ended
        """),
    ),
    TableSchema(
        "alerts",
        _BUNDLE,
        "samples in a row in which what an alert rule of the study asks held, of one entity",
        (*_RUN_KEY, "rule", "entity", "since_ns"),
        _columns("""
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
        "findings",
        "OUT/findings.parquet",
        "one statement of the analysis",
        ("code", "statement"),
        _columns("""
            code | text | | stable code
            severity | text | | how much it matters
            statement | text | | in plain words
            evidence | text | | the rows behind it
            what_to_do | text | | what to do
            detail | text | | the statistics behind it, in words
        """),
        open_columns="further fields of a finding",
    ),
)

#: every table by name
TABLES = {table.name: table for table in _TABLES}

#: columns of ours that a factor or response of a study may not be called
RESERVED = frozenset(
    {c.name for c in BUNDLE_KEYS}
    | {c.name for c in TABLES["runs"].columns}
    | {"disk_id", "phase_id", "t_ns"}
)


def described(name: str, table: pa.Table) -> pa.Table:
    """The table with unit and meaning of each column, and of itself, in its Arrow metadata."""
    schema = TABLES.get(name)
    if schema is None:
        return table
    known = {c.name: c for c in (*BUNDLE_KEYS, *schema.columns)}
    fields = []
    for field in table.schema:
        column = known.get(field.name)
        notes = {"unit": column.unit, "meaning": column.meaning} if column else None
        fields.append(field.with_metadata({**(field.metadata or {}), **notes}) if notes else field)
    about = {
        "penstock.table": schema.name,
        "penstock.row": schema.row,
        "penstock.key": ",".join(schema.key),
        "penstock.schema": BUNDLE_SCHEMA,
    }
    return table.cast(pa.schema(fields, metadata={**(table.schema.metadata or {}), **about}))
