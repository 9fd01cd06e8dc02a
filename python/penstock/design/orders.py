"""Choice of the run order of a study: cost of changes and detectable differences of each order.

Half of a run's variance is assumed to come from the setting of the factors that are costly to change
(shared by all runs of a whole plot), half from the run; `design.noise` is both together. An order that
shares settings saves changes; it estimates the shared factors less precisely and the others more
precisely. The choice minimises the time for equally precise results: hours times the square of the
smallest difference of level means that is detected with 80 % probability, for the least precise main
effect (Bisgaard, Journal of Quality Technology 32, 2000).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design import model as models
from penstock.design.blocks import block_numbers, blocks_of_pass, confounded
from penstock.design.estimate import change_s, changes_s
from penstock.design.kinds.base import Model, numeric
from penstock.design.matrix import Matrix
from penstock.design.order import (
    AUTO,
    BLOCKS,
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
    places_in_blocks,
)
from penstock.design.power import error_df, power_at, smallest
from penstock.errors import BadInput
from penstock.spec.study import Factor, Study
from penstock.text import listed, percentage

#: changes whose result can coexist with that of other levels
STAYS = ("reformat", "redeploy")
#: assumed share of a run's variance that comes from the setting
SETTING_SHARE = 0.5
#: minimum number of contrasts for a test of them against each other (Lenth)
_LENTH = 3
#: an order that shares settings is chosen if it takes at most this fraction of the time
_WORTH = 0.9
#: orders in which each replicate is a complete pass: one or more blocks of the model
PASSES = (INTERLEAVED, BLOCKS, SPLIT_PLOT, STRIP_PLOT)


@dataclass(frozen=True)
class OrderOption:
    """One order of a plan: its time, and by factor degrees of freedom and detectable differences.

    `detectable` is in standard deviations of a run at 80 % power, None if the order leaves no error term
    to test the factor; `hard` and `strips` are the factors whose settings are shared.
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
        """True if every factor has an error term."""
        return all(d is not None for d in self.detectable.values())

    def matches(self, chosen: Ordered) -> bool:
        """True if it is the chosen order."""
        own = (self.order, self.hard, self.strips)
        return own == (chosen.order, chosen.hard, chosen.strips)

    @property
    def price(self) -> float:
        """Time for equally precise estimates of the least precise factor; infinite if one has no estimate."""
        if not self.judged:
            return math.inf
        return self.seconds * max((d or 0.0) ** 2 for d in self.detectable.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"hard": list(self.hard), "strips": list(self.strips)}


@dataclass(frozen=True)
class Ordered:
    """Runs in the chosen order, the reason, and the alternative orders."""

    order: str
    why: str
    places: list[Place]
    hard: tuple[str, ...]
    strips: tuple[str, ...]
    options: list[OrderOption]
    #: for each pass cut into blocks, the contrasts between them: words, aliases together
    between: list[list[list[int]]] = field(default_factory=list)


def in_blocks(study: Study, matrix: Matrix, relation: Iterable[int]) -> Ordered | None:
    """The order of a two-level design whose passes are cut into blocks of `design.block_size` runs; None
    if a block contains a complete pass. `matrix`: treatments × factors of −1 and +1; `relation`: its
    constant words."""
    design = study.design
    if design.block_size is None:
        return None
    if design.order not in (AUTO, INTERLEAVED):
        raise BadInput(
            f"found design.block_size and design.order {design.order}; expected order interleaved or auto"
        )
    several = blocks_of_pass(len(matrix), design.block_size)
    if several == 1:
        return None
    between = confounded(matrix.shape[1], relation, several, design.replicates)
    blocks = [block_numbers(matrix, groups) for groups in between]
    why = ORDER_WHY[BLOCKS].format(size=design.block_size)
    return Ordered(BLOCKS, why, places_in_blocks(blocks, design.seed), (), (), [], between)


def ordered(
    study: Study,
    levels: NDArray[np.integer[Any]],
    base_s: float,
    model: Model | None = None,
    effective: Sequence[float] | None = None,
) -> Ordered:
    """The order of a study's runs. `levels`: treatments × factors, level numbers; `base_s`: time of all
    runs without changes [s]; `model`: the fitted model (None: all terms that the treatments estimate);
    `effective`: for each factor as in `power.effective_by_factor` (default: all treatments). BadInput if
    the requested order shares settings and no factor is costly to change."""
    design, factors = study.design, study.factors
    dear = sorted(
        (j for j, f in enumerate(factors) if change_s(f) > 0), key=lambda j: -change_s(factors[j])
    )
    requested = design.order
    if requested in RESTRICTED and not dear:
        raise BadInput(
            f"found design.order {requested} and no factor that is expensive to change; expected `change` or "
            "`change_cost` of a factor"
        )
    runs_of_factor = effective or [float(len(levels))] * len(factors)
    options = (
        [
            _option(study, levels, base_s, model, runs_of_factor, *c)
            for c in _candidates(factors, dear)
        ]
        if dear
        else []
    )
    order = requested if requested != AUTO else INTERLEAVED
    hard: tuple[str, ...] = ()
    strips: tuple[str, ...] = ()
    why = ""
    if requested in RESTRICTED:
        of_order = [o for o in options if o.order == requested]
        if not of_order:
            raise BadInput(_impossible(requested))
        best = min(of_order, key=lambda o: (o.price, o.seconds))
        hard, strips = best.hard, best.strips
    elif requested == AUTO and options:
        best, why = _chosen(options, factors)
        order, hard, strips = best.order, best.hard, best.strips
    names = [f.name for f in factors]
    run_places = places(
        levels, design.replicates, design.seed, order,
        [names.index(n) for n in hard], [names.index(n) for n in strips],
    )  # fmt: skip
    text = ORDER_WHY[order].format(hard=listed(list(hard)), strips=listed(list(strips)))
    return Ordered(order, " ".join(filter(None, (text, why))), run_places, hard, strips, options)


def cautions_of(ordered_: Ordered, factors: Sequence[Factor]) -> list[str]:
    """Limits of the order's conclusions, one sentence each."""
    sentences = []
    shared = [*ordered_.hard, *ordered_.strips]
    if shared:
        option = next(o for o in ordered_.options if o.matches(ordered_))
        untold = [n for n in shared if option.detectable[n] is None]
        by_name = {f.name: f for f in factors}
        # levels without numbers have no contrasts
        judged_levels = [
            len(by_name[n].levels)
            for n in untold
            if len(by_name[n].levels) == 2 or numeric(by_name[n]) is not None
        ]
        settings = len({p.whole_plot for p in ordered_.places})
        against = min(math.prod(judged_levels), settings) - 1
        if untold and not ordered_.strips and against >= _LENTH:
            sentences.append(
                f"Each setting of {listed(untold)} occurs once: the {against} contrasts of settings are "
                "tested only against each other (Lenth). More replicates make more whole plots."
            )
        elif untold:
            sentences.append(
                f"Nothing can be concluded about {listed(untold, 'or')}: each setting occurs once, so there "
                "is neither an interval nor a test. More replicates make more whole plots."
            )
        judged = [n for n in shared if n not in untold]
        if judged:
            freedom = listed([str(option.df[n]) for n in judged])
            sentences.append(
                f"Settings of {listed(judged)} stay the same over several runs: their effects are "
                f"tested with {freedom} degrees of freedom between settings, however many runs there are."
            )
    if ordered_.order == STANDARD and any(change_s(f) > 0 for f in factors):
        sentences.append("In standard order, expensive settings stay without being applied again.")
    return sentences


def power_as_ordered(ordered_: Ordered, noise: float) -> dict[str, Any] | None:
    """Power of a plan in which runs share settings, for the least precise factor that has an error term.
    None if no setting is shared or no factor has an error term."""
    option = next((o for o in ordered_.options if o.matches(ordered_)), None)
    if option is None or not option.hard:
        return None
    judged = {n: d for n, d in option.detectable.items() if d is not None}
    if not judged:
        return None
    worst = max(judged, key=lambda n: judged[n])
    df = option.df[worst]
    return power_at(judged[worst] / smallest(df), df, noise) | {"factor": worst}


# ---------------------------------------------------------------- candidates


def _candidates(
    factors: Sequence[Factor], dear: list[int]
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Possible orders: name, columns of shared factors, columns of strips."""
    orders: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
        (INTERLEAVED, (), ()),
        (RANDOM, (), ()),
    ]
    for count in range(1, min(len(dear), len(factors) - 1) + 1):
        orders += [(o, tuple(sorted(dear[:count])), ()) for o in (SPLIT_PLOT, SPLIT_PLOT_RANDOM)]
    stays = [j for j in dear[1:] if factors[j].change in STAYS]
    if stays:
        orders.append((STRIP_PLOT, (dear[0],), (stays[0],)))
    elif len(dear) > 1:
        orders.append((STRIP_PLOT, (dear[0],), (dear[1],)))
    return orders


def _option(
    study: Study,
    levels: NDArray[np.integer[Any]],
    base_s: float,
    model: Model | None,
    effective: Sequence[float],
    order: str,
    hard: tuple[int, ...],
    strips: tuple[int, ...],
) -> OrderOption:
    factors, r = study.factors, study.design.replicates
    names = [f.name for f in factors]
    run_places = places(levels, r, study.design.seed, order, hard, strips)
    rows = [[int(v) for v in levels[p.treatment]] for p in run_places]
    strip_names = [names[j] for j in strips]
    as_is = Ordered(order, "", run_places, tuple(names[j] for j in hard), tuple(strip_names), [])
    seconds = base_s + changes_s(study, levels, as_is.places, as_is.strips)
    changes = sum(a != b for a, b in itertools.pairwise(rows))
    treatments = len(levels)
    passes = order in PASSES
    df: dict[str, int] = {}
    detectable: dict[str, float | None] = {}
    plots = len({p.whole_plot for p in run_places})
    a, b = (len(np.unique(levels[:, list(c)], axis=0)) if c else 0 for c in (hard, strips))
    of_hard = error_df(a, r, passes=passes, coefficients=_n_coefficients(factors, model, hard, a))
    of_strips = error_df(
        b, r, passes=passes, coefficients=_n_coefficients(factors, model, strips, b)
    )
    of_run = error_df(
        treatments, r, passes=passes,
        coefficients=models.coefficients(factors, model) if model else None,
    )  # fmt: skip
    of_run -= (of_hard if hard else 0) + (of_strips if strips else 0)
    for j, name in enumerate(names):
        count = len(factors[j].levels)
        # variance component of the setting: as many independent draws as settings
        setting = 2 * SETTING_SHARE * count
        run = (1 - SETTING_SHARE) * 4 / (effective[j] * r)
        if j in hard:
            df[name], variance = of_hard, setting / plots + run
        elif j in strips:
            df[name], variance = of_strips, setting / (b * r) + run
        else:
            df[name] = of_run
            variance = run if hard else run / (1 - SETTING_SHARE)
        detectable[name] = smallest(df[name]) * math.sqrt(variance) if df[name] > 0 else None
    return OrderOption(
        order, seconds, changes, tuple(names[j] for j in hard), tuple(strip_names), df, detectable
    )


def _n_coefficients(
    factors: Sequence[Factor], model: Model | None, columns: Sequence[int], settings: int
) -> int:
    """Coefficients, including the mean, that settings of some factors have in the model."""
    if model is None or not columns:
        return settings
    return min(settings, models.coefficients([factors[j] for j in columns], model))


def _chosen(options: list[OrderOption], factors: Sequence[Factor]) -> tuple[OrderOption, str]:
    """The order for `auto`, and the reason."""
    plain = options[0]
    stays = {f.name for f in factors if f.change in STAYS}
    judged = [
        o for o in options
        if o.order in RESTRICTED and o.judged and set(o.strips) <= stays
    ]  # fmt: skip
    faster = [o for o in judged if o.seconds < plain.seconds]
    if not faster:
        why = (
            "the orders that keep settings take no less time"
            if judged
            else "too few whole plots would remain for a test"
        )
        return plain, f"Complete passes were chosen because {why}."
    best = min(faster, key=_dear)
    part = best.price / plain.price
    if _dear(best) <= _WORTH * plain.price:
        why = (
            f"Chosen because it takes {percentage(1 - best.seconds / plain.seconds)} less time than "
            f"complete passes and equally precise results take {percentage(1 - part)} less."
        )
        if best.order == SPLIT_PLOT_RANDOM:
            why += " Drift of the host over the study counts as variation of settings."
        return best, why
    limit = _WORTH * best.price / _dear(best)
    what = f"{best.order}, {listed([*best.hard, *best.strips])}"
    return plain, (
        f"Complete passes were chosen: with the best of the orders that keep settings ({what}) equally "
        f"precise results would take {percentage(part)} of the time, and it is taken from "
        f"{percentage(limit)} on."
    )


def _dear(option: OrderOption) -> float:
    """Price of an order that shares settings: without passes no block absorbs drift of the host, so that
    the saving of time must reach the threshold twice."""
    return option.price / _WORTH if option.order == SPLIT_PLOT_RANDOM else option.price


def _impossible(order: str) -> str:
    if order == STRIP_PLOT:
        return "found design.order strip-plot; expected two factors that are expensive to change"
    return f"found design.order {order}; expected a factor in addition to those that are expensive to change"
