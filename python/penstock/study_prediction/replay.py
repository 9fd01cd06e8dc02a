"""The traced run of a treatment as a program for replay on other disks and memories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from penstock.archive.bundle import Bundle
from penstock.archive.traces.trace_tables import TraceTables
from penstock.archive.traces.verdicts import of_best_basis
from penstock.profile.model import native
from penstock.study.resolve import ResolvedDisk, ResolvedRun
from penstock.study_prediction.think_times import disk_events

#: the kernel's read-ahead for a sequential reader of an emulated disk
READAHEAD_BYTES = 128 << 10
#: limit of dirty pages of an emulated disk's mount: this share of the memory, with these bounds
DIRTY_SHARE, LEAST_DIRTY_BYTES, MOST_DIRTY_BYTES = 0.2, 4 << 20, 64 << 20
_OPS = {"read": 0, "write": 1, "flush": 2}
_DIRECT = 1


@dataclass(frozen=True)
class Own:
    """Memory of the run's group not available to the page cache over its disks, bytes; None: not sampled."""

    anonymous_bytes: float | None
    shared_bytes: float

    @property
    def bytes(self) -> int:
        return int((self.anonymous_bytes or 0.0) + self.shared_bytes)


@dataclass(frozen=True)
class Bound:
    """Threads that run for a fixed time (seconds) instead of a number of operations."""

    tids: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Traced:
    """A basis: its bundle, the resolved run, and the native program. `summary` describes the trace."""

    bundle: Bundle
    run: ResolvedRun
    program: Any
    summary: dict[str, Any]
    threads: pd.DataFrame
    own: Own

    @property
    def treatment_id(self) -> str:
        """The traced treatment."""
        return str(self.bundle.manifest["treatment_id"])

    def outcomes(
        self, run: ResolvedRun, disk: ResolvedDisk, bounds: Sequence[Bound], seeds: Sequence[int]
    ) -> list[dict[str, Any]]:
        """The program on `disk` with the memory of `run`, once for each seed (`queuenet`, `Replayed`)."""
        setting = {
            "profile": disk.profile,
            "cache_bytes": self.cache_bytes(run),
            "readahead_bytes": READAHEAD_BYTES,
            "dirty_bytes": dirty_bytes(run.memory_bytes),
            "bounds": [{"tids": list(b.tids), "seconds": b.seconds} for b in bounds],
        }
        outcomes: list[dict[str, Any]] = json.loads(
            self.program.run(json.dumps(setting), [int(s) for s in seeds])
        )
        return outcomes

    def cache_bytes(self, run: ResolvedRun) -> int:
        """The capacity of the page cache over the disks: the limit minus the program's own memory."""
        if run.memory_bytes is None:
            return 1 << 46
        return max(1 << 20, run.memory_bytes - self.own.bytes)


def dirty_bytes(memory_bytes: int | None) -> int:
    """Limit of dirty pages of an emulated disk's mount, as set by the disk server."""
    if memory_bytes is None:
        return MOST_DIRTY_BYTES
    return min(MOST_DIRTY_BYTES, max(LEAST_DIRTY_BYTES, int(memory_bytes * DIRTY_SHARE)))


def traced(bundle: Bundle, run: ResolvedRun) -> Traced:
    """The basis from its bundle. ValueError if trace and log do not match."""
    disk = run.disks[0]
    events = disk_events(bundle)
    if "disk_id" in events and (events["disk_id"] == disk.disk_id).any():
        events = events[events["disk_id"] == disk.disk_id]
    requests = _requests(bundle, disk)
    events, names = _named(events, requests)
    files = pd.Index(sorted(set(names) | set(requests["file"])))
    calls = _calls(events, files)
    log = _log(requests, files)
    about = {
        "files": _files(bundle, events, requests, files),
        "start_ns": _start_ns(bundle, events),
        "cpu_ns": bundle.manifest.get("cpu_ns"),
    }
    program = native.Replay(calls, log, json.dumps(about))
    threads = _threads(events, requests)
    summary = json.loads(program.found())
    return Traced(bundle, run, program, summary, threads, own_memory(bundle))


def own_memory(bundle: Bundle) -> Own:
    """Maximum memory of the run's group beyond its page cache, and shared memory in the page cache.

    Shared memory of a control group is part of its page cache and cannot be dropped; it is estimated from
    the growth of the host's.
    """
    if "samples" not in bundle.tables:
        return Own(None, 0.0)
    samples = bundle.table("samples").to_pandas()
    group = samples[samples["source"].astype(str) == "cgroup"]
    wide = group.pivot_table(index="t_ns", columns="metric", values="value", observed=True)
    if not {"memory", "page_cache"} <= set(wide.columns) or wide.empty:
        return Own(None, 0.0)
    anonymous = float((wide["memory"] - wide["page_cache"]).max())
    host = samples[samples["source"].astype(str) == "memory"]
    shared = host.loc[host["metric"].astype(str) == "shared", "value"]
    grown = float(shared.max() - shared.iloc[0]) if len(shared) else 0.0
    return Own(anonymous, max(0.0, grown))


def _requests(bundle: Bundle, disk: ResolvedDisk) -> pd.DataFrame:
    if "device_requests" not in bundle.tables:
        columns = ["t_ns", "done_ns", "op", "offset_bytes", "size_bytes", "pid", "file"]
        return pd.DataFrame({c: [] for c in columns})
    requests: pd.DataFrame = bundle.table("device_requests").to_pandas()
    requests = requests[requests["disk_id"].astype(str) == disk.disk_id]
    if "pid" not in requests:
        requests = requests.assign(pid=0)
    requests = requests.assign(file=requests["file"].astype(str))
    return requests.sort_values("t_ns", kind="stable").reset_index(drop=True)


def _named(events: pd.DataFrame, requests: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The events with the disk's own name of their file (relative to the mount), and all these names."""
    logged = set(requests["file"])
    if "path" not in events:
        events = events.assign(path=events["file_id"].astype(str))
    paths = events[["file_id", "path"]].drop_duplicates("file_id")
    votes: dict[str, int] = {}
    for path in paths["path"].astype(str):
        parts = PurePosixPath(path).parts
        for n in range(1, len(parts)):
            if str(PurePosixPath(*parts[n:])) in logged:
                mount = str(PurePosixPath(*parts[:n]))
                votes[mount] = votes.get(mount, 0) + 1
    prefix = max(votes, key=lambda m: (votes[m], -len(m))) + "/" if votes else ""
    short = [str(path).removeprefix(prefix) for path in paths["path"]]
    name = dict(zip(paths["file_id"], short, strict=True))
    return events.assign(file=events["file_id"].map(name)), short


def _calls(events: pd.DataFrame, files: pd.Index[str]) -> dict[str, Any]:
    flags = events["flags"] if "flags" in events else pd.Series(0, index=events.index)
    done = events["done_bytes"] if "done_bytes" in events else events["size_bytes"]
    return {
        "t_ns": events["t_ns"].to_numpy(np.uint64),
        "latency_ns": events["latency_ns"].to_numpy(np.uint64),
        "tid": events["tid"].to_numpy(np.int64),
        "op": (events["direction"].astype(str) == "write").to_numpy(np.uint8),
        "direct": (flags.to_numpy(np.int64) & _DIRECT).astype(np.uint8),
        "file": files.get_indexer(pd.Index(events["file"])).astype(np.uint32),
        "offset": events["offset_bytes"].clip(lower=0).to_numpy(np.uint64),
        "size": done.clip(lower=0).to_numpy(np.uint64),
    }


def _log(requests: pd.DataFrame, files: pd.Index[str]) -> dict[str, Any]:
    path = requests.get("compensation_ns", 0)
    return {
        "t_ns": (requests["t_ns"] - path).to_numpy(np.uint64),
        "done_ns": requests["done_ns"].to_numpy(np.uint64),
        "tid": requests["pid"].to_numpy(np.int64),
        "op": requests["op"].astype(str).map(_OPS).to_numpy(np.uint8),
        "file": files.get_indexer(pd.Index(requests["file"])).astype(np.uint32),
        "offset": requests["offset_bytes"].to_numpy(np.uint64),
        "size": requests["size_bytes"].to_numpy(np.uint64),
    }


def _files(
    bundle: Bundle, events: pd.DataFrame, requests: pd.DataFrame, files: pd.Index[str]
) -> list[dict[str, Any]]:
    """Initial size, place on the device, directory, and random access of each file."""
    read = events[events["direction"].astype(str) == "read"]
    done = "done_bytes" if "done_bytes" in read else "size_bytes"
    ends = (read["offset_bytes"] + read[done]).groupby(read["file"]).max()
    reads = requests[requests["op"].astype(str) == "read"]
    logged = (reads["offset_bytes"] + reads["size_bytes"]).groupby(reads["file"]).max()
    sizes = {}
    if "files" in bundle.tables:
        sizes_by_id = bundle.table("files").to_pandas()[["file_id", "size_bytes"]]
        seen = events[["file_id", "file"]].drop_duplicates().merge(sizes_by_id, on="file_id")
        sizes = seen.groupby("file")["size_bytes"].min().to_dict()
    device = requests.drop_duplicates("file").set_index("file")
    bases = {}
    if "device_offset_bytes" in requests:
        first = device["device_offset_bytes"] - device["offset_bytes"]
        bases = first.astype("int64").to_dict()
    random = _random(bundle)
    folders = [str(PurePosixPath(f).parent) for f in files]
    place = {folder: n for n, folder in enumerate(sorted(set(folders)))}
    return [
        {
            "size_bytes": int(max(sizes.get(f, 0), ends.get(f, 0), logged.get(f, 0))),
            "base": int(bases.get(f, native.disk_device_offset(f, 0))),
            "place": place[folders[n]],
            "random": any(f"/{path}".endswith(f"/{f}") for path in random),
        }
        for n, f in enumerate(files)
    ]


def _random(bundle: Bundle) -> list[str]:
    """Paths of the files that the classifier reports as read at random."""
    verdicts = TraceTables(bundle.path).verdicts
    reads = of_best_basis(row for row in verdicts if row.direction == "read")
    return sorted({row.path for row in reads if row.kind == "random"})


def _start_ns(bundle: Bundle, events: pd.DataFrame) -> int:
    if "phases" in bundle.tables:
        phases = bundle.table("phases").to_pandas()
        work = phases.loc[phases["phase_id"].astype(str) == "workload", "start_ns"]
        if len(work):
            return int(work.iloc[-1])
    return int(events["t_ns"].min()) if len(events) else 0


def _threads(events: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """One row per thread, indexed by it: begin and end [ns], counts and bytes of reads, writes and syncs."""
    write = events["direction"].astype(str) == "write"
    done = events["done_bytes"] if "done_bytes" in events else events["size_bytes"]
    work = pd.DataFrame(
        {
            "tid": events["tid"],
            "begin_ns": events["t_ns"],
            "end_ns": events["t_ns"] + events["latency_ns"],
            "reads": (~write).astype(int),
            "writes": write.astype(int),
            "syncs": 0,
            "read_bytes": done.where(~write, 0),
            "written_bytes": done.where(write, 0),
        }
    )
    flush = requests[requests["op"].astype(str) == "flush"]
    flushes = pd.DataFrame(
        {
            "tid": flush["pid"],
            "begin_ns": flush["t_ns"],
            "end_ns": flush["done_ns"],
            "reads": 0,
            "writes": 0,
            "syncs": 1,
            "read_bytes": 0,
            "written_bytes": 0,
        }
    )
    rules = {"begin_ns": "min", "end_ns": "max"}
    rules |= dict.fromkeys(("reads", "writes", "syncs", "read_bytes", "written_bytes"), "sum")
    both = pd.concat([work, flushes]) if len(flushes) else work
    table: pd.DataFrame = both.groupby("tid").agg(rules)
    return table
