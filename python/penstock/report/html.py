"""The report: one self-contained HTML file from the tables of an OUT directory."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from penstock.analyse.findings.answer import answer
from penstock.analyse.findings.finding import Finding
from penstock.analyse.findings.findings import write_findings
from penstock.analyse.outcome import Outcome
from penstock.errors import PenstockError
from penstock.report import methods, sections
from penstock.report.all_figures import plates
from penstock.report.figures.effects import of_levels
from penstock.report.figures.series import selected_runs
from penstock.report.glossary import explained
from penstock.report.nodes import nodes
from penstock.report.page import template, text_of
from penstock.version import version


def write_report(results: Outcome | Path | str, computed: list[Finding] | None = None) -> Path:
    """Write `OUT/report.html` and `OUT/figures/*.svg|pdf`; return the page.

    `computed`: the findings of these results; if None they are computed and written to
    `OUT/findings.parquet`. A section with a missing table reports it. BadInput if the directory does not
    contain results.
    """
    outcome = results if isinstance(results, Outcome) else Outcome.read(results)
    computed = write_findings(outcome) if computed is None else computed
    main = outcome.responses[0].name if outcome.responses else None
    conclusion = answer(outcome, computed)
    cost = sections.cost_of_main(outcome)
    stated = [] if conclusion is None else conclusion.findings
    rest = [f for f in computed if f.code not in sections.CAUTIONS and f not in stated]
    shown, more = sections.findings_in_two(rest)
    figures = plates(outcome, outcome.path / "figures")
    page = template("report.html.j2").render(
        title=outcome.name,
        study_id=outcome.study_id,
        question=outcome.question,
        answer=conclusion,
        beside=sections.beside(outcome),
        ranked=sections.ranked(outcome),
        tiles=sections.tiles(outcome),
        findings=shown,
        more_findings=more,
        main=main,
        figures=figures,
        absent=sections.absent(outcome, figures),
        levels=sections.level_means(outcome),
        costs=sections.costs_table(outcome, cost),
        captions={
            "costs": sections.costs_caption(outcome, cost),
            **sections.effects_captions(outcome),
            **methods.CAPTIONS,
            "responses": "Every run as one mark, the best treatment first. Hollow marks are left out of the "
            "analysis.",
            "utilisation": sections.utilisation_caption(outcome),
            "show_levels": "" if of_levels(outcome) else "yes",
        },
        methods=methods.methods(outcome),
        factors=len(outcome.factors),
        responses=[
            {"name": r.name, "title": sections.response_title(r)} for r in outcome.responses
        ],
        validity=sections.validity(outcome),
        prediction=sections.prediction(outcome),
        fractions=sections.fractions(outcome),
        patterns=sections.patterns(outcome),
        trace_pages=trace_pages(outcome),
        nodes=nodes(outcome),
        fidelity=sections.fidelity(outcome),
        observers=sections.observers(outcome),
        aliases=sections.aliases(outcome),
        cautions=sections.cautions(outcome, computed),
        repeat=sections.repeat(outcome),
        anova={t["response"]: t for t in sections.anova(outcome)},
        all_runs=sections.all_runs(outcome),
        version=version(),
        css=Markup(text_of("page.css")),
        js=Markup(text_of("page.js")),
    )
    path = outcome.path / "report.html"
    path.write_text(explained(page, _names(outcome)), encoding="utf-8")
    return path


def _names(outcome: Outcome) -> list[str]:
    """Names of the study's responses, factors and levels."""
    names = [r.name for r in outcome.responses]
    return names + [name for f in outcome.factors for name in (f.name, *f.levels)]


def trace_pages(outcome: Outcome) -> list[str]:
    """Runs with displayed traces; each has its own page in its bundle."""
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.report.trace.page import write_trace_report

    written = []
    for run_id in selected_runs(outcome, "io_events"):
        try:
            write_trace_report(TracedRun(outcome.path / "runs" / run_id))
        except (PenstockError, OSError):
            continue  # an unexpected bundle must not cost the study its report
        written.append(run_id)
    return written
