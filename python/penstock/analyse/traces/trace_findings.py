"""Findings on one traced run: the cost of its I/O, its causes, and possible remedies, each with a stable
code.

Every rule documents its guard: the case in which the same numbers are harmless and nothing is reported. Rules
read the published tables of a bundle (docs/formats.md) through DuckDB, so memory is bounded for traces of any
length. A rule whose tables are missing reports nothing.

`cache_use` (module `served`) records which calls waited for a device and which the page cache served.
Without it this is inferred from the mean latency, and the statement reports that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.analyse.findings.finding import Finding
from penstock.analyse.traces.many_files import FileSet
from penstock.analyse.traces.served import quick_ns
from penstock.analyse.traces.traced_run import TracedRun, Waits
from penstock.archive.traces.verdicts import Verdict
from penstock.text import FAULTS, duration, of_run, percent, size

#: code → description
CODES = {
    "trace-lost": "events that the tracer could not store, or could not see",
    "trace-not-io-bound": "the calls on files take too little of the run to matter",
    "trace-random-reads": "reads that wait for the device, in an order that defeats readahead",
    "trace-cached": "time in calls that the page cache serves; the cost is their number or their bytes",
    "trace-many-files": "time in many small files, each of which takes little",
    "trace-small-requests": "sequential calls so small that their number is the cost",
    "trace-unaligned-direct": "direct I/O that does not fit the blocks below",
    "trace-rereads": "bytes that the device served more than once",
    "trace-fsync-storm": "a flush to the device after every few writes, and the wait for it",
    "trace-flush-bound": "waiting for flushes to the device, with any number of writes between them",
    "trace-low-concurrency": "one request at a time where the device could take several",
    "trace-device-disorder": "an orderly program whose requests reach the device out of order",
    "trace-fragmented": "a file that is read in order but fragmented on the device",
    "trace-overhead": "the overhead of tracing is not small",
}

#: share of the wall time below which nothing is reported
LITTLE = 0.05
#: minimum number of calls for a statement about a file
ENOUGH = 100
SMALL_BYTES = 4096
BLOCK_BYTES = 4096
REREAD_RATIO = 2.0
_MOST_BLOCKS = 1 << 22
#: maximum number of writes between two flushes of a flush storm
WRITES_PER_FLUSH = 4.0
FLUSH_TIME = 0.2
ALONE = 1.2
#: minimum share of device requests at the end of the previous one, or in its last page, for an append
APPENDED, PAGE_BYTES = 0.9, 4096
FRAGMENTED = 0.5
FRAGMENTED_BYTES = 16 << 20
OVERHEAD = 0.05
#: maximum number of files listed in the evidence of a finding
MOST_NAMED = 100

#: minimum share of cached calls in the time of all calls on files for a statement
_MOSTLY = 0.5
#: mean size from which copying costs more than the call
_LARGE_BYTES = 64 << 10
#: share of lost events above which small costs are not reported
_FEW_LOST = 0.01

_ORDERLY = {"consecutive", "sequential", "interleaved", "reverse", "strided"}
_SCATTERED = {"random", "irregular", "hot-set"}


_BY_TIME = " That they wait for a device is inferred from that time"


def _inferred(run: TracedRun) -> str:
    """Basis of a statement without records of the page cache."""
    mode = run.receipt.get("mode")
    if mode == "trace":
        return f"{_BY_TIME}: what the page cache served was not recorded, or not enough of it."
    return f"{_BY_TIME}: `-m trace -o` records what the page cache served."


def _of_calls(run: TracedRun) -> bool:
    """True if the program's calls were recorded, and not only requests to a device."""
    return (run.manifest.get("source") or {}).get("basis") != "device"


def _timed(run: TracedRun) -> bool:
    """True if the time of nearly all calls is recorded."""
    calls = sum(row.calls for row in run.judged)
    timed = sum(row.calls for row in run.judged if row.time_ns > 0)
    complete = not run.receipt.get("incomplete") and not run.receipt.get("in_flight")
    lost, seen = run.receipt.get("lost", 0), run.receipt.get("seen", 0)
    return complete and timed >= (1 - LITTLE) * calls and lost <= _FEW_LOST * max(seen, 1)


def bound(run: TracedRun) -> Iterator[Finding]:
    """Guard of `trace-not-io-bound`: the time of the calls and of all other operations is recorded."""
    total = sum(row.time_ns for row in run.judged) + run.others_ns
    if not _of_calls(run) or not (run.judged or total):
        return
    if run.share(total) >= LITTLE:
        yield from _cached(run, total)
    elif _timed(run):
        yield Finding(
            "trace-not-io-bound",
            "info",
            f"All calls on files together take {of_run(run.share(total))}: storage is "
            "not what it waits for.",
            {"time_ns": total, "wall_ns": run.wall_ns},
            "Look at its processor time, its locks and its network instead.",
        )


@dataclass
class _Sum:
    """Sums of calls, their time and bytes."""

    calls: int = 0
    time_ns: int = 0
    nbytes: float = 0.0

    def add(self, calls: int, time_ns: int, nbytes: float) -> None:
        self.calls, self.time_ns, self.nbytes = (
            self.calls + calls,
            self.time_ns + time_ns,
            self.nbytes + nbytes,
        )


def _cached(run: TracedRun, total: int) -> Iterator[Finding]:
    """Guard: few calls, and runs whose time on files is spent on devices, flushes or opens."""
    certain, both = _Sum(), _Sum()
    for row in run.judged:
        served = run.served(row)
        if served is not None:
            nbytes = row.nbytes * served.share["cached"]
            for each in (certain, both):
                each.add(served.calls["cached"], served.time_ns["cached"], nbytes)
        elif row.time_ns and row.mean_ns < quick_ns(row.nbytes / max(row.calls, 1)):
            both.add(row.calls, row.time_ns, row.nbytes)
    for calls in (certain, both):
        little = run.share(calls.time_ns) < LITTLE or calls.time_ns < _MOSTLY * total
        if calls.calls >= ENOUGH and not little:
            break
    else:
        return
    inferred = calls is both
    large = calls.nbytes / calls.calls >= _LARGE_BYTES
    cost = "copying them" if large else "their number"
    by = "the page cache serves them"
    if inferred:
        by = "judging by their time, the page cache serves them"
    yield Finding(
        "trace-cached",
        "info",
        f"{calls.calls:,} reads and writes of {duration(calls.time_ns / calls.calls)} each take "
        f"{of_run(run.share(calls.time_ns))}: {by}, and it is {cost} that costs.",
        {
            "calls": calls.calls,
            "time_ns": calls.time_ns,
            "wall_ns": run.wall_ns,
            "inferred": inferred,
        },
        ("Read or write less, or map the file" if large else "Fewer and larger calls would help")
        + "; a faster disk does nothing for these.",
    )


def _ordered_below(run: TracedRun, row: Verdict) -> bool:
    """True for page faults whose requests reach the device in order: the kernel reads around a fault."""
    below = run.device.get((row.file_id, row.direction))
    return row.basis == FAULTS and below is not None and below.kind in _ORDERLY


_IN_FILE_ORDER = (
    "Make the order of access that of the file: rewrite the data in key order (CLUSTER, dump and "
    "reload), sort the requests, or give it memory or a disk of lower latency."
)


def random_reads(run: TracedRun) -> Iterator[Finding]:
    """Guard: cached reads, holes, files of little time and small samples; faults whose requests reach the
    device in order. Files of little time each are reported together."""
    others: list[tuple[Verdict, Waits]] = []
    for row in run.judged:
        if row.direction != "read" or row.kind not in _SCATTERED or _ordered_below(run, row):
            continue
        waits = run.waits(row)
        if waits.calls < ENOUGH or run.share(waits.time_ns) < LITTLE:
            if waits.calls:
                others.append((row, waits))
            continue
        who = "" if waits.calls == row.calls else f"{waits.calls:,} of them "
        yield Finding(
            "trace-random-reads",
            "warning",
            f"{row.path}: {row.calls:,} reads of {size(row.median_size_bytes)} in {row.kind} order"
            f"{', ' if who else ' '}{who}wait {duration(waits.mean_ns)} each, "
            f"{of_run(run.share(waits.time_ns))}." + (_inferred(run) if waits.inferred else ""),
            {
                "patterns": {"file_id": row.file_id, "direction": "read", "class": row.kind},
                "calls": waits.calls,
                "time_ns": waits.time_ns,
                "inferred": waits.inferred,
            },
            _IN_FILE_ORDER,
        )
    rows = [row for row, _ in others]
    files = _file_ids(rows)
    calls = sum(waits.calls for _, waits in others)
    time_ns = sum(waits.time_ns for _, waits in others)
    if calls < ENOUGH or run.share(time_ns) < LITTLE:
        return
    yield Finding(
        "trace-random-reads",
        "warning",
        f"{_and_more(rows)}: {calls:,} reads in scattered order wait "
        f"{duration(time_ns / calls)} each, {of_run(run.share(time_ns))}."
        + (_inferred(run) if any(waits.inferred for _, waits in others) else ""),
        {
            "patterns": {"file_id": files[:MOST_NAMED]},
            "files": len(files),
            "calls": calls,
            "time_ns": time_ns,
        },
        _IN_FILE_ORDER,
    )


def _file_ids(rows: list[Verdict]) -> list[int]:
    """Distinct files of these verdicts, in order: one file has a verdict per direction and basis."""
    return list(dict.fromkeys(row.file_id for row in rows))


def _and_more(rows: list[Verdict]) -> str:
    """`/data/a.db and 99 more files`."""
    more = len(_file_ids(rows)) - 1
    return rows[0].path + (f" and {more:,} more file{'s' if more > 1 else ''}" if more else "")


def many_files(run: TracedRun) -> Iterator[Finding]:
    """Guard: few files, large ones, sets of which one file has most of the time, and little time in all."""
    if not _of_calls(run):
        return
    rows = [row for row in run.judged if row.basis == "calls" and row.kind == "insufficient"]
    for direction, verb in (("read", "Reads"), ("write", "Writes")):
        files = FileSet(direction, "insufficient")
        largest, waiting, inferred = 0, Waits(0, 0, False), False
        for row in rows:
            if row.direction != direction:
                continue
            files.add(row.path, row.calls, row.nbytes, row.time_ns)
            largest = max(largest, row.time_ns)
            waits = run.waits(row)
            inferred |= waits.inferred
            waiting = Waits(waiting.calls + waits.calls, waiting.time_ns + waits.time_ns, inferred)
        time_ns = files.time_ns
        if files.files < ENOUGH or not files.small or run.share(time_ns) < LITTLE:
            continue
        if 2 * largest >= time_ns:
            continue
        waits_much = 2 * waiting.time_ns >= time_ns
        advice = "Pack the files (one archive or larger records)"
        if waits_much and direction == "read":
            advice += (
                ", or read ahead with more processes: "
                f"{run.share(time_ns):.1f} reads wait at a time"
            )
        elif not waits_much:
            advice += ": it is their number that costs; a faster disk does nothing for them"
        yield Finding(
            "trace-many-files",
            "warning" if waits_much else "info",
            f"{verb} of {files.name} take {of_run(run.share(time_ns))}: {files.each()}"
            + (", waiting for the device." if waits_much else ".")
            + (_inferred(run) if waits_much and inferred else ""),
            {
                "patterns": {"direction": direction, "class": "insufficient"},
                "files": files.files,
                "calls": files.calls,
                "bytes": int(files.nbytes),
                "time_ns": time_ns,
                "inferred": inferred,
            },
            f"{advice}.",
        )


_BUFFER = "Buffer them: 64 KiB or more per call."


def small(run: TracedRun) -> Iterator[Finding]:
    """Guard: scattered small requests (they cannot be merged) and files of little time, also in total."""
    others = []
    for row in run.judged:
        if (
            row.kind not in {"consecutive", "sequential"}
            or row.basis != "calls"
            or not 0 < row.median_size_bytes < SMALL_BYTES
        ):
            continue
        if row.calls < 10 * ENOUGH or run.share(row.time_ns) < LITTLE:
            others.append(row)
            continue
        yield Finding(
            "trace-small-requests",
            "warning",
            f"{row.path}: {row.calls:,} {row.direction}s of {size(row.median_size_bytes)}, one "
            f"after the other, take {of_run(run.share(row.time_ns))}.",
            {"patterns": {"file_id": row.file_id, "direction": row.direction}},
            _BUFFER,
        )
    calls, time_ns = sum(row.calls for row in others), sum(row.time_ns for row in others)
    if calls >= 10 * ENOUGH and run.share(time_ns) >= LITTLE:
        each = sum(row.nbytes for row in others) / calls
        yield Finding(
            "trace-small-requests",
            "warning",
            f"{_and_more(others)}: {calls:,} reads and writes of {size(each)} in the "
            f"mean, one after the other, take {of_run(run.share(time_ns))}.",
            {"patterns": {"file_id": _file_ids(others)[:MOST_NAMED]}},
            _BUFFER,
        )


def unaligned(run: TracedRun) -> Iterator[Finding]:
    """Guard: the last, short piece of a file, and a few calls among many aligned ones."""
    if not run.has("io_events", "flags", "offset_bytes"):
        return
    rows = run.query(
        f"""SELECT file_id, count(*) AS calls,
            count(*) FILTER (offset_bytes % {BLOCK_BYTES} <> 0
                OR (size_bytes % {BLOCK_BYTES} <> 0 AND done_bytes = size_bytes)) AS unaligned
        FROM io_events
        WHERE direction IN ('read', 'write') AND flags & 1 = 1 AND op NOT LIKE 'fault%'
            AND offset_bytes >= 0
        GROUP BY file_id HAVING calls >= {ENOUGH} AND unaligned >= 0.05 * calls"""
    )
    for row in rows:
        yield Finding(
            "trace-unaligned-direct",
            "warning",
            f"{run.name(row['file_id'])}: {row['unaligned']:,} of {row['calls']:,} direct "
            f"requests do not "
            f"begin and end at multiples of {BLOCK_BYTES} bytes: the layers below must read before "
            f"they write, "
            "or serve parts of blocks.",
            {"io_events": {"file_id": row["file_id"], "flags": "direct"}},
            f"Align offsets and sizes of direct I/O to {BLOCK_BYTES} bytes (O_DIRECT, "
            f"innodb_flush_method, …).",
        )


#: program reads of one file; disk reads for it, by the file's number or by its log's path
_READS = """FROM io_events
    WHERE file_id = ? AND direction = 'read' AND done_bytes > 0 AND offset_bytes >= 0
        AND op NOT LIKE 'fault_around%'"""
_REQUESTS = """FROM (SELECT *, size_bytes AS done_bytes FROM device_requests)
    WHERE op = 'read' AND size_bytes > 0 AND offset_bytes >= 0 AND ({of_file})"""
#: bytes read, and size of the union of the ranges read, in complete blocks; one row per block in memory
_TOUCHED = """WITH of_block AS (SELECT offset_bytes // {block} AS first, sum(done_bytes) AS bytes,
        max((offset_bytes + done_bytes - 1) // {block}) AS last {rows} GROUP BY first),
    beyond AS (SELECT *, coalesce(max(last) OVER (ORDER BY first
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS covered FROM of_block)
    SELECT sum(bytes) AS bytes,
        sum(greatest(0, last - greatest(first - 1, covered))) * {block} AS touched FROM beyond"""


def _touched(run: TracedRun, rows: str, values: Sequence[int | str]) -> tuple[float, float]:
    """Bytes read and distinct bytes; in larger blocks if these would be too many."""
    query = f"SELECT approx_count_distinct(offset_bytes // {BLOCK_BYTES}) AS n {rows}"
    block = BLOCK_BYTES * (1 + int(run.query(query, values)[0]["n"] or 0) // _MOST_BLOCKS)
    row = run.query(_TOUCHED.format(rows=rows, block=block), values)[0]
    return float(row["bytes"] or 0), float(row["touched"] or 0)


def _device_reads(run: TracedRun, file_id: int) -> tuple[str, list[int | str]] | None:
    """SQL for device reads of a file, and its parameters; None if no requests name files."""
    if not run.has("device_requests", "op", "size_bytes", "offset_bytes"):
        return None
    of_file: dict[str, int | str] = {}
    if run.has("device_requests", "file_id"):
        of_file["file_id = ?"] = file_id
    if run.has("device_requests", "file"):
        of_file["ends_with(?, '/' || file)"] = f"/{run.name(file_id)}"
    return (
        (_REQUESTS.format(of_file=" OR ".join(of_file)), [*of_file.values()]) if of_file else None
    )


def rereads(run: TracedRun) -> Iterator[Finding]:
    """Guard: repeated reads from the page cache, and reads of low cost."""
    if not _of_calls(run) or not run.has("io_events", "offset_bytes", "done_bytes"):
        return
    read = [
        row
        for row in run.judged
        if row.direction == "read" and row.calls >= ENOUGH and run.share(row.time_ns) >= LITTLE
    ]
    for file_id, row in {row.file_id: row for row in reversed(read)}.items():
        by_device = _device_reads(run, file_id)
        if by_device is not None:
            nbytes, touched = _touched(run, *by_device)
            amounts = f"devices read {size(nbytes)} of about {size(touched)}"
            inferred, table = False, "device_requests"
        if by_device is None or (nbytes == 0 and run.served(row) is None):
            waits = run.waits(row)
            if not waits.calls:
                continue
            nbytes, touched = _touched(run, _READS, [file_id])
            amounts = f"{size(nbytes)} were read of about {size(touched)}, {duration(waits.mean_ns)} a call"
            inferred, table = True, "io_events"
        ratio = nbytes / max(touched, 1.0)
        if ratio < REREAD_RATIO:
            continue
        yield Finding(
            "trace-rereads",
            "warning",
            f"{run.name(file_id)}: {amounts}: each byte {ratio:.1f} times."
            + (_inferred(run) if inferred else ""),
            {table: {"file_id": file_id, "direction": "read"}, "inferred": inferred},
            "Give it memory for what it reads again (page cache, shared_buffers, block cache), "
            "or read it once and keep it.",
        )


def _fewer_flushes(path: str) -> str:
    if path.endswith("-journal"):  # SQLite's rollback journal
        return (
            "Put several changes into one transaction, or take journal_mode=WAL, which flushes once "
            "per commit and not several times."
        )
    return (
        "Group commits (commit_delay, larger batches), or put the log on a device with a "
        "protected cache."
    )


def flushes(run: TracedRun) -> Iterator[Finding]:
    """Guard: flushes of low cost; for a storm, many writes per flush and few flushes."""
    writes: dict[int, int] = {}
    rows = run.judged if _of_calls(run) else list(run.device.values())
    for judged in rows:  # a file may have verdicts on calls and on faults
        if judged.direction == "write":
            first = run.first_of.get(judged.file_id, judged.file_id)
            writes[first] = writes.get(first, 0) + judged.calls
    others = []
    for row in run.flushes:
        count, ns = int(row["flushes"]), float(row["ns"])
        per = writes.get(row["file_id"], 0) / max(count, 1)
        if count < ENOUGH or per > WRITES_PER_FLUSH or run.share(ns) < FLUSH_TIME:
            others.append(row)
            continue
        yield Finding(
            "trace-fsync-storm",
            "warning",
            f"{run.name_of_all(row['file_id'])}: {count:,} flushes to the device, one after every "
            f"{per:.1f} writes, of {duration(ns / count)} each: "
            f"{of_run(run.share(ns))}.",
            {"operations": {"file_id": row["file_id"], "direction": "sync"}},
            _fewer_flushes(run.name(row["file_id"])),
        )
    ns = sum(float(row["ns"]) for row in others)
    if run.share(ns) < FLUSH_TIME:
        return
    count = sum(int(row["flushes"]) for row in others)
    top = run.name_of_all(others[0]["file_id"])
    files = f"{top} and {len(others) - 1} more" if len(others) > 1 else top
    yield Finding(
        "trace-flush-bound",
        "info",
        f"{files}: {count:,} flushes to the device of {duration(ns / max(count, 1))} each take "
        f"{of_run(run.share(ns))}.",
        {"operations": {"file_id": [row["file_id"] for row in others], "direction": "sync"}},
        "Flush less often if what is lost in a crash may be more, or put these files on a device that "
        "writes faster or has a protected cache.",
    )


def alone(run: TracedRun) -> Iterator[Finding]:
    """Guard: sequential access (the kernel reads ahead for it) and runs that seldom wait."""
    waiting = [
        (row, waits)
        for row in run.judged
        if row.basis == "calls"
        and row.calls >= ENOUGH
        and (waits := run.waits(row)).calls >= ENOUGH
    ]
    total = sum(waits.time_ns for _, waits in waiting)
    both = [pair for pair in waiting if pair[0].kind in _SCATTERED and pair[0].direction == "read"]
    scattered, scattered_ns = [row for row, _ in both], sum(waits.time_ns for _, waits in both)
    if (
        not scattered
        or scattered_ns < 0.8 * total
        or not run.has("io_events", "t_ns", "latency_ns")
    ):
        return
    ids = [row.file_id for row in scattered]
    row = run.query(
        "SELECT sum(latency_ns) AS busy, max(t_ns + latency_ns) - min(t_ns) AS span FROM io_events "
        "WHERE direction = 'read' AND file_id IN (SELECT unnest(?))",
        [ids],
    )[0]
    depth = float(row["busy"] or 0) / max(float(row["span"] or 0), 1.0)
    if run.share(scattered_ns) >= 0.5 and depth < ALONE:
        yield Finding(
            "trace-low-concurrency",
            "info",
            f"Reads in scattered order wait one at a time ({depth:.2f} in flight in the mean): a "
            f"device that "
            "serves several at once stays idle."
            + (_inferred(run) if any(waits.inferred for _, waits in both) else ""),
            {"io_events": {"file_id": ids, "direction": "read"}},
            "Ask ahead (effective_io_concurrency, posix_fadvise, io_uring) or use several threads.",
        )


def _seldom_waits(run: TracedRun, row: Verdict) -> bool:
    """True if the tables show little device time for a file that was read."""
    served = run.served(row)
    if served is None or row.direction != "read":
        return False
    return run.share(served.waiting_ns) < LITTLE


def _quick_at_device(run: TracedRun, row: Verdict) -> bool:
    """True if all requests of a file at the device together take little of the run."""
    if not run.has("device_requests", "file_id", "op", "t_ns", "done_ns"):
        return False
    (summed,) = run.query(
        "SELECT sum(done_ns - t_ns) AS ns FROM device_requests WHERE file_id = ? AND op = ?",
        [row.file_id, row.direction],
    )
    return summed["ns"] is not None and run.share(float(summed["ns"])) < LITTLE


def _appends(run: TracedRun, row: Verdict) -> bool:
    """True if a file grows at the device: requests begin at the end of the previous one, or in its last
    page, which is rewritten as it fills."""
    if not run.has("device_requests", "file_id", "offset_bytes", "size_bytes"):
        return False
    (counts,) = run.query(
        """SELECT count(*) AS all_of_them,
            count(*) FILTER (offset_bytes BETWEEN last_end - ? AND last_end) AS in_order
        FROM (SELECT offset_bytes, lag(offset_bytes + size_bytes) OVER (ORDER BY t_ns) AS last_end
            FROM device_requests WHERE file_id = ? AND op = ?) WHERE last_end IS NOT NULL""",
        [PAGE_BYTES, row.file_id, row.direction],
    )
    return int(counts["in_order"]) > APPENDED * int(counts["all_of_them"])


def disorder(run: TracedRun) -> Iterator[Finding]:
    """Guard: few or quick device requests, scattered programs, calls that hardly wait, and appends that
    rewrite a page until it is full."""
    scattered = {(r.file_id, r.direction) for r in run.judged if r.kind in _SCATTERED}
    for row in run.judged:
        below = run.device.get((row.file_id, row.direction))
        if (
            below is not None
            and (row.file_id, row.direction) not in scattered
            and not _seldom_waits(run, row)
            and row.kind in {"consecutive", "sequential"}
            and below.kind in _SCATTERED
            and below.calls >= ENOUGH
            and not _quick_at_device(run, row)
            and not _appends(run, row)
        ):
            yield Finding(
                "trace-device-disorder",
                "warning",
                f"{row.path}: {row.kind} for the program, {below.kind} at the device "
                f"({below.calls:,} requests).",
                {
                    "patterns": {
                        "file_id": row.file_id,
                        "direction": row.direction,
                        "basis": "device",
                    }
                },
                "Look at the queue's scheduler, at how many threads write back at once, and at the "
                "extents of "
                "the file (table `extents`).",
            )


def fragmented(run: TracedRun) -> Iterator[Finding]:
    """Guard: small files, files with random access, and files that the page cache serves."""
    if not run.has("extents", "contiguous_share", "count"):
        return
    share = {row["file_id"]: row for row in run.query("SELECT * FROM extents")}
    sizes = {row["file_id"]: row for row in run.query("SELECT file_id, size_bytes FROM files")}
    for row in run.judged:
        facts = share.get(row.file_id)
        if facts is None or row.direction != "read" or row.kind not in _ORDERLY:
            continue
        if _seldom_waits(run, row):
            continue
        nbytes = int((sizes.get(row.file_id) or {}).get("size_bytes") or 0)
        contiguous = facts["contiguous_share"]
        if nbytes >= FRAGMENTED_BYTES and contiguous is not None and contiguous < FRAGMENTED:
            yield Finding(
                "trace-fragmented",
                "warning",
                f"{row.path} is read in order but has {facts['count']:,} fragments "
                f"({percent(contiguous)} of it contiguous): its reads are not sequential for the "
                f"disk.",
                {"extents": {"file_id": row.file_id}},
                "Rewrite it at once (copy, dump and reload, e4defrag, xfs_fsr), or "
                "preallocate it (fallocate).",
            )


def overhead(run: TracedRun) -> Iterator[Finding]:
    """Overhead from the command's own paired runs if significant, else from the observer's own statistics."""
    share, paired = run.receipt.get("added_share"), run.receipt.get("paired") or {}
    evidence = {"added_share": share, "mode": run.receipt.get("mode")}
    added = "about " + percent(share) if isinstance(share, int | float) else ""
    if paired.get("verdict") in {"above", "within"}:
        share = paired["share"]
        added = f"{percent(share)} [{percent(paired['low'])}, {percent(paired['high'])}] in pairs of runs"
        evidence["paired"] = {name: paired[name] for name in ("share", "low", "high", "pairs")}
    if isinstance(share, int | float) and share >= OVERHEAD:
        yield Finding(
            "trace-overhead",
            "warning",
            f"Tracing added {added} to the run.",
            {"manifest": evidence},
            "Use --mode pattern or count, or choose fewer files; --calibrate measures what it adds "
            "to this command.",
        )
