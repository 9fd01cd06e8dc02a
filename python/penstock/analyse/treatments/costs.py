"""Cost of one level of a factor compared with the other, under each combination of the other factors.

Costs are ratios of treatment means, 1 = no cost. Their intervals come from the spread of the logarithms of
the replicates, pooled over all treatments if these vary equally, else from the two compared treatments.
They are simultaneous for all combinations and their mean (Šidák), wider if the two levels were selected
from several by their difference (Tukey), or the factor from several by explained variation. For a factor
of two levels the effect's own test decides whether it has a cost on average; without a significant effect
there is no cost (`significance.py`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.analyse.findings.question import named, named_levels, subject
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics import significance
from penstock.analyse.statistics.bias import ends, used
from penstock.analyse.treatments.differences import Differences
from penstock.analyse.treatments.means import ranking

Values = NDArray[np.float64]
#: costs up to this ratio are reported as none: the readers' notion of "the same", stated with every use
NO_COST = 1.10
#: maximum loss of a good level, as a factor, that counts as unharmed
_UNHARMED = 1.05


@dataclass(frozen=True)
class Cost:
    """Cost of `level` relative to `other` with the other factors fixed, or their mean (no `where`).

    `ratio` > 1 if `level` is the worse; `low` and `high` are simultaneous 95 % bounds for all
    combinations, NaN without replicates. `at_level` and `at_other` are geometric means of the response.
    `error` is the standard error of the ratio's logarithm, `independent` another test of the difference.
    """

    where: dict[str, str]
    ratio: float
    low: float
    high: float
    n: int
    at_level: float
    at_other: float
    error: float = math.nan
    independent: bool | None = None
    #: maximum bias by degraded runs, as a logarithm of the ratio
    bias: float = 0.0

    @property
    def sure(self) -> bool:
        """True if it differs significantly from 1; without replicates only the bias of degraded runs can
        prevent that."""
        if self.independent is None and math.isnan(self.low):
            return not 0 < abs(math.log(self.ratio)) <= self.bias
        return not self.low <= 1 <= self.high if self.independent is None else self.independent

    @property
    def farthest(self) -> float:
        """The ratio farthest from 1, as a factor above 1, within the interval."""
        if math.isfinite(self.low):
            return max(self.high, 1 / self.low)
        return max(self.ratio, 1 / self.ratio)


@dataclass(frozen=True)
class FactorCost:
    """Cost of one level of a factor against another: on average and under every combination of the others.

    `missing` combinations of the plan have no valid run at one of the levels; `complete`: the combinations
    are all that there can be. `df`: degrees of freedom of the errors.
    `named`: the question is about `level`, else `level` is the worse one.
    """

    factor: str
    response: str
    level: str
    other: str
    average: Cost
    cells: list[Cost]
    missing: int
    better: str
    df: float = 0.0
    named: bool = False
    complete: bool = True

    @property
    def overall(self) -> float:
        """The geometric mean of the ratios."""
        return self.average.ratio

    @property
    def sure(self) -> list[Cost]:
        """Combinations with a significant difference, and their mean if significant."""
        significant = [cell for cell in self.cells if cell.sure]
        return (
            [*significant, self.average]
            if len(self.cells) > 1 and self.average.sure
            else significant
        )

    @property
    def worst(self) -> Cost:
        """The combination under which the level costs most."""
        return max(self.cells, key=lambda cell: cell.ratio)

    @property
    def least(self) -> Cost:
        """The combination under which the level costs least."""
        return min(self.cells, key=lambda cell: cell.ratio)

    @property
    def farthest(self) -> float:
        """The ratio farthest from 1 within the interval of any combination."""
        return max(cell.farthest for cell in self.cells)

    def under(self, condition: dict[str, str]) -> list[Cost]:
        """The combinations that satisfy the condition."""
        return [c for c in self.cells if all(c.where[f] == v for f, v in condition.items())]

    def remedies(self, doubtful: bool = False) -> list[dict[str, str]]:
        """Minimal conditions of one or two levels (else the smallest) under which no combination has a
        cost, because the costly level improves and not at the other one's expense; `doubtful`: include
        conditions whose effect is not significant."""
        names = list(self.cells[0].where) if self.cells else []
        conditions: list[dict[str, str]] = []
        for size in range(1, len(names) + 1):
            for chosen in itertools.combinations(names, size):
                for condition in _conditions(self.cells, chosen):
                    if any(f.items() <= condition.items() for f in conditions):
                        continue
                    costs = self.under(condition)
                    none = all(c.ratio <= NO_COST for c in costs)
                    if none and self.helps(condition) and (doubtful or self.eases(condition)):
                        conditions.append(condition)
            if conditions and size >= 2:
                break
        return conditions

    def eases(self, condition: dict[str, str]) -> bool:
        """True if the cost is significantly smaller with the condition than without, tested with all
        conditions of the same number of levels; without replicates any smaller cost counts."""
        inside = self.under(condition)
        rest = [c for c in self.cells if c not in inside]
        if not inside or not rest:
            return False
        less = math.log(mean_ratio(rest) / mean_ratio(inside))
        error = math.sqrt(
            sum(sum(c.error**2 for c in part) / len(part) ** 2 for part in (inside, rest))
        )
        if not math.isfinite(error) or self.df <= 0:
            return less > 0
        less -= sum(sum(c.bias for c in part) / len(part) for part in (inside, rest))
        names = list(self.cells[0].where)
        looks = sum(
            len(_conditions(self.cells, chosen))
            for chosen in itertools.combinations(names, len(condition))
        )
        return less > significance.of_several(looks, self.df) * error

    def helps(self, condition: dict[str, str]) -> bool:
        """True if the condition improves the costly level and does not harm the other one."""
        costly, good = self._gains(condition)
        return costly > _UNHARMED and good > 1 / _UNHARMED

    def spoils(self, condition: dict[str, str]) -> bool:
        """True if the condition only makes the other level worse."""
        costly, good = self._gains(condition)
        return costly <= _UNHARMED and good < 1 / _UNHARMED

    def trades(self, condition: dict[str, str]) -> bool:
        """True if the condition improves the costly level and makes the other one worse."""
        costly, good = self._gains(condition)
        return costly > _UNHARMED and good <= 1 / _UNHARMED

    def _gains(self, condition: dict[str, str]) -> tuple[float, float]:
        """Gain of the costly and of the other level by the condition, as factors."""
        inside = self.under(condition)
        rest = [c for c in self.cells if c not in inside]
        if not rest:
            return 1.0, 1.0
        return (
            self._gain([c.at_level for c in inside], [c.at_level for c in rest]),
            self._gain([c.at_other for c in inside], [c.at_other for c in rest]),
        )

    def _gain(self, inside: list[float], outside: list[float]) -> float:
        """Gain of the geometric mean inside over that outside, as a factor."""
        gain = math.exp(float(np.mean(np.log(inside)) - np.mean(np.log(outside))))
        return gain if self.better == "higher" else 1 / gain

    def hollow(self, factor: str, level: str) -> tuple[list[Cost], list[Cost]]:
        """Combinations in which that level removes the cost: (hollow, genuine).

        Hollow: the costly level does not improve, only the other one loses its advantage.
        """
        hollow: list[Cost] = []
        genuine: list[Cost] = []
        for cell in self.under({factor: level}):
            rest = {k: v for k, v in cell.where.items() if k != factor}
            for before in (c for c in self.under(rest) if c.where[factor] != level):
                if before.ratio > NO_COST and before.ratio > 1.2 * cell.ratio:
                    gain = cell.at_level / before.at_level
                    gain = gain if self.better == "higher" else 1 / gain
                    (genuine if gain > NO_COST else hollow).append(cell)
        return hollow, genuine

    def easing(self) -> list[tuple[str, str, float, float]]:
        """(factor, level, cost with it, cost with its other levels), in descending order of reduction.

        Costs are geometric means over the remaining combinations.
        """
        rows = []
        for name in list(self.cells[0].where) if self.cells else []:
            for condition in _conditions(self.cells, (name,)):
                level = condition[name]
                inside = mean_ratio(self.under(condition))
                outside = mean_ratio([c for c in self.cells if c.where[name] != level])
                rows.append((name, level, inside, outside))
        return sorted(rows, key=lambda row: row[2] / row[3])


def mean_ratio(cells: list[Cost]) -> float:
    """Geometric mean of the ratios; NaN for an empty list."""
    if not cells:
        return math.nan
    return float(np.exp(np.mean([math.log(c.ratio) for c in cells])))


def focal_factor(outcome: Outcome, response: str) -> str | None:
    """The factor in question: by its levels' names, then its own name; else the strongest."""
    question = outcome.question.lower()
    shares = _shares(outcome, response)
    scores: dict[str, float] = {}
    for factor in outcome.factors:
        by_level = len(named_levels(factor.levels, question))
        own = named(factor.name, question)
        scores[factor.name] = 4.0 * by_level + 2.0 * own + shares[factor.name] / 100
    return max(scores, key=lambda name: scores[name]) if scores else None


def _shares(outcome: Outcome, response: str) -> dict[str, float]:
    """Percentage of the response's variation in terms that contain each factor."""
    shares: dict[str, float] = defaultdict(float)
    if outcome.effects is not None and "variation_share" in outcome.effects:
        columns = (outcome.effects[c].tolist() for c in ("response", "term", "variation_share"))
        for of, term, share in zip(*columns, strict=True):
            if of == response and not pd.isna(share):
                for factor in dict.fromkeys(
                    str(term).split(":")
                ):  # a square names its factor twice
                    shares[factor] += float(share)
    return shares


#: levels of the others, difference of logarithms, its error, runs, means at both levels, maximum bias
_Cell = tuple[dict[str, str], float, float, int, list[float], tuple[float, float]]
#: mean, number, variance and largest bias down and up of the logarithms at each level
_Block = dict[str, Values]


def factor_cost(outcome: Outcome, response: ResponseUnit, factor: str) -> FactorCost | None:
    """The factor's cost for the response; None if it was not measured or is not above 0.

    For more than two levels: the two that the question names, else the best and the worst. A fraction
    without a combination at both levels has one cell, over all its treatments (no `where`).
    """
    names = [f.name for f in outcome.factors]
    if any(n not in outcome.measured for n in (response.name, *names)):
        return None
    levels = _pair(outcome, response, factor)
    values = _log_values(outcome, response, names) if levels else {}
    if not values:
        return None
    ranked = ranking(outcome, response)
    blocks = _blocks(values, names.index(factor))
    others = [n for n in names if n != factor]
    cells, df = _cells(blocks, others, levels, ranked.differences)
    planned = _planned(outcome, factor, levels)
    if not cells and not planned:
        cells = _over_all(outcome, blocks, levels, ranked.differences.error[0])
    if not cells:
        return None
    mean = _mean_cell(cells, factor in ranked.shared_factors)
    sign = 1 if response.better == "higher" else -1
    about = subject(levels, outcome.question)
    second = about == levels[1] if about else sign * mean[1] >= 0
    sign = sign if second else -sign
    costly = 1 if second else 0
    half = _quantile(outcome, factor, len(cells), df)
    # no cost without a significant effect; single runs have no test
    significant = False if df > 0 and not ranked.differences.show else None

    def cost(cell: _Cell) -> Cost:
        where, difference, error, n, both, off = cell
        below, above = off if sign > 0 else off[::-1]
        low = math.exp(sign * difference - below - half * error)
        high = math.exp(sign * difference + above + half * error)
        ratio = math.exp(sign * difference)
        at_level, at_other = both[costly], both[1 - costly]
        return Cost(where, ratio, low, high, n, at_level, at_other, error, significant, max(off))

    built, average = [cost(cell) for cell in cells], cost(mean)
    every = math.prod(len(outcome.factor(n).levels) for n in others)
    alone = not cells[0][0]
    if df > 0 and len(outcome.factor(factor).levels) == 2 and (every == len(cells) or alone):
        of_effect = significance.term_is_sure(outcome, response.name, factor)
        if of_effect is not None:
            own = significance.of_several(1, df) * average.error
            below, above = mean[5] if sign > 0 else mean[5][::-1]
            average = replace(
                average,
                low=average.ratio * math.exp(-own - below),
                high=average.ratio * math.exp(own + above),
                independent=of_effect,
            )
            built = [average] if alone else built
    return FactorCost(
        factor=factor,
        response=response.name,
        level=levels[costly],
        other=levels[1 - costly],
        average=average,
        missing=max(0, len(planned) - len(cells)),
        complete=every == len(cells),
        better=response.better,
        cells=built,
        df=df,
        named=bool(about),
    )


def _log_values(
    outcome: Outcome, response: ResponseUnit, names: list[str]
) -> dict[tuple[str, ...], list[Values]]:
    """Logarithm of the response of each used run, and its largest bias down and up, by levels of `names`.

    Empty if a value or its lower bound is not above 0.
    """
    runs = outcome.measured
    runs = runs[used(runs, response.name)]
    complete = np.logical_and.reduce([runs[n].notna() for n in (*names, response.name)])
    runs = runs[complete]
    values = runs[response.name].to_numpy(float)
    low, high = ends(runs, response.name) or (values, values)
    if (low <= 0).any():
        return {}
    logs = np.log(values)
    moved = np.column_stack([logs, logs - np.log(low), np.log(high) - logs])
    by_levels: dict[tuple[str, ...], list[Values]] = defaultdict(list)
    keys = zip(*(map(str, runs[n].tolist()) for n in names), strict=True)
    for key, row in zip(keys, moved, strict=True):
        by_levels[key].append(row)
    return by_levels


def _blocks(
    values: dict[tuple[str, ...], list[Values]], place: int
) -> dict[tuple[str, ...], _Block]:
    """Statistics by combination of the other factors; `place` of the factor in the keys of `values`."""
    blocks: dict[tuple[str, ...], _Block] = {}
    for key, rows in values.items():
        mean, below, above = np.mean(rows, axis=0)
        variance = np.var([row[0] for row in rows], ddof=1) if len(rows) > 1 else math.nan
        statistics = np.array([mean, len(rows), variance, below, above])
        blocks.setdefault(key[:place] + key[place + 1 :], {})[key[place]] = statistics
    return blocks


def _cells(
    blocks: dict[tuple[str, ...], _Block],
    others: list[str],
    levels: list[str],
    differences: Differences,
) -> tuple[list[_Cell], float]:
    """The combinations with both levels, and the degrees of freedom of the least precise one."""
    error, fewest = differences.error
    cells: list[_Cell] = []
    for combination, block in sorted(blocks.items()):
        if not set(levels) <= block.keys():
            continue
        means, counts, variances, below, above = np.array([block[v] for v in levels]).T
        of_cell = error * math.sqrt(float((1 / counts).sum()))
        if differences.unequal:
            parts = variances / counts
            of_cell = math.sqrt(float(parts.sum()))
            each = float((parts**2 / (counts - 1)).sum())
            if each > 0:  # Welch's
                fewest = min(fewest, math.floor(float(parts.sum()) ** 2 / each))
        where = dict(zip(others, combination, strict=True))
        both = [math.exp(float(mean)) for mean in means]
        off = float(below[0] + above[1]), float(above[0] + below[1])
        cells.append((where, float(means[0] - means[1]), of_cell, int(counts.sum()), both, off))
    return cells, fewest


def _mean_cell(cells: list[_Cell], shared: bool) -> _Cell:
    """The mean of the combinations; random effects of `shared` settings do not average out."""
    differences, errors, counts, both, off = zip(*(cell[1:] for cell in cells), strict=True)
    error = sum(errors) if shared else math.sqrt(sum(e * e for e in errors))
    return (
        {},
        float(np.mean(differences)),
        error / len(cells),
        sum(counts),
        [math.exp(float(np.mean(np.log(at)))) for at in zip(*both, strict=True)],
        (float(np.mean([o[0] for o in off])), float(np.mean([o[1] for o in off]))),
    )


def _over_all(
    outcome: Outcome,
    blocks: dict[tuple[str, ...], _Block],
    levels: list[str],
    error: float,
) -> list[_Cell]:
    """The mean over all treatments of a fraction, which has no combination at both levels, as one cell.

    Empty unless the design is balanced and each of its treatments has a valid run.
    """
    at = [[block[v] for block in blocks.values() if v in block] for v in levels]
    treatments = {r["treatment_id"] for r in outcome.plan.get("rows") or []}
    if len(at[0]) != len(at[1]) or sum(map(len, at)) != len(treatments):
        return []
    (first, below_first, above_first), (second, below_second, above_second) = (
        np.mean([[row[0], row[3], row[4]] for row in rows], axis=0) for rows in at
    )
    counts = [float(row[1]) for rows in at for row in rows]
    of_mean = error * math.sqrt(sum(1 / n for n in counts)) / len(at[0])
    off = float(below_first + above_second), float(above_first + below_second)
    both = [math.exp(float(first)), math.exp(float(second))]
    return [({}, float(first - second), of_mean, int(sum(counts)), both, off)]


def _planned(outcome: Outcome, factor: str, levels: list[str]) -> list[tuple[str, ...]]:
    """The combinations of the other factors that the plan has at both levels."""
    others = [f.name for f in outcome.factors if f.name != factor]
    at: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in outcome.plan.get("rows") or []:
        at[tuple(str(row["levels"][n]) for n in others)].add(str(row["levels"][factor]))
    return [combination for combination, ran in at.items() if set(levels) <= ran]


def _quantile(outcome: Outcome, factor: str, cells: int, df: float) -> float:
    """Half-width of each interval in standard errors, simultaneous for all combinations and their mean,
    and for the selection of factor and levels."""
    several = cells + (cells > 1)
    question = outcome.question
    levels = outcome.factor(factor).levels
    count_named = len(named_levels(levels, question))
    if not count_named and not named(factor, question):
        several *= len(outcome.factors)
    if len(levels) == 2 or count_named == 2:
        return significance.of_several(several, df)
    if count_named == 1:
        return significance.of_several(several * (len(levels) - 1), df)
    return significance.of_pairs(len(levels), df, significance.each_of(several))


def _pair(outcome: Outcome, response: ResponseUnit, factor: str) -> list[str]:
    """The two levels to compare, in the order of the study; empty if there is only one."""
    levels = outcome.factor(factor).levels
    if len(levels) <= 2:
        return levels if len(levels) == 2 else []
    means = ranking(outcome, response).level_means(factor)
    if len(means) < 2:
        return []
    means.sort(key=lambda m: m.behind)
    in_question = named_levels(levels, outcome.question)
    pair = (
        in_question
        if len(in_question) == 2
        else [means[0].levels[factor], means[-1].levels[factor]]
    )
    if len(in_question) == 1 and in_question[0] not in pair:
        pair = [pair[0], in_question[0]]
    return [v for v in levels if v in pair]


def _conditions(cells: list[Cost], names: tuple[str, ...]) -> list[dict[str, str]]:
    combinations = dict.fromkeys(tuple(c.where[name] for name in names) for c in cells)
    return [dict(zip(names, levels, strict=True)) for levels in combinations]
