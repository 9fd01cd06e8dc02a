"""What programs report of themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.workload import metrics
from penstock.workload.parsers import fio, pgbench
from tests.fuzz import mutate as of
from tests.fuzz.drive import Feed, Target, plain
from tests.fuzz.samples import texts


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


def targets() -> list[Target]:
    """Rows of this family."""
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
            Target(
                f"metrics-{name}",
                make(*texts(f"tests/golden/metrics/{files}")),
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
    ]
