"""Designs that fit a surface: the fitted optimum is the answer, and its next step can be run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.text import Annotation

from penstock.analyse.outcome import Outcome
from penstock.campaign.analysis import Analysis, analyse
from penstock.report.figures.designs import contour
from penstock.study.load import load_study
from penstock.text import HEADLINE
from tests.unit.planted_study import Levels, Planted

FIVE = {"batch": [10, 50, 90], "threads": [2, 8, 14], "delay": [0, 5, 10], "a": [1, 2, 3]}
FIVE |= {"b": [1, 2, 3]}
THREE = {"cache": [100, 300, 500], "threads": [4, 16, 28], "batch": [10, 50, 90]}


def analysed(
    out: Path,
    truth: Callable[[Levels], float],
    question: str = "Which setting is best?",
    factors: dict[str, list[int]] = THREE,
    kind: str = "central-composite",
    better: str = "lower",
    noise: float = 0.01,
) -> Analysis:
    study = Planted(
        question,
        factors,
        lambda levels: {"value": truth(levels)},
        {"value": ("ms", better)},
        noise=noise,
        replicates=2,
        kind=kind,
    )
    return analyse(study.write(out), report=False)


def coded(levels: Levels, name: str, factors: dict[str, list[int]] = THREE) -> int:
    return factors[name].index(int(levels[name])) - 1


def bowl(levels: Levels) -> float:
    """Minimum of 20 at cache 400 and 10 threads."""
    return 20 + 8 * (coded(levels, "cache") - 0.5) ** 2 + 8 * (coded(levels, "threads") + 0.5) ** 2


def hill(levels: Levels) -> float:
    """Maximum of 400 at batch 70."""
    return 400 - 200 * (coded(levels, "batch", FIVE) - 0.5) ** 2


def test_optimum_of_a_central_composite_is_the_choice(tmp_path: Path) -> None:
    result = analysed(tmp_path / "out", bowl)
    assert result.conclusion is not None
    first = result.conclusion.first
    assert first.code == "optimum"
    assert set(first.evidence["at"]) == {"cache", "threads"}
    assert first.evidence["at"]["cache"] == pytest.approx(400, abs=20)
    assert first.evidence["at"]["threads"] == pytest.approx(10, abs=1)
    headline = result.conclusion.headline
    assert headline.startswith("Choose cache ")
    assert "(fitted, not run): value is 19.9 ms (19.7–20.1), 16 % (" in headline
    assert "the best measured" in headline
    assert headline.endswith(" Likely.")
    assert "batch" not in headline
    assert len(first.statement.split()) <= HEADLINE
    assert not any(label == "Best" for label, _ in result.conclusion.points)


def test_question_for_values_of_a_definitive_screening(tmp_path: Path) -> None:
    question = "Which settings matter, and which values are best?"
    result = analysed(tmp_path / "out", hill, question, FIVE, "definitive-screening", "higher")
    assert result.conclusion is not None
    assert result.conclusion.first.evidence["at"] == {"batch": pytest.approx(70, abs=3)}
    assert "14 % more than with batch 90" in result.conclusion.headline
    points = dict(result.conclusion.points)
    assert points["Main factor"].startswith("1 of 5 factors matters for value: batch (90 adds ")


def test_question_for_factors_of_a_definitive_screening(tmp_path: Path) -> None:
    result = analysed(
        tmp_path / "out", hill, "Which settings matter?", FIVE, "definitive-screening", "higher"
    )
    assert result.conclusion is not None
    assert result.conclusion.first.code == "screening"


def test_next_step_runs_the_optimum(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = analysed(out, bowl)
    assert result.conclusion is not None
    at = result.conclusion.first.evidence["at"]
    _, command, _ = result.conclusion.first.what_to_do.split("`")
    changes = [word for word in shlex.split(command) if word.startswith("factors.")]
    again = load_study(out / "study.yaml", changes)
    for factor in again.factors:
        if factor.name in at:
            assert [v.value for v in factor.levels][1] == at[factor.name]


def test_optimum_at_the_edge_is_reported(tmp_path: Path) -> None:
    def slope(levels: Levels) -> float:
        return 40 - 8 * coded(levels, "cache") + 8 * (coded(levels, "threads") + 0.5) ** 2

    result = analysed(tmp_path / "out", slope)
    assert result.conclusion is not None
    assert result.conclusion.first.evidence["at"]["cache"] == 500
    unknown = dict(result.conclusion.points)["Unknown"]
    assert unknown.startswith("cache 500 is the largest that was run: value may be better beyond")
    assert "factors.cache.levels=[400,500,600]" in dict(result.conclusion.points)["Next step"]


def test_measured_optimum_is_a_recommendation(tmp_path: Path) -> None:
    result = analysed(tmp_path / "out", lambda levels: 40.0 - 8 * coded(levels, "cache"))
    assert result.conclusion is not None
    assert result.conclusion.first.code == "recommendation"
    assert "is the largest that was run" in dict(result.conclusion.points)["Unknown"]


def test_ratios_are_used_if_only_they_fit(tmp_path: Path) -> None:
    result = analysed(tmp_path / "out", lambda levels: 2.0 ** (bowl(levels) / 12 - 1), noise=0.001)
    assert result.conclusion is not None
    assert result.conclusion.first.code == "optimum"
    assert "(ratios)" in result.conclusion.first.detail
    assert result.conclusion.first.evidence["at"]["cache"] == pytest.approx(400, abs=5)


def test_bad_fit_has_no_optimum(tmp_path: Path) -> None:
    def corner(levels: Levels) -> float:
        return bowl(levels) + 8 * coded(levels, "cache") * coded(levels, "threads") ** 2

    result = analysed(tmp_path / "out", corner, noise=0.001)
    assert result.conclusion is not None
    assert result.conclusion.first.code == "recommendation"


def test_contour_plot_labels_the_optimum(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = analysed(out, bowl)
    assert result.conclusion is not None
    outcome = Outcome.read(out)
    axes = contour(outcome, outcome.responses[0], 6.0).axes[0]
    (label,) = (a.get_text() for a in axes.texts if isinstance(a, Annotation))
    choice, value = label.split(":\n")
    assert result.conclusion.headline.startswith(f"Choose {choice} (fitted")
    assert f"value is {value}" in result.conclusion.headline
    assert "batch" not in axes.get_title()
