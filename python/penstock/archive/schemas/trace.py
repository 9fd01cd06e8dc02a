"""Traced accesses of a program to its files, their summaries, and the requests below its calls."""

# ruff: noqa: E501 - rows of tables are kept whole

from __future__ import annotations

from penstock.archive.schemas.table import BUNDLE, RUN_KEY, TableSchema, columns

TABLES = (
    TableSchema(
        "io_events",
        BUNDLE,
        "one operation on a regular file by a process of the run: a system call, an asynchronous request, a page fault",
        (*RUN_KEY, "seq"),
        columns("""
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
        BUNDLE,
        "one file that an event is about",
        (*RUN_KEY, "file_id"),
        columns("""
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
        BUNDLE,
        "one thread of the traced processes and one program that it ran",
        (*RUN_KEY, "tid", "first_ns"),
        columns("""
            tid | i64 | | thread
            pid | i64 | | its process
            program | text | | name of the program or thread (comm, at most 15 bytes)
            first_ns | i64 | ns | its first call seen, CLOCK_MONOTONIC
            started_ns | i64 | ns | when the thread began, CLOCK_MONOTONIC: with its number, which the kernel uses again, what identifies it; null in bundles of earlier versions and of other tools
        """),
    ),
    TableSchema(
        "file_names",
        BUNDLE,
        "one name that a file got or lost while it was traced",
        (*RUN_KEY, "file_id", "t_ns", "kind", "path"),
        columns("""
            file_id | i64 | | the file, in `files`
            t_ns | i64 | ns | when, CLOCK_MONOTONIC: of a first use when it was recorded, of a change when its call was entered
            kind | text | | `first`: the path at first use; `rename`, `link`: a name it got; `unlink`: a name it lost
            path | text | | the path; bytes that are not UTF-8 as `\\udcXX`
            path_hex | text | | its bytes in hexadecimal, where they are not UTF-8; else null
        """),
    ),
    TableSchema(
        "operations",
        BUNDLE,
        "the operations of one kind, other than reads and writes, on one file",
        (*RUN_KEY, "file_id", "op"),
        columns("""
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
        BUNDLE,
        "the verdict on one file, direction and thread",
        (*RUN_KEY, "file_id", "direction", "tid", "basis", "phase_id", "started_ns"),
        columns("""
            file_id | i64 | | the file, in `files`
            path | text | | its path
            direction | text | | `read` or `write`
            tid | i64 | | thread, null for all threads together
            basis | text | | what was judged: `calls`; `faults` (page faults on a mapped file: a lower bound of its accesses); `counters` (calls that were counted, not recorded, because the file was not chosen, see `decisions`); `device` (requests as the device got them)
            phase_id | text | | the phase that was judged, in `phases`; null for the whole
            class | text | | `consecutive`, `sequential`, `interleaved`, `random`, `mixed`, `irregular`, `insufficient`, …
            k | i64 | | number of interleaved streams, null where it is not that
            requests | i64 | | requests evaluated
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
            started_ns | i64 | ns | when the thread began, CLOCK_MONOTONIC, if an earlier thread had its number; else null
        """),
        open_columns="further measures of the classifier",
    ),
    TableSchema(
        "epochs",
        BUNDLE,
        "counts of a stretch of up to 1,024 requests of one thread on one file in one direction (mode pattern; files not chosen)",
        (*RUN_KEY, "file_id", "direction", "basis", "tid", "first_ns"),
        columns("""
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
        BUNDLE,
        "one file in one choice of those whose events are kept (`penstock trace --hot`): used since the last choice, or not any more",
        (*RUN_KEY, "t_ns", "file_id"),
        columns("""
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
        "mapped",
        BUNDLE,
        "what one process had mapped of one file when it, or the trace, ended (mappings undone earlier are not in it)",
        (*RUN_KEY, "file_id", "pid"),
        columns("""
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
        BUNDLE,
        "what served one read or write of a regular file",
        (*RUN_KEY, "seq"),
        columns("""
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
        BUNDLE,
        "what one process made dirty of one file, and what of it reached the device before the end",
        (*RUN_KEY, "file_id", "pid", "cgroup_id"),
        columns("""
            file_id | i64 | | the file, in `files`
            pid | i64 | | process that made the pages dirty
            cgroup_id | u64 | | its control group then
            bytes_dirtied | i64 | B | page-cache pages that became dirty, whole folios
            bytes_written | i64 | B | of its pages, written by whomever
        """),
    ),
    TableSchema(
        "residency",
        BUNDLE,
        "how much of one file was in the page cache",
        (*RUN_KEY, "file_id", "moment"),
        columns("""
            file_id | i64 | | the file, in `files`
            moment | text | | `start`: when the run first met the file; `end`
            resident_pages | i64 | | pages in memory
            pages | i64 | | pages of the file
        """),
    ),
    TableSchema(
        "extents",
        BUNDLE,
        "how one file lies on its device at the end of the run",
        (*RUN_KEY, "file_id"),
        columns("""
            file_id | i64 | | the file, in `files`
            count | i64 | | pieces; such as touch in file and device are one
            contiguous_share | f64 | | share of its 4 KiB blocks, but the first, that lie right behind the block before them
            mapped_bytes | i64 | B | bytes with a place on the device
            largest_bytes | i64 | B | largest piece
        """),
    ),
)
