"""Levels, axes and the space of an exploration; every mistake with its position."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.exploration.space.expression import parse_constraint
from penstock.parts.prediction.exploration.space.space import make_space, parse_axis
from penstock.parts.prediction.exploration.space.space_file import read_space_file


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("hosts.app.count=2..5", "2 3 4 5"),
        ("hosts.app.count=2..18/4", "2 6 10 14 18"),
        ("hosts.app.count=2..17/4", "2 6 10 14"),
        ("hosts.app.count=1,3,5..9/2", "1 3 5 7 9"),
        ("store.chunk=256KiB,1MiB,4MiB", "256KiB 1MiB 4MiB"),
        ("store.chunk=256KiB..4MiB*2", "256KiB 512KiB 1MiB 2MiB 4MiB"),
        ("store.chunk=256KiB..1MiB/256KiB", "256KiB 512KiB 768KiB 1MiB"),
        ("power.frequency=1.2 GHz..2.4 GHz/0.4", "1.2GHz 1.6GHz 2GHz 2.4GHz"),
        ("network.bandwidth=100 MB/s..200 MB/s/50 MB/s", "100MB/s 150MB/s 200MB/s"),
        ("store.stripe=all,1,2", "all 1 2"),
        ("hosts.a.speed=0.5..1/.25", "0.5 0.75 1"),
    ],
)
def test_levels(text: str, labels: str) -> None:
    assert parse_axis(text).labels == labels.split()


def test_steps_are_exact_decimals() -> None:
    # 0.1 + 0.2 must not become 0.30000000000000004, and 1.0 must be included
    axis = parse_axis("hosts.a.speed=0.1..1/0.1")
    assert [v for level in axis.levels for _, v in level.values] == [
        *(n / 10 for n in range(1, 10)),
        1,
    ]


def test_split_sets_two_groups() -> None:
    axis = parse_axis("split=hosts.app:hosts.storage/19")
    assert len(axis.levels) == 18
    assert axis.labels[13] == "14+5"
    assert dict(axis.levels[13].values) == {"hosts.app.count": 14, "hosts.storage.count": 5}
    assert axis.ordered
    assert all(sum(v for _, v in level.values) == 19 for level in axis.levels)
    several = parse_axis("split=app:storage/10,16")
    assert len(several.levels) == 9 + 15
    assert several.stepwise
    assert not several.ordered


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("network.latency=500us,2ms", [0.0005, 0.002]),
        ("network.bandwidth=100 Mbit/s,1 Gbit/s", [12.5e6, 125e6]),
        ("power.frequency=800 MHz,1.2 GHz", [0.8e9, 1.2e9]),
        ("store.chunk=512KiB,1MiB", [524288.0, 1048576.0]),
        ("hosts.a.storage.profile=4K-disk,8K-disk", [None, None]),
    ],
)
def test_levels_are_numbers_in_base_units(text: str, numbers: list[float | None]) -> None:
    axis = parse_axis(text)
    assert [level.magnitude for level in axis.levels] == pytest.approx(numbers)
    assert axis.ordered == (None not in numbers)


def test_constraint_on_an_axis_has_its_units() -> None:
    key = "network.latency"
    constraint = parse_constraint(f"{key} <= 2 ms", keys=(key,))
    levels = parse_axis(f"{key}=500us,2ms,1s").levels
    assert [constraint.holds({key: level.magnitude or 0.0}) for level in levels] == [
        True,
        True,
        False,
    ]


def test_numbers_and_candidates_are_inverse() -> None:
    space = make_space([parse_axis(t) for t in ("a.b=1..3", "c.d=x,y", "e.f=1..4")])
    assert space.size == 24
    assert [space.number(c) for c in space] == list(range(24))
    assert [space.candidate(i) for i in range(24)] == list(space)
    assert space.values(space.candidate(23)) == {"a.b": 3, "c.d": "y", "e.f": 4}


@pytest.mark.parametrize(
    ("text", "column", "found", "expected"),
    [
        ("x", 1, "'x'", "KEY=LEVELS"),
        ("hosts.app.count=18..2", 17, "'18..2'", "smaller end first"),
        ("hosts.app.count=a..b", 17, "'a..b'", "a range of two numbers"),
        ("hosts.app.count=1,1", 17, "the level 1 twice", "each level once"),
        ("hosts.app.count=1.5", 17, "1.5 hosts", "integers"),
        ("store.chunk=256KiB..4MiB", 13, "more than 1000 levels", "a factor"),
        ("store.chunk=1 s..2 h", 13, "'1 s..2 h'", "the same unit"),
        ("a.b=", 5, "nothing", "levels such as"),
        ("a.b=1,,2", 5, "'1,,2'", "levels such as"),
        ("a.b=1..8*1", 5, "the factor 1", "above 1"),
        ("a.b=1..8/0", 5, "the step 0", "above 0"),
        ("a.b=1..8*x", 5, "'1..8*x'", "a range"),
        ("a.b=1..1e9", 5, "more than 1000 levels", "fewer"),
        ("a..b=1", 6, "the key 'a..b'", "a dotted path"),
        ("split=app/3", 7, "'app/3'", "hosts.app:hosts.storage/19"),
        ("split=app:app/3", 7, "'app:app/3'", "hosts.app:hosts.storage/19"),
        ("split=app:b/1", 7, "a total of 1", "2 to 1000"),
    ],
)
def test_mistakes_of_vary(text: str, column: int, found: str, expected: str) -> None:
    with pytest.raises(BadInput) as raised:
        parse_axis(text)
    (mistake,) = raised.value.mistakes
    assert (mistake.file, mistake.line, mistake.column) == (f"--vary {text}", 1, column)
    assert found in mistake.found
    assert expected in mistake.expected


def test_a_key_twice_is_a_mistake() -> None:
    axes = [parse_axis("split=app:storage/9"), parse_axis("hosts.app.count=1..3")]
    with pytest.raises(BadInput, match=r"'hosts\.app\.count' a second time"):
        make_space(axes)
    with pytest.raises(BadInput, match="nothing to vary"):
        make_space([])


SPACE = """\
penstock_space: 1
vary:
  split: hosts.app:hosts.storage/19
  store.chunk: [256KiB, 1MiB, 4MiB]
  hosts.manager.speed: [0.5, 1..3]
  store.replicas: 2
constraints: [cost <= 2 EUR]
objective: time
"""


def test_space_file(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(SPACE)
    spec = read_space_file(file)
    assert [a.name for a in spec.axes] == [
        "split",
        "store.chunk",
        "hosts.manager.speed",
        "store.replicas",
    ]
    assert spec.axes[2].labels == ["0.5", "1", "2", "3"]
    assert spec.axes[3].labels == ["2"]
    assert spec.constraints[0].text == "cost <= 2 EUR"
    assert spec.constraints[0].at.line == 7
    assert spec.objective is not None
    assert make_space(spec.axes).size == 18 * 3 * 4


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "found"),
    [
        ("penstock_space: 1", "penstock_space: 2", 1, 17, "penstock_space 2"),
        ("penstock_space: 1\n", "", 1, 1, "no penstock_space"),
        ("objective: time", "objektive: time", 8, 1, "'objektive' (did you mean 'objective'?)"),
        ("objective: time", "objective: 3", 8, 12, "3"),
        ("[256KiB, 1MiB, 4MiB]", "[]", 4, 16, "no level"),
        ("[256KiB, 1MiB, 4MiB]", "[1MiB, 1MiB]", 4, 16, "the level 1MiB twice"),
        ("[256KiB, 1MiB, 4MiB]", "[{a: 1}]", 4, 16, "the level {'a': 1}"),
        ("hosts.app:hosts.storage/19", "hosts.app/19", 3, 10, "'hosts.app/19'"),
        ("[cost <= 2 EUR]", "[3]", 7, 15, "3"),
    ],
)
def test_mistakes_of_a_space_file(
    tmp_path: Path, old: str, new: str, line: int, column: int, found: str
) -> None:
    file = tmp_path / "space.yaml"
    assert old in SPACE
    file.write_text(SPACE.replace(old, new))
    with pytest.raises(BadInput) as raised:
        read_space_file(file)
    (mistake,) = raised.value.mistakes
    assert mistake.file == str(file)
    assert mistake.found == found
    assert mistake.line == line
    assert mistake.column == column


def test_a_missing_space_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no space file"):
        read_space_file(tmp_path / "none.yaml")
