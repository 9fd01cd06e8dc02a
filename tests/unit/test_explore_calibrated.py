"""Explorations with measured runs: overlapping intervals are undecided, wide ones get a caution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.analyse.statistics.calibration import Pair, add_pairs
from penstock.parts.prediction.exploration.calibrated import calibration_of
from penstock.parts.prediction.exploration.document import document
from penstock.parts.prediction.exploration.recommend import Recommendation, recommend
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.run import Exploration, Question, Settings, explore
from penstock.parts.prediction.exploration.space.expression import parse_constraint, parse_objective
from penstock.parts.prediction.report.exploration import Named, page
from tests.examples.explore import Known, Quiet, space_of
from tests.unit.test_predict_network import place  # noqa: F401 (a fixture)

TIMES = {2: 100.0, 4: 108.0, 6: 130.0}


def off_by(share: float, n: int = 12) -> list[Pair]:
    """`n` measured runs: two are off by `share`, all others by less than a tenth of it."""
    errors = [share / 10 * (i % 3) for i in range(n - 2)] + [share, -share]
    return [Pair(f"w{i}", "cluster", 50.0 + i, (50.0 + i) * (1 + e)) for i, e in enumerate(errors)]


def explored(
    share: float | None,
    objective: str | None = "time",
    n: int = 12,
    constraints: tuple[str, ...] = (),
    times: dict[int, float] = TIMES,
    **options: Any,
) -> tuple[Exploration, Recommendation]:
    space = space_of(f"hosts.app.count={','.join(map(str, times))}")
    evaluator = Known(
        space, lambda v: times[v["hosts.app.count"]], common=0.02, independent=0.0001, **options
    )
    question = Question(
        None if objective is None else parse_objective(objective),
        tuple(parse_constraint(c) for c in constraints),
    )
    pairs = calibration_of([] if share is None else off_by(share, n))
    exploration = explore(Record(space, evaluator), question, Settings(), Quiet(), pairs)
    return exploration, recommend(exploration)


def labels(exploration: Exploration, rec: Recommendation) -> list[str]:
    return [exploration.space.labels(c)["hosts.app.count"] for c in rec.run]


def test_half_width_is_split_conformal() -> None:
    calibration = calibration_of(off_by(0.05))
    # k = ceil(13 * 0.9) = 12 of 12: the largest
    assert (calibration.pairs, calibration.rank, calibration.status) == (12, 12, "calibrated")
    assert calibration.half_width == pytest.approx(0.05)
    assert calibration.ends(100.0) == pytest.approx((95.0, 105.0))
    many = calibration_of(off_by(0.05, 40))  # k = 37 of 40: the fourth largest
    assert many.half_width == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("share", "run"),
    [
        # 100 (1 + h) against 108 (1 - h) and 130 (1 - h) overlap from h = 3.85 % and 13.04 %
        (0.038, None),
        (0.039, ["2", "4"]),
        (0.130, ["2", "4"]),
        (0.131, ["2", "4", "6"]),
    ],
)
def test_overlapping_intervals_are_not_decided(share: float, run: list[str] | None) -> None:
    exploration, rec = explored(share, price=None)
    if run is None:
        assert rec.state == "decided"
        assert exploration.space.labels(rec.candidate)["hosts.app.count"] == "2"  # type: ignore[arg-type]
        return
    assert rec.state == "undecided"
    assert rec.candidate is None
    assert labels(exploration, rec) == run
    many = "two" if len(run) == 2 else "3"
    assert f"the calibrated intervals of {many} configurations overlap, 90 % of runs" in rec.text
    assert f"run these {len(run)}: 2 application hosts; 4 application hosts" in rec.text
    assert "by 12 measured runs" in rec.text


def test_the_possible_loss_of_the_best_is_reported() -> None:
    _, rec = explored(0.05, price=None)
    # 105 s against 102.6 s
    assert (
        f"can be {100 * (105 / 102.6 - 1):.1f} % worse than another that overlaps" in rec.notes[0]
    )


def test_without_measured_runs_the_model_decides_with_a_note() -> None:
    exploration, rec = explored(None)
    assert rec.state == "decided"
    assert any("No measured run calibrates" in n and "the model only" in n for n in rec.notes)
    poorly_calibrated, poor_recommendation = explored(0.5, n=8)
    assert poor_recommendation.state == "decided", "eight runs are too few for a calibration"
    assert any(
        "Insufficient calibration: 8 measured runs, 9 needed" in n
        for n in poor_recommendation.notes
    )
    for subject, status in ((exploration, "none"), (poorly_calibrated, "insufficient calibration")):
        assert document(subject, recommend(subject))["calibration"]["status"] == status


@pytest.mark.parametrize(
    ("share", "state", "note"),
    [
        (0.19, "decided", "Calibrated: 90 % of runs within ±19 % of the prediction"),
        (0.21, "decided", "Caution: 90 % of runs within ±21 % of the prediction, by 12 measured"),
        (0.33, "decided", "more than the 20 % that a prediction is to be off at most"),
        (0.34, "none", "may take twice as long as the other and not be distinguished from it"),
    ],
)
def test_a_calibration_too_wide_changes_the_verdict(share: float, state: str, note: str) -> None:
    # far apart, without overlap
    exploration, rec = explored(share, times={2: 100.0, 6: 1000.0})
    assert rec.state == state
    assert note in " ".join([rec.text, *rec.notes])
    assert document(exploration, rec)["calibration"]["verdict"] == (
        "outside" if state == "none" else "caution" if share > 0.2 else "ok"
    )


def test_cost_and_utility_have_the_same_relative_error() -> None:
    # 3 hosts and 100 s against 5 hosts and 108 s: 80 % more expensive, no overlap at 5 %
    assert explored(0.05, "cost")[1].state == "decided"
    assert explored(0.05, "time")[1].state == "undecided"
    assert explored(0.30, "cost")[1].state == "undecided"
    assert explored(0.05, "max 1 / (makespan_s * makespan_s)")[1].state == "undecided"
    # 1.038 squared against 1.08 squared (1 - 0.038)², as with the time itself
    assert explored(0.038, "max 1 / (makespan_s * makespan_s)")[1].state == "decided"


def test_without_objective_the_knee_is_undecided_where_intervals_overlap() -> None:
    times = {2: 130.0, 3: 100.0, 4: 99.0}
    assert explored(0.001, None, times=times)[1].state == "decided"
    exploration, rec = explored(0.1, None, times=times)
    assert rec.state == "undecided"
    # two hosts are nearer to the minimum of cost and energy together than four
    assert labels(exploration, rec)[:2] == ["3", "2"]


def test_a_constraint_that_a_run_may_violate_is_reported() -> None:
    note = "A run of the best may break makespan <= 103 s"
    assert any(note in n for n in explored(0.035, constraints=("makespan <= 103 s",))[1].notes)
    assert not any(
        "may break" in n for n in explored(0.02, constraints=("makespan <= 103 s",))[1].notes
    )


def test_document_and_page_have_the_calibrated_ends() -> None:
    exploration, rec = explored(0.05)
    report = document(exploration, rec)
    row = report["front"][0]
    assert row["calibrated_high_s"] == pytest.approx(1.05 * row["makespan_s"])
    assert row["calibrated_low_s"] == pytest.approx(0.95 * row["makespan_s"])
    assert len(report["calibration"]["overlapping"]) == 1
    text = page(exploration, rec, Named("w", "p"))
    assert "one run of the best, calibrated" in text
    assert "±5 % of the prediction, by 12 measured runs" in text


def test_command_uses_the_pairs_of_its_platform(
    place: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*options: str) -> Any:
        from penstock.cli import main

        argv = ["penstock", "explore", "w.json", "-p", "p.yaml", "--json", "--quiet"]
        argv += ["--vary", "hosts.nodes.count=2,4,8", "--objective", "time", *options]
        argv += ["--set", "assumed=[]"]
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert ended.value.code in (0, None), err
        return json.loads(out)

    assert run()["recommendation"]["state"] == "decided"
    add_pairs(place / "state" / "calibration.json", off_by(0.5))
    worse = run()
    assert worse["calibration"]["pairs"] == 12
    assert worse["recommendation"]["state"] == "none"
    add_pairs(place / "good.json", off_by(0.01))
    assert run("--calibration", "good.json")["calibration"]["verdict"] == "ok"
