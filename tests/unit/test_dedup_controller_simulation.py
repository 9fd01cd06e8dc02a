"""Online controller on a simulated store: overhead, regret, choice of the best configuration."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.parts.dedup.cli import energy as energy_verb
from penstock.parts.dedup.cli import simulate as simulate_verb
from penstock.parts.dedup.controller.energy import TESTBEDS, break_even
from penstock.parts.dedup.controller.model import break_even_equal_weights
from penstock.parts.dedup.controller.settings import Settings, published
from penstock.parts.dedup.controller.simulation.run import (
    AUTO,
    ORACLE,
    PUBLISHED,
    Simulation,
    simulate,
)
from penstock.parts.dedup.controller.simulation.similarity import process
from penstock.parts.dedup.controller.simulation.store import Scenario, binomial
from penstock.parts.dedup.controller.utility import METRICS, Utility

FIXED, CDC = "fixed:65536", "fastcdc:16384:65536:262144"
STATIC_OFF, STATIC_ON = "always off", f"always {FIXED}"


def run(r: float, z: str, settings: Settings | None = None, **options: Any) -> Simulation:
    """Simulate one deduplicating configuration."""
    return simulate(Scenario({FIXED: r}, {FIXED: z}, **options), settings or Settings())


@pytest.mark.parametrize("r", [0.16, 0.40, 0.50])
@pytest.mark.parametrize("size", [64 << 20, 256 << 20])
def test_a_hundred_writes_take_little_longer_than_the_best_choice(r: float, size: int) -> None:
    ratios = []
    for percent in range(0, 101, 10):
        result = run(r, f"{percent}%", writes=100, write_bytes=size)
        ratios.append(1 + result.excess())
        if abs(percent / 100 - r) > 0.05:
            right = "off" if percent / 100 < r else FIXED
            assert result.decisions[-1].configuration == right, percent
    assert max(ratios) <= 1.05
    assert sum(ratios) / len(ratios) <= 1.03


@pytest.mark.parametrize("r", [0.16, 0.40, 0.50, 0.60])
def test_equal_weights_choose_the_right_side(r: float) -> None:
    even = break_even_equal_weights(r)
    settings = Settings(utility=Utility((-0.5, -0.5, 0.0)))
    for offset in (-0.04, 0.04):
        result = run(r, f"{100 * (even + offset):.2f}%", settings, writes=200)
        assert result.decisions[-1].configuration == ("off" if offset < 0 else FIXED)


@pytest.mark.parametrize("weights", [(-1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (-1 / 3, -1 / 3, -1 / 3)])
def test_energy_in_the_utility_chooses_the_right_side(
    weights: tuple[float, float, float],
) -> None:
    bed = TESTBEDS["new"]
    even = {0: 0.4, 1: break_even(bed.power, 0.4), 2: 0.1926}[
        0 if weights[0] == -1 else 1 if weights[2] == -1 else 2
    ]
    settings = Settings(utility=Utility(weights), power=bed.power)
    for percent in range(0, 101, 5):
        z = percent / 100
        if abs(z - even) > 0.05:
            result = run(bed.r, f"{percent}%", settings, writes=60, power=bed.power)
            assert result.decisions[-1].configuration == ("off" if z < even else FIXED), percent


@pytest.mark.parametrize(("r", "share"), [(0.5, 0.025), (0.6, 0.030), (1.0, 0.050)])
def test_published_probes_take_the_published_share(r: float, share: float) -> None:
    result = simulate(
        Scenario({FIXED: r}, {FIXED: "0%"}, writes=2000, noise=(0.0, 0.0)),
        Settings(),
        reference=published(reprobe_after=95),
    )
    assert result.excess(PUBLISHED) == pytest.approx(share, rel=0.02)
    # probes end early at doubling intervals, plus samples
    assert result.excess() < 0.6 * share


def test_a_probe_takes_twice_the_time_at_most_and_samples_two_percent() -> None:
    rare = Settings(reprobe_after=1000)
    result = run(1.0, "0%", rare, writes=400, noise=(0.0, 0.0))
    base = result.outcomes[STATIC_OFF].time_s
    assert result.outcomes[STATIC_ON].time_s <= 2.05 * base
    without = run(1.0, "0%", replace(rare, sampling=None), writes=400, noise=(0.0, 0.0))
    sampled = result.outcomes[AUTO].time_s - without.outcomes[AUTO].time_s
    assert 0 < sampled <= 0.02 * base


PROCESSES = (
    "steps:70%,0%,40",
    "steps:70%,0%,300",
    "sinusoid:35%,35%,200",
    "random:0%,100%",
    "levels:0%,100%,40",
)


@pytest.mark.parametrize("z", PROCESSES)
@pytest.mark.parametrize("r", [0.16, 0.40])
def test_changing_similarity_costs_half_of_the_published_regret(r: float, z: str) -> None:
    result = run(r, z, writes=3000)
    assert result.regret() <= result.regret(PUBLISHED) / 2
    assert result.excess() <= 0.05


@pytest.mark.parametrize("z", ["steps:70%,0%,5", "steps:70%,70%,70%,0%,5", "random:0%,80%"])
@pytest.mark.parametrize("r", [0.16, 0.40, 0.50, 1.0])
def test_fast_changes_cost_little_beyond_the_best_static_choice(r: float, z: str) -> None:
    assert run(r, z, writes=3000).excess() <= 0.05


def test_the_best_of_three_configurations_is_chosen() -> None:
    right = total = 0
    similar = (0.05, 0.3, 0.55, 0.8, 0.95)
    for (fixed, cdc), (z_fixed, z_cdc) in itertools.product(
        ((0.2, 0.4), (0.2, 0.6), (0.5, 0.8), (0.5, 0.55)), itertools.product(similar, similar)
    ):
        times = {"off": 1.0, FIXED: 1 + fixed - z_fixed, CDC: 1 + cdc - z_cdc}
        result = simulate(
            Scenario(
                {FIXED: fixed, CDC: cdc},
                {FIXED: f"{100 * z_fixed:g}%", CDC: f"{100 * z_cdc:g}%"},
                writes=60,
            ),
            Settings(),
        )
        least = min(times.values())
        chosen = times[result.decisions[-1].configuration]
        right += math.isclose(chosen, least)
        total += 1
    assert right >= 0.95 * total


def test_all_contenders_have_the_same_writes() -> None:
    result = run(0.4, "steps:70%,0%,40", writes=400, noise=(0.1, 0.05), power=TESTBEDS["new"].power)
    off, on = result.outcomes[STATIC_OFF], result.outcomes[STATIC_ON]
    # the first version has no predecessor
    share = (399 * 0.35 * 400 / 400 + 0.35 - 0.7) / 399
    assert 1 - on.space_bytes / off.space_bytes == pytest.approx(share, abs=0.002)
    assert result.outcomes[ORACLE].cost <= min(off.cost, on.cost)
    assert result.outcomes[AUTO].shares["off"] + result.outcomes[AUTO].shares[FIXED] == 1
    assert {outcome.energy_j > 0 for outcome in result.outcomes.values()} == {True}


def test_processes_have_their_levels() -> None:
    def points(text: str, n: int) -> list[float]:
        return [point[1] for point in itertools.islice(process(text, 5), n)]

    assert points("steps:50%,0%,2", 6) == [0.5, 0.5, 0.0, 0.0, 0.5, 0.5]
    wave = points("sinusoid:35%,35%,100", 100)
    assert (max(wave), min(wave)) == pytest.approx((0.7, 0.0))
    uniform = points("random:20%,60%", 4000)
    assert sum(uniform) / 4000 == pytest.approx(0.4, abs=0.01)
    levels = points("levels:0%,100%,50", 20_000)
    changes = sum(a != b for a, b in itertools.pairwise(levels))
    assert changes == pytest.approx(400, rel=0.2)
    for text in ("steps:1", "sinusoid:1%,2%", "random:1%,2%,x", "walk:1%", "120%", "steps:1%,2%,0"):
        with pytest.raises(ValueError, match="levels:0%,100%,40"):
            process(text, 1)


@pytest.mark.parametrize(("n", "p"), [(20, 0.3), (400, 0.99), (4096, 0.5), (50, 0.0), (50, 1.0)])
def test_sampled_numbers_are_binomial(n: int, p: float) -> None:
    source = random.Random(7)
    values = [binomial(source, n, p) for _ in range(4000)]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert mean == pytest.approx(n * p, abs=4 * math.sqrt(n * p * (1 - p) / 4000) + 1e-9)
    assert variance == pytest.approx(n * p * (1 - p), rel=0.12, abs=1e-9)


def invoke(verb: Any, *argv: str) -> Any:
    import typer

    app = typer.Typer()
    app.command()(verb.command)
    return CliRunner().invoke(app, list(argv))


def test_the_verb_writes_a_log_and_a_figure(tmp_path: Path) -> None:
    log, figure = tmp_path / "log.jsonl", tmp_path / "log.svg"
    result = invoke(
        simulate_verb, "-n", "300", "-z", "steps:70%,0%,100", "--testbed", "new", "--json",
        "--log", str(log), "--figure", str(figure),
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert len(log.read_text().splitlines()) == document["decisions"] > 2
    assert figure.read_bytes().startswith(b"<?xml")
    names = [outcome["name"] for outcome in document["outcomes"]]
    assert names == [AUTO, PUBLISHED, STATIC_OFF, STATIC_ON, ORACLE]
    table = invoke(simulate_verb, "-n", "200", "--testbed", "old")
    assert "energy" in table.stdout.splitlines()[0]
    assert f"published: +0.00 % compared with {STATIC_ON}" in table.stdout
    assert max(map(len, table.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-r", "x"], "--ratio: found 'x'; expected a number above 0"),
        (["-z", "walk:3"], "--similarity: found 'walk:3'; expected 70%, steps:"),
        (["-r", "a=1", "-r", "a=2"], "--ratio: found 'a=2'; expected each configuration once"),
        (["-r", "a=1", "-z", "b=1%"], "expected both for the same configurations except off"),
        (["--testbed", "mid"], "--testbed: found 'mid'; expected new or old"),
        (["--size", "1"], "--size: found '1'; expected a size"),
        (["--writes", "1000000000"], "--writes: found 1,000,000,000; expected at most"),
        (["--size", "1e18 TB"], "--size: found '1e18 TB'; expected a size of at most 2^60"),
        (["--bandwidth", "1e-300 B/s"], "--bandwidth: found 1e-300 B/s; expected one that sends"),
    ],
)
def test_options_are_checked(argv: list[str], message: str) -> None:
    result = invoke(simulate_verb, *argv)
    assert message in str(result.exception)


def test_the_conflict_verb_prints_the_interval() -> None:
    assert "from 21.4 % to 40.0 % (19 points)" in invoke(energy_verb, "--testbed", "new").stdout
    document = json.loads(
        invoke(
            energy_verb, "-r", "0.16", "--idle", "188 W", "--hash", "223.4 W", "--io", "216.3 W",
            "--json",
        ).stdout
    )  # fmt: skip
    assert document["energy"] == pytest.approx(0.1, abs=0.001)
    assert document["interval"] == pytest.approx([0.1, 0.16], abs=0.001)
    assert "expected new or old" in str(
        invoke(energy_verb, "--testbed", "new", "-r", "1").exception
    )
    assert "and no other option" in str(
        invoke(energy_verb, "--testbed", "new", "--replicas", "3").exception
    )
    powers = ("--idle", "188 W", "--hash", "223 W", "--io", "216 W")
    for ratio in ("inf", "nan", "1e18"):
        result = invoke(energy_verb, "-r", ratio, *powers)
        assert (result.exit_code, result.stdout) == (2, "")
    assert METRICS == ("time", "space", "energy")
