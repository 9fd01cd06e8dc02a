"""Measurements of a device: one cell per pattern, direction, block size and depth, from fio's json+."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import BadInput

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One fio job: `depth` requests in flight in `streams` threads; latencies as a weighted sample.

    `latency_ns` is ascending, `weight` counts the occurrences of each value; `rate_iops` is the total of all
    threads. `reported_mean_s` is the mean if reported separately from the sample.
    """

    op: str
    sequential: bool
    block_bytes: int
    depth: int
    streams: int
    rate_iops: float
    latency_ns: Floats
    weight: Floats
    reported_mean_s: float | None = None

    @property
    def rate_bps(self) -> float:
        """Bytes per second."""
        return self.rate_iops * self.block_bytes

    @property
    def mean_s(self) -> float:
        """Mean latency in seconds."""
        if self.reported_mean_s is not None:
            return self.reported_mean_s
        return float(np.average(self.latency_ns, weights=self.weight)) * 1e-9

    def quantiles_s(self, p: Floats) -> Floats:
        """Latency quantiles in seconds at the probabilities `p`."""
        centre = (np.cumsum(self.weight) - self.weight / 2) / self.weight.sum()
        quantiles: Floats = np.interp(p, centre, self.latency_ns) * 1e-9
        return quantiles

    @property
    def requests(self) -> int:
        """Number of latencies."""
        return int(self.weight.sum())


@dataclass(frozen=True)
class Measurements:
    """Cells of reads and writes, and the latencies of fsync (a cell of op 'flush') if measured."""

    cells: list[Cell]
    flush: Cell | None
    fio_version: str


_SIZE = re.compile(r"(\d+)([kmg]?)i?b?", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3}


def cells_from_fio(documents: Iterable[Mapping[str, Any]]) -> Measurements:
    """Cells from fio's json+ documents, one job (or one `group_reporting` group) each.

    Raises BadInput if a job lacks its options or its latency bins (run fio with --output-format=json+).
    """
    cells: list[Cell] = []
    flush: Cell | None = None
    version = ""
    for document in documents:
        version = str(document.get("fio version", version))
        common = document.get("global options", {})
        for job in document.get("jobs", []):
            options = {**common, **job.get("job options", {})}
            name = job.get("jobname", "?")
            rw = str(options.get("rw", "read"))
            block = _bytes(str(options.get("bs", "4k")), name)
            jobs = int(options.get("numjobs", 1))
            depth = int(options.get("iodepth", 1)) * jobs
            if "sync" in job and (bins := job["sync"].get("lat_ns", {}).get("bins")):
                flush = _cell("flush", False, 0, 1, 1, 0.0, bins)
            if options.get("fsync"):
                continue
            for op in ("read", "write"):
                part = job.get(op, {})
                if not part.get("total_ios"):
                    continue
                bins = part.get("lat_ns", {}).get("bins") or part.get("clat_ns", {}).get("bins")
                if not bins:
                    raise BadInput(f"fio job {name} has no latency bins; use --output-format=json+")
                sequential = not rw.startswith("rand")
                cells.append(_cell(op, sequential, block, depth, jobs, float(part["iops"]), bins))
    if not cells:
        raise BadInput("no fio job with reads or writes")
    return Measurements(cells, flush, version)


def _cell(
    op: str,
    sequential: bool,
    block: int,
    depth: int,
    streams: int,
    rate_iops: float,
    bins: dict[str, int],
) -> Cell:
    values = np.array([float(v) for v in bins])
    weight = np.array([float(c) for c in bins.values()])
    order = np.argsort(values)
    return Cell(op, sequential, block, depth, streams, rate_iops, values[order], weight[order])


def _bytes(text: str, job: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise BadInput(f"fio job {job}: block size {text!r} is not a size")
    return int(match[1]) * int(1024 ** _POWER[match[2].lower()])
