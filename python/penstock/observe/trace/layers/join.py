"""Join of the layers' records with the traced operations.

docs/adr/0011 describes the method and its limits. In short:

- A page that entered the cache while a thread was reading that file belongs to that read: missed if the read
  requested it, read ahead otherwise. The first later read of a page read ahead is a readahead hit. All other
  pages were in the cache.
- A block read belongs to the current call of the thread that issued it; a direct one to the call that started
  at the recorded offset. A call that waits for a page in flight waits for the request that transfers it
  (`inferred`).
- A block write of cached pages is charged to the process that dirtied the pages, whoever submits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.schemas import TABLES
from penstock.errors import PenstockError
from penstock.host.storage.blockdev import disk_name

#: one record of the spool (crates/probe, layers.rs)
RECORD = np.dtype(
    [
        *((name, "<u8") for name in ("t_ns", "inode", "offset_bytes", "size_bytes", "base_bytes")),
        *((name, "<u8") for name in ("sector", "queue_ns", "device_ns", "cgroup_id")),
        *((name, "<u4") for name in ("device", "generation", "disk", "tid", "pid")),
        *((name, "u1") for name in ("kind", "op", "how", "failed", "scoped", "part")),
        ("pad", "V6"),
    ]
)
REQUEST, ADDED, DIRTIED = 1, 2, 3
BY_NOTHING, BY_PAGE_CACHE, BY_DIRECT, BY_METADATA = range(4)
_SOURCES = ["none", "page cache", "direct", "file system"]
_PAGE = 4096
#: maximum size of a request; the kernel counts in 32 bits
_MOST_BYTES = 1 << 32
_MOST_OFFSET = (1 << 63) - (1 << 33)
_DIRECT, _ASYNC = 1, 64
_FAULTS = ("fault_read", "fault_write")

#: number of operations above which the table `cache_use` is omitted
MOST_EVENTS = 20_000_000

Records = npt.NDArray[np.void]

CACHE_USE = TABLES["cache_use"].arrow
WRITEBACK = TABLES["writeback"].arrow


@dataclass(frozen=True)
class Joined:
    """Result of a join: tables, attributed bytes per (disk, direction), counts of joins by quality."""

    requests: pa.Table
    cache_use: pa.Table | None
    writeback: pa.Table
    attributed_bytes: dict[tuple[str, str], int]
    counts: dict[str, int]
    omitted: str


def join(records: Records, files: pa.Table, events: Path | None) -> Joined:
    """Join a spool's records with the files and operations of a run (`io_events`, a Parquet file).

    Raises PenstockError for a record that the kernel cannot have produced.
    """
    wrong = (records["size_bytes"] > _MOST_BYTES) | (records["offset_bytes"] > _MOST_OFFSET)
    if wrong.any():
        raise PenstockError(f"the spool of the layers: record {int(wrong.argmax())} is damaged")
    frame = _frame(records, files)
    of_kind = {kind: frame[frame["kind"] == kind] for kind in (REQUEST, ADDED, DIRTIED)}
    requests = of_kind[REQUEST]
    writers = _writers(requests, of_kind[DIRTIED])
    cache_use, omitted = None, ""
    if events is not None:
        count = pq.ParquetFile(events).metadata.num_rows
        if count <= MOST_EVENTS:
            cache_use = _cache_use(_operations(events), of_kind[ADDED], requests)
        else:
            omitted = f"cache_use: {count} operations, more than {MOST_EVENTS}"
    paths = dict(zip(*(files[name].to_pylist() for name in ("file_id", "path")), strict=True))
    table = _requests_table(requests, writers, paths)
    counts = {f"requests_{k}": int(v) for k, v in table["join"].value_counts().items()}
    if cache_use is not None:
        counts |= {f"calls_{k}": int(v) for k, v in cache_use["join"].value_counts().items()}
        cache_use = pa.Table.from_pandas(cache_use, CACHE_USE, preserve_index=False)
    attributable = table[table["join"] != "none"]
    attributed: dict[tuple[str, str], int] = {}
    for disk, op, size in zip(
        attributable["disk_id"], attributable["op"], attributable["size_bytes"], strict=True
    ):
        attributed[str(disk), str(op)] = attributed.get((str(disk), str(op)), 0) + int(size)
    return Joined(
        pa.Table.from_pandas(table, preserve_index=False),
        cache_use,
        _writeback_table(writers, of_kind[DIRTIED]),
        attributed,
        counts,
        omitted,
    )


def _frame(records: Records, files: pa.Table) -> pd.DataFrame:
    """Records as a frame, with the number of each one's file (-1: none of the run's)."""
    names = [name for name in RECORD.names or () if name != "pad"]
    frame = pd.DataFrame({name: records[name].astype(np.int64) for name in names})
    frame = frame.sort_values("t_ns", kind="stable", ignore_index=True)
    # before conversion to a frame: nulls would make 64-bit numbers inexact
    files = files.filter(pc.is_valid(files["inode"]))
    file_keys = files.select(
        ["file_id", "dev_major", "dev_minor", "inode", "generation"]
    ).to_pandas()
    file_keys["device"] = file_keys["dev_major"] * (1 << 20) + file_keys["dev_minor"]
    keys = ["device", "inode", "generation"]
    file_keys = file_keys[["file_id", *keys]].dropna().astype("int64").drop_duplicates(keys)
    frame = frame.merge(file_keys, on=keys, how="left")
    frame["file_id"] = frame["file_id"].fillna(-1).astype("int64")
    return frame


def _operations(events: Path) -> pd.DataFrame:
    """Reads and writes of a run, in order of time."""
    columns = ["seq", "t_ns", "latency_ns", "op", "direction", "file_id", "offset_bytes"]
    table = pq.read_table(events, columns=[*columns, "done_bytes", "tid", "flags"])
    direction = pc.cast(table["direction"], pa.string())
    op = pc.cast(table["op"], pa.string())
    mask = pc.and_(
        pc.is_in(direction, pa.array(["read", "write"])),
        pc.and_(pc.invert(pc.starts_with(op, "fault_around")), pc.greater(table["done_bytes"], 0)),
    )
    calls: pd.DataFrame = table.filter(mask).to_pandas()
    calls["fault"] = calls["op"].isin(_FAULTS)
    calls["read"] = calls["direction"] == "read"
    calls["direct"] = ~calls["fault"] & ((calls["flags"] & _DIRECT) != 0)
    calls["end_ns"] = calls["t_ns"] + calls["latency_ns"]
    calls["first_page"] = calls["offset_bytes"] // _PAGE
    calls["last_page"] = (calls["offset_bytes"] + calls["done_bytes"] - 1) // _PAGE
    calls = calls.sort_values("t_ns", kind="stable", ignore_index=True)
    calls["call"] = np.arange(len(calls))
    return calls


def _under_way(records: pd.DataFrame, calls: pd.DataFrame, by: list[str]) -> npt.NDArray[np.int64]:
    """For each record the call in progress at its start that matches in `by`; -1: none."""
    if records.empty or calls.empty:
        return np.full(len(records), -1, np.int64)
    merged = pd.merge_asof(
        records[["t_ns", *by]],
        calls[["t_ns", "end_ns", "call", *by]].rename(columns={"t_ns": "began_ns"}),
        left_on="t_ns",
        right_on="began_ns",
        by=by,
    )
    inside = (merged["t_ns"] <= merged["end_ns"]).to_numpy()
    return np.where(inside, merged["call"].fillna(-1), -1).astype(np.int64)


def _pages(frame: pd.DataFrame, first: str, last: str, keep: list[str]) -> pd.DataFrame:
    """One row for each page of each row's range, with the columns `keep`."""
    counts = (frame[last] - frame[first] + 1).to_numpy()
    rows = np.repeat(np.arange(len(frame)), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    pages = frame[first].to_numpy()[rows] + (np.arange(len(rows)) - starts)
    return frame[keep].iloc[rows].assign(page=pages).reset_index(drop=True)


def _cache_use(calls: pd.DataFrame, added: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    pages = np.where(calls["direct"], 0, calls["last_page"] - calls["first_page"] + 1)
    count = len(calls)
    missed, readahead = np.zeros(count, np.int64), np.zeros(count, np.int64)
    served, inferred = np.zeros(count, np.int64), np.zeros(count, bool)
    begin = np.full(count, np.iinfo(np.int64).max)
    end = np.zeros(count, np.int64)

    reads = calls[calls["read"] | calls["fault"]]
    reads = reads[~reads["direct"]]
    added = added[added["file_id"] >= 0].copy()
    added["first_page"] = added["offset_bytes"] // _PAGE
    added["last_page"] = (added["offset_bytes"] + added["size_bytes"]) // _PAGE - 1
    # pages added during a write of their file are new or overwritten: neither read nor read ahead
    writing = _under_way(added, calls[~calls["read"] & ~calls["fault"]], ["tid", "file_id"]) >= 0
    added = added[~writing]
    arrived = _pages(added, "first_page", "last_page", ["t_ns", "tid", "file_id"])
    demanded = _pages(
        reads, "first_page", "last_page", ["t_ns", "end_ns", "call", "tid", "file_id"]
    )
    demanded = demanded[demanded["file_id"].isin(arrived["file_id"].unique())]
    where = ["file_id", "page"]

    own = _under_way(arrived, demanded, ["tid", *where])
    other = np.where(own < 0, _under_way(arrived, demanded, where), -1)
    np.add.at(missed, own[own >= 0], 1)
    np.add.at(missed, other[other >= 0], 1)
    inferred[other[other >= 0]] = True
    ahead = arrived[(own < 0) & (other < 0)]
    if len(ahead) and len(demanded):
        first_use = pd.merge_asof(
            ahead[["t_ns", *where]],
            demanded.rename(columns={"t_ns": "asked_ns"})[["asked_ns", "end_ns", "call", *where]],
            left_on="t_ns",
            right_on="asked_ns",
            by=where,
            direction="forward",
        ).dropna(subset="call")
        first_use = first_use.astype({"call": "int64", "asked_ns": "int64", "end_ns": "int64"})
        np.add.at(readahead, first_use["call"].to_numpy(), 1)
        _wait_for_others(first_use, requests, end, begin, served, inferred)

    block_reads = requests[(requests["file_id"] >= 0) & (requests["how"] != BY_METADATA)].copy()
    block_reads["end_ns"] = block_reads["t_ns"] + block_reads["queue_ns"] + block_reads["device_ns"]
    cached = block_reads[(block_reads["how"] == BY_PAGE_CACHE) & (block_reads["op"] == 0)]
    _serve(cached, _under_way(cached, calls, ["tid", "file_id"]), calls, end, begin, served)
    direct = block_reads[block_reads["how"] == BY_DIRECT]
    calls_at = calls[calls["direct"]].rename(columns={"offset_bytes": "base_bytes"})
    _serve(
        direct, _under_way(direct, calls_at, ["file_id", "base_bytes"]), calls, end, begin, served
    )

    waited = np.minimum(end, calls["end_ns"]) - np.maximum(begin, calls["t_ns"])
    device_ns = np.where(end > 0, np.maximum(waited, 0), 0)
    nothing = (served == 0) & ((missed > 0) | calls["direct"].to_numpy())
    return pd.DataFrame(
        {
            "seq": calls["seq"].astype("uint64"),
            "pages_hit": np.maximum(pages - missed - readahead, 0),
            "pages_readahead": readahead,
            "pages_missed": missed,
            "requests": served,
            "device_ns": device_ns,
            "join": np.where(nothing, "none", np.where(inferred, "inferred", "exact")),
        }
    )


def _serve(
    requests: pd.DataFrame,
    of_call: npt.NDArray[np.int64],
    calls: pd.DataFrame,
    end: npt.NDArray[np.int64],
    begin: npt.NDArray[np.int64],
    served: npt.NDArray[np.int64],
) -> None:
    """Count requests for their calls; a call waits for the requests of its own range."""
    matched = of_call >= 0
    subset, of_call = requests[matched], of_call[matched]
    np.add.at(served, of_call, 1)
    first = calls["offset_bytes"].to_numpy()[of_call]
    last = first + calls["done_bytes"].to_numpy()[of_call]
    start = subset["offset_bytes"].to_numpy()
    awaited = (start < last) & (start + subset["size_bytes"].to_numpy() > first)
    np.minimum.at(begin, of_call[awaited], subset["t_ns"].to_numpy()[awaited])
    np.maximum.at(end, of_call[awaited], subset["end_ns"].to_numpy()[awaited])


def _wait_for_others(
    first_use: pd.DataFrame,
    requests: pd.DataFrame,
    end: npt.NDArray[np.int64],
    begin: npt.NDArray[np.int64],
    served: npt.NDArray[np.int64],
    inferred: npt.NDArray[np.bool_],
) -> None:
    """Calls for a page read ahead whose request was in flight: they waited for that request."""
    reads = requests[
        (requests["op"] == 0) & (requests["how"] == BY_PAGE_CACHE) & (requests["file_id"] >= 0)
    ].copy()
    if reads.empty:
        return
    reads["request"] = np.arange(len(reads))
    reads["done_ns"] = reads["t_ns"] + reads["queue_ns"] + reads["device_ns"]
    reads["first_page"] = reads["offset_bytes"] // _PAGE
    reads["last_page"] = (reads["offset_bytes"] + reads["size_bytes"] - 1) // _PAGE
    carried = _pages(reads, "first_page", "last_page", ["t_ns", "done_ns", "file_id", "request"])
    uses = first_use.drop(columns="t_ns").sort_values("asked_ns")
    merged = pd.merge_asof(
        uses,
        carried.rename(columns={"t_ns": "sent_ns"}),
        left_on="asked_ns",
        right_on="sent_ns",
        by=["file_id", "page"],
    ).dropna(subset="request")
    late = merged[merged["done_ns"] > merged["asked_ns"]]
    late = late.drop_duplicates(["call", "request"]).astype({"call": "int64", "done_ns": "int64"})
    of_call = late["call"].to_numpy()
    np.add.at(served, of_call, 1)
    np.minimum.at(begin, of_call, late["sent_ns"].to_numpy().astype(np.int64))
    np.maximum.at(end, of_call, late["done_ns"].to_numpy())
    inferred[of_call] = True


def _writers(requests: pd.DataFrame, dirtied: pd.DataFrame) -> pd.DataFrame:
    """Pages of block writes (`each`: bytes of one) with the process that dirtied them."""
    writes = requests[(requests["op"] == 1) & (requests["how"] == BY_PAGE_CACHE)].copy()
    writes["request"] = writes.index
    for frame in (writes, dirtied := dirtied.copy()):
        frame["first_page"] = frame["offset_bytes"] // _PAGE
        frame["last_page"] = (frame["offset_bytes"] + frame["size_bytes"] - 1) // _PAGE
    writes["each"] = writes["size_bytes"] / (writes["last_page"] - writes["first_page"] + 1)
    keys = ["device", "inode", "generation", "page"]
    written = _pages(
        writes, "first_page", "last_page", ["t_ns", "request", "file_id", "each", *keys[:3]]
    )
    dirty = _pages(
        dirtied, "first_page", "last_page", ["t_ns", "pid", "tid", "cgroup_id", *keys[:3]]
    )
    if written.empty or dirty.empty:
        empty = {"pid": np.nan, "tid": np.nan, "cgroup_id": np.nan}
        return written.assign(**empty)
    return pd.merge_asof(written, dirty, on="t_ns", by=keys)


def _writeback_table(writers: pd.DataFrame, dirtied: pd.DataFrame) -> pa.Table:
    keys = ["file_id", "pid", "cgroup_id"]
    written = writers.dropna(subset="pid").groupby(keys)["each"].sum().rename("bytes_written")
    dirty = dirtied.groupby(keys)["size_bytes"].sum().rename("bytes_dirtied")
    table = pd.concat([dirty, written], axis=1).fillna(0).round().astype("int64").reset_index()
    table["cgroup_id"] = table["cgroup_id"].astype("uint64")
    table["pid"] = table["pid"].astype("int64")
    table = table[table["file_id"] >= 0][[field.name for field in WRITEBACK]]
    return pa.Table.from_pandas(table, WRITEBACK, preserve_index=False)


def _requests_table(
    requests: pd.DataFrame, writers: pd.DataFrame, paths: dict[int, str | None]
) -> pd.DataFrame:
    """Rows of `device_requests`; block writes have the process that dirtied their pages."""
    owner = writers.groupby("request").agg(
        pid=("pid", "first"),
        tid=("tid", "first"),
        cgroup_id=("cgroup_id", "first"),
        owners=("pid", "nunique"),
    )
    owner = owner.reindex(requests.index)
    of_page_cache = (requests["op"] == 1) & (requests["how"] == BY_PAGE_CACHE)
    by_thread = requests["scoped"] == 1
    quality: Any = np.select(
        [
            of_page_cache & (owner["owners"] == 1),
            of_page_cache & (owner["owners"] > 1),
            of_page_cache & (requests["file_id"] < 0),
            of_page_cache & by_thread,
            (requests["file_id"] >= 0) & (requests["how"] != BY_METADATA),
            by_thread,
        ],
        ["exact", "inferred", "none", "inferred", "exact", "inferred"],
        "none",
    )
    disks = requests["disk"].unique()
    names = {disk: _disk_name(int(disk)) for disk in disks}
    own = by_thread & ~of_page_cache

    def who(name: str) -> Any:
        value = requests[name].where(own, owner[name])
        return value.where(value.notna() | ~by_thread, requests[name]).astype("Int64")

    table = pd.DataFrame(
        {
            "t_ns": requests["t_ns"],
            "due_ns": pd.array([None] * len(requests), "Int64"),
            "done_ns": requests["t_ns"] + requests["queue_ns"] + requests["device_ns"],
            "service_ns": requests["device_ns"],
            "wait_ns": requests["queue_ns"],
            "lateness_ns": pd.array([None] * len(requests), "Int64"),
            "op": np.where(requests["op"] == 1, "write", "read"),
            "offset_bytes": requests["offset_bytes"],
            "device_offset_bytes": requests["sector"] * 512,
            "size_bytes": requests["size_bytes"],
            "visit": pd.array([None] * len(requests), "Int64"),
            "file": requests["file_id"].map(paths).astype("string"),
            "disk_id": requests["disk"].map(names).astype("string"),
            "file_id": requests["file_id"].where(requests["file_id"] >= 0).astype("Int64"),
            "pid": who("pid"),
            "tid": who("tid"),
            "cgroup_id": who("cgroup_id"),
            "source": requests["how"].map(dict(enumerate(_SOURCES))).astype("string"),
            "join": pd.array(quality, "string"),
        }
    ).sort_values("t_ns", ignore_index=True)
    before = table.groupby(["disk_id", "op"])[["device_offset_bytes", "size_bytes"]].shift()
    ended = before["device_offset_bytes"] + before["size_bytes"]
    table["sequential"] = (table["device_offset_bytes"] == ended).astype(bool)
    return table


def _disk_name(disk: int) -> str:
    return disk_name(disk >> 20, disk & 0xFFFFF)
