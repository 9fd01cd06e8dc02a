"""Comparison of predictions with measured runs: formats, matching and report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from penstock.analyse.statistics.calibration import read_pairs
from penstock.errors import BadInput
from penstock.parts.prediction.measured_comparison import beside, cancelling, mean_interval
from penstock.parts.prediction.measured_runs import MeasuredRun, Span, measured_runs
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.queue_network.task_times import task_times
from penstock.parts.prediction.report import measured_text
from penstock.parts.prediction.report.prediction import page
from penstock.parts.prediction.workloads.read import read_workload
from tests.examples.prediction import prediction
from tests.unit.test_predict_network import (  # noqa: F401 (place is a fixture)
    ASSUMED,
    CLUSTER,
    place,
    platform,
    reduction,
    run,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "wfformat"
SPANS = [
    {"name": f"map{i}", "start_s": 1.0 + i % 4, "end_s": 4.0 + i % 4 + i // 7} for i in range(8)
]


def file(tmp_path: Path, *runs: Any, name: str = "m.json", **more: Any) -> str:
    document = {"schema": "penstock/measured/1", "runs": list(runs), **more}
    (tmp_path / name).write_text(json.dumps(document))
    return str(tmp_path / name)


def test_stages_and_makespan_follow_from_complete_tasks(tmp_path: Path) -> None:
    last = {"name": "reduce0", "start_s": 8.5, "end_s": 9.25}
    (measured,) = measured_runs([file(tmp_path, {"tasks": [*SPANS, last]})], reduction())
    # maps from 1.0 to 8.0 (map7 takes a second longer), the run from 1.0 to 9.25
    assert measured.stages["map"] == Span(7.0, 1.0, 8.0)
    assert measured.stages["reduce"] == Span(0.75, 8.5, 9.25)
    assert measured.makespan_s == 8.25
    one_less = {"makespan_s": 9, "tasks": [*SPANS[1:], last]}
    (incomplete,) = measured_runs([file(tmp_path, one_less)], reduction())
    assert "map" not in incomplete.stages, "a stage with a missing task has no time"
    with pytest.raises(BadInput, match=r"m\.json, run 1: found neither a makespan nor"):
        measured_runs([file(tmp_path, {"tasks": SPANS})], reduction())


def test_table_and_document_are_equivalent(tmp_path: Path) -> None:
    rows = [
        {"run": "a", "kind": "run", "lasts_s": 9.5},
        {"run": "a", "kind": "stage", "name": "map", "start_s": 0.5, "end_s": 7.0},
        {"run": "a", "kind": "task", "name": "map3", "lasts_s": 3.25},
        {"run": "b", "kind": "run", "start_s": 1.0, "end_s": 9.0},
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "m.csv", index=False)
    pd.DataFrame(rows).to_parquet(tmp_path / "m.parquet")
    for name in ("m.csv", "m.parquet"):
        a, b = measured_runs([str(tmp_path / name)], reduction())
        assert (a.makespan_s, b.makespan_s) == (9.5, 8.0)
        assert a.stages == {"map": Span(6.5, 0.5, 7.0)}
        assert a.tasks == {"map3": Span(3.25)}
        assert (b.stages, b.tasks) == ({}, {})


@pytest.mark.parametrize("version", ["1.2", "1.3", "1.4", "1.5", "1.6"])
def test_executed_wfformat_instance_is_a_measured_run(version: str) -> None:
    path = GOLDEN / f"diamond-{version}.json"
    workload = read_workload(path)
    (run,) = measured_runs([str(path)], workload)
    assert run.makespan_s == 9.5
    assert set(run.tasks) == {task.name for task in workload.tasks}
    assert run.tasks[workload.tasks[0].name] == Span(2.0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"makespan_s": 0}, r"m\.json:\d+:\d+: found 0; expected seconds above 0"),
        ({"makespan_s": -1}, "found -1"),
        ({"makespan": 1}, "found the key 'makespan'; expected makespan_s, stages, tasks"),
        ({"makespan_s": 1, "stages": {}}, "expected a list `stages`"),
        ({"makespan_s": 1, "stages": [{"name": "map"}]}, "found no time"),
        (
            {"makespan_s": 1, "stages": [{"name": "map", "start_s": 1, "end_s": 3, "lasts_s": 2}]},
            "found start_s, end_s and lasts_s",
        ),
        (
            {"makespan_s": 1, "stages": [{"name": "map", "start_s": 3, "end_s": 1}]},
            r"found an end \(1\) before the start \(3\)",
        ),
        (
            {"makespan_s": 1, "tasks": [{"name": "map1", "lasts_s": "long"}]},
            "'long' as lasts_s",
        ),
        (
            {"makespan_s": 1, "tasks": [{"name": "map1", "lasts_s": 1}] * 2},
            "'map1' as name a second time",
        ),
        ({"makespan_s": 1, "tasks": [{"name": "sort", "lasts_s": 1}]}, "none of them in work"),
    ],
)
def test_errors_in_a_document(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        measured_runs([file(tmp_path, row)], reduction())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,name\n1,x\n", "no column kind"),
        ("kind,name,lasts_s,colour\nrun,,1,red\n", "the column 'colour'"),
        ("kind,kind\nrun,run\n", "the column 'kind'"),
        ("kind,lasts_s\nrun,1\nrun,2\n", r"m\.csv:3: found a second makespan"),
        (
            "kind,lasts_s\nphase,1\n",
            r"m\.csv:2: found the text 'phase' as kind; expected run, stage, task",
        ),
        ("kind,lasts_s\nrun,nan\n", "'nan' as lasts_s"),
        ("kind,lasts_s\nrun,1,2\n", "more cells than columns"),
        ("kind,name,lasts_s\nstage,,1\n", "a stage without name"),
        ("kind,lasts_s\n", "no row"),
    ],
)
def test_errors_in_a_table(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(BadInput, match=message):
        measured_runs([str(tmp_path / "m.csv")], reduction())


def test_other_schemas_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"schema": "penstock/workload/1"}')
    with pytest.raises(BadInput, match="expected penstock/measured/1"):
        measured_runs([str(tmp_path / "m.json")], reduction())
    (tmp_path / "m.parquet").write_text("no Parquet")
    with pytest.raises(BadInput, match="not Parquet"):
        measured_runs([str(tmp_path / "m.parquet")], reduction())


def test_student_interval_of_the_mean() -> None:
    # n = 4, mean 10, s = 1.2910: t(0.95, 3) = 2.3534
    low, high = mean_interval([8.5, 9.5, 10.5, 11.5], 0.9) or (0.0, 0.0)
    assert (low, high) == pytest.approx((10 - 2.35336 * 1.290994 / 2, 10 + 2.35336 * 1.290994 / 2))
    assert mean_interval([8.5], 0.9) is None
    assert (mean_interval([0.1, 1.5], 0.9) or (1.0,))[0] == 0.0, "durations are at least 0"
    assert (mean_interval([-0.1, 1.5], 0.9) or (1.0,))[0] < 0


def stage(name: str, predicted: float, measured: float, half: float | None = None) -> Any:
    return {
        "name": name,
        "predicted_s": predicted,
        "measured_s": measured,
        "measured_low_s": None if half is None else measured - half,
        "measured_high_s": None if half is None else measured + half,
        "error_s": predicted - measured,
    }


def test_cancelling_errors_of_stages() -> None:
    cancelled = cancelling([stage("a", 12, 10), stage("b", 8.5, 10), stage("c", 5, 5)])
    assert cancelled is not None
    assert (cancelled["over"], cancelled["under"]) == (["a"], ["b"])
    assert (cancelled["gross_s"], cancelled["net_s"], cancelled["measured_s"]) == (3.5, 0.5, 25)
    assert cancelling([stage("a", 12, 10), stage("b", 11, 10)]) is None, (
        "both errors have the same sign"
    )
    assert cancelling([stage("a", 12, 10), stage("b", 9.5, 10)]) is None, (
        "most of the error remains in the sum"
    )
    assert cancelling([stage("a", 10.2, 10), stage("b", 9.8, 10)]) is None, (
        "the errors are too small"
    )
    noisy = [stage("a", 12, 10, 3.0), stage("b", 8.5, 10, 3.0)]
    assert cancelling(noisy) is None, "the errors are within the intervals of the means"


def test_tasks_and_stages_are_predicted_with_their_own_intervals() -> None:
    cluster = platform(CLUSTER + ASSUMED)
    prediction = predict(reduction(), cluster, seeds=19, explained=False)
    rows = {r["name"]: r for r in task_times(reduction(), cluster, seeds=19)}
    assert set(rows) == {*(f"map{i}" for i in range(8)), "reduce0"}
    of_stage = {s["name"]: s for s in prediction.stages}
    # the only task of a stage has the same duration as the stage
    for task_key, stage_key in (("low_s", "lasts_low_s"), ("high_s", "lasts_high_s")):
        assert rows["reduce0"][task_key] == pytest.approx(of_stage["reduce"][stage_key])
    assert rows["reduce0"]["predicted_s"] == pytest.approx(
        of_stage["reduce"]["end_s"] - of_stage["reduce"]["start_s"]
    )
    assert rows["map0"]["low_s"] < rows["map0"]["predicted_s"] < rows["map0"]["high_s"]


def test_comparison_matches_by_name_and_counts_runs() -> None:
    result = predict(reduction(), platform(), seeds=19, explained=False)
    lasts = {s["name"]: s["end_s"] - s["start_s"] for s in result.stages}
    off = lasts["map"] / 2
    runs = [
        MeasuredRun(
            "x",
            result.makespan_s + more,
            {"map": Span(lasts["map"] - off), "reduce": Span(lasts["reduce"] + off)},
            {"map1": Span(2.0 + more), "elsewhere": Span(1.0)},
        )
        for more in (0.0, 100.0)
    ]
    tasks = [{"name": "map1", "predicted_s": 3.0, "low_s": 2.5, "high_s": 3.5}]
    m = beside(result, runs, tasks)
    assert (m["runs"], m["inside_runs"], m["inside"]) == (2, 1, False)
    assert m["ratio"] == pytest.approx(result.makespan_s / (result.makespan_s + 50))
    assert [r["name"] for r in m["stages"]] == ["map", "reduce"]
    assert m["stages"][0]["error_s"] == pytest.approx(off)
    assert m["tasks"][0]["measured_s"] == 52.0
    assert m["unmatched"]["tasks_not_predicted"] == ["elsewhere"]
    assert m["cancelling"]["net_s"] == pytest.approx(0, abs=1e-9)
    assert m["cancelling"]["gross_s"] == pytest.approx(2 * off)
    assert not m["overlap"]


def test_report_names_cancelling_errors_and_unmatched_tasks() -> None:
    p = prediction()
    sentences = " ".join(measured_text.sentences(p))
    assert "Stage errors cancel in the sum" in sentences
    assert "mProject too short" not in sentences
    assert "mProject too long by" in sentences
    assert "1 task not predicted: unheard-of." in sentences
    assert "2 of 2 runs inside" in sentences
    first = measured_text.tables(p)[0]
    assert first.columns == (
        "",
        "#predicted",
        "#90 % of runs",
        "#measured",
        "#90 % of its mean",
        "#runs",
        "#ratio",
    )
    assert [row[0] for row in first.rows][:2] == ["the whole run", "mProject"]
    text = page(p)
    assert 'id="measured"' in text
    assert "Stage errors cancel" in text


def test_command_stores_one_pair_of_several_measurements(
    place: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = file(
        place,
        {"makespan_s": 8.0, "stages": [{"name": "map", "lasts_s": 7.0}]},
        {"makespan_s": 8.5, "tasks": [{"name": "map1", "lasts_s": 3.0}]},
    )
    argv = ("w.json", "-p", "p.yaml", "--no-explain", "--calibration", "pairs.json")
    argv += ("--seeds", "19", "--measured", path, "--measured", "9s")
    status, out, err = run(capsys, monkeypatch, *argv, "--json")
    assert status == 0, err
    m = json.loads(out)["measured"]
    assert (m["runs"], m["measured_s"], m["pairs"]) == (3, 8.5, 1)
    assert [p.measured for p in read_pairs(place / "pairs.json")] == [8.0]
    assert (m["stages"][0]["runs"], m["tasks"][0]["runs"]) == (1, 1)
    assert m["stages"][0]["low_s"] < m["stages"][0]["predicted_s"] < m["stages"][0]["high_s"]
    status, out, err = run(capsys, monkeypatch, *argv)
    assert status == 0, err
    assert "Predicted and measured:" in out
    assert "Tasks, predicted and measured:" in out
