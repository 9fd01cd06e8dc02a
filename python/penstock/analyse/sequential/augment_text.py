"""What could be added to a study, for reading in a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.analyse.sequential.aliased import Open, Proposal, rival_text
from penstock.analyse.statistics.few_runs import in_few_runs
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
                "shares": {term_of(w, found.names): s for w, s in q.shares.items()},
            }
            for q in found.asked
        ],
        "stop": (found.plan.two_level or found.partial) and not found.doubted,
        "recommended": found.to_json(best) if best is not None else None,
        "steps": [found.to_json(p) for p in proposals],
    }


def augment_text(found: Open, proposals: list[Proposal]) -> str:
    """The questions, and steps that would answer them."""
    return "\n".join(_lines(found, proposals))


def _lines(found: Open, proposals: list[Proposal]) -> Iterator[str]:
    if not found.plan.two_level and not found.unresolved:
        yield from _levels(found, proposals)
        return
    names = found.names
    yield f"{found.plan.study_id}: effects on {found.response} that other terms may be behind"
    if not found.active:
        yield paragraph(
            "  No effect shows, so there is nothing to tell apart; replicates narrow the intervals."
        )
        for finding in in_few_runs(found.outcome):
            if finding.evidence["response"] == found.response:
                yield paragraph(f"  {finding.statement} {finding.what_to_do}")
        return
    for question in found.asked:
        rivals = [rival_text(w, question, names) for w in question.plausible]
        said = listed(rivals, "or") if rivals else "no plausible one"
        short = [term_text(term_of(w, names)) for w in question.other if w.bit_count() <= 2]
        rest = len(question.other) - len(short)
        others = [*short, *([counted(rest, "other")] if rest else [])]
        more = f" (without an active factor: {listed(others, 'or')})" if others else ""
        yield paragraph(f"  {term_text(term_of(question.term, names))}: {said}{more}")
    if found.active and not found.asked and not found.partial:
        yield paragraph("  Every active effect is alone in its contrast, up to three factors.")
    if found.partial:
        yield from _partial(found)
    if not found.doubted:
        yield ""
        if found.unresolved:
            yield paragraph(
                "No rival is plausible, because an interaction rarely exists without an effect of its "
                "factors. The aliases above are not excluded; these steps would separate them."
            )
        elif found.partial:
            yield "No rival is plausible; parts of interactions may still be in the effects."
            return
        else:
            full = not found.plan.fraction
            yield (
                "Every term is alone in its contrast: nothing needs to be added."
                if full
                else "No plausible rival of up to three factors is left."
            )
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


def _partial(found: Open) -> Iterator[str]:
    """What explains the runs where terms hold parts of others, and how much they may hold."""
    for one in found.explained.sets[:3]:
        yield paragraph(f"  Explained by {listed([term_text(t) for t in one])} alone.")
    if not found.explained.main_alone:
        yield paragraph("  Not explained by the terms of the model alone.")
    for term in found.active[:6]:
        held = [s for s in found.shares.get(term, []) if not s.exact]
        if held:
            yield paragraph(
                f"  {term_text(term)} holds up to {abs(held[0].share):.2g} of each of "
                f"{counted(len(held), 'interaction')}, such as {term_text(held[0].rival)}."
            )


def _levels(found: Open, proposals: list[Proposal]) -> Iterator[str]:
    """What could be added where factors have more than two levels."""
    plan = found.plan
    now = f"They tell {MODEL_WORDS[plan.model]}." if plan.model else "Nothing is mixed in them."
    yield f"{plan.study_id}: what could be added to {counted(plan.treatments, 'treatment')}"
    yield paragraph(f"  {now}")
    yield from _partial(found)
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
