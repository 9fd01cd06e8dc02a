"""Comparison of experiments and treatments by phase: ties, changes, gates with exit status 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from penstock.archive.catalogue import local_user
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Account, Batch, points
from tests.unit.shared_runs import T0, S, made, own_store, penstock, refused, study

LOAD = {"load": (10.0, 30.0), "query": (30.0, 50.0)}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    monkeypatch.chdir(tmp_path)
    return own_store(tmp_path, monkeypatch)


def repeats(store: Experiments, name: str, levels: list[float], late_s: float = 0.0) -> None:
    """One repeat for each level: 5 before the load, the level in it, twice that in the query.

    `late_s`: additional delay of the load in each further repeat; phases align the repeats.
    """
    for number, level in enumerate(levels):
        shift = late_s * number
        times = np.arange(60.0 + shift)
        phases = {k: (a + shift, b + shift) for k, (a, b) in LOAD.items()}
        value = np.where(times < 10 + shift, 5.0, np.where(times < 30 + shift, level, 2 * level))
        series = {("speed", node): (times, value * (1 + n)) for n, node in enumerate(("n1", "n2"))}
        made(store, name, series, phases=phases, lasted_s=60 + shift)


def comparison(*arguments: str) -> dict[str, Any]:
    result = penstock("compare", *arguments, "--json")
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def row(document: dict[str, Any], phase: str, metric: str) -> dict[str, Any]:
    (match,) = (r for r in document["rows"] if (r["phase"], r["metric"]) == (phase, metric))
    return dict(match)


def test_phases_align_runs_that_start_them_at_different_times(store: Experiments) -> None:
    """The load begins later in each repeat, and the mean of the phase is exact nevertheless."""
    repeats(store, "a", [100.0, 102.0, 101.0], late_s=7.0)
    repeats(store, "b", [200.0, 203.0, 201.0], late_s=3.0)
    document = comparison("a#1..3", "b#1..3")
    assert document["runs"] == {"a#1..3": ["a#1", "a#2", "a#3"], "b#1..3": ["b#1", "b#2", "b#3"]}
    load = row(document, "load", "speed")
    # mean of n1 and n2, which is twice as fast
    assert load["values"]["a#1..3"] == [150.0, 153.0, 151.5]
    assert load["changes"]["b#1..3"] == pytest.approx(np.mean([300, 304.5, 301.5]) / 151.5 - 1)
    assert row(document, "load", "duration")["values"]["a#1..3"] == [20.0, 20.0, 20.0]
    alone = comparison(
        "a#1..3", "b#1..3", "--align", "query", "-m", "speed n2", "--statistic", "max"
    )
    assert [(r["phase"], r["metric"]) for r in alone["rows"]] == [("query", "speed n2")]
    assert alone["rows"][0]["values"]["a#1..3"] == [400.0, 408.0, 404.0]
    assert row(document, "run", "wall_s")["values"]["a#1..3"] == [60.0, 67.0, 74.0]


def test_all_occurrences_of_a_phase_are_compared(store: Experiments) -> None:
    """Fails if only the first of several phases of one name counts."""
    times = np.arange(20.0)
    for name, level in (("a", 1.0), ("b", 2.0)):
        running = store.start(name, local_user(), at_ns=T0)
        utc_ns = T0 + (times * S).astype(np.int64)
        table = points(metric="speed", utc_ns=utc_ns, float=level * times, unit="B/s")
        store.sink(running).write(Batch("test", 0, table))
        for low, high in ((2, 4), (10, 14)):
            store.mark(running, "begin", "load", T0 + low * S)
            store.mark(running, "end", "load", T0 + high * S)
        store.stop(running, at_ns=T0 + 20 * S)
    document = comparison("a", "b")
    # 2, 3, 10, 11, 12 and 13 s
    assert list(row(document, "load", "speed")["values"].values()) == [[8.5], [17.0]]
    assert list(row(document, "load", "duration")["values"].values()) == [[6.0], [6.0]]


def test_sums_at_different_intervals_are_noted(store: Experiments) -> None:
    for name, step in (("a", 1.0), ("b", 0.1), ("c", 0.9)):
        times = np.arange(0, 20, step)
        made(store, name, {("speed", "n1"): (times, np.full(len(times), 5.0))}, lasted_s=20)
    noted = "sums of points at different intervals, with which they change: speed (0.1 to 1 s)"
    assert noted in comparison("a", "b", "--statistic", "sum")["notes"]
    for others in (("a", "c", "--statistic", "sum"), ("a", "b")):
        assert not any("intervals" in note for note in comparison(*others)["notes"])


def test_last_of_several_nodes_is_the_mean_of_their_last_points(store: Experiments) -> None:
    times = np.arange(20.0)
    for name in "ab":
        series = {("speed", "n1"): (times, times), ("speed", "n2"): (times, 3 * times)}
        made(store, name, series, lasted_s=20)
    document = comparison("a", "b", "--statistic", "last")
    assert row(document, "run", "speed")["values"]["a"] == [38.0]


def test_groups_are_those_of_welch_and_holm(store: Experiments) -> None:
    """Five repeats of three experiments, two of them tied; P-values as SciPy's."""
    rng = np.random.default_rng(3)
    levels = {
        "a": 100 + rng.normal(0, 3, 5),
        "b": 101 + rng.normal(0, 3, 5),
        "c": 130 + rng.normal(0, 3, 5),
    }
    for name, values in levels.items():
        repeats(store, name, [float(v) for v in values])
    names = [f"{n}#1..5" for n in "abc"]
    load = row(comparison(*names, "--metric", "speed"), "load", "speed")
    assert [set(g) for g in load["groups"]] == [set(names[:2]), set(names[2:])]
    for pair in load["pairs"]:
        first, second = (np.asarray(levels[pair[k][0]]) for k in ("first", "second"))
        expected = stats.ttest_ind(first, second, equal_var=False).pvalue
        assert pair["p_value"] == pytest.approx(expected, rel=1e-6)
    smallest = min(load["pairs"], key=lambda p: p["p_value"])
    assert smallest["p_holm"] == pytest.approx(3 * smallest["p_value"])
    text = penstock("compare", *names, "-m", "speed").output
    assert "tie" in text
    assert "groups: A=B < C" in text or "groups: B=A < C" in text


def test_a_gate_fails_with_status_3_on_a_significant_change(store: Experiments) -> None:
    repeats(store, "old", [100.0, 101.0, 102.0])
    repeats(store, "same", [101.0, 100.5, 102.0])
    repeats(store, "slow", [111.0, 112.0, 113.0])
    repeats(store, "noisy", [60.0, 112.0, 190.0])
    gate = ("--fail-on", "speed@load > 5%")
    assert penstock("compare", "old#*", "same#*", *gate).exit_code == 0
    assert penstock("compare", "old#*", "slow#*", *gate).exit_code == 3
    # its mean is 19 % higher, without significance
    result = penstock("compare", "old#*", "noisy#*", *gate)
    assert result.exit_code == 0
    assert "a tie: passed" in result.output
    # one of several is enough; the other direction is another gate
    assert penstock("compare", "old#*", "same#*", "slow#*", *gate).exit_code == 3
    assert penstock("compare", "old#*", "slow#*", "--fail-on", "speed < -5%").exit_code == 0
    assert penstock("compare", "slow#*", "old#*", "--fail-on", "speed@load < -5%").exit_code == 3
    # for single runs the change alone decides, with a note
    result = penstock("compare", "old#1", "slow#1", "--fail-on", "speed@load>5%")
    assert result.exit_code == 3
    assert "no statement about chance" in result.output


def test_a_gate_without_matches_is_refused(store: Experiments) -> None:
    repeats(store, "a", [1.0, 2.0])
    repeats(store, "b", [1.0, 2.0])
    assert "nothing called" in refused("compare", "a#*", "b#*", "--fail-on", "sped > 5%")
    assert "nothing called" in refused("compare", "a#*", "b#*", "--fail-on", "speed@loat > 5%")
    for invalid in ("speed", "speed > 5", "> 5%", "speed >> 5%", "speed > x%"):
        assert "--fail-on" in refused("compare", "a#*", "b#*", "--fail-on", invalid)
    assert "--metric" in refused("compare", "a#*", "b#*", "-m", "sped")
    assert "--align: found loading" in refused("compare", "a#*", "b#*", "--align", "loading")
    assert "found 1 to compare" in refused("compare", "a#*")
    assert "twice" in refused("compare", "a#*", "a#*", "-m", "speed")


def test_treatments_of_a_study_are_compared_by_their_responses(
    store: Experiments, tmp_path: Path
) -> None:
    out = study(
        tmp_path / "out",
        {"t01": [10.0, 10.1, 10.2], "t02": [10.1, 10.0, 10.2], "t03": [12.0, 12.1, 12.3]},
    )
    names = [f"{out}:t0{n}" for n in (1, 2, 3)]
    wall = row(comparison(*names), "run", "wall_s")
    assert [len(g) for g in wall["groups"]] == [2, 1]
    assert penstock("compare", *names[:2], "--fail-on", "wall_s > 5%").exit_code == 0
    gated = penstock("compare", *names, "--fail-on", "wall_s > 5%")
    assert gated.exit_code == 3
    # the gate first, then only its metric
    output_lines = gated.stdout.splitlines()
    assert output_lines[0].startswith("wall_s > 5%: ")
    rows = [
        line.strip()
        for line in output_lines
        if line.startswith("  ") and not line.startswith("   ")
    ]
    assert rows == ["wall s [s]"]


def test_partial_experiments_are_compared_only_on_request(store: Experiments) -> None:
    repeats(store, "a", [1.0])
    running = store.start("holes", "root", at_ns=T0)
    owner = store.find("a", None).owner
    if owner != "root":
        store.stop(running)
        running = store.start("holes", owner, at_ns=T0)
    times = T0 + np.arange(0, 30) * S
    account = Account("speed", interval_ns=S, expected=60)
    table = points(metric="speed", utc_ns=times, float=np.ones(30), unit="B/s")
    store.sink(running).write(Batch("t", 0, table, [account]))
    store.stop(running, at_ns=T0 + 60 * S)
    assert "holes#1, which is not valid" in refused("compare", "a", "holes")
    assert penstock("compare", "a", "holes", "--partial").exit_code == 0


def test_the_published_table_gives_a_tie_and_a_last_place(tmp_path: Path) -> None:
    """The published table, with runs instead of means (means: tests/unit/test_ranking.py)."""
    from penstock.analyse.treatments.ranking import Measured, order

    ranking = order([Measured("guest", 222.33, 2.50, 5), Measured("host", 218.96, 3.57, 5)])
    assert ranking.pair("guest", "host").p_value == pytest.approx(0.13, abs=0.005)
    assert not ranking.pair("guest", "host").apart


def test_a_table_without_a_column_is_refused(store: Experiments) -> None:
    """Archives recorded before counters were marked have no such column."""
    golden = Path(__file__).parents[1] / "golden" / "postgres-archive"
    message = refused("plot", f"{golden}:r001", "lines", "-o", "x.svg")
    assert "found table samples without cumulative" in message
