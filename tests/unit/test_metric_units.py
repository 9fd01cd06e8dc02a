"""Units and times of readers of metrics: given by the program, or named as not known; never guessed."""

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
    whole = {"nodename": "h", "file-date": "2026-06-30", "timezone": "CEST"} | host
    path = tmp_path / "sar.json"
    path.write_text(json.dumps({"sysstat": {"hosts": [{**whole, "statistics": records}]}}))
    return path


def first(path: Path, words: Mapping[str, Any] | None = None) -> str:
    found = metrics.read(path, "sar", words)
    return pd.Timestamp(int(found.samples["utc_ns"].iloc[0]), tz="UTC").isoformat()


def test_local_times_of_sar_are_put_in_utc_by_the_begin_of_the_file() -> None:
    path = GOLDEN / "sar-local.json"
    assert metrics.reader_of(path) == "sar"
    assert first(path) == "2026-06-30T05:39:34+00:00"
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
def test_the_clock_of_sar(
    stamp: dict[str, Any], host: dict[str, Any], utc: str, tmp_path: Path
) -> None:
    at = {"date": "2026-06-30", "time": "07:10:00", "interval": 600}
    assert first(sar(tmp_path, [{**at, **stamp}], **host)) == utc


@pytest.mark.parametrize(
    ("stamps", "host", "said"),
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
def test_local_times_of_an_unknown_zone_are_refused_until_it_is_given(
    stamps: list[dict[str, Any]], host: dict[str, Any], said: str, tmp_path: Path
) -> None:
    at = {"date": "2026-06-30", "time": "07:10:00", "utc": 0, "interval": 600}
    path = sar(tmp_path, [{**at, **stamp} for stamp in stamps], **host)
    with pytest.raises(BadInput, match=said):
        metrics.read(path)
    assert first(path, {"timezone": "Europe/Paris"}) == "2026-06-30T05:10:00+00:00"
    with pytest.raises(BadInput, match="expected a zone such as"):
        metrics.read(path, "sar", {"timezone": "Paris time"})
    with pytest.raises(BadInput, match="found zone; expected timezone"):
        metrics.read(path, "sar", {"zone": "Europe/Paris"})


def test_units_of_sar_are_those_of_its_manual(tmp_path: Path) -> None:
    found = metrics.read(GOLDEN / "sar.json")
    assert not found.notes
    units = dict(zip(found.samples["metric"], found.samples["unit"], strict=True))
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
    ("begin", "said"),
    [
        ("# hostname;interval;timestamp;CPU;%user\nh;1;2026-06-30 07:00:00 UTC;-1;3\n", "sadf -d"),
        ('<?xml version="1.0"?>\n<sysstat>\n</sysstat>\n', "sadf -x"),
    ],
)
def test_other_forms_of_sadf_are_refused_by_name(begin: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sar.txt").write_text(begin)
    with pytest.raises(BadInput, match=f"found the output of {said}; expected sar's"):
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
    found = metrics.read(path)
    units = dict(zip(found.samples["metric"], found.samples["unit"], strict=True))
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
    assert found.notes == [
        "1 documents without a number were skipped: alert",
        "units not known: nodeCPU, jobSummary.custom",
    ]
    path.write_text(
        json.dumps([{"metricName": "m", "timestamp": "2026-07-11T00:00:00", "value": 1}])
    )
    with pytest.raises(BadInput, match=r"document 1: .* without a zone"):
        metrics.read(path)


def test_units_of_redis() -> None:
    found = metrics.read(GOLDEN / "redis-info.txt").samples
    units = dict(zip(found["metric"], found["unit"], strict=True))
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
        assert units.get(metric, unit) == unit, metric
