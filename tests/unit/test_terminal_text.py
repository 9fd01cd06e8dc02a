"""Text of input files on a terminal: literal, neither as markup nor as control sequences."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from rich.progress import Progress
from rich.text import Text

from penstock.console import Console, TextColumn
from penstock.errors import escaped
from penstock.terminal import escaped_output, plain_table, show
from tests.support import commands

PENSTOCK = Path("python/penstock")
HOSTILE = "\x1b[31mred\x1b]0;pwn\x07 \x9b2J \u202egnp.exe"
STUDY = """penstock: 1
name: q
question: "Does A \\e[31mred\\e]0;pwn\\a matter?"
factors:
  A: {levels: [lo, hi]}
design: {kind: full}
platform: {nodes: [{name: n}]}
workload: {command: "echo {A}"}
responses: {y: {from: wall_s, unit: s, better: lower}}
"""
#: characters that no text may send to a terminal, other than ends of lines and tabs
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_controls_are_escaped_and_lines_stay() -> None:
    assert escaped(HOSTILE) == (r"\x1b[31mred\x1b]0;pwn\x07 \u009b2J \u202egnp.exe")
    assert escaped("über\tµs\nnext − 1 ✓\n") == "über\tµs\nnext − 1 ✓\n"
    assert escaped("\ud800") == r"\ud800"


def test_json_stays_the_same_object(capsys: pytest.CaptureFixture[str]) -> None:
    with escaped_output():
        print(json.dumps({"a": HOSTILE}, ensure_ascii=False))
        print(json.dumps({"a": HOSTILE}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert json.loads(line) == {"a": HOSTILE}
        assert not CONTROLS.search(line)


def test_the_original_output_is_restored_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with escaped_output(), escaped_output():
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before


def test_brackets_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table(("what",), ("late [ms]",))
    for name in ("manager, a request [us]", "[b]stage[/b]", "x[/y]", "[red]z", ":smile:", HOSTILE):
        table.add_row(name, "190.8")
    show(table)
    shown = capsys.readouterr().out
    for text in ("late [ms]", "a request [us]", "[b]stage[/b]", "x[/y]", "[red]z", ":smile:"):
        assert text in shown
    assert not CONTROLS.search(shown)
    assert r"\x1b[31mred" in shown


@pytest.mark.parametrize("content", [HOSTILE, Text(HOSTILE), Text(HOSTILE, style="bold")])
def test_a_console_on_a_terminal_sends_only_its_own_styles(content: str | Text) -> None:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=100).print(content, style="red")
    assert "\x1b[" in stream.getvalue()
    assert not CONTROLS.search(re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()))


def test_a_progress_bar_shows_brackets() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with Progress(TextColumn("{task.description}"), console=console) as bar:
        bar.add_task("r001 x[/y] \x1b]0;pwn\x07")
    assert r"r001 x[/y] \x1b]0;pwn" in stream.getvalue()


@pytest.mark.parametrize("argv", [["plan"], ["plan", "--set", "design.kind=\x1b[31m"]])
def test_no_verb_prints_control_characters(tmp_path: Path, argv: list[str]) -> None:
    study = tmp_path / "s\x1b[31m.yaml"
    study.write_text(STUDY)
    result = commands.run(
        [sys.executable, "-m", "penstock", argv[0], str(study), *argv[1:]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stdout + result.stderr
    assert not CONTROLS.search(result.stdout + result.stderr)


def test_rich_is_used_only_through_our_console() -> None:
    """Rich's own console interprets text as markup."""
    forbidden = re.compile(
        r"from rich\.console import|from rich import print|import.*\bTextColumn\b.*|rich\.print"
    )
    offending = [
        f"{path}: {line}"
        for path in PENSTOCK.rglob("*.py")
        if path.name != "console.py"
        for line in path.read_text().splitlines()
        if forbidden.search(line) and "penstock.console" not in line
    ]
    assert not offending
