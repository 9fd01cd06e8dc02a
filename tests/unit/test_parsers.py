"""Parsers of the reports and command lines of programs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.plugins import WORKLOAD_PARSERS
from penstock.spec.study import Response, ResponseSource
from penstock.workload.parsers import fio, parser, pgbench
from penstock.workload.responses import measure

PGBENCH = """transaction type: <builtin: TPC-B (sort of)>
number of clients: 4
number of transactions actually processed: 1000
number of failed transactions: 0 (0.000%)
latency average = 39.913 ms
initial connection time = 5.226 ms
tps = 100.217862 (without initial connection time)
"""


def part(count: int, bins: dict[str, int], runtime: int = 2000) -> dict:
    mean = sum(int(b) * n for b, n in bins.items()) / max(1, count)
    return {
        "io_bytes": count * 4096,
        "bw_bytes": 0,
        "iops": 0.0,
        "runtime": runtime,
        "total_ios": count,
        "clat_ns": {"min": 1, "max": 9, "mean": mean, "N": count, "bins": bins},
    }


def report(*jobs: dict) -> dict:
    empty = {"io_bytes": 0, "bw_bytes": 0, "iops": 0.0, "runtime": 0, "total_ios": 0}
    rows = [
        {"jobname": "a", "error": 0, "read": j, "write": {**empty, "clat_ns": {"N": 0}}, "sync": {}}
        for j in jobs
    ]
    return {"fio version": "fio-3.33", "jobs": rows}


def test_jobs_of_fio_are_merged():
    jobs = report(part(99, {"100": 99}), part(1, {"900": 1}, runtime=4000))
    measured = fio.parse(Path("/nowhere"), "fio: a note\n" + json.dumps(jobs), "", 4.0)
    assert measured["read_bytes"].value == 100 * 4096
    assert measured["read_bandwidth"].value == pytest.approx(100 * 4096 / 4)
    assert measured["read_p50_latency"].value == 100
    assert measured["read_p99_latency"].value == 100
    assert measured["read_p999_latency"].value == 900
    assert measured["read_mean_latency"].value == pytest.approx(108)
    assert "write_p50_latency" not in measured
    assert set(measured) - {"wall_s"} <= set(fio.RESPONSES)


def test_fio_report_in_the_run_directory(tmp_path):
    (tmp_path / "claims.json").write_text("[]")
    (tmp_path / "out.json").write_text(json.dumps(report(part(5, {"7": 5}))))
    assert fio.parse(tmp_path, "", "", 1.0)["read_requests"].value == 5


def test_fio_errors_are_reported():
    with pytest.raises(PenstockError, match="json"):
        fio.parse(Path("/nowhere"), "no report", "", 1.0)
    broken = report(part(5, {"7": 5}))
    broken["jobs"][0]["error"] = 5
    with pytest.raises(PenstockError, match="error 5"):
        fio.parse(Path("/nowhere"), json.dumps(broken), "", 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"read": 5},
        {"read": {"io_bytes": [], "total_ios": 1}},
        {"read": {"clat_ns": {"N": 1, "mean": "fast"}}},
        {"read": {"clat_ns": {"N": 1 << 53, "mean": "a"}}},
        {"read": {"clat_ns": {"N": 1, "mean": 1, "min": 1, "max": 1, "bins": {"a": 1}}}},
        {"sync": {"lat_ns": 3}},
        {"usr_cpu": {}},
        {"usr_cpu": float("nan")},
        {"read": {"clat_ns": {"N": 2, "mean": 1e308, "min": 1, "max": 1}}},
    ],
)
def test_malformed_fio_reports_are_refused(changes):
    bad = report(part(9, {"100": 9}))
    bad["jobs"][0] |= changes
    with pytest.raises(PenstockError, match="not as fio writes it"):
        fio.parse(Path("/nowhere"), json.dumps(bad), "", 4.0)


def test_deeply_nested_report_is_refused():
    with pytest.raises(PenstockError, match="no JSON report"):
        fio.parse(Path("/nowhere"), "{" + '"a": [' * 100_000, "", 4.0)


def test_fio_command_line():
    (job,) = (
        fio.operations(
            "fio --name=access --directory=/data --rw=randread --bs=128k --numjobs=8 --iodepth 4 "
            "--direct=1 --size=64m --runtime=2 --output=/x/fio.json 2>/dev/null && sync"
        )
        or []
    )
    assert (job.rw, job.bs_bytes, job.numjobs, job.iodepth) == ("randread", 131072, 8, 4)
    assert (job.direct, job.size_bytes, job.runtime_s, job.random) == (True, 64 << 20, 2.0, True)
    assert job.direction == "read"


def test_switches_of_fio_with_a_separate_value():
    jobs = fio.operations(
        "fio --name=a --direct 0 --end_fsync 1 --name=b --direct 1 --name=c --direct"
    )
    switches = [(job.direct, job.end_fsync) for job in jobs or []]
    assert switches == [(False, True), (True, False), (True, False)]


def test_fio_options_before_the_first_name_are_global():
    jobs = fio.operations("fio --bs=4ki --name=a --rw write --name=b --bs=1m; fio --name=c") or []
    assert [(j.name, j.rw, j.bs_bytes) for j in jobs] == [
        ("a", "write", 4000),
        ("b", "read", 1 << 20),
        ("c", "read", 4096),
    ]


def test_fio_options_without_a_value_do_not_take_the_next_one():
    jobs = (
        fio.operations("fio --name=a --rw=read --stonewall --name=b --rw=write --stonewall") or []
    )
    assert [(j.name, j.rw, j.beyond) for j in jobs] == [
        ("a", "read", ()),
        ("b", "write", ("stonewall",)),
    ]


@pytest.mark.parametrize(
    ("options", "bytes_", "beyond"),
    [
        ("--rw=write --bs=4k,64k", 65536, ()),
        ("--rw=read --bs=,64k", 4096, ()),
        ("--rw=write --bs=8k,", 4096, ()),
        ("--rw=randrw --bs=4k,64k", 4096, ("bs",)),
        ("--rw=randread:8", 4096, ("rw",)),
        ("--rw=randtrim", 4096, ("rw",)),
        ("--rate=10m --thinktime=0 --loops=1", 4096, ("rate",)),
        (
            "--random_distribution=zipf:1.2 --ioengine=mmap",
            4096,
            ("random_distribution", "ioengine"),
        ),
        ("--size=10% --norandommap --timeout=5", 4096, ("size",)),
    ],
)
def test_fio_options_beyond_the_fields_of_a_job(
    options: str, bytes_: int, beyond: tuple[str, ...]
) -> None:
    (job,) = fio.operations(f"fio --name=a {options}") or []
    assert (job.bs_bytes, job.beyond) == (bytes_, beyond)


def test_amount_and_synchronous_writes_of_fio():
    (job,) = (
        fio.operations("fio --name=a --rw=write --size=1g --io_size=4g --sync=1 --buffered=0") or []
    )
    assert (job.size_bytes, job.io_bytes, job.fsync, job.direct) == (1 << 30, 4 << 30, 1, True)
    assert [j.call for j in fio.operations("fio --name=a --name=b; fio --name=c") or []] == [
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    "command",
    [
        "dd if=/dev/zero",
        "fio job.fio",
        "fio --name=a --bs=$BS",
        "fio --name=a --bsrange=1k-4k",
        "fio --name=a --bs=,",
        "'",
    ],
)
def test_unknown_command_lines_have_no_operations(command: str):
    assert fio.operations(command) is None


def test_pgbench_needs_complete_numbers():
    with pytest.raises(PenstockError, match="printed no 'tps"):
        pgbench.parse(Path("/nowhere"), "tps = . (without initial connection time)", "", 1.0)


def test_pgbench():
    measured = pgbench.parse(Path(), PGBENCH, "", 10.0)
    assert measured["tps"].value == pytest.approx(100.217862)
    assert (measured["latency_mean"].value, measured["latency_mean"].unit) == (39.913, "ms")
    assert measured["transactions"].value == 1000
    with pytest.raises(PenstockError, match="tps"):
        pgbench.parse(Path(), "FATAL", "", 1.0)
    with pytest.raises(PenstockError, match="found 2 reports of pgbench; expected one"):
        pgbench.parse(Path(), PGBENCH + PGBENCH, "", 10.0)


def response(unit: str, **source: str) -> Response:
    return Response(name="r", source=ResponseSource(**source), unit=unit, better="lower")


def test_responses_of_any_program(tmp_path):
    (tmp_path / "out.json").write_text('{"rows": [{"n": 3}]}')
    kinds = [
        (response("ms", kind="key", key="wall_s"), 1500.0),
        (response("MiB/s", kind="regex", expression=r"rate: ([0-9.]+)"), 2.5),
        (response("rows", kind="json", expression="rows.0.n", file="out.json"), 3.0),
    ]
    for r, value in kinds:
        measured = measure([r], "none", tmp_path, "rate: 1\nrate: 2.5\n", "", 1.5)["r"]
        assert (measured.value, measured.unit) == (pytest.approx(value), r.unit)


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "regex", "expression": "x ([0-9]+)"},
        {"kind": "regex", "expression": "(rate)"},
        {"kind": "json", "expression": "a.b", "file": "out.json"},
        {"kind": "json", "expression": "a", "file": "none.json"},
    ],
)
def test_missing_responses_are_errors(tmp_path, source):
    (tmp_path / "out.json").write_text('{"a": {}}')
    with pytest.raises(PenstockError, match="response r"):
        measure([response("s", **source)], "none", tmp_path, "rate: 1", "", 1.0)


def test_every_parser_declares_units():
    from penstock.spec.units import parse_unit

    for name in WORKLOAD_PARSERS:
        assert all(parse_unit(u) for u in parser(name).RESPONSES.values())


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("sysbench", "    total number of events:   5\n"),
        ("ycsb", "[OVERALL], Throughput(ops/sec), 5.5\n"),
    ],
)
def test_blank_lines_of_a_report_take_a_linear_time(name: str, report: str):
    began = time.process_time()
    parser(name).parse(Path("/nowhere"), " \n" * 200_000 + report, "", 1.0)
    assert time.process_time() - began < 10
