"""Findings over one traced run: what its I/O costs, why, and what to try, each with a stable code.

Every rule names its guard: the case in which the same numbers are harmless and nothing is said. Rules read
the published tables of a bundle (docs/formats.md) through DuckDB, so that memory stays bounded whatever the
trace's length; a rule whose tables are not there says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.analyse.findings import Finding
from penstock.analyse.traced_run import TracedRun
from penstock.analyse.words import duration, percent, size

#: code → what it states
CODES = {
    "trace-lost": "events that the tracer saw and could not keep, or could not see",
    "trace-not-io-bound": "the calls on files take too little of the run to matter",
    "trace-random-reads": "reads that wait for the device in an order it cannot read ahead of",
    "trace-cached": "time in calls that the page cache serves: it is their number that costs",
    "trace-small-requests": "orderly calls so small that their number costs",
    "trace-unaligned-direct": "direct I/O that does not fit the blocks below",
    "trace-rereads": "bytes that the device served more than once",
    "trace-fsync-storm": "a flush to the device after every few writes, and the wait for it",
    "trace-low-concurrency": "one request at a time where the device could take several",
    "trace-device-disorder": "an orderly program whose requests reach the device out of order",
    "trace-fragmented": "a file read in order that lies scattered on the device",
    "trace-overhead": "what tracing itself added is not small",
}

#: below this mean latency a call did not wait for a device
CACHED_NS = 20_000
#: below this share of the wall time nothing here is worth a change
LITTLE = 0.05
#: calls that a statement about a file needs
ENOUGH = 100
SMALL_BYTES = 4096
BLOCK_BYTES = 4096
REREAD_RATIO = 2.0
_MOST_BLOCKS = 1 << 22
#: with fewer writes than this between two flushes
WRITES_PER_FLUSH = 4.0
FLUSH_TIME = 0.2
ALONE = 1.2
FRAGMENTED = 0.5
FRAGMENTED_BYTES = 16 << 20
OVERHEAD = 0.05

_ORDERLY = {"consecutive", "sequential", "interleaved", "reverse", "strided"}
_SCATTERED = {"random", "irregular", "hot-set"}


def findings_of(bundle: Path | str) -> list[Finding]:
    """All findings of a traced run, warnings first. Raises BadInput where `bundle` is not one."""
    run = TracedRun(Path(bundle))
    found = [finding for rule in _RULES for finding in rule(run)]
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


def _lost(run: TracedRun) -> Iterator[Finding]:
    lost, seen = run.receipt.get("lost", 0), run.receipt.get("seen", 0)
    if lost:
        yield Finding(
            "trace-lost",
            "warning",
            f"{lost:,} of {seen:,} events were seen and not kept ({percent(lost / max(seen, 1))}); "
            "shares and verdicts are of the others.",
            {
                "manifest": {
                    "seen": seen,
                    "lost": lost,
                    "per_probe": run.receipt.get("per_probe", {}),
                }
            },
            "Give the kernel more room (--ring-size), choose fewer files (--file, --dir), or use "
            "--mode pattern.",
        )
    layers = run.receipt.get("layers") or {}
    if layers.get("lost"):
        yield Finding(
            "trace-lost",
            "warning",
            f"{layers['lost']:,} of {layers['seen']:,} records of page cache and block devices were "
            "not kept: misses may count as hits, and requests may be missing.",
            {"manifest": {name: layers[name] for name in ("seen", "lost")}},
            "Choose a shorter part of the run, or a machine with less other I/O; the calls "
            "themselves are complete.",
        )
    without = sorted({what for what in (layers.get("missing") or {}).values() if what})
    if without:
        unseen = "mm_filemap_add_to_page_cache" in layers["missing"]
        yield Finding(
            "trace-lost",
            "warning" if unseen else "info",
            f"This kernel does not tell under the calls: {'; '.join(without)}"
            + (": whatever was read counts as a hit of the page cache." if unseen else "."),
            {"manifest": {"missing": layers["missing"]}},
            "Take it on a kernel that has "
            + ", ".join(name for name, what in layers["missing"].items() if what)
            + ".",
        )


def _bound(run: TracedRun) -> Iterator[Finding]:
    """Guard of `trace-cached`: enough time, and no file of the run that waits for a device."""
    total = sum(row.time_ns for row in run.judged) + _sync_ns(run)
    if not run.judged and not total:
        return
    evidence = {"time_ns": total, "wall_ns": run.wall_ns}
    if run.share(total) < LITTLE:
        yield Finding(
            "trace-not-io-bound",
            "info",
            f"All calls on files together take {percent(run.share(total))} of the run: storage is "
            f"not what "
            "it waits for.",
            evidence,
            "Look at its processor time, its locks and its network instead.",
        )
        return
    calls = sum(row.calls for row in run.judged)
    if (
        calls >= ENOUGH
        and total / calls < CACHED_NS
        and all(row.mean_ns < CACHED_NS for row in run.judged if run.share(row.time_ns) >= LITTLE)
    ):
        yield Finding(
            "trace-cached",
            "info",
            f"{calls:,} calls of {duration(total / calls)} each take {percent(run.share(total))} "
            f"of the run: the "
            "page cache serves them, and it is their number that costs.",
            evidence,
            "Fewer and larger calls would help; a faster disk would not.",
        )


def _random_reads(run: TracedRun) -> Iterator[Finding]:
    """Guard: cached reads, files of little time and small samples are left alone."""
    for row in run.judged:
        if (
            row.direction == "read"
            and row.kind in _SCATTERED
            and row.calls >= ENOUGH
            and row.mean_ns >= CACHED_NS
            and run.share(row.time_ns) >= LITTLE
        ):
            yield Finding(
                "trace-random-reads",
                "warning",
                f"{row.path}: {row.calls:,} reads of {size(row.median_bytes)} in {row.kind} order "
                f"wait "
                f"{duration(row.mean_ns)} each, {percent(run.share(row.time_ns))} of the run.",
                {"patterns": {"file_id": row.file_id, "direction": "read", "class": row.kind}},
                "Make the order of access that of the file: rewrite the data in key order "
                "(CLUSTER, dump and "
                "reload), sort what is asked for, or give it memory or a disk of lower latency.",
            )


def _small(run: TracedRun) -> Iterator[Finding]:
    """Guard: scattered small requests (there is nothing to join) and files of little time."""
    for row in run.judged:
        if (
            row.kind in {"consecutive", "sequential"}
            and row.basis == "calls"
            and row.calls >= 10 * ENOUGH
            and 0 < row.median_bytes < SMALL_BYTES
            and run.share(row.time_ns) >= LITTLE
        ):
            yield Finding(
                "trace-small-requests",
                "warning",
                f"{row.path}: {row.calls:,} {row.direction}s of {size(row.median_bytes)}, one "
                f"after the other, "
                f"take {percent(run.share(row.time_ns))} of the run.",
                {"patterns": {"file_id": row.file_id, "direction": row.direction}},
                "Buffer them: 64 KiB or more per call.",
            )


def _unaligned(run: TracedRun) -> Iterator[Finding]:
    """Guard: the last, short piece of a file, and a few calls among many aligned ones."""
    if not run.has("io_events", "flags", "offset_bytes"):
        return
    rows = run.ask(
        f"""SELECT file_id, count(*) AS calls,
            count(*) FILTER (offset_bytes % {BLOCK_BYTES} <> 0
                OR (size_bytes % {BLOCK_BYTES} <> 0 AND done_bytes = size_bytes)) AS unaligned
        FROM io_events
        WHERE direction IN ('read', 'write') AND flags & 1 = 1 AND op NOT LIKE 'fault%'
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


_READS = """FROM io_events
    WHERE file_id = {file_id} AND direction = 'read' AND done_bytes > 0 AND offset_bytes >= 0
        AND op <> 'fault_around'"""
#: bytes read, and size of the union of what was read, in whole blocks; one row per block in memory
_TOUCHED = (
    """WITH of_block AS (SELECT offset_bytes // {block} AS first, sum(done_bytes) AS bytes,
        max((offset_bytes + done_bytes - 1) // {block}) AS last """
    + _READS
    + """ GROUP BY first),
    beyond AS (SELECT *, coalesce(max(last) OVER (ORDER BY first
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS covered FROM of_block)
    SELECT sum(bytes) AS bytes,
        sum(greatest(0, last - greatest(first - 1, covered))) * {block} AS touched FROM beyond"""
)


def _block_bytes(run: TracedRun, file_id: int) -> int:
    """Granularity for `_TOUCHED`: larger where the blocks in which reads begin would be too many."""
    query = f"SELECT approx_count_distinct(offset_bytes // {BLOCK_BYTES}) AS n " + _READS
    blocks = int(run.ask(query.format(file_id=file_id))[0]["n"] or 0)
    return BLOCK_BYTES * (1 + blocks // _MOST_BLOCKS)


def _rereads(run: TracedRun) -> Iterator[Finding]:
    """Guard: what the page cache serves again costs little and is left alone."""
    if not run.has("io_events", "offset_bytes", "done_bytes"):
        return
    waits = [
        row.file_id
        for row in run.judged
        if row.direction == "read"
        and row.calls >= ENOUGH
        and row.mean_ns >= CACHED_NS
        and run.share(row.time_ns) >= LITTLE
    ]
    for file_id in dict.fromkeys(waits):  # by calls and by faults it is the same file
        row = run.ask(_TOUCHED.format(file_id=file_id, block=_block_bytes(run, file_id)))[0]
        ratio = float(row["bytes"] or 0) / max(float(row["touched"] or 0), 1.0)
        if ratio >= REREAD_RATIO:
            yield Finding(
                "trace-rereads",
                "warning",
                f"{run.name(file_id)}: {size(row['bytes'])} were read of about "
                f"{size(row['touched'])}: "
                f"each byte {ratio:.1f} times, and not from the page cache.",
                {"io_events": {"file_id": file_id, "direction": "read"}},
                "Give it memory for what it reads again (page cache, shared_buffers, block cache), "
                "or read it "
                "once and keep it.",
            )


_FLUSHES = """SELECT file_id, sum(calls) AS flushes, sum(time_ns) AS ns FROM operations
    WHERE op IN ('fsync', 'fdatasync', 'sync_file_range', 'syncfs', 'sync', 'msync') GROUP BY file_id"""
_FLUSH_EVENTS = """SELECT file_id, count(*) AS flushes, sum(latency_ns) AS ns FROM io_events
    WHERE direction = 'sync' GROUP BY file_id"""


def _flush_rows(run: TracedRun) -> list[dict[str, Any]]:
    """Flushes per file: from the sums that every mode keeps, else from the events."""
    if run.has("operations", "op", "calls", "time_ns"):
        return run.ask(_FLUSHES)
    return run.ask(_FLUSH_EVENTS) if run.has("io_events", "direction", "latency_ns") else []


def _sync_ns(run: TracedRun) -> int:
    return sum(int(row["ns"]) for row in _flush_rows(run))


def _flushes(run: TracedRun) -> Iterator[Finding]:
    """Guard: many writes per flush, few flushes, or flushes that cost little."""
    writes: dict[int, int] = {}
    for judged in run.judged:  # a file may have verdicts on calls and on faults
        if judged.direction == "write":
            writes[judged.file_id] = writes.get(judged.file_id, 0) + judged.calls
    for row in sorted(_flush_rows(run), key=lambda row: -row["ns"]):
        count, ns = int(row["flushes"]), float(row["ns"])
        per = writes.get(row["file_id"], 0) / max(count, 1)
        if count < ENOUGH or per > WRITES_PER_FLUSH or run.share(ns) < FLUSH_TIME:
            continue
        yield Finding(
            "trace-fsync-storm",
            "warning",
            f"{run.name(row['file_id'])}: {count:,} flushes to the device, one after every "
            f"{per:.1f} writes, of {duration(ns / count)} each: "
            f"{percent(run.share(ns))} of the run.",
            {"operations": {"file_id": row["file_id"], "direction": "sync"}},
            "Group commits (commit_delay, larger batches), or put the log on a device with a "
            "protected cache.",
        )


def _alone(run: TracedRun) -> Iterator[Finding]:
    """Guard: orderly access (the kernel reads ahead for it) and runs that seldom wait."""
    waiting = [
        row
        for row in run.judged
        if row.mean_ns >= CACHED_NS and row.calls >= ENOUGH and row.basis == "calls"
    ]
    total = sum(row.time_ns for row in waiting)
    scattered = [row for row in waiting if row.kind in _SCATTERED and row.direction == "read"]
    held = sum(row.time_ns for row in scattered)
    if not scattered or held < 0.8 * total or not run.has("io_events", "t_ns", "latency_ns"):
        return
    ids = ", ".join(str(row.file_id) for row in scattered)
    row = run.ask(
        "SELECT sum(latency_ns) AS busy, max(t_ns + latency_ns) - min(t_ns) AS span FROM io_events "
        f"WHERE direction = 'read' AND file_id IN ({ids})"
    )[0]
    depth = float(row["busy"] or 0) / max(float(row["span"] or 0), 1.0)
    if run.share(held) >= 0.5 and depth < ALONE:
        yield Finding(
            "trace-low-concurrency",
            "info",
            f"Reads in scattered order wait one at a time ({depth:.2f} in flight in the mean): a "
            f"device that "
            "serves several at once stays idle.",
            {"io_events": {"file_id": [row.file_id for row in scattered], "direction": "read"}},
            "Ask ahead (effective_io_concurrency, posix_fadvise, io_uring) or use several threads.",
        )


def _disorder(run: TracedRun) -> Iterator[Finding]:
    """Guard: too few device requests to judge, and programs that are scattered themselves."""
    for row in run.judged:
        below = run.device.get((row.file_id, row.direction))
        if (
            below is not None
            and row.kind in {"consecutive", "sequential"}
            and below.kind in _SCATTERED
            and below.calls >= ENOUGH
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


def _fragmented(run: TracedRun) -> Iterator[Finding]:
    """Guard: small files, and files that are not read in order anyway."""
    if not run.has("extents", "contiguous_share", "count"):
        return
    share = {row["file_id"]: row for row in run.ask("SELECT * FROM extents")}
    sizes = {row["file_id"]: row for row in run.ask("SELECT file_id, size_bytes FROM files")}
    for row in run.judged:
        facts = share.get(row.file_id)
        if facts is None or row.direction != "read" or row.kind not in _ORDERLY:
            continue
        nbytes = int((sizes.get(row.file_id) or {}).get("size_bytes") or 0)
        contiguous = facts["contiguous_share"]
        if nbytes >= FRAGMENTED_BYTES and contiguous is not None and contiguous < FRAGMENTED:
            yield Finding(
                "trace-fragmented",
                "warning",
                f"{row.path} is read in order and lies in {facts['count']:,} pieces "
                f"({percent(contiguous)} of it contiguous): what is sequential for the program is "
                f"not for the disk.",
                {"extents": {"file_id": row.file_id}},
                "Write it anew in one go (copy, dump and reload, e4defrag, xfs_fsr), or "
                "preallocate it (fallocate).",
            )


def _overhead(run: TracedRun) -> Iterator[Finding]:
    share = run.receipt.get("added_share")
    if isinstance(share, int | float) and share >= OVERHEAD:
        yield Finding(
            "trace-overhead",
            "warning",
            f"Tracing added about {percent(share)} to the run.",
            {"manifest": {"added_share": share, "mode": run.receipt.get("mode")}},
            "Use --mode pattern or count, or choose fewer files; --calibrate measures what it adds "
            "to this command.",
        )


_RULES: tuple[Callable[[TracedRun], Iterator[Finding]], ...] = (
    _lost,
    _bound,
    _random_reads,
    _disorder,
    _fragmented,
    _rereads,
    _flushes,
    _alone,
    _small,
    _unaligned,
    _overhead,
)
