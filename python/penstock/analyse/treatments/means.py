"""Means: treatments ranked for each response, and the mean at each level of each factor.

Intervals are Student's t on the logarithms if all values are above 0, else on the values. That of a mean
comes from the treatment's own runs if there are three; for fewer the spread is pooled over all treatments,
with the variance components of blocks and shared settings (`spread.py`). Treatments are compared by all
pairs (Tukey's studentised range, Kramer's for unequal numbers; Games and Howell's for unequal spreads),
because the best was selected from the data; differences between passes are removed if each treatment was
run in each pass. With 95 % probability no two equal treatments are called different; without a significant
effect, none are (`significance.py`). Intervals and verdicts hold for any correction of degraded runs
within their bounds (`bias.py`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import stdtrit

from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics.bias import ends, used
from penstock.analyse.statistics.spread import Error, Spread
from penstock.analyse.treatments.differences import Differences, blocks_of, settings_of
from penstock.archive.schemas import TABLES, described
from penstock.text import COLUMNS, fitting, named_unit, number, table_lines, times, with_interval

Numbers = NDArray[np.floating[Any]]
CONFIDENCE = 0.95
#: the largest logarithm of a ratio that is reported as a number
_MOST = 300.0
#: treatments without a significant difference from the best are as good up to this relative difference
AS_GOOD = 0.05
#: verdicts in printed tables
_SHOWN = {"best": "best", "as-good": "equal", "undecided": "open"}


@dataclass(frozen=True)
class Mean:
    """The mean of one treatment (or of one level, then `factor` is set) with its 95 % interval.

    `behind` is the ratio by which the best is better (1 for the best), with its interval; NaN if not all
    values are above 0, and its interval without replicates. `verdict`: `best`, `as-good` (no significant
    difference from the best, and at most 5 % worse), `undecided` (no significant difference), `worse`, or
    empty without a test.
    """

    levels: dict[str, str]
    mean: float
    low: float
    high: float
    n: int
    behind: float
    behind_low: float
    behind_high: float
    verdict: str
    treatment_id: str | None = None
    factor: str | None = None
    #: difference from the mean of the best
    off: float = math.nan


class Ranking:
    """The treatments of one response, the best first, from the valid runs."""

    def __init__(self, outcome: Outcome, response: ResponseUnit) -> None:
        self.outcome = outcome
        self.response = response
        runs = outcome.measured
        names = [f.name for f in outcome.factors]
        if response.name not in runs or "treatment_id" not in runs:
            runs = pd.DataFrame(columns=["treatment_id", response.name])
        runs = runs[used(runs, response.name)]
        values = pd.to_numeric(runs[response.name], errors="coerce").to_numpy(float)
        between = ends(runs, response.name)
        self.degraded = between is not None
        self._low: Numbers
        self._high: Numbers
        self._low, self._high = between or (values, values)
        of_run = [str(treatment) for treatment in runs["treatment_id"].tolist()]
        treatments, self._treatment = np.unique(of_run, return_inverse=True)
        self._values: dict[str, np.ndarray[Any, Any]] = {
            str(name): values[self._treatment == i] for i, name in enumerate(treatments)
        }
        self._runs, self._of_run = runs, values
        columns = {n: runs[n].tolist() for n in names if n in runs}
        self._levels = {
            treatment: {n: str(column[i]) for n, column in columns.items()}
            for i, treatment in enumerate(of_run)
        }

    @cached_property
    def positive(self) -> bool:
        """True if all values are above 0, so that ratios are meaningful."""
        return bool((self._low > 0).all())

    @cached_property
    def _ends(self) -> dict[str, tuple[float, float]]:
        """Bounds of each treatment's mean under corrections of its degraded runs."""
        return self._mean_pairs(self._low, self._high)

    def _mean_pairs(self, one: Numbers, other: Numbers) -> dict[str, tuple[float, float]]:
        """Treatment means of two quantities."""
        each = {name: self._treatment == i for name, i in self._place.items()}
        return {
            t: (float(one[flags].mean()), float(other[flags].mean())) for t, flags in each.items()
        }

    @cached_property
    def df(self) -> int:
        """Degrees of freedom of the runs within their treatments: 0 without replicates."""
        return sum(len(v) - 1 for v in self._values.values())

    @cached_property
    def shared_factors(self) -> frozenset[str]:
        """The factors whose settings were shared by several runs."""
        plan = self.outcome.plan
        names = (plan.get("whole_plot_factors") or [], plan.get("strip_factors") or [])
        return frozenset(str(n) for kind in names for n in kind)

    @cached_property
    def spread(self) -> Spread:
        """Variation of runs, in the order of `_values`; of logarithms if all values are above 0."""
        shared = settings_of(self.outcome, self._runs)
        groups = shared if self._block is None else [self._block, *shared]
        scale = np.log if self.positive else np.asarray
        levels = [[self._levels[t][f.name] for t in self._values] for f in self.outcome.factors]
        factors = [np.unique(of_treatment, return_inverse=True)[1] for of_treatment in levels]
        return Spread(self._treatment, scale(self._of_run), groups, factors)

    @cached_property
    def _block(self) -> NDArray[np.int64] | None:
        return blocks_of(self.outcome, self._runs)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._values)}

    @cached_property
    def shown(self) -> tuple[float, str]:
        """The factor and the unit in which tables show the means."""
        means = [float(v.mean()) for v in self._values.values()]
        return fitting(means, self.response.unit)

    @cached_property
    def treatments(self) -> list[Mean]:
        """All treatments with a valid run, the best first; those that may equal the best precede those
        that are worse, even if a mean of few runs is lower."""
        order = sorted(self._values, key=lambda t: self._worse(float(self._values[t].mean())))
        if not order:
            return []
        best = self._values[order[0]]
        means = []
        for treatment in order:
            values = self._values[treatment]
            mean = float(values.mean())
            error = self.spread.of_treatment(self._place[treatment])
            low, high = self._around(self._ends[treatment], error)
            behind = self._behind(float(best.mean()), mean)
            behind_low, behind_high = self._between(order[0], treatment)
            verdict = "best" if treatment == order[0] else self._verdict(order[0], treatment)
            if verdict == "best":
                behind_low, behind_high = 1.0, 1.0
            means.append(
                Mean(
                    self._levels[treatment],
                    mean,
                    low,
                    high,
                    len(values),
                    behind,
                    behind_low,
                    behind_high,
                    verdict,
                    treatment,
                    off=mean - float(best.mean()),
                )
            )
        means.sort(key=lambda mean: mean.verdict == "worse")
        return means

    @cached_property
    def best(self) -> Mean:
        """The treatment with the best mean. IndexError without a valid run."""
        return self.treatments[0]

    @cached_property
    def differences(self) -> Differences:
        """Differences between the treatments."""
        scale = np.log if self.positive else np.asarray
        return Differences(
            self.outcome,
            self.response.name,
            {t: scale(v) for t, v in self._values.items()},
            self._block,
            bool(self.shared_factors),
            self.spread,
            self._slack,
        )

    @cached_property
    def _slack(self) -> dict[str, tuple[float, float]]:
        """Maximum decrease and increase of each treatment's mean, on the scale of the spread."""
        if not self.degraded:
            return {}
        scale = np.log if self.positive else np.asarray
        low, value, high = (scale(v) for v in (self._low, self._of_run, self._high))
        return self._mean_pairs(value - low, high - value)

    def _between(self, a: str, b: str) -> tuple[float, float]:
        """Simultaneous interval of the ratio by which `a` is better than `b`; NaN without ratios."""
        if not self.positive:
            return math.nan, math.nan
        (a_low, a_high), (b_low, b_high) = self._ends[a], self._ends[b]
        if self.response.better == "higher":
            least, most = a_low / b_high, a_high / b_low
        else:
            least, most = b_low / a_high, b_high / a_low
        half = min(self.differences.half(a, b), _MOST)
        return least * math.exp(-half), most * math.exp(half)

    def apart(self, a: Mean, b: Mean) -> bool:
        """True if two treatments differ significantly, all pairs tested together."""
        one, other = str(a.treatment_id), str(b.treatment_id)
        return self.differences.apart(one, other, self.differences.between(one, other))

    def better(self, a: Mean, b: Mean) -> tuple[float, float, float]:
        """Ratio by which `a` is better than `b`, with its simultaneous interval."""
        ratio = self._behind(a.mean, b.mean)
        return ratio, *self._between(str(a.treatment_id), str(b.treatment_id))

    def of(self, *verdicts: str) -> list[Mean]:
        """The treatments with one of these verdicts, best first."""
        return [t for t in self.treatments if t.verdict in verdicts]

    def mean(self, treatment_id: str | None) -> Mean | None:
        """The mean of one treatment, None without a valid run."""
        return next((t for t in self.treatments if t.treatment_id == treatment_id), None)

    def level_means(self, factor: str) -> list[Mean]:
        """The mean at each level, over the combinations of the other factors that all levels have.

        In the order of the study; empty if no combination has a valid run at every level.
        """
        cells: dict[tuple[str, ...], dict[str, Mean]] = {}
        others = [f.name for f in self.outcome.factors if f.name != factor]
        for treatment in self.treatments:
            where = tuple(treatment.levels[n] for n in others)
            cells.setdefault(where, {})[treatment.levels[factor]] = treatment
        levels = self.outcome.factor(factor).levels
        run_levels = [v for v in levels if any(v in cell for cell in cells.values())]
        complete = [cell for cell in cells.values() if set(run_levels) <= set(cell)]
        if not complete:
            return []
        means = {v: float(np.mean([cell[v].mean for cell in complete])) for v in run_levels}
        best = min(means.values(), key=self._worse)
        result = []
        for level in run_levels:
            of_level = [cell[level] for cell in complete]
            weights = {
                self._place[str(m.treatment_id)]: (m.mean / means[level] if self.positive else 1.0)
                / len(of_level)
                for m in of_level
            }
            between = [self._ends[str(m.treatment_id)] for m in of_level]
            low, high = self._around(
                (float(np.mean([e[0] for e in between])), float(np.mean([e[1] for e in between]))),
                self.spread.of_mean(weights),
            )
            result.append(
                Mean(
                    {factor: level},
                    means[level],
                    low,
                    high,
                    sum(m.n for m in of_level),
                    self._behind(best, means[level]),
                    math.nan,
                    math.nan,
                    "",
                    factor=factor,
                    off=means[level] - best,
                )
            )
        return result

    def _worse(self, value: float) -> float:
        return -value if self.response.better == "higher" else value

    def _behind(self, best: float, mean: float) -> float:
        if not self.positive:
            return math.nan
        return best / mean if self.response.better == "higher" else mean / best

    def _around(self, between: tuple[float, float], error: Error) -> tuple[float, float]:
        """The interval of a mean within two bounds."""
        if error.df <= 0:
            return math.nan, math.nan
        low, high = between
        half = float(stdtrit(error.df, (1 + CONFIDENCE) / 2)) * error.size
        if self.positive:
            return low * math.exp(-min(half, _MOST)), high * math.exp(min(half, _MOST))
        # counts are never negative
        none_below = all((v >= 0).all() for v in self._values.values())
        return max(low - half, 0.0) if none_below else low - half, high + half

    def _verdict(self, best: str, treatment: str) -> str:
        half = self.differences.half(best, treatment)
        if not math.isfinite(half):
            return ""
        top, mean = (float(self._values[t].mean()) for t in (best, treatment))
        if self.positive:
            loss, limit = math.log(self._behind(top, mean)), math.log1p(AS_GOOD)
        else:
            loss, limit = self._worse(mean) - self._worse(top), AS_GOOD * abs(top)
        if self.differences.apart(best, treatment, self.differences.between(best, treatment)):
            return "worse"
        below, above = self.differences.off(best, treatment)
        more = above if self.response.better == "higher" else below
        return "as-good" if loss + more + half <= limit else "undecided"


def ranking(outcome: Outcome, response: ResponseUnit) -> Ranking:
    """The ranking of a response, computed once."""
    rankings: dict[str, Ranking] = outcome.memory.setdefault("rankings", {})
    if response.name not in rankings:
        rankings[response.name] = Ranking(outcome, response)
    return rankings[response.name]


def means_table(outcome: Outcome) -> pa.Table:
    """The table `means`: for each response the treatments, best first, then the levels of each factor."""
    rows = []
    for response in outcome.responses:
        ranked = ranking(outcome, response)
        rows += [
            _row(response, mean, "treatment", rank)
            for rank, mean in enumerate(ranked.treatments, start=1)
        ]
        for factor in outcome.factors:
            levels = ranked.level_means(factor.name)
            order = sorted(levels, key=lambda m: -m.mean if response.better == "higher" else m.mean)
            rows += [_row(response, mean, "level", order.index(mean) + 1) for mean in levels]
    return described("means", pa.Table.from_pylist(rows, TABLES["means"].arrow))


def _row(response: ResponseUnit, mean: Mean, kind: str, rank: int) -> dict[str, Any]:
    row = {
        "response": response.name,
        "unit": response.unit,
        "kind": kind,
        "treatment_id": mean.treatment_id,
        "factor": mean.factor,
        "levels": json.dumps(mean.levels, ensure_ascii=False),
        "rank": rank,
        "mean": mean.mean,
        "ci_low": mean.low,
        "ci_high": mean.high,
        "times_best": mean.behind,
        "times_best_low": mean.behind_low,
        "times_best_high": mean.behind_high,
        "n": mean.n,
        "verdict": mean.verdict,
    }
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def ranked_columns(
    outcome: Outcome, by_factor: bool = False, brief: bool = False
) -> tuple[list[str], list[list[str]]]:
    """The ranked table as text: headings (numeric ones with `#`) and a row per treatment.

    A treatment has one column, or one for each factor if `by_factor`. If `brief`, responses after the
    first have no distance from their best.
    """
    responses = outcome.responses
    main = ranking(outcome, responses[0]) if responses else None
    if main is None or not main.treatments:
        return [], []
    columns = outcome.factors if by_factor else []
    heads = ["#", *([f.name.replace("_", " ") for f in columns] or ["treatment"])]
    intervals = {r.name: r is responses[0] and main.df > 0 for r in responses}

    def columns_of(response: ResponseUnit) -> int | None:
        return -1 if brief and response is not responses[0] else None

    for response in responses:
        heads += mean_heads(ranking(outcome, response), intervals[response.name])[
            : columns_of(response)
        ]
    heads.append("#runs")
    rows = []
    for rank, treatment in enumerate(main.treatments, start=1):
        labels = [f.label(str(treatment.levels[f.name])) for f in columns]
        phrase = outcome.phrase(treatment.levels) or str(treatment.treatment_id)
        cells = [str(rank), *(labels or [phrase])]
        for response in responses:
            of = ranking(outcome, response)
            mean = of.mean(treatment.treatment_id)
            cells += mean_cells(of, mean, intervals[response.name])[: columns_of(response)]
        rows.append([*cells, str(treatment.n)])
    return heads, rows


def mean_heads(ranked: Ranking, interval: bool) -> list[str]:
    """Headings of `mean_cells`."""
    sure = ["#95 % interval"] if interval else []
    return [f"#{named_unit(ranked.response.name, ranked.shown[1])}", "#worse by", *sure]


def mean_cells(ranked: Ranking, mean: Mean | None, interval: bool) -> list[str]:
    """Mean, optional interval and distance from the best, as text; empty without a mean."""
    if mean is None:
        return [""] * (3 if interval else 2)
    factor = ranked.shown[0]
    value, sure = with_interval(*(factor * v for v in (mean.mean, mean.low, mean.high)))
    return [value, _behind(mean, factor), *([sure] if interval else [])]


def _behind(mean: Mean, factor: float) -> str:
    """Distance from the best: the verdict, else `2.9×`, else the difference (`+6.00`)."""
    if mean.off == 0:
        return "best"
    if mean.verdict in _SHOWN:
        return _SHOWN[mean.verdict]
    if math.isfinite(mean.behind):
        return times(mean.behind)
    return f"{'+' * (mean.off > 0)}{number(factor * mean.off)}"


def ranked_lines(outcome: Outcome, most: int = 12, columns: int = COLUMNS) -> list[str]:
    """The ranked table for a terminal of `columns` columns, with at most `most` treatments."""
    for brief in (False, True):
        heads, rows = ranked_columns(outcome, brief=brief)
        if len(rows) < 2:
            return []
        lines = table_lines(heads, rows[:most])
        if max(map(len, lines)) <= columns:
            break
    if len(rows) > most:
        lines.append(f"… and {len(rows) - most} more, in means.parquet")
    return lines
