"""The page of one traced run: self-contained, readable offline, without network requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.bundle import command_line
from penstock.errors import printable
from penstock.report.glossary import explained
from penstock.report.page import template, text_of
from penstock.report.trace import sections
from penstock.report.trace.embed import head_of, packed, script_json
from penstock.report.trace.gather import Gathered, gather
from penstock.version import version

_SCRIPTS = ("page.js", "trace_read.js", "trace_clock.js", "trace_draw.js", "trace_figure.js")


def write_trace_report(run: TracedRun) -> Path:
    """Write `report.html` into a trace's bundle; return its path.

    BadInput for an unreadable table.
    """
    path = run.path / "report.html"
    draft = path.with_name(".report.html.partial")
    try:
        draft.write_text(trace_page(run, gather(run)), encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def scripts(*, served: bool) -> list[str]:
    """The scripts of a trace's page as text."""
    return ["\n".join(map(text_of, _SCRIPTS)), *([text_of("trace_served.js")] if served else [])]


def trace_page(run: TracedRun, gathered: Gathered | None, *, served: bool = False) -> str:
    """The page as text; a `served` one may request details below the size of its cells from its server."""
    manifest = run.manifest
    drawings = gathered.drawings if gathered else []
    figures: list[dict[str, Any]] = [
        sections.figure_facts(run, drawing)
        | {
            "head": Markup(script_json(head_of(drawing, run, gathered.origin_ns))),
            "data": Markup(packed(drawing)),
        }
        for drawing in drawings
        if gathered is not None
    ]
    page = template("trace.html.j2").render(
        title=printable(command_line(manifest)[:300]) or "a running system",
        closing=printable(
            run.from_disk(str(manifest.get("closing") or "No closing sentence was stored."))
        ),
        state=_state(manifest),
        tiles=sections.tiles(run, gathered),
        findings=_findings(run),
        files=sections.files(run, gathered),
        figures=figures,
        no_figures=_why_none(run),
        coverage=sections.coverage(gathered) if gathered else "",
        gaps=bool(run.gaps),
        evidence=sections.evidence(run, drawings),
        receipt=sections.receipt(run),
        repeat=sections.repeat(run),
        version=version(),
        connect=Markup("; connect-src 'self'") if served else "",
        css=Markup(text_of("page.css") + text_of("trace.css")),
        scripts=[Markup(script) for script in scripts(served=served)],
    )
    return explained(page)


def _findings(run: TracedRun) -> list[dict[str, str]]:
    return [
        {
            "code": f.code,
            "severity": f.severity,
            "statement": printable(f.statement),
            "what_to_do": printable(f.what_to_do or ""),
        }
        for f in run.findings
    ]


def _state(manifest: Mapping[str, Any]) -> str:
    status = manifest.get("exit_status")
    parts = []
    if status not in (0, None):
        parts.append(f"The command ended with status {status}.")
    if manifest.get("reason"):
        parts.append(printable(f"{manifest['reason']}."))
    return " ".join(parts)


def _why_none(run: TracedRun) -> str:
    if run.has("io_events"):
        return "no call moved bytes of a regular file."
    mode = run.receipt.get("mode") or "pattern"
    return f"mode {mode} stores counters, not single calls. Figures need `--mode trace`."
