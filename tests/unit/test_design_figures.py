"""Figures of the design, of surfaces and of means show the values of the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.ledger import ledger
from penstock.campaign.analysis import analyse
from penstock.report import figures, render, style
from tests.unit.recorded_study import record, study_text
from tests.unit.test_sequential import outcome_of, played, study_of
from tests.unit.test_surface import opposed


@pytest.fixture(scope="module")
def two_level(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    factors = dict.fromkeys("abcd", "{levels: [low, high]}")
    text = study_text(factors, "{kind: full, replicates: 2, seed: 3}")
    random = np.random.default_rng(1)
    out = record(
        tmp_path_factory.mktemp("two"),
        text,
        lambda r: {
            "y": 40
            + 10 * r.coded["b"]
            - 5 * r.coded["a"]
            + 4 * r.coded["b"] * r.coded["c"]
            + 2 * r.coded["c"]
            + random.normal()
        },
    )
    analyse(out, report=False)
    return Outcome.read(out)


def tips(fig) -> list[str]:
    return [t for texts in fig.penstock_tips.values() for t in texts]


def test_the_cube_has_means_of_the_three_largest_factors(two_level: Outcome) -> None:
    fig = figures.draw(two_level, "cube", style.WIDE_INCHES)
    labels = tips(fig)
    assert len(labels) == 8
    assert not any(" d " in s or s.startswith("d ") for s in labels)  # the factor without effect
    best = two_level.measured.query("b == 'low' and a == 'high' and c == 'high'")["y"].mean()
    (corner,) = (
        s for s in labels if "b = low" in s or "b low" in s if "a high" in s and "c high" in s
    )
    assert f"{best:.3g}" in corner
    bold = [t for a in fig.axes for t in a.texts if t.get_fontweight() == "bold"]
    assert [t.get_text() for t in bold] == [f"{best:.1f}"]


def test_lost_runs_do_not_move_the_corners_of_the_cube(two_level: Outcome) -> None:
    """A corner was the mean of its runs: one lost run of d = high moved it towards d = low."""
    runs = two_level.measured.assign(y=lambda r: r["y"] + 30 * (r["d"] == "high"))
    corner = runs.query("b == 'low' and a == 'high' and c == 'high'")
    mean = corner.groupby("treatment_id")["y"].mean().mean()
    of_high = corner[corner["d"] == "high"]
    fewer = runs.drop(of_high.index[0])
    # the table of effects chooses the factors, and is unchanged
    labels = tips(figures.draw(replace(two_level, runs=fewer), "cube", style.WIDE_INCHES))
    (label,) = (
        s for s in labels if "low" in s and s.count("high") == 2 and "a high" in s and "c high" in s
    )
    value = float(label.split(": ")[1].split()[0])
    left = of_high["y"].iloc[1]
    other = corner[corner["d"] == "low"]["y"].mean()
    assert value == pytest.approx((left + other) / 2, abs=0.06)
    assert abs(value - mean) < 2
    none = replace(two_level, runs=runs.drop(of_high.index))
    with pytest.raises(style.NotDrawn, match="no valid run of a treatment"):
        figures.draw(none, "cube", style.WIDE_INCHES)


def test_every_level_of_a_factor_has_its_dots(tmp_path: Path) -> None:
    """There are six markers: the runs of a seventh level were left out of the figure."""
    text = study_text(
        {"jobs": "{levels: [1, 2, 4, 8, 16, 32, 64, 128]}", "b": "{levels: [x, y]}"},
        "{kind: full, replicates: 2}",
    )
    out = record(tmp_path, text, lambda r: {"y": float(r.levels["jobs"]) ** (r.levels["b"] == "y")})
    analyse(out, report=False)
    outcome = Outcome.read(out)
    (axes,) = figures.draw(outcome, "responses", style.WIDE_INCHES).axes
    assert sum(len(c.get_offsets()) for c in axes.collections) == len(outcome.measured) == 32
    looks = style.distinct(12)
    assert looks[:6] == style.SERIES
    assert len({(k.colour, k.mark) for k in looks}) == 12


def test_the_design_shows_every_treatment_and_every_run(two_level: Outcome) -> None:
    fig = figures.draw(two_level, "design", style.WIDE_INCHES)
    left, right = fig.axes
    assert sum(len(c.get_offsets()) for c in left.collections) == 16 * 4
    runs = np.vstack([c.get_offsets() for c in right.collections])
    assert sorted(runs[:, 0]) == list(range(1, 33))
    assert len(figures.draw(two_level, "main-effects", style.WIDE_INCHES).axes) == 4


def test_the_star_is_at_the_best_of_the_surface(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    text = study_text(
        {"a": "{levels: [0, 5, 10]}", "b": "{levels: [0, 5, 10]}"},
        "{kind: central-composite, replicates: 3}",
        {"y": "{from: {regex: 'y: ([0-9.]+)'}, unit: s, better: higher}"},
    )
    out = record(
        tmp_path,
        text,
        lambda r: {
            "y": 50
            - (float(r.levels["a"]) - 6) ** 2
            - 2 * (float(r.levels["b"]) - 3) ** 2
            + 0.1 * random.normal()
        },
    )
    analyse(out, report=False)
    fig = figures.draw(Outcome.read(out), "contour", style.WIDE_INCHES)
    (star,) = (c for c in fig.axes[0].collections if c.get_label() == "best of the surface")
    np.testing.assert_allclose(star.get_offsets()[0], [6, 3], atol=0.2)
    assert sum("runs" in t for t in tips(fig)) == 9
    assert render.published(fig, "svg") == render.published(
        figures.draw(Outcome.read(out), "contour", style.WIDE_INCHES), "svg"
    )
    for width in (style.WIDE_INCHES, style.NARROW_INCHES):
        figure = figures.draw(Outcome.read(out), "contour", width)
        render.published(figure, "png")
        assert figure.get_tightbbox().x1 * figure.dpi <= figure.bbox.x1 + 2


def test_figures_without_data_have_a_reason(two_level: Outcome, tmp_path: Path) -> None:
    with pytest.raises(style.NotDrawn, match="two factors of numbers"):
        figures.draw(two_level, "contour", style.WIDE_INCHES)
    with pytest.raises(style.NotDrawn, match="no stages"):
        figures.draw(two_level, "ledger", style.WIDE_INCHES)
    out = opposed(tmp_path)
    analyse(out, report=False)
    with pytest.raises(style.NotDrawn, match="three factors of two levels"):
        figures.draw(Outcome.read(out), "cube", style.WIDE_INCHES)


def test_the_ledger_ends_at_the_best_of_all_runs(tmp_path: Path) -> None:
    study = study_of("{runs: 60, search_runs: 4, confirm: 3}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"] + 4 * c["D"] * c["E"])
    outcome = outcome_of(tmp_path, study, plan, runs)
    table = ledger(outcome)
    assert table is not None
    table.to_parquet(tmp_path / "ledger.parquet")
    fig = figures.draw(outcome, "ledger", style.WIDE_INCHES)
    (line,) = fig.axes[0].lines
    assert line.get_ydata()[-1] == runs["took"].min()
    assert len(tips(fig)) == len(runs)
