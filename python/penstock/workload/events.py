"""Traced calls of one or several runs, merged into few operations per task.

The unit is a *step*: contiguous accesses of one task to one file in one direction, without a pause. All
computations on events are vectorised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput

#: system files, which a store does not contain (unless requested)
SYSTEM = (
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)

#: a task is a process, a thread, or everything that one traced command started
PER = ("process", "thread", "command")

#: computing for longer than this separates two operations on one file, seconds
PAUSE_S = 0.1


#: what a workload cannot express and no prediction from it includes; the ends of notes
MAPPED = "mapped files"
GROUP_COMMITS = "flushes of files that several threads flush in turn (group commit)"
#: share of the bytes from which mapped files matter
_MAPPED_SHARE = 0.1


@dataclass
class Steps:
    """Steps of all tasks in order of task and time, one row each.

    `table`: task, file, write (0 or 1), offset_bytes, size_bytes, start_ns, end_ns, before_ns (preceding
    computing time), inside_ns (between its calls), parted (other tasks ran before it: a command's first
    process). `tasks`: run (index of the bundle), start_ns, end_ns, last_ns (before it waited for others),
    launch_ns and after_ns (computing after its last step). `files`, by number: path, size_bytes (at first
    sight).
    """

    table: pd.DataFrame
    tasks: pd.DataFrame
    files: pd.DataFrame
    cpu_s: float | None
    notes: list[str] = field(default_factory=list)


def read_steps(
    paths: Sequence[Path],
    *,
    per: str = "process",
    under: Sequence[str] = (),
    pause_s: float = PAUSE_S,
) -> Steps:
    """Steps of the tasks of these bundles, on one clock. `under`: only files below these directories.

    Without `under`: files on emulated disks if there are any, otherwise all except system files. Raises
    BadInput if a bundle has no traced operations, or none on such files.
    """
    if per not in PER:
        raise BadInput(f"a task per {per!r}; expected {', '.join(PER)}")
    if not pause_s >= 0:
        raise BadInput(f"a pause of {pause_s} s; at least 0 is expected")
    bundles = [Bundle.open(path) for path in paths]
    frames, files, starts, notes, cpu = [], [], [], [], []
    for number, bundle in enumerate(bundles):
        frame, own, start = _events(bundle, number, per)
        frames.append(frame)
        files.append(own)
        starts.append(start)
        cpu.append(_cpu_s(bundle))
        lost = int(bundle.manifest.get("losses", {}).get("trace", 0) or 0)
        if lost:
            notes.append(
                f"{bundle.path.name}: {lost} events were lost; bytes and times are too small"
            )
        notes += _omitted(bundle)
    events = pd.concat(frames, ignore_index=True)
    in_time = sorted(range(len(bundles)), key=starts.__getitem__)
    renames = {number: _renames(bundles[number]) for number in in_time}
    in_scope = _files(pd.concat(files, ignore_index=True), renames, under, notes)
    number_of = in_scope.set_index(["run", "file_id"])["file"]
    for number, bundle in enumerate(bundles):
        own_ids = in_scope.loc[in_scope["run"] == number, "file_id"]
        notes += _beyond(bundle, own_ids.to_numpy())
    keys = pd.MultiIndex.from_frame(events[["run", "file_id"]])
    events["file"] = number_of.reindex(keys).to_numpy()
    steps = _merged(events, np.asarray(starts), pause_s)
    if not len(steps[0]):
        where = f"below {', '.join(under)}" if under else "outside the system's directories"
        raise BadInput(f"{paths[0]}: no reads or writes of files {where}")
    table, tasks = steps
    distinct = in_scope.drop_duplicates("file").set_index("file").sort_index()
    distinct = distinct[distinct.index.isin(table["file"])]
    total_cpu_s = (
        None if any(c is None for c in cpu) else float(sum(c for c in cpu if c is not None))
    )
    return Steps(table, tasks, distinct[["path", "size_bytes"]], total_cpu_s, notes)


def _omitted(bundle: Bundle) -> list[str]:
    """Notes on calls that a workload cannot express: flushes, and writes that wait for them."""
    counts = []
    if "device_requests" in bundle.tables:
        operations = bundle.table("device_requests", ["op"]).to_pandas()["op"].astype(str)
        counts.append((int((operations == "flush").sum()), "flushes of a disk"))
    flags = bundle.table("io_events", ["flags", "direction"]).to_pandas()
    writes = flags["direction"].astype(str) == "write"
    counts.append((int((writes & (flags["flags"] & 4 > 0)).sum()), "waits of synchronous writes"))
    flushes = int((flags["direction"].astype(str) == "sync").sum())
    counts.append((flushes, "flushes that the program requested"))
    return [f"{count} {what} are not simulated" for count, what in counts if count]


def _beyond(bundle: Bundle, file_ids: np.ndarray[Any, Any]) -> list[str]:
    """Notes on mapped files and group commits of these files."""
    columns = ["direction", "file_id", "tid", "t_ns", "done_bytes"]
    # imported and older traces may have no operations by name
    named = {"op"} & set(pq.read_schema(bundle.path / "io_events.parquet").names)
    events = bundle.table("io_events", [*columns, *named]).to_pandas()
    events = events[events["file_id"].isin(file_ids)]
    faults = events.iloc[:0]
    if named:
        faults = events[events["op"].astype(str).str.startswith("fault_")]
    direction = events["direction"].astype(str)
    total = int(events.loc[direction.isin(["read", "write"]), "done_bytes"].sum())
    mapped = 0
    if int(faults["done_bytes"].sum()) >= max(1.0, _MAPPED_SHARE * total):
        mapped = int(faults["file_id"].nunique())
    counts = ((mapped, MAPPED), (_group_commits(events[direction == "sync"]), GROUP_COMMITS))
    return [f"{count} {what} are not simulated" for count, what in counts if count]


def _group_commits(flushes: pd.DataFrame) -> int:
    """Flushes of files that one thread flushes between the first and the last flush of another."""
    count = 0
    for _, own in flushes.groupby("file_id"):
        spans = own.groupby("tid")["t_ns"].agg(["min", "max"]).sort_values("min")
        if (spans["min"].iloc[1:].to_numpy() < spans["max"].cummax().iloc[:-1].to_numpy()).any():
            count += len(own)
    return count


def _events(bundle: Bundle, run: int, per: str) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Events, files and start of one bundle, in real time."""
    if "io_events" not in bundle.tables or "files" not in bundle.tables:
        raise BadInput(
            f"{bundle.path} has no traced operations; trace with --mode trace (pattern stores counters only)"
        )
    columns = "t_ns direction file_id offset_bytes done_bytes latency_ns pid tid".split()
    events = bundle.accesses(columns).to_pandas()
    files = bundle.table("files", ["file_id", "path", "size_bytes", "disk_id"]).to_pandas()
    shift = 0
    if "clocks" in bundle.tables:
        clock = bundle.table("clocks").to_pandas()
        begin = clock[clock["point"] == "start"]
        if len(begin):
            shift = int(begin["realtime_ns"].iloc[0]) - int(begin["monotonic_ns"].iloc[0])
    start = bundle.manifest.get("times", {}).get("start_ns")
    if "phases" in bundle.tables:
        phases = bundle.table("phases").to_pandas()
        starts = phases.loc[phases["phase_id"].astype(str) == "workload", "start_ns"]
        start = int(starts.iloc[0]) if len(starts) else start
    if start is None:
        start = int(events["t_ns"].min()) if len(events) else 0
    frame = pd.DataFrame(
        {
            "run": run,
            "task": _tasks(bundle, events, per),
            "t_ns": events["t_ns"].to_numpy() + shift,
            "latency_ns": events["latency_ns"].to_numpy(),
            "write": (events["direction"].astype(str) == "write").to_numpy().astype(np.int8),
            "file_id": events["file_id"].to_numpy(),
            "offset_bytes": np.maximum(events["offset_bytes"].to_numpy(), 0),
            "done_bytes": events["done_bytes"].to_numpy(),
        }
    )
    # without files that could not be opened
    files = files[files["size_bytes"].notna() | files["file_id"].isin(events["file_id"])].copy()
    files["run"] = run
    return frame, files, int(start) + shift


def _tasks(bundle: Bundle, events: pd.DataFrame, per: str) -> np.ndarray[Any, Any]:
    """Task of each event: its process or thread. Numbers that the kernel used again are distinct tasks."""
    if per == "command":
        return np.zeros(len(events), dtype=np.int64)
    name = "pid" if per == "process" else "tid"
    tasks = events[name].to_numpy().astype(np.int64)
    path = bundle.path / "threads.parquet"
    if not path.exists() or "started_ns" not in pq.read_schema(path).names:
        return tasks
    threads = bundle.table("threads", ["tid", "pid", "started_ns"]).to_pandas()
    if per == "process":  # it begins with its first thread
        threads = threads[threads["tid"] == threads["pid"]]
    starts = threads[["tid", "started_ns"]].dropna().astype("int64").drop_duplicates()
    starts = starts.sort_values("started_ns", kind="stable")
    starts["earlier"] = starts.groupby("tid").cumcount()
    if not starts["earlier"].any():
        return tasks
    calls = pd.DataFrame({"tid": tasks, "t_ns": events["t_ns"].to_numpy()})
    calls = calls.sort_values("t_ns", kind="stable")
    begun = pd.merge_asof(calls, starts, left_on="t_ns", right_on="started_ns", by="tid")
    tasks[calls.index] += begun["earlier"].fillna(0).to_numpy().astype(np.int64) << 32
    return tasks


def _renames(bundle: Bundle) -> pd.DataFrame:
    """Names that files got and lost, in order of time."""
    columns = ["file_id", "kind", "path", "t_ns"]
    if "file_names" not in bundle.tables:
        return pd.DataFrame(columns=columns)
    names: pd.DataFrame = bundle.table("file_names", columns).to_pandas()
    return names.sort_values("t_ns", kind="stable")


def _files(
    files: pd.DataFrame, renames: Mapping[int, pd.DataFrame], under: Sequence[str], notes: list[str]
) -> pd.DataFrame:
    """Numbered files in scope.

    Several files of a path in one run are distinct. The first one in a run is the file that had the path at
    the end of the run before; `renames` has the names of each run, in order of the runs' starts.
    """
    path = files["path"].fillna("").astype(str)
    if under:
        scope = np.logical_or.reduce([_below(path, str(PurePosixPath(d))) for d in under])
    elif files["disk_id"].notna().any():
        scope = files["disk_id"].notna().to_numpy()
    else:
        scope = ~np.logical_or.reduce([_below(path, d) for d in SYSTEM])
        scope &= (path != "").to_numpy()
    in_scope = files[scope].copy()
    _number(in_scope, renames)
    omitted = len(files) - len(in_scope)
    if omitted and not under:
        notes.append(f"{omitted} files of the system are left out")
    return in_scope


def _number(files: pd.DataFrame, renames: Mapping[int, pd.DataFrame]) -> None:
    """Number the files across runs; those that had the path of another one are called `path#2`, …"""
    bearers: dict[str, int] = {}
    names: dict[str, int] = {}
    copies = Counter[str]()
    numbers = np.zeros(len(files), dtype=np.int64)
    run, file_id = files["run"].to_numpy(), files["file_id"].tolist()
    paths = files["path"].fillna("").tolist()
    for one, renamed in renames.items():
        before, by_id = dict(bearers), dict[int, int]()
        for row in np.flatnonzero(run == one).tolist():
            path = name = paths[row]
            number = before.pop(path, -1)
            if number < 0:
                while name in names:
                    copies[path] += 1
                    name = f"{path}#{copies[path] + 1}"
                number = names[name] = len(names)
            numbers[row] = by_id[file_id[row]] = bearers[path] = number
        _rename(bearers, by_id, renamed)
    files["file"] = numbers
    files["path"] = np.array(list(names), dtype=object)[numbers] if len(files) else paths


def _rename(bearers: dict[str, int], by_id: Mapping[int, int], renamed: pd.DataFrame) -> None:
    """Bring the files by path up to date with the names that they got and lost in a run."""
    last: dict[int, str] = {}
    for file_id, kind, path in zip(
        *(renamed[c].tolist() for c in ("file_id", "kind", "path")), strict=True
    ):
        number = by_id.get(file_id)
        if number is None or path is None:
            continue
        if kind == "unlink":
            if bearers.get(path) == number:
                del bearers[path]
            continue
        if kind == "rename" and bearers.get(last.get(number, "")) == number:
            del bearers[last[number]]
        bearers[path], last[number] = number, path


def _below(path: pd.Series[str], top: str) -> np.ndarray[Any, Any]:
    top = top.rstrip("/")
    return ((path == top) | path.str.startswith(top + "/")).to_numpy()


def _merged(
    events: pd.DataFrame, run_starts_ns: np.ndarray[Any, Any], pause_s: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Steps and tasks of the events."""
    events = events.sort_values(["run", "task", "t_ns"], kind="stable").reset_index(drop=True)
    key = events.groupby(["run", "task"], sort=False).ngroup().to_numpy()
    t = events["t_ns"].to_numpy()
    end = t + events["latency_ns"].to_numpy()
    events["end_ns"] = end
    latest = events.groupby(key)["end_ns"].cummax().to_numpy()
    first = np.r_[True, key[1:] != key[:-1]] if len(key) else np.zeros(0, dtype=bool)
    tasks = pd.DataFrame(
        {
            "run": events["run"].to_numpy()[first],
            "start_ns": t[first],
            "end_ns": pd.Series(latest).groupby(key).max().to_numpy(),
        }
    )
    tasks["launch_ns"] = _launches(tasks, np.sort(end), run_starts_ns)
    since = np.r_[0, latest[:-1]] if len(key) else t
    own = np.maximum(t - since, 0)
    own[first] = 0
    in_scope = events["file"].notna().to_numpy()
    done = in_scope & (events["done_bytes"].to_numpy() > 0)
    waited, parted = _waiting(tasks, key, np.minimum(since, t), t, first, done)
    own -= waited
    # I/O outside of the store counts as the host's own time
    own_after = np.where(in_scope, 0, np.minimum(events["latency_ns"].to_numpy(), latest - t))
    spent = np.cumsum(own + own_after) - own_after
    base = (spent - own)[first]
    total = pd.Series(spent + own_after).groupby(key).last().to_numpy()
    tasks["last_ns"] = _lasts(tasks, key, since, done, parted)
    traced = events[done].assign(gaps=np.cumsum(parted)[done])
    table, last = _steps(traced, key[done], spent[done], base, pause_s)
    tasks["after_ns"] = 0
    tasks.loc[last.index, "after_ns"] = total[last.index] - last.to_numpy()
    return table, tasks


def _launches(
    tasks: pd.DataFrame, ends_ns: np.ndarray[Any, Any], run_starts_ns: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Time from the last call of any task (or the start of its run) to each task's first call."""
    start = tasks["start_ns"].to_numpy()
    at = np.searchsorted(ends_ns, start, side="right") - 1
    begun = run_starts_ns[tasks["run"].to_numpy()]
    last = np.where(at >= 0, ends_ns[np.maximum(at, 0)], begun)
    computing_ns: np.ndarray[Any, Any] = np.maximum(start - np.maximum(last, begun), 0)
    return computing_ns


def _waiting(
    tasks: pd.DataFrame,
    key: np.ndarray[Any, Any],
    since_ns: np.ndarray[Any, Any],
    until_ns: np.ndarray[Any, Any],
    first: np.ndarray[Any, Any],
    done: np.ndarray[Any, Any],
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Time before each call of a run's first task, up to the end of the last other task.

    The first task is the command itself, such as a shell: it starts programs (their launch time) and waits
    for them. The others are those with operations on files of the store.
    """
    waiting_ns, parted = np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=bool)
    busy = np.bincount(key[done], minlength=len(tasks)) > 0
    for _, own in tasks.groupby("run"):
        root = own["start_ns"].idxmin()
        others = own[busy[own.index] & (own.index != root)].sort_values("start_ns")
        if not len(others):
            continue
        rows = np.flatnonzero((key == root) & ~first)
        # without a start or end of another task in the interval, the first task ran concurrently
        moments = np.sort(others[["start_ns", "end_ns"]].to_numpy().ravel())
        until = np.searchsorted(moments, until_ns[rows], side="right")
        rows = rows[until > np.searchsorted(moments, since_ns[rows], side="right")]
        i = np.searchsorted(others["start_ns"].to_numpy(), until_ns[rows], side="left") - 1
        ended = others["end_ns"].cummax().to_numpy()[np.maximum(i, 0)]
        last = np.where(i >= 0, np.minimum(ended, until_ns[rows]), since_ns[rows])
        waiting_ns[rows] = np.maximum(last - since_ns[rows], 0)
        parted[rows] = last > since_ns[rows]
    return waiting_ns, parted


def _lasts(
    tasks: pd.DataFrame,
    key: np.ndarray[Any, Any],
    since_ns: np.ndarray[Any, Any],
    done: np.ndarray[Any, Any],
    parted: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """End of each task's work; start of the wait for a task that waits for others at its end."""
    last_ns: np.ndarray[Any, Any] = tasks["end_ns"].to_numpy().copy()
    for root in np.unique(key[parted]):
        own = key == root
        own_steps = np.flatnonzero(own & done)
        waits = np.flatnonzero(own & parted)
        behind = waits[waits > own_steps[-1]] if len(own_steps) else waits
        if len(behind):
            last_ns[root] = since_ns[behind[0]]
    return last_ns


def _steps(
    calls: pd.DataFrame,
    key: np.ndarray[Any, Any],
    spent: np.ndarray[Any, Any],
    base: np.ndarray[Any, Any],
    pause_s: float,
) -> tuple[pd.DataFrame, pd.Series[Any]]:
    """Steps of the calls that moved bytes; and own time of each task until its last one."""
    file = calls["file"].to_numpy().astype(np.int64)
    write, offset = calls["write"].to_numpy(), calls["offset_bytes"].to_numpy()
    size = calls["done_bytes"].to_numpy()
    if not len(calls):
        return pd.DataFrame(), pd.Series(dtype=np.int64)
    new = np.r_[True, key[1:] != key[:-1]]
    think = np.diff(spent, prepend=0)
    think[new] = (spent - base[key])[new]
    begins = new.copy()
    for column in (file, write):
        begins[1:] |= column[1:] != column[:-1]
    begins[1:] |= offset[1:] != (offset + size)[:-1]
    gaps = calls["gaps"].to_numpy()
    parted = np.r_[False, gaps[1:] != gaps[:-1]] & ~new
    begins |= parted | (think > pause_s * 1e9)
    at = np.flatnonzero(begins)
    table = pd.DataFrame(
        {
            "task": key[at],
            "file": file[at],
            "write": write[at],
            "offset_bytes": offset[at],
            "size_bytes": np.add.reduceat(size, at),
            "start_ns": calls["t_ns"].to_numpy()[at],
            "end_ns": np.maximum.reduceat(calls["end_ns"].to_numpy(), at),
            "before_ns": think[at],
            "inside_ns": np.add.reduceat(np.where(begins, 0, think), at),
            "parted": parted[at],
        }
    )
    last = pd.Series(spent).groupby(key).last()
    return table, last


def _cpu_s(bundle: Bundle) -> float | None:
    """Processor time of the run's control group, None if not sampled."""
    if "samples" not in bundle.tables:
        return None
    samples = bundle.table("samples", ["t_ns", "source", "metric", "unit", "value"]).to_pandas()
    readings = samples[
        (samples["source"].astype(str) == "cgroup") & (samples["metric"].astype(str) == "cpu_time")
    ].sort_values("t_ns")
    if len(readings) < 2:
        return None
    factor = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}.get(
        str(readings["unit"].iloc[0])
    )
    if factor is None:
        return None
    return float(readings["value"].iloc[-1] - readings["value"].iloc[0]) * factor
