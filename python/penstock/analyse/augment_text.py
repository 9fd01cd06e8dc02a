"""What could be added to a study, for reading in a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.analyse.aliased import Open, Proposal
from penstock.design.generators import term_of
from penstock.design.show import MODEL_WORDS, duration, paragraph, table
from penstock.text import counted, listed, term_text

#: steps that are listed, and of the recommended one pairs that stay aliased
_MOST_STEPS = 12
_MOST_LEFT = 10


def augment_json(found: Open, proposals: list[Proposal]) -> dict[str, Any]:
    """Questions, steps and the recommended one as plain values."""
    best = found.best()
    return {
        "response": found.response,
        "active": found.active,
        "questions": [
            {
                "term": term_of(q.term, found.names),
                "plausible": [term_of(w, found.names) for w in q.plausible],
                "other": [term_of(w, found.names) for w in q.other],
            }
            for q in found.asked
        ],
        "stop": found.plan.two_level and not found.doubted,
        "recommended": found.to_json(best) if best is not None else None,
        "steps": [found.to_json(p) for p in proposals],
    }


def augment_text(found: Open, proposals: list[Proposal]) -> str:
    """The questions, and steps that would answer them."""
    return "\n".join(_lines(found, proposals))


def _lines(found: Open, proposals: list[Proposal]) -> Iterator[str]:
    if not found.plan.two_level:
        yield from _levels(found, proposals)
        return
    names = found.names
    yield f"{found.plan.study_id}: effects on {found.response} that other terms may be behind"
    if not found.active:
        yield paragraph(
            "  No effect shows, so there is nothing to tell apart; replicates narrow the intervals."
        )
    for question in found.asked:
        rivals = [term_text(term_of(w, names)) for w in question.plausible]
        said = listed(rivals, "or") if rivals else "no plausible one"
        more = f" ({counted(len(question.other), 'other')} without an active factor)"
        yield paragraph(
            f"  {term_text(term_of(question.term, names))}: {said}{more if question.other else ''}"
        )
    if found.active and not found.asked:
        yield paragraph("  Every active effect is alone in its contrast, up to three factors.")
    if not found.doubted:
        yield ""
        yield "No plausible rival is left: nothing needs to be added."
        return
    yield ""
    yield "Steps, those that break most rivals per hour first"
    shown = (
        proposals
        if len(proposals) <= _MOST_STEPS
        else [*proposals[: _MOST_STEPS - 1], proposals[-1]]
    )
    yield from table(
        [
            "--augment",
            "treatments",
            "runs",
            "time",
            "broken",
            "left",
            "per hour",
            "stage difference",
        ],
        [
            [
                p.step.kind,
                str(len(p.step.rows)),
                str(p.runs),
                duration(3600 * p.hours),
                str(len(p.step.broken)),
                str(len(p.step.left)),
                f"{p.per_hour:.3g}",
                ", ".join(term_text(term_of(w, names)) for w in p.step.stage[:2])
                + (", …" if len(p.step.stage) > 2 else ""),
            ]
            for p in shown
        ],
    )
    best = found.best()
    if best is None:
        yield ""
        yield paragraph("No single step breaks any of them.")
        return
    told = found.to_json(best)
    yield ""
    yield paragraph(
        f"Recommended: --augment {best.step.kind}, the fewest runs that break the plausible rivals of "
        "fewest factors. "
        + (
            f"Together the rows have I = {' = '.join(told['defining_relation'][1:])}. "
            if len(told["defining_relation"]) > 1
            else "Together no two terms share one column in all rows. "
        )
        + (
            "The difference between the stages is that of "
            f"{listed([term_text(t) for t in told['stage_difference']])}, too."
            if told["stage_difference"]
            else ""
        )
    )
    left = [f"{term_text(p['term'])} with {term_text(p['rival'])}" for p in told["rivals_left"]]
    if left:
        others = [f"{len(left) - _MOST_LEFT} more"] if len(left) > _MOST_LEFT else []
        yield paragraph(f"Still aliased then: {listed([*left[:_MOST_LEFT], *others])}.")


def _levels(found: Open, proposals: list[Proposal]) -> Iterator[str]:
    """What could be added where factors have more than two levels."""
    plan = found.plan
    now = f"They tell {MODEL_WORDS[plan.model]}." if plan.model else "Nothing is mixed in them."
    yield f"{plan.study_id}: what could be added to {counted(plan.treatments, 'treatment')}"
    yield paragraph(f"  {now} Rivals of effects are told for two-level factors alone.")
    yield ""
    rows = []
    for one in proposals:
        told = found.told_after(one.step)
        rows.append(
            [
                one.step.kind,
                str(len(one.step.rows)),
                str(one.runs),
                duration(3600 * one.hours),
                MODEL_WORDS[told] if told else "all that there is",
            ]
        )
    yield from table(["--augment", "treatments", "runs", "time", "tells then"], rows)
