"""The recommendation of a measured study: the best treatment, its lead, its ties, and its cost.

The first response of the study decides; the others give the cost. Verdicts are those of the table `means`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.analyse.findings.estimability import size_sentence
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.lost_runs import repeat
from penstock.analyse.findings.question import is_screening, kind, named, named_levels
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.significance import sure_terms, terms_of
from penstock.analyse.treatments.means import AS_GOOD, CONFIDENCE, Mean, Ranking, ranking
from penstock.text import (
    concise,
    counted,
    difference,
    estimate,
    factor,
    first_of,
    listed,
    percent,
    percentage,
    percents,
    quantity,
    span,
    term_text,
    times,
    up_to,
)

#: next step after single runs
REPEAT = "`penstock run STUDY -o OUT --augment replicates:1` repeats each treatment."
#: relative differences that recommended replicates may resolve, the preferred one first
_RESOLVED = (0.10, 0.20, 0.50, 0.05, 0.02)
#: number of recommended replicates from which a larger difference is stated as well
_MANY_REPLICATES = 20
#: maximum number of recommended replicates
_MOST_REPLICATES = 1000
#: maximum number of treatments named in a sentence
_MOST_NAMED = 3
#: ratios from this value on are written as factors (`2.0×`), smaller ones in percent
_FACTOR = 1.995


def best(outcome: Outcome) -> Iterator[Finding]:
    """The treatment to choose by the first response, its ties, and its cost in the other responses.

    For a question *which*, ties are broken by the next response that can. Nothing without a valid run, and
    nothing for a screening, which chooses factors.
    """
    ranked = _main(outcome)
    if ranked is None or (is_screening(outcome) and terms_of(outcome, ranked.response.name)):
        return
    if len(ranked.treatments) < 2:
        yield _alone(ranked)
        return
    pick, decided = ranked.best, None
    if kind(outcome.question) == "which":
        pick, decided = _picked(outcome, ranked)
    if decided is None:
        pick = _confirmed(ranked) or pick
    yield _recommendation(ranked, pick, decided)
    yield from _ties(ranked, pick, decided)
    if decided is not None:
        yield decided
    yield from _conflicts(outcome, ranked, decided)


def _recommendation(ranked: Ranking, pick: Mean, decided: Finding | None) -> Finding:
    outcome, name = ranked.outcome, ranked.response.name
    undecided = ranked.of("undecided")
    evidence: dict[str, Any] = {
        "table": "means",
        "response": name,
        "treatment_id": pick.treatment_id,
        "as_good": [t.treatment_id for t in ranked.of("as-good")],
        "undecided": [t.treatment_id for t in undecided],
    }
    detail = [_interval(ranked, pick)]
    tied = ranked.of("as-good", "undecided")
    worse = [t for t in ranked.treatments[1:] if t not in tied]
    confidence = "likely" if ranked.degraded else "clear"
    if not worse:
        confidence = "open" if undecided else confidence
        text = _nothing(ranked, pick, decided)
    elif ranked.df < 1:
        confidence, text = "open", _single_runs(ranked, pick, worse[0])
    elif decided is not None:
        confidence = "likely" if undecided else confidence
        text = _decided(ranked, pick, decided)
    elif tied and not _tied(ranked, pick)[1]:
        confidence = "likely" if undecided else confidence
        text = _among_equals(ranked, pick)
    else:
        after = worse[0] if tied else _alternative(ranked, pick)
        text = _choice(ranked, pick, after)
        detail += [_ratio_to_best(after), _everywhere(ranked).strip()]
    advice = "" if confidence != "open" else REPEAT if ranked.df < 1 else more_runs(ranked)
    if missing := _not_measured(ranked):
        advice = repeat(outcome, missing)
    severity = "info" if not advice else "warning"
    detail.append(size_sentence(outcome).strip())
    return Finding(
        "recommendation",
        severity,
        text,
        evidence,
        advice,
        " ".join(filter(None, detail)),
        confidence,
    )


def more_runs(ranked: Ranking) -> str:
    """The next step if differences are undecided: the number of replicates that would resolve 10 %.

    If these are many, also that for a larger difference. Assumes intervals that shrink with the square
    root of the number of runs.
    """
    needs = {share: _replicates(ranked, share) for share in _RESOLVED}
    fits = {share: add for share, add in needs.items() if 1 <= add <= _MOST_REPLICATES}
    if not fits:
        return "more replicates: `penstock run STUDY -o OUT --augment replicates:1`."
    first, add = next(iter(fits.items()))
    larger = [share for share in fits if share > first and fits[share] <= _MANY_REPLICATES]
    also = ""
    if add > _MANY_REPLICATES and larger:
        also = f"; one of {percentage(first)} needs {_runs(ranked, add)}"
        first, add = larger[0], fits[larger[0]]
    return (
        f"{_runs(ranked, add)} would resolve a difference of {percentage(first)}{also}: "
        f"`penstock run STUDY -o OUT --augment replicates:{add}`."
    )


def _replicates(ranked: Ranking, share: float) -> int:
    """The additional replicates that resolve a relative difference; 0 if none, or not known."""
    top, last = (str(t.treatment_id) for t in (ranked.best, ranked.treatments[-1]))
    half = ranked.differences.half(top, last)
    resolved = math.log1p(share) if ranked.positive else share * abs(ranked.best.mean)
    each = min(t.n for t in ranked.treatments)
    if not (math.isfinite(half) and resolved):
        return 0
    return max(0, math.ceil(each * ((half / resolved) ** 2 - 1)))


def _runs(ranked: Ranking, replicates: int) -> str:
    """Text of a number of replicates of all treatments: `27 more runs (about 5 min)`."""
    runs = replicates * len(ranked.treatments)
    time = f" (about {_minutes(ranked.outcome, runs)})" if _run_s(ranked.outcome) else ""
    return f"{runs:,} more runs{time}"


def _run_s(outcome: Outcome) -> float:
    """Mean time of a run including its overhead [s]; 0 without a record."""
    all_times = [outcome.manifest(run).get("times") or {} for run in outcome.run_ids]
    taken = [float(t.get("wall_s") or 0) + float(t.get("own_s") or 0) for t in all_times]
    return sum(taken) / len(taken) if taken else 0.0


def _minutes(outcome: Outcome, runs: int) -> str:
    seconds = runs * _run_s(outcome)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def _choice(ranked: Ranking, pick: Mean, after: Mean) -> str:
    """The best treatment, its mean and its lead over another one."""
    opening = _opening(ranked, pick, _shared(ranked, pick))
    value = _measured(ranked, pick)
    name, short = f"the next best, {_name(ranked, after)}", "the next best"
    if after is not ranked.treatments[1]:  # others have a mean between the two
        name = short = _name(ranked, after)
    return concise(
        f"{opening} {_estimate(ranked, pick)}{_beside(ranked, pick, after, name)}.",
        f"{opening} {value}{_beside(ranked, pick, after, name)}.",
        f"{opening} {value}{_beside(ranked, pick, after, short)}.",
    )


def _opening(ranked: Ranking, pick: Mean, name: str) -> str:
    """The choice before its value: `Choose wal: load is`."""
    outcome, response = ranked.outcome, ranked.response
    missing, measured = len(_not_measured(ranked)), len(ranked.treatments)
    of_those = f" (best of the {measured} of {measured + missing} treatments with a valid run)"
    name += of_those if missing else ""
    if kind(outcome.question) != "which":
        return f"{name}: {response.name} is"
    if _against(outcome, pick):
        return f"For {response.name} alone, choose {name}:"
    return f"Choose {name}: {response.name} is"


def _alternative(ranked: Ranking, pick: Mean) -> Mean:
    """The best other treatment; of a question which, that differs only in the factors that it names."""
    question = ranked.outcome.question
    if kind(question) != "which":
        return ranked.treatments[1]
    fixed = [
        f.name
        for f in ranked.outcome.factors
        if not named(f.name, question) and not named_levels(f.levels, question)
    ]
    others = ranked.treatments[1:]
    alike = [t for t in others if all(t.levels[n] == pick.levels[n] for n in fixed)]
    return alike[0] if alike else others[0]


def _among_equals(ranked: Ranking, pick: Mean) -> str:
    """The best of several treatments that are equal, or not shown to differ."""
    most = "highest" if ranked.response.better == "higher" else "lowest"
    open_, equal = ranked.of("undecided"), ranked.of("as-good")
    if open_:
        count = len(open_) + len(equal)
        beside = f"{counted(count, 'other')} cannot be distinguished from it"
    else:
        are = "is" if len(equal) == 1 else "are"
        within = _within(max(t.behind_high for t in equal))
        beside = f"{counted(len(equal), 'other')} {are} as good (within {within})"
    opening = _opening(ranked, pick, _name(ranked, pick))
    return concise(
        f"{opening} {_estimate(ranked, pick)}, the {most}; {beside}.",
        f"{opening} {_measured(ranked, pick)}, the {most}; {beside}.",
    )


def _decided(ranked: Ranking, pick: Mean, decided: Finding) -> str:
    """A treatment that equals the best, or may, and is better by another response."""
    other = _of_response(ranked, str(decided.evidence["response"]))
    top, last = (other.mean(str(decided.evidence[key])) for key in ("treatment_id", "instead"))
    tied = [ranked.best, *ranked.of("as-good", "undecided")]
    levels = {} if last is None else last.levels
    different = {k: v for k, v in levels.items() if v != pick.levels[k]}
    rival = ranked.outcome.phrase(different, " + ")
    same = (
        "the same as with" if not ranked.of("undecided") else "not shown to differ from that with"
    )
    within = _within(max(t.behind_high for t in tied[1:]))
    equal = (
        f"{same} {rival if len(tied) == 2 else counted(len(tied) - 1, 'other')} (within {within})"
    )
    opening = _opening(ranked, pick, _name(ranked, pick))
    better = ""
    if top is not None and last is not None:
        beside = _beside(other, top, last, rival)
        better = f"; {other.response.name} is {_measured(other, top)}{beside}"
    return concise(
        f"{opening} {_estimate(ranked, pick)}, {equal}{better}.",
        f"{opening} {_measured(ranked, pick)}, {equal}{better}.",
        f"{opening} {_measured(ranked, pick)}, {equal}.",
        f"{opening} {_measured(ranked, pick)}.",
    )


def _of_response(ranked: Ranking, name: str) -> Ranking:
    """The ranking of another response."""
    outcome = ranked.outcome
    return ranking(outcome, next(r for r in outcome.responses if r.name == name))


def _single_runs(ranked: Ranking, pick: Mean, after: Mean) -> str:
    """The best of treatments with one run each, which have no interval."""
    most = "highest" if ranked.response.better == "higher" else "lowest"
    name = ranked.response.name
    lead = "Open: one run of each treatment gives no interval; "
    if kind(ranked.outcome.question) != "which":
        lead = ""
    value = f"{lead}{name} was {most} with {_name(ranked, pick)} ({_measured(ranked, pick)})"
    value = value if lead else value[:1].upper() + value[1:]
    name = f"the next best, {_name(ranked, after)}"
    return concise(f"{value}{_beside(ranked, pick, after, name)}.", f"{value}.")


def _not_measured(ranked: Ranking) -> list[str]:
    """The planned treatments without a valid run."""
    planned = dict.fromkeys(str(r["treatment_id"]) for r in ranked.outcome.plan.get("rows") or [])
    return [t for t in planned if ranked.mean(t) is None]


def _alone(ranked: Ranking) -> Finding:
    """The only treatment with a valid run."""
    outcome, pick = ranked.outcome, ranked.best
    others = [ranking(outcome, response) for response in outcome.responses]
    values = [f"{r.response.name} is {_measured(r, r.best)}" for r in others if r.treatments]
    detail = " ".join(_interval(r, r.best) for r in others if r.treatments).strip()
    text = (
        f"Open: only {_name(ranked, pick)} was measured; nothing can be compared: {listed(values)}."
    )
    evidence = {
        "table": "means",
        "response": ranked.response.name,
        "treatment_id": pick.treatment_id,
    }
    advice = repeat(outcome, _not_measured(ranked))
    return Finding("recommendation", "warning", text, evidence, advice, detail, "open")


def _conflicts(outcome: Outcome, ranked: Ranking, decided: Finding | None) -> Iterator[Finding]:
    """The recommended treatment by every other response, conflicts first."""
    pick, _ = _picked(outcome, ranked)
    against = _against(outcome, pick)
    for number, (other, mean) in enumerate(against):
        # one label has them all
        yield _speaks_against(other, mean, f"with {_name(ranked, pick)}, " * (number == 0))
    if against:
        yield from _compromise(outcome, ranked)
    seen = {other.response.name for other, _ in against}
    if decided is not None:
        seen.add(str(decided.evidence["response"]))
    fine = _not_against(outcome, pick, seen)
    if fine:
        evidence = {"table": "means", "conflict": False}
        # after a compromise, which is another treatment
        of_pick = f"with {_name(ranked, pick)}, " * bool(against)
        yield Finding("responses-agree", "info", f"{of_pick}{'; '.join(fine)}.", evidence)


def _against(outcome: Outcome, pick: Mean) -> list[tuple[Ranking, Mean]]:
    """The other responses for which a treatment is better than `pick`, with the mean of `pick`."""
    conflicts = []
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        mean = other.mean(pick.treatment_id)
        if mean is not None and mean.verdict not in ("best", "as-good", "undecided"):
            conflicts.append((other, mean))
    return conflicts


def _speaks_against(other: Ranking, mean: Mean, where: str) -> Finding:
    top, response = other.best, other.response.name
    text = (
        f"{where}{response} is {_measured(other, mean)}{_off(other, mean.behind)} "
        f"({_measured(other, top)} with {_name(other, top)})."
    )
    evidence = {"table": "means", "response": response, "treatment_id": mean.treatment_id}
    detail = f"{_interval(other, top)} {_ratio_to_best(mean)}".strip()
    return Finding("responses-conflict", "info", text, evidence, "", detail)


def _not_against(outcome: Outcome, pick: Mean, seen: set[str]) -> list[str]:
    """The other responses except `seen` for which `pick` is best or ties with the best."""
    texts: dict[str, list[str]] = {"also best for": [], "nothing is shown to be better for": []}
    of_best, of_equal = texts.values()
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        mean = other.mean(pick.treatment_id)
        if mean is not None and response.name not in seen:
            names = of_best if mean.verdict == "best" else of_equal
            names.append(f"{response.name} ({_measured(other, mean)})")
    return [f"{what} {listed(names)}" for what, names in texts.items() if names]


def _picked(outcome: Outcome, ranked: Ranking) -> tuple[Mean, Finding | None]:
    """The best treatment, or the tied one that another response prefers."""
    tied = [ranked.best, *ranked.of("as-good", "undecided")]
    for response in outcome.responses[1:]:
        other = ranking(outcome, response)
        means = [(other.mean(t.treatment_id), t) for t in tied]
        measured = [(m, t) for m, t in means if m is not None]
        if len(measured) < 2:
            continue
        measured.sort(key=lambda pair: other.treatments.index(pair[0]))
        (top, pick), (last, rival) = measured[0], measured[-1]
        if other.apart(top, last):
            equal = "cannot be distinguished" if ranked.of("undecided") else "are equal"
            text = (
                f"of the {len(tied)} that {equal}, {_name(ranked, pick)} is better for {response.name}: "
                f"{_measured(other, top)} against {_measured(other, last)} with {_name(ranked, rival)}."
            )
            evidence = {
                "table": "means",
                "response": response.name,
                "treatment_id": pick.treatment_id,
                "instead": rival.treatment_id,
            }
            return pick, Finding("tie-decided", "info", text, evidence, "", _interval(other, top))
    return ranked.best, None


def _confirmed(ranked: Ranking) -> Mean | None:
    """The treatment of which a confirmation made new runs, if it may be the best: its mean was not chosen."""
    stages = ranked.outcome.plan.get("stages") or []
    chosen = [s["treatments"][0] for s in stages if s["purpose"] == "confirm"]
    tied = [ranked.best, *ranked.of("as-good", "undecided")]
    return next((t for t in tied if t.levels in chosen), None)


def _main(outcome: Outcome) -> Ranking | None:
    for response in outcome.responses[:1]:
        ranked = ranking(outcome, response)
        return ranked if ranked.treatments else None
    return None


def _name(ranked: Ranking, mean: Mean) -> str:
    return ranked.outcome.phrase(mean.levels, " + ") or str(mean.treatment_id)


def _measured(ranked: Ranking, mean: Mean) -> str:
    return quantity(mean.mean, ranked.response.unit)


def _estimate(ranked: Ranking, mean: Mean) -> str:
    return estimate(mean.mean, mean.low, mean.high, ranked.response.unit)


def _beside(ranked: Ranking, pick: Mean, after: Mean, name: str) -> str:
    """The gain of `pick` over another treatment: `, 3.2× (3.0–3.4) that of the next best, network-volume`."""
    higher = ranked.response.better == "higher"
    if not ranked.positive:
        if 0 in (pick.mean, after.mean):
            return f", against {_measured(ranked, after)} with {name}"
        apart = quantity(abs(pick.mean - after.mean), ranked.response.unit)
        return f", {apart} {'more' if higher else 'less'} than with {name}"
    ratio, low, high = ranked.better(pick, after)
    if ratio < _FACTOR:
        return f", {_more_or_less(ranked, ratio, low, high)} than with {name}"
    ends = f" ({span(factor(low), factor(high))})" if math.isfinite(low) and ranked.df else ""
    if higher:
        return f", {times(ratio)}{ends} that of {name}"
    return f"; with {name}{',' * (', ' in name)} it is {times(ratio)}{ends} as much"


def _more_or_less(ranked: Ranking, better: float, low: float, high: float) -> str:
    """A ratio as `12 % (9–15 %) more` or `11 % less`."""
    higher = ranked.response.better == "higher"
    value = better if higher else 1 / better
    ends = ""
    if math.isfinite(low) and ranked.df:
        shares = (low - 1, high - 1) if higher else (1 - 1 / low, 1 - 1 / high)
        ends = f" ({percents(*shares)})"
    return f"{difference(value)}{ends} {'more' if value >= 1 else 'less'}"


def _off(other: Ranking, behind: float) -> str:
    """Distance from the best: `, 6.0× the lowest`, `, 14 % below the highest`."""
    if not math.isfinite(behind):
        return ", not the best"
    most = "highest" if other.response.better == "higher" else "lowest"
    if behind >= _FACTOR and most == "lowest":
        return f", {times(behind)} the lowest"
    return f", {_off_best(other, behind)} the {most}"


def _nothing(ranked: Ranking, pick: Mean, decided: Finding | None) -> str:
    """Text for a response in which no treatment differs from the best."""
    top, last, name = ranked.best, ranked.treatments[-1], ranked.response.name
    count, behind = len(ranked.treatments), max(t.behind_high for t in ranked.treatments[1:])
    if not ranked.of("undecided"):
        same = f"{name} is the same with {'both' if count == 2 else f'all {count} treatments'}"
        within = f"within {_within(behind)}"
        if decided is not None:
            chosen, other = _name(ranked, pick), decided.evidence["response"]
            return f"Choose {chosen} for its {other}: {same} ({within})."
        value = f"{_measured(ranked, top)} with {_name(ranked, top)}"
        return f"It makes no difference which is chosen: {same}, {within} ({value})."
    if decided is not None:
        lead = f"Choose {_name(ranked, pick)} for its {decided.evidence['response']}"
    else:
        lead = "Open: no treatment is shown to be the best"
    ends = (last, top) if ranked.response.better == "higher" else (top, last)
    values = " to ".join(f"{_measured(ranked, t)} ({_name(ranked, t)})" for t in ends)
    bound = f", and differences of {up_to(behind)} are possible" if math.isfinite(behind) else ""
    shown = sure_terms(ranked.outcome, name)
    if shown:
        which = listed([term_text(t) for t in shown[:_MOST_NAMED]])
        return concise(
            f"{lead}: {name} is {values}{bound}. Only {which} has a clear effect.",
            f"{lead}: {name} is {values}. Only {which} has a clear effect.",
            f"{lead}; only {which} has a clear effect on {name}.",
        )
    return concise(
        f"{lead}: {name} is {values}{bound}.",
        f"{lead}: {name} is {values}.",
        f"{lead}: differences in {name} of {up_to(behind)} are possible.",
    )


def _tied(ranked: Ranking, pick: Mean) -> tuple[dict[str, str], bool]:
    """The levels shared by the treatments tied with the best; True if these suffice for a choice.

    They suffice if the tied treatments differ in one factor only, or are all treatments with these levels.
    """
    tied = [ranked.best, *ranked.of("as-good", "undecided")]
    levels = ranked.best.levels
    same = {k: v for k, v in levels.items() if all(t.levels[k] == v for t in tied)}
    alike = [t for t in ranked.treatments if same.items() <= t.levels.items()]
    several = len(levels) - len(same) > 1 and (len(alike) > len(tied) or not same)
    return same, not several


def _shared(ranked: Ranking, pick: Mean) -> str:
    """The choice: the levels that all tied treatments share, if these suffice; else `pick`."""
    tied = [ranked.best, *ranked.of("as-good", "undecided")]
    same, enough = _tied(ranked, pick)
    if len(tied) == 1 or not enough:
        return _name(ranked, pick)
    chosen = ranked.outcome.phrase(same, " + ")
    return chosen or " or ".join(_rest(ranked, tied, same))


def _rest(ranked: Ranking, tied: list[Mean], same: dict[str, str]) -> list[str]:
    """The levels in which tied treatments differ, as phrases."""
    rest = [{k: v for k, v in t.levels.items() if k not in same} for t in tied]
    return [ranked.outcome.phrase(levels, " + ") for levels in rest]


def _ties(ranked: Ranking, pick: Mean, decided: Finding | None) -> Iterator[Finding]:
    """The treatments that equal the best, or without a significant difference from it."""
    tied = ranked.of("as-good", "undecided")
    if not tied or len(tied) == len(ranked.treatments) - 1:
        return
    behind = max(t.behind_high for t in tied)
    open_ = bool(ranked.of("undecided"))
    code = "tie-open" if open_ else "tie"
    evidence = {"table": "means", "treatment_id": [t.treatment_id for t in tied]}
    same, enough = _tied(ranked, pick)
    if not enough:
        names = listed(
            first_of([_name(ranked, t) for t in [ranked.best, *tied] if t is not pick], _MOST_NAMED)
        )
        bound = ""
        if pick is ranked.best and math.isfinite(behind):
            bound = f" (at most {difference(_of_best(ranked, behind))} worse)"
        text = f"{names} may be as good as {_name(ranked, pick)}{bound}."
        yield Finding("tie-open", "info", text, evidence)
        return
    names_rest = _rest(ranked, [ranked.best, *tied], same)
    rest = listed(first_of(names_rest, _MOST_NAMED))
    chosen = ranked.outcome.phrase(same, " + ")
    lead = f"with {chosen}, " if chosen else ""
    if not open_:
        text = f"{lead}{rest} are equally good (within {_within(behind)})."
        yield Finding(code, "info", text, evidence)
        return
    bound = ""
    if math.isfinite(behind):
        worse = difference(1 / _of_best(ranked, behind))
        bound = f" ({names_rest[0]} may be up to {worse} better)"
    text = f"{lead}{rest} cannot be distinguished{bound}."
    yield Finding(code, "info", text, evidence)


def _within(behind: float) -> str:
    """The largest difference between tied treatments."""
    return percent(max(behind - 1, 0.01) if math.isfinite(behind) else AS_GOOD)


def _of_best(ranked: Ranking, behind: float) -> float:
    """Distance from the best as a ratio to it: below 1 if more is better."""
    return 1 / behind if ranked.response.better == "higher" else behind


def _everywhere(ranked: Ranking) -> str:
    """A sentence if the best level of the factor in question is best in every combination of the others,
    or in most; empty if any combination is undecided."""
    outcome = ranked.outcome
    in_question = [f for f in outcome.factors if named(f.name, outcome.question)]
    if len(in_question) != 1 or len(outcome.factors) < 2:
        return ""
    name, level = in_question[0].name, ranked.best.levels[in_question[0].name]
    combinations: dict[tuple[str, ...], list[Mean]] = {}
    for treatment in ranked.treatments:
        rest = tuple(v for k, v in treatment.levels.items() if k != name)
        combinations.setdefault(rest, []).append(treatment)
    winners = []
    for winner, *others in combinations.values():
        rival = (
            others
            if winner.levels[name] == level
            else [t for t in others if t.levels[name] == level]
        )
        if not rival or not ranked.apart(winner, rival[0]):
            return ""
        winners.append(winner)
    phrase = in_question[0].phrase(level)
    lost = [w for w in winners if w.levels[name] != level]
    if not lost:
        remaining = [term_text(f.name) for f in outcome.factors if f.name != name]
        return f" Whatever the {remaining[0] if len(remaining) == 1 else 'other factors'}, {phrase} is best."
    where = outcome.phrase({k: v for k, v in lost[0].levels.items() if k != name})
    return (
        f" {phrase} is best in {len(winners) - len(lost)} of {len(winners)} combinations of the rest; "
        f"with {where} {in_question[0].phrase(lost[0].levels[name])} is."
    )


def _compromise(outcome: Outcome, ranked: Ranking) -> Iterator[Finding]:
    """The treatment nearest to the best of every response at once, in logarithms of the ratios."""
    all_of = [ranking(outcome, r) for r in outcome.responses]
    if not all(r.positive for r in all_of) or len(ranked.treatments) < 3:
        return
    losses: dict[str, list[float]] = {}
    for treatment in ranked.treatments:
        means = [r.mean(treatment.treatment_id) for r in all_of]
        if all(m is not None for m in means):
            losses[str(treatment.treatment_id)] = [m.behind for m in means if m is not None]
    if not losses:
        return
    nearest = min(losses, key=lambda t: float(np.linalg.norm(np.log(losses[t]))))
    mean = ranked.mean(nearest)
    if mean is None:
        return
    parts = [
        f"{r.response.name} {_off_best(r, loss)}"
        for r, loss in zip(all_of, losses[nearest], strict=True)
    ]
    yield Finding(
        "compromise",
        "info",
        f"{_name(ranked, mean)}, if all responses count alike: {listed(parts)} its best.",
        {"table": "means", "treatment_id": nearest},
        "",
        "Euclidean distance of the logarithms of the ratios to each response's best.",
    )


def _off_best(ranked: Ranking, behind: float) -> str:
    """Distance from the best: `14 % below`, `a factor of 6.0 above`."""
    if behind < 1.005:
        return "at"
    size = (
        f"a factor of {factor(behind)}"
        if behind >= _FACTOR
        else difference(_of_best(ranked, behind))
    )
    return f"{size} {'below' if ranked.response.better == 'higher' else 'above'}"


def _interval(ranked: Ranking, mean: Mean) -> str:
    if not math.isfinite(mean.low):
        return ""
    value = estimate(mean.mean, mean.low, mean.high, ranked.response.unit)
    return (
        f"{ranked.response.name} with {_name(ranked, mean)}: {value}, 95 % interval of "
        f"{mean.n} run{'s' * (mean.n != 1)}."
    )


def _ratio_to_best(mean: Mean) -> str:
    if not math.isfinite(mean.behind_low):
        return ""
    return (
        f"The ratio to the best is {times(mean.behind)}, {times(mean.behind_low)} to "
        f"{times(mean.behind_high)} ({percentage(CONFIDENCE)} for all treatments together)."
    )
