"""Rules of every test run: signal dispositions, marks, and which skips count as failures."""

from __future__ import annotations

import functools
import gc
import os
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from penstock.scratch import remove_abandoned

pytest_plugins = ["tests.support.costs"]

#: reasons for a skip that `--strict-skips` accepts begin so: the kernel lacks what the test is about
KERNEL = "kernel: "
#: those of tests whose readings the host spoiled, as a source beside the reading says, begin so
BUSY = "busy host: "
#: those of long tests that were not started any more because a run is near the end of its time begin so
LATE = "out of time: "
#: until when long tests are started [s since 1970]
DEADLINE = "PENSTOCK_TEST_DEADLINE"

# matrices are small here: threads of BLAS take more processor time waiting for each other than they save
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# no property depends on how busy the host is
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

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
    parser.addoption(
        "--busy-skips",
        type=int,
        default=0,
        metavar="N",
        help=f"with --strict-skips: accept up to N skips whose reason begins with '{BUSY}'",
    )
    parser.addoption(
        "--files-marked",
        action="append",
        default=[],
        choices=MARKS,
        help="collect only test files that name this mark: importing all of them takes several seconds",
    )


#: memory for one worker and what its tests start [bytes]
WORKER_BYTES = 2 << 30


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Workers of `-n logical`: two per processor, as many tests wait, if the memory is enough for them."""
    processors = len(os.sched_getaffinity(0))
    available = psutil.virtual_memory().available // WORKER_BYTES
    return max(processors, min(2 * processors, available))


def _unexcused(config: pytest.Config) -> list[tuple[str, str]]:
    """Skipped tests that `--strict-skips` does not accept, each with its reason."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not config.getoption("--strict-skips"):
        return []
    reasons = ((r.nodeid, str(r.longrepr[2])) for r in reporter.stats.get("skipped", []))
    reasons = ((test, reason.removeprefix("Skipped: ")) for test, reason in reasons)
    others = [one for one in reasons if not one[1].startswith((KERNEL, LATE))]
    busy = [one for one in others if one[1].startswith(BUSY)]
    if len(busy) > config.getoption("--busy-skips"):
        return others
    return [one for one in others if one not in busy]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for test, reason in _unexcused(terminalreporter.config):
        terminalreporter.write_line(
            f"skipped, though not for the kernel: {test}: {reason}", red=True
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexcused(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a long test after the deadline of a run that would be cut off."""
    deadline = os.environ.get(DEADLINE)
    if deadline and item.get_closest_marker("long") and time.time() > float(deadline):
        pytest.skip(f"{LATE}${DEADLINE} is over")


#: marks that `--files-marked` selects by; a file that uses one names it
MARKS = ("long", "timed")


@functools.cache
def _names(path: Path, mark: str) -> bool:
    """True if a test file names a mark."""
    return f"pytest.mark.{mark}" in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore test files without the marks asked for."""
    if collection_path.suffix != ".py":
        return None
    marks = config.getoption("--files-marked")
    return None if all(_names(collection_path, mark) for mark in marks) else True


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Generator[None, None, None]:
    """Collect no garbage while tests are collected, nor later among what their imports left."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter's last collection find all objects: libraries complain of those that are left.

    Remove temporary directories of the processes that tests killed, too.
    """
    gc.unfreeze()
    remove_abandoned(Path(tempfile.gettempdir()))


#: folders whose tests need root, FUSE, BPF or a virtual machine, whatever they are about
HOST = ("tests/integration/", "tests/guest/", "tests/fuzz/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the host; refuse a mark that a file uses and does not name."""
    unnamed = set()
    for item in items:
        if item.nodeid.startswith(HOST):
            item.add_marker(pytest.mark.host)
        unnamed |= {
            f"{item.path}: found tests marked '{mark}'; expected pytest.mark.{mark} in the file"
            for mark in MARKS
            if item.get_closest_marker(mark) and not _names(item.path, mark)
        }
    if unnamed:
        raise pytest.UsageError("\n".join(sorted(unnamed)))
