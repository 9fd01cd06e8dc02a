"""Points measured through the conductor: a study of one factor with one level per point.

fio reads and writes like typical programs: cold, through the page cache, blocking calls, no advice to the
kernel; each client has its own file. A point ends with its data or its time. Writes are flushed behind the
program, at most 4 MiB at a time, and synced at the end, so that the storage is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.archive.bundle import Bundle
from penstock.campaign.campaign import CampaignResult, run_loaded
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.black_box.space import MIB, Point, skew
from penstock.spec.source import dump
from penstock.spec.study import Study
from penstock.spec.template import doubled
from penstock.study.load import load_study, read_study
from penstock.workload.parsers.fio import parse as parse_fio
from penstock.workload.parsers.json import document

STUDY_NAME = "learn"
_REPORT, _COMPUTED = "fio.json", "computed.json"
_COMPUTE = "compute "
#: dirty data flushed at a time behind a writing program [bytes, requests]
_BEHIND_BYTES, _BEHIND_REQUESTS = 4 * MIB, 64
#: sizes of files are multiples of a MiB
_GRAIN = MIB
#: every client is a thread with its own file and blocking calls
_FIO = "fio --filename_format='client.$jobnum' --ioengine=psync --thread --group_reporting"


@dataclass(frozen=True)
class Computing:
    """A sequential scan that computes `cpu_ns_per_byte`, to measure the overlap of computing and reading."""

    point: Point
    cpu_ns_per_byte: float

    @property
    def name(self) -> str:
        return f"{_COMPUTE}{self.cpu_ns_per_byte:.6g} {self.point.name}"


Run = Point | Computing


@dataclass(frozen=True)
class Measured:
    """Measurement of one run: throughput of one client [bytes/s], processor time per byte [s]."""

    run: Run
    throughput_bps: float
    cpu_s_per_byte: float


def run_of(name: str) -> Run:
    """Run of a level name; BadInput for an unknown one."""
    try:
        if name.startswith(_COMPUTE):
            cpu, _, rest = name.removeprefix(_COMPUTE).partition(" ")
            return Computing(Point.from_name(rest), float(cpu))
        return Point.from_name(name)
    except ValueError:
        raise BadInput(f"found the level {name!r}; expected a point of penstock learn") from None


def learn_study(directory: Path, runs: Sequence[Run], cell_s: float, seed: int = 1) -> Study:
    """Study with these runs in this order: `directory` must be writable.

    The data are laid out once, in the largest size of any run, in a separate directory that is removed at the
    end.
    """
    points = [r if isinstance(r, Point) else r.point for r in runs]
    place = doubled(str(directory.resolve()))
    clients = max(p.clients for p in points) + 1
    data = -(-max(p.data_bytes for p in points) // _GRAIN) * _GRAIN
    longest_s = 300 + cell_s
    document_ = {
        "penstock": 1,
        "name": STUDY_NAME,
        "question": "What does this storage give to one client?",
        "factors": {"point": {"levels": {r.name: _command(r, cell_s) for r in runs}}},
        "design": {"kind": "full", "replicates": 1, "seed": seed, "order": "standard"},
        "platform": {
            "nodes": [
                {
                    "name": "host",
                    "disks": [
                        {
                            "name": "data",
                            "directory": place,
                            "size": f"{data // MIB * clients}MiB",
                        }
                    ],
                }
            ]
        },
        "workload": {
            "prepare": f'cd "{{data}}" && {_FIO} --name=layout --rw=write --bs=1m --size={data} '
            f"--numjobs={clients} --end_fsync=1",
            "mutates": "contents",
            "command": 'cd "{data}" && eval {point}',
            "env": {
                "report": f"{{run_dir}}/{_REPORT}",
                "computed": f"{{run_dir}}/{_COMPUTED}",
                "python": "{python}",
            },
            "timeout": f"{longest_s:g}s",
            "expected": f"{cell_s:g}s",
        },
        "responses": {"time": {"from": "wall_s", "unit": "s", "better": "lower"}},
        "observers": {"monitor": None},
    }
    return read_study(dump(document_).encode(), Path(f"{STUDY_NAME}.study.yaml"))


def _command(run: Run, cell_s: float) -> str:
    if isinstance(run, Computing):
        p = run.point
        return (
            f'"$python" -m penstock.parts.prediction.workloads.generator client.0 --size {p.data_bytes} '
            f'--request {p.request_bytes} --cpu-ns-per-byte {run.cpu_ns_per_byte!r} > "$computed"'
        )
    return f'{_FIO} --output-format=json+ {fio_options(run, cell_s)} --output="$report"'


def fio_options(point: Point, cell_s: float) -> str:
    """fio options of a point, without those common to all points."""
    shares = skew(point.pattern)
    arguments = [
        "--name=client",
        "--fadvise_hint=0",
        "--randrepeat=0",
        f"--rw={'rand' if shares else ''}{point.operation}",
        f"--bs={point.request_bytes}",
        f"--size={point.data_bytes // point.request_bytes * point.request_bytes}",
        f"--numjobs={point.clients + 1}",
        f"--direct={int(point.access == 'direct')}",
        f"--runtime={round(cell_s * 1000)}ms",
    ]
    if shares:
        x, y = shares
        zones = f"zoned:{x}/{y}:{100 - x}/{100 - y}"
        arguments += ["--norandommap", f"--random_distribution={zones}"]
    if point.operation == "write":
        behind = max(1, min(_BEHIND_REQUESTS, _BEHIND_BYTES // point.request_bytes))
        arguments.append("--end_fsync=1")
        if point.access == "buffered":
            arguments.append(f"--sync_file_range=wait_before,write:{behind}")
    return " ".join(arguments)


def frozen_runs(out: Path) -> list[Run]:
    """Planned runs of an earlier `learn` in `out`, in order; none if it had not begun.

    BadInput if `out` has another study.
    """
    file = out / "study.yaml"
    if not (out / "campaign.json").exists():
        return []
    study = load_study(file)
    if study.name != STUDY_NAME or [f.name for f in study.factors] != ["point"]:
        raise BadInput(f"{out} holds the study {study.name}, not one of penstock learn")
    return [run_of(level.name) for level in study.factors[0].levels]


def make_runs(
    directory: Path, out: Path, runs: Sequence[Run], cell_s: float, *, resume: bool, quiet: bool
) -> CampaignResult:
    """Execute the runs without a result; raises the errors of the conductor."""
    study = learn_study(directory, runs, cell_s)
    return run_loaded(study, out, resume=resume, quiet=quiet, full=False, keep_going=True)


def measured(out: Path, runs: pd.DataFrame) -> tuple[list[Measured], list[tuple[str, str]]]:
    """Measurements of the valid runs of `out`, in order of execution; and names and reasons of the others."""
    results: list[Measured] = []
    skipped: list[tuple[str, str]] = []
    for row in runs.sort_values("run_order").to_dict("records"):
        name = str(row["point"])
        try:
            if row["validity"] != "valid":
                raise PenstockError(str(row["reason"]))
            bundle = Bundle.open(out / "runs" / str(row["run_id"])).path / "workload"
            results.append(_read(run_of(name), bundle))
        except (PenstockError, OSError) as error:
            skipped.append((name, str(error)))
    return results, skipped


def _read(run: Run, place: Path) -> Measured:
    if isinstance(run, Computing):
        times = document((place / _COMPUTED).read_text(), _COMPUTED)
        # includes the wait for a processor, so that a busy host does not look like a storage without overlap
        spent_s = times["computing_wall_s"] if run.cpu_ns_per_byte else 0.0
        return Measured(run, times["bytes"] / times["wall_s"], spent_s / times["bytes"])
    values = parse_fio(place, "", "", 0.0)
    total = values["bytes"].value
    if total <= 0 or values["bandwidth"].value <= 0:
        raise PenstockError("fio moved no byte in the time of the point")
    share = (values["user_cpu"].value + values["system_cpu"].value) / 100
    seconds = total / values["bandwidth"].value
    threads = run.clients + 1
    return Measured(run, values["bandwidth"].value / threads, share * seconds * threads / total)


def points_of(results: Iterable[Measured]) -> dict[Point, float]:
    """Measured throughput of the points."""
    return {m.run: m.throughput_bps for m in results if isinstance(m.run, Point)}


def storage_facts(directory: Path) -> dict[str, Any]:
    """Facts on the storage of a directory: file system, host, kernel."""
    facts = os.uname()
    space = os.statvfs(directory)
    return {
        "directory": str(directory.resolve()),
        "host": facts.nodename,
        "kernel": facts.release,
        "size_bytes": space.f_blocks * space.f_frsize,
    }
