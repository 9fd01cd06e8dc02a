"""The fork server of the tests: a forked command behaves like a started process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands

ROOT = Path(__file__).parents[2]
STUDY = str(ROOT / "examples/access-patterns.study.yaml")
PENSTOCK = [sys.executable, "-m", "penstock"]


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
def test_status_and_output_equal_a_started_process(tmp_path: Path, argv: list[str]) -> None:
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state"), "COLUMNS": "100"}
    options = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
    forked = commands.run([*PENSTOCK, *argv], **options)
    real = subprocess.run([*PENSTOCK, *argv], **options)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert forked.stderr == real.stderr


def test_environment_and_directory_are_passed(tmp_path: Path) -> None:
    state = tmp_path / "a"
    commands.penstock("ls", env={**os.environ, "PENSTOCK_STATE": str(state)}, check=True)
    assert state.is_dir()
    (tmp_path / "x.yaml").write_text("[]\n")
    result = commands.penstock("plan", "x.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert "x.yaml" in result.stderr


def test_output_is_redirected(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        result = commands.run([*PENSTOCK, "nosuch"], stdout=out, stderr=subprocess.STDOUT)
    assert result.stdout is None
    assert "No such command" in (tmp_path / "out").read_text()
    assert commands.run([*PENSTOCK, "--version"], stdout=subprocess.PIPE).stdout.strip()


def test_check_raises_on_failure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        commands.penstock("nosuch", check=True)


def test_timeout_kills_the_command(tmp_path: Path) -> None:
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path / "state")}
    begin = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        commands.penstock("monitor", "run", "--", "sleep", "60", env=env, timeout=2)
    assert time.monotonic() - begin < 50


def test_cpu_time_includes_descendants() -> None:
    before = commands.cpu_s
    commands.penstock("--help", check=True)
    assert commands.cpu_s > before


def test_other_programs_run_as_processes() -> None:
    result = commands.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)
    assert result.stdout == "1\n"


CODE = "import sys; print({}, sys.argv, __name__); sys.exit(3)"


@pytest.mark.parametrize("run", [commands.run, subprocess.run], ids=["forked", "real"])
def test_code_is_run_with_its_arguments_and_status(run: Callable[..., Any]) -> None:
    forked = run is commands.run
    code = CODE.format("'penstock.campaign.run' in sys.modules")
    result = run([*commands.CODE, code, "a"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (3, f"{forked} ['-c', 'a'] __main__\n")


def test_plugins_follow_the_environment() -> None:
    """Fails if a forked command uses the rows of the fork server or of an earlier command."""
    code = "from penstock.plugins import TABLES; print({'toy' in list(t) for t in TABLES})"
    toys = {**os.environ, "PYTHONPATH": str(commands.PLUGINS)}
    for env, expected in ((None, False), (toys, True), (None, False)):
        result = commands.run([*commands.CODE, code], env=env, capture_output=True, text=True)
        assert (result.returncode, result.stdout) == (0, f"{{{expected}}}\n"), result.stderr


def test_undecodable_names_are_passed_unchanged(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe.yaml"
    forked, real = (
        run([*PENSTOCK, "plan", name], capture_output=True, text=True)
        for run in (commands.run, subprocess.run)
    )
    assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr)
    assert forked.returncode == 2


@pytest.mark.parametrize("popen", [commands.popen, subprocess.Popen], ids=["forked", "real"])
def test_a_started_command_has_the_interface_of_a_process(
    tmp_path: Path, popen: Callable[..., subprocess.Popen[str]]
) -> None:
    """Fails if poll, wait with a timeout, signals, pipes or the status differ from subprocess."""
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    argv = [
        *PENSTOCK,
        "monitor",
        "run",
        "--name",
        "x",
        "--",
        "sh",
        "-c",
        "read a; echo got $a; exit 7",
    ]
    pipe = subprocess.PIPE
    with popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert isinstance(process, commands.Forked) == (popen is commands.popen)
        assert Path(f"/proc/{process.pid}").exists()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        out, _ = process.communicate("it\n", timeout=60)
    assert out.splitlines()[0] == "got it"
    assert process.returncode == process.poll() == process.wait() == 7


def test_killed_command_has_the_signal_as_status(tmp_path: Path) -> None:
    env = {**os.environ, "PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    argv = [*PENSTOCK, "serve", "--port", "0"]
    for popen in (commands.popen, subprocess.Popen):
        with popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"http://")
            process.kill()
            assert process.wait(60) == -signal.SIGKILL
        assert not Path(f"/proc/{process.pid}").exists()


def test_abandoned_command_does_not_disturb_later_ones() -> None:
    abandoned = commands.popen([*PENSTOCK, "--version"], stdout=subprocess.DEVNULL)
    cycle: list[Any] = [abandoned]
    cycle.append(cycle)
    del abandoned, cycle
    gc.collect()
    assert commands.penstock("--version").returncode == 0
