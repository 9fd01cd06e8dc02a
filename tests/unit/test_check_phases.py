"""`penstock check` against earlier measurements, and with a planned change."""

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
    random_numbers = random.Random(seed)
    return [random_numbers.gauss(mean, sd) for _ in range(n)]


def verdict_of(base: list[float], values: list[float], tolerance: float = 0.1) -> str:
    row = Expected("c", "w", "t", sum(base) / len(base), tolerance=tolerance, base=tuple(base))
    return evaluate(row, values).verdict


def test_slower_and_faster_than_an_earlier_measurement() -> None:
    base = draws(10, 0.3, 15, 1)
    assert verdict_of(base, draws(12, 0.3, 15, 2)) == SLOW
    assert verdict_of(base, draws(10.3, 0.3, 15, 3)) == OK
    assert verdict_of(base, draws(8, 0.3, 15, 4)) == TOO_FAST


def test_the_base_has_uncertainty() -> None:
    """Three trials that vary by a tenth do not prove that 15 % more time is slower.

    The same mean without uncertainty does.
    """
    base, values = [9.0, 10.0, 11.0], draws(11.7, 0.1, 15, 5)
    certain = Expected("c", "w", "t", 10.0)
    assert evaluate(certain, values).verdict == SLOW
    assert verdict_of(base, values) != SLOW


def test_false_alarms_keep_to_the_level() -> None:
    """For pairs exactly at the tolerance, 2.5 % of the intervals exclude it on one side."""
    trials = 400
    false_alarms = sum(
        verdict_of(draws(10, 0.5, 8, 2 * i), draws(11, 0.8, 8, 2 * i + 1)) == SLOW
        for i in range(trials)
    )
    assert false_alarms <= 20  # P(more of 400 | 2.5 %) < 0.002


def test_a_change_keeps_the_loss_of_the_system() -> None:
    """The system takes 25 % longer than predicted, before and after the change."""
    now = Expected("client", "open", "client_time", 10.0)
    rows = evaluate_all(Expectation("now", (now,)), {now.key: draws(12.5, 0.1, 15, 6)})
    changed = Expectation("then", (Expected("client", "open", "client_time", 6.0),))
    (gain,) = what_if(changed, rows)
    assert gain.share == pytest.approx(0.4)
    assert gain.mean == pytest.approx(0.6 * rows[0].mean)
    assert gain.low < 7.5 < gain.high
    # measured later: within ten points of the prediction
    later = draws(7.5, 0.1, 15, 7)
    assert abs((1 - sum(later) / len(later) / rows[0].mean) - gain.share) < 0.1
    unrelated = Expectation("other", (Expected("client", "close", "client_time", 6.0),))
    with pytest.raises(BadInput, match="other: found none of the measured rows"):
        what_if(unrelated, rows)
    ms = Expectation("ms", (Expected("client", "open", "client_time", 6.0, "ms"),))
    with pytest.raises(BadInput, match="found ms in ms; expected s"):
        what_if(ms, rows)


def test_two_phases_on_the_command_line(check: Run, tmp_path: Path) -> None:  # noqa: F811
    local = table(tmp_path / "local.csv", write=draws(0.010, 2e-4, 15, 8))
    good = table(tmp_path / "good.csv", write=draws(0.0104, 2e-4, 15, 9))
    slow = table(tmp_path / "slow.csv", write=draws(0.0140, 2e-4, 15, 10))
    assert check(local, good).status == 0
    result = check(local, slow, "--json")
    assert result.status == 3
    (row,) = result.document["rows"]
    assert row["verdict"] == SLOW
    assert row["gap"] == pytest.approx(0.4, abs=0.03)
    assert check(local, slow, "--tolerance", "50%").status == 0
    single = table(tmp_path / "one.csv", write=[0.01])
    assert "expected two or more" in check(single, good).stderr


def test_what_if_on_the_command_line(check: Run, tmp_path: Path) -> None:  # noqa: F811
    run = table(tmp_path / "run.csv", write=draws(10, 0.1, 15, 11), read=draws(10, 0.1, 15, 12))
    (tmp_path / "e.yaml").write_text(EXPECTED)
    (tmp_path / "then.yaml").write_text(
        EXPECTED.replace(
            "write, metric: client_time, predicted: 10", "write, metric: client_time, predicted: 5"
        )
    )
    result = check(tmp_path / "e.yaml", run, "--what-if", tmp_path / "then.yaml")
    assert result.status == 0
    assert "With the change:" in result.stdout
    assert "instead of" in result.stdout
    document = check(
        tmp_path / "e.yaml", run, "--what-if", tmp_path / "then.yaml", "--json"
    ).document
    assert [round(g["share"], 3) for g in document["what_if"]] == [0.5, 0.0]
    assert json.dumps(document)


def test_a_table_without_units_has_seconds(tmp_path: Path) -> None:
    expectation = measured_expectation(
        read_measured(table(tmp_path / "t.csv", write=[1.0, 2.0])), 0.1, 2
    )
    assert [(r.unit, r.predicted, r.base) for r in expectation.rows] == [("s", 1.5, (1.0, 2.0))]
