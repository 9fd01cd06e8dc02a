"""HTML pages: live view, dashboards, list of studies and traces, reports.

A page contains no data. Its script asks the user for the token, unless the address contains it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources

from fastapi.responses import HTMLResponse

from penstock.report.page import text_of
from penstock.report.trace.page import scripts as scripts_of_trace


def live_page() -> HTMLResponse:
    """The live view, from the event stream."""
    return _page("live.html", "live.js")


def dashboards_page() -> HTMLResponse:
    """Dashboards of experiments."""
    return _page("dashboards.html", "dashboards.js")


def list_page() -> HTMLResponse:
    """List of studies, their runs, and traces."""
    return _page("list.html", "list.js")


def report_page() -> HTMLResponse:
    """Report of a study."""
    return _page("trace.html", "trace.js", [text_of("page.js")])


def trace_page() -> HTMLResponse:
    """Report of a trace."""
    return _page("trace.html", "trace.js", scripts_of_trace(served=True))


def _page(html: str, script: str, loaded_scripts: Iterable[str] = ()) -> HTMLResponse:
    """A page with its script. Its content security policy allows the script and `loaded_scripts`."""
    # a block keeps its names out of the scope of loaded scripts
    code = f'"use strict";\n{{\n{_text("login.js")}{_text(script)}}}\n'
    parts = {
        "/*page.css*/": text_of("page.css"),
        "/*live.css*/": _text("live.css"),
        "<!--login-->": _text("login.html"),
        "/*script*/": code,
    }
    page = _text(html)
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return HTMLResponse(page, headers={"Content-Security-Policy": _policy([code, *loaded_scripts])})


def _policy(scripts: Iterable[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _text(name: str) -> str:
    folder = resources.files(__package__) / "templates"
    return (folder / name).read_text(encoding="utf-8")
