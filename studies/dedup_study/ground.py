"""File systems below deduplicating mounts: an emulated disk with a limited rate, or a store over links."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from bench import record
from penstock.api import Disk
from penstock.errors import PenstockError
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.run import store_of
from penstock.platform.hosts import load_platform
from studies.dedup_study.cells import FIXED, MIB, OFF, Cell, CellRun, Write, static
from studies.dedup_study.writer import CELLS, RUNS, run_cell, scratch_directory

CLUSTER = Path(__file__).parent / "cluster.platform.yaml"
#: time that the limit of the disk may catch up [s]: none, so that hashing does not overlap with sending
BURST_S = 1e-6
#: longest run of a cell in a node [s]
NODE_WITHIN_S = 4 * 3600.0
#: versions of a calibration; the first has no predecessor
CALIBRATION_VERSIONS = 6
#: deviation of the time to send from the requested one that needs no correction
CLOSE = 0.02
#: share of the requested time to send that the disk without a limit may take
MOST_FLOOR = 0.9


class Ground(Protocol):
    """A file system whose rate of writing can be limited."""

    name: str

    def limit(self, rate_bps: float | None) -> None:
        """Limit the rate of writing [bytes/s]; None: as fast as it can be."""

    def run(self, cell: Cell) -> CellRun:
        """Write the versions of a cell."""


class DiskGround:
    """An emulated disk without a service time; its files are in memory, its rate of writing is limited."""

    name = "emulated disk"

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._disk: Disk | None = None

    def __enter__(self) -> DiskGround:
        with contextlib.ExitStack() as stack:
            base = stack.enter_context(scratch_directory())
            for part in ("backing", "mount"):
                (base / part).mkdir()
            self._disk = stack.enter_context(Disk("none", base / "backing", base / "mount"))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, at)

    def limit(self, rate_bps: float | None) -> None:
        """Limit the rate of writing; None: as fast as it can be."""
        assert self._disk is not None
        limits = {"write_bps": rate_bps, "burst_s": BURST_S}
        self._disk.set(limits="max" if rate_bps is None else limits)

    def run(self, cell: Cell) -> CellRun:
        """Write the versions of a cell."""
        assert self._disk is not None
        return run_cell(cell, self._disk.mount)


class StoreGround:
    """A shared store on virtual nodes with shaped links; the versions are written on its client node."""

    name = "MooseFS over shaped links"

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._store: Store | None = None

    def __enter__(self) -> StoreGround:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, at)

    def limit(self, rate_bps: float | None) -> None:
        """Start the store again with links of that rate; None: those of the platform file."""
        self._stack.close()
        changes = []
        if rate_bps is not None:
            changes.append(f"network.bandwidth={8 * rate_bps / 1e6:.6g} Mbit/s")
        platform = load_platform(CLUSTER, changes, predicted=False)
        self._store = self._stack.enter_context(store_of(platform, None))

    def run(self, cell: Cell) -> CellRun:
        """Write the versions of a cell in the client node."""
        store = self._store
        assert store is not None
        with tempfile.TemporaryDirectory(prefix="penstock-dedup-") as scratch:
            out, errors = Path(scratch) / "run.json", Path(scratch) / "errors"
            ended = store.cluster.exec(
                store.roles.clients[0],
                [
                    *(sys.executable, "-m", "studies.dedup_study.writer"),
                    *(CELLS.dump_json(cell).decode(), store.spec.mount),
                ],
                env={
                    "PYTHONPATH": os.pathsep.join([str(record.ROOT / "python"), str(record.ROOT)]),
                    # a journal of the node's own: its root has that of the host
                    "PENSTOCK_STATE": "/tmp/penstock-state",
                    "PENSTOCK_RUNTIME": "/run/penstock-dedup",
                },
                cwd=str(record.ROOT),
                stdout=out,
                stderr=errors,
                timeout_s=NODE_WITHIN_S,
            )
            if ended.exit_status:
                text = errors.read_text(errors="replace").strip()[-300:]
                raise PenstockError(f"writer in the node: status {ended.exit_status}: {text}")
            return RUNS.validate_json(out.read_bytes())


@dataclass(frozen=True)
class Calibration:
    """Times per byte at a limit: to hash chunks of a fixed size, and to send without deduplication.

    `ratio`: the requested ratio of the two (0: any). `reason`: why this host cannot have the ratio, or empty.
    """

    ratio: float
    rate_bps: float
    hash_s_per_byte: float
    send_s_per_byte: float
    reason: str = ""

    @property
    def measured_ratio(self) -> float:
        """Time to hash over time to send."""
        return self.hash_s_per_byte / self.send_s_per_byte


def calibrated(ground: Ground, ratio: float, size_bytes: int) -> Calibration:
    """Limit the ground so that hashing takes `ratio` of sending.

    The second of two identical versions sends nothing: its time to hash is measured by itself (Costa 2014,
    section 5.3.1).
    """
    ground.limit(None)
    hashing = hash_time(ground, size_bytes)
    floor = send_time(ground, size_bytes)
    target = hashing / ratio
    if floor > MOST_FLOOR * target:
        most = MOST_FLOOR * hashing / floor
        reason = f"the ground sends too slowly for it: r of {most:.2f} at most"
        return Calibration(ratio, 0.0, hashing, floor, reason)
    rate = 1 / (target - floor)
    sending = floor
    for _ in range(4):
        ground.limit(rate)
        sending = send_time(ground, size_bytes)
        if abs(sending / target - 1) <= CLOSE:
            break
        # the part of the time that the limit determines
        rate = 1 / max(0.1 * target, 1 / rate + target - sending)
    return Calibration(ratio, rate, hashing, sending)


def hash_time(ground: Ground, size_bytes: int) -> float:
    """Seconds to hash a byte in chunks of a fixed size."""
    run = ground.run(_small(FIXED, 1.0, size_bytes))
    return statistics.median(write.hash_s / write.bytes for write in run.of(FIXED))


def send_time(ground: Ground, size_bytes: int) -> float:
    """Seconds to send a byte without deduplication."""
    run = ground.run(_small(OFF, 0.0, size_bytes))
    return statistics.median(write.send_s / write.bytes for write in run.of(OFF))


def _small(chunking: str, similarity: float, size_bytes: int) -> Cell:
    n = CALIBRATION_VERSIONS
    return Cell(similarity, (static(chunking),), n, size_bytes, MIB, n)


def send_time_of(writes: Iterable[Write], least_share: float = 0.2) -> float | None:
    """Median seconds to send a byte, of writes that sent at least a share; None without such writes."""
    times = [
        write.send_s / (write.bytes - write.similar_bytes)
        for write in writes
        if write.bytes - write.similar_bytes >= least_share * write.bytes > 0
    ]
    return statistics.median(times) if times else None
