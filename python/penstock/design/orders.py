"""Which order a study should have: what changes cost in each, and which differences it would find.

A run's variation is taken to come half from the setting of the dear factors (it is there in each run of a
whole plot alike) and half from the run; `design.noise` is both together. An order that keeps settings saves
changes; it tells the factors that are kept less well and the others better. The order is chosen by the time
that equally sure statements take: hours times the square of the smallest difference of level means that is
found with 80 % probability, of the main effect that is told worst (Bisgaard, Journal of Quality Technology
32, 2000).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, nctdtr, ndtr, stdtrit

from penstock.design.estimate import changes_s
from penstock.design.order import (
    AUTO,
    INTERLEAVED,
    ORDER_WHY,
    RANDOM,
    RESTRICTED,
    SPLIT_PLOT,
    SPLIT_PLOT_RANDOM,
    STANDARD,
    STRIP_PLOT,
    Place,
    places,
)
from penstock.errors import BadInput
from penstock.spec.study import Factor, Study
from penstock.text import listed

#: what a change costs where the study says only what it does [s], a guess
CHANGE_S = {"none": 0.0, "remount": 1.0, "restart": 5.0, "reformat": 15.0, "redeploy": 60.0}
#: changes that leave something which can stay beside that of other levels
STAYS = ("reformat", "redeploy")
#: share of a run's variance that is the setting's, assumed
SETTING_SHARE = 0.5
#: an order that keeps settings is taken where it takes at most this part of the time
_WORTH = 0.9
_NEAR = 1e-9


@dataclass(frozen=True)
class OrderOption:
    """One order of a plan: its time, and by factor degrees of freedom and detectable differences.

    `detectable` is in standard deviations of a run at 80 % power, None where the order gives no error to
    judge the factor by; `hard` and `strips` are the factors whose settings are kept.
    """

    order: str
    seconds: float
    changes: int
    hard: tuple[str, ...]
    strips: tuple[str, ...]
    df: dict[str, int]
    detectable: dict[str, float | None]

    @property
    def judged(self) -> bool:
        """Whether every factor has an error to be judged by."""
        return all(d is not None for d in self.detectable.values())

    @property
    def price(self) -> float:
        """Time for equally sure statements of the factor that is told worst; infinite where one is not."""
        if not self.judged:
            return math.inf
        return self.seconds * max((d or 0.0) ** 2 for d in self.detectable.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"hard": list(self.hard), "strips": list(self.strips)}


@dataclass(frozen=True)
class Ordered:
    """The runs in the order that was chosen, why, and what the other orders would be."""

    order: str
    why: str
    places: list[Place]
    hard: tuple[str, ...]
    strips: tuple[str, ...]
    options: list[OrderOption]


def change_s(factor: Factor) -> float:
    """What changing a factor costs [s]: as declared, else a guess from what the change does."""
    return factor.change_cost_s or CHANGE_S[factor.change]


def ordered(study: Study, levels: NDArray[np.integer[Any]], base_s: float) -> Ordered:
    """The order of a study's runs. `levels`: treatments × factors, level numbers; `base_s`: time of all runs
    without changes. BadInput where the order asked for keeps settings and no factor is dear to change."""
    design, factors = study.design, study.factors
    dear = sorted(
        (j for j, f in enumerate(factors) if change_s(f) > 0), key=lambda j: -change_s(factors[j])
    )
    wanted = design.order
    if wanted in RESTRICTED and not dear:
        raise BadInput(
            f"found design.order {wanted} and no factor that is dear to change; expected `change` or "
            "`change_cost` of a factor"
        )
    options = (
        [_option(study, levels, base_s, *c) for c in _candidates(factors, dear)] if dear else []
    )
    order = wanted if wanted != AUTO else INTERLEAVED
    hard: tuple[str, ...] = ()
    strips: tuple[str, ...] = ()
    why = ""
    if wanted in RESTRICTED:
        mine = [o for o in options if o.order == wanted]
        if not mine:
            raise BadInput(_impossible(wanted))
        best = min(mine, key=lambda o: (o.price, o.seconds))
        hard, strips = best.hard, best.strips
    elif wanted == AUTO and options:
        best, why = _chosen(options, factors)
        order, hard, strips = best.order, best.hard, best.strips
    names = [f.name for f in factors]
    found = places(
        levels, design.replicates, design.seed, order,
        [names.index(n) for n in hard], [names.index(n) for n in strips],
    )  # fmt: skip
    text = ORDER_WHY[order].format(hard=listed(list(hard)), strips=listed(list(strips)))
    return Ordered(order, " ".join(filter(None, (text, why))), found, hard, strips, options)


def cautions_of(ordered_: Ordered, factors: Sequence[Factor]) -> list[str]:
    """What the order cannot tell, a sentence each."""
    found = []
    kept = [*ordered_.hard, *ordered_.strips]
    if kept:
        option = next(
            o for o in ordered_.options
            if (o.order, o.hard, o.strips) == (ordered_.order, ordered_.hard, ordered_.strips)
        )  # fmt: skip
        untold = [n for n in kept if option.detectable[n] is None]
        if untold:
            found.append(
                f"Nothing can be concluded about {listed(untold, 'or')}: each setting is made once, so no "
                "interval and no test is given. More replicates make more whole plots."
            )
        told = [n for n in kept if n not in untold]
        if told:
            freedom = listed([str(option.df[n]) for n in told])
            found.append(
                f"Settings of {listed(told)} are kept over several runs: judged by {freedom} degrees of "
                "freedom between settings, however many runs there are."
            )
    if ordered_.order == STANDARD and any(change_s(f) > 0 for f in factors):
        found.append("In standard order dear settings are kept without being made again.")
    return found


# ---------------------------------------------------------------- the candidates


def _candidates(
    factors: Sequence[Factor], dear: list[int]
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Orders that could be had: name, columns of kept factors, columns of strips."""
    found: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        (INTERLEAVED, (), ()),
        (RANDOM, (), ()),
    ]
    for kept in range(1, min(len(dear), len(factors) - 1) + 1):
        found += [(o, tuple(sorted(dear[:kept])), ()) for o in (SPLIT_PLOT, SPLIT_PLOT_RANDOM)]
    stays = [j for j in dear[1:] if factors[j].change in STAYS]
    if stays:
        found.append((STRIP_PLOT, (dear[0],), (stays[0],)))
    elif len(dear) > 1:
        found.append((STRIP_PLOT, (dear[0],), (dear[1],)))
    return found


def _option(
    study: Study,
    levels: NDArray[np.integer[Any]],
    base_s: float,
    order: str,
    hard: tuple[int, ...],
    strips: tuple[int, ...],
) -> OrderOption:
    factors, r = study.factors, study.design.replicates
    names = [f.name for f in factors]
    found = places(levels, r, study.design.seed, order, hard, strips)
    rows = [[int(v) for v in levels[p.treatment]] for p in found]
    kept_strips = [names[j] for j in strips]
    as_is = Ordered(order, "", found, tuple(names[j] for j in hard), tuple(kept_strips), [])
    seconds = base_s + changes_s(study, levels, as_is)
    changes = sum(a != b for a, b in itertools.pairwise(rows))
    treatments, runs = len(levels), len(found)
    df: dict[str, int] = {}
    detectable: dict[str, float | None] = {}
    plots = len({p.whole_plot for p in found})
    a, b = (len(np.unique(levels[:, list(c)], axis=0)) if c else 0 for c in (hard, strips))
    passes = r - 1 if order in (INTERLEAVED, SPLIT_PLOT, STRIP_PLOT) else 0
    for j, name in enumerate(names):
        count = len(factors[j].levels)
        if j in hard:
            df[name] = a * (r - 1) if order == SPLIT_PLOT_RANDOM else (a - 1) * (r - 1)
            shared = plots / count
        elif j in strips:
            df[name] = (b - 1) * (r - 1)
            shared = b * r / count
        else:
            used = passes + treatments
            kept = (a * (r - 1) if order == SPLIT_PLOT_RANDOM else (a - 1) * (r - 1)) if hard else 0
            kept += (b - 1) * (r - 1) if strips else 0
            df[name] = runs - used - kept
            shared = math.inf if hard else runs / count
        variance = 2 * (SETTING_SHARE / shared + (1 - SETTING_SHARE) / (runs / count))
        detectable[name] = _detectable(math.sqrt(variance), df[name])
    return OrderOption(
        order, seconds, changes, tuple(names[j] for j in hard), tuple(kept_strips), df, detectable
    )


def _chosen(options: list[OrderOption], factors: Sequence[Factor]) -> tuple[OrderOption, str]:
    """The order for `auto` and why."""
    plain = options[0]
    stays = {f.name for f in factors if f.change in STAYS}
    kept = [
        o for o in options
        if o.order in (SPLIT_PLOT, STRIP_PLOT) and o.judged and set(o.strips) <= stays
    ]  # fmt: skip
    best = min(kept, key=lambda o: o.price, default=plain)
    if best is not plain and best.price <= _WORTH * plain.price and best.seconds < plain.seconds:
        saved = 1 - best.seconds / plain.seconds
        return best, (
            f"Chosen because it takes {saved:.0%} less time than complete passes and equally sure statements "
            f"take {1 - best.price / plain.price:.0%} less."
        ).replace("%", " %")
    why = "keeping a setting would leave it too few whole plots to be judged by"
    if any(o.judged for o in kept):
        why = "the time that keeping settings saves is not worth what it loses in power"
    return plain, f"Complete passes were chosen because {why}."


def _impossible(order: str) -> str:
    if order == STRIP_PLOT:
        return "found design.order strip-plot; expected two factors that are dear to change"
    return f"found design.order {order}; expected a factor beside those that are dear to change"


def _detectable(error: float, df: int, goal: float = 0.8, level: float = 0.05) -> float | None:
    """Smallest difference found with probability `goal`, of a standard error; None without an error."""
    if df < 1:
        return None
    limit = float(stdtrit(df, 1 - level / 2))
    below, above = 0.0, limit
    while _power(above, df, limit) < goal:
        above *= 2
    while above - below > _NEAR * above:
        middle = (below + above) / 2
        below, above = (middle, above) if _power(middle, df, limit) < goal else (below, middle)
    return above * error


def _power(shift: float, df: int, limit: float) -> float:
    """Probability that |t| of this non-centrality passes the limit."""
    found = float(1 - nctdtr(df, shift, limit) + nctdtr(df, shift, -limit))
    if math.isfinite(found):
        return found
    # SciPy's non-central t has no value far out: the same as a mean over the estimate of the spread
    spread = np.sqrt(chdtri(df, 1 - (np.arange(4096) + 0.5) / 4096) / df)
    return float((ndtr(shift - limit * spread) + ndtr(-limit * spread - shift)).mean())
