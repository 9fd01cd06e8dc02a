"""The recommendation: one sentence with numbers and their intervals, or the reason why there is none.

Rules:
- With an objective the best admissible configuration is recommended; without one the knee of the Pareto
  front: the configuration nearest to the best time, cost and energy together, in logarithms of the ratios.
- Configurations within 1 % of it on the same seeds are a tie, and named. If one may be better by more than
  that after all seeds, the choice is undecided, and up to three are named to be run.
- If assumptions on the platform are sampled within their ranges and the recommended configuration loses more
  than 5 % in more than one draw of ten, the choice is undecided as well.
- With predictions calibrated by measured runs, configurations with overlapping calibrated intervals remain
  undecided; if the intervals are too wide to be useful, there is no recommendation.
- If the model does not apply (`outside`), there is no recommendation, only the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.analyse.statistics.prediction_intervals import width_message
from penstock.parts.prediction import quantities
from penstock.parts.prediction.exploration.calibrated import Calibration, Overlap
from penstock.parts.prediction.exploration.compare import INDIFFERENCE, ratio_interval
from penstock.parts.prediction.exploration.describe import describe
from penstock.parts.prediction.exploration.record import candidate_id
from penstock.parts.prediction.exploration.robust import ENOUGH, TOLERATED
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.exploration.score import METRICS
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.text import listed

RULE = (
    "the configuration nearest to the best time, cost and energy at once (Euclidean distance of the "
    "logarithms of the ratios)"
)
#: a label of `penstock.analyse.findings.answer` and a sentence
Point = tuple[str, str]
#: runs to request if the simulation is not conclusive
_RUNS = 3


@dataclass(frozen=True)
class Ratio:
    """Ratio of one metric of two configurations, with the interval over common seeds."""

    metric: str
    ratio: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """`3 % slower`, `40 % cheaper`, `2.1 times as long`."""
        return _times(self.metric, self.ratio)

    @property
    def sure(self) -> str:
        """`2.1 to 3.9 % slower`: the interval."""
        if self.high == self.low:
            return f"exactly {self.text}"
        ends = sorted((self.low, self.high), key=lambda r: abs(np.log(r)) if r > 0 else np.inf)
        ends_text = [_times(self.metric, r) for r in ends]
        if ends_text[0] == ends_text[1]:
            return ends_text[0]
        shares = [t.partition(" % ") for t in ends_text]
        if all(unit and rest == shares[0][2] for _, unit, rest in shares):
            return f"{shares[0][0]} to {ends_text[1]}"
        return f"{ends_text[0]} to {ends_text[1]}"


#: comparatives of each metric: more, less, and twice or more
_WORDS = {
    "makespan_s": ("slower", "less time", "as long"),
    "cost": ("dearer", "cheaper", "as dear"),
    "energy_j": ("more energy", "less energy", "the energy"),
}


@dataclass(frozen=True)
class Recommendation:
    """The recommendation. `state`: `decided`, `undecided`, `none`; `text` is the sentence.

    `candidate` is the recommended one (None unless decided), `run` those to run if undecided, for the reason
    `why`, `points` labels and sentences of the rest, `ratios` the numbers of the sentence.
    """

    state: str
    text: str
    candidate: Candidate | None = None
    run: tuple[Candidate, ...] = ()
    points: tuple[Point, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    beside: Candidate | None = None
    rule: str = ""
    why: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """The sentences of the points."""
        return [text for _, text in self.points]

    def to_dict(self, exploration: Exploration) -> dict[str, Any]:
        """As in `penstock/exploration/1`."""

        def named(c: Candidate) -> dict[str, Any]:
            return {
                "candidate_id": candidate_id(exploration.space, c),
                **exploration.space.labels(c),
            }

        return {
            "state": self.state,
            "text": self.text,
            "rule": self.rule,
            "configuration": None if self.candidate is None else named(self.candidate),
            "run": [named(c) for c in self.run],
            "beside": None if self.beside is None else named(self.beside),
            "ratios": [vars(r) | {"words": r.text} for r in self.ratios],
            "ties": [named(c) for c in exploration.ties],
            "notes": self.notes,
        }


def recommend(exploration: Exploration) -> Recommendation:
    """The recommendation of an exploration."""
    if exploration.stopped:
        return Recommendation(
            "none", "No recommendation: the exploration was stopped before its end."
        )
    if exploration.selection is None:
        return Recommendation("none", _nothing(exploration))
    judgement = exploration.judgement or {}
    best = exploration.selection.best.candidate
    name = describe(exploration.space, best)
    if judgement.get("verdict") == "outside":
        reasons = "; ".join(judgement.get("reasons", [])) or "outside what it was checked for"
        text = f"No recommendation: the model does not apply to the best found ({name}): {reasons}."
        return Recommendation("none", text)
    calibration = exploration.calibration
    if calibration is not None and calibration.verdict == "outside":
        text = f"No recommendation: {calibration.message}: {width_message(calibration.half_width or 0.0)}."
        return Recommendation("none", text)
    notes = _notes(exploration)
    if (
        calibration is not None
        and exploration.overlap is not None
        and exploration.overlap.candidates
    ):
        return _overlapping(exploration, calibration, exploration.overlap, best, notes)
    rivals = exploration.selection.of("undecided")
    if rivals:
        return _undecided(exploration, [best, *(r.candidate for r in rivals)], notes)
    robust = exploration.robust
    if robust is not None and robust.share_good(best) < ENOUGH:
        others = [c for c in robust.winners() if c != best]
        good = round(robust.share_good(best) * robust.draws)
        why = (
            f"with uncertain values sampled within their ranges, {name} stays within "
            f"{_integer_percent(TOLERATED)} of the best in {good} of {robust.draws} draws only"
        )
        return _undecided(exploration, [best, *others], notes, why)
    if exploration.question.objective is None:
        return _knee(exploration, best, notes)
    return _best(exploration, best, notes)


def _nothing(exploration: Exploration) -> str:
    if not exploration.record.measures and not exploration.broken:
        return "No recommendation: no combination of these levels can be built."
    if exploration.failed and not exploration.broken:
        return f"No recommendation: no configuration finished ({next(iter(exploration.failed))})."
    return "No recommendation: no configuration meets the constraints."


def _undecided(
    exploration: Exploration, candidates: list[Candidate], notes: list[Point], why: str = ""
) -> Recommendation:
    run = tuple(candidates[:_RUNS])
    named = [describe(exploration.space, c) for c in run]
    seeds = exploration.selection.seeds if exploration.selection is not None else 0
    if not why:
        tied = "these two" if len(candidates) == 2 else f"the {len(candidates)} best"
        why = f"{tied} tie, their intervals overlap after {seeds} seeds"
    text = f"Undecided ({why}): run these {len(run)}: {'; '.join(named)}."
    selection = exploration.selection
    rivals = [] if selection is None else selection.of("undecided")
    most = max((-r.low for r in rivals), default=0.0)
    if rivals and np.isfinite(most):
        of = (
            ""
            if exploration.question.objective is not None
            else f" ({_metrics(exploration, 'and')} together)"
        )
        loses = f"The first of them loses at most {_share(most)}{of} against any of those compared."
        notes = [("Unknown", loses), *notes]
    return Recommendation(
        "undecided", text, None, run, tuple(notes), rule=_rule(exploration), why=why
    )


def _overlapping(
    exploration: Exploration,
    calibration: Calibration,
    overlap: Overlap,
    best: Candidate,
    notes: list[Point],
) -> Recommendation:
    """Configurations to run because measured prediction errors exceed their differences."""
    run = (best, *overlap.candidates)[:_RUNS]
    named = [describe(exploration.space, c) for c in run]
    count = 1 + len(overlap.candidates)
    several = "two" if count == 2 else f"{count:,}"
    why = f"the calibrated intervals of {several} configurations overlap, {calibration.message}"
    text = f"Undecided ({why}): run these {len(run)}: {'; '.join(named)}."
    if overlap.relative:
        loses = f"The first of them can be {_share(overlap.most_lost)} worse than another that overlaps."
        notes = [("Unknown", loses), *notes]
    return Recommendation(
        "undecided", text, None, run, tuple(notes), rule=_rule(exploration), why=why
    )


def _rule(exploration: Exploration) -> str:
    objective = exploration.question.objective
    return RULE if objective is None else f"the best {objective.name}"


def _knee(exploration: Exploration, best: Candidate, notes: list[Point]) -> Recommendation:
    fastest = exploration.front[0]
    name = describe(exploration.space, best)
    if len(exploration.front) == 1:
        text = f"{name}: no other configuration is better in {_metrics(exploration)}."
        text += _tied(exploration)
        return Recommendation("decided", text, best, (), tuple(notes), rule=RULE)
    if best == fastest:
        last = next((m for m in ("cost", "energy_j") if m in exploration.metrics), "makespan_s")
        beside = min(exploration.front, key=lambda c: exploration.means.of(c)[last])
        ratios = _ratios(exploration, beside, best)
        word = {"cost": "cheapest", "energy_j": "most frugal", "makespan_s": "next"}[last]
        far = listed([r.text for r in ratios if abs(r.ratio - 1) >= 0.0005])
        text = f"{name}: the fastest; the {word} ({describe(exploration.space, beside)}) is {far}."
    else:
        beside = fastest
        ratios = _ratios(exploration, best, beside)
        texts = [r.text for r in ratios if abs(r.ratio - 1) >= 0.0005]
        link = "as" if ratios[0].ratio >= 2 else "than"
        text = f"{name}: {texts[0]} {link} the fastest" + "".join(f", {t}" for t in texts[1:]) + "."
    text += _tied(exploration)
    notes = [("Details", _intervals(exploration, ratios)), *notes]
    return Recommendation("decided", text, best, (), tuple(notes), tuple(ratios), beside, RULE)


def _best(exploration: Exploration, best: Candidate, notes: list[Point]) -> Recommendation:
    objective = exploration.question.objective
    selection = exploration.selection
    assert objective is not None
    assert selection is not None
    name = describe(exploration.space, best)
    text = f"{name}: {_figures(exploration, best)}"
    if len(exploration.admissible) == 1:
        text += "; no other configuration is admissible"
    elif exploration.complete:
        text += f", the best of {len(exploration.admissible):,}"
    else:
        text += f", the best of {len(exploration.admissible):,} looked at"
    rest = selection.of("worse")
    ratios: list[Ratio] = []
    beside: Candidate | None = None
    if rest:
        after = rest[0]
        text += (
            f"; the next that differs significantly ({describe(exploration.space, after.candidate)}) is "
            f"{_share(after.low)} to {_share(after.high)} worse"
        )
    cheaper = _cheaper(exploration, best)
    if cheaper is not None:
        beside = cheaper
        ratios = _ratios(exploration, cheaper, best)
        texts = listed([r.text for r in ratios if abs(r.ratio - 1) >= 0.0005])
        notes = [("Cost", f"{describe(exploration.space, cheaper)} is {texts}."), *notes]
    text += f".{_tied(exploration)}"
    rule = _rule(exploration)
    return Recommendation("decided", text, best, (), tuple(notes), tuple(ratios), beside, rule)


def _tied(exploration: Exploration) -> str:
    """` It ties with 2 others.`; empty without a tie."""
    count = len(exploration.ties)
    if not count:
        return ""
    return f" It ties with {'1 other' if count == 1 else f'{count} others'}."


def _figures(exploration: Exploration, candidate: Candidate) -> str:
    mean = exploration.means.of(candidate)
    parts = [quantities.seconds(mean["makespan_s"])]
    if "cost" in exploration.metrics:
        parts.append(quantities.money(mean["cost"], exploration.record.evaluator.currency))
    if "energy_j" in exploration.metrics:
        parts.append(quantities.joules(mean["energy_j"]))
    return ", ".join(parts)


def _metrics(exploration: Exploration, last: str = "or") -> str:
    names = {"makespan_s": "time", "cost": "cost", "energy_j": "energy"}
    return listed([names[m] for m in exploration.metrics], last)


def _cheaper(exploration: Exploration, best: Candidate) -> Candidate | None:
    """The cheapest within 5 % of the best time, if at least 10 % cheaper and time is the objective."""
    objective = exploration.question.objective
    if objective is None or objective.name != "time":
        return None
    metric = next((m for m in ("cost", "energy_j") if m in exploration.metrics), None)
    if metric is None:
        return None
    means = {c: exploration.means.of(c) for c in exploration.front}
    limit = 1.05 * exploration.means.of(best)["makespan_s"]
    close = [c for c in exploration.front if means[c]["makespan_s"] <= limit]
    least = min(close, key=lambda c: means[c][metric], default=None)
    if least is None or means[least][metric] > 0.9 * exploration.means.of(best)[metric]:
        return None
    return least


def _ratios(exploration: Exploration, of: Candidate, beside: Candidate) -> list[Ratio]:
    a, b = exploration.record.measures[of], exploration.record.measures[beside]
    ratios = []
    for metric in exploration.metrics:
        of_first = np.array([getattr(a[s], metric) for s in exploration.means.seeds], float)
        other = np.array([getattr(b[s], metric) for s in exploration.means.seeds], float)
        ratios.append(Ratio(metric, *ratio_interval(of_first, other, exploration.settings.level)))
    return ratios


def _intervals(exploration: Exploration, ratios: list[Ratio]) -> str:
    n = len(exploration.means.seeds)
    if n < 2:
        return "One seed: no interval."
    if all(r.low == r.high for r in ratios):
        return f"The same on each of {n} seeds: they do not differ in anything random."
    texts = "; ".join(r.sure for r in ratios)
    return (
        f"{_integer_percent(exploration.settings.level)} intervals over {n} common seeds: {texts}."
    )


def _notes(exploration: Exploration) -> list[Point]:
    """Notes on equivalent configurations, axes without effect, and open points."""
    selection = exploration.selection
    assert selection is not None
    notes: list[Point] = []
    same = selection.of("same")
    if same:
        shown = "; ".join(describe(exploration.space, c.candidate) for c in same[:2])
        more = f" (and {len(same) - 2} more)" if len(same) > 2 else ""
        notes.append(("Tie", f"Within {_integer_percent(INDIFFERENCE)}: {shown}{more}."))
    if exploration.indifferent:
        notes.append(("No effect", _indifferent(exploration, selection.best.candidate)))
    if exploration.uncompared:
        near = f"{exploration.uncompared} more lie as near on the first seed and were not compared."
        notes.append(("Unknown", near))
    robust = exploration.robust
    if robust is not None:
        best = selection.best.candidate
        good = round(robust.share_good(best) * robust.draws)
        stays = (
            f"With uncertain values sampled within their ranges, it stays within "
            f"{_integer_percent(TOLERATED)} of the best in {good} of {robust.draws} draws "
            f"(of {len(robust.candidates)} configurations; regret {_share(robust.mean_regret(best))} "
            f"on average, {_share(robust.worst_regret(best))} at worst)."
        )
        notes.append(("Model", stays))
    notes += _calibration_notes(exploration, selection.best.candidate)
    judgement = exploration.judgement or {}
    if (judgement.get("idle") or {}).get("hosts"):
        notes.append(("Idle hosts", judgement["idle"]["text"]))
    if judgement.get("verdict") == "caution":
        notes.append(("Model", f"Caution: {'; '.join(judgement.get('reasons', []))}."))
    return notes


def _calibration_notes(exploration: Exploration, best: Candidate) -> list[Point]:
    calibration = exploration.calibration
    if calibration is None:
        return []
    half = calibration.half_width
    if half is None:
        lead = f"{calibration.message[0].upper()}{calibration.message[1:]}"
        return [("Model", f"{lead}: what differs here differs in the model only.")]
    overlap = exploration.overlap
    in_sentence = overlap is not None and overlap.candidates
    notes = [] if in_sentence else [("Model", f"Calibrated: {calibration.message}.")]
    if calibration.verdict == "caution":
        notes = [("Model", f"Caution: {calibration.message}: {width_message(half)}.")]
    mean = exploration.means.of(best)
    late = mean | {m: mean[m] * (1 + half) for m in METRICS} | exploration.record.magnitudes(best)
    broken = [c.text for c in exploration.question.constraints if not c.holds(late)]
    if broken:
        may = f"A run of the best may break {listed(broken)}, by its calibrated interval."
        notes.append(("Unknown", may))
    return notes


def _indifferent(exploration: Exploration, best: Candidate) -> str:
    """Axes without effect at the best configuration."""
    names = []
    for k, axis in enumerate(exploration.space.axes):
        labels = [axis.levels[t[k]].label for t in exploration.indifferent if t[k] != best[k]]
        if labels:
            more = ", …" if len(labels) > 3 else ""
            names.append(f"{axis.name} ({', '.join(labels[:3])}{more})")
    return f"Exactly the same with another {listed(names, 'or')}."


def _times(metric: str, ratio: float) -> str:
    more, less, often = _WORDS[metric]
    if ratio >= 2:
        return f"{quantities.digits(ratio, 2)} times {often}"
    return f"{_percent(ratio - 1)} {more}" if ratio > 1 else f"{_percent(1 - ratio)} {less}"


def _percent(share: float) -> str:
    return f"{quantities.digits(100 * share, 1 if share < 0.01 else 2)} %"


def _integer_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(value: float) -> str:
    return f"{quantities.digits(100 * value, 2)} %"
