"""Figures of studies: equal tables give equal bytes; labels state units and omitted points."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from penstock.analyse.outcome import FactorLevels, Outcome
from penstock.analyse.treatments.means import ranking
from penstock.campaign.analysis import analyse
from penstock.errors import BadInput
from penstock.report import figures, render, style
from penstock.report.figures import effects
from penstock.report.figures.effects import fitted_means
from penstock.report.figures.marks import keep_extremes
from penstock.report.figures.series import selected_runs, verdicts
from tests.examples.report import write_example
from tests.unit.answered_studies import CASES
from tests.unit.planted_study import Planted

#: kinds for which the example study has tables; test_design_figures.py covers the others
DRAWN = [kind for kind in figures.KINDS if kind not in ("contour", "ledger")]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Outcome.read(write_example(tmp_path_factory.mktemp("study") / "out", events=5000))


@pytest.fixture(scope="module")
def figure_of(outcome: Outcome) -> Callable[[str], Figure]:
    """Wide figure of a kind, plotted once for all tests."""
    return functools.cache(lambda kind: figures.draw(outcome, kind, style.WIDE_INCHES))


@pytest.mark.parametrize("kind", DRAWN)
def test_bytes_depend_only_on_the_tables(
    outcome: Outcome, figure_of: Callable[[str], Figure], kind: str
) -> None:
    first, second = figure_of(kind), figures.draw(outcome, kind, style.WIDE_INCHES)
    for extension, magic in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        content = render.published(first, extension)
        assert content.startswith(magic)
        assert content == render.published(second, extension)


@pytest.mark.parametrize("kind", DRAWN)
def test_axes_have_units(figure_of: Callable[[str], Figure], kind: str) -> None:
    fig = figure_of(kind)
    labels = " ".join(a.get_xlabel() + a.get_ylabel() for a in fig.axes)
    if kind == "cube":
        labels = fig.axes[0].get_title(loc="left")
    assert "(" in labels or "÷" in labels or kind == "design"


@pytest.mark.parametrize("width", [style.WIDE_INCHES, style.NARROW_INCHES])
@pytest.mark.parametrize("kind", DRAWN)
def test_no_text_is_clipped(
    outcome: Outcome, figure_of: Callable[[str], Figure], kind: str, width: float
) -> None:
    wide = width == style.WIDE_INCHES
    fig = figure_of(kind) if wide else figures.draw(outcome, kind, width)
    box = fig.bbox
    inside = fig.get_tightbbox()
    assert inside.x0 * fig.dpi >= box.x0 - 2
    assert inside.x1 * fig.dpi <= box.x1 + 2
    assert inside.y0 * fig.dpi >= box.y0 - 2


def test_downsampling_keeps_extremes_of_each_bin() -> None:
    rng = np.random.default_rng(1)
    x = np.arange(100_000.0)
    y = rng.random(100_000)
    y[[5, 77_777]] = (-3.0, 9.0)
    indices = keep_extremes(x, y, 1800)
    assert len(indices) <= 1800
    assert {5, 77_777} <= set(indices.tolist())
    assert np.all(np.diff(indices) > 0)
    assert len(keep_extremes(x[:100], y[:100], 1800)) == 100


def test_labels_state_the_number_of_plotted_points(outcome: Outcome) -> None:
    fig = figures.draw(outcome, "offsets", 7.2)
    assert all("shown" in a.get_xlabel() and "of 5,000" in a.get_xlabel() for a in fig.axes[:6])


def test_selected_runs_cover_levels_and_verdicts(outcome: Outcome) -> None:
    chosen = selected_runs(outcome, "io_events")
    assert 3 <= len(chosen) <= 6
    for factor in outcome.factors:
        assert {outcome.levels(r)[factor.name] for r in chosen} == set(factor.levels)
    classes = {c for r in chosen for _, c in verdicts(outcome, r)}
    assert classes == {"random", "consecutive", "interleaved(8)"}


def test_palette_distinguishes_series_without_colour() -> None:
    assert len({(s.mark, str(s.line)) for s in style.SERIES}) == len(style.SERIES)


def test_unknown_names_are_bad_input(outcome: Outcome, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected one of"):
        figures.draw(outcome, "pie", 7.2)
    with pytest.raises(BadInput, match="found response"):
        figures.draw(outcome, "effects", 7.2, response="speed")
    with pytest.raises(BadInput, match="found run"):
        figures.draw(outcome, "offsets", 7.2, run_ids=["r999"])
    with pytest.raises(BadInput, match=r"expected \.svg"):
        render.published(figures.draw(outcome, "fidelity", 7.2), "gif")


@pytest.mark.parametrize("width", [style.WIDE_INCHES, style.NARROW_INCHES])
def test_treatments_are_labelled_in_the_order_of_their_table(
    outcome: Outcome, width: float
) -> None:
    fig = figures.draw(outcome, "responses", width)
    (axes,) = fig.axes
    fig.canvas.draw()
    left = axes.get_window_extent().x0
    labels = [label for label in axes.get_yticklabels() if label.get_text()]
    assert all(label.get_window_extent().x1 < left for label in labels)
    assert not axes.texts
    names = [" ".join(label.get_text().split()) for label in labels]
    ranked = ranking(outcome, outcome.responses[0]).treatments
    assert names == [outcome.phrase(mean.levels) for mean in ranked]
    assert [t.get_text() for legend in fig.legends for t in legend.texts] in ([], ["left out"])


def test_axis_numbers_are_formatted_as_in_tables(tmp_path: Path) -> None:
    truth = {"a": 21_000.0, "b": 4_000.0}
    study = Planted("Which?", {"kind": [*truth]}, lambda lv: {"throughput": truth[lv["kind"]]})
    analysed = analyse(study.write(tmp_path / "out"), report=False).outcome
    assert analysed is not None
    (axes,) = figures.draw(analysed, "responses", style.WIDE_INCHES).axes
    ticks = axes.xaxis.get_major_formatter().format_ticks(axes.get_xticks())
    assert "20,000" in ticks


def test_names_of_levels_are_not_formulas(tmp_path: Path) -> None:
    truth = {"$a^$": 2.0, "b": 1.0}
    study = Planted("Which?", {"kind": [*truth]}, lambda lv: {"throughput": truth[lv["kind"]]})
    analysed = analyse(study.write(tmp_path / "out"), report=False).outcome
    assert analysed is not None
    (axes,) = figures.draw(analysed, "responses", style.WIDE_INCHES).axes
    assert "$a^$" in [label.get_text() for label in axes.get_yticklabels()]


def test_means_of_an_interaction_are_adjusted_for_the_other_factors() -> None:
    """Level c2 was run only with a2 and b2: the raw mean of that cell is 40 higher."""
    factors = [FactorLevels(name, [f"{name}1", f"{name}2"]) for name in "abc"]
    rows = [(a, b, "c1") for a in factors[0].levels for b in factors[1].levels]
    rows += [("a2", "b2", "c2")] * 4
    runs = pd.DataFrame(rows, columns=["a", "b", "c"])
    runs["_v"] = 10.0 + 50 * (runs["c"] == "c2") + 8 * ((runs["a"] == "a2") & (runs["b"] == "b2"))
    means = fitted_means(factors, runs, ["a:b"])["a:b"]
    assert means["a2", "b2"] - means["a1", "b1"] == pytest.approx(8)
    # a pair without runs has no mean
    means = fitted_means(factors[:2], runs[runs["b"] == "b1"], ["a:b"])["a:b"]
    assert np.isnan(means["a1", "b2"])


def test_only_significant_interactions_are_plotted(tmp_path: Path) -> None:
    names = ("disk", "journal")
    study = Planted(
        "Which?",
        {name: ["one", "two"] for name in names},
        lambda lv: {"throughput": 100.0 * (1 + sum(lv[name] == "two" for name in names))},
        noise=0.001,
    )
    flat = analyse(study.write(tmp_path / "flat"), report=False).outcome
    assert flat is not None
    table = flat.effects
    assert table is not None
    table.loc[table["term"] == "disk:journal", ["p_value", "p_holm"]] = 0.9
    with pytest.raises(style.NotDrawn, match="no interaction of two factors in throughput"):
        figures.draw(flat, "interactions", style.WIDE_INCHES)


def test_offsets_need_more_than_pattern_mode(tmp_path: Path) -> None:
    case = CASES["two-by-three-with-interaction"]
    traced = Outcome.read(case.study.write(tmp_path / "out"))
    with pytest.raises(style.NotDrawn, match=r"only verdicts on patterns.*`mode: pattern`"):
        figures.draw(traced, "offsets", style.WIDE_INCHES)


def test_curvature_is_not_coloured_as_interaction() -> None:
    colours = {effects._colour({"term": term}) for term in ("jobs", "jobs:jobs", "disk:jobs")}
    assert colours == {style.BLUE, style.GREEN, style.ORANGE}
