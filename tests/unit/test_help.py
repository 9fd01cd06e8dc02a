"""The help pages: every verb in a group, `-h` wherever `--help` is."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from penstock import cli
from penstock.plugins import COMMANDS


@pytest.fixture
def shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """What a command line prints into a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def show(*words: str) -> str:
        assert not cli._build()(words, prog_name="penstock", standalone_mode=False)
        return capsys.readouterr().out

    return show


def below(verb: str) -> list[str]:
    return list(getattr(cli._command(verb), "commands", ()))


LINES = [(), *((v,) for v in cli.VERBS), *((v, w) for v in cli.VERBS for w in below(v))]


def test_each_file_is_one_row() -> None:
    files = pkgutil.iter_modules([str(Path(cli.__file__).parent)])
    core = {verb for rows in cli.CORE.values() for verb in rows}
    assert {f.name for f in files if not f.ispkg} == core
    assert set(cli.VERBS) - core <= set(COMMANDS.own)


def test_the_page_has_every_verb_in_its_group(shown: Callable[..., str]) -> None:
    page = shown("--help")
    assert max(map(len, page.splitlines())) <= 100
    for group, rows in cli.GROUPS.items():
        section = page[page.index(f"\n{group}:\n") :].split("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()[2:]] == list(rows)


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_h_is_help(words: tuple[str, ...], shown: Callable[..., str]) -> None:
    page = shown(*words, "-h")
    assert page == shown(*words, "--help")
    assert "-h, --help" in page
    assert not [line for line in page.splitlines() if line.endswith("...") and "Usage" not in line]


def test_a_slip_is_put_right() -> None:
    with pytest.raises(typer.BadParameter.__base__, match="Did you mean 'undo'"):
        cli._build()(["unod"], standalone_mode=False)
