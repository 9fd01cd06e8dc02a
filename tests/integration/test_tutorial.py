"""Run docs/tutorial.md: write every file and run every command, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from penstock.host.journal.journal import Journal
from tests.integration.known_host import with_known_host
from tests.support.environment import environment_in

pytestmark = [
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.timed,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
]

ROOT = Path(__file__).parents[2]
#: a file in a fence with its name, or an indented line with a command
STEP = re.compile(
    r"^```\w+ (?P<file>\S+)\n(?P<text>.*?)^```$|^    (?P<command>\S[^\n]*)$", re.M | re.S
)
#: commands that install the program, which is installed already
SET_UP = ("make ", "export ")
#: verbs that exit with 1 if a busy host made all runs of a treatment invalid, as the page says
MAY_EXIT_WITH_1 = ("penstock run", "penstock analyse")


def steps() -> list[tuple[str | None, str]]:
    """Files (name, text) and commands (None, command), in the order of the page."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    return [(m["file"], m["text"] or m["command"]) for m in STEP.finditer(page)]


def test_the_tutorial_runs(tmp_path: Path) -> None:
    with_known_host(tmp_path / "state")
    for name, text in steps():
        if name is not None:
            (tmp_path / name).write_text(text)
            continue
        if text.startswith(SET_UP):
            continue
        result = in_shell(text, tmp_path)
        verb = " ".join(text.split()[:2])
        allowed = (0, 1) if verb in MAY_EXIT_WITH_1 and some_runs_are_invalid(tmp_path) else (0,)
        assert result.returncode in allowed, f"{text}\n{result.stdout}\n{result.stderr}"
        CHECKS.get(verb, lambda *_: None)(result.stdout, tmp_path)
    assert not (tmp_path / "out").exists()
    assert not Journal(tmp_path / "state" / "journal.jsonl").open_entries()


def in_shell(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = environment_in(directory)
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    argv = ["bash", "-euc", command]
    return subprocess.run(
        argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=240
    )


def some_runs_are_invalid(directory: Path) -> bool:
    """True if all eight runs finished and some are invalid."""
    runs = pd.read_parquet(directory / "out" / "runs.parquet")
    assert (runs.state == "finished").all(), list(runs.reason)
    return len(runs) == 8 and not runs.valid.all()


def check_findings(output: str, _: Path) -> None:
    assert "flush" in output


def check_study_file(output: str, directory: Path) -> None:
    assert output.split() == ["load.study.yaml"]
    assert (directory / "load.study.yaml").exists()


def check_wal_is_faster(_: str, directory: Path) -> None:
    runs = pd.read_parquet(directory / "out" / "runs.parquet")
    assert len(runs) == 8
    # a busy host changes rates by a few per cent; the page claims factors of several times
    means = runs.groupby(["disk", "journal"]).rate.mean()
    for disk in ("hdd-7200", "network-volume"):
        assert means[disk, "WAL"] > 2 * means[disk, "DELETE"]
    assert means["network-volume", "WAL"] > means["hdd-7200", "WAL"]
    assert (directory / "out" / "report.html").stat().st_size > 10_000


CHECKS = {
    "penstock trace": check_findings,
    "penstock init": check_study_file,
    "penstock run": check_wal_is_faster,
}


def test_the_tutorial_has_the_checked_verbs_and_files() -> None:
    commands = {" ".join(text.split()[:2]) for name, text in steps() if name is None}
    assert set(CHECKS) <= commands
    assert {name for name, _ in steps() if name} == {"load.py", "load.study.yaml"}
