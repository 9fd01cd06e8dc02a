"""The live page of nodes and disks: one file, its styles those of the reports."""

from __future__ import annotations

from importlib import resources

from penstock.report.html import text_of


def live_page() -> str:
    """The page as HTML; it asks for the token and then for the stream of states."""
    folder = resources.files("penstock.serve") / "templates"
    parts = {
        "/*page.css*/": text_of("page.css"),
        "/*live.css*/": (folder / "live.css").read_text(encoding="utf-8"),
        "/*live.js*/": (folder / "live.js").read_text(encoding="utf-8"),
    }
    page = (folder / "live.html").read_text(encoding="utf-8")
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page
