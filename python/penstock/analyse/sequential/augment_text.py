"""Text on possible additions to a study, for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.analyse.sequential.aliased import Open, Proposal, rival_text
from penstock.analyse.statistics.few_runs import in_few_runs
from penstock.design.generators import term_of
from penstock.design.show import MODEL_TEXTS, duration, paragraph, table
from penstock.text import counted, first_of, listed, term_text

#: maximum numbers of listed steps, and of pairs that the recommended one leaves aliased
_MOST_STEPS = 12
_MOST_REMAINING = 10


def augment_json(aliasing: Open, proposals: list[Proposal]) -> dict[str, Any]:
    """Questions, steps and the recommended one as plain values."""
    best = aliasing.best()
    return {
        "response": aliasing.response,
        "active": aliasing.active,
        "questions": [
            {
                "term": term_of(q.term, aliasing.names),
                "plausible": [term_of(w, aliasing.names) for w in q.plausible],
                "other": [term_of(w, aliasing.names) for w in q.other],
                "shares": {term_of(w, aliasing.names): s for w, s in q.shares.items()},
            }
            for q in aliasing.open_questions
        ],
        "stop": (aliasing.plan.two_level or aliasing.partial) and not aliasing.doubted,
        "recommended": aliasing.to_json(best) if best is not None else None,
        "steps": [aliasing.to_json(p) for p in proposals],
    }


def augment_text(aliasing: Open, proposals: list[Proposal]) -> str:
    """The questions, and steps that resolve them."""
    return "\n".join(_lines(aliasing, proposals))


def _lines(aliasing: Open, proposals: list[Proposal]) -> Iterator[str]:
    if not aliasing.plan.two_level and not aliasing.unresolved:
        yield from _levels(aliasing, proposals)
        return
    yield f"{aliasing.plan.study_id}: effects on {aliasing.response} that may belong to other terms"
    if not aliasing.active:
        yield paragraph(
            "  No effect shows, so there is nothing to distinguish; replicates narrow the intervals."
        )
        for finding in in_few_runs(aliasing.outcome):
            if finding.evidence["response"] == aliasing.response:
                yield paragraph(f"  {finding.statement} {finding.what_to_do}")
        return
    yield from _questions(aliasing)
    if not aliasing.doubted:
        yield ""
        if aliasing.unresolved:
            yield paragraph(
                "No rival is plausible, because an interaction rarely exists without an effect of its "
                "factors. The aliases above are not excluded; these steps would separate them."
            )
        elif aliasing.partial:
            yield "No rival is plausible; parts of interactions may still be in the effects."
            return
        else:
            full = not aliasing.plan.fraction
            yield (
                "Every term is alone in its contrast: nothing needs to be added."
                if full
                else "No plausible rival of up to three factors is left."
            )
            return
    yield ""
    yield "Steps, those that break most rivals per hour first"
    yield from _steps(proposals, aliasing.names)
    yield ""
    yield from _recommended(aliasing)


def _questions(aliasing: Open) -> Iterator[str]:
    """The open questions with their rivals, and partial aliases."""
    names = aliasing.names
    for question in aliasing.open_questions:
        rivals = [rival_text(w, question, names) for w in question.plausible]
        rivals_text = listed(rivals, "or") if rivals else "no plausible one"
        short = [term_text(term_of(w, names)) for w in question.other if w.bit_count() <= 2]
        rest = len(question.other) - len(short)
        others = [*short, *([counted(rest, "other")] if rest else [])]
        more = f" (without an active factor: {listed(others, 'or')})" if others else ""
        yield paragraph(f"  {term_text(term_of(question.term, names))}: {rivals_text}{more}")
    if not aliasing.open_questions and not aliasing.partial:
        yield paragraph("  Every active effect is alone in its contrast, up to three factors.")
    if aliasing.partial:
        yield from _partial(aliasing)


def _steps(proposals: list[Proposal], names: list[str]) -> Iterator[str]:
    """Table of the proposed steps."""
    shown = (
        proposals
        if len(proposals) <= _MOST_STEPS
        else [*proposals[: _MOST_STEPS - 1], proposals[-1]]
    )
    return table(
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
                str(len(p.step.remaining)),
                f"{p.per_hour:.3g}",
                ", ".join(term_text(term_of(w, names)) for w in p.step.stage[:2])
                + (", …" if len(p.step.stage) > 2 else ""),
            ]
            for p in shown
        ],
    )


def _recommended(aliasing: Open) -> Iterator[str]:
    """The recommended step, and the rivals that it leaves."""
    best = aliasing.best()
    if best is None:
        yield paragraph("No single step breaks any of them.")
        return
    recommended = aliasing.to_json(best)
    yield paragraph(
        f"Recommended: --augment {best.step.kind}, the fewest runs that break the plausible rivals of "
        "fewest factors. "
        + (
            f"Together the rows have I = {' = '.join(recommended['defining_relation'][1:])}. "
            if len(recommended["defining_relation"]) > 1
            else "Together no two terms share one column in all rows. "
        )
        + (
            "The difference between the stages is that of "
            f"{listed([term_text(t) for t in recommended['stage_difference']])}, too."
            if recommended["stage_difference"]
            else ""
        )
    )
    remaining = [
        f"{term_text(p['term'])} with {term_text(p['rival'])}" for p in recommended["rivals_left"]
    ]
    if remaining:
        yield paragraph(f"Still aliased then: {listed(first_of(remaining, _MOST_REMAINING))}.")


def _partial(aliasing: Open) -> Iterator[str]:
    """Terms that explain the runs in a design with partial aliases, and their shares."""
    for one in aliasing.explained.sets[:3]:
        yield paragraph(f"  Explained by {listed([term_text(t) for t in one])} alone.")
    if not aliasing.explained.main_alone:
        yield paragraph("  Not explained by the terms of the model alone.")
    for term in aliasing.active[:6]:
        shares = [s for s in aliasing.shares.get(term, []) if not s.exact]
        if shares:
            yield paragraph(
                f"  {term_text(term)} includes up to {abs(shares[0].share):.2g} of each of "
                f"{counted(len(shares), 'interaction')}, such as {term_text(shares[0].rival)}."
            )


def _levels(aliasing: Open, proposals: list[Proposal]) -> Iterator[str]:
    """Possible additions to a design with more than two levels."""
    plan = aliasing.plan
    now = f"They tell {MODEL_TEXTS[plan.model]}." if plan.model else "Nothing is mixed in them."
    yield f"{plan.study_id}: what could be added to {counted(plan.treatments, 'treatment')}"
    yield paragraph(f"  {now}")
    yield from _partial(aliasing)
    yield ""
    rows = []
    for one in proposals:
        model = aliasing.model_after(one.step)
        rows.append(
            [
                one.step.kind,
                str(len(one.step.rows)),
                str(one.runs),
                duration(3600 * one.hours),
                MODEL_TEXTS[model] if model else "all that there is",
            ]
        )
    yield from table(["--augment", "treatments", "runs", "time", "tells then"], rows)
