"""Write the versions of a cell to deduplicating mounts, on this host or in a node.

`python -m studies.dedup_study.writer CELL DIRECTORY` prints the run of a cell (JSON) whose stores are in a
directory.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from penstock.errors import PenstockError
from penstock.parts.dedup import stores
from penstock.parts.dedup.mounts import DedupMount, mounted
from penstock.parts.dedup.options import MountOptions
from penstock.parts.dedup.versions import Series, VersionPlan
from studies.dedup_study.cells import Cell, CellRun, Contender, Write

#: bytes of one write(2)
BLOCK_BYTES = 1 << 20
#: versions that stay when the store is collected: a mount compares with the last four
COMPARED = 4
COLLECT_EVERY = 8
#: time within which the kernel reports the last close of a file [s]
RECORDED_WITHIN_S = 10.0
#: a file system in memory, if there is one
MEMORY = Path("/dev/shm")

CELLS: TypeAdapter[Cell] = TypeAdapter(Cell)
RUNS: TypeAdapter[CellRun] = TypeAdapter(CellRun)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary directory in memory, where the host has such a file system."""
    folder = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="penstock-dedup-", dir=folder) as name:
        yield Path(name)


def run_cell(cell: Cell, directory: Path) -> CellRun:
    """Write all versions of a cell to new stores in `directory`, which are removed afterwards.

    Each version is written by all of its contenders, one after the other in a changing order, so that a
    change of the host's speed affects all.
    """
    plan = VersionPlan(
        cell.size_bytes,
        cell.versions,
        (cell.similarity, cell.similarity),
        cell.change,
        cell.extent_bytes,
        cell.seed,
    )
    series = Series(plan)
    with scratch_directory() as scratch, contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(_opened(contender, cell, directory / str(n), scratch / str(n)))
            for n, contender in enumerate(cell.contenders)
        ]
        for number in range(1, cell.versions + 1):
            if number > 1:
                series.advance()
            series.write(scratch / "version")
            content = memoryview((scratch / "version").read_bytes())
            active = [store for store in opened if cell.writes(store.contender, number)]
            for turn in range(len(active)):
                active[(turn + number) % len(active)].write(number, content)
            if number % COLLECT_EVERY == 0:
                for store in opened:
                    store.collect()
        writes = tuple(write for store in opened for write in store.writes)
        return CellRun(cell, writes, {store.contender.name: store.stored() for store in opened})


class OpenStore:
    """A mounted store, and a contender's writes to it."""

    def __init__(self, contender: Contender, served: DedupMount) -> None:
        self.contender = contender
        self.served = served
        self.writes: list[Write] = []
        self._present: list[Path] = []
        self._removed_bytes = 0

    def write(self, number: int, content: memoryview) -> None:
        """Write a version and store its record."""
        path = self.served.mount / f"v.{number:04d}"
        follows = bool(self.writes) and self.writes[-1].number == number - 1
        begin = time.perf_counter()
        copy_to(path, content)
        elapsed_s = time.perf_counter() - begin
        self._present.append(path)
        of = self._record(len(self.writes) + 1)
        measured = {field.name: of[field.name] for field in fields(Write) if field.name in of}
        self.writes.append(Write(self.contender.name, number, follows, elapsed_s, **measured))

    def _record(self, count: int) -> dict[str, Any]:
        """Record of the latest version; `count` versions were written."""
        end = time.monotonic() + RECORDED_WITHIN_S
        while time.monotonic() < end:
            status = self.served.status()
            if status["totals"]["versions"] >= count:
                return dict(status["records"][-1])
            time.sleep(0.001)
        raise PenstockError(f"{self.served.mount}: no record of version {count}")

    def collect(self) -> None:
        """Remove versions that are not compared any more, and their chunks."""
        for path in self._present[:-COMPARED]:
            path.unlink()
        self._present = self._present[-COMPARED:]
        self._removed_bytes += stores.collect(self.served.mount).removed_bytes

    def stored(self) -> int:
        """Bytes of all chunks that were ever stored."""
        return self._removed_bytes + stores.usage(self.served.mount).stored_bytes


def copy_to(path: Path, content: memoryview) -> None:
    """Write a file, in blocks and without a buffer of this program."""
    with open(path, "wb", buffering=0) as file:
        while content:
            content = content[file.write(content[:BLOCK_BYTES]) :]


@contextlib.contextmanager
def _opened(contender: Contender, cell: Cell, store: Path, point: Path) -> Iterator[OpenStore]:
    """Context of a new mounted store, which is removed at the end."""
    store.mkdir(parents=True)
    point.mkdir()
    options = MountOptions(chunking=contender.chunking, hash=cell.hash)
    if contender.controlled:
        settings = None
        if contender.settings:
            settings = point.with_suffix(".yaml")
            settings.write_text(contender.settings, encoding="utf-8")
        options = MountOptions(
            chunking=contender.chunking,
            hash=cell.hash,
            configurations=contender.configurations,
            controller=settings,
        )
    try:
        with mounted(store, point, options) as served:
            yield OpenStore(contender, served)
    finally:
        shutil.rmtree(store)


def main() -> int:
    """Run the cell of the command line."""
    cell, directory = CELLS.validate_json(sys.argv[1]), Path(sys.argv[2])
    try:
        run = run_cell(cell, directory)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(RUNS.dump_json(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
