"""The optimum of a surface as the answer of a study: of the factors with an effect only, in rounded numbers.

The surface is fitted again without the factors that are in no significant term, because their estimates
would only move its optimum and widen its intervals. The optimum is compared with the best setting that was
run, both by this surface, because the mean of a setting that was chosen by its mean is too good.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.findings.estimability import size_sentence
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.question import is_screening, kind, picks
from penstock.analyse.findings.rerun import rerun
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics.scale import LINEAR, LOG, SCALE_TEXTS
from penstock.analyse.statistics.significance import sure_terms
from penstock.analyse.surface.optimum import (
    DOUBTED,
    desires,
    forbidden,
    plan_of,
    seeks_optimum,
    surfaces,
)
from penstock.analyse.surface.surface import (
    LACK,
    At,
    Merit,
    Predicted,
    Surface,
    best_setting,
    numbers_of,
    stationary,
    surface,
)
from penstock.errors import PenstockError
from penstock.spec.study import Factor
from penstock.text import (
    concise,
    counted,
    difference,
    estimate,
    listed,
    percents,
    quantities,
    quantity,
    short,
    span,
    term_text,
)

#: models of designs that are made for a surface
_CURVED = ("squares", "quadratic")
#: numbers are rounded to a step of at most this share of their range, or to integers
_STEP = 0.02
#: distance of the levels around an optimum, as a share of the range
_AROUND = 0.25


@dataclass(frozen=True)
class FittedOptimum:
    """The best setting by the surface of the factors with an effect; `run`: the best that was run.

    `gain_low`, `gain_high`: 95 % interval of the ratio of the predictions at both, NaN if they are not
    above 0. `edges`: the numbers at the end of their levels; `limits`: 95 % intervals of the others.
    """

    surface: Surface
    at: At
    value: Predicted
    run: At
    run_value: Predicted
    gain_low: float
    gain_high: float
    edges: list[str]
    limits: dict[str, tuple[float, float]]

    @property
    def was_run(self) -> bool:
        """True if the setting is one of those that were run."""
        return self.at == self.run

    @property
    def fits(self) -> bool:
        """False if the lack of fit of the surface is significant."""
        return _fits(self.surface)


def fitted_optimum(outcome: Outcome, response: ResponseUnit) -> FittedOptimum | None:
    """The optimum of a response; None without a number that has an effect, or without a surface."""
    key = f"fitted optimum {response.name}"
    if key not in outcome.memory:
        try:
            outcome.memory[key] = _fitted_optimum(outcome, response)
        except PenstockError:
            outcome.memory[key] = None
    result: FittedOptimum | None = outcome.memory[key]
    return result


def _fitted_optimum(outcome: Outcome, response: ResponseUnit) -> FittedOptimum | None:
    active = {n for term in sure_terms(outcome, response.name) for n in term.split(":")}
    plan = plan_of(outcome)
    factors = [f for f in plan.factors if f.name in active]
    if not any(numbers_of(f) is not None for f in factors):
        return None
    fit = _surface(outcome, response, active)
    if not fit.df > 0:
        return None
    sign = 1.0 if response.better == "higher" else -1.0
    merit = Merit([fit], lambda v: sign * v[0])
    barred = [one for one in forbidden(outcome) if set(one) <= active]
    exact = best_setting(merit, barred)
    at = {f.name: rounded(f, exact[f.name]) for f in factors}
    settings = outcome.measured[[f.name for f in factors]].astype(str).drop_duplicates()
    ran = [
        {f.name: _of_level(f, row[f.name]) for f in factors} for row in settings.to_dict("records")
    ]
    run = max(ran, key=lambda one: merit(fit.coded(one)))
    edges = []
    for factor in factors:
        values = numbers_of(factor)
        if values is not None and at[factor.name] in (min(values), max(values)):
            edges.append(factor.name)
    level = stationary(fit, exact)
    limits = {}
    if level is not None and level.inside:
        limits = {n: (level.low[n], level.high[n]) for n in level.at if n not in edges}
    return FittedOptimum(
        fit, at, fit.predict(at), run, fit.predict(run), *_gain(fit, at, run), edges, limits
    )


def _surface(outcome: Outcome, response: ResponseUnit, names: Collection[str]) -> Surface:
    """The surface of these factors on the scale of the effects; on that of logarithms if only it fits."""
    scale = scale_of_effects(outcome, response)
    runs, plan = outcome.measured, plan_of(outcome)
    fit = surface(runs, plan, response.name, scale, names)
    declared = (outcome.study.get("responses") or {}).get(response.name)
    automatic = not isinstance(declared, dict) or declared.get("scale", "auto") == "auto"
    if scale == LOG or _fits(fit) or not automatic or not (runs[response.name].dropna() > 0).all():
        return fit
    of_logarithms = surface(runs, plan, response.name, LOG, names)
    return of_logarithms if _fits(of_logarithms) else fit


def _fits(fit: Surface) -> bool:
    return not any(t.name == LACK and t.p < DOUBTED for t in fit.tests)


def _of_level(factor: Factor, name: str) -> float | str:
    values = numbers_of(factor)
    return name if values is None else values[[v.name for v in factor.levels].index(name)]


def rounded(factor: Factor, value: float | str) -> float | str:
    """A number in steps of 1, 2 or 5 times a power of ten, within the levels; a level as it is."""
    values = numbers_of(factor)
    if values is None or isinstance(value, str) or value in values:
        return value
    step = _step(values)
    return min(max(round(round(value / step) * step, 12), min(values)), max(values))


def _step(values: Sequence[float]) -> float:
    most = _STEP * (max(values) - min(values))
    power = 10.0 ** math.floor(math.log10(most))
    step = max(s * power for s in (1, 2, 5) if s * power <= most * (1 + 1e-9))
    integers = all(float(v).is_integer() for v in values)
    return max(step, 1.0) if integers else step


def _gain(fit: Surface, at: At, run: At) -> tuple[float, float]:
    """95 % interval of the ratio of the predictions at two settings."""
    rows = [fit.row(fit.coded(one)) for one in (at, run)]
    apart = rows[0] - rows[1]
    base = float(rows[1] @ fit.coefficients)
    half = float(stats.t.ppf(0.975, fit.df_of(apart))) * math.sqrt(
        max(float(apart @ fit.covariance @ apart), 0.0)
    )
    middle = float(apart @ fit.coefficients)
    value, low, high = (fit.natural(base + d) for d in (0.0, middle - half, middle + half))
    return (low / value, high / value) if min(value, low, high) > 0 else (math.nan, math.nan)


# ---------------------------------------------------------------- findings


def optima(outcome: Outcome) -> Iterator[Finding]:
    """The optimum as the setting to choose, its edges, and what the surfaces tell of other responses."""
    main = outcome.responses[0] if outcome.responses else None
    best = fitted_optimum(outcome, main) if main is not None and _is_requested(outcome) else None
    if main is None or best is None or not best.fits:
        yield from surfaces(outcome)
        return
    if not best.was_run:
        yield _choice(outcome, main, best)
    if best.edges:
        yield _on_the_edge(outcome, main, best)
    yield from (f for f in surfaces(outcome) if f.evidence.get("response") != main.name)


def _is_requested(outcome: Outcome) -> bool:
    """True if the study asks for the best setting, and has a surface."""
    curved = outcome.plan.get("model") in _CURVED or seeks_optimum(outcome)
    if not curved or desires(outcome) or kind(outcome.question) != "which":
        return False
    return not is_screening(outcome) or picks(outcome.question)


def _choice(outcome: Outcome, response: ResponseUnit, best: FittedOptimum) -> Finding:
    alone = f"For {response.name} alone, choose" if len(outcome.responses) > 1 else "Choose"
    lead = f"{alone} {setting_text(outcome, best.at)} (fitted, not run): {response.name} is"
    value, run = best.value, setting_text(outcome, best.run)
    plain = f"{lead} {quantity(value.value, response.unit)}"
    with_ends = f"{lead} {estimate(value.value, value.low, value.high, response.unit)}"
    gain, ends = _gain_texts(response, best)
    if gain:
        beside, brief = f"{gain[0]}{ends}{gain[1]} {run}", f"{gain[0]}{gain[1]} {run}"
    else:
        beside = brief = f"; {quantity(best.run_value.value, response.unit)} with {run}"
    ran = ", the best measured"
    return Finding(
        "optimum",
        "info",
        concise(
            f"{with_ends}{beside}{ran}.",
            f"{with_ends}{brief}{ran}.",
            f"{plain}{brief}{ran}.",
            f"{plain}.",
        ),
        {"table": "runs", "response": response.name, "at": best.at, "run": best.run},
        _next_step(outcome, best),
        " ".join(filter(None, [_detail(outcome, response, best), size_sentence(outcome).strip()])),
        "likely",
    )


def setting_text(outcome: Outcome, at: Mapping[str, float | str]) -> str:
    """A setting as levels: `cache mb 435 + 8 threads`."""
    levels = {n: v if isinstance(v, str) else f"{v:.12g}" for n, v in at.items()}
    return outcome.phrase(levels, " + ")


def _gain_texts(response: ResponseUnit, best: FittedOptimum) -> tuple[tuple[str, str] | None, str]:
    """The difference from the best that was run, before and after its interval; None if it may be 0."""
    low, high = best.gain_low, best.gain_high
    more = response.better == "higher"
    if not (low > 1 if more else high < 1):
        return None, ""
    shares = (low - 1, high - 1) if more else (1 - high, 1 - low)
    ratio = best.value.value / best.run_value.value
    than = f" {'more' if more else 'less'} than with"
    size, ends = difference(ratio), percents(*shares)
    return (f", {size}", than), f" ({ends})" * (ends != size)


def _detail(outcome: Outcome, response: ResponseUnit, best: FittedOptimum) -> str:
    """The terms of the surface, the intervals of the setting, and that of one run."""
    terms = listed([term_text(t) for t in dict.fromkeys(best.surface.of_column[1:])])
    scale = (
        ""
        if best.surface.scale == LINEAR
        else f" on the scale of {SCALE_TEXTS[best.surface.scale]}"
    )
    texts = [f"Surface of {terms}{scale}; other factors have no significant effect."]
    ends = [
        f"{term_text(n)} {span(short(low), short(high))}" for n, (low, high) in best.limits.items()
    ]
    if ends:
        texts.append(f"95 % intervals of the optimum: {listed(ends)}.")
    run_low, run_high = best.value.run_low, best.value.run_high
    if math.isfinite(run_low):
        texts.append(f"95 % interval of one run: {quantities([run_low, run_high], response.unit)}.")
    return " ".join(texts)


def _on_the_edge(outcome: Outcome, response: ResponseUnit, best: FittedOptimum) -> Finding:
    ends = []
    for factor in best.surface.factors:
        if factor.name in best.edges:
            at = best.at[factor.name]
            most = "largest" if at == max(numbers_of(factor) or ()) else "smallest"
            ends.append(f"{setting_text(outcome, {factor.name: at})} is the {most} that was run")
    return Finding(
        "optimum-edge",
        "info",
        f"{listed(ends)}: {response.name} may be better beyond.",
        {"table": "runs", "response": response.name, "factors": best.edges},
        "" if not best.was_run else _next_step(outcome, best),
        "The optimum of the surface is at the edge of the levels, where its slope is not 0.",
    )


def _next_step(outcome: Outcome, best: FittedOptimum) -> str:
    """The same design with levels around the optimum; without a command if that is no valid study."""
    changes = []
    for factor in best.surface.factors:
        levels = _levels_around(factor, best.at[factor.name])
        if levels:
            texts = ",".join(f"{v:.12g}" for v in levels)
            changes.append(f"factors.{factor.name}.levels=[{texts}]")
    again = rerun(outcome, "optimum", changes)
    if again is None:
        return f"run {setting_text(outcome, best.at)} before you rely on it."
    command, runs = again
    return f"`{command}` runs this setting and others around it ({counted(runs, 'run')})."


def _levels_around(factor: Factor, at: float | str) -> list[float]:
    """As many levels as before, the middle one at the optimum: within the old levels, or beyond an edge
    without a change of sign. Empty for names and for two levels."""
    values = numbers_of(factor)
    if values is None or isinstance(at, str) or len(values) < 3:
        return []
    low, high, step = min(values), max(values), _step(values)
    apart = _AROUND * (high - low)
    if at not in (low, high):
        apart = min(apart, at - low, high - at)
    elif low > 0:
        apart = min(apart, at - step)
    count = len(values) - (len(values) + 1) % 2
    half = count // 2
    each = max(math.floor(apart / half / step * (1 + 1e-9)), 1) * step
    return [round(at + i * each, 12) for i in range(-half, half + 1)]
