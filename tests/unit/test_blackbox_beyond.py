"""Tasks outside a measured grid: refused, or named with their dimension and a wider interval."""

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
    """Bytes/s: half for each doubling of clients, an eighth less for each doubling of data."""
    return 1e8 * (p.clients + 1) ** -1.0 * (p.data_bytes / (64 * MIB)) ** math.log2(7 / 8)


@pytest.fixture(scope="module")
def model() -> BlackBoxModel:
    points = SPACE.grid()
    return learnt(SPACE, points, [rate(p) for p in points], complete=False)


def width(model: BlackBoxModel, **coordinates: Any) -> float:
    low, high = model.interval([model.point(**coordinates)])
    return float(high[0] / low[0])


@pytest.mark.parametrize(
    ("coordinates", "dimension", "low", "high", "factor"),
    [
        # clients + 1 from 4 to 16: two doublings, a half each
        ({"clients": 15}, "clients", 0, 3, 4.0),
        # an eighth less per doubling was measured: two doublings above, one below
        ({"data_bytes": 1024 * MIB}, "data_bytes", 64 * MIB, 256 * MIB, (8 / 7) ** 2),
        ({"data_bytes": 32 * MIB}, "data_bytes", 64 * MIB, 256 * MIB, 8 / 7),
        # request size had no effect, but requests of half the bytes may take as long
        ({"request_bytes": 2048}, "request_bytes", 4096, 65536, 2.0),
        ({"request_bytes": MIB}, "request_bytes", 4096, 65536, 16.0),
    ],
)
def test_every_dimension_of_numbers(
    model: BlackBoxModel,
    coordinates: dict[str, int],
    dimension: str,
    low: int,
    high: int,
    factor: float,
) -> None:
    (outside,) = model.beyond(model.point(**coordinates))
    assert (outside.dimension, outside.low, outside.high) == (dimension, low, high)
    assert outside.requested == coordinates[dimension]
    assert outside.factor == pytest.approx(factor)
    edge = {k: high if v > high else low for k, v in coordinates.items()}
    assert width(model, **coordinates) == pytest.approx(width(model, **edge) * factor**2, rel=1e-6)


def test_several_dimensions_widen_each_other(model: BlackBoxModel) -> None:
    both = model.beyond(model.point(clients=15, data_bytes=1024 * MIB))
    assert [b.dimension for b in both] == ["clients", "data_bytes"]
    inner = width(model, clients=3, data_bytes=256 * MIB)
    assert width(model, clients=15, data_bytes=1024 * MIB) == pytest.approx(
        inner * (4 * (8 / 7) ** 2) ** 2, rel=1e-6
    )


def test_points_inside_and_at_the_edges_have_no_note(model: BlackBoxModel) -> None:
    assert all(model.beyond(p) == [] for p in model.points)
    between = task_time(model, "scan", **INSIDE)
    assert between.beyond == ()
    assert between.notes == ()


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        ({"pattern": "skew-50-50"}, "the pattern skew-50-50, which was not measured; expected"),
        ({"operation": "append"}, "the operation append, .* expected read or write"),
        ({"access": "direct"}, "the access direct, .* expected buffered"),
    ],
)
def test_a_category_that_was_not_measured_is_refused(
    model: BlackBoxModel, coordinates: dict[str, str], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        model.interval([model.point(**coordinates)])


def test_a_task_of_a_category_that_was_not_measured_is_refused() -> None:
    space = SPACE.with_values(operation=["read"])
    only_reads = learnt(space, space.grid(), [rate(p) for p in space.grid()], complete=False)
    assert task_time(only_reads, "scan", **INSIDE).time_s > 0
    with pytest.raises(BadInput, match="operation write"):
        task_time(only_reads, "write", **INSIDE)
    job = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 1e9)
    with pytest.raises(BadInput, match="operation write"):
        task_time(only_reads, "mapreduce", **job, nodes=2, reducers=2)


def test_with_one_measured_value_there_is_no_interval() -> None:
    space = SPACE.with_values(clients=[0])
    single = learnt(space, space.grid(), [rate(p) for p in space.grid()], complete=False)
    prediction = task_time(single, "scan", **INSIDE)
    assert prediction.notes == ("clients 1 is outside of 0, the only value measured: no interval",)
    assert (prediction.low, prediction.high) == (0.0, math.inf)
    document = json.loads(json.dumps(prediction.to_dict()))
    assert document["high"] is None
    assert document["beyond"] == [
        {"dimension": "clients", "asked": 1, "low": 0, "high": 0, "factor": None}
    ]


def test_only_measured_points_span_the_grid() -> None:
    points = [p for p in SPACE.grid() if p.clients < 3]
    partial_model = learnt(SPACE, points, [rate(p) for p in points], complete=False)
    (outside,) = partial_model.beyond(partial_model.point(clients=3))
    assert (outside.low, outside.high) == (0, 1)


def test_points_that_differ_in_more_than_one_dimension() -> None:
    """Points that differ in two dimensions: all of the difference may belong to one."""
    base = Point("read", "sequential", "buffered", 0, 4096, 64 * MIB)
    other = dataclasses.replace(base, clients=1, data_bytes=128 * MIB)
    requested = dataclasses.replace(base, data_bytes=256 * MIB)
    (outside,) = beyond([base, other], [1e8, 2.5e7], requested)
    assert outside.factor == pytest.approx(4.0)  # a quarter per doubling, one doubling beyond


def test_a_task_names_its_sizes_too(model: BlackBoxModel) -> None:
    inside = task_time(model, "scan", **INSIDE)
    far = task_time(model, "scan", **{**INSIDE, "size": 8 * 1024 * MIB, "clients": 7})
    assert [b.dimension for b in far.beyond] == ["clients", "data_bytes"]
    assert far.notes[1].startswith("size 8GiB is outside of 64MiB to 256MiB: interval widened by")
    assert far.high / far.low > 10 * inside.high / inside.low
    # no bytes to read take no time, inside or outside the grid
    assert task_time(model, "scan", **{**INSIDE, "size": 0}).time_s == 0


def test_wider_intervals_cover_measured_points_beyond_a_grid_better() -> None:
    """The widened interval contains the smallest requests, which the model did not learn."""
    space, truth = recorded()["hdd-7200"]
    smallest = min(space.request_bytes)
    inner = [p for p in truth if p.request_bytes != smallest]
    outer = [p for p in truth if p.request_bytes == smallest]
    smaller = space.with_values(request_bytes=[r for r in space.request_bytes if r != smallest])
    learnt_model = learnt(smaller, inner, [truth[p] for p in inner], complete=False)
    low, high = learnt_model.interval(outer)
    factors = [learnt_model.beyond(p)[0].factor for p in outer]
    covered = sum(a <= truth[p] <= b for p, a, b in zip(outer, low, high, strict=True))
    covered_unwidened = sum(
        a * f <= truth[p] <= b / f for p, a, b, f in zip(outer, low, high, factors, strict=True)
    )
    assert covered / len(outer) >= 0.9
    assert covered_unwidened / len(outer) <= 0.6, "the interval without widening covers too much"


def test_command_reports_points_outside_the_grid(
    model: BlackBoxModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.save(tmp_path / "model.json")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(
            "sys.argv", ["penstock", "learn", str(tmp_path / "model.json"), *arguments]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    status, out, _ = run("--predict", "scan size=1GiB clients=15")
    assert status == 0
    assert "beyond the grid: clients 15 is outside of 0 to 3" in out
    assert "beyond the grid: size 1GiB is outside of 64MiB to 256MiB" in out
    status, out, err = run("--predict", "skewed size=128MiB pattern=skew-50-50")
    assert (status, out) == (2, "")
    assert "found the pattern skew-50-50" in err
