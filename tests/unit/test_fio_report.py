"""Reports of fio: versions, job groups, directions and several documents."""

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
    numbered = [{"jobname": f"j{i}", "groupid": 0, "error": 0} | job for i, job in enumerate(jobs)]
    return {"fio version": "fio-3.33", "timestamp": 1700000000, "jobs": numbered} | more


def values(*jobs: dict[str, Any], **more: Any) -> dict[str, float]:
    measured = parsed(json.dumps(report(*jobs, **more)))
    return {name: m.value for name, m in measured.items()}


def test_last_report_of_a_status_interval_counts() -> None:
    measured = parsed(golden("status-interval"))
    assert measured["bytes"].value == 16384 * KIB
    assert measured["bandwidth"].value == pytest.approx(4111 * KIB, rel=1e-3)


def test_status_interval_excludes_the_ramp() -> None:
    # fio 3.33 --ramp_time=2 --status-interval=1: bytes of the ramp are dropped
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
        ({"timestamp": 1700000010}, 0),  # started later
        ({"jobs": [{"jobname": "other", "elapsed": 2, "write": side(8192, 1000)}]}, 0),
        ({"jobs": [{"jobname": "j0", "groupid": 0, "elapsed": 2, "write": side(8192, 999)}]}, 0),
        ({"timestamp": None}, 0),
        ({}, 30),  # the second report is truncated
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


def test_units_of_fio_2() -> None:
    measured = parsed(golden("2.2.10"))
    assert measured["bytes"].value == 8192 * KIB
    assert measured["bandwidth"].value == pytest.approx(819.2 * KIB)
    assert measured["read_mean_latency"].value == 4880_000
    assert measured["read_p99_latency"].value == 8900_000
    assert "write_mean_latency" not in measured


def test_fio_2_21_counts_in_bytes_and_has_bins_in_microseconds() -> None:
    clat = {"min": 1, "max": 9, "mean": 5.0, "bins": {"3": 1, "7": 99}}
    jobs = [{"read": side(409600, 1000, clat=clat)}] * 2
    measured = values(*jobs, **{"fio version": "fio-2.21"})
    assert measured["read_bytes"] == 819200
    assert (measured["read_p50_latency"], measured["read_p9999_latency"]) == (7000, 7000)
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
def test_version_that_contradicts_its_values_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match="not as fio writes it"):
        values(broken)


def test_client_mode_is_refused_by_name() -> None:
    with pytest.raises(PenstockError, match="client mode"):
        parsed(json.dumps({"fio version": "fio-3.33", "client_stats": []}))


def test_sequential_groups_add_their_times() -> None:
    measured = parsed(golden("stonewall"))
    assert measured["bandwidth"].value == pytest.approx(16384 * KIB / 3.970)
    assert measured["write_iops"].value == pytest.approx(256 / 3.970)


def test_parallel_groups_use_the_longest_time() -> None:
    text = golden("new-group")  # of fio 3.33: two groups of 8 MiB at 4 MiB/s, 3 s elapsed
    runtimes = [job["write"]["runtime"] for job in json.loads(text)["jobs"]]
    assert parsed(text)["bandwidth"].value == pytest.approx(16384 * KIB / max(runtimes) * 1000)


def test_reads_that_verify_follow_the_writes() -> None:
    """fio 3.33 --rw=write --verify=crc32c: job_runtime 795 ms."""
    wrote, read = side(67108864, 157), side(67108864, 639)
    job = {"read": read, "write": wrote, "usr_cpu": 10.0, "job_runtime": 795}
    verified = values({**job, "job options": {"rw": "randwrite:8", "verify": "crc32c"}})
    assert verified["bandwidth"] == pytest.approx(2 * 67108864 / 0.796)
    assert verified["write_bandwidth"] == pytest.approx(67108864 / 0.157)
    assert verified["user_cpu"] == pytest.approx(10, rel=0.01)
    mixed = values({**job, "job options": {"rw": "randrw", "verify": "crc32c"}})
    assert mixed["iops"] == pytest.approx(2 * 16384 / 0.639)
    options = {"rw": "write", "verify": "crc32c", "verify_backlog": "1024"}
    between = values({**job, "job options": options})
    assert between["iops"] == pytest.approx(2 * 16384 / 0.639)


def test_syncs_and_groups_of_fio_itself() -> None:
    text = golden("stonewall-sync")
    jobs = json.loads(text)["jobs"]
    measured = parsed(text)
    seconds = sum(job["write"]["runtime"] for job in jobs) / 1000
    assert measured["bandwidth"].value == pytest.approx(8192 * KIB / seconds)
    assert measured["sync_requests"].value == sum(job["sync"]["total_ios"] for job in jobs)
    assert measured["sync_max_latency"].value == max(j["sync"]["lat_ns"]["max"] for j in jobs)
    assert measured["sync_p99_latency"].value <= measured["sync_max_latency"].value * 1.05


@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        # the report contains options that have a value
        ([(0, {}), (1, {"stonewall": "1"})], 2.0),
        ([(0, {}), (1, {"new_group": "1"})], 1.0),
        ([(0, {}), (1, {"stonewall": "1"}), (2, {"new_group": "1"})], 2.0),
        # fio 3.36 reports the start of each job
        ([(0, {"at": 1000}), (1, {"at": 2005})], 2.0),
        ([(0, {"at": 1000}), (1, {"at": 1005})], 1.0),
        ([(0, {"at": 1000}), (0, {"at": 2005, "wait_for": "j0"})], 2.0),
        ([(0, {"at": 1000}), (0, {"at": 1500, "startdelay": "500ms"})], 1.5),
        # otherwise the elapsed time must be consistent
        ([(0, {"elapsed": 3}), (1, {"elapsed": 3})], 2.0),
        ([(0, {"elapsed": 1}), (1, {"elapsed": 1})], 1.0),
        ([(0, {"elapsed": 2}), (1, {"elapsed": 2})], None),
        ([(0, {}), (1, {})], None),
        ([(0, {"elapsed": 60}), (1, {"elapsed": 60})], None),
        ([(0, {}), (0, {"wait_for": "j0"})], None),
    ],
)
def test_total_time_of_jobs(jobs: list[tuple[int, dict[str, Any]]], seconds: float | None) -> None:
    reported = []
    for group, more in jobs:
        job: dict[str, Any] = {"groupid": group, "write": side(8192, 1000), "usr_cpu": 50.0}
        if "at" in more:
            job["job_start"] = more["at"]
        if "elapsed" in more:
            job["elapsed"] = more["elapsed"]
        job["job options"] = {k: v for k, v in more.items() if k not in ("at", "elapsed")}
        reported.append(job)
    measured = fio.parse(Path("/nonexistent"), json.dumps(report(*reported)), "", 1.0)
    if seconds is None:
        assert not {"bandwidth", "write_iops", "user_cpu"} & set(measured)
        assert measured["bytes"].value == len(jobs) * 8192
        assert "fio" in measured.missing["write_bandwidth"]
    else:
        assert measured["bandwidth"].value == pytest.approx(len(jobs) * 8192 / seconds)
        assert measured["user_cpu"].value == pytest.approx(50.0 * len(jobs) / seconds)


def test_directions_in_separate_groups_have_separate_times() -> None:
    first = {"groupid": 0, "write": side(8192, 1000), "read": side(0, 0)}
    second = {"groupid": 1, "read": side(4096, 2000), "write": side(0, 0)}
    second["job options"] = {"stonewall": "1"}
    measured = values(first, second)
    assert (measured["write_bandwidth"], measured["read_bandwidth"]) == (8192, 2048)
    assert measured["bandwidth"] == 4096


def test_trims_are_a_separate_direction() -> None:
    latency = {"min": 1, "max": 9, "mean": 5.0, "N": 2, "bins": {"1": 1, "9": 1}}
    trim = side(8192, 1000, clat_ns=latency)
    measured = values({"read": side(0, 0), "write": side(0, 0), "trim": trim})
    assert (measured["trim_bandwidth"], measured["bandwidth"], measured["requests"]) == (
        8192,
        8192,
        2,
    )
    assert (measured["trim_p99_latency"], measured["write_bytes"]) == (9, 0)


def test_unified_reporting() -> None:
    text = golden("mixed")
    mixed = json.loads(text)["jobs"][0]["mixed"]
    measured = fio.parse(Path("/nonexistent"), text, "", 1.0)
    assert measured["bandwidth"].value == pytest.approx(mixed["bw_bytes"], rel=1e-5)
    assert measured["mixed_iops"].value == pytest.approx(mixed["iops"])
    assert measured["mixed_p99_latency"].value == mixed["clat_ns"]["percentile"]["99.000000"]
    assert "read_bandwidth" not in measured
    assert "unified_rw_reporting" in measured.missing["read_bandwidth"]
    both = parsed(golden("both"))
    assert both["bytes"].value == both["mixed_bytes"].value == 4096 * KIB
    assert both["read_bytes"].value + both["write_bytes"].value == 4096 * KIB


def test_cpu_time_of_a_group_includes_all_jobs() -> None:
    # with group_reporting fio gives the mean over the group; job_runtime is the sum of its jobs' times. The
    # report has the option only if it was given as group_reporting=1
    job = {"write": side(8192, 1000), "usr_cpu": 20.0, "job_runtime": 4000}
    assert values(job, **{"global options": {"group_reporting": "1"}})["user_cpu"] == 80
    assert values(job)["user_cpu"] == 80
    del job["job_runtime"]
    assert values(job)["user_cpu"] == 20


def test_missing_response_has_a_reason() -> None:
    from penstock.spec.study import Response, ResponseSource
    from penstock.workload.responses import measure

    source = ResponseSource(kind="key", key="read_bandwidth")
    response = Response(name="r", source=source, unit="B/s", better="higher")
    with pytest.raises(
        PenstockError, match=r"did not report read_bandwidth .*unified_rw_reporting"
    ):
        measure([response], "fio", Path("/nonexistent"), golden("mixed"), "", 1.0)


def test_reports_are_normalised() -> None:
    (job,) = report_of(golden("2.2.10"), "a file")["jobs"]
    assert job["read"]["io_bytes"] == 8192 * KIB
    assert job["read"]["clat_ns"]["percentile"] == {"50.000000": 4800_000, "99.000000": 8900_000}
    assert "clat" not in job["read"]
