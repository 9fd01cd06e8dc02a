"""Throttled disks on a pure v2 host: every limit on every data path, one boot for all checks."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.analyse.fidelity.fidelity_counters import BEFORE_A_LIMIT, fidelity_of_counters
from penstock.emulate.backends.counters import as_table
from penstock.parts.guests.guest_image import PATH
from tests.guest import machine

PROGRAMS = ("fio", "mkfs.ext4", "tune2fs")
LACKING = machine.missing() + [p for p in PROGRAMS if not shutil.which(p, path=PATH)]
#: counter of each direction
MOVED = {"read": "read_bytes", "write": "written_bytes"}

pytestmark = [
    pytest.mark.timed,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(LACKING), reason=f"the guest needs {LACKING}"),
]
GRID = Path(__file__).parents[2] / "studies" / "validation-grid"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("guest")
    job = work / "job"
    job.mkdir()
    machine.carry_penstock(job, Path(penstock.__file__).parent)
    shutil.copy(Path(__file__).parent / "job_backends.py", job / "job.py")
    for name in ("cells.py", "throttled.py"):
        shutil.copy(GRID / name, job / name)
    (job / "run").write_text(machine.RUN_PYTHON.format(python=machine.python_name()))
    programs = ("bash", os.path.realpath(sys.executable), *PROGRAMS)
    outcome = machine.run(job, programs, work / "out", timeout_s=400)
    line = next((x for x in outcome.log.splitlines() if x.startswith("RESULT ")), None)
    assert line is not None, outcome.log + outcome.console[-3000:]
    answer: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    (work / "says.json").write_text(line.removeprefix("RESULT "))
    print("\n".join(x for x in outcome.log.splitlines() if " s" in x and len(x) < 40))
    return answer


def test_limits_are_independent_and_hold_after_a_clear(report: dict[str, Any]) -> None:
    seen = report["independent"]
    assert [s["error"] for s in seen["steps"]] == ["", "", ""]
    now = [s["now"] for s in seen["steps"]]
    assert [n["read_bps"] for n in now] == [4e6, 4e6, None]
    assert [n["write_bps"] for n in now] == [None, 2e6, 2e6]
    assert seen["bytes"] == 8 << 20
    assert (8 << 20) / seen["again_s"] <= 1.1 * 4e6
    assert (8 << 20) / seen["cleared_s"] > 1.3 * 4e6


def test_cells_of_the_grid(report: dict[str, Any]) -> None:
    correct = [r for r in report["grid"]["results"] if not r["cell"]["planted"]]
    assert len(correct) == 6
    for result in correct:
        (direction,) = result["fio"]
        ratio = _ratio(result, direction)
        # a software CPU may starve fio: a rate below the limit needs a late sleeper as evidence
        assert ratio <= 115, result
        assert ratio >= 85 or result["late"] > 0.02, result
        moved = result["device"][MOVED[direction]]
        assert moved == pytest.approx(result["fio"][direction]["bytes"], rel=0.05), result
    (planted,) = [r for r in report["grid"]["results"] if r["cell"]["planted"]]
    assert _ratio(planted, "read") < 95


def _ratio(result: dict[str, Any], direction: str) -> float:
    figures = result["fio"][direction]
    return float(100 * figures["bytes"] / figures["seconds"] / result["cell"]["limit_bps"])


def test_resident_file_is_read_at_memory_speed(report: dict[str, Any]) -> None:
    seen = report["resident"]
    assert seen["device"] == 0
    assert (8 << 20) / seen["limited_s"] > 4 * 1e6


@pytest.mark.parametrize("by", ["fsync", "flusher"])
def test_buffered_writes_are_limited_until_durable(report: dict[str, Any], by: str) -> None:
    seen = report["buffered"][by]
    # a rate that is too low may be due to the software CPU; one that is too high is a fault of the limit
    assert seen["ratio"] <= 115
    # the device counts the file system's journal as well, which the kernel writes outside the group
    assert 75 <= seen["device_ratio"] <= 130


def test_short_read_escapes_no_further_than_its_readahead(report: dict[str, Any]) -> None:
    def most_escaped(name: str) -> float:
        return max(float(entry["escaped"]) for entry in report["short"][name])

    # three windows of readahead, and the burst of a throttle at the beginning of a slice of 0.1 s
    limit = 3 * (128 << 10) + 0.1 * 8e6
    assert most_escaped("small") <= limit
    # planted: no limit at all
    assert most_escaped("free") > limit
    for read in report["short"]["small"] + report["short"]["large"]:
        rows = fidelity_of_counters(as_table(read["windows"]), disk_id="short", backend="cgroup2")
        (row,) = [r for r in rows.overall.to_pylist() if r["metric"] == "rate_read"]
        assert read["ratio"] <= 130 or row["verdict"] in ("burst", "too-short")
        assert not row["valid"]
    assert "readahead" in BEFORE_A_LIMIT


def test_limit_above_the_capability_is_no_failure_of_the_limit(
    report: dict[str, Any],
) -> None:
    seen = report["high"]
    assert seen["rate_bps"] < 0.8 * 4 * seen["capability_bps"]
    reads = [w for w in seen["windows"] if w["direction"] == "read"]
    long = [{**reads[0], "t_ns": k * 10**9, "window_ns": 10**9, "bytes": int(seen["rate_bps"])}
            for k in range(5)]  # fmt: skip
    table = as_table(long)
    able = {"read": seen["capability_bps"]}
    fidelity = fidelity_of_counters(table, disk_id="high", backend="cgroup2", capability=able)
    (row,) = [r for r in fidelity.overall.to_pylist() if r["metric"] == "rate_read"]
    assert row["verdict"] == "device-bound"
    assert f"{seen['capability_bps']:.4g} B/s" in row["reason"]


def test_two_nodes_change_in_opposite_directions(report: dict[str, Any]) -> None:
    seen = report["scheduled"]
    for number, (limited, free) in enumerate((("read", "write"), ("write", "read"))):
        events = seen["events"][number]
        assert [e["error"] for e in events] == ["", ""]
        assert [e["found"]["limits"][f"{limited}_bps"] for e in events] == [2_000_000, "max"]
        assert {e["found"]["limits"][f"{free}_bps"] for e in events} == {"max"}
        # 50 ms on a processor; a software one under load is slower
        assert all(0 <= e["applied_ns"] - e["planned_ns"] < 500_000_000 for e in events)
        samples = [(s["t_ns"] / 1e9, s["stats"][number][MOVED[limited]]) for s in seen["samples"]]
        before = _rate(samples, 0.0, 1.0)
        plateau = _rate(samples, 1.5, 2.5)
        after = _rate(samples, 3.0, 4.0)
        assert 1e6 < plateau < 2.3e6
        assert after > 1.3 * plateau
        assert max(before, after) > 1.5 * plateau


def _rate(samples: list[tuple[float, int]], since: float, until: float) -> float:
    inside = [(t, n) for t, n in samples if since - 0.02 <= t <= until + 0.02]
    (t0, n0), (t1, n1) = inside[0], inside[-1]
    return (n1 - n0) / (t1 - t0)


def test_a_soft_limit_reclaims_and_a_hard_limit_kills(report: dict[str, Any]) -> None:
    assert report["memory"]["soft"]["status"] == 0
    assert report["memory"]["soft"]["kills"] == 0
    assert report["memory"]["soft"]["peak"] < 20 << 20
    assert report["memory"]["hard"]["status"] == 137
    assert report["memory"]["hard"]["kills"] >= 1


def test_each_byte_is_charged_to_its_writer(report: dict[str, Any]) -> None:
    assert report["shared"]["inside"] == pytest.approx(8 << 20, rel=0.02)
    assert report["shared"]["outside"] == pytest.approx(12 << 20, rel=0.02)


def test_missing_charging_is_detected_by_a_trial(report: dict[str, Any]) -> None:
    seen = report["charging"]
    assert "is charged" in seen["notes"][0]
    assert "not charged" in seen["refusal"]
    assert "fuse" in seen["refusal"]
    assert "not charged" in seen["overridden"][0]
    assert "not charged" in seen["direct"][0]


def test_the_device_is_recorded_and_nothing_is_left(report: dict[str, Any]) -> None:
    facts = report["grid"]["facts"]
    assert facts["file_system"] == "ext4"
    assert {"kernel", "scheduler", "read_ahead_kib", "write_cache", "queue_depth"} <= set(facts)
    assert report["lacking"]["cgroup2"] == ""
    assert (report["left"], report["grid"]["left"]) == (0, 0)
    assert (report["groups_left"], report["loops_left"]) == ([], [])
