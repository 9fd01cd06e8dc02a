"""Processor time of each test file: measured in a test run, stored, and compared with the recorded one.

`--costs FILE` writes `{"files": {path: {"tests", "cpu_s", "wall_s"}}}` at the end of a run. Processor time is
that of the process that runs the test, of the descendants it waited for, and of the commands that the fork
server ran for it. `tools/test_costs.py` joins the files of several runs and compares them with
`tests/costs.json`.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support import commands

#: property of a test's last report with its cost
COST = "cost"
_started: dict[str, tuple[float, float]] = {}
_files: dict[str, dict[str, float]] = defaultdict(lambda: {"tests": 0, "cpu_s": 0.0, "wall_s": 0.0})


def cpu_s() -> float:
    """Processor time so far of this process, its ended descendants and its forked commands [s]."""
    process = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        process.ru_utime + process.ru_stime + children.ru_utime + children.ru_stime + commands.cpu_s
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="write the processor time of each test file")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    _started[nodeid] = cpu_s(), time.monotonic()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Generator[None, Any, None]:
    outcome = yield
    if call.when == "teardown" and item.nodeid in _started:
        cpu, wall = _started.pop(item.nodeid)
        cost = cpu_s() - cpu, time.monotonic() - wall
        outcome.get_result().user_properties.append((COST, cost))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties if report.when == "teardown" else ():
        if name == COST:
            row = _files[report.nodeid.partition("::")[0]]
            row["tests"] += 1
            row["cpu_s"] += value[0]
            row["wall_s"] += value[1]


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--costs")
    if path and not hasattr(session.config, "workerinput"):
        rows = {
            name: {k: round(v, 2) for k, v in row.items()} for name, row in sorted(_files.items())
        }
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"files": rows}, indent=1) + "\n")
