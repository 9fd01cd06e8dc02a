"""How much of what a process had mapped at its end the faults told of."""

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
    """Pages that each process had of each file when it or the trace ended, from the daemon's JSON lines.

    With `before` those that were there when tracing began. Keys are (file_id, pid).
    """
    found: dict[tuple[int, int], list[Pages]] = {}
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
            found.setdefault((row["mapped"], row["pid"]), []).append(pages)
    return {key: np.unique(np.concatenate(parts)) for key, parts in found.items()}


def seen_pages(events: pa.Table, file_id: int, pid: int) -> Pages:
    """Pages of a file that faults of a process were about, or mapped around."""
    own = events.filter(pc.and_(pc.equal(events["file_id"], file_id), pc.equal(events["pid"], pid)))
    first = own["offset_bytes"].to_numpy() // _PAGE
    count = own["size_bytes"].to_numpy() // _PAGE
    if not len(first):
        return np.zeros(0, np.int64)
    steps = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.unique(np.repeat(first, count) + steps)


def mapped_table(names: Path, events: Path, lost: int = 0) -> pa.Table:
    """Table `mapped`: for each process and file the coverage, pages seen of those present at its end.

    A mapping that was undone before the process ended is not in it. With `lost` (pieces that found no room,
    of any file) what was present is a lower bound, and the coverage null.
    """
    present, before = present_pages(names), present_pages(names, before=True)
    if not present:
        return MAPPED.empty_table()
    columns = ["op", "file_id", "pid", "offset_bytes", "size_bytes"]
    table = pq.read_table(events, columns=columns)
    table = table.filter(pc.is_in(pc.cast(table["op"], pa.string()), pa.array(_OPS)))
    rows = []
    for (file_id, pid), pages in sorted(present.items()):
        seen = np.intersect1d(pages, seen_pages(table, file_id, pid))
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
    """Bytes of each file that processes had mapped when tracing began: they leave no fault."""
    found: dict[int, int] = {}
    for (file_id, _), pages in present_pages(names, before=True).items():
        found[file_id] = found.get(file_id, 0) + _PAGE * len(pages)
    return found
