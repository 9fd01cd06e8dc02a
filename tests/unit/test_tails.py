"""A response of the tail is doubted where fio saw another tail than was due from the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.fidelity.tails import tails
from penstock.analyse.outcome import Outcome


def study(out: Path, response: str, apart: dict[str, float], valid: bool = True) -> Outcome:
    """An OUT directory of runs whose p99 of reads, fio's over what was due, is as `apart` says."""
    out.mkdir()
    source = {"responses": {"r": {"from": response, "unit": "ms", "better": "lower"}}}
    (out / "study.yaml").write_text(json.dumps(source))
    (out / "plan.json").write_text("{}")
    runs = {"run_id": list(apart), "valid": [valid] * len(apart)}
    pq.write_table(pa.table(runs), out / "runs.parquet")
    for run_id, ratio in apart.items():
        row: dict[str, Any] = {
            "direction": "read",
            "metric": "p99",
            "fio": 1e6 * ratio,
            "disk": 1e6,
        }
        row |= {"ratio": 1 / ratio, "agrees": abs(1 / ratio - 1) <= 0.15}
        (out / "runs" / run_id).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row]), out / "runs" / run_id / "second_source.parquet")
    return Outcome.read(out)


def test_the_worst_of_the_runs_is_named(tmp_path: Path) -> None:
    outcome = study(tmp_path / "o", "read_p99_latency", {"r001": 1.05, "r002": 1.8, "r003": 1.3})
    (found,) = tails(outcome)
    assert found.statement.startswith(
        "In 2 of 3 runs the 99th percentile that fio saw is more than 15 %"
    )
    assert "most in r002: reads, 1.8 ms for 1 ms" in found.statement
    assert found.evidence["run_id"] == ["r002", "r003"]


@pytest.mark.parametrize("response", ["read_iops", "read_p50_latency", "write_p99_latency"])
def test_what_nobody_asked_for_is_not_doubted(tmp_path: Path, response: str) -> None:
    assert list(tails(study(tmp_path / "o", response, {"r001": 1.8}))) == []


def test_tails_as_they_were_due_and_runs_left_out_are_not_doubted(tmp_path: Path) -> None:
    assert list(tails(study(tmp_path / "near", "read_p99_latency", {"r001": 1.1}))) == []
    left_out = study(tmp_path / "invalid", "read_p99_latency", {"r001": 1.8}, valid=False)
    assert list(tails(left_out)) == []
