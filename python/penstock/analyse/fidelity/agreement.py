"""Agreement of three byte counts of one run: the program's, the tracer's and the disk's.

The program's own count is a *claim* (written by a workload parser or the program). The tracer counts the
return values of system calls, the disk the bytes that reached it. The page cache lies between these two,
so the disk agrees only if the cache neither saved nor added I/O: direct I/O, or one cold pass over a file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.errors import BadInput

#: maximum difference of two sources that agree, as a share of the claim
TOLERANCE = 0.02

#: file name of a claim about all files of the disk together
ALL_FILES = "*"

_SUMS = ["file", "direction", "bytes"]

SCHEMA = TABLES["agreement"].arrow


@dataclass(frozen=True)
class Claim:
    """Bytes that a program reports of its own I/O, in `direction` ('read' or 'write') on `file`.

    `file` is relative to the disk's mount, or `*` for all files of the disk; `by` names the counter.
    """

    file: str
    direction: str
    bytes: int
    by: str


def read_claims(path: Path) -> list[Claim]:
    """Claims that the workload wrote as JSON (a list of objects with Claim's fields); none if absent.

    BadInput for a file with other contents.
    """
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text())
        claims = [
            Claim(str(r["file"]), r["direction"], int(r["bytes"]), str(r["by"])) for r in rows
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path}: found {type(error).__name__}: {error}; "
            "expected a JSON list of objects with file, direction, bytes and by"
        ) from error
    for claim in claims:
        if claim.direction not in ("read", "write"):
            raise BadInput(f"{path}: found direction {claim.direction!r}; expected read or write")
    return claims


def agreement(
    claims: list[Claim],
    io_events: pa.Table | None,
    files: pa.Table | None,
    device_requests: pa.Table | None,
    mount: str,
) -> pa.Table:
    """One row per claim: claimed, traced and disk bytes, their ratios to the claim, and whether all agree.

    `io_events` and `files` are the tracer's tables, `device_requests` the disk's log (None if the observer
    was off: its columns are then null), `mount` the mount point of the disk.
    """
    traced = _traced(io_events, files, mount)
    served = _served(device_requests)
    rows = []
    for claim in claims:
        seen = _total(traced, claim)
        disk = _total(served, claim)
        ratios = [b / claim.bytes if b is not None and claim.bytes else None for b in (seen, disk)]
        available = [r for r in ratios if r is not None]
        rows.append(
            {
                "file": claim.file,
                "direction": claim.direction,
                "by": claim.by,
                "claimed_bytes": claim.bytes,
                "traced_bytes": seen,
                "disk_bytes": disk,
                "traced_ratio": ratios[0],
                "disk_ratio": ratios[1],
                "agrees": all(abs(r - 1) <= TOLERANCE for r in available) if available else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _traced(io_events: pa.Table | None, files: pa.Table | None, mount: str) -> pd.DataFrame | None:
    """Bytes by file (relative to the mount) and direction, from the return values of system calls."""
    if io_events is None or files is None:
        return None
    events = io_events.select(["file_id", "direction", "done_bytes"])
    sums = events.group_by(["file_id", "direction"]).aggregate([("done_bytes", "sum")]).to_pandas()
    names = files.select(["file_id", "path"]).to_pandas()
    prefix = mount.rstrip("/") + "/"
    names = names[names["path"].astype(str).str.startswith(prefix)]
    names = names.assign(file=names["path"].astype(str).str.slice(len(prefix)))
    joined = sums.merge(names, on="file_id").astype({"direction": str})
    return pd.DataFrame(joined.rename(columns={"done_bytes_sum": "bytes"}), columns=_SUMS)


def _served(device_requests: pa.Table | None) -> pd.DataFrame | None:
    """Bytes by file and direction served by the disk."""
    if device_requests is None:
        return None
    requests = device_requests.select(["file", "op", "size_bytes"])
    sums = requests.group_by(["file", "op"]).aggregate([("size_bytes", "sum")]).to_pandas()
    sums = sums.rename(columns={"op": "direction", "size_bytes_sum": "bytes"})
    return pd.DataFrame(sums.astype({"direction": str, "file": str}), columns=_SUMS)


def _total(table: pd.DataFrame | None, claim: Claim) -> int | None:
    if table is None:
        return None
    rows = table[table["direction"] == claim.direction]
    if claim.file != ALL_FILES:
        rows = rows[rows["file"] == claim.file]
    return int(rows["bytes"].sum())
