"""Commands in README and docs name verbs and options that exist; help states each default once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
#: in a line of a code block, or in code within a line
_COMMAND = re.compile(r"(?:^ {4,}(?:\$ )?|`)(?:sudo )?penstock ([^`\n]*)", re.MULTILINE)


@functools.cache
def verb(name: str) -> Any:
    return cli._command(name)


def commands(text: str) -> Iterator[list[str]]:
    """Words after `penstock` of each command of a page, up to a comment, a pipe or `--`."""
    for line in _COMMAND.findall(text.replace("\\\n", " ").replace("\\|", "|")):
        arguments = re.split(r" #| [|;&>]+ |; | -- ", f"{line} ")[0].split()
        if arguments and re.fullmatch(r"[a-z]+", arguments[0]):
            yield arguments


def mistakes(text: str) -> list[str]:
    """Verbs and options of a page's commands that the command line does not have."""
    missing = []
    for name, *arguments in commands(text):
        if name not in cli.VERBS:
            missing.append(name)
            continue
        command = verb(name)
        subcommands = getattr(command, "commands", {})
        named = arguments[0].rstrip("…").split("|") if subcommands and arguments else []
        chosen = [subcommands[n] for n in named if n in subcommands]
        missing += [f"{name} {n}" for n in named if n.islower() and n not in subcommands]
        parameters = [p for c in [command, *chosen] for p in c.params]
        options = {"--help", *(o for p in parameters for o in [*p.opts, *p.secondary_opts])}
        used = (w.partition("=")[0].rstrip(",.…") for w in arguments)
        missing += [f"{name} {w}" for w in used if re.match(r"--\w", w) and w not in options]
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_pages_exist(page: Path) -> None:
    assert mistakes(page.read_text()) == []


def test_missing_verbs_and_options_are_reported() -> None:
    text = "    penstock nosuch\n`penstock disk stop` `penstock run --slowly \\\n -o OUT`\n"
    assert mistakes(text) == ["nosuch", "disk stop", "run --slowly"]


def _parameters() -> Iterator[tuple[str, Any]]:
    for name in cli.VERBS:
        for subcommand in [verb(name), *getattr(verb(name), "commands", {}).values()]:
            yield from ((f"{name} {subcommand.name}", p) for p in subcommand.params if not p.hidden)


def test_help_of_every_option_states_its_default_once() -> None:
    faults = []
    for name, p in _parameters():
        default = p.default[0] if isinstance(p.default, list) and p.default else p.default
        repeated = rf"[(\[](default:? )?{re.escape(str(default))}[)\]]"
        if not p.help or (default not in (None, (), False, "") and re.search(repeated, p.help)):
            faults.append(f"{name}: {p.opts[0]}")
    assert faults == []
