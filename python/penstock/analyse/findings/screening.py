"""The answer of a screening: factors that matter, factors that do not, and open ones.

A factor matters if its main effect is significant among all terms of the response. Otherwise its effect is
below the upper end of its interval; it is open if that end exceeds the smallest effect that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.analyse.dot_plot import Dot, dot_plot
from penstock.analyse.findings.effect_findings import (
    Row,
    bound,
    bound_text,
    inseparable,
    measured_mean,
    term_rows,
)
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.question import is_screening
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.sequential.aliased import MOST_TERMS, aliased
from penstock.analyse.statistics.scale import LINEAR, LOG
from penstock.analyse.statistics.significance import LEVEL, terms_of
from penstock.analyse.treatments.means import ranking
from penstock.analyse.treatments.recommend import REPEAT
from penstock.text import (
    concise,
    counted,
    first_of,
    fitting,
    listed,
    named_unit,
    number,
    quantity,
    short,
    span,
    table_lines,
    term_text,
    times,
    up_to,
    with_interval,
)

#: maximum number of terms in the plot and the table
_MOST = 16
#: maximum number of interactions named with a main effect that may be a part of them
_MOST_PAIRS = 3
#: next step without a smallest effect that matters
NO_LIMIT = "State the smallest effect that matters as `detect` under `design`."
#: numbers in words
_COUNTS = {2: "two", 3: "three"}


@dataclass(frozen=True)
class Screened:
    """The terms of a response by verdict, each list in descending order of effect.

    `explained` are significant main effects that may be parts of the interactions named with them;
    `within` are factors that matter only in an interaction or a square. `small` are below the smallest effect
    that matters if it is `declared` (`design.detect`), else below the smallest that is significant.
    """

    response: ResponseUnit
    rows: list[Row]
    main: list[Row]
    interactions: list[Row]
    explained: dict[str, list[str]]
    within: dict[str, str]
    small: list[Row]
    open: list[Row]
    declared: bool

    def verdict(self, row: Row) -> str:
        """The verdict on a term, as a word or two."""
        term = str(row["term"])
        if term in self.explained:
            return f"may be {listed([term_text(t) for t in self.explained[term]], 'or')}"
        if term in self.within:
            return f"matters in {term_text(self.within[term])}"
        if row in self.main or row in self.interactions:
            return "matters"
        if row in self.open:
            return "open"
        return "no effect" if self.declared and row in self.small else "not shown"


def screened(outcome: Outcome, response: ResponseUnit) -> Screened | None:
    """The terms of a response by verdict; None without effects."""
    terms = terms_of(outcome, response.name)
    rows = term_rows(terms) if terms is not None and "variation_share" in terms.table else []
    if not rows:
        return None
    names = {f.name for f in outcome.factors}
    sure = [r for r in rows if r["p"] < LEVEL]
    doubts = _doubts(outcome, response)
    main = [r for r in sure if r["term"] in names and r["term"] not in doubts]
    interactions = [r for r in sure if r["term"] not in names]
    certain = [r["term"] for r in main]
    within = {
        n: r["term"]
        for r in interactions
        if not inseparable(r)
        for n in r["term"].split(":")
        if n not in certain
    }
    rest = [r for r in rows if r["term"] in names and r not in sure and r["term"] not in within]
    sizes = [_size(outcome, response, r) for r in main or sure]
    least = min(filter(math.isfinite, sizes), default=0.0)
    matters_from = _matters_from(outcome, response, rows[0]["scale"])
    small = [r for r in rest if bound(r) < (matters_from or least)]
    small.sort(key=lambda r: [f.name for f in outcome.factors].index(r["term"]))
    explained = {t: d for t, d in doubts.items() if t in names}
    unclear = [r for r in rest if r not in small]
    return Screened(
        response, rows, main, interactions, explained, within, small, unclear, bool(matters_from)
    )


def _doubts(outcome: Outcome, response: ResponseUnit) -> dict[str, list[str]]:
    """Significant main effects that two-factor interactions may explain."""
    doubts: dict[str, list[str]] = {}
    for finding in _over_aliases(outcome, response):
        sets = finding.evidence.get("explained") or []
        for term, rivals in (finding.evidence.get("plausible") or {}).items():
            pairs = [r for r in rivals if r.count(":") == 1]
            if pairs and not (sets and all(term in one for one in sets)):
                doubts[term] = pairs
    return doubts


def _over_aliases(outcome: Outcome, response: ResponseUnit) -> list[Finding]:
    return [f for f in aliased(outcome) if f.evidence.get("response") == response.name]


def _size(outcome: Outcome, response: ResponseUnit, row: Row) -> float:
    """The size of an effect on its scale; for a factor of several levels the range of its means, infinite if
    the scale is of ranks or powers, which means are not on."""
    if math.isfinite(row["effect"]):
        return abs(float(row["effect"]))
    if ":" in row["term"] or row["scale"] not in (LINEAR, LOG):
        return math.inf
    means = [m.mean for m in ranking(outcome, response).level_means(row["term"])]
    if row["scale"] == LOG:
        means = [math.log(m) for m in means if m > 0]
    return max(means) - min(means) if means else math.inf


def _matters_from(outcome: Outcome, response: ResponseUnit, scale: str) -> float:
    """The smallest effect that matters, as the study declares it (`design.detect`); 0 without one."""
    share = outcome.detect
    if share is None or scale not in (LINEAR, LOG):
        return 0.0
    return math.log1p(share) if scale == LOG else share * abs(measured_mean(outcome, response))


def screening(outcome: Outcome) -> Iterator[Finding]:
    """The factors that matter for the first response, those that do not, and those that remain open."""
    if not is_screening(outcome) or not outcome.responses:
        return
    result = screened(outcome, outcome.responses[0])
    if result is None:
        return
    yield _headline(outcome, result)
    if result.small:
        names = listed([term_text(r["term"]) for r in result.small])
        each = "each " if len(result.small) > 1 else ""
        # one bound for all terms below it, as in the finding on these
        unsure = [r for r in result.rows if not r["p"] < LEVEL and math.isfinite(bound(r))]
        least = min((bound(r) for r in result.open), default=math.inf)
        most = max(
            [bound(r) for r in result.small] + [bound(r) for r in unsure if bound(r) < least]
        )
        text = bound_text(outcome, result.response, most, result.rows[0]["scale"])
        yield Finding(
            "screened-out" if result.declared else "not-shown",
            "info",
            f"{names}: {each}less than {text}, 95 % for all terms together.",
            {"table": "effects", "terms": [r["term"] for r in result.small]},
            "" if result.declared else NO_LIMIT,
        )
    unknown = [*_aliases(outcome, result), *_unclear(result)]
    if unknown:
        yield Finding("screening-open", "info", f"{'; '.join(unknown)}.", {"table": "effects"})


def _headline(outcome: Outcome, result: Screened) -> Finding:
    """The factors and interactions that matter, with their effects."""
    response = result.response
    stated = [r["term"] for r in (*result.main, *result.interactions)]
    evidence: dict[str, Any] = {"table": "effects", "response": response.name, "terms": stated}
    doubts = _over_aliases(outcome, response)
    step = next((f.what_to_do for f in doubts if f.what_to_do), "")
    if not stated:
        if result.explained:
            statement, step = _aliased_only(outcome, result), step or REPEAT
        else:
            statement, step = _nothing_shown(outcome, result), REPEAT
        return Finding("screening", "warning", statement, evidence, step, "", "open")
    count = len(result.main) + len(result.within)
    lead = f"{count} of {len(outcome.factors)} factors matter{'s' * (count == 1)}"
    lead = f"{lead if count else 'No single factor is shown to matter'} for {response.name}"

    def text(interval: bool, base: bool = False, most: int = 99, short: bool = False) -> str:
        parts = []
        for rows in (result.main, result.interactions):
            names = [_named(outcome, response, r, interval, base, short) for r in rows]
            parts.append(listed(first_of(names, most)))
        return f"{lead}: {'; also '.join(filter(None, parts))}."

    choice, base = _choice(outcome, result), not result.interactions
    if fewest := _fewest(doubts, result):
        evidence["unless"] = f"{_COUNTS.get(fewest, fewest)} factors interact"
    return Finding(
        "screening",
        "info",
        concise(
            *(
                f"{text(*shown)}{choice}"
                for shown in ((True, base), (False, base), (False,))
                if choice
            ),
            *(text(*shown) for shown in ((True, base), (True,), (False, base), (False,))),
            *(text(False, most=most, short=True) for most in (99, 4, 2)),
        ),
        evidence,
        step,
        "Effects are differences of the means at the ends of a factor; all terms are tested together.",
        "likely" if ranking(outcome, response).degraded else "clear",
    )


def _choice(outcome: Outcome, result: Screened) -> str:
    """The better levels of the factors that matter: ` Choose compress off and journal delete.`

    Empty if an effect may depend on another factor, or is that of more than two levels.
    """
    levels = {f.name: f for f in outcome.factors}
    chosen = []
    for row in result.main:
        factor = levels[row["term"]]
        if len(factor.levels) > 2 or inseparable(row) or not math.isfinite(row["effect"]):
            return ""
        up = (row["effect"] > 0) == (result.response.better == "higher")
        chosen.append(factor.phrase(factor.levels[-1 if up else 0]))
    return "" if result.interactions or not chosen else f" Choose {listed(chosen)}."


def _aliased_only(outcome: Outcome, result: Screened) -> str:
    """The headline if all significant effects may be interactions: `Open: A on (+2 s) affects y, or …`."""
    rows = [{**r, "aliases": ""} for r in result.rows if r["term"] in result.explained]
    name, one = result.response.name, len(rows) == 1

    def text(most: int) -> str:
        named = [_named(outcome, result.response, r, False, False, True) for r in rows]
        rest = f"affects {name}, or an interaction" if one else f"affect {name}, or interactions"
        return f"Open: {listed(first_of(named, most))} {rest} of other factors."

    return concise(text(99), text(3), text(2), text(1))


def _nothing_shown(outcome: Outcome, result: Screened) -> str:
    """The headline if no term is significant, or none was tested."""
    name, rows = result.response.name, result.rows
    if not any(math.isfinite(r["p"]) for r in rows):
        largest = listed([term_text(r["term"]) for r in rows[:3]])
        return (
            f"Open: without replicates no factor is shown to matter for {name}; {largest} have the "
            "largest effects."
        )
    most = max(map(bound, rows))
    possible = f"; effects of up to {_amount(result.response, most, rows[0])} are possible"
    nothing = f"Open: none of {len(outcome.factors)} factors is shown to matter for {name}"
    return f"{nothing}{possible * math.isfinite(most)}."


def _named(
    outcome: Outcome, response: ResponseUnit, row: Row, interval: bool, base: bool, short: bool
) -> str:
    """A term with its effect: `cache (on takes 9.6 s)`, with the `base` `from 20 s`; `A × B (+6 s)`.

    `short`: `cache on (−9.6 s)`.
    """
    name = term_text(row["term"])
    factor = next((f for f in outcome.factors if f.name == row["term"]), None)
    if short and factor is not None and math.isfinite(row["effect"]):
        name, factor = factor.phrase(factor.levels[-1]), None
    if inseparable(row):
        name += " or an alias"
    effect, low, high = _shown_values(row)
    if not math.isfinite(effect):
        apart = _size(outcome, response, row)
        if not math.isfinite(apart):
            return name
        return f"{name} (up to {_amount(response, apart, row)} apart)"
    level = "" if factor is None else factor.label(factor.levels[-1])
    ends = ""
    if row["scale"] == LOG:
        amount = f"{level}: " * bool(level) + times(effect)
        ends = span(number(low, 2), number(high, 2))
        return f"{name} ({amount}{f', {ends}' * (interval and math.isfinite(low))})"
    scale, unit = fitting([effect], _unit(response, row))
    if effect < 0 and level:
        low, high = -high, -low
    if interval and math.isfinite(low):
        ends = f", {span(number(low * scale), number(high * scale))}"
    size = quantity(abs(effect) * scale, unit)
    if not level:
        return f"{name} ({'+' if effect > 0 else '−'}{size}{ends})"
    verb, into = ("adds", "to") if effect > 0 else ("takes", "from")
    from_it = ""
    if base and row["scale"] == LINEAR:
        first = quantity(measured_mean(outcome, response) - effect / 2, response.unit)
        from_it = f"{',' * bool(ends)} {into} {first}"
    return f"{name} ({level} {verb} {size}{ends}{from_it})"


def _shown_values(row: Row) -> tuple[float, float, float]:
    """Effect and interval; logarithms as ratios."""
    effect, low, high = (float(row[k]) for k in ("effect", "effect_ci_low", "effect_ci_high"))
    if row["scale"] == LOG:
        effect, low, high = (math.exp(min(v, 700.0)) for v in (effect, low, high))
    return effect, low, high


def _unit(response: ResponseUnit, row: Row) -> str:
    return response.unit if row["scale"] == LINEAR else ""


def _amount(response: ResponseUnit, size: float, row: Row) -> str:
    """A bound: `0.9 s`; for logarithms `12 %` or `a factor of 3.0`."""
    if row["scale"] == LOG:
        return up_to(math.exp(min(size, 700.0))).removeprefix("up to ")
    return quantity(size, _unit(response, row))


def _fewest(doubts: list[Finding], result: Screened) -> int:
    """The smallest number of factors whose interaction may be a main effect that matters; 0 if none may."""
    counts = []
    for finding in doubts:
        sets = finding.evidence.get("explained") or []
        for term, rivals in (finding.evidence.get("plausible") or {}).items():
            alone = bool(sets) and all(term in one for one in sets)
            if not alone and any(r["term"] == term for r in result.main):
                counts += [rival.count(":") + 1 for rival in rivals]
    return min(counts, default=0)


def _aliases(outcome: Outcome, result: Screened) -> list[str]:
    """The significant terms that cannot be separated from others, as clauses."""
    named = {r["term"]: inseparable(r) for r in (*result.main, *result.interactions)}
    for finding in _over_aliases(outcome, result.response):
        of_finding = finding.evidence.get("named") or {}
        named |= {t: rivals for t, rivals in of_finding.items() if t in named}
    clauses = [
        f"{term_text(t)} from {listed(rivals, 'or')}"
        for t, rivals in sorted(named.items(), key=lambda pair: ":" not in pair[0])
        if rivals
    ]
    clauses[:1] = [one.replace(" from ", " cannot be separated from ", 1) for one in clauses[:1]]
    more = len(clauses) - MOST_TERMS
    clauses = [*clauses[:MOST_TERMS], *([f"{counted(more, 'more effect')} alike"] * (more > 0))]
    by_rivals: dict[tuple[str, ...], list[str]] = {}
    for term, rivals in result.explained.items():
        by_rivals.setdefault(tuple(rivals), []).append(term_text(term))
    for pairs, terms in by_rivals.items():
        clauses.append(
            f"{listed(terms)} may be {'parts' if len(terms) > 1 else 'a part'} of "
            f"{listed(first_of([term_text(p) for p in pairs], _MOST_PAIRS), 'or')}"
        )
    return clauses


def _unclear(result: Screened) -> list[str]:
    """The factors that may matter as much as those that do, as a clause."""
    rows = result.open
    if not rows or not (result.main or result.interactions):
        return []
    most = max(bound(r) for r in rows)
    ends = f" (up to {_amount(result.response, most, rows[0])})" if math.isfinite(most) else ""
    names = first_of([term_text(r["term"]) for r in rows], 6)
    return [f"{listed(names)} may matter as well{ends}"]


def _listed_rows(result: Screened) -> list[Row]:
    """Main effects and significant interactions, the largest first."""
    return [r for r in result.rows if ":" not in r["term"] or r in result.interactions]


def _fitting(result: Screened) -> tuple[float, str]:
    """The factor and unit in which effects are easy to read."""
    first = result.rows[0]
    if first["scale"] == LOG:
        return 1.0, "ratio"
    sizes = [r["effect"] for r in result.rows if math.isfinite(r["effect"])]
    return fitting(sizes, _unit(result.response, first))


def effect_plot(result: Screened) -> list[str]:
    """The effects with their intervals as a dot plot, the largest first."""
    scale, unit = _fitting(result)
    dots = []
    for r in _listed_rows(result)[:_MOST]:
        value, low, high = (v * scale for v in _shown_values(r))
        text = "" if unit == "ratio" else with_interval(value, low, high)[0]
        dots.append(Dot(term_text(r["term"]), value, low, high, text))
    title = named_unit(f"effect on {result.response.name}", unit)
    return dot_plot(title, dots, times if unit == "ratio" else short)


def effect_lines(outcome: Outcome, result: Screened) -> list[str]:
    """The effects as a table for a terminal, the largest first."""
    heads, rows = effect_columns(outcome, result)
    lines = table_lines(heads, rows[:_MOST])
    more = len(rows) - _MOST
    return [*lines, f"… and {more} more, in effects.parquet"] if more > 0 else lines


def effect_columns(outcome: Outcome, result: Screened) -> tuple[list[str], list[list[str]]]:
    """The table of effects as text: headings (numeric ones with `#`) and a row per term."""
    scale, unit = _fitting(result)
    ratios = unit == "ratio"
    heads = ["effect of", "from", "to", f"#{named_unit(result.response.name, unit)}"]
    heads += ["#95 % interval", "verdict", "not separable from"]
    rows = []
    for row in _listed_rows(result):
        levels = next((f.levels for f in outcome.factors if f.name == row["term"]), [""])
        effect, low, high = (v * scale for v in _shown_values(row))
        sign = "+" * (effect > 0 and not ratios)
        if ratios:
            value, interval = times(effect), span(number(low, 2), number(high, 2))
        else:
            value, interval = with_interval(effect, low, high)
        rows.append(
            [
                term_text(row["term"]),
                levels[0],
                levels[-1],
                f"{sign}{value}" * math.isfinite(effect),
                interval * math.isfinite(low),
                result.verdict(row),
                listed(inseparable(row), "or"),
            ]
        )
    used = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    return [heads[i] for i in used], [[row[i] for i in used] for row in rows]
