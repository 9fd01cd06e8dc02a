"""Units and times of metric readers: taken from the program or unknown, never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from penstock.errors import BadInput
from penstock.spec.units import parse_unit
from penstock.workload import metrics

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"


def sar(tmp_path: Path, stamps: list[Mapping[str, Any]], **host: Any) -> Path:
    records = [{"timestamp": s, "queue": {"runq-sz": 1}} for s in stamps]
    described = {"nodename": "h", "file-date": "2026-06-30", "timezone": "CEST"} | host
    path = tmp_path / "sar.json"
    path.write_text(json.dumps({"sysstat": {"hosts": [{**described, "statistics": records}]}}))
    return path


def first_time(path: Path, options: Mapping[str, Any] | None = None) -> str:
    readings = metrics.read(path, "sar", options)
    return pd.Timestamp(int(readings.samples["utc_ns"].iloc[0]), tz="UTC").isoformat()


def test_local_times_of_sar_are_converted_by_the_file_s_start() -> None:
    path = GOLDEN / "sar-local.json"
    assert metrics.reader_of(path) == "sar"
    assert first_time(path) == "2026-06-30T05:39:34+00:00"
    assert metrics.read(path).notes == ["h: times are local, +02:00 from UTC by the file's begin"]


@pytest.mark.parametrize(
    ("stamp", "host", "utc"),
    [
        ({"utc": 1}, {}, "2026-06-30T07:10:00+00:00"),
        ({"tz": "UTC"}, {}, "2026-06-30T07:10:00+00:00"),
        ({"tz": "CEST"}, {"file-utc-time": "05:00:00"}, "2026-06-30T05:10:00+00:00"),
        ({"utc": 0}, {"file-utc-time": "01:30:03"}, "2026-06-30T01:40:00+00:00"),  # India
        ({"utc": 0}, {"file-utc-time": "11:00:00"}, "2026-06-30T11:10:00+00:00"),  # New York
        # sadf -T in Japan of a file of a host in UTC
        ({"utc": 0}, {"file-utc-time": "22:00:00", "timezone": "UTC"}, "2026-06-29T22:10:00+00:00"),
    ],
)
def test_time_zones_of_sar(
    stamp: dict[str, Any], host: dict[str, Any], utc: str, tmp_path: Path
) -> None:
    at = {"date": "2026-06-30", "time": "07:10:00", "interval": 600}
    assert first_time(sar(tmp_path, [{**at, **stamp}], **host)) == utc


def test_local_times_at_the_end_of_daylight_saving(tmp_path: Path) -> None:
    """02:10 and 02:40 exist twice."""
    stamps = [
        {"date": "2026-10-25", "time": f"{time}:00", "interval": 1800, "utc": 0}
        for time in ("01:40", "02:10", "02:40", "02:10", "02:40", "03:10")
    ]
    samples = metrics.read(sar(tmp_path, stamps), "sar", {"timezone": "Europe/Paris"}).samples
    assert samples["utc_ns"].diff().tolist()[1:] == [1800e9] * 5
    assert first_time(tmp_path / "sar.json", {"timezone": "Europe/Paris"}).startswith(
        "2026-10-24T23:40:00"
    )


@pytest.mark.parametrize(
    ("stamps", "host", "message"),
    [
        ([{}], {}, "local times without file-utc-time"),
        ([{}], {"file-utc-time": "05:07:30"}, "whose offset is not clear"),  # records are missing
        ([{}], {"file-utc-time": "18:00:00"}, "whose offset is not clear"),  # +13 or -11 hours
        (
            [{}],
            {"file-utc-time": "05:00:00", "file-date": "2026-06-29"},
            r"in a file of 2026-06-29",
        ),
        ([{}, {"time": "08:20:00"}], {"file-utc-time": "05:00:00"}, "leap by an hour"),
    ],
)
def test_local_times_need_a_known_zone(
    stamps: list[dict[str, Any]], host: dict[str, Any], message: str, tmp_path: Path
) -> None:
    at = {"date": "2026-06-30", "time": "07:10:00", "utc": 0, "interval": 600}
    path = sar(tmp_path, [{**at, **stamp} for stamp in stamps], **host)
    with pytest.raises(BadInput, match=message):
        metrics.read(path)
    assert first_time(path, {"timezone": "Europe/Paris"}) == "2026-06-30T05:10:00+00:00"
    with pytest.raises(BadInput, match="expected a zone such as"):
        metrics.read(path, "sar", {"timezone": "Paris time"})
    with pytest.raises(BadInput, match="found zone; expected timezone"):
        metrics.read(path, "sar", {"zone": "Europe/Paris"})


def sar_records(tmp_path: Path, groups: Mapping[str, Any], *hosts: str) -> pd.DataFrame:
    """Read one record of these groups from each host."""
    stamp = {"date": "2026-06-30", "time": "07:10:00", "interval": 600, "utc": 1}
    described = [{"nodename": h, "statistics": [{"timestamp": stamp, **groups}]} for h in hosts]
    path = tmp_path / "sar.json"
    path.write_text("".join(json.dumps({"sysstat": {"hosts": [host]}}) for host in described))
    return metrics.read(path).samples


def test_pressures_of_sar_are_separate_series(tmp_path: Path) -> None:
    # sar -q PSI
    pressures = {
        f"psi-{name}": {"some_avg10": 1.0 + n} for n, name in enumerate(("cpu", "io", "mem"))
    }
    rows = sar_records(tmp_path, {"psi": pressures}, "h")
    assert rows[["entity", "metric", "value", "unit"]].to_numpy().tolist() == [
        ["cpu", "some_avg10", 1.0, "%"],
        ["io", "some_avg10", 2.0, "%"],
        ["memory", "some_avg10", 3.0, "%"],
    ]


def test_retransmissions_of_nfs_and_tcp_are_separate_series(tmp_path: Path) -> None:
    groups = {"net-nfs": {"retrans": 1}, "net-etcp": {"retrans": 7}}
    rows = sar_records(tmp_path, {"network": groups}, "h")
    assert rows[["entity", "value"]].to_numpy().tolist() == [["nfs", 1], ["h", 7]]


def test_units_of_sar(tmp_path: Path) -> None:
    readings = metrics.read(GOLDEN / "sar.json")
    assert not readings.notes
    units = dict(zip(readings.samples["metric"], readings.samples["unit"], strict=True))
    assert all(parse_unit(u) for u in units.values())
    assert [units[m] for m in ("memfree", "wkB", "areq-sz", "bread", "tps", "rxpck")] == [
        "KiB",
        "KiB/s",
        "KiB",
        "sectors/s",
        "1/s",
        "1/s",
    ]
    path = sar(tmp_path, [{"date": "2026-06-30", "time": "07:00:00", "utc": 1, "interval": 1}])
    path.write_text(path.read_text().replace('"queue"', '"of-the-future"'))
    unknown = metrics.read(path)
    assert unknown.samples["unit"].tolist() == [""]
    assert unknown.notes == ["units not known: of-the-future runq-sz"]


@pytest.mark.parametrize(
    ("begin", "command"),
    [
        ("# hostname;interval;timestamp;CPU;%user\nh;1;2026-06-30 07:00:00 UTC;-1;3\n", "sadf -d"),
        ('<?xml version="1.0"?>\n<sysstat>\n</sysstat>\n', "sadf -x"),
    ],
)
def test_other_formats_of_sadf_are_refused(begin: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "sar.txt").write_text(begin)
    with pytest.raises(BadInput, match=f"found the output of {command}; expected sar's"):
        metrics.read(tmp_path / "sar.txt")


def test_units_of_kube_burner() -> None:
    rows = metrics.read(GOLDEN / "kube-burner.json").samples
    units = rows.set_index("metric")["unit"]
    assert set(units[units.index.str.contains("Latency")]) == {"ms"}
    assert units["jobSummary.elapsedTime"] == units["jobSummary.elapsedTimeNoGC"] == "s"
    assert units["jobSummary.achievedQps"] == "1/s"


def test_units_of_other_documents_of_kube_burner(tmp_path: Path) -> None:
    at = {"timestamp": "2026-07-11T00:00:00Z"}
    documents = [
        # services are timed in nanoseconds, network policies in milliseconds
        at | {"metricName": "svcLatencyMeasurement", "ready": 1631880721, "ipAssigned": 5},
        at | {"metricName": "svcLatencyQuantilesMeasurement", "P99": 1867593282},
        at | {"metricName": "netpolLatencyMeasurement", "ready": 3025, "minReady": 2058},
        at | {"metricName": "podLatencyMeasurement", "podReadyLatency": 7, "jobIteration": 3},
        at | {"metricName": "nodeCPU", "value": 0.25, "query": "q"},
        at | {"metricName": "jobSummary", "elapsedTime": 9, "custom": 4, "passed": True},
        at | {"metricName": "alert", "severity": "warning", "description": "slow"},
    ]
    path = tmp_path / "kb.json"
    path.write_text(json.dumps(documents))
    readings = metrics.read(path)
    units = dict(zip(readings.samples["metric"], readings.samples["unit"], strict=True))
    assert units == {
        "svcLatencyMeasurement.ready": "ns",
        "svcLatencyMeasurement.ipAssigned": "ns",
        "svcLatencyQuantilesMeasurement.P99": "ns",
        "netpolLatencyMeasurement.ready": "ms",
        "netpolLatencyMeasurement.minReady": "ms",
        "podLatencyMeasurement.podReadyLatency": "ms",
        "nodeCPU": "",
        "jobSummary.elapsedTime": "s",
        "jobSummary.custom": "",
    }
    assert readings.notes == [
        "1 documents without a number were skipped: alert",
        "units not known: nodeCPU, jobSummary.custom",
    ]
    path.write_text(
        json.dumps([{"metricName": "m", "timestamp": "2026-07-11T00:00:00", "value": 1}])
    )
    with pytest.raises(BadInput, match=r"document 1: .* without a zone"):
        metrics.read(path)


def test_units_of_redis() -> None:
    samples = metrics.read(GOLDEN / "redis-info.txt").samples
    units = dict(zip(samples["metric"], samples["unit"], strict=True))
    assert all(parse_unit(u) for u in units.values())
    for metric, unit in (
        ("cmdstat.usec", "us"),
        ("cmdstat.usec_per_call", "us"),
        ("instantaneous_input_kbps", "KiB/s"),
        ("uptime_in_days", "d"),
        ("uptime_in_seconds", "s"),
        ("mem_fragmentation_ratio", "1"),
        ("total_system_memory", "B"),
        ("instantaneous_ops_per_sec", "1/s"),
    ):
        assert units[metric] == unit, metric


def test_counters_and_shares_of_redis(tmp_path: Path) -> None:
    lines = [
        *("# Server", "redis_version:7.2.4", "server_time_usec:1700000000000000"),
        *("used_memory_dataset_perc:12.50%", "active_defrag_hits:5", "evicted_clients:2"),
        *("expire_cycle_cpu_milliseconds:7", "active_defrag_running:0", "repl_backlog_histlen:9"),
        "cmdstat_get:calls=4,usec=9,usec_per_call=2.25,rejected_calls=1,failed_calls=3",
    ]
    (tmp_path / "info.txt").write_text("\n".join(lines) + "\n")
    samples = metrics.read(tmp_path / "info.txt").samples.set_index("metric")
    counters = set(samples.index[samples["cumulative"]])
    assert counters == {
        *("active_defrag_hits", "evicted_clients", "expire_cycle_cpu_milliseconds"),
        *(f"cmdstat.{name}" for name in ("calls", "usec", "rejected_calls", "failed_calls")),
    }
    share = samples.loc["used_memory_dataset_perc"]
    assert (share["value"], share["unit"]) == (12.5, "%")
    assert samples.loc["repl_backlog_histlen", "unit"] == "B"


def kube_burner(**changes: Any) -> dict[str, Any]:
    at = {"timestamp": "2024-03-08T12:00:00Z", "metricName": "apiCalls", "value": 5}
    return {**at, "labels": {"resource": "pods"}, **changes}


def test_concatenated_documents_are_read_without_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "kb.json"
    document = json.dumps([kube_burner()])
    path.write_text("\ufeff" + document + "\n" + document + json.dumps(kube_burner(value=6)))
    assert metrics.reader_of(path) == "kube-burner"
    readings = metrics.read(path)
    assert readings.samples["value"].tolist() == [5, 6]
    assert "1 values that the file has several times were read once" in readings.notes
    path.write_text(document + document[:-3])
    with pytest.raises(BadInput, match=r"found .*; expected kube-burner"):
        metrics.read(path)


def test_labels_distinguish_series_of_kube_burner(tmp_path: Path) -> None:
    verbs = [kube_burner(labels={"resource": "pods", "verb": v}) for v in ("GET", "PUT")]
    jobs = [
        kube_burner(metricName="jobSummary", value=None, labels=None, jobName=j, elapsedTime=9)
        for j in ("a", "b")
    ]
    path = tmp_path / "kb.json"
    path.write_text(json.dumps(verbs + jobs))
    entities = metrics.read(path).samples["entity"].tolist()
    assert entities == [
        "resource=pods verb=GET",
        "resource=pods verb=PUT",
        "jobName=a",
        "jobName=b",
    ]


def test_objects_of_kube_burner_are_separate_series(tmp_path: Path) -> None:
    """Created in one second: their measurements have the same time."""
    stamp = {"timestamp": "2024-03-08T12:00:00Z", "namespace": "n"}
    documents = [
        {**stamp, "metricName": "svcLatencyMeasurement", "service": name, "ready": ready}
        for name, ready in (("s-1", 1_000), ("s-2", 2_000))
    ]
    job = {**stamp, "metricName": "jobLatencyMeasurement", "startTimeLatency": 5}
    documents += [{**job, "k8sJobName": "j-1"}, {**job, "k8sJobName": "j-2"}]
    path = tmp_path / "kb.json"
    path.write_text(json.dumps(documents))
    readings = metrics.read(path)
    rows = readings.samples[["entity", "value"]].to_numpy().tolist()
    assert rows == [["n s-1", 1000], ["n s-2", 2000], ["n j-1", 5], ["n j-2", 5]]
    assert readings.notes == []


def test_documents_of_kube_burner_without_a_time_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "kb.json"
    cluster = {"metricName": "jobSummary", "clusterVersion": "4.22.2", "workerNodesCount": 3}
    never = {**kube_burner(), "timestamp": "0001-01-01T00:00:00Z"}  # Go's zero time
    path.write_text(json.dumps([kube_burner(), cluster, never]))
    readings = metrics.read(path)
    assert readings.samples["value"].tolist() == [5]
    assert "2 documents without a time were skipped" in readings.notes


@pytest.mark.parametrize(
    "record",
    [
        {"timestamp": "12:00:01 AM", "cpu-load": [{"cpu": "all", "usr": 1.5}]},
        {"avg-cpu": {"user": 1.5}, "disk": [{"disk_device": "sda", "tps": 1}]},
    ],
)
def test_mpstat_and_iostat_are_refused(record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "stat.json"
    path.write_text(json.dumps({"sysstat": {"hosts": [{"nodename": "h", "statistics": [record]}]}}))
    with pytest.raises(BadInput, match="as mpstat and iostat print them; expected sar's records"):
        metrics.read(path)


def test_records_of_sar_in_two_documents(tmp_path: Path) -> None:
    stamp = {"date": "2026-06-30", "time": "07:10:00", "interval": 600, "utc": 1}
    path = sar(tmp_path, [stamp])
    text = path.read_text()
    path.write_text(text + text.replace("07:10:00", "07:20:00") + text)
    readings = metrics.read(path)
    assert readings.samples["utc_ns"].diff().tolist()[1:] == [600e9]
    assert "1 values that the file has several times were read once" in readings.notes


@pytest.mark.parametrize(
    ("items", "entities"),
    [
        # sensors of one chip share its name
        (
            [{"number": n, "degC": 30.5 + n, "device": "coretemp-isa-0000"} for n in (1, 2)],
            ["coretemp-isa-0000 1", "coretemp-isa-0000 2"],
        ),
        ([{"line": n, "rxint": 1.5 * n} for n in (0, 1)], ["0", "1"]),
        ([{"fchost": f"host{n}", "fch_rxf": 1.5 * n} for n in (0, 1)], ["host0", "host1"]),
        # two devices of one model, and items of a later version
        (
            [{"idvendor": "1d6b", "idprod": "2", "maxpower": n} for n in (0, 100)],
            ["1d6b 2", "1d6b 2#2"],
        ),
        ([{"of-the-future": n + 0.5} for n in (0, 1)], ["#1", "#2"]),
        (
            [{"disk-device": d, "parts": [{"x": 1}, {"x": 2}]} for d in ("sda", "sdb")],
            ["sda #1", "sda #2", "sdb #1", "sdb #2"],
        ),
        ([{"cpu": "all", "idle": 50.5}], ["all"]),
    ],
)
def test_items_of_a_list_of_sar_are_separate_series(
    items: list[dict[str, Any]], entities: list[str], tmp_path: Path
) -> None:
    rows = sar_records(tmp_path, {"group": items}, "h")
    assert rows["entity"].tolist() == entities


def test_devices_of_several_hosts_of_sar_are_separate_series(tmp_path: Path) -> None:
    groups = {"disk": [{"disk-device": "sda", "tps": 1.5}], "queue": {"runq-sz": 2}}
    assert sar_records(tmp_path, groups, "a", "b")["entity"].tolist() == [
        "a sda",
        "a",
        "b sda",
        "b",
    ]
    assert sar_records(tmp_path, groups, "a")["entity"].tolist() == ["sda", "a"]


def test_hosts_of_one_name_are_noted(tmp_path: Path) -> None:
    stamp = {"date": "2026-06-30", "time": "07:10:00", "interval": 600, "utc": 1}
    path = tmp_path / "sar.json"
    path.write_text("")
    for busy in (1.5, 90.5):
        record = {"timestamp": stamp, "cpu-load": [{"cpu": "all", "idle": busy}]}
        hosts = [{"nodename": "localhost", "statistics": [record]}]
        path.write_text(path.read_text() + json.dumps({"sysstat": {"hosts": hosts}}))
    assert metrics.read(path).notes == [
        "2 values have the time and name of another one, as idle of all: are they of several hosts?"
    ]


def test_nodes_of_cassandra_below_one_time_are_noted(tmp_path: Path) -> None:
    outputs = "".join(f"concurrent compactors  4\npending tasks  {n}\n" for n in (3, 900))
    (tmp_path / "nodetool").write_text(f"1700000000.5\n{outputs}1700000010.5\n{outputs}")
    (note,) = metrics.read(tmp_path / "nodetool").notes
    assert note.startswith(
        "8 values have the time and name of another one, as concurrent_compactors"
    )


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("total_active_defrag_time", "ms"),
        ("current_eviction_exceeded_time", "ms"),
        ("eventloop_duration_sum", "us"),
        ("used_memory_peak_time", "s"),
        ("used_memory_peak", "B"),
    ],
)
def test_times_of_redis(metric: str, unit: str, tmp_path: Path) -> None:
    head = "# Server\nredis_version:8.0.0\nserver_time_usec:1700000000000000\n"
    (tmp_path / "info").write_text(f"{head}{metric}:5\n")
    assert metrics.read(tmp_path / "info").samples["unit"].tolist() == [unit]


@pytest.mark.parametrize("name", ["redis-info.txt", "pg-database.csv"])
def test_truncated_last_line_is_ignored(name: str, tmp_path: Path) -> None:
    """A truncated number would be a wrong value."""
    text = (GOLDEN / name).read_text()
    (tmp_path / "cut").write_text(text[:-3])
    readings = metrics.read(tmp_path / "cut")
    assert len(readings.samples) < len(metrics.read(GOLDEN / name).samples)
    assert any("the file is cut" in note for note in readings.notes)
