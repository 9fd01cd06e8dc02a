"""Reports of database benchmarks: units of each version, a single run, a single language."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import testing
from penstock.errors import PenstockError
from penstock.workload.measured import Report
from penstock.workload.parsers import parser

GOLDEN = Path(__file__).parents[1] / "golden" / "parsers"
NOWHERE = Path("/nonexistent")

PGBENCH_95 = (GOLDEN / "pgbench-9.5.txt").read_text()
PGBENCH_13 = """starting vacuum...end.
transaction type: multiple scripts
scaling factor: 1
query mode: simple
number of clients: 10
number of threads: 1
duration: 60 s
number of transactions actually processed: 14614
number of transactions skipped: 7 (0.048 %)
number of transactions above the 100.0 ms latency limit: 13/14614 (0.089 %)
latency average = 41.084 ms
latency stddev = 5.000 ms
rate limit schedule lag: avg 0.250 (max 9.500) ms
tps = 243.405840 (including connections establishing)
tps = 248.316242 (excluding connections establishing)
SQL script 1: <builtin: TPC-B (sort of)>
 - weight: 1 (targets 50.0% of total)
 - 7307 transactions (50.0% of total, tps = 121.702920)
 - latency average = 60.000 ms
"""
PGBENCH_15 = """pgbench (15.6 (Ubuntu 15.6-1.pgdg22.04+1))
starting vacuum...end.
transaction type: <builtin: TPC-B (sort of)>
number of clients: 50
maximum number of tries: 3
duration: 20 s
number of transactions actually processed: 554
number of failed transactions: 2 (0.361%)
number of transactions retried: 4 (0.722%)
total number of retries: 5
latency average = 1840.481 ms (including failures)
average connection time = 25.094 ms
tps = 27.166807 (including reconnection times)
"""
SYSBENCH_10 = """sysbench 1.0.20 (using bundled LuaJIT 2.1.0-beta2)

[ 10s ] thds: 16 tps: 530.74 qps: 10585.69 (r/w/o: 7404.27/2119.94/1061.47) lat (ms,95%): 87.56 err/s: 0.00
SQL statistics:
    queries performed:
        read:                            209210
        write:                           216928
        other:                           32278
        total:                           458416
    transactions:                        16124  (26.85 per sec.)
    queries:                             458416 (763.48 per sec.)
    ignored errors:                      76     (0.13 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          600.4331s
    total number of events:              16124

Latency (ms):
         min:                                    1.22
         avg:                                  372.35
         max:                                 3154.81
         95th percentile:                     1032.01
         sum:                              6003750.30

Threads fairness:
    events (avg/stddev):           1612.4000/33.40
    execution time (avg/stddev):   600.3750/0.04
"""
SYSBENCH_04 = """sysbench 0.4.12:  multi-threaded system evaluation benchmark

OLTP test statistics:
    queries performed:
        total:                           210000
    transactions:                        10000  (1234.56 per sec.)
    deadlocks:                           3      (0.37 per sec.)

Test execution summary:
    total time:                          8.1000s
    total number of events:              10000
    total time taken by event execution: 64.5001
    per-request statistics:
         min:                                  1.23ms
         avg:                                  6.45ms
         max:                                  0.05s
         approx.  95 percentile:              10.11ms
"""
SYSBENCH_FILEIO = """sysbench {version}
File operations:
    reads/s:                      1234.56
    writes/s:                     823.04
    fsyncs/s:                     2633.72

Throughput:
    read, MiB/s:                  19.29
    written, MiB/s:               12.86

General statistics:
    total time:                          10.0321s
    total number of events:              46952
"""
SYSBENCH_FILEIO_11 = """sysbench 1.1.0-bbee5d5
Throughput:
         read:  IOPS=12.50 0.20 MiB/s (0.21 MB/s)
         write: IOPS=22323.68 348.81 MiB/s (365.75 MB/s)
         fsync: IOPS=28574.91

Latency (ms):
         min:                                  0.00
         avg:                                  0.02
         max:                                 12.92
         95th percentile:                      0.09
         sum:                               9986.67
"""
SYSBENCH_CPU_11 = """sysbench 1.1.0-bbee5d5
CPU speed:
    events per second:   780.69

Throughput:
    events/s (eps):                      780.6922
    time elapsed:                        10.0001s
    total number of events:              7807

Latency (ms):
         95th percentile:                        1.30
"""
YCSB = """[OVERALL], RunTime(ms), 433536
[OVERALL], Throughput(ops/sec), 2306.613522291113
[TOTAL_GC_TIME_%], Time(%), 0.29317057868320046
[READ], Operations, 131740
[READ], AverageLatency(us), 835.1359571884014
[READ], MinLatency(us), 392
[READ], MaxLatency(us), 20143
[READ], 95thPercentileLatency(us), 1169
[READ], 99thPercentileLatency(us), 1734
[READ], Return=OK, 131740
[CLEANUP], Operations, 1
[CLEANUP], AverageLatency(us), 3.0
[UPDATE], Operations, 131000
[UPDATE], AverageLatency(us), 1835.5
[UPDATE], Return=OK, 131000
[UPDATE], Return=ERROR, 17
[UPDATE-FAILED], Operations, 17
[UPDATE-FAILED], AverageLatency(us), 99999.0
"""
YCSB_01 = """[OVERALL], RunTime(ms), 10110.0
[OVERALL], Throughput(ops/sec), 98.91196834817013
[UPDATE], Operations, 491
[UPDATE], AverageLatency(us), 54.989
[UPDATE], 95thPercentileLatency(ms), 2
[UPDATE], Return=0, 489
[UPDATE], Return=-1, 2
[UPDATE], 0, 464
[UPDATE], >1000, 0
"""
DB_BENCH = """Initializing RocksDB Options from the specified file
RocksDB:    version 7.9
------------------------------------------------
readrandom   :     345.503 micros/op 2894 ops/sec 34.5 seconds 100000 operations;    0.3 MB/s (9 of 9 found)

Microseconds per read:
Count: 64000000 Average: 104.0052  StdDev: 63.28
Min: 0  Median: 58.0004  Max: 10936
Percentiles: P50: 58.00 P75: 67.64 P99: 2383.08 P99.9: 2863.76 P99.99: 5866.59
------------------------------------------------------
[       0,       1 ]  1817212   2.839%   2.839% #
"""
LEVELDB = """Keys:       16 bytes each
fillseq      :       1.765 micros/op;   62.7 MB/s
readrandom   :       2.460 micros/op; (1000000 of 1000000 found)
"""
HAMMERDB_4 = "Vuser 1:TEST RESULT : System achieved 16535 NOPM from 38116 Oracle TPM\n"
HAMMERDB_3 = "Vuser 1:TEST RESULT : System achieved 76384 SQL Server TPM at 25300 NOPM\n"


def parsed(name: str, text: str, stderr: str = "") -> Report:
    report = parser(name).parse(NOWHERE, text, stderr, 9.0)
    assert isinstance(report, Report)
    assert report["wall_s"].value == 9.0
    return report


def values_of(name: str, text: str) -> dict[str, tuple[float, str]]:
    return {k: (m.value, m.unit) for k, m in parsed(name, text).items() if k != "wall_s"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pgbench", PGBENCH_95),
        ("sysbench", SYSBENCH_10),
        ("ycsb", YCSB),
        ("db_bench", DB_BENCH),
        ("hammerdb", HAMMERDB_4),
    ],
)
def test_each_parser_conforms_to_the_protocol(name: str, text: str) -> None:
    gives = set(parsed(name, text)) - {"wall_s"}
    testing.check_parser(parser(name), stdout=text, gives=gives)


def test_pgbench_before_9_6() -> None:
    values = values_of("pgbench", PGBENCH_95)
    assert values["latency_mean"] == (1.666, "ms")
    assert values["latency_stddev"] == (0.720, "ms")
    assert values["tps"] == (2401.013184, "1/s")
    assert values["tps_with_connections"] == (2400.926759, "1/s")
    assert values["duration"] == (30, "s")


def test_pgbench_13_of_several_scripts() -> None:
    values = {name: value for name, (value, _) in values_of("pgbench", PGBENCH_13).items()}
    assert (values["tps"], values["tps_with_connections"]) == (248.316242, 243.405840)
    assert (values["latency_mean"], values["transactions"]) == (41.084, 14614)
    assert (values["skipped_transactions"], values["late_transactions"]) == (7, 13)
    assert (values["schedule_lag_mean"], values["schedule_lag_max"]) == (0.25, 9.5)


def test_pgbench_15_with_a_connection_for_each_transaction() -> None:
    values = {name: value for name, (value, _) in values_of("pgbench", PGBENCH_15).items()}
    assert (values["tps"], values["failed_transactions"]) == (27.166807, 2)
    assert (values["connection_time"], values["latency_mean"]) == (25.094, 1840.481)
    assert "14" in parsed("pgbench", PGBENCH_15).missing["tps_with_connections"]


def test_pgbench_with_decimal_commas() -> None:
    text = re.sub(r"(\d)\.(\d)", r"\1,\2", PGBENCH_95)
    assert values_of("pgbench", text) == values_of("pgbench", PGBENCH_95)


@pytest.mark.parametrize(
    ("text", "stderr", "expected"),
    [
        ("tps = 100,217862 (ohne initiale Verbindungszeit)\n", "", r"LC_ALL=C"),
        ("tps = 26.6\n", "", "expected one of excluding"),
        (PGBENCH_95 * 2, "", "2 reports of pgbench"),
        (PGBENCH_15.replace("15.6", "19.1"), "", "expected PostgreSQL 9.0 to 18"),
        (PGBENCH_95 + PGBENCH_13, "", "2 reports of pgbench"),
        (
            PGBENCH_95,
            "pgbench: error: client 3 script 0 aborted in command 5 query 0: ERROR\n",
            "expected all clients to finish",
        ),
        (PGBENCH_95, "Client 0 aborted in state 8: ERROR\n", "expected all clients to finish"),
        ("latency average = 1 ms\n", "", "no 'tps"),
        (
            PGBENCH_13,
            "pgbench: error: Run was aborted; the above results are incomplete.\n",
            "expected all clients to finish",
        ),
        (PGBENCH_15.replace("554", "554/600"), "", "found 556 of 600 transactions"),
    ],
)
def test_unreadable_reports_of_pgbench_are_refused(text: str, stderr: str, expected: str) -> None:
    with pytest.raises(PenstockError, match=expected):
        parsed("pgbench", text, stderr)


def test_sysbench() -> None:
    values = values_of("sysbench", SYSBENCH_10)
    assert values["tps"] == (26.85, "1/s")
    assert values["qps"] == (763.48, "1/s")
    assert values["latency_p95"] == (1032.01, "ms")
    assert values["errors"] == (76, "errors")
    assert values["events_per_s"][0] == pytest.approx(16124 / 600.4331)
    old = values_of("sysbench", SYSBENCH_04)
    assert old["latency_mean"] == (6.45, "ms")
    assert old["latency_max"] == (0.05, "s")
    assert old["latency_p95"] == (10.11, "ms")
    assert (old["tps"], old["errors"]) == ((1234.56, "1/s"), (3, "errors"))


def test_sysbench_fileio_and_memory() -> None:
    values = values_of("sysbench", SYSBENCH_FILEIO.format(version="1.0.20"))
    assert values["read_iops"] == (1234.56, "1/s")
    assert values["fsync_iops"] == (2633.72, "1/s")
    assert values["write_bandwidth"] == (12.86, "MiB/s")
    later = values_of("sysbench", SYSBENCH_FILEIO_11)
    assert later["write_iops"] == (22323.68, "1/s")
    assert later["write_bandwidth"] == (348.81, "MiB/s")
    assert later["read_bandwidth"] == (0.20, "MiB/s")
    assert later["latency_p95"] == (0.09, "ms")
    assert "fileio" in parsed("sysbench", SYSBENCH_FILEIO_11).missing["events"]
    assert values_of("sysbench", SYSBENCH_CPU_11)["events_per_s"] == (780.6922, "1/s")
    memory = "1024.00 MiB transferred (5361.20 MiB/sec)\n total number of events: 1048576\n"
    assert values_of("sysbench", memory)["memory_bandwidth"] == (5361.20, "MiB/s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SYSBENCH_FILEIO.format(version="2.0.1"), r"sysbench 2\.0; expected sysbench 0\.4"),
        (SYSBENCH_10 * 2, "2 reports of sysbench"),
        (SYSBENCH_FILEIO_11 * 2, "2 reports of sysbench"),
        ("[ 30s ] Checkpoint report:\n" + SYSBENCH_10, "no --report-checkpoints"),
        (SYSBENCH_10.replace("1.22", "1,220"), "1,220' as latency_min of sysbench"),
        ("sysbench 1.0.20\nFATAL: error\n", "no 'total number of events:'"),
    ],
)
def test_unreadable_reports_of_sysbench_are_refused(text: str, expected: str) -> None:
    if "1,220" in text:
        text = "total number of events: 5\n min:    1,220\n"
    with pytest.raises(PenstockError, match=expected):
        parsed("sysbench", text)


def test_ycsb() -> None:
    values = values_of("ycsb", YCSB)
    assert values["throughput"] == (2306.613522291113, "1/s")
    assert values["run_time"] == (433.536, "s")
    assert values["read_p99_latency"] == (1734, "us")
    assert values["update_mean_latency"] == (1835.5, "us")
    assert values["operations"] == (262740, "operations")
    assert values["update_failed_operations"] == (17, "operations")
    assert values["failed_operations"] == (17, "operations")


def test_operations_in_batches_of_ycsb_are_no_failures() -> None:
    values = values_of("ycsb", YCSB.replace("[READ], Return=OK", "[READ], Return=BATCHED_OK"))
    assert "read_failed_operations" not in values
    assert values["failed_operations"] == (17, "operations")


def test_ycsb_has_a_unit_for_each_metric() -> None:
    values = values_of("ycsb", YCSB_01)
    assert values["update_mean_latency"] == (54.989, "us")
    assert values["update_p95_latency"] == (2, "ms")
    assert values["failed_operations"] == (2, "operations")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (YCSB + YCSB, "2 reports of YCSB"),
        ("YCSB Client 1.0.0\n" + YCSB, "YCSB Client 1.0; expected YCSB 0.1 to 0.18"),
        (
            "READ   - Takes(s): 10.0, Count: 12345, OPS: 1234.5, Avg(us): 800\n",
            "go-ycsb; expected one of YCSB",
        ),
        ('{"metric":"OVERALL","measurement":"RunTime(ms)","value":123}', "JSON report of YCSB"),
        (YCSB.replace("AverageLatency(us)", "AverageLatency(hours)"), "latency in us, ms or ns"),
        ("[OVERALL], RunTime(ms), 5\n", "no '"),
        (YCSB.replace("433536", "433,536"), "433,536' as RunTime"),
        (
            "java.lang.Exception: init\n[OVERALL], RunTime(ms), 66\n[OVERALL], Throughput(ops/sec), 0.0\n",
            "without operations",
        ),
    ],
)
def test_unreadable_reports_of_ycsb_are_refused(text: str, expected: str) -> None:
    with pytest.raises(PenstockError, match=re.escape(expected)):
        parsed("ycsb", text)


def test_db_bench() -> None:
    values = values_of("db_bench", DB_BENCH)
    assert values["latency_mean"] == values["readrandom_latency_mean"] == (345.503, "us")
    assert values["ops_per_s"] == (2894, "1/s")
    assert values["bandwidth"] == (0.3, "MiB/s")
    assert values["readrandom_latency_p999"] == (2863.76, "us")


def test_several_benchmarks_have_their_own_names() -> None:
    report = parsed("db_bench", LEVELDB)
    assert report["fillseq_bandwidth"].value == 62.7
    assert report["readrandom_latency_mean"].value == 2.46
    assert "latency_mean" not in report
    assert report.missing["latency_mean"].startswith("db_bench ran fillseq, readrandom")
    twice = parsed("db_bench", LEVELDB + LEVELDB.splitlines(keepends=True)[1])
    assert "fillseq_bandwidth" not in twice
    assert "2 times" in twice.missing["fillseq_bandwidth"]
    assert twice["readrandom_latency_mean"].value == 2.46


def test_a_benchmark_without_an_operation_is_one_of_several() -> None:
    values = parsed("db_bench", LEVELDB.replace("2.460", "-nan"))
    assert values["fillseq_bandwidth"].value == 62.7
    assert "bandwidth" not in values
    assert values.missing["bandwidth"].startswith("db_bench ran fillseq, readrandom")


def test_pgbench_counts_failures_towards_its_transactions() -> None:
    assert parsed("pgbench", PGBENCH_15.replace("554", "554/556"))["transactions"].value == 554


CUT_REPORTS = [
    *(("pgbench", text) for text in (PGBENCH_95, PGBENCH_13, PGBENCH_15)),
    *(
        ("sysbench", text)
        for text in (SYSBENCH_10, SYSBENCH_04, SYSBENCH_FILEIO_11, SYSBENCH_CPU_11)
    ),
    *(("ycsb", text) for text in (YCSB, YCSB_01)),
    ("db_bench", DB_BENCH),
    *(("hammerdb", text) for text in (HAMMERDB_4, HAMMERDB_3)),
]


@pytest.mark.parametrize(("name", "text"), CUT_REPORTS)
def test_a_cut_report_has_no_wrong_value(name: str, text: str) -> None:
    """A cut report has values of the complete one or none; totals cover the lines present."""
    expected = values_of(name, text)
    for end in range(len(text)):
        try:
            values = values_of(name, text[:end])
        except PenstockError:
            continue
        totals = {"operations", "failed_operations"}
        assert {k: v for k, v in values.items() if k not in totals}.items() <= expected.items(), end


def test_histograms_of_several_operations_are_ignored() -> None:
    both = DB_BENCH + DB_BENCH[DB_BENCH.index("Microseconds") :].replace("per read", "per write")
    report = parsed("db_bench", both)
    assert report["latency_mean"].value == 345.503
    assert "latency_p99" not in report
    with pytest.raises(PenstockError, match="micros/op"):
        parsed("db_bench", "db_bench: unknown option\n")


@pytest.mark.parametrize(
    ("text", "nopm", "tpm"), [(HAMMERDB_4, 16535, 38116), (HAMMERDB_3, 25300, 76384)]
)
def test_hammerdb(text: str, nopm: float, tpm: float) -> None:
    assert values_of("hammerdb", text) == {"nopm": (nopm, "1/min"), "tpm": (tpm, "1/min")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HAMMERDB_3 + HAMMERDB_4, "2 reports of HammerDB"),
        ("Vuser 1:Completed 1 query set(s) in 57 seconds\n", "TPROC-H; expected one of TPROC-C"),
        ("Vuser 1:TEST RESULT : something else\n", "no 'TEST RESULT"),
        (HAMMERDB_4.replace("16535", "16,535"), "16,535' as nopm"),
        ("HammerDB CLI v6.0\n" + HAMMERDB_4, "HammerDB CLI v6; expected HammerDB 2 to 5"),
        ("Vuser 2:FINISHED FAILED\n" + HAMMERDB_4, "expected all virtual users to succeed"),
    ],
)
def test_unreadable_reports_of_hammerdb_are_refused(text: str, expected: str) -> None:
    with pytest.raises(PenstockError, match=re.escape(expected)):
        parsed("hammerdb", text)
