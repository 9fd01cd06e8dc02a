"""Rules of every test run: signal dispositions, marks, and which skips count as failures."""

from __future__ import annotations

import os
import signal

import pytest

pytest_plugins = ["tests.support.costs"]

#: reasons for a skip that `--strict-skips` accepts begin so: the kernel lacks what the test is about
KERNEL = "kernel: "

# matrices are small here: threads of BLAS take more processor time waiting for each other than they save
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# a shell that starts a suite in the background, or nohup, has it ignore signals, and so would every program
# that the tests start; tests rely on the dispositions of a terminal
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        default = signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, default)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips",
        action="store_true",
        help=f"fail if a test was skipped for a reason that does not begin with '{KERNEL}'",
    )


def _unexcused(config: pytest.Config) -> list[tuple[str, str]]:
    """Skipped tests that `--strict-skips` does not accept, each with its reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("--strict-skips"):
        return []
    reasons = ((r.nodeid, str(r.longrepr[2])) for r in reporter.stats.get("skipped", []))
    reasons = ((test, reason.removeprefix("Skipped: ")) for test, reason in reasons)
    return [(test, reason) for test, reason in reasons if not reason.startswith(KERNEL)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for test, reason in _unexcused(terminalreporter.config):
        terminalreporter.write_line(
            f"skipped, though not for the kernel: {test}: {reason}", red=True
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexcused(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


#: folders whose tests need root, FUSE, BPF or a virtual machine, whatever they are about
HOST = ("tests/integration/", "tests/guest/", "tests/fuzz/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the host."""
    for item in items:
        if item.nodeid.startswith(HOST):
            item.add_marker(pytest.mark.host)
