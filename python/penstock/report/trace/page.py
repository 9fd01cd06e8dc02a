"""The page of one traced run: self-contained, opens offline, asks nobody for anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from markupsafe import Markup

from penstock.analyse.trace_findings import findings_of
from penstock.archive.bundle import command_line
from penstock.errors import printable
from penstock.report.glossary import explained
from penstock.report.html import template, text_of
from penstock.report.trace import sections
from penstock.report.trace.embed import head_of, packed, script_json
from penstock.report.trace.gather import Gathered, gather
from penstock.report.trace.run import Bundle
from penstock.version import version

_SCRIPTS = ("page.js", "trace_read.js", "trace_clock.js", "trace_draw.js", "trace_figure.js")


def write_trace_report(bundle_dir: Path | str) -> Path:
    """Writes `report.html` into a trace bundle; returns its path.

    Raises BadInput where the directory is no bundle or a table cannot be read.
    """
    bundle = Bundle(bundle_dir)
    path = bundle.path / "report.html"
    draft = path.with_name(".report.html.partial")
    try:
        draft.write_text(trace_page(bundle, gathered_of(bundle)), encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def gathered_of(bundle: Bundle) -> Gathered | None:
    """What the figures are drawn from; None where only counters were kept."""
    if bundle.events is None:
        return None
    whole = bundle.workload
    return gather(bundle.events, whole.start_ns if whole else None, bundle.marks)


def scripts(*, served: bool) -> list[str]:
    """The scripts of a trace's page, as they stand in it."""
    return ["\n".join(map(text_of, _SCRIPTS)), *([text_of("trace_served.js")] if served else [])]


def trace_page(bundle: Bundle, gathered: Gathered | None, *, served: bool = False) -> str:
    """The page as text; a `served` one may ask its server for what lies below its own cells."""
    manifest = bundle.manifest
    drawings = gathered.drawings if gathered else []
    figures: list[dict[str, Any]] = [
        sections.figure_facts(bundle, drawing)
        | {
            "head": Markup(script_json(head_of(drawing, bundle, gathered.origin_ns))),
            "data": Markup(packed(drawing)),
        }
        for drawing in drawings
        if gathered is not None
    ]
    page = template("trace.html.j2").render(
        title=printable(command_line(manifest)[:300]) or "a running system",
        closing=printable(
            bundle.run.from_disk(str(manifest.get("closing") or "No closing sentence was kept."))
        ),
        state=_state(manifest),
        tiles=sections.tiles(bundle, gathered),
        findings=_findings(bundle),
        files=sections.files(bundle, gathered),
        figures=figures,
        no_figures=_why_none(bundle),
        coverage=sections.coverage(gathered) if gathered else "",
        gaps=bool(bundle.gaps),
        evidence=sections.evidence(bundle, drawings),
        receipt=sections.receipt(bundle),
        repeat=sections.repeat(bundle),
        version=version(),
        connect=Markup("; connect-src 'self'") if served else "",
        css=Markup(text_of("page.css") + text_of("trace.css")),
        scripts=[Markup(script) for script in scripts(served=served)],
    )
    return explained(page)


def _findings(bundle: Bundle) -> list[dict[str, str]]:
    return [
        {
            "code": f.code,
            "severity": f.severity,
            "statement": printable(f.statement),
            "what_to_do": printable(f.what_to_do or ""),
        }
        for f in findings_of(bundle.path)
    ]


def _state(manifest: dict[str, Any]) -> str:
    status = manifest.get("exit_status")
    parts = []
    if status not in (0, None):
        parts.append(f"The command ended with status {status}.")
    if manifest.get("reason"):
        parts.append(printable(f"{manifest['reason']}."))
    return " ".join(parts)


def _why_none(bundle: Bundle) -> str:
    if bundle.events is not None:
        return "no call moved bytes of a regular file."
    mode = bundle.receipt.get("mode") or "pattern"
    return f"mode {mode} keeps counters, not every call. `--mode trace` records what figures are drawn from."
