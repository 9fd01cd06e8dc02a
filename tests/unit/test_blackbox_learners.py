"""Learners of a storage model: scikit-learn's checks, published values, files, output."""

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
    # planted: a wrong value moves a leaf beyond the tolerance
    wrong = StorageRegressor(max_depth=1).fit(sizes, [60, 58, 33, 34, 32.2])
    assert wrong.predict([[4096]]) != pytest.approx([33], rel=1e-4)


class PublishedRates:
    """A storage with the throughputs of the published job: four nodes map, two reduce."""

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
    # at most as many reducers work as there are nodes
    assert job_s(9) == job_s(4)
    assert job_s(1) != pytest.approx(157.5822, rel=1e-4)


def test_accuracy_and_computing() -> None:
    assert accuracy(9, 10) == pytest.approx(0.9)
    assert accuracy(11, 10) == pytest.approx(0.9)
    assert with_computing(3, 2, 0) == 5
    assert with_computing(3, 2, 1) == 3
    io, cpu = [1.0, 1.0, 2.0], [0.5, 2.0, 2.0]
    for overlap in (0.0, 0.35, 1.0):
        totals = [with_computing(i, c, overlap) for i, c in zip(io, cpu, strict=True)]
        assert fitted_overlap(io, cpu, totals) == pytest.approx(overlap)
    assert fitted_overlap(io, cpu, [9, 9, 9]) == 0  # never less than without overlap
    assert fitted_overlap([1.0], [0.0], [1.0]) == 0


@pytest.fixture(scope="module")
def model() -> BlackBoxModel:
    """The default space on a simulated SATA SSD."""
    grid, profile = DEFAULT.grid(), load_profile("sata-ssd")
    rates = [simulated_bps(profile, p, requests=300) for p in grid]
    trained = learnt(DEFAULT, grid, rates, complete=False)
    trained.overlap, trained.cpu_s_per_byte = Overlap(0.5, 3, 0.01), 1e-10
    return trained


def test_the_tree_fits_a_page_and_has_its_predictions(model: BlackBoxModel) -> None:
    lines = [*tree_lines(model), "", *summary_lines(model)]
    assert len(lines) <= 60
    assert max(len(line) for line in lines) <= 100
    tree = model.learners["tree"].tree_
    assert tree.leaves <= 24
    assert len(tree_lines(model)) == 2 * (tree.leaves - 1)
    # the nested values lead every point to its prediction
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
    loaded = load_model(tmp_path)
    off_grid = [model.point(request_bytes=k * 4096, clients=c) for k in (3, 7) for c in (0, 3)]
    for points in (model.points, off_grid):
        for kind in LEARNERS:
            assert np.array_equal(loaded.throughput(points, kind), model.throughput(points, kind))
        for a, b in zip(loaded.interval(points), model.interval(points), strict=True):
            assert np.array_equal(a, b)
    assert loaded.to_dict() == json.loads(json.dumps(model.to_dict()))
    assert task_time(loaded, "scan", size=1e9) == task_time(model, "scan", size=1e9)


@pytest.mark.parametrize(
    "planted",
    [
        lambda document: document.pop("schema"),
        lambda document: document.update(schema="penstock/blackbox/9"),
        lambda document: document["points"][0].update(throughput_bps=float("nan")),
        lambda document: document["learners"]["tree"]["trees"][0]["left"].__setitem__(0, 0),
        lambda document: document["learners"]["tree"]["trees"][0]["feature"].__setitem__(0, 99),
        lambda document: document["learners"]["tree"]["trees"][0]["value"].__setitem__(
            1, float("nan")
        ),
        lambda document: document["learners"]["neighbours"]["x"].pop(),
        lambda document: document["learners"]["neighbours"]["y"].__setitem__(0, float("inf")),
        lambda document: document["errors"]["tree"].pop("mean"),
        lambda document: document.pop("space"),
    ],
)
def test_a_broken_model_is_refused(model: BlackBoxModel, tmp_path: Path, planted: object) -> None:
    document = json.loads(json.dumps(model.to_dict()))
    planted(document)  # type: ignore[operator]
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"m\.json"):
        load_model(tmp_path / "m.json")


def test_an_earlier_model_is_trained_again(model: BlackBoxModel, tmp_path: Path) -> None:
    """Version 1 has two learners and no nodes; its points suffice to train it again."""
    small = learnt(DEFAULT, model.points[::8], model.throughput_bps[::8].tolist())
    small.overlap, small.cpu_s_per_byte = Overlap(0.5, 3, 0.01), 1e-10
    old = json.loads(json.dumps(small.to_dict())) | {
        "schema": "penstock/blackbox/1",
        "chosen": "cart",
    }
    for row in old["points"]:
        del row["nodes"], row["storage"]
    for name in ("learners", "errors", "conformal"):
        del old[name]
    (tmp_path / "model.json").write_text(json.dumps(old))
    retrained = load_model(tmp_path)
    assert retrained.to_dict() == small.to_dict()


def test_nearest_neighbours_by_hand() -> None:
    """Distances are ratios: 3 is as far from 1 as from 7 (one doubling of 1 + x each)."""
    learner = NeighbourStorageRegressor(neighbours=2).fit([[1], [7], [31]], [10.0, 30.0, 90.0])
    assert learner.predict([[3]]) == pytest.approx([20.0])
    assert learner.predict([[7]]) == pytest.approx([30.0])
    # a column without variation has no weight
    wide = NeighbourStorageRegressor(neighbours=1).fit([[1, 5], [7, 5]], [10.0, 30.0])
    assert wide.predict([[2, 500]]) == pytest.approx([10.0])


def test_repetitions_of_a_point_share_a_fold() -> None:
    """Throughput is random for each point: one repetition must not predict the other."""
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
    # planted: folds of rows separate repetitions, so the nearest neighbour is the point itself
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
    # repetitions are not independent
    four = compared({k: np.tile(v[:4], 10) for k, v in close.items()}, np.tile(np.arange(4), 10))
    assert four["boosted"].p_tree == pytest.approx(0.125)


def test_missing_or_invalid_model_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="expected a model"):
        load_model(tmp_path)
    (tmp_path / "m.json").write_text("{\n oops")
    with pytest.raises(BadInput, match=r"m\.json:2:2"):
        load_model(tmp_path / "m.json")


def test_task_times_from_a_model(model: BlackBoxModel) -> None:
    read = float(model.throughput([model.point()])[0])
    without_cpu = task_time(model, "grep", size=1e9)
    assert (without_cpu.bound, without_cpu.time_s) == ("lower", pytest.approx(1e9 / read))
    assert without_cpu.low < without_cpu.time_s < without_cpu.high
    # copying (0.1 s) is in the throughput already; half of the shorter remainder is hidden
    cheap = task_time(model, "grep", size=1e9, cpu_s=1.1)
    assert cheap.bound == "none"
    assert cheap.time_s == pytest.approx(with_computing(1e9 / read, 1.0, 0.5))
    assert task_time(model, "scan", size=1e9, cpu_s=1.1, overlap=0).time_s > cheap.time_s
    # four nodes on one storage slow each other down; four with one each do not
    job = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 1e9)
    shared = task_time(model, "mapreduce", **job, nodes=4, reducers=2)
    apart = task_time(model, "mapreduce", **job, nodes=4, reducers=2, shared=False)
    assert shared.time_s > 1.5 * apart.time_s
    write = float(model.throughput([model.point(operation="write")])[0])
    assert apart.time_s == pytest.approx(1e9 * (1 / 4 + 1 / 2) * (1 / read + 1 / write), rel=0.2)
    beyond = task_time(model, "scan", size=1e9, clients=20)
    assert [b.dimension for b in beyond.beyond] == ["clients", "data_bytes"]
    kind, options = parse_task("scan size=1GB cpu=1.1s")
    assert task_time(model, kind, **options) == cheap
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
def test_invalid_tasks_are_refused(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        parse_task(text)


def test_tasks_need_all_options(model: BlackBoxModel) -> None:
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


def test_too_few_points_and_invalid_values() -> None:
    grid = DEFAULT.grid()
    with pytest.raises(PenstockError, match="at least 8"):
        learnt(DEFAULT, grid[:7], [1.0] * 7)
    with pytest.raises(ValueError, match="above 0"):
        StorageRegressor(scale="log").fit([[1], [2]], [1, 0])
    with pytest.raises(ValueError, match="'linear' or 'log'"):
        StorageRegressor(scale="cubic").fit([[1], [2]], [1, 2])  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        restored({"kind": "Oracle"})
    # eight points are too few for 90 %: the interval is unbounded, with a note
    small = learnt(DEFAULT, grid[:8], np.linspace(1e6, 2e6, 8))
    low, high = small.interval(grid[:1])
    assert (low[0], high[0]) == (0, np.inf)
    assert any("insufficient calibration" in line for line in summary_lines(small))
    assert task_time(small, "scan", size=1 * MIB).to_dict()["high"] is None
