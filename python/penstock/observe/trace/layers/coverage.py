"""Share of the pages mapped at a process's end that page faults reported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.schemas import TABLES

_PAGE = 4096
_OPS = ["fault_read", "fault_write", "fault_around", "fault_around_write"]

MAPPED = TABLES["mapped"].arrow

Pages = npt.NDArray[np.int64]


def present_pages(names: Path, *, before: bool = False) -> dict[tuple[int, int], Pages]:
    """Pages of each file mapped by each process at its end or the trace's, from the daemon's JSON lines.

    With `before`: at the start of tracing. Keys are (file_id, pid).
    """
    by_key: dict[tuple[int, int], list[Pages]] = {}
    with names.open(encoding="ascii") as lines:
        for line in lines:
            if not line.startswith('{"before"') or not line.endswith("\n"):
                continue
            row = json.loads(line)
            if row["before"] is not before:
                continue
            bits = np.unpackbits(
                np.frombuffer(bytes.fromhex(row["present"]), np.uint8), bitorder="little"
            )
            pages = row["first_page"] + np.flatnonzero(bits)
            by_key.setdefault((row["mapped"], row["pid"]), []).append(pages)
    return {key: np.unique(np.concatenate(parts)) for key, parts in by_key.items()}


class SeenPages:
    """Pages of each file that each process's faults mapped, including those mapped around a fault.

    The faults are sorted once, as there may be thousands of short processes that map the same library.
    """

    def __init__(self, events: pa.Table) -> None:
        file_id, pid = (events[name].to_numpy() for name in ("file_id", "pid"))
        order = np.lexsort([pid, file_id])
        self._first = events["offset_bytes"].to_numpy()[order] // _PAGE
        self._count = events["size_bytes"].to_numpy()[order] // _PAGE
        file_id, pid = file_id[order], pid[order]
        borders = np.flatnonzero((np.diff(file_id) != 0) | (np.diff(pid) != 0)) + 1
        starts = np.concatenate([np.zeros(min(len(order), 1), np.int64), borders])
        ends = np.append(starts[1:], len(order))
        keys = zip(file_id[starts].tolist(), pid[starts].tolist(), strict=True)
        rows = map(slice, starts.tolist(), ends[: len(starts)].tolist())
        self._rows = dict(zip(keys, rows, strict=True))

    def of(self, file_id: int, pid: int) -> Pages:
        """Pages of one file and process, in order."""
        rows = self._rows.get((file_id, pid))
        if rows is None:
            return np.zeros(0, np.int64)
        first, count = self._first[rows], self._count[rows]
        steps = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return np.unique(np.repeat(first, count) + steps)


def mapped_table(names: Path, events: Path, lost: int = 0) -> pa.Table:
    """Table `mapped`: for each process and file the coverage, pages seen of those present at its end.

    Mappings removed before the process ended are not included. With `lost` records (of any file) the pages
    present are a lower bound, and the coverage is null.
    """
    present, before = present_pages(names), present_pages(names, before=True)
    if not present:
        return MAPPED.empty_table()
    columns = ["op", "file_id", "pid", "offset_bytes", "size_bytes"]
    table = pq.read_table(events, columns=columns)
    table = table.filter(pc.is_in(pc.cast(table["op"], pa.string()), pa.array(_OPS)))
    rows, faults = [], SeenPages(table)
    for (file_id, pid), pages in sorted(present.items()):
        seen = np.intersect1d(pages, faults.of(file_id, pid))
        earlier = before.get((file_id, pid), np.zeros(0, np.int64))
        rows.append(
            {
                "file_id": file_id,
                "pid": pid,
                "pages_before": len(np.setdiff1d(np.intersect1d(pages, earlier), seen)),
                "pages_present": len(pages),
                "pages_seen": len(seen),
                "coverage": None if lost else len(seen) / len(pages),
            }
        )
    return pa.Table.from_pylist(rows, MAPPED)


def mapped_before(names: Path) -> dict[int, int]:
    """Bytes of each file that were mapped when tracing started, and cause no faults."""
    mapped: dict[int, int] = {}
    for (file_id, _), pages in present_pages(names, before=True).items():
        mapped[file_id] = mapped.get(file_id, 0) + _PAGE * len(pages)
    return mapped
