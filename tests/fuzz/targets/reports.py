"""Reports of programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.workload import metrics
from penstock.workload.parsers import db_bench, fio, hammerdb, pgbench, regex, sysbench, ycsb
from penstock.workload.parsers import json as json_kind
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target, plain
from tests.fuzz.samples import texts


def _read_metrics(reader: str) -> Callable[[Path], contextlib.AbstractContextManager[Feed]]:
    """Read metrics with a reader into the columns of a bundle."""

    @contextlib.contextmanager
    def target(directory: Path) -> Iterator[Feed]:
        file = directory / "given"

        def feed(data: bytes) -> None:
            file.write_bytes(data)
            readings = metrics.read(file, reader)
            assert list(readings.samples.columns) == list(metrics.COLUMNS)

        yield feed

    return target


_LATENCY = {"N": 2, "mean": 5.0, "min": 1, "max": 9, "bins": {"1": 1, "9": 1}}

_PERCENTILES = {"N": 2, "mean": 5.0, "min": 1, "max": 9, "percentile": {"50.000000": 4, "99.0": 9}}

_DIRECTION = {"io_bytes": 8192, "total_ios": 2, "runtime": 10, "bw_bytes": 819200, "iops": 200.0}

_FIO = [
    {
        "fio version": "fio-3.33",
        "jobs": [{"jobname": "a", "error": 0, "read": _DIRECTION | {"clat_ns": latency}}],
    }
    for latency in (_LATENCY, _PERCENTILES)
]

_FIO.append(
    {
        "fio version": "fio-3.33",
        "jobs": [
            {"jobname": "a", "error": 0, "read": _DIRECTION | {"clat_ns": _LATENCY}, "usr_cpu": 1.5}
            | {
                "write": _DIRECTION | {"clat_ns": _LATENCY},
                "sync": {"lat_ns": {"N": 2, "mean": 4.0}},
            },
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
    b"latency average = 149.9 ms\nlatency stddev = 5 ms\ninitial connection time = 3 ms\n"
    b"tps = 26.6 (without initial connection time)\n",
)


_REPORTS = (
    (
        "sysbench",
        sysbench,
        b"sysbench 1.0.20\n transactions: 16124 (26.85 per sec.)\n read: IOPS=12.5 0.20 MiB/s (0.21 MB/s)\n"
        b" total time: 10.4s\n total number of events: 16124\nLatency (ms):\n avg: 6\n 95th percentile: 1\n",
    ),
    (
        "ycsb",
        ycsb,
        b"[OVERALL], RunTime(ms), 5\n[OVERALL], Throughput(ops/sec), 2306.6\n[READ], Operations, 13\n"
        b"[READ], AverageLatency(us), 835.1\n[READ], Return=ERROR, 3\n[READ-FAILED], Operations, 3\n",
    ),
    (
        "db-bench",
        db_bench,
        b"readrandom : 345.5 micros/op 2894 ops/sec 3.5 seconds 100 operations; 0.3 MB/s (1 of 1)\n"
        b"Microseconds per read:\nPercentiles: P50: 58.00 P75: 67.64 P99: 2383.08 P99.9: 2863.76\n",
    ),
    (
        "hammerdb",
        hammerdb,
        b"Vuser 1:TEST RESULT : System achieved 16535 NOPM from 38116 Oracle TPM\n",
    ),
)

_TEXTS = (b"rate 1,234.5 MB/s\nrate 7,5 MB/s\nrate 1e5 MB/s\n", b"rate 143,2 MB/s")
_LINES = (b'note\n{"a": [1, 2.5e3]}\n[1]\n{"a": [3]}\n', b'{"a": [3]}')


def _fio_report(data: bytes) -> None:
    fio.parse(Path("/nonexistent"), data.decode("utf-8", "replace"), "", 1.0)


def targets() -> list[Target]:
    """Return the targets of this family."""
    return [
        plain("fio-report", of.of_json(*_FIO), _fio_report, PenstockError),
        plain(
            "fio-command",
            of.of_text(*_FIO_LINE),
            lambda d: bool(fio.operations(d.decode("utf-8", "replace"))),
        ),
        plain(
            "pgbench-report",
            of.of_text(*_PGBENCH),
            lambda d: bool(pgbench.parse(Path(), d.decode("utf-8", "replace"), "", 1.0)),
            PenstockError,
        ),
        *(
            plain(
                f"{name}-report",
                of.of_text(text),
                lambda d, module=module: bool(
                    module.parse(Path(), d.decode("utf-8", "replace"), "", 1.0)
                ),
                PenstockError,
            )
            for name, module, text in _REPORTS
        ),
        plain(
            "regex-response",
            of.of_text(*_TEXTS),
            lambda d: regex.number(r"rate ([^ ]*)", d.decode("utf-8", "replace"), "stdout"),
            PenstockError,
        ),
        plain(
            "json-response",
            of.of_text(*_LINES),
            lambda d: json_kind.number("-1.a.0", d.decode("utf-8", "replace"), "stdout"),
            PenstockError,
        ),
        *(
            Target(
                f"metrics-{name}",
                make(*texts(f"tests/golden/metrics/{files}")),
                _read_metrics(reader),
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
    ]
