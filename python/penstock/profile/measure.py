"""Measuring a directory's device with fio, cell by cell, in a bounded time.

`Runner` is the seam: whoever can run one fio command and give its json+ document can measure.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from penstock.errors import PenstockError

#: runs one fio command line, gives its json+ document
Runner = Callable[[list[str]], dict[str, Any]]


@dataclass(frozen=True)
class Grid:
    """What is measured: file size, seconds per cell, block sizes at depth 1, depths, jobs side by side."""

    file_bytes: int
    cell_s: float
    blocks: tuple[int, ...]
    depths: tuple[int, ...]
    jobs: tuple[int, ...]

    def cells(self) -> list[dict[str, Any]]:
        """fio options of each cell."""
        found: list[dict[str, Any]] = []
        for op in ("read", "write"):
            for rw in (op, f"rand{op}"):
                found += [{"rw": rw, "bs": block} for block in self.blocks]
            found += [{"rw": f"rand{op}", "bs": self.blocks[0], "numjobs": d} for d in self.depths]
            found += [{"rw": op, "bs": self.blocks[0], "numjobs": n} for n in self.jobs]
            found.append({"rw": f"rand{op}", "bs": self.blocks[-1], "numjobs": self.depths[-1]})
        found.append({"rw": "randwrite", "bs": self.blocks[0], "fsync": 1})
        return found


QUICK = Grid(64 << 20, 0.7, (4096, 262144), (4, 16), (4,))
FULL = Grid(512 << 20, 3.0, (4096, 16384, 65536, 262144, 1048576), (2, 4, 8, 16, 32), (2, 4, 16))


def run_fio(argv: list[str]) -> dict[str, Any]:
    """Runs fio; PenstockError with its own words if it is missing or fails."""
    if shutil.which("fio") is None:
        raise PenstockError("fio is missing; install it (Debian: apt-get install fio)")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    start = done.stdout.find("{")
    if done.returncode != 0 or start < 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise PenstockError(f"fio failed: {words[-1] if words else done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout[start:])
    return document


def measure(directory: Path, grid: Grid, run: Runner = run_fio) -> Iterator[dict[str, Any]]:
    """fio's documents, one per cell, as they are measured (direct I/O on one file in `directory`).

    The file is laid out first and removed at the end. Raises PenstockError if the directory has no room
    or its file system refuses direct I/O.
    """
    if not directory.is_dir():
        raise PenstockError(f"{directory} is not a directory")
    free = shutil.disk_usage(directory).free
    if free < 2 * grid.file_bytes:
        raise PenstockError(
            f"{directory} has {free >> 20} MiB free; {2 * grid.file_bytes >> 20} MiB are needed"
        )
    with TemporaryDirectory(prefix=".penstock-profile-", dir=directory) as place:
        file = Path(place) / "device"
        fixed = ["fio", f"--filename={file}", "--direct=1", "--output-format=json+"]
        fixed += ["--ioengine=psync", "--thread", "--group_reporting", f"--size={grid.file_bytes}"]
        run([*fixed, "--name=layout", "--rw=write", "--bs=1m", "--end_fsync=1"])
        for number, cell in enumerate(grid.cells()):
            jobs = int(cell.get("numjobs", 1))
            own = {"name": f"cell{number}", "time_based": 1, "runtime": f"{grid.cell_s}s"} | cell
            own |= {"randrepeat": 0, "norandommap": 1}
            if jobs > 1 and not str(cell["rw"]).startswith("rand"):
                part = grid.file_bytes // jobs >> 20 << 20
                own |= {"offset_increment": part, "size": part}
            yield run([*fixed, *(f"--{key}={value}" for key, value in own.items())])
