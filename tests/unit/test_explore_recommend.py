"""From evaluations to a recommendation: knee, objective, constraints, undecided cases, regret."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.analyse.findings.answer import MOST_POINTS
from penstock.errors import BadInput
from penstock.parts.prediction.exploration.describe import describe
from penstock.parts.prediction.exploration.document import document
from penstock.parts.prediction.exploration.effects import best_over, effects, regret
from penstock.parts.prediction.exploration.recommend import Recommendation, recommend
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.run import Exploration, Question, Settings, explore
from penstock.parts.prediction.exploration.space.expression import parse_constraint, parse_objective
from penstock.parts.prediction.report.exploration import Named, page
from penstock.parts.prediction.report.exploration_figures import short
from penstock.parts.prediction.report.exploration_text import (
    answer,
    compared_table,
    front_table,
    further_notes,
    level_table,
)
from penstock.text import HEADLINE
from tests.examples.explore import BLAST, Known, Quiet, blast_like, space_of


def explored(
    objective: str | None = None,
    constraints: tuple[str, ...] = (),
    axes: tuple[str, ...] = BLAST,
    settings: Settings | None = None,
    truth: Any = blast_like,
    **options: Any,
) -> tuple[Exploration, Recommendation]:
    space = space_of(*axes)
    record = Record(space, Known(space, truth, **options))
    keys = ("hosts.app.count",)
    question = Question(
        None if objective is None else parse_objective(objective),
        tuple(parse_constraint(c, keys=keys) for c in constraints),
    )
    exploration = explore(record, question, settings or Settings(), Quiet())
    return exploration, recommend(exploration)


def truth_best(exploration: Exploration, value: Any) -> Any:
    feasible = [c for c in exploration.space if exploration.record.evaluator.reason(c) is None]
    return min(feasible, key=value)


def test_descriptions_of_configurations() -> None:
    space = space_of("split=app:storage/19", "store.chunk=256KiB,1MiB", "store.replicas=1")
    assert describe(space, (13, 0, 0)) == "14 application + 5 storage hosts, 256 KiB chunks"
    second = space_of(
        "hosts.nodes.count=1..3",
        "store.stripe=all,1",
        "store.replicas=1,2",
        "power.frequency=1.2 GHz,2 GHz",
        "hosts.nodes.storage.profile=hdd-7200,sata-ssd",
        "launch.stagger=1ms,2ms",
    )
    assert describe(second, (0, 0, 0, 1, 1, 0)) == (
        "1 host, stripes over all hosts, 1 replica, at 2 GHz, sata-ssd storage, launch.stagger 1 ms"
    )


def test_the_recommendation_is_the_true_optimum() -> None:
    exploration, rec = explored("time", common=0.05, independent=0.0005)
    truth = truth_best(exploration, lambda c: blast_like(exploration.space.values(c)))
    assert rec.state == "decided"
    assert rec.candidate == truth
    assert rec.text.startswith("12 application + 7 storage hosts, 256 KiB chunks, 1 replica: ")
    assert "the best of 243" in rec.text


def test_the_pareto_set_and_the_knee_match_brute_force() -> None:
    exploration, rec = explored(
        axes=("split=app:storage/19", "hosts.extra.count=1..4"), truth=extra
    )
    points = {c: _point(exploration, c) for c in exploration.space}
    brute = {
        c
        for c, p in points.items()
        if not any(
            all(a <= b for a, b in zip(q, p, strict=True)) and q != p for q in points.values()
        )
    }
    assert set(exploration.front) == brute
    assert len(brute) >= 3
    assert rec.state == "decided"
    assert rec.candidate in brute
    assert "% slower than the fastest" in rec.text
    (time, cost, *_) = rec.ratios
    reference = points[rec.beside]  # type: ignore[index]
    chosen = points[rec.candidate]
    assert time.ratio == pytest.approx(chosen[0] / reference[0])
    assert cost.ratio == pytest.approx(chosen[1] / reference[1])


def extra(values: dict[str, Any]) -> float:
    """Each host of a third group shortens the run a little."""
    split = 1400 / values["hosts.app.count"] + 400 / values["hosts.storage.count"]
    return (20 + split) * (1 - 0.03 * values["hosts.extra.count"])


def _point(exploration: Exploration, candidate: Any) -> tuple[float, ...]:
    mean = exploration.means.of(candidate)
    return tuple(mean[m] for m in exploration.metrics)


def mean_on(exploration: Exploration, candidate: Any, seeds: Any) -> float:
    measures = exploration.record.measures[candidate]
    return float(np.mean([measures[s].makespan_s for s in seeds]))


@pytest.mark.parametrize("objective", [None, "time"])
def test_front_levels_and_heat_map_are_means_over_the_same_seeds(objective: str | None) -> None:
    """Half of a run's time is noise common to all configurations; fewer seeds have another mean."""
    exploration, _ = explored(objective, common=0.5, independent=0.01)
    seeds = exploration.means.seeds
    assert len(seeds) >= 5
    shown = [*exploration.front, *(c.candidate for c in exploration.selection.contenders)]  # type: ignore[union-attr]
    for axis in exploration.effects["makespan_s"]:
        assert len(axis.levels) == len(
            next(a for a in exploration.space.axes if a.name == axis.axis).levels
        )
        for level in axis.levels:
            shown.append(level.candidate)
            assert level.best == pytest.approx(
                mean_on(exploration, level.candidate, seeds), rel=1e-12
            )
    for c in shown:
        expected = mean_on(exploration, c, seeds)
        assert exploration.means.of(c)["makespan_s"] == pytest.approx(expected, rel=1e-12)
    fastest = mean_on(exploration, exploration.front[0], seeds)
    for axis in exploration.effects["makespan_s"]:
        assert min(level.best for level in axis.levels) == pytest.approx(fastest, rel=1e-12)
    names = [a.name for a in exploration.space.axes]
    row, column = (names.index(name) for name in exploration.heat_axes)
    exact = [c for c in exploration.admissible if exploration.means.exact(c)]
    built = {(c[row], c[column]) for c in exploration.admissible}
    assert {(c[row], c[column]) for c in exact} == built
    assert len(exact) < len(exploration.admissible)


def test_the_other_configurations_are_scaled_by_the_noise_of_seed_1() -> None:
    exploration, _ = explored(common=0.5, independent=0.001)
    rest = [c for c in exploration.admissible if not exploration.means.exact(c)]
    seed_1 = [exploration.record.measures[c][1].makespan_s for c in rest]
    on_all = [blast_like(exploration.space.values(c)) for c in rest]
    shared = np.random.default_rng([1]).standard_normal() * 0.5
    assert seed_1[0] / on_all[0] == pytest.approx(1 + shared, rel=0.01)
    common = [
        1 + 0.5 * np.random.default_rng([s]).standard_normal() for s in exploration.means.seeds
    ]
    for c, truth in zip(rest, on_all, strict=True):
        expected = truth * float(np.mean(common))
        assert exploration.means.of(c)["makespan_s"] == pytest.approx(expected, rel=0.01)


def planted(values: dict[str, Any]) -> float:
    """The optimum is 4 hosts; 6 hosts are 0.2 % slower, all others far slower."""
    times = {2: 200.0, 4: 100.0, 6: 100.2, 8: 130.0}
    return times[values["hosts.app.count"]]


def test_a_tie_is_named_in_the_answer_and_marked_in_table_front_and_document() -> None:
    axes = ("hosts.app.count=2,4,6,8",)
    exploration, rec = explored(
        "time", axes=axes, truth=planted, watts=None, common=0.05, independent=0.0001
    )
    assert rec.candidate == (1,)
    assert rec.text.endswith("It ties with 1 other.")
    assert exploration.ties == [(2,)]
    report = document(exploration, rec)
    assert [c["hosts.app.count"] for c in report["recommendation"]["ties"]] == ["6"]
    assert [r["tie"] for r in report["compared"] if r["levels"]["hosts.app.count"] == "6"] == [True]
    assert [r["tie"] for r in report["compared"] if r["levels"]["hosts.app.count"] == "8"] == [
        False
    ]
    verdicts = {row[0]: row[3] for row in compared_table(exploration).rows}
    assert verdicts["6 application hosts"] == "tie, within 1 %"
    levels = {
        row[0]: row[2] for row in level_table(exploration, "hosts.app.count", "makespan_s").rows
    }
    assert levels == {"2": "2×", "4": "", "6": "tie +0.2 %", "8": "+30 %"}
    assert "Tie" in dict(answer(exploration, rec).points)


def test_ties_on_the_front_are_marked() -> None:
    def truth(values: dict[str, Any]) -> float:
        times = {2: 100.0, 3: 75.05, 4: 60.02, 9: 59.0}
        return times[values["hosts.app.count"]]

    axes = ("hosts.app.count=2,3,4,9",)
    # costs 300.0, 300.2, 300.1 and 590: independent noise hides the cheapest
    exploration, rec = explored(
        "cost", axes=axes, truth=truth, watts=None, common=0.2, independent=0.03
    )
    marks = {row[1]: row[0] for row in front_table(exploration, rec.candidate).rows}
    best = exploration.space.labels(exploration.selection.best.candidate)["hosts.app.count"]  # type: ignore[union-attr]
    assert rec.state == "undecided"
    assert rec.why == "the 3 best tie, their intervals overlap after 20 seeds"
    # the table also has ties off the front
    assert marks == {"2": "=", "3": "=", "4": "=", "9": ""}
    front = {r["levels"]["hosts.app.count"]: r["tie"] for r in document(exploration, rec)["front"]}
    assert {label for label, tie in front.items() if tie} == {"2", "3", "4"} & set(front) - {best}
    assert not front["9"]
    html = page(exploration, rec, Named("work", "platform"))
    assert "orange circles: those that tie" in html
    _, alone = explored("cost", axes=axes, truth=truth, watts=None)
    assert alone.state == "decided"


def test_the_recommendation_of_costa_2014() -> None:
    """Costa 2014: little slower, much cheaper."""

    def truth(values: dict[str, Any]) -> float:
        return {3: 170.0, 6: 103.0, 10: 100.0}[values["hosts.app.count"]]

    exploration, rec = explored(
        axes=("hosts.app.count=3,6,10",), truth=truth, watts=None, common=0.1
    )
    assert rec.state == "decided"
    # 7 and 11 hosts with the manager: 103 x 7 against 100 x 11
    assert rec.text == "6 application hosts: 3 % slower than the fastest, 34 % cheaper."
    assert rec.candidate == (1,)
    conclusion = answer(exploration, rec)
    assert conclusion.headline == f"{rec.text} Clear."
    assert dict(conclusion.points)["Details"].startswith("The same on each of 5 seeds")
    assert [exploration.space.labels(c)["hosts.app.count"] for c in exploration.front] == [
        "10",
        "6",
        "3",
    ]


def test_without_prices_and_powers_only_time_is_compared() -> None:
    exploration, rec = explored(price=None, watts=None)
    assert exploration.metrics == ("makespan_s",)
    assert len(exploration.front) == 1
    assert "no other configuration is better in time" in rec.text
    with pytest.raises(BadInput, match="needs prices"):
        explored("cost", price=None)
    with pytest.raises(BadInput, match="needs powers"):
        explored("time", ("energy < 1 kJ",), watts=None)


def test_constraints_are_met() -> None:
    exploration, rec = explored("min cost * time", ("hosts <= 15", "hosts.app.count >= 7"))
    assert rec.candidate is not None
    chosen = exploration.space.values(rec.candidate)
    assert chosen["hosts.app.count"] >= 7
    assert sum(v for k, v in chosen.items() if k.endswith(".count")) + 1 <= 15
    # conditions known in advance cost no evaluation
    assert len(exploration.record.measures) == len(exploration.admissible) < 60
    assert (
        exploration.broken
        + len(exploration.admissible)
        + sum(exploration.record.reasons().values())
        == 252
    )
    none, why = explored("time", ("makespan < 1 s",))
    assert why.state == "none"
    assert why.text == "No recommendation: no configuration meets the constraints."
    assert none.front == []


def test_undecided_names_up_to_three() -> None:
    exploration, rec = explored(common=0.05, independent=0.05)
    assert rec.state == "undecided"
    assert rec.candidate is None
    assert len(rec.run) == 3
    assert rec.text.startswith("Undecided (the ")
    assert "run these 3: " in rec.text
    conclusion = answer(exploration, rec)
    assert conclusion.headline.startswith("Open: the ")
    assert "best tie, their intervals overlap after 20 seeds" in conclusion.headline
    assert len(conclusion.headline.split()) <= HEADLINE
    assert conclusion.points[-1][0] == "Next step"
    assert conclusion.points[-1][1].startswith("run these 3: ")
    assert len(conclusion.points) <= MOST_POINTS
    stated = " ".join(conclusion.sentences)
    assert all(note in stated or note in further_notes(conclusion, rec) for note in rec.notes)


def test_two_indistinguishable_configurations_are_undecided() -> None:
    def truth(values: dict[str, Any]) -> float:
        return {2: 200.0, 4: 100.0, 6: 100.2}[values["hosts.app.count"]]

    _, rec = explored(
        "time",
        axes=("hosts.app.count=2,4,6",),
        truth=truth,
        price=None,
        common=0.05,
        independent=0.03,
    )
    assert rec.state == "undecided"
    assert "these two tie, their intervals overlap after 20 seeds" in rec.text
    assert len(rec.run) == 2


def test_outside_gives_the_reason_and_no_recommendation() -> None:
    exploration, rec = explored(verdict="outside")
    assert rec.state == "none"
    assert rec.candidate is None
    assert "the model does not apply" in rec.text
    assert "the manager is saturated" in rec.text
    assert document(exploration, rec)["recommendation"]["configuration"] is None
    _, with_caution = explored(verdict="caution")
    assert with_caution.state == "decided"
    assert "Caution: the manager is saturated." in with_caution.notes


def test_uncertain_values_can_make_the_choice_undecided() -> None:
    def storage_unknown(values: dict[str, Any], draw: int) -> float:
        factor = 0.2 if draw % 2 else 4.0
        io = 400 * values["store.replicas"] / values["hosts.storage.count"]
        return 20 + 1400 / values["hosts.app.count"] + factor * io

    exploration, rec = explored(drawn=storage_unknown)
    assert exploration.robust is not None
    assert rec.state == "undecided"
    assert "uncertain values" in rec.text
    assert len(rec.run) >= 2

    def all_alike(values: dict[str, Any], draw: int) -> float:
        return blast_like(values) * (1 + 0.02 * draw)

    _, sure = explored(drawn=all_alike)
    assert sure.state == "decided"
    assert any("in 19 of 19 draws" in n for n in sure.notes)


def test_decisions_without_effect_are_noted() -> None:
    exploration, rec = explored("time", axes=(*BLAST, "scheduler=workqueue,data_location"))
    assert "Exactly the same with another scheduler (data_location)." in rec.notes
    shares = {e.axis: e.share for e in exploration.effects["makespan_s"]}
    assert shares["scheduler"] == pytest.approx(0, abs=1e-12)
    assert shares["split"] > shares["store.chunk"] > 0


def test_a_search_stays_within_its_budget() -> None:
    for engine in ("rrs", "ga"):
        exploration, rec = explored(
            "time", settings=Settings(engine=engine, budget=60), independent=0.001
        )
        assert len(exploration.record.measures) <= 60
        assert not exploration.complete
        assert "looked at" in rec.text
    automatic, _ = explored("time", settings=Settings(budget=50))
    assert automatic.engine == "rrs"
    assert "more than the budget of 50" in automatic.engine_reason
    with pytest.raises(BadInput, match="the budget is 50"):
        explored("time", settings=Settings(engine="grid", budget=50))


def test_an_interrupted_exploration_has_no_recommendation() -> None:
    space = space_of(*BLAST)
    evaluator = Known(space, blast_like)
    record = Record(space, evaluator)
    evaluate = evaluator.evaluate

    def interrupted(candidates: Any, seeds: Any) -> Any:
        if evaluator.evaluations > 20:
            raise KeyboardInterrupt
        return evaluate(candidates, seeds)

    evaluator.evaluate = interrupted  # type: ignore[method-assign]
    exploration = explore(record, Question(), Settings(), Quiet())
    assert exploration.stopped
    assert 20 < len(record.measures) < 243
    assert exploration.front
    assert recommend(exploration).state == "none"


def test_regret() -> None:
    assert regret([1, 2, 3], [10, 12, 9]) == pytest.approx(10 / 9 - 1)
    assert regret([3, 2, 1], [10, 12, 9]) == 0
    with pytest.raises(ValueError, match="one actual value"):
        regret([1], [1, 2])


def test_effects_of_a_grid_are_an_analysis_of_variance() -> None:
    space = space_of("a.b=1,2", "c.d=1,2,3")
    values = [10.0 * (1 + 3 * a) * (1 + c) for a, c in space]
    by_axis = {e.axis: e for e in effects(space, list(space), values)}
    # a product has no interaction on a logarithmic scale
    assert by_axis["a.b"].share + by_axis["c.d"].share == pytest.approx(1)
    assert by_axis["a.b"].worst_loss == pytest.approx(3)
    assert [level.loss for level in by_axis["c.d"].levels] == pytest.approx([0, 1, 2])
    table = best_over(space, list(space), values, 0, 1)
    assert table.tolist() == [[10, 20, 30], [40, 80, 120]]


def test_idle_hosts_of_the_best_are_a_point_of_the_answer() -> None:
    text = "4 of 8 hosts were idle (a-4, a-5, a-6 and 1 more): reduce hosts.a.count."
    idle = {"hosts": ["a-4", "a-5", "a-6", "a-7"], "of": 8, "remedy": "", "text": text}
    exploration, rec = explored()
    assert "Idle hosts" not in dict(answer(exploration, rec).points)
    exploration.judgement = {**(exploration.judgement or {}), "idle": idle}
    rec = recommend(exploration)
    assert dict(answer(exploration, rec).points)["Idle hosts"] == text
    assert document(exploration, rec)["prediction"]["idle"]["of"] == 8


def test_labels_of_the_front_leave_out_decisions_without_effect() -> None:
    def truth(values: dict[str, Any]) -> float:
        # the scheduler of points on the front varies, by less than the indifference
        delay_s = 0.01 * ((values["scheduler"] == "workqueue") == (values["hosts.app.count"] > 4))
        return 50 + 100 / int(values["hosts.app.count"]) + delay_s

    axes = ("hosts.app.count=2,4,6,8", "scheduler=workqueue,data_location")
    exploration, _ = explored(axes=axes, truth=truth, watts=None)
    assert len({c[1] for c in exploration.front}) == 2
    assert {short(exploration, c) for c in exploration.front} <= {
        f"{n} hosts" for n in (2, 4, 6, 8)
    }
