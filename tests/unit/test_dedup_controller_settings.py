"""Settings of the controller, the utility language, and the log of decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.parts.dedup.controller.decision import (
    Decision,
    read_decisions,
    write_decisions,
)
from penstock.parts.dedup.controller.decision_figure import write_figure
from penstock.parts.dedup.controller.energy import PowerModel
from penstock.parts.dedup.controller.online import OnlineController
from penstock.parts.dedup.controller.settings import Sampling, Settings
from penstock.parts.dedup.controller.settings_file import read_settings
from penstock.parts.dedup.controller.utility import Costs, Limit, Utility
from penstock.parts.dedup.record import WriteRecord

FULL = """\
window: 7
reprobe_after: 50
reprobe_most: 400
doubling: false
utility:
  weights: {time: -0.5, space: -0.3, energy: -0.2}
  subject_to: {time: {at_most: 120 %}, space: {below: 70%}}
sampling: {time_share: 0.5%, share: 10%}
least_gain: 1%
confidence: 0.9
drift: 20%
memory: 60
adaptive: false
scope: system
power: {idle: 86 W, hash: 290 W, io: 276.7 W, replicas: 2}
log: decisions.jsonl
"""


def read(text: str, tmp_path: Path) -> Settings:
    file = tmp_path / "controller.yaml"
    file.write_text(text)
    return read_settings(file)


def test_every_key_is_read(tmp_path: Path) -> None:
    settings = read(FULL, tmp_path)
    assert settings.utility.weights == pytest.approx((-0.5, -0.3, -0.2))
    assert settings.utility.limits == (Limit("time", 1.2), Limit("space", 0.7, strict=True))
    assert settings.sampling == Sampling(0.005, 0.1)
    assert settings.log == tmp_path / "decisions.jsonl"
    assert settings.power == PowerModel(86, 290, 276.7, 3)
    assert (settings.window, settings.reprobe_after, settings.reprobe_most) == (7, 50, 400)
    assert (settings.doubling, settings.adaptive, settings.scope) == (False, False, "system")
    assert (settings.least_gain, settings.confidence, settings.drift, settings.memory) == (
        *(0.01, 0.9, 0.2),
        60,
    )


def test_defaults_are_those_of_the_class(tmp_path: Path) -> None:
    assert read("{}", tmp_path) == Settings()
    assert read("sampling: false", tmp_path) == Settings(sampling=None)
    for text in ("weights: {space: -1}", "maximize: -space"):
        settings = read(f"utility: {{{text}}}", tmp_path)
        assert settings.utility == Utility((0.0, -1.0, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("window: 1", ":1:9: found 1; expected a number of at least 2"),
        ("widow: 5", "found the unknown key 'widow'; expected one of window"),
        ("drift: 10", "found 10; expected a share such as 1%"),
        ("utility: {maximize: time}", "found 'time'; expected -time, -space or -energy"),
        ("utility: {subject_to: {tmie: {at_most: 1%}}}", "(did you mean 'time'?)"),
        ("utility: {subject_to: {time: {at_most: 1.2}}}", "expected a percentage such as 120%"),
        ("utility: {subject_to: {time: {below: 0%}}}", "expected a percentage of the metric"),
        ("utility: {weights: {time: -1}, maximize: -time}", "expected one of them"),
        ("utility: {subject_to: {energy: {below: 90%}}}", "expected the key power"),
        ("utility: {weights: {energy: -1}}", "expected the key power"),
        ("utility: {weights: {time: 1}}", "found 1; expected a number of at most 0"),
        (
            "power: {idle: 86 W, hash: 80 W, io: 90 W}",
            "expected the power of an idle machine below",
        ),
        ("power: {idle: 86, hash: 90 W, io: 90 W}", "expected a power with its unit"),
        ("reprobe_most: 5", "found 5; expected at least reprobe_after, 100"),
        ("[1]", "found no mapping; expected keys such as window"),
        ("scope: host", "found 'host'; expected family or system"),
    ],
)
def test_mistakes_have_a_position_and_an_expectation(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as error:
        read(text, tmp_path)
    assert message in str(error.value)
    assert f"{tmp_path}/controller.yaml:1:" in str(error.value)


def test_energy_needs_powers() -> None:
    with pytest.raises(BadInput, match="power: found nothing"):
        Settings(utility=Utility((0.0, 0.0, -1.0)))


def test_a_published_limit_gives_its_break_even() -> None:
    """Up to 20 % more time for 30 % less space: on from max(30 %, r - 20 %)."""
    utility = Utility((0.0, -1.0, 0.0), (Limit("time", 1.2), Limit("space", 0.7)))
    for r in (0.1, 0.3, 0.5, 0.6, 0.9, 1.2):
        for percent in range(1, 100):
            z = (percent + 0.5) / 100
            off, on = utility.values([(1.0, 1.0, 0.0), (1 + r - z, 1 - z, 0.0)], 0)
            assert (on > off) == (z > max(0.3, r - 0.2))


def test_off_remains_if_nothing_meets_the_limits() -> None:
    utility = Utility((-1.0, 0.0, 0.0), (Limit("space", 0.5),))
    assert utility.values([(1.0, 1.0, 0.0), (0.5, 0.8, 0.0)], 0) == [-1.0, -float("inf")]


def test_limits_at_equality() -> None:
    off, cost = (1.0, 0.7, 0.0), (1.0, 0.7 / 3 * 3 * 0.9, 0.0)
    assert Limit("space", 0.9).met(cost, off)
    assert not Limit("space", 0.9, strict=True).met(cost, off)
    assert Limit("space", 0.91, strict=True).met(cost, off)
    assert not Limit("space", 0.89).met(cost, off)


COSTS = st.tuples(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10))


@settings(max_examples=50)
@given(st.lists(COSTS, min_size=1, max_size=5), st.tuples(*[st.floats(-1, 0)] * 3))
def test_utility_is_normalised_by_the_largest_of_all(rows: list[Costs], weights: Costs) -> None:
    values = Utility(weights).values(rows, 0)
    largest = [max(row[i] for row in rows) for i in range(3)]
    for row, value in zip(rows, values, strict=True):
        assert value == pytest.approx(sum(weights[i] * row[i] / largest[i] for i in range(3)))
        assert -3 <= value <= 0


DECISIONS = [
    Decision(
        10.0 * n,
        family,
        n,
        "probe",
        "steady off",
        "off",
        "end of probe",
        ("off", "fixed:65536"),
        (None, 0.1 * n),
        (-0.9, None),
        (8e-9, 9e-9),
        (None, 4e-9),
        100,
    )
    for n, family in enumerate(["a", "b", "b", "b"], 1)
]


@pytest.mark.parametrize("name", ["log.jsonl", "log.parquet"])
def test_a_log_is_read_as_written(name: str, tmp_path: Path) -> None:
    write_decisions(DECISIONS, tmp_path / name)
    assert read_decisions(tmp_path / name) == DECISIONS


def test_a_controller_appends_to_its_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    controller = OnlineController(Settings(log=path), ["off", "fixed:65536"])
    for n in range(30):
        name = controller.choose("a")
        controller.record(WriteRecord("a", n, 1.5, 0.5, 1.0, 1000, 0, 4, 0, name))
    assert read_decisions(path) == controller.decisions()
    assert len(controller.decisions()) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(BadInput, match=r"log: found .*link .*; expected a file to write"):
        OnlineController(Settings(log=tmp_path / "link"), ["off"])


def test_other_files_are_no_log(tmp_path: Path) -> None:
    for name, text in (("a.jsonl", "{}"), ("b.jsonl", "nothing"), ("c.parquet", "PAR1")):
        (tmp_path / name).write_text(text)
        with pytest.raises(BadInput, match=r"; expected "):
            read_decisions(tmp_path / name)
    with pytest.raises(BadInput, match=r"found '\.csv'; expected \.jsonl or \.parquet"):
        write_decisions(DECISIONS, tmp_path / "log.csv")


def test_the_figure_is_of_one_family(tmp_path: Path) -> None:
    write_figure(DECISIONS, tmp_path / "b.svg")
    write_figure(DECISIONS, tmp_path / "a.svg", "a")
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()
    with pytest.raises(BadInput, match="--family: found 'c'; expected one of a, b"):
        write_figure(DECISIONS, tmp_path / "c.svg", "c")
    with pytest.raises(BadInput, match=r"expected \.svg, \.pdf or \.png"):
        write_figure(DECISIONS, tmp_path / "b.txt")
    with pytest.raises(BadInput, match="found a log without decisions"):
        write_figure([], tmp_path / "b.svg")
