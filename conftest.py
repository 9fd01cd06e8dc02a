"""What holds for every test: who may be run again, and how often a suite may look again or look away."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

#: how often a failed test of the host is run again; one of fidelity never is
AGAIN = 2
#: what proves nothing, and the options that bound how much of it there may be
BUDGETS = (
    ("rerun", "--most-reruns"),
    ("skipped", "--most-skips"),
    ("readings taken again", "--most-retaken"),
)
#: a test says so (`record_property`) for each reading that a witness of the host called invalid
RETAKEN = "reading taken again"

# matrices are small here: threads of BLAS take more processor time waiting for each other than they save
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# a shell that starts a suite in the background has it ignore Ctrl-C, and so would every program it starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    for what, option in BUDGETS:
        parser.addoption(option, type=int, help=f"fail if more is counted under '{what}'")


def counted(reporter: Any, outcome: str) -> int:
    if outcome in ("rerun", "skipped"):
        return len(reporter.stats.get(outcome, []))
    # a test that gave up is among the skipped: the readings that it gave up after are not counted again
    reports = (r for o in ("passed", "failed", "rerun") for r in reporter.stats.get(o, []))
    said = (name for r in reports if r.when == "call" for name, _ in r.user_properties)
    return sum(name == RETAKEN for name in said)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says how often the suite looked again or looked away, beside what is allowed."""
    for outcome, option in BUDGETS:
        count, most = counted(terminalreporter, outcome), config.getoption(option)
        allowed = "" if most is None else f" of at most {most}"
        terminalreporter.write_line(f"{outcome}: {count}{allowed}")
        if most is not None and count > most:
            terminalreporter.write_line(f"too many {outcome}: they prove nothing", red=True)
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message if crash else str(report.longrepr)
        terminalreporter.write_line(f"run again: {report.nodeid}: {why[:500]}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for outcome, option in BUDGETS:
        most = session.config.getoption(option)
        if most is not None and reporter and counted(reporter, outcome) > most:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `host` share the processors with whatever else runs on the machine.

    A moment without a processor moves a time-out as a fault does, but does not come back on demand: they are
    run again twice, and the summary names them (`-rR`). Those marked `fidelity` judge what was delivered. Run
    again until they pass, they would let through what is wrong half of the time: they take several readings.
    """
    for item in items:
        if item.get_closest_marker("fidelity"):
            item.add_marker(pytest.mark.flaky(reruns=0))
        elif item.get_closest_marker("host") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=AGAIN, reruns_delay=2))
