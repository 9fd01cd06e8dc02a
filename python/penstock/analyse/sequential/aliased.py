"""Conclusions that depend on an alias, and runs that resolve them (`design/additions/two_levels.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.contradicted import Contradicted
from penstock.analyse.statistics.fit import ASSUMED, Fit, fitted
from penstock.analyse.statistics.partial import Explained, explained, shares_of
from penstock.analyse.statistics.scale import LINEAR, effect_scale
from penstock.design.additions.more_levels import estimable_model, level_step, numbers_of
from penstock.design.additions.stages import bare, designed, stage_from_json
from penstock.design.additions.two_levels import (
    Question,
    Step,
    make_step,
    questions,
    recommended,
    steps,
)
from penstock.design.alias_matrix import Share
from penstock.design.estimate import PER_RUN_S
from penstock.design.generators import term_of, word_of
from penstock.design.kinds.base import Asked, Model
from penstock.design.matrix import Matrix, regular
from penstock.design.order import STRIP_PLOT
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.study.load import load_study
from penstock.text import counted, first_of, listed, quantity, square_of, term_text

#: a term is active if its Holm-adjusted p-value is below this
ACTIVE = 0.05
#: maximum numbers of rivals and of terms named in a sentence
_MOST_NAMED, MOST_TERMS = 3, 4
#: minimum share of a named rival: in a set that explains the runs, and of others
LEAST_NAMED, _STRONG = 0.05, 0.25


@dataclass(frozen=True)
class Proposal:
    """A step with its cost: `runs` and `hours`, `per_hour` rivals broken per hour."""

    step: Step
    runs: int
    hours: float

    @property
    def per_hour(self) -> float:
        """Number of rivals broken per hour."""
        return len(self.step.broken) / self.hours if self.hours else math.inf


class Open:
    """Ambiguities of the designed runs of a study in one response, and the steps that could resolve them.

    The rivals of a regular fraction are its aliases. Those of other designs come from the alias matrix of
    the analysed runs and from the few terms that explain them (`partial.py`).
    """

    def __init__(self, outcome: Outcome, plan: Plan, response: str, most: int | None) -> None:
        self.outcome, self.plan, self.response = outcome, plan, response
        self.names = [f.name for f in plan.factors]
        stages = [stage_from_json(bare(s)) for s in plan.stages]
        self.matrix, self.stages = designed(plan, stages)
        self.active = active_terms(outcome, response, most)

    @classmethod
    def of(cls, outcome: Outcome, response: str | None = None, most: int | None = None) -> Open:
        """The ambiguities of one response (default: the first), with active terms, or the `most` largest."""
        plan = plan_from_json(outcome.plan)
        if response is None:
            if not outcome.responses:
                raise PenstockError("there is no response to augment the design for")
            response = outcome.responses[0].name
        return cls(outcome, plan, response, most)

    @cached_property
    def open_questions(self) -> list[Question]:
        """The active contrasts with rivals that no later run excludes."""
        remaining = []
        for question in self._all_questions:
            gone = self.excluded.get(term_of(question.term, self.names), {})
            plausible, other = (
                tuple(w for w in aliases if term_of(w, self.names) not in gone)
                for aliases in (question.plausible, question.other)
            )
            if plausible or other:
                remaining.append(replace(question, plausible=plausible, other=other))
        return remaining

    @cached_property
    def excluded(self) -> dict[str, dict[str, list[str]]]:
        """For each active term the rivals that runs of later stages exclude, with these runs."""
        judge = Contradicted.of(self.outcome, self.response)
        if judge is None:
            return {}
        pairs = [
            (term_of(q.term, self.names), term_of(w, self.names))
            for q in self._all_questions
            for w in (*q.plausible, *q.other)
        ]
        excluded: dict[str, dict[str, list[str]]] = {}
        for term, rival in pairs:
            if runs := judge.runs_against(term, rival):
                excluded.setdefault(term, {})[rival] = runs
        return excluded

    @cached_property
    def _all_questions(self) -> list[Question]:
        """The active contrasts with rivals."""
        if self.partial:
            return self._partly_aliased()
        if not self.plan.two_level:
            return []
        active = [word_of(t, self.names) for t in self.active]
        rows = np.unique(self.matrix, axis=0)
        return [q for q in questions(rows, active) if q.plausible or q.other]

    @property
    def doubted(self) -> list[Question]:
        """The questions with a plausible rival."""
        return [q for q in self.open_questions if q.plausible]

    @property
    def unresolved(self) -> list[Question]:
        """The questions that a step should resolve: plausible rivals, else aliases of one or two factors;
        both for an irregular design."""
        if self.doubted and not self.partial:
            return self.doubted
        if self.doubted:
            return [
                replace(q, plausible=(*q.plausible, *(w for w in q.other if w.bit_count() <= 2)))
                for q in self.open_questions
            ]
        return [
            replace(q, plausible=short)
            for q in self.open_questions
            if (short := tuple(w for w in q.other if w.bit_count() <= 2))
        ]

    @cached_property
    def partial(self) -> bool:
        """True if there are partial aliases: an irregular design, or treatments without a valid run."""
        if self.plan.model is not None:
            return True
        if not self.plan.two_level:
            return False
        if self._assumed:
            return True
        return not regular(np.unique(self.matrix, axis=0))

    @property
    def _assumed(self) -> bool:
        """True if long interactions are assumed to be 0, because treatments have no valid run."""
        table = self.outcome.effects
        if table is None or "method" not in table:
            return False
        return bool((table["method"].astype(str) == ASSUMED).any())

    @cached_property
    def fit(self) -> Fit | None:
        """The fit of the response; None if there is none."""
        table = self.outcome.effects
        try:
            scale = LINEAR
            if table is not None:
                scale = effect_scale(table[table["response"].astype(str) == self.response])
            return fitted(self.outcome.measured, self.plan, self.response, scale)
        except PenstockError:
            return None

    @cached_property
    def _estimated(self) -> list[str] | None:
        """The terms with an estimate, if stages selected them; None: those of the fit."""
        if self.plan.model is not None and not self.plan.stages:
            return None
        table = self.outcome.effects
        if table is None or self._assumed:
            return None
        rows = table[table["response"].astype(str) == self.response]
        estimated = rows[["coefficient", "p_value"]].notna().any(axis=1)
        rows = rows[self.outcome.is_effect(rows["term"]) & estimated]
        return [str(t) for t in rows["term"]]

    @cached_property
    def shares(self) -> dict[str, list[Share]]:
        """For each term, its aliases among those without an estimate."""
        return {} if self.fit is None else shares_of(self.fit, self.plan, self._estimated)

    @cached_property
    def explained(self) -> Explained:
        """The few terms that explain the runs."""
        if self.fit is None or not self.partial:
            return Explained()
        return explained(self.fit, self.plan, self._estimated)

    def _partly_aliased(self) -> list[Question]:
        """The active terms with their plausible aliases.

        These are interactions among the few terms that explain the runs, and exact aliases; without such
        terms, the largest shares of active factors.
        """
        alone = {t for t in self.explained.terms or self.active if ":" not in t}
        partly = []
        for term in self.active:
            if square_of(term):
                continue
            plausible, other, of = list[int](), list[int](), dict[int, float]()
            for share in self.shares.get(term, []):
                word = word_of(share.rival, self.names)
                parents = set(share.rival.split(":"))
                if share.rival in self.explained.terms:
                    likely = abs(share.share) >= LEAST_NAMED
                else:
                    likely = share.exact and bool(parents & alone)
                if not self.explained.sets:
                    strong = parents <= alone and abs(share.share) >= _STRONG
                    likely = likely or (strong and len(plausible) < _MOST_NAMED)
                if likely or share.exact:
                    (plausible if likely else other).append(word)
                    if not share.exact:
                        of[word] = share.share
            if plausible or other:
                word = word_of(term, self.names)
                partly.append(Question(word, tuple(plausible), tuple(other), of))
        return [*partly, *self._without_estimate(partly)]

    def _without_estimate(self, others: Sequence[Question]) -> Iterator[Question]:
        """Interactions that explain the runs and are aliased with no active term: each with the term that
        contains the largest share of it."""
        named = {w for q in others for w in q.plausible}
        for rival in sorted(self.explained.terms - set(self.shares)):
            word = word_of(rival, self.names)
            holds = [
                (abs(s.share), term, s)
                for term, shares in self.shares.items()
                for s in shares
                if s.rival == rival and not square_of(term)
            ]
            if word in named or not holds:
                continue
            _, term, share = max(holds, key=lambda h: h[0])
            of = {} if share.exact else {word: share.share}
            yield Question(word_of(term, self.names), (word,), (), of)

    @cached_property
    def run_s(self) -> float:
        """Mean duration of a completed run with its overhead [s]."""
        taken = [
            float(times.get("wall_s") or 0) + float(times.get("own_s") or 0)
            for run_id in self.outcome.run_ids
            if (times := self.outcome.manifest(run_id).get("times") or {})
        ]
        if taken and sum(taken):
            return sum(taken) / len(taken)
        return self.plan.estimated_s / max(1, len(self.plan.rows)) or PER_RUN_S

    def proposals(self) -> list[Proposal]:
        """All steps, in descending order of rivals broken per hour; pure replicates last."""
        if not self.plan.two_level:
            return [*self._optimal(), self.proposal("replicates:1")]
        priced_steps = [self.priced(s) for s in self._offered]
        priced_steps.sort(key=lambda p: (-p.per_hour, p.runs))
        return [*priced_steps, self.proposal("replicates:1")]

    def _optimal(self) -> Iterator[Proposal]:
        """Optimal additions of a third, a half and all of the number of treatments, if there are enough."""
        existing = len(np.unique(self.matrix, axis=0))
        for count in sorted({-(-existing // 3), -(-existing // 2), existing}):
            try:
                yield self.proposal(f"optimal:{count}")
            except BadInput:
                continue

    def proposal(self, kind: str, *, again: bool = False) -> Proposal:
        """The step `kind` (`best`: the recommended one) with its cost. BadInput if there is none."""
        if kind == "best" and (self.plan.two_level or self.unresolved):
            best = self.best()
            if best is None:
                raise BadInput(
                    "--augment best: no effect of these runs has a plausible rival that a step would break; "
                    "name a step, such as replicates:1"
                )
            return best
        if not self.plan.two_level:
            step = level_step(
                kind, self.plan.factors, self.plan.model, self.matrix, self.stages,
                seed=self.plan.seed, forbidden=self.forbidden, again=again, open_questions=self.unresolved,
            )  # fmt: skip
            return self.priced(step, again=again)
        step = make_step(
            kind, self.matrix, self.stages, self.unresolved or self.open_questions, self.names,
            again=again, allowed=self._may_be_run,
        )  # fmt: skip
        if not self._allowed(step).all():
            raise BadInput(
                f"--augment {kind}: found combinations that design.forbidden excludes among the treatments "
                "of this step; expected another step"
            )
        if not self._judged_after(step):
            raise BadInput(
                f"--augment {kind}: found rows that are no regular fraction, with settings retained in two "
                "directions, so that their errors cannot be estimated; expected foldover, coset or "
                "replicates:1"
            )
        return self.priced(step, again=again)

    @cached_property
    def forbidden(self) -> tuple[Mapping[str, tuple[str, ...]], ...]:
        """Forbidden combinations."""
        design = self.outcome.study.get("design")
        if not isinstance(design, dict) or not design.get("forbidden"):
            return ()
        return load_study(self.outcome.path / "study.yaml").design.forbidden

    @cached_property
    def _offered(self) -> list[Step]:
        """All steps for the questions whose rows may be run, and tested."""
        if not self.plan.two_level:
            return [p.step for p in self._optimal()]
        offered = steps(self.matrix, self.stages, self.unresolved, self.names, self._may_be_run)
        return [s for s in offered if self._allowed(s).all() and self._judged_after(s)]

    def _allowed(self, step: Step) -> NDArray[np.bool_]:
        """Mask of the rows of a step that may be run."""
        return self._may_be_run(step.rows)

    def _may_be_run(self, rows: Matrix) -> NDArray[np.bool_]:
        request = Asked(tuple(self.plan.factors), forbidden=self.forbidden)
        return request.allowed(numbers_of(self.plan.factors, rows))

    def _judged_after(self, step: Step) -> bool:
        """True if all rows after a step have an error term: for a strip-plot, if they are a fraction."""
        if self.plan.order != STRIP_PLOT:
            return True
        rows = np.unique(np.vstack([self.matrix, step.rows]), axis=0)
        return regular(rows)

    def model_after(self, step: Step) -> Model | None:
        """The model that all rows can estimate after a step; None: all their terms."""
        after, stages = self.matrix, list(self.stages)
        if len(step.rows):
            after = np.vstack([after, step.rows])
            stages += [max(stages) + 1] * len(step.rows)
        return estimable_model(self.plan.factors, self.plan.model, after, stages)

    def best(self) -> Proposal | None:
        """The cheapest of the steps that break the most plausible rivals of fewest factors."""
        if not self.unresolved:
            return None
        step = recommended(self._offered)
        return None if step is None else self.priced(step)

    def priced(self, step: Step, *, again: bool = False) -> Proposal:
        """The step with runs and hours; treatments that a search added are repeated with the others."""
        existing = len({r.treatment_id for r in self.plan.rows})
        if step.kind.startswith("replicates"):
            runs = existing * int(step.kind.partition(":")[2])
        else:
            runs = (len(step.rows) + (existing if again else 0)) * self.plan.replicates
        return Proposal(step, runs, runs * self.run_s / 3600)

    def to_json(self, proposal: Proposal) -> dict[str, Any]:
        """Plain values of a proposal."""
        step = proposal.step
        return {
            "augment": step.kind,
            "treatments": len(step.rows),
            "runs": proposal.runs,
            "hours": proposal.hours,
            "rivals_broken": [self._pair(p) for p in step.broken],
            "rivals_left": [self._pair(p) for p in step.remaining],
            "rivals_broken_per_hour": proposal.per_hour if proposal.hours else None,
            "defining_relation": [
                ("-" if s < 0 else "") + term_of(w, self.names, "*")
                for w, s in sorted(step.relation.items(), key=lambda p: (p[0].bit_count(), p[0]))
            ],
            "stage_difference": [term_of(w, self.names) for w in step.stage],
        }

    def _pair(self, pair: tuple[int, int]) -> dict[str, str]:
        return {"term": term_of(pair[0], self.names), "rival": term_of(pair[1], self.names)}


def active_terms(outcome: Outcome, response: str, most: int | None = None) -> list[str]:
    """The significant terms by Holm's procedure, largest first; or the `most` largest of all."""
    if outcome.effects is None:
        return []
    table = outcome.effects[outcome.effects["response"].astype(str) == response]
    table = table[outcome.is_effect(table["term"])]
    table = table[table[["coefficient", "p_holm"]].notna().any(axis=1)]
    table = table.reindex(table["coefficient"].abs().sort_values(ascending=False).index)
    if most is not None:
        return [str(t) for t in table["term"].head(most)]
    judged = pd.to_numeric(table["p_holm"], errors="coerce")
    if "variation_share" in table:
        by_share = pd.to_numeric(table["variation_share"], errors="coerce")
        table = table.assign(_share=by_share).sort_values("_share", ascending=False, kind="stable")
    return [str(t) for t in table.loc[judged.reindex(table.index) < ACTIVE, "term"]]


def aliased(outcome: Outcome) -> list[Finding]:
    """Effects that may belong to an alias, with the cheapest step that separates them.

    Guard: no term has an alias, or no effect is significant.
    """
    if "aliased" not in outcome.memory:
        outcome.memory["aliased"] = list(_aliased(outcome))
    stated: list[Finding] = outcome.memory["aliased"]
    return stated


def _aliased(outcome: Outcome) -> Iterator[Finding]:
    if not outcome.plan.get("aliases") and outcome.plan.get("model") is None:
        return
    for response in outcome.responses:
        try:
            aliasing = Open.of(outcome, response.name)
        except (PenstockError, BadInput):
            return
        if not aliasing.active:
            continue
        if aliasing.doubted:
            yield _doubt(aliasing, response.unit)
        elif aliasing.unresolved:
            yield _not_excluded(aliasing)
        elif aliasing.open_questions or aliasing.partial or outcome.plan.get("aliases"):
            yield _cleared(aliasing)


def stages(outcome: Outcome) -> Iterator[Finding]:
    """Terms that a study with several stages cannot separate from the difference between them.

    Guard: no stage was added, or there is no such term.
    """
    confounded = [
        (n, [term_text(str(t)) for t in s.get("confounded") or []])
        for n, s in enumerate(outcome.plan.get("stages") or [], start=2)
    ]
    for number, terms in confounded:
        if terms:
            yield Finding(
                "stage-confounded",
                "info",
                f"What differs between stage {number} and the runs before it is time and {listed(terms)} "
                f"together; neither is reported as an effect.",
                {"table": "plan", "stage": number, "terms": terms},
                "`penstock run STUDY -o OUT --augment STEP --interleaved` would have made the earlier "
                "treatments again among the new ones.",
            )


def _doubt(aliasing: Open, unit: str) -> Finding:
    names, response = aliasing.names, aliasing.response
    assert aliasing.outcome.effects is not None
    table = aliasing.outcome.effects[aliasing.outcome.effects["response"].astype(str) == response]
    size = {str(t): float(e) for t, e in zip(table["term"], table["effect"], strict=True)}
    texts = []
    for question in sorted(
        aliasing.doubted, key=lambda q: -abs(size.get(term_of(q.term, names)) or 0.0)
    ):
        term = term_of(question.term, names)
        effect = size.get(term, math.nan)
        amount = f" ({quantity(effect, unit)})" if math.isfinite(effect) else ""
        rivals = [rival_text(w, question, names) for w in question.plausible]
        others = _others(question, names)
        texts.append(
            f"{term_text(term)}{amount} may be {listed(first_of(rivals, _MOST_NAMED), 'or')}"
            f"{f', or {others}, though no factor of it shows an effect' if others else ''}"
        )
    named = rivals_by_term(aliasing)
    doubted = [term_of(q.term, names) for q in aliasing.doubted]
    texts += [
        f"{term_text(term)} cannot be separated from {listed(rivals, 'or')}"
        for term, rivals in named.items()
        if term not in doubted
    ]
    more = [counted(len(texts) - MOST_TERMS, "more effect")] if len(texts) > MOST_TERMS else []
    evidence: dict[str, Any] = {
        "table": "effects",
        "response": response,
        "terms": doubted,
        "named": named,
        "rivals": {
            term_of(q.term, names): [term_of(w, names) for w in (*q.plausible, *q.other)]
            for q in aliasing.doubted
        },
        "plausible": {
            term_of(q.term, names): [term_of(w, names) for w in q.plausible]
            for q in aliasing.doubted
        },
        "explained": [sorted(one) for one in aliasing.explained.sets],
    }
    return Finding(
        "effect-aliased",
        "warning",
        f"{_explained(aliasing)}The conclusion about {response} depends on an alias: "
        f"{'; '.join([*texts[:MOST_TERMS], *more])}. These runs do not show which.{_excluded(aliasing)}",
        evidence,
        _advice(aliasing, evidence),
        "Rivals of up to three factors, with at least one factor that has a main effect; aliases of two "
        "factors without one are listed after them.",
    )


def rivals_by_term(aliasing: Open) -> dict[str, list[str]]:
    """The exact rivals of each term in words: plausible ones, then other aliases of two factors."""
    names, by_term = aliasing.names, dict[str, list[str]]()
    for question in aliasing.open_questions:
        aliases = [*question.plausible, *(w for w in question.other if w.bit_count() <= 2)]
        rivals = [term_text(term_of(w, names)) for w in aliases if w not in question.shares]
        if rivals:
            by_term[term_of(question.term, names)] = first_of(rivals, _MOST_NAMED)
    return by_term


def rival_text(word: int, question: Question, names: Sequence[str]) -> str:
    """A rival; a partial alias with its share."""
    part = question.shares.get(word)
    term = term_text(term_of(word, names))
    return term if part is None else f"{abs(part):.2g} of {term}"


def _excluded(aliasing: Open) -> str:
    """The aliases of at most two factors that later runs exclude."""
    texts, runs = [], set[str]()
    for term, rivals in aliasing.excluded.items():
        short = [r for r in rivals if r.count(":") <= 1]
        runs.update(*(rivals[r] for r in short))
        texts += [
            f"{listed([term_text(r) for r in short])} as an alias of {term_text(term)}"
        ] * bool(short)
    if not texts:
        return ""
    first, *_, last = [*sorted(runs), *sorted(runs)]
    which = f"run {first} excludes" if first == last else f"runs {first} to {last} exclude"
    return f" Later {which} {'; '.join(texts[:_MOST_NAMED])}."


def _others(question: Question, names: Sequence[str]) -> str:
    """Two-factor aliases without significant effects."""
    short = [w for w in question.other if w.bit_count() <= 2]
    return listed(first_of([term_text(term_of(w, names)) for w in short], _MOST_NAMED), "or")


def _explained(aliasing: Open) -> str:
    """The few terms that explain the runs as well as all active effects do."""
    sets = [one for one in aliasing.explained.sets if set(one) - set(aliasing.shares)]
    if not sets:
        return ""
    set_texts = [
        listed([term_text(t) for t in sorted(one, key=lambda t: t.count(":"))]) for one in sets
    ]
    more = [f"{len(set_texts) - _MOST_NAMED} sets more"] if len(set_texts) > _MOST_NAMED else []
    which = listed([*set_texts[:_MOST_NAMED], *more], "or")
    if not aliasing.explained.main_alone:
        return f"The terms of the model do not explain {aliasing.response}; {which} do. "
    if all(len(one) >= len(aliasing.active) for one in sets):
        return ""
    return f"{which} explain {aliasing.response} as well as the {len(aliasing.active)} effects do. "


def _advice(aliasing: Open, evidence: dict[str, Any]) -> str:
    """The recommended step, which is added to the evidence."""
    best = aliasing.best()
    if best is None:
        return "No single step separates them; a full design does."
    evidence["augmentation"] = aliasing.to_json(best)
    separated, pairs = len(best.step.broken), len(best.step.broken) + len(best.step.remaining)
    which = f"{separated} of {counted(pairs, 'pair')}"
    if separated == pairs:
        which = {1: "the two terms", 2: "both pairs"}.get(pairs, f"all {pairs} pairs")
    return (
        f"`penstock run STUDY -o OUT --augment {best.step.kind}` adds "
        f"{counted(len(best.step.rows), 'treatment')} ({counted(best.runs, 'run')}, "
        f"{_hours(best.hours)}) and separates {which}; `penstock plan --augment OUT` has the other steps."
    )


def _not_excluded(aliasing: Open) -> Finding:
    """Two-factor aliases without significant effects of their own."""
    names = aliasing.names
    texts = [
        f"{term_text(term_of(q.term, names))} from {_others(q, names)}"
        for q in aliasing.open_questions
        if _others(q, names)
    ]
    more = (
        [f"{counted(len(texts) - _MOST_NAMED, 'more effect')}"] if len(texts) > _MOST_NAMED else []
    )
    evidence: dict[str, Any] = {
        "table": "effects",
        "response": aliasing.response,
        "terms": [term_of(q.term, names) for q in aliasing.unresolved],
        "rivals": {
            term_of(q.term, names): [term_of(w, names) for w in q.plausible]
            for q in aliasing.unresolved
        },
    }
    return Finding(
        "effect-aliased",
        "info",
        f"These runs cannot separate {'; '.join([*texts[:_MOST_NAMED], *more])} for {aliasing.response}. An "
        f"interaction whose factors show no effect is rare, but not excluded.{_excluded(aliasing)}",
        evidence,
        _advice(aliasing, evidence),
        "Aliases of two factors.",
    )


def _cleared(open_: Open) -> Finding:
    if open_.partial:
        share, term, count = max(
            (
                (max((abs(s.share) for s in shares if not s.exact), default=0.0), name, len(shares))
                for name, shares in open_.shares.items()
                if name in open_.active
            ),
            default=(0.0, "", 0),
        )
        part = (
            f" {term_text(term)} still includes up to {share:.2g} of each of "
            f"{counted(count, 'interaction')} that the design does not estimate."
            if share
            else ""
        )
        alone = [one for one in open_.explained.sets if not set(one) - set(open_.shares)]
        lead = f"No other interaction explains {open_.response} better than its effects do."
        if alone and set(alone[0]) <= set(open_.active):
            which = listed([term_text(t) for t in alone[0]])
            explain = f"{which} explain{'s' if len(alone[0]) == 1 else ''} {open_.response}"
            plain = all(":" not in t or square_of(t) for t in alone[0])
            lead = (
                f"{explain}{' without an interaction' if plain else '; no other term is needed'}."
            )
        return Finding(
            "effect-unambiguous",
            "info",
            f"{lead}{part}{_excluded(open_)}",
            {"table": "effects", "response": open_.response, "terms": open_.active},
            "",
            "Interactions just beyond the model were looked at, by weak heredity.",
        )
    return Finding(
        "effect-unambiguous",
        "info",
        f"No effect on {open_.response} has a plausible rival: all its aliases have three factors or "
        f"more, none of which has a main effect{', or is excluded' * bool(open_.excluded)}."
        f"{_excluded(open_)}",
        {"table": "effects", "response": open_.response, "terms": open_.active},
        "",
        "Rivals of up to three factors were looked at.",
    )


def _hours(hours: float) -> str:
    seconds = 3600 * hours
    if seconds < 7200:
        return f"about {seconds:.0f} s" if seconds < 120 else f"about {seconds / 60:.0f} min"
    return f"about {hours:.2g} h"
