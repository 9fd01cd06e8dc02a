"""Points measured through the conductor: a study of one factor with one level per point.

fio reads and writes like typical programs: cold, through the page cache, blocking calls, no advice to the
kernel; each client has its own file. A point ends with its data or its time. Writes are flushed behind the
program, at most 4 MiB at a time, and synced at the end, so that the storage is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd

from penstock.archive.bundle import Bundle
from penstock.campaign.campaign import CampaignResult, run_loaded
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.black_box.space import MIB, Point, skew
from penstock.parts.prediction.learning.deployment import Deployment, site_of
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
#: time limit of creating the data, and of a point beyond its own time [s]
_LONGEST_S = 300.0
#: output of a service that has created the data
_LAID_OUT = "laid-out"
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
    document_ = {
        "penstock": 1,
        "name": STUDY_NAME,
        "question": "What does this storage give to one client?",
        **_design(runs, cell_s, seed),
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
            "prepare": f'cd "{{data}}" && {_layout(points)}',
            "mutates": "contents",
            "command": 'cd "{data}" && eval {point}',
            "env": {
                "report": f"{{run_dir}}/{_REPORT}",
                "computed": f"{{run_dir}}/{_COMPUTED}",
                "python": "{python}",
            },
            **_times(cell_s),
        },
    }
    return read_study(dump(document_).encode(), Path(f"{STUDY_NAME}.study.yaml"))


def deployed_study(
    platform: Path, deployment: Deployment, points: Sequence[Point], cell_s: float, seed: int = 1
) -> Study:
    """Study with these points on nodes of a platform file; all nodes run a point at once."""
    site = site_of(platform, deployment)
    layout = _layout(points)
    if site.disk is not None:
        created: Mapping[str, object] = {"prepare": f'cd "{site.place}" && {layout}'}
    else:
        cases = " ".join(f"{writer}) to={node};;" for writer, node in site.writers.items())
        service = {
            "name": "layout",
            "on": list(site.writers),
            "command": f'case {{node}} in {cases} esac; mkdir -p "{{store}}/$to" && '
            f'cd "{{store}}/$to" && {layout} && echo {_LAID_OUT} && exec sleep infinity',
            "ready": {"log": _LAID_OUT},
            "within": f"{_LONGEST_S:g}s",
        }
        created = {"services": [service]}
    workload = {
        "mutates": "contents" if site.disk is not None else True,  # a store writes its own files
        "on": list(site.nodes),
        "command": f'mkdir -p "{{run_dir}}/{{node}}" && cd "{site.place}" && eval {{point}}',
        "env": {"report": f"{{run_dir}}/{{node}}/{_REPORT}"},
        **_times(cell_s),
        **created,
    }
    document_ = {
        **_design(points, cell_s, seed),
        "penstock": 1,
        "name": STUDY_NAME,
        "question": "What does this storage give to one client?",
        "platform": site.platform,
        "workload": workload,
    }
    base = platform.resolve().parent
    raw = dump(document_).encode()
    return read_study(raw, base / f"{STUDY_NAME}.study.yaml", base_dir=base)


def _design(runs: Sequence[Run], cell_s: float, seed: int) -> Mapping[str, object]:
    """Sections of a study that do not depend on the place."""
    return {
        "factors": {"point": {"levels": {r.name: _command(r, cell_s) for r in runs}}},
        "design": {"kind": "full", "replicates": 1, "seed": seed, "order": "standard"},
        "responses": {"time": {"from": "wall_s", "unit": "s", "better": "lower"}},
        "observers": {"monitor": None},
    }


def _times(cell_s: float) -> dict[str, str]:
    return {"timeout": f"{_LONGEST_S + cell_s:g}s", "expected": f"{cell_s:g}s"}


def _layout(points: Sequence[Point]) -> str:
    """Command that creates the data of all clients in its directory."""
    data = -(-max(p.data_bytes for p in points) // _GRAIN) * _GRAIN
    clients = max(p.clients for p in points) + 1
    return (
        f"{_FIO} --name=layout --rw=write --bs=1m --size={data} --numjobs={clients} --end_fsync=1"
    )


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
        raise BadInput(f"{out} has results of the study {study.name}, not of penstock learn")
    return [run_of(level.name) for level in study.factors[0].levels]


def make_runs(study: Study, out: Path, *, resume: bool, quiet: bool) -> CampaignResult:
    """Execute the runs without a result; raises the errors of the conductor."""
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
    # on nodes, each has its own report
    reports = sorted({path.parent for path in place.rglob(_REPORT)}) or [place]
    each = [_client(run, one) for one in reports]
    rates, cpu_s = zip(*each, strict=True)
    return Measured(run, fmean(rates), fmean(cpu_s))


def _client(point: Point, place: Path) -> tuple[float, float]:
    """Throughput [bytes/s] and processor time per byte [s] of one client in a report of fio."""
    values = parse_fio(place, "", "", 0.0)
    total = values["bytes"].value
    if total <= 0 or values["bandwidth"].value <= 0:
        raise PenstockError("fio moved no byte in the time of the point")
    share = (values["user_cpu"].value + values["system_cpu"].value) / 100
    seconds = total / values["bandwidth"].value
    threads = point.clients + 1
    return values["bandwidth"].value / threads, share * seconds * threads / total


def points_of(results: Iterable[Measured]) -> dict[Point, float]:
    """Measured throughput of the points."""
    return {m.run: m.throughput_bps for m in results if isinstance(m.run, Point)}


def host_facts() -> dict[str, str]:
    """Name and kernel of this host."""
    facts = os.uname()
    return {"host": facts.nodename, "kernel": facts.release}


def storage_facts(directory: Path) -> dict[str, str | int]:
    """Facts on the storage of a directory: file system, host, kernel."""
    space = os.statvfs(directory)
    return {
        "directory": str(directory.resolve()),
        **host_facts(),
        "size_bytes": space.f_blocks * space.f_frsize,
    }
