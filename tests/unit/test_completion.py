"""Completion as it is installed, asked for by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: by shell: how it is asked what could follow {line}, after what was installed is loaded
ASKED = {
    "bash": """
        source ~/.bashrc
        COMP_WORDS=({line}''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        $(complete -p penstock | sed 's/.*-F \\([^ ]*\\) .*/\\1/') penstock
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        compdef() {{ asked=$1 }}; _arguments() {{ print -r -- $1 }}; _files() {{ print files }}
        source ~/.zfunc/_penstock
        words=({line}''); CURRENT=${{#words}}
        $asked
    """,
    "fish": """
        source ~/.config/fish/completions/penstock.fish
        complete --do-complete '{line}'
    """,
}


@pytest.fixture(params=ASKED)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def told(shell: str, home: Path, script: str) -> str:
    """What a script in that shell prints, whose `penstock` is the one under test."""
    program = home / "bin" / "penstock"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
        program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), "-c", script],
        env={**os.environ, "HOME": str(home), "PATH": path, "XDG_CONFIG_HOME": f"{home}/.config"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_installed_completes(shell: str, tmp_path: Path) -> None:
    assert "installed" in told(shell, tmp_path, "penstock --install-completion; true")

    def after(line: str) -> str:
        return told(shell, tmp_path, ASKED[shell].format(line=line))

    verbs = after("penstock ")
    assert {"run", "trace", "explore"} <= set(verbs.replace('"', " ").split())
    assert ("Plan, run, observe" in verbs) == (shell != "bash")  # bash shows no descriptions
    assert "schedule" in after("penstock disk ")
    assert "run" not in after("penstock disk ").replace('"', " ").split()


def test_what_is_shown_is_what_is_installed(shell: str, tmp_path: Path) -> None:
    told(shell, tmp_path, "penstock --install-completion; true")
    shown = told(shell, tmp_path, "penstock --show-completion; true")
    installed = [f for f in tmp_path.rglob("*penstock*") if f.is_file() and f.parent.name != "bin"]
    assert [f.read_text().strip() for f in installed] == [shown.strip()]
