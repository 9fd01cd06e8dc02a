"""docs/monitoring-compared.md: commands and tests exist, and every claim has a source."""

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


def named_tests(cell: str) -> list[tuple[str, str]]:
    """File and name of each test in a cell; `::NAME` alone refers to the previous file."""
    tests = []
    file = ""
    for path, name in re.findall(r"`([a-z_/0-9]*(?:\.py)?)::(test_[a-z_0-9]+)`", cell):
        file = path.removeprefix("tests/") or file
        tests.append((file, name))
    return tests


def commands_in(cell: str) -> list[str]:
    return re.findall(r"`(penstock [^`]*)`", cell)


TESTS = [(f, n) for table in TABLES for row in table for cell in row for f, n in named_tests(cell)]
COMMANDS = [c for table in TABLES for row in table for cell in row for c in commands_in(cell)]


def test_tables_of_the_page() -> None:
    requirements, cases, tools = TABLES
    assert (len(requirements), len(cases)) == (10, 14)
    # numbers of + per column of the published table
    assert [sum(row[k] == "+" for row in requirements) for k in range(1, 6)] == [6, 6, 2, 7, 5]
    assert all(len(row) == 6 for row in tools)
    assert len(TESTS) > 40
    assert len(COMMANDS) > 15


@pytest.mark.parametrize(("file", "name"), sorted(set(TESTS)))
def test_every_named_test_exists(file: str, name: str) -> None:
    path = ROOT / "tests" / file
    assert path.is_file(), f"{file} does not exist"
    assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{file}::{name}"


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_every_named_command_exists(line: str) -> None:
    _, verb, *arguments = shlex.split(line)
    assert verb in cli.VERBS
    command = cli._command(verb)
    subcommands = getattr(command, "commands", None)
    if subcommands is not None:
        assert arguments[0] in subcommands, line
        command = subcommands[arguments[0]]
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for argument in arguments:
        if argument.startswith("-") and argument != "--":
            assert argument in options, f"{line}: {argument}"


def test_rows_have_tests_and_cells_have_sources() -> None:
    requirements, cases, tools = TABLES
    for row in [*requirements, *cases]:
        assert named_tests(row[-1]), row
    sources = set(re.findall(r"^(\d+)\. ", TEXT.split("## Sources")[1], re.MULTILINE))
    for row in tools[1:]:
        assert named_tests(row[1]) or commands_in(row[1]), row
        for cell in row[2:]:
            cited = re.findall(r"\[(\d+)\]", cell)
            assert set(cited) <= sources
            assert cited or cell in ("unknown", ""), f"{row[0]}: {cell!r} without a source"
