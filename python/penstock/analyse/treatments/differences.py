"""Differences between treatments: simultaneous tests of all pairs, by the error of the executed order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics import significance
from penstock.analyse.statistics.spread import OWN, Error, Spread, differs

Values = NDArray[np.floating[Any]]

#: level of the test for unequal spreads of treatments, and minimum number of runs per treatment for it
_UNEQUAL = 0.01
_ENOUGH = 5


@dataclass(frozen=True)
class Differences:
    """Differences of treatment means, on logarithms if ratios are meaningful.

    `values` of the runs of each treatment on that scale; `block` of each run, if there are several;
    `spread` of the runs, treatments in the order of `values`; `shared_settings`: runs share settings.
    """

    outcome: Outcome
    response: str
    values: Mapping[str, Values]
    block: NDArray[np.int64] | None
    shared_settings: bool
    spread: Spread
    #: distance of each treatment's undisturbed mean below and above its mean, for degraded runs
    slack: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def error(self) -> tuple[float, float]:
        """Standard deviation of a run about its treatment, and its degrees of freedom: NaN and 0 without
        replicates. Differences between passes are removed if passes are balanced."""
        squares = sum(float(np.sum((v - v.mean()) ** 2)) for v in self.values.values())
        free = sum(len(v) - 1 for v in self.values.values())
        block = self._passes
        if block is not None:
            scaled, size = self.spread.values, np.bincount(block)
            means = np.bincount(block, scaled) / size
            squares -= float(((means - scaled.mean()) ** 2 * size).sum())
            free -= len(size) - 1
        if free < 1:
            return math.nan, 0.0
        return math.sqrt(max(squares, 0.0) / free), float(free)

    @cached_property
    def _passes(self) -> NDArray[np.int64] | None:
        """The pass of each run; None if passes are not blocks, or not balanced."""
        block, treatment = self.block, self.spread.treatment
        if block is None or len(self.values) < 2:
            return None
        counts = np.zeros((int(treatment.max()) + 1, int(block.max()) + 1), dtype=np.int64)
        np.add.at(counts, (treatment, block), 1)
        return block if (counts == counts[0, 0]).all() else None

    @cached_property
    def unequal(self) -> bool:
        """True if spreads differ between treatments (Brown-Forsythe test; Bartlett's for few runs)."""
        values = list(self.values.values())
        if len(values) < 2 or self.shared_settings or not any(np.ptp(v) > 0 for v in values):
            return False
        fewest = min(map(len, values))
        if fewest >= _ENOUGH and stats.levene(*values, center="median").pvalue < _UNEQUAL:
            return True
        return fewest >= OWN and differs(self.spread.own, self.spread.counts - 1) < _UNEQUAL

    def error_of(self, a: str, b: str) -> Error:
        """The standard error of the difference of two treatment means."""
        if self.shared_settings or (
            self.spread.shared and self._passes is None and not self.unequal
        ):
            places = {name: i for i, name in enumerate(self.values)}
            return self.spread.difference(places[a], places[b])
        ours, theirs = self.values[a], self.values[b]
        if self.unequal:
            parts = [float(v.var(ddof=1)) / len(v) for v in (ours, theirs)]
            each = [p**2 / (len(v) - 1) for p, v in zip(parts, (ours, theirs), strict=True)]
            if sum(each) > 0:
                df = float(math.floor(sum(parts) ** 2 / sum(each)))
                return Error(math.sqrt(sum(parts)), df)
        error, df = self.error
        return Error(error * math.sqrt(1 / len(ours) + 1 / len(theirs)), df)

    def half(self, a: str, b: str, level: float = significance.LEVEL) -> float:
        """Half-width of the simultaneous interval of a difference, for all pairs.

        Tukey and Kramer; for unequal spreads each pair by its own (Games and Howell, Journal of
        Educational Statistics 1, 1976, with Welch's degrees of freedom).
        """
        error = self.error_of(a, b)
        return significance.of_pairs(len(self.values), error.df, level) * error.size

    def between(self, a: str, b: str) -> float:
        """The difference of two means on the scale of `values`."""
        return float(self.values[a].mean() - self.values[b].mean())

    def off(self, a: str, b: str) -> tuple[float, float]:
        """Distance of the undisturbed difference of two means below and above the measured one."""
        ours, theirs = (self.slack.get(t, (0.0, 0.0)) for t in (a, b))
        return ours[0] + theirs[1], ours[1] + theirs[0]

    def _beyond(self, a: str, b: str, difference: float, half: float) -> bool:
        """True if a difference exceeds its interval under any correction of degraded runs."""
        below, above = self.off(a, b)
        return difference - below > half or difference + above < -half

    @cached_property
    def show(self) -> bool:
        """True if treatments differ: an effect is significant, or a difference outside the model is."""
        by_terms = significance.shows(self.outcome, self.response)
        if by_terms is not False:
            return True
        if significance.spans(self.outcome, self.response, len(self.values)):
            return False
        error, df = self.error
        if math.isnan(error):
            return False
        if self.shared_settings or self.unequal or self.slack:
            return any(
                self._beyond(a, b, self.between(a, b), self.half(a, b, significance.BEYOND_TERMS))
                for a, b in itertools.combinations(self.values, 2)
            )
        mean = np.array([v.mean() for v in self.values.values()])
        part = np.array([1 / len(v) for v in self.values.values()])
        far = np.abs(mean[:, None] - mean) / np.sqrt(part[:, None] + part)
        limit = significance.of_pairs(len(mean), df, significance.BEYOND_TERMS) * error
        return bool(far.max(initial=0.0) > limit)

    @cached_property
    def by_effect(self) -> bool | None:
        """Result of the effect's test, for two treatments that are the levels of one factor."""
        factors = self.outcome.factors
        if len(self.values) != 2 or len(factors) != 1:
            return None
        return significance.term_is_sure(self.outcome, self.response, factors[0].name)

    def apart(self, a: str, b: str, difference: float) -> bool:
        """True if two treatments with this difference differ significantly."""
        half = self.half(a, b)
        if not math.isfinite(half) or not self.show:
            return False
        return self._beyond(a, b, difference, half) if self.by_effect is None else self.by_effect


def blocks_of(outcome: Outcome, runs: pd.DataFrame) -> NDArray[np.int64] | None:
    """The block of each run, from 0; None if there is only one, or it is not recorded."""
    plan = outcome.plan
    stages = plan.get("stages")
    if plan.get("order") == "interleaved" and "replicate" in runs and not stages:
        block = runs["replicate"].tolist()
    elif "run_id" in runs:
        block = _planned(plan, runs, "block")
    else:
        return None
    return _several(block)


def settings_of(outcome: Outcome, runs: pd.DataFrame) -> list[NDArray[np.int64]]:
    """The whole plot and the strip of each run, if settings are shared."""
    settings = []
    for attribute in ("whole_plot", "strip"):
        if "run_id" not in runs or not any(
            r.get(attribute) for r in outcome.plan.get("rows") or []
        ):
            continue
        setting = _several(_planned(outcome.plan, runs, attribute))
        if setting is not None:
            settings.append(setting)
    return settings


def _planned(plan: Mapping[str, Any], runs: pd.DataFrame, attribute: str) -> list[Any]:
    """The plan's value for each run; None for a run that it lacks."""
    planned = {str(r.get("run_id")): r.get(attribute) for r in plan.get("rows") or []}
    return [planned.get(str(run)) for run in runs["run_id"].tolist()]


def _several(labels: list[Any]) -> NDArray[np.int64] | None:
    """The number of each label from 0; None for fewer than two labels, or if one is missing."""
    if any(pd.isna(label) for label in labels) or len(set(labels)) < 2:
        return None
    return np.unique(labels, return_inverse=True)[1]
