"""docs/monitoring-compared.md: every command and test that it names is there, every claim has a source."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock import cli

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "monitoring-compared.md").read_text()
#: requirements, cases, tools
TABLES = [
    [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in table.splitlines()[2:]
        if row.startswith("|")
    ]
    for table in re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE)
]


def named_in(cell: str) -> list[tuple[str, str]]:
    """File and name of every test that a cell names; `::NAME` alone is of the file before it."""
    found = []
    file = ""
    for path, name in re.findall(r"`([a-z_/0-9]*(?:\.py)?)::(test_[a-z_0-9]+)`", cell):
        file = path.removeprefix("tests/") or file
        found.append((file, name))
    return found


def commands_in(cell: str) -> list[str]:
    return re.findall(r"`(penstock [^`]*)`", cell)


NAMED = [(f, n) for table in TABLES for row in table for cell in row for f, n in named_in(cell)]
COMMANDS = [c for table in TABLES for row in table for cell in row for c in commands_in(cell)]


def test_the_tables_are_those_that_it_has() -> None:
    requirements, cases, tools = TABLES
    assert (len(requirements), len(cases)) == (10, 14)
    # the published table has so many + in each column
    assert [sum(row[k] == "+" for row in requirements) for k in range(1, 6)] == [6, 6, 2, 7, 5]
    assert all(len(row) == 6 for row in tools)
    assert len(NAMED) > 40
    assert len(COMMANDS) > 15


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_every_test_that_is_named_is_there(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file(), f"{file} is not there"
    assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_every_command_that_is_named_is_there(line: str) -> None:
    _, verb, *words = shlex.split(line)
    assert verb in cli.VERBS
    command = cli._command(verb)
    below = getattr(command, "commands", None)
    if below is not None:
        assert words[0] in below, line
        command = below[words[0]]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for word in words:
        if word.startswith("-") and word != "--":
            assert word in options, f"{line}: {word}"


def test_every_row_of_penstock_is_shown_and_every_other_cell_has_a_source() -> None:
    requirements, cases, tools = TABLES
    for row in [*requirements, *cases]:
        assert named_in(row[-1]), row
    sources = set(re.findall(r"^(\d+)\. ", TEXT.split("## Sources")[1], re.MULTILINE))
    for row in tools[1:]:
        assert named_in(row[1]) or commands_in(row[1]), row
        for cell in row[2:]:
            cited = re.findall(r"\[(\d+)\]", cell)
            assert set(cited) <= sources
            assert cited or cell in ("unknown", ""), f"{row[0]}: {cell!r} without a source"
