"""Metric readers: recorded logs, complete or truncated, become tables on the clock of the run."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock import testing
from penstock.archive.bundle import Bundle
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.plugins import METRIC_READERS
from penstock.workload import metrics
from penstock.workload.execution_waves import (
    Executor,
    Sensitivity,
    sensitivity,
    slots_at,
    stragglers,
    waves,
)
from penstock.workload.metrics.compressed import Lines

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"


def test_waves_and_what_latency_costs_are_those_of_the_published_runs() -> None:
    # IOStack deliverable 2.1: 16 slots; tasks (for TPC-DS: waves), run time
    published = [
        (sensitivity([(158, 16)], 218.96), 10, 21.90, 0.010),
        (sensitivity([(1280, 16)], 180.87), 80, 2.261, 0.080),
        (Sensitivity(6584, 2376.33), 6584, 0.3609, 6.584),
    ]
    for actual, count, wave_s, cost_s in published:
        assert actual.waves == count
        assert actual.mean_wave_s == pytest.approx(
            wave_s, abs=0.5 * 10 ** -(3 if wave_s < 1 else 2)
        )
        assert actual.longer_s(1.0) == pytest.approx(cost_s)
        assert actual.longer_percent(1.0) == pytest.approx(100 * cost_s / actual.run_time_s)


def test_slots_are_those_of_live_executors() -> None:
    executors = [Executor("1", 5, 0, 100), Executor("2", 4, 50)]
    assert [slots_at(executors, t, 2) for t in (0, 50, 100)] == [2, 4, 2]
    assert [waves(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert stragglers([1, 1, 1, 1.5, 1.51]) == 1
    with pytest.raises(BadInput, match="5 tasks on 0 slots"):
        waves(5, 0)


def spark(path: Path) -> metrics.Readings:
    assert metrics.reader_of(path) == "spark"
    return metrics.read(path)


def test_tasks_and_stages_of_a_spark_log() -> None:
    readings = spark(GOLDEN / "spark-log")
    tasks, stages = readings.tables["spark_tasks"], readings.tables["spark_stages"]
    assert tasks["state"].value_counts().to_dict() == {"success": 16, "failed": 1}
    assert stages["tasks"].tolist() == [9, 3, 4]
    assert stages["failed"].tolist() == [0, 0, 1]
    assert stages["waves"].tolist() == [
        -(-n // s) for n, s in zip((9, 3, 4), stages["slots"], strict=True)
    ]
    facts = readings.facts["spark"]
    # from the time stamps of the log's events
    events = [json.loads(line) for line in (GOLDEN / "spark-log").read_text().splitlines()]
    ends = {e["Event"]: e for e in events}
    run_ms = (
        ends["SparkListenerApplicationEnd"]["Timestamp"]
        - ends["SparkListenerApplicationStart"]["Timestamp"]
    )
    assert facts["run_time_s"] == run_ms / 1000
    job_end_ms = ends["SparkListenerJobEnd"]["Completion Time"]
    assert (
        facts["post_job_s"]
        == (ends["SparkListenerApplicationEnd"]["Timestamp"] - job_end_ms) / 1000
    )
    assert facts["not_succeeded"] == {"failed ExceptionFailure": 1}
    assert facts["complete"]
    durations_s = [
        (e["Task Info"]["Finish Time"] - e["Task Info"]["Launch Time"]) / 1000
        for e in events
        if e["Event"] == "SparkListenerTaskEnd" and e["Stage ID"] == 0
    ]
    assert stages["p50_s"][0] == pytest.approx(np.quantile(durations_s, 0.5))
    assert stages["most_s"][0] == max(durations_s)
    running = readings.samples[readings.samples["entity"] == "all"]
    assert running["value"].iloc[-1] == 0
    launch_ns, finish_ns = (tasks[c].to_numpy(np.int64) for c in ("utc_launch_ns", "utc_finish_ns"))
    expected = [((launch_ns <= t) & (t < finish_ns)).sum() for t in running["utc_ns"]]
    assert running["value"].tolist() == expected


def test_damaged_time_of_redis_is_bad_input(tmp_path: Path) -> None:
    text = "# Server\nredis_version:7.2\nserver_time_usec:1795580\x0016\nused_memory:5\n"
    (tmp_path / "info").write_text(text)
    with pytest.raises(BadInput, match="expected microseconds"):
        metrics.read(tmp_path / "info", "redis")


def redis_info(port: int, run: str, at_s: int, uptime_s: int, commands: int) -> str:
    return (
        f"# Server\nredis_version:7.2\nrun_id:{run}\ntcp_port:{port}\n"
        f"server_time_usec:{(1_700_000_000 + at_s) * 10**6}\nuptime_in_seconds:{uptime_s}\n"
        f"total_commands_processed:{commands}\n"
    )


def test_servers_of_redis_are_separate_series(tmp_path: Path) -> None:
    info = tmp_path / "info"
    # two ports of a cluster
    parts = [redis_info(7000 + n, "ab"[n], t, 50 + t, 9 * n + t) for t in (0, 1) for n in (0, 1)]
    info.write_text("".join(parts))
    commands = metrics.read(info).samples.query("metric == 'total_commands_processed'")
    assert commands.groupby("entity")["value"].apply(list).to_dict() == {
        "7000 server": [0, 1],
        "7001 server": [9, 10],
    }
    # a restart
    info.write_text(redis_info(6379, "a", 0, 50, 9) + redis_info(6379, "b", 9, 8, 1))
    assert set(metrics.read(info).samples["entity"]) == {"server"}


@pytest.mark.parametrize(
    "readings",
    [
        [("a", 0, 50), ("b", 0, 90), ("a", 1, 51)],
        [("a", 0, 50), ("a", 9, 59), ("b", 10, 90)],
        [("a", 0, 50), ("b", 0, 90)],
    ],
)
def test_servers_of_redis_on_one_port_are_refused(
    readings: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    parts = [redis_info(6379, run, at_s, uptime_s, 5) for run, at_s, uptime_s in readings]
    (tmp_path / "info").write_text("".join(parts))
    with pytest.raises(BadInput, match="found readings of several servers on port 6379"):
        metrics.read(tmp_path / "info")


@pytest.mark.parametrize("rows", ["", "2426-11-25T04:26:02Z,1,tin,5\n"])
def test_empty_and_out_of_range_tables_of_postgresql(rows: str, tmp_path: Path) -> None:
    header = "time,numbackends,datname,xact_commit,blks_hit\n"
    (tmp_path / "view.csv").write_text(header + rows)
    with pytest.raises(BadInput, match=r"without rows|Out of bounds"):
        metrics.read(tmp_path / "view.csv", "postgresql")


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_compressed_spark_logs_complete_and_truncated(codec: str, tmp_path: Path) -> None:
    complete = spark(GOLDEN / f"spark.{codec}")
    assert complete.facts["spark"]["tasks"] == 16
    assert complete.facts["spark"]["complete"]
    content = (GOLDEN / f"spark.{codec}").read_bytes()
    task_counts = set()
    for share in (0.35, 0.6, 0.8, 0.99):
        path = tmp_path / f"cut-{share}.{codec}"
        path.write_bytes(content[: int(share * len(content))])
        truncated = metrics.read(path, "spark")
        assert not truncated.facts["spark"]["complete"]
        assert any("has not ended" in note for note in truncated.notes)
        task_counts.add(truncated.facts["spark"]["tasks"])
    assert max(task_counts) <= 16


def test_gzipped_rolled_and_growing_logs(tmp_path: Path) -> None:
    lines = (GOLDEN / "spark-log").read_bytes().splitlines(keepends=True)
    zipped = tmp_path / "log.gz"
    zipped.write_bytes(gzip.compress(b"".join(lines)))
    rolled = tmp_path / "eventlog_v2_app-1"
    rolled.mkdir()
    (rolled / "appstatus_app-1").touch()
    for number, part in enumerate((lines[:20], lines[20:40], lines[40:]), 1):
        (rolled / f"events_{number}_app-1").write_bytes(b"".join(part))
    plain = spark(GOLDEN / "spark-log")
    for path in (zipped, rolled):
        readings = spark(path)
        pd.testing.assert_frame_equal(readings.tables["spark_tasks"], plain.tables["spark_tasks"])
        pd.testing.assert_frame_equal(readings.samples, plain.samples)
    (rolled / "events_2_app-1").unlink()
    assert any("parts of the rolled log are missing" in note for note in spark(rolled).notes)
    growing = tmp_path / "growing"
    started = next(i for i, line in enumerate(lines) if b"TaskStart" in line) + 1
    growing.write_bytes(b"".join(lines[:started]) + lines[started][:50])
    readings = spark(growing)
    assert any("is cut" in note for note in readings.notes)
    assert (readings.tables["spark_tasks"]["state"] == "running").any()
    broken = tmp_path / "broken"
    broken.write_bytes(b"".join(lines[:30]) + b'{"Event":"SparkListenerTaskEnd",\n' + lines[31])
    with pytest.raises(BadInput, match=r"broken:31: found no JSON"):
        metrics.read(broken)


def test_damaged_blocks_are_bad_input(tmp_path: Path) -> None:
    content = bytearray((GOLDEN / "spark.lz4").read_bytes())
    content[13:17] = (1 << 30).to_bytes(4, "little")  # the first block claims a GiB
    (tmp_path / "bomb.lz4").write_bytes(content)
    with pytest.raises(BadInput, match="damaged block"):
        list(Lines(tmp_path / "bomb.lz4"))


def run_bundle(path: Path) -> Path:
    """A run whose monotonic clock is UTC less 1,000 s."""
    with Bundle.create(path, {"run_id": "r001"}) as bundle:
        row = {"boottime_ns": 0, "offset_ns": 0, "offset_bound_ns": 0}
        clocks = [row | {"point": "start", "monotonic_ns": 5, "realtime_ns": 1_000_000_000_005}]
        bundle.write_table("clocks", pa.Table.from_pylist(clocks))
        sample = {"t_ns": 7, "source": "cpu", "entity": "all", "metric": "busy", "unit": "%"}
        bundle.write_table(
            "samples", pa.Table.from_pylist([sample | {"value": 3.0, "cumulative": False}])
        )
    return path


def test_imported_log_uses_the_clock_of_its_run(tmp_path: Path) -> None:
    run = run_bundle(tmp_path / "run")
    argv = [
        "import",
        str(GOLDEN / "spark-log"),
        "-o",
        str(tmp_path / "B"),
        "--with",
        str(run),
        "--json",
    ]
    result = CliRunner().invoke(_build(), argv)
    assert result.exit_code == 0, result.output
    bundle = Bundle.open(tmp_path / "B")
    samples = bundle.table("samples").to_pandas()
    assert set(samples["source"].astype(str)) == {"cpu", "spark"}
    logged = spark(GOLDEN / "spark-log")
    from_log = samples[samples["source"].astype(str) == "spark"]
    assert from_log["t_ns"].min() == logged.samples["utc_ns"].min() - 1_000_000_000_000
    launched = bundle.table("spark_tasks").to_pandas()["launch_ns"]
    assert launched.min() == logged.tables["spark_tasks"]["utc_launch_ns"].min() - 1_000_000_000_000
    assert bundle.manifest["imported"][0]["spark"]["tasks"] == 16
    target = tmp_path / "cdf.svg"
    plot = CliRunner().invoke(
        _build(), ["plot", str(tmp_path / "B"), "cdf", "--table", "spark_tasks", "-o", str(target)]
    )
    assert plot.exit_code == 0, plot.output


def sar() -> bytes:
    return (GOLDEN / "sar.json").read_bytes()


def test_records_of_sar() -> None:
    readings = metrics.read(GOLDEN / "sar.json")
    records = json.loads(sar())["sysstat"]["hosts"][0]["statistics"]
    vda = readings.samples.query("entity == 'vda' and metric == 'rkB'")
    assert vda["value"].tolist() == [r["disk"][0]["rkB"] for r in records]
    # 80 sectors of 512 bytes are 40 of sar's kilobytes
    assert set(vda["unit"]) == {"KiB/s"}
    idle = readings.samples.query("source == 'sar cpu-load' and metric == 'idle'")
    assert set(idle["unit"]) == {"%"}
    assert np.diff(idle["utc_ns"]).tolist() == [1_000_000_000] * (len(records) - 1)
    stamp = records[0]["timestamp"]
    first = pd.Timestamp(f"{stamp['date']}T{stamp['time']}Z")
    assert idle["utc_ns"].iloc[0] == first.as_unit("ns").value


def test_readings_of_redis() -> None:
    readings = metrics.read(GOLDEN / "redis-info.txt")
    assert readings.facts["readings"] == 4
    commands = readings.samples.query("metric == 'total_commands_processed'")
    assert commands["cumulative"].all()
    assert (np.diff(commands["value"]) > 4000).all()
    used = readings.samples.query("metric == 'used_memory'")
    assert set(used["unit"]) == {"B"}
    assert not used["cumulative"].any()
    assert "cmdstat_get" in set(readings.samples["entity"])
    # a size, which as a counter would be shown as a rate of 0
    memory = readings.samples.query("metric == 'total_system_memory'")
    assert len(memory) == 4
    assert not memory["cumulative"].any()


def test_statistics_of_postgresql() -> None:
    readings = metrics.read(GOLDEN / "pg-database.csv")
    assert readings.facts == {"view": "pg_stat_database", "readings": 4}
    commits = readings.samples.query("entity == 'postgres' and metric == 'xact_commit'")
    assert (np.diff(commits["value"]) > 0).all()
    assert commits["cumulative"].all()
    assert not readings.samples.query("metric == 'numbackends'")["cumulative"].any()
    assert set(readings.samples.query("metric == 'blk_read_time'")["unit"]) == {"ms"}
    for view, name in (
        ("pg-bgwriter", "pg_stat_bgwriter"),
        ("pg-tables", "pg_stat_tables"),
        ("pg-wal", "pg_stat_wal"),
    ):
        assert metrics.read(GOLDEN / f"{view}.csv").facts["view"] == name


PG_TIMES = ("2026-11-25 04:26:02.5+00", "2026-11-25 04:26:03.5+00")
PG_FUNCTIONS = "time,funcid,schemaname,funcname,calls,total_time,self_time"
PG_TABLES = "time,relid,schemaname,relname,seq_scan,seq_tup_read,n_tup_ins"
PG_STATEMENTS = "time,userid,dbid,toplevel,queryid,query,calls,rows"


@pytest.mark.parametrize(
    ("header", "rows", "entities"),
    [
        # overloaded functions
        (PG_FUNCTIONS, ["7,public,f,5,1,1", "8,public,f,900,2,2"], ["public.f 7", "public.f 8"]),
        # a statement at the top level and within a function; its id does not fit a float
        (
            PG_STATEMENTS,
            ["10,5,t,-1234567890123456789,q,5,5", "10,5,f,-1234567890123456789,q,90,90"],
            ["10.5.-1234567890123456789 t", "10.5.-1234567890123456789 f"],
        ),
        (PG_TABLES, ["16384,public,null,5,5,5"], ["public.null"]),
    ],
)
def test_objects_of_postgresql_with_one_name_are_separate(
    header: str, rows: list[str], entities: list[str], tmp_path: Path
) -> None:
    lines = [header, *(f"{time},{row}" for time in PG_TIMES for row in rows)]
    (tmp_path / "view.csv").write_text("\n".join(lines) + "\n")
    readings = metrics.read(tmp_path / "view.csv")
    assert not readings.notes
    assert readings.samples["entity"].unique().tolist() == entities


def test_tables_of_several_databases_are_separate(tmp_path: Path) -> None:
    """One psql for each database appends to the same file, repeatedly."""
    times = [f"2026-11-25 04:26:0{n}+00" for n in range(4)]
    rows = [f"{time},{16384 + n % 2},public,t,{n},5,5" for n, time in enumerate(times)]
    (tmp_path / "view.csv").write_text("\n".join([PG_TABLES, *rows]) + "\n")
    scans = metrics.read(tmp_path / "view.csv").samples.query("metric == 'seq_scan'")
    assert scans.groupby("entity")["value"].apply(list).to_dict() == {
        "public.t 16384": [0, 2],
        "public.t 16385": [1, 3],
    }
    # a table that was dropped and created anew
    again = [row.replace(f",{16384 + n % 2},", f",{16384 + n // 2},") for n, row in enumerate(rows)]
    (tmp_path / "view.csv").write_text("\n".join([PG_TABLES, *again]) + "\n")
    assert set(metrics.read(tmp_path / "view.csv").samples["entity"]) == {"public.t"}
    (tmp_path / "view.csv").write_text("\n".join([PG_TABLES, *again, *again]) + "\n")
    assert set(metrics.read(tmp_path / "view.csv").samples["entity"]) == {"public.t"}


def test_statements_without_an_id_are_named(tmp_path: Path) -> None:
    """PostgreSQL hides the ids of other users' statements without the right to read them."""
    rows = ["10,5,t,77,q,5,5", "11,5,t,,<insufficient privilege>,6,6"]
    rows.append("11,5,t,,<insufficient privilege>,7,7")
    lines = [PG_STATEMENTS, *(f"{time},{row}" for time in PG_TIMES for row in rows)]
    (tmp_path / "view.csv").write_text("\n".join(lines) + "\n")
    readings = metrics.read(tmp_path / "view.csv")
    assert set(readings.samples["entity"]) == {"10.5.77"}
    assert readings.notes == ["4 rows with the time and names of other rows were skipped"]
    # a file that was appended to itself
    (tmp_path / "view.csv").write_text("\n".join([*lines, *lines]) + "\n")
    again = metrics.read(tmp_path / "view.csv")
    assert again.samples.equals(readings.samples)
    assert again.notes == [
        "6 rows that the file has several times were read once",
        "4 rows with the time and names of other rows were skipped",
    ]


def test_statistics_of_cassandra(tmp_path: Path) -> None:
    path = GOLDEN / "cassandra-nodetool.txt"
    readings = metrics.read(path)
    assert readings.facts == {"readings": 3, "failed": 0}
    # 4,099 rows were written and 1,009 read before the first reading, 2,003 and 503, 4,001 and 0 after it
    table = readings.samples.query("entity == 'bench.t'")
    assert table.query("metric == 'local_write_count'")["value"].tolist() == [4099, 6102, 10103]
    assert table.query("metric == 'local_read_count'")["value"].tolist() == [1009, 1512, 1512]
    assert table.query("metric == 'local_write_count'")["cumulative"].all()
    assert set(table.query("metric == 'space_used_total'")["unit"]) == {"B"}
    assert not table.query("metric == 'sstable_count'")["cumulative"].any()
    latency = readings.samples.query("entity == 'read' and metric == 'request_latency_p99'")
    assert latency["value"].tolist() == [4768, 4768, 4768]
    assert set(latency["unit"]) == {"us"}
    compacted = readings.samples.query("metric == 'compacted_bytes'")
    assert (compacted["value"] > 0).all()
    assert compacted["cumulative"].all()
    first = path.read_text().splitlines()[0].split(".")
    assert readings.samples["utc_ns"].iloc[0] == int(first[0]) * 10**9 + int(first[1])

    # second reading: tablestats was killed half-way, tpstats printed nothing
    lines = path.read_text().splitlines(keepends=True)
    times = [i for i, line in enumerate(lines) if re.fullmatch(r"\d{10}\.\d+\n", line)]
    tables, pools = [i for i, line in enumerate(lines) if line == "{\n" and i > times[1]][:2]
    rest = next(i for i in range(pools, len(lines)) if lines[i].startswith("concurrent"))
    truncated = tmp_path / "cut.txt"
    truncated.write_text("".join([*lines[: tables + 40], *lines[rest:]]))
    partial = metrics.read(truncated)
    assert partial.facts == {"readings": 3, "failed": 2}
    assert "2 of 12 outputs failed" in partial.notes[0]
    assert f"line {times[1] + 1}" in partial.notes[0]
    written = partial.samples.query("entity == 'bench.t' and metric == 'local_write_count'")
    assert written["value"].tolist() == [4099, 10103]

    failed = tmp_path / "nothing.txt"
    failed.write_text("1700000000.5\nnodetool: Failed to connect\n1700000001.5\n")
    with pytest.raises(BadInput, match=r"line 1: found 'nodetool: Failed to connect'"):
        metrics.read(failed, "cassandra")
    (tmp_path / "bare.json").write_text("".join(lines[1:pools]))
    with pytest.raises(BadInput, match="found no time"):
        metrics.read(tmp_path / "bare.json", "cassandra")


def test_many_failed_outputs_of_cassandra_take_a_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "nodetool"
    path.write_text("1700000000\nconcurrent compactors  4\n" + "1700000000\n{\n" * 200_000)
    began = time.process_time()
    readings = metrics.read(path, "cassandra")
    assert time.process_time() - began < 20
    assert readings.facts == {"readings": 200_001, "failed": 200_000}
    assert "(line 3: found" in readings.notes[-1]


def test_a_long_line_of_proxyhistograms_is_skipped(tmp_path: Path) -> None:
    """Fails if the time to search the line for its kinds grows with the square of its length."""
    path = tmp_path / "nodetool"
    head = "proxy histograms\nPercentile  Read Latency\n50%  5.5\nPercentile " + "a" * 500_000
    path.write_text(f"1700000000\n{head}\n95%  9.5\n")
    began = time.process_time()
    assert metrics.read(path, "cassandra").samples["value"].tolist() == [5.5, 9.5]
    assert time.process_time() - began < 5


def test_metrics_of_kube_burner(tmp_path: Path) -> None:
    documents = [
        {
            "timestamp": "2024-03-08T12:00:00Z",
            "labels": {"instance": "node-1", "mode": "user"},
            "value": 0.25,
            "uuid": "u",
            "query": "q",
            "metricName": "nodeCPU",
            "jobName": "j",
        },
        {
            "timestamp": "2024-03-08T12:00:01.5Z",
            "quantileName": "Ready",
            "P99": 3774,
            "avg": 2000,
            "metricName": "podLatencyQuantilesMeasurement",
        },
    ]
    for name, text in (
        ("a.json", json.dumps(documents)),
        ("b.json", "\n".join(json.dumps(d) for d in documents)),
    ):
        (tmp_path / name).write_text(text)
        assert metrics.reader_of(tmp_path / name) == "kube-burner"
        rows = metrics.read(tmp_path / name).samples
        assert rows["value"].tolist() == [0.25, 3774, 2000]
        assert rows["entity"].tolist() == ["node-1", "Ready", "Ready"]
        assert rows["utc_ns"].diff().iloc[1] == 1_500_000_000


def test_published_tables_with_time_stamps(tmp_path: Path) -> None:
    # the layouts of MonEx's data: a column for each label, and sequence-indexed offsets
    (tmp_path / "disk.csv").write_text(
        "timestamp,mongo-1,mongo-2\n1500000000,83.5,\n1500000001,0,67\n"
    )
    samples = metrics.read(tmp_path / "disk.csv").samples
    assert samples["utc_ns"].tolist() == [
        1_500_000_000_000_000_000,
        *[1_500_000_001_000_000_000] * 2,
    ]
    assert samples["value"].tolist() == [83.5, 0.0, 67.0]
    (tmp_path / "offsets.csv").write_text("sample,offset\n0,4096\n1,0\n")
    with pytest.raises(BadInput, match="penstock plot"):
        metrics.read(tmp_path / "offsets.csv", "csv")


DESCRIPTION = {
    "time": {"column": "ts", "unit": "ms"},
    "source": "bench",
    "entity": ["host"],
    "values": {"lat": "us", "done": "1"},
    "counters": ["done"],
}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_table_with_a_description(form: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "ts": [1700000000001, 1700000000002],
            "host": ["a", "b"],
            "lat": [1.5, 2.5],
            "done": [3, 4],
        }
    )
    path = tmp_path / f"mine.{form}"
    path.write_text(
        frame.to_csv(index=False) if form == "csv" else frame.to_json(orient="records", lines=True)
    )
    import yaml

    (tmp_path / "words.yaml").write_text(yaml.safe_dump(DESCRIPTION))
    argv = ["import", str(path), "--words", str(tmp_path / "words.yaml"), "-o", str(tmp_path / "B")]
    result = CliRunner().invoke(_build(), argv)
    assert result.exit_code == 0, result.output
    rows = Bundle.open(tmp_path / "B").table("samples").to_pandas()
    assert (
        rows["t_ns"].tolist() == [1_700_000_000_001_000_000] * 2 + [1_700_000_000_002_000_000] * 2
    )
    assert sorted(rows["value"]) == [1.5, 2.5, 3, 4]
    assert rows.set_index("metric").loc["done", "cumulative"].all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {"nothing": "s"}, "counters": []}, "found no column 'nothing'"),
        ({"time": {"column": "ts", "unit": "weeks"}}, "found time in weeks"),
        ({"time": 3}, "found time 3"),
        ({"values": {"host": "s"}, "counters": []}, "row 1: found 'a' in host"),
        ({"counters": ["lat", "x"]}, "expected some of the values"),
        ({"colour": "red"}, "found colour"),
    ],
)
def test_bad_table_descriptions(change: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("ts,host,lat,done\n1700000000001,a,1.5,3\n")
    with pytest.raises(BadInput, match=message):
        metrics.read(tmp_path / "mine.csv", "described", {**DESCRIPTION, **change})


def test_entities_of_json_lines_are_texts(tmp_path: Path) -> None:
    lines = [
        *('{"ts": 1, "host": 7, "lat": 1, "done": 1}', '{"ts": 2, "host": null, "lat": 2}'),
        *('{"ts": 3, "lat": 3}', '{"ts": 4, "host": "b", "lat": 4}'),
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines) + "\n")
    frame = metrics.read(tmp_path / "mine.jsonl", "described", DESCRIPTION).samples
    assert frame[frame["metric"] == "lat"]["entity"].tolist() == ["7", "", "", "b"]
    (tmp_path / "array.json").write_text(f"[{lines[0]}]\n")
    with pytest.raises(BadInput, match="found a JSON array; expected JSON Lines"):
        metrics.read(tmp_path / "array.json", "described", DESCRIPTION)


def test_unknown_format_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x00\x01")
    with pytest.raises(BadInput, match="found nothing known at its beginning; expected an event"):
        metrics.read(tmp_path / "x")
    with pytest.raises(BadInput, match="No such file"):
        metrics.read(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("spark", "spark-log"),
        ("sar", "sar.json"),
        ("redis", "redis-info.txt"),
        ("postgresql", "pg-database.csv"),
        ("cassandra", "cassandra-nodetool.txt"),
    ],
)
def test_readers_follow_their_protocol(name: str, file: str) -> None:
    testing.check_metric_reader(METRIC_READERS.load(name), GOLDEN / file)


def test_oversized_snappy_block_is_bad_input(tmp_path: Path) -> None:
    # the size varint exceeds the format's limit of 4 GiB
    log = tmp_path / "spark.snappy"
    block = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x7F]) + b"rest"
    head = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") * 2
    log.write_bytes(head + len(block).to_bytes(4, "big") + block)
    with pytest.raises(BadInput, match="damaged block"):
        metrics.read(log, "spark")


@pytest.mark.parametrize(
    "name", ["cassandra-nodetool.txt", "hadoop.jhist", "redis-info.txt", "spark-log", "pg-wal.csv"]
)
def test_windows_line_ends_and_byte_order_marks(name: str, tmp_path: Path) -> None:
    content = (GOLDEN / name).read_bytes()
    (tmp_path / "other").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert metrics.reader_of(tmp_path / "other") == metrics.reader_of(GOLDEN / name)
    readings, expected = metrics.read(tmp_path / "other"), metrics.read(GOLDEN / name)
    pd.testing.assert_frame_equal(readings.samples, expected.samples)
    assert readings.notes == expected.notes


def test_decimal_commas_of_cassandra(tmp_path: Path) -> None:
    text = (GOLDEN / "cassandra-nodetool.txt").read_text()
    german = re.sub(r'"(\d+)\.(\d+)"', r'"\1,\2"', text)
    assert german != text
    (tmp_path / "german.txt").write_text(german)
    expected = metrics.read(GOLDEN / "cassandra-nodetool.txt").samples
    pd.testing.assert_frame_equal(metrics.read(tmp_path / "german.txt").samples, expected)
