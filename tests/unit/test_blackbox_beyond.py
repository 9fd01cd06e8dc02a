"""What is outside of a measured grid: refused, or named with its dimension and given a wider interval."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.errors import BadInput
from penstock.parts.prediction.black_box.beyond import beyond
from penstock.parts.prediction.black_box.model import BlackBoxModel, learnt
from penstock.parts.prediction.black_box.predict import task_time
from penstock.parts.prediction.black_box.space import MIB, Point, Space
from tests.unit.blackbox_halves import recorded

SPACE = Space(
    pattern=("sequential", "skew-90-10"),
    clients=(0, 1, 3),
    request_bytes=(4096, 65536),
    data_bytes=(64 * MIB, 256 * MIB),
)
INSIDE = {"size": 128 * MIB, "request": 4096, "clients": 1}


def rate(p: Point) -> float:
    """Bytes/s: falls by half per doubling of clients and by an eighth per doubling of data; reads alike."""
    return 1e8 * (p.clients + 1) ** -1.0 * (p.data_bytes / (64 * MIB)) ** math.log2(7 / 8)


@pytest.fixture(scope="module")
def model() -> BlackBoxModel:
    points = SPACE.grid()
    return learnt(SPACE, points, [rate(p) for p in points], complete=False)


def width(model: BlackBoxModel, **asked: Any) -> float:
    low, high = model.interval([model.point(**asked)])
    return float(high[0] / low[0])


@pytest.mark.parametrize(
    ("asked", "dimension", "low", "high", "factor"),
    [
        # clients + 1 from 4 to 16: two doublings, a half each
        ({"clients": 15}, "clients", 0, 3, 4.0),
        # an eighth less per doubling was seen: two beyond, one below
        ({"data_bytes": 1024 * MIB}, "data_bytes", 64 * MIB, 256 * MIB, (8 / 7) ** 2),
        ({"data_bytes": 32 * MIB}, "data_bytes", 64 * MIB, 256 * MIB, 8 / 7),
        # requests made no difference, but one of half the bytes may take as long
        ({"request_bytes": 2048}, "request_bytes", 4096, 65536, 2.0),
        ({"request_bytes": MIB}, "request_bytes", 4096, 65536, 16.0),
    ],
)
def test_every_dimension_of_numbers(
    model: BlackBoxModel, asked: dict[str, int], dimension: str, low: int, high: int, factor: float
) -> None:
    (found,) = model.beyond(model.point(**asked))
    assert (found.dimension, found.low, found.high) == (dimension, low, high)
    assert found.requested == asked[dimension]
    assert found.factor == pytest.approx(factor)
    edge = {k: high if v > high else low for k, v in asked.items()}
    assert width(model, **asked) == pytest.approx(width(model, **edge) * factor**2, rel=1e-6)


def test_several_dimensions_widen_each_other(model: BlackBoxModel) -> None:
    both = model.beyond(model.point(clients=15, data_bytes=1024 * MIB))
    assert [b.dimension for b in both] == ["clients", "data_bytes"]
    inner = width(model, clients=3, data_bytes=256 * MIB)
    assert width(model, clients=15, data_bytes=1024 * MIB) == pytest.approx(
        inner * (4 * (8 / 7) ** 2) ** 2, rel=1e-6
    )


def test_inside_and_at_the_edges_nothing_is_said(model: BlackBoxModel) -> None:
    assert all(model.beyond(p) == [] for p in model.points)
    between = task_time(model, "scan", **INSIDE)
    assert between.beyond == ()
    assert between.notes == ()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"pattern": "skew-50-50"}, "the pattern skew-50-50, which was not measured; expected"),
        ({"operation": "append"}, "the operation append, .* expected read or write"),
        ({"access": "direct"}, "the access direct, .* expected buffered"),
    ],
)
def test_a_category_that_was_not_measured_is_refused(
    model: BlackBoxModel, asked: dict[str, str], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        model.interval([model.point(**asked)])


def test_a_task_of_a_category_that_was_not_measured_is_refused() -> None:
    space = SPACE.with_values(operation=["read"])
    only_reads = learnt(space, space.grid(), [rate(p) for p in space.grid()], complete=False)
    assert task_time(only_reads, "scan", **INSIDE).time_s > 0
    with pytest.raises(BadInput, match="operation write"):
        task_time(only_reads, "write", **INSIDE)
    job = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 1e9)
    with pytest.raises(BadInput, match="operation write"):
        task_time(only_reads, "mapreduce", **job, nodes=2, reducers=2)


def test_where_one_value_was_measured_there_is_no_interval() -> None:
    space = SPACE.with_values(clients=[0])
    alone = learnt(space, space.grid(), [rate(p) for p in space.grid()], complete=False)
    found = task_time(alone, "scan", **INSIDE)
    assert found.notes == ("clients 1 is outside of 0, the only value measured: no interval",)
    assert (found.low, found.high) == (0.0, math.inf)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["high"] is None
    assert plain["beyond"] == [
        {"dimension": "clients", "asked": 1, "low": 0, "high": 0, "factor": None}
    ]


def test_what_was_planned_and_not_measured_does_not_count() -> None:
    points = [p for p in SPACE.grid() if p.clients < 3]
    short = learnt(SPACE, points, [rate(p) for p in points], complete=False)
    (found,) = short.beyond(short.point(clients=3))
    assert (found.low, found.high) == (0, 1)


def test_points_that_differ_in_more_than_one_dimension() -> None:
    """Chosen points seldom differ in one dimension alone: then all of the difference may be its own."""
    base = Point("read", "sequential", "buffered", 0, 4096, 64 * MIB)
    other = dataclasses.replace(base, clients=1, data_bytes=128 * MIB)
    asked = dataclasses.replace(base, data_bytes=256 * MIB)
    (found,) = beyond([base, other], [1e8, 2.5e7], asked)
    assert found.factor == pytest.approx(4.0)  # a quarter per doubling, one doubling beyond


def test_a_task_names_its_sizes_too(model: BlackBoxModel) -> None:
    inside = task_time(model, "scan", **INSIDE)
    far = task_time(model, "scan", **{**INSIDE, "size": 8 * 1024 * MIB, "clients": 7})
    assert [b.dimension for b in far.beyond] == ["clients", "data_bytes"]
    assert far.notes[1].startswith("size 8GiB is outside of 64MiB to 256MiB: interval widened by")
    assert far.high / far.low > 10 * inside.high / inside.low
    # nothing is read: no time, whatever the grid
    assert task_time(model, "scan", **{**INSIDE, "size": 0}).time_s == 0


def test_wider_intervals_cover_measured_points_beyond_a_grid_better() -> None:
    """Measured on a real mount, learnt without its smallest requests: the widened interval has them."""
    space, truth = recorded()["hdd-7200"]
    smallest = min(space.request_bytes)
    inner = [p for p in truth if p.request_bytes != smallest]
    outer = [p for p in truth if p.request_bytes == smallest]
    smaller = space.with_values(request_bytes=[r for r in space.request_bytes if r != smallest])
    found = learnt(smaller, inner, [truth[p] for p in inner], complete=False)
    low, high = found.interval(outer)
    factors = [found.beyond(p)[0].factor for p in outer]
    now = sum(a <= truth[p] <= b for p, a, b in zip(outer, low, high, strict=True))
    before = sum(
        a * f <= truth[p] <= b / f for p, a, b, f in zip(outer, low, high, factors, strict=True)
    )
    assert now / len(outer) >= 0.9
    assert before / len(outer) <= 0.6, "as narrow as inside it would not have been honest"


def test_command_tells_what_lies_beyond(
    model: BlackBoxModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.save(tmp_path / "model.json")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["penstock", "learn", str(tmp_path / "model.json"), *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    status, out, _ = run("--predict", "scan size=1GiB clients=15")
    assert status == 0
    assert "beyond the grid: clients 15 is outside of 0 to 3" in out
    assert "beyond the grid: size 1GiB is outside of 64MiB to 256MiB" in out
    status, out, err = run("--predict", "skewed size=128MiB pattern=skew-50-50")
    assert (status, out) == (2, "")
    assert "found the pattern skew-50-50" in err
