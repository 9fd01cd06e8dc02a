"""Help pages: every verb is in a group, and `-h` equals `--help`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from penstock import cli
from penstock.plugins import COMMANDS


@pytest.fixture
def output_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Return the output of a command line in a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv: str) -> str:
        assert not cli._build()(argv, prog_name="penstock", standalone_mode=False)
        return capsys.readouterr().out

    return run


def subcommands(verb: str) -> list[str]:
    return list(getattr(cli._command(verb), "commands", ()))


COMMAND_LINES = [
    (),
    *((v,) for v in cli.VERBS),
    *((v, w) for v in cli.VERBS for w in subcommands(v)),
]


def test_each_module_is_one_verb() -> None:
    files = pkgutil.iter_modules([str(Path(cli.__file__).parent)])
    core = {verb for rows in cli.CORE.values() for verb in rows}
    assert {f.name for f in files if not f.ispkg} == core
    assert set(cli.VERBS) - core <= set(COMMANDS.own)


def test_help_lists_every_verb_in_its_group(output_of: Callable[..., str]) -> None:
    page = output_of("--help")
    assert max(map(len, page.splitlines())) <= 100
    for group, rows in cli.GROUPS.items():
        section = page[page.index(f"\n{group}:\n") :].split("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()[2:]] == list(rows)


@pytest.mark.parametrize("argv", COMMAND_LINES, ids=" ".join)
def test_h_is_help(argv: tuple[str, ...], output_of: Callable[..., str]) -> None:
    page = output_of(*argv, "-h")
    assert page == output_of(*argv, "--help")
    assert "-h, --help" in page
    assert not [line for line in page.splitlines() if line.endswith("...") and "Usage" not in line]


def test_typo_has_a_suggestion() -> None:
    with pytest.raises(typer.BadParameter.__base__, match="Did you mean 'undo'"):
        cli._build()(["unod"], standalone_mode=False)
