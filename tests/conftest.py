"""What holds for every test: a measurement of this host that departs is made again before it counts."""

from __future__ import annotations

from typing import Any

import pytest

#: how often a failed test of the host is run again; a wrong disk, tracer or network fails every time
AGAIN = 2
#: outcomes that prove nothing, and the options that bound how many there may be
BUDGETS = (("rerun", "--most-reruns"), ("skipped", "--most-skips"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--most-reruns", type=int, help="fail if tests were run again more often")
    parser.addoption("--most-skips", type=int, help="fail if more tests were skipped")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says how often the suite looked again or looked away, beside what is allowed."""
    for outcome, option in BUDGETS:
        count, most = len(terminalreporter.stats.get(outcome, [])), config.getoption(option)
        allowed = "" if most is None else f" of at most {most}"
        terminalreporter.write_line(f"{outcome}: {count}{allowed}")
        if most is not None and count > most:
            terminalreporter.write_line(f"too many tests {outcome}: they prove nothing", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for outcome, option in BUDGETS:
        most = session.config.getoption(option)
        if most is not None and reporter and len(reporter.stats.get(outcome, [])) > most:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `host` share the processors with whatever else runs on the machine.

    A moment without a processor moves a rate or a time as a fault does, but does not come back
    on demand. The summary names every test that was run again (`-rR`).
    """
    for item in items:
        if item.get_closest_marker("host") and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=AGAIN, reruns_delay=2))
