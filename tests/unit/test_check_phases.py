"""`penstock check` against what was measured elsewhere, and with a change that is not made yet."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.parts.conformity.comparison import OK, SLOW, TOO_FAST, evaluate, evaluate_all
from penstock.parts.conformity.expected import Expectation, Expected
from penstock.parts.conformity.measured_rows import measured_expectation, read_measured
from penstock.parts.conformity.what_if import what_if
from tests.unit.test_check_cli import EXPECTED, Run, check, table  # noqa: F401 - a fixture


def draws(mean: float, sd: float, n: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(mean, sd) for _ in range(n)]


def beside(base: list[float], values: list[float], tolerance: float = 0.1) -> str:
    row = Expected("c", "w", "t", sum(base) / len(base), tolerance=tolerance, base=tuple(base))
    return evaluate(row, values).verdict


def test_what_is_slower_than_what_was_measured_before() -> None:
    base = draws(10, 0.3, 15, 1)
    assert beside(base, draws(12, 0.3, 15, 2)) == SLOW
    assert beside(base, draws(10.3, 0.3, 15, 3)) == OK
    assert beside(base, draws(8, 0.3, 15, 4)) == TOO_FAST


def test_the_base_is_not_taken_for_certain() -> None:
    """Three trials that vary by a tenth do not show that what is 15 % slower is so: the same mean, if it
    were certain, does."""
    base, values = [9.0, 10.0, 11.0], draws(11.7, 0.1, 15, 5)
    certain = Expected("c", "w", "t", 10.0)
    assert evaluate(certain, values).verdict == SLOW
    assert beside(base, values) != SLOW


def test_its_level_is_kept() -> None:
    """Of pairs that are exactly as far apart as is allowed, the interval leaves out 2.5 % on one side."""
    trials = 400
    wrong = sum(
        beside(draws(10, 0.5, 8, 2 * i), draws(11, 0.8, 8, 2 * i + 1)) == SLOW
        for i in range(trials)
    )
    assert wrong <= 20  # P(more of 400 | 2.5 %) < 0.002


def test_a_change_keeps_what_the_system_loses() -> None:
    """What takes 25 % longer than predicted does so with the change, whose share the model says."""
    now = Expected("client", "open", "client_time", 10.0)
    rows = evaluate_all(Expectation("now", (now,)), {now.key: draws(12.5, 0.1, 15, 6)})
    changed = Expectation("then", (Expected("client", "open", "client_time", 6.0),))
    (gain,) = what_if(changed, rows)
    assert gain.share == pytest.approx(0.4)
    assert gain.mean == pytest.approx(0.6 * rows[0].mean)
    assert gain.low < 7.5 < gain.high
    # measured later: within ten points of what was said
    later = draws(7.5, 0.1, 15, 7)
    assert abs((1 - sum(later) / len(later) / rows[0].mean) - gain.share) < 0.1
    other = Expectation("other", (Expected("client", "close", "client_time", 6.0),))
    with pytest.raises(BadInput, match="other: found none of the measured rows"):
        what_if(other, rows)
    ms = Expectation("ms", (Expected("client", "open", "client_time", 6.0, "ms"),))
    with pytest.raises(BadInput, match="found ms in ms; expected s"):
        what_if(ms, rows)


def test_two_phases_on_the_command_line(check: Run, tmp_path: Path) -> None:  # noqa: F811
    local = table(tmp_path / "local.csv", write=draws(0.010, 2e-4, 15, 8))
    good = table(tmp_path / "good.csv", write=draws(0.0104, 2e-4, 15, 9))
    slow = table(tmp_path / "slow.csv", write=draws(0.0140, 2e-4, 15, 10))
    assert check(local, good).status == 0
    done = check(local, slow, "--json")
    assert done.status == 3
    (row,) = done.document["rows"]
    assert row["verdict"] == SLOW
    assert row["gap"] == pytest.approx(0.4, abs=0.03)
    assert check(local, slow, "--tolerance", "50%").status == 0
    one = table(tmp_path / "one.csv", write=[0.01])
    assert "expected two or more" in check(one, good).stderr


def test_what_if_on_the_command_line(check: Run, tmp_path: Path) -> None:  # noqa: F811
    run = table(tmp_path / "run.csv", write=draws(10, 0.1, 15, 11), read=draws(10, 0.1, 15, 12))
    (tmp_path / "e.yaml").write_text(EXPECTED)
    (tmp_path / "then.yaml").write_text(
        EXPECTED.replace(
            "write, metric: client_time, predicted: 10", "write, metric: client_time, predicted: 5"
        )
    )
    done = check(tmp_path / "e.yaml", run, "--what-if", tmp_path / "then.yaml")
    assert done.status == 0
    assert "With the change:" in done.stdout
    assert "instead of" in done.stdout
    said = check(tmp_path / "e.yaml", run, "--what-if", tmp_path / "then.yaml", "--json").document
    assert [round(g["share"], 3) for g in said["what_if"]] == [0.5, 0.0]
    assert json.dumps(said)


def test_a_table_without_units_is_of_seconds(tmp_path: Path) -> None:
    asked = measured_expectation(read_measured(table(tmp_path / "t.csv", write=[1.0, 2.0])), 0.1, 2)
    assert [(r.unit, r.predicted, r.base) for r in asked.rows] == [("s", 1.5, (1.0, 2.0))]
