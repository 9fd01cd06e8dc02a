"""The suite's own bounds: what is skipped, run again or read again beyond them fails it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: where tests stand
PARTS = ("tests", "studies", "bench")

INI = "[pytest]\nmarkers =\n  host: planted\n  fidelity: planted\n"
SUITE = """
import pytest
from pathlib import Path

def comes_out_right_after(request, times):
    seen = Path(request.config.rootpath) / request.node.name
    with seen.open("a") as file:
        file.write("x")
    assert seen.stat().st_size > times

@pytest.mark.host
def test_right_the_second_time(request):
    comes_out_right_after(request, 1)

@pytest.mark.skip(reason="planted")
def test_not_run():
    pass

def test_two_readings_were_invalid(record_property):
    for _ in range(2):
        record_property("reading taken again", "planted")
"""
GAVE_UP = """
def test_all_readings_were_invalid(record_property):
    for _ in range(18):
        record_property("reading taken again", "planted")
    pytest.skip("planted")
"""
FOURTH = """
@pytest.mark.host
def test_right_the_fourth_time(request):
    comes_out_right_after(request, 3)
"""
FIDELITY = """
@pytest.mark.host
@pytest.mark.fidelity
def test_fidelity_right_the_second_time(request):
    comes_out_right_after(request, 1)
"""


def run(tmp_path: Path, suite: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "conftest.py").write_bytes((ROOT / "conftest.py").read_bytes())
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_planted.py").write_text(suite)
    words = [sys.executable, "-m", "pytest", "-q", "--strict-markers", f"--rootdir={tmp_path}"]
    words += ["-p", "no:cacheprovider", "-p", "pytest_rerunfailures"]
    return subprocess.run(
        [*words, *options, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 0),
        (("--most-reruns=1", "--most-skips=1", "--most-retaken=2"), 0),
        (("--most-reruns=0",), 1),
        (("--most-skips=0",), 1),
        (("--most-retaken=1",), 1),
    ],
)
def test_what_proves_nothing_is_counted(
    tmp_path: Path, options: tuple[str, ...], status: int
) -> None:
    done = run(tmp_path, SUITE, *options)
    assert done.returncode == status, done.stdout + done.stderr
    why = "run again: test_planted.py::test_right_the_second_time: AssertionError"
    for line in ("rerun: 1", "skipped: 1", "readings taken again: 2", why):
        assert line in done.stdout


def test_what_gave_up_is_skipped_and_not_counted_twice(tmp_path: Path) -> None:
    done = run(tmp_path, SUITE + GAVE_UP, "--most-skips=2", "--most-retaken=2")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("skipped: 2 of at most 2", "readings taken again: 2 of at most 2"):
        assert line in done.stdout
    assert run(tmp_path, SUITE + GAVE_UP, "--most-skips=1").returncode == 1


@pytest.mark.parametrize("never", [FOURTH, FIDELITY])
def test_a_host_test_is_run_again_twice_and_one_of_fidelity_never(
    tmp_path: Path, never: str
) -> None:
    done = run(tmp_path, SUITE + never)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed" in done.stdout


@pytest.mark.parametrize("target", ["pytest", "test-long"])
def test_make_runs_every_file_of_tests_once(target: str) -> None:
    """A file that no line names is checked by nobody, one that two name is checked twice."""
    done = subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if " -m pytest " in line]
    named = [word for line in lines for word in line.split() if word.startswith(PARTS)]
    files = [
        path.relative_to(ROOT)
        for part in PARTS
        for path in (ROOT / part).rglob("test_*.py")
        if ".venv" not in path.parts
    ]
    assert len(files) > 100
    for file in files:
        over = [str(file), *map(str, file.parents)]
        assert sum(named.count(place) for place in over) == 1, file


@pytest.mark.parametrize("folder", ["studies/tests", "bench/tests"])
def test_tests_beside_what_they_test_are_collected(folder: str) -> None:
    """By the settings of the project, wherever pytest is started without a folder."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert folder in settings["testpaths"]
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--most-skips=0", folder]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (ROOT / folder).glob("test_*.py"):
        assert f"{folder}/{path.name}::" in done.stdout
