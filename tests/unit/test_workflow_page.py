"""Page and figures of measured workflows: with a prediction, without one, of two stores, of many stages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.archive.schemas import TABLES
from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.applies import Applies, Reason
from penstock.parts.stores.cli.workflow import _OF_RUN, _show
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT, Comparison, _page
from penstock.parts.stores.workflow.report.figures import (
    MOST_STAGES,
    TOTAL,
    longest,
    timed,
    timeline,
    times,
)
from penstock.parts.stores.workflow.report.page import Contents, headline, page, write_report
from penstock.parts.stores.workflow.result import Result
from penstock.parts.stores.workflow.running.executed import Executed
from penstock.parts.stores.workflow.spread import Spread
from penstock.report import style
from tests.examples.prediction import STAGES, prediction


def executed(stage_s: dict[str, float], factor: float = 1.0) -> Executed:
    """A run of consecutive stages with one task each, on node-10 and node-2 in turn."""
    tasks, at = [], 0.0
    for number, (stage, seconds) in enumerate(stage_s.items()):
        times = {"ready_s": at, "sent_s": at, "start_s": at, "end_s": at + factor * seconds}
        host = ("node-10", "node-2")[number % 2]
        spans = dict.fromkeys(("decision_s", "dispatch_s", "launch_s", "tag_s", "locate_s"), 0.0)
        tasks.append({"task": f"t{number}", "stage": stage, "host": host, **times, **spans})
        at += factor * seconds
    operations = pa.Table.from_pylist([], TABLES["workflow_operations"].arrow)
    return Executed(at, pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow), operations)


def measured(predicted: Prediction | None, *factors: float) -> Result:
    """Runs that took `factors` times the predicted time of each stage."""
    stage_s = {s["name"]: s["end_s"] - s["start_s"] for s in prediction().stages}
    runs = [executed(stage_s, factor) for factor in factors]
    return Result("montage", "cluster", "moosefs", runs, prediction=predicted)


def contents(result: Result) -> Contents:
    return Contents("montage on cluster", headline(result), {"cluster": result}, ["a sentence"])


def test_stages_have_measured_and_predicted_times() -> None:
    total, *stages = timed(measured(prediction(), 0.9, 1.1))
    assert total.name == TOTAL
    assert [row.name for row in stages] == list(STAGES)
    assert all(row.off == pytest.approx(0) for row in stages)
    assert timed(measured(prediction(), 2.0))[1].off == pytest.approx(-0.5)
    assert timed(measured(None, 2.0))[1].off is None
    unknown = replace(prediction(), stages=prediction().stages[1:])
    assert timed(measured(unknown, 1.0))[1].predicted_s is None


def test_the_page_shows_the_prediction_next_to_the_runs(tmp_path: Path) -> None:
    result = measured(prediction(), 1.9, 2.1)
    assert (
        write_report(contents(result), tmp_path / "out", "result") == tmp_path / "out/result.html"
    )
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert names == {f"{n}.{kind}" for n in ("times", "timeline") for kind in ("svg", "pdf")}
    text = (tmp_path / "out" / "result.html").read_text()
    assert "on average of 2 runs; " in text
    assert "−50 %" in text
    assert all(stage in text for stage in (TOTAL, *STAGES))
    assert "mProject, run 1: " in text
    assert "mProject: predicted " in text
    assert "<li>a sentence</li>" in text
    assert not re.search(r'(src|href)="[^#]', text)


def test_a_prediction_outside_of_the_model_is_withheld() -> None:
    assert re.search(r"; predicted: [\d.]+ s", headline(measured(prediction(), 1.0)))
    withheld = Applies.of([Reason("read-ahead", "outside", "clients read too far ahead")])
    text = headline(measured(replace(prediction(), applies=withheld), 1.0))
    assert text.endswith("; not predicted: clients read too far ahead.")


def test_without_a_prediction_the_page_shows_measured_times() -> None:
    text = page(contents(measured(None, 1.0)))
    assert "predict" not in text.partition("</style>")[2].partition("<script>")[0]
    assert "mProject, run 0: " in text
    assert "t0 (mProject) on node-10: " in text


def test_a_comparison_has_a_panel_and_a_timeline_for_each_store(tmp_path: Path) -> None:
    sides = {DEFAULT: measured(prediction(), 2.0), AWARE: measured(prediction(), 1.0)}
    compared = Comparison(sides, [DEFAULT, AWARE], Spread(1.0), Spread(1.0))
    text = _page(compared, tmp_path).read_text()
    assert compared.sentences()[0].partition(":")[0] in text
    for name in (DEFAULT, AWARE):
        assert (tmp_path / "figures" / f"timeline-{name}.svg").is_file()
        assert f"<h3>{name}</h3>" in text
    panels = {name: timed(result) for name, result in sides.items()}
    with style.look():
        figure = times(panels, style.WIDE_INCHES)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [DEFAULT, AWARE]


def test_of_many_stages_the_longest_are_shown() -> None:
    stage_s = {f"s{i}": 1.0 + i for i in range(MOST_STAGES + 6)}
    result = replace(measured(None, 1.0), runs=[executed(stage_s)])
    shown = [row.name for row in longest(timed(result))]
    assert shown == [TOTAL, *list(stage_s)[6:]]
    assert f"The {MOST_STAGES} longest stages are shown." in page(contents(result))


def test_names_of_stages_are_no_formulas_and_nodes_are_in_order() -> None:
    result = replace(measured(None, 1.0), runs=[executed({r"$\frac$": 1.0, "b": 2.0})])
    with style.look():
        figure = style.settled(timeline(result, 3.0, style.WIDE_INCHES))
        style.settled(times({"cluster": timed(result)}, style.WIDE_INCHES))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["node-2", "node-10"]
    assert r"$\frac$, run 0: " in page(contents(result))


def test_the_error_has_the_form_of_the_page() -> None:
    result = measured(prediction(), 1 / 0.9907)
    assert result.sentences()[0] == "The prediction is −0.93 % off the run."
    assert "predicted (−0.93\u00a0%)" in page(contents(result))


def test_the_output_names_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    _show(replace(measured(None, 1.0), page=Path("out/result.html")), *_OF_RUN, False)
    assert capsys.readouterr().out.splitlines()[-1] == "Wrote out/result.html."
