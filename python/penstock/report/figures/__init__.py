"""Figures by kind. Each is a pure function of an OUT directory's tables and a width in inches."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.errors import BadInput
from penstock.report import style
from penstock.report.figures import delivered, designs, effects, judged, responses, series

#: kinds with one figure per response
BY_RESPONSE: dict[str, Callable[[Outcome, ResponseUnit, float], Figure]] = {
    "effects": effects.effect_bars,
    "pareto": effects.pareto,
    "interactions": effects.interactions,
    "responses": responses.by_treatment,
    "predictions": responses.predictions,
    "fraction": effects.fraction,
    "costs": effects.costs,
    "half-normal": judged.half_normal,
    "residuals": judged.residuals,
    "main-effects": designs.main_effects,
    "cube": designs.cube,
    "contour": designs.contour,
}
#: kinds drawn from bundles: of selected runs, or of the given ones
BY_RUN: dict[str, Callable[[Outcome, float, list[str] | None], Figure]] = {
    "offsets": series.offsets,
    "utilisation": series.utilisation,
    "delivered": delivered.delivered,
}
#: kinds with one figure per study
BY_STUDY: dict[str, Callable[[Outcome, float], Figure]] = {
    "fidelity": series.fidelity,
    "design": designs.design,
    "ledger": designs.ledger,
}
KINDS = (*BY_RESPONSE, *BY_RUN, *BY_STUDY)


def draw(
    outcome: Outcome,
    kind: str,
    width: float,
    response: str | None = None,
    run_ids: list[str] | None = None,
) -> Figure:
    """Draw one figure, `width` inches wide.

    `style.NotDrawn` if a table is missing, BadInput for an unknown kind or response.
    """
    with style.look():
        return style.settled(_draw(outcome, kind, width, response, run_ids))


def _draw(
    outcome: Outcome, kind: str, width: float, response: str | None, run_ids: list[str] | None
) -> Figure:
    if kind in BY_RESPONSE:
        by_name = {r.name: r for r in outcome.responses}
        if not by_name:
            raise style.NotDrawn("the study has no response")
        if response is not None and response not in by_name:
            raise BadInput(f"found response {response}; expected one of {', '.join(by_name)}")
        return BY_RESPONSE[kind](outcome, by_name[response or next(iter(by_name))], width)
    if kind in BY_RUN:
        unknown = [r for r in run_ids or [] if r not in outcome.run_ids]
        if unknown:
            raise BadInput(f"found run {unknown[0]}; expected one that left a bundle")
        return BY_RUN[kind](outcome, width, run_ids)
    if kind in BY_STUDY:
        return BY_STUDY[kind](outcome, width)
    raise BadInput(f"found figure {kind}; expected one of {', '.join(KINDS)}")
