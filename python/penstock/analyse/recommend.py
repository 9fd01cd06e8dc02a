"""The recommendation of a measured study: the best treatment, by how much, what is as good, what it costs.

The first response of the study decides; the others say what that costs. What is as good and what is undecided
is as in the table `means`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.analyse.means import AS_GOOD, CONFIDENCE, Mean, Ranking, ranking
from penstock.analyse.outcome import Outcome
from penstock.analyse.question import kind, named
from penstock.analyse.significance import sure_terms
from penstock.text import (
    cannot_exclude,
    difference,
    factor,
    listed,
    percent,
    percents,
    quantities,
    quantity,
    term_text,
    times,
)

#: what is added where no treatment has replicates
SINGLE_RUNS = "; with one run of each treatment, it cannot be said how sure this is"
#: named in a sentence at most
_MOST_NAMED = 3
#: ratios from here on are told as factors (`2.0 times`), below in per cent
_FACTOR = 1.995


@dataclass(frozen=True)
class Sentence:
    """What is said, the statistics behind it, and the rows that it rests on."""

    text: str
    detail: str = ""
    sure: bool = True
    evidence: dict[str, Any] = field(default_factory=dict)


def recommendation(outcome: Outcome) -> Sentence | None:
    """The treatment to choose by the first response; None where no run of it is valid.

    Asked which, of those tied with the best it is the one that another response decides for.
    """
    ranked = _main(outcome)
    if ranked is None:
        return None
    pick, decided = ranked.best, None
    if kind(outcome.question) == "which":
        pick, decided = _picked(outcome, ranked)
    evidence: dict[str, Any] = {
        "table": "means",
        "response": ranked.response.name,
        "treatment_id": pick.treatment_id,
    }
    rest = ranked.treatments[1:]
    if not rest:
        return _alone(ranked, evidence)
    tied = ranked.of("as-good", "undecided")
    evidence["as_good"] = [t.treatment_id for t in ranked.of("as-good")]
    evidence["undecided"] = [t.treatment_id for t in ranked.of("undecided")]
    detail = _interval(ranked, pick)
    if len(tied) == len(rest):
        text = _nothing(ranked, pick, decided)
        return Sentence(text, detail, not ranked.of("undecided"), evidence)
    after = next(t for t in rest if t not in tied)
    name, same = _shared(ranked, pick, tied)
    if decided is not None:
        name = _name(ranked, pick)
    text = f"{_opening(ranked, pick, name)} {_measured(ranked, pick)}{_beside(ranked, pick, after)}"
    if ranked.df < 1:
        return Sentence(f"{text}{SINGLE_RUNS}.", "", False, evidence)
    text += f"{same}.{_everywhere(ranked)}"
    whole = not _not_measured(ranked)
    return Sentence(text, f"{detail} {_told_apart(after)}".strip(), whole, evidence)


def _opening(ranked: Ranking, pick: Mean, name: str) -> str:
    """What to choose, up to its number: `Choose sata-ssd: load is`, `Best for load is sata-ssd:`."""
    outcome, response = ranked.outcome, ranked.response.name
    missing, made = _not_measured(ranked), len(ranked.treatments)
    of_those = ""
    if missing:
        of_those = (
            f", the best of the {made} treatments (of {made + missing}) that could be measured"
        )
    if kind(outcome.question) != "which":
        return f"Best for {response} is {name}{of_those.replace('the best ', '')}:"
    if _against(outcome, pick):
        return f"For {response} alone, choose {name}{of_those}:"
    return f"Choose {name}{of_those}: {response} is"


def _not_measured(ranked: Ranking) -> int:
    """How many of the planned treatments have no valid run."""
    planned = {str(row["treatment_id"]) for row in ranked.outcome.plan.get("rows") or []}
    return len(planned - {t.treatment_id for t in ranked.treatments})


def _alone(ranked: Ranking, evidence: dict[str, Any]) -> Sentence:
    """Where one treatment alone has a valid run: what was measured."""
    outcome, best = ranked.outcome, ranked.best
    others = [ranking(outcome, response) for response in outcome.responses]
    said = [f"{r.response.name} is {_measured(r, r.best)}" for r in others if r.treatments]
    detail = " ".join(_interval(r, r.best) for r in others if r.treatments).strip()
    text = f"Only {_name(ranked, best)} could be measured, so nothing could be compared: {listed(said)}."
    return Sentence(text, detail, False, evidence)


def conflicts(outcome: Outcome) -> list[Sentence]:
    """What the recommended treatment means for every other response, conflicts first."""
    ranked = _main(outcome)
    if ranked is None or len(ranked.treatments) < 2:
        return []
    pick, decided = _picked(outcome, ranked)
    against = _against(outcome, pick)
    said = [decided] if decided is not None else []
    said += [_speaks_against(other, mine) for other, mine in against]
    if against:
        said += _compromise(outcome, ranked)
    known = {other.response.name for other, _ in against}
    if decided is not None:
        known.add(str(decided.evidence["response"]))
    fine = _not_against(outcome, pick, known)
    if fine:
        text = f"{'; '.join(fine)}."
        text = text[:1].upper() + text[1:]
        said.append(Sentence(text, "", True, {"table": "means", "conflict": False}))
    return said


def _against(outcome: Outcome, pick: Mean) -> list[tuple[Ranking, Mean]]:
    """The other responses for which something else is better than `pick`, with its mean."""
    found = []
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        mine = other.mean(pick.treatment_id)
        if mine is not None and mine.verdict not in ("best", "as-good", "undecided"):
            found.append((other, mine))
    return found


def _speaks_against(other: Ranking, mine: Mean) -> Sentence:
    top, response = other.best, other.response.name
    text = (
        f"But {response} is {_measured(other, mine)} with it{_off(other, mine.behind)}: "
        f"{_measured(other, top)} with {_name(other, top)}."
    )
    evidence = {"table": "means", "response": response, "treatment_id": mine.treatment_id}
    return Sentence(text, f"{_interval(other, top)} {_told_apart(mine)}".strip(), True, evidence)


def _not_against(outcome: Outcome, pick: Mean, known: set[str]) -> list[str]:
    """Of the other responses that are not `known`: for which `pick` is best, and as good as any."""
    said: dict[str, list[str]] = {"it is the best, too": [], "nothing is shown to be better": []}
    best, equal = said
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        mine = other.mean(pick.treatment_id)
        if mine is not None and response.name not in known:
            said[best if mine.verdict == "best" else equal].append(
                f"{response.name} ({_measured(other, mine)})"
            )
    return [f"for {listed(names)} {what}" for what, names in said.items() if names]


def _picked(outcome: Outcome, ranked: Ranking) -> tuple[Mean, Sentence | None]:
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
                f"Of these, {_name(ranked, pick)} is better for {response.name}: {_measured(other, top)} "
                f"against {_measured(other, last)} with {_name(ranked, left)}."
            )
            evidence = {
                "table": "means",
                "response": response.name,
                "treatment_id": pick.treatment_id,
            }
            return pick, Sentence(text, _interval(other, top), True, evidence)
    return ranked.best, None


def _main(outcome: Outcome) -> Ranking | None:
    for response in outcome.responses[:1]:
        ranked = ranking(outcome, response)
        return ranked if ranked.treatments else None
    return None


def _name(ranked: Ranking, mean: Mean) -> str:
    return ranked.outcome.phrase(mean.levels, " + ") or str(mean.treatment_id)


def _measured(ranked: Ranking, mean: Mean) -> str:
    return quantity(mean.mean, ranked.response.unit)


def _beside(ranked: Ranking, pick: Mean, after: Mean) -> str:
    """How much better `pick` is than the next."""
    name = f"{_name(ranked, after)}: {_measured(ranked, after)}"
    higher = ranked.response.better == "higher"
    if not ranked.positive:
        if 0 in (pick.mean, after.mean):
            return f", against {_measured(ranked, after)} with the next ({_name(ranked, after)})"
        apart = quantity(abs(pick.mean - after.mean), ranked.response.unit)
        return f", {apart} {'more' if higher else 'less'} than the next ({name})"
    ratio, low, high = ranked.better(pick, after)
    if ratio < _FACTOR:
        return f", {_more_or_less(ranked, ratio, low, high)} than the next ({name})"
    if higher:
        return f", {factor(ratio)} times the next ({name})"
    return f"; with the next ({name}) it is {factor(ratio)} times as much"


def _more_or_less(
    ranked: Ranking, better: float, low: float = math.nan, high: float = math.nan
) -> str:
    """What is so many times better, as `12 % more` or `11 % less`, with the interval where there is one."""
    higher = ranked.response.better == "higher"
    value = better if higher else 1 / better
    sure = ""
    if math.isfinite(low):
        ends = (low - 1, high - 1) if higher else (1 - 1 / low, 1 - 1 / high)
        sure = f" (95 % interval: {percents(*ends)})"
    return f"{difference(value)}{sure} {'more' if value >= 1 else 'less'}"


def _off(other: Ranking, behind: float) -> str:
    """How far from the best that is: `, a factor of 6.0 above the best`."""
    return f", {_off_best(other, behind)} the best" if math.isfinite(behind) else ", not the best"


def _nothing(ranked: Ranking, pick: Mean, decided: Sentence | None) -> str:
    """Where no treatment is told from the best."""
    best, last, name = ranked.best, ranked.treatments[-1], ranked.response.name
    count, behind = len(ranked.treatments), max(t.behind_high for t in ranked.treatments[1:])
    if ranked.of("undecided"):
        lead = "None can be called the best"
        ends = (best, last) if ranked.response.better == "higher" else (last, best)
        high, low = (f"{_measured(ranked, t)} with {_name(ranked, t)}" for t in ends)
        said = f"the highest and the lowest {name}, {high} and {low}, "
        shown = sure_terms(ranked.outcome, name)
        if shown:
            which = listed([term_text(t) for t in shown[:_MOST_NAMED]])
            lead = "No single treatment can be called the best"
            said += (
                f"are not told apart{cannot_exclude(behind)}; what shows is the effect of {which}"
            )
        else:
            said += f"may differ by chance alone{cannot_exclude(behind)}"
    else:
        lead = "It makes no difference which is chosen"
        said = (
            f"{name} is the same with {'both' if count == 2 else f'all {count} treatments'}, within "
            f"{_within(behind)} ({_measured(ranked, best)} with {_name(ranked, best)})"
        )
    if decided is not None:
        lead = f"Choose {_name(ranked, pick)} for the sake of {decided.evidence['response']}"
    return f"{lead}: {said}."


def _shared(ranked: Ranking, pick: Mean, tied: list[Mean]) -> tuple[str, str]:
    """What to choose, in words, and what is said of those tied with it.

    What all of them have in common is chosen where it says enough: where they differ in one factor, or are
    all treatments that have it. Else `pick` is.
    """
    best, outcome = ranked.best, ranked.outcome
    if not tied:
        return _name(ranked, best), ""
    level = [best, *tied]
    same = {k: v for k, v in best.levels.items() if all(t.levels[k] == v for t in tied)}
    alike = [t for t in ranked.treatments if same.items() <= t.levels.items()]
    behind = max(t.behind_high for t in tied)
    if len(best.levels) - len(same) > 1 and (len(alike) > len(level) or not same):
        names = _listed([_name(ranked, t) for t in level if t is not pick])
        bound = ""
        if pick is best and math.isfinite(behind):
            bound = f" (at most {difference(_of_best(ranked, behind))} worse)"
        return _name(ranked, pick), f"; what may be as good: {names}{bound}"
    rest = [{k: v for k, v in t.levels.items() if k not in same} for t in level]
    words = [outcome.phrase(levels, " + ") for levels in rest]
    chosen = outcome.phrase(same, " + ")
    told = f"; {f'with {chosen}, ' * bool(chosen)}{_listed(words)} are"
    if not ranked.of("undecided"):
        return chosen or " or ".join(words), f"{told} equally good, within {_within(behind)}"
    told += " not told apart"
    if math.isfinite(behind):
        told += f" ({words[0]} may be up to {difference(1 / _of_best(ranked, behind))} better)"
    return chosen or " or ".join(words), told


def _within(behind: float) -> str:
    """How near to the best everything as good lies, at most so far behind."""
    return percent(max(behind - 1, 0.01) if math.isfinite(behind) else AS_GOOD)


def _of_best(ranked: Ranking, behind: float) -> float:
    """What lies so far behind, as a ratio to the best: below 1 where more is better."""
    return 1 / behind if ranked.response.better == "higher" else behind


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return listed([*names[:_MOST_NAMED], f"{more} more"] if more > 0 else names)


def _everywhere(ranked: Ranking) -> str:
    """Whether the best level of the factor in question is the best whatever the others are.

    Nothing where that is not told for every combination of the others.
    """
    outcome = ranked.outcome
    asked = [f for f in outcome.factors if named(f.name, outcome.question)]
    if len(asked) != 1 or len(outcome.factors) < 2:
        return ""
    name, mine = asked[0].name, ranked.best.levels[asked[0].name]
    combinations: dict[tuple[str, ...], list[Mean]] = {}
    for treatment in ranked.treatments:
        rest = tuple(v for k, v in treatment.levels.items() if k != name)
        combinations.setdefault(rest, []).append(treatment)
    winners = []
    for winner, *others in combinations.values():
        rival = (
            others if winner.levels[name] == mine else [t for t in others if t.levels[name] == mine]
        )
        if not rival or not ranked.apart(winner, rival[0]):
            return ""
        winners.append(winner)
    phrase = asked[0].phrase(mine)
    lost = [w for w in winners if w.levels[name] != mine]
    if not lost:
        remaining = [term_text(f.name) for f in outcome.factors if f.name != name]
        return f" Whatever the {remaining[0] if len(remaining) == 1 else 'other factors'}, {phrase} is best."
    where = outcome.phrase({k: v for k, v in lost[0].levels.items() if k != name})
    return (
        f" {phrase} is best in {len(winners) - len(lost)} of {len(winners)} combinations of the rest; "
        f"with {where} {asked[0].phrase(lost[0].levels[name])} is."
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
        f"{r.response.name} {_off_best(r, loss)}"
        for r, loss in zip(all_of, losses[nearest], strict=True)
    ]
    text = (
        f"If all responses count alike, {_name(ranked, mean)} is nearest to the best of each: "
        f"{listed(parts)}."
    )
    return [
        Sentence(
            text,
            "Euclidean distance of the logarithms of the ratios to each response's best.",
            True,
            {"table": "means", "treatment_id": nearest},
        )
    ]


def _off_best(ranked: Ranking, behind: float) -> str:
    """How far what lies so far behind is from the best: `14 % below`, `a factor of 6.0 above`."""
    if behind < 1.005:
        return "at its best"
    size = (
        f"a factor of {factor(behind)}"
        if behind >= _FACTOR
        else difference(_of_best(ranked, behind))
    )
    return f"{size} {'below' if ranked.response.better == 'higher' else 'above'}"


def _interval(ranked: Ranking, mean: Mean) -> str:
    if not math.isfinite(mean.low):
        return ""
    unit = ranked.response.unit
    return (
        f"95 % interval of {ranked.response.name} with {_name(ranked, mean)}: "
        f"{quantities([mean.low, mean.high], unit)} ({mean.n} run{'s' * (mean.n != 1)})."
    )


def _told_apart(mean: Mean) -> str:
    if not math.isfinite(mean.behind_low):
        return ""
    return (
        f"The ratio to the best is {times(mean.behind)}, {times(mean.behind_low)} to "
        f"{times(mean.behind_high)} ({CONFIDENCE:.0%} for all treatments together)."
    ).replace("%", " %")
