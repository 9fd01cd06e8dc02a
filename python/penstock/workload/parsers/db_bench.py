"""db_bench of LevelDB and RocksDB: one line for each benchmark, on stdout.

readrandom   :  12.345 micros/op 81004 ops/sec 12.3 seconds 1000000 operations;  9.0 MB/s (…)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.workload.measured import JobSpec, Measured, Report
from penstock.workload.parsers.printed import NUMBER, Printed, complete_lines

_BENCHMARKS = (
    "fillseq fillsync fillrandom filluniquerandom fillbatch fillseekseq fill100K overwrite updaterandom "
    "appendrandom mergerandom xorupdaterandom readseq readtocache readreverse readrandom readrandomfast "
    "readmissing readhot multireadrandom readwhilewriting readwhilemerging readwhilescanning "
    "readrandomwriterandom readrandommergerandom randomwithverify seekrandom seekrandomwhilewriting "
    "seekrandomwhilemerging seekordered newiterator newiteratorwhilewriting deleteseq deleterandom mixgraph "
    "randomtransaction randomreplacekeys timeseries"
).split()
_PERCENTILES = {"P50": "p50", "P75": "p75", "P99": "p99", "P99.9": "p999", "P99.99": "p9999"}
_OF_A_BENCHMARK = {
    "latency_mean": "us",
    "ops_per_s": "1/s",
    "bandwidth": "MiB/s",
    **{f"latency_{p}": "us" for p in _PERCENTILES.values()},
}

#: unprefixed names are for a run's only benchmark; its MB are MiB; percentiles need --histogram, and are for
#: the only kind of operation with one
RESPONSES: dict[str, str] = {
    **_OF_A_BENCHMARK,
    **{f"{b}_{name}": unit for b in _BENCHMARKS for name, unit in _OF_A_BENCHMARK.items()},
}
_LINE = re.compile(
    rf"^(?P<name>\w[\w.]*)\s*:\s+(?P<micros>{NUMBER}) micros/op"
    rf"(?:\s+(?P<ops>{NUMBER}) ops/sec)?(?:\s+{NUMBER} seconds\s+\d+ operations)?"
    rf"(?:;\s*(?P<mb>{NUMBER}) MB/s)?"
)
_NO_OPERATION = re.compile(r"^(\w[\w.]*)\s*:\s+[+-]?(?:nan|inf) micros/op")
_AGAIN = re.compile(r"^(\w[\w.]*)\s+\[(?:AVG|MEDIAN)[^\]]*\]")
_HISTOGRAM = re.compile(r"^Microseconds per (\w+):")
_PERCENTILE_LINE = re.compile(r"^Percentiles:")
_PERCENTILE = re.compile(rf"(P[\d.]+): ({NUMBER})")


class _Benchmark(NamedTuple):
    """One line of a report, and the percentiles of each following histogram."""

    values: dict[str, Measured]
    histograms: list[dict[str, Measured]]


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> Report:
    """Latency, rate and bandwidth of each benchmark; PenstockError if no line matches.

    A benchmark that ran several times (`[X3]`, or named twice) has no value; the reason is given.
    """
    stdout = complete_lines(stdout)
    by_name: dict[str, list[_Benchmark]] = {}
    for name, benchmark in _benchmarks(stdout):
        by_name.setdefault(name, []).append(benchmark)
    if not by_name:
        raise PenstockError("db_bench printed no 'NAME : … micros/op' line")
    values: dict[str, Measured] = {}
    missing: dict[str, str] = {}
    for name, runs in by_name.items():
        for key in _OF_A_BENCHMARK:
            if len(runs) > 1:
                missing[f"{name}_{key}"] = f"db_bench ran {name} {len(runs)} times; expected once"
        if len(runs) == 1:
            own = dict(runs[0].values)
            if len(runs[0].histograms) == 1:
                own |= runs[0].histograms[0]
            values |= {f"{name}_{key}": value for key, value in own.items() if name in _BENCHMARKS}
            if len(by_name) == 1:
                values |= own
    if len(by_name) > 1 or len(next(iter(by_name.values()))) > 1:
        ran = ", ".join(f"{n} ({len(r)} times)" if len(r) > 1 else n for n, r in by_name.items())
        missing |= dict.fromkeys(_OF_A_BENCHMARK, f"db_bench ran {ran}; select one by its name")
    return Report({**values, "wall_s": Measured(wall_s, "s")}, missing)


def _benchmarks(text: str) -> Iterator[tuple[str, _Benchmark]]:
    printed = Printed("db_bench", text)
    current: _Benchmark | None = None
    histogram = False
    for line in text.splitlines():
        if match := _LINE.match(line):
            values = {"latency_mean": Measured(printed.number(match["micros"], "micros/op"), "us")}
            if match["ops"]:
                values["ops_per_s"] = Measured(printed.number(match["ops"], "ops/sec"), "1/s")
            if match["mb"]:
                values["bandwidth"] = Measured(printed.number(match["mb"], "MB/s"), "MiB/s")
            current = _Benchmark(values, [])
            histogram = False
            yield match["name"], current
        elif match := _NO_OPERATION.match(line):
            current = _Benchmark({}, [])
            yield match[1], current
        elif _AGAIN.match(line):
            current = None
        elif _HISTOGRAM.match(line):
            histogram = True
        elif current is not None and histogram and _PERCENTILE_LINE.match(line):
            histogram = False
            current.histograms.append(
                {
                    f"latency_{_PERCENTILES[name]}": Measured(printed.number(value, name), "us")
                    for name, value in _PERCENTILE.findall(line)
                    if name in _PERCENTILES
                }
            )


def operations(command: str) -> list[JobSpec] | None:
    """None: a command line does not determine a database's file accesses."""
    return None
