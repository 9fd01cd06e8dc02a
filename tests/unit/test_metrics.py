"""Metrics of programs: real logs to tables by known rules, whole or cut, on the clock of their run."""

from __future__ import annotations

import gzip
import json
import re
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
    # IOStack deliverable 2.1: 16 slots; tasks (of TPC-DS the waves themselves), run time
    published = [
        (sensitivity([(158, 16)], 218.96), 10, 21.90, 0.010),
        (sensitivity([(1280, 16)], 180.87), 80, 2.261, 0.080),
        (Sensitivity(6584, 2376.33), 6584, 0.3609, 6.584),
    ]
    for found, count, wave_s, cost_s in published:
        assert found.waves == count
        assert found.mean_wave_s == pytest.approx(wave_s, abs=0.5 * 10 ** -(3 if wave_s < 1 else 2))
        assert found.longer_s(1.0) == pytest.approx(cost_s)
        assert found.longer_percent(1.0) == pytest.approx(100 * cost_s / found.run_time_s)


def test_slots_are_those_of_executors_that_are_there() -> None:
    executors = [Executor("1", 5, 0, 100), Executor("2", 4, 50)]
    assert [slots_at(executors, t, 2) for t in (0, 50, 100)] == [2, 4, 2]
    assert [waves(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert stragglers([1, 1, 1, 1.5, 1.51]) == 1
    with pytest.raises(BadInput, match="5 tasks on 0 slots"):
        waves(5, 0)


def spark(path: Path) -> metrics.Readings:
    assert metrics.reader_of(path) == "spark"
    return metrics.read(path)


def test_a_real_spark_log_gives_its_tasks_and_stages() -> None:
    found = spark(GOLDEN / "spark-log")
    tasks, stages = found.tables["spark_tasks"], found.tables["spark_stages"]
    assert tasks["state"].value_counts().to_dict() == {"success": 16, "failed": 1}
    assert stages["tasks"].tolist() == [9, 3, 4]
    assert stages["failed"].tolist() == [0, 0, 1]
    assert stages["waves"].tolist() == [
        -(-n // s) for n, s in zip((9, 3, 4), stages["slots"], strict=True)
    ]
    facts = found.facts["spark"]
    # by hand from the log: the time stamps of its events
    events = [json.loads(line) for line in (GOLDEN / "spark-log").read_text().splitlines()]
    ends = {e["Event"]: e for e in events}
    run_ms = (
        ends["SparkListenerApplicationEnd"]["Timestamp"]
        - ends["SparkListenerApplicationStart"]["Timestamp"]
    )
    assert facts["run_time_s"] == run_ms / 1000
    last = ends["SparkListenerJobEnd"]["Completion Time"]
    assert facts["post_job_s"] == (ends["SparkListenerApplicationEnd"]["Timestamp"] - last) / 1000
    assert facts["not_succeeded"] == {"failed ExceptionFailure": 1}
    assert facts["complete"]
    first = [
        (e["Task Info"]["Finish Time"] - e["Task Info"]["Launch Time"]) / 1000
        for e in events
        if e["Event"] == "SparkListenerTaskEnd" and e["Stage ID"] == 0
    ]
    assert stages["p50_s"][0] == pytest.approx(np.quantile(first, 0.5))
    assert stages["most_s"][0] == max(first)
    running = found.samples[found.samples["entity"] == "all"]
    assert running["value"].iloc[-1] == 0
    begun, ended = (tasks[c].to_numpy(np.int64) for c in ("utc_launch_ns", "utc_finish_ns"))
    counted = [((begun <= t) & (t < ended)).sum() for t in running["utc_ns"]]
    assert running["value"].tolist() == counted


def test_a_damaged_time_of_redis_is_bad_input(tmp_path: Path) -> None:
    text = "# Server\nredis_version:7.2\nserver_time_usec:1795580\x0016\nused_memory:5\n"
    (tmp_path / "info").write_text(text)
    with pytest.raises(BadInput, match="expected microseconds"):
        metrics.read(tmp_path / "info", "redis")


@pytest.mark.parametrize("rows", ["", "2426-11-25T04:26:02Z,1,tin,5\n"])
def test_no_rows_and_a_far_year_of_postgresql_are_bad_input(rows: str, tmp_path: Path) -> None:
    header = "time,numbackends,datname,xact_commit,blks_hit\n"
    (tmp_path / "view.csv").write_text(header + rows)
    with pytest.raises(BadInput, match=r"without rows|Out of bounds"):
        metrics.read(tmp_path / "view.csv", "postgresql")


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_logs_that_spark_compressed_are_read_whole_and_cut(codec: str, tmp_path: Path) -> None:
    whole = spark(GOLDEN / f"spark.{codec}")
    assert whole.facts["spark"]["tasks"] == 16
    assert whole.facts["spark"]["complete"]
    content = (GOLDEN / f"spark.{codec}").read_bytes()
    seen = set()
    for share in (0.35, 0.6, 0.8, 0.99):
        cut = tmp_path / f"cut-{share}.{codec}"
        cut.write_bytes(content[: int(share * len(content))])
        found = metrics.read(cut, "spark")
        assert not found.facts["spark"]["complete"]
        assert any("has not ended" in note for note in found.notes)
        seen.add(found.facts["spark"]["tasks"])
    assert max(seen) <= 16


def test_a_gzipped_a_rolled_and_a_growing_log(tmp_path: Path) -> None:
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
        found = spark(path)
        pd.testing.assert_frame_equal(found.tables["spark_tasks"], plain.tables["spark_tasks"])
        pd.testing.assert_frame_equal(found.samples, plain.samples)
    (rolled / "events_2_app-1").unlink()
    assert any("parts of the rolled log are missing" in note for note in spark(rolled).notes)
    growing = tmp_path / "growing"
    begun = next(i for i, line in enumerate(lines) if b"TaskStart" in line) + 1
    growing.write_bytes(b"".join(lines[:begun]) + lines[begun][:50])
    found = spark(growing)
    assert any("is cut" in note for note in found.notes)
    assert (found.tables["spark_tasks"]["state"] == "running").any()
    broken = tmp_path / "broken"
    broken.write_bytes(b"".join(lines[:30]) + b'{"Event":"SparkListenerTaskEnd",\n' + lines[31])
    with pytest.raises(BadInput, match=r"broken:31: found no JSON"):
        metrics.read(broken)


def test_damaged_blocks_are_told_and_do_not_grow(tmp_path: Path) -> None:
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


def test_a_log_is_put_on_the_clock_of_the_run_beside_its_samples(tmp_path: Path) -> None:
    run = run_bundle(tmp_path / "run")
    line = [
        "import",
        str(GOLDEN / "spark-log"),
        "-o",
        str(tmp_path / "B"),
        "--with",
        str(run),
        "--json",
    ]
    done = CliRunner().invoke(_build(), line)
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(tmp_path / "B")
    samples = bundle.table("samples").to_pandas()
    assert set(samples["source"].astype(str)) == {"cpu", "spark"}
    logged = spark(GOLDEN / "spark-log")
    mine = samples[samples["source"].astype(str) == "spark"]
    assert mine["t_ns"].min() == logged.samples["utc_ns"].min() - 1_000_000_000_000
    launched = bundle.table("spark_tasks").to_pandas()["launch_ns"]
    assert launched.min() == logged.tables["spark_tasks"]["utc_launch_ns"].min() - 1_000_000_000_000
    assert bundle.manifest["imported"][0]["spark"]["tasks"] == 16
    target = tmp_path / "cdf.svg"
    drawn = CliRunner().invoke(
        _build(), ["plot", str(tmp_path / "B"), "cdf", "--table", "spark_tasks", "-o", str(target)]
    )
    assert drawn.exit_code == 0, drawn.output


def sar() -> bytes:
    return (GOLDEN / "sar.json").read_bytes()


def test_records_of_sar() -> None:
    found = metrics.read(GOLDEN / "sar.json")
    records = json.loads(sar())["sysstat"]["hosts"][0]["statistics"]
    vda = found.samples.query("entity == 'vda' and metric == 'rkB'")
    assert vda["value"].tolist() == [r["disk"][0]["rkB"] for r in records]
    # 80 sectors of 512 bytes are 40 of sar's kilobytes
    assert set(vda["unit"]) == {"KiB/s"}
    idle = found.samples.query("source == 'sar cpu-load' and metric == 'idle'")
    assert set(idle["unit"]) == {"%"}
    assert np.diff(idle["utc_ns"]).tolist() == [1_000_000_000] * (len(records) - 1)
    stamp = records[0]["timestamp"]
    first = pd.Timestamp(f"{stamp['date']}T{stamp['time']}Z")
    assert idle["utc_ns"].iloc[0] == first.as_unit("ns").value


def test_readings_of_redis() -> None:
    found = metrics.read(GOLDEN / "redis-info.txt")
    assert found.facts["readings"] == 4
    gets = found.samples.query("metric == 'total_commands_processed'")
    assert gets["cumulative"].all()
    assert (np.diff(gets["value"]) > 4000).all()
    used = found.samples.query("metric == 'used_memory'")
    assert set(used["unit"]) == {"B"}
    assert not used["cumulative"].any()
    assert "cmdstat_get" in set(found.samples["entity"])


def test_statistics_of_postgresql() -> None:
    found = metrics.read(GOLDEN / "pg-database.csv")
    assert found.facts == {"view": "pg_stat_database", "readings": 4}
    commits = found.samples.query("entity == 'postgres' and metric == 'xact_commit'")
    assert (np.diff(commits["value"]) > 0).all()
    assert commits["cumulative"].all()
    assert not found.samples.query("metric == 'numbackends'")["cumulative"].any()
    assert set(found.samples.query("metric == 'blk_read_time'")["unit"]) == {"ms"}
    for view, name in (
        ("pg-bgwriter", "pg_stat_bgwriter"),
        ("pg-tables", "pg_stat_tables"),
        ("pg-wal", "pg_stat_wal"),
    ):
        assert metrics.read(GOLDEN / f"{view}.csv").facts["view"] == name


def test_statistics_of_cassandra(tmp_path: Path) -> None:
    path = GOLDEN / "cassandra-nodetool.txt"
    found = metrics.read(path)
    assert found.facts == {"readings": 3, "failed": 0}
    # 4,099 rows were written and 1,009 read before the first reading, 2,003 and 503, 4,001 and 0 after it
    table = found.samples.query("entity == 'bench.t'")
    assert table.query("metric == 'local_write_count'")["value"].tolist() == [4099, 6102, 10103]
    assert table.query("metric == 'local_read_count'")["value"].tolist() == [1009, 1512, 1512]
    assert table.query("metric == 'local_write_count'")["cumulative"].all()
    assert set(table.query("metric == 'space_used_total'")["unit"]) == {"B"}
    assert not table.query("metric == 'sstable_count'")["cumulative"].any()
    latency = found.samples.query("entity == 'read' and metric == 'request_latency_p99'")
    assert latency["value"].tolist() == [4768, 4768, 4768]
    assert set(latency["unit"]) == {"us"}
    compacted = found.samples.query("metric == 'compacted_bytes'")
    assert (compacted["value"] > 0).all()
    assert compacted["cumulative"].all()
    first = path.read_text().splitlines()[0].split(".")
    assert found.samples["utc_ns"].iloc[0] == int(first[0]) * 10**9 + int(first[1])

    # the second reading: tablestats was ended in its middle, tpstats hung and printed nothing
    lines = path.read_text().splitlines(keepends=True)
    times = [i for i, line in enumerate(lines) if re.fullmatch(r"\d{10}\.\d+\n", line)]
    tables, pools = [i for i, line in enumerate(lines) if line == "{\n" and i > times[1]][:2]
    rest = next(i for i in range(pools, len(lines)) if lines[i].startswith("concurrent"))
    cut = tmp_path / "cut.txt"
    cut.write_text("".join([*lines[: tables + 40], *lines[rest:]]))
    some = metrics.read(cut)
    assert some.facts == {"readings": 3, "failed": 2}
    assert "2 of 12 outputs failed" in some.notes[0]
    assert f"line {times[1] + 1}" in some.notes[0]
    written = some.samples.query("entity == 'bench.t' and metric == 'local_write_count'")
    assert written["value"].tolist() == [4099, 10103]

    nothing = tmp_path / "nothing.txt"
    nothing.write_text("1700000000.5\nnodetool: Failed to connect\n1700000001.5\n")
    with pytest.raises(BadInput, match=r"line 1: found 'nodetool: Failed to connect'"):
        metrics.read(nothing, "cassandra")
    (tmp_path / "bare.json").write_text("".join(lines[1:pools]))
    with pytest.raises(BadInput, match="found no time"):
        metrics.read(tmp_path / "bare.json", "cassandra")


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
    found = metrics.read(tmp_path / "disk.csv").samples
    assert found["utc_ns"].tolist() == [1_500_000_000_000_000_000, *[1_500_000_001_000_000_000] * 2]
    assert found["value"].tolist() == [83.5, 0.0, 67.0]
    (tmp_path / "offsets.csv").write_text("sample,offset\n0,4096\n1,0\n")
    with pytest.raises(BadInput, match="penstock plot"):
        metrics.read(tmp_path / "offsets.csv", "csv")


WORDS = {
    "time": {"column": "ts", "unit": "ms"},
    "source": "bench",
    "entity": ["host"],
    "values": {"lat": "us", "done": "1"},
    "counters": ["done"],
}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_any_table_by_a_few_words(form: str, tmp_path: Path) -> None:
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

    (tmp_path / "words.yaml").write_text(yaml.safe_dump(WORDS))
    line = ["import", str(path), "--words", str(tmp_path / "words.yaml"), "-o", str(tmp_path / "B")]
    done = CliRunner().invoke(_build(), line)
    assert done.exit_code == 0, done.output
    rows = Bundle.open(tmp_path / "B").table("samples").to_pandas()
    assert (
        rows["t_ns"].tolist() == [1_700_000_000_001_000_000] * 2 + [1_700_000_000_002_000_000] * 2
    )
    assert sorted(rows["value"]) == [1.5, 2.5, 3, 4]
    assert rows.set_index("metric").loc["done", "cumulative"].all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"values": {"nothing": "s"}, "counters": []}, "found no column 'nothing'"),
        ({"time": {"column": "ts", "unit": "weeks"}}, "found time in weeks"),
        ({"time": 3}, "found time 3"),
        ({"values": {"host": "s"}, "counters": []}, "row 1: found 'a' in host"),
        ({"counters": ["lat", "x"]}, "expected some of the values"),
        ({"colour": "red"}, "found colour"),
    ],
)
def test_words_that_do_not_fit_are_told(
    change: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("ts,host,lat,done\n1700000000001,a,1.5,3\n")
    with pytest.raises(BadInput, match=said):
        metrics.read(tmp_path / "mine.csv", "described", {**WORDS, **change})


def test_what_nobody_knows_is_told(tmp_path: Path) -> None:
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
def test_readers_keep_to_their_protocol(name: str, file: str) -> None:
    testing.check_metric_reader(METRIC_READERS.load(name), GOLDEN / file)


def test_a_block_of_snappy_with_an_impossible_size_is_bad_input(tmp_path: Path) -> None:
    # its size, as a varint, is above the 4 GiB of the format
    log = tmp_path / "spark.snappy"
    block = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x7F]) + b"rest"
    head = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") * 2
    log.write_bytes(head + len(block).to_bytes(4, "big") + block)
    with pytest.raises(BadInput, match="damaged block"):
        metrics.read(log, "spark")


@pytest.mark.parametrize(
    "name", ["cassandra-nodetool.txt", "hadoop.jhist", "redis-info.txt", "spark-log", "pg-wal.csv"]
)
def test_ends_of_lines_and_byte_order_marks_of_windows(name: str, tmp_path: Path) -> None:
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
