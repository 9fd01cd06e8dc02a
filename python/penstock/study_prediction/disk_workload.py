"""The load of a treatment on a disk, as input of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import PenstockError
from penstock.study.resolve import ResolvedDisk, ResolvedRun
from penstock.study_prediction.think_times import ClientCosts
from penstock.text import listed
from penstock.workload.measured import SYNCHRONOUS_ENGINES, JobSpec

MAX_REQUEST_BYTES = 1 << 20
#: the kernel's default read-ahead for a buffered sequential reader, 128 KiB
READAHEAD_BYTES = 128 << 10
_DEFAULT_FILE_BYTES = 1 << 30


@dataclass(frozen=True)
class ClosedLoop:
    """A closed loop on one disk: a simulation without its seed; `note` lists omissions of the model.

    `calls_per_read`: calls of the program for each simulated read; None if it differs between jobs.
    """

    disk: ResolvedDisk
    spec: dict[str, Any]
    note: str = ""
    calls_per_read: float | None = 1.0


def disk_of(run: ResolvedRun, place: str | None) -> ResolvedDisk:
    """The disk of a path of the command; the first one if it is unknown.

    PenstockError if a disk is a plain directory, which has no model.
    """
    plain = [disk.name for disk in run.disks if not disk.emulated]
    if plain:
        raise PenstockError(
            f"the disk {plain[0]} is a plain directory; a prediction needs its profile "
            "(penstock profile fits one)"
        )
    for disk in run.disks:
        names = [n for n in (f"/{disk.name}", f"/{disk.disk_id}", disk.mount) if n]
        if place and any(place == n or place.startswith(f"{n}/") for n in names):
            return disk
    return run.disks[0]


def beyond_model(run: ResolvedRun, jobs: Sequence[JobSpec]) -> str:
    """Why no closed loop models these jobs; empty if one does."""
    options = sorted({f"--{name}" for job in jobs for name in job.beyond})
    if options:
        return f"the model has no {listed(options, 'or')} of fio"
    if len({job.call for job in jobs}) > 1:
        return "the model has no calls of fio one after the other"
    if len({_end(job) for job in jobs}) > 1:
        return "the model has no jobs that end separately"
    if len({_disk_id(run, job) for job in jobs}) > 1:
        return "the model has no jobs on several disks"
    return ""


def _place(job: JobSpec) -> str | None:
    """Path of a job's files: a relative name of a file is below its directory."""
    if job.filename is not None and (job.filename.startswith("/") or job.directory is None):
        return job.filename
    return job.directory


def _disk_id(run: ResolvedRun, job: JobSpec) -> str:
    return disk_of(run, _place(job)).disk_id


def _end(job: JobSpec) -> tuple[float | None, int | None]:
    """Seconds and requests of each thread of a job, whichever ends first."""
    if job.time_based and job.runtime_s and not job.number_ios:
        return job.runtime_s, None
    amount = job.io_bytes or job.size_bytes or _DEFAULT_FILE_BYTES
    if job.number_ios:
        amount = job.number_ios * job.bs_bytes
    return job.runtime_s, max(1, amount // _request_bytes(job))


def _request_bytes(job: JobSpec) -> int:
    """Bytes of a request: those of a call, or of the kernel's read-ahead for a buffered sequential reader."""
    if job.direct or job.direction != "read" or job.random:
        return job.bs_bytes
    return min(max(READAHEAD_BYTES, job.bs_bytes), _file_bytes(job))


def _file_bytes(job: JobSpec) -> int:
    return max(job.size_bytes or _DEFAULT_FILE_BYTES, job.bs_bytes)


def closed_loop_of(run: ResolvedRun, jobs: list[JobSpec], costs: ClientCosts) -> ClosedLoop:
    """The simulation of a command's jobs, all started together (the first job's disk)."""
    disk = disk_of(run, _place(jobs[0]))
    clients, notes = [], []
    for job in jobs:
        client, note = _client(job, costs)
        clients += _placed(job, client)
        notes.append(note)
    first = jobs[0]
    spec: dict[str, Any] = {
        "profile": disk.profile,
        "clients": clients,
        "max_request_bytes": MAX_REQUEST_BYTES,
        "quantiles": [0.5, 0.9, 0.95, 0.99, 0.999],
    }
    if first.runtime_s:
        spec["duration_s"] = first.runtime_s
    operations = _end(first)[1]
    if operations is not None:
        spec["operations"] = operations
    calls = {_request_bytes(job) / job.bs_bytes for job in jobs if job.direction != "write"} or {
        1.0
    }
    note = "; ".join(sorted({n for n in notes if n}))
    return ClosedLoop(disk, spec, note, calls.pop() if len(calls) == 1 else None)


def _placed(job: JobSpec, client: dict[str, Any]) -> list[dict[str, Any]]:
    """The client as one entry; one entry per thread if each thread of the job begins at its own offset."""
    if not job.offset_increment_bytes and not job.offset_bytes:
        return [client]
    placed = []
    for number in range(job.numjobs):
        start = job.offset_bytes + number * job.offset_increment_bytes
        pattern = dict(client["pattern"])
        rest = pattern["file_bytes"] - start
        pattern["file_bytes"] = rest if rest >= pattern["block_bytes"] else pattern["file_bytes"]
        placed.append(client | {"count": 1, "pattern": pattern, "device_offset_bytes": start})
    return placed


def _client(job: JobSpec, costs: ClientCosts) -> tuple[dict[str, Any], str]:
    file_bytes, mixed = _file_bytes(job), job.direction == "mixed"
    pattern: dict[str, Any] = {
        "kind": "random" if job.random or mixed else "sequential",
        "op": job.direction,
        "block_bytes": job.bs_bytes,
        "file_bytes": file_bytes,
    }
    if mixed:
        pattern["read_share"] = job.rwmixread / 100
    client: dict[str, Any] = {
        "count": job.numjobs,
        "pattern": pattern,
        "iodepth": 1 if job.ioengine in SYNCHRONOUS_ENGINES else job.iodepth,
        "think_ns": costs.fixed_ns,
        "think_ns_per_byte": costs.think_ns_per_byte,
        "shared_file": job.filename is not None,
    }
    if job.direct:
        notes = ["syncs not modelled"] * (job.fsync > 0 and job.direction != "read")
        notes += ["sequential reads and writes modelled as random ones"] * (
            mixed and not job.random
        )
        return client, "; ".join(notes)
    if job.direction == "read" and not job.random:
        # the program reads pages that the kernel read ahead: the disk serves read-ahead, two in flight
        block = _request_bytes(job)
        client["iodepth"] = 2
        client["think_ns"] = costs.think_ns * block / job.bs_bytes
        pattern["block_bytes"] = block
        return client, "buffered: kernel read-ahead of 128 KiB assumed"
    if job.direction == "read":
        return client, "buffered: hits in the page cache not modelled"
    return client, "buffered: write-back not modelled"
