"""The pages: the live one, the list of what is served, those that fetch a report."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources

from fastapi.responses import HTMLResponse

from penstock.report.page import text_of
from penstock.report.trace.page import scripts as scripts_of_trace


def live_page() -> HTMLResponse:
    """The page of what goes on; it asks for the token and then for the stream of what changes."""
    return _page("live.html", "live.js")


def dashboards_page() -> HTMLResponse:
    """The page of dashboards; it asks for the token where the server wants one."""
    return _page("dashboards.html", "dashboards.js")


def list_page() -> HTMLResponse:
    """The page that asks for the token and then lists studies, their runs, and traces."""
    return _page("list.html", "list.js")


def report_page() -> HTMLResponse:
    """The page that asks for the token and then becomes a study's report."""
    return _page("trace.html", "trace.js", [text_of("page.js")])


def trace_page() -> HTMLResponse:
    """The page that asks for the token and then becomes a trace's report."""
    return _page("trace.html", "trace.js", scripts_of_trace(served=True))


def _page(html: str, script: str, later: Iterable[str] = ()) -> HTMLResponse:
    """A page with its script; its policy allows that one and those of what is loaded `later`."""
    # in a block: its names must not stand in the way of those of what is loaded
    code = f'"use strict";\n{{\n{_text("door.js")}{_text(script)}}}\n'
    parts = {
        "/*page.css*/": text_of("page.css"),
        "/*live.css*/": _text("live.css"),
        "<!--door-->": _text("door.html"),
        "/*script*/": code,
    }
    page = _text(html)
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return HTMLResponse(page, headers={"Content-Security-Policy": _policy([code, *later])})


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
