"""Start-up of the command line: help, version, completion and refusals load no heavy libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import VERBS

#: loading any of these takes longer than the complete command line
HEAVY = (
    "distributed duckdb fastapi httpx jinja2 matplotlib numpy pandas penstock._native pyarrow "
    "pyroute2 rich ruamel.yaml scipy sklearn sqlalchemy statsmodels uvicorn"
).split()

SPY = """
import json, sys
from penstock.cli import main
heavy, lines = json.loads(sys.argv[1])
found = {}
for words in lines:
    sys.argv = ["penstock", *words]
    try:
        main()
    except SystemExit as end:
        status = end.code
    found[" ".join(words)] = [status, [name for name in heavy if name in sys.modules]]
print(json.dumps(found), file=sys.stderr)
"""


#: Typer checks values with it; commands without values to check do not load it
CHECKS = "pydantic"


def loaded(*lines: list[str], **environment: str) -> dict[str, list[object]]:
    """By command line: its exit status and the loaded heavy modules."""
    result = subprocess.run(
        [sys.executable, "-c", SPY, json.dumps([[*HEAVY, CHECKS], lines])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return dict(json.loads(result.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["-h"], 0),
        ([], 2),
        (["nosuch"], 2),
        (["run", "--help"], 0),
        (["run", "--wrong"], 2),
        (["disk", "up", "-h"], 0),
        (["disk", "up", "--wrong"], 2),
    ],
)
def test_help_version_and_refusals_load_no_heavy_modules(argv: list[str], status: int) -> None:
    assert loaded(argv) == {" ".join(argv): [status, []]}


def test_the_help_of_each_verb_loads_no_heavy_modules() -> None:
    command_lines = [[verb, "--help"] for verb in VERBS]
    assert loaded(*command_lines) == {f"{verb} --help": [0, []] for verb in VERBS}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "checked"),
    [("penstock ", []), ("penstock run --", [CHECKS]), ("penstock disk ", [])],
)
def test_completion_loads_no_heavy_modules(shell: str, line: str, checked: list[str]) -> None:
    results = loaded(
        [],
        _PENSTOCK_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS=line,
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        COMP_WORDS=line,
        COMP_CWORD=str(line.count(" ")),
    )
    assert results == {"": [0, checked]}


def test_a_loaded_library_is_detected() -> None:
    assert "ruamel.yaml" in str(loaded(["plan", "no-such-file"]))


#: modules that only the analysis after a run needs
AFTER = ["duckdb", "jinja2", "matplotlib", "pandas", "scipy.stats", "sklearn", "statsmodels"]

START = """
import json, sys
from pathlib import Path
from penstock.campaign.executor import HostExecutor
from penstock.campaign.frozen import campaign, freeze
from penstock.campaign.campaign import _described
from penstock.campaign.run import run_study
from penstock.design.plan import make_plan
from penstock.study.load import load_study
from penstock.study.resolve import resolved_treatments

place = Path(sys.argv[1])
study = load_study(place / "s.study.yaml")
plan = make_plan(study)
treatments = resolved_treatments(study, plan.rows)
freeze(place / "out", study, plan, campaign(study, plan, _described(study, treatments), []))
print(json.dumps([name for name in json.loads(sys.argv[2]) if name in sys.modules]))
"""

STUDY = """penstock: 1
name: small
question: Does it begin?
factors: {a: {levels: [1, 2]}, b: {levels: [1, 2]}}
design: {kind: full, replicates: 2, seed: 7}
platform:
  nodes:
    - {name: n, memory: 64MiB, disks: [{name: data, profile: hdd-7200, time_scale: 64, size: 16MiB}]}
observers: {monitor: {interval: 1s}, trace: {mode: trace}}
workload: {command: "true {a} {b} {data}", expected: 100ms, timeout: 10s}
responses: {time: {from: wall_s, unit: s, better: lower}}
"""


def test_planning_loads_no_modules_of_the_analysis(tmp_path: Path) -> None:
    (tmp_path / "s.study.yaml").write_text(STUDY)
    argv = [sys.executable, "-c", START, str(tmp_path), json.dumps([*AFTER, "numpy"])]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == [
        "numpy"
    ]  # needed: it shows that loaded modules are detected
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["treatments"] == 4


TRACE = """
import json, os, sys
from penstock.cli import main
from penstock.errors import PenstockError
from penstock.observe.trace.capture import programs, session

heavy = json.loads(sys.argv[1])

def start_programs(journal, mode, **settings):
    found = [name for name in heavy if name in sys.modules]
    raise PenstockError(json.dumps([mode, found]))

session.start_programs = start_programs
os.geteuid = lambda: 0
sys.argv = ["penstock", "trace", "--", "true"]
main()
"""


def test_the_tracer_starts_before_the_libraries_that_read_its_records(tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_STATE": str(tmp_path)}
    argv = [sys.executable, "-c", TRACE, json.dumps(HEAVY)]
    result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert result.stderr == 'penstock: ["pattern", []]\n'
    assert result.returncode == 125


DAEMON = """
import sys
import penstock.host.processes.native_daemon
print([name for name in ("ctypes", *sys.argv[1:]) if name in sys.modules])
"""


def test_a_native_daemon_starts_without_the_libraries_of_its_starter() -> None:
    unneeded = ["dataclasses", "penstock.errors", "socket", "subprocess"]
    argv = [sys.executable, "-c", DAEMON, *unneeded]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == "['ctypes']\n"  # needed: it shows that loaded modules are detected


GUEST = """
import sys
before = set(sys.modules)
import penstock.emulate.backends, penstock.emulate.backends.cgroup1, penstock.emulate.backends.cgroup2
import penstock.emulate.backends.image, penstock.host.journal.undo
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
parts = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("penstock.")}
print(sorted(new), sorted(p for p in parts if hasattr(sys.modules[p], "__path__")))
"""


def test_back_ends_load_only_packages_of_the_guest() -> None:
    """`tests/guest` copies these packages into a virtual machine, without any library."""
    stdout = subprocess.run(
        [sys.executable, "-c", GUEST], capture_output=True, text=True, check=True
    ).stdout
    assert stdout == "['penstock'] ['penstock.emulate', 'penstock.host', 'penstock.spec']\n"
