"""The installed completion, requested by the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: by shell: script that prints the completions of {line} after loading the installed file
SCRIPTS = {
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


@pytest.fixture(params=SCRIPTS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def output_of(shell: str, home: Path, script: str) -> str:
    """Output of a script in a shell in which `penstock` is the version under test."""
    program = home / "bin" / "penstock"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
        program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    result = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else []), "-c", script],
        env={**os.environ, "HOME": str(home), "PATH": path, "XDG_CONFIG_HOME": f"{home}/.config"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_installed_completion_works(shell: str, tmp_path: Path) -> None:
    assert "installed" in output_of(shell, tmp_path, "penstock --install-completion; true")

    def completions(line: str) -> str:
        return output_of(shell, tmp_path, SCRIPTS[shell].format(line=line))

    verbs = completions("penstock ")
    assert {"run", "trace", "explore"} <= set(verbs.replace('"', " ").split())
    assert ("Plan, run, observe" in verbs) == (shell != "bash")  # bash shows no descriptions
    assert "schedule" in completions("penstock disk ")
    assert "run" not in completions("penstock disk ").replace('"', " ").split()


def test_the_shown_completion_is_the_installed_one(shell: str, tmp_path: Path) -> None:
    output_of(shell, tmp_path, "penstock --install-completion; true")
    shown = output_of(shell, tmp_path, "penstock --show-completion; true")
    installed = [f for f in tmp_path.rglob("*penstock*") if f.is_file() and f.parent.name != "bin"]
    assert [f.read_text().strip() for f in installed] == [shown.strip()]
