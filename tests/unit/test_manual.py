"""The manual pages are those of the command line, and can be set."""

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


def test_the_pages_are_those_of_the_command_line() -> None:
    written = {file.name: file.read_text() for file in (DOCS / "man" / "man1").iterdir()}
    assert written == PAGES, "run: make manual"


def unknown(verb: str, prose: str) -> set[str]:
    """Options that the prose about a verb names, and the verb has not."""
    command = cli._command(verb)
    commands = [command, *getattr(command, "commands", {}).values()]
    there = {word for one in commands for p in one.params for word in (*p.opts, *p.secondary_opts)}
    return set(re.findall(r"--[a-z][a-z-]*", prose.replace("\\-", "-"))) - there


def test_the_prose_names_options_that_there_are() -> None:
    by_verb = {f.stem: f.read_text() for f in (DOCS / "man" / "prose").iterdir()}
    by_verb.pop("penstock")
    found = {name: unknown(name.removeprefix("penstock-"), by_verb[name]) for name in by_verb}
    assert set().union(*found.values()) == set()
    assert unknown("trace", by_verb["penstock-trace"] + "\\-\\-no\\-such") == {"--no-such"}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_set(name: str) -> None:
    words = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww"]
    done = subprocess.run(words, input=PAGES[name].encode(), capture_output=True, check=True)
    assert done.stderr == b""


def test_the_page_about_tracing_has_every_finding() -> None:
    page = (DOCS / "trace.md").read_text()
    assert {code for code in CODES if f"`{code}`" not in page} == set()
