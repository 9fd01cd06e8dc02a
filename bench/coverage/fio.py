"""fio's engines as cells of a matrix, and the comparison of one cell.

The truth is fio's own: counts and bytes of its JSON, offsets and order of its I/O log (`write_iolog`).
"""

from __future__ import annotations

import collections
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.coverage.recording import Recording, record
from penstock.host.journal.journal import Journal
from penstock.observe.trace.capture.tracer import Tracer

BLOCK = 4096
FILE_BYTES = 4 << 20
#: requests of each job: a prime number, so that losses, duplicates and rounding are visible
REQUESTS = 251

#: direction, offset [bytes], size [bytes]
Request = tuple[str, int, int]

PATTERNS = ("read", "write", "randread", "randwrite", "rw", "randrw")


@dataclass(frozen=True)
class Engine:
    """Execution and results of an engine: its depth, the operations of its reads and writes, its
    capabilities.
    """

    depth: int
    ops: frozenset[str]
    patterns: tuple[str, ...] = PATTERNS
    direct: bool = True
    ordered: bool = True
    directions: bool = True


def _engine(ops: str, depth: int = 1, **more: Any) -> Engine:
    return Engine(depth, frozenset(ops.split()), **more)


ENGINES = {
    "sync": _engine("read write"),
    "psync": _engine("pread64 pwrite64"),
    "vsync": _engine("readv writev"),
    "pvsync": _engine("preadv pwritev"),
    "pvsync2": _engine("preadv2 pwritev2"),
    # threads of the C library serve the requests of one process in any order
    "posixaio": _engine("pread64 pwrite64", 8, ordered=False),
    "libaio": _engine("aio_pread aio_pwrite", 8),
    "io_uring": _engine("uring_read uring_write uring_readv uring_writev", 8),
    "splice": _engine("splice_in splice_out"),
    # a length, not a transfer: fio has offsets for writes only
    "ftruncate": _engine("ftruncate", patterns=("write", "randwrite"), direct=False),
    "falloc": _engine("fallocate", direct=False, directions=False),
}

#: engines of fio that cannot be compared, with the reason
OTHERS = {
    "mmap": "pages, not requests: tests/integration/test_trace_faults.py",
    "e4defrag": "moves extents by ioctl, neither reads nor writes",
    "filecreate": "metadata only: files are created, nothing has an offset",
    "filestat": "metadata only: stat is not traced",
    "filedelete": "metadata only: files are deleted, nothing has an offset",
    "io_uring_cmd": "needs an NVMe character device",
    "sg": "needs a SCSI device",
    "mtd": "needs a flash device",
    "dev-dax": "needs a DAX device",
    "libpmem": "stores to mapped memory: see mmap",
    "pmemblk": "stores to mapped memory: see mmap",
    **dict.fromkeys(["null", "cpuio", "exec"], "no file"),
    **dict.fromkeys(
        ["net", "netsplice", "rdma", "nbd", "rbd", "rados", "gfapi", "gfapi_async"],
        "the file is behind a network",
    ),
}


@dataclass(frozen=True)
class Cell:
    """One combination."""

    engine: str
    pattern: str
    direct: bool
    jobs: int

    def __str__(self) -> str:
        return (
            f"{self.engine} {self.pattern} {'direct' if self.direct else 'buffered'} ×{self.jobs}"
        )


def installed() -> list[str]:
    """Engines that fio lists."""
    output = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, check=True).stdout
    return [line.strip() for line in output.splitlines()[1:] if line.strip()]


def cells(engines: list[str]) -> Iterator[Cell]:
    """All supported combinations of the engines."""
    for name in engines:
        engine = ENGINES[name]
        for pattern in engine.patterns:
            for direct in (False, True) if engine.direct else (False,):
                for jobs in (1, 4):
                    yield Cell(name, pattern, direct, jobs)


def job_file(cell: Cell, target: Path, work: Path) -> str:
    """A section per job, because each writes its own log."""
    engine = ENGINES[cell.engine]
    lines = [
        "[global]",
        f"filename={target}",
        f"size={FILE_BYTES}",
        f"bs={BLOCK}",
        f"rw={cell.pattern}",
        f"direct={int(cell.direct)}",
        f"ioengine={cell.engine}",
        f"iodepth={engine.depth}",
        f"number_ios={REQUESTS}",
        "invalidate=0",
    ]
    for job in range(cell.jobs):
        lines += [f"[job{job}]", f"randseed={job + 1}", f"write_iolog={work}/log{job}"]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Run:
    """One traced run of fio: recorded events, fio's summary, its logs by job."""

    recording: Recording
    target: Path
    report: dict[str, Any]
    logs: list[list[Request]]


def run_fio(cell: Cell, tracer: Tracer, journal: Journal, work: Path) -> Run:
    """Run a cell. RuntimeError if fio fails."""
    target = work / "target"
    if not target.exists() or target.stat().st_size < FILE_BYTES:
        target.write_bytes(b"penstock" * (FILE_BYTES // 8))
    for log in work.glob("log*"):
        log.unlink()  # fio continues in an existing log
    jobs = work / "jobs.fio"
    jobs.write_text(job_file(cell, target, work))
    report = work / "fio.json"
    argv = ["fio", "--output-format=json", f"--output={report}", str(jobs)]
    recording = record(argv, tracer, journal, work)
    if recording.exit_status != 0:
        raise RuntimeError(f"fio ended with {recording.exit_status}")
    logs = [iolog(work / f"log{job}") for job in range(cell.jobs)]
    return Run(recording, target, json.loads(report.read_text()), logs)


def run_cell(cell: Cell, tracer: Tracer, journal: Journal, work: Path) -> list[str]:
    """Differences between fio and the tracer as text; empty without any."""
    try:
        return differences(cell, run_fio(cell, tracer, journal, work))
    except RuntimeError as error:
        return [str(error)]


def latencies(run: Run) -> list[int]:
    """Latencies of the asynchronous requests on the target [ns]."""
    return [row["latency_ns"] for row in run.recording.of_file(run.target) if row["flags"] & 64]


def iolog(path: Path) -> list[Request]:
    """Direction, offset [bytes] and size [bytes] of each request in fio's log (any version)."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return [
        (fields[-3], int(fields[-2]), int(fields[-1]))
        for fields in rows
        if len(fields) >= 4 and fields[-3] in {"read", "write"}
    ]


def differences(cell: Cell, run: Run) -> list[str]:
    """Differences in counts and bytes (fio's summary), offsets (its logs), order per process, and losses."""
    engine = ENGINES[cell.engine]
    rows = [row for row in run.recording.of_file(run.target) if row["op"] in engine.ops]
    deviations = []
    if engine.directions and cell.engine != "ftruncate":
        for direction in ("read", "write"):
            ours = [row for row in rows if row["direction"] == direction]
            counts = len(ours), sum(row["done_bytes"] for row in ours)
            theirs = (
                sum(job[direction]["total_ios"] for job in run.report["jobs"]),
                sum(job[direction]["io_bytes"] for job in run.report["jobs"]),
            )
            if counts != theirs:
                deviations.append(f"{direction}s and bytes: {counts}, fio {theirs}")
    of_process: dict[int, list[Request]] = collections.defaultdict(list)
    for row in rows:
        of_process[row["pid"]].append(_request(row, engine, cell))
    truth = [[_truth(request, engine, cell) for request in log] for log in run.logs]
    ours, theirs = list(of_process.values()), truth
    if not engine.ordered:
        ours, theirs = [sorted(one) for one in ours], [sorted(one) for one in theirs]
    if sorted(ours) != sorted(theirs):
        same = collections.Counter(r for one in ours for r in one) == collections.Counter(
            r for one in theirs for r in one
        )
        deviations.append("the order per process" if same else "the offsets")
    deviations += receipt_faults(run.recording.receipt)
    return deviations


def receipt_faults(receipt: dict[str, Any]) -> list[str]:
    """Losses, requests without an end, and counts that do not add up."""
    faults = []
    if receipt["lost"]:
        faults.append(f"{receipt['lost']} events lost")
    if receipt["in_flight"]:
        faults.append(f"{receipt['in_flight']} requests without an end")
    if receipt["seen"] != receipt["kept"] + receipt["filtered"] + receipt["lost"]:
        faults.append("the receipt does not balance")
    return faults


def _request(row: dict[str, Any], engine: Engine, cell: Cell) -> Request:
    if cell.engine == "ftruncate":
        return "write", row["offset_bytes"], BLOCK
    size = row["size_bytes"] if row["direction"] == "meta" else row["done_bytes"]
    return row["direction"] if engine.directions else "", row["offset_bytes"], size


def _truth(request: Request, engine: Engine, cell: Cell) -> Request:
    return request if engine.directions else ("", *request[1:])
