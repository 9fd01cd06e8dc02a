"""Files of the user: studies, platforms, workloads, profiles, and those of other simulators."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import BadInput
from penstock.parts.interchange.from_distem import read_distem
from penstock.parts.interchange.from_simgrid import read_simgrid
from penstock.parts.prediction.black_box.predict import parse_task
from penstock.parts.prediction.black_box.programs import over_programs, programs_of, scores
from penstock.parts.prediction.black_box.tasks import TaskTime
from penstock.parts.prediction.measured_runs import runs_of
from penstock.parts.prediction.workloads.formats.document import document_of
from penstock.parts.prediction.workloads.formats.format import format_of
from penstock.parts.prediction.workloads.formats.native_format import workload_of
from penstock.parts.remote.cluster.hosts_file import MEASURED_PATHS, read_inventory
from penstock.parts.stores.snakemake.measured_jobs import Measurements, jobs_of
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import read_platform
from penstock.profile.model import StorageProfile
from penstock.study.load import read_study
from tests.fuzz import daemons
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target, plain
from tests.fuzz.samples import ROOT, texts
from tests.unit.cluster_hosts import facts, write_hosts
from tests.unit.test_platform_foreign import SIMGRID, distem

_native: Any = importlib.import_module("penstock._native")


def _study(data: bytes) -> None:
    read_study(data, ROOT / "examples" / "fuzzed.study.yaml")


def _platform(data: bytes) -> None:
    platform = read_platform(data, ROOT / "examples" / "platforms" / "fuzzed.yaml", predicted=None)
    if platform.predictable:
        platform.lower()
    cluster_spec(platform)


def _workload(data: bytes) -> None:
    document = document_of(data, "fuzzed")
    reader = format_of(document)
    if reader is None:
        workload_of(document)
    else:
        reader.read(document, size_model=None, io_share=None)


_MEASURED_RUNS = {
    "schema": "penstock/measured/1",
    "runs": [
        {
            "makespan_s": 9.5,
            "stages": [{"name": "sort", "start_s": 0, "end_s": 9.25}],
            "tasks": [{"name": "sort_1", "lasts_s": 3.5}],
        }
    ],
}

_MEASURED_TABLE = b"""run,kind,name,start_s,end_s,lasts_s
a,run,,0,9.5,
a,stage,sort,,,9.25
b,run,,,,8
b,task,sort_1,0.5,3,
"""


def _placement(data: bytes) -> None:
    _native.NetworkWorkload(json.dumps(_WORKLOAD), data.decode("utf-8", "replace"))


_PLACEMENT = {
    "in": [{"offset_bytes": 0, "length_bytes": 1 << 20, "hosts": ["a-0", "a-1"]}],
    "out": [
        {"offset_bytes": 0, "length_bytes": 1024, "hosts": ["a-1"]},
        {"offset_bytes": 1024, "length_bytes": 3072, "hosts": ["a-0"]},
    ],
}

_WORKLOAD = {
    "schema": "penstock/workload/1",
    "name": "w",
    "files": [
        {"name": "in", "size_bytes": 1 << 20, "preloaded": True, "hints": {"placement": "local"}}
    ],
    "tasks": [
        {
            "name": "t",
            "operations": [
                {"op": "open", "file": "in"},
                {"op": "read", "file": "in", "offset_bytes": 0, "size_bytes": 4096},
                {"op": "compute", "seconds": {"kind": "exponential", "mean_s": 1.0}},
                {"op": "write", "file": "out", "offset_bytes": 0, "size_bytes": 4096},
                {"op": "close", "file": "in"},
            ],
        },
        {
            "name": "u",
            "after": ["t"],
            "operations": [{"op": "read", "file": "out", "size_bytes": 1}],
        },
    ],
}


def _profile(data: bytes) -> None:
    profile = StorageProfile.from_json(data.decode("utf-8", "replace"))
    for direction in ("read", "write"):
        profile.moments(direction, True, 4096)
    profile.quantiles_s("read", False, 4096, [0.5, 0.99])


def _patch(data: bytes) -> None:
    patch = _native.patch_check(data.decode("utf-8", "replace"))
    times = np.arange(20, dtype=np.uint64) * 1_000_000
    kinds, sizes = np.zeros(20, np.uint8), np.full(20, 4096, np.uint64)
    change = [(5, 5_000_000, patch)]
    _native.station_serve(_PROFILE_TEXT, 1, times, kinds, times * 0, sizes, change)


_PROFILE_TEXT = json.dumps(daemons.PROFILE)

_PROFILES = [json.loads(text) for text in texts("python/penstock/profile/ready/*.json")]

_STATION_PATCHES = [
    {
        k: v
        for k, v in p.items()
        if k in ("limits", "slow", "servers", "readahead", "cache", "profile")
    }
    for p in daemons.PATCHES
] + [{"credits": {"iops": {"base": 100, "burst": 3000, "capacity": 1e5, "start": 1.0}}}]


_JOB_RECORD = {
    "rule": "sort",
    "status": 0,
    "started_s": 0.5,
    "ended_s": 2.25,
    "outputs": {"/store/words/sorted.txt": 4096},
}


def _job_records(data: bytes) -> None:
    Measurements(jobs_of(data.decode("utf-8", "replace")))


_PROGRAMS = b"""program,task,time
grep,scan size=48MiB cpu=1.2s,3.1s
sum,"scan size=48MiB cpu=0.8s,0.9s clients=1",2900ms
job,"mapreduce map_in=1GB map_out=1GB reduce_in=1GB reduce_out=1GB nodes=4 reducers=2 cpu=4s",1min
"""


def _programs(data: bytes) -> None:
    def predict(text: str) -> TaskTime:
        parse_task(text)
        return TaskTime(1.0, 0.9, 1.1, "none", 0.5, 0.5, 0.0, 0.9)

    over_programs(predict("scan size=1MiB"), scores(programs_of(data, "fuzzed.csv", predict)))


_HOSTS = b"""
penstock_hosts: 1
listen: 192.0.2.1
workers:
  - {name: a, ssh: root@192.0.2.11, ssh_options: ["-4"], python: /opt/python}
  - {name: b, netns: b, address: 192.0.2.12, link: 25 Gbit/s, mtu: 9000, state: /s, facts: facts/a.json}
paths:
  - {from: "*", to: "*", latency: 40us}
  - {from: a, to: b, latency: 30us, loss: 0.01%}
"""
_PATHS = {"paths": [{"hosts": ["a", "b"], "delay_s": 5e-5, "loss": 0.001}]}


def _hosts_reader(name: str) -> Callable[[Path], contextlib.AbstractContextManager[Feed]]:
    """Read a hosts file, its facts and its measured paths; the file `name` is fuzzed."""

    @contextlib.contextmanager
    def context(directory: Path) -> Iterator[Feed]:
        hosts = write_hosts(directory, _HOSTS.decode(), {"a": facts()})
        (directory / "facts" / MEASURED_PATHS).write_text(json.dumps(_PATHS))

        def feed(data: bytes) -> None:
            (directory / name).write_bytes(data)
            inventory = read_inventory(hosts)
            inventory.paths(inventory.hosts)

        yield feed

    return context


def targets() -> list[Target]:
    """Return the targets of this family."""
    study = texts(
        "examples/*.study.yaml", "tests/golden/broken/sound.study.yaml", "studies/ssd*.study.yaml"
    )
    platform = texts(
        "examples/platforms/*.yaml", "tests/golden/broken-platforms/sound.platform.yaml"
    )
    wfformat = [json.loads(text) for text in texts("tests/golden/wfformat/*.json")]
    return [
        plain("study-file", of.of_yaml(*study), _study, BadInput, cost=60),
        plain("platform-file", of.of_yaml(*platform), _platform, BadInput, cost=60),
        plain(
            "distem-platform",
            of.of_json(distem()),
            lambda d: bool(read_distem(Path("f"), d)),
            BadInput,
            cost=4,
        ),
        plain(
            "simgrid-platform",
            of.of_text((SIMGRID % "").encode()),
            lambda d: bool(read_simgrid(Path("f"), d)),
            BadInput,
            cost=4,
        ),
        Target("hosts-file", of.of_yaml(_HOSTS), _hosts_reader("hosts.yaml"), (BadInput,), 4),
        Target("host-facts", of.of_json(facts()), _hosts_reader("facts/a.json"), (BadInput,), 4),
        Target(
            "measured-paths",
            of.of_json(_PATHS),
            _hosts_reader(f"facts/{MEASURED_PATHS}"),
            (BadInput,),
            4,
        ),
        plain("workload-file", of.of_json(_WORKLOAD, *wfformat), _workload, BadInput, cost=4),
        plain("workload-placement", of.of_json(_PLACEMENT), _placement, ValueError),
        plain(
            "measured-runs",
            of.of_json(_MEASURED_RUNS, *wfformat),
            lambda d: bool(runs_of(d, "fuzzed.json")),
            BadInput,
            cost=4,
        ),
        plain(
            "measured-table",
            of.of_text(_MEASURED_TABLE),
            lambda d: bool(runs_of(d, "fuzzed.csv")),
            BadInput,
        ),
        plain("measured-programs", of.of_text(_PROGRAMS), _programs, BadInput),
        plain("snakemake-jobs", of.of_json(_JOB_RECORD), _job_records),
        plain("storage-profile", of.of_json(*_PROFILES), _profile, BadInput, cost=2),
        plain("disk-patch", of.of_json(*_STATION_PATCHES), _patch, ValueError),
    ]
