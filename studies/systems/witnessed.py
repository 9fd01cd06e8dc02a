"""Bytes that a program read and wrote by the tracer, compared with those that the disk served by its log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.archive.bundle import Bundle

#: larger differences between the two sources are an error, as in a certificate
LIMIT = 0.05
#: smaller files are only included in the sum
LEAST_BYTES = 1 << 20


#: systems that bypass the page cache: every call is a request
DIRECT = frozenset({"rocksdb"})
#: a file counts as completely read if calls touched this share of it
WHOLE = 0.95


@dataclass(frozen=True)
class Seen:
    """One file in one direction [bytes]. `calls`: read or written by calls; `places`: of the file, however
    often they were touched; `disk`: by the disk's log; `size`: of the file.
    """

    file: str
    direction: str
    calls: int
    places: int
    disk: int
    size: int

    def agrees(self, direct: bool) -> bool | None:
        """True if both sources agree; None if they need not.

        Past the page cache, the disk serves the requests of the calls. Through it, a cold file that is read
        completely is fetched once, and written data are written back at least once and at most as often as
        calls wrote them. A file of which a part is read also costs readahead, which calls do not show.
        """
        low = high = self.calls
        if not direct and self.direction == "read":
            if self.places < WHOLE * self.size:
                return None
            low = high = self.places
        elif not direct:
            low = self.places
        return (1 - LIMIT) * low <= self.disk <= (1 + LIMIT) * high

    def ratio(self, direct: bool) -> float:
        """Ratio of the disk's bytes to the tracer's: those of the places if a cache was read through, else of
        the calls.
        """
        seen = self.places if self.direction == "read" and not direct else self.calls
        return self.disk / seen if seen else float("inf")


def distinct_bytes(offset: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> int:
    """Length of the union of the ranges."""
    order = np.argsort(offset, kind="stable")
    begin, end = offset[order], (offset + size)[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate(([begin[0]], reach[:-1]))
    return int(np.maximum(reach - np.maximum(begin, before), 0).sum())


def witnessed(bundle: Bundle, disk_id: str, *, plant: bool = False) -> list[Seen]:
    """Every file of the disk with reads or writes in either source; a renamed file has its last name.
    `plant` first removes the larger half of the disk's requests.
    """
    files = bundle.table("files").to_pandas()
    mark = f"/{disk_id}/"
    files = files[files["path"].str.contains(mark, regex=False, na=False)]
    named = files.assign(file=files["path"].str.split(mark).str[-1])
    events = bundle.table("io_events").to_pandas().merge(named[["file_id", "file"]], on="file_id")
    events = events[events["direction"].isin(["read", "write"]) & (events["done_bytes"] > 0)]
    requests = bundle.table("device_requests").to_pandas()
    requests = requests[(requests["op"].astype(str) != "flush") & (requests["disk_id"] == disk_id)]
    if plant:
        requests = requests[requests["size_bytes"] < requests["size_bytes"].median()]
    sizes = named.groupby("file")["size_bytes"].max().fillna(0).to_dict()
    by_file: dict[tuple[str, str], list[int]] = {}
    for key, calls in events.groupby(["file", "direction"], observed=True):
        done = calls["done_bytes"].to_numpy(np.int64)
        offset = calls["offset_bytes"].to_numpy(np.int64)
        size = max(int(sizes[key[0]]), int((offset + done).max()))
        by_file[(key[0], key[1])] = [int(done.sum()), distinct_bytes(offset, done), 0, size]
    served = requests.groupby([requests["file"].astype(str), requests["op"].astype(str)])
    for (file, op), size in served["size_bytes"].sum().items():
        by_file.setdefault((str(file), str(op)), [0, 0, 0, 0])[2] = int(size)
    for (file, op), values in list(by_file.items()):
        if values[0] == 0:  # the tracer has the file's previous name
            last = file.rpartition("/")[2]
            for previous, seen in list(by_file.items()):
                if (
                    previous[0].endswith(f"/{last}")
                    and previous[1] == op
                    and seen[2] == 0
                    and seen[0]
                ):
                    by_file[file, op] = [*seen[:2], values[2], seen[3]]
                    del by_file[previous]
    return [Seen(*key, *values) for key, values in sorted(by_file.items())]


def large(seen: list[Seen]) -> list[Seen]:
    """Files large enough to be evaluated alone."""
    return [file for file in seen if max(file.calls, file.disk) >= LEAST_BYTES]
