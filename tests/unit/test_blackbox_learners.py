"""The learners of a storage: scikit-learn's own checks, the published vectors, what is saved and printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.black_box.comparison import best_of, compared, sentence
from penstock.parts.prediction.black_box.estimator import (
    LEARNERS,
    BoostedStorageRegressor,
    NeighbourStorageRegressor,
    StorageRegressor,
    restored,
)
from penstock.parts.prediction.black_box.features import features, matrix
from penstock.parts.prediction.black_box.intervals import grouped
from penstock.parts.prediction.black_box.model import BlackBoxModel, Overlap, learnt, load_model
from penstock.parts.prediction.black_box.predict import parse_task, task_time
from penstock.parts.prediction.black_box.show import points_csv, summary_lines, tree_lines, tree_of
from penstock.parts.prediction.black_box.space import DEFAULT, MIB, Point
from penstock.parts.prediction.black_box.tasks import (
    accuracy,
    fitted_overlap,
    scan_s,
    with_computing,
)
from penstock.parts.prediction.report.storage_tree import figure
from penstock.profile import load_profile
from tests.support.simulated_storage import simulated_bps


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize(
    "learner", [StorageRegressor, BoostedStorageRegressor, NeighbourStorageRegressor]
)
def test_scikit_learn_checks_the_learners(learner: type, scale: str) -> None:
    options = {"trees": 40} if learner is BoostedStorageRegressor else {}
    check_estimator(learner(scale=scale, **options))


def test_the_published_tree() -> None:
    sizes = np.array([[64], [128], [192], [256], [512]])
    tree = StorageRegressor(max_depth=1).fit(sizes, [60, 58, 33, 34, 32])
    assert tree.tree_.threshold[0] == pytest.approx(160, rel=1e-4)
    assert tree.predict([[64], [159.9], [160.1], [4096]]) == pytest.approx(
        [59, 59, 33, 33], rel=1e-4
    )
    # planted: a value that is off moves a leaf out of the tolerance
    off = StorageRegressor(max_depth=1).fit(sizes, [60, 58, 33, 34, 32.2])
    assert off.predict([[4096]]) != pytest.approx([33], rel=1e-4)


class PublishedRates:
    """A storage with the throughputs of the published job: on four nodes that map, and on two that reduce."""

    space, overlap, cpu_s_per_byte = DEFAULT, None, None

    def point(self, **dimensions: Any) -> Point:
        return BlackBoxModel.point(self, **dimensions)  # type: ignore[arg-type]

    def throughput(self, points: list[Point]) -> list[float]:
        mapping, reducing = {"read": 20e6, "write": 15e6}, {"read": 25e6, "write": 18e6}
        return [(mapping if p.clients == 3 else reducing)[p.operation] for p in points]

    def interval(self, points: list[Point], level: float) -> tuple[list[float], list[float]]:
        return self.throughput(points), self.throughput(points)

    def beyond(self, point: Point) -> tuple[()]:
        return ()


def test_task_times() -> None:
    assert scan_s(1024e6, 33e6) == pytest.approx(31.0303, rel=1e-4)
    sizes = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 2048e6)

    def job_s(reducers: int) -> float:
        rates: Any = PublishedRates()
        return task_time(rates, "mapreduce", **sizes, nodes=4, reducers=reducers).time_s

    assert job_s(2) == pytest.approx(157.5822, rel=1e-4)
    # no more reducers at work than nodes
    assert job_s(9) == job_s(4)
    assert job_s(1) != pytest.approx(157.5822, rel=1e-4)


def test_and_b_5_accuracy_and_computing() -> None:
    assert accuracy(9, 10) == pytest.approx(0.9)
    assert accuracy(11, 10) == pytest.approx(0.9)
    assert with_computing(3, 2, 0) == 5
    assert with_computing(3, 2, 1) == 3
    io, cpu = [1.0, 1.0, 2.0], [0.5, 2.0, 2.0]
    for overlap in (0.0, 0.35, 1.0):
        whole = [with_computing(i, c, overlap) for i, c in zip(io, cpu, strict=True)]
        assert fitted_overlap(io, cpu, whole) == pytest.approx(overlap)
    assert fitted_overlap(io, cpu, [9, 9, 9]) == 0  # never less than one after the other
    assert fitted_overlap([1.0], [0.0], [1.0]) == 0


@pytest.fixture(scope="module")
def model() -> BlackBoxModel:
    """The default space on a simulated SATA SSD."""
    grid, profile = DEFAULT.grid(), load_profile("sata-ssd")
    rates = [simulated_bps(profile, p, requests=300) for p in grid]
    found = learnt(DEFAULT, grid, rates, complete=False)
    found.overlap, found.cpu_s_per_byte = Overlap(0.5, 3, 0.01), 1e-10
    return found


def test_the_tree_fits_a_page_and_says_what_it_predicts(model: BlackBoxModel) -> None:
    lines = [*tree_lines(model), "", *summary_lines(model)]
    assert len(lines) <= 60
    assert max(len(line) for line in lines) <= 100
    tree = model.learners["tree"].tree_
    assert tree.leaves <= 24
    assert len(tree_lines(model)) == 2 * (tree.leaves - 1)
    # the nested values lead every point to what is predicted for it
    for point, expected in zip(model.points, model.throughput(model.points, "tree"), strict=True):
        node = tree_of(model)
        while "if" in node:
            value = getattr(point, node["dimension"])
            right = value == node["value"] if node["value"] else value > node["threshold"]
            node = node["else"] if right else node["then"]
        assert node["throughput_bps"] == pytest.approx(expected)
    assert figure(model).startswith(b"<?xml")
    assert len(points_csv(model).splitlines()) == 1 + len(model.points)


def test_a_saved_model_predicts_the_same(model: BlackBoxModel, tmp_path: Path) -> None:
    model.save(tmp_path / "model.json")
    again = load_model(tmp_path)
    off_grid = [model.point(request_bytes=k * 4096, clients=c) for k in (3, 7) for c in (0, 3)]
    for points in (model.points, off_grid):
        for kind in LEARNERS:
            assert np.array_equal(again.throughput(points, kind), model.throughput(points, kind))
        for a, b in zip(again.interval(points), model.interval(points), strict=True):
            assert np.array_equal(a, b)
    assert again.to_dict() == json.loads(json.dumps(model.to_dict()))
    assert task_time(again, "scan", size=1e9) == task_time(model, "scan", size=1e9)


@pytest.mark.parametrize(
    "planted",
    [
        lambda said: said.pop("schema"),
        lambda said: said.update(schema="penstock/blackbox/9"),
        lambda said: said["points"][0].update(throughput_bps=float("nan")),
        lambda said: said["learners"]["tree"]["trees"][0]["left"].__setitem__(0, 0),
        lambda said: said["learners"]["tree"]["trees"][0]["feature"].__setitem__(0, 99),
        lambda said: said["learners"]["tree"]["trees"][0]["value"].__setitem__(1, float("nan")),
        lambda said: said["learners"]["neighbours"]["x"].pop(),
        lambda said: said["learners"]["neighbours"]["y"].__setitem__(0, float("inf")),
        lambda said: said["errors"]["tree"].pop("mean"),
        lambda said: said.pop("space"),
    ],
)
def test_a_broken_model_is_refused(model: BlackBoxModel, tmp_path: Path, planted: object) -> None:
    said = json.loads(json.dumps(model.to_dict()))
    planted(said)  # type: ignore[operator]
    (tmp_path / "m.json").write_text(json.dumps(said))
    with pytest.raises(BadInput, match=r"m\.json"):
        load_model(tmp_path / "m.json")


def test_an_earlier_model_is_trained_again(model: BlackBoxModel, tmp_path: Path) -> None:
    """Version 1 has two learners and no nodes; its points are all that is needed."""
    few = learnt(DEFAULT, model.points[::8], model.throughput_bps[::8].tolist())
    few.overlap, few.cpu_s_per_byte = Overlap(0.5, 3, 0.01), 1e-10
    old = json.loads(json.dumps(few.to_dict())) | {
        "schema": "penstock/blackbox/1",
        "chosen": "cart",
    }
    for row in old["points"]:
        del row["nodes"], row["storage"]
    for name in ("learners", "errors", "conformal"):
        del old[name]
    (tmp_path / "model.json").write_text(json.dumps(old))
    again = load_model(tmp_path)
    assert again.to_dict() == few.to_dict()


def test_nearest_neighbours_by_hand() -> None:
    """Distances are ratios: 3 lies as far from 1 as 7 (two doublings of 1 + x apart)."""
    learner = NeighbourStorageRegressor(neighbours=2).fit([[1], [7], [31]], [10.0, 30.0, 90.0])
    assert learner.predict([[3]]) == pytest.approx([20.0])
    assert learner.predict([[7]]) == pytest.approx([30.0])
    # a column without variation has no weight
    wide = NeighbourStorageRegressor(neighbours=1).fit([[1, 5], [7, 5]], [10.0, 30.0])
    assert wide.predict([[2, 500]]) == pytest.approx([10.0])


def test_repetitions_of_a_point_share_a_fold() -> None:
    """Throughput is noise per point: what was learnt of one repetition must not predict the other."""
    rng = np.random.default_rng(7)
    points = DEFAULT.grid()[::6]
    rates = np.exp(rng.normal(17, 1, len(points)))
    once = learnt(DEFAULT, points, rates.tolist(), complete=False)
    twice = learnt(DEFAULT, [*points, *points], [*rates, *rates], complete=False)
    for kind in LEARNERS:
        assert twice.errors[kind].median > 0.5 * once.errors[kind].median > 0.1
    assert len(twice.conformal.fold) == len(points)
    low, high = twice.interval(points)
    assert np.all(low < high)
    group, fold = grouped([*points, *points], 1)
    assert np.array_equal(group[: len(points)], group[len(points) :])
    assert len(fold) == len(points)
    # planted: folds of rows put repetitions into different folds, and the neighbour is the point itself
    x = matrix(features(DEFAULT), [*points, *points])
    y, apart = np.concatenate([rates, rates]), np.repeat([0, 1], len(points))
    leaked = NeighbourStorageRegressor(scale="log").fit(x[apart == 0], y[apart == 0])
    assert np.abs(leaked.predict(x[apart == 1]) / y[apart == 1] - 1).max() < 1e-6


def test_learners_are_compared_on_the_same_points() -> None:
    rng = np.random.default_rng(3)
    group = np.arange(40)
    noise = rng.normal(0, 0.3, 40)
    close = {"tree": noise, "neighbours": -noise, "boosted": 2 * noise}
    errors = compared(close, group)
    assert errors["neighbours"].p_tree == 1.0  # equal errors
    assert errors["boosted"].p_tree is not None
    assert errors["boosted"].p_tree < 0.001
    assert errors["tree"].mean == pytest.approx(np.mean(np.abs(np.expm1(noise))))
    assert sentence(compared(close | {"neighbours": noise * 2}, group), "tree").startswith(
        "the tree has"
    )
    better = compared(close | {"boosted": noise / 2}, group)
    assert best_of(better) == "boosted"
    text = sentence(better, "tree")
    assert text == "the tree is not the best: boosted trees have a smaller error (--model boosted)"
    assert "--model" not in sentence(better, "boosted")
    chance = {**close, "boosted": np.where(group == 0, noise * 0.9, noise)}
    assert "not significantly" in sentence(
        compared(chance | {"neighbours": 2 * noise}, group), "tree"
    )
    # repetitions are no evidence of their own
    four = compared({k: np.tile(v[:4], 10) for k, v in close.items()}, np.tile(np.arange(4), 10))
    assert four["boosted"].p_tree == pytest.approx(0.125)


def test_no_file_or_no_json_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected a model"):
        load_model(tmp_path)
    (tmp_path / "m.json").write_text("{\n oops")
    with pytest.raises(BadInput, match=r"m\.json:2:2"):
        load_model(tmp_path / "m.json")


def test_task_times_from_a_model(model: BlackBoxModel) -> None:
    read = float(model.throughput([model.point()])[0])
    alone = task_time(model, "grep", size=1e9)
    assert (alone.bound, alone.time_s) == ("lower", pytest.approx(1e9 / read))
    assert alone.low < alone.time_s < alone.high
    # copying (0.1 s) is in the throughput already; of the rest, half of the shorter hides
    cheap = task_time(model, "grep", size=1e9, cpu_s=1.1)
    assert cheap.bound == "none"
    assert cheap.time_s == pytest.approx(with_computing(1e9 / read, 1.0, 0.5))
    assert task_time(model, "scan", size=1e9, cpu_s=1.1, overlap=0).time_s > cheap.time_s
    # four nodes on this storage hold each other up; four with one each do not
    job = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 1e9)
    shared = task_time(model, "mapreduce", **job, nodes=4, reducers=2)
    apart = task_time(model, "mapreduce", **job, nodes=4, reducers=2, shared=False)
    assert shared.time_s > 1.5 * apart.time_s
    write = float(model.throughput([model.point(operation="write")])[0])
    assert apart.time_s == pytest.approx(1e9 * (1 / 4 + 1 / 2) * (1 / read + 1 / write), rel=0.2)
    beyond = task_time(model, "scan", size=1e9, clients=20)
    assert [b.dimension for b in beyond.beyond] == ["clients", "data_bytes"]
    kind, said = parse_task("scan size=1GB cpu=1.1s")
    assert task_time(model, kind, **said) == cheap
    assert model.errors["boosted"].mean < 0.2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a task"),
        ("sort size=1GB", "expected a task"),
        ("scan size=1", "with its unit"),
        ("scan size=1GB cpu=fast", "a duration"),
        ("scan size=1GB overlap=2", "from 0 to 1"),
        ("scan size", "name=value"),
        ("scan 'size", "expected a task"),
        ("mapreduce nodes=0", "at least 1"),
    ],
)
def test_a_task_that_is_none_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        parse_task(text)


def test_tasks_lack_nothing(model: BlackBoxModel) -> None:
    with pytest.raises(BadInput, match="no size"):
        task_time(model, "scan")
    with pytest.raises(BadInput, match="colour"):
        task_time(model, "scan", size=1, colour=2)
    with pytest.raises(BadInput, match="cpu_s -1"):
        task_time(model, "scan", size=1, cpu_s=-1)
    with pytest.raises(BadInput, match="size nan"):
        task_time(model, "scan", size=float("nan"))
    with pytest.raises(BadInput, match="expected scan"):
        task_time(model, "sort", size=1)


def test_too_few_points_and_values_that_are_none() -> None:
    grid = DEFAULT.grid()
    with pytest.raises(PenstockError, match="at least 8"):
        learnt(DEFAULT, grid[:7], [1.0] * 7)
    with pytest.raises(ValueError, match="above 0"):
        StorageRegressor(scale="log").fit([[1], [2]], [1, 0])
    with pytest.raises(ValueError, match="'linear' or 'log'"):
        StorageRegressor(scale="cubic").fit([[1], [2]], [1, 2])  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        restored({"kind": "Oracle"})
    # eight points are too few for 90 %: unbounded, and said so
    few = learnt(DEFAULT, grid[:8], np.linspace(1e6, 2e6, 8))
    low, high = few.interval(grid[:1])
    assert (low[0], high[0]) == (0, np.inf)
    assert any("insufficient calibration" in line for line in summary_lines(few))
    assert task_time(few, "scan", size=1 * MIB).to_dict()["high"] is None
