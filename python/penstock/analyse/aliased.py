"""Conclusions that rest on an alias, and what to run to clear them (`design/augment.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.analyse.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.design.augment import (
    Question,
    Step,
    make_step,
    questions,
    recommended,
    steps,
)
from penstock.design.augment_levels import level_step, numbers_of, told_model
from penstock.design.estimate import PER_RUN_S
from penstock.design.generators import term_of, word_of
from penstock.design.kinds.base import Asked, Model
from penstock.design.matrix import constant_words, is_regular
from penstock.design.order import STRIP_PLOT
from penstock.design.plan import Plan, plan_from_json
from penstock.design.stages import bare, designed, stage_from_json
from penstock.errors import BadInput, PenstockError
from penstock.study.load import load_study
from penstock.text import counted, listed, quantity, term_text

#: a term is active where its p-value after Holm is below this
ACTIVE = 0.05
#: rivals named in a sentence at most
_MOST_NAMED = 3


@dataclass(frozen=True)
class Proposal:
    """A step with its price: `runs` and `hours` that it takes, `per_hour` rivals broken in one."""

    step: Step
    runs: int
    hours: float

    @property
    def per_hour(self) -> float:
        """Rivals broken per hour."""
        return len(self.step.broken) / self.hours if self.hours else math.inf


class Open:
    """What the designed runs of a study leave open in one response, and what could be added.

    Rivals are told for two-level factors alone; other designs take optimal treatments and replicates.
    """

    def __init__(self, outcome: Outcome, plan: Plan, response: str, most: int | None) -> None:
        self.outcome, self.plan, self.response = outcome, plan, response
        self.names = [f.name for f in plan.factors]
        stages = [stage_from_json(bare(s)) for s in plan.stages]
        self.matrix, self.stages = designed(plan, stages)
        self.active = active_terms(outcome, response, most)

    @classmethod
    def of(cls, outcome: Outcome, response: str | None = None, most: int | None = None) -> Open:
        """Of one response (the first), with the terms that are active, or the `most` largest."""
        plan = plan_from_json(outcome.plan)
        if response is None:
            if not outcome.responses:
                raise PenstockError("there is no response to augment the design for")
            response = outcome.responses[0].name
        return cls(outcome, plan, response, most)

    @cached_property
    def asked(self) -> list[Question]:
        """The active contrasts that have rivals."""
        if not self.plan.two_level:
            return []
        words = [word_of(t, self.names) for t in self.active]
        rows = np.unique(self.matrix, axis=0)
        return [q for q in questions(rows, words) if q.plausible or q.other]

    @property
    def doubted(self) -> list[Question]:
        """Those with a plausible rival."""
        return [q for q in self.asked if q.plausible]

    @cached_property
    def run_s(self) -> float:
        """Seconds that one run takes with all around it: the mean of those that were made."""
        taken = [
            float(times.get("wall_s") or 0) + float(times.get("own_s") or 0)
            for run_id in self.outcome.run_ids
            if (times := self.outcome.manifest(run_id).get("times") or {})
        ]
        if taken and sum(taken):
            return sum(taken) / len(taken)
        return self.plan.estimated_s / max(1, len(self.plan.rows)) or PER_RUN_S

    def proposals(self) -> list[Proposal]:
        """Every step, those first that break most rivals per hour; replicates alone come last."""
        if not self.plan.two_level:
            return [*self._optimal(), self.proposal("replicates:1")]
        found = [self.priced(s) for s in self._steps(self.asked)]
        found.sort(key=lambda p: (-p.per_hour, p.runs))
        return [*found, self.proposal("replicates:1")]

    def _optimal(self) -> Iterator[Proposal]:
        """Optimal additions of a third of the treatments, a half, and as many again, as far as there are."""
        made = len(np.unique(self.matrix, axis=0))
        for count in sorted({-(-made // 3), -(-made // 2), made}):
            try:
                yield self.proposal(f"optimal:{count}")
            except BadInput:
                continue

    def proposal(self, kind: str, *, again: bool = False) -> Proposal:
        """The step called `kind` (`best`: the recommended one), priced. BadInput where there is none."""
        if not self.plan.two_level:
            step = level_step(
                kind, self.plan.factors, self.plan.model, self.matrix, self.stages,
                seed=self.plan.seed, forbidden=self.forbidden, again=again,
            )  # fmt: skip
            return self.priced(step, again=again)
        if kind == "best":
            best = self.best()
            if best is None:
                raise BadInput(
                    "--augment best: no effect of these runs has a plausible rival that a step would break; "
                    "name a step, such as replicates:1"
                )
            return best
        step = make_step(kind, self.matrix, self.stages, self.asked, self.names, again=again)
        if not self._allowed(step).all():
            raise BadInput(
                f"--augment {kind}: found combinations that design.forbidden leaves out among the treatments "
                "of this step; expected another step"
            )
        if not self._judged_after(step):
            raise BadInput(
                f"--augment {kind}: found rows that leave no regular fraction, with settings kept in two "
                "directions; nothing would tell the error of each: expected foldover, coset or replicates:1"
            )
        return self.priced(step, again=again)

    @cached_property
    def forbidden(self) -> tuple[Mapping[str, tuple[str, ...]], ...]:
        """Combinations that are not run."""
        design = self.outcome.study.get("design")
        if not isinstance(design, dict) or not design.get("forbidden"):
            return ()
        return load_study(self.outcome.path / "study.yaml").design.forbidden

    def _steps(self, asked: list[Question]) -> list[Step]:
        """Every step for these questions whose rows may be run, and judged."""
        found = steps(self.matrix, self.stages, asked, self.names)
        return [s for s in found if self._allowed(s).all() and self._judged_after(s)]

    def _allowed(self, step: Step) -> NDArray[np.bool_]:
        """Which rows of a step may be run."""
        asked = Asked(tuple(self.plan.factors), forbidden=self.forbidden)
        return asked.allowed(numbers_of(self.plan.factors, step.rows))

    def _judged_after(self, step: Step) -> bool:
        """Whether all rows after a step can be judged: of a strip-plot as long as they are a fraction."""
        if self.plan.order != STRIP_PLOT:
            return True
        rows = np.unique(np.vstack([self.matrix, step.rows]), axis=0)
        return is_regular(rows, constant_words(rows))

    def told_after(self, step: Step) -> Model | None:
        """The model that all rows tell once a step is made; None: all that they have."""
        after, stages = self.matrix, list(self.stages)
        if len(step.rows):
            after = np.vstack([after, step.rows])
            stages += [max(stages) + 1] * len(step.rows)
        return told_model(self.plan.factors, self.plan.model, after, stages)

    def best(self) -> Proposal | None:
        """The cheapest step that breaks as many of the plausible rivals of fewest factors as any does."""
        if not self.doubted:
            return None
        step = recommended(self._steps(self.doubted))
        return None if step is None else self.priced(step)

    def priced(self, step: Step, *, again: bool = False) -> Proposal:
        """The step with runs and hours."""
        made = len(np.unique(self.matrix, axis=0))
        if step.kind.startswith("replicates"):
            runs = made * int(step.kind.partition(":")[2])
        else:
            runs = (len(step.rows) + (made if again else 0)) * self.plan.replicates
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
            "rivals_left": [self._pair(p) for p in step.left],
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
    """The terms whose interval excludes 0 after Holm, largest first; or the `most` largest of all."""
    if outcome.effects is None:
        return []
    table = outcome.effects[outcome.effects["response"].astype(str) == response]
    table = table[outcome.is_effect(table["term"]) & table["coefficient"].notna()]
    table = table.reindex(table["coefficient"].abs().sort_values(ascending=False).index)
    if most is not None:
        return [str(t) for t in table["term"].head(most)]
    judged = pd.to_numeric(table["p_holm"], errors="coerce")
    return [str(t) for t in table.loc[judged < ACTIVE, "term"]]


def aliased(outcome: Outcome) -> Iterator[Finding]:
    """Effects that may be those of something else, with the cheapest step that would tell.

    Guard: the design is full, or no effect shows; then nothing is said.
    """
    if not outcome.plan.get("aliases") or not outcome.plan.get("two_level"):
        return
    for response in outcome.responses:
        try:
            found = Open.of(outcome, response.name)
        except (PenstockError, BadInput):
            return
        if not found.active:
            continue
        if found.doubted:
            yield _doubt(found, response.unit)
        elif found.asked:
            yield _cleared(found)


def stages(outcome: Outcome) -> Iterator[Finding]:
    """What a study that went on cannot tell from the difference between its stages.

    Guard: no stage was added, or none has such a term.
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


def _doubt(found: Open, unit: str) -> Finding:
    names, response = found.names, found.response
    assert found.outcome.effects is not None
    table = found.outcome.effects[found.outcome.effects["response"].astype(str) == response]
    size = {str(t): float(e) for t, e in zip(table["term"], table["effect"], strict=True)}
    said = []
    for question in sorted(
        found.doubted, key=lambda q: -abs(size.get(term_of(q.term, names), 0.0))
    ):
        term = term_of(question.term, names)
        rivals = [term_text(term_of(w, names)) for w in question.plausible]
        more = [f"{len(rivals) - _MOST_NAMED} more"] if len(rivals) > _MOST_NAMED else []
        said.append(
            f"{term_text(term)} ({quantity(size[term], unit)}) may be "
            f"{listed([*rivals[:_MOST_NAMED], *more], 'or')}"
        )
    more = [f"{counted(len(said) - _MOST_NAMED, 'more effect')}"] if len(said) > _MOST_NAMED else []
    best = found.best()
    evidence: dict[str, Any] = {
        "table": "effects",
        "response": response,
        "terms": [term_of(q.term, names) for q in found.doubted],
    }
    if best is None:
        advice = "No single step tells them apart; a full design does."
    else:
        evidence["augmentation"] = found.to_json(best)
        advice = (
            f"`penstock run STUDY -o OUT --augment {best.step.kind}` adds "
            f"{counted(len(best.step.rows), 'treatment')} ({counted(best.runs, 'run')}, "
            f"{_hours(best.hours)}) and tells {len(best.step.broken)} of "
            f"{len(best.step.broken) + len(best.step.left)} apart; `penstock plan --augment OUT` has the "
            "other steps."
        )
    return Finding(
        "effect-aliased",
        "warning",
        f"What is said of {response} rests on an alias: {'; '.join([*said[:_MOST_NAMED], *more])}. These "
        "runs cannot tell which.",
        evidence,
        advice,
        "Rivals of up to three factors, with at least one factor that has an effect of its own.",
    )


def _cleared(found: Open) -> Finding:
    return Finding(
        "effect-unrivalled",
        "info",
        f"No effect on {found.response} has a plausible rival: whatever it is aliased with has no factor "
        "that has an effect by itself.",
        {"table": "effects", "response": found.response, "terms": found.active},
        "",
        "Rivals of up to three factors were looked at.",
    )


def _hours(hours: float) -> str:
    seconds = 3600 * hours
    return f"about {seconds:.0f} s" if seconds < 120 else f"about {hours:.2g} h"
