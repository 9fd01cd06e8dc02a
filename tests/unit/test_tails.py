"""A tail response is doubted if the tail that fio measured differs from the emulated disk's tail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.analyse.fidelity.tails import tails
from penstock.analyse.outcome import Outcome


def study(out: Path, response: str, ratios: dict[str, float], valid: bool = True) -> Outcome:
    """Directory with runs whose p99 of reads, as a ratio of fio's to the disk's, is `apart`."""
    out.mkdir()
    source = {"responses": {"r": {"from": response, "unit": "ms", "better": "lower"}}}
    (out / "study.yaml").write_text(json.dumps(source))
    (out / "plan.json").write_text("{}")
    runs = {"run_id": list(ratios), "valid": [valid] * len(ratios)}
    pq.write_table(pa.table(runs), out / "runs.parquet")
    for run_id, ratio in ratios.items():
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
    (finding,) = tails(outcome)
    assert finding.statement.startswith(
        "In 2 of 3 runs the 99th percentile that fio saw is more than 15 %"
    )
    assert "most in r002: reads, 1.8 ms for 1 ms" in finding.statement
    assert finding.evidence["run_id"] == ["r002", "r003"]


@pytest.mark.parametrize("response", ["read_iops", "read_p50_latency", "write_p99_latency"])
def test_other_responses_are_not_doubted(tmp_path: Path, response: str) -> None:
    assert list(tails(study(tmp_path / "o", response, {"r001": 1.8}))) == []


def test_matching_tails_and_invalid_runs_are_not_doubted(tmp_path: Path) -> None:
    assert list(tails(study(tmp_path / "near", "read_p99_latency", {"r001": 1.1}))) == []
    invalid = study(tmp_path / "invalid", "read_p99_latency", {"r001": 1.8}, valid=False)
    assert list(tails(invalid)) == []
