"""Rules of the test run: reasons of skips, every test in one target, comparison of costs."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import costs
from tools import test_costs

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
INI = "[pytest]\nmarkers =\n  host: planted\n"
Run = Callable[..., pytest.RunResult]


def plant(place: Path, suite: str) -> None:
    """Write a suite next to the project's conftest."""
    shutil.copy(ROOT / "conftest.py", place)
    (place / "pytest.ini").write_text(INI)
    (place / "test_planted.py").write_text(suite)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a planted suite with options, in this process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(costs, "_files", copy.deepcopy(costs._files))

    def run_suite(suite: str, *options: str) -> pytest.RunResult:
        plant(pytester.path, suite)
        return pytester.runpytest("-q", f"--rootdir={pytester.path}", *options, ".")

    return run_suite


def run_apart(
    place: Path, suite: str, *options: str, before: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a planted suite in its own process."""
    plant(place, suite)
    argv = [*before, sys.executable, "-m", "pytest", "-q", f"--rootdir={place}", *options, "."]
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(argv, cwd=place, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("reason", "options", "status"),
    [
        ("the host is too busy", (), 0),
        ("the host is too busy", ("--strict-skips",), 1),
        ("busy host: 4 ms late", ("--strict-skips",), 1),
        ("busy host: 4 ms late", ("--strict-skips", "--busy-skips", "1"), 0),
        ("the host is too busy", ("--strict-skips", "--busy-skips", "1"), 1),
        ("kernel: no netem", ("--strict-skips",), 0),
    ],
)
def test_only_a_missing_kernel_feature_or_a_busy_host_excuses_a_skip(
    run: Run, reason: str, options: tuple[str, ...], status: int
) -> None:
    suite = f"import pytest\ndef test_it(): pytest.skip({reason!r})\ndef test_other(): pass\n"
    result = run(suite, *options)
    assert result.ret == status
    assert ("skipped, though not for the kernel" in result.stdout.str()) == bool(status)


def test_long_tests_are_not_started_after_the_deadline(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = (
        "import pytest\n"
        "@pytest.mark.long\ndef test_long(): assert False\n"
        "def test_short(): assert True\n"
    )
    monkeypatch.setenv("PENSTOCK_TEST_DEADLINE", "1")
    result = run(suite, "--strict-skips", "-rs")
    assert result.ret == 0
    assert "1 passed, 1 skipped" in result.stdout.str()
    assert "out of time: " in result.stdout.str()
    monkeypatch.setenv("PENSTOCK_TEST_DEADLINE", "99999999999")
    assert run(suite, "--strict-skips").ret == 1


def test_no_test_is_run_again() -> None:
    """The suite has no plug-in and no mark that reruns a failed test."""
    assert "rerunfailures" not in (ROOT / "requirements/dev.txt").read_text()
    for path in (ROOT / "tests").rglob("*.py"):
        assert "mark." + "flaky" not in path.read_text(), path


@pytest.mark.parametrize("number", ["HUP", "INT"])
def test_tests_rely_on_signals_that_the_caller_ignores(tmp_path: Path, number: str) -> None:
    """Fails if a suite started by nohup, or in the background, inherits the disposition."""
    suite = (
        "import signal, subprocess, sys\n"
        "def test_it():\n"
        f"    code = 'import signal; print(signal.getsignal(signal.SIG{number}) is signal.SIG_IGN)'\n"
        "    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "    assert done.stdout == 'False\\n'\n"
    )
    shell = ("sh", "-c", f'trap "" {number}; exec "$@"', "sh")
    assert signal.getsignal(getattr(signal, f"SIG{number}")) is not signal.SIG_IGN
    result = run_apart(tmp_path, suite, before=shell)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_test_is_in_one_target() -> None:
    """Each target runs a part selected by marks; each test is in exactly one part."""
    parts, selected = [], []
    for target in ("pytest", "test-long"):
        listing = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True
        )
        lines = [line for line in listing.stdout.splitlines() if " -m pytest " in line]
        parts += [line.split(' -m "')[1].split('"')[0] for line in lines]
        selected += [set(re.findall(r"--files-marked (\w+)", line)) for line in lines]
    assert len(parts) == 4
    # every test of a part has the marks by which its files are selected
    for part, marks in zip(parts, selected, strict=True):
        for mark in marks:
            assert not eval(part, {"long": True, "timed": True, mark: False}), (part, mark)
    for long in (True, False):
        for timed in (True, False):
            chosen = [p for p in parts if eval(p, {"long": long, "timed": timed})]
            assert len(chosen) == 1, (long, timed, chosen)


def test_only_files_that_name_a_mark_are_collected(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_broken.py").write_text("raise AssertionError('collected')\n")
    suite = "import pytest\n@pytest.mark.long\ndef test_it(): pass\n"
    result = run(suite, "--files-marked", "long")
    assert (result.ret, "1 passed" in result.stdout.str()) == (0, True)
    assert run(suite).ret == 2


def test_a_file_names_the_marks_of_its_tests(run: Run) -> None:
    suite = "import pytest\npytestmark = getattr(pytest.mark, 'lo' + 'ng')\ndef test_it(): pass\n"
    result = run(suite)
    assert result.ret == 4
    assert "expected pytest.mark.long in the file" in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("folder", ["tests", "studies/tests", "bench/tests"])
def test_tests_are_collected_without_a_folder(folder: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert folder in settings["testpaths"]


def test_a_file_that_costs_more_is_named(tmp_path: Path) -> None:
    """A machine of another speed is no growth; a file that grew by more than half is."""
    recorded = {f"test_{i}.py": {"tests": 1, "cpu_s": 20.0, "wall_s": 20.0} for i in range(9)}
    slower = {name: {**row, "cpu_s": 50.0} for name, row in recorded.items()}
    assert test_costs.grown(slower, recorded) == []
    slower["test_3.py"]["cpu_s"] = 90.0
    (line,) = test_costs.grown(slower, recorded)
    assert line.startswith("test_3.py: 90 s")
    slower["test_new.py"] = {"tests": 1, "cpu_s": 500.0, "wall_s": 500.0}
    assert len(test_costs.grown(slower, recorded)) == 1


@pytest.mark.parametrize(("cpu_s", "status"), [(35.0, 0), (45.0, 1)])
def test_a_file_that_costs_twice_as_much_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cpu_s: float,
    status: int,
) -> None:
    recorded = {f"test_{i}.py": {"tests": 1, "cpu_s": 20.0, "wall_s": 20.0} for i in range(9)}
    monkeypatch.setattr(test_costs, "RECORD", tmp_path / "costs.json")
    (tmp_path / "costs.json").write_text(json.dumps({"files": recorded}))
    now = recorded | {"test_3.py": {"tests": 1, "cpu_s": cpu_s, "wall_s": cpu_s}}
    (tmp_path / "now.json").write_text(json.dumps({"files": now}))
    assert test_costs.main("compare", str(tmp_path / "now.json")) == status
    assert "test_3.py" in capsys.readouterr().out


def test_costs_are_measured_per_file(tmp_path: Path) -> None:
    """Processor time of the test's process and of its children, in a run with two workers."""
    suite = (
        "import subprocess, sys\n"
        "BURN = 'import time\\nend = time.process_time() + 0.4\\nwhile time.process_time() < end: pass'\n"
        "def test_it(): subprocess.run([sys.executable, '-c', BURN], check=True)\n"
        "def test_own(): exec(BURN, {})\n"
    )
    written = tmp_path / "costs.json"
    result = run_apart(tmp_path, suite, "-p", "xdist", "-n", "2", "--costs", str(written))
    assert result.returncode == 0, result.stdout + result.stderr
    row = json.loads(written.read_text())["files"]["test_planted.py"]
    assert row["tests"] == 2
    assert row["cpu_s"] > 0.75
