"""Predictions compared with measured runs of the same scenarios: errors, intervals, order, and goals."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, kendalltau

from bench import record
from penstock.analyse.statistics.prediction_intervals import (
    LEVEL,
    Interval,
    calibrate,
    conformal_scores,
)
from penstock.parts.prediction.prediction import Prediction
from penstock.text import percentage, signed_percent
from studies import claims as checks
from studies.claims import Claim
from studies.prediction_study.scenarios import Scenario

WITHIN, WORST, SHARE, TAU, REGRET = 0.10, 0.20, 0.85, 0.9, 0.05
#: shares of single runs in the 90 % interval, and its half-width as a share of the prediction
COVERAGE, HALF_WIDTH = (0.85, 0.95), 0.25
#: errors that text 003 reports of its patterns (line 1084): mean, 80th percentile, largest
PUBLISHED = (0.05, 0.08, 0.14)
#: simulated repetitions of the measurement, their seed, and the runs from which a scenario has its own spread
_REPETITIONS, _SEED, _OWN_SPREAD = 4000, 36, 5
#: significance level of too high a coverage
_CHANCE = 0.05
#: configurations of a pattern that can be in order
_RANKED = 3


@dataclass(frozen=True)
class Predicted:
    """Predicted time, its 90 % interval for one run (None: no upper end) [s], and the verdict."""

    mean_s: float
    low_s: float
    high_s: float | None
    verdict: str

    @property
    def high(self) -> float:
        """Upper end of the interval [s]."""
        return math.inf if self.high_s is None else self.high_s

    def includes(self, time_s: float) -> bool:
        """True if a time is in the interval."""
        return self.low_s <= time_s <= self.high

    @property
    def half_width(self) -> float:
        """Half of the interval, as a share of the predicted time."""
        return (self.high - self.low_s) / 2 / self.mean_s


def predicted_by(prediction: Prediction) -> Predicted:
    """Time, interval and verdict of a prediction; the interval includes the time."""
    ends, time_s = prediction.interval.ends(), prediction.makespan_s
    low_s, high_s = min(time_s, ends["low"] or 0.0), ends["high"]
    high_s = None if high_s is None else max(time_s, high_s)
    return Predicted(time_s, low_s, high_s, prediction.applies.verdict)


@dataclass(frozen=True)
class Case:
    """A scenario with its valid runs [s] and its prediction."""

    scenario: Scenario
    measured_s: tuple[float, ...]
    predicted: Predicted

    @property
    def mean_s(self) -> float:
        """Mean of the runs [s]."""
        return statistics.fmean(self.measured_s)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.mean_s / self.mean_s - 1

    @property
    def residuals(self) -> list[float]:
        """Deviations of the runs from their mean, as shares of it; with the variance of the population.

        Empty for one run.
        """
        n = len(self.measured_s)
        if n < 2:
            return []
        return [math.sqrt(n / (n - 1)) * (t / self.mean_s - 1) for t in self.measured_s]


def ceiling(cases: Sequence[Case], within: float) -> float:
    """Expected number of scenarios that a perfect model predicts within a share of the measured mean.

    A perfect model predicts the mean of infinitely many runs. The measurement of each scenario is repeated
    with deviations that are drawn from those of its runs, or of all scenarios if it has few runs.
    """
    random = np.random.default_rng(_SEED)
    pooled = [r for c in cases for r in c.residuals] or [0.0]
    expected = 0.0
    for case in cases:
        n = len(case.measured_s)
        deviations = case.residuals if n >= _OWN_SPREAD else pooled
        means = 1 + random.choice(deviations, (_REPETITIONS, n)).mean(axis=1)
        expected += float(np.mean(np.abs(1 / means - 1) <= within))
    return expected


def rows(cases: Sequence[Case], name: str) -> Iterator[record.Row]:
    """Rows of one model or engine, with their goals."""
    errors = [abs(c.error) for c in cases]
    n = len(cases)
    for within, goal in ((WITHIN, SHARE), (WORST, None)):
        near = sum(e <= within for e in errors)
        metric = f"predicted within {percentage(within)}"
        if goal is not None:
            yield record.share("scenarios", name, metric, near, n, goal)
        else:
            yield _text("scenarios", name, metric, f"{near} of {n}")
        perfect = f"{ceiling(cases, within):.1f} of {n}"
        yield _text("scenarios", name, f"{metric}, expected of a perfect model", perfect)
    evaluated_cases = [c for c in cases if c.predicted.verdict != "outside"]
    if evaluated_cases:
        worst = max(evaluated_cases, key=lambda c: abs(c.error))
        yield record.claim(
            "scenarios",
            f"{name}: farthest off",
            f"{signed_percent(worst.error, 1)} ({worst.scenario})",
            "none past 20 % unless outside",
            abs(worst.error) <= WORST,
        )
    yield _published(errors, name)
    yield from _intervals(cases, name)
    yield from _ranked(cases, name)


def _text(case: str, name: str, metric: str, value: str) -> record.Row:
    """A row without a goal."""
    return {"case": case, "engine": name, "metric": metric, "value": value, "unit": ""}


def _published(errors: Sequence[float], name: str) -> record.Row:
    """Mean, 80th percentile and largest error, compared with those of the text."""
    figures = (statistics.fmean(errors), float(np.quantile(errors, 0.8)), max(errors))
    texts = [
        ", ".join(f"{100 * value:.3g} %" for value in values) for values in (figures, PUBLISHED)
    ]
    holds = all(a <= b for a, b in zip(figures, PUBLISHED, strict=True))
    wording = f"{name}: error: mean, 80th percentile, largest"
    return record.claim("scenarios", wording, texts[0], f"at most {texts[1]} (text 003)", holds)


def _coverage(name: str, metric: str, inside: int, runs: int) -> record.Row:
    """Share of runs in their intervals; too many only if a share of the upper limit does not explain it."""
    low, high = COVERAGE
    row = record.share("runs", name, metric, inside, runs, low)
    few = inside <= high * runs or binom.sf(inside - 1, runs, high) >= _CHANCE
    met = inside >= low * runs and few
    bar = f"{100 * low:g} to {100 * high:g} %"
    return row | {"bar": bar, "verdict": record.MET if met else record.MISSED}


def _intervals(cases: Sequence[Case], name: str) -> Iterator[record.Row]:
    """Single runs in the intervals as predicted, and as calibrated on the runs of the other patterns."""
    runs = sum(len(c.measured_s) for c in cases)
    metric = "inside of the 90 % interval"
    for wording, intervals in ((metric, [c.predicted for c in cases]), ("", _calibrated(cases))):
        if not intervals:
            return
        inside = sum(
            interval.includes(t)
            for c, interval in zip(cases, intervals, strict=True)
            for t in c.measured_s
        )
        yield _coverage(name, wording or f"{metric}, calibrated on other patterns", inside, runs)
        of = "half of the 90 % interval" if wording else "half of that interval"
        widths = [
            100 * predicted.half_width for predicted in intervals if predicted.high_s is not None
        ]
        if widths:
            row = record.row("scenarios", name, f"{of}, of the prediction", widths, "%")
            yield record.at_most(row, 100 * HALF_WIDTH)


def _calibrated(cases: Sequence[Case]) -> list[Predicted]:
    """Predictions with intervals that the runs of the other patterns calibrate; empty without any."""
    result = []
    for case in cases:
        other_runs = [
            (c.predicted, t)
            for c in cases
            if c.scenario.pattern != case.scenario.pattern
            for t in c.measured_s
        ]
        if not other_runs:
            return []
        scores, around = conformal_scores(
            [p.mean_s for p, _ in other_runs],
            [t for _, t in other_runs],
            [p.low_s for p, _ in other_runs],
            [p.high_s for p, _ in other_runs],
        )
        own = case.predicted
        interval = Interval(own.low_s, own.high, LEVEL, LEVEL, 1, "")
        ends = calibrate(interval, own.mean_s, scores, around).ends()
        result.append(Predicted(own.mean_s, ends["low"] or 0.0, ends["high"], own.verdict))
    return result


def _ranked(cases: Sequence[Case], name: str) -> Iterator[record.Row]:
    """Order of the configurations of each pattern, and the regret of choosing hints or none by prediction."""
    patterns: dict[str, list[Case]] = defaultdict(list)
    workloads: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for c in cases:
        scenario = c.scenario
        patterns[scenario.pattern].append(c)
        workloads[scenario.pattern, scenario.file_mib, *scenario.cluster].append(c)
    taus = {pattern: tau(group) for pattern, group in patterns.items() if len(group) >= _RANKED}
    for pattern, value in taus.items():
        yield record.row(f"configurations of {pattern}", name, "Kendall's tau", [value], "")
    if taus:
        case, metric = "configurations of a pattern", "Kendall's tau, mean over patterns"
        row = record.row(case, name, metric, list(taus.values()), "")
        yield record.at_least({**row, "value": statistics.fmean(taus.values())}, TAU)
    regrets = [100 * regret(group) for group in workloads.values() if len(group) > 1]
    if regrets:
        case = "workloads with and without hints"
        row = record.row(case, name, "largest regret of the choice", regrets, "%")
        yield record.at_most({**row, "value": max(regrets)}, 100 * REGRET)


def tau(group: Sequence[Case]) -> float:
    """Kendall's tau of predicted and measured times."""
    predicted = [c.predicted.mean_s for c in group]
    return float(kendalltau(predicted, [c.mean_s for c in group]).statistic)


def regret(group: Sequence[Case]) -> float:
    """Measured time of the configuration that is predicted to be the fastest, over the least, less one."""
    chosen = min(group, key=lambda c: c.predicted.mean_s)
    return chosen.mean_s / min(c.mean_s for c in group) - 1


def evaluated(
    of: Sequence[record.Row], needs: Mapping[str, int], least: int = 1
) -> tuple[list[record.Row], list[Claim]]:
    """Rows with the verdicts of their claims, and these claims.

    `needs`: number of valid runs by scenario; a claim is not measured if one has fewer than `least`.
    """
    marked, claims = [], []
    for row in of:
        if not row.get("verdict"):
            marked.append(row)
            continue
        claim = checks.of_row(row, needs, least)
        marked.append(checks.marked(row, claim))
        claims.append(claim)
    return marked, claims


def scenario_rows(
    case: Case, engine: str, predictions: Mapping[str, Predicted]
) -> Iterator[record.Row]:
    """Rows of one scenario for the page on accuracy: its measured mean, and the predictions by model."""
    text = str(case.scenario)
    yield record.row(text, engine, "measured", case.measured_s, "s") | {"value": case.mean_s}
    for model, own in predictions.items():
        row = record.row(text, model, "predicted", [own.mean_s], "s") | {"applies": own.verdict}
        if own.high_s is not None:
            row |= {"low": own.low_s, "high": own.high_s, "spread": "90 % interval"}
        yield row
