"""Manual pages match the command line and are valid roff."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from penstock import cli
from penstock.analyse.traces.trace_findings import CODES
from tools.manual import pages

DOCS = Path(__file__).parents[2] / "docs"
PAGES = pages()


def test_pages_match_the_command_line() -> None:
    written = {file.name: file.read_text() for file in (DOCS / "man" / "man1").iterdir()}
    assert written == PAGES, "run: make manual"


def unknown(verb: str, prose: str) -> set[str]:
    """Options in the prose about a verb that the verb does not have."""
    command = cli._command(verb)
    commands = [command, *getattr(command, "commands", {}).values()]
    existing = {
        option
        for subcommand in commands
        for p in subcommand.params
        for option in (*p.opts, *p.secondary_opts)
    }
    return set(re.findall(r"--[a-z][a-z-]*", prose.replace("\\-", "-"))) - existing


def test_prose_names_existing_options() -> None:
    by_verb = {f.stem: f.read_text() for f in (DOCS / "man" / "prose").iterdir()}
    by_verb.pop("penstock")
    unknown_options = {
        name: unknown(name.removeprefix("penstock-"), by_verb[name]) for name in by_verb
    }
    assert set().union(*unknown_options.values()) == set()
    assert unknown("trace", by_verb["penstock-trace"] + "\\-\\-no\\-such") == {"--no-such"}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_valid_roff(name: str) -> None:
    argv = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww"]
    result = subprocess.run(argv, input=PAGES[name].encode(), capture_output=True, check=True)
    assert result.stderr == b""


def test_documentation_of_tracing_names_every_finding() -> None:
    page = (DOCS / "trace.md").read_text()
    assert {code for code in CODES if f"`{code}`" not in page} == set()
