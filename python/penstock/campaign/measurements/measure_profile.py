"""Measurement of a directory's device as a study: one factor, each of whose levels is one fio cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.archive.bundle import Bundle
from penstock.profile.cells import Measurements, cells_from_fio
from penstock.spec.source import dump
from penstock.spec.study import Study
from penstock.spec.template import doubled
from penstock.study.load import read_study
from penstock.workload.parsers.fio_report import report_of

#: name of the study, and default of the results' directory
STUDY_NAME = "profile"
#: file of fio's json+ report in each run's `{run_dir}`
_REPORT = "fio.json"


@dataclass(frozen=True)
class Grid:
    """Grid of the measurement: file size, seconds per cell, block sizes at depth 1, depths, concurrent
    jobs."""

    file_bytes: int
    cell_s: float
    blocks: tuple[int, ...]
    depths: tuple[int, ...]
    jobs: tuple[int, ...]

    def cells(self) -> list[dict[str, Any]]:
        """fio options of each cell."""
        cells: list[dict[str, Any]] = []
        for op in ("read", "write"):
            for rw in (op, f"rand{op}"):
                cells += [{"rw": rw, "bs": block} for block in self.blocks]
            cells += [{"rw": f"rand{op}", "bs": self.blocks[0], "numjobs": d} for d in self.depths]
            cells += [{"rw": op, "bs": self.blocks[0], "numjobs": n} for n in self.jobs]
            cells.append({"rw": f"rand{op}", "bs": self.blocks[-1], "numjobs": self.depths[-1]})
        cells.append({"rw": "randwrite", "bs": self.blocks[0], "fsync": 1})
        return cells


QUICK = Grid(64 << 20, 0.7, (4096, 262144), (4, 16), (4,))
FULL = Grid(512 << 20, 3.0, (4096, 16384, 65536, 262144, 1048576), (2, 4, 8, 16, 32), (2, 4, 16))


def profile_study(directory: Path, grid: Grid, seed: int = 1) -> Study:
    """Study that measures `directory`: direct I/O on one file, the cells in random order.

    The file is created once and removed at the end; overwriting it in one cell does not affect others.
    """
    place = doubled(str(directory.resolve()))
    fixed = (
        'cd "{data}" && fio --filename=device --direct=1 --ioengine=psync --thread '
        f"--group_reporting --output-format=json+ --size={grid.file_bytes}"
    )
    spec = {
        "penstock": 1,
        "name": STUDY_NAME,
        "question": "What does each kind of request cost on this device?",
        "factors": {"cell": {"levels": {_name(c): _options(c, grid) for c in grid.cells()}}},
        "design": {"kind": "full", "replicates": 1, "seed": seed},
        "platform": {
            "nodes": [
                {
                    "name": "host",
                    "disks": [
                        {"name": "data", "directory": place, "size": f"{grid.file_bytes >> 20}MiB"}
                    ],
                }
            ]
        },
        "workload": {
            "prepare": f"{fixed} --name=layout --rw=write --bs=1m --end_fsync=1",
            "mutates": "contents",
            "command": f'cell={{cell}}; {fixed} --output="{{run_dir}}/{_REPORT}" --name=cell --time_based '
            f"--runtime={round(grid.cell_s * 1000)}ms --randrepeat=0 --norandommap $cell",
            "timeout": f"{grid.cell_s + 120}s",
            "expected": f"{grid.cell_s}s",
            "parser": "fio",
        },
        "responses": {
            "iops": {"from": "iops", "unit": "IOPS", "better": "higher"},
            "bandwidth": {"from": "bandwidth", "unit": "MiB/s", "better": "higher"},
        },
        "observers": {"monitor": None},
    }
    return read_study(dump(spec).encode(), Path(f"{STUDY_NAME}.study.yaml"))


def measurements(out: Path, runs: pd.DataFrame) -> Measurements:
    """Cells of the valid runs of `out` in grid order, from fio's reports in their bundles.

    Raises BadInput if there is none.
    """
    valid = runs[runs["validity"].eq("valid")].sort_values("standard_order")
    reports = []
    for run_id in valid["run_id"]:
        file = Bundle.open(out / "runs" / str(run_id)).path / "workload" / _REPORT
        reports.append(report_of(file.read_text(errors="replace"), str(file)))
    return cells_from_fio(reports)


def _name(cell: Mapping[str, Any]) -> str:
    """Name of a cell's level, such as `randread 4KiB x16`."""
    jobs = f" x{cell['numjobs']}" if "numjobs" in cell else ""
    return f"{cell['rw']} {cell['bs'] >> 10}KiB{jobs}{' fsync' if 'fsync' in cell else ''}"


def _options(cell: Mapping[str, Any], grid: Grid) -> str:
    """fio options of a cell; concurrent sequential jobs each have a part of the file."""
    jobs = int(cell.get("numjobs", 1))
    own = dict(cell)
    if jobs > 1 and not str(cell["rw"]).startswith("rand"):
        part = grid.file_bytes // jobs >> 20 << 20
        own |= {"offset_increment": part, "size": part}
    return " ".join(f"--{key}={value}" for key, value in own.items())
