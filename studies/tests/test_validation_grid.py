"""Goals of the validation grid on synthetic cells: deviations are detected and none is excused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
for part in ("studies/validation-grid", "bench", "bench/throttles"):
    sys.path.insert(0, str(ROOT / part))

import throttles  # noqa: E402
from cells import ENGINES, LIMITS_BPS, MB, Cell, crossed, full, quick, sustained  # noqa: E402
from judge import (  # noqa: E402
    Planned,
    Row,
    criteria,
    kind_of,
    ks_distance,
    latencies,
    planted_limits,
    throttled_rows,
)

from studies import validation_grid  # noqa: E402
from studies.claims import Result, status  # noqa: E402


def row(ratio: float, **more: Any) -> Row:
    fields = {"backend": "fuse", "cell": "c", "kind": "read", "seconds": 4.0, "program": ratio}
    return Row(**{**fields, "ratio": ratio, "verdict": "honoured", "valid": True, **more})


def holds(rows: list[Row], wording: str) -> bool | None:
    results = {Result.MET: True, Result.NOT_MET: False, Result.NOT_MEASURED: None}
    return next(results[c.result] for c in criteria(rows) if wording in c.wording)


def test_a_disk_five_percent_off_misses_the_mean() -> None:
    assert holds([row(1.004), row(0.996)], "mean error 1 %") is True
    assert holds([row(0.95)] * 5, "mean error 1 %") is False
    assert holds([row(1.0)] * 99 + [row(1.06)], "all within 5 %") is False


def test_a_rate_correct_only_by_the_disks_own_log_is_not_met() -> None:
    by_fio = "by fio's own rate"
    assert holds([row(1.0, program=0.97)], by_fio) is True
    assert holds([row(1.0)] * 9 + [row(1.0, program=0.9)], by_fio) is False
    assert holds([row(1.0, program=0.9, valid=False)], by_fio) is None


def test_a_rate_below_its_limit_is_a_miss_unless_the_host_was_busy() -> None:
    low = row(0.8, verdict="demand-bound")
    assert holds([row(1.0), low], "all within 5 %") is False
    busy = row(0.8, cell="d", verdict="host-saturated", valid=False)
    assert holds([row(1.0), busy], "all within 5 %") is None  # a cell is not measured
    assert (
        holds([row(1.0), low, busy], "all within 5 %") is False
    )  # independent of the missing cell
    assert holds([busy], "mean error 1 %") is None
    device = row(0.8, cell="d", verdict="device-bound")
    assert holds([row(1.0), device], "all within 5 %") is True


def test_buffered_writes_have_their_own_goals() -> None:
    exact = [row(1.0, kind="buffered write", program=1.05)] * 19
    assert holds([*exact, row(1.0, kind="buffered write", program=1.14)], "95 %") is True
    assert (
        holds([*exact, row(1.0, kind="buffered write", program=1.16)], "all within 15 %") is False
    )
    assert holds(exact[:10] + [row(1, kind="buffered write", program=0.88)] * 2, "95 %") is False


def test_short_runs_are_right_or_flagged() -> None:
    assert holds([row(1, seconds=0.2, program=1.08)], "under 0.5 s") is True
    assert holds([row(1, seconds=0.2, program=3.0)], "under 0.5 s") is False
    flagged = row(1, seconds=0.2, program=3.0, verdict="too-short", valid=False)
    assert holds([flagged], "under 0.5 s") is True


def test_neither_direction_of_a_mixed_cell_may_pass_its_limit() -> None:
    assert holds([row(0.8, kind="mixed", program=0.8)], "both directions") is True
    assert holds([row(1.1, kind="mixed", program=1.1)], "both directions") is False


def test_a_planted_limit_must_be_detected() -> None:
    assert list(planted_limits([row(0.95, planted=0.05)]).values()) == [True]
    assert list(planted_limits([row(0.999, planted=0.05)]).values()) == [False]


def test_a_cell_of_the_grid_without_a_row_is_not_measured() -> None:
    planned = [Planned("fuse", cell, "read", 4.0) for cell in ("a", "b")]
    measured = [row(1.0, cell="a"), row(1.0, cell="b")]
    assert {c.result for c in criteria(measured, planned) if "reads" in c.wording} == {Result.MET}
    claims = [c for c in criteria(measured[:1], planned) if "reads" in c.wording]
    assert {c.result for c in claims} == {Result.NOT_MEASURED}
    assert all(c.missing == ("b",) for c in claims)
    assert status(claims) == 3


@pytest.mark.parametrize("backend", ["fuse", "cgroup1", "cgroup2"])
def test_a_back_end_without_rows_is_not_measured(backend: str) -> None:
    claims = criteria([], validation_grid.planned_of(backend, 6.0, False))
    assert {c.of for c in claims} == {backend}
    assert {c.result for c in claims} <= {Result.NOT_MEASURED, Result.NOT_COMPARABLE}
    wordings = " ".join(c.wording for c in claims)
    assert all(text in wordings for text in ("mean error", "buffered", "both directions"))
    assert ("KS" in wordings) == (backend == "fuse")
    assert status(claims) == 3


def test_distributions_are_evaluated_by_quantiles_and_distance() -> None:
    near = row(1.0, p50=1.1, p99=0.9, ks=0.05)
    assert holds([near], "p50") is True
    assert holds([row(1.0, p50=1.0, p99=1.3, ks=0.05)], "p99") is False
    assert holds([row(1.0, p50=1.0, p99=1.0, ks=0.3)], "KS") is False


def test_ks_distance_by_hand() -> None:
    expected = np.linspace(1e6, 2e6, 1001)
    same = np.column_stack([expected, np.ones_like(expected)])
    assert ks_distance(same, expected) == pytest.approx(0.0, abs=1e-9)
    gulps = np.array([[1e4, 90.0], [1e8, 10.0]])  # a throttle: without delay, or after a slice
    assert ks_distance(gulps, expected) == pytest.approx(0.9, abs=0.01)
    shifted = np.column_stack([expected + 5e5, np.ones_like(expected)])
    assert ks_distance(shifted, expected) == pytest.approx(0.5, abs=0.04)


def test_grid_covers_all_levels_within_the_time_limit() -> None:
    cells = full(15)
    assert len(set(cells)) == len(cells)
    assert {c.engine for c in cells} == set(ENGINES)
    assert {c.limit_bps for c in cells} == set(LIMITS_BPS)
    assert all(c.bytes <= 15 * c.limit_bps for c in cells)
    assert not [c for c in cells if c.engine == "mmap" and c.direct]
    assert set(crossed(4)) <= set(full(4))
    assert len(quick(2)) == 12
    assert kind_of("sync", "randrw", True, "read") == "mixed"
    assert kind_of("mmap", "write", False, "write") == "mapped"
    assert "--end_fsync=1" in Cell("psync", "write", False, MB, MB).fio("/f")
    assert sustained(2, Cell("psync", "read", True, MB, 10 * MB)).bytes == 2 * MB


def result(rate: float, late: float = 0.0, **more: Any) -> dict[str, Any]:
    cell = Cell("psync", "read", True, 4 * MB, 24 * MB)
    windows = [
        {"t_ns": (k + 1) * 10**9, "window_ns": 10**9, "disk_id": "d", "direction": "read",
         "bytes": int(rate), "ops": int(rate / 65536), "limit_bps": 4e6, "limit_iops": None}
        for k in range(6)
    ]  # fmt: skip
    report = {"read": {"bytes": 6 * rate, "seconds": 6.0, "ops": 6 * rate / 65536}}
    return {"cell": vars(cell), "backend": "cgroup2", "error": "", "late": late, "busy": 0.2, "fio": report,
            "windows": windows, **more}  # fmt: skip


def test_throttled_cells_are_compared_with_the_requested_limit() -> None:
    (exact,) = throttled_rows({"results": [result(4e6)]})
    assert (exact.verdict, exact.ratio) == ("honoured", pytest.approx(1.0))
    (crowded,) = throttled_rows({"results": [result(3e6, busy=0.97)]})
    assert crowded.verdict == "host-saturated"
    (busy,) = throttled_rows({"results": [result(3e6, late=0.3)]})
    assert (busy.verdict, busy.valid) == ("host-saturated", False)
    wrong = result(3.8e6)
    for window in wrong["windows"]:
        window["limit_bps"] = 3.8e6  # the planted limit
    (planted,) = throttled_rows({"results": [wrong]})
    assert planted.ratio == pytest.approx(0.95)
    (failed,) = throttled_rows({"results": [result(1.0, error="no space")]})
    assert (failed.verdict, failed.valid) == ("failed", False)


def fio_json(latency_ns: float, iops: float) -> str:
    side = {
        "iops": iops, "bw_bytes": 4096 * iops,
        "clat_ns": {"percentile": {"50.000000": latency_ns, "99.000000": latency_ns},
                    "bins": {str(int(latency_ns)): 100}},
    }  # fmt: skip
    return json.dumps({"jobs": [{"read": side}]})


def test_the_bench_of_throttles_detects_bursts_and_its_planted_failure() -> None:
    gulps = throttles.figures("500 reads/s", fio_json(50e3, 500))
    assert gulps["rate"] == pytest.approx(100.0)
    assert gulps["p50"] < 0.05
    assert gulps["KS"] > 0.9
    assert latencies(fio_json(2e6, 500), "read").shape == (1, 2)
    fields = {"case": "c", "metric": "rate", "value": 99.9}
    correct, wrong = {**fields, "engine": "blkio v1"}, {**fields, "engine": throttles.PLANTED}
    assert throttles.planted_detected([correct, {**wrong, "value": 90.0}]) is True
    assert throttles.planted_detected([correct, {**wrong, "value": 99.5}]) is False
    # undecided on a host where the correct throttle is 40 % slow as well
    assert (
        throttles.planted_detected([{**correct, "value": 60.0}, {**wrong, "value": 50.0}]) is None
    )
