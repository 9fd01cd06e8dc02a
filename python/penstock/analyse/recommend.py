"""The recommendation of a measured study: the best treatment, by how much, what is as good, what it costs.

The first response of the study decides; the others say what that costs. What is as good and what is undecided
is as in the table `means`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.analyse.means import CONFIDENCE, Mean, Ranking, ranking
from penstock.analyse.outcome import Outcome
from penstock.analyse.question import kind, named
from penstock.analyse.words import listed, percent, quantity, ratio_words, times

#: named in a sentence at most
_MOST_NAMED = 3


@dataclass(frozen=True)
class Sentence:
    """What is said, the statistics behind it, and the rows that it rests on."""

    text: str
    detail: str = ""
    sure: bool = True
    evidence: dict[str, Any] = field(default_factory=dict)


def recommendation(outcome: Outcome) -> Sentence | None:
    """The treatment to choose by the first response; None where no run of it is valid."""
    ranked = _main(outcome)
    if ranked is None:
        return None
    best, rest = ranked.best, ranked.treatments[1:]
    evidence: dict[str, Any] = {
        "table": "means",
        "response": ranked.response.name,
        "treatment_id": best.treatment_id,
    }
    if not rest:
        return _alone(ranked, evidence)
    tied = ranked.of("as-good", "undecided")
    evidence["as_good"] = [t.treatment_id for t in ranked.of("as-good")]
    evidence["undecided"] = [t.treatment_id for t in ranked.of("undecided")]
    detail = _interval(ranked, best)
    if len(tied) == len(rest):
        return Sentence(_nothing(ranked), detail, not ranked.of("undecided"), evidence)
    after = next(t for t in rest if t not in tied)
    verb = "Choose" if kind(outcome.question) == "which" else "The best is"
    planned = {str(row["treatment_id"]) for row in outcome.plan.get("rows") or []}
    missing = len(planned - {t.treatment_id for t in ranked.treatments})
    if missing:
        of = f"Of the {len(planned) - missing} of {len(planned)} treatments that could be measured"
        verb = f"{of}, {verb[:1].lower()}{verb[1:]}"
    name, same = _shared(ranked, tied)
    text = (
        f"{verb} {name}: {ranked.response.name} {_measured(ranked, best)}{_beside(ranked, after)}"
    )
    if ranked.df < 1:
        text += "; with one run of each, how sure this is cannot be said"
        return Sentence(f"{text}.", "", False, evidence)
    text += f"{same}.{_everywhere(ranked)}"
    return Sentence(text, f"{detail} {_told_apart(after)}".strip(), not missing, evidence)


def _alone(ranked: Ranking, evidence: dict[str, Any]) -> Sentence:
    """Where one treatment alone has a valid run: what was measured."""
    outcome, best = ranked.outcome, ranked.best
    others = [ranking(outcome, response) for response in outcome.responses]
    said = [f"{r.response.name} is {_measured(r, r.best)}" for r in others if r.treatments]
    detail = " ".join(_interval(r, r.best) for r in others if r.treatments).strip()
    text = f"Only {_name(ranked, best)} could be measured, and so nothing compared: {listed(said)}."
    return Sentence(text, detail, False, evidence)


def conflicts(outcome: Outcome) -> list[Sentence]:
    """What the recommended treatment means for every other response, conflicts first."""
    ranked = _main(outcome)
    if ranked is None or len(ranked.treatments) < 2:
        return []
    best, decided = _picked(outcome, ranked)
    against, fine = list(decided), []
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        mine = other.mean(best.treatment_id)
        if mine is None or any(s.evidence["response"] == response.name for s in decided):
            continue
        evidence = {"table": "means", "response": response.name, "treatment_id": best.treatment_id}
        if mine.verdict in ("best", "as-good", "undecided"):
            words = "best" if mine.verdict == "best" else "not told from the best"
            fine.append(f"{words} in {response.name} ({_measured(other, mine)})")
            continue
        top = other.best
        text = (
            f"{response.name} speaks against it: {_measured(other, mine)} with it, "
            f"{_measured(other, top)} with {_name(other, top)}{_so_much(mine.behind)}."
        )
        detail = f"{_interval(other, top)} {_told_apart(mine)}".strip()
        against.append(Sentence(text, detail, True, evidence))
    if len(against) > len(decided):
        against += _compromise(outcome, ranked)
    if fine:
        text = f"{_name(ranked, best)} is also {listed(fine)}."
        against.append(Sentence(text, "", True, {"table": "means", "conflict": False}))
    return against


def _picked(outcome: Outcome, ranked: Ranking) -> tuple[Mean, list[Sentence]]:
    """The best, or of those tied with it the one that another response takes, and what it says."""
    tied = [ranked.best, *ranked.of("as-good", "undecided")]
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        means = [(other.mean(t.treatment_id), t) for t in tied]
        measured = [(m, t) for m, t in means if m is not None]
        if len(measured) < 2:
            continue
        measured.sort(key=lambda pair: other.treatments.index(pair[0]))
        (top, pick), (last, left) = measured[0], measured[-1]
        if other.apart(top, last):
            text = (
                f"Of these {_name(ranked, pick)} is better for {response.name}: {_measured(other, top)} "
                f"against {_measured(other, last)} with {_name(ranked, left)}."
            )
            evidence = {
                "table": "means",
                "response": response.name,
                "treatment_id": pick.treatment_id,
            }
            return pick, [Sentence(text, _interval(other, top), True, evidence)]
    return ranked.best, []


def _main(outcome: Outcome) -> Ranking | None:
    for response in outcome.responses[:1]:
        ranked = ranking(outcome, response)
        return ranked if ranked.treatments else None
    return None


def _name(ranked: Ranking, mean: Mean) -> str:
    return ranked.outcome.phrase(mean.levels, " + ") or str(mean.treatment_id)


def _measured(ranked: Ranking, mean: Mean) -> str:
    return quantity(mean.mean, ranked.response.unit)


def _beside(ranked: Ranking, after: Mean) -> str:
    """How much better the best is than `after`."""
    name = f"{_name(ranked, after)}: {_measured(ranked, after)}"
    higher = ranked.response.better == "higher"
    if not ranked.positive:
        difference = quantity(abs(ranked.best.mean - after.mean), ranked.response.unit)
        return f", {difference} {'more' if higher else 'less'} than the next ({name})"
    if after.behind >= 1.995:
        if higher:
            return f", {ratio_words(after.behind)} the next ({name})"
        return f"; the next ({name}) has {ratio_words(after.behind)} as much"
    if higher:
        return f", {percent(after.behind - 1)} more than the next ({name})"
    return f", {percent(1 - 1 / after.behind)} less than the next ({name})"


def _so_much(behind: float) -> str:
    if not math.isfinite(behind):
        return ""
    return f", {ratio_words(behind).replace(' more', '')} better"


def _nothing(ranked: Ranking) -> str:
    """Where no treatment is told from the best."""
    best, last, name = ranked.best, ranked.treatments[-1], ranked.response.name
    count = len(ranked.treatments)
    if not ranked.of("undecided"):
        within = percent(max(0.01, *(t.behind_high - 1 for t in ranked.treatments)))
        return (
            f"It makes no difference which is chosen: {name} is the same within {within} in "
            f"{'both' if count == 2 else f'all {count}'} treatments "
            f"({_measured(ranked, best)} with {_name(ranked, best)})."
        )
    return (
        f"Nothing is told apart: {name} is {_measured(ranked, best)} with the best mean "
        f"({_name(ranked, best)}) and {_measured(ranked, last)} with the worst ({_name(ranked, last)}), "
        "and that may be chance."
    )


def _shared(ranked: Ranking, tied: list[Mean]) -> tuple[str, str]:
    """What to choose, in words, and what is said of those tied with the best.

    What all of them have in common is chosen where it says enough: where they differ in one factor, or are
    all treatments that have it. Else the best mean is.
    """
    best, outcome = ranked.best, ranked.outcome
    if not tied:
        return _name(ranked, best), ""
    level = [best, *tied]
    same = {k: v for k, v in best.levels.items() if all(t.levels[k] == v for t in tied)}
    alike = [t for t in ranked.treatments if same.items() <= t.levels.items()]
    behind = max(t.behind_high for t in tied)
    within = percent(max(behind - 1, 0.01)) if math.isfinite(behind) else ""
    if len(best.levels) - len(same) > 1 and (len(alike) > len(level) or not same):
        names = _listed([_name(ranked, t) for t in tied])
        bound = f" (at most {within} worse)" if within else ""
        return (
            _name(ranked, best),
            f"; not told from it: {names}{bound}",
        )
    rest = [{k: v for k, v in t.levels.items() if k not in same} for t in level]
    words = [outcome.phrase(levels, " + ") for levels in rest]
    told = f"{_listed(words)} are not told apart"
    if not ranked.of("undecided"):
        told = f"{_listed(words)} are as good as each other, within {within}"
    elif within:
        told += f" ({words[0]} is at most {within} better)"
    return (outcome.phrase(same, " + ") or " or ".join(words)), f"; {told}"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return listed([*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names)


def _everywhere(ranked: Ranking) -> str:
    """Whether the best level of the factor in question is the best whatever the others are."""
    outcome = ranked.outcome
    asked = [f for f in outcome.factors if named(f.name, outcome.question)]
    if len(asked) != 1 or len(outcome.factors) < 2:
        return ""
    factor = asked[0].name
    mine = ranked.best.levels[factor]
    if any(t.levels[factor] != mine for t in ranked.of("as-good", "undecided")):
        return ""
    winners: dict[tuple[str, ...], Mean] = {}
    for treatment in ranked.treatments:
        rest = tuple(v for k, v in treatment.levels.items() if k != factor)
        winners.setdefault(rest, treatment)
    wins = [w for w in winners.values() if w.levels[factor] == mine]
    name = factor.replace("_", " ")
    phrase = asked[0].phrase(mine)
    if len(wins) == len(winners):
        return f" {phrase} is the best {name} whatever the rest is."
    other = next(w for w in winners.values() if w.levels[factor] != mine)
    rest_words = outcome.phrase({k: v for k, v in other.levels.items() if k != factor})
    return (
        f" {phrase} is the best {name} in {len(wins)} of {len(winners)} combinations of the rest; "
        f"with {rest_words} it is {asked[0].phrase(other.levels[factor])}."
    )


def _compromise(outcome: Outcome, ranked: Ranking) -> list[Sentence]:
    """The treatment nearest to the best of every response at once, in logarithms of the ratios."""
    all_of = [ranking(outcome, r) for r in outcome.responses]
    if not all(r.positive for r in all_of) or len(ranked.treatments) < 3:
        return []
    losses: dict[str, list[float]] = {}
    for treatment in ranked.treatments:
        means = [r.mean(treatment.treatment_id) for r in all_of]
        if all(m is not None for m in means):
            losses[str(treatment.treatment_id)] = [m.behind for m in means if m is not None]
    if not losses:
        return []
    nearest = min(losses, key=lambda t: float(np.linalg.norm(np.log(losses[t]))))
    mean = ranked.mean(nearest)
    if mean is None:
        return []
    parts = [
        f"{response.name} {_loss(loss)}"
        for response, loss in zip(outcome.responses, losses[nearest], strict=True)
    ]
    text = (
        f"Nearest to the best of all responses at once is {_name(ranked, mean)}: {listed(parts)}."
    )
    return [
        Sentence(
            text,
            "Euclidean distance of the logarithms of the ratios to each response's best.",
            True,
            {"table": "means", "treatment_id": nearest},
        )
    ]


def _loss(behind: float) -> str:
    if behind < 1.005:
        return "at its best"
    return f"{ratio_words(behind).replace(' more', '')} worse than its best"


def _interval(ranked: Ranking, mean: Mean) -> str:
    if not math.isfinite(mean.low):
        return ""
    unit = ranked.response.unit
    return (
        f"95 % interval of {ranked.response.name} with {_name(ranked, mean)}: "
        f"{quantity(mean.low)} to {quantity(mean.high, unit)} ({mean.n} run{'s' * (mean.n != 1)})."
    )


def _told_apart(mean: Mean) -> str:
    if not math.isfinite(mean.behind_low):
        return ""
    return (
        f"The ratio to the best is {times(mean.behind)}, {times(mean.behind_low)} to "
        f"{times(mean.behind_high)} ({CONFIDENCE:.0%} for all treatments together)."
    ).replace("%", " %")
