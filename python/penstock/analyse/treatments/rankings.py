"""Agreement of the rankings of two studies, for example of a fraction or a sequential study with the full
table.

Common treatments are ranked by the mean of each response, common main effects by their size. Kendall's τ-b
measures the agreement of the ranks; its interval is that of Fieller, Hartley and Pearson (Biometrika 44,
1957): atanh τ with variance 0.437 / (n − 4), for n ≥ 5. Equality of the best `top` does not prove clear
estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.errors import BadInput
from penstock.text import counted, listed

#: number of best items compared
TOP = 3
#: minimum number of items for an interval
_FEWEST = 5


@dataclass(frozen=True)
class Agreement:
    """Agreement of two rankings of the same items; `low` and `high` are NaN for too few items, `overlap`
    is the number of common items among the best `top`, `by_chance` its expected value by chance."""

    response: str
    ranked: str
    n: int
    tau: float
    low: float
    high: float
    top: int
    overlap: int
    best: tuple[list[str], list[str]]

    @property
    def by_chance(self) -> float:
        """The expected overlap of two independent rankings."""
        return self.top**2 / self.n


@dataclass(frozen=True)
class Rankings:
    """The agreements of two studies, A and B, with their runs, and the items that could not be compared."""

    a: str
    b: str
    runs: tuple[int, int]
    agreements: list[Agreement]
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Plain values."""
        rows = [{**asdict(one), "by_chance": one.by_chance} for one in self.agreements]
        for row in rows:
            row |= {k: None if math.isnan(row[k]) else row[k] for k in ("tau", "low", "high")}
        return {"a": self.a, "b": self.b, "runs": list(self.runs), "agreements": rows} | {
            "notes": self.notes
        }


def kendall(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Kendall's τ-b of two series and its 95 % interval; NaN if undefined."""
    tau = float(stats.kendalltau(one, other).statistic) if len(one) > 1 else math.nan
    if len(one) < _FEWEST or not math.isfinite(tau):
        return tau, math.nan, math.nan
    # the τ nearest to 1 that a series of this length can have, other than 1
    most = 1 - 1 / (len(one) * (len(one) - 1) / 2)
    middle = math.atanh(max(-most, min(most, tau)))
    half = float(stats.norm.ppf(0.975)) * math.sqrt(0.437 / (len(one) - 4))
    low, high = math.tanh(middle - half), math.tanh(middle + half)
    return tau, min(low, tau), max(high, tau)


def compare_rankings(a: Outcome, b: Outcome, top: int = TOP) -> Rankings:
    """Agreement of the rankings of two studies. BadInput if they share no response or no two treatments."""
    names = {r.name for r in b.responses}
    shared = [r for r in a.responses if r.name in names]
    if not shared:
        raise BadInput(
            f"{b.name}: found no response of {a.name} ({listed([r.name for r in a.responses])}); expected "
            "one that both have"
        )
    agreements: list[Agreement] = []
    notes: list[str] = []
    for response in shared:
        means = _treatments(a, response), _treatments(b, response)
        agreements += agree(
            response, "treatments", *means, top, best_low=response.better == "lower"
        )
        sizes = _effects(a, response), _effects(b, response)
        agreements += agree(response, "main effects", *sizes, top, best_low=False)
        of_a, of_b = means
        count_single = len(set(of_a) ^ set(of_b))
        if count_single:
            notes.append(
                f"{response.name}: {counted(count_single, 'treatment')} that only one of them ran "
                f"{'is' if count_single == 1 else 'are'} not compared"
            )
    if not agreements:
        raise BadInput(
            f"{b.name}: found fewer than two treatments that {a.name} ran as well, and no two main "
            "effects of both; expected studies with the same factors and levels"
        )
    return Rankings(str(a.path), str(b.path), (len(a.measured), len(b.measured)), agreements, notes)


def agree(
    response: ResponseUnit,
    ranked: str,
    one: Mapping[str, float],
    other: Mapping[str, float],
    top: int,
    *,
    best_low: bool,
) -> Iterator[Agreement]:
    """Agreement of two rankings over their common items; nothing for fewer than two."""
    both = sorted(set(one) & set(other))
    if len(both) < 2:
        return
    values = [np.array([side[name] for name in both]) for side in (one, other)]
    most = min(top, len(both) - 1)
    orders = [np.argsort(v if best_low else -v, kind="stable")[:most] for v in values]
    best = tuple([both[i] for i in order] for order in orders)
    tau, low, high = kendall(*values)
    overlap = len(set(best[0]) & set(best[1]))
    yield Agreement(
        response.name, ranked, len(both), tau, low, high, most, overlap, (best[0], best[1])
    )


def _treatments(outcome: Outcome, response: ResponseUnit) -> dict[str, float]:
    """Mean of the valid runs of each treatment, keyed by its levels in the order of the factors' names."""
    runs = outcome.measured
    names = sorted(f.name for f in outcome.factors)
    if response.name not in runs or not set(names) <= set(runs.columns):
        return {}
    values = pd.to_numeric(runs[response.name], errors="coerce")
    runs = runs.assign(_value=values)[np.isfinite(values.astype(float))]
    keys = (
        runs[names]
        .astype(str)
        .apply(lambda row: ", ".join(f"{n} {v}" for n, v in row.items()), axis=1)
    )
    return (
        {str(k): float(v) for k, v in runs.groupby(keys)["_value"].mean().items()}
        if len(runs)
        else {}
    )


def _effects(outcome: Outcome, response: ResponseUnit) -> dict[str, float]:
    """Size of each main effect: explained variation per degree of freedom and run."""
    table = outcome.effects
    if table is None:
        return {}
    mains = {f.name for f in outcome.factors}
    table = table[(table["response"].astype(str) == response.name) & table["term"].isin(mains)]
    squares = pd.to_numeric(table["sum_of_squares"], errors="coerce") / (table["df"] * table["n"])
    return {
        str(term): float(size)
        for term, size in zip(table["term"], squares, strict=True)
        if math.isfinite(size)
    }


def ranking_lines(comparison: Rankings) -> Iterator[str]:
    """The agreements for a terminal of 100 columns."""
    yield f"A: {comparison.a} ({counted(comparison.runs[0], 'valid run')})"
    yield f"B: {comparison.b} ({counted(comparison.runs[1], 'valid run')})"
    for one in comparison.agreements:
        yield ""
        yield f"{one.response}: {one.n} {one.ranked} of both"
        between = (
            f"95 % interval {one.low:.2f} to {one.high:.2f}"
            if math.isfinite(one.low)
            else f"no interval of fewer than {_FEWEST}"
        )
        tau = f"{one.tau:.2f}" if math.isfinite(one.tau) else "not defined: all of one are alike"
        yield f"  Kendall's tau {tau} ({between})"
        yield (
            f"  of the {'largest' if one.ranked == 'main effects' else 'best'} {one.top} "
            f"{one.overlap} are the same (by chance {one.by_chance:.1f})"
        )
        for side, best in zip("AB", one.best, strict=True):
            yield f"    {side}: {'; '.join(best)}"[:100]
    if comparison.notes:
        yield ""
        yield from (f"note: {note}" for note in comparison.notes)
    yield ""
    yield "That the best are the same does not prove that their estimates are clear of each other."
