"""Hadoop job histories: complete, truncated, in two parts and in plain JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from penstock import testing
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.plugins import METRIC_READERS
from penstock.workload import metrics

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"
DONE, FAILED = GOLDEN / "hadoop.jhist", GOLDEN / "hadoop-failed.jhist"


def events(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Type and body of each event, parsed without the tested reader."""
    rows = []
    for line in path.read_text().splitlines():
        if line.startswith('{"type":"') and '"namespace"' not in line:
            event = json.loads(line)
            rows.append((event["type"], next(iter(event["event"].values()))))
    return rows


def test_tasks_and_stages_of_a_history() -> None:
    assert metrics.reader_of(DONE) == "hadoop"
    readings = metrics.read(DONE)
    tasks, stages = readings.tables["spark_tasks"], readings.tables["spark_stages"]
    recorded = events(DONE)
    ends = {b["attemptId"]: b for t, b in recorded if t.endswith("ATTEMPT_FINISHED")}
    begins = {b["attemptId"]: b for t, b in recorded if t.endswith("ATTEMPT_STARTED")}
    assert len(ends) == 7
    times = sorted((ends[a]["finishTime"] - begins[a]["startTime"]) / 1e3 for a in ends)
    assert sorted(tasks["time_s"]) == pytest.approx(times, abs=1e-9)
    # times are exact: float64 has a resolution of 256 ns here
    assert set(tasks["utc_finish_ns"]) == {b["finishTime"] * 1_000_000 for b in ends.values()}
    assert stages["utc_end_ns"].max() == max(b["finishTime"] for b in ends.values()) * 1_000_000
    assert stages[["name", "tasks", "slots", "waves"]].to_numpy().tolist() == [
        ["map", 5, 2, 3],
        ["reduce", 2, 2, 1],
    ]
    read = [
        next(
            c["value"]
            for g in b["counters"]["groups"]
            for c in g["counts"]
            if c["name"] == "HDFS_BYTES_READ"
        )
        for b in ends.values()
    ]
    assert tasks["read_bytes"].sum() == sum(read) > 5 * 30_000
    facts = readings.facts["hadoop"]
    job = dict(recorded)
    assert facts["complete"]
    assert (facts["state"], facts["waves"]) == ("SUCCEEDED", 4)
    duration_ms = job["JOB_FINISHED"]["finishTime"] - job["JOB_SUBMITTED"]["submitTime"]
    assert facts["run_time_s"] == duration_ms / 1e3
    assert 0 < facts["post_job_s"] < 5
    running = readings.samples[readings.samples["entity"] == "all"]
    assert running["value"].max() == 2
    assert running["value"].iloc[-1] == 0


def test_slots_can_be_given() -> None:
    readings = metrics.read(DONE, None, {"slots": 4})
    assert readings.tables["spark_stages"]["waves"].tolist() == [2, 1]
    assert not any("slots" in note for note in readings.notes)
    with pytest.raises(BadInput, match="found slots 'many'; expected an integer"):
        metrics.read(DONE, None, {"slots": "many"})


def test_failed_attempts_are_counted_by_reason() -> None:
    readings = metrics.read(FAILED)
    tasks = readings.tables["spark_tasks"]
    assert tasks["state"].tolist() == ["failed", "failed"]
    assert tasks["time_s"].isna().all()
    facts = readings.facts["hadoop"]
    assert facts["not_succeeded"] == {"failed Exception from container-launch.": 2}
    assert facts["state"] == "FAILED"
    assert "1 attempts ended before they were launched" in readings.notes


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_history_is_read_up_to_its_end(share: float, tmp_path: Path) -> None:
    content = DONE.read_bytes()
    path = tmp_path / "cut.jhist"
    path.write_bytes(content[: int(share * len(content))])
    readings = metrics.read(path)
    facts = readings.facts["hadoop"]
    assert not facts["complete"]
    assert facts["run_time_s"] is None
    assert any("has not ended" in note for note in readings.notes)
    lines = path.read_bytes().decode(errors="ignore").splitlines()
    started = sum("_ATTEMPT_STARTED" in k and k.endswith("}}}") for k in lines)
    assert len(readings.tables["spark_tasks"]) == started
    packed = tmp_path / "packed.jhist"
    packed.write_bytes(gzip.compress(content)[: int(share * len(gzip.compress(content)))])
    assert any("in the middle" in note for note in metrics.read(packed, "hadoop").notes)


def test_histories_of_a_restarted_master_are_joined(tmp_path: Path) -> None:
    lines = DONE.read_bytes().splitlines(keepends=True)
    parts = tmp_path / "parts"
    parts.mkdir()
    # the second file repeats the events of the first, which ends within a line
    (parts / "job_1_1.jhist").write_bytes(b"".join(lines[:20])[:-30])
    (parts / "job_1_2.jhist").write_bytes(b"".join(lines))
    assert metrics.reader_of(parts) == "hadoop"
    both, complete = metrics.read(parts), metrics.read(DONE)
    joined, expected = (r.tables["spark_tasks"].drop(columns="task_id") for r in (both, complete))
    pd.testing.assert_frame_equal(
        joined.sort_values("utc_launch_ns", ignore_index=True),
        expected.sort_values("utc_launch_ns", ignore_index=True),
    )
    assert both.facts["hadoop"]["complete"]
    assert any("its master died" in note for note in both.notes)


def test_plain_json_is_equivalent(tmp_path: Path) -> None:
    plain = tmp_path / "plain.jhist"
    rows = []
    for kind, body in events(DONE):
        unwrapped = {
            k: next(iter(v.values())) if isinstance(v, dict) and set(v) == {"string"} else v
            for k, v in body.items()
        }
        rows.append(json.dumps({"type": kind, "event": unwrapped}))
    plain.write_text("\n".join(rows) + "\n")
    assert metrics.reader_of(plain) == "hadoop"
    pd.testing.assert_frame_equal(
        metrics.read(plain).tables["spark_tasks"], metrics.read(DONE).tables["spark_tasks"]
    )


def test_other_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.jhist"
    path.write_bytes(b"Avro-Binary\nObj\x01\x04")
    with pytest.raises(BadInput, match=r"odd.jhist: found Avro's binary form; expected JSON"):
        metrics.read(path)
    lines = DONE.read_text().splitlines()
    path.write_text("\n".join([*lines[:8], '{"type":"MAP_ATT', *lines[9:]]))
    with pytest.raises(BadInput, match=r"odd.jhist:9: found no JSON; expected an event of Hadoop"):
        metrics.read(path)
    late = json.dumps({"type": "JOB_INITED", "event": {"x": {"launchTime": 10**30}}})
    path.write_text("\n".join([*lines[:6], late]))
    with pytest.raises(BadInput, match=r"odd.jhist:7: found an event with"):
        metrics.read(path)


def test_import_prints_waves(tmp_path: Path) -> None:
    testing.check_metric_reader(METRIC_READERS.load("hadoop"), DONE)
    result = CliRunner().invoke(_build(), ["import", str(DONE), "-o", str(tmp_path / "B")])
    assert result.exit_code == 0, result.output
    assert "word count: 7 tasks in 4 waves" in result.output
