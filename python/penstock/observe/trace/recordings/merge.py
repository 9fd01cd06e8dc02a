"""Traces of nodes on several hosts as one recording on one time base.

Times are those of one monotonic clock, with the error of the clocks' comparison. Numbers of files, processes
and threads, which repeat on each host, become unique.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.schemas import TABLES
from penstock.archive.traces.trace_tables import EVENT_COLUMNS, Numbers, TraceTables
from penstock.errors import BadInput
from penstock.host.probe.clock_offset import Offset
from penstock.observe.trace.capture.events import EVENT
from penstock.observe.trace.recordings.recording import Recording, Row

#: bits of a process number in Linux (PID_MAX_LIMIT); the number of the host is above them
_PID_BITS = 22
#: hosts whose numbers fit above in an int32
_MOST_HOSTS = 1 << (31 - _PID_BITS)
_CHUNK = 1 << 20
#: tables of the monitor
SAMPLED = ("samples", "utilisation")
#: information of the traces that the merged one lacks
_NOT_MERGED = "names that files got or lost during the trace, and pages that were mapped"


@dataclass(frozen=True)
class HostTrace:
    """Bundle of a trace of nodes on one host (mode trace).

    `offset`: monotonic clock of the host − that of the time base; `nodes`: node of each control group.
    """

    host: str
    bundle: Path
    offset: Offset
    nodes: Mapping[int, str]


@dataclass(frozen=True)
class _Owners:
    """Node of each file and of each thread with events; of a file that several nodes use, the host."""

    files: Mapping[int, str]
    threads: Mapping[int, str]


def merge_traces(
    traces: Sequence[HostTrace], folder: Path, run: tuple[int, int] | None = None
) -> Recording:
    """One recording of these traces, with its spool in `folder`.

    Events of other control groups, and those outside `run` [ns, time base], are left out. The name of its
    node is before the path of each file. Raises BadInput for a bundle without events.
    """
    if len(traces) > _MOST_HOSTS:
        raise BadInput(f"found traces of {len(traces)} hosts; expected at most {_MOST_HOSTS}")
    files: list[Row] = []
    threads: list[Row] = []
    parts: list[Path] = []
    seen, lost, first_file = 0, 0, 0
    for number, trace in enumerate(traces):
        traced = TraceTables(trace.bundle)
        parts.append(folder / f"spool-{number}")
        owners = _write_part(traced, trace, parts[-1], (number, first_file), run)
        rows = _rows(traced, "files")
        files += _files(rows, owners, trace.host, first_file)
        threads += _threads(_rows(traced, "threads"), owners, trace, number)
        first_file += max((row["file_id"] for row in rows), default=0)
        seen, lost = seen + int(traced.receipt.get("seen", 0)), lost + traced.lost
    spool = folder / "spool"
    stored = _interleave(parts, spool)
    source = {
        "format": "nodes of several hosts",
        "not_known": [*_unordered(traces), _NOT_MERGED],
    }
    counts = {"seen": seen, "kept": stored, "filtered": max(seen - stored - lost, 0), "lost": lost}
    tables = {"files": _table("files", files), "threads": _table("threads", threads)}
    return Recording(spool, files, [], counts, "calls", source, tables)


def merge_samples(traces: Sequence[HostTrace], name: str) -> pa.Table:
    """A table of the monitor (`SAMPLED`) of all hosts, in order of time.

    The name of the host is before entities that are not those of nodes (`rack1-a:sda`).
    """
    parts = []
    for trace in traces:
        table = _own(TraceTables(trace.bundle), name)
        moved = pc.subtract(table["t_ns"], trace.offset.offset_ns)
        table = table.set_column(table.column_names.index("t_ns"), "t_ns", moved)
        entities = table["entity"].cast(pa.string()).combine_chunks().dictionary_encode()
        nodes = set(trace.nodes.values())
        named = [
            entity if str(entity).partition(" ")[0] in nodes else f"{trace.host}:{entity}"
            for entity in entities.dictionary.to_pylist()
        ]
        entity = pa.array(named, pa.string()).take(entities.indices)
        table = table.set_column(table.column_names.index("entity"), "entity", entity)
        hosts = pa.array([trace.host] * table.num_rows, pa.string())
        parts.append(table.append_column("host_id", hosts))
    return pa.concat_tables(parts, promote_options="permissive").sort_by("t_ns")


def _unordered(traces: Sequence[HostTrace]) -> list[str]:
    """A line with the largest error of a time between two hosts."""
    bounds = sorted((trace.offset.bound_ns for trace in traces), reverse=True)
    if len(bounds) < 2:
        return []
    return [f"order of events on two hosts within {sum(bounds[:2]) / 1e6:.3g} ms of each other"]


def _write_part(
    traced: TraceTables,
    trace: HostTrace,
    spool: Path,
    first: tuple[int, int],
    run: tuple[int, int] | None,
) -> _Owners:
    """Write the events of the nodes as records of a spool, in order of time; returns the nodes.

    `first`: number of the host, and number before those of its files.
    """
    offset_ns = trace.offset.offset_ns
    groups = np.array(sorted(trace.nodes), np.int64)
    names = [trace.nodes[group] for group in groups.tolist()]
    of_files: set[tuple[int, int]] = set()
    of_threads: set[tuple[int, int]] = set()
    with spool.open("wb") as file:
        for batch in traced.event_batches((*EVENT_COLUMNS, "cgroup_id")):
            place = np.searchsorted(groups, batch["cgroup_id"])
            chosen = groups[np.minimum(place, len(groups) - 1)] == batch["cgroup_id"]
            if run is not None:
                chosen &= batch["t_ns"] >= run[0] + offset_ns
                chosen &= batch["t_ns"] <= run[1] + offset_ns
            events = {name: column[chosen] for name, column in batch.items()}
            node = place[chosen]
            of_files |= _pairs(events["file_id"], node, len(names))
            of_threads |= _pairs(events["tid"], node, len(names))
            _records(events, offset_ns, *first).tofile(file)
    users: dict[int, set[str]] = {}
    for file_id, index in of_files:
        users.setdefault(file_id, set()).add(names[index])
    return _Owners(
        {n: next(iter(nodes)) if len(nodes) == 1 else trace.host for n, nodes in users.items()},
        {tid: names[index] for tid, index in of_threads},
    )


def _pairs(values: Numbers, nodes: npt.NDArray[np.intp], count: int) -> set[tuple[int, int]]:
    """Distinct pairs of a value and the index of a node, of `count`."""
    return {divmod(key, count) for key in np.unique(values * count + nodes).tolist()}


def _records(
    events: Mapping[str, Numbers], offset_ns: int, number: int, first_file: int
) -> npt.NDArray[np.void]:
    records = np.zeros(len(events["t_ns"]), EVENT)
    for name in ("offset_bytes", "latency_ns", "size_bytes", "op", "flags"):
        records[name] = events[name]
    records["t_ns"] = events["t_ns"] - offset_ns
    records["done_bytes"] = np.where(events["errno"] > 0, -events["errno"], events["done_bytes"])
    records["file_id"] = np.where(events["file_id"] > 0, events["file_id"] + first_file, 0)
    for name in ("pid", "tid"):
        records[name] = events[name] | number << _PID_BITS
    return records


def _interleave(parts: Sequence[Path], spool: Path) -> int:
    """Merge spools in order of time, in constant memory; returns the number of records."""
    sources = [np.memmap(path, EVENT, "r") for path in parts if path.stat().st_size]
    at = [0] * len(sources)
    with spool.open("wb") as file:
        while any(start < len(source) for start, source in zip(at, sources, strict=True)):
            heads = [s[i : i + _CHUNK]["t_ns"] for s, i in zip(sources, at, strict=True)]
            # a complete chunk reaches to its last time, an incomplete one to the end
            until = min((h[-1] for h in heads if len(h) == _CHUNK), default=np.iinfo("u8").max)
            ends = [int(np.searchsorted(head, until, "right")) for head in heads]
            block = np.concatenate(
                [s[i : i + n] for s, i, n in zip(sources, at, ends, strict=True)]
            )
            block[np.argsort(block["t_ns"], kind="stable")].tofile(file)
            at = [start + count for start, count in zip(at, ends, strict=True)]
    return sum(map(len, sources))


def _own(run: TraceTables, name: str) -> pa.Table:
    """A table without the keys of its bundle."""
    return run.table(name, [column.name for column in TABLES[name].columns])


def _rows(run: TraceTables, name: str) -> list[Row]:
    return list(_own(run, name).to_pylist())


def _files(rows: Sequence[Row], owners: _Owners, host: str, first_file: int) -> list[Row]:
    return [
        {
            **row,
            "host_id": host,
            "node_id": "" if owner == host else owner,
            "file_id": row["file_id"] + first_file,
            "path": row["path"] and f"{owner}:{row['path']}",
        }
        for row in rows
        if (owner := owners.files.get(row["file_id"])) is not None
    ]


def _threads(rows: Sequence[Row], owners: _Owners, trace: HostTrace, number: int) -> list[Row]:
    def moved(time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns - trace.offset.offset_ns

    return [
        {
            **row,
            "host_id": trace.host,
            "node_id": owners.threads[row["tid"]],
            "tid": row["tid"] | number << _PID_BITS,
            "pid": row["pid"] | number << _PID_BITS,
            "first_ns": moved(row["first_ns"]),
            "started_ns": moved(row.get("started_ns")),
        }
        for row in rows
        if row["tid"] in owners.threads
    ]


def _table(name: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A table with the host and the node of each row."""
    keys = [pa.field("host_id", pa.string()), pa.field("node_id", pa.string())]
    return pa.Table.from_pylist(list(rows), pa.schema([*keys, *TABLES[name].arrow]))
