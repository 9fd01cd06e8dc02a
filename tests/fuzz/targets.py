"""What is fuzzed: one row per reader of what others write, with the errors that it may answer with."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from penstock.analyse.blame import blamed
from penstock.analyse.expectation import expectation_of
from penstock.analyse.measured_rows import read_measured
from penstock.analyse.oracle import judge_all
from penstock.archive.bundle import Bundle
from penstock.archive.expression import derived
from penstock.archive.selection import select
from penstock.archive.series import Recorded, Series, of_csv
from penstock.archive.share import pack, unpack
from penstock.emulate.cluster.change_arguments import changes_of
from penstock.emulate.cluster.wire import from_json, to_json
from penstock.emulate.disks.request_log import DISK_REQUEST_DTYPE, read_disk_log
from penstock.errors import BadInput, PenstockError
from penstock.observe.monitor.alerts import Evaluator
from penstock.observe.monitor.collectors.columns import table_of, unit_of
from penstock.observe.monitor.collectors.gathering import checked_collectors
from penstock.observe.monitor.collectors.getting import FailedError, Talk
from penstock.observe.monitor.collectors.http_push import snapped, unsnapped
from penstock.observe.monitor.collectors.swift import rates
from penstock.observe.monitor.follow import Follower
from penstock.observe.monitor.points import Batch, checked
from penstock.observe.monitor.pushing import batches_of, column_of, parsed, rows_where
from penstock.observe.monitor.samples import SAMPLE_DTYPE, read_samples
from penstock.observe.monitor.swift_bandwidth import Bandwidth
from penstock.observe.trace.capture.counts import COUNTER, read_counts
from penstock.observe.trace.capture.events import EVENT, SpoolReader
from penstock.observe.trace.foreign.importers import import_trace
from penstock.observe.trace.layers.join import RECORD, join
from penstock.observe.trace.verdicts.patterns import judge_spool
from penstock.platform import disk_keys
from penstock.platform.emulation import cluster_spec
from penstock.platform.from_distem import read_distem
from penstock.platform.from_simgrid import read_simgrid
from penstock.platform.hosts import read_platform
from penstock.predict.measured_runs import runs_of
from penstock.profile.model import StorageProfile
from penstock.report.check import document
from penstock.spec.alert import parse_rule
from penstock.study.load import read_study
from penstock.workload import metrics
from penstock.workload.described import workload_of
from penstock.workload.document import document_of
from penstock.workload.formats import format_of
from penstock.workload.parsers import fio, pgbench
from tests.fuzz import daemons, mutate
from tests.fuzz.drive import Feed, Target, stateless
from tests.unit.test_platform_foreign import SIMGRID, distem
from tests.unit.test_trace_import import DXT, blktrace

_native: Any = importlib.import_module("penstock._native")
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
AS_ROOT = os.geteuid() == 0


def _text(*patterns: str) -> list[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


# ---------------------------------------------------------------- traces of other programs


def _foreign(kind: str) -> Callable[[Path], contextlib.AbstractContextManager[Feed]]:
    @contextlib.contextmanager
    def opened(place: Path) -> Iterator[Feed]:
        given, spool, requests = place / "given", place / "spool", place / "requests"

        def feed(data: bytes) -> None:
            given.write_bytes(data)
            found = json.loads(_native.read_foreign_trace(kind, [given], spool, requests))
            judge = _native.Judge([])
            SpoolReader(spool, {}, judge).judge_only()
            assert found["kept"] * EVENT.itemsize == spool.stat().st_size
            json.loads(judge.verdicts())

        yield feed

    return opened


@contextlib.contextmanager
def _imported(place: Path) -> Iterator[Feed]:
    """All of `penstock import`."""
    given = place / "given"

    def feed(data: bytes) -> None:
        given.write_bytes(data)
        output = place / "bundle"
        shutil.rmtree(output, ignore_errors=True)
        try:
            import_trace([given], output)
        except BadInput:
            assert not output.exists()
            raise

    yield feed


def _reported(reader: str) -> Callable[[Path], contextlib.AbstractContextManager[Feed]]:
    """A reader of metrics, and its readings in a bundle's columns."""

    @contextlib.contextmanager
    def target(place: Path) -> Iterator[Feed]:
        given = place / "given"

        def feed(data: bytes) -> None:
            given.write_bytes(data)
            found = metrics.read(given, reader)
            assert list(found.samples.columns) == list(metrics.COLUMNS)

        yield feed

    return target


_RECORDED = Recorded(
    [
        Series(f"{name} {node}", np.arange(5.0), np.arange(5.0) ** 2, "B", node, name)
        for name in ("a", "b", "disk busy")
        for node in ("n1", "n2")
    ]
)


def _exported() -> list[bytes]:
    """Small runs as one file, plain and as it is written."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        with Bundle.create(run, {"run_id": "r001"}) as bundle:
            (bundle.path / "stdout.txt").write_text("1\n")
        target = Path(place) / "x.tar.zst"
        pack(select(run), target)
        packed = target.read_bytes()
        with pa.CompressedInputStream(pa.OSFile(str(target)), "zstd") as content:
            return [packed, content.read()]


@contextlib.contextmanager
def _unpacked(place: Path) -> Iterator[Feed]:
    """What comes in, as it is or compressed anew, so that what is inside is wrong as well."""
    given, output = place / "given.tar.zst", place / "output"

    def feed(data: bytes) -> None:
        if not data.startswith(b"\x28\xb5\x2f\xfd"):
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "zstd") as out:
                out.write(data)
            data = sink.getvalue().to_pybytes()
        given.write_bytes(data)
        try:
            unpack(given, output)
        finally:
            left = {p.name for p in place.iterdir()}
            assert left <= {"given.tar.zst", "output"}, left
            shutil.rmtree(output, ignore_errors=True)

    yield feed


def _blktrace() -> list[bytes]:
    import tempfile

    made = []
    for order in "<>":
        with tempfile.TemporaryDirectory() as folder:
            blktrace(Path(folder), 12, order)
            made += [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    return made


_IOLOG = (
    b"fio version 3 iolog\n0 /x add\n1 /x open\n2 /x read 0 4096\n9 /x write 8192 512\n"
    b"9 /x sync 0 0\n10 /y datasync 0 0\n11 /x trim 0 512\n12 /x close\n",
    b"fio version 2 iolog\n/x add\n/x open\n/x read 0 4096\n/x wait 2500 0\n/x write 8192 512\n/x close\n",
)

# ---------------------------------------------------------------- what programs report

_LATENCY = {"N": 2, "mean": 5.0, "min": 1, "max": 9, "bins": {"1": 1, "9": 1}}
_PERCENTILES = {"N": 2, "mean": 5.0, "min": 1, "max": 9, "percentile": {"50.000000": 4, "99.0": 9}}
_WAY = {"io_bytes": 8192, "total_ios": 2, "runtime": 10, "bw_bytes": 819200, "iops": 200.0}
_FIO = [
    {
        "fio version": "fio-3.33",
        "jobs": [{"jobname": "a", "error": 0, "read": _WAY | {"clat_ns": way}}],
    }
    for way in (_LATENCY, _PERCENTILES)
]
_FIO.append(
    {
        "fio version": "fio-3.33",
        "jobs": [
            {"jobname": "a", "error": 0, "read": _WAY | {"clat_ns": _LATENCY}, "usr_cpu": 1.5}
            | {"write": _WAY | {"clat_ns": _LATENCY}, "sync": {"lat_ns": {"N": 2, "mean": 4.0}}},
        ]
        * 2,
    }
)
_FIO_LINE = (
    b"fio --name=global --directory=/x --name=a --rw=randrw --bs=4k --size=16m --rwmixread=70 "
    b"--iodepth 4 --numjobs=2 --runtime=10s --time_based --fsync=1 2>/dev/null; fio --name=b --bs=1m",
    b"cd /x && fio --readwrite read --name b --blocksize 64Ki --offset=1g --kb_base=1000 --number_ios=5",
)
_PGBENCH = (
    b"number of transactions actually processed: 80\nnumber of failed transactions: 0 (0.000%)\n"
    b"latency average = 149.9 ms\nlatency stddev = 5 ms\ninitial connection time = 3 ms\ntps = 26.6 (x)\n",
)


def _fio_report(data: bytes) -> None:
    fio.parse(Path("/nonexistent"), data.decode("utf-8", "replace"), "", 1.0)


# ---------------------------------------------------------------- spools of our own


def _records(form: np.dtype[Any], count: int = 8, **columns: Any) -> bytes:
    rows = np.zeros(count, form)
    for name in rows.dtype.names or ():
        if rows.dtype[name].kind in "iuf":
            rows[name] = np.arange(count) % 3 + 1
    for name, values in columns.items():
        rows[name] = values
    return rows.tobytes()


def _of_spool(read: Callable[[Path], object], *beside: str) -> Any:
    """The input is the spool; after a line of eight stars, the file beside it."""

    @contextlib.contextmanager
    def opened(place: Path) -> Iterator[Feed]:
        spool = place / "spool"

        def feed(data: bytes) -> None:
            records, _, names = data.partition(b"********\n")
            spool.write_bytes(records)
            for ending in beside:
                Path(f"{spool}{ending}").write_bytes(names)
            read(spool)

        yield feed

    return opened


_RULES = (b"disk_busy{entity=vd*} > 90% for 5s then abort", b"memory_free<=1 GiB then note")


def _rule(data: bytes) -> bool:
    return bool(parse_rule(data.decode("utf-8", "replace")).metric)


def _followed(spool: Path) -> None:
    rules = [parse_rule("disk_busy > 90% for 1s"), parse_rule("memory_free > 1 B")]
    Evaluator(rules, 1_000_000_000).feed(Follower(spool).look())


def _events(spool: Path) -> None:
    judge = _native.Judge([])
    for part in SpoolReader(spool, {0: 1, 1: 2}, judge, [(1, 1, 1)]).tables():
        part.validate(full=True)
    json.loads(judge.verdicts())


_EVENTS = _records(
    EVENT,
    t_ns=1000 * np.arange(8),
    op=[0, 1, 33, 32, 64, 14, 96, 46],
    offset_bytes=4096 * np.arange(8),
    size_bytes=4096,
    done_bytes=[4096, 4096, -5, 0, 0, 4096, 1, 2],
    flags=[0, 1, 64, 16, 0, 0, 8, 4],
    cgroup_slot=[0, 0, 1, 0, 2, 0, 0, 0],
)
#: as in `penstock_probe::layout::Stream`
_SIZE_CLASSES = 32


def _epoch(samples: int, kind: int) -> bytes:
    head = struct.pack("<20I", 1, 7, 7, kind, 30, 0, 0, 29, 20, 5, 28, 1, 25, 1, 2, 3, 4, 9, 3, 12)
    sums = struct.pack(
        "<5Q6I2q", 50, 122880, 1000, 9000, 500, 5, 512, 4096, samples, 9, 0, 0, 1 << 20
    )
    classes = struct.pack(f"<{_SIZE_CLASSES}I", *[1] * _SIZE_CLASSES)
    rest = struct.pack("<6q4I", 4096, 8192, -4096, 0, 8, 16, 1, 0, 0, 0)
    return head + sums + classes + rest + struct.pack(f"<{samples}I", *range(samples))


_SERIES = b"".join(
    json.dumps(
        {
            "series": n,
            "source": "cpu",
            "entity": "0",
            "metric": "m",
            "unit": "s",
            "cumulative": True,
        }
    ).encode()
    + b"\n"
    for n in range(4)
)
_NAMES = b'{"file_id": 0, "path": "a"}\n{"file_id": 2, "path": "b"}\n'
_FILES = pa.table(
    {
        "file_id": pa.array([1, 2]),
        "dev_major": pa.array([8, 8]),
        "dev_minor": pa.array([0, 1]),
        "inode": pa.array([1, 2], pa.uint64()),
        "generation": pa.array([1, 1], pa.uint64()),
        "path": pa.array(["/a", "/b"]),
        "size_bytes": pa.array([1 << 20, 0]),
        "disk_id": pa.array([None, "d"]),
        "unlinked": pa.array([False, True]),
        "resident_pages": pa.array([1, 2]),
    }
)


def _layers(spool: Path) -> None:
    whole = spool.stat().st_size // RECORD.itemsize
    join(np.fromfile(spool, RECORD, count=whole), _FILES, None)


# ---------------------------------------------------------------- files of the user


def _of_file(samples: list[bytes]) -> mutate.Input:
    """A YAML text with words wrong, or its values changed and written as JSON, which is YAML too."""
    values = [yaml.safe_load(text) for text in samples]
    as_text, as_values = mutate.of_text(*samples), mutate.of_json(*values)
    return lambda draw: (as_text if draw.random() < 0.4 else as_values)(draw)


def _study(data: bytes) -> None:
    read_study(data, ROOT / "examples" / "fuzzed.study.yaml")


def _platform(data: bytes) -> None:
    platform = read_platform(data, ROOT / "examples" / "platforms" / "fuzzed.yaml", predicted=None)
    if platform.predictable:
        platform.lower()
    cluster_spec(platform)


def _workload(data: bytes) -> None:
    document = document_of(data, "fuzzed")
    found = format_of(document)
    if found is None:
        workload_of(document)
    else:
        found.read(document, size_model=None, io_share=None)


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
    for way in ("read", "write"):
        profile.moments(way, True, 4096)
    profile.quantiles_s("read", False, 4096, [0.5, 0.99])


def _patch(data: bytes) -> None:
    patch = _native.patch_check(data.decode("utf-8", "replace"))
    times = np.arange(20, dtype=np.uint64) * 1_000_000
    kinds, sizes = np.zeros(20, np.uint8), np.full(20, 4096, np.uint64)
    change = [(5, 5_000_000, patch)]
    _native.station_serve(_PROFILE_TEXT, 1, times, kinds, times * 0, sizes, change)


_PROFILE_TEXT = json.dumps(daemons.PROFILE)
_PROFILES = [json.loads(text) for text in _text("python/penstock/profile/ready/*.json")]
_STATION_PATCHES = [
    {
        k: v
        for k, v in p.items()
        if k in ("limits", "slow", "servers", "readahead", "cache", "profile")
    }
    for p in daemons.PATCHES
] + [{"credits": {"iops": {"base": 100, "burst": 3000, "capacity": 1e5, "start": 1.0}}}]

# ---------------------------------------------------------------- what is checked

_EXPECTED = (
    b"penstock_expected: 1\ntolerance: 10%\ntrials: {at_least: 2, at_most: 30}\nrows:\n"
    b"  - {module: m, operation: o, metric: t, predicted: 1.5, unit: ms, variance: 0.1, better: lower}\n"
    b"  - {module: m, operation: p, predicted: 3, unit: MiB/s, tolerance: 5%}\n"
    b"  - {module: w, operation: run, metric: makespan, predicted: 1}\n"
    b"evidence: [{module: m, operation: o, lock_wait_share: 5%, p99_over_p50: 2}]\n"
)
_PREDICTION = {
    "schema": "penstock/prediction/1",
    "workload": "w",
    "makespan_s": 4.0,
    "stages": [{"name": "map", "start_s": 1.0, "end_s": 3.0}],
    "operations": {"write": {"n": 8, "mean_s": 0.01}},
    "stations": [{"kind": "storage", "requests": 10, "busy_s": 1.0, "wait_mean_s": 0.4}],
}
_OF_STUDY = {
    "predictions": [{"treatment_id": "t01", "response": "r", "unit": "1/s", "predicted": 2.0}]
}
_EVIDENCE = [
    f"{module},{operation},{metric},{trial},{value + trial / 100},{unit},{node},{window}\n".encode()
    for trial in range(1, 5)
    for module, operation, metric, value, unit, node, window in (
        ("w", "run", "makespan", 2.0, "s", "", ""),
        ("c", "run", "launch_time", 0.9, "s", "", ""),
        *(("m", "o", metric, 1.0, "s", "", "") for metric in ("lock_wait", "connect_time")),
        *(("m", "o", "server_time", 1.0 + n, "s", f"s{n}", "") for n in range(3)),
        *(("m", "o", "in_flight", 9.0 * (n == w), "1", f"s{n}", w) for n in (0, 1) for w in (0, 1)),
        ("m", "o", "bytes", 10.0, "B", "s0", ""),
    )
]
_CHECKED_ROWS = (
    b"module,operation,metric,trial,value,unit,node,window\nm,o,t,1,1.5,ms,,\nm,o,t,2,1.6,ms,,\n"
    b"m,p,,1,3,MiB/s,s0,1\nm,p,,2,3.5,MiB/s,s1,2\nw,run,makespan,1,1,s,,\nw,run,makespan,2,1,s,,\n",
    b"module,operation,metric,trial,value,unit,node,window\nm,o,t,1,9,ms,,\nm,o,t,2,9.1,ms,,\n"
    b"m,p,,1,3,MiB/s,,\nm,p,,2,3.5,MiB/s,,\n" + b"".join(_EVIDENCE),
    b"trial,value,operation,module\n1,1,o,m\n2,1,o,m\n1,3,p,m\n2,4,p,m\n1,1,run,w\n2,1,run,w\n",
)


@contextlib.contextmanager
def _checked(place: Path) -> Iterator[Feed]:
    """A table held against rows that it may have."""
    given = place / "given.csv"
    asked = expectation_of(_EXPECTED, Path("expected.yaml"))

    def feed(data: bytes) -> None:
        given.write_bytes(data)
        measured = read_measured(given)
        rows = judge_all(asked, measured.trials(asked), measured.keys)
        json.dumps(document(asked, "run", rows, blamed(asked, measured, rows)), allow_nan=False)

    yield feed


# ---------------------------------------------------------------- words of the command line

_DISK_WORDS = (
    b"limits.read=10MiB/s limits.write_iops=500 IOPS",
    b"slow.factor=3\0slow.ramp=10s\0slow.stall.period=1s\0slow.stall.length=100ms",
    b"slow.random.probability=1%\0slow.random.factor=9\0servers=3\0readahead=off\0cache=max",
    b"bad_space.share=50%\0bad_space.mode=flip\0bad_space.seed=1\0bad_space.op=read\0read_only=yes",
    b"faults=[{op: read, error: EIO, probability: 1%, from: 4KiB}]\0limits=max\0slow=max",
    b"credits={iops: {base: 100, burst: 3000}}\0profile=nvme\0power_cut=yes\0full=no",
)
_NODE_WORDS = (
    b"n-*\0cpus=0.5\0cpuset=0-1\0cpu_ratio=50%\0memory=256MiB\0memory_soft=max",
    b"n-0\0n-1\0state=frozen\0n-2\0disk.data.limits.read=5MB/s\0disk.data.slow.factor=2",
    b"*\0link.net.out=10 Mbit/s\0link.net.delay=5ms\0link.loss=1%\0link.back.in_reorder=1%",
)


def _said(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").split("\0")


def _node_words(data: bytes) -> None:
    for change in changes_of(_said(data)):
        change.check()
        from_json(type(change), json.loads(json.dumps(to_json(change))))


# ---------------------------------------------------------------- commands of the supervisor


def _node_commands() -> list[Any]:
    spec = to_json(
        cluster_spec(
            read_platform(yaml.safe_dump(_CLUSTER).encode(), ROOT / "x.yaml", predicted=None)
        )
    )
    change = {"nodes": ["n-*"], "resource": "memory", "patch": {"hard": 1 << 28}}
    when: list[Any] = [{"at_s": 1e9}, {"phase": "p"}, {"condition": {"phase": "p"}}]
    return [
        {"cmd": "ping"},
        {"cmd": "reserve", "spec": spec},
        *(
            {"cmd": cmd, "cluster": "two"}
            for cmd in "keep progress describe networks spec status".split()
        ),
        {"cmd": "delays", "cluster": "two", "network": "net", "delays": [["n-0", "n-1", 0.1]]},
        {"cmd": "set", "cluster": "two", "changes": [change]},
        *(
            {
                "cmd": "schedule",
                "cluster": "two",
                "events": [change | {"when": each}],
                "start_ns": 5,
            }
            for each in when
        ),
        {"cmd": "mark", "cluster": "two", "phase": "p"},
        {"cmd": "events", "cluster": "two"},
        {"cmd": "down", "cluster": "two"},
    ]


_CLUSTER = {
    "penstock_platform": 1,
    "name": "two",
    "hosts": [
        {
            "group": "n",
            "count": 2,
            "memory": "256MiB",
            "cpus": 0.5,
            "disks": [{"name": "d", "profile": "sata-ssd", "limits": {"read": "20 MB/s"}}],
        }
    ],
    "network": {"bandwidth": "1 Gbit/s", "latency": "1ms", "loss": "1%"},
    "schedule": [{"at": "10s", "nodes": "n-0", "memory": "128MiB"}],
}


def _frame(draw: Random) -> bytes:
    head = bytes.fromhex("020000000002") + bytes.fromhex("020000000001") + b"\x08\x00"
    ip = bytes.fromhex("45000064000000004011000a580001") + bytes.fromhex("0a580002")
    sample = head + ip + draw.randbytes(draw.choice((0, 1, 20, 46, 400, 1400)))
    return mutate.noisy(draw, sample)


def _plain(
    name: str, make: mutate.Input, feed: Feed, *documented: type[BaseException], cost: float = 1
) -> Target:
    return Target(name, make, lambda _: stateless(feed), documented, cost)


_OBJECT_PATHS = (b"/sdb1/12/AUTH_a/c/gr\xc3\xbcn.dat", b"/sdb1/12/a/c/o/\xff?x", b"/bwinfo")


def _object_request(content: bytes) -> bool:
    """A request of an object server with our filter: what it tells then is JSON, whatever was asked."""
    path = content.decode("latin-1")
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_RANGE": path, "REMOTE_ADDR": path}

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"x"]

    one = Bandwidth(app, {})
    b"".join(one(asked, lambda *_: None))
    told = one({**asked, "PATH_INFO": "/osinfo", "REMOTE_ADDR": "127.0.0.1"}, lambda *_: None)
    return bool(json.loads(b"".join(told)))


_LINES = (
    b'disk,host=a,dev=sd\\ a busy=0.5,ops=3i,name="a \\"b\\", c",up=t 1700000000123456789\n'
    b"# a comment\npower,outlet=1 value=1.5\n\npower,outlet=1 watts=2.5,volts=230i 1700000003000000000\n",
)
_GRAPHITE = (b"a.b 1.5 1700000000\na.b;host=x;dev=y 2 1700000000.25\nc 3 -1\nd nan 5\n",)
_SHOWN = (
    b'# HELP a b\n# TYPE a counter\na{x="1",y="a\\"b}\\n",} 3 1700000000123\nb 4\nc{z=""} +Inf\n',
    b'a_bucket{le="1"} 17 1700000000.5 # {id="x"} 0.3 170\nb 2\n# EOF\n',
)
_PICKLES = [
    pickle.dumps([("a.b", (1700000000 + n, n / 2)) for n in range(4)] + [["c", [1, "2"]]], protocol)
    for protocol in range(5)
]


def _points(protocol: str, *words: Any) -> Any:
    """All that a receiver does with a message, down to a table that a sink takes."""

    def feed(data: bytes) -> None:
        reader = _native.PointReader(most_series=50)
        for _ in range(2):
            getattr(reader, protocol)(data, *words)
            table, _ = table_of(reader.take(), unit_of)
            checked(Batch("fuzzed", 0, table))

    return feed


def _http_answer(data: bytes) -> None:
    """What a target of the scraper answers, in two packets, and then the end of its connection."""
    loop = asyncio.new_event_loop()
    try:
        talk = Talk()
        talk._waits = waits = loop.create_future()
        for part in (data[: len(data) // 3], data[len(data) // 3 :]):
            talk.data_received(part)
        talk.connection_lost(None)
        assert waits.done()
        if not isinstance(waits.exception(), FailedError | EOFError | None):
            raise AssertionError from waits.exception()
    finally:
        loop.close()


_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\na 1\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\na 1\n\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 500\r\nConnection: close\r\n\r\nno",
)


def _pushed(ending: str) -> Any:
    """All that is done with a file that is pushed, down to batches that a sink takes."""

    def feed(data: bytes) -> bool:
        table = parsed(io.BytesIO(data), ending, "fuzzed")
        made = 0
        for name in table.column_names[:5]:
            with contextlib.suppress(BadInput):
                values = column_of(rows_where(table, {}), name)
                for batch in batches_of(values, metric="m", labels={}, each=2):
                    checked(batch)
                    made += 1
        return made > 0

    return feed


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}), sink)
    return sink.getvalue()


def _collectors(data: bytes) -> bool:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return bool(checked_collectors(said))


def _remote_write(data: bytes) -> None:
    _points("remote_write")(unsnapped(data))


def _remote_writes() -> list[bytes]:
    message = _native.remote_write_message(
        [("m", {"a": "b"}), ("n_bytes", {})], [[(1, 0.5), (2, 1.5)], [(3, 7.0)]]
    )
    return [bytes(message)]


def all_targets() -> list[Target]:
    """Every target that can be fuzzed here."""
    of = mutate
    study = _text(
        "examples/*.study.yaml", "tests/golden/broken/sound.study.yaml", "studies/ssd*.study.yaml"
    )
    platform = _text(
        "examples/platforms/*.yaml", "tests/golden/broken-platforms/sound.platform.yaml"
    )
    wfformat = [json.loads(text) for text in _text("tests/golden/wfformat/*.json")]
    spools = [
        ("spool-events", [_EVENTS], _of_spool(_events), ()),
        (
            "spool-epochs",
            [_epoch(n, kind) + _epoch(0, 1) for n in (0, 5) for kind in range(4)],
            _of_spool(judge_spool),
            (),
        ),
        (
            "spool-counts",
            [_records(COUNTER, direction=[0, 1] * 4)],
            _of_spool(read_counts),
            (PenstockError,),
        ),
        (
            "spool-samples",
            [_records(SAMPLE_DTYPE) + b"********\n" + _SERIES],
            _of_spool(read_samples, ".series"),
            (PenstockError,),
        ),
        (
            "spool-followed",
            [_records(SAMPLE_DTYPE) + b"********\n" + _SERIES],
            _of_spool(_followed, ".series"),
            (PenstockError,),
        ),
        (
            "spool-requests",
            [_records(DISK_REQUEST_DTYPE, op=[0, 1, 2, 0] * 2) + b"********\n" + _NAMES],
            _of_spool(read_disk_log, ".files"),
            (PenstockError,),
        ),
        (
            "spool-layers",
            [_records(RECORD, kind=[1, 2, 3, 1] * 2)],
            _of_spool(_layers),
            (PenstockError,),
        ),
    ]
    found = [
        Target("blktrace", of.of_bytes(*_blktrace()), _foreign("blktrace"), (ValueError,)),
        Target("darshan-dxt", of.of_text(DXT.encode()), _foreign("dxt"), (ValueError,)),
        Target("fio-iolog", of.of_text(*_IOLOG), _foreign("iolog"), (ValueError,)),
        Target(
            "imported-trace",
            of.of_bytes(*_blktrace(), DXT.encode(), *_IOLOG),
            _imported,
            (BadInput,),
            cost=30,
        ),
        _plain("fio-report", of.of_json(*_FIO), _fio_report, PenstockError),
        _plain(
            "fio-command",
            of.of_text(*_FIO_LINE),
            lambda d: bool(fio.operations(d.decode("utf-8", "replace"))),
        ),
        _plain(
            "pgbench-report",
            of.of_text(*_PGBENCH),
            lambda d: bool(pgbench.parse(Path(), d.decode("utf-8", "replace"), "", 1.0)),
            PenstockError,
        ),
        *(
            Target(
                name, of.of_bytes(*data), opened, errors, 100.0 if name == "spool-layers" else 4.0
            )
            for name, data, opened, errors in spools
        ),
        _plain("storage-profile", of.of_json(*_PROFILES), _profile, BadInput, cost=2),
        _plain("disk-patch", of.of_json(*_STATION_PATCHES), _patch, ValueError),
        _plain(
            "disk-words",
            of.of_text(*_DISK_WORDS),
            lambda d: bool(disk_keys.patch_of(_said(d))),
            BadInput,
        ),
        _plain("alert-rule", of.of_text(*_RULES), _rule, ValueError),
        _plain("node-words", of.of_text(*_NODE_WORDS), _node_words, BadInput),
        _plain("study-file", _of_file(study), _study, BadInput, cost=60),
        _plain("platform-file", _of_file(platform), _platform, BadInput, cost=60),
        _plain(
            "expected-file",
            _of_file([_EXPECTED, *(json.dumps(d).encode() for d in (_PREDICTION, _OF_STUDY))]),
            lambda d: bool(expectation_of(d, Path("f"))),
            BadInput,
            cost=10,
        ),
        Target("checked-rows", of.of_text(*_CHECKED_ROWS), _checked, (BadInput,), cost=20),
        _plain("workload-file", of.of_json(_WORKLOAD, *wfformat), _workload, BadInput, cost=4),
        _plain("workload-placement", of.of_json(_PLACEMENT), _placement, ValueError),
        _plain(
            "measured-runs",
            of.of_json(_MEASURED_RUNS, *wfformat),
            lambda d: bool(runs_of(d, "fuzzed.json")),
            BadInput,
            cost=4,
        ),
        _plain(
            "measured-table",
            of.of_text(_MEASURED_TABLE),
            lambda d: bool(runs_of(d, "fuzzed.csv")),
            BadInput,
        ),
        _plain("http-answer", of.of_text(*_ANSWERS), _http_answer),
        _plain("line-protocol", of.of_text(*_LINES), _points("line_protocol", 5, 1)),
        _plain(
            "swift-bwinfo",
            of.of_json({"sdb1": {"insta": 1.5, "mean1min": 2}, "sdb2": {"insta": None}}),
            lambda d: bool(rates(d)),
            BadInput,
        ),
        _plain("swift-request", of.of_text(*_OBJECT_PATHS), _object_request),
        _plain("graphite-lines", of.of_text(*_GRAPHITE), _points("graphite", 5)),
        _plain("graphite-pickle", of.of_bytes(*_PICKLES), _points("pickle", 5), ValueError),
        *(
            _plain(
                f"shown-metrics-{n}",
                of.of_text(text),
                _points("exposition", 5, bool(n), True, {"i": "n"}),
            )
            for n, text in enumerate(_SHOWN)
        ),
        _plain("remote-write", of.of_bytes(*_remote_writes()), _points("remote_write"), ValueError),
        _plain(
            "remote-write-packed",
            of.of_bytes(*(snapped(one) for one in _remote_writes())),
            _remote_write,
            ValueError,
            BadInput,
        ),
        *(
            Target(
                f"metrics-{name}",
                make(*_text(f"tests/golden/metrics/{files}")),
                _reported(reader),
                (BadInput,),
                cost=20,
            )
            for name, reader, files, make in (
                ("spark", "spark", "spark-log", of.of_text),
                ("spark-compressed", "spark", "spark.[lsz]*", of.of_bytes),
                ("redis", "redis", "redis-info.txt", of.of_text),
                ("postgresql", "postgresql", "pg-*.csv", of.of_text),
                ("cassandra", "cassandra", "cassandra-nodetool.txt", of.of_text),
                ("hadoop", "hadoop", "hadoop*.jhist", of.of_text),
                ("sar", "sar", "sar.json", of.of_text),
            )
        ),
        _plain(
            "series-csv",
            of.of_text(
                _text("tests/golden/metrics/pg-database.csv")[0], b"time,a (B),b\n0,1,\n1,2,3\n"
            ),
            lambda d: bool(of_csv(d, "fuzzed").series),
            BadInput,
            cost=4,
        ),
        Target(
            "exported-runs",
            of.of_bytes(*_exported()),
            _unpacked,
            (BadInput,),
            cost=20,
        ),
        _plain(
            "expression",
            of.of_text(
                b'sum("disk * busy") / 2 - moving_mean(a{n1}, 3.5)',
                b"join(rate(a), ratio(a, b), last)",
            ),
            lambda d: bool(derived(_RECORDED, "n", d.decode("utf-8", "replace")).series),
            BadInput,
        ),
        *(
            _plain(f"push-{ending}", make(*seeds), _pushed(f".{ending}"), BadInput, cost=8)
            for ending, make, seeds in (
                ("csv", of.of_text, (b"a,b,c\n1,x,0.5\n2,y,1.5\n", b"t,v\n1,\n2,3\n")),
                ("jsonl", of.of_text, (b'{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n',)),
                ("parquet", of.of_bytes, (_parquet(),)),
            )
        ),
        _plain(
            "collectors",
            of.of_text(
                b'{"d": {"type": "scrape", "targets": ["http://h:1/m"], "experiments": "x*"}}',
                b'{"snmp": {"host": "h", "outlets": [{"oid": "1.3.6.1", "metric": "m"}]}}',
            ),
            _collectors,
            BadInput,
        ),
        _plain(
            "distem-platform",
            of.of_json(distem()),
            lambda d: bool(read_distem(Path("f"), d)),
            BadInput,
            cost=4,
        ),
        _plain(
            "simgrid-platform",
            of.of_text((SIMGRID % "").encode()),
            lambda d: bool(read_simgrid(Path("f"), d)),
            BadInput,
            cost=4,
        ),
    ]
    if AS_ROOT:
        found += [
            Target("disk-commands", of.of_json(*daemons.DISK_COMMANDS), daemons.disk, cost=4),
            Target("relay-commands", of.of_json(*daemons.RELAY_COMMANDS), daemons.relay, cost=4),
            Target("relay-frames", _frame, daemons.frames),
            Target(
                "sampler-commands", of.of_json(*daemons.SAMPLER_COMMANDS), daemons.sampler, cost=4
            ),
            Target(
                "tracer-commands", of.of_json(*daemons.TRACER_COMMANDS), daemons.tracer, cost=20
            ),
            Target("node-commands", of.of_json(*_node_commands()), daemons.nodes, cost=10),
        ]
    return found
