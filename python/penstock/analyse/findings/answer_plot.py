"""The plot below an answer on a terminal: costs of the level in question, else the treatment means."""

from __future__ import annotations

from penstock.analyse.dot_plot import Dot, dot_plot
from penstock.analyse.findings.question import is_screening, kind
from penstock.analyse.findings.screening import effect_lines, effect_plot, screened
from penstock.analyse.outcome import Outcome
from penstock.analyse.treatments.costs import factor_cost, focal_factor
from penstock.analyse.treatments.means import ranked_lines, ranking
from penstock.text import fitting, named_unit, short, times, with_interval

#: maximum number of lines of a plot
_MOST = 8


def plot_lines(outcome: Outcome) -> list[str]:
    """The plot as lines; empty if there are fewer than two values, or more than fit."""
    if not outcome.responses:
        return []
    response = outcome.responses[0]
    if is_screening(outcome) and (result := screened(outcome, response)) is not None:
        return effect_plot(result)
    if kind(outcome.question) != "which":
        focal = focal_factor(outcome, response.name)
        cost = factor_cost(outcome, response, focal) if focal else None
        if cost is not None and 1 < len(cost.cells) <= _MOST:
            phrase = outcome.factor(cost.factor).phrase
            pair = (phrase(cost.other), phrase(cost.level))
            over = pair if response.better == "higher" else pair[::-1]
            cells = sorted(cost.cells, key=lambda c: -c.ratio)
            dots = [Dot(outcome.phrase(c.where), c.ratio, c.low, c.high) for c in cells]
            worse = f"more than 1: {pair[1]} is worse"
            side = worse if cost.overall >= 1 else f"less than 1: {pair[1]} is better"
            title = f"{response.name}: {over[0]} ÷ {over[1]} ({side})"
            return dot_plot(title, dots, times, least=1.0)
    means = ranking(outcome, response).treatments
    if not 2 < len(means) <= _MOST:
        return []
    scale, unit = fitting([m.mean for m in means], response.unit)
    dots = []
    for m in means:
        numbers = (m.mean * scale, m.low * scale, m.high * scale)
        dots.append(Dot(outcome.phrase(m.levels), *numbers, with_interval(*numbers)[0]))
    return dot_plot(named_unit(response.name, unit), dots, short)


def table_lines(outcome: Outcome) -> list[str]:
    """The table below the plot: effects for a screening, else the treatments by rank."""
    if outcome.responses and is_screening(outcome):
        result = screened(outcome, outcome.responses[0])
        if result is not None:
            return effect_lines(outcome, result)
    return ranked_lines(outcome)
