"""fio's report: of several versions, groups, directions and documents, each by its own rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.workload.measured import Measured
from penstock.workload.parsers import fio
from penstock.workload.parsers.fio_report import report_of

GOLDEN = Path(__file__).parents[1] / "golden" / "parsers"
KIB = 1024


def parsed(text: str) -> dict[str, Measured]:
    return fio.parse(Path("/nonexistent"), text, "", 9.0)


def golden(name: str) -> str:
    return (GOLDEN / f"fio-{name}.json").read_text()


def side(size: int, runtime: int, **more: Any) -> dict[str, Any]:
    ios = size // 4096
    return {"io_bytes": size, "io_kbytes": size >> 10, "runtime": runtime, "total_ios": ios} | more


def report(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = [{"jobname": f"j{i}", "groupid": 0, "error": 0} | job for i, job in enumerate(jobs)]
    return {"fio version": "fio-3.33", "timestamp": 1700000000, "jobs": named} | more


def values(*jobs: dict[str, Any], **more: Any) -> dict[str, float]:
    found = parsed(json.dumps(report(*jobs, **more)))
    return {name: m.value for name, m in found.items()}


def test_the_last_report_of_a_status_interval_counts() -> None:
    found = parsed(golden("status-interval"))
    assert found["bytes"].value == 16384 * KIB
    assert found["bandwidth"].value == pytest.approx(4111 * KIB, rel=1e-3)


def test_a_status_interval_with_a_ramp_counts_from_zero_again() -> None:
    # fio 3.33 --ramp_time=2 --status-interval=1: bytes of the ramp go away
    documents = [
        report({"elapsed": e, "write": side(b, r)}, timestamp_ms=t)
        for t, e, b, r in (
            (1795800420912, 2, 983040, 883),
            (1795800421912, 3, 2031616, 1883),
            (1795800422975, 4, 1048576, 999),
            (1795800423862, 5, 2031616, 1876),
        )
    ]
    assert parsed("\n".join(map(json.dumps, documents)))["bytes"].value == 2031616


@pytest.mark.parametrize(
    ("change", "cut"),
    [
        ({"timestamp": 1700000010}, 0),  # began later
        ({"jobs": [{"jobname": "other", "elapsed": 2, "write": side(8192, 1000)}]}, 0),
        ({"jobs": [{"jobname": "j0", "groupid": 0, "elapsed": 2, "write": side(8192, 999)}]}, 0),
        ({"timestamp": None}, 0),
        ({}, 30),  # the second one is cut off
    ],
)
def test_reports_of_several_runs_are_refused(change: dict[str, Any], cut: int) -> None:
    first = report({"elapsed": 2, "write": side(8192, 1000)})
    second = json.dumps(first | change)
    text = json.dumps(first) + "\n" + second[: len(second) - cut]
    with pytest.raises(PenstockError, match=r"2 reports of fio in stdout|within a JSON document"):
        parsed(text)


def test_reports_in_several_files_are_refused(tmp_path: Path) -> None:
    for name in ("a.json", "fio.json"):
        (tmp_path / name).write_text(json.dumps(report({"write": side(8192, 1000)})))
    with pytest.raises(PenstockError, match=r"reports in a\.json, fio\.json; expected one"):
        fio.parse(tmp_path, "", "", 1.0)


def test_the_units_of_fio_2() -> None:
    found = parsed(golden("2.2.10"))
    assert found["bytes"].value == 8192 * KIB
    assert found["bandwidth"].value == pytest.approx(819.2 * KIB)
    assert found["read_mean_latency"].value == 4880_000
    assert found["read_p99_latency"].value == 8900_000
    assert "write_mean_latency" not in found


def test_fio_2_21_counts_in_bytes_and_has_bins_in_microseconds() -> None:
    clat = {"min": 1, "max": 9, "mean": 5.0, "bins": {"3": 1, "7": 99}}
    jobs = [{"read": side(409600, 1000, clat=clat)}] * 2
    found = values(*jobs, **{"fio version": "fio-2.21"})
    assert found["read_bytes"] == 819200
    assert (found["read_p50_latency"], found["read_p9999_latency"]) == (7000, 7000)
    old = {**clat, "bins": {"0": 1, "1": 5, "FIO_IO_U_PLAT_BITS": 6}}  # numbers of bins, to 2.19
    numbered = [{"read": {"io_bytes": 400, "runtime": 1000, "total_ios": 100, "clat": old}}] * 2
    later = values(*numbered, **{"fio version": "fio-2.17"})
    assert later["read_bytes"] == 800 * KIB
    assert "read_p50_latency" not in later


@pytest.mark.parametrize("version", ["fio-1.59", "fio-4.0", "4.1-rc1", "something", ""])
def test_other_versions_are_refused_by_name(version: str) -> None:
    text = json.dumps(report({"read": side(4096, 1)}) | {"fio version": version})
    with pytest.raises(PenstockError, match="expected fio 2 or 3"):
        parsed(text)


@pytest.mark.parametrize(
    "broken",
    [
        {"read": side(8192, 1000, clat={"mean": 5.0})},  # a latency without a unit
        {"read": side(8192, 1000) | {"io_kbytes": 8192}},
    ],
)
def test_a_version_that_does_not_fit_its_values_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match="not as fio writes it"):
        values(broken)


def test_client_mode_is_refused_by_name() -> None:
    with pytest.raises(PenstockError, match="client mode"):
        parsed(json.dumps({"fio version": "fio-3.33", "client_stats": []}))


def test_groups_one_after_another_add_their_times() -> None:
    found = parsed(golden("stonewall"))
    assert found["bandwidth"].value == pytest.approx(16384 * KIB / 3.970)
    assert found["write_iops"].value == pytest.approx(256 / 3.970)


def test_groups_side_by_side_do_not() -> None:
    text = golden("new-group")  # of fio 3.33: two groups of 8 MiB at 4 MiB/s, 3 s elapsed
    runtimes = [job["write"]["runtime"] for job in json.loads(text)["jobs"]]
    assert parsed(text)["bandwidth"].value == pytest.approx(16384 * KIB / max(runtimes) * 1000)


def test_syncs_and_groups_of_fio_itself() -> None:
    text = golden("stonewall-sync")
    jobs = json.loads(text)["jobs"]
    found = parsed(text)
    seconds = sum(job["write"]["runtime"] for job in jobs) / 1000
    assert found["bandwidth"].value == pytest.approx(8192 * KIB / seconds)
    assert found["sync_requests"].value == sum(job["sync"]["total_ios"] for job in jobs)
    assert found["sync_max_latency"].value == max(j["sync"]["lat_ns"]["max"] for j in jobs)
    assert found["sync_p99_latency"].value <= found["sync_max_latency"].value * 1.05


@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        # options given with a value stand in the report
        ([(0, {}), (1, {"stonewall": "1"})], 2.0),
        ([(0, {}), (1, {"new_group": "1"})], 1.0),
        ([(0, {}), (1, {"stonewall": "1"}), (2, {"new_group": "1"})], 2.0),
        # fio 3.36 says when each job began
        ([(0, {"at": 1000}), (1, {"at": 2005})], 2.0),
        ([(0, {"at": 1000}), (1, {"at": 1005})], 1.0),
        ([(0, {"at": 1000}), (0, {"at": 2005, "wait_for": "j0"})], 2.0),
        ([(0, {"at": 1000}), (0, {"at": 1500, "startdelay": "500ms"})], 1.5),
        # else the elapsed time has to fit
        ([(0, {"elapsed": 3}), (1, {"elapsed": 3})], 2.0),
        ([(0, {"elapsed": 1}), (1, {"elapsed": 1})], 1.0),
        ([(0, {"elapsed": 2}), (1, {"elapsed": 2})], None),
        ([(0, {}), (1, {})], None),
        ([(0, {"elapsed": 60}), (1, {"elapsed": 60})], None),
        ([(0, {}), (0, {"wait_for": "j0"})], None),
    ],
)
def test_the_time_of_jobs(jobs: list[tuple[int, dict[str, Any]]], seconds: float | None) -> None:
    made = []
    for group, more in jobs:
        job: dict[str, Any] = {"groupid": group, "write": side(8192, 1000), "usr_cpu": 50.0}
        if "at" in more:
            job["job_start"] = more["at"]
        if "elapsed" in more:
            job["elapsed"] = more["elapsed"]
        job["job options"] = {k: v for k, v in more.items() if k not in ("at", "elapsed")}
        made.append(job)
    found = fio.parse(Path("/nonexistent"), json.dumps(report(*made)), "", 1.0)
    if seconds is None:
        assert not {"bandwidth", "write_iops", "user_cpu"} & set(found)
        assert found["bytes"].value == len(jobs) * 8192
        assert "fio" in found.missing["write_bandwidth"]
    else:
        assert found["bandwidth"].value == pytest.approx(len(jobs) * 8192 / seconds)
        assert found["user_cpu"].value == pytest.approx(50.0 * len(jobs) / seconds)


def test_directions_in_groups_of_their_own_have_their_own_times() -> None:
    first = {"groupid": 0, "write": side(8192, 1000), "read": side(0, 0)}
    second = {"groupid": 1, "read": side(4096, 2000), "write": side(0, 0)}
    second["job options"] = {"stonewall": "1"}
    found = values(first, second)
    assert (found["write_bandwidth"], found["read_bandwidth"]) == (8192, 2048)
    assert found["bandwidth"] == 4096


def test_trims_are_a_direction_of_their_own() -> None:
    latency = {"min": 1, "max": 9, "mean": 5.0, "N": 2, "bins": {"1": 1, "9": 1}}
    trim = side(8192, 1000, clat_ns=latency)
    found = values({"read": side(0, 0), "write": side(0, 0), "trim": trim})
    assert (found["trim_bandwidth"], found["bandwidth"], found["requests"]) == (8192, 8192, 2)
    assert (found["trim_p99_latency"], found["write_bytes"]) == (9, 0)


def test_unified_reporting() -> None:
    text = golden("mixed")
    mixed = json.loads(text)["jobs"][0]["mixed"]
    found = fio.parse(Path("/nonexistent"), text, "", 1.0)
    assert found["bandwidth"].value == pytest.approx(mixed["bw_bytes"], rel=1e-5)
    assert found["mixed_iops"].value == pytest.approx(mixed["iops"])
    assert found["mixed_p99_latency"].value == mixed["clat_ns"]["percentile"]["99.000000"]
    assert "read_bandwidth" not in found
    assert "unified_rw_reporting" in found.missing["read_bandwidth"]
    both = parsed(golden("both"))
    assert both["bytes"].value == both["mixed_bytes"].value == 4096 * KIB
    assert both["read_bytes"].value + both["write_bytes"].value == 4096 * KIB


def test_processor_time_of_a_group_is_of_all_its_jobs() -> None:
    # with group_reporting fio gives the mean over the group; job_runtime is the sum of its jobs' times
    job = {"write": side(8192, 1000), "usr_cpu": 20.0, "job_runtime": 4000}
    assert values(job, **{"global options": {"group_reporting": "1"}})["user_cpu"] == 80
    assert values(job)["user_cpu"] == 20


def test_a_response_says_why_a_value_is_missing() -> None:
    from penstock.spec.study import Response, ResponseSource
    from penstock.workload.responses import measure

    source = ResponseSource(kind="key", key="read_bandwidth")
    wanted = Response(name="r", source=source, unit="B/s", better="higher")
    with pytest.raises(
        PenstockError, match=r"did not report read_bandwidth .*unified_rw_reporting"
    ):
        measure([wanted], "fio", Path("/nonexistent"), golden("mixed"), "", 1.0)


def test_reports_are_brought_into_one_form() -> None:
    (job,) = report_of(golden("2.2.10"), "a file")["jobs"]
    assert job["read"]["io_bytes"] == 8192 * KIB
    assert job["read"]["clat_ns"]["percentile"] == {"50.000000": 4800_000, "99.000000": 8900_000}
    assert "clat" not in job["read"]
