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
    evidence = {
        "table": "means",
        "response": ranked.response.name,
        "treatment_id": best.treatment_id,
    }
    if not rest:
        text = f"Only {_name(ranked, best)} could be measured: {_measured(ranked, best)}."
        return Sentence(text, _interval(ranked, best), False, evidence)
    good, open_ = ranked.of("as-good"), ranked.of("undecided")
    evidence |= {
        "as_good": [t.treatment_id for t in good],
        "undecided": [t.treatment_id for t in open_],
    }
    if open_:
        return Sentence(_undecided(ranked, open_), _interval(ranked, best), False, evidence)
    if not ranked.of("worse") and best.verdict and good:
        text = (
            f"It makes no difference which is chosen: {ranked.response.name} is the same within "
            f"{percent(max(t.behind_high for t in good) - 1)} in all {len(rest) + 1} treatments "
            f"(best mean: {_name(ranked, best)}, {_measured(ranked, best)})."
        )
        return Sentence(text, _interval(ranked, best), True, evidence)
    verb = "Choose" if kind(outcome.question) == "which" else "The best is"
    same = f" or {_names(ranked, good)}" if good else ""
    after = rest[len(good)]
    text = f"{verb} {_name(ranked, best)}{same}: {ranked.response.name} "
    text += f"{_measured(ranked, best)}, {_beside(ranked, after)}"
    if good:
        within = max(t.behind_high for t in good) - 1
        text += f"; {'they are' if good else ''} as good as each other within {percent(within)}"
    if ranked.df < 1:
        text += "; with one run of each, how sure this is cannot be said"
        return Sentence(f"{text}.", "", False, evidence)
    text += f".{_everywhere(ranked)}"
    return Sentence(text, f"{_interval(ranked, best)} {_told_apart(after)}".strip(), True, evidence)


def conflicts(outcome: Outcome) -> list[Sentence]:
    """What the recommended treatment means for every other response, conflicts first."""
    ranked = _main(outcome)
    if ranked is None or len(ranked.treatments) < 2:
        return []
    best = ranked.best
    against, fine = [], []
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        mine = other.mean(best.treatment_id)
        if mine is None:
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
    if against:
        against += _compromise(outcome, ranked)
    if fine:
        text = f"It is {'also ' if not against else ''}{listed(fine)}."
        against.append(Sentence(text, "", True, {"table": "means", "conflict": False}))
    return against


def _main(outcome: Outcome) -> Ranking | None:
    for response in outcome.responses[:1]:
        ranked = ranking(outcome, response)
        return ranked if ranked.treatments else None
    return None


def _name(ranked: Ranking, mean: Mean) -> str:
    return ranked.outcome.phrase(mean.levels) or str(mean.treatment_id)


def _names(ranked: Ranking, means: list[Mean]) -> str:
    shown = [_name(ranked, m) for m in means[:_MOST_NAMED]]
    more = len(means) - len(shown)
    return " or ".join([*shown, f"{more} more"] if more else shown)


def _measured(ranked: Ranking, mean: Mean) -> str:
    return quantity(mean.mean, ranked.response.unit)


def _beside(ranked: Ranking, after: Mean) -> str:
    """How much better the best is than `after`."""
    name = f"{_name(ranked, after)}: {_measured(ranked, after)}"
    higher = ranked.response.better == "higher"
    if not ranked.positive:
        difference = quantity(abs(ranked.best.mean - after.mean), ranked.response.unit)
        return f"{difference} {'more' if higher else 'less'} than the next ({name})"
    if after.behind >= 1.995:
        if higher:
            return f"{ratio_words(after.behind)} the next ({name})"
        return f"where the next ({name}) has {ratio_words(after.behind)} as much"
    if higher:
        return f"{percent(after.behind - 1)} more than the next ({name})"
    return f"{percent(1 - 1 / after.behind)} less than the next ({name})"


def _so_much(behind: float) -> str:
    if not math.isfinite(behind):
        return ""
    return f", {ratio_words(behind).replace(' more', '')} better"


def _undecided(ranked: Ranking, rivals: list[Mean]) -> str:
    best = ranked.best
    level = [best, *ranked.of("as-good"), *rivals]
    name = ranked.response.name
    if len(level) == len(ranked.treatments):
        last = ranked.treatments[-1]
        return (
            f"Nothing is told apart: {name} is {_measured(ranked, best)} with the best mean "
            f"({_name(ranked, best)}) and {_measured(ranked, last)} with the worst "
            f"({_name(ranked, last)}), and that may be chance."
        )
    shown = [f"{_name(ranked, m)} ({_measured(ranked, m)})" for m in level[:_MOST_NAMED]]
    more = len(level) - len(shown)
    named_ = listed([*shown, f"{more} more"] if more else shown)
    after = ranked.of("worse")[0]
    return (
        f"Undecided between {named_}: these runs do not tell them apart in {name}. "
        f"Next comes {_name(ranked, after)} ({_measured(ranked, after)})."
    )


def _everywhere(ranked: Ranking) -> str:
    """Whether the best level of the factor in question is the best whatever the others are."""
    outcome = ranked.outcome
    asked = [f for f in outcome.factors if named(f.name, outcome.question)]
    if len(asked) != 1 or len(outcome.factors) < 2:
        return ""
    factor = asked[0].name
    mine = ranked.best.levels[factor]
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
