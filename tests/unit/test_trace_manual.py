"""The manual page names every option that `penstock trace` has, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from penstock.analyse.trace_findings import CODES
from penstock.cli import trace

DOCS = Path(__file__).parents[2] / "docs"


def options() -> set[str]:
    app = typer.Typer()
    app.command()(trace.command)
    shown = [p for p in typer.main.get_command(app).params if not getattr(p, "hidden", False)]
    return {
        word
        for p in shown
        if p.param_type_name == "option"
        for word in (*p.opts, *p.secondary_opts)
        if word.startswith("--") and word not in {"--install-completion", "--show-completion"}
    }


def described(page: str) -> set[str]:
    lines = [line for line in page.splitlines() if line.startswith(".B \\-")]
    return set(re.findall(r"--[a-z][a-z-]*", "\n".join(lines).replace("\\-", "-")))


def test_the_manual_has_the_options_of_the_program() -> None:
    page = (DOCS / "man" / "penstock-trace.1").read_text()
    section = page[page.index(".SH OPTIONS") : page.index(".SH OUTPUT")]
    assert described(section) == options()
    assert described(section.replace("\\-\\-calibrate", "")) != options()  # a lack is seen


def test_the_page_about_tracing_has_every_finding() -> None:
    page = (DOCS / "trace.md").read_text()
    assert {code for code in CODES if f"`{code}`" not in page} == set()
