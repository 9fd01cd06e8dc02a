"""Which treatments differ: all pairs judged together, by the error of the order in which they were run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from penstock.analyse import significance
from penstock.analyse.outcome import Outcome

Values = NDArray[np.floating[Any]]

#: level at which spreads differ between treatments, and runs of each from which that is tested
_UNEQUAL = 0.01
_ENOUGH = 5


@dataclass(frozen=True)
class Differences:
    """Differences of treatment means, of logarithms where ratios have a meaning.

    `values` of the runs of each treatment on that scale; `runs` as measured, with `_scaled`, in their order;
    `most_df`: of settings that were kept over several runs the error has no more degrees of freedom.
    """

    outcome: Outcome
    response: str
    values: Mapping[str, Values]
    runs: pd.DataFrame
    kept: bool
    most_df: float

    @cached_property
    def error(self) -> tuple[float, float]:
        """Standard deviation of a run beside its treatment, and its degrees of freedom: NaN and 0 without
        replicates. What passes have in common is not in it, where treatments are alike in all passes."""
        squares = sum(float(np.sum((v - v.mean()) ** 2)) for v in self.values.values())
        free = sum(len(v) - 1 for v in self.values.values())
        block = self._passes
        if block is not None:
            scaled = self.runs["_scaled"]
            passes = scaled.groupby(block)
            squares -= float(((passes.mean() - scaled.mean()) ** 2 * passes.size()).sum())
            free -= passes.ngroups - 1
        if free < 1:
            return math.nan, 0.0
        return math.sqrt(max(squares, 0.0) / free), float(min(free, self.most_df))

    @cached_property
    def _passes(self) -> NDArray[Any] | None:
        """The pass of each run; None where passes are no blocks, or treatments are not alike in them."""
        plan, runs = self.outcome.plan, self.runs
        if plan.get("order") == "interleaved" and "replicate" in runs:
            block = runs["replicate"]
        elif "run_id" in runs:
            known = {str(r.get("run_id")): r.get("block") for r in plan.get("rows") or []}
            block = runs["run_id"].astype(str).map(known)
        else:
            return None
        if block.isna().any() or block.nunique() < 2 or len(self.values) < 2:
            return None
        counts = pd.crosstab(runs["treatment_id"].astype(str), block).to_numpy()
        return np.asarray(block) if (counts == counts[0, 0]).all() else None

    @cached_property
    def unequal(self) -> bool:
        """Whether the spread differs between treatments (Brown and Forsythe's test)."""
        values = list(self.values.values())
        if len(values) < 2 or min(map(len, values)) < _ENOUGH or self.kept:
            return False
        if not any(np.ptp(v) > 0 for v in values):
            return False
        return bool(stats.levene(*values, center="median").pvalue < _UNEQUAL)

    def half(self, a: str, b: str, level: float = significance.LEVEL) -> float:
        """Half the width of the interval of a difference, so wide that those of all pairs hold together.

        Tukey and Kramer; where spreads differ each pair by its own (Games and Howell, Journal of Educational
        Statistics 1, 1976, with Welch's degrees of freedom).
        """
        ours, theirs = self.values[a], self.values[b]
        means = len(self.values)
        if self.unequal:
            parts = [float(v.var(ddof=1)) / len(v) for v in (ours, theirs)]
            each = [p**2 / (len(v) - 1) for p, v in zip(parts, (ours, theirs), strict=True)]
            if sum(each) > 0:
                df = float(math.floor(sum(parts) ** 2 / sum(each)))
                return significance.of_pairs(means, df, level) * math.sqrt(sum(parts))
        error, df = self.error
        return (
            significance.of_pairs(means, df, level)
            * error
            * math.sqrt(1 / len(ours) + 1 / len(theirs))
        )

    def between(self, a: str, b: str) -> float:
        """The difference of two means on the scale of the spread."""
        return float(self.values[a].mean() - self.values[b].mean())

    @cached_property
    def show(self) -> bool:
        """Whether treatments are said to differ: an effect shows, or what the effects leave out does."""
        found = significance.shows(self.outcome, self.response)
        if found is not False:
            return True
        if significance.spans(self.outcome, self.response, len(self.values)):
            return False
        error, df = self.error
        if math.isnan(error):
            return False
        mean = np.array([v.mean() for v in self.values.values()])
        part = np.array([1 / len(v) for v in self.values.values()])
        far = np.abs(mean[:, None] - mean) / np.sqrt(part[:, None] + part)
        limit = significance.of_pairs(len(mean), df, significance.BEYOND_TERMS) * error
        return bool(far.max(initial=0.0) > limit)

    @cached_property
    def by_effect(self) -> bool | None:
        """Of two treatments that are the levels of one factor, what the test of its effect says."""
        factors = self.outcome.factors
        if len(self.values) != 2 or len(factors) != 1:
            return None
        return significance.term_is_sure(self.outcome, self.response, factors[0].name)

    def apart(self, a: str, b: str, difference: float) -> bool:
        """Whether two treatments, so far from each other, are told apart."""
        half = self.half(a, b)
        if not math.isfinite(half) or not self.show:
            return False
        return abs(difference) > half if self.by_effect is None else self.by_effect
