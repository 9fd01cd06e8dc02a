"""The fork server of the tests: a forked command behaves as a real start does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import commands

ROOT = Path(__file__).parents[2]
STUDY = str(ROOT / "examples/access-patterns.study.yaml")
LINE = [sys.executable, "-m", "penstock"]


@pytest.mark.parametrize(
    "argv",
    [
        ["--version"],
        ["nosuch"],
        ["plan", STUDY, "--json"],
        ["plan", "no.yaml"],
        ["ls", "--json"],
        [],
    ],
    ids=lambda argv: " ".join(argv)[:12],
)
def test_status_and_output_are_those_of_a_real_start(tmp_path: Path, argv: list[str]) -> None:
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state"), "COLUMNS": "100"}
    options = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
    forked = commands.run([*LINE, *argv], **options)
    real = subprocess.run([*LINE, *argv], **options)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr == real.stderr


def test_environment_and_directory_are_the_given_ones(tmp_path: Path) -> None:
    state = tmp_path / "a"
    commands.penstock("ls", env={**os.environ, "PENSTOCK_STATE": str(state)}, check=True)
    assert state.is_dir()
    (tmp_path / "x.yaml").write_text("[]\n")
    done = commands.penstock("plan", "x.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "x.yaml" in done.stderr


def test_output_goes_where_it_is_sent(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        done = commands.run([*LINE, "nosuch"], stdout=out, stderr=subprocess.STDOUT)
    assert done.stdout is None
    assert "No such command" in (tmp_path / "out").read_text()
    assert commands.run([*LINE, "--version"], stdout=subprocess.PIPE).stdout.strip()


def test_a_failure_is_raised_when_it_is_checked() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        commands.penstock("nosuch", check=True)


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        commands.penstock("monitor", "run", "--", "sleep", "60", env=env, timeout=2)
    assert time.monotonic() - begin < 50


def test_descendants_of_a_command_count_as_its_cost() -> None:
    before = commands.cpu_s
    commands.penstock("--help", check=True)
    assert commands.cpu_s > before


def test_a_line_that_is_not_penstock_is_run_as_it_is() -> None:
    done = commands.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)
    assert done.stdout == "1\n"


def test_names_that_are_no_text_reach_the_command_as_they_are(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe.yaml"
    forked, real = (
        run([*LINE, "plan", name], capture_output=True, text=True)
        for run in (commands.run, subprocess.run)
    )
    assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr)
    assert forked.returncode == 2
