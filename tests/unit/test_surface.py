"""Response surfaces: a published case to its printed digits, planted truths, several responses weighted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.fit import fitted
from penstock.analyse.statistics.scale import geometric_mean, power_beside, scaled, unscaled
from penstock.analyse.surface.desirability import overall, worth
from penstock.analyse.surface.optimum import parse_at, predictions_at
from penstock.analyse.surface.polynomials import trends
from penstock.analyse.surface.surface import (
    CURVATURE,
    LACK,
    PURE,
    Merit,
    best_setting,
    stationary,
    surface,
    surface_table,
)
from penstock.campaign.analysis import analyse
from penstock.cli import _build
from penstock.design.kinds.base import numeric
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Desire
from penstock.study.load import read_study
from tests.unit.recorded_study import record, study_text

#: odour, temperature, ratio, height: John, Statistical Design and Analysis of Experiments (1971), as the
#: chapter on PROC RSREG of the SAS/STAT user's guide prints it (its first example)
SMELL = """
66 40 .3 4   39 120 .3 4   43 40 .7 4    49 120 .7 4
58 40 .5 2   17 120 .5 2   -5 40 .5 6   -40 120 .5 6
65 80 .3 2    7 80 .7 2    43 80 .3 6   -22 80 .7 6
-31 80 .5 4 -35 80 .5 4   -26 80 .5 4
"""
THREE = {
    "T": "{levels: [40, 80, 120]}",
    "R": "{levels: [0.3, 0.5, 0.7]}",
    "H": "{levels: [2, 4, 6]}",
}


def plan_of(factors: dict[str, str], design: str) -> Plan:
    return make_plan(read_study(study_text(factors, design).encode(), Path("x.study.yaml")))


def runs_of(plan: Plan, value) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, "treatment_id": r.treatment_id}
            | r.levels
            | {"valid": True, "y": value(r)}
            for r in plan.rows
        ]
    )


def smell() -> tuple[Plan, pd.DataFrame]:
    plan = plan_of(THREE, "{kind: full, replicates: 3, order: standard}")
    rows = np.array(SMELL.split(), dtype=float).reshape(-1, 4)
    data = [
        {"y": y, "T": f"{t:g}", "R": f"{r:g}", "H": f"{h:g}", "valid": True} for y, t, r, h in rows
    ]
    return plan, pd.DataFrame(data)


def test_the_published_surface_to_its_printed_digits() -> None:
    """Fails with another coding, another lack of fit, or another stationary point."""
    plan, data = smell()
    fit = surface(data, plan, "y")
    table = surface_table(fit).set_index("term")
    assert table.loc["mean", "coefficient"] == pytest.approx(-30.666667, abs=1e-6)
    for term, q in {
        "T": -12.125, "R": -17.0, "H": -21.375, "T²": 32.083333, "R²": 47.833333, "H²": 6.083333,
        "T:R": 8.25, "T:H": 1.5, "R:H": -1.75,
    }.items():  # fmt: skip
        assert table.loc[term, "coefficient"] == pytest.approx(q, abs=1e-6)
    assert table.loc["R²", "standard_error"] == pytest.approx(11.698187, abs=1e-6)
    assert table.loc["R²", "p_value"] == pytest.approx(0.0095, abs=5e-5)
    tests = {t.name: t for t in fit.tests}
    assert (tests[LACK].df, tests[PURE].df) == (3, 2)
    assert tests[LACK].sum_of_squares == pytest.approx(2485.75)
    assert tests[PURE].sum_of_squares == pytest.approx(40.666667)
    assert (tests[LACK].f, tests[LACK].p) == pytest.approx((40.75, 0.0240), abs=5e-5)
    level = stationary(fit, {"T": 80, "R": 0.5, "H": 4})
    assert level is not None
    assert level.at == pytest.approx({"T": 84.876502, "R": 0.539915, "H": 7.541050}, abs=1e-6)
    assert (level.nature, level.inside) == ("minimum", False)
    assert level.low["H"] < level.at["H"] < level.high["H"]


def test_intervals_of_a_prediction_have_their_coverage() -> None:
    """Coverage of the intervals of the mean and of a run at a setting that was not run.

    Fails with the variance of the mean alone, another t, or a forgotten block.
    """
    plan = plan_of(
        {"a": "{levels: [0, 5, 10]}", "b": "{levels: [x, y, z]}"}, "{kind: full, replicates: 3}"
    )
    of_b = {"x": 0.0, "y": 4.0, "z": -1.0}
    truth = lambda a, b: 20 + 2 * a - 0.3 * a * a + of_b[b] + 0.2 * a * of_b[b]  # noqa: E731
    rng = np.random.default_rng(8)
    mean_covered = run_covered = 0
    studies = 400
    for _ in range(studies):
        block = rng.normal(0, 3, 4)
        data = runs_of(
            plan,
            lambda r, shift=block: (
                truth(float(r.levels["a"]), r.levels["b"]) + rng.normal() + shift[r.replicate]
            ),
        )
        prediction = surface(data, plan, "y").predict({"a": 7.3, "b": "y"})
        mean = truth(7.3, "y") + block[1:].mean()
        mean_covered += prediction.low <= mean <= prediction.high
        run_covered += prediction.run_low <= mean + rng.normal() <= prediction.run_high
    low, high = (0.95 + s * 3.3 * np.sqrt(0.95 * 0.05 / studies) for s in (-1, 1))
    assert low <= mean_covered / studies <= high
    assert low <= run_covered / studies <= high


def test_lack_of_fit_is_significant_only_for_a_missing_term() -> None:
    plan = plan_of({"a": "{levels: [0, 1, 2, 3, 4]}"}, "{kind: full, replicates: 6}")
    rng = np.random.default_rng(2)
    noise = {r.run_id: rng.normal() for r in plan.rows}
    sine = runs_of(plan, lambda r: 3 * np.sin(2.2 * float(r.levels["a"])) + noise[r.run_id])
    parabola = runs_of(plan, lambda r: (float(r.levels["a"]) - 1) ** 2 + noise[r.run_id])
    p = [next(t.p for t in surface(d, plan, "y").tests if t.name == LACK) for d in (sine, parabola)]
    assert p[0] < 1e-3 < 0.05 < p[1]


def test_centre_runs_detect_curvature() -> None:
    """The contrast of the corners' mean and the centre (4.5 here), tested against pure error."""
    plan = plan_of(
        {"a": "{levels: [0, 5, 10]}", "b": "{levels: [0, 5, 10]}"},
        "{kind: central-composite, replicates: 4}",
    )
    rng = np.random.default_rng(3)
    bend = lambda r: 4.5 * (r.levels["a"] != "5") * (r.levels["b"] != "5")  # noqa: E731
    data = runs_of(plan, lambda r: 20 + bend(r) + 0.01 * rng.normal())
    (test,) = (t for t in surface(data, plan, "y").tests if t.name == CURVATURE)
    assert test.p < 1e-6
    # 16 runs of corners and 4 of the centre: the square of the difference over 1/16 + 1/4
    assert np.sqrt(test.sum_of_squares * (1 / 16 + 1 / 4)) == pytest.approx(4.5, abs=0.02)
    flat = runs_of(plan, lambda r: float(r.levels["a"]) + rng.normal())
    (flat_test,) = (t for t in surface(flat, plan, "y").tests if t.name == CURVATURE)
    assert flat_test.p > 0.01


def test_rounding_errors_are_no_lack_of_fit() -> None:
    """Equal replicates on a plane: the residuals of both sides were rounding errors, and p was 0.003."""
    plan = plan_of(
        {"a": "{levels: [0, 5, 10, 20]}", "b": "{levels: [0, 5, 10]}"},
        "{kind: full, replicates: 3}",
    )

    def p_values(model) -> dict[str, float]:
        data = runs_of(plan, lambda r: model(float(r.levels["a"]), float(r.levels["b"])))
        return {t.name: t.p for t in surface(data, plan, "y").tests}

    plane = p_values(lambda a, b: 3.3 + 0.7 * a + 0.1 * b)
    assert (plane[LACK], plane[CURVATURE]) == (1.0, 1.0)
    assert p_values(lambda a, b: 100.1)[LACK] == 1.0
    assert p_values(lambda a, b: 0.3 * a * a + b / 7)[LACK] == 1.0
    cubic = p_values(lambda a, b: 0.3 * a**3 + b / 7)
    assert (cubic[LACK], cubic[CURVATURE]) == (0.0, 0.0)


def test_a_saddle_a_ridge_and_the_best_within_the_levels() -> None:
    plan = plan_of(
        {"a": "{levels: [0, 5, 10]}", "b": "{levels: [0, 5, 10]}"}, "{kind: full, replicates: 2}"
    )
    rng = np.random.default_rng(4)

    def fitted(model):
        data = runs_of(
            plan,
            lambda r: model(float(r.levels["a"]), float(r.levels["b"])) + 1e-3 * rng.normal(),
        )
        return surface(data, plan, "y")

    at = {"a": 5, "b": 5}
    top = fitted(lambda a, b: 50 - (a - 6) ** 2 - 2 * (b - 3) ** 2)
    maximum = stationary(top, at)
    assert maximum is not None
    assert (maximum.nature, maximum.inside) == ("maximum", True)
    assert maximum.at == pytest.approx({"a": 6, "b": 3}, abs=0.01)
    best = best_setting(Merit([top], lambda v: v[0]))
    assert best == pytest.approx({"a": 6, "b": 3}, abs=0.01)
    saddle = stationary(fitted(lambda a, b: (a - 5) ** 2 - (b - 5) ** 2), at)
    ridge = stationary(fitted(lambda a, b: -((a + b - 9) ** 2)), at)
    assert saddle is not None
    assert ridge is not None
    assert (saddle.nature, ridge.nature) == ("saddle", "ridge")
    # the search for the best setting skips forbidden ones
    avoided = best_setting(
        Merit([top], lambda v: v[0]), [{"a": ["5"], "b": ["5"]}, {"b": ["0", "5"]}]
    )
    assert avoided["b"] > 7.4


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"a": 11, "b": 5}, "expected 0 to 10"),
        ({"a": "x", "b": 5}, "expected a number"),
        ({"a": 5}, "found no b"),
        ({"a": 5, "b": 5, "C": 1}, "found the factor C"),
    ],
)
def test_settings_outside_the_factors_are_refused(at: dict[str, object], message: str) -> None:
    plan = plan_of(
        {"a": "{levels: [0, 5, 10]}", "b": "{levels: [0, 5, 10]}"}, "{kind: full, replicates: 2}"
    )
    fit = surface(runs_of(plan, lambda r: float(r.levels["a"])), plan, "y")
    with pytest.raises(BadInput, match=message):
        fit.predict(at)  # type: ignore[arg-type]


def test_desirability_as_by_hand() -> None:
    larger = Desire(worst=10, best=20, weight=2)
    assert worth(15, larger) == pytest.approx(0.25)
    assert worth([5, 10, 20, 30], larger).tolist() == [0, 0, 1, 1]
    smaller = Desire(worst=4, best=0)
    assert worth(1, smaller) == pytest.approx(0.75)
    target = Desire(low=0, target=4, high=6)
    assert worth([2, 4, 5, 7, np.nan], target).tolist() == [0.5, 1, 0.5, 0, 0]
    both = [larger, Desire(worst=4, best=0, importance=3)]
    assert overall([15, 1], both) == pytest.approx((0.25 * 0.75**3) ** 0.25)
    assert overall([9, 1], both) == 0  # one worthless response makes the setting worthless


OPPOSED = {
    "speed": "{from: {regex: 's: ([0-9.]+)'}, unit: MB/s, better: higher, desire: {worst: 0, best: 100}}",
    "price": "{from: {regex: 'p: ([0-9.]+)'}, unit: EUR, better: lower, desire: {worst: 50, best: 0}}",
}


def opposed(tmp_path: Path, design: str = "{kind: full, replicates: 3, purpose: optimise}") -> Path:
    """Speed rises with a and its square, and so does the price: the best compromise lies between."""
    rng = np.random.default_rng(1)
    text = study_text({"a": "{levels: [0, 5, 10]}", "b": "{levels: [x, y]}"}, design, OPPOSED)

    def value(row):
        a = float(row.levels["a"])
        return {
            "speed": 10 * a - 0.2 * a * a + 5 * (row.levels["b"] == "y") + 0.5 * rng.normal(),
            "price": 10 + 3 * a + 0.2 * rng.normal(),
        }

    return record(tmp_path, text, value)


def test_responses_of_opposite_direction_are_weighed(tmp_path: Path) -> None:
    out = opposed(tmp_path)
    analysis = analyse(out, report=False)
    assert not analysis.notes
    optimum = pd.read_parquet(out / "optimum.parquet").set_index(["what", "response"])
    best = {n: json.loads(optimum.loc[("best", n), "at"])["a"] for n in ("speed", "price")}
    assert best == {"speed": 10, "price": 0}
    chosen = json.loads(optimum.loc[("chosen", "all responses"), "at"])
    a = np.linspace(0, 10, 2001)
    merit = np.sqrt(np.clip((10 * a - 0.2 * a * a + 5) / 100, 0, 1) * (50 - 10 - 3 * a) / 50)
    assert chosen["b"] == "y"
    assert chosen["a"] == pytest.approx(a[np.argmax(merit)], abs=0.25)
    row = optimum.loc[("chosen", "all responses")]
    assert row["ci_low"] < merit.max() < row["ci_high"]
    findings = {f.code: f for f in analysis.findings}
    assert "was not run: confirm it" in findings["desirability"].what_to_do
    assert "speed and price" in findings["desirability"].statement
    assert [f.evidence["response"] for f in analysis.findings if f.code == "surface"] == [
        "speed",
        "price",
    ]


def test_a_surface_that_meets_every_run_has_no_intervals(tmp_path: Path) -> None:
    """Three runs of three numbers leave no error: the intervals of the optimum ended in a traceback."""
    text = study_text(
        {"a": "{levels: [0, 5, 10]}"}, "{kind: full, replicates: 1, purpose: optimise}", OPPOSED
    )
    out = record(
        tmp_path,
        text,
        lambda row: {
            "speed": 90 - (float(row.levels["a"]) - 4) ** 2,
            "price": 10 + 3 * float(row.levels["a"]),
        },
    )
    analysis = analyse(out, report=False)
    assert not analysis.notes
    optimum = pd.read_parquet(out / "optimum.parquet").set_index(["what", "response"])
    assert json.loads(optimum.loc[("best", "speed"), "at"])["a"] == pytest.approx(4, abs=1e-3)
    assert optimum.loc[("stationary", "speed"), "nature"] == "maximum"
    assert np.isnan(optimum.loc[("chosen", "all responses"), "ci_low"])
    assert not any("nan" in f.statement for f in analysis.findings)
    result = CliRunner().invoke(_build(), ["analyse", str(out), "--at", "a=4", "--json"])
    (speed, _) = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(name))
    assert (speed["value"], speed["ci_low"]) == (pytest.approx(90), None)


def test_a_setting_is_predicted_on_the_command_line(tmp_path: Path) -> None:
    out = opposed(tmp_path)
    analyse(out, report=False)
    outcome = Outcome.read(out)
    (speed, price) = predictions_at(outcome, parse_at("a=7.5, b=y"))
    assert speed["ci_low"] < 10 * 7.5 - 0.2 * 7.5**2 + 5 < speed["ci_high"]
    assert speed["run_low"] < speed["ci_low"]
    assert price["value"] == pytest.approx(32.5, abs=0.5)
    assert speed["made"] == 0
    assert predictions_at(outcome, {"a": "5", "b": "x"})[0]["made"] == 3
    run = lambda *options: CliRunner().invoke(_build(), ["analyse", str(out), *options])  # noqa: E731
    result = run("--at", "a=7.5,b=y")
    assert result.exit_code == 0
    assert "speed: " in result.output
    assert "This setting was not run" in result.output
    assert json.loads(run("--at", "a=7.5,b=y", "--json").stdout)[0]["value"] == speed["value"]
    for wrong in ("a=7.5", "a=70,b=y", "nonsense", "a=1,a=2"):
        assert isinstance(run("--at", wrong).exception, BadInput)


@pytest.mark.parametrize(
    ("desire", "message"),
    [
        ("{worst: 100, best: 0}", "because higher is better"),
        ("{worst: 1, best: 1}", "best and worst that differ"),
        ("{worst: 1}", "worst and best, or low, target and high"),
        ("{low: 1, target: 0, high: 2}", "low below target below high"),
        ("{worst: 0, best: 1, weight: 0}", "a number above 0"),
        ("{worst: 0, best: .nan}", "a finite number"),
    ],
)
def test_contradictory_desires_are_refused(desire: str, message: str) -> None:
    responses = {"y": f"{{from: wall_s, unit: s, better: higher, desire: {desire}}}"}
    text = study_text({"a": "{levels: [x, y]}"}, "{kind: full}", responses)
    with pytest.raises(BadInput, match=message):
        read_study(text.encode(), Path("x.study.yaml"))


@pytest.mark.parametrize("power", [0.5, -0.5])
def test_intervals_on_a_power_scale_have_their_coverage(power: float) -> None:
    """Coverage of the intervals of the median and of a run, with an estimated power.

    Fails with the power of another model, or with intervals that are not transformed back.
    """
    plan = plan_of(
        {"a": "{levels: [0, 5, 10]}", "b": "{levels: [x, y, z]}"}, "{kind: full, replicates: 4}"
    )
    of_b = {"x": 0.0, "y": 2.0, "z": -1.0}
    # on the scale of the power; bases are positive throughout
    middle = {0.5: 12.0, -0.5: 1.0}[power]
    unit = {0.5: 1.0, -0.5: 0.02}[power]
    truth = lambda a, b: middle + unit * (0.8 * a - 0.1 * a * a + of_b[b])  # noqa: E731
    back = lambda z: float(1 + power * z) ** (1 / power)  # noqa: E731
    rng = np.random.default_rng(81)
    median_covered = run_covered = naive_covered = 0
    studies = 300
    for _ in range(studies):
        data = runs_of(
            plan,
            lambda r: back(truth(float(r.levels["a"]), r.levels["b"]) + unit * rng.normal()),
        )
        fit = surface(data, plan, "y", "box-cox")
        prediction = fit.predict({"a": 7.3, "b": "y"})
        run = back(truth(7.3, "y") + unit * rng.normal())
        median_covered += prediction.low <= back(truth(7.3, "y")) <= prediction.high
        run_covered += prediction.run_low <= run <= prediction.run_high
        naive = replace(fit, power=1.0).predict({"a": 7.3, "b": "y"})
        naive_covered += naive.low <= back(truth(7.3, "y")) <= naive.high
    low, high = (0.95 + s * 3.3 * np.sqrt(0.95 * 0.05 / studies) for s in (-1, 1))
    assert low <= median_covered / studies <= high
    assert low <= run_covered / studies <= high
    assert naive_covered < low * studies


def test_power_has_the_largest_likelihood() -> None:
    rng = np.random.default_rng(5)
    y = rng.lognormal(1.0, 0.7, 300)
    # scipy estimates the same power for values about one mean
    power_of_mean = power_beside(y, np.ones((300, 1)))
    assert power_of_mean == pytest.approx(stats.boxcox(y)[1], abs=1e-3)
    for power in (3.0, 2.0, 0.5, 1e-5, 0.0, -1.0, -3.0):
        for unit in (1e-9, 1.0, 1e12):
            values = y * unit
            middle = geometric_mean(values)
            moved = scaled(values, "box-cox", power)
            restored = [unscaled(float(z), "box-cox", power, middle) for z in moved]
            assert restored == pytest.approx(list(values), rel=1e-9)
    assert unscaled(-3.0, "box-cox", 0.5) == 0.0
    assert unscaled(3.0, "box-cox", -0.5) == np.inf
    with pytest.raises(PenstockError, match="above 0"):
        power_beside(np.array([1.0, 0.0, 2.0]), np.ones((3, 1)))
    with pytest.raises(PenstockError, match="fits every run"):
        power_beside(np.array([1.0, 3.0]), np.eye(2))


def test_a_box_cox_surface_does_not_depend_on_the_unit() -> None:
    """Values that a power of −2 makes regular: in B/s all their digits were lost (a planted bug)."""
    plan = plan_of(THREE, "{kind: full, replicates: 2}")
    rng = np.random.default_rng(3)
    data = runs_of(plan, lambda r: (8 + float(r.levels["T"]) / 40 + rng.normal(0, 0.1)) ** -0.5)
    at = {"T": 60, "R": 0.5, "H": 4}
    original = surface(data, plan, "y", "box-cox")
    assert original.power == pytest.approx(-2, abs=1)
    for unit in (1e-9, 1e9, 1e12):
        converted = surface(data.assign(y=data["y"] * unit), plan, "y", "box-cox")
        assert converted.power == pytest.approx(original.power, abs=1e-4)
        assert converted.coefficients == pytest.approx(original.coefficients, rel=1e-3, abs=1e-4)
        expected, actual = original.predict(at), converted.predict(at)
        assert [actual.value, actual.low, actual.high, actual.run_low] == pytest.approx(
            [unit * v for v in (expected.value, expected.low, expected.high, expected.run_low)],
            rel=1e-4,
        )
    table = surface_table(converted)
    assert table["geometric_mean"].iloc[0] == pytest.approx(geometric_mean(1e12 * data["y"]))
    raw = ((1e9 * data["y"]) ** -2 - 1) / -2
    assert raw.nunique() < 3, "the transformed values still have several digits"


def test_intervals_of_a_strip_plot_have_their_coverage() -> None:
    """Coverage of the intervals of the mean and of a run when both rows and columns vary.

    Fails if settings count as single runs (planted), for one direction only, or with the degrees of freedom
    of runs.
    """
    plan = plan_of(
        {"a": "{levels: [0, 5, 10], change_cost: 60s, change: reformat}",
         "b": "{levels: [1, 2, 3], change_cost: 60s, change: reformat}"},
        "{kind: full, replicates: 3, order: strip-plot}",
    )  # fmt: skip
    assert any(row.strip for row in plan.rows)
    truth = lambda a, b: 30 + 2 * a - 0.2 * a * a + 3 * b  # noqa: E731
    rng = np.random.default_rng(17)
    mean_covered = run_covered = naive_covered = 0
    studies = 400
    for _ in range(studies):
        rows, columns = rng.normal(0, 2, 99), rng.normal(0, 1.5, 99)
        value = lambda r, p=rows, q=columns: (  # noqa: E731
            truth(float(r.levels["a"]), float(r.levels["b"]))
            + p[r.whole_plot]
            + q[r.strip]
            + rng.normal()
        )
        data = runs_of(plan, value)
        fit = surface(data, plan, "y")
        prediction = fit.predict({"a": 7.3, "b": 2.5})
        mean_covered += prediction.low <= truth(7.3, 2.5) <= prediction.high
        run = truth(7.3, 2.5) + rng.normal(0, 2) + rng.normal(0, 1.5) + rng.normal()
        run_covered += prediction.run_low <= run <= prediction.run_high
        unstructured = replace(plan, rows=[replace(r, whole_plot=0, strip=0) for r in plan.rows])
        prediction = surface(data, unstructured, "y").predict({"a": 7.3, "b": 2.5})
        naive_covered += prediction.low <= truth(7.3, 2.5) <= prediction.high
    low, high = (0.95 + s * 3.3 * np.sqrt(0.95 * 0.05 / studies) for s in (-1, 1))
    assert low <= mean_covered / studies <= high
    assert low <= run_covered / studies
    assert naive_covered < low * studies
    with pytest.raises(PenstockError, match="runs of the strip-plot were lost"):
        surface(data.iloc[1:], plan, "y")
    # on a transformed scale, variances of settings are estimated on that scale
    transformed = surface(data, plan, "y", "box-cox")
    assert transformed.power is not None
    assert transformed.crossed is not None
    of_run = scaled(data["y"].to_numpy(float), "box-cox", transformed.power)
    linear = surface(data.assign(y=of_run), plan, "y")
    assert transformed.covariance == pytest.approx(linear.covariance)


def test_ranks_have_no_surface() -> None:
    plan, data = smell()
    with pytest.raises(PenstockError, match="on the scale of ranks"):
        surface(data, plan, "y", "rank")


def test_quoted_digits_are_names_and_not_numbers() -> None:
    """A response has no values between the versions "3" and "4.2": no prediction and no trend."""
    plan = plan_of(
        {"v": '{levels: {old: "3", mid: "4", new: "4.2"}}', "n": "{levels: [1, 2, 4]}"},
        "{kind: full, replicates: 2}",
    )
    runs = runs_of(plan, lambda r: float(r.levels["n"]) + (r.levels["v"] == "new"))
    fit = surface(runs, plan, "y")
    assert fit.predict({"v": "new", "n": 3}).value == pytest.approx(4)
    with pytest.raises(BadInput, match="expected one of old, mid, new"):
        fit.predict({"v": 3.6, "n": 3})
    assert set(trends(fitted(runs, plan, "y"), plan, "y", "linear")["factor"]) == {"n"}
    assert [numeric(f) for f in plan.factors] == [None, [1, 2, 4]]
