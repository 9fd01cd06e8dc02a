"""fio jobs from a trace: to replay the logs, to generate a similar load, to create the files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.archive.traces.trace_tables import Numbers, TraceTables, by_path
from penstock.archive.traces.verdicts import Verdict, of_best_basis

#: maximum number of files with a job of their own, by requests
_JOBS = 16
#: maximum number of block sizes in one job
_SIZES = 32
_SECTOR = 512
#: operation → fio's option for it
_FLUSHES = {
    "fsync": "fsync",
    "aio_fsync": "fsync",
    "uring_fsync": "fsync",
    "device_flush": "fsync",
    "fdatasync": "fdatasync",
    "aio_fdsync": "fdatasync",
}
_SYNCHRONOUS = 4  # bit of `flags`
_RANDOM = {"random", "hot-set", "irregular", "mixed"}


class JobCounts:
    """Sizes, threads, directions and flushes per path, counted during one pass over the events.

    The first file of a path represents all later ones with that path.
    """

    def __init__(self, rows: TraceTables):
        ways = dict(rows.operations.values())
        self._way = np.full(256, 2, np.int64)
        for number, way in ways.items():
            if way in ("read", "write"):
                self._way[number] = int(way == "write")
        for name, (number, _) in rows.operations.items():
            if name.startswith("fault_"):
                self._way[number] = 2
        self._flush = {rows.operations[name][0]: option for name, option in _FLUSHES.items()}
        self.first_of = rows.first_of
        #: number of files with the same path
        self.files = Counter(self.first_of.values())
        #: (file_id, fio's option) → flushes
        self.flushes: Counter[tuple[int, str]] = Counter()
        #: file_id → writes that return once the device has the data
        self.synchronous: Counter[int] = Counter()
        #: (file_id, direction 0 read 1 write, size) → requests
        self.sizes: Counter[tuple[int, int, int]] = Counter()
        #: file_id → threads
        self.threads: dict[int, set[int]] = {}
        #: (first, last) time of a request of each file [ns]
        self.span: dict[int, tuple[int, int]] = {}

    def add(self, batch: dict[str, Numbers]) -> None:
        """Count one batch."""
        batch = {**batch, "file_id": by_path(batch["file_id"], self.first_of)}
        for number, option in self._flush.items():
            here = batch["file_id"][(batch["op"] == number) & (batch["errno"] == 0)]
            self.flushes.update((file_id, option) for file_id in here.tolist())
        way = self._way[np.minimum(batch["op"], 255)]
        good = (way < 2) & (batch["done_bytes"] > 0)
        if not good.any():
            return
        file_id, done = batch["file_id"][good], batch["done_bytes"][good]
        synced = (way[good] == 1) & (batch["flags"][good] & _SYNCHRONOUS > 0)
        self.synchronous.update(file_id[synced].tolist())
        # one number per combination: unique rows of a matrix are ten times slower
        keys = (file_id << 1 | way[good]) << 31 | done
        combinations, n = np.unique(keys, return_counts=True)
        for key, count in zip(combinations.tolist(), n.tolist(), strict=True):
            self.sizes[key >> 32, key >> 31 & 1, key & 0x7FFFFFFF] += count
        for key in np.unique(file_id << 32 | batch["tid"][good]).tolist():
            self.threads.setdefault(key >> 32, set()).add(key & 0xFFFFFFFF)
        times = batch["t_ns"][good]
        for number in np.unique(file_id).tolist():
            own = times[file_id == number]
            first, last = self.span.get(number, (int(own[0]), int(own[-1])))
            self.span[number] = (min(first, int(own[0])), max(last, int(own[-1])))

    def main_files(self) -> list[int]:
        """Files with at least a hundredth of the requests, most requests first, at most 16."""
        per: Counter[int] = Counter()
        for (number, _, _), n in self.sizes.items():
            per[number] += n
        return [number for number, n in per.most_common(_JOBS) if 100 * n >= per.total()]


def write_jobs(
    folder: Path, rows: TraceTables, counts: JobCounts, written: Mapping[str, Any]
) -> None:
    """Write `replay.fio`, `job.fio`, `files.fio` and `names.json` to the directory of the logs."""
    ends = {int(number): int(end) for number, end in written["ends"].items()}
    (folder / "replay.fio").write_text(replay_job(written["threads"]))
    (folder / "files.fio").write_text(_layout(ends))
    (folder / "job.fio").write_text(_job(rows, counts, ends, written))
    names = {scratch_name(number): rows.named.get(number, "") for number in sorted(ends)}
    document = {"files": names, "not_replayed": written["skipped"], "threads": written["threads"]}
    (folder / "names.json").write_text(json.dumps(document, indent=1) + "\n")


def scratch_name(file_id: int) -> str:
    """The name of a traced file in the logs."""
    return f"file-{file_id:06}"


def replay_job(threads: list[dict[str, Any]], *, at_once: bool = False) -> str:
    """A job that replays the logs of `threads`; with `at_once` as fast as possible."""
    lines = [
        "; Replay of the recorded calls: a job per thread, each in its own order and at its recorded times.",
        "; Create the files first: fio files.fio. As fast as possible: --replay_no_stall=1.",
        "[global]",
        "thread",
        f"replay_no_stall={int(at_once)}",
        "",
    ]
    for number, thread in enumerate(threads, 1):
        asynchronous = 2 * thread["asynchronous"] > thread["requests"]
        lines += [f"[thread-{number}]", f"read_iolog={thread['log']}"]
        lines += [f"ioengine={'libaio' if asynchronous else 'psync'}"]
        lines += [f"iodepth={thread['depth'] if asynchronous else 1}"]
        lines += [f"direct={int(2 * thread['direct'] > max(thread['requests'], 1))}"]
        # fio's log times are relative to its first line
        lines += ["" if at_once else f"startdelay={thread['first_us']}us\n"]
    return "\n".join(lines)


def _layout(ends: dict[int, int]) -> str:
    lines = ["; Scratch files of the sizes that the recorded calls need.", "[global]"]
    lines += ["rw=write", "ioengine=psync", "end_fsync=1", ""]
    for number, end in sorted(ends.items()):
        if end > 0:
            block = min(-(-end // _SECTOR) * _SECTOR, 1 << 20)
            lines += [f"[file-{number}]", f"filename={scratch_name(number)}", f"bs={block}"]
            lines += [f"size={-(-end // block) * block}", ""]
    return "\n".join(lines)


def _job(
    rows: TraceTables, counts: JobCounts, ends: dict[int, int], written: Mapping[str, Any]
) -> str:
    depth = max((t["depth"] for t in written["threads"] if t["asynchronous"]), default=1)
    asynchronous = any(2 * t["asynchronous"] > t["requests"] for t in written["threads"])
    requests = sum(t["requests"] for t in written["threads"])
    direct = 2 * sum(t["direct"] for t in written["threads"]) > max(requests, 1)
    lines = [
        "; The same kind of load, not the calls themselves: mix, sizes, order and rate as recorded.",
        "[global]",
        f"ioengine={'libaio' if asynchronous else 'psync'}",
        f"iodepth={depth if asynchronous else 1}",
        f"direct={int(direct)}",
        "randrepeat=1",
        "norandommap",
        "",
    ]
    verdicts = {
        (counts.first_of.get(row.file_id, row.file_id), row.direction): row
        for row in sorted(of_best_basis(rows.overall_verdicts), key=lambda row: row.requests)
    }
    file_ends: dict[int, int] = {}
    for number, end in ends.items():
        first = counts.first_of.get(number, number)
        file_ends[first] = max(file_ends.get(first, 0), end)
    for number in counts.main_files():
        lines += _section(number, counts, file_ends.get(number, 0), verdicts)
    return "\n".join(lines)


def _section(
    number: int,
    counts: JobCounts,
    end: int,
    verdicts: dict[tuple[int, str], Verdict],
) -> list[str]:
    sizes: list[Counter[int]] = [Counter(), Counter()]
    for (file_id, way, size), n in counts.sizes.items():
        if file_id == number:
            sizes[way][-(-size // _SECTOR) * _SECTOR] += n
    reads, writes = sizes[0].total(), sizes[1].total()
    bytes_of = [sum(size * n for size, n in part.items()) for part in sizes]
    main = "write" if writes > reads else "read"
    verdict = verdicts.get((number, main))
    random = verdict is not None and verdict.kind in _RANDOM
    kind = "rw" if reads and writes else main
    jobs = max(1, len(counts.threads.get(number, ())))
    first, last = counts.span[number]
    seconds = max((last - first) / 1e9, 1e-3)
    again = counts.files[number]
    lines = [
        *(
            [f"; its path was made {again} times: {again} files of the recorded calls"]
            * (again > 1)
        ),
        f"[file-{number}]",
        f"filename={scratch_name(number)}",
        f"size={max(-(-end // _SECTOR) * _SECTOR, _SECTOR)}",
        f"rw={'rand' if random else ''}{kind}{_step(verdict, sizes[main == 'write'])}",
    ]
    if reads and writes:
        lines.append(f"rwmixread={round(100 * reads / (reads + writes))}")
    splits = [_split(part) for part in sizes]
    lines.append(f"bssplit={splits[0] or splits[1]},{splits[1] or splits[0]}")
    if random:
        lines.append(f"random_distribution={_distribution(verdict)}")
    for option in ("fsync", "fdatasync"):
        # fio flushes after every N writes of a job
        if writes and counts.flushes[number, option]:
            lines.append(f"{option}={max(round(writes / counts.flushes[number, option]), 1)}")
    if 2 * counts.synchronous[number] > writes:
        lines.append("sync=1")
    lines.append(f"numjobs={jobs}")
    lines.append(f"io_size={max(sum(bytes_of) // jobs, _SECTOR)}")
    rates = [max(int(n / seconds / jobs), 1) if n else "" for n in bytes_of]
    lines += [f"rate={rates[0]},{rates[1]}", ""]
    return lines


def _split(sizes: Counter[int]) -> str:
    """`4096/70:8192/30`: sizes with their share in integer percent, 100 in total."""
    total = sizes.total()
    if not total:
        return ""
    common = sizes.most_common(_SIZES)
    shares = {size: round(100 * n / total) for size, n in common}
    percents = {size: share for size, share in shares.items() if share > 0} or {common[0][0]: 100}
    percents[max(percents, key=lambda size: percents[size])] += 100 - sum(percents.values())
    return ":".join(f"{size}/{share}" for size, share in sorted(percents.items()))


def _step(verdict: Verdict | None, sizes: Counter[int]) -> str:
    """fio's offset modifier of a strided pattern: the gap between two requests."""
    if verdict is None or not sizes:
        return ""
    if verdict.kind == "reverse":
        return f":-{sizes.most_common(1)[0][0] * 2}"
    steps = verdict.evidence.get("strides_bytes", ())
    if verdict.kind == "strided" and len(steps) == 1:
        hole = int(steps[0]) - sizes.most_common(1)[0][0]
        return f":{hole}" if hole else ""
    return ""


def _distribution(verdict: Verdict | None) -> str:
    spread = verdict.evidence.get("spread", {}) if verdict is not None else {}
    theta = spread.get("zipf_exponent", 0.0)
    if verdict is not None and verdict.kind == "hot-set" and theta > 0:
        # fio refuses an exponent of exactly 1
        return f"zipf:{theta if abs(theta - 1) > 1e-3 else 1.001:.3f}"
    return "random"
